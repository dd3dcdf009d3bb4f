//! The boot loader: between the firmware's hand-over and the kernel, in parts by its own
//! lines on the console (GRUB's core, menu and its time-out, what it reads).
//!
//! Where nothing says when the decompressor began, what lies between the last that is known to be
//! the loader's and the kernel's entry is both: the rest of the loader's work, and decompression. An
//! EFI stub decompresses before or after it says something, and may read the initrd itself.

use super::firmware::part_name;
use super::unseen::up_to_entry;
use super::RuleSet;
use super::{loaded, network};
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::backbone::LOADER;
use crate::facts::RunIndex;
use crate::input::Seen;
use crate::landmarks::BOOT_SECTOR;
use crate::lines::{Hit, Line};
use crate::patterns::{Means, On};
use crate::tree::{Growing, Node};
use vmeter_model::{EventKind, Identity, Kind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// The rest of the loader's work and the kernel's decompression, not told apart.
const LAST_READS: &str = "boot-loader+kernel:decompress";

fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    let network = network::boots(facts);
    if let Some((trust, stamp)) = network {
        found.offer(Anchor::Loader, trust, stamp);
    }
    // An option ROM puts what it has loaded where a BIOS puts a disk's sector.
    let by_rom = network.is_some_and(|(trust, _)| trust == Trust::Exact);
    if let Some(stamp) = facts.first_reached(&[BOOT_SECTOR]).filter(|_| !by_rom) {
        found.offer(Anchor::Loader, Trust::Exact, stamp);
    }
    // A loader that says something is there, and nobody saw for how long: firmware of a machine whose
    // display is not the console shows nothing there.
    let own = |h: &&Hit<'_>| {
        let part = part_name(h.means);
        h.on == On::Loader
            && part.is_some_and(|part| {
                !matches!(Identity::of(part).kind, Kind::Firmware | Kind::EfiStub)
            })
    };
    if let Some(hit) = facts.hits.iter().find(own).filter(|_| network.is_none()) {
        let error = hit.at.saturating_add(hit.error);
        found.offer(Anchor::Loader, Trust::Text, Stamp { at: hit.at, error, source: hit.source });
    }
}

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(begin) = anchors.get(Anchor::Loader) else { return };
    let parts: Vec<(&'static str, Stamp<'a>)> = parts(facts, begin).collect();
    let phase = tree.root.children.iter().find(|n| n.name == LOADER);
    let end = phase.map_or(begin.at, |n| n.end);
    let parts = with_reads(facts, parts, begin, end);
    let mut placed: Vec<loaded::Part> = Vec::new();
    for (index, (name, at)) in parts.iter().enumerate() {
        let to = parts.get(index + 1).map_or(end, |(_, next)| next.at);
        if at.at < to.min(end) {
            let node = Node::new(*name, at.at, to.min(end), at.source);
            tree.place(Node { error: at.error, ..node });
            placed.push((*name, at.at, to.min(end)));
        }
    }
    loaded::files(facts, tree, &placed);
    let ends = [Anchor::Hypervisor, Anchor::KernelFirst, Anchor::Decompress];
    let told = facts.another.is_some() || ends.iter().any(|a| anchors.get(*a).is_some());
    let before = parts.iter().rfind(|(_, at)| at.at <= end);
    let last = Stamp { at: end, ..before.map_or(begin, |(_, at)| *at) };
    if let Some(to) = anchors.get(Anchor::KernelEntry).filter(|_| !told) {
        let Some(name) = up_to_entry(LAST_READS, to) else { return };
        // An end that is the clock's start is in the name.
        let error = if name == LAST_READS { last.error.max(to.error) } else { last.error };
        if to.at.saturating_sub(last.at) > error {
            tree.place(Node { error, ..Node::new(name, last.at, to.at, last.source) });
        }
    }
}

