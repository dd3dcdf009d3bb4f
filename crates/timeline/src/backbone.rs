//! The phases of a boot in order, each from the anchor that begins it to the
//! anchor that ends it.
//!
//! A phase is given only time that evidence bounds. If the anchor at its end was
//! not found, it ends with the last thing seen in it, and the rest, up to the
//! next anchor that was found, is `unattributed`: the next phase began somewhere
//! in there, and nothing says where.

use crate::anchors::{Anchor, Anchors, Stamp};
use crate::calls::Call;
use crate::facts::RunIndex;
use crate::input::RESET_VECTOR;
use crate::landmarks::{hung_until, loaded_compressed, loaded_entry};
use crate::landmarks::{ALIGNED_ENTRY, BOOT_SECTOR, IMAGE_ENTRIES, KERNEL_ENTRIES, PVH_ENTRIES};
use crate::landmarks::{UNPACKED, UNPACKING};
use crate::lines::{CLOCK_START_NS, EXACT_NS};
use crate::patterns::{Means, On};
use crate::rules::{loader_reach, of_firmware, part_name, to_rom, NETWORK};
use crate::tree::{Fill, Growing, Kind, Node};
use vmeter_model::span::AFTER;
use vmeter_model::Ns;

/// The firmware's phase.
pub(crate) const FIRMWARE: &str = "bios:overhead";
/// From the firmware's hand-over to the kernel image's first instruction.
pub(crate) const LOADER: &str = "boot-loader";
/// From a hypervisor's begin to that of the kernel which it starts.
const HYPERVISOR: &str = "hypervisor";
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
type Reach = for<'a> fn(&RunIndex<'a>, &Anchors<'a>, Ns, Ns) -> Option<Ns>;

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
    Decompress, ExecDone, Exiting, Hypervisor, Initcalls, KernelEntry, KernelFirst, Kexec, Loader,
    Main, Panic, Programs, Reset, Resumed, Shutdown, Userspace, Waits, Wrapper,
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
            ..phase(FIRMWARE, &[Some(Reset)], &[Some(Loader), Some(Hypervisor), Some(KernelFirst), Some(Decompress)]) },
    Phase { seen_until: last_of_loader,
            ..phase(LOADER, &[Some(Loader)],
                    &[Some(Hypervisor), Some(KernelFirst), Some(Decompress)]) },
    phase(HYPERVISOR, &[Some(Hypervisor)], &[Some(KernelFirst), Some(Decompress), Some(KernelEntry)]),
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
pub(crate) fn phases<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>) -> Growing<'a> {
    let mut root = Node::new("boot", 0, facts.total, "");
    root.fill = Fill::Unattributed;
    let mut tree = Growing { root, beside: Vec::new(), warnings: Vec::new() };
    for phase in PHASES {
        let Some(Bounds { start, end, next }) = bounds(phase, facts, anchors) else { continue };
        let length = end.at - start.at;
        // Where neither end is known, whether it was there at all is all that is known of it.
        if length <= 0 || start.error.min(end.error) >= length {
            continue;
        }
        let by_rom = to_rom(facts).is_some_and(|rom| rom.at == start.at);
        let name = match phase.name {
            DECOMPRESS if by_rom => LOAD_TO_DECOMPRESS,
            name => up_to_init(name, anchors),
        };
        let source = if start.source.is_empty() { end.source } else { start.source };
        let mut place = |name: String, from: Ns, to: Ns, error: Ns| {
            if from < to {
                let node = Node::new(name, from, to, source);
                tree.place(Node { error, fill: phase.fill, kind: Kind::Frame, ..node });
            }
        };
        // Where nothing comes before the kernel's own code, it begins with that.
        let next =
            next.map(|next| if entered(anchors) == Some(end.at) { KernelEntry } else { next });
        // Without a phase that follows there is none to share it with: the end has its error.
        let shares = next.filter(|next| begun_by(*next, facts, anchors).is_some());
        let may = shares.and_then(|next| Some((may_begin(next, start, end)?, next)));
        let Some((since, next)) = may else {
            place(name.to_owned(), start.at, end.at, start.error.max(end.error));
            continue;
        };
        place(name.to_owned(), start.at, since, start.error);
        // A log that nothing aligns is only known to be earlier.
        let near = next != KernelEntry || end.error <= CLOCK_START_NS;
        if let Some(next) = begun_by(next, facts, anchors).filter(|_| near) {
            place(format!("{name}+{next}"), since, end.at, start.error);
        }
    }
    tree
}

/// From when on a phase may have given way to the next: a loader, and a kernel, were there before their
/// first words; and an end that is off by more than the phase is long is none.
fn may_begin(next: Anchor, start: Stamp<'_>, end: Stamp<'_>) -> Option<Ns> {
    let late = matches!(next, Loader | KernelEntry) && end.error > EXACT_NS;
    let off = end.error >= end.at - start.at;
    (late || off).then(|| end.at.saturating_sub(end.error).max(start.at))
}

/// When the kernel was entered.
fn entered(anchors: &Anchors<'_>) -> Option<Ns> {
    anchors.get(KernelEntry).map(|entry| entry.at)
}

