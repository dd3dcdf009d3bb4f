//! Two threads that wake each other for every request.

use super::view::LEAST_COUNT;
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Part, Subject, Who};
use crate::moment::Tid;
use crate::result::Severity;
use vmeter_render::quantity::brief_percent;

/// A wake-up takes no longer than this where a CPU is free; what goes beyond is a busy CPU.
const WAKE_S: f64 = 50e-6;

/// Hand-overs between threads.
pub struct PingPong;

impl Detector for PingPong {
    fn kind(&self) -> &'static str {
        "ping-pong"
    }

    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        let other = |who: Who| match who {
            Who::Thread(thread) => Some(thread),
            _ => None,
        };
        let of_others = subject.parts.iter().filter_map(|((who, _), a)| Some((other(*who)?, a)));
        let (thread, most) = of_others.max_by_key(|(_, amount)| amount.ticks)?;
        let xen = subject.ticks(|_, part| matches!(part, Part::XenRunning));
        let instances = most.instances;
        if xen > 0 || instances < LEAST_COUNT || instances * 2 < subject.timed {
            return None;
        }
        // There and back.
        let hops = 2 * instances;
        let waiting = subject.ticks(|_, part| matches!(part, Part::Runnable));
        let at_most = match view.seconds(1) {
            Some(tick) => (hops as f64 * WAKE_S / tick) as u64,
            None => waiting,
        };
        let ticks = waiting.min(at_most);
        // Beyond that the woken thread stands behind other programs: the host's business.
        let busy = waiting > at_most;
        let of_own = ticks as f64 / subject.total.max(1) as f64;
        if of_own < super::view::CAUSE || view.share(ticks) < super::view::LEAST_SHARE {
            return None;
        }
        let name = view.thread(thread);
        let claim = format!(
            "each access hands over to {name} and back: {} wake-ups, at least {} until the woken \
             thread has a CPU",
            hops,
            view.time(ticks as f64)
        );
        Some(Candidate {
            kind: self.kind(),
            key: Some(key),
            subject: view.subject(key),
            saving: ticks,
            summary: format!(
                "{} is handed to {name} and back each time; {} of its time is waking up",
                view.subject(key),
                brief_percent(of_own)
            ),
            chain: vec![view.link(
                key.file,
                claim,
                (hops, ticks),
                &[("wake_ups_here", wake_ups(view, thread) as f64)],
                &[most.worst],
            )],
            suggestion: "serve the request in the vCPU's thread, or let the guest go on before \
                         the other thread is done (ioeventfd and an interrupt)"
                .into(),
            confirm: "perf sched record -- sleep 5 && perf sched timehist -w".into(),
            // A wake-up is no alarm by itself.
            at_most: Some(if busy { Severity::Low } else { Severity::Medium }),
            ..Candidate::default()
        })
    }
}

fn wake_ups(view: &View<'_>, thread: Tid) -> u64 {
    let edges =
        view.evidence.wakes.iter().filter(|((by, woken), _)| *by == thread || *woken == thread);
    edges.map(|(_, count)| count).sum()
}