/// How far the loader is known to have gone on, where nothing says when the kernel's image began:
/// to its last word, or out of its last wait, which ends when it begins to read.
pub(crate) fn reach(facts: &RunIndex<'_>, start: Ns, limit: Ns) -> Option<Ns> {
    let inside = |h: &&Hit<'_>| h.on == On::Loader && (start..=limit).contains(&h.at);
    let of_loader = |h: &&Hit<'_>| inside(h) && h.means != Means::Firmware;
    let is = |h: &Hit<'_>, name: &str| part_name(h.means) == Some(name);
    let ipxe = facts.hits.iter().filter(of_loader).any(|h| is(h, IPXE));
    let own = |h: &&Hit<'_>| !is(h, EFI_STUB) && (ipxe || !is(h, DOWNLOAD));
    let last = facts.hits.iter().filter(of_loader).filter(own).max_by_key(|h| h.at)?;
    let waits = WAITS.iter().any(|wait| Some(wait.name) == part_name(last.means));
    let cleared = |to: Ns| wait_ends(facts, last.at, to).map(|stamp| stamp.at);
    let reads = || match files(facts, last.at, limit).first() {
        Some(first) => Some(first.at),
        None => cleared(limit),
    };
    // Behind the name of a file that it reads, SYSLINUX says when it has.
    let read = facts.lines.iter().filter(|l| l.early && l.at >= last.at && l.end <= limit);
    let read = read.filter(|l| l.text.starts_with("Loading ") && l.text.trim_end().ends_with("ok"));
    let done = read.map(|l| l.end).max().unwrap_or(last.at);
    // What the VMM read after it, it read for the loader: the kernel has no driver yet.
    let by_vmm =
        facts.seen.iter().rfind(|s| matches!(s.what, EventKind::VmmRead { .. }) && s.at <= limit);
    let read_by_vmm = by_vmm.map_or(last.at, |read| last.at.max(read.at - read.error));
    let done = done.max(read_by_vmm);
    let counted = || {
        let counts = |l: &&Line<'_>| l.early && l.text.contains(GRUB_COUNTS);
        let counted = facts.lines.iter().filter(counts).map(|l| l.end);
        counted.filter(|at| (last.at..=limit).contains(at)).max()
    };
    Some(if waits { reads().or_else(counted).unwrap_or(last.at).max(read_by_vmm) } else { done })
}

/// iPXE says who it is.
const IPXE: &str = "ipxe:start";
/// What iPXE gets, one file after the other.
const DOWNLOAD: &str = "ipxe:download";
/// What the kernel's own image says under UEFI.
const EFI_STUB: &str = "efi-stub";

/// A loader's parts with what it reads, where its lines say nothing of that: first it waits, then
/// it reads files from one end to the other, and nothing else that is so long. GRUB's are the
/// kernel and then the initrd. Where no reads were traced, nobody knows where the wait ended.
fn with_reads<'a>(
    facts: &RunIndex<'a>,
    mut parts: Vec<(&'static str, Stamp<'a>)>,
    begin: Stamp<'a>,
    end: Ns,
) -> Vec<(&'static str, Stamp<'a>)> {
    let known = |name: &str| WAITS.iter().find(|wait| wait.name == name);
    let last = |of: &dyn Fn(&str) -> bool| parts.iter().rposition(|(name, _)| of(name));
    // GRUB with no time-out says nothing of its menu.
    let grub = |name: &str| Identity::of(name).kind == Kind::Grub;
    let Some(index) = last(&|name| known(name).is_some()).or_else(|| last(&grub)) else {
        return parts;
    };
    let (name, at) = parts[index];
    let wait = known(name);
    let load = wait.map_or("grub:load", |wait| wait.load);
    if parts.iter().any(|(name, _)| name.starts_with(load)) {
        return parts;
    }
    let files = files(facts, at.at.max(begin.at), end);
    let cleared = wait.filter(|wait| wait.clears).and_then(|_| wait_ends(facts, at.at, end));
    if let Some(cleared) = cleared {
        parts.push((load, cleared));
        return parts;
    }
    let traced = facts.seen.iter().any(|seen| matches!(seen.what, EventKind::DiskRead { .. }));
    let loads = match files[..] {
        [kernel, initrd] if load == "grub:load" => {
            vec![("grub:load-kernel", kernel), ("grub:load-initrd", initrd)]
        }
        [first, ..] => vec![(load, first)],
        [] => Vec::new(),
    };
    // GRUB says which entry it boots before it loads anything of that.
    let goes_on = parts.get(index + 1).is_some_and(|(name, _)| *name == BOOT_ENTRY);
    if let Some(wait) = wait.filter(|_| !traced && !goes_on) {
        parts[index].0 = wait.both;
    }
    parts.extend(loads);
    parts.sort_by_key(|(_, at)| at.at);
    parts
}

