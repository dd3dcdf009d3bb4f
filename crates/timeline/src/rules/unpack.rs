//! The unpacking of the initrd, which the kernel's worker does while initcalls go on
//! (init/initramfs.c, `populate_rootfs`). It is in the tree where somebody waited for it: an
//! initcall that needs a program (`call_usermodehelper`, by which modules are asked for) returns
//! once the files are there, and so does the way to init (`wait_for_initramfs`).
//!
//! The kernel says when it begins, and right after its end that it frees the initrd's memory. A
//! kernel that said both was unpacking in between, which is more than a line says of the time
//! after it.

use super::kernel::initcall_phase;
use super::{no_anchors, RuleSet};
use crate::anchors::{Anchors, Stamp};
use crate::facts::RunIndex;
use crate::lines::Line;
use crate::patterns::On;
use crate::tree::{Growing, Kind, Node};
use vmeter_model::Ns;

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

/// What the kernel says first; from 5.12 on a worker says it.
const BEGINS: [&str; 2] = ["Trying to unpack rootfs image", "Unpacking initramfs"];
/// What it says when it is done with the packed file.
const ENDS: &str = "Freeing initrd memory";

fn spans<'a>(facts: &RunIndex<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some((begin, end)) = unpacking(facts) else { return };
    let Some(phase) = initcall_phase(tree).filter(|n| n.start < end.at && end.at <= n.end) else {
        return;
    };
    let Some(from) = waited_since(facts, phase, begin.at, end.at) else { return };
    let error = begin.error.max(end.error);
    if end.at - from > error {
        let node = Node::new("kernel:unpack-initrd", from, end.at, end.source);
        let _ = tree.root.place(Node { error, ..node });
    }
}

/// Since when nothing else was seen to go on, at the end of the unpacking.
fn waited_since(facts: &RunIndex<'_>, phase: &Node<'_>, begin: Ns, end: Ns) -> Option<Ns> {
    let begin = begin.max(phase.start);
    if facts.calls.builtin().next().is_none() {
        let said = facts.lines.iter().filter(|l| l.on == On::Kernel && l.timed && l.at < end);
        return said.map(|line| line.at).max().map(|last| last.max(begin));
    }
    let (mut node, mut since) = (phase, begin);
    loop {
        let next = node.children.partition_point(|child| child.end <= end);
        if let Some(before) = next.checked_sub(1).map(|before| &node.children[before]) {
            since = since.max(before.end);
        }
        match node.children.get(next).filter(|child| child.start <= end) {
            Some(child) => node = child,
            None => break,
        }
        since = since.max(node.start);
        if node.kind == Kind::Call {
            // Who waited for it goes on with what it wanted; who only worked meanwhile may take
            // long after it.
            return (node.end - end < end - since).then_some(since);
        }
    }
    Some(since)
}

/// When it began and when it ended, by the kernel's own words.
fn unpacking<'a>(facts: &RunIndex<'a>) -> Option<(Stamp<'a>, Stamp<'a>)> {
    let logged = |l: &&Line<'a>| l.on == On::Kernel && l.timed && (l.stamp.is_some() || !l.console);
    let says = |begins: &'static str| {
        let said = facts.lines.iter().filter(logged).filter(move |l| l.text.starts_with(begins));
        said.min_by_key(|line| line.error)
    };
    let stamp = |line: &Line<'a>| Stamp { at: line.at, error: line.error, source: line.source };
    let begin = BEGINS.into_iter().find_map(says)?;
    let end = says(ENDS).filter(|end| end.at > begin.at)?;
    Some((stamp(begin), stamp(end)))
}
