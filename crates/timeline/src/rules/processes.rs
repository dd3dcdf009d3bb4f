//! What else user space did: processes, and modules that it had loaded.
//!
//! Where forks were seen, the tree follows who waited for whom: of the children that a process
//! waited for the one that ended last, before its start the one that had ended last by then,
//! and so on; inside each the same. What nobody waited for is beside the tree, with what it
//! did. Who led to the prompt that the boot ends at never ends (`prompt`). What a unit of systemd
//! waits for is its own processes. What udev's workers load while
//! `udevadm settle` waits for them is part of that wait.
//!
//! Without forks, processes are placed by time alone.
//!
//! Inside a step of init these are parts of the step. Outside of any, a stretch
//! that holds some of them is `userspace`, and what they leave open in it is
//! `unattributed`: that a shell or a service manager existed does not say that it
//! ran. A process that never ended in the run, or that straddles a step, is a
//! daemon and is kept beside the tree.

use super::initcalls::node as call_node;
use super::printed_lines::gaps;
use super::prompt::Prompt;
use super::verbs::is_device;
use super::{no_anchors, RuleSet};
use crate::anchors::{Anchor, Anchors, Stamp};
use crate::calls::Call;
use crate::facts::RunIndex;
use crate::landmarks::{at_last, open_end};
use crate::processes::{words, Processes};
use crate::tree::{Fill, Growing, Node};
use std::collections::{BTreeMap, HashMap, HashSet};
use vmeter_model::{EventKind, Identity, Kind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

pub(super) const USERSPACE: &str = "userspace";
/// Who waits for udev's workers.
const SETTLE: &str = "udevadm settle";
const UDEVD: &str = "systemd-udevd";
/// Processes that nobody waited for, inside one another.
const MOST_LEVELS: usize = 8;

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let calls: Vec<(Call<'a>, Node<'a>)> = modules_calls(facts)
        .into_iter()
        .map(|call| {
            let node = call_node(&call, facts, anchors);
            (call, node)
        })
        .collect();
    let loads = loads(facts, &calls);
    if facts.processes.with_parents {
        return Chains::new(facts, anchors, tree).place(loads, calls);
    }
    let (mut deeds, daemons) = processes(facts, anchors);
    deeds.extend(loads.into_iter().map(|(_, load)| load).filter(|l| !own_step(&tree.root, l)));
    deeds.sort_by_key(|d| (d.start, std::cmp::Reverse(d.end)));
    if let Some(begin) = anchors.get(Anchor::Userspace) {
        frames(&mut tree.root, &deeds, begin.at, false);
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

/// The tree, while the processes that were waited for are put into it.
struct Chains<'a, 'f, 't> {
    facts: &'f RunIndex<'a>,
    processes: &'f Processes<'a>,
    anchors: &'f Anchors<'a>,
    tree: &'t mut Growing<'a>,
    /// Who led to the prompt that the boot ends at.
    prompt: Prompt,
    /// Which processes are in the tree.
    placed: Vec<bool>,
    /// Which are not, for they did not fit where they were alone.
    refused: HashSet<usize>,
}

impl<'a, 'f, 't> Chains<'a, 'f, 't> {
    fn new(facts: &'f RunIndex<'a>, anchors: &'f Anchors<'a>, tree: &'t mut Growing<'a>) -> Self {
        let processes = &facts.processes;
        let placed = vec![false; processes.all.len()];
        Chains {
            facts,
            processes,
            anchors,
            tree,
            prompt: Prompt::of(facts),
            placed,
            refused: HashSet::new(),
        }
    }

    fn place(mut self, loads: Vec<(Option<i32>, Node<'a>)>, calls: Vec<(Call<'a>, Node<'a>)>) {
        let of_init = |parent: usize| self.processes.all[parent].pid == 1;
        let roots: Vec<usize> = (0..self.processes.all.len())
            .filter(|index| self.processes.all[*index].pid != 1)
            .filter(|index| match self.processes.all[*index].parent {
                Some(parent) => of_init(parent),
                // A helper of the kernel that executed nothing is the kernel's work.
                None => !self.processes.all[*index].images.is_empty(),
            })
            .collect();
        let (of_units, others): (Vec<usize>, Vec<usize>) =
            roots.into_iter().partition(|index| self.processes.all[*index].unit.is_some());
        let chain = self.waited_for(&others, 0, self.facts.total);
        if let Some(begin) = self.anchors.get(Anchor::Userspace) {
            let mut deeds: Vec<Node<'a>> = chain.iter().map(|index| self.node(*index)).collect();
            deeds.extend(
                loads
                    .iter()
                    .map(|(_, load)| load.clone())
                    .filter(|l| !own_step(&self.tree.root, l)),
            );
            deeds.sort_by_key(|d| (d.start, std::cmp::Reverse(d.end)));
            frames(&mut self.tree.root, &deeds, begin.at, true);
        }
        for index in chain {
            self.grow(index, self.facts.total);
        }
        for (unit, stops, from, to) in units(&self.tree.root) {
            let of = |index: &&usize| self.processes.all[**index].unit == Some(unit.as_str());
            let mut own: Vec<usize> = of_units.iter().filter(of).copied().collect();
            // What ends it has its say, not what is ended.
            let fresh = |index: &usize| self.processes.all[*index].start.at >= from;
            if stops && own.iter().any(fresh) {
                own.retain(fresh);
            }
            for index in self.of_unit(&own, from, to) {
                self.grow(index, to);
            }
        }
        self.modules(loads, calls);
        self.alone();
        for index in 0..self.processes.all.len() {
            let process = &self.processes.all[index];
            // A fork that executes nothing is its parent's work.
            if !self.placed[index] && process.pid != 1 && !process.images.is_empty() {
                let node = self.node(index);
                self.tree.beside.push(node);
            }
        }
    }

    /// Processes that nobody was seen to wait for in wait(2) (OpenRC polls), where nothing else is
    /// in the tree and no other process lived: what was executed says more of such a time than the
    /// last line before it.
    fn alone(&mut self) {
        let Some(begin) = self.anchors.get(Anchor::Userspace) else { return };
        let limit = open_end(self.facts, self.anchors, begin.at);
        for _ in 0..MOST_LEVELS {
            let gaps = gaps(self.tree, begin.at, limit);
            let found: Vec<(usize, Ns)> = gaps.iter().flat_map(|gap| self.alone_in(*gap)).collect();
            if found.is_empty() {
                return;
            }
            let deeds: Vec<Node<'a>> = found.iter().map(|(index, _)| self.node(*index)).collect();
            frames(&mut self.tree.root, &deeds, begin.at, false);
            for (index, to) in found {
                self.grow(index, to);
                // One that did not fit is not tried again.
                if !self.placed[index] {
                    self.refused.insert(index);
                }
            }
        }
    }

    /// The outermost processes inside a gap in whose time no other one of them was there, each
    /// with the gap's end.
    fn alone_in(&self, (from, to): (Ns, Ns)) -> Vec<(usize, Ns)> {
        let all = &self.processes.all;
        let first = all.partition_point(|process| process.start.at < from);
        let inside = |index: &usize| {
            let process = &all[*index];
            let own = process.pid != 1 && process.unit.is_none() && !process.images.is_empty();
            own && !self.placed[*index] && process.end.is_some_and(|end| end <= to)
        };
        let begun = (first..all.len()).take_while(|index| all[*index].start.at < to);
        let mut outermost: Vec<usize> = Vec::new();
        for index in begun.filter(inside) {
            let mut above = std::iter::successors(all[index].parent, |parent| all[*parent].parent);
            if !above.any(|parent| outermost.contains(&parent)) {
                outermost.push(index);
            }
        }
        let spans: Vec<(Ns, Ns)> = outermost
            .iter()
            .map(|index| (all[*index].start.at, all[*index].end.unwrap_or(to)))
            .collect();
        // In order of their starts: it overlaps another if an earlier one goes on, or the next
        // begins before its end.
        let mut reached = Ns::MIN;
        let mut alone = Vec::new();
        for (at, (start, end)) in spans.iter().enumerate() {
            let next = spans.get(at + 1).map_or(Ns::MAX, |next| next.0);
            if reached <= *start && *end <= next && !self.refused.contains(&outermost[at]) {
                alone.push((outermost[at], to));
            }
            reached = reached.max(*end);
        }
        alone
    }

    /// A process from its fork to its end, or to wherever it can have gone on.
    fn node(&self, index: usize) -> Node<'a> {
        let process = &self.processes.all[index];
        let start = process.start;
        let open = || open_end(self.facts, self.anchors, start.at);
        let (end, cpu) = match self.prompt.until(index) {
            Some(until) => (until, None),
            None => (self.end(index).unwrap_or_else(open), process.cpu),
        };
        let node = Node::new(self.processes.name(index), start.at, end, start.source);
        let unfinished = self.is_unfinished(index);
        Node { error: start.error, cpu, unfinished, ..node }
    }

    /// When a process ended, or the run, whose end somebody waited for.
    fn end(&self, index: usize) -> Option<Ns> {
        let process = &self.processes.all[index];
        let held = process.held && !self.prompt.is_known();
        let held = || held.then(|| at_last(self.facts, self.anchors, process.start.at));
        process.end.or_else(held)
    }

    /// True for what would have ended, had the run gone on: somebody waited for that.
    fn is_unfinished(&self, index: usize) -> bool {
        self.processes.all[index].held && !self.prompt.is_known() && self.facts.goes_on
    }

    /// Of processes that somebody waited for, those that the end waited for, in order.
    fn waited_for(&self, of: &[usize], from: Ns, to: Ns) -> Vec<usize> {
        let spans = of.iter().filter_map(|index| {
            let process = &self.processes.all[*index];
            let ended = self.end(*index).filter(|_| process.waited.is_some());
            // What had not ended went on as long as who waited for it.
            let ended = ended.map(|end| if process.held { end.min(to) } else { end });
            Some((process.start.at, self.prompt.until(*index).or(ended)?, *index))
        });
        last_first(spans.filter(|(start, end, _)| from <= *start && *end <= to).collect(), to)
    }

    /// A unit waits for each of its processes; for one that stays, until it says that it works.
    fn of_unit(&self, of: &[usize], from: Ns, to: Ns) -> Vec<usize> {
        let spans = of.iter().map(|index| {
            let process = &self.processes.all[*index];
            (process.start.at.max(from), process.end.map_or(to, |end| end.min(to)), *index)
        });
        last_first(spans.filter(|(start, end, _)| start < end && *end > from).collect(), to)
    }

    /// Places a process, up to `to`, and what it waited for.
    fn grow(&mut self, index: usize, to: Ns) {
        let mut node = self.node(index);
        if node.end > to {
            node.end = to;
            node.cpu = None;
        }
        // systemd forks before it says that it begins.
        let process = &self.processes.all[index];
        if let Some(unit) = holder(&self.tree.root, node.end - 1) {
            let early = process.unit.is_some() && node.start < unit.start;
            node.start = if early { unit.start } else { node.start };
            node.unfinished |= unit.unfinished && process.end.is_none() && node.end == unit.end;
        }
        if node.len() <= 0 {
            return;
        }
        // What a script does by itself, its lines tell.
        if in_frame(&self.tree.root, &node) && !self.processes.children(index).is_empty() {
            node.fill = Fill::LogMessage;
        }
        let (start, end, unfinished) = (node.start, node.end, node.unfinished);
        if self.tree.place_across(node).is_some() {
            return;
        }
        self.placed[index] = true;
        for image in self.processes.all[index].images.iter().skip(1) {
            if image.at < end {
                let name = format!("exec {}", words(image));
                let source = self.processes.all[index].start.source;
                // It fits: it is inside what was just placed.
                let node = Node::new(name, image.at.max(start), end, source);
                let _ = self.tree.place_across(Node { unfinished, ..node });
            }
        }
        for child in self.waited_for(self.processes.children(index), start, end) {
            self.grow(child, end);
        }
    }

    /// Modules that were loaded by who is in the tree, or by udev while it is waited for.
    fn modules(&mut self, loads: Vec<(Option<i32>, Node<'a>)>, calls: Vec<(Call<'a>, Node<'a>)>) {
        let mut inside = Vec::with_capacity(loads.len());
        for (pid, load) in &loads {
            inside.push(self.belongs(*pid, load) && !own_step(&self.tree.root, load));
        }
        let spans = loads.iter().zip(&inside).enumerate().filter(|(_, (_, inside))| **inside);
        let spans = spans.map(|(index, ((_, load), _))| (load.start, load.end, index)).collect();
        let chosen = last_first(spans, self.facts.total);
        for (index, (pid, load)) in loads.into_iter().enumerate() {
            let step = own_step(&self.tree.root, &load);
            let call = &calls[index].1;
            if step || chosen.contains(&index) {
                if !step {
                    self.tree.place(load);
                }
                self.tree.place(call.clone());
            } else if pid.is_none() {
                self.tree.place(call.clone());
            } else {
                self.tree.beside.push(load);
            }
        }
    }

    fn belongs(&self, pid: Option<i32>, load: &Node<'a>) -> bool {
        let Some(pid) = pid.filter(|pid| *pid != 1) else { return true };
        let all = &self.processes.all;
        let own = all.iter().rposition(|p| p.pid == pid && p.start.at <= load.start);
        let Some(own) = own else { return true };
        if self.placed[own] {
            return true;
        }
        let mut ancestors = std::iter::successors(Some(own), |index| all[*index].parent);
        let by_udev = ancestors.any(|index| {
            all[index].images.iter().any(|i| i.file.ends_with(UDEVD) || i.file.ends_with("udevadm"))
        });
        let waits = |node: &Node<'_>| {
            let of = Identity::of(&node.name);
            let device = of.kind == Kind::Unit && !of.timed_out && is_device(of.name);
            device || node.name.contains(SETTLE)
        };
        by_udev && path(&self.tree.root, load.start).into_iter().any(waits)
    }
}

/// The spans that hold a moment, from the outermost.
fn path<'t, 'a>(root: &'t Node<'a>, at: Ns) -> Vec<&'t Node<'a>> {
    let mut path = vec![root];
    while let Some(node) = path.last().and_then(|node| {
        let index = node.children.partition_point(|child| child.end <= at);
        node.children.get(index).filter(|child| child.start <= at)
    }) {
        path.push(node);
    }
    path
}

/// The unit that a span is of.
fn unit<'t>(node: &'t Node<'_>) -> Option<Identity<'t>> {
    Some(Identity::of(&node.name)).filter(|of| matches!(of.kind, Kind::Unit | Kind::Stop))
}

/// The unit's span that holds a moment.
fn holder<'t, 'a>(root: &'t Node<'a>, at: Ns) -> Option<&'t Node<'a>> {
    path(root, at).into_iter().find(|node| unit(node).is_some())
}

/// Every unit's span in the tree, and whether it is stopped there.
fn units(root: &Node<'_>) -> Vec<(String, bool, Ns, Ns)> {
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        if let Some(of) = unit(node) {
            found.push((of.name.to_owned(), of.kind == Kind::Stop, node.start, node.end));
        }
        open.extend(&node.children);
    }
    found
}

