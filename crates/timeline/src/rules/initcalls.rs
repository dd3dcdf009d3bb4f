//! Initcalls: built-in ones by level inside their phase, modules' in whatever
//! loads them.

use super::kernel::{initcall_phase, parts, told};
use super::RuleSet;
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::backbone::INITCALLS;
use crate::calls::Call;
use crate::facts::RunIndex;
use crate::landmarks::hung_until;
use crate::tree::{Fill, Growing, Kind, Node};
use std::collections::BTreeMap;
use vmeter_model::{EventKind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// Levels that are called long before the others, each by its own subsystem
/// (kernel: `do_trace_initcall_level` outside init/main.c).
const APART: &[&str] = &["console", "security"];

/// Ends some ms after its only line.
pub(super) const DRIVER_INIT: &str = "kernel:driver_init";
/// Initcalls that nobody traced.
pub(super) const UNTRACED: &str = "kernel:initcalls";

/// Functions that run on a worker thread while initcalls go on.
const ASYNCHRONOUS: &[&str] = &["kernel:do_populate_rootfs"];

fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    let level = facts.first(
        |w| matches!(w, EventKind::InitcallLevel { level } if !APART.contains(&level.as_str())),
    );
    let calls = facts.calls.all.iter().filter(|c| !c.of_console() && c.module.is_none());
    let levels = levels(facts);
    let first_call = calls.map(|c| c.start).find(|start| !apart(&levels, start.at));
    // The very first of both, unless only a later part was recorded.
    if facts.lost.is_some() {
        return;
    }
    for stamp in level.into_iter().chain(first_call) {
        found.offer(Anchor::Initcalls, Trust::Exact, Stamp { at: stamp.at, ..stamp });
    }
}

type Level<'a> = (&'a str, Stamp<'a>);

/// Levels entered, in order, from the source that saw most of them.
fn levels<'a>(facts: &RunIndex<'a>) -> Vec<Level<'a>> {
    let mut by_source: BTreeMap<&str, Vec<Level<'a>>> = BTreeMap::new();
    for seen in facts.seen {
        if let EventKind::InitcallLevel { level } = seen.what {
            by_source.entry(seen.source).or_default().push((level, Stamp::of(seen)));
        }
    }
    by_source.into_values().max_by_key(Vec::len).unwrap_or_default()
}

/// True for a moment in one of the levels that are called apart.
fn apart(levels: &[Level<'_>], at: Ns) -> bool {
    let index = levels.partition_point(|(_, stamp)| stamp.at <= at);
    index.checked_sub(1).is_some_and(|i| APART.contains(&levels[i].0))
}

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    tree.warnings.extend(facts.calls.warnings.iter().cloned());
    place_levels(facts, tree);
    let main = main_thread(facts, anchors);
    let builtin = |call: &&Call<'a>| call.module.is_none();
    let (mut inside, beside): (Vec<_>, Vec<_>) = facts
        .calls
        .all
        .iter()
        .filter(builtin)
        .map(|call| (call, node(call, facts, anchors)))
        .partition(|(call, _)| call.pid.is_none() || call.pid == main || call.of_console());
    for (_, node) in inside.drain(..) {
        tree.place(node);
    }
    tree.beside.extend(beside.into_iter().map(|(_, node)| node));
    fill_gaps(facts, tree);
}

/// An initcall as a span. One that never returned lasts until the end if it may
/// have hung; otherwise its end was lost, and it is a span of no length.
pub(crate) fn node<'a>(call: &Call<'a>, facts: &RunIndex<'a>, anchors: &Anchors<'a>) -> Node<'a> {
    let open = || {
        let at = hung_until(facts, anchors, call.start.at).unwrap_or(call.start.at);
        Stamp { at, ..call.start }
    };
    let end = call.end.unwrap_or_else(open);
    let name = format!("initcall {}", call.function);
    Node {
        error: call.start.error.max(end.error),
        kind: Kind::Call,
        unfinished: call.end.is_none() && end.at > call.start.at,
        ..Node::new(name, call.start.at, end.at, call.start.source)
    }
}

/// The thread that runs most of the built-in initcalls: the kernel's init thread.
fn main_thread(facts: &RunIndex<'_>, anchors: &Anchors<'_>) -> Option<i32> {
    let until = anchors.get(Anchor::Userspace).map_or(facts.total, |s| s.at);
    let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
    for call in facts.calls.all.iter().filter(|c| c.start.at < until && c.module.is_none()) {
        if let Some(pid) = call.pid {
            *counts.entry(pid).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(pid, count)| (*count, -i64::from(*pid))).map(|(pid, _)| pid)
}

/// A level lasts from when it is entered to the end of its last initcall.
fn place_levels<'a>(facts: &RunIndex<'a>, tree: &mut Growing<'a>) {
    let Some((start, end)) = initcall_phase(tree).map(|n| (n.start, n.end)) else { return };
    let levels = levels(facts);
    for (index, (level, at)) in levels.iter().enumerate() {
        let next = levels.get(index + 1).map_or(end, |(_, next)| next.at).min(end);
        let inside = |c: &&Call<'_>| {
            (at.at..next).contains(&c.start.at) && c.module.is_none() && c.pid != Some(0)
        };
        let ends = facts.calls.all.iter().filter(inside).filter_map(|c| c.end).map(|e| e.at);
        let Some(last) = ends.max().map(|last| last.min(next)) else { continue };
        let from = at.at.max(start);
        if from < last && !APART.contains(level) {
            tree.place(Node {
                error: at.error,
                fill: Fill::Named {
                    before: "kernel:between-initcalls",
                    between: "kernel:between-initcalls",
                    after: "kernel:between-initcalls",
                },
                ..Node::new(format!("initcalls:{level}"), from, last, at.source)
            });
        }
    }
}

/// Names parts of the gaps between initcalls by what else was reached there.
fn fill_gaps<'a>(facts: &RunIndex<'a>, tree: &mut Growing<'a>) {
    let Some(phase) = initcall_phase(tree) else { return };
    let (start, end, apart) = (phase.start, phase.end, phase.name == INITCALLS);
    let taken: Vec<(Ns, Ns)> = phase.children.iter().map(|c| (c.start, c.end)).collect();
    let mut cuts = parts(facts, start, end, apart);
    if facts.calls.builtin().next().is_none() {
        // What comes after it is all the initcalls, and no line says where they begin.
        let driver_init = cuts.iter_mut().filter(|(name, _)| name == DRIVER_INIT);
        driver_init.for_each(|(name, _)| *name = UNTRACED.to_owned());
    }
    cuts.retain(|(name, at)| {
        let free = taken.partition_point(|(_, to)| *to <= at.at);
        let covered = taken.get(free).is_some_and(|(from, _)| *from < at.at);
        !covered && !ASYNCHRONOUS.contains(&name.as_str())
    });
    for (name, at, next) in told(cuts, end) {
        let free = taken.partition_point(|(_, to)| *to <= at.at);
        let to = taken.get(free).map_or(end, |(from, _)| *from).min(next);
        tree.place(Node { error: at.error, ..Node::new(name, at.at, to, at.source) });
    }
}
