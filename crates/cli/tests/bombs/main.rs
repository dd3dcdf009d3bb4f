//! Files made to exhaust whoever reads them: each is refused within bounds of memory and time,
//! by a message, with exit status 2.

use crate::common;
mod packed;
mod traces;

use common::Lab;
use packed::Form;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use vmeter_base::bounds::TRACE;

/// Most memory that any command may have had at once.
const MOST_BYTES: u64 = 256 << 20;
/// Most time of a CPU; what the clock on the wall says depends on what else runs.
const MOST_CPU: Duration = Duration::from_secs(10);
/// Zeros of a kernel's payload: more than any of its size may unpack to.
const UNPACKED: usize = 96 << 20;

/// What a command took.
struct Cost {
    status: i32,
    stderr: String,
    bytes: u64,
    cpu: Duration,
}

/// The arguments of the command that a process of this test is to measure, a line each.
const MEASURED: &str = "VMETER_TEST_MEASURED";

/// Runs the command that [`MEASURED`] names, and prints its exit status, most memory (KiB) and
/// CPU time (us). In a process of its own, as the kernel counts the memory of whoever executes
/// a program as that program's, and bombs are large while they are made.
#[test]
fn measure() {
    let Ok(arguments) = std::env::var(MEASURED) else { return };
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vmeter"));
    let child = command.args(arguments.lines()).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = child.expect("vmeter runs");
    let pid = rustix::process::Pid::from_child(&child);
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(120)).is_err() {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both pointers are to locals of the types that wait4(2) writes; the child is ours
    // and nobody else waits for it.
    let (waited, usage) = unsafe {
        let pid = child.id() as libc::pid_t;
        (libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()), usage.assume_init())
    };
    // It has ended by itself, if the guard is still there.
    let _ = done.send(());
    guard.join().expect("joined");
    // There is nothing left to wait for, which only this says to the library.
    let _ = child.wait();
    assert_eq!(waited, child.id() as libc::pid_t);
    let us = |t: libc::timeval| t.tv_sec * 1_000_000 + t.tv_usec;
    let status = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 };
    let cpu = us(usage.ru_utime) + us(usage.ru_stime);
    println!("\nmeasured {status} {} {cpu}", usage.ru_maxrss);
}

fn cost(lab: &Lab, arguments: &[&str]) -> Cost {
    let own = std::env::current_exe().expect("this test");
    let ran = std::process::Command::new(own)
        .args(["--exact", "bombs::measure", "--nocapture"])
        .env(MEASURED, arguments.join("\n"))
        .env("XDG_STATE_HOME", lab.folder.path())
        .env("TMPDIR", lab.folder.path())
        .output()
        .expect("this test");
    let stdout = String::from_utf8_lossy(&ran.stdout);
    let line = stdout.lines().find_map(|line| line.strip_prefix("measured "));
    let numbers = line.unwrap_or_else(|| panic!("{stdout}")).split(' ');
    let numbers: Vec<i64> = numbers.map(|n| n.parse().expect("a number")).collect();
    Cost {
        status: numbers[0] as i32,
        stderr: String::from_utf8_lossy(&ran.stderr).into_owned(),
        bytes: numbers[1] as u64 * 1024,
        cpu: Duration::from_micros(numbers[2] as u64),
    }
}

/// Runs a command, ended after two minutes, and checks its bounds.
fn bounded(lab: &Lab, what: &str, arguments: &[&str]) -> Cost {
    let cost = cost(lab, arguments);
    println!(
        "{what}: {:?}: exit {}, {} MiB, {:.2} s CPU: {}",
        &arguments[..2],
        cost.status,
        cost.bytes >> 20,
        cost.cpu.as_secs_f64(),
        cost.stderr.lines().next().unwrap_or_default()
    );
    assert!(cost.bytes <= MOST_BYTES, "{what}: {} bytes", cost.bytes);
    assert!(cost.cpu <= MOST_CPU, "{what}: {:?}", cost.cpu);
    cost
}

