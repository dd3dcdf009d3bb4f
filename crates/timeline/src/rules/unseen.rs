//! What lies between two moments that were seen, where none between them was: the phases that
//! it must be, in one span (`vmm:init+bios:overhead`). Nobody knows where one ended, but that
//! it is these and no others is certain.

use super::{network, no_anchors, of_firmware, RuleSet};
use crate::anchors::{Anchor, Anchors, Stamp};
use crate::backbone::{ENTRY, FIRMWARE};
use crate::facts::RunIndex;
use crate::lines::{Hit, CLOCK_START_NS, EXACT_NS};
use crate::tree::{Growing, Node};
use vmeter_model::Ns;

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

/// `name`, and the begin of the kernel's entry where only its clock's start is known. None
/// where not even that is: a log that nothing aligns is only known to be earlier.
pub(crate) fn up_to_entry(name: &str, entry: Stamp<'_>) -> Option<String> {
    if entry.error <= EXACT_NS {
        Some(name.to_owned())
    } else if entry.error <= CLOCK_START_NS {
        Some(format!("{name}+{ENTRY}"))
    } else {
        None
    }
}

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    between(facts, anchors, tree);
    if anchors.get(Anchor::Reset).is_none() {
        network::tried(facts, anchors, tree);
    }
}

/// The kernel's own moments in order, and what it went through until then.
const OF_KERNEL: [(Anchor, &str); 4] = [
    (Anchor::KernelEntry, ""),
    (Anchor::Initcalls, "+kernel:entry"),
    (Anchor::Userspace, "+kernel:entry+kernel:initcalls-before-userspace"),
    (Anchor::Programs, "+kernel:entry+userspace"),
];

/// Where nothing tells when the vCPU began to run, firmware was at work from the first line that it
/// shows on, up to what comes next; to its last line, if that is not what it went on to itself.
/// Until when it is known to have been, if it showed any.
fn by_its_lines<'a>(
    facts: &RunIndex<'a>,
    from: Stamp<'a>,
    to: Stamp<'a>,
    skips: bool,
    tree: &mut Growing<'a>,
) -> Option<Ns> {
    let own = |h: &&Hit<'_>| of_firmware(h) && from.at < h.at && h.at < to.at;
    let first = facts.hits.iter().find(own)?;
    let last = facts.hits.iter().rfind(own)?;
    let end = if skips { last.at } else { to.at };
    let before = Node::new("vmm:init+bios:overhead", from.at, first.at, first.source);
    tree.place(Node { error: from.error.max(first.error), ..before });
    let error = first.error.max(if skips { last.error } else { to.error });
    tree.place(Node { error, ..Node::new(FIRMWARE, first.at, end, first.source) });
    Some(end)
}

fn between<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let seen = |anchor| anchors.get(anchor);
    if facts.another.is_some_and(|another| !another.is_hypervisor) {
        return;
    }
    let image =
        [Anchor::Hypervisor, Anchor::KernelFirst, Anchor::Decompress].into_iter().find_map(seen);
    let kernel = OF_KERNEL.into_iter().find_map(|(anchor, name)| Some((seen(anchor)?, name)));
    let kernel = |way: &str| match kernel {
        Some((at, name)) => (Some(at), format!("{way}{name}")),
        None => (None, String::new()),
    };
    let (from, (to, name)) = match (seen(Anchor::Reset), seen(Anchor::Loader), image) {
        (None, Some(next), _) | (None, None, Some(next)) => {
            (seen(Anchor::Main), (Some(next), "vmm:init+bios:overhead".to_owned()))
        }
        (None, None, None) => {
            (seen(Anchor::Main), kernel("vmm:init+bios:overhead+kernel:decompress"))
        }
        (Some(reset), None, None) => (Some(reset), kernel("bios:overhead+kernel:decompress")),
        _ => return,
    };
    let (Some(from), Some(to)) = (from, to) else { return };
    // The firmware's own lines may tell a part of it.
    let told = tree.root.children.iter().find(|n| n.name == FIRMWARE).map(|n| n.end);
    let told = told.or_else(|| by_its_lines(facts, from, to, image.is_none(), tree));
    let start = told.unwrap_or(from.at).max(from.at);
    let name = match told {
        Some(_) if seen(Anchor::Reset).is_none() => name.replacen("vmm:init+", "", 1),
        _ => name,
    };
    let name = match seen(Anchor::KernelEntry) {
        Some(entry) if entry.at == to.at => up_to_entry(&name, entry),
        _ => Some(name),
    };
    let Some(name) = name else { return };
    // An end that is the clock's start is in the name.
    let error = from.error.max(if name.ends_with(ENTRY) { 0 } else { to.error });
    if to.at.saturating_sub(start) > error {
        tree.place(Node { error, ..Node::new(name, start, to.at, to.source) });
    }
}
