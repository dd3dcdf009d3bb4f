//! A long stretch of one request that nothing else explains.
//!
//! Other detectors look for what happens again and again. This one is about a single time: the
//! guest asks for something, and for a good part of the whole trace nothing comes, or nothing
//! is recorded. It says what was last seen, what ended it and who was waited for, no more; so
//! it is never of high severity.

use super::blame_tree::doing;
use super::view::LEAST_COUNT;
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Breakdown, Key, Subject, SubjectKind};
use crate::evidence::thread::{State, Waker};
use crate::evidence::tree::Frame;
use crate::evidence::wait_for::Piece;
use crate::kind::Why;
use crate::moment::{Place, Tid};
use crate::result::{Link, Severity};
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, plural, three_digits};

/// Share of the traced time that an instance must take.
const SHARE: f64 = 0.05;
/// So many times what its peers take: requests that wait for a disk now and then do not.
const PEERS: f64 = 100.0;
/// Parts of the stretch that are reported.
const TOLD: usize = 4;
/// Exits by which a guest says that it has nothing to do.
const IDLE: [&str; 3] = ["hlt", "halt", "mwait"];

/// Single long stretches.
pub struct Gap;

impl Detector for Gap {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        // Of a call or a line of a log, none of what is reported here is known.
        let mut all = view.subjects(|what| {
            what.is_request() || matches!(what, SubjectKind::Exit(_) | SubjectKind::Hypercall(_))
        });
        all.retain(|(key, _)| !is_idle(view, *key));
        let typical = |file: u16| typical(all.iter().filter(|(key, _)| key.file == file));
        let found = all
            .iter()
            .filter_map(|(key, subject)| self.of(view, *key, subject, typical(key.file)?));
        found.collect()
    }
}

/// True for exits by which a guest says that it has nothing to do.
pub(super) fn is_idle(view: &View<'_>, key: Key) -> bool {
    let SubjectKind::Exit(reason) = key.what else { return false };
    let name = view.name(reason).to_ascii_lowercase();
    IDLE.iter().any(|idle| name.contains(idle))
}

/// Median of the medians of a file's requests, ticks; none if there are too few to say.
fn typical<'a>(all: impl Iterator<Item = &'a (Key, &'a Subject)>) -> Option<f64> {
    let often = all.filter(|(_, subject)| subject.timed >= LEAST_COUNT);
    let mut medians: Vec<f64> = often.filter_map(|(_, s)| s.length.quantile(0.5)).collect();
    medians.sort_by(f64::total_cmp);
    medians.get(medians.len() / 2).copied()
}

impl Gap {
    fn of(&self, view: &View<'_>, key: Key, subject: &Subject, typical: f64) -> Option<Candidate> {
        // Waiting for a CPU is the host's load.
        let long = subject.longest().iter().max_by_key(|anatomy| anatomy.net())?;
        let own = if subject.timed >= LEAST_COUNT {
            subject.length.quantile(0.5).unwrap_or(typical)
        } else {
            typical
        };
        let limit = own.max(typical).max(1.0) * PEERS;
        let ticks = long.net();
        if view.share(ticks) < SHARE || (ticks as f64) < limit {
            return None;
        }
        let name = view.subject(key);
        let claim = format!(
            "of the {} of {name}, the longest takes {} ({}× the median, {} of the traced time); it begins \
                {} into the trace",
            plural(subject.count, "instance"),
            view.time(ticks as f64),
            three_digits(ticks as f64 / own.max(1.0)),
            brief_percent(view.share(ticks)),
            view.time(view.evidence.age(long.start) as f64),
        );
        let figures = [("ratio_to_median", ticks as f64 / own.max(1.0)), ("median_ticks", own)];
        let places = [Some((ticks, long.place)), long.ended.map(|place| (ticks, place))];
        let mut chain = vec![
            view.link(key.file, claim, (1, ticks), &figures, &places),
            self.last_and_first(view, key, long),
        ];
        chain.extend(self.inside(view, key, long));
        Some(Candidate {
            why: Why::Gap,
            key: Some(key),
            summary: format!(
                "one instance of {name} takes {}, which is {} of the traced time; vmeter does not \
                    know why",
                view.time(ticks as f64),
                brief_percent(view.share(ticks))
            ),
            subject: name,
            saving: ticks,
            chain,
            suggestion: "look at what the VMM does there: a lock, a page fault, a wait for a \
                disk or another process; if the trace shows nothing there, record more kinds of \
                events"
                .into(),
            confirm: format!(
                "vmeter trace report TRACE (read the report from the stamp {} on)",
                long.place.stamp
            ),
            max_severity: Some(Severity::Medium),
            ..Candidate::default()
        })
    }

