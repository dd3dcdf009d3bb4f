//! The kernel from its image's first instruction to its first initcall.

use super::initcalls::DRIVER_INIT;
use super::RuleSet;
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::backbone::{ENTRY, WITH_INITCALLS};
use crate::facts::RunIndex;
use crate::landmarks::{
    entry_asked, loaded_compressed, ALIGNED_ENTRY, BOOT_SECTOR, IMAGE_MOVING, KERNEL_ENTRIES,
    MAPPED, STARTED, WAY,
};
use crate::lines::{begun, Hit, CLOCK_START_NS, NO_TIME_ERROR_NS};
use crate::patterns::{Means, On};
use crate::tree::{Growing, Node, NEAR_NS};
use vmeter_model::{EventKind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// `run_init_process` of init/main.c.
const RUN_INIT: &str = "kernel:run_init_process";

/// A kernel sets up its first page tables before it runs in its own half.
const MAPPED_WITHIN_NS: Ns = 100_000_000;

fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    let mut reached = |anchor, symbols: &[&str]| {
        if let Some(stamp) = facts.first_reached(symbols) {
            found.offer(anchor, Trust::Exact, stamp);
        }
    };
    reached(Anchor::KernelFirst, &["bzimage-setup", "setup-entry", "pvh_start_xen"]);
    reached(Anchor::Decompress, &["bzimage-startup_32", "startup_32", "bzimage-startup_64"]);
    reached(Anchor::KernelEntry, KERNEL_ENTRIES);
    unlisted(facts, found);
    by_its_ram(facts, found);
    by_its_entry(facts, found);
    for hit in facts.hits.iter().filter(|hit| hit.error <= CLOCK_START_NS) {
        let stamp = |error: Ns| Stamp { at: hit.at, error, source: hit.source };
        match hit.means {
            Means::Begins(anchor, error) => {
                found.offer(anchor, Trust::Text, stamp(hit.error.saturating_add(error)));
            }
            Means::BeginsLast(anchor, error) if is_last(facts, hit) => {
                found.offer(anchor, Trust::Text, stamp(hit.error.saturating_add(error)));
            }
            Means::Panic if !facts.no_panic && !shutting_down(facts, hit.at) => {
                found.offer(Anchor::Panic, Trust::Text, stamp(hit.error));
            }
            _ => {}
        }
    }
    by_its_clock(facts, found);
}

/// What a kernel does before `start_kernel`: page tables, its variables cleared, microcode.
const BEFORE_START_NS: Ns = 30_000_000;

/// What looks at the guest's RAM tell: its decompressor moved itself, and `start_kernel` had begun.
fn by_its_ram<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    if let Some(moving) = facts.first_reached(&[IMAGE_MOVING]) {
        found.offer(Anchor::Decompress, Trust::Near, moving);
    }
    if let Some(entry) = entered(facts) {
        found.offer(Anchor::KernelEntry, Trust::Near, entry);
    }
}

/// From fw_cfg's entry point to the kernel: 0.06 to 0.15 ms here, by the TCG plugin, with qboot and with SeaBIOS's
/// option ROM, in 11 boots of three kernels.
const ENTERED_WITHIN_NS: Ns = 500_000;

/// Firmware asks for the entry point of an uncompressed kernel (PVH) last, and jumps to it.
fn by_its_entry<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    if let Some(asked) = entry_asked(facts).filter(|_| !loaded_compressed(facts)) {
        let error = asked.error.saturating_add(ENTERED_WITHIN_NS);
        found.offer(Anchor::KernelEntry, Trust::Near, Stamp { error, ..asked });
    }
}

/// When the kernel was entered, by looks at the guest's RAM.
pub(crate) fn entered<'a>(facts: &RunIndex<'a>) -> Option<Stamp<'a>> {
    let started = facts.first_reached(&[STARTED])?;
    let error = started.error.saturating_add(BEFORE_START_NS);
    Some(Stamp { at: started.at - started.error, error, ..started })
}

/// A kernel whose first lines came before its console was there: its clock began before the stamps of
/// those that did come.
fn by_its_clock<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    if !found.has(Anchor::KernelEntry) {
        if let Some(begun) = begun(&facts.lines) {
            found.offer(Anchor::KernelEntry, Trust::Text, begun);
        }
    }
}