fn refused(lab: &Lab, what: &str, arguments: &[&str], says: &str) {
    let cost = bounded(lab, what, arguments);
    assert_eq!(cost.status, 2, "{what}: {}", cost.stderr);
    assert!(cost.stderr.contains(says), "{what}: expected {says:?} in {}", cost.stderr);
    assert!(cost.stderr.len() < 2000, "{what}: {}", cost.stderr);
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// In the ordinary tests the first bomb takes each form and the others that which unpacks
/// quickest in a debug build; in the long ones each takes each.
#[test]
fn packed_traces_are_refused_within_bounds() {
    let lab = Lab::new();
    for (number, bomb) in traces::bombs().iter().enumerate() {
        for form in Form::TRACES {
            if !common::is_long() && number > 0 && form != Form::Zst {
                continue;
            }
            let path = lab.path("bomb");
            let bytes = form.bomb(&bomb.head, &bomb.body, TRACE.unpacked).expect("it packs well");
            std::fs::write(&path, &bytes).expect("scratch space");
            let what = format!("{} as {form:?}, {} bytes", bomb.name, bytes.len());
            refused(&lab, &what, &["trace", "stat", text(&path)], bomb.says);
        }
    }
}

/// A long bomb is known for one at its beginning: what it would take does not grow with it.
#[test]
fn a_long_bomb_of_text_is_refused_as_soon_as_a_short_one() {
    let lab = Lab::new();
    let path = lab.path("bomb");
    for bomb in traces::bombs().iter().filter(|bomb| ["ftrace text", "strace"].contains(&bomb.name))
    {
        let mut bytes = Form::Zst.bomb(&bomb.head, &bomb.body, TRACE.unpacked).expect("packs well");
        bytes = bytes.repeat((17 << 20) / bytes.len() + 1);
        std::fs::write(&path, &bytes).expect("scratch space");
        let what = format!("{}, {} MB", bomb.name, bytes.len() / 1_000_000);
        refused(&lab, &what, &["trace", "stat", text(&path)], bomb.says);
    }
}

#[test]
fn every_command_that_reads_traces_refuses_a_bomb() {
    let lab = Lab::new();
    let (path, out) = (lab.path("bomb"), lab.path("out.csv"));
    for bomb in traces::bombs() {
        if !["strace", "names of 8 GB"].contains(&bomb.name) {
            continue;
        }
        let bytes = Form::Zst.bomb(&bomb.head, &bomb.body, TRACE.unpacked).expect("packs well");
        std::fs::write(&path, &bytes).expect("scratch space");
        let file = text(&path);
        for arguments in [
            &["trace", "report", file][..],
            &["trace", "convert", file, "-o", text(&out)],
            &["trace", "stat", file, "--vs", file],
            &["explain", file],
        ] {
            refused(&lab, bomb.name, arguments, "more than");
            assert!(!out.exists(), "nothing is converted by halves");
        }
    }
}

#[test]
fn sparse_traces_and_bombs_inside_of_traces_are_refused_within_bounds() {
    let lab = Lab::new();
    let path = lab.path("trace");
    for (name, head) in traces::claims() {
        traces::sparse(&path, &head, 10 << 30);
        let cost = bounded(&lab, &format!("{name}, sparse"), &["trace", "stat", text(&path)]);
        // A list of options that ends at once is a trace without CPUs.
        let ends = name == "options without end";
        assert_eq!(cost.status, if ends { cost.status } else { 2 }, "{name}: {}", cost.stderr);
    }
    std::fs::write(&path, traces::chunks(2000, 16 << 20)).expect("scratch space");
    refused(&lab, "32 GB in chunks", &["trace", "stat", text(&path)], "unpacks to more than");
    std::fs::write(&path, traces::overlapping(8192, 4 << 20)).expect("scratch space");
    let cost = bounded(&lab, "8192 CPUs of the same pages", &["trace", "stat", text(&path)]);
    assert_eq!(cost.status, 0, "{}", cost.stderr);
}

/// Bytes of a bzImage with a payload (the kernel's Documentation/arch/x86/boot.rst).
fn bz_image(payload: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 1024];
    image[0x1f1] = 1;
    image[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
    image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    image.extend(payload);
    image
}

#[test]
fn packed_kernels_are_refused_within_bounds() {
    let lab = Lab::new();
    let kernel = lab.path("kernel");
    let forms = [Form::Xz, Form::Zst, Form::Gz, Form::Lzma, Form::Bz2, Form::Lz4];
    for form in forms.into_iter().take(common::amount(2, forms.len())) {
        let payload = form.stream(b"\x7fELF\x02\x01\x01", UNPACKED);
        std::fs::write(&kernel, bz_image(&payload)).expect("scratch space");
        let what = format!("a kernel as {form:?}, {} bytes", payload.len());
        let boot = ["boot", "--machine", "pvh", "--accel", "tcg", "--kernel", text(&kernel)];
        refused(&lab, &what, &boot, "unpacks to more than");
    }
    traces::sparse(&kernel, b"\x7fELF\x02\x01\x01", (1 << 30) - 1);
    let boot = ["boot", "--machine", "pvh", "--accel", "tcg", "--kernel", text(&kernel)];
    refused(&lab, "a sparse kernel", &boot, "reading the contents of this file needs more than");
}

/// A row of what a user can name and what is no file: FIFOs, devices, folders.
#[test]
fn what_is_no_file_is_refused_at_once() {
    let lab = Lab::new();
    let fifo = lab.path("fifo");
    make_fifo(&fifo);
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/trace");
    let trace = trace.join("small.ftrace.txt");
    for (file, says) in
        [(text(&fifo), "a FIFO"), ("/dev/zero", "a device"), (text(lab.folder.path()), "director")]
    {
        for arguments in [
            &["trace", "stat", text(&trace), "--mtree", file][..],
            &["explain", text(&trace), "--mtree", file],
            &["dirty", "--slots", file],
            &["boot", "--accel", "tcg", "--kernel", file],
            &["boot", "--accel", "tcg", "--initrd", file],
        ] {
            refused(&lab, file, arguments, says);
        }
    }
    refused(&lab, "a device as a trace", &["trace", "stat", "/dev/zero"], "a device");
}

#[test]
fn numbers_and_lists_are_bounded() {
    let lab = Lab::new();
    for arguments in [
        &["boot", "--vmm", "mock", "--warmup", "4294967295"][..],
        &["bench", "--vmm", "mock", "--warmup", "100001"],
        &["boot", "--vmm", "mock", "--pin", "0,8191"],
        &["sweep", "--vmm", "mock", "-P", "smp=0..1000000000"],
        &["sweep", "--vmm", "mock", "-P", "pcie-root-ports=0..9998", "--runs", "100000"],
    ] {
        let cost = bounded(&lab, "numbers", arguments);
        assert_eq!(cost.status, 2, "{arguments:?}: {}", cost.stderr);
    }
}

/// Unpacks the saved sessions.
fn sessions(to: &Path) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sessions");
    let archive = archive.join("saved.tar.gz");
    std::fs::create_dir_all(to).expect("scratch space");
    let tar = std::process::Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(to).status();
    assert!(tar.expect("tar").success());
}

fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).expect("a FIFO");
}

#[test]
fn a_fifo_or_a_hole_in_a_run_folder_holds_nobody_up() {
    let lab = Lab::new();
    sessions(&lab.path("vmeter/runs"));
    let session = lab.path("vmeter/runs/boot-icount");
    let mut files = vec![session.join("session.json")];
    let run = std::fs::read_dir(session.join("runs/0000")).expect("a run").flatten();
    files.extend(run.map(|entry| entry.path()));
    assert!(files.len() > 6, "{files:?}");
    for file in files {
        let whole = std::fs::read(&file).expect("a file");
        std::fs::remove_file(&file).expect("removed");
        make_fifo(&file);
        let what = format!("{} a FIFO", file.display());
        let cost = bounded(&lab, &what, &["show", text(&session)]);
        assert!(matches!(cost.status, 0 | 2), "{what}: {}", cost.stderr);
        let json = file.extension().is_some_and(|e| e == "json");
        if json {
            let cost = bounded(&lab, &what, &["runs", "list"]);
            assert_eq!(cost.status, 0, "{what}: {}", cost.stderr);
            let listed = lab.run(&["runs", "list"]).stdout;
            assert!(listed.contains("boot-tcg"), "one bad session hides no other: {listed}");
        }
        std::fs::remove_file(&file).expect("removed");
        traces::sparse(&file, &whole[..whole.len().min(64)], 20 << 30);
        let what = format!("{} of 20 GB", file.display());
        let cost = bounded(&lab, &what, &["show", text(&session)]);
        assert!(matches!(cost.status, 0 | 2), "{what}: {}", cost.stderr);
        std::fs::remove_file(&file).expect("removed");
        std::fs::write(&file, whole).expect("mended");
    }
}

/// A FIFO without a writer, or a reader, may stay so.
#[test]
fn a_fifo_in_a_traces_or_an_exports_place_is_refused() {
    let lab = Lab::new();
    sessions(&lab.path("all"));
    let (fifo, session) = (lab.path("fifo"), lab.path("all/boot"));
    make_fifo(&fifo);
    let (fifo, session) = (text(&fifo), text(&session));
    for command in [
        &["trace", "stat", fifo][..],
        &["trace", "convert", fifo, "-o", "out.jsonl"],
        &["explain", fifo],
        &["show", session, "--export-json", fifo],
    ] {
        let cost = bounded(&lab, "a FIFO", command);
        assert_ne!(cost.status, 0, "{command:?}");
        assert!(
            cost.stderr.contains("FIFO") || cost.stderr.contains("no process reads"),
            "{}",
            cost.stderr
        );
    }
}

