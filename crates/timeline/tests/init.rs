//! The first words of an init, and questions that only a person answers.

use crate::common;

use common::user_space::{checked, exec, exit, fork, lengths, line, processes, reap, wait};
use common::{event, MS};
use vmeter_model::{Event, EventKind, Ns};
use vmeter_timeline::causes;

#[test]
fn an_init_that_speaks_before_it_acts_has_begun_all_the_same() {
    // systemd as an initrd's /init: it is loaded, speaks, and begins a process long after that.
    let says = |at, text: &str| line(at, &format!("[    1.000000] systemd[1]: {text}"));
    let mut events = vec![
        line(90, "[    0.900000] Run /init as init process"),
        event(100 * MS, 0, "ftrace", exec(1, "/init")),
        says(1_600, "systemd 252.39 running in system mode (+PAM)"),
        says(1_601, "Running in initrd."),
        event(6_092 * MS, 0, "ftrace", fork(10, 1)),
        event(6_100 * MS, 0, "ftrace", exec(10, "/usr/lib/systemd/systemd-journald")),
        says(7_000, "Queued start job for default target initrd.target."),
    ];
    let start = |events: &[Event]| {
        let timeline = checked(events, 9_000 * MS);
        assert_eq!(lengths(&timeline.overlapping, "/init:start"), []);
        lengths(&timeline.spans, "/init:start").first().map(|(_, ms)| *ms)
    };
    assert_eq!(start(&events), Some(1_501), "up to its part of the initrd");
    events.retain(
        |e| !matches!(&e.what, EventKind::ConsoleLine { text, .. } if text.contains("initrd")),
    );
    assert_eq!(start(&events), Some(1_500), "up to its first word");
}

/// Debian's cryptsetup-initramfs asks, and derives the key when it is told.
#[test]
fn whoever_waits_for_a_person_is_told_from_what_they_wait_with() {
    let asks = "Please unlock disk croot: ";
    let said = vec![
        line(90, "[    0.900000] Run /init as init process"),
        line(110, "Loading, please wait..."),
        line(1_000, "Begin: Mounting root file system ... "),
        event(
            2_000 * MS,
            MS / 10,
            "console",
            EventKind::ConsoleLine { text: asks.into(), end: 10_000 * MS, later: Vec::new() },
        ),
        line(60_000, "cryptsetup: croot: set up successfully"),
        line(62_000, "Begin: Running /scripts/init-bottom ... done."),
        line(63_000, "[   60.000000] systemd[1]: systemd 252.39 running in system mode"),
    ];
    let of = |events: &[Event]| {
        let timeline = checked(events, 64_000 * MS);
        let key: Vec<Ns> = causes(&timeline).iter().map(|c| c.at_most / MS).collect();
        let person = lengths(&timeline.spans, "wait-for-a-person");
        let person = person.iter().map(|(name, ms)| ((*name).to_owned(), *ms)).collect::<Vec<_>>();
        (person, lengths(&timeline.spans, "cryptsetup:open").len(), key)
    };
    let waited = vec![("wait-for-a-person: Please unlock disk croot".to_owned(), 8_000)];
    assert_eq!(of(&said), (waited.clone(), 1, vec![50_000]), "by its lines");
    let arguments = ["/sbin/cryptsetup", "-T1", "--type=luks", "--key-file=-", "open", "/dev/vda"];
    let arguments = arguments.map(str::to_owned).to_vec();
    let mut events = processes(vec![
        (1_900, fork(10, 1)),
        (1_905, EventKind::ProcessArguments { pid: 10, arguments }),
        (1_910, exec(10, "/sbin/cryptsetup")),
        (1_911, wait(1)),
        (59_900, exit(10)),
        (59_901, reap(10, 1)),
    ]);
    events.extend(said);
    assert_eq!(of(&events), (waited, 0, vec![58_000 - 8_000]), "by its processes");
}
