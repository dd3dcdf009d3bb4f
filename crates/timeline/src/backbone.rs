//! The phases of a boot in order, each from the anchor that begins it to the
//! anchor that ends it.
//!
//! A phase is given only time that evidence bounds. If the anchor at its end was
//! not found, it ends with the last thing seen in it, and the rest, up to the
//! next anchor that was found, is `unattributed`: the next phase began somewhere
//! in there, and nothing says where.

use crate::anchors::{Anchor, Anchors, Stamp};
use crate::calls::Call;
use crate::facts::Facts;
use crate::input::RESET_VECTOR;
use crate::landmarks::{hung_until, loaded_compressed, loaded_entry};
use crate::landmarks::{ALIGNED_ENTRY, BOOT_SECTOR, IMAGE_ENTRIES, KERNEL_ENTRIES, PVH_ENTRIES};
use crate::landmarks::{UNPACKED, UNPACKING};
use crate::lines::EARLY_CLOCK_ERROR_NS;
use crate::patterns::{Means, On};
use crate::rules::{loader_reach, of_firmware, part_name, to_rom, up_to_entry, NETWORK};
use crate::tree::{Fill, Growing, Kind, Node};
use vmeter_model::span::AFTER;
use vmeter_model::Ns;

/// The firmware's phase.
pub(crate) const FIRMWARE: &str = "bios:overhead";
/// From the firmware's hand-over to the kernel image's first instruction.
pub(crate) const LOADER: &str = "boot-loader";
/// The image's own code before the kernel's.
const DECOMPRESS: &str = "kernel:decompress";
/// The same with its loading, where the firmware said when it went on to that, and nothing says when
/// it was loaded.
const LOAD_TO_DECOMPRESS: &str = "kernel:load+kernel:decompress";
/// The kernel between its own first instruction and its first initcall.
pub(crate) const ENTRY: &str = "kernel:entry";
/// The kernel up to its init, where nothing tells when its initcalls began.
pub(crate) const KERNEL: &str = "kernel:entry+kernel:initcalls-before-userspace";
/// The same up to the first line of a program, where nothing tells when init began either.
const KERNEL_TO_LINE: &str = "kernel:entry+kernel:initcalls-before-userspace+userspace";
/// The initcalls, and init up to the first line of a program.
const INITCALLS_TO_LINE: &str = "kernel:initcalls-before-userspace+userspace";
/// The phases in which initcalls run.
pub(crate) const WITH_INITCALLS: [&str; 4] = [INITCALLS, KERNEL, KERNEL_TO_LINE, INITCALLS_TO_LINE];
/// The kernel's initcalls.
pub(crate) const INITCALLS: &str = "kernel:initcalls-before-userspace";
/// From the start of the shutdown to the VMM's exit.
pub(crate) const SHUTDOWN: &str = "shutdown";

/// One phase.
struct Phase {
    name: &'static str,
    /// The first of these that was found begins it; `None` is the exec.
    from: &'static [Option<Anchor>],
    /// The first of these that was found ends it; `None` is the end of the run.
    to: &'static [Option<Anchor>],
    /// How far evidence inside it reaches if none of `to` was found.
    seen_until: Reach,
    /// Where the record of it breaks off although it goes on.
    breaks_off: Reach,
    fill: Fill,
}

/// Looks between two moments, ns.
type Reach = for<'a> fn(&Facts<'a>, &Anchors<'a>, Ns, Ns) -> Option<Ns>;

const BETWEEN: Fill = Fill::Named {
    before: "kernel:between-initcalls",
    between: "kernel:between-initcalls",
    after: "kernel:after-initcalls",
};

const fn phase(
    name: &'static str,
    from: &'static [Option<Anchor>],
    to: &'static [Option<Anchor>],
) -> Phase {
    Phase { name, from, to, seen_until: nothing, breaks_off: nothing, fill: Fill::Own }
}

use Anchor::{
    Decompress, ExecDone, Exiting, Initcalls, KernelEntry, KernelFirst, Kexec, Loader, Main, Panic,
    Programs, Reset, Resumed, Shutdown, Userspace, Waits, Wrapper,
};

