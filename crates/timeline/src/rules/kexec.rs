//! A kernel that came after the guest's first one (kexec, or a reset): the way to it, it, and its user space, by
//! the lines of the console. What nobody saw there is `unattributed`.

use super::initcalls::{node as call_node, DRIVER_INIT, UNTRACED};
use super::kernel::{entered, parts, told};
use super::printed_lines::{before, stretches};
use super::RuleSet;
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::backbone::SHUTDOWN;
use crate::facts::RunIndex;
use crate::lines::{Hit, Line, NO_TIME_ERROR_NS};
use crate::patterns::{Means, On};
use crate::second_kernel::{By, FIRMWARE};
use crate::tree::{Fill, Growing, Node};
use vmeter_model::{EventKind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// What the phases of a second kernel are called.
struct Names {
    /// From the first kernel's last word to the second's first.
    way: &'static str,
    /// The second kernel.
    kernel: &'static str,
    /// What it runs.
    userspace: &'static str,
    /// Its panic.
    panic: &'static str,
}

/// The way is the jump, its digest of what it jumps to (arch/x86/purgatory), and decompression.
const KEXEC: Names = Names {
    way: "kexec",
    kernel: "kexec:kernel",
    userspace: "kexec:userspace",
    panic: "kexec:kernel-panic",
};
/// The way is the machine's reset, firmware, boot loader, and decompression.
const REBOOT: Names = Names {
    way: "reboot",
    kernel: "reboot:kernel",
    userspace: "reboot:userspace",
    panic: "reboot:kernel-panic",
};

fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    if let Some(second) = &facts.second {
        found.offer(Anchor::Kexec, Trust::Exact, second.since);
    }
}

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let (Some(second), Some(begin)) = (&facts.second, anchors.get(Anchor::Kexec)) else { return };
    let reset = second.by == By::Reset;
    let names = if reset { REBOOT } else { KEXEC };
    let told = second.by != By::Silent;
    let last = anchors.next(Some(Anchor::Kexec)).map_or(facts.total, |s| s.at);
    let facts = &*second.facts;
    // A log buffer's banner that may be from any time since says nothing of when it began.
    let bounded = |at: &Stamp<'a>| at.error <= NO_TIME_ERROR_NS.max(at.at - begin.at - 1);
    let said = || {
        let own = facts.hits.iter().filter(|h| h.on == On::Kernel && h.means_entry());
        own.map(stamp).filter(bounded).min_by_key(|at| at.error)
    };
    let entry = entered(facts).or_else(said);
    let init = begins(facts, |h| h.means_init());
    let panic = begins(facts, |h| h.means == Means::Panic);
    let down = goes_down(facts).map_or(last, |at| at.at.min(last));
    let end = panic.map_or(down, |at| at.at.min(down));
    if let Some(entry) = entry {
        if told {
            frame(tree, names.way, begin, entry.at, entry.error, Fill::Own);
        }
        let of_kernel = |l: &&Line<'a>| l.console && l.stamp.is_some();
        let said = || facts.lines.iter().rfind(of_kernel).map(|l| l.at);
        let to = init.map(|init| init.at).or(panic.map(|at| at.at)).or_else(said);
        let to = to.map_or(entry.at, |to| to.min(end));
        frame(tree, names.kernel, entry, to, entry.error, Fill::Own);
        kernel(facts, anchors, tree, entry, to);
    }
    let untold = reset && entry.is_none();
    if let Some(init) = init.filter(|_| !untold) {
        frame(tree, names.userspace, init, end, init.error, Fill::Unattributed);
        programs(facts, tree, init.at, end);
    }
    if let Some(panic) = panic {
        frame(tree, names.panic, panic, down, panic.error, Fill::Own);
    }
    if untold {
        unsaid(facts, anchors, tree, (begin, init, end));
    }
    if down < last && (init.is_some() || panic.is_some() || reset) {
        let down = Stamp { at: down, ..begin };
        frame(tree, SHUTDOWN, down, last, begin.error, Fill::Own);
    }
}

