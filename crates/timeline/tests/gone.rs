//! What ends otherwise than by its own word: units that time out or are stopped, what a shell has in
//! its background, runlevels.

use crate::common;

use common::user_space::{
    checked, exec, exit, fork, lengths, line, names, processes, reap, until, wait,
};
use common::{event, MS};
use vmeter_model::EventKind;

#[test]
fn a_device_that_timed_out_had_its_time_from_when_it_was_expected() {
    let events = [
        line(300, "[    0.300000] Run /init as init process"),
        line(500, "[    0.500000] systemd[1]: systemd 257 running in system mode (+PAM)"),
        line(520, "[    0.520000] systemd[1]: Queued start job for default target a.target."),
        line(530, "[    0.530000] systemd[1]: Expecting device dev-nope.device - /dev/nope..."),
        line(540, "[    0.540000] systemd[1]: Starting systemd-udev-trigger.service - Coldplug..."),
        line(740, "[    0.740000] systemd[1]: Finished systemd-udev-trigger.service - Coldplug."),
        line(1_530, "[    1.530000] systemd[1]: Timed out waiting for device dev-nope.device - N."),
        line(1_531, "[    1.531000] systemd[1]: Dependency failed for srv-data.mount - /srv/data."),
        line(1_532, "[    1.532000] systemd[1]: Started emergency.service - Emergency Shell."),
    ];
    let timeline = until(&events, 1_900 * MS, "You are in emergency mode");
    let its = [("unit dev-nope.device, timed out", 1_000), ("unit emergency.service", 368)];
    assert_eq!(lengths(&timeline.spans, "unit "), its);
    let causes = vmeter_timeline::causes(&timeline);
    let found: Vec<_> = causes.iter().map(|c| (c.cause.id, c.at_most / MS, c.remedy)).collect();
    assert_eq!(found, [("missing-device", 1_000, "nofail in fstab, or add the device")]);
    let beside = [("unit systemd-udev-trigger.service", 200)];
    assert_eq!(lengths(&timeline.overlapping, "unit "), beside);
}

/// Under `quiet` the log says it, and the console shows units alone. Forks and units of others fill
/// the time in which nothing is waited for but the device.
#[test]
fn a_wait_for_a_device_is_not_systemds_work() {
    let log = |ms, text: &str| {
        event(
            ms * MS,
            5_000,
            "guest-log",
            EventKind::KernelLine { text: text.into(), by_program: false },
        )
    };
    let mut events = vec![
        line(300, "[    0.300000] Run /init as init process"),
        log(500, "systemd[1]: systemd 252 running in system mode (+PAM)"),
        log(520, "systemd[1]: Queued start job for default target a.target."),
        line(530, "         Expecting device dev-nope.device - /dev/nope..."),
    ];
    for n in 0..8 {
        let name = format!("u{n}.service - Unit {n}");
        events.push(line(540 + n, &format!("         Starting {name}...")));
        events.push(line(600 + n, &format!("[  OK  ] Finished {name}.")));
    }
    events.extend([
        line(30_530, "[ TIME ] Timed out waiting for device dev-nope.device - /dev/nope."),
        line(30_531, "[DEPEND] Dependency failed for srv-data.mount - /srv/data."),
        line(30_540, "[  OK  ] Reached target sockets.target - Sockets."),
        line(30_550, "[  OK  ] Started emergency.service - Emergency Shell."),
    ]);
    let timeline = until(&events, 30_900 * MS, "You are in emergency mode");
    let its = [("unit dev-nope.device, timed out", 30_000), ("unit emergency.service", 350)];
    assert_eq!(lengths(&timeline.spans, "unit "), its);
    let its = [("systemd:start-jobs", 10), ("systemd:start-jobs", 20)];
    assert_eq!(lengths(&timeline.spans, "systemd:start-jobs"), its);
}

#[test]
fn a_unit_that_is_stopped_before_it_is_up_had_its_time_and_takes_nothing_down() {
    let mut events = vec![
        line(300, "[    0.300000] Run /init as init process"),
        line(500, "[    0.500000] systemd[1]: systemd 257 running in system mode (+PAM)"),
        line(520, "[    0.520000] systemd[1]: Queued start job for default target a.target."),
        line(530, "[    0.530000] systemd[1]: Reached target multi-user.target - Multi-User."),
        line(540, "[    0.540000] systemd[1]: Starting go-down.service - Go down..."),
        line(940, "[    0.940000] systemd[1]: go-down.service: Deactivated successfully."),
        line(941, "[    0.941000] systemd[1]: Stopped go-down.service - Go down."),
        line(950, "[    0.950000] systemd[1]: Stopped target multi-user.target - Multi-User."),
        line(951, "[    0.951000] systemd[1]: Stopping app.service - App..."),
        line(990, "[    0.990000] systemd[1]: Stopped app.service - App."),
    ];
    let timeline = checked(&events, 1_000 * MS);
    assert_eq!(lengths(&timeline.spans, "unit "), [("unit go-down.service", 401)]);
    let down = timeline.spans.iter().find(|s| s.name == "shutdown").map(|s| s.start / MS);
    assert_eq!(down, Some(950));
    // The default target was there before, and what goes down begins with the same bytes.
    let mut after = events.clone();
    after[2] = line(
        520,
        "[    0.520000] systemd[1]: Queued start job for default target multi-user.target.",
    );
    after[3] =
        line(530, "[    0.530000] systemd[1]: Reached target multi-user.target - Multi-User.");
    after[6] = line(950, "[    0.949000] systemd[1]: Stopped go-down.service - Go down.");
    let timeline = checked(&after, 1_000 * MS);
    assert_eq!(lengths(&timeline.spans, "unit "), [("unit go-down.service", 410)]);
    // The same where nothing goes down after it.
    events.truncate(7);
    let timeline = checked(&events, 1_000 * MS);
    assert_eq!(lengths(&timeline.spans, "unit "), [("unit go-down.service", 401)]);
}