/// The phases. A new one is a line here, and an anchor if it has one of its own.
#[rustfmt::skip]
const PHASES: &[Phase] = &[
    phase("vmm:exec", &[None], &[Some(Wrapper), Some(ExecDone)]),
    phase("vmm:wrapper", &[Some(Wrapper)], &[Some(ExecDone)]),
    phase("vmm:link", &[Some(ExecDone), None], &[Some(Main)]),
    phase("vmm:init", &[Some(Main)], &[Some(Waits), Some(Reset)]),
    // Linking and initialising not told apart.
    phase("vmm:start", &[Some(ExecDone), None], &[Some(Waits), Some(Reset)]),
    phase("vmm:wait-for-start", &[Some(Waits)], &[Some(Reset)]),
    Phase { seen_until: last_firmware_line,
            ..phase(FIRMWARE, &[Some(Reset)], &[Some(Loader), Some(KernelFirst), Some(Decompress)]) },
    Phase { seen_until: last_of_loader,
            ..phase(LOADER, &[Some(Loader)], &[Some(KernelFirst), Some(Decompress)]) },
    phase("kernel:setup", &[Some(KernelFirst)], &[Some(Decompress)]),
    phase(DECOMPRESS, &[Some(Decompress), Some(KernelFirst)], &[Some(KernelEntry)]),
    Phase { seen_until: last_of_entry,
            ..phase(ENTRY, &[Some(KernelEntry)],
                    &[Some(Initcalls), Some(Userspace), Some(Programs), Some(Panic)]) },
    Phase { seen_until: last_builtin, breaks_off: lost_tail, fill: BETWEEN,
            ..phase(INITCALLS, &[Some(Initcalls)],
                    &[Some(Userspace), Some(Programs), Some(Panic)]) },
    phase("kernel:panic", &[Some(Panic)], &[Some(Shutdown), Some(Kexec), Some(Exiting), None]),
    phase(SHUTDOWN, &[Some(Shutdown)], &[Some(Kexec), Some(Exiting), None]),
    phase("vmm:exit", &[Some(Exiting)], &[Some(Resumed), None]),
    phase(AFTER, &[Some(Resumed)], &[None]),
];

/// A tree that holds the phases and nothing else.
pub(crate) fn phases<'a>(facts: &Facts<'a>, anchors: &Anchors<'a>) -> Growing<'a> {
    let mut root = Node::new("boot", 0, facts.total, "");
    root.fill = Fill::Unattributed;
    let mut tree = Growing { root, beside: Vec::new(), warnings: Vec::new() };
    for phase in PHASES {
        let Some((start, end)) = bounds(phase, facts, anchors) else { continue };
        let by_rom = to_rom(facts).is_some_and(|rom| rom.at == start.at);
        let phase_name = match phase.name {
            DECOMPRESS if by_rom => LOAD_TO_DECOMPRESS,
            name => up_to_init(name, anchors),
        };
        if start.at >= end.at {
            continue;
        }
        // Of a kernel that is entered directly firmware ends where it begins.
        let directly = phase.name == FIRMWARE && anchors.get(Loader).is_none();
        let by_entry = (directly || phase.name == DECOMPRESS) && end.error > start.error;
        let is_known = !directly || end.error <= end.at - start.at;
        let by_loader = anchors.get(Loader).filter(|loader| loader.error >= loader.at);
        let name = if phase.name == FIRMWARE && by_loader.is_some_and(|l| l.at == end.at) {
            Some(format!("{phase_name}+{LOADER}"))
        } else if by_entry && !is_known {
            Some(format!("{phase_name}+{ENTRY}"))
        } else {
            named_to_entry(phase_name, end, by_entry)
        };
        let Some(name) = name else { continue };
        // An end that is the clock's start is in the name.
        let told = name == phase_name;
        let error = if told { start.error.max(end.error) } else { start.error };
        // Neither end is known: whether it was there at all is all that is known of it.
        if start.error.min(end.error) >= end.at - start.at {
            continue;
        }
        let source = if start.source.is_empty() { end.source } else { start.source };
        let node = Node {
            error,
            fill: phase.fill,
            kind: Kind::Frame,
            ..Node::new(name, start.at, end.at, source)
        };
        tree.place(node);
    }
    tree
}