/// Of spans (begin, end, index) the one that ends last, before its begin the one that ends
/// last by then, and so on: their indices, in order of time.
pub(super) fn last_first(mut spans: Vec<(Ns, Ns, usize)>, to: Ns) -> Vec<usize> {
    spans.sort_by_key(|(start, end, index)| (*end, *start, *index));
    let mut at = to;
    let mut chosen = Vec::new();
    for (start, end, index) in spans.into_iter().rev() {
        if end <= at {
            at = start;
            chosen.push(index);
        }
    }
    chosen.reverse();
    chosen
}

/// Initcalls of modules.
fn modules_calls<'a>(facts: &RunIndex<'a>) -> Vec<Call<'a>> {
    facts.calls.all.iter().filter(|c| c.module.is_some()).cloned().collect()
}

/// `insmod NAME` for every module: from its load, or the start of its initcall,
/// to the end of its initcall, and the thread that loaded it.
fn loads<'a>(facts: &RunIndex<'a>, calls: &[(Call<'a>, Node<'a>)]) -> Vec<(Option<i32>, Node<'a>)> {
    // A module can be loaded again: by the root's udev after the initrd's.
    let mut loaded: HashMap<&str, Vec<Stamp<'a>>> = HashMap::new();
    for seen in facts.seen {
        if let EventKind::ModuleLoad { module, .. } = seen.what {
            loaded.entry(module).or_default().push(Stamp::of(seen));
        }
    }
    let mut nodes = Vec::new();
    for (call, node) in calls {
        let Some(module) = call.module.as_deref() else { continue };
        let load = loaded.get(module).and_then(|loads| loads.iter().rfind(|l| l.at <= node.start));
        let start = load.map_or(node.start, |load| load.at);
        let error = node.error.max(load.map_or(0, |load| load.error));
        let name = format!("insmod {module}");
        let unfinished = node.unfinished;
        let node = Node { error, unfinished, ..Node::new(name, start, node.end, node.source) };
        nodes.push((call.pid, node));
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
fn processes<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>) -> (Vec<Node<'a>>, Vec<Node<'a>>) {
    let mut open: BTreeMap<i32, (&'a str, Stamp<'a>)> = BTreeMap::new();
    let mut ended = Vec::new();
    let node = |(file, start): (&str, Stamp<'a>), end: Ns| Node {
        error: start.error,
        ..Node::new(format!("exec {file}"), start.at, end, start.source)
    };
    for seen in facts.seen {
        match seen.what {
            EventKind::ProcessExec { pid, file } if *pid != 1 => {
                let before = open.insert(*pid, (file, Stamp::of(seen)));
                ended.extend(before.map(|b| node(b, seen.at)));
            }
            EventKind::ProcessExit { pid, .. } => {
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
/// the first of them to the last; with `across`, up to a phase that one of them goes on into.
fn frames<'a>(root: &mut Node<'a>, deeds: &[Node<'a>], from: Ns, across: bool) {
    let mut gaps: Vec<(Ns, Ns)> = Vec::new();
    let mut at = root.start.max(from);
    for phase in root.children.iter().filter(|n| n.end > from) {
        gaps.push((at, phase.start));
        at = phase.end.max(at);
    }
    gaps.push((at, root.end));
    for (start, end) in gaps.into_iter().filter(|(start, end)| start < end) {
        let inside = |d: &&Node<'a>| {
            let whole = start <= d.start && d.end <= end;
            (whole || across && d.start < end && start < d.end) && d.len() > 0
        };
        let first = deeds.iter().find(inside);
        let last = deeds.iter().filter(inside).map(|d| d.end.min(end)).max();
        if let Some((first, last)) = first.zip(last) {
            let frame = Node::new(USERSPACE, first.start.max(start), last, first.source);
            let frame = Node { fill: Fill::Unattributed, error: first.error, ..frame };
            // A gap holds no span yet, so it takes this one.
            let _ = root.place(frame);
        }
    }
}
