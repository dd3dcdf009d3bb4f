//! The spans of a run as a tree that can be walked without care.
//!
//! A timeline may come from a run folder that anyone wrote, so nothing is
//! assumed: a span whose parent is missing or does not come before it is taken
//! as a root, and levels below [`DEPTH_LIMIT`] are folded into it.

use std::collections::{HashMap, HashSet};
use vmeter_model::{Ns, Span, Timeline};

/// Deepest level that a tree keeps: what an outline can draw.
pub(super) const DEPTH_LIMIT: usize = vmeter_render::document::DEPTH_LIMIT;

/// Children of every span of a timeline, by index into [`Timeline::spans`].
#[derive(Debug)]
pub(super) struct SpanTree<'a> {
    spans: &'a [Span],
    children: Vec<Vec<usize>>,
    roots: Vec<usize>,
}

impl<'a> SpanTree<'a> {
    /// Indexes a timeline.
    pub fn new(timeline: &'a Timeline) -> Self {
        let spans = timeline.spans.as_slice();
        let mut index = HashMap::with_capacity(spans.len());
        let mut children = vec![Vec::new(); spans.len()];
        let mut roots = Vec::new();
        let mut parents: Vec<Option<usize>> = Vec::with_capacity(spans.len());
        let mut depths: Vec<usize> = Vec::with_capacity(spans.len());
        for (at, span) in spans.iter().enumerate() {
            let mut parent = span.parent.and_then(|id| index.get(&id).copied());
            if let Some(found) = parent.filter(|p| depths[*p] >= DEPTH_LIMIT) {
                parent = parents[found];
            }
            depths.push(parent.map_or(0, |p| depths[p] + 1));
            parents.push(parent);
            match parent {
                Some(parent) => children[parent].push(at),
                None => roots.push(at),
            }
            index.entry(span.id).or_insert(at);
        }
        for list in &mut children {
            list.sort_by_key(|i| (spans[*i].start, spans[*i].end, *i));
        }
        SpanTree { spans, children, roots }
    }

    /// A span.
    pub fn span(&self, at: usize) -> &'a Span {
        &self.spans[at]
    }

    /// The parts of a span, in order of time.
    pub fn children(&self, at: usize) -> &[usize] {
        &self.children[at]
    }

    /// The topmost spans that say something: the children of a single root, or the roots.
    pub fn top(&self) -> &[usize] {
        match self.roots.as_slice() {
            [root] if !self.children[*root].is_empty() => &self.children[*root],
            roots => roots,
        }
    }

    /// Every span below the top with the index of the top span it is in, parents first.
    pub fn walk(&self) -> Vec<Visit> {
        let mut visits = Vec::with_capacity(self.spans.len());
        let mut pending: Vec<Visit> = Vec::new();
        pending.extend(self.top().iter().rev().map(|at| Visit { at: *at, top: *at, depth: 0 }));
        while let Some(visit) = pending.pop() {
            visits.push(visit);
            let inner = self.children[visit.at].iter().rev();
            pending.extend(inner.map(|at| Visit { at: *at, depth: visit.depth + 1, ..visit }));
        }
        visits
    }

    /// The stretches of each phase, by name in order of first start.
    ///
    /// A phase that is not a topmost span is looked for further down; a stretch
    /// inside a stretch of any phase belongs to the outer one.
    pub fn phase_segments(&self, phases: &HashSet<&str>) -> Vec<(&'a str, Vec<usize>)> {
        let mut found: Vec<(&'a str, Vec<usize>)> = Vec::new();
        let mut slots: HashMap<&'a str, usize> = HashMap::new();
        let mut pending: Vec<(usize, bool)> = Vec::new();
        pending.extend(self.top().iter().rev().map(|at| (*at, true)));
        while let Some((at, top)) = pending.pop() {
            let name = self.spans[at].name.as_str();
            let is_phase = phases.contains(name) || (top && self.children[at].is_empty());
            if is_phase {
                let slot = *slots.entry(name).or_insert_with(|| {
                    found.push((name, Vec::new()));
                    found.len() - 1
                });
                found[slot].1.push(at);
            } else {
                pending.extend(self.children[at].iter().rev().map(|at| (*at, false)));
            }
        }
        found
    }
}

/// A span met by [`SpanTree::walk`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Visit {
    /// The span.
    pub at: usize,
    /// The topmost span it is in.
    pub top: usize,
    /// 0 for a topmost span.
    pub depth: usize,
}

/// Length of a span, 0 for one that ends before it starts.
pub(super) fn length(span: &Span) -> Ns {
    span.end.saturating_sub(span.start).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: u32, parent: Option<u32>, start: Ns, end: Ns) -> Span {
        Span { id, parent, name: format!("s{id}"), start, end, ..Span::default() }
    }

    #[test]
    fn broken_parents_become_roots() {
        let spans = vec![span(0, Some(1), 0, 5), span(1, Some(1), 5, 9), span(2, Some(7), 9, 10)];
        let timeline = Timeline { total: 10, spans, ..Timeline::default() };
        let tree = SpanTree::new(&timeline);
        assert_eq!(tree.roots, [0, 1, 2]);
        assert_eq!(tree.walk().len(), 3);
    }

    #[test]
    fn depth_is_bounded() {
        let spans: Vec<Span> = (0..10_000).map(|i: u32| span(i, i.checked_sub(1), 0, 10)).collect();
        let timeline = Timeline { total: 10, spans, ..Timeline::default() };
        let tree = SpanTree::new(&timeline);
        let deepest = tree.walk().iter().map(|v| v.depth).max();
        assert!(deepest.is_some_and(|d| d <= DEPTH_LIMIT), "{deepest:?}");
        assert_eq!(tree.walk().len(), 9_999);
    }
}
