//! `--critical-chain` and `--tree`.

use super::colours::group_of;
use super::tree::{length, SpanTree};
use std::collections::{HashMap, HashSet};
use vmeter_model::time::seconds;
use vmeter_model::{Ns, Timeline};
use vmeter_render::document::{Node, Outline, Tone};
use vmeter_render::palette::Group;
use vmeter_render::quantity::compact_seconds;

/// A part of a link is shown from this share of the run on.
const PART_SHARE: f64 = 0.02;
/// Most parts shown of one link.
const PARTS: usize = 3;
/// Links shorter than this share of the run are passed over.
const LINK_SHARE: f64 = 0.0005;

fn start_and_length(start: Ns, length: Ns) -> String {
    format!("@{} +{}", compact_seconds(seconds(start)), compact_seconds(seconds(length)))
}

fn tone(name: &str) -> Tone {
    match group_of(name) {
        Group::Unattributed => Tone::Muted,
        _ => Tone::Normal,
    }
}

/// The chain from the end of the run back to the exec: nothing in it overlaps,
/// so shortening any link shortens the boot.
pub(super) fn critical_chain(timeline: &Timeline) -> Outline {
    let tree = SpanTree::new(timeline);
    let total = timeline.total.max(1) as f64;
    let mut chain: Option<Node> = None;
    let mut links: Vec<usize> = tree.top().to_vec();
    links.retain(|at| length(tree.span(*at)) as f64 >= LINK_SHARE * total);
    let folded = links.len().saturating_sub(super::tree::DEPTH_LIMIT / 2);
    for at in links.into_iter().skip(folded) {
        let span = tree.span(at);
        let mut children = parts(&tree, at, total, 0);
        children.extend(chain.take());
        chain = Some(Node {
            name: span.name.clone(),
            figures: start_and_length(span.start, length(span)),
            tone: if length(span) as f64 >= 0.1 * total { Tone::Strong } else { tone(&span.name) },
            children,
        });
    }
    Outline {
        legend: "The time after \"@\" is when it began, counted from the VMM's exec; the time \
                 after \"+\" is how long it took. The last link of a branch is what came before \
                 it; the others are its longest parts."
            .into(),
        roots: chain.into_iter().collect(),
    }
}

/// The longest parts of a span, each with its own, in order of time.
fn parts(tree: &SpanTree, at: usize, total: f64, depth: usize) -> Vec<Node> {
    const DEPTH: usize = 3;
    if depth >= DEPTH {
        return Vec::new();
    }
    let mut longest: Vec<usize> = tree.children(at).to_vec();
    longest.retain(|at| length(tree.span(*at)) as f64 >= PART_SHARE * total);
    longest.sort_by_key(|at| std::cmp::Reverse(length(tree.span(*at))));
    longest.truncate(PARTS);
    longest.sort_by_key(|at| tree.span(*at).start);
    let nodes = longest.into_iter().map(|at| {
        let span = tree.span(at);
        Node {
            name: span.name.clone(),
            figures: start_and_length(span.start, length(span)),
            tone: tone(&span.name),
            children: parts(tree, at, total, depth + 1),
        }
    });
    nodes.collect()
}

/// Spans of several runs that are the same by name and place.
#[derive(Default)]
struct Merged {
    name: String,
    start: i128,
    length: i128,
    shortest: Ns,
    longest: Ns,
    insns: u128,
    counted: bool,
    /// Runs it appears in.
    runs: usize,
    last_run: Option<usize>,
    in_last_run: Ns,
    children: Vec<usize>,
}

/// The span tree of one run as it is, or the mean over several: there, spans are
/// the same when they and everything they are part of have the same names.
pub(super) fn tree(timelines: &[&Timeline], min_duration: Ns) -> Outline {
    let mut merged: Vec<Merged> = vec![Merged::default()];
    let mut places = Places::new();
    for (run, timeline) in timelines.iter().enumerate() {
        let run = (timelines.len() > 1).then_some(run);
        merge(&SpanTree::new(timeline), run, &mut merged, &mut places);
    }
    let count = timelines.len().max(1);
    let folded = Folding { merged: &merged, runs: count, min_duration };
    let several = if count > 1 {
        " Means; a run without a span counts as 0. In brackets the shortest and the longest."
    } else {
        ""
    };
    Outline {
        legend: format!(
            "The time after \"@\" is when it began, counted from the VMM's exec; the time after \
             \"+\" is how long it took. Spans under {} are left out.{several}",
            compact_seconds(seconds(min_duration)),
        ),
        roots: folded.nodes(0),
    }
}

