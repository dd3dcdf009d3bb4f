//! User space, from events of nobody's guest: who waited for whom, and how inits go down.

mod common;

use common::{event, record, MS};
use vmeter_model::{Event, Ns, Span, Timeline, What};
use vmeter_timeline::{build, verify};

fn checked(events: &[Event], total: Ns) -> Timeline {
    let timeline = build(events, &record(total));
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

fn line(at: Ns, text: &str) -> Event {
    event(at * MS, MS / 10, "console", What::ConsoleLine { text: text.into(), end: (at + 1) * MS })
}

/// Events of processes: at (ms), what.
fn processes(whats: Vec<(Ns, What)>) -> Vec<Event> {
    let init = What::ProcessExec { pid: 1, file: "/init".into() };
    let mut events = vec![event(100 * MS, 0, "ftrace", init)];
    events.extend(whats.into_iter().map(|(at, what)| event(at * MS, 0, "ftrace", what)));
    events
}

fn fork(pid: i32, parent: i32) -> What {
    What::ProcessFork { pid, parent, thread: false }
}

fn exec(pid: i32, file: &str) -> What {
    What::ProcessExec { pid, file: file.into() }
}

fn exit(pid: i32) -> What {
    What::ProcessExit { pid, comm: "x".into() }
}

fn wait(pid: i32) -> What {
    What::ProcessWait { pid, child: None }
}

fn reap(pid: i32, by: i32) -> What {
    What::ProcessReap { pid, by, status: Some(0), cpu_ns: 5_000_000, group: String::new() }
}

fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).filter(|name| name.starts_with("exec ")).collect()
}

#[test]
fn overlap_is_no_parentage_and_lifetime_no_work() {
    let events = processes(vec![
        (110, fork(10, 1)),
        (111, exec(10, "/bin/daemon")),
        (120, fork(11, 1)),
        (121, exec(11, "/bin/script")),
        (122, wait(1)),
        (130, fork(12, 11)),
        (131, exec(12, "/bin/sleep")),
        (132, wait(11)),
        (135, fork(13, 11)),
        (136, exec(13, "/bin/nobody-waits")),
        (150, exit(13)),
        (500, exit(12)),
        (501, reap(12, 11)),
        (510, exit(11)),
        (511, reap(11, 1)),
        (900, exit(10)),
        (901, reap(10, 10)),
    ]);
    let timeline = checked(&events, 1_000 * MS);
    assert_eq!(names(&timeline.overlapping), ["exec /bin/daemon", "exec /bin/nobody-waits"]);
    let sleep = timeline.spans.iter().find(|s| s.name == "exec /bin/sleep").expect("it");
    let parent = timeline.spans.iter().find(|s| Some(s.id) == sleep.parent).expect("a parent");
    assert_eq!((parent.name.as_str(), sleep.len()), ("exec /bin/script", 370 * MS));
    assert_eq!(sleep.cpu, Some(5 * MS));
    let shown = timeline.processes.iter().find(|p| p.pid == 12).expect("it");
    assert_eq!((shown.parent, shown.waited, shown.status), (Some(11), Some(368 * MS), Some(0)));
}

#[test]
fn two_that_are_waited_for_at_once_are_one_after_the_other_or_beside() {
    // A pipe: both are waited for, and the end waited for the second.
    let events = processes(vec![
        (110, fork(10, 1)),
        (111, exec(10, "/bin/first")),
        (120, fork(11, 1)),
        (121, exec(11, "/bin/second")),
        (122, wait(1)),
        (300, exit(10)),
        (301, reap(10, 1)),
        (302, wait(1)),
        (400, exit(11)),
        (401, reap(11, 1)),
    ]);
    let timeline = checked(&events, 500 * MS);
    assert!(names(&timeline.spans).contains(&"exec /bin/second"));
    assert_eq!(names(&timeline.overlapping), ["exec /bin/first"]);
}

#[test]
fn every_init_goes_down_from_its_first_word() {
    for word in [
        "The system is going down NOW!",
        "INIT: Switching to runlevel: 0",
        "- runit: leave stage: /etc/runit/2",
        "The system will power off now!",
    ] {
        let events = [
            line(300, "[    0.300000] Run /init as init process"),
            line(400, "rc: up"),
            line(700, word),
            line(705, "Sent SIGTERM to all processes"),
            line(805, "Sent SIGKILL to all processes"),
            line(900, "[    0.900000] reboot: Power down"),
        ];
        let timeline = checked(&events, 1_000 * MS);
        let of = |name: &str| timeline.spans.iter().find(|s| s.name == name).map(|s| s.start / MS);
        assert_eq!(of("shutdown"), Some(700), "{word}");
        assert_eq!(of("shutdown:sigterm"), Some(705), "{word}");
        assert_eq!(of("shutdown:sigkill"), Some(805), "{word}");
    }
}

#[test]
fn an_initrds_targets_that_stop_are_no_shutdown() {
    let mut events = vec![
        line(300, "[    0.300000] Run /init as init process"),
        line(310, "[    0.310000] systemd[1]: Reached target basic.target - Basic System."),
        line(400, "[    0.400000] systemd[1]: Stopped target basic.target - Basic System."),
        line(410, "[    0.410000] systemd[1]: Switching root."),
        line(500, "[    0.500000] systemd[1]: systemd 252 running in system mode (+PAM)"),
        line(520, "[    0.520000] systemd[1]: Queued start job for default target a.target."),
        line(530, "[    0.530000] systemd[1]: Starting a.service - A..."),
        line(600, "[    0.600000] systemd[1]: Finished a.service - A."),
        line(610, "[    0.610000] systemd[1]: Reached target basic.target - Basic System."),
    ];
    let up = checked(&events, 1_000 * MS);
    assert!(up.spans.iter().all(|s| s.name != "shutdown"));
    let unit = up.spans.iter().find(|s| s.name == "unit a.service").expect("it");
    assert_eq!(unit.len(), 70 * MS);
    events.extend([
        line(700, "[    0.700000] systemd[1]: Stopping b.service - B..."),
        line(710, "[    0.710000] systemd[1]: Stopped target basic.target - Basic System."),
        line(900, "[    0.900000] systemd[1]: Stopped b.service - B."),
    ]);
    let down = checked(&events, 1_000 * MS);
    let of = |name: &str| down.spans.iter().find(|s| s.name == name).map(|s| s.start / MS);
    assert_eq!((of("shutdown"), of("stop b.service")), (Some(700), Some(700)));
}
