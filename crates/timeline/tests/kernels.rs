//! Kernels of which little is seen: a record that may be anywhere names nothing, and what is known
//! all the same is told.

use crate::common;

use common::{event, record, MS, US};
use vmeter_model::{Event, EventKind, Ns, RunRecord, Span, Timeline};
use vmeter_timeline::{build, verify};

const TOTAL: Ns = 9_000 * MS;

fn run() -> RunRecord {
    record(TOTAL)
}

/// The VMM's own moments; lines of its guest's console, ms after its exec.
fn guest(lines: &[(Ns, &str)]) -> Vec<Event> {
    let mut events = vec![
        event(30 * MS, 0, "process", EventKind::VmmMain),
        event(TOTAL - MS, 0, "process", EventKind::VmmExiting),
    ];
    events.extend(lines.iter().map(|(at, text)| {
        let what = EventKind::ConsoleLine { text: (*text).into(), end: at * MS, later: Vec::new() };
        event(at * MS, 200 * US, "console", what)
    }));
    events
}

fn logged(at: Ns, error: Ns, text: &str) -> Event {
    event(
        at * MS,
        error * MS,
        "guest-printk",
        EventKind::KernelLine { text: text.into(), by_program: false },
    )
}

fn count(name: &str, value: u64) -> Event {
    event(TOTAL, 0, "guest-printk", EventKind::Count { name: name.into(), value })
}

fn reached(at: Ns, symbol: &str) -> Event {
    event(at * MS, 1_000, "tcg-plugin", EventKind::Reached { symbol: symbol.into() })
}

fn timeline(events: &[Event]) -> Timeline {
    let timeline = build(events, &run());
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

fn span<'t>(timeline: &'t Timeline, name: &str) -> Option<&'t Span> {
    timeline.spans.iter().find(|s| s.name == name)
}

/// Begin and end of the first span of a name, ms.
fn bounds(timeline: &Timeline, name: &str) -> Option<(Ns, Ns)> {
    span(timeline, name).map(|s| (s.start / MS, s.end / MS))
}

const PROGRAMS: &[(Ns, &str)] =
    &[(4_000, "rc: mounting"), (5_500, "rc: network"), (8_000, "rc: listening")];

#[test]
fn a_log_that_may_be_anywhere_names_nothing() {
    let mut events = guest(PROGRAMS);
    let texts =
        ["Linux version 6.18.2", "smp: Bringing up secondary CPUs", "Run /init as init process"];
    events.extend((0..).zip(texts).map(|(n, text)| logged(7_000 + 500 * n, 7_000, text)));
    let timeline = timeline(&events);
    assert!(span(&timeline, "/init:start").is_none(), "{:?}", timeline.spans);
    assert_eq!(bounds(&timeline, "userspace"), Some((4_000, 8_999)));
    assert_eq!(bounds(&timeline, "after: rc: mounting"), Some((4_000, 5_500)));
    assert!(!timeline.spans.iter().any(|s| s.name.starts_with("kernel:")), "{:?}", timeline.spans);
}

#[test]
fn a_kernel_without_a_known_clock_is_over_when_a_program_speaks() {
    let mut events = guest(PROGRAMS);
    events.push(count("guest_log_unplaced", 340));
    let timeline = timeline(&events);
    assert_eq!(bounds(&timeline, "userspace"), Some((4_000, 8_999)));
    let way = "vmm:init+bios:overhead+kernel:decompress+kernel:entry+userspace";
    assert_eq!(bounds(&timeline, way), Some((30, 4_000)));
    assert!(timeline.warnings.iter().any(|w| w.contains("340 records")), "{:?}", timeline.warnings);
    // Where its init is known to 60 ms, it did not begin after a program spoke.
    events.pop();
    let texts = [
        (1_000, "Linux version 6.18.2"),
        (1_800, "smp: Bringing up"),
        (4_040, "Run /init as init process"),
    ];
    events.extend(texts.map(|(at, text)| logged(at, 60, text)));
    let timeline = build(&events, &run());
    assert_eq!(bounds(&timeline, "userspace"), Some((4_000, 8_999)), "{:?}", timeline.spans);
}