/// Where a span of a tree goes: its parent, its name, and what keeps it apart.
type Places = HashMap<(usize, String, usize), usize>;

/// Adds a run's spans; those of the only run (`run` is `None`) stay apart.
fn merge(tree: &SpanTree, run: Option<usize>, merged: &mut Vec<Merged>, places: &mut Places) {
    let mut pending: Vec<(usize, usize)> = tree.top().iter().rev().map(|at| (*at, 0)).collect();
    let mut started: HashSet<usize> = HashSet::new();
    while let Some((at, parent)) = pending.pop() {
        let span = tree.span(at);
        let apart = if run.is_none() { at } else { 0 };
        let place = *places.entry((parent, span.name.clone(), apart)).or_insert_with(|| {
            let place = merged.len();
            merged.push(Merged { name: span.name.clone(), shortest: Ns::MAX, ..Merged::default() });
            merged[parent].children.push(place);
            place
        });
        let node = &mut merged[place];
        if node.last_run != Some(run.unwrap_or(0)) {
            node.close_run();
            node.last_run = Some(run.unwrap_or(0));
            node.runs += 1;
        }
        if started.insert(place) {
            node.start += i128::from(span.start);
        }
        node.in_last_run = node.in_last_run.saturating_add(length(span));
        node.length += i128::from(length(span));
        node.insns += u128::from(span.insns.unwrap_or(0));
        node.counted |= span.insns.is_some();
        pending.extend(tree.children(at).iter().rev().map(|at| (*at, place)));
    }
    for place in started {
        merged[place].close_run();
    }
}

impl Merged {
    /// Takes the last run's length into the range.
    fn close_run(&mut self) {
        if self.last_run.take().is_some() {
            self.shortest = self.shortest.min(self.in_last_run);
            self.longest = self.longest.max(self.in_last_run);
        }
        self.in_last_run = 0;
    }
}

struct Folding<'a> {
    merged: &'a [Merged],
    runs: usize,
    min_duration: Ns,
}

impl Folding<'_> {
    fn nodes(&self, parent: usize) -> Vec<Node> {
        let mut children = self.merged[parent].children.clone();
        children.retain(|place| self.mean_length(&self.merged[*place]) >= self.min_duration);
        children.sort_by_key(|place| self.mean_start(&self.merged[*place]));
        let nodes = children.into_iter().map(|place| Node {
            name: self.merged[place].name.clone(),
            figures: self.figures(&self.merged[place]),
            tone: tone(&self.merged[place].name),
            children: self.nodes(place),
        });
        nodes.collect()
    }

    fn mean_start(&self, node: &Merged) -> Ns {
        Ns::try_from(node.start / node.runs.max(1) as i128).unwrap_or(Ns::MAX)
    }

    fn mean_length(&self, node: &Merged) -> Ns {
        Ns::try_from(node.length / self.runs as i128).unwrap_or(Ns::MAX)
    }

    fn figures(&self, node: &Merged) -> String {
        let mut text = start_and_length(self.mean_start(node), self.mean_length(node));
        if self.runs > 1 {
            let least = if node.runs < self.runs { 0 } else { node.shortest };
            let [least, most] = [least, node.longest].map(|ns| compact_seconds(seconds(ns)));
            text.push_str(&format!(" [{least} {most}]"));
        }
        if node.counted {
            let mean = node.insns as f64 / self.runs as f64;
            let insns = vmeter_render::quantity::Quantity::exact(
                mean.round(),
                vmeter_render::quantity::Unit::Count,
            );
            text.push_str(&format!(" {} insns", insns.inline()));
        }
        text
    }
}
