//! User space, from events of nobody's guest: who waited for whom, and how inits go down.

use crate::common;

use common::user_space::{
    checked, exec, exit, fork, lengths, line, names, processes, reap, until, wait,
};
use common::{event, record, MS};
use vmeter_model::{Event, EventKind, Ns};
use vmeter_timeline::{build, causes};

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

#[test]
fn a_unit_that_hangs_at_its_stop_is_of_going_down() {
    let events = vec![
        line(300, "[    0.300000] Run /init as init process"),
        line(500, "[    0.500000] systemd[1]: systemd 252 running in system mode (+PAM)"),
        line(520, "[    0.520000] systemd[1]: Queued start job for default target a.target."),
        line(610, "[    0.610000] systemd[1]: Reached target basic.target - Basic System."),
        line(3_000, "[    3.000000] systemd[1]: Stopped a.service - A."),
        line(9_000, "[    9.000000] systemd[1]: Stopping b.service - B..."),
        line(9_010, "[    9.010000] systemd[1]: Stopped c.service - C."),
        line(
            15_000,
            "[   15.000000] systemd[1]: b.service: State 'stop-sigterm' timed out. Killing.",
        ),
        line(15_010, "[   15.010000] systemd[1]: Stopped b.service - B."),
        line(15_020, "[   15.020000] systemd[1]: Stopped target basic.target - Basic System."),
    ];
    let down = checked(&events, 16_000 * MS);
    let of = |name: &str| down.spans.iter().find(|s| s.name == name);
    assert_eq!(of("shutdown").map(|s| s.start / MS), Some(9_000), "and not when a was stopped");
    assert_eq!(of("stop b.service").map(|s| (s.start / MS, s.end / MS)), Some((9_000, 15_010)));
}

/// A systemd with two units that it starts, of which one ends.
fn two_units() -> Vec<Event> {
    vec![
        line(300, "[    0.300000] Run /init as init process"),
        line(500, "[    0.500000] systemd[1]: systemd 252 running in system mode (+PAM)"),
        line(520, "[    0.520000] systemd[1]: Queued start job for default target a.target."),
        line(530, "[    0.530000] systemd[1]: Starting e2scrub_reap.service - Remove..."),
        line(600, "[    0.600000] systemd[1]: Starting appliance.service - Appliance..."),
        line(700, "[    0.700000] systemd[1]: Finished e2scrub_reap.service - Remove."),
    ]
}

#[test]
fn units_are_loaded_until_systemd_queues_what_is_to_start() {
    let mut events = two_units();
    events.push(line(505, "[    0.505000] systemd[1]: Hostname set to <x>."));
    let timeline = checked(&events, 1_900 * MS);
    let loads = timeline.spans.iter().find(|s| s.name == "systemd:load-units").expect("it");
    assert_eq!((loads.start / MS, loads.end / MS), (505, 520), "and not when the first starts");
}

#[test]
fn a_unit_that_had_not_finished_is_what_the_end_waited_for() {
    let timeline = until(&two_units(), 1_900 * MS, "appliance end 4.90");
    let unfinished = "unit appliance.service, unfinished";
    assert_eq!(lengths(&timeline.spans, "unit "), [(unfinished, 1_300)]);
    assert_eq!(lengths(&timeline.overlapping, "unit "), [("unit e2scrub_reap.service", 170)]);
    assert!(causes(&timeline).is_empty(), "nothing waited for e2scrub_reap");
    // The same where the guest never came to its end.
    let mut run = record(1_900 * MS);
    run.outcome = vmeter_model::Outcome::TimedOut { last: String::new() };
    let timed_out = build(&two_units(), &run);
    assert_eq!(lengths(&timed_out.spans, "unit "), [(unfinished, 1_300)]);
}