#[test]
fn lines_of_a_guest_whose_kernel_was_not_seen_count() {
    let timeline = timeline(&guest(PROGRAMS));
    assert_eq!(bounds(&timeline, "guest"), Some((4_000, 8_999)));
    assert_eq!(bounds(&timeline, "after: rc: network"), Some((5_500, 8_000)));
    assert!(!timeline.spans.iter().any(|s| s.name.contains("kernel") || s.name.contains("user")));
    // What firmware, a boot loader or QEMU's monitor says is none of the guest's.
    for line in ["No bootable device.", "Booting from Hard Disk...", "Welcome to GRUB!"] {
        let mut lines = vec![(90, "SeaBIOS (version 1.16.2)"), (700, line)];
        lines.push((3_000, "what comes then"));
        let timeline = build(&guest(&lines), &run());
        assert!(span(&timeline, "guest").is_none(), "{line}");
    }
    let monitor = build(&guest(&[(40, "QEMU 9.2.0 monitor - type 'help'")]), &run());
    assert!(span(&monitor, "guest").is_none());
}

/// What a firmware hands over to need not be Linux: user space is Linux's alone.
#[test]
fn a_guest_without_a_sign_of_linux_has_no_user_space() {
    let firmware = |at, text: &str| {
        event(at * MS, MS, "firmware", EventKind::FirmwareLine { text: text.into() })
    };
    let mut events = guest(PROGRAMS);
    events.push(firmware(100, "SeaBIOS (version 1.16.2)"));
    events.push(firmware(900, "Booting from ROM..."));
    events.push(firmware(910, "Booting from cb00:0054"));
    let memory_test = timeline(&events);
    assert_eq!(bounds(&memory_test, "guest"), Some((4_000, 8_999)), "{:?}", memory_test.spans);
    assert!(!memory_test.spans.iter().any(|s| s.name.contains("userspace")));
    // The same lines after a kernel's one are programs'.
    events.push(logged(2_000, 1, "smp: Bringing up secondary CPUs"));
    assert_eq!(bounds(&timeline(&events), "userspace"), Some((4_000, 8_999)));
}

#[test]
fn a_second_boot_without_a_banner_is_no_shutdown() {
    // Both kernels find their console late, and print no more than comes then.
    let first = [
        (1_000, "[    0.910000] Run /init as init process"),
        (1_200, "app: first"),
        (2_000, "[    1.905000] reboot: machine restart"),
    ];
    let second = [
        (5_000, "[    0.870000] NET: Registered PF_INET6"),
        (5_500, "[    1.370000] Run /init as init process"),
        (5_600, "app: second"),
        (8_000, "app: ready"),
    ];
    let timeline = timeline(&guest(&[&first[..], &second].concat()));
    assert_eq!(bounds(&timeline, "reboot:userspace"), Some((5_500, 8_999)));
    assert!(span(&timeline, "shutdown").is_none_or(|s| s.len() < 100 * MS));
    assert_eq!(bounds(&timeline, "reboot+reboot:kernel"), Some((2_000, 5_500)));
    // One that is quiet is there when its programs speak.
    let quiet = timeline_of_quiet(&first, &second);
    assert_eq!(bounds(&quiet, "reboot+reboot:kernel+reboot:userspace"), Some((2_000, 5_600)));
    assert_eq!(bounds(&quiet, "reboot:userspace"), Some((5_600, 8_999)));
    // The last line of a kernel, and what a wrapper says once its VMM is gone, are no second one.
    let mut events = guest(&first);
    events[1].at = 2_030 * MS;
    let what = EventKind::ConsoleLine { text: "done".into(), end: 2_900 * MS, later: Vec::new() };
    events.push(event(2_900 * MS, 200 * US, "console", what));
    let ended = build(&events, &run());
    assert!(!ended.spans.iter().any(|s| s.name.starts_with("reboot")), "{:?}", ended.spans);
}

fn timeline_of_quiet(first: &[(Ns, &str)], second: &[(Ns, &str)]) -> Timeline {
    let silent = second.iter().filter(|(_, text)| !text.starts_with('['));
    timeline(&guest(&first.iter().chain(silent).copied().collect::<Vec<_>>()))
}

