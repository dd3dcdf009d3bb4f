//! Guests to which nothing was added: what SeaBIOS shows on the console, and when the VMM's threads
//! were seen to begin, tell the VMM, firmware, boot loader and kernel apart. Lines of real guests.

use crate::common;

use common::{event, record, MS, US};
use vmeter_model::{Event, EventKind, Ns, Timeline};
use vmeter_timeline::{build, verify};

const POST: &[(Ns, &str)] = &[
    (107, "SeaBIOS (version 1.16.2-debian-1.16.2-1)"),
    (127, "iPXE (http://ipxe.org) 00:03.0 CA00 PCI2.10 PnP PMM+0EFCF160+0EF0F160 CA00"),
    (137, "Press Ctrl-B to configure iPXE (PCI 00:03.0)..."),
];
const TO_ROM: (Ns, &str) = (144, "Booting from ROM...");
const TO_DISK: (Ns, &str) = (144, "Booting from Hard Disk...");
const KERNEL: &[(Ns, &str)] = &[
    (1_300, "[    0.000000] Linux version 6.1.0-50-cloud-amd64"),
    (1_301, "[    0.300000] printk: console [ttyS0] enabled"),
    (1_900, "[    0.900000] Run /init as init process"),
    (1_950, "app: starting"),
];

/// The boot whose vCPU's thread was seen to begin at 60 ms, or not.
fn boot(lines: &[&[(Ns, &str)]], seen: bool) -> Timeline {
    boot_with(lines, seen, Vec::new())
}

fn boot_with(lines: &[&[(Ns, &str)]], seen: bool, more: Vec<Event>) -> Timeline {
    let line = |(at, text): &(Ns, &str)| {
        let what = EventKind::ConsoleLine { text: (*text).into(), end: at * MS, later: Vec::new() };
        event(at * MS, 200 * US, "console", what)
    };
    let mut events: Vec<Event> = lines.concat().iter().map(line).collect();
    events.extend(more);
    events.push(event(25 * MS, 0, "process", EventKind::VmmMain));
    let running = EventKind::RunState { state: "running".into() };
    events.extend(seen.then(|| event(60 * MS, 2 * MS, "vmm-threads", running)));
    let timeline = build(&events, &record(2_000 * MS));
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

/// Begin and end of the first top-level span of a name, ms.
fn phase(timeline: &Timeline, name: &str) -> Option<(Ns, Ns)> {
    let span = timeline.spans.iter().find(|s| s.parent.is_none() && s.name == name)?;
    Some((span.start / MS, span.end / MS))
}

#[test]
fn firmware_ends_where_it_says_that_it_goes_on_to_the_kernel() {
    let timeline = boot(&[POST, &[TO_ROM], KERNEL], true);
    assert_eq!(phase(&timeline, "vmm:init"), Some((25, 60)));
    assert_eq!(phase(&timeline, "bios:overhead"), Some((60, 144)));
    let image = phase(&timeline, "kernel:load+kernel:decompress+kernel:entry").expect("its image");
    assert_eq!(image.0, 144);
    let first = phase(&timeline, "kernel:entry+kernel:initcalls-before-userspace");
    assert_eq!(Some(image.1), first.map(|kernel| kernel.0));
}

#[test]
fn where_nobody_saw_the_vcpu_begin_firmware_begins_with_its_first_line() {
    let timeline = boot(&[POST, &[TO_ROM], KERNEL], false);
    assert_eq!(phase(&timeline, "vmm:init"), None);
    assert_eq!(phase(&timeline, "vmm:init+bios:overhead"), Some((25, 107)));
    assert_eq!(phase(&timeline, "bios:overhead"), Some((107, 144)));
}

#[test]
fn a_disk_that_a_bios_enters_holds_a_boot_loader() {
    let grub = [(230, "Welcome to GRUB!"), (700, "Loading Linux ...")];
    let timeline = boot(&[POST, &[TO_DISK], &grub, KERNEL], true);
    assert_eq!(phase(&timeline, "bios:overhead"), Some((60, 144)));
    let loader = phase(&timeline, "boot-loader").expect("a loader");
    assert_eq!(loader.0, 144);
    let error = timeline.spans.iter().find(|s| s.name == "boot-loader").expect("it").error_ns;
    assert!(error < 50 * MS, "{error}");
}

#[test]
fn what_firmware_came_back_from_is_no_hand_over() {
    let lines: &[(Ns, &str)] =
        &[(160, "Boot failed: not a bootable disk"), (170, "No bootable device.")];
    let timeline = boot(&[POST, &[TO_DISK], lines], true);
    assert_eq!(phase(&timeline, "bios:overhead"), Some((60, 170)));
    assert_eq!(phase(&timeline, "boot-loader"), None);
}

#[test]
fn a_loader_is_at_work_as_long_as_the_vmm_reads_for_it() {
    let grub = [(230, "Welcome to GRUB!"), (700, "Loading Linux ...")];
    let mut timelines = [false, true].map(|reads| {
        let line = |(at, text): &(Ns, &str)| {
            let what =
                EventKind::ConsoleLine { text: (*text).into(), end: at * MS, later: Vec::new() };
            event(at * MS, 200 * US, "console", what)
        };
        let lines = [POST, &[TO_DISK], &grub, KERNEL].concat();
        let mut events: Vec<Event> = lines.iter().map(line).collect();
        let read = event(820 * MS, 10 * MS, "vmm-threads", EventKind::VmmRead { bytes: 1 << 20 });
        events.extend(reads.then_some(read));
        build(&events, &record(2_000 * MS))
    });
    let [without, with] = timelines.each_mut().map(|t| phase(t, "boot-loader").expect("it").1);
    assert_eq!((without, with), (700, 810));
}

#[test]
fn a_line_that_is_drawn_and_says_nothing_names_no_time() {
    let drawn: &[(Ns, &str)] = &[(1_955, "\u{2500}\u{2500} | \u{2500}")];
    // The time after a program that ran meanwhile is the gap.
    let of = |at: Ns, what| event(at * MS, 0, "guest-ftrace", what);
    let ran = vec![
        of(1_900, EventKind::ProcessExec { pid: 1, file: "/init".into() }),
        of(1_958, EventKind::ProcessFork { pid: 7, parent: 1, thread: false }),
        of(1_959, EventKind::ProcessExec { pid: 7, file: "/bin/md5sum".into() }),
        of(1_970, EventKind::ProcessExit { pid: 7, comm: "md5sum".into() }),
    ];
    let timeline = boot_with(&[POST, &[TO_ROM], KERNEL, drawn], true, ran);
    let after = timeline.spans.iter().filter_map(|s| s.name.strip_prefix("after: "));
    let after: Vec<&str> = after.collect();
    assert!(after.contains(&"app: starting"), "{after:?}");
    assert!(after.iter().all(|name| name.chars().any(char::is_alphanumeric)), "{after:?}");
}
