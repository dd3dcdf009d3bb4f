//! What of a boot someone can act upon: the outermost spans that have a handle.

use super::tree::{length, SpanTree};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Identity, Kind, Ns, Timeline};
use vmeter_render::exported;
use vmeter_stats::estimate;
use vmeter_timeline::registry::{self, Named};
use vmeter_timeline::{causes, is_wait, smaller_initrd};

/// How it is made so is a setting of the tool that made it.
const SMALLER_INITRD: &str = "configure a smaller initrd";

/// The cause by which a span of a part of the machine is measured. What a timeline shows to be
/// nothing but a cause is that cause's anyway.
fn measured(of: Identity<'_>) -> Option<Named> {
    Some(match (of.kind, of.name) {
        (Kind::Vmm, "link") => registry::VMM_LINK_LOADING,
        (Kind::Kernel, "decompress") => registry::KERNEL_ENTRY,
        (Kind::Kernel, "mitigations-and-alternatives") => registry::LOCK_PREFIXES,
        (Kind::Kernel, "ftrace_init") => registry::FTRACE_INIT,
        (Kind::Kernel, "smp_init") => registry::VCPUS,
        (Kind::Initcall, "serial8250_init") => registry::SERIAL8250_INIT,
        (Kind::Initcall, name) if CONSOLES.contains(&name) => registry::CONSOLE_LOG,
        (Kind::Module, name) if name.starts_with("virtio_pci") => registry::VIRTIO_PCI,
        _ => return None,
    })
}

/// Initcalls that print the kernel's log up to then on a console.
const CONSOLES: &[&str] = &["univ8250_console_init", "con_init", "hvc_console_init"];

/// What can be tried on spans: of a kind, those of these names, or all where there is none. Of
/// units these are what names begin with. The first that fits counts.
#[rustfmt::skip]
const REMEDIES: &[(Kind, &[&str], &str)] = &[
    (Kind::Vmm, &["ld.so", "link"],         "fewer shared libraries"),
    (Kind::Vmm, &["wrapper"],               "start the VMM itself"),
    (Kind::Vmm, &["wait-for-start"],        "start the VM sooner (cont, API)"),
    (Kind::Vmm, &["init"],                  "fewer devices, less memory"),
    (Kind::Vmm, &["exit"],                  "less guest memory (freed at exit)"),
    (Kind::Host, &["no-cpu"],               "a host with a CPU to spare"),
    (Kind::Host, &["vmm-stopped"],          "find what pauses the VMM (SIGSTOP)"),
    (Kind::Launcher, &["after"],            "launcher's work after VMM exit"),
    (Kind::Firmware, &["vga"],              "no display (-vga none)"),
    (Kind::Firmware, &[],                   "other firmware, fewer devices"),
    (Kind::Grub, &["menu", "timeout"],      "GRUB_TIMEOUT=0"),
    (Kind::Grub, &[],                       "fewer modules, or -kernel"),
    (Kind::Syslinux, &["load"],             "a smaller kernel and initrd"),
    (Kind::Syslinux, &["prompt"],           "PROMPT 0, or TIMEOUT 1 (tenths of s)"),
    (Kind::SystemdBoot, &["load"],          "a smaller kernel and initrd"),
    (Kind::SystemdBoot, &["menu"],          "timeout 0 in loader.conf"),
    (Kind::Ipxe, &[],                       "boot from a disk, or -kernel"),
    (Kind::EfiStub, &[],                    "a smaller initrd"),
    (Kind::Kernel, &["load"],               "a smaller kernel and initrd"),
    (Kind::Kernel, &["decompress"],         "uncompressed (PVH), or LZ4"),
    (Kind::Kernel, &["calibrate_delay"],    "lpj=N (kernel)"),
    (Kind::Kernel, &["mitigations-and-alternatives"], "noreplace-smp if it has 1 vCPU"),
    (Kind::Kernel, &["unpack-initrd"],      "a smaller or an uncompressed initrd"),
    (Kind::Kernel, &["wait-for-root-device"], "the root's driver built in"),
    (Kind::Kernel, &["free_initmem"],       "a smaller initrd"),
    (Kind::Kernel, &["smp_init"],           "fewer vCPUs"),
    (Kind::Kernel, &["ftrace_init", "start_kernel", "rest_init", "mark_readonly"], "smaller kernel: vmeter kernel build"),
    (Kind::Initcall, CONSOLES,              "quiet, or a lower loglevel="),
    (Kind::Initcall, &[],                   "test without: initcall_blacklist="),
    (Kind::Module, &[],                     "drop it from the module list"),
    (Kind::Person, &[],                     "unlock with a key file or a TPM"),
    (Kind::Cryptsetup, &["open"],           "luksChangeKey -i: fewer PBKDF rounds"),
    (Kind::Initrd, &[""],                   ""),
    (Kind::Initrd, &["systemd"],            "a smaller initrd, fewer generators"),
    (Kind::Initrd, &[],                     SMALLER_INITRD),
    (Kind::Systemd, &["setup"],             "fewer generators and mounts"),
    (Kind::Systemd, &["start-jobs", "stop-jobs"], "systemd's own: fewer units"),
    (Kind::Systemd, &["restart-wait"],      "fix its failure, lower RestartSec="),
    (Kind::Systemd, &["load-units"],        "fewer units and generators"),
    (Kind::Unit, &["dev-"],                 "early driver, fewer devices"),
    (Kind::Unit, &["dracut-"],              "drop its hook: omit_dracutmodules"),
    (Kind::Unit, &["systemd-udev"],         "fewer devices, drivers and rules"),
    (Kind::Unit, &["serial-getty@", "getty@"], "look at its After= units"),
    (Kind::Unit, &["emergency."],           "what failed before it"),
    (Kind::Unit, &["systemd-fsck"],         "fsck.mode=skip (kernel)"),
    (Kind::Unit, &["systemd-remount-fs"],   "mount root with fstab's options"),
    (Kind::Unit, &["systemd-modules-load"], "fewer modules in modules-load.d"),
    (Kind::Unit, &["systemd-tmpfiles-"],    "fewer lines in tmpfiles.d"),
    (Kind::Unit, &["systemd-sysusers"],     "fewer lines in sysusers.d"),
    (Kind::Unit, &["systemd-sysctl"],       "fewer lines in sysctl.d"),
    (Kind::Unit, &["systemd-journal"],      "Storage=volatile in journald.conf"),
    (Kind::Unit, &[],                       "mask it, or order it later"),
    (Kind::Stop, &[],                       "its ExecStop=, or TimeoutStopSec="),
    (Kind::Program, &[],                    "this program"),
    (Kind::AfterLine, &[],                  "look for the work after this line"),
    (Kind::LinesFrom, &[],                  "fewer lines on the console"),
    (Kind::Init, &[],                       "this step of init"),
    (Kind::Shutdown, &[],                   "fewer services to stop"),
];

