//! Wrappers that fork are followed to the VMM, and what they leave behind is ended.

use crate::{moments, options, plan, run, traced, Frozen, Reader, PATTERN};
use std::time::Duration;
use vmeter_machine::launch::{self, End, Mode, NoHooks, Options, Reason, Status, Stopper};
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::moment::{Moment, Producer};

/// A shell that starts this test binary as a child, after another child of its own.
fn forking(role: &str) -> LaunchPlan {
    let me = std::env::current_exe().expect("own path");
    let line = format!("sleep 0; ROLE={role} {} --exact part --nocapture; exit 4", me.display());
    plan(&["/bin/sh", "-c", &line])
}

#[test]
fn a_wrapper_that_forks_is_followed_to_the_vmm() {
    let me = std::env::current_exe().expect("own path");
    let name = me.file_name().expect("a name").to_string_lossy().into_owned();
    let options = Options { follow: Some(name), ..options(Mode::Traced) };
    let stopper = Stopper::new().expect("an eventfd");
    let mut reader = Reader::default();
    let exit = launch::run(forking("pattern"), &options, &stopper, &mut reader).expect("launched");
    if !traced(&exit) {
        return;
    }
    assert_eq!((exit.status, &exit.end), (Status::Exited(4), &End::ByItself));
    assert_eq!(exit.image.as_deref(), Some(&*me));
    assert_eq!(reader.found, PATTERN, "the child's memory was read");
    let names = moments(&exit);
    let count = |wanted: &str| names.iter().filter(|n| **n == wanted).count();
    for once in
        ["vmm-exec", "vmm-entry", "vmm-exiting", "wrapper-resumed", "vmm-exit", "wrapper-exec"]
    {
        assert_eq!(count(once), 1, "{once}: {names:?}");
    }
    assert!(exit.left_behind.is_empty());
}

/// What real launches yield, together, is all that a launcher is said to note.
#[test]
fn every_moment_of_a_launcher_has_a_real_producer() {
    let me = std::env::current_exe().expect("own path");
    let name = me.file_name().expect("a name").to_string_lossy().into_owned();
    let follow = Options { follow: Some(name), ..options(Mode::Traced) };
    let stopper = Stopper::new().expect("an eventfd");
    let launched = |plan, options: &Options, stopper: &Stopper| {
        launch::run(plan, options, stopper, &mut NoHooks).expect("launched")
    };
    let forked = launched(forking("pattern"), &follow, &stopper);
    if !traced(&forked) {
        return;
    }
    // bash shows its `main`, as few installed programs do.
    let bash = plan(&["/bin/bash", "-c", "exec /usr/bin/env true"]);
    let wrapped = launched(bash, &options(Mode::Traced), &stopper);
    stopper.stop(Reason::ReadyPoint);
    let killed = launched(plan(&["/bin/sleep", "60"]), &options(Mode::Traced), &stopper);
    let exits = [&forked, &wrapped, &killed];
    let noted = |moment: &Moment| exits.iter().any(|e| e.moments.iter().any(|(_, m)| m == moment));
    let own = |moment: &&Moment| moment.producer() == Some(Producer::Launcher);
    let missing: Vec<&Moment> = Moment::ALL.iter().filter(own).filter(|m| !noted(m)).collect();
    assert!(missing.is_empty(), "no launch yields {missing:?}");
    let of_others = exits.iter().flat_map(|e| &e.moments).find(|(_, m)| !own(&m));
    assert_eq!(of_others, None);
}

#[test]
fn a_followed_vmm_is_ended_with_its_wrapper() {
    let me = std::env::current_exe().expect("own path");
    let name = me.file_name().expect("a name").to_string_lossy().into_owned();
    for grace in [Duration::ZERO, Duration::from_millis(300)] {
        let timeout = Some(Duration::from_millis(300));
        let follow = Some(name.clone());
        let options = Options { follow, timeout, grace, ..options(Mode::Traced) };
        let stopper = Stopper::new().expect("an eventfd");
        let mut frozen = Frozen::default();
        let exit = launch::run(forking("count"), &options, &stopper, &mut frozen);
        let exit = exit.expect("launched");
        if !traced(&exit) {
            return;
        }
        assert!(matches!(exit.end, End::Stopped { reason: Reason::TimedOut, .. }), "{exit:?}");
        assert_eq!(exit.image.as_deref(), Some(&*me));
        assert_eq!(frozen.looks, 1);
        assert!(frozen.states.len() > 1 && frozen.states.iter().all(|s| *s == 't'));
        assert!(exit.left_behind.is_empty(), "{:?}", exit.left_behind);
    }
}

/// A daemon of a launcher that exited with 0 runs on, untraced; with `ends_all` it is ended.
#[test]
fn a_daemon_runs_on_unless_all_is_to_end() {
    let cases =
        [Mode::Plain, Mode::Started, Mode::Traced].map(|mode| [(mode, false), (mode, true)]);
    for (mode, ends_all) in cases.into_iter().flatten() {
        // It says when it leads a session of its own, or it would end with its group.
        let folder = tempfile::tempdir().expect("a folder");
        let line = format!(
            "cd {} && mkfifo up || exit 9; \
             setsid sh -c 'echo >up; exec sleep 1000' >&- 2>&- & read x <up; exit 0",
            folder.path().display()
        );
        let options = Options { ends_all, frees_ram: true, ..options(mode) };
        let stopper = Stopper::new().expect("an eventfd");
        let exit = launch::run(plan(&["/bin/sh", "-c", &line]), &options, &stopper, &mut NoHooks);
        let exit = exit.expect("launched");
        assert_eq!(exit.status, Status::Exited(0));
        let (ended, runs) = (usize::from(ends_all), usize::from(!ends_all));
        assert_eq!(exit.left_behind.len(), ended, "{mode:?}: {:?}", exit.left_behind);
        assert_eq!(exit.runs_on.len(), runs, "{mode:?}: {:?}", exit.runs_on);
        for left in &exit.runs_on {
            let status = std::fs::read_to_string(format!("/proc/{}/status", left.pid));
            let status = status.expect("it runs");
            assert!(status.contains("TracerPid:\t0"), "{mode:?}: {status}");
            let kill = std::process::Command::new("kill").arg(left.pid.to_string()).status();
            assert!(kill.expect("kill").success());
        }
        let quiet = run(plan(&["/bin/sh", "-c", "sleep 0 & wait"]), mode);
        assert!(quiet.left_behind.is_empty(), "{:?}", quiet.left_behind);
    }
}
