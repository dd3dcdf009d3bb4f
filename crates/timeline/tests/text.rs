//! Real text: SeaBIOS's log, the console of a boot with `initcall_debug`.

use crate::common;

use common::{event, record, MS, US};
use vmeter_model::{Event, EventKind, Ns, Timeline};
use vmeter_timeline::{build, verify};

/// A fixture's lines: ns after exec, text.
fn lines(text: &str) -> Vec<(Ns, String)> {
    text.lines()
        .filter_map(|line| {
            let (seconds, text) = line.split_once(' ')?;
            let (whole, micros) = seconds.split_once('.')?;
            let at = whole.parse::<Ns>().ok()? * 1_000 * MS + micros.parse::<Ns>().ok()? * US;
            Some((at, text.to_owned()))
        })
        .collect()
}

fn firmware(text: &str, total: Ns) -> Timeline {
    let mut events: Vec<Event> = lines(text)
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(at, text)| event(at, 200 * US, "firmware", EventKind::FirmwareLine { text }))
        .collect();
    let state = "running".to_owned();
    events.push(event(30 * MS, 0, "qemu-trace", EventKind::RunState { state }));
    checked(&events, total)
}

fn checked(events: &[Event], total: Ns) -> Timeline {
    let timeline = build(events, &record(total));
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

fn parts(timeline: &Timeline) -> Vec<(&str, Ns)> {
    let firmware = timeline.spans.iter().find(|s| s.name == "bios:overhead").map(|s| s.id);
    let parts = timeline.spans.iter().filter(|s| s.parent.is_some() && s.parent == firmware);
    parts.map(|s| (s.name.as_str(), s.len() / MS)).collect()
}

#[test]
fn the_wait_of_the_boot_menu_is_a_part_of_its_own() {
    let text = include_str!("fixtures/seabios-pc-boot-menu.txt");
    let timeline = firmware(text, 4_000 * MS);
    let names: Vec<&str> = parts(&timeline).iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "bios:start",
            "bios:platform",
            "bios:pci-probe",
            "bios:pci-allocate",
            "bios:pci-init",
            "bios:cpus-and-tables",
            "bios:acpi",
            "bios:vga",
            "bios:devices",
            "bios:option-roms",
            "bios:boot-menu-wait",
            "bios:prepare-boot",
            "bios:boot",
        ]
    );
    let wait = parts(&timeline)[10].1;
    assert!((1_500..1_600).contains(&wait), "splash-time=1500, found {wait} ms");
    // What came after "Booting from" is not the firmware's to claim.
    let open = timeline.phases.iter().find(|(name, _)| name == "unattributed");
    assert!(open.is_some_and(|(_, ns)| *ns > 2_000 * MS));
}

