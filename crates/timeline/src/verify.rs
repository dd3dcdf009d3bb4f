//! What every timeline holds, whatever it was made of.

use std::collections::{HashMap, HashSet};
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::{Ns, Span, Timeline};

/// Checks that a timeline accounts for its run: ids are unique, parents come
/// before their children and hold them, siblings do not overlap, the children of
/// a span tile it, the top level tiles the run, the lengths of the leaves and of
/// the phases add up to the total, and `unattributed` is among the phases.
///
/// # Errors
/// The first thing that does not hold, in words.
pub fn verify(timeline: &Timeline) -> Result<(), String> {
    let mut by_id: HashMap<u32, &Span> = HashMap::with_capacity(timeline.spans.len());
    let mut ends: HashMap<Option<u32>, Ns> = HashMap::new();
    for span in &timeline.spans {
        let text = format!("{} [{}, {}] (id {})", span.name, span.start, span.end, span.id);
        if span.start > span.end || span.error_ns < 0 {
            return Err(format!("{text}: its length or its clock error is negative"));
        }
        let (from, to) = match span.parent {
            None => (0, timeline.total),
            Some(parent) => {
                let parent = by_id
                    .get(&parent)
                    .ok_or(format!("{text}: its parent is not among the spans before it"))?;
                (parent.start, parent.end)
            }
        };
        let at = ends.insert(span.parent, span.end).unwrap_or(from);
        if span.start != at || span.end > to {
            return Err(format!("{text}: must begin at {at} ns, and must not end after {to} ns"));
        }
        if by_id.insert(span.id, span).is_some() {
            return Err(format!("{text}: id is not unique"));
        }
    }
    for (parent, end) in &ends {
        let expected = parent.map_or(timeline.total, |p| by_id[&p].end);
        if *end != expected {
            return Err(format!("children of {parent:?} end at {end}, expected {expected}"));
        }
    }
    sums(timeline)?;
    let ids: HashSet<u32> = timeline.overlapping.iter().map(|s| s.id).collect();
    if ids.len() != timeline.overlapping.len() || ids.iter().any(|id| by_id.contains_key(id)) {
        return Err("a span outside the tree has the same id as another span".to_owned());
    }
    Ok(())
}

fn sums(timeline: &Timeline) -> Result<(), String> {
    let leaves: Ns = timeline.leaves().map(Span::len).sum();
    let phases: Ns = timeline.phases.iter().map(|(_, ns)| ns).sum();
    if leaves != timeline.total || phases != timeline.total {
        return Err(format!(
            "the leaf spans add up to {leaves} ns and the phases to {phases} ns, but both sums \
             must be {} ns",
            timeline.total
        ));
    }
    let names: HashSet<&str> = timeline.phases.iter().map(|(name, _)| name.as_str()).collect();
    if names.len() != timeline.phases.len() || !names.contains(UNATTRIBUTED) {
        return Err("a phase occurs twice, or the phase `unattributed` is missing".to_owned());
    }
    if timeline.phases.iter().any(|(_, ns)| *ns < 0) {
        return Err("a phase has a negative length".to_owned());
    }
    Ok(())
}