#[test]
fn a_part_whose_end_is_not_known_is_not_drawn() {
    // The clock lost 500 ms somewhere after it began to count ticks.
    let log = [
        (1_000, 5, "Linux version 6.1.0"),
        (1_100, 5, "Console: colour dummy device 80x25"),
        (1_110, 5, "Calibrating delay loop (skipped), value calculated using timer frequency.. 4000 BogoMIPS"),
        (1_361, 250, "Mount-cache hash table entries: 512"),
        (1_370, 250, "smpboot: CPU0: QEMU Virtual CPU"),
        (1_400, 250, "smp: Bringing up secondary CPUs ..."),
        (3_000, 0, "Freeing unused kernel image (initmem) memory: 2660K"),
        (3_100, 0, "Run /init as init process"),
    ];
    let mut events = guest(PROGRAMS);
    events.extend(log.iter().map(|(at, error, text)| logged(*at, *error, text)));
    let timeline = timeline(&events);
    assert_eq!(bounds(&timeline, "kernel:console_init"), Some((1_100, 1_110)));
    for name in ["kernel:calibrate_delay", "kernel:start_kernel", "kernel:rest_init"] {
        assert!(span(&timeline, name).is_none(), "{name}: {:?}", timeline.spans);
    }
    // A calibration that was made and is known is there.
    for event in &mut events {
        event.error_ns = event.error_ns.min(MS);
        if let EventKind::KernelLine { text, .. } = &mut event.what {
            *text = text.replace(" (skipped), value calculated using timer frequency", ".");
        }
    }
    assert_eq!(bounds(&build(&events, &run()), "kernel:calibrate_delay"), Some((1_110, 1_361)));
}

#[test]
fn the_first_functions_of_a_kernel_name_no_more_than_themselves() {
    let mut events =
        guest(&[(4_000, "[    2.9] Run"), (4_100, "[    2.900000] Run /init as init process")]);
    let path = ["pvh_start_xen", "startup_64", "x86_64_start_kernel", "start_kernel"];
    events.extend((0..).zip(path).map(|(n, symbol)| reached(500 + 10 * n, symbol)));
    let kernel = "kernel:entry+kernel:initcalls-before-userspace";
    let all = timeline(&events);
    assert_eq!(bounds(&all, kernel), Some((500, 4_100)));
    assert_eq!(bounds(&all, "kernel:startup_64"), Some((510, 520)));
    assert!(span(&all, "kernel:start_kernel").is_none(), "{:?}", all.spans);
    events.truncate(events.len() - 3);
    let entered = timeline(&events);
    assert_eq!(bounds(&entered, kernel), Some((500, 4_100)));
    assert!(span(&entered, "kernel:pvh_start_xen").is_none(), "{:?}", entered.spans);
}

#[test]
fn stamps_of_a_late_console_tell_when_the_kernel_began() {
    let late = [
        (1_410, "[    0.900000] loop: module loaded"),
        (
            1_500,
            "[    0.995000] sched_clock: Marking stable (990000000, 1)->(1190000000, -200000000)",
        ),
        (2_000, "[    1.495000] Run /init as init process"),
        (2_100, "app: starting"),
    ];
    let timeline = timeline(&guest(&late));
    // The least late line, less the time that the clock had lost.
    let kernel = "kernel:entry+kernel:initcalls-before-userspace";
    assert_eq!(bounds(&timeline, kernel), Some((305, 2_000)), "{:?}", timeline.spans);
    let way = "vmm:init+bios:overhead+kernel:decompress+kernel:entry";
    assert_eq!(bounds(&timeline, way), Some((30, 305)));
}

#[test]
fn records_that_were_overwritten_are_the_reason() {
    let mut events = guest(&[]);
    events.push(reached(500, "start_kernel"));
    let said = |events: &[Event], run: &RunRecord| build(events, run).warnings.join("\n");
    assert!(said(&events, &run()).contains("To trace its initcalls"));
    let mut told = run();
    told.injected = vec!["kernel: quiet trace_event=initcall:*".into()];
    let without = said(&events, &told);
    assert!(
        without.contains("CONFIG_FTRACE") && !without.contains("To trace its initcalls"),
        "{without}"
    );
    let lost = EventKind::Count { name: "guest_trace_lost".into(), value: 900 };
    events.push(event(TOTAL, 0, "guest-ftrace", lost));
    events.push(count("guest_log_lost", 27_000));
    events.push(count("guest_log_bytes_wanted", 1 << 25));
    let overwritten = said(&events, &told);
    for words in ["900 earlier records", "27000", "trace_buf_size=8M", "log_buf_len=32M"] {
        assert!(overwritten.contains(words), "{words}: {overwritten}");
    }
    assert!(!overwritten.contains("CONFIG_FTRACE"), "{overwritten}");
}

