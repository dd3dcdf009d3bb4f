//! A guest whose first kernel starts a second one: real text, and what only reads like it.

use crate::common;

use common::{event, record, MS, US};
use vmeter_model::{Event, EventKind, Ns, Timeline};
use vmeter_timeline::{build, verify};

const TOTAL: Ns = 71_853 * MS;

fn console(at: Ns, text: &str) -> Event {
    let what = EventKind::ConsoleLine { text: text.into(), end: at + MS, later: Vec::new() };
    event(at, 200 * US, "console", what)
}

/// The console of a guest: seconds after the exec, text.
fn recorded() -> Vec<Event> {
    let line = |line: &str| {
        let (seconds, text) = line.split_once(' ')?;
        let (whole, micros) = seconds.split_once('.')?;
        let at = whole.parse::<Ns>().ok()? * 1_000 * MS + micros.parse::<Ns>().ok()? * US;
        Some(console(at, text))
    };
    include_str!("fixtures/kexec-console.txt").lines().filter_map(line).collect()
}

fn timeline(events: &[Event]) -> Timeline {
    let timeline = build(events, &record(TOTAL));
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

/// Begin and end of the top-level span of a name, ms.
fn phase(timeline: &Timeline, name: &str) -> Option<(Ns, Ns)> {
    let span = timeline.spans.iter().find(|s| s.parent.is_none() && s.name == name)?;
    Some((span.start / MS, span.end / MS))
}

/// When the first kernel's last word came, ms.
const GAVE_WAY: Ns = 47_085;

fn nothing_of_the_first_is_later(timeline: &Timeline) {
    for span in timeline.spans.iter().filter(|s| s.end > (GAVE_WAY + 20) * MS) {
        let later = span.start >= GAVE_WAY * MS;
        let of_run = span.name.starts_with("vmm:") || span.name == "unattributed";
        assert!(later || of_run, "{} {}..{}", span.name, span.start / MS, span.end / MS);
        assert_ne!(span.name, "userspace");
    }
}

#[test]
fn the_second_kernel_is_no_user_space_of_the_first() {
    let timeline = timeline(&recorded());
    nothing_of_the_first_is_later(&timeline);
    assert_eq!(phase(&timeline, "kexec"), Some((GAVE_WAY, 55_918)));
    assert_eq!(phase(&timeline, "kexec:kernel"), Some((55_918, 67_934)));
    assert_eq!(phase(&timeline, "kexec:userspace"), Some((67_934, 71_853)));
    let first = phase(&timeline, "userspace").expect("the first's user space");
    assert_eq!(first, (26_125, GAVE_WAY));
    let sleep = timeline.spans.iter().find(|s| s.name.contains("s3sleep-begin"));
    assert_eq!(sleep.map(|s| s.len() / MS), Some(2_587), "its user space by its own lines");
    let said: Vec<&String> = timeline.warnings.iter().filter(|w| w.contains("kexec")).collect();
    assert_eq!(said.len(), 1, "{:?}", timeline.warnings);
    assert!(
        !timeline.warnings.iter().any(|w| w.contains("vmeter ignores the")),
        "{:?}",
        timeline.warnings
    );
}

#[test]
fn without_its_last_word_the_way_to_the_second_is_nobodys() {
    let mut events = recorded();
    events.retain(
        |e| !matches!(&e.what, EventKind::ConsoleLine { text, .. } if text.contains("kexec_core")),
    );
    let timeline = timeline(&events);
    assert_eq!(phase(&timeline, "kexec"), None);
    assert_eq!(phase(&timeline, "kexec:kernel"), Some((55_918, 67_934)));
    let own = phase(&timeline, "userspace").expect("the first's user space");
    assert_eq!(own.1, 45_907, "up to its last line");
}

#[test]
fn an_old_log_that_is_printed_again_is_no_second_kernel() {
    let mut events = recorded();
    let after = |e: &Event| e.at >= GAVE_WAY * MS;
    // All that the second kernel says, at once: as a klogd prints a log.
    let first = events.iter().find(|e| after(e)).map_or(0, |e| e.at);
    for event in events.iter_mut().filter(|e| after(e)) {
        event.at = first + (event.at - first) / 100;
    }
    events.retain(
        |e| !matches!(&e.what, EventKind::ConsoleLine { text, .. } if text.contains("kexec_core")),
    );
    let timeline = timeline(&events);
    assert_eq!(phase(&timeline, "kexec:kernel"), None);
    assert!(
        timeline.warnings.iter().any(|w| w.contains("vmeter ignores the")),
        "{:?}",
        timeline.warnings
    );
}

/// A second kernel whose console comes late (hvc0, a module's) and is quiet: its log in RAM says that the
/// first had programs. Real figures, in ms.
#[test]
fn a_second_kernel_that_only_its_log_shows_is_no_part_of_the_first() {
    let line = |at: Ns, text: &str| console(at * MS, text);
    let started = |at: Ns| {
        let what = EventKind::Reached { symbol: "kernel-started".into() };
        event(at * MS, 12 * MS, "guest-pages", what)
    };
    let logged = |at: Ns, error: Ns, text: &str| {
        let what = EventKind::KernelLine { text: text.into(), by_program: false };
        event(at * MS, error * MS, "guest-printk", what)
    };
    let mut events = vec![
        event(24 * MS, 0, "process", EventKind::VmmMain),
        started(794),
        line(4_110, "app: first"),
        line(6_333, "app: first gives way"),
        started(8_240),
        logged(8_653, 2_010, "Linux version 6.1.0-56-cloud-amd64"),
        logged(9_315, 89, "smp: Bringing up secondary CPUs ..."),
        logged(10_858, 6, "Run /init as init process"),
        line(11_357, "app: second begins"),
        line(12_390, "app: second works"),
        event(TOTAL - MS, 0, "process", EventKind::VmmExiting),
    ];
    let found = timeline(&events);
    assert_eq!(phase(&found, "userspace"), Some((4_110, 6_334)), "{:?}", found.spans);
    let entry = found.spans.iter().find(|s| s.name.starts_with("kernel:entry")).expect("a kernel");
    assert!(entry.end <= 4_110 * MS, "{entry:?}");
    let second = phase(&found, "kexec:userspace").expect("its own");
    assert_eq!(second.0, 10_858);
    let works = found.spans.iter().find(|s| s.name == "after: app: second begins");
    assert_eq!(works.map(|s| s.len() / MS), Some(1_033));
    let kernel = phase(&found, "kexec:kernel").expect("the second");
    assert!(kernel.0 > 6_333 && kernel.1 == 10_858, "{kernel:?}");
    // Where no program spoke before, there is one kernel.
    events.retain(
        |e| !matches!(&e.what, EventKind::ConsoleLine { text, .. } if text.contains("first")),
    );
    assert_eq!(phase(&timeline(&events), "kexec:kernel"), None);
}

#[test]
fn who_only_says_so_starts_no_kernel() {
    let mut events = recorded();
    events.retain(|e| e.at < GAVE_WAY * MS);
    events.push(console(GAVE_WAY * MS, "kexec_core: Starting new kernel"));
    events.push(console(50_000 * MS, "still here"));
    let timeline = timeline(&events);
    assert_eq!(phase(&timeline, "kexec"), None);
    assert!(!timeline.warnings.iter().any(|w| w.contains("kexec")), "{:?}", timeline.warnings);
    assert_eq!(phase(&timeline, "userspace").map(|(_, end)| end), Some(TOTAL / MS));
}

#[test]
fn a_machine_that_is_reset_and_goes_on_is_no_shutdown() {
    let mut events = recorded();
    for event in &mut events {
        if let EventKind::ConsoleLine { text, .. } = &mut event.what {
            *text = text.replace("kexec_core: Starting new kernel", "reboot: Restarting system");
        }
    }
    events.push(console(GAVE_WAY * MS, "[   33.282180] reboot: machine restart"));
    let timeline = timeline(&events);
    nothing_of_the_first_is_later(&timeline);
    assert_eq!(phase(&timeline, "reboot"), Some((GAVE_WAY, 55_918)));
    assert_eq!(phase(&timeline, "reboot:kernel"), Some((55_918, 67_934)));
    assert_eq!(phase(&timeline, "reboot:userspace"), Some((67_934, 71_853)));
    // Where the run ends with it, it is the end.
    events.retain(|e| e.at <= GAVE_WAY * MS);
    let timeline = build(&events, &record((GAVE_WAY + 20) * MS));
    assert!(timeline.spans.iter().all(|s| !s.name.starts_with("reboot")));
}

/// A machine that is reset, whose kernels say nothing (`quiet`): seconds after the exec.
const QUIET: &[(Ns, &str)] = &[
    (480, "SeaBIOS (version 1.16.2-debian-1.16.2-1)"),
    (840, "Booting from ROM..."),
    (8_870, "CLK init-begin 5.34"),
    (8_915, "CLK first-boot-begin 5.41"),
    (10_960, "CLK first-boot-end 7.47"),
    (11_030, "CLK reboot 7.54"),
    (11_055, "[    7.508826] reboot: Restarting system"),
    (11_056, "[    7.510002] reboot: machine restart"),
    (11_510, "SeaBIOS (version 1.16.2-debian-1.16.2-1)"),
    (11_620, "Booting from ROM..."),
    (19_490, "CLK init-begin 5.39"),
    (19_545, "CLK second-boot 5.48"),
    (22_600, "CLK app-ready 8.53"),
    (24_120, "CLK poweroff 10.06"),
    (24_144, "[   10.035248] reboot: Power down"),
];

#[test]
fn a_quiet_machine_that_is_reset_is_nothing_of_the_first_boot() {
    let mut events: Vec<Event> = QUIET.iter().map(|(at, text)| console(at * MS, text)).collect();
    for (at, symbol) in [(902, "startup_32"), (2_304, "startup_64"), (2_372, "start_kernel")] {
        let symbol = symbol.to_owned();
        events.push(event(at * MS, 0, "tcg", EventKind::Reached { symbol }));
    }
    // What RAM holds at the end is the second kernel's log, and nothing says how its clock went.
    let text = "Linux version 6.1.0".to_owned();
    events.push(event(
        22_942 * MS,
        13_000 * MS,
        "guest-printk",
        EventKind::KernelLine { text, by_program: false },
    ));
    let firmware = EventKind::FirmwareLine { text: "Booting from ROM...".into() };
    events.push(event(11_620 * MS, MS, "firmware", firmware));
    let timeline = build(&events, &record(24_160 * MS));
    assert_eq!(verify(&timeline), Ok(()));
    let reset = 11_056 * MS;
    let again = timeline.spans.iter().find(|s| s.name == "reboot").expect("it");
    assert_eq!(again.end / MS, 11_621, "as far as firmware says, and no kernel named");
    assert!(!timeline.spans.iter().any(|s| s.name == "reboot:kernel"));
    let untold = phase(&timeline, "reboot+reboot:kernel+reboot:userspace");
    assert_eq!(untold, Some((11_621, 19_490)), "up to the first line of a program");
    assert_eq!(phase(&timeline, "reboot:userspace"), Some((19_490, 24_144)));
    assert!(timeline.spans.iter().any(|s| s.name == "after: CLK second-boot #"));
    for span in timeline.spans.iter().filter(|s| s.end > reset && s.start < reset) {
        assert_eq!(span.name, "unattributed", "{} is stretched over a reset", span.name);
    }
    assert!(!timeline.spans.iter().any(|s| s.name.starts_with("kernel") && s.end > reset));
    assert_eq!(phase(&timeline, "userspace"), Some((8_870, 11_055)), "its programs' own word");
    let after = |ms: Ns| timeline.spans.iter().find(|s| s.start <= ms * MS && ms * MS < s.end);
    assert_eq!(after(24_150).map(|s| s.name.as_str()), Some("shutdown"));
    let said = timeline.warnings.iter().filter(|w| w.contains("after a reset")).count();
    assert_eq!(said, 1, "{:?}", timeline.warnings);
}

#[test]
fn the_vmm_says_that_a_machine_is_reset() {
    // A kernel with loglevel=0 says nothing of it, and this firmware has no console.
    let silent = QUIET.iter().filter(|(_, text)| !text.starts_with(['[', 'S', 'B']));
    let mut events: Vec<Event> = silent.map(|(at, text)| console(at * MS, text)).collect();
    let reached = EventKind::Reached { symbol: "start_kernel".into() };
    events.push(event(2_372 * MS, 0, "tcg", reached));
    events.push(event(11_056 * MS, MS, "monitor", EventKind::MachineReset));
    let build = |events: &[Event]| build(events, &record(24_160 * MS));
    let timeline = build(&events);
    assert_eq!(verify(&timeline), Ok(()));
    assert!(timeline.marks.contains(&(11_056 * MS, "the guest resets the machine".to_owned())));
    let reset = 11_056 * MS;
    let over = |s: &&vmeter_model::Span| s.start < reset && reset < s.end;
    assert!(timeline.spans.iter().filter(over).all(|s| s.name == "unattributed"));
    assert_eq!(timeline.warnings.iter().filter(|w| w.contains("after a reset")).count(), 1);
    // Nothing says how far the way to the second kernel goes.
    assert_eq!(phase(&timeline, "reboot"), None);
    // Before any kernel, a firmware begins anew by itself.
    events.retain(|e| e.source != "tcg");
    assert!(!build(&events).warnings.iter().any(|w| w.contains("after a reset")));
}
