//! Intervals to a tree that tiles its root.
//!
//! Spans are placed one by one, outermost first. Each goes into the deepest span
//! that holds it. Two that overlap by no more than the sum of their errors are
//! trimmed to touch; any other overlap is refused, and the caller keeps that span
//! beside the tree. At the end the gaps are filled: with `unattributed`, or with
//! the name of the work where the parent itself says what runs in its gaps.

use vmeter_model::identity::UNFINISHED;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::{Identity, Ns, Span};

/// What the gaps between a span's children are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Nothing says what ran.
    Unattributed,
    /// More of what the span's own name says.
    Own,
    /// The same, unless lines that were printed say more.
    LogMessage,
    /// Named work before, between and after the children.
    Named {
        /// Before the first child.
        before: &'static str,
        /// Between two children.
        between: &'static str,
        /// After the last initcall, and the last child.
        after: &'static str,
    },
}

/// What a span may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A phase, a step, a process: whatever happens inside is part of it.
    Frame,
    /// An initcall: never holds another initcall.
    Call,
}

/// A span in the making.
#[derive(Debug, Clone)]
pub(crate) struct Node<'a> {
    pub name: String,
    pub start: Ns,
    pub end: Ns,
    pub source: &'a str,
    pub error: Ns,
    /// CPU time, ns, where the guest says so.
    pub cpu: Option<Ns>,
    pub fill: Fill,
    pub kind: Kind,
    /// True if it was still going on when the run ended.
    pub unfinished: bool,
    pub children: Vec<Node<'a>>,
    /// Its length before anything was cut out of it, ns.
    pub whole: Ns,
}

/// An end that is off by no more is near enough for a part of any length, ns.
pub(crate) const NEAR_NS: Ns = 10_000_000;

/// True where a stretch may not have been there at all, by how far off its ends can be.
fn is_lost_in(error: Ns, length: Ns) -> bool {
    error > NEAR_NS && error >= length
}

/// Deepest level; what would lie deeper is kept beside the tree.
const MAX_DEPTH: usize = 32;

impl<'a> Node<'a> {
    /// A span whose gaps are more of itself.
    pub(crate) fn new(name: impl Into<String>, start: Ns, end: Ns, source: &'a str) -> Self {
        Node {
            name: name.into(),
            start,
            end: end.max(start),
            source,
            error: 0,
            cpu: None,
            fill: Fill::Own,
            kind: Kind::Frame,
            unfinished: false,
            children: Vec::new(),
            whole: end.max(start) - start,
        }
    }

    /// Length, ns.
    pub(crate) fn len(&self) -> Ns {
        self.end - self.start
    }