/// A unit of the initrd's own systemd, which no setting of the root's can mask.
const IN_INITRD: &str = "leave it out of the initrd";

/// A unit that the run ended in the midst of: it is what was waited for.
const UNFINISHED_UNIT: &str = "look at what this unit waits for";

/// A device that nobody found in its time.
const GONE_DEVICE: &str = "nofail in fstab, or add the device";

/// What can be tried on a span in a phase, if anything.
fn handle_in(phase: &str, of: Identity<'_>) -> Option<&'static str> {
    let of_root = ["dev-", "dracut-", "systemd-udev", "systemd-fsck"];
    let of_root = of_root.iter().any(|begin| of.name.starts_with(begin));
    match of.kind {
        Kind::Unit if of.unfinished => Some(UNFINISHED_UNIT),
        Kind::Unit if of.timed_out && of.name.starts_with("dev-") => Some(GONE_DEVICE),
        Kind::Unit if phase == "initrd" && !of_root => Some(IN_INITRD),
        _ => handle(of),
    }
}

/// What can be tried on a span, if anything.
fn handle(of: Identity<'_>) -> Option<&'static str> {
    let is = |name: &&str| match of.kind {
        Kind::Unit => of.name.starts_with(*name),
        _ => of.name == *name,
    };
    let fits = |names: &[&str]| names.is_empty() || names.iter().any(is);
    let row = REMEDIES.iter().find(|(kind, names, _)| *kind == of.kind && fits(names));
    row.map(|(.., what)| *what).filter(|what| !what.is_empty())
}

/// Columns of what can be tried: what an 80-column screen has beside a name of 24.
pub(super) const REMEDY_COLUMNS: u16 = 36;

/// Something that someone can act upon.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Actionable {
    /// Its name.
    pub name: String,
    /// The phase it is in.
    pub phase: String,
    /// How long the end of the boot waited for it, s.
    pub estimate: Estimate,
    /// How far off that can be, ns.
    pub error: Ns,
    /// What can be tried.
    pub remedy: &'static str,
    /// The known cause that it is, by its id.
    pub cause: Option<&'static str>,
}

/// How a thing is exported.
#[derive(Debug, Serialize)]
pub(super) struct ThingRow {
    name: String,
    phase: String,
    estimate: exported::Estimate,
    error_s: f64,
    remedy: &'static str,
    cause: Option<&'static str>,
}

impl From<Actionable> for ThingRow {
    fn from(thing: Actionable) -> Self {
        let estimate = exported::exported(&thing.estimate);
        let error_s = seconds(thing.error);
        let Actionable { name, phase, remedy, cause, .. } = thing;
        ThingRow { name, phase, estimate, error_s, remedy, cause }
    }
}

#[derive(Default)]
struct Found {
    seconds: Vec<f64>,
    error: Ns,
    remedy: &'static str,
    cause: Option<&'static str>,
}

/// What can be acted upon, the longest first: means over runs, of which one without it
/// counts as 0.
pub(super) fn things(timelines: &[&Timeline]) -> Vec<Actionable> {
    let mut found: BTreeMap<(String, String), Found> = BTreeMap::new();
    for (run, timeline) in timelines.iter().enumerate() {
        let tree = SpanTree::new(timeline);
        let known = causes(timeline);
        let caused = |id: u32| known.iter().any(|cause| cause.spans.contains(&id));
        for (phase, at) in outermost(&tree, caused) {
            let span = tree.span(at);
            // What holds others is there in pieces of its own name.
            let whole = || timeline.spans.iter().find(|s| Some(s.id) == span.parent);
            let whole = whole().filter(|whole| whole.name == span.name);
            let of = |id: u32| known.iter().find(|cause| cause.spans.contains(&id));
            let cause = of(span.id).or_else(|| of(whole?.id));
            let one = found.entry((phase.to_owned(), span.name.clone())).or_default();
            one.seconds.resize(run + 1, 0.0);
            one.seconds[run] += seconds(length(span));
            one.error = one.error.max(span.error_ns);
            let own = match handle_in(phase, span.identity()).unwrap_or_default() {
                SMALLER_INITRD => smaller_initrd(timeline).unwrap_or_default(),
                own => own,
            };
            one.remedy = cause.map_or(own, |cause| cause.remedy);
            let cause = cause.map(|cause| cause.cause).or_else(|| measured(span.identity()));
            one.cause = cause.map(|cause| cause.id);
        }
    }
    let mut things: Vec<Actionable> = found
        .into_iter()
        .map(|((phase, name), mut one)| {
            one.seconds.resize(timelines.len(), 0.0);
            let estimate = estimate(&one.seconds);
            let Found { error, remedy, cause, .. } = one;
            Actionable { name, phase, estimate, error, remedy, cause }
        })
        .collect();
    things.sort_by(|a, b| b.estimate.mean.total_cmp(&a.estimate.mean));
    things
}

/// The outermost spans with a handle, or with a known cause, and the phase that each is in.
/// Of a program that mostly is others with handles (a shell with its commands), these.
fn outermost<'t>(tree: &SpanTree<'t>, caused: impl Fn(u32) -> bool) -> Vec<(&'t str, usize)> {
    let mut found = Vec::new();
    let holders = holders_of_waits(tree);
    let mut pending: Vec<(usize, usize)> = tree.top().iter().rev().map(|at| (*at, *at)).collect();
    while let Some((at, top)) = pending.pop() {
        let whole = !holders.contains(&at);
        if whole && (caused(tree.span(at).id) || has_handle(tree, at)) {
            found.push((tree.span(top).name.as_str(), at));
        } else {
            pending.extend(tree.children(at).iter().rev().map(|child| (*child, top)));
        }
    }
    found
}

