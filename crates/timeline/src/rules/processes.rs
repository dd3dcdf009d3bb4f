//! What else user space did: processes, and modules that it had loaded.
//!
//! Inside a step of init these are parts of the step. Outside of any, a stretch
//! that holds some of them is `userspace`, and what they leave open in it is
//! `unattributed`: that a shell or a service manager existed does not say that it
//! ran. A process that never ended in the run, or that straddles a step, is a
//! daemon and is kept beside the tree.

use super::initcalls::node as call_node;
use super::{no_anchors, RuleSet};
use crate::anchors::{Anchor, Anchors, Stamp};
use crate::calls::Call;
use crate::facts::Facts;
use crate::landmarks::open_end;
use crate::tree::{Fill, Growing, Node};
use std::collections::{BTreeMap, HashMap};
use vmeter_model::{Ns, What};

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

pub(super) const USERSPACE: &str = "userspace";

fn spans<'a>(facts: &Facts<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let calls: Vec<(Call<'a>, Node<'a>)> = modules_calls(facts)
        .into_iter()
        .map(|call| {
            let node = call_node(&call, facts, anchors);
            (call, node)
        })
        .collect();
    let loads = loads(facts, &calls);
    let (mut deeds, daemons) = processes(facts, anchors);
    deeds.extend(loads.into_iter().filter(|load| !own_step(&tree.root, load)));
    deeds.sort_by_key(|d| (d.start, std::cmp::Reverse(d.end)));
    if let Some(begin) = anchors.get(Anchor::Userspace) {
        frames(&mut tree.root, &deeds, begin.at);
    }
    for mut deed in deeds {
        if in_frame(&tree.root, &deed) {
            deed.fill = Fill::Unattributed;
        }
        tree.place(deed);
    }
    for (_, node) in calls {
        tree.place(node);
    }
    tree.beside.extend(daemons);
}

/// Initcalls of modules.
fn modules_calls<'a>(facts: &Facts<'a>) -> Vec<Call<'a>> {
    facts.calls.all.iter().filter(|c| c.module.is_some()).cloned().collect()
}

/// `insmod NAME` for every module: from its load, or the start of its initcall,
/// to the end of its initcall.
fn loads<'a>(facts: &Facts<'a>, calls: &[(Call<'a>, Node<'a>)]) -> Vec<Node<'a>> {
    let mut loaded: HashMap<&str, Stamp<'a>> = HashMap::new();
    for seen in facts.seen {
        if let What::ModuleLoad { module, .. } = seen.what {
            loaded.entry(module).or_insert(Stamp::of(seen));
        }
    }
    let mut nodes = Vec::new();
    for (call, node) in calls {
        let Some(module) = call.module.as_deref() else { continue };
        let load = loaded.get(module).filter(|load| load.at <= node.start);
        let start = load.map_or(node.start, |load| load.at);
        let error = node.error.max(load.map_or(0, |load| load.error));
        let name = format!("insmod {module}");
        nodes.push(Node { error, ..Node::new(name, start, node.end, node.source) });
    }
    nodes
}

/// True if init's own step for this module is there, so that no second is needed.
fn own_step(root: &Node<'_>, load: &Node<'_>) -> bool {
    let same = |a: &str, b: &str| a.replace('-', "_") == b.replace('-', "_");
    let middle = load.start + load.len() / 2;
    root.children
        .iter()
        .filter(|n| n.start <= middle && middle <= n.end)
        .any(|n| same(&n.name, &load.name) || n.children.iter().any(|c| same(&c.name, &load.name)))
}

/// True for what no step of init names.
fn in_frame(root: &Node<'_>, deed: &Node<'_>) -> bool {
    let at = root.children.partition_point(|n| n.end <= deed.start);
    root.children.get(at).is_some_and(|n| n.name == USERSPACE && n.start <= deed.start)
}

/// Processes from their exec to their exit or next exec; and those without an end.
fn processes<'a>(facts: &Facts<'a>, anchors: &Anchors<'a>) -> (Vec<Node<'a>>, Vec<Node<'a>>) {
    let mut open: BTreeMap<i32, (&'a str, Stamp<'a>)> = BTreeMap::new();
    let mut ended = Vec::new();
    let node = |(file, start): (&str, Stamp<'a>), end: Ns| Node {
        error: start.error,
        ..Node::new(format!("exec {file}"), start.at, end, start.source)
    };
    for seen in facts.seen {
        match seen.what {
            What::ProcessExec { pid, file } if *pid != 1 => {
                let before = open.insert(*pid, (file, Stamp::of(seen)));
                ended.extend(before.map(|b| node(b, seen.at)));
            }
            What::ProcessExit { pid, .. } => {
                ended.extend(open.remove(pid).map(|b| node(b, seen.at)));
            }
            _ => {}
        }
    }
    let mut daemons: Vec<Node<'a>> =
        open.into_values().map(|b| node(b, open_end(facts, anchors, b.1.at))).collect();
    daemons.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
    (ended, daemons)
}

/// Puts a `userspace` span into each gap between phases that holds deeds, from
/// the first of them to the last.
fn frames<'a>(root: &mut Node<'a>, deeds: &[Node<'a>], from: Ns) {
    let mut gaps: Vec<(Ns, Ns)> = Vec::new();
    let mut at = root.start.max(from);
    for phase in root.children.iter().filter(|n| n.end > from) {
        gaps.push((at, phase.start));
        at = phase.end.max(at);
    }
    gaps.push((at, root.end));
    for (start, end) in gaps.into_iter().filter(|(start, end)| start < end) {
        let inside = |d: &&Node<'a>| start <= d.start && d.end <= end && d.len() > 0;
        let first = deeds.iter().find(inside);
        let last = deeds.iter().filter(inside).map(|d| d.end).max();
        if let Some((first, last)) = first.zip(last) {
            let frame = Node::new(USERSPACE, first.start, last, first.source);
            let frame = Node { fill: Fill::Unattributed, error: first.error, ..frame };
            // A gap holds no span yet, so it takes this one.
            let _ = root.place(frame);
        }
    }
}