/// Cuts the span of several phases in which the kernel was unpacked: while its output came into being,
/// nothing but that was at work.
pub(crate) fn unpacked<'a>(facts: &Facts<'a>, tree: &mut Growing<'a>) {
    let reached = |symbol| facts.first_reached(&[symbol]);
    let (Some(from), Some(to)) = (reached(UNPACKING), reached(UNPACKED)) else { return };
    let phases = &mut tree.root.children;
    let holds = |n: &Node<'_>| n.start <= from.at && from.at < to.at && to.at <= n.end;
    let Some(index) = phases.iter().position(|n| holds(n) && n.children.is_empty()) else { return };
    let whole = &phases[index];
    let Some((before, after)) = whole
        .name
        .split_once(DECOMPRESS)
        .filter(|(before, after)| !(before.is_empty() && after.is_empty()))
    else {
        return;
    };
    let part = |name: String, (start, end): (Ns, Ns), error: Ns| {
        let node =
            Node { fill: Fill::Own, kind: Kind::Frame, ..Node::new(name, start, end, to.source) };
        (start < end).then_some(Node { error, ..node })
    };
    let error = from.error.max(to.error);
    let parts = [
        part(format!("{before}{DECOMPRESS}"), (whole.start, from.at), whole.error.max(from.error)),
        part(DECOMPRESS.to_owned(), (from.at, to.at), error),
        part(format!("{DECOMPRESS}{after}"), (to.at, whole.end), whole.error.max(to.error)),
    ];
    phases.splice(index..=index, parts.into_iter().flatten());
}

/// Where the span before the kernel's entry says in its name that it holds some of it, only the
/// clock's start is where this one begins, which is known well.
pub(crate) fn entry_by_its_clock(tree: &mut Growing<'_>) {
    let phases = &mut tree.root.children;
    let begins = |n: &Node<'_>| [ENTRY, KERNEL, KERNEL_TO_LINE].contains(&n.name.as_str());
    let Some(index) = phases.iter().position(begins).filter(|index| *index > 0) else { return };
    let holds_some = phases[index - 1].name.strip_suffix(ENTRY).is_some_and(|n| n.ends_with('+'));
    if holds_some && phases[index - 1].end == phases[index].start {
        let next = phases.get(index + 1).map_or(0, |next| next.error);
        phases[index].error = phases[index].error.min(EARLY_CLOCK_ERROR_NS.max(next));
    }
}

/// A phase's name, with those of the phases up to init or to a program's first line where nothing
/// tells when they began.
fn up_to_init(name: &'static str, anchors: &Anchors<'_>) -> &'static str {
    let there = |anchor| anchors.get(anchor).is_some();
    match (name, there(Userspace), there(Programs)) {
        (ENTRY, ..) if there(Initcalls) => name,
        (ENTRY, true, _) => KERNEL,
        (ENTRY, false, true) => KERNEL_TO_LINE,
        (INITCALLS, false, true) => INITCALLS_TO_LINE,
        _ => name,
    }
}

/// A phase's name, with the entry's where it ends at one of which only the clock's start is known.
fn named_to_entry(name: &str, end: Stamp<'_>, by_entry: bool) -> Option<String> {
    if by_entry {
        up_to_entry(name, end)
    } else {
        Some(name.to_owned())
    }
}

fn bounds<'a>(
    phase: &Phase,
    facts: &Facts<'a>,
    anchors: &Anchors<'a>,
) -> Option<(Stamp<'a>, Stamp<'a>)> {
    let exec = Stamp { at: 0, error: 0, source: "" };
    let get = |a: &Option<Anchor>, end| a.map_or(Some(end), |a| anchors.get(a));
    let start = phase.from.iter().find_map(|a| get(a, exec))?;
    let begun = phase.from.iter().flatten().find(|a| anchors.get(**a).is_some());
    let limit = anchors.next(begun.copied()).map_or(facts.total, |s| s.at);
    let end = phase.to.iter().find_map(|a| get(a, facts.end()));
    if let Some(end) = end.filter(|end| end.at <= limit) {
        let cut = (phase.breaks_off)(facts, anchors, start.at, end.at);
        return Some((start, cut.map_or(end, |at| Stamp { at, ..start })));
    }
    let until = (phase.seen_until)(facts, anchors, start.at, limit)?.min(limit);
    Some((start, Stamp { at: until, ..start }))
}

fn nothing(_: &Facts<'_>, _: &Anchors<'_>, _: Ns, _: Ns) -> Option<Ns> {
    None
}