#[test]
fn a_disk_that_does_not_boot_is_said() {
    let text = include_str!("fixtures/seabios-q35-devices.txt");
    let timeline = firmware(text, 2_000 * MS);
    let names: Vec<&str> = parts(&timeline).iter().map(|(name, _)| *name).collect();
    for name in ["bios:boot", "bios:boot-failed", "bios:boot-menu-wait", "bios:devices"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
}

fn console() -> Vec<Event> {
    let lines = lines(include_str!("fixtures/console-initcall-debug.txt"));
    let line = |(at, text): (Ns, String)| {
        let end = at + 50 * US;
        event(at, 200 * US, "console", EventKind::ConsoleLine { text, end, later: Vec::new() })
    };
    lines.into_iter().map(line).collect()
}

#[test]
fn a_console_with_initcall_debug_gives_the_initcalls() {
    let events = console();
    let called = events.iter().filter(|e| says(e, "] calling  ")).count();
    let timeline = checked(&events, 1_700 * MS);
    let calls = timeline.spans.iter().filter(|s| s.name.starts_with("initcall ")).count();
    assert_eq!((calls, timeline.overlapping.len()), (called, 0), "{:?}", timeline.overlapping);
    let phase = |name: &str| timeline.spans.iter().find(|s| s.name == name);
    let entry = phase("kernel:entry").unwrap();
    // The console came up late: the kernel's own stamps say when it began.
    assert!(entry.start < 1_059 * MS && entry.start > 700 * MS, "{entry:?}");
    assert!(phase("kernel:initcalls-before-userspace").is_some());
    assert!(phase("kernel:smp_init").is_some());
}

fn says(event: &Event, words: &str) -> bool {
    matches!(&event.what, EventKind::ConsoleLine { text, .. } if text.contains(words))
}

#[test]
fn a_console_that_repeats_ftrace_changes_nothing() {
    let boot = common::Boot::standard();
    let before = boot.timeline();
    let mut both = common::Boot::standard();
    for e in &boot.events {
        let (text, late) = match &e.what {
            EventKind::InitcallStart { function, module, pid } => {
                let module = module.as_ref().map_or(String::new(), |m| format!(" [{m}]"));
                (format!("calling  {function}+0x0/0x10{module} @ {}", pid.unwrap_or(1)), -20 * US)
            }
            EventKind::InitcallEnd { function, .. } => {
                (format!("initcall {function}+0x0/0x10 returned 0 after 1000 usecs"), 20 * US)
            }
            _ => continue,
        };
        let at = e.at + late;
        let what = EventKind::ConsoleLine { text, end: at + 5 * US, later: Vec::new() };
        both.events.push(event(at, 200 * US, "console", what));
    }
    let after = both.timeline();
    common::assert_same(&before.spans, &after.spans);
    common::assert_same(&before.overlapping, &after.overlapping);
}

/// Lines of a console, at these ms.
fn printed(lines: &[(Ns, &str)]) -> Vec<Event> {
    let line = |(at, text): &(Ns, &str)| {
        let (text, end, later) = ((*text).to_owned(), (at + 1) * MS, Vec::new());
        event(at * MS, 200 * US, "console", EventKind::ConsoleLine { text, end, later })
    };
    lines.iter().map(line).collect()
}

/// Top-level phase, or part, of a name: begin and end, ms.
fn spans(timeline: &Timeline, name: &str) -> Vec<(Ns, Ns)> {
    let own = timeline.spans.iter().filter(|s| s.name == name);
    own.map(|s| (s.start / MS, s.end / MS)).collect()
}

#[test]
fn a_menu_ends_when_it_is_taken_from_the_screen() {
    let mut events = printed(&[
        (35_189, r#"BdsDxe: starting Boot0002 "UEFI Misc Device""#),
        (35_575, "Boot in 2 s."),
        (36_599, "Boot in 1 s."),
        (45_208, "[    0.000000] Linux version 6.1.0"),
    ]);
    let state = "running".to_owned();
    events.push(event(30 * MS, 0, "qemu-trace", EventKind::RunState { state }));
    // It reads its kernel for a while before it reads much of it.
    for block in 0..100 {
        let (disk, offset, bytes) = (1, block * 65_536, 65_536);
        let what = EventKind::DiskRead { disk, offset, bytes };
        events.push(event((40_952 + block as Ns) * MS, 0, "qemu-trace", what));
    }
    let menu = |events: &[Event]| spans(&checked(events, 50_000 * MS), "systemd-boot:menu");
    assert_eq!(menu(&events), [(35_575, 40_952)]);
    // It clears the screen before it draws, too.
    for at in [35_548, 39_753] {
        events.push(event(at * MS, 200 * US, "console", EventKind::ScreenCleared));
    }
    assert_eq!(menu(&events), [(35_575, 39_753)]);
    let timeline = checked(&events, 50_000 * MS);
    assert_eq!(spans(&timeline, "systemd-boot:load"), [(39_753, 40_952)]);
    // Without disk reads, nobody knows more than that.
    events.retain(|e| e.source != "qemu-trace");
    assert_eq!(menu(&events), [(35_575, 39_753)]);
}

#[test]
fn rest_init_begins_after_all_of_start_kernel() {
    let lines = |alternatives: Ns| {
        let stamp =
            |at: Ns, text: &str| format!("[{:5}.{:06}] {text}", at / 1_000, at % 1_000 * 1_000);
        let mut lines: Vec<(Ns, String)> = [
            (1_000, "Linux version 6.1.192"),
            (1_010, "printk: console [ttyS0] enabled"),
            (4_500, "Spectre V1 : Mitigation"),
            (alternatives, "Freeing SMP alternatives memory: 36K"),
            (5_571, "Mount-cache hash table entries: 512 (order: 0, 4096 bytes, linear)"),
            (5_842, "smpboot: CPU0: AMD QEMU Virtual CPU version 2.5+"),
            (5_900, "smp: Bringing up secondary CPUs ..."),
        ]
        .map(|(at, text)| (at, stamp(at, text)))
        .into();
        lines.sort();
        let lines: Vec<(Ns, &str)> = lines.iter().map(|(at, text)| (*at, text.as_str())).collect();
        checked(&printed(&lines), 8_000 * MS)
    };
    let early = lines(5_485);
    assert_eq!(spans(&early, "kernel:start_kernel"), [(5_485, 5_571)]);
    assert_eq!(spans(&early, "kernel:start_kernel+kernel:rest_init"), [(5_571, 5_842)]);
    assert_eq!(spans(&early, "kernel:rest_init"), [(5_842, 5_900)]);
    let last = lines(5_700);
    assert_eq!(spans(&last, "kernel:start_kernel"), [(5_571, 5_700)]);
    assert_eq!(spans(&last, "kernel:rest_init"), [(5_700, 5_900)]);
}

#[test]
fn a_clock_that_lost_time_is_said() {
    let warned = |last: Ns| {
        let events = printed(&[
            (1_000, "[    0.500000] printk: console [ttyS0] enabled"),
            (6_000, "[    3.500000] clocksource: Switched to clocksource tsc-early"),
            (last, "[    8.500000] Run /init as init process"),
            (20_000, "[   12.500000] random: crng init done"),
        ]);
        let timeline = checked(&events, 25_000 * MS);
        let lost = timeline.warnings.iter().find(|w| w.contains("the guest's clock lost"));
        lost.map(|w| w.split(" up to").next().unwrap_or_default().to_owned())
    };
    let said = "the guest's clock lost 2.000 s of the 10.000 s";
    assert_eq!(warned(11_000).as_deref(), Some(said));
    assert_eq!(warned(9_200), None, "200 ms are what arrivals are late by");
}

#[test]
fn progress_is_one_thing_however_it_is_shown() {
    let mut events = printed(&[
        (1_000, "[    0.000000] Linux version 6.1.0"),
        (2_000, "[    1.000000] Run /init as init process"),
        (2_300, "one: begins"),
        (2_301, "two: goes on"),
        (7_102, "four: dots come unevenly"),
        (10_100, "five"),
    ]);
    // Written over its own line, once for each hundredth.
    let counts: Vec<String> = (0..100).map(|n| format!("Fetch: {n}%")).collect();
    let counts: Vec<(Ns, &str)> =
        counts.iter().enumerate().map(|(n, text)| (4_000 + 31 * n as Ns, text.as_str())).collect();
    events.extend(printed(&counts));
    // Dots behind it, of which some come late.
    let waits = [10, 300, 20, 10, 15, 400, 5, 5, 200, 100, 250, 8];
    let mut at = 7_103;
    let mut later: Vec<(u32, Ns)> = Vec::new();
    for (n, wait) in waits.iter().enumerate() {
        at += wait;
        later.push((9 + n as u32, at * MS));
    }
    let text = format!("Checking {}", ".".repeat(waits.len()));
    let what = EventKind::ConsoleLine { text, end: at * MS, later };
    events.push(event(7_103 * MS, 200 * US, "console", what));
    let timeline = checked(&events, 11_000 * MS);
    assert_eq!(spans(&timeline, "after: Fetch: #"), [(4_000, 7_102)]);
    assert_eq!(spans(&timeline, "after: Checking"), [(7_103, 8_418)]);
    let names: Vec<&str> = timeline.leaves().map(|s| s.name.as_str()).collect();
    assert!(!names.iter().any(|name| name.starts_with("lines from: Fetch")), "{names:?}");
    assert_eq!(names.iter().filter(|name| name.contains("Checking")).count(), 2, "{names:?}");
}