#[test]
fn what_a_shell_has_in_its_background_is_not_what_it_waits_for() {
    let mut whats = vec![(110, fork(10, 1)), (111, exec(10, "/bin/tail"))];
    for (pid, at) in [(11, 120), (12, 420)] {
        let work = if pid == 11 { "/bin/work" } else { "/bin/more" };
        whats.extend([(at, fork(pid, 1)), (at + 1, exec(pid, work)), (at + 2, wait(1))]);
        whats.extend([(at + 280, exit(pid)), (at + 281, reap(pid, 1))]);
    }
    whats.extend([
        // It is killed, and ends in the wait for another that ended just before.
        (710, fork(13, 1)),
        (711, exec(13, "/bin/brief")),
        (712, wait(1)),
        (714, exit(13)),
        (715, exit(10)),
        (716, reap(13, 1)),
        (717, reap(10, 1)),
        (720, fork(14, 1)),
        (721, exec(14, "/bin/last")),
        (722, wait(1)),
        (900, exit(14)),
        (901, reap(14, 1)),
    ]);
    let timeline = checked(&processes(whats.clone()), 1_000 * MS);
    let foreground = ["exec /bin/work", "exec /bin/more", "exec /bin/brief", "exec /bin/last"];
    assert_eq!(names(&timeline.spans), foreground);
    assert_eq!(names(&timeline.overlapping), ["exec /bin/tail"]);
    // Two that a shell began together and waits for, one after the other, are in none.
    whats.retain(|(at, _)| *at < 401);
    whats.extend([(401, reap(11, 1)), (402, wait(1)), (715, exit(10)), (716, reap(10, 1))]);
    let timeline = checked(&processes(whats), 1_000 * MS);
    assert_eq!(names(&timeline.spans), ["exec /bin/tail"]);
}

#[test]
fn an_init_of_runlevels_goes_down_with_what_it_begins_for_the_last() {
    let down = |command: &str| {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let script = std::iter::once("/bin/sh".to_owned()).chain(words.iter().cloned());
        let begun = |pid: i32, words: Vec<String>| {
            let file = words.iter().find(|word| word.as_str() != "/bin/sh").cloned();
            let exec = EventKind::ProcessExec { pid, file: file.unwrap_or_default() };
            [EventKind::ProcessArguments { pid, arguments: words }, exec]
        };
        let mut whats = vec![(110, fork(9, 1))];
        let up = ["/bin/sh", "/etc/init.d/rc", "2"].map(str::to_owned).to_vec();
        whats.extend(begun(9, up).map(|what| (111, what)));
        whats.extend([(112, wait(1)), (200, exit(9)), (201, reap(9, 1)), (600, fork(10, 1))]);
        whats.extend(begun(10, script.collect()).map(|what| (601, what)));
        whats.extend([(602, wait(1)), (610, fork(11, 10)), (611, exec(11, "/etc/rc0.d/K01app"))]);
        whats.extend([(612, wait(10)), (850, exit(11)), (851, reap(11, 10))]);
        let mut events = processes(whats);
        events.push(event(950 * MS, 0, "monitor", EventKind::PowerOff));
        let timeline = checked(&events, 1_000 * MS);
        let phase = timeline.spans.iter().find(|s| s.name == "shutdown");
        phase.map(|s| s.start / MS)
    };
    for command in [
        "/etc/init.d/rc 0",
        "/etc/init.d/rc 6",
        "/sbin/openrc shutdown",
        "/sbin/init 0",
        "/sbin/telinit 6",
        "/sbin/shutdown -h now",
        "/sbin/shutdown -h -P +0",
    ] {
        assert_eq!(down(command), Some(601), "{command}");
    }
    for command in ["/etc/init.d/rc 3", "/sbin/openrc default", "/sbin/shutdown -h +5"] {
        assert_eq!(down(command), Some(950), "{command}");
    }
}
