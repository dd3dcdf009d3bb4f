//! What runs before a kernel's first line: it is Linux's from evidence of Linux alone, and where its own
//! code began is known from what wrote the guest's RAM, or not at all.

use crate::common;

use common::{event, record, MS, US};
use vmeter_model::{Event, EventKind, Ns, Timeline};
use vmeter_timeline::{build, verify};

const TOTAL: Ns = 12_000 * MS;

/// QEMU, whose vCPU begins at 50 ms, its ROM's load from 100 to 150 ms, and lines of the console.
fn direct(lines: &[(Ns, &str)]) -> Vec<Event> {
    let vmm = |at: Ns, what| event(at, 0, "process", what);
    let fw_cfg =
        |at: Ns, item| event(at * MS, US, "qemu-trace", EventKind::FwCfg { item, bytes: 4 });
    let state = EventKind::RunState { state: "running".into() };
    let mut events = vec![
        vmm(30 * MS, EventKind::VmmMain),
        event(50 * MS, US, "qemu-trace", state),
        fw_cfg(100, 0x17),
        fw_cfg(150, 0x11),
        vmm(TOTAL - MS, EventKind::VmmExiting),
    ];
    events.extend(lines.iter().map(|(at, text)| {
        let what = EventKind::ConsoleLine { text: (*text).into(), end: at * MS, later: Vec::new() };
        event(at * MS, 200 * US, "console", what)
    }));
    events.sort_by_key(|event| event.at);
    events
}

fn reached(at: Ns, error: Ns, symbol: &str) -> Event {
    event(at * MS, error * MS, "guest-pages", EventKind::Reached { symbol: symbol.into() })
}

fn timeline(events: &[Event]) -> Timeline {
    let timeline = build(events, &record(TOTAL));
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

/// Name, begin and end (ms) of the phases.
fn phases(timeline: &Timeline) -> Vec<(&str, Ns, Ns)> {
    let tops = timeline.spans.iter().filter(|span| span.parent.is_none());
    tops.map(|span| (span.name.as_str(), span.start / MS, span.end / MS)).collect()
}

const KERNEL: &[(Ns, &str)] = &[
    (5_000, "[    0.000000] Linux version 6.1.0"),
    (5_010, "[    0.000000] printk: bootconsole [earlyser0] enabled"),
    (6_000, "[    1.000000] smp: Bringing up secondary CPUs ..."),
    (8_000, "[    3.000000] Run /init as init process"),
    (8_100, "app: starting"),
];

#[test]
fn a_hypervisor_is_no_kernel() {
    let xen = [
        (300, "(XEN) Xen version 4.17.7"),
        (2_000, "(XEN) Dom0 has maximum 1 VCPUs"),
        (4_900, "(XEN) Freed 656kB init memory"),
    ];
    let found = timeline(&direct(&[&xen, KERNEL].concat()));
    let names = phases(&found);
    assert!(names.contains(&("hypervisor", 150, 5_000)), "{names:?}");
    assert!(!names.iter().any(|(name, ..)| name.contains("decompress")), "{names:?}");
    let entry = found.spans.iter().find(|s| s.name == "kernel:entry").expect("an entry");
    assert_eq!((entry.start / MS, entry.error_ns / MS), (5_000, 100), "not before Xen's last word");
}

#[test]
fn who_speaks_before_a_kernel_is_not_called_linux() {
    let other = [(600, "FooVisor 1.0"), (900, "cpu: 1 found"), (3_000, "starting guest 0")];
    let found = timeline(&direct(&[&other, KERNEL].concat()));
    let early: Vec<_> = phases(&found).into_iter().filter(|(_, at, _)| *at < 3_000).collect();
    let linux = |(name, ..): &(&str, Ns, Ns)| name.starts_with("kernel:") && *name != "kernel:load";
    assert!(!early.iter().any(linux), "{early:?}");
    // Linux's own image says something, too, and programs do long after.
    let own = [
        (200, "Probing EDD (edd=off to disable)... ok"),
        (300, "Decompressing Linux..."),
        (900, "Booting the kernel."),
    ];
    let found = timeline(&direct(&[&own, KERNEL].concat()));
    assert!(phases(&found).iter().any(|(name, ..)| name.starts_with("kernel:decompress")));
    let quiet = [
        (900, "app: a"),
        (950, "app: b"),
        (990, "app: c"),
        (9_000, "[    8.100000] random: crng init done"),
    ];
    let found = timeline(&direct(&quiet));
    assert!(phases(&found).contains(&("userspace", 900, 11_999)), "{:?}", phases(&found));
}

/// The kernel's clock counts no time before it starts: until then, decompressor and kernel share what
/// is not known to be the one's.
#[test]
fn a_clock_that_starts_late_tells_what_it_does_not_know() {
    let found = timeline(&direct(KERNEL));
    let names = phases(&found);
    let (_, since, to) =
        *names.iter().find(|n| n.0 == "kernel:decompress+kernel:entry").expect("shared");
    assert!(since >= 2_000 && to == 5_000, "{names:?}");
    assert!(names.contains(&("kernel:decompress", 150, since)), "{names:?}");
    let entry = found.spans.iter().find(|s| s.name == "kernel:entry").expect("an entry");
    assert_eq!(entry.error_ns / MS, 5_000 - since, "it may have begun as early");
    // The guest's RAM knows it.
    let mut events = direct(KERNEL);
    events.extend([reached(210, 10, "image-moving"), reached(4_000, 10, "kernel-started")]);
    events.sort_by_key(|event| event.at);
    let found = timeline(&events);
    let names = phases(&found);
    let all = [("kernel:decompress", 210, 3_990), ("kernel:entry", 3_990, 6_000)];
    assert!(all.iter().all(|phase| names.contains(phase)), "{names:?}");
    assert!(!names.iter().any(|(name, ..)| name.contains('+')), "{names:?}");
}

/// What a loader moves through memory is its own time, up to the image's first move.
#[test]
fn a_loader_ends_where_the_image_moves_itself() {
    let grub = [(300, "GRUB loading."), (400, "Welcome to GRUB!"), (900, "  Booting `Debian'")];
    let mut events = direct(&[&grub, KERNEL].concat());
    events.retain(|event| !matches!(event.what, EventKind::FwCfg { .. }));
    events.extend([reached(3_500, 10, "image-moving"), reached(4_000, 10, "kernel-started")]);
    events.sort_by_key(|event| event.at);
    let names = timeline(&events);
    let names = phases(&names);
    assert!(names.contains(&("boot-loader", 300, 3_500)), "{names:?}");
    assert!(names.contains(&("kernel:decompress", 3_500, 3_990)), "{names:?}");
}