    /// Places `node` in the deepest span that holds it; given back if it overlaps.
    #[must_use]
    pub(crate) fn place(&mut self, node: Node<'a>) -> Option<Node<'a>> {
        self.place_at(node, 0)
    }

    fn place_at(&mut self, mut node: Node<'a>, depth: usize) -> Option<Node<'a>> {
        if depth >= MAX_DEPTH || node.start < self.start || node.end > self.end {
            return Some(node);
        }
        loop {
            let first = self.children.partition_point(|c| c.end <= node.start);
            let past = self.children.partition_point(|c| c.start < node.end).max(first);
            if first == past {
                self.children.insert(first, node);
                return None;
            }
            let (left, right) = (&self.children[first], &self.children[past - 1]);
            if left.holds(&node) {
                if left.kind == Kind::Call && node.kind == Kind::Call {
                    return Some(node);
                }
                return self.children[first].place_at(node, depth + 1);
            }
            let trimmed = trim_left(&node, left).or_else(|| trim_right(&node, right));
            match trimmed {
                Some((start, end)) => (node.start, node.end) = (start, end),
                None => return Some(node),
            }
        }
    }

    fn holds(&self, other: &Node<'_>) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The part of this span inside `from..to`, if any. A span of no length
    /// belongs to the piece that it begins.
    pub(crate) fn clip(&self, from: Ns, to: Ns) -> Option<Node<'a>> {
        let (start, end) = (self.start.max(from), self.end.min(to));
        let instant = self.len() == 0 && from <= self.start && self.start < to;
        (start < end || instant).then(|| Node {
            name: self.name.clone(),
            start,
            end,
            // Of several pieces, the first has all of it.
            cpu: self.cpu.filter(|_| start == self.start),
            children: self.children.iter().filter_map(|c| c.clip(from, to)).collect(),
            ..*self
        })
    }

    /// Cuts `piece` out of whatever is there and puts it in its place.
    pub(crate) fn carve(&mut self, mut piece: Node<'a>) {
        piece.start = piece.start.clamp(self.start, self.end);
        piece.end = piece.end.clamp(piece.start, self.end);
        if piece.len() == 0 {
            return;
        }
        let mut kept = Vec::with_capacity(self.children.len() + 2);
        let children = std::mem::take(&mut self.children);
        let at = children.partition_point(|c| c.end <= piece.start);
        let mut children = children.into_iter();
        kept.extend(children.by_ref().take(at));
        let mut after = Vec::new();
        for child in children {
            if child.start >= piece.end {
                after.push(child);
                continue;
            }
            kept.extend(child.clip(child.start, piece.start));
            after.extend(child.clip(piece.end, child.end));
        }
        kept.push(piece);
        kept.append(&mut after);
        self.children = kept;
    }

    /// Fills every gap, here and below.
    pub(crate) fn fill(&mut self) {
        let is_lost = self.children.is_empty() && is_lost_in(self.error, self.whole);
        if Identity::of(&self.name).is_shared() || is_lost {
            self.fill = Fill::Unattributed;
            self.children.extend(
                self.gap(self.start, self.end, Gap::Before).filter(|_| self.children.is_empty()),
            );
        }
        if self.children.is_empty() {
            return;
        }
        let mut filled = Vec::with_capacity(self.children.len() * 2 + 1);
        let mut at = self.start;
        let children = std::mem::take(&mut self.children);
        let last_call = children.iter().rposition(Node::has_calls);
        for (index, mut child) in children.into_iter().enumerate() {
            let gap = match last_call {
                _ if index == 0 => Gap::Before,
                Some(last) if index > last => Gap::BehindCalls,
                _ => Gap::Between,
            };
            filled.extend(self.gap(at, child.start, gap));
            at = child.end;
            child.fill();
            filled.push(child);
        }
        filled.extend(self.gap(at, self.end, Gap::After));
        self.children = filled;
    }

    /// True for an initcall, and a level of them.
    fn has_calls(&self) -> bool {
        self.kind == Kind::Call || self.children.iter().any(|child| child.kind == Kind::Call)
    }

    fn gap(&self, start: Ns, end: Ns, gap: Gap) -> Option<Node<'a>> {
        if start >= end {
            return None;
        }
        // Between two children, and where something was cut out, other ends count.
        let own_end = matches!(gap, Gap::Before | Gap::After) && self.whole == self.len();
        let is_lost = own_end && is_lost_in(self.error, end - start);
        let fill = if is_lost { Fill::Unattributed } else { self.fill };
        let name = match (fill, gap) {
            (Fill::Unattributed, _) => UNATTRIBUTED,
            (Fill::Own | Fill::LogMessage, _) => self.name.as_str(),
            (Fill::Named { before, .. }, Gap::Before) => before,
            (Fill::Named { between, .. }, Gap::Between) => between,
            (Fill::Named { after, .. }, Gap::BehindCalls | Gap::After) => after,
        };
        let source = if fill == Fill::Unattributed { "" } else { self.source };
        let mut node = Node::new(name, start, end, source);
        node.error = if fill == Fill::Unattributed { 0 } else { self.error };
        node.unfinished = self.unfinished && matches!(fill, Fill::Own | Fill::LogMessage);
        Some(node)
    }
}

#[derive(Clone, Copy)]
enum Gap {
    Before,
    Between,
    /// Between two children of which no later one is an initcall.
    BehindCalls,
    After,
}

/// `node` begins inside `left` and ends after it: moved to begin at its end, or
/// to end with it, whichever gives up less, if that is within their errors.
fn trim_left(node: &Node<'_>, left: &Node<'_>) -> Option<(Ns, Ns)> {
    if left.start > node.start || left.end <= node.start || left.end >= node.end {
        return None;
    }
    let tolerance = node.error.saturating_add(left.error);
    let (overlap, rest) = (left.end - node.start, node.end - left.end);
    if rest < overlap && rest <= tolerance {
        Some((node.start, left.end))
    } else {
        (overlap <= tolerance).then_some((left.end, node.end))
    }
}

/// The same at the other end.
fn trim_right(node: &Node<'_>, right: &Node<'_>) -> Option<(Ns, Ns)> {
    if right.end < node.end || right.start >= node.end || right.start <= node.start {
        return None;
    }
    let tolerance = node.error.saturating_add(right.error);
    let (overlap, rest) = (node.end - right.start, right.start - node.start);
    if rest < overlap && rest <= tolerance {
        Some((right.start, node.end))
    } else {
        (overlap <= tolerance).then_some((node.start, right.start))
    }
}

/// A node and what is below it as spans, parents first, in order of start.
pub(crate) fn flatten(node: Node<'_>, parent: Option<u32>, spans: &mut Vec<Span>) {
    let id = u32::try_from(spans.len()).unwrap_or(u32::MAX);
    let mut name = node.name;
    name.push_str(if node.unfinished { UNFINISHED } else { "" });
    spans.push(Span {
        id,
        parent,
        name,
        start: node.start,
        end: node.end,
        insns: None,
        cpu: node.cpu,
        source: node.source.to_owned(),
        error_ns: node.error,
    });
    for child in node.children {
        flatten(child, Some(id), spans);
    }
}

/// The tree while it is made.
#[derive(Debug)]
pub(crate) struct Growing<'a> {
    /// The whole run; its children are the phases.
    pub root: Node<'a>,
    /// What overlaps the tree.
    pub beside: Vec<Node<'a>>,
    /// In words.
    pub warnings: Vec<String>,
}

