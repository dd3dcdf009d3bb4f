//! Launching real processes: plain and traced, ended by themselves and by us.

mod followed;
mod orphans;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;
use vmeter_machine::launch::{
    self, End, Exit, Hooks, LaunchError, Mode, NoHooks, Options, Ptrace, Reason, Status, Stopper,
    Tracee,
};
use vmeter_machine::plan::LaunchPlan;

fn plan(argv: &[&str]) -> LaunchPlan {
    LaunchPlan { argv: argv.iter().map(OsString::from).collect(), ..LaunchPlan::default() }
}

/// This test binary in the part that `ROLE` names, by way of env(1): a wrapper
/// that executes another image.
fn role(name: &str) -> LaunchPlan {
    let me = std::env::current_exe().expect("own path");
    let mut plan = plan(&["/usr/bin/env", &format!("ROLE={name}")]);
    plan.argv.push(me.into());
    plan.argv.extend(["--exact", "part", "--nocapture"].map(OsString::from));
    plan
}

fn pipe() -> (std::fs::File, std::fs::File) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    (read.into(), write.into())
}

fn options(mode: Mode) -> Options {
    Options { mode, timeout: Some(Duration::from_secs(60)), ..Options::default() }
}

fn run(plan: LaunchPlan, mode: Mode) -> Exit {
    let stopper = Stopper::new().expect("an eventfd");
    launch::run(plan, &options(mode), &stopper, &mut NoHooks).expect("launched")
}

fn moments(exit: &Exit) -> Vec<&str> {
    exit.moments.iter().map(|(_, moment)| moment.name()).collect()
}

fn traced(exit: &Exit) -> bool {
    if let Ptrace::Refused(why) = &exit.ptrace {
        println!("skipped: {why}");
    }
    exit.ptrace == Ptrace::Used
}

static PATTERN: &[u8; 32] = b"vmeter-pattern:0123456789abcdef!";

/// Not a test by itself: what the other tests launch.
#[test]
fn part() {
    let Ok(role) = std::env::var("ROLE") else { return };
    match &*role {
        // Leaves a pattern in memory whose address it says, and exits from a
        // thread other than the main one.
        "pattern" => {
            let mut copy = vec![0u8; 3 << 20];
            copy[1 << 20..][..32].copy_from_slice(PATTERN);
            eprintln!("address {:x}", &raw const copy[1 << 20] as usize);
            std::hint::black_box(&copy);
            std::process::exit(3);
        }
        "threads" => {
            let work = |_| std::thread::spawn(|| std::hint::black_box((0..1000).sum::<u64>()));
            let threads: Vec<_> = (0..50).map(work).collect();
            threads.into_iter().for_each(|t| drop(t.join()));
            std::process::exit(0);
        }
        // Two threads that count together for ever, the second always ahead.
        "count" => {
            let counters: &'static [std::sync::atomic::AtomicU64; 2] = Box::leak(Box::default());
            eprintln!("address {:x}", counters.as_ptr() as usize);
            let order = std::sync::atomic::Ordering::SeqCst;
            loop {
                counters[1].fetch_add(1, order);
                counters[0].fetch_add(1, order);
            }
        }
        "abort" => std::process::abort(),
        "launcher" => {
            let mode = if std::env::var_os("PLAIN").is_some() { Mode::Plain } else { Mode::Traced };
            let stopper = Stopper::new().expect("an eventfd");
            let mut plan = plan(&["/bin/sh", "-c", "echo $$; exec sleep 1000"]);
            plan.stdout = Some(duplicate(&std::io::stderr()));
            let _ = launch::run(plan, &options(mode), &stopper, &mut NoHooks);
        }
        "panicking-hook" => {
            struct Panics;
            impl Hooks for Panics {
                fn on_exec(&mut self, tracee: &Tracee) {
                    eprintln!("{}", tracee.pid);
                    panic!("a bug in a hook");
                }
            }
            let stopper = Stopper::new().expect("an eventfd");
            let plan = plan(&["/bin/sleep", "1000"]);
            let _ = launch::run(plan, &options(Mode::Traced), &stopper, &mut Panics);
        }
        "no-ptrace" => {
            refuse_ptrace();
            let exit = run(plan(&["/bin/sh", "-c", "exit 6"]), Mode::Traced);
            assert!(matches!(&exit.ptrace, Ptrace::Refused(why) if why.contains("SYS_PTRACE")));
            assert_eq!((exit.status, exit.stops), (Status::Exited(6), 0));
            assert_eq!(moments(&exit), ["vmm-exit"]);
        }
        other => panic!("no such part: {other}"),
    }
}

