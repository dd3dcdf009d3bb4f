//! The boot loader: between the firmware's hand-over and the kernel, in parts by its own
//! lines on the console (GRUB's core, menu and its time-out, what it reads).
//!
//! Where nothing says when the decompressor began, what lies between the loader's last line
//! and the kernel's entry is both: the rest of the loader's work, and decompression.

use super::firmware::part_name;
use super::unseen::up_to_entry;
use super::RuleSet;
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::backbone::LOADER;
use crate::facts::Facts;
use crate::landmarks::BOOT_SECTOR;
use crate::lines::Hit;
use crate::patterns::On;
use crate::tree::{Growing, Node};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// The rest of the loader's work and the kernel's decompression, not told apart.
const LAST_READS: &str = "boot-loader+kernel:decompress";

fn anchors<'a>(facts: &Facts<'a>, found: &mut Candidates<'a>) {
    if let Some(stamp) = facts.first_reached(&[BOOT_SECTOR]) {
        found.offer(Anchor::Loader, Trust::Exact, stamp);
    }
}

fn spans<'a>(facts: &Facts<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(begin) = anchors.get(Anchor::Loader) else { return };
    let parts: Vec<(&'static str, Stamp<'a>)> = parts(facts, begin).collect();
    let phase = tree.root.children.iter().find(|n| n.name == LOADER);
    let end = phase.map_or(begin.at, |n| n.end);
    for (index, (name, at)) in parts.iter().enumerate() {
        let to = parts.get(index + 1).map_or(end, |(_, next)| next.at);
        if at.at < to.min(end) {
            let node = Node::new(*name, at.at, to.min(end), at.source);
            tree.place(Node { error: at.error, ..node });
        }
    }
    let told = [Anchor::KernelFirst, Anchor::Decompress].iter().any(|a| anchors.get(*a).is_some());
    let last = parts.last().map_or(begin, |(_, at)| *at);
    if let Some(to) = anchors.get(Anchor::KernelEntry).filter(|_| !told) {
        let Some(name) = up_to_entry(LAST_READS, to) else { return };
        // An end that is the clock's start is in the name.
        let error = if name == LAST_READS { last.error.max(to.error) } else { last.error };
        if to.at.saturating_sub(last.at) > error {
            tree.place(Node { error, ..Node::new(name, last.at, to.at, last.source) });
        }
    }
}

/// Where parts begin, in order, no name twice in a row.
fn parts<'a, 'f>(
    facts: &'f Facts<'a>,
    begin: Stamp<'a>,
) -> impl Iterator<Item = (&'static str, Stamp<'a>)> + 'f {
    let inside = move |h: &&Hit<'a>| h.on == On::Loader && h.at >= begin.at;
    let named = |h: &Hit<'a>| {
        let name = part_name(h.means).filter(|name| !name.starts_with("bios:"))?;
        Some((name, Stamp { at: h.at, error: h.error, source: h.source }))
    };
    let mut last = "";
    facts.hits.iter().filter(inside).filter_map(named).filter(move |(name, _)| {
        let new = *name != last;
        last = name;
        new
    })
}