#[test]
fn of_several_that_had_not_finished_nobody_knows_which_it_was() {
    let mut events = two_units();
    events.pop();
    // One that Debian ships prints nothing.
    let one = until(&events, 1_900 * MS, "appliance end 4.90");
    let unfinished = "unit appliance.service, unfinished";
    assert_eq!(lengths(&one.spans, "unit "), [(unfinished, 1_300)]);
    let beside = [("unit e2scrub_reap.service, unfinished", 1_370)];
    assert_eq!(lengths(&one.overlapping, "unit "), beside);
    assert!(causes(&one).is_empty());
    // Nor where a service of the guest's own was there before.
    let mut before = events.clone();
    before.push(line(800, "[    0.800000] systemd[1]: Started appliance.service - Appliance."));
    let started = until(&before, 1_900 * MS, "appliance end 4.90");
    assert_eq!(lengths(&started.spans, "unit "), [("unit appliance.service", 200)]);
    assert!(causes(&started).is_empty());
    let mut two = events.clone();
    two.push(line(650, "[    0.650000] systemd[1]: Starting mine.service - Mine..."));
    let timeline = until(&two, 1_900 * MS, "appliance end 4.90");
    let either = "unit mine.service or appliance.service, unfinished";
    assert_eq!(lengths(&timeline.spans, "unit "), [(either, 1_250)]);
    assert_eq!(lengths(&timeline.overlapping, "unit ").len(), 3);
    assert!(causes(&timeline).is_empty());
    // A line of the kernel's is nobody's, and a unit's own end says whose it is.
    let of_kernel = until(&events, 1_900 * MS, "[    1.900000] EXT4-fs (vda2): mounted");
    assert_eq!(lengths(&of_kernel.spans, "unit "), []);
    events.push(line(1_900, "[    1.900000] systemd[1]: Finished e2scrub_reap.service - Remove."));
    let by_itself = until(&events, 1_950 * MS, "[  OK  ] Finished e2scrub_reap.service - Remove.");
    assert_eq!(lengths(&by_itself.spans, "unit "), [("unit e2scrub_reap.service", 1_370)]);
}

#[test]
fn a_prompt_on_the_lines_begin_asks_for_no_login() {
    let mut events = two_units();
    events.extend([
        line(710, "[    0.710000] systemd[1]: Started serial-getty@ttyS0.service - Getty."),
        line(720, "[    0.720000] systemd[1]: Reached target a.target - A."),
    ]);
    let timeline = until(&events, 1_900 * MS, "host login: appliance end 4.90");
    assert_eq!(lengths(&timeline.spans, "unit "), [("unit appliance.service, unfinished", 1_300)]);
}

#[test]
fn a_program_that_had_not_ended_is_what_the_end_waited_for() {
    let events = processes(vec![
        (110, fork(9, 1)),
        (111, exec(9, "/bin/daemon")),
        (120, fork(10, 1)),
        (121, exec(10, "/etc/rcS")),
        (122, wait(1)),
        (130, fork(11, 10)),
        (131, exec(11, "/bin/quick")),
        (132, wait(10)),
        (200, exit(11)),
        (201, reap(11, 10)),
        (210, fork(12, 10)),
        (211, exec(12, "/bin/front")),
        (212, wait(10)),
    ]);
    // An init takes care of all its children: of two nobody knows which it was. What ran and ended
    // alone is known.
    let two = until(&events, 900 * MS, "front: ready");
    assert_eq!(names(&two.spans), ["exec /bin/quick"]);
    let only: Vec<Event> =
        events.iter().filter(|e| e.at < 110 * MS || e.at >= 120 * MS).cloned().collect();
    let timeline = until(&only, 900 * MS, "front: ready");
    let found = lengths(&timeline.spans, "exec /");
    for expected in [
        ("exec /etc/rcS, unfinished", 780),
        ("exec /bin/quick", 70),
        ("exec /bin/front, unfinished", 690),
    ] {
        assert!(found.contains(&expected), "{expected:?} of {found:?}");
    }
    // A shell waits for what it began last.
    let mut script = events.clone();
    let arguments = ["/bin/sh", "/init"].map(str::to_owned).to_vec();
    script
        .insert(0, event(99 * MS, 0, "ftrace", EventKind::ProcessArguments { pid: 1, arguments }));
    let timeline = until(&script, 900 * MS, "front: ready");
    assert!(names(&timeline.spans).contains(&"exec /bin/front, unfinished"));
    assert_eq!(names(&timeline.overlapping), ["exec /bin/daemon"]);
}