/// A kernel that nothing is known of: it is entered at a boundary of 2 MiB and goes on in
/// the kernel's half of the addresses. So is the decompressor that a BIOS boot loader jumped
/// to, before it.
fn unlisted<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    let kernel = facts.first_reached(&[MAPPED, "x86_64_start_kernel", "start_kernel"]);
    let Some(mapped) = kernel else { return };
    let mut entries = facts
        .reached
        .iter()
        .filter(|(symbol, stamp)| *symbol == ALIGNED_ENTRY && stamp.at <= mapped.at)
        .map(|(_, stamp)| *stamp)
        .rev();
    let entry = entries.next().filter(|entry| mapped.at - entry.at < MAPPED_WITHIN_NS);
    let error = mapped.error.saturating_add(MAPPED_WITHIN_NS);
    match entry {
        Some(entry) => found.offer(Anchor::KernelEntry, Trust::Exact, entry),
        None => found.offer(Anchor::KernelEntry, Trust::Near, Stamp { error, ..mapped }),
    }
    // Firmware runs at such addresses too, and a boot loader before it is done.
    let sector = facts.first_reached(&[BOOT_SECTOR]).map(|b| b.at);
    let said = facts.hits.iter().filter(|h| h.on == On::Loader && h.at <= mapped.at);
    let since = said.map(|h| h.at).max().or(sector);
    let decompressor = entries.next().filter(|d| since.is_some_and(|since| since < d.at));
    if let Some(decompressor) = decompressor.filter(|_| entry.is_some()) {
        found.offer(Anchor::Decompress, Trust::Exact, decompressor);
    }
}

/// The parts that are known: from where each begins to where the next does, or to the end. What all
/// are off by together moves them, and changes no length. What is off by more than [`NEAR_NS`] must be
/// known to its half.
pub(crate) fn told<'a>(cuts: Vec<Cut<'a>>, end: Ns) -> Vec<(String, Stamp<'a>, Ns)> {
    let shared = cuts.iter().map(|(_, at)| at.error).min().unwrap_or(0);
    let next = |index: usize| cuts.get(index + 1).map(|(_, next)| *next);
    let known = |(index, (name, at)): (usize, &Cut<'a>)| {
        let to = next(index).map_or(end, |next| next.at);
        let off = at.error.max(next(index).map_or(0, |next| next.error)) - shared;
        let known = off <= NEAR_NS || to - at.at >= off.saturating_mul(2);
        (at.at < to && known && !name.is_empty()).then(|| (name.clone(), *at, to))
    };
    cuts.iter().enumerate().filter_map(known).collect()
}

fn shutting_down(facts: &RunIndex<'_>, at: Ns) -> bool {
    facts.first(|w| *w == EventKind::ShutdownStart).is_some_and(|s| s.at <= at)
}

/// True if no later line means the same.
fn is_last(facts: &RunIndex<'_>, hit: &Hit<'_>) -> bool {
    !facts.hits.iter().any(|h| h.on == hit.on && h.means == hit.means && h.at > hit.at)
}

/// Parts of `kernel:entry` and of the gaps between initcalls: from reaching one
/// listed function to reaching the next. After the last address that was reached,
/// from the lines of the kernel's log.
fn spans<'a>(facts: &RunIndex<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    let phase = |name| tree.root.children.iter().find(|n| n.name == name);
    let Some((start, end)) = phase(ENTRY).map(|n| (n.start, n.end)) else { return };
    let mut cuts = parts(facts, start, end, true);
    // One from before the kernel's clock ran is not even known to be before or after another.
    cuts.retain(|(_, at)| at.error < NO_TIME_ERROR_NS);
    for (name, at, to) in told(cuts, end) {
        tree.place(Node { error: at.error, ..Node::new(name, at.at, to, at.source) });
    }
}

/// Where a part begins, and its name; none where only the end of the one before is known.
pub(crate) type Cut<'a> = (String, Stamp<'a>);

/// First functions of a kernel, which do little of their own.
const ENTERED: &[&str] = &["pvh_start_xen", "startup_64", "x86_64_start_kernel"];
/// What comes once `start_kernel` is over.
const AFTER_START: &[&str] = &[
    "kernel:smp_init",
    "kernel:sched_init_smp",
    DRIVER_INIT,
    "kernel:free_initmem",
    "kernel:mark_readonly",
    "kernel:wait-for-root-device",
    RUN_INIT,
];

