//! What systemd waited for when it went down: from `Stopping X` to `Stopped X`, the one that
//! ended last, before it the one that had ended last by then, and so on. The others are beside
//! the tree.

use super::processes::last_first;
use super::shutdown::{stopping, GUEST};
use super::units::sayings;
use super::verbs::{same, Verb};
use super::{no_anchors, RuleSet};
use crate::anchors::{Anchors, Stamp};
use crate::backbone::SHUTDOWN;
use crate::facts::RunIndex;
use crate::tree::{Growing, Node};
use vmeter_model::{Kind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

/// systemd at work between the end of one unit and the next.
const STOP_JOBS: &str = "systemd:stop-jobs";
/// More than any guest stops at once.
const MAX_OPEN: usize = 512;

fn spans<'a>(facts: &RunIndex<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(from) = stopping(facts) else { return };
    // Where nothing says when the machine was off, the guest's part is not told apart.
    let phase = tree.root.children.iter().find(|n| n.name == SHUTDOWN);
    let guest = phase.and_then(|n| n.children.iter().find(|n| n.name == GUEST)).or(phase);
    let Some((start, end)) = guest.map(|n| (n.start.max(from.at), n.end)) else { return };
    // Who ends the rest begins when the last unit was stopped.
    let end = guest.and_then(|n| n.children.first()).map_or(end, |first| first.start);
    let said = sayings(facts, start, end);
    let units = stopped(&said);
    let spans = units.iter().enumerate().map(|(index, (_, from, to))| (from.at, to.at, index));
    let chain = last_first(spans.collect(), end);
    let mut at = start;
    for index in &chain {
        let (_, from, to) = &units[*index];
        jobs(tree, &said, at, from.at);
        at = to.at;
    }
    jobs(tree, &said, at, end);
    for (index, (name, from, to)) in units.iter().enumerate() {
        let node = Node::new(format!("{}{name}", Kind::Stop.word()), from.at, to.at, from.source);
        let node = Node { error: from.error.max(to.error), ..node };
        if chain.contains(&index) {
            tree.place(node);
        } else {
            tree.beside.push(node);
        }
    }
}

/// Units that took time to stop, in order of their ends.
fn stopped<'a>(said: &[(Stamp<'a>, Verb, &'a str)]) -> Vec<(&'a str, Stamp<'a>, Stamp<'a>)> {
    let mut open: Vec<(&str, Stamp<'a>)> = Vec::new();
    let mut units = Vec::new();
    for (stamp, verb, name) in said {
        let known = open.iter().position(|(of, _)| same(of, name));
        match (verb, known) {
            (Verb::Stops, None) if open.len() < MAX_OPEN => open.push((name, *stamp)),
            (Verb::Stopped, Some(at)) => {
                let (of, begun) = open.remove(at);
                units.push((of, begun, *stamp));
            }
            _ => {}
        }
    }
    units
}

/// Names the gap between two units, if systemd spoke of some in it.
fn jobs<'a>(tree: &mut Growing<'a>, said: &[(Stamp<'a>, Verb, &'a str)], from: Ns, to: Ns) {
    let by = said.iter().find(|(stamp, ..)| from <= stamp.at && stamp.at <= to);
    if let Some((by, ..)) = by.filter(|_| from < to) {
        tree.place(Node { error: by.error, ..Node::new(STOP_JOBS, from, to, by.source) });
    }
}