#[test]
fn what_goes_on_into_the_next_phase_is_in_both() {
    let mut events = processes(vec![
        (110, fork(10, 1)),
        (111, exec(10, "/bin/halt-slow")),
        (112, wait(1)),
        (600, exit(10)),
        (601, reap(10, 1)),
        (610, fork(11, 1)),
        (611, exec(11, "/bin/poweroff")),
        (612, wait(1)),
    ]);
    events.push(line(200, "The system is going down NOW!"));
    events.push(line(800, "[    0.800000] reboot: Power down"));
    events.push(event(900 * MS, 0, "monitor", EventKind::PowerOff));
    let timeline = checked(&events, 1_000 * MS);
    assert_eq!(names(&timeline.overlapping), Vec::<&str>::new());
    let whole = |name: &str| {
        let pieces = timeline.spans.iter().filter(|s| s.name == name);
        let outer = pieces
            .filter(|s| !timeline.spans.iter().any(|p| Some(p.id) == s.parent && p.name == s.name));
        outer.map(|s| s.len() / MS).sum::<Ns>()
    };
    assert_eq!((whole("exec /bin/halt-slow"), whole("exec /bin/poweroff")), (490, 290));
}

#[test]
fn one_line_makes_no_systemd_and_the_kernel_stamps_its_own() {
    let mut events = vec![
        line(300, "[    0.300000] Run /init as init process"),
        line(400, "Starting store engine..."),
        line(500, "systemd[1]: Reached target multi-user.target - Multi-User System."),
        line(510, "systemd[1]: Queued start job for default target graphical.target."),
        line(600, "Run /sbin/init as init process"),
        line(610, "reboot: Power down"),
        line(620, "Kernel panic - not syncing: only a line"),
    ];
    let of = |events: &[Event]| {
        let timeline = checked(events, 1_000 * MS);
        let names = ["systemd", "shutdown", "kernel:panic"];
        let tops = timeline.spans.iter().filter(|s| s.parent.is_none());
        tops.map(|s| s.name.clone()).filter(|n| names.contains(&n.as_str())).collect::<Vec<_>>()
    };
    assert_eq!(of(&events), Vec::<String>::new());
    // Through /dev/kmsg it has a stamp; but one line is any program's.
    events.push(line(700, "[    0.700000] systemd[1]: Reached target x.target - X."));
    assert_eq!(of(&events), Vec::<String>::new());
    // What it says of itself nobody else says; a script as the first process is none.
    events.push(line(710, "[    0.710000] systemd[1]: Hostname set to <x>."));
    assert_eq!(of(&events), ["systemd"]);
    let arguments = ["/bin/sh", "/init"].map(str::to_owned).to_vec();
    let init = EventKind::ProcessArguments { pid: 1, arguments };
    events.insert(0, event(301 * MS, 0, "ftrace", init));
    events.insert(1, event(301 * MS, 0, "ftrace", exec(1, "/init")));
    assert_eq!(of(&events), Vec::<String>::new());
}

#[test]
fn what_a_line_waited_for_is_not_after_its_end() {
    let text = "Starting database: done.".to_owned();
    let later = vec![(19, 700 * MS)];
    let what = EventKind::ConsoleLine { text, end: 700 * MS, later };
    let events = [
        line(300, "[    0.300000] Run /init as init process"),
        event(400 * MS, MS / 10, "console", what),
        line(800, "front begins"),
    ];
    let timeline = checked(&events, 1_000 * MS);
    assert_eq!(
        lengths(&timeline.spans, "after: "),
        [
            ("after: Starting database:", 300),
            ("after: Starting database: done.", 100),
            ("after: front begins", 200)
        ]
    );
}

#[test]
fn an_initrd_ends_with_the_done_of_its_own_last_line() {
    let said = |at: Ns, text: &str, end: Ns| {
        let what = EventKind::ConsoleLine { text: text.into(), end: end * MS, later: Vec::new() };
        event(at * MS, MS / 10, "console", what)
    };
    let events = [
        line(300, "[    0.300000] Run /init as init process"),
        line(310, "Loading, please wait..."),
        said(400, "Begin: Running /scripts/local-bottom ... done.", 400),
        said(400, "Begin: Running /scripts/init-bottom ... done.", 650),
        line(700, "[    0.700000] systemd[1]: systemd 252 running in system mode (+PAM)"),
    ];
    let timeline = checked(&events, 1_000 * MS);
    let initrd = timeline.spans.iter().find(|s| s.name == "initrd").expect("it");
    assert_eq!(initrd.end, 650 * MS);
}

