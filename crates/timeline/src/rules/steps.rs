//! The steps that init itself announces, and its own start.

use super::printed_lines::programs;
use super::RuleSet;
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::facts::RunIndex;
use crate::input::Seen;
use crate::landmarks::{hung_until, open_end};
use crate::tree::{Growing, Node};
use std::collections::BTreeMap;
use vmeter_model::{EventKind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// Steps whose names begin so are cold plugging, and are shown as one activity.
const UDEV_STEPS: &str = "udev-";
const UDEV: &str = "/init:udev-overhead";

/// Init has run for a while when it first says something.
const FIRST_STEP_ERROR_NS: Ns = 20_000_000;
/// The kernel names its init just before `execve`, which reads the file first.
const EXEC_ERROR_NS: Ns = 5_000_000;

/// Steps inside steps inside … more than this are taken as torn.
const MAX_OPEN: usize = 16;

fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    let near =
        |stamp: Stamp<'a>, extra: Ns| Stamp { error: stamp.error.saturating_add(extra), ..stamp };
    if let Some(reached) = facts.first_reached(&["run_init_process"]) {
        found.offer(Anchor::Userspace, Trust::Exact, reached);
    }
    if let Some(exec) = facts.first(is_init_exec) {
        found.offer(Anchor::Userspace, Trust::Near, near(exec, EXEC_ERROR_NS));
    }
    // Of a trace whose first records were lost the first that is left is not the first.
    let step = facts.first(|w| matches!(w, EventKind::StepStart { .. }));
    if let Some(step) = step.filter(|_| facts.lost.is_none()) {
        found.offer(Anchor::Userspace, Trust::Near, near(step, FIRST_STEP_ERROR_NS));
    }
}

fn is_init_exec(what: &EventKind) -> bool {
    matches!(what, EventKind::ProcessExec { pid: 1, .. })
}

/// A step with both ends.
#[derive(Debug)]
struct Step<'a> {
    name: &'a str,
    start: Stamp<'a>,
    end: Option<Stamp<'a>>,
}

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    place_start(facts, anchors, tree);
    let (mut steps, torn) = pair(facts);
    if torn > 0 {
        tree.warnings.push(format!(
            "{torn} steps of init have an end but no beginning, because records \
                were lost"
        ));
    }
    steps.sort_by_key(|s| (s.start.at, s.end.map(|e| std::cmp::Reverse(e.at))));
    let nodes: Vec<Node<'a>> = (0..steps.len())
        .map(|index| {
            let step = &steps[index];
            let (end, unfinished) = match step.end {
                Some(end) => (end.at.min(open_end(facts, anchors, step.start.at)), false),
                None => lost_end(facts, anchors, &steps, index),
            };
            let error = step.start.error.max(step.end.map_or(0, |e| e.error));
            let node = Node::new(span_name(step.name), step.start.at, end, step.start.source);
            Node { error, unfinished, ..node }
        })
        .collect();
    let lost = steps.iter().zip(&nodes).filter(|(s, n)| s.end.is_none() && !n.unfinished);
    let unended = |name: &str| format!("no source saw the end of init's step {name}");
    tree.warnings.extend(lost.map(|(s, _)| unended(s.name)));
    place_end(facts, anchors, tree);
    for udev in together(&steps, &nodes) {
        tree.place(udev);
    }
    for node in nodes {
        tree.place(node);
    }
}

