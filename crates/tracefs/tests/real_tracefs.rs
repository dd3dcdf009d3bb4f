//! On the host's own tracefs, where this user may use it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmeter_trace::{open, Input};
use vmeter_tracefs::{Instance, Plan, Tracefs};

const EXEC: &str = "sched:sched_process_exec";
/// What the child of a test is to do; see [`child`].
const CHILD: &str = "VMETER_TRACEFS_CHILD";

/// What this process leaves in tracefs can be seen only when one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn tracefs() -> Option<(Tracefs, MutexGuard<'static, ()>)> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Tracefs::find() {
        Ok(_) if !Tracefs::same_processes() => {
            println!("skipped: {}", vmeter_tracefs::Error::OtherProcesses);
            None
        }
        Ok(tracefs) => Some((tracefs, alone)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn record(tracefs: &Tracefs, plan: Plan) -> Instance {
    tracefs.record(&plan).expect("root may record")
}

/// Names and stamps of the events in a saved trace.
fn events(path: &Path) -> Vec<(String, u64)> {
    let mut reader = open(Input::open(path).expect("it is there")).expect("a trace.dat");
    let mut events = Vec::new();
    while let Some(event) = reader.next_event() {
        events.push((event.kind.name.clone(), event.ts));
    }
    assert!(reader.losses().is_empty(), "{:?}", reader.losses());
    events
}

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn own_children_and_nothing_else_on_the_clock_asked_for() {
    let Some((tracefs, _alone)) = tracefs() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut stranger = Command::new("sh")
        .args(["-c", "while read x; do /bin/true; done"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh");
    let plan = Plan::new(&[EXEC, "sched:no_such_event"]).of_own_children().spool(folder.path());
    let before = monotonic();
    let instance = record(&tracefs, plan);
    assert_eq!(instance.clock(), "mono");
    let place = instance.folder().to_owned();
    assert!(place.exists());
    std::io::Write::write_all(stranger.stdin.as_mut().expect("piped"), b"a\nb\n").expect("written");
    for _ in 0..5 {
        // A child and a grandchild: the shell does not replace itself.
        let status = Command::new("sh").args(["-c", "/bin/true; exit 0"]).status().expect("sh");
        assert!(status.success());
    }
    let recorded = instance.stop().expect("pages");
    let after = monotonic();
    assert!(!place.exists(), "removed as soon as it is stopped");
    assert!(!recorded.is_limited() && recorded.bytes() > 0);
    let file = folder.path().join("trace.dat");
    recorded.save(&file).expect("saved");
    drop(stranger.stdin.take());
    stranger.wait().expect("it ends");
    let events = events(&file);
    assert_eq!(events.len(), 10, "5 shells and 5 programs: {events:?}");
    assert!(events
        .iter()
        .all(|(name, at)| name == "sched_process_exec" && (before..=after).contains(at)));
    let left = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 1, "no spool file keeps a name");
    trace_cmd_reads(&file, 10);
}

#[test]
fn a_filter_lets_only_what_it_says_through() {
    let Some((tracefs, _alone)) = tracefs() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    const FORK: &str = "sched:sched_process_fork";
    let plan = Plan::new(&[EXEC, FORK]).of_own_children().spool(folder.path());
    let instance = record(&tracefs, plan.filter(EXEC, "filename ~ \"*/true\""));
    // A child and a grandchild, of which the filter wants the latter.
    let status = Command::new("sh").args(["-c", "/bin/true; exit 0"]).status().expect("sh");
    assert!(status.success());
    let file = folder.path().join("trace.dat");
    instance.stop().expect("pages").save(&file).expect("saved");
    let names: Vec<String> = events(&file).into_iter().map(|(name, _)| name).collect();
    let count = |wanted: &str| names.iter().filter(|name| *name == wanted).count();
    assert_eq!((count("sched_process_exec"), count("sched_process_fork")), (1, 2), "{names:?}");
    let plan = Plan::new(&[EXEC]).filter(EXEC, "no_such_field == 1");
    let refused = tracefs.record(&plan).expect_err("no such field").to_string();
    assert!(refused.contains("filter"), "{refused}");
}

/// The reference reader says the same of the file.
fn trace_cmd_reads(file: &Path, count: usize) {
    let Ok(output) = Command::new("trace-cmd").arg("report").arg("-i").arg(file).output() else {
        println!("skipped: no trace-cmd to compare with");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| line.contains("sched_process_exec:")).count();
    assert_eq!(lines, count, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn many_events_arrive_whole_and_a_limit_ends_it() {
    let Some((tracefs, _alone)) = tracefs() else { return };
    if tracefs.format("syscalls:sys_enter_getppid").is_none() {
        println!("skipped: this kernel has no system call events");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let plan = |kib| {
        Plan::new(&["syscalls:sys_enter_getppid"])
            .of_own_children()
            .spool(folder.path())
            .buffer_kib(kib)
    };
    let calls = |n: u32| {
        // A thread started now is traced as a child process is.
        let work = move || {
            (0..n).for_each(|_| {
                let _ = rustix::process::getppid();
            })
        };
        std::thread::spawn(work).join().expect("no panic");
    };
    let file = folder.path().join("trace.dat");
    let instance = record(&tracefs, plan(4096));
    calls(100_000);
    instance.stop().expect("pages").save(&file).expect("saved");
    assert_eq!(events(&file).len(), 100_000);
    let instance = record(&tracefs, plan(256).limit(64 << 10));
    calls(200_000);
    let recorded = instance.stop().expect("pages");
    assert!(recorded.is_limited());
    assert!(recorded.bytes() < 4 << 20, "{} bytes of a limit of 64 KiB", recorded.bytes());
}

#[test]
fn nothing_is_left_when_it_is_dropped_or_events_are_missing() {
    let Some((tracefs, _alone)) = tracefs() else { return };
    let instance = record(&tracefs, Plan::new(&[EXEC]));
    let place = instance.folder().to_owned();
    drop(instance);
    assert!(!place.exists());
    let error = tracefs.record(&Plan::new(&["kvm:no_such_event"])).expect_err("no event");
    assert!(error.to_string().contains("modprobe"), "{error}");
    let error = tracefs.record(&Plan::new(&[EXEC]).clocks(&["sundial"])).expect_err("no clock");
    assert!(error.to_string().contains("trace_clock"), "{error}");
    let own = format!("vmeter-{}-", std::process::id());
    let instances = std::fs::read_dir(tracefs.root().join("instances")).expect("readable");
    let names = instances.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let left: Vec<String> = names.filter(|name| name.starts_with(&own)).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Runs this test program as a recording process; gives it and its instance.
fn recording_child(what: &str) -> (std::process::Child, PathBuf, impl Sized) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let place = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| Some(PathBuf::from(line.split_once("instance ")?.1)))
        .expect("it says its instance");
    // Kept open until the child is gone: it says more when it ends.
    (child, place, lines)
}

/// The child's half: not a test by itself.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (tracefs, _alone) = tracefs().expect("the parent has it");
    let instance = record(&tracefs, Plan::new(&[EXEC]));
    println!("instance {}", instance.folder().display());
    if what == "exit" {
        let _ = std::thread::spawn(|| std::process::exit(3)).join();
    }
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

#[test]
fn exit_in_another_thread_removes_it() {
    let Some((_, _alone)) = tracefs() else { return };
    let (mut child, place, _out) = recording_child("exit");
    assert_eq!(child.wait().expect("it ends").code(), Some(3));
    assert!(!place.exists());
}

#[test]
fn after_kill_9_the_next_start_removes_it_and_spares_the_living() {
    let Some((tracefs, _alone)) = tracefs() else { return };
    let (mut living, spared, _out) = recording_child("wait");
    let (mut killed, stale, _other) = recording_child("wait");
    killed.kill().expect("killed");
    killed.wait().expect("gone");
    assert!(stale.exists(), "nobody could remove it");
    drop(record(&tracefs, Plan::new(&[EXEC])));
    assert!(!stale.exists());
    assert!(spared.exists());
    drop(living.stdin.take());
    living.wait().expect("it ends");
    assert!(!spared.exists());
}
