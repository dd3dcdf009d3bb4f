//! Instruction counts from boots of their own.
//!
//! Counting every guest instruction slows translation by some 15 % (QEMU 7.2), and
//! times taken meanwhile would be wrong by that. So under `--watch full` the boots
//! that are counted are not those that are timed: the warm-ups count, the measured
//! boots are watched lightly, and each of their spans takes the count of the span
//! of the same name and turn. Counts hardly differ between boots (under 1 %).

use std::collections::HashMap;
use vmeter_model::result::AnalysedRun;
use vmeter_model::run::{Outcome, WatchLevel};
use vmeter_model::{Identity, Kind, Timeline};

/// True if `counting` is a boot that was counted and `measured` are others, timed.
pub fn is_separate(counting: &AnalysedRun, measured: &[AnalysedRun]) -> bool {
    counting.record.warmup
        && counting.record.watch == WatchLevel::Full
        && counting.record.outcome == Outcome::Done
        && measured.iter().all(|run| run.record.watch == WatchLevel::Light)
}

/// True for a span that begins and ends at the same events however closely it is watched.
/// The parts of `kernel:entry` do not: a lightly watched boot sees fewer of its functions,
/// and calls more by the name of the last one seen.
fn is_the_same_work(name: &str) -> bool {
    let of = Identity::of(name);
    let phases = ["decompress", "entry", "initcalls-before-userspace"];
    of.is_call()
        || of.kind == Kind::Initcalls
        || of.kind == Kind::Kernel && phases.contains(&of.name)
}

/// Gives the spans of `timed` the instruction counts of `counted`.
///
/// A count that a timed boot has itself (the light plugin counts up to
/// `start_kernel`) stays.
pub fn join(counted: &Timeline, timed: &mut Timeline) {
    let mut by_turn: HashMap<(&str, usize), u64> = HashMap::new();
    let mut turns: HashMap<&str, usize> = HashMap::new();
    for span in &counted.spans {
        let turn = turns.entry(&span.name).or_default();
        if let Some(insns) = span.insns {
            by_turn.insert((&span.name, *turn), insns);
        }
        *turn += 1;
    }
    let mut turns: HashMap<String, usize> = HashMap::new();
    for span in &mut timed.spans {
        let turn = turns.entry(span.name.clone()).or_default();
        if span.insns.is_none() && is_the_same_work(&span.name) {
            span.insns = by_turn.get(&(span.name.as_str(), *turn)).copied();
        }
        *turn += 1;
    }
    if let Some(insns) = counted.counts.get("guest_insns") {
        timed.counts.insert("guest_insns".into(), *insns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::Span;

    fn span(id: u32, name: &str, insns: Option<u64>) -> Span {
        Span { id, name: name.into(), end: 1, insns, ..Span::default() }
    }

    #[test]
    fn spans_take_the_count_of_their_name_and_turn() {
        let mut counted = Timeline {
            spans: vec![
                span(0, "initcall a", Some(1)),
                span(1, "initcall b", Some(2)),
                span(2, "initcall a", Some(3)),
                span(3, "kernel:x", Some(4)),
            ],
            ..Timeline::default()
        };
        counted.counts.insert("guest_insns".into(), 6);
        let mut timed = Timeline {
            spans: vec![
                span(0, "initcall b", Some(9)),
                span(1, "initcall a", None),
                span(2, "initcall a", None),
                span(3, "initcall c", None),
                span(4, "kernel:x", None),
            ],
            ..Timeline::default()
        };
        join(&counted, &mut timed);
        let insns: Vec<Option<u64>> = timed.spans.iter().map(|s| s.insns).collect();
        assert_eq!(insns, [Some(9), Some(1), Some(3), None, None]);
        assert_eq!(timed.counts["guest_insns"], 6);
    }
}