fn last_firmware_line(facts: &Facts<'_>, anchors: &Anchors<'_>, _: Ns, limit: Ns) -> Option<Ns> {
    let last = facts.hits.iter().filter(|h| of_firmware(h) && h.at <= limit);
    let last = last.max_by_key(|h| h.at)?;
    // It says so when it gives up.
    let end = anchors.get(Anchor::Exiting).map_or(facts.total, |exiting| exiting.at);
    let waits = part_name(last.means) == Some(NETWORK) && facts.goes_on && limit >= end;
    Some(if waits { limit } else { last.at })
}

fn last_of_loader(facts: &Facts<'_>, _: &Anchors<'_>, start: Ns, limit: Ns) -> Option<Ns> {
    loader_reach(facts, start, limit)
}

/// The last address reached or line read before the initcalls must have begun.
fn last_of_entry(facts: &Facts<'_>, _: &Anchors<'_>, start: Ns, limit: Ns) -> Option<Ns> {
    let part = |means| matches!(means, Means::Part(_) | Means::FirstPart(_));
    let lines = facts.hits.iter().filter(|h| h.on == On::Kernel && part(h.means)).map(|h| h.at);
    let reached = facts.reached.iter().map(|(_, stamp)| stamp.at);
    lines.chain(reached).filter(|at| (start..=limit).contains(at)).max()
}

/// The end of the last built-in initcall; of one that may have hung, the run's.
fn last_builtin(facts: &Facts<'_>, anchors: &Anchors<'_>, _: Ns, limit: Ns) -> Option<Ns> {
    let end = |c: &Call<'_>| match c.end {
        Some(end) => end.at,
        None => hung_until(facts, anchors, c.start.at).unwrap_or(c.start.at),
    };
    facts.calls.builtin().map(end).filter(|at| *at <= limit).max()
}

/// The last built-in initcall, if nothing says that it returned although the guest
/// went on: from there on, records were lost, and others may have run.
fn lost_tail(facts: &Facts<'_>, anchors: &Anchors<'_>, start: Ns, end: Ns) -> Option<Ns> {
    let inside = |c: &&Call<'_>| (start..=end).contains(&c.start.at);
    let last = facts.calls.builtin().filter(inside).last().filter(|c| c.end.is_none())?;
    let lost = hung_until(facts, anchors, last.start.at).is_none();
    lost.then_some(last.start.at)
}

/// Settles what the entry of an uncompressed kernel (PVH, 64-bit boot protocol)
/// means: there is no setup code and no decompressor, so the firmware ends where
/// the kernel begins.
pub(crate) fn settle_entry(facts: &Facts<'_>, anchors: &mut Anchors<'_>) {
    if entered_directly(facts) {
        anchors.set(Anchor::Decompress, None);
        if let Some(entry) = anchors.get(Anchor::KernelEntry) {
            anchors.set(Anchor::KernelFirst, Some(entry));
        } else {
            anchors.set(Anchor::KernelEntry, anchors.get(Anchor::KernelFirst));
        }
    }
}

/// Leaves out the first initcall where it is off by more than one of the phases that it parts is long:
/// that there are both is known, and not where one ended.
pub(crate) fn settle_initcalls(anchors: &mut Anchors<'_>) {
    let at = |anchor| anchors.get(anchor);
    let (Some(entry), Some(first)) = (at(KernelEntry), at(Initcalls)) else { return };
    let Some(next) = at(Userspace).or_else(|| at(Programs)) else { return };
    if first.error > (first.at - entry.at).min(next.at - first.at) {
        anchors.set(Initcalls, None);
    }
}

fn entered_directly(facts: &Facts<'_>) -> bool {
    if facts.first_reached(PVH_ENTRIES).is_some() {
        return true;
    }
    let compressed = facts.first_reached(IMAGE_ENTRIES).is_some() || loaded_compressed(facts);
    if compressed || facts.first_reached(&[BOOT_SECTOR, ALIGNED_ENTRY]).is_some() {
        return false;
    }
    // Whoever lists the reset vector and the kernel's symbols lists the entries of
    // a compressed image too, if it is one.
    let sees = |symbols: &[&str]| facts.first_reached(symbols).map(|s| s.source);
    let reset = sees(&[RESET_VECTOR]);
    loaded_entry(facts) || (reset.is_some() && reset == sees(KERNEL_ENTRIES))
}
