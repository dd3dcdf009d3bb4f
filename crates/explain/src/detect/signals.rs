//! Signals that a thread gets over and over: each takes it out of what it does.

use super::{Candidate, Detector, View};
use crate::evidence::calls::Calls;
use crate::evidence::groups::GroupId;
use crate::moment::Sym;
use crate::result::{Evidence, Link, Severity};
use vmeter_render::quantity::{grouped, three_digits};

/// Signals in all, and a second, from which they are told.
const LEAST: (u64, f64) = (200, 500.0);
/// What one costs the thread at least, s: the frame built, the handler, and back.
const COST_S: f64 = 3e-6;
/// Calls that send signals.
pub(super) const SENDS: [&str; 5] =
    ["tgkill", "tkill", "kill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"];

/// A thread that handles signals again and again.
pub struct Signals;

impl Detector for Signals {
    fn kind(&self) -> &'static str {
        "signals"
    }

    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let calls = view.evidence.ledger.calls.iter();
        let mut all: Vec<(&(GroupId, Sym), &Calls)> =
            calls.filter(|((_, call), _)| view.name(*call) == "rt_sigreturn").collect();
        all.sort_by_key(|(key, _)| **key);
        all.into_iter().filter_map(|(key, calls)| self.of(view, *key, calls)).collect()
    }
}

impl Signals {
    fn of(&self, view: &View<'_>, (who, call): (GroupId, Sym), calls: &Calls) -> Option<Candidate> {
        let seconds = view.seconds(view.evidence.span()).filter(|s| *s > 0.0)?;
        let rate = calls.count as f64 / seconds;
        if calls.count < LEAST.0 || rate < LEAST.1 {
            return None;
        }
        let sends = view.evidence.ledger.calls.iter();
        let sends = sends.filter(|((_, call), _)| SENDS.contains(&view.name(*call)));
        let sender = sends.max_by_key(|(key, calls)| (calls.count, **key));
        let sender = sender.filter(|(_, sent)| sent.count * 2 >= calls.count);
        let (threads, times) = (view.threads(who), grouped(&calls.count.to_string()));
        let by = sender.map_or(String::new(), |((by, call), _)| {
            format!(", which {} sends by {}", view.threads(*by), view.name(*call))
        });
        let tick = view.seconds(1)?;
        let saving = (calls.count as f64 * COST_S / tick) as u64;
        let claim = format!(
            "{threads} returns from a signal's handler {times} times, {} a second, at least {} each",
            three_digits(rate),
            view.time(COST_S / tick)
        );
        let places = calls.worst.iter().map(|(_, place)| view.event(*place));
        Some(Candidate {
            kind: self.kind(),
            subject: threads.clone(),
            saving: saving.max(calls.ticks),
            summary: format!("{threads} is interrupted by {times} signals{by}"),
            chain: vec![Link {
                claim,
                evidence: Evidence {
                    count: Some(calls.count),
                    total_s: view.seconds(calls.ticks),
                    events: places.collect(),
                    lost_events: view.lost(call.file),
                    ..Evidence::default()
                },
            }],
            suggestion: "tell by an eventfd, a futex or a flag instead; or send fewer".into(),
            confirm: "strace -f -c -e trace=tgkill,kill,rt_sigreturn -p PID".into(),
            at_most: Some(Severity::Medium),
            ..Candidate::default()
        })
    }
}