/// A second kernel that says nothing (`quiet`): firmware and loader say how far they came, its
/// trace when its initcalls and its init began, or the first line of a program that it is there.
fn unsaid<'a>(
    facts: &RunIndex<'a>,
    anchors: &Anchors<'a>,
    tree: &mut Growing<'a>,
    (begin, init, end): (Stamp<'a>, Option<Stamp<'a>>, Ns),
) {
    let hits = facts.hits.iter().filter(|h| h.on != On::Kernel).map(|h| h.at);
    let firmware = facts.lines.iter().filter(|l| l.console && of_firmware(l.text)).map(|l| l.end);
    let executed = |what: &EventKind| matches!(what, EventKind::ProcessExec { pid: 1, .. });
    let init = init.or_else(|| facts.first(executed)).filter(|init| init.at < end);
    let calls = facts.calls.builtin().map(|call| call.start);
    let first = calls.min_by_key(|start| start.at).filter(|at| at.at < init.map_or(end, |i| i.at));
    let seen = first.or(init).map_or(end, |stamp| stamp.at);
    let way = hits.chain(firmware).filter(|at| *at < seen).max();
    if let Some(way) = way {
        frame(tree, REBOOT.way, begin, way, begin.error, Fill::Own);
    }
    let from = way.map_or(begin, |way| Stamp { at: way, ..begin });
    if let Some(first) = first {
        frame(tree, WAY_AND_KERNEL, from, first.at, first.error, Fill::Own);
        let to = init.map_or(first.at, |init| init.at);
        frame(tree, REBOOT.kernel, first, to, first.error, Fill::Own);
        kernel(facts, anchors, tree, first, to);
    } else if let Some(init) = init {
        frame(tree, WAY_AND_KERNEL, from, init.at, init.error, Fill::Own);
    }
    let of_program =
        |l: &&Line<'a>| l.console && l.stamp.is_none() && l.timed && l.at > way.unwrap_or(begin.at);
    let said = || facts.lines.iter().filter(of_program).find(|l| l.at < end);
    let said = || said().map(|l| Stamp { at: l.at, error: l.error, source: l.source });
    let Some(userspace) = init.or_else(said) else { return };
    if first.is_none() && init.is_none() {
        frame(tree, UNTOLD, from, userspace.at, userspace.error, Fill::Own);
    }
    frame(tree, REBOOT.userspace, userspace, end, userspace.error, Fill::Unattributed);
    programs(facts, tree, userspace.at, end);
}

/// The rest of the way and the kernel, or its begin, not told apart.
const WAY_AND_KERNEL: &str = "reboot+reboot:kernel";
/// With the start of its init.
const UNTOLD: &str = "reboot+reboot:kernel+reboot:userspace";

/// True for what SeaBIOS says of itself and of what it boots.
fn of_firmware(text: &str) -> bool {
    text.starts_with(FIRMWARE) || text.starts_with("Booting from ")
}

impl Hit<'_> {
    fn means_entry(&self) -> bool {
        matches!(self.means, Means::Begins(Anchor::KernelEntry, _))
    }

    fn means_init(&self) -> bool {
        matches!(self.means, Means::Begins(Anchor::Userspace, _)) && self.text.starts_with("Run ")
    }
}

/// The first line that means something.
fn begins<'a>(facts: &RunIndex<'a>, means: impl Fn(&Hit<'a>) -> bool) -> Option<Stamp<'a>> {
    facts.hits.iter().find(|h| h.on == On::Kernel && means(h)).map(stamp)
}

fn stamp<'a>(hit: &Hit<'a>) -> Stamp<'a> {
    Stamp { at: hit.at, error: hit.error, source: hit.source }
}

/// The first sign of going down.
fn goes_down<'a>(facts: &RunIndex<'a>) -> Option<Stamp<'a>> {
    let word = begins(facts, |h| matches!(h.means, Means::GoesDown | Means::PowerOff));
    let off = facts.first(|what| match what {
        EventKind::PowerOff | EventKind::ShutdownStart => true,
        EventKind::RunState { state } => state == "shutdown",
        _ => false,
    });
    [word, off].into_iter().flatten().min_by_key(|stamp| stamp.at)
}

fn frame<'a>(
    tree: &mut Growing<'a>,
    name: &'static str,
    from: Stamp<'a>,
    to: Ns,
    error: Ns,
    fill: Fill,
) {
    if from.at < to {
        let error = from.error.max(error).min(to - from.at);
        tree.place(Node { error, fill, ..Node::new(name, from.at, to, from.source) });
    }
}

/// The parts of the second kernel by its lines, and its initcalls where it says them.
fn kernel<'a>(
    facts: &RunIndex<'a>,
    anchors: &Anchors<'a>,
    tree: &mut Growing<'a>,
    entry: Stamp<'a>,
    to: Ns,
) {
    let traced = facts.calls.builtin().next().is_some();
    let mut cuts = parts(facts, entry.at, to, false);
    cuts.retain(|(_, at)| at.error < NO_TIME_ERROR_NS);
    for (name, at, next) in told(cuts, to) {
        let untraced = !traced && name == DRIVER_INIT;
        let name = if untraced { UNTRACED } else { name.as_str() };
        tree.place(Node { error: at.error, ..Node::new(name, at.at, next, at.source) });
        if untraced {
            for node in stretches(facts, |_| true, at.at, next) {
                let _ = tree.root.place(node);
            }
        }
    }
    let inside = facts.calls.all.iter().filter(|c| c.module.is_none() && c.end.is_some());
    for call in inside.filter(|c| (entry.at..to).contains(&c.start.at)) {
        tree.place(call_node(call, facts, anchors));
    }
}

/// What its user space says.
fn programs<'a>(facts: &RunIndex<'a>, tree: &mut Growing<'a>, from: Ns, to: Ns) {
    let of_programs = |l: &Line<'_>| l.console && l.stamp.is_none();
    let mut nodes = before(facts, of_programs, from, from, to);
    nodes.extend(stretches(facts, of_programs, from, to));
    for node in nodes {
        let _ = tree.root.place(node);
    }
}