/// The phase that begins at a moment.
fn begun_by(anchor: Anchor, facts: &RunIndex<'_>, anchors: &Anchors<'_>) -> Option<&'static str> {
    let begins = |phase: &&Phase| phase.from.contains(&Some(anchor));
    PHASES.iter().filter(begins).find(|p| bounds(p, facts, anchors).is_some()).map(|p| p.name)
}

/// Cuts the span of several phases in which the kernel was unpacked: while its output came into being,
/// nothing but that was at work.
pub(crate) fn unpacked<'a>(facts: &RunIndex<'a>, tree: &mut Growing<'a>) {
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

/// A phase that is shared with the one before it began in there.
pub(crate) fn begun_in_shared(tree: &mut Growing<'_>) {
    let phases = &mut tree.root.children;
    for index in 1..phases.len() {
        let (before, after) = phases.split_at_mut(index);
        let (Some(shared), Some(own)) = (before.last(), after.first_mut()) else { return };
        let last = shared.name.rsplit_once('+').map(|(_, last)| last);
        if shared.end == own.start && last.is_some_and(|last| own.name.starts_with(last)) {
            own.error = own.error.min(shared.len());
        }
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

/// Where a phase begins and ends, and the moment that ends it, if that was found.
struct Bounds<'a> {
    start: Stamp<'a>,
    end: Stamp<'a>,
    next: Option<Anchor>,
}

fn bounds<'a>(phase: &Phase, facts: &RunIndex<'a>, anchors: &Anchors<'a>) -> Option<Bounds<'a>> {
    let exec = Stamp { at: 0, error: 0, source: "" };
    let get = |a: &Option<Anchor>, end| a.map_or(Some(end), |a| anchors.get(a));
    let start = phase.from.iter().find_map(|a| get(a, exec))?;
    let begun = phase.from.iter().flatten().find(|a| anchors.get(**a).is_some());
    let limit = anchors.next(begun.copied()).map_or(facts.total, |s| s.at);
    let end = phase.to.iter().find_map(|a| Some((get(a, facts.end())?, *a)));
    if let Some((end, next)) = end.filter(|(end, _)| end.at <= limit) {
        return Some(match (phase.breaks_off)(facts, anchors, start.at, end.at) {
            Some(at) => Bounds { start, end: Stamp { at, ..start }, next: None },
            None => Bounds { start, end, next },
        });
    }
    let until = (phase.seen_until)(facts, anchors, start.at, limit)?.min(limit);
    Some(Bounds { start, end: Stamp { at: until, ..start }, next: None })
}

fn nothing(_: &RunIndex<'_>, _: &Anchors<'_>, _: Ns, _: Ns) -> Option<Ns> {
    None
}

fn last_firmware_line(facts: &RunIndex<'_>, anchors: &Anchors<'_>, _: Ns, limit: Ns) -> Option<Ns> {
    let last = facts.hits.iter().filter(|h| of_firmware(h) && h.at <= limit);
    let last = last.max_by_key(|h| h.at)?;
    // It says so when it gives up.
    let end = anchors.get(Anchor::Exiting).map_or(facts.total, |exiting| exiting.at);
    let waits = part_name(last.means) == Some(NETWORK) && facts.goes_on && limit >= end;
    Some(if waits { limit } else { last.at })
}

fn last_of_loader(facts: &RunIndex<'_>, _: &Anchors<'_>, start: Ns, limit: Ns) -> Option<Ns> {
    loader_reach(facts, start, limit)
}

/// The last address reached or line read before the initcalls must have begun.
fn last_of_entry(facts: &RunIndex<'_>, _: &Anchors<'_>, start: Ns, limit: Ns) -> Option<Ns> {
    let part = |means| matches!(means, Means::Part(_) | Means::FirstPart(_));
    let lines = facts.hits.iter().filter(|h| h.on == On::Kernel && part(h.means)).map(|h| h.at);
    let reached = facts.reached.iter().map(|(_, stamp)| stamp.at);
    lines.chain(reached).filter(|at| (start..=limit).contains(at)).max()
}

/// The end of the last built-in initcall; of one that may have hung, the run's.
fn last_builtin(facts: &RunIndex<'_>, anchors: &Anchors<'_>, _: Ns, limit: Ns) -> Option<Ns> {
    let end = |c: &Call<'_>| match c.end {
        Some(end) => end.at,
        None => hung_until(facts, anchors, c.start.at).unwrap_or(c.start.at),
    };
    facts.calls.builtin().map(end).filter(|at| *at <= limit).max()
}

/// The last built-in initcall, if nothing says that it returned although the guest
/// went on: from there on, records were lost, and others may have run.
fn lost_tail(facts: &RunIndex<'_>, anchors: &Anchors<'_>, start: Ns, end: Ns) -> Option<Ns> {
    let inside = |c: &&Call<'_>| (start..=end).contains(&c.start.at);
    let last = facts.calls.builtin().filter(inside).last().filter(|c| c.end.is_none())?;
    let lost = hung_until(facts, anchors, last.start.at).is_none();
    lost.then_some(last.start.at)
}

/// Settles what the entry of an uncompressed kernel (PVH, 64-bit boot protocol)
/// means: there is no setup code and no decompressor, so the firmware ends where
/// the kernel begins.
pub(crate) fn settle_entry(facts: &RunIndex<'_>, anchors: &mut Anchors<'_>) {
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

fn entered_directly(facts: &RunIndex<'_>) -> bool {
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