#[test]
fn what_a_program_writes_into_the_log_is_no_word_of_the_kernel() {
    let lines = [
        (1_000, "[    0.500000] printk: console [ttyS0] enabled"),
        (2_000, "[    1.500000] Run /init as init process"),
        (3_000, "[    2.500000] calling  evil_init+0x0/0x10 @ 1"),
        (3_500, "[    3.000000] initcall evil_init+0x0/0x10 returned 0 after 500000 usecs"),
        (4_000, "[    3.500000] reboot: Power down"),
    ];
    let mut events = guest(&lines);
    for (at, line) in lines {
        let (_, text) = line.split_once("] ").expect("a stamp");
        let mut record = logged(at, 1, text);
        if let EventKind::KernelLine { by_program, .. } = &mut record.what {
            *by_program = at >= 3_000;
        }
        events.push(record);
    }
    events.sort_by_key(|event| event.at);
    let found = timeline(&events);
    assert!(span(&found, "initcall evil_init").is_none(), "{:?}", found.spans);
    assert!(span(&found, "shutdown").is_none_or(|s| s.start > 4_000 * MS), "{:?}", found.spans);
    for event in &mut events {
        if let EventKind::KernelLine { by_program, .. } = &mut event.what {
            *by_program = false;
        }
    }
    assert!(span(&timeline(&events), "initcall evil_init").is_some());
}

#[test]
fn the_unpacking_that_the_guests_pages_show_cuts_the_time_that_nobody_saw() {
    let mut events = guest(&[]);
    let record = |at, text: &str| logged(at, 5, text);
    events.push(record(3_000, "Linux version 6.1.0"));
    events.push(record(5_000, "Run /init as init process"));
    let whole = "vmm:init+bios:overhead+kernel:decompress";
    assert_eq!(bounds(&timeline(&events), whole), Some((30, 3_000)));
    events.push(reached(1_200, "unpacking"));
    events.push(reached(1_500, "unpacked"));
    events.sort_by_key(|event| event.at);
    let found = timeline(&events);
    assert_eq!(bounds(&found, whole), Some((30, 1_200)), "{:?}", found.spans);
    assert_eq!(bounds(&found, "kernel:decompress"), Some((1_200, 1_500)));
    let named: Vec<_> = found.spans.iter().filter(|s| s.start == 1_500 * MS).collect();
    assert!(
        named.iter().all(|s| s.name == "kernel:decompress" && s.end == 3_000 * MS),
        "{named:?}"
    );
    // Out of every such span it cuts nothing.
    let inside = [reached(3_500, "unpacking"), reached(3_600, "unpacked")];
    let events: Vec<Event> = events
        .into_iter()
        .filter(|e| !matches!(e.what, EventKind::Reached { .. }))
        .chain(inside)
        .collect();
    assert!(span(&timeline(&events), "kernel:decompress").is_none());
}

/// Of a late console: where the kernel began is known to two seconds, and its firmware ends there. Firmware that
/// selects an item of fw_cfg 10 ms after its start.
fn with_a_late_console(item: u32) -> Timeline {
    let what = EventKind::FwCfg { item, bytes: 4 };
    let fw_cfg = event(60 * MS, 1_000, "qemu-trace", what);
    let reset =
        event(50 * MS, 1_000, "qemu-trace", EventKind::RunState { state: "running".into() });
    let late = [
        (1_410, "[    1.300000] loop: module loaded"),
        (2_000, "[    1.895000] Run /init as init process"),
        (2_100, "app: starting"),
    ];
    let mut events = guest(&late);
    events.extend([reset, fw_cfg]);
    events.sort_by_key(|event| event.at);
    timeline(&events)
}

#[test]
fn an_end_that_is_off_by_more_than_the_span_is_no_end() {
    let found = with_a_late_console(0x19);
    let firmware = |s: &Span| s.name == "bios:overhead" && s.end > 60 * MS;
    assert!(!found.spans.iter().any(firmware), "{:?}", found.spans);
    let shared =
        |s: &Span| s.name == "bios:overhead+kernel:decompress+kernel:entry" && s.end > 60 * MS;
    assert!(found.spans.iter().any(shared), "{:?}", found.spans);
}