/// A part in which a loader waits for somebody.
struct Wait {
    name: &'static str,
    /// What it does next.
    load: &'static str,
    /// Where these are not told apart.
    both: &'static str,
    /// True if it clears its screen when it goes on (systemd-boot: src/boot/efi/boot.c, `menu_run`).
    clears: bool,
}

/// When a menu that counts down on the console was taken from the screen.
fn wait_ends<'a>(facts: &RunIndex<'a>, from: Ns, to: Ns) -> Option<Stamp<'a>> {
    let counts = |l: &&Line<'_>| l.early && l.text.trim_start().starts_with(COUNTS);
    let inside = |at: Ns| (from..=to).contains(&at);
    let last = facts.lines.iter().filter(counts).filter(|l| inside(l.at)).map(|l| l.end).max()?;
    let cleared =
        |s: &&Seen<'_>| *s.what == EventKind::ScreenCleared && s.at >= last && inside(s.at);
    facts.seen.iter().find(cleared).map(Stamp::of)
}

/// From GRUB's word on which entry it boots.
const BOOT_ENTRY: &str = "grub:boot-entry";
/// What GRUB's menu says every second.
const GRUB_COUNTS: &str = "executed automatically in ";
/// What systemd-boot's menu says every second.
const COUNTS: &str = "Boot in ";

const WAITS: &[Wait] = &[
    Wait { name: "grub:menu", load: "grub:load", both: "grub:menu+grub:load", clears: false },
    Wait { name: "grub:timeout", load: "grub:load", both: "grub:timeout+grub:load", clears: false },
    Wait {
        name: "systemd-boot:menu",
        load: "systemd-boot:load",
        both: "systemd-boot:menu+systemd-boot:load",
        clears: true,
    },
    Wait {
        name: "syslinux:prompt",
        load: "syslinux:load",
        both: "syslinux:prompt+syslinux:load",
        clears: false,
    },
];

/// When each long file began to be read between two moments.
fn files<'a>(facts: &RunIndex<'a>, from: Ns, to: Ns) -> Vec<Stamp<'a>> {
    let mut runs: Vec<(Stamp<'a>, u64, u64, u64)> = Vec::new();
    for seen in facts.seen.iter().filter(|s| from <= s.at && s.at < to) {
        let EventKind::DiskRead { disk, offset, bytes } = *seen.what else { continue };
        let next = offset.saturating_add(bytes);
        match runs.last_mut() {
            Some((_, of, until, read))
                if *of == disk && (*until..=until.saturating_add(SKIPPED)).contains(&offset) =>
            {
                (*until, *read) = (next, read.saturating_add(bytes));
            }
            _ => runs.push((Stamp::of(seen), disk, next, bytes)),
        }
    }
    runs.into_iter().filter(|run| run.3 >= LONG).map(|run| run.0).collect()
}

/// A file that is at least so long, bytes, is a kernel or an initrd.
const LONG: u64 = 2 << 20;
/// What may be left out inside a file, bytes: a block of the file system's own.
const SKIPPED: u64 = 64 << 10;

/// Where parts begin, in order, no name twice in a row.
fn parts<'a, 'f>(
    facts: &'f RunIndex<'a>,
    begin: Stamp<'a>,
) -> impl Iterator<Item = (&'static str, Stamp<'a>)> + 'f {
    let inside = move |h: &&Hit<'a>| h.on == On::Loader && h.at >= begin.at;
    let named = |h: &Hit<'a>| {
        let name = part_name(h.means).filter(|name| Identity::of(name).kind != Kind::Firmware)?;
        Some((name, Stamp { at: h.at, error: h.error, source: h.source }))
    };
    let (mut last, mut ipxe) = ("", false);
    facts.hits.iter().filter(inside).filter_map(named).filter(move |(name, _)| {
        ipxe |= *name == IPXE;
        let new = *name != last && (ipxe || *name != DOWNLOAD);
        last = if new { name } else { last };
        new
    })
}