#[test]
fn an_impossible_total_is_left_out_and_said() {
    let lab = Lab::new();
    sessions(&lab.path("all"));
    let session = lab.path("all/boot");
    for total in ["0", "-5", "9223372036854775807"] {
        let file = session.join("runs/0001/run.json");
        let whole = std::fs::read_to_string(&file).expect("a run");
        let mut run: serde_json::Value = serde_json::from_str(&whole).expect("JSON");
        run["total_ns"] = serde_json::from_str(total).expect("a number");
        std::fs::write(&file, run.to_string()).expect("scratch space");
        let shown = lab.run(&["show", text(&session)]);
        assert_eq!(shown.status, 0, "{}", shown.stderr);
        let said = format!("{}{}", shown.stdout, shown.stderr);
        let said = common::one_line(&said);
        assert!(said.contains(&format!("its duration of {total} ns is impossible")), "{said}");
        std::fs::write(&file, whole).expect("mended");
    }
}

#[test]
fn a_file_too_large_for_ulimit_is_an_error_and_leaves_nothing() {
    let lab = Lab::new();
    sessions(&lab.path("all"));
    let (session, out) = (lab.path("all/boot-tcg"), lab.path("out"));
    std::fs::create_dir(&out).expect("scratch space");
    let line = format!(
        "ulimit -f 1; exec {} report {} -o {}",
        env!("CARGO_BIN_EXE_vmeter"),
        text(&session),
        text(&out.join("page.html"))
    );
    let ran = std::process::Command::new("bash").args(["-c", &line]).output().expect("bash");
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("too large"), "{stderr}");
    assert_eq!(std::fs::read_dir(&out).expect("a folder").count(), 0);
}

#[test]
fn a_million_threads_fill_no_terminal() {
    use std::fmt::Write as _;
    let lab = Lab::new();
    let mut events = String::new();
    for i in 0..100_000u32 {
        let (cpu, tid, us) = (i % 100_000, i + 1, i % 1_000_000);
        let _ = writeln!(events, "   a-{tid}  [{cpu:03}] d..1.   1.{us:06}: kvm_exit: reason io rip 0x1 info1 0x3f80010 info2 0");
        let _ = writeln!(
            events,
            "   a-{tid}  [{cpu:03}] d..1.   2.{us:06}: kvm_entry: vcpu {i}, rip 0xf"
        );
    }
    let path = lab.path("trace.txt");
    std::fs::write(&path, events).expect("scratch space");
    for command in [&["explain", text(&path)][..], &["trace", "stat", text(&path)]] {
        bounded(&lab, "a million threads", command);
        let ran = lab.run(command);
        assert!(ran.stdout.len() < 100_000, "{command:?}: {} bytes", ran.stdout.len());
        assert!(ran.stderr.len() < 10_000, "{command:?}: {} bytes", ran.stderr.len());
    }
}

/// What time and bytes that go wrong leave of the rest is read, and said.
#[test]
fn time_that_goes_back_and_bytes_that_are_no_text_are_said() {
    let lab = Lab::new();
    let path = lab.path("trace.txt");
    let line = |second: u32, rest: &str| {
        format!("   a-1  [000] d..1.  {second}.000000: kvm_exit: reason io{rest}\n").into_bytes()
    };
    let mut bytes = [line(9, ""), line(5, ""), line(6, "")].concat();
    bytes.extend(b"   a-1  [000] d..1.  7.000000: kvm_exit: reason \xff\xfe hlt rip 0x1\n");
    std::fs::write(&path, bytes).expect("scratch space");
    let ran = lab.run(&["trace", "report", text(&path)]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("time stamps go backwards at 1 events"), "{}", ran.stderr);
    assert!(ran.stderr.contains("1 lines hold bytes that are not UTF-8"), "{}", ran.stderr);
    assert!(ran.stdout.contains("rip 0x1"), "{}", ran.stdout);
    let stat = lab.run(&["trace", "stat", text(&path)]);
    assert!(format!("{}{}", stat.stdout, stat.stderr).contains("backwards"));
}
