//! System calls of a trace that has nothing else (strace): which one the time goes into.

use super::view::{LEAST_COUNT, SHARE_ALONE};
use super::waits::{syncs, waits, waits_for_others};
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Subject, What};
use crate::kind::Why;
use crate::result::Severity;
use vmeter_render::quantity::brief_percent;

/// Share of the traced time from which a call is named even if it is no slower than others.
const HALF: f64 = 0.5;

/// A call that takes much of the time, and longer than others.
pub struct SlowCall;

impl Detector for SlowCall {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let calls = view.subjects(|what| matches!(what, What::Call(_))).into_iter();
        calls.filter_map(|(key, subject)| self.of(view, key, subject)).collect()
    }
}

impl SlowCall {
    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        let name = view.subject(key);
        if waits(&name) || subject.timed < LEAST_COUNT {
            return None;
        }
        let slow = view.peers(key).filter(|peers| peers.slow).map_or(0, |peers| peers.excess);
        if view.share(slow) < SHARE_ALONE && view.share(subject.total) < HALF {
            return None;
        }
        let median = subject.length.quantile(0.5).unwrap_or(0.0);
        let share = brief_percent(view.share(subject.total));
        let claim = format!(
            "{} calls of {name} take {}, {share} of the traced time: median {}, longest {}",
            subject.timed,
            view.time(subject.total as f64),
            view.time(median),
            view.time(subject.worst.map_or(0.0, |(ticks, _)| ticks as f64)),
        );
        let at_most = match (syncs(&name), waits_for_others(&name)) {
            (true, _) => Severity::High,
            // Who waits for room at the other end is not the one that is slow.
            (_, true) => Severity::Low,
            _ => Severity::Medium,
        };
        let figures = [("median_ticks", median)];
        let places = [subject.first.map(|place| (0, place)), subject.worst];
        Some(Candidate {
            why: if syncs(&name) { Why::SlowSync } else { Why::SlowCall },
            key: Some(key),
            saving: subject.total.max(slow),
            summary: format!(
                "{name} takes {share} of the traced time, {} calls of {}",
                subject.timed,
                view.time(subject.total as f64 / subject.timed.max(1) as f64)
            ),
            chain: vec![view.link(
                key.file,
                claim,
                (subject.timed, subject.total),
                &figures,
                &places,
            )],
            suggestion: format!(
                "find out what {name} waits for: record switches, wake-ups and work items beside \
                 the calls; then call it less often, for more at once, or where nobody waits for it"
            ),
            confirm: format!("perf trace -s -e {name} -- COMMAND"),
            at_most: Some(at_most),
            subject: name,
            ..Candidate::default()
        })
    }
}