#[test]
fn firmware_jumps_to_the_entry_that_it_asked_for() {
    let found = with_a_late_console(0x10);
    assert_eq!(bounds(&found, "bios:overhead"), Some((50, 60)), "{:?}", found.spans);
    let kernel = "kernel:entry+kernel:initcalls-before-userspace";
    assert_eq!(bounds(&found, kernel), Some((60, 2_000)), "{:?}", found.spans);
}

#[test]
fn a_loader_that_speaks_is_there_though_no_firmware_did() {
    let reset =
        event(50 * MS, 1_000, "vmm-threads", EventKind::RunState { state: "running".into() });
    let lines = [
        (460, "GNU GRUB  version 2.06"),
        (1_160, "   The highlighted entry will be executed automatically in 3s."),
        (4_230, "  Booting `Debian'"),
        (4_260, "Loading Linux 6.1 ..."),
        (5_270, "Loading initial ramdisk ..."),
        (7_000, "[    0.000000] Linux version 6.1.0"),
        (7_500, "[    0.600000] printk: console [ttyS0] enabled"),
        (8_000, "[    1.100000] Run /init as init process"),
    ];
    let mut events = guest(&lines);
    events.push(reset);
    events.sort_by_key(|event| event.at);
    let found = timeline(&events);
    assert_eq!(bounds(&found, "bios:overhead+boot-loader"), Some((50, 460)), "{:?}", found.spans);
    assert_eq!(bounds(&found, "grub:load-kernel"), Some((4_260, 5_270)), "{:?}", found.spans);
}

/// An entry whose commands say nothing: the count is over when GRUB says which one it boots.
#[test]
fn grubs_timeout_ends_where_it_boots_an_entry() {
    let lines = [
        (460, "GNU GRUB  version 2.06"),
        (1_160, "   The highlighted entry will be executed automatically in 3s."),
        (4_230, "  Booting `Alpine'"),
        (7_000, "[    0.000000] Linux version 6.1.0"),
        (7_500, "[    0.600000] printk: console [ttyS0] enabled"),
        (8_000, "[    1.100000] Run /init as init process"),
    ];
    let mut events = guest(&lines);
    events.push(event(
        50 * MS,
        1_000,
        "vmm-threads",
        EventKind::RunState { state: "running".into() },
    ));
    events.sort_by_key(|event| event.at);
    let found = timeline(&events);
    assert_eq!(bounds(&found, "grub:timeout"), Some((1_160, 4_230)), "{:?}", found.spans);
}

#[test]
fn what_a_kernel_lacks_is_said_where_it_would_have_told_more() {
    let lacks = |events: &[Event], word: &str| {
        timeline(events).warnings.iter().filter(|said| said.contains(word)).count()
    };
    let said = |call: [&str; 2], error: Ns| {
        let mut events = guest(PROGRAMS);
        events.push(logged(1_000, error, "Linux version 6.12.113"));
        events.extend((0..).zip(call).map(|(n, text)| logged(1_500 + n, error, text)));
        events.push(logged(2_000, error, "Run /init as init process"));
        events
    };
    let named =
        ["calling  a_init+0x0/0x10 @ 1", "initcall a_init+0x0/0x10 returned 0 after 900 usecs"];
    let by_address = [
        "calling  0xffffffff82000010 @ 1",
        "initcall 0xffffffff82000010 returned 0 after 900 usecs",
    ];
    let all = ["data", "types", "events"].map(|of| count(&format!("guest_kernel_lacks_{of}"), 1));
    for (events, lines) in [
        (said(named, 0), [0, 0, 0]),
        (said(named, 2), [0, 0, 1]),
        (said(by_address, 0), [1, 0, 0]),
        (said(["PCI: Using", "clocksource: tsc"], 0), [0, 1, 0]),
    ] {
        let words = [
            "To see their names",
            "`quiet initcall_debug log_buf_len=512K` on its",
            "off by 2.0 ms",
        ];
        let found = |events: &[Event]| words.map(|word| lacks(events, word));
        // What a kernel has it need not be told to have.
        let whole = found(&events);
        assert_eq!((whole[1], whole[2]), (0, 0));
        assert_eq!(found(&[&events[..], &all].concat()), lines);
    }
}
