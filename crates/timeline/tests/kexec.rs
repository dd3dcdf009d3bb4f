//! A guest whose first kernel starts a second one: real text, and what only reads like it.

mod common;

use common::{event, record, MS, US};
use vmeter_model::{Event, Ns, Timeline, What};
use vmeter_timeline::{build, verify};

const TOTAL: Ns = 71_853 * MS;

fn console(at: Ns, text: &str) -> Event {
    let what = What::ConsoleLine { text: text.into(), end: at + MS, later: Vec::new() };
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
    assert!(!timeline.warnings.iter().any(|w| w.contains("are older")), "{:?}", timeline.warnings);
}

#[test]
fn without_its_last_word_the_way_to_the_second_is_nobodys() {
    let mut events = recorded();
    events.retain(
        |e| !matches!(&e.what, What::ConsoleLine { text, .. } if text.contains("kexec_core")),
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
        |e| !matches!(&e.what, What::ConsoleLine { text, .. } if text.contains("kexec_core")),
    );
    let timeline = timeline(&events);
    assert_eq!(phase(&timeline, "kexec:kernel"), None);
    assert!(timeline.warnings.iter().any(|w| w.contains("are older")), "{:?}", timeline.warnings);
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
        if let What::ConsoleLine { text, .. } = &mut event.what {
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