impl<'a> Growing<'a> {
    /// Places a span where it fits, or keeps it beside the tree.
    pub(crate) fn place(&mut self, node: Node<'a>) {
        self.beside.extend(self.root.place(node));
    }

    /// Places a span where it fits; one that crosses from a phase or a stage's part into the
    /// next, in each of them. What fits nowhere is given back.
    #[must_use]
    pub(crate) fn place_across(&mut self, node: Node<'a>) -> Option<Node<'a>> {
        let node = self.root.place(node)?;
        let inside = |at: &Ns| node.start < *at && *at < node.end;
        let parts = |phase: &Node<'_>| {
            let stage = |child: &&Node<'_>| child.name.starts_with(&format!("{}:", phase.name));
            let own = phase.children.iter().filter(stage).flat_map(|c| [c.start, c.end]);
            own.collect::<Vec<Ns>>()
        };
        let phases = self.root.children.iter().filter(|p| p.start < node.end && node.start < p.end);
        let mut cuts: Vec<Ns> =
            phases.flat_map(|p| [parts(p), vec![p.start, p.end]].concat()).collect();
        cuts.retain(inside);
        cuts.push(node.end);
        cuts.sort_unstable();
        cuts.dedup();
        if cuts.len() == 1 {
            return Some(node);
        }
        let (mut from, mut refused) = (node.start, Vec::new());
        for to in cuts.iter().copied() {
            refused.extend(node.clip(from, to).and_then(|piece| self.root.place(piece)));
            from = to;
        }
        if refused.len() == cuts.len() {
            return Some(node);
        }
        self.beside.extend(refused);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, start: Ns, end: Ns, error: Ns) -> Node<'static> {
        Node { error, ..Node::new(name, start, end, "test") }
    }

    fn shape(node: &Node<'_>) -> String {
        let inner: Vec<String> = node.children.iter().map(shape).collect();
        format!("{}[{}-{}]({})", node.name, node.start, node.end, inner.join(" "))
    }

    #[test]
    fn spans_nest_touch_and_refuse() {
        let mut root = node("root", 0, 100, 0);
        assert!(root.place(node("a", 10, 50, 0)).is_none());
        assert!(root.place(node("in-a", 20, 30, 0)).is_none());
        assert!(root.place(node("b", 48, 70, 5)).is_none());
        assert!(root.place(node("in-b", 52, 71, 5)).is_none());
        assert!(root.place(node("astride", 38, 62, 5)).is_some());
        assert!(root.place(node("around", 5, 60, 5)).is_some());
        assert!(root.place(node("outside", 90, 101, 0)).is_some());
        assert_eq!(shape(&root), "root[0-100](a[10-50](in-a[20-30]()) b[50-70](in-b[52-70]()))");
    }

    #[test]
    fn what_is_off_by_more_than_its_length_has_no_name() {
        const MS: Ns = 1_000_000;
        let mut root = node("root", 0, 1_000 * MS, 0);
        assert!(root.place(node("near", 0, 5 * MS, 9 * MS)).is_none());
        assert!(root.place(node("lost", 10 * MS, 40 * MS, 50 * MS)).is_none());
        assert!(root.place(node("held", 100 * MS, 400 * MS, 60 * MS)).is_none());
        assert!(root.place(node("in-held", 140 * MS, 200 * MS, 0)).is_none());
        assert!(root.place(node("cut", 500 * MS, 900 * MS, 60 * MS)).is_none());
        // What is cut out has ends of its own.
        root.carve(node("piece", 510 * MS, 880 * MS, 0));
        root.fill();
        let leaves = |name: &str| -> Vec<String> {
            let node = root.children.iter().filter(|n| n.name == name);
            node.flat_map(|n| n.children.iter().map(|c| c.name.clone())).collect()
        };
        assert_eq!(leaves("lost"), [UNATTRIBUTED]);
        assert_eq!(leaves("held"), [UNATTRIBUTED, "in-held", "held"]);
        assert_eq!((leaves("near").len(), leaves("cut").len()), (0, 0));
    }

    #[test]
    fn an_initcall_never_holds_another() {
        let mut root = node("root", 0, 100, 0);
        let call = |start, end| Node { kind: Kind::Call, ..node("call", start, end, 0) };
        assert!(root.place(call(10, 50)).is_none());
        assert!(root.place(call(20, 30)).is_some());
        assert!(root.place(node("process", 20, 30, 0)).is_none());
    }

    #[test]
    fn carving_splits_what_it_crosses() {
        let mut root = node("root", 0, 100, 0);
        assert!(root.place(node("a", 0, 60, 0)).is_none());
        assert!(root.place(node("x", 20, 40, 0)).is_none());
        root.carve(node("load", 30, 35, 0));
        assert_eq!(
            shape(&root),
            "root[0-100](a[0-30](x[20-30]()) load[30-35]() a[35-60](x[35-40]()))"
        );
    }

    #[test]
    fn what_crosses_a_border_of_phases_is_in_both() {
        let mut tree =
            Growing { root: node("root", 0, 100, 0), beside: Vec::new(), warnings: Vec::new() };
        for (name, start, end) in [
            ("user", 10, 50),
            ("down", 50, 90),
            ("down:guest", 50, 80),
            ("down:vmm", 80, 90),
            ("done", 20, 30),
        ] {
            tree.place(node(name, start, end, 0));
        }
        assert!(tree.place_across(node("sleep", 40, 85, 0)).is_none());
        assert!(tree.place_across(node("astride", 25, 45, 0)).is_some());
        assert_eq!(
            shape(&tree.root),
            "root[0-100](user[10-50](done[20-30]() sleep[40-50]()) \
             down[50-90](down:guest[50-80](sleep[50-80]()) down:vmm[80-90](sleep[80-85]())))"
        );
        assert!(tree.beside.is_empty());
    }

    #[test]
    fn gaps_are_filled_by_what_the_parent_says() {
        let mut root = Node { fill: Fill::Unattributed, ..node("root", 0, 100, 0) };
        assert!(root.place(node("a", 10, 50, 0)).is_none());
        assert!(root.place(node("in-a", 20, 30, 0)).is_none());
        root.fill();
        assert_eq!(
            shape(&root),
            "root[0-100](unattributed[0-10]() \
             a[10-50](a[10-20]() in-a[20-30]() a[30-50]()) unattributed[50-100]())"
        );
    }
}
