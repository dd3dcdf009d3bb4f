//! Signals that a thread gets over and over: each takes it out of what it does.

use super::{Candidate, Detector, View};
use crate::diagnose::Aside;
use crate::evidence::groups::GroupId;
use crate::kind::Why;
use crate::result::Severity;
use std::collections::BTreeMap;
use vmeter_render::quantity::{grouped, three_digits};
use vmeter_trace::ops::Sign;

/// Signals in all, and a second, from which they are told.
const LEAST: (u64, f64) = (200, 500.0);
/// How long handlers take, where it is not recorded when they begin.
const NOT_KNOWN: &str =
    "the trace does not show how long each handler ran (also record signal:signal_deliver); all \
        handlers together took at most the thread's CPU time";
/// What one costs the thread beside its handler, s: the interrupt, and the frame built.
const COST_S: f64 = 3e-6;
/// Calls that send signals.
pub(super) const SENDS: [&str; 5] =
    ["tgkill", "tkill", "kill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"];

/// Ticks that threads of a name had a CPU.
fn had_cpu(view: &View<'_>, who: GroupId) -> u64 {
    let own = view.evidence.threads.iter();
    let own = own.filter(|(tid, _)| view.evidence.groups.group_of(**tid) == Some(who));
    crate::sum(own.map(|(_, own)| own.ran()))
}

/// A thread that handles signals again and again.
pub struct Signals;

/// Handlers' returns, signals delivered, and calls that one has ended: not each of a signal's traces is recorded, and
/// one that a call takes has no handler.
type Seen = [u64; 3];

impl Detector for Signals {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let mut by: BTreeMap<GroupId, Seen> = BTreeMap::new();
        for ((who, call), calls) in &view.evidence.ledger.calls {
            let seen = by.entry(*who).or_default();
            seen[0] += if view.name(*call) == "rt_sigreturn" { calls.count } else { 0 };
            seen[2] += calls.interrupted;
        }
        for ((who, sign), seen) in &view.evidence.ledger.signs {
            if let (Some((who, _)), Sign::Delivered) = (who, sign) {
                by.entry(*who).or_default()[1] += seen.count;
            }
        }
        by.into_iter().filter_map(|(who, seen)| self.of(view, who, seen)).collect()
    }
}

impl Signals {
    fn of(&self, view: &View<'_>, who: GroupId, seen: Seen) -> Option<Candidate> {
        let seconds = view.seconds(view.evidence.span()).filter(|s| *s > 0.0)?;
        let count = seen.into_iter().max().unwrap_or(0);
        let rate = count as f64 / seconds;
        if count < LEAST.0 || rate < LEAST.1 {
            return None;
        }
        let sends = view.evidence.ledger.calls.iter();
        let sends = sends.filter(|((_, call), _)| SENDS.contains(&view.name(*call)));
        let sender = sends.max_by_key(|(key, calls)| (calls.count, **key));
        let sender = sender.filter(|(_, sent)| sent.count * 2 >= count);
        let (threads, times) = (view.threads(who), grouped(&count.to_string()));
        let by = sender.map_or(String::new(), |((by, call), _)| {
            format!(", which {} sends by {}", view.threads(*by), view.name(*call))
        });
        let tick = view.seconds(1)?;
        let handlers = view.evidence.ledger.handlers.get(&who).copied();
        let known = handlers.filter(|(returned, _)| returned * 10 >= count * 9);
        let (saving, length) = match known {
            Some((returned, ticks)) => {
                let each = ticks as f64 / returned.max(1) as f64;
                let missed = count.saturating_sub(returned) as f64 * each;
                let entries = count as f64 * COST_S / tick;
                let saving = ticks.saturating_add((missed + entries) as u64);
                (saving, format!("{} each from signal_deliver to rt_sigreturn", view.time(each)))
            }
            None => (had_cpu(view, who), NOT_KNOWN.to_string()),
        };
        let claim =
            format!("{threads} gets {times} signals, {} a second; {length}", three_digits(rate));
        let file = view.evidence.groups.get(who).map_or(0, |group| group.first.file);
        Some(Candidate {
            why: Why::Signals,
            subject: threads.clone(),
            saving,
            summary: format!("{threads} is interrupted by {times} signals{by}"),
            chain: vec![view.link(file, claim, (count, saving), &[], &[])],
            suggestion: "notify by an eventfd, a futex or a flag instead of a signal, or send \
                fewer signals"
                .into(),
            confirm: "strace -f -c -e trace=tgkill,kill,rt_sigreturn -p PID".into(),
            max_severity: Some(if known.is_some() { Severity::Medium } else { Severity::Low }),
            aside: if known.is_none() { Aside::Rare } else { Aside::No },
            ..Candidate::default()
        })
    }
}