#[test]
fn an_initrd_goes_on_until_somebody_else_says_something() {
    let mut events = vec![
        line(300, "[    0.300000] Run /init as init process"),
        line(400, "Starting systemd-udevd version 252.39-1~deb12u2"),
        line(500, "[    0.500000] BTRFS info (device vdb): using free space tree"),
        line(700, "[    0.700000] dracut: Switching root"),
        line(720, "[    0.720000] Not activating Mandatory Access Control"),
        line(750, "INIT: version 3.06 booting"),
        line(800, "   OpenRC 0.45.2 is starting up Linux 6.1.0 (x86_64)"),
    ];
    let top = |events: &[_], name: &str| {
        let timeline = checked(events, 1_000 * MS);
        let own = timeline.spans.iter().find(|s| s.parent.is_none() && s.name == name)?;
        Some((own.start / MS, own.end / MS))
    };
    assert_eq!(top(&events, "initrd"), Some((300, 701)));
    assert_eq!(top(&events, "switch-root"), Some((701, 750)));
    // One that does not say that it leaves, and nobody known after it.
    events.remove(3);
    events.truncate(4);
    events.push(line(750, "mine: begins"));
    // A root file system's udev says as much.
    assert_eq!(top(&events, "initrd"), None);
    events.insert(1, line(350, "Loading, please wait..."));
    assert_eq!(top(&events, "initrd"), Some((300, 750)));
    assert_eq!(top(&events, "switch-root"), None);
    // runit's stages, of which the first starts udev.
    let events = [
        line(300, "[    0.300000] Run /sbin/init as init process"),
        line(310, "- runit: $Id: 25da3b86f7bed4038b8a039d2f8e8c9bbcf0822b $: booting."),
        line(400, "Starting version 252.39-1~deb12u2"),
        line(700, "- runit: leave stage: /etc/runit/1"),
    ];
    assert_eq!(top(&events, "initrd"), None);
}

/// The first process executes a program with these arguments.
fn init_execs(at: Ns, words: &[&str]) -> Vec<(Ns, EventKind)> {
    let arguments = words.iter().map(|word| (*word).to_owned()).collect();
    let file = if words[0].starts_with('/') { words[0] } else { "/proc/self/exe" };
    vec![(at, EventKind::ProcessArguments { pid: 1, arguments }), (at, exec(1, file))]
}

#[test]
fn an_initrd_of_ones_own_ends_where_its_init_gives_way_to_the_roots() {
    let mut whats = vec![
        (110, fork(10, 1)),
        (111, exec(10, "/bin/sleep")),
        (112, wait(1)),
        (400, exit(10)),
        (400, reap(10, 1)),
    ];
    whats.extend(init_execs(450, &["switch_root", "/newroot", "/sbin/init"]));
    whats.extend(init_execs(480, &["/sbin/init"]));
    whats.extend([(500, fork(11, 1)), (501, exec(11, "/bin/app")), (502, wait(1))]);
    whats.extend([(900, exit(11)), (900, reap(11, 1))]);
    let timeline = checked(&processes(whats.clone()), 1_000 * MS);
    let top = |name: &str| {
        let own = timeline.spans.iter().find(|s| s.parent.is_none() && s.name == name)?;
        Some((own.start / MS, own.end / MS))
    };
    assert_eq!(top("initrd"), Some((100, 450)));
    assert_eq!(top("switch-root"), Some((450, 480)));
    let phases = vmeter_timeline::phases_of(&timeline);
    let phase = |name: &str| {
        let own = timeline.spans.iter().find(|s| s.name == name).expect("it is in the tree");
        phases[&own.id]
    };
    assert_eq!((phase("exec /bin/sleep"), phase("exec /bin/app")), ("initrd", "userspace"));
    // An init that only executes another has no initrd.
    whats.retain(|(_, what)| !matches!(what, EventKind::ProcessArguments { .. }));
    let timeline = checked(&processes(whats), 1_000 * MS);
    assert!(!timeline.spans.iter().any(|s| s.name == "initrd"));
}
