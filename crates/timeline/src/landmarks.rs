//! What phases and rules both go by: the addresses that a kernel is entered at, what the
//! firmware was asked for, and how long what never ended can have gone on.

use crate::anchors::{Anchor, Anchors, Stamp};
use crate::facts::RunIndex;
use crate::input::{by_guest, Seen, RESET_VECTOR};
use crate::lines::Line;
use crate::patterns::On;
use vmeter_model::kernel_log::split_stamp;
use vmeter_model::{EventKind, Ns};

/// Entries of a compressed image: real-mode setup code, then the decompressor
/// (arch/x86/boot/header.S, arch/x86/boot/compressed/head_64.S).
pub(crate) const IMAGE_ENTRIES: &[&str] =
    &["bzimage-setup", "setup-entry", "bzimage-startup_32", "startup_32", "bzimage-startup_64"];
/// Entries by PVH (arch/x86/platform/pvh/head.S).
pub(crate) const PVH_ENTRIES: &[&str] = &["pvh_start_xen"];
/// First addresses of the kernel proper (arch/x86/kernel/head_64.S, head64.c).
pub(crate) const KERNEL_ENTRIES: &[&str] =
    &["pvh_start_xen", "startup_64", "x86_64_start_kernel", "start_kernel"];

/// Where a BIOS puts what it boots from a disk, and enters it.
pub(crate) const BOOT_SECTOR: &str = "boot-sector";
/// An address that a relocated kernel, or its decompressor, can begin at.
pub(crate) const ALIGNED_ENTRY: &str = "image-entry";
/// The first address in the kernel's half: only a kernel runs there.
pub(crate) const MAPPED: &str = "kernel-mapped";
/// The decompressor's output begins to be there, and is, by the guest's pages: it is at work meanwhile,
/// and may be before and after.
pub(crate) const UNPACKING: &str = "unpacking";
pub(crate) const UNPACKED: &str = "unpacked";
/// QEMU's ROM began to put the kernel's image and its initrd into RAM, and the last of both was there.
pub(crate) const IMAGE_LOADING: &str = "image-loading";
pub(crate) const IMAGE_LOADED: &str = "image-loaded";
/// The image moved itself to where it unpacks the kernel from.
pub(crate) const IMAGE_MOVING: &str = "image-moving";
/// The kernel's first word was in its first stack, by looks at its RAM: `start_kernel` began.
pub(crate) const STARTED: &str = "kernel-started";
/// What is reached on the way to a kernel, and is no part of it.
pub(crate) const WAY: &[&str] = &[
    BOOT_SECTOR,
    ALIGNED_ENTRY,
    MAPPED,
    UNPACKING,
    UNPACKED,
    IMAGE_LOADING,
    IMAGE_LOADED,
    IMAGE_MOVING,
    STARTED,
];

/// Addresses that whatever is booted runs at.
const OF_ANY_IMAGE: &[&str] =
    &[RESET_VECTOR, BOOT_SECTOR, ALIGNED_ENTRY, MAPPED, IMAGE_LOADING, IMAGE_LOADED, IMAGE_MOVING];

/// True if anything shows that Linux was booted: a line of its log, a record of its trace, an
/// address of its own. What else is booted (a memory test, a unikernel) has no user space that is
/// known.
pub(crate) fn is_linux(facts: &RunIndex<'_>) -> bool {
    let of_kernel =
        |line: &Line<'_>| !line.console || line.stamp.is_some() || line.text.starts_with(BANNER);
    let traced = |s: &Seen<'_>| by_guest(s.what) && !matches!(s.what, EventKind::Reached { .. });
    facts.log_unplaced > 0
        || facts.lines.iter().any(|line| line.on == On::Kernel && of_kernel(line))
        || facts.seen.iter().any(traced)
        || facts.reached.iter().any(|(symbol, _)| !OF_ANY_IMAGE.contains(symbol))
}

/// Entry point of a kernel that QEMU has put into memory already (PVH).
const KERNEL_ENTRY: u32 = 0x10;
/// The compressed kernel.
const KERNEL_DATA: u32 = 0x11;

/// When fw_cfg shows this key to have been selected first.
fn selected<'a>(facts: &RunIndex<'a>, key: u32) -> Option<Stamp<'a>> {
    facts.first(|w| matches!(w, EventKind::FwCfg { item, .. } if *item == key))
}

/// True if the compressed kernel was read through fw_cfg.
pub(crate) fn loaded_compressed(facts: &RunIndex<'_>) -> bool {
    selected(facts, KERNEL_DATA).is_some()
}

/// How boot loaders that a VMM can load in the place of a kernel introduce themselves.
const LOADERS: &[&str] = &["iPXE initialising devices", "GRUB loading", "Welcome to GRUB!"];
/// How a kernel does.
const BANNER: &str = "Linux version ";

