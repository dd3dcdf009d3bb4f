//! Figures by name, out of a finished timeline.

use std::collections::{BTreeMap, HashMap};
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::{Ns, Span, Timeline};

/// Lengths by name of the top-level spans, in order of first start, then
/// `unattributed`.
///
/// `unattributed` is all of it, at whatever depth. What lies inside a phase is
/// taken out of that phase's own figure, so that the figures add up to the total.
pub(crate) fn phases(timeline: &Timeline) -> Vec<(String, Ns)> {
    let tops = tops(timeline);
    let mut order: Vec<&str> = Vec::new();
    let mut lengths: HashMap<&str, Ns> = HashMap::new();
    for span in timeline.spans.iter().filter(|s| s.parent.is_none() && s.name != UNATTRIBUTED) {
        *lengths.entry(&span.name).or_insert_with(|| {
            order.push(&span.name);
            0
        }) += span.len();
    }
    let mut unexplained = 0;
    for leaf in timeline.leaves().filter(|s| s.name == UNATTRIBUTED) {
        unexplained += leaf.len();
        let top = tops.get(&leaf.id).map(|top| top.name.as_str()).unwrap_or_default();
        if let Some(length) = lengths.get_mut(top) {
            *length -= leaf.len();
        }
    }
    let mut phases: Vec<(String, Ns)> =
        order.into_iter().map(|name| (name.to_owned(), lengths[name])).collect();
    phases.push((UNATTRIBUTED.to_owned(), unexplained));
    phases
}

/// The top-level span of every span, by id.
fn tops(timeline: &Timeline) -> HashMap<u32, &Span> {
    let mut tops: HashMap<u32, &Span> = HashMap::with_capacity(timeline.spans.len());
    for span in &timeline.spans {
        let top = span.parent.and_then(|p| tops.get(&p).copied()).unwrap_or(span);
        tops.insert(span.id, top);
    }
    tops
}

/// The phase that each span of the tree is in, by the span's id.
pub fn phases_of(timeline: &Timeline) -> HashMap<u32, &str> {
    tops(timeline).into_iter().map(|(id, top)| (id, top.name.as_str())).collect()
}

/// The phase that a span of the tree is in, by the span's id.
pub fn phase_of(timeline: &Timeline, id: u32) -> Option<&str> {
    tops(timeline).get(&id).map(|top| top.name.as_str())
}

/// Time and guest instructions by (phase, name), of every span in the tree.
///
/// Spans of one name in one phase are added up; one inside another of the same
/// name is not counted twice. So `(p, p)` is the length of phase `p` with what is
/// unattributed in it, and the leaves of a phase add up to it. Instructions are
/// there if all of the spans have them. Two runs differ in an activity by the
/// difference of its figures; one that is absent counts as 0.
pub fn activity_times(timeline: &Timeline) -> BTreeMap<(String, String), (Ns, Option<u64>)> {
    let tops = tops(timeline);
    let by_id: HashMap<u32, &Span> = timeline.spans.iter().map(|s| (s.id, s)).collect();
    let mut times: BTreeMap<(String, String), (Ns, Option<u64>)> = BTreeMap::new();
    for span in &timeline.spans {
        let parents = std::iter::successors(span.parent, |p| by_id.get(p).and_then(|s| s.parent));
        let mut parents = parents.take(timeline.spans.len()).filter_map(|p| by_id.get(&p));
        if parents.any(|p| p.name == span.name) {
            continue;
        }
        let phase = tops.get(&span.id).map_or("", |top| top.name.as_str());
        times
            .entry((phase.to_owned(), span.name.clone()))
            .and_modify(|(ns, insns)| {
                *ns += span.len();
                *insns = insns.zip(span.insns).and_then(|(a, b)| a.checked_add(b));
            })
            .or_insert((span.len(), span.insns));
    }
    times
}
