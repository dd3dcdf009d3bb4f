//! Waiting for a lock, or for readers of RCU or SRCU to be gone.

use super::story::Story;
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Part, Subject, Who};
use crate::evidence::tree::Frame;

/// Sleeps in futex, and grace periods.
pub struct LockWait;

/// What begins the names of the threads and work functions of RCU and SRCU.
const GRACE: [&str; 5] = ["rcu", "srcu", "process_srcu", "synchronize", "wait_rcu"];

impl Detector for LockWait {
    fn kind(&self) -> &'static str {
        "lock-wait"
    }

    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let requests = view.requests().into_iter();
        let both = |(key, subject)| [self.futex(view, key, subject), self.rcu(view, key, subject)];
        requests.flat_map(both).flatten().collect()
    }
}

impl LockWait {
    fn futex(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        // Asleep in futex, and nobody's work on the way explains it.
        let futex = |part: Part| matches!(part, Part::Blocked(Some(call)) if view.name(call).starts_with("futex"));
        self.candidate(
            view,
            (key, subject),
            |_, part| futex(part),
            "a lock (futex) that another thread holds",
            "hold the lock for less, or split it: take it around the shared data, not around the \
             whole request",
            "perf lock record -a -- sleep 5 && perf lock contention",
        )
    }

    fn rcu(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        let grace = |name: &str| GRACE.iter().any(|begin| name.starts_with(begin));
        let waits = |who: Who, part: Part| match (who, part) {
            (_, Part::Work(work)) => grace(view.name(work)),
            (Who::Thread(thread), _) => grace(&view.thread(thread)),
            _ => false,
        };
        self.candidate(
            view,
            (key, subject),
            waits,
            "an RCU or SRCU grace period",
            "change what is guarded once for many items, not once an item; or leave the old one to \
             be freed later (call_rcu) instead of waiting",
            "vmeter trace record --preset irq -- COMMAND && vmeter trace stat TRACE (grace periods \
             go with the number of changes)",
        )
    }

    fn candidate(
        &self,
        view: &View<'_>,
        (key, subject): (Key, &Subject),
        waits: impl Fn(Who, Part) -> bool,
        what: &str,
        suggestion: &str,
        confirm: &str,
    ) -> Option<Candidate> {
        let ticks = subject.ticks(&waits);
        if !view.is_cause(key, subject, ticks) {
            return None;
        }
        let waiting = subject.parts.iter().filter(|((who, part), _)| waits(*who, *part));
        let count = waiting.clone().map(|(_, amount)| amount.count).sum();
        let worst = waiting.filter_map(|(_, amount)| amount.worst).max_by_key(|(ticks, _)| *ticks);
        let claim = format!(
            "in it, {} of {} is waiting for {what}",
            view.time(ticks as f64),
            view.time(subject.total as f64)
        );
        let story = Story::of(view, Frame::Request(key));
        let inside = story.and_then(|story| story.waits_in(view));
        let inside = inside.map_or(String::new(), |call| format!(" in {}", view.name(call)));
        Some(Candidate {
            kind: self.kind(),
            key: Some(key),
            subject: view.subject(key),
            saving: ticks,
            summary: format!("{} waits{inside} for {what}", view.subject(key)),
            chain: vec![view.link(key.file, claim, (count, ticks), &[], &[worst])],
            suggestion: suggestion.into(),
            confirm: confirm.into(),
            ..Candidate::default()
        })
    }
}