    /// What was last seen before the longest sleep, and what ended it.
    fn last_and_first(&self, view: &View<'_>, key: Key, long: &Breakdown) -> Link {
        let after = |at: u64| view.time(at.saturating_sub(long.start) as f64);
        let Some(sleep) = long.sleep else {
            let claim = format!(
                "the trace shows no sleep of the thread in this gap. The gap begins with {} on \
                    CPU {}, ends with {}, and takes {}",
                long.place.event,
                long.place.cpu,
                long.ended.map_or("the trace", |place| place.event),
                view.time(long.total as f64)
            );
            return view.link(key.file, claim, (1, long.total), &[], &[None]);
        };
        let ticks = sleep.end.saturating_sub(sleep.start);
        let place = |place: Place| format!("{} by thread {}", place.event, place.tid);
        let by = match sleep.waker {
            Waker::Thread(thread) => view.thread(thread),
            Waker::Timer => "a timer".into(),
            Waker::Irq(irq) => format!("interrupt {}", view.name(irq)),
            Waker::Interrupt => "an interrupt".into(),
            Waker::Unknown => place(sleep.woken),
        };
        let call = sleep.call.map_or("the kernel", |call| view.name(call));
        let claim = format!(
            "the thread's longest sleep begins {} after the start of this instance, and \
                is in {call}; this sleep takes {}, and ends when {by} wakes the thread",
            after(sleep.start),
            view.time(ticks as f64)
        );
        view.link(key.file, claim, (1, ticks), &[], &[Some((ticks, sleep.woken))])
    }

    /// The critical path of the instance, if it is the longest of its kind.
    fn inside(&self, view: &View<'_>, key: Key, long: &Breakdown) -> Option<Link> {
        let root = view.evidence.tree.root_of(Frame::Request(key))?;
        let wait = view.evidence.waits.get(&root).filter(|wait| wait.span.0 == long.start)?;
        let mut parts: BTreeMap<(Tid, String), u64> = BTreeMap::new();
        let asleep = |piece: &Piece| piece.state == State::Blocked;
        for (at, piece) in wait.pieces.iter().enumerate() {
            // What was done meanwhile by the one that it waited for comes after it.
            let next = wait.pieces.get(at + 1);
            let covered = next.is_some_and(|next| {
                next.thread != piece.thread
                    && next.span.1 <= piece.span.1
                    && next.span.0 >= piece.span.0
            });
            if asleep(piece) && covered {
                continue;
            }
            let ticks = piece.span.1.saturating_sub(piece.span.0);
            *parts.entry((piece.thread, doing(view, piece))).or_default() += ticks;
        }
        let total = long.total.max(1);
        let mut parts: Vec<((Tid, String), u64)> = parts.into_iter().collect();
        parts.sort_by_key(|(_, ticks)| std::cmp::Reverse(*ticks));
        let much = parts.into_iter().filter(|(_, ticks)| *ticks * 50 >= total).take(TOLD);
        let words: Vec<String> = much
            .map(|((tid, doing), ticks)| {
                let share = brief_percent(ticks as f64 / total as f64);
                format!("{}: {doing} {share}", view.thread(tid))
            })
            .collect();
        let claim = format!(
            "this instance's time, by thread (vmeter follows each sleep to the thread \
                that ended it): {}",
            words.join(", ")
        );
        (!words.is_empty()).then(|| view.link(key.file, claim, (1, long.total), &[], &[None]))
    }
}