fn duplicate(fd: &impl std::os::fd::AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().expect("a descriptor")
}

/// From here on ptrace(2) is EPERM for this process, as in a container that forbids it.
fn refuse_ptrace() {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let ret = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        // The number of the system call is the first word of struct seccomp_data.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_ptrace as u32),
        instruction(ret, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        instruction(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter outlive the calls, which copy them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

#[test]
fn where_ptrace_is_refused_the_vmm_runs_all_the_same() {
    let me = std::env::current_exe().expect("own path");
    let mut command = Command::new(me);
    let output = command.args(["--exact", "part"]).env("ROLE", "no-ptrace").output();
    let output = output.expect("spawned");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn plain_true() {
    let exit = run(plan(&["true"]), Mode::Plain);
    assert_eq!(exit.status, Status::Exited(0));
    assert_eq!((exit.end.clone(), exit.ptrace.clone()), (End::ByItself, Ptrace::NotWanted));
    assert_eq!((moments(&exit), exit.stops), (vec!["vmm-exit"], 0));
    assert!(exit.total_ns > 0 && exit.usage.minor_faults > 0);
}

#[test]
fn traced_true_costs_four_stops_at_most() {
    let exit = run(plan(&["/bin/true"]), Mode::Traced);
    if !traced(&exit) {
        return;
    }
    // true(1) is stripped and exports no `main`.
    let mut names = moments(&exit);
    names.retain(|n| *n != "vmm-main");
    assert_eq!(names, ["vmm-exec", "vmm-entry", "vmm-exiting", "vmm-exit"]);
    assert!(exit.stops == 3 || exit.stops == 4, "{} stops", exit.stops);
    assert_eq!(exit.held.len(), exit.stops as usize);
    assert!(exit.moments.windows(2).all(|w| w[0].0 <= w[1].0));
    assert!(exit.held.iter().all(|(a, b)| a <= b));
    assert!(exit.usage.max_rss_bytes > 4096);
}

#[test]
fn a_wrapper_that_executes_the_vmm_is_not_the_vmm() {
    let exit = run(role("threads"), Mode::Traced);
    if !traced(&exit) {
        return;
    }
    let names = moments(&exit);
    let vmm = names.iter().position(|n| *n == "vmm-exec").expect("an exec");
    assert!(names[..vmm].iter().all(|n| n.starts_with("wrapper-")), "{names:?}");
    assert_eq!(
        names[vmm..],
        ["vmm-exec", "vmm-entry", "vmm-main", "vmm-exiting", "vmm-exit"],
        "the symbol table of this test has main"
    );
    // env: exec, entry (no main); this: exec, entry, main, exit. 50 threads: none.
    assert!(exit.stops <= 7, "{} stops", exit.stops);
    assert_eq!(exit.status, Status::Exited(0));
    let me = std::env::current_exe().and_then(|p| p.canonicalize()).expect("own path");
    assert_eq!(exit.image, Some(me), "the wrapper's image is gone");
}

#[test]
fn a_script_is_a_wrapper_too() {
    let exit = run(plan(&["/bin/sh", "-c", "kill -USR1 $$"]), Mode::Traced);
    assert_eq!(exit.status, Status::Signalled { signal: libc::SIGUSR1, core: false });
    let exit = run(plan(&["/bin/sh", "-c", "trap 'exit 9' USR1; kill -USR1 $$"]), Mode::Traced);
    assert_eq!(exit.status, Status::Exited(9), "signals are delivered");
}

#[test]
fn stderr_is_kept_but_bounded_and_neutralised() {
    let exit = run(plan(&["/bin/sh", "-c", "printf 'a\\033[31mb\\n' >&2; exit 4"]), Mode::Plain);
    assert_eq!(exit.stderr_tail, "a\\u{1b}[31mb\n");
    assert_eq!(exit.status.to_string(), "exit status 4");
    let script = "i=0; while [ $i -lt 40 ]; do printf '%08000d\\n' $i >&2; i=$((i+1)); done";
    let exit = run(plan(&["/bin/sh", "-c", script]), Mode::Traced);
    assert!(exit.stderr_tail.len() <= 160 * 1024);
    assert!(exit.stderr_tail.ends_with("0039\n"));
}

#[test]
fn stdout_and_descriptors_reach_the_child_and_nothing_else_does() {
    let (mut read, write) = pipe();
    let leaked = std::fs::File::open("/dev/null").expect("opened");
    let mut plan = plan(&["/bin/sh", "-c", "ls /proc/$$/fd; cat /dev/fd/100"]);
    plan.stdout = Some(write.into());
    let (passed, mut feed) = pipe();
    feed.write_all(b"passed on").expect("written");
    drop(feed);
    assert_eq!(plan.pass_fd(passed.into()), 100);
    let exit = run(plan, Mode::Traced);
    assert_eq!(exit.status, Status::Exited(0));
    let mut text = String::new();
    read.read_to_string(&mut text).expect("EOF comes: our copies are closed");
    drop(leaked);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, ["0", "1", "100", "2", "passed on"]);
}

#[test]
fn pinning() {
    let (read, write) = pipe();
    let mut plan = plan(&["/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status"]);
    plan.stdout = Some(write.into());
    let options = Options { pin: vec![0], ..options(Mode::Plain) };
    let stopper = Stopper::new().expect("an eventfd");
    launch::run(plan, &options, &stopper, &mut NoHooks).expect("CPU 0 is there");
    let mut line = String::new();
    BufReader::new(read).read_line(&mut line).expect("a line");
    assert_eq!(line.split_whitespace().last(), Some("0"));

    let options = Options { pin: vec![1023], ..options };
    let error = launch::run(self::plan(&["true"]), &options, &stopper, &mut NoHooks);
    assert!(error.expect_err("no such CPU").to_string().contains("--pin"));
}

#[test]
fn failures_to_start_are_explained() {
    let stopper = Stopper::new().expect("an eventfd");
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/nonexistent/interpreter\n").expect("written");
    let run = |argv: &[&str], mode| {
        launch::run(plan(argv), &options(mode), &stopper, &mut NoHooks).expect_err("cannot start")
    };
    let path = script.to_str().expect("UTF-8");
    for mode in [Mode::Plain, Mode::Traced] {
        let error = run(&["no-such-vmm-anywhere"], mode);
        assert!(matches!(error, LaunchError::NotInPath { .. }), "{error}");
        let error = run(&["/nonexistent/vmm"], mode);
        assert!(error.to_string().contains("No such file"), "{error}");
        assert!(matches!(run(&[], mode), LaunchError::Empty));
        let error = run(&["/etc/passwd"], mode);
        assert!(error.to_string().contains("chmod +x"), "{error}");
        let set = std::os::unix::fs::PermissionsExt::from_mode;
        std::fs::set_permissions(&script, set(0o755)).expect("made executable");
        let error = run(&[path], mode);
        assert!(error.to_string().contains("interpreter is missing"), "{error}");
    }
}

/// Reads the pattern at the end, whatever the end is.
#[derive(Default)]
struct Reader {
    execs: u32,
    maps: Vec<launch::Mapping>,
    found: Vec<u8>,
}

impl Hooks for Reader {
    fn on_exec(&mut self, tracee: &Tracee) {
        self.execs += 1;
        assert!(!tracee.mappings().expect("maps").is_empty());
    }

    fn on_exiting(&mut self, tracee: &Tracee) {
        self.maps = tracee.mappings().expect("maps");
        for map in self.maps.iter().filter(|m| m.permissions.starts_with("rw")) {
            let mut memory = vec![0; (map.end - map.start) as usize];
            if map.path.starts_with("[vv") || tracee.read(map.start, &mut memory).is_err() {
                continue;
            }
            if let Some(at) = memory.windows(32).position(|w| w == PATTERN) {
                self.found = memory[at..at + 32].to_vec();
            }
        }
    }
}

#[test]
fn memory_is_there_at_the_end() {
    let stopper = Stopper::new().expect("an eventfd");
    let mut reader = Reader::default();
    let exit = launch::run(role("pattern"), &options(Mode::Traced), &stopper, &mut reader)
        .expect("launched");
    if !traced(&exit) {
        return;
    }
    assert_eq!(exit.status, Status::Exited(3), "{}", exit.stderr_tail);
    assert_eq!(reader.execs, 2);
    assert_eq!(reader.found, PATTERN);
    assert!(exit.usage.max_rss_bytes > 3 << 20);
}

/// Kills the VMM when a stop of it was announced, and not yet collected.
#[derive(Default)]
struct Kills {
    pid: Option<u32>,
}

impl Hooks for Kills {
    fn on_stderr(&mut self, _: i64, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let Some(pid) = self.pid else {
            self.pid = text.trim().parse().ok();
            // By its end the VMM has said more, and stopped itself.
            return std::thread::sleep(Duration::from_millis(600));
        };
        let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        assert!(killed.expect("kill").success());
        for _ in 0..100 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with('Z')) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Its end was collected as if it were the stop, and waited for for ever.
#[test]
fn a_vmm_that_is_killed_in_a_stop_has_ended() {
    for mode in [Mode::Traced, Mode::Plain] {
        let stopper = Stopper::new().expect("an eventfd");
        let script = "echo $$ >&2; sleep 0.2; echo more >&2; kill -STOP $$; sleep 100";
        let (plan, options) = (plan(&["/bin/sh", "-c", script]), options(mode));
        let (done, ended) = std::sync::mpsc::channel();
        let launched = std::thread::spawn(move || {
            let exit = launch::run(plan, &options, &stopper, &mut Kills::default());
            let _ = done.send(exit.expect("launched"));
        });
        let exit = ended.recv_timeout(Duration::from_secs(60)).expect("it ended");
        launched.join().expect("joined");
        assert_eq!(exit.status, Status::Signalled { signal: libc::SIGKILL, core: false });
        let ran = exit.total_ns / 1_000_000;
        assert!((600..20_000).contains(&ran), "{mode:?}: {ran} ms");
    }
}

/// Takes its time over looking.
struct Slow(Duration);

impl Hooks for Slow {
    fn on_exiting(&mut self, _: &Tracee) {
        std::thread::sleep(self.0);
    }
}

#[test]
fn what_it_takes_to_look_into_a_vmm_at_its_end_is_no_part_of_the_run() {
    let stopper = Stopper::new().expect("an eventfd");
    let mut slow = Slow(Duration::from_millis(400));
    let exit = launch::run(role("pattern"), &options(Mode::Traced), &stopper, &mut slow);
    let wall = launch::now_ns();
    let exit = exit.expect("launched");
    if !traced(&exit) {
        return;
    }
    assert!(exit.looked_ns >= 400_000_000, "{}", exit.looked_ns);
    assert!(exit.total_ns + exit.looked_ns <= wall - exit.exec_ns, "{exit:?}");
    let at = |name: &str| {
        let moment = exit.moments.iter().find(|(_, moment)| moment.to_string() == name);
        moment.map(|(at, _)| *at).expect("it is there")
    };
    assert_eq!(at("vmm-exit"), exit.total_ns);
    assert!(at("vmm-exiting") <= exit.total_ns);
    let held: i64 = exit.held.iter().map(|(from, to)| to - from).sum();
    assert!(held <= exit.total_ns, "the rest of what it was held for is in it");
}

/// Checks that no thread of the counting program runs while it is looked at.
#[derive(Default)]
struct Frozen {
    looks: u32,
    states: Vec<char>,
}

impl Hooks for Frozen {
    fn on_exiting(&mut self, tracee: &Tracee) {
        self.looks += 1;
        for task in std::fs::read_dir(format!("/proc/{}/task", tracee.pid)).expect("tasks") {
            let stat = std::fs::read_to_string(task.expect("a task").path().join("stat"));
            let stat = stat.expect("its state");
            self.states.extend(stat.rsplit(") ").next().and_then(|s| s.chars().next()));
        }
    }
}

#[test]
fn the_ready_point_stops_every_thread_then_the_process() {
    let stopper = Stopper::new().expect("an eventfd");
    let (read, write) = pipe();
    let mut plan = plan(&["/bin/sh", "-c", "echo ready; exec \"$@\"", "sh"]);
    plan.argv.extend(role("count").argv);
    plan.stdout = Some(write.into());
    let mut frozen = Frozen::default();
    let other = stopper.clone();
    let watch = std::thread::spawn(move || {
        let mut lines = BufReader::new(read).lines();
        // libtest says "running 1 test" when the image is up; two threads count then.
        while let Some(Ok(line)) = lines.next() {
            if line.starts_with("running") {
                other.stop(Reason::ReadyPoint);
            }
        }
        other.stop(Reason::TimedOut);
    });
    let exit = launch::run(plan, &options(Mode::Traced), &stopper, &mut frozen);
    let exit = exit.expect("launched");
    watch.join().expect("joined");
    let End::Stopped { reason: Reason::ReadyPoint, at_ns } = exit.end else {
        panic!("{:?}", exit.end)
    };
    assert_eq!(exit.total_ns, at_ns - exit.exec_ns, "the ready point is the end");
    assert_eq!(exit.status, Status::Signalled { signal: libc::SIGTERM, core: false });
    if traced(&exit) {
        assert_eq!(frozen.looks, 1);
        assert!(frozen.states.iter().all(|s| *s == 't'), "{:?}", frozen.states);
    }
}

#[test]
fn a_deaf_vmm_is_killed_after_the_grace() {
    for mode in [Mode::Plain, Mode::Traced] {
        let options = Options {
            mode,
            timeout: Some(Duration::from_millis(200)),
            grace: Duration::from_millis(50),
            ..Options::default()
        };
        let stopper = Stopper::new().expect("an eventfd");
        // Also left behind by the wrapper: a child in its process group.
        let plan = plan(&["/bin/sh", "-c", "trap '' TERM; sleep 1000 & wait; wait; sleep 1000"]);
        let exit = launch::run(plan, &options, &stopper, &mut NoHooks).expect("launched");
        assert_eq!(exit.status, Status::Signalled { signal: libc::SIGKILL, core: false });
        assert!(matches!(exit.end, End::Stopped { reason: Reason::TimedOut, .. }));
    }
}

#[test]
fn a_request_before_the_launch_counts() {
    for mode in [Mode::Plain, Mode::Traced] {
        let stopper = Stopper::new().expect("an eventfd");
        stopper.stop(Reason::Interrupted);
        let exit = launch::run(plan(&["sleep", "1000"]), &options(mode), &stopper, &mut NoHooks);
        let exit = exit.expect("launched");
        assert!(matches!(exit.end, End::Stopped { reason: Reason::Interrupted, .. }));
        assert!(matches!(exit.status, Status::Signalled { .. }));
    }
}

#[test]
fn group_stops_are_left_alone() {
    let script = "(kill -STOP $$; kill -CONT $$) & wait; kill -STOP $$ & wait; exit 5";
    let stopper = Stopper::new().expect("an eventfd");
    let options = Options { timeout: Some(Duration::from_secs(2)), ..options(Mode::Traced) };
    let exit = launch::run(plan(&["/bin/sh", "-c", script]), &options, &stopper, &mut NoHooks);
    let exit = exit.expect("launched");
    // Stopped for good by the second STOP, it is ended by the timeout; or it got
    // as far as `exit` before the signal came.
    let stopped = matches!(exit.end, End::Stopped { reason: Reason::TimedOut, .. });
    assert!(stopped || exit.status == Status::Exited(5), "{exit:?}");
}

#[test]
fn a_signal_ends_it() {
    let exit = run(role("abort"), Mode::Traced);
    assert!(matches!(exit.status, Status::Signalled { signal: libc::SIGABRT, .. }));
    assert!(exit.status.to_string().contains("SIGABRT"));
    if traced(&exit) {
        assert!(moments(&exit).contains(&"vmm-exiting"));
    }
}
