//! A vCPU that could run and has no CPU.
//!
//! If one thread has the CPU whenever the vCPU waits, that is a cause with a remedy. If it
//! is now this and now that, the host is busy: no fault of the machine's, but a reason to
//! trust its times less, so a warning.

use super::{Candidate, Detector, View};
use crate::evidence::subject::{Part, Who};
use crate::evidence::thread::{State, Thread};
use crate::kind::Why;
use crate::moment::Tid;
use crate::result::{Evidence, Link, Severity};
use vmeter_render::quantity::brief_percent;

/// With one competitor a CPU, a vCPU gets half: what it loses beyond a third of the time
/// that it wants is more than a passing task.
const WANTED: f64 = 0.33;
/// And of the traced time.
const TRACED: f64 = 0.1;
/// One thread is the competitor if it has the CPU for this share of the waiting.
const ONE: f64 = 0.8;
/// Waiting from which times are said to be longer than on an idle host.
const BUSY: f64 = 0.1;

/// Preempted or not scheduled.
pub struct Starved;

impl Detector for Starved {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        // What waits within slow requests belongs to these.
        let slow = view.requests().into_iter();
        let slow = slow.filter(|(key, _)| view.peers(*key).is_some_and(|peers| peers.slow));
        let own = |who, part| who == Who::Own && part == Part::Runnable;
        let explained = crate::sum(slow.map(|(_, subject)| subject.ticks(own)));
        let vcpus = vcpus(view).into_iter();
        vcpus.filter_map(|(tid, thread)| self.of(view, tid, thread, explained)).collect()
    }
}

impl Starved {
    fn of(&self, view: &View<'_>, tid: Tid, thread: &Thread, known: u64) -> Option<Candidate> {
        let waited = thread.times[State::Runnable as usize].saturating_sub(known);
        let wanted = thread.ran().saturating_add(waited).max(1);
        let of_wanted = waited as f64 / wanted as f64;
        if of_wanted < WANTED || view.share(waited) < TRACED {
            return None;
        }
        let (other, share, times) = competitor(view, tid)?;
        if share < ONE || times < super::view::LEAST_COUNT {
            return None;
        }
        let (name, other) = (view.thread(tid), view.thread(other));
        let claim = format!(
            "{name} could run for {}, and had no CPU for {} of them ({}); {other} had it for {} of \
             that",
            view.time(wanted as f64),
            view.time(waited as f64),
            brief_percent(of_wanted),
            brief_percent(share),
        );
        let figures = [("share_of_wanted", of_wanted), ("share_of_competitor", share)];
        Some(Candidate {
            why: Why::Starved,
            subject: format!("vCPU thread {name}"),
            saving: waited,
            summary: format!(
                "{name} waits for a CPU {} of the time that it could run: {other} has it",
                brief_percent(of_wanted)
            ),
            chain: vec![Link {
                claim,
                evidence: Evidence {
                    total_s: view.seconds(waited),
                    figures: figures.map(|(name, value)| (name.to_string(), value)).into(),
                    lost_events: view.lost(tid.file),
                    ..Evidence::default()
                },
            }],
            suggestion: format!(
                "give the vCPU a CPU that {other} does not run on (taskset, cpuset)"
            ),
            confirm: "vmeter bench --pin CPUS (pinned against not, runs interleaved)".into(),
            at_most: Some(Severity::Medium),
            ..Candidate::default()
        })
    }
}

fn vcpus<'a>(view: &View<'a>) -> Vec<(Tid, &'a Thread)> {
    let threads = view.evidence.threads.iter().filter(|(_, thread)| thread.is_vcpu);
    let mut all: Vec<(Tid, &Thread)> = threads.map(|(tid, thread)| (*tid, thread)).collect();
    all.sort_by_key(|(tid, _)| *tid);
    all
}

/// Who had the CPU most while a vCPU waited for it, for how much of the waiting, how often.
fn competitor(view: &View<'_>, vcpu: Tid) -> Option<(Tid, f64, u64)> {
    let others = view.evidence.competitors.iter().filter(|((waiting, _), _)| *waiting == vcpu);
    let total = crate::sum(others.clone().map(|(_, (ticks, _))| *ticks));
    let ((_, other), (ticks, times)) = others.max_by_key(|((_, other), sum)| (**sum, *other))?;
    Some((*other, *ticks as f64 / total.max(1) as f64, *times))
}

/// What a busy host does to the figures.
pub fn warnings(view: &View<'_>) -> Vec<String> {
    let busy = vcpus(view).into_iter().filter_map(|(tid, thread)| {
        let waited = thread.times[State::Runnable as usize];
        let share = waited as f64 / thread.ran().saturating_add(waited).max(1) as f64;
        (share >= BUSY && view.share(waited) >= BUSY).then(|| {
            format!(
                "{} waited for a CPU {} of the time that it could run: the host was busy, times \
                 are longer than on an idle one",
                view.thread(tid),
                brief_percent(share)
            )
        })
    });
    busy.collect()
}
