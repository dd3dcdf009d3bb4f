//! What a guest's request waits for, where nothing else is said: silence beside a request that
//! sleeps would be read as health.

use super::super::{Candidate, View};
use super::Story;
use crate::evidence::subject::Key;
use crate::evidence::tree::Frame;
use crate::result::Severity;
use vmeter_render::quantity::brief_percent;

/// Share of the traced time that a request sleeps, from which that is told.
const LEAST: f64 = 0.1;

/// The request that sleeps longest, if sleeping is the largest part of its time.
pub fn asleep(view: &View<'_>) -> Option<Candidate> {
    let requests = view.requests().into_iter();
    let all =
        requests.filter_map(|(key, _)| Story::of(view, Frame::Request(key))?.asleep(view, key));
    all.max_by_key(|candidate| candidate.saving)
}

impl Story {
    fn asleep(&self, view: &View<'_>, key: Key) -> Option<Candidate> {
        let first = self.levels.first()?;
        let ((call, state), sum) = first.parts.iter().max_by_key(|(_, sum)| sum.ticks)?;
        let sleeps = matches!(
            state,
            Frame::Waker(_)
                | Frame::Timer
                | Frame::Irq(_)
                | Frame::Interrupt
                | Frame::Asleep
                | Frame::Deep
                | Frame::Stopped(_)
        );
        if !sleeps || view.share(sum.ticks) < LEAST {
            return None;
        }
        let (subject, share) = (view.frame(self.root), sum.ticks as f64 / first.all.ticks as f64);
        let inside = call.map_or(String::new(), |call| format!(" {}", view.frame(call)));
        let summary = match state {
            Frame::Waker(who) => format!("{subject} waits{inside} for {}", view.threads(*who)),
            state => format!("{subject} is{inside} {}", view.frame(*state)),
        };
        let levels = self.levels.iter().enumerate();
        Some(Candidate {
            kind: "slow-call",
            key: Some(key),
            subject,
            saving: sum.ticks,
            summary: format!("{summary} {} of its time", brief_percent(share)),
            chain: levels.map(|(at, level)| self.link(view, at, level)).collect(),
            suggestion: "look at the longest of these waits, and at whom they are for; record for \
                         longer, and beside a twin (--vs)"
                .into(),
            confirm: "perf sched record -- sleep 5 && perf sched timehist -w".into(),
            at_most: Some(Severity::Low),
            ..Candidate::default()
        })
    }
}