/// Spans that hold a wait that is a thing of its own.
fn holders_of_waits(tree: &SpanTree) -> BTreeSet<usize> {
    let mut holders = BTreeSet::new();
    let mut pending: Vec<(usize, Vec<usize>)> =
        tree.top().iter().map(|at| (*at, Vec::new())).collect();
    while let Some((at, above)) = pending.pop() {
        if is_wait(tree.span(at).identity()) {
            holders.extend(above);
            continue;
        }
        for child in tree.children(at) {
            pending.push((*child, above.iter().copied().chain([at]).collect()));
        }
    }
    holders
}

/// True for a span that can be acted upon as a whole.
pub(super) fn has_handle(tree: &SpanTree, at: usize) -> bool {
    handle(tree.span(at).identity()).is_some() && !is_shell(tree, at)
}

/// True for a service of an rc: its script is what can be acted upon, whatever it runs.
fn is_service(of: Identity<'_>) -> bool {
    let file = of.name.split(' ').next().filter(|_| of.kind == Kind::Program);
    let parts = file.and_then(|file| file.strip_prefix("/etc/")?.split_once('/'));
    parts.is_some_and(|(folder, script)| {
        let of_level = folder.starts_with("rc") && folder.ends_with(".d");
        (folder == "init.d" || of_level) && !script.starts_with("rc")
    })
}