/// Where a step that is not seen to end is taken to: the next step, or wherever it
/// can have hung. If neither, nowhere: the step is a span of no length. True for one that went
/// on to the end.
fn lost_end(
    facts: &RunIndex<'_>,
    anchors: &Anchors<'_>,
    steps: &[Step<'_>],
    index: usize,
) -> (Ns, bool) {
    let start = steps[index].start.at;
    let limit = open_end(facts, anchors, start);
    match steps[index + 1..].iter().map(|s| s.start.at).find(|at| *at > start) {
        Some(next) => (next.min(limit), false),
        None => match hung_until(facts, anchors, start) {
            Some(end) => (end, true),
            None => (start, false),
        },
    }
}

fn span_name(step: &str) -> String {
    if step.starts_with("insmod ") {
        step.to_owned()
    } else {
        format!("/init:{step}")
    }
}

/// Each row of cold-plug steps as one span, to hold them.
fn together<'a>(steps: &[Step<'a>], nodes: &[Node<'a>]) -> Vec<Node<'a>> {
    let mut rows: Vec<Node<'a>> = Vec::new();
    let mut in_row = false;
    for (step, node) in steps.iter().zip(nodes) {
        let udev = step.name.starts_with(UDEV_STEPS);
        match rows.last_mut() {
            Some(row) if udev && in_row => row.end = row.end.max(node.end),
            _ if udev => {
                let row = Node::new(UDEV, node.start, node.end, node.source);
                rows.push(Node { error: node.error, ..row });
            }
            _ => {}
        }
        in_row = udev;
    }
    rows
}

/// `/init:exec` from the hand-over to the new image, `/init:start` from there to
/// the first thing that user space is seen to do.
fn place_start<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(begin) = anchors.get(Anchor::Userspace) else { return };
    let limit = open_end(facts, anchors, begin.at);
    let exec = facts.first(is_init_exec).filter(|e| (begin.at..limit).contains(&e.at));
    let first_deed = facts.seen.iter().find(|s| {
        let deed = match s.what {
            EventKind::StepStart { .. } | EventKind::ModuleLoad { .. } => true,
            EventKind::ProcessExec { pid, .. } => *pid != 1,
            EventKind::ProcessFork { parent, thread, .. } => *parent == 1 && !thread,
            _ => false,
        };
        deed && (begin.at..limit).contains(&s.at) && exec.is_none_or(|e| e.at <= s.at)
    });
    let told = free_until(&tree.root, exec.unwrap_or(begin).at);
    let mut stretch = |name, from: Stamp<'a>, to: Stamp<'a>| {
        if from.at < to.at {
            let error = from.error.max(to.error);
            tree.place(Node { error, ..Node::new(name, from.at, to.at, to.source) });
        }
    };
    if let Some(exec) = exec {
        stretch("/init:exec", begin, exec);
    }
    if let Some(deed) = first_deed.filter(|_| exec.is_some() || facts.lost.is_none()) {
        let (from, deed) = (exec.unwrap_or(begin), Stamp::of(deed));
        // It may say what it is at before it does anything that is seen.
        let says = programs(facts).find(|line| (from.at..deed.at).contains(&line.at));
        let ends = [Some((told, 0)), Some((deed.at, deed.error)), says.map(|l| (l.at, l.error))];
        let (at, error) = ends.into_iter().flatten().min().unwrap_or((deed.at, deed.error));
        stretch("/init:start", from, Stamp { at, error, ..deed });
    }
}

/// Until when nothing is placed that begins after a moment and inside what holds it.
fn free_until(root: &Node<'_>, at: Ns) -> Ns {
    let mut node = root;
    loop {
        let next = node.children.partition_point(|child| child.end <= at);
        match node.children.get(next) {
            Some(child) if child.start <= at => node = child,
            Some(child) => return child.start,
            None => return node.end,
        }
    }
}

/// `/init:announce`: from init's own mark that it is ready to the sign of it on the
/// console, or to init's shutdown; it prints in between.
fn place_end<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let own =
        |s: &&Seen<'a>| matches!(s.what, EventKind::StepStart { .. } | EventKind::ShutdownStart);
    let Some(init) = facts.seen.iter().find(own).map(|s| s.source) else { return };
    let said = |s: &&Seen<'a>| *s.what == EventKind::Ready && s.source == init;
    let Some(ready) = facts.seen.iter().find(said) else { return };
    let next = facts.seen.iter().find(|s| {
        let echo = *s.what == EventKind::Ready && s.source != init;
        s.at > ready.at && (echo || *s.what == EventKind::ShutdownStart && s.source == init)
    });
    let begun = anchors.get(Anchor::Userspace).is_some_and(|s| s.at <= ready.at);
    if let Some(next) = next.filter(|_| begun) {
        let end = next.at.min(open_end(facts, anchors, ready.at));
        let node = Node::new("/init:announce", ready.at, end, ready.source);
        tree.place(Node { error: ready.error.max(next.error), ..node });
    }
}

/// Steps of the source that saw most of them; and ends without a beginning.
fn pair<'a>(facts: &RunIndex<'a>) -> (Vec<Step<'a>>, usize) {
    let mut by_source: BTreeMap<&str, Pairing<'a>> = BTreeMap::new();
    for seen in facts.seen {
        match seen.what {
            EventKind::StepStart { step } => {
                by_source.entry(seen.source).or_default().start(step, Stamp::of(seen));
            }
            EventKind::StepEnd { step } => {
                by_source.entry(seen.source).or_default().end(step, Stamp::of(seen));
            }
            _ => {}
        }
    }
    let best = by_source.into_values().max_by_key(|p| p.steps.len()).unwrap_or_default();
    (best.steps, best.torn)
}

#[derive(Debug, Default)]
struct Pairing<'a> {
    steps: Vec<Step<'a>>,
    open: Vec<usize>,
    torn: usize,
}

impl<'a> Pairing<'a> {
    fn start(&mut self, name: &'a str, start: Stamp<'a>) {
        if self.open.len() >= MAX_OPEN {
            self.open.remove(0);
        }
        self.open.push(self.steps.len());
        self.steps.push(Step { name, start, end: None });
    }

    fn end(&mut self, name: &str, end: Stamp<'a>) {
        match self.open.iter().rposition(|i| self.steps[*i].name == name) {
            Some(at) => {
                for index in self.open.drain(at + 1..) {
                    self.steps[index].end = Some(end);
                }
                if let Some(index) = self.open.pop() {
                    self.steps[index].end = Some(end);
                }
            }
            None => self.torn += 1,
        }
    }
}