/// Where parts begin inside `start..end`, in order, no name twice in a row. `bounded` if the end is
/// that of the last of them: what a function did that is the last one seen is not known otherwise.
pub(crate) fn parts<'a>(facts: &RunIndex<'a>, start: Ns, end: Ns, bounded: bool) -> Vec<Cut<'a>> {
    let inside = |at: Ns| start <= at && at < end;
    let mut parts: Vec<(String, Stamp<'a>)> = facts
        .reached
        .iter()
        .filter(|(symbol, stamp)| inside(stamp.at) && !WAY.contains(symbol))
        .map(|(symbol, stamp)| (format!("kernel:{symbol}"), *stamp))
        .collect();
    let last = parts.last().map_or(start, |(_, stamp)| stamp.at);
    let timed = |h: &&Hit<'_>| h.on == On::Kernel && h.timed;
    let lines = facts.hits.iter().filter(timed).filter(|h| inside(h.at) && h.at >= last);
    let early = patched_early(facts);
    let named = |hit: &Hit<'a>| line_part(hit, early);
    let mut lines: Vec<(String, Stamp<'a>)> = lines.filter_map(named).collect();
    for (_, stamp) in &mut lines {
        // A line that an initcall prints is no boundary inside that initcall.
        stamp.at = facts.calls.holding(stamp.at).unwrap_or(stamp.at).max(last);
    }
    lines.sort_by_key(|(_, stamp)| stamp.at);
    if let Some((name, _)) = parts.last_mut() {
        let entered = ENTERED.iter().any(|symbol| name.strip_prefix("kernel:") == Some(symbol));
        let goes_on = match lines.first() {
            Some((next, _)) => !AFTER_START.contains(&next.as_str()),
            None => bounded,
        };
        if entered || !goes_on {
            name.clear();
        }
    }
    parts.append(&mut lines);
    parts.dedup_by(|next, kept| next.0 == kept.0);
    between_neighbours(&mut parts);
    parts
}

/// What `start_kernel` does of its own.
const START_KERNEL: &str = "kernel:start_kernel";
/// The rest of the one, and the begin of the other, which no line tells.
const START_TO_REST: &str = "kernel:start_kernel+kernel:rest_init";

/// Lines of the patching of alternatives, and of what is set up next to it.
const PATCHED: &str = "Freeing SMP alternatives";
const CACHES: &str = "Mount-cache";

/// True if this kernel patches its alternatives in before it sets its file systems up. It did last
/// of all in `start_kernel`, right before `rest_init`; since 6.5, and in stable releases of 2023
/// (`arch_cpu_finalize_init`), it does before `vfs_caches_init`. `rest_init` then begins at some time
/// after that, and has begun when the boot CPU is named.
fn patched_early(facts: &RunIndex<'_>) -> bool {
    let first = |begin: &str, source: &str| {
        let own = facts.hits.iter().filter(|h| h.source == source && h.text.starts_with(begin));
        own.map(|h| h.at).min()
    };
    let mut sources = facts.hits.iter().filter(|h| h.text.starts_with(PATCHED)).map(|h| h.source);
    sources.any(|source| match (first(PATCHED, source), first(CACHES, source)) {
        (Some(patched), Some(caches)) => patched < caches,
        _ => false,
    })
}

/// The log is in order: a line is off by no more than how far it is to those beside it, and by
/// what these are off by.
fn between_neighbours(parts: &mut [(String, Stamp<'_>)]) {
    let stamps: Vec<Stamp<'_>> = parts.iter().map(|(_, stamp)| *stamp).collect();
    let reach = |a: &Stamp<'_>, b: &Stamp<'_>| (a.at - b.at).abs().saturating_add(b.error);
    for (index, (_, stamp)) in parts.iter_mut().enumerate() {
        let own = stamps[index];
        let before = index.checked_sub(1).map(|i| reach(&own, &stamps[i]));
        let after = stamps.get(index + 1).map(|next| reach(&own, next));
        if let (Some(before), Some(after)) = (before, after) {
            stamp.error = own.error.min(before.max(after));
        }
    }
}

fn line_part<'a>(hit: &Hit<'a>, early: bool) -> Option<(String, Stamp<'a>)> {
    let name = match hit.means {
        Means::Part(_) if early && hit.text.starts_with(PATCHED) => START_KERNEL,
        Means::Part(_) if early && hit.text.starts_with(CACHES) => START_TO_REST,
        Means::Part(name) | Means::FirstPart(name) => name,
        // From saying so until it is in user space the kernel reads and maps its init.
        Means::Begins(Anchor::Userspace, _) if hit.text.starts_with("Run ") => RUN_INIT,
        _ => return None,
    };
    Some((name.to_owned(), Stamp { at: hit.at, error: hit.error, source: hit.source }))
}

/// The phase of the initcalls, where parts may fill gaps.
pub(crate) fn initcall_phase<'t, 'a>(tree: &'t Growing<'a>) -> Option<&'t Node<'a>> {
    tree.root.children.iter().find(|n| WITH_INITCALLS.contains(&n.name.as_str()))
}
