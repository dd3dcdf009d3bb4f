//! A vCPU that could run and has no CPU.

use super::{Candidate, Detector, View};
use crate::index::subject::{Part, Who};
use crate::index::thread::{Doing, Thread};
use crate::say;
use vmeter_model::explain::{Evidence, Link};

/// With one competitor a CPU, a vCPU gets half: what it loses beyond a third of the time
/// that it wants is more than a passing task.
const WANTED: f64 = 0.33;
/// And of the traced time.
const TRACED: f64 = 0.1;

/// Preempted or not scheduled.
pub struct Starved;

impl Detector for Starved {
    fn kind(&self) -> &'static str {
        "vcpu-starved"
    }

    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        // What waits within slow requests belongs to these.
        let slow = view.requests().into_iter().filter(|(key, _)| {
            view.peers(*key).is_some_and(|peers| peers.slow)
        });
        let explained: u64 = slow
            .map(|(_, subject)| {
                subject.ticks(|who, part| who == Who::Own && part == Part::Runnable)
            })
            .sum();
        let mut vcpus: Vec<_> = view.index.threads.iter().filter(|(_, t)| t.is_vcpu).collect();
        vcpus.sort_by_key(|(tid, _)| **tid);
        let found = vcpus
            .into_iter()
            .filter_map(|(tid, thread)| self.of(view, view.thread(*tid), thread, explained));
        found.collect()
    }
}

impl Starved {
    fn of(&self, view: &View<'_>, name: String, thread: &Thread, known: u64) -> Option<Candidate> {
        let time = |doing: Doing| thread.times[doing as usize];
        let ran: u64 =
            [Doing::Guest, Doing::Kvm, Doing::Kernel, Doing::User].map(time).iter().sum();
        let waited = time(Doing::Runnable).saturating_sub(known);
        let wanted = ran.saturating_add(waited).max(1);
        let of_wanted = waited as f64 / wanted as f64;
        if of_wanted < WANTED || view.share(waited) < TRACED {
            return None;
        }
        let claim = format!(
            "{name} could run for {}, and had no CPU for {} of them ({})",
            view.time(wanted as f64),
            view.time(waited as f64),
            say::percent(of_wanted)
        );
        Some(Candidate {
            kind: self.kind(),
            key: None,
            subject: format!("vCPU thread {name}"),
            saving: waited,
            summary: format!(
                "{name} waits for a CPU {} of the time that it could run",
                say::percent(of_wanted)
            ),
            chain: vec![Link {
                claim,
                evidence: Evidence {
                    total_s: view.seconds(waited),
                    figures: [("share_of_wanted".to_string(), of_wanted)].into(),
                    ..Evidence::default()
                },
            }],
            suggestion: "give the vCPU a CPU of its own (taskset, cpuset), or keep other load off \
                         the host while it boots"
                .into(),
            confirm: "vmeter bench --pin CPUS (pinned against not, runs interleaved)".into(),
        })
    }
}