/// True for a program or a phase whose parts with other names have handles and are most of it.
fn is_shell(tree: &SpanTree, at: usize) -> bool {
    let (name, of) = (&tree.span(at).name, tree.span(at).identity());
    match (of.kind, of.name) {
        // What systemd does between units may hold programs of none, and an initrd's units have
        // handles of their own.
        (Kind::Systemd, "start-jobs") | (Kind::Initrd, "units") => {
            return !tree.children(at).is_empty();
        }
        (Kind::Firmware | Kind::Vmm | Kind::Initrd | Kind::Shutdown, _) => {}
        (Kind::Program, _) if !is_service(of) => {}
        _ => return false,
    }
    let others = tree.children(at).iter().filter(|child| {
        let part = tree.span(**child);
        // The guest's part of going down is one only for what is stopped in it.
        let own = part.identity().kind == Kind::Shutdown && !is_shell(tree, **child);
        part.name != *name && handle(part.identity()).is_some() && !own
    });
    let named: Ns = others.map(|child| length(tree.span(*child))).sum();
    named * 2 > length(tree.span(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::Span;

    fn span(id: u32, parent: Option<u32>, name: &str, start: Ns, end: Ns) -> Span {
        Span { id, parent, name: name.into(), start, end, ..Span::default() }
    }

    #[test]
    fn the_handle_is_the_unit_and_not_its_program_and_not_the_shell_around_commands() {
        let timeline = Timeline {
            total: 100,
            spans: vec![
                span(0, None, "kernel:entry", 0, 10),
                span(1, None, "systemd", 10, 60),
                span(2, Some(1), "unit a.service", 12, 58),
                span(3, Some(2), "exec /bin/a", 13, 57),
                span(4, None, "userspace", 60, 100),
                span(5, Some(4), "exec /etc/rc", 60, 100),
                span(6, Some(5), "exec /bin/sleep 1", 62, 92),
            ],
            ..Timeline::default()
        };
        let names: Vec<String> = things(&[&timeline]).into_iter().map(|t| t.name).collect();
        assert_eq!(names, ["unit a.service", "exec /bin/sleep 1"]);
    }

    #[test]
    fn a_wait_for_a_person_is_a_thing_of_its_own() {
        let command = "exec /sbin/cryptsetup --type=luks open";
        let timeline = Timeline {
            total: 100,
            spans: vec![
                span(0, None, "initrd", 0, 100),
                span(1, Some(0), "exec /scripts/local-top/cryptroot", 0, 90),
                span(2, Some(1), command, 10, 80),
                span(3, Some(2), command, 10, 12),
                span(4, Some(2), "wait-for-a-person: Please unlock disk croot", 12, 30),
                span(5, Some(2), command, 30, 80),
                span(6, Some(1), "exec /bin/udevadm settle", 80, 90),
            ],
            ..Timeline::default()
        };
        let found: Vec<(String, f64)> =
            things(&[&timeline]).into_iter().map(|t| (t.name, t.estimate.mean * 1e9)).collect();
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        let wait = "wait-for-a-person: Please unlock disk croot";
        assert_eq!(names, [command, wait, "exec /bin/udevadm settle"]);
        assert!((found[0].1 - 52.0).abs() < 1e-6, "{found:?}");
        assert!(things(&[&timeline])[0].remedy.contains("PBKDF"));
    }

    #[test]
    fn what_can_be_tried_is_never_cut_on_a_screen() {
        let long = |row: &&(Kind, _, &str)| row.2.chars().count() > REMEDY_COLUMNS as usize;
        assert_eq!(REMEDIES.iter().find(long), None);
    }

    #[test]
    fn a_service_is_acted_upon_as_a_whole() {
        let is = |name| is_service(Identity::of(name));
        assert!(is("exec /etc/init.d/udev start") && is("exec /etc/rcS.d/S10net x"));
        assert!(!is("exec /etc/init.d/rcS") && !is("exec /etc/runit/1"));
    }

    #[test]
    fn nobody_is_told_to_mask_a_unit_of_the_initrd() {
        let handle_in = |phase, name| handle_in(phase, Identity::of(name));
        assert_eq!(handle_in("initrd", "unit sysroot.mount"), Some(IN_INITRD));
        assert_ne!(handle_in("initrd", "unit dracut-initqueue.service"), Some(IN_INITRD));
        let masks = |name| handle_in("systemd", name).is_some_and(|what| what.contains("mask it"));
        assert!(masks("unit cloud-init.service") && !masks("unit systemd-remount-fs.service"));
        assert!(!masks("unit systemd-udev-trigger.service"));
        assert!(!masks("unit appliance.service, unfinished"));
    }

    #[test]
    fn what_was_not_told_apart_has_no_handle() {
        assert_eq!(handle(Identity::of("vmm:init+bios:overhead")), None);
        assert!(handle(Identity::of("exec /bin/a+b")).is_some(), "a file may be called so");
    }
}