/// When what the VMM had loaded as a kernel said that it is a boot loader.
pub(crate) fn loaded_a_loader(seen: &[Seen<'_>]) -> Option<Ns> {
    let data = |s: &&Seen<'_>| matches!(s.what, EventKind::FwCfg { item: KERNEL_DATA, .. });
    let loaded = seen.iter().find(data)?.at;
    let lines = seen.iter().filter_map(|s| match s.what {
        EventKind::ConsoleLine { text, .. } => Some((s.at, split_stamp(text))),
        _ => None,
    });
    let mut early =
        lines.take_while(|(_, (stamp, text))| stamp.is_none() && !text.starts_with(BANNER));
    let begins = |text: &str| LOADERS.iter().any(|loader| text.starts_with(loader));
    early.find(|(at, (_, text))| *at >= loaded && begins(text)).map(|(at, _)| at)
}

/// True if an address was reached by what it is named for. The entries of an image that the
/// VMM loads are fixed addresses, and boot loaders and firmware run there too (GRUB's core
/// is unpacked to 1 MiB): they are the kernel's if the firmware had loaded one by then, and a
/// `startup_64` if it went on to the kernel's own code.
pub(crate) fn is_itself(
    seen: &[Seen<'_>],
    reached: &[(&str, Stamp<'_>)],
    symbol: &str,
    stamp: Stamp<'_>,
) -> bool {
    let fw_cfg = || {
        seen.iter().filter_map(|s| match s.what {
            EventKind::FwCfg { item, .. } => Some((*item, s.at)),
            _ => None,
        })
    };
    let latest = stamp.at.saturating_add(stamp.error).saturating_add(LOADED_WITHIN_NS);
    let loaded =
        || fw_cfg().any(|(item, at)| (item == KERNEL_DATA || item == KERNEL_ENTRY) && at <= latest);
    let known = fw_cfg().next().is_some();
    let loader = reached.iter().any(|(s, at)| *s == BOOT_SECTOR && at.at <= stamp.at);
    let from_vmm = if known { loaded() } else { !loader };
    let of_loader = || loaded_a_loader(seen).is_some_and(|at| stamp.at < at);
    match symbol {
        symbol if IMAGE_ENTRIES.contains(&symbol) && of_loader() => false,
        "bzimage-setup" | "bzimage-startup_32" | "bzimage-startup_64" => from_vmm,
        "startup_64" => {
            let own = |s: &str| s == "x86_64_start_kernel" || s == "start_kernel";
            from_vmm
                || reached.iter().any(|(s, at)| {
                    own(s) && (0..STARTS_WITHIN_NS).contains(&at.at.saturating_sub(stamp.at))
                })
        }
        _ => true,
    }
}

/// The clocks of two sources differ by less.
const LOADED_WITHIN_NS: Ns = 1_000_000;
/// From `startup_64` to `start_kernel`, under TCG on a loaded host.
const STARTS_WITHIN_NS: Ns = 500_000_000;

/// True if the entry point of an uncompressed kernel was asked for.
pub(crate) fn loaded_entry(facts: &RunIndex<'_>) -> bool {
    entry_asked(facts).is_some()
}

/// When it was.
pub(crate) fn entry_asked<'a>(facts: &RunIndex<'a>) -> Option<Stamp<'a>> {
    selected(facts, KERNEL_ENTRY)
}

/// Until when something that began at `at`, and is not seen to end, can have gone
/// on: to the panic that came next, or to the end of a run that stopped short or that
/// ended at its ready point meanwhile. If
/// the guest is known to have gone on to something else, only the record of its
/// end was lost.
pub(crate) fn hung_until(facts: &RunIndex<'_>, anchors: &Anchors<'_>, at: Ns) -> Option<Ns> {
    let later = |a: Anchor| anchors.get(a).map(|s| s.at).filter(|t| *t >= at);
    let next = [Anchor::Userspace, Anchor::Programs, Anchor::Shutdown, Anchor::Kexec];
    let next = next.into_iter().filter_map(later).min();
    match (later(Anchor::Panic), next) {
        (Some(panic), next) if next.is_none_or(|next| next >= panic) => Some(panic),
        (_, None) if facts.goes_on => Some(later(Anchor::Exiting).unwrap_or(facts.total)),
        _ => None,
    }
}

/// Until when something that began at `at` and was waited for to the last went on: to the
/// panic, to another kernel, to when the machine was off, or to the end of the run.
pub(crate) fn at_last(facts: &RunIndex<'_>, anchors: &Anchors<'_>, at: Ns) -> Ns {
    let off = |s: &&Seen<'_>| match s.what {
        EventKind::PowerOff => true,
        EventKind::RunState { state } => state == "shutdown",
        _ => false,
    };
    let off = facts.seen.iter().filter(off).map(|s| s.at);
    let ends =
        [Anchor::Panic, Anchor::Kexec, Anchor::Exiting].into_iter().filter_map(|a| anchors.get(a));
    let ends = ends.map(|s| s.at).chain(off).filter(|end| *end > at);
    ends.min().unwrap_or(facts.total)
}

/// Where something that began at `at` and never ended is taken to end: with the
/// phase it is in, or with the run.
pub(crate) fn open_end(facts: &RunIndex<'_>, anchors: &Anchors<'_>, at: Ns) -> Ns {
    let phases =
        [Anchor::Userspace, Anchor::Panic, Anchor::Shutdown, Anchor::Kexec, Anchor::Exiting];
    let ends = phases.iter().filter_map(|a| anchors.get(*a)).map(|s| s.at);
    ends.filter(|end| *end > at).min().unwrap_or(facts.total)
}
