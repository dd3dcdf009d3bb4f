//! `vmeter look`: a VM that runs already, against a watched boot of the same guest; what is no VM, or
//! has no kernel yet; and what a look leaves in a VMM.

use crate::common;

use common::{has_qemu, kernel, text, Lab};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use vmeter_kernel_image::ftrace::{Decoded, FtraceDump, FtraceKind};
use vmeter_kernel_image::printk::{PrintkDump, PrintkRecord};
use vmeter_record::look::Vmm;

const PATIENCE: Duration = Duration::from_secs(120);

/// One guest at a time: a look at one that shares its CPUs with another's may come after its end.
static GUESTS: Mutex<()> = Mutex::new(());

/// A process that is ended with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The QEMU that has a word on its command line.
fn qemu_with(word: &str) -> Option<i32> {
    let entries = std::fs::read_dir("/proc").expect("proc(5)").flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let argv = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let argv = String::from_utf8_lossy(&argv).into_owned();
        argv.split('\0').next().is_some_and(|first| first.contains("qemu-system"))
            && argv.contains(word)
    })
}

/// Where each span that a run has once begins and ends on the host's clock, and its error, s.
fn on_the_host(run: &Value) -> BTreeMap<String, (f64, f64, f64)> {
    let from = run["exec_monotonic_ns"].as_f64().expect("ns") / 1e9;
    let (mut once, mut twice) = (BTreeMap::new(), Vec::new());
    for span in run["spans"].as_array().expect("spans") {
        let at = |field: &str| span[field].as_f64().expect("s");
        let name = span["name"].as_str().expect("a name").to_owned();
        let place = (from + at("start_s"), from + at("end_s"), at("error_s"));
        if once.insert(name.clone(), place).is_some() {
            twice.push(name);
        }
    }
    once.retain(|name, _| !twice.contains(name));
    once
}

/// Follows a guest from before its kernel to its init, and looks; then follows it to its end.
#[test]
fn a_look_says_what_a_watched_boot_of_the_same_guest_says() {
    if kernel().is_none() {
        return;
    }
    let _alone = GUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let (watched, looked) = (lab.path("watched"), lab.path("looked"));
    let boot = ["boot", "--accel", "tcg", "--memory", "256", "--warmup", "0", "--runs", "1", "-q"];
    let guest = ["--append", "vmeter.sleep=nap:8000 cryptomgr.notests", "--save", text(&watched)];
    let mut boot = lab.command(&[&boot[..], &guest].concat());
    let mut boot = Ended(boot.stdout(Stdio::null()).spawn().expect("vmeter runs"));
    let begun = Instant::now();
    let pid = loop {
        match qemu_with(text(&watched)) {
            Some(pid) => break pid.to_string(),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
        assert!(begun.elapsed() < PATIENCE, "no VMM");
    };
    let options = ["--follow", "--until", "userspace", "--save", text(&looked)];
    let ran: common::Ran =
        lab.command(&[&["look", &pid], &options[..]].concat()).output().expect("vmeter").into();
    if ran.stderr.contains("this user may not read the memory") {
        return eprintln!("skipped: {}", ran.stderr);
    }
    assert_eq!(ran.status, 0, "{}\n{}", ran.stderr, ran.stdout);
    assert!(
        ran.stdout.contains("Linux version ") && ran.stderr.contains("of a CPU"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stdout.contains("from the start of the guest's clock to user space"),
        "{}",
        ran.stdout
    );
    let ends: common::Ran =
        lab.command(&["look", &pid, "--follow"]).output().expect("vmeter").into();
    assert!(ends.status == 0 && ends.stderr.contains("followed for"), "{}", ends.stderr);
    assert!(boot.0.wait().expect("vmeter").success());
    is_alike(&lab.json(&["show", text(&watched)]), &lab.json(&["show", text(&looked)]));
}

/// Spans of both are where the other has them, within what both say that they are off by.
fn is_alike(watched: &Value, looked: &Value) {
    assert_eq!(
        (&looked["command"], &looked["runs"][0]["origin"]),
        (&"look".into(), &"look".into())
    );
    let run = &looked["runs"][0];
    let phases: Vec<&str> = run["phases"]
        .as_array()
        .expect("phases")
        .iter()
        .map(|p| p["name"].as_str().expect("a name"))
        .collect();
    let before = phases.iter().find(|name| name.starts_with("vmm:") || name.starts_with("bios:"));
    assert!(
        before.is_none() && phases.contains(&"kernel:initcalls-before-userspace"),
        "{phases:?} {} {}",
        run["sources"],
        run["warnings"]
    );
    let (of_boot, of_look) = (on_the_host(&watched["runs"][0]), on_the_host(run));
    let error = run["sources"][0]["error_s"].as_f64().expect("s");
    let both = of_boot.iter().filter_map(|(name, boot)| Some((name, boot, of_look.get(name)?)));
    // What a run begins or ends within is cut there.
    let both: Vec<_> = both.filter(|(name, ..)| name.starts_with("initcall ")).collect();
    let off = |a: f64, b: f64| (a - b).abs();
    let most = both.iter().map(|(_, a, b)| off(a.0, b.0).max(off(a.1, b.1))).fold(0.0, f64::max);
    eprintln!(
        "{} initcalls in both, at most {most:.6} s apart; look is off by {error:.6} s",
        both.len()
    );
    assert!(both.len() > 300, "{}", both.len());
    for (name, boot, look) in both {
        let allowed = boot.2 + look.2 + 1e-6;
        let apart = off(boot.0, look.0).max(off(boot.1, look.1));
        assert!(apart <= allowed.max(PREEMPTED_S), "{name}: {apart} s apart, {allowed} s allowed");
    }
    assert!(error < 0.1, "{error}");
}

/// The watched boot takes the begin of the guest's TSC from an event of QEMU's, which a host that
/// takes its CPU away just there delays.
const PREEMPTED_S: f64 = 0.01;

/// 512-byte blocks of the files of RAM that a process has, and its KiB in RAM.
fn held(pid: u32) -> (u64, u64) {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    let of_memfd = |path: &Path| {
        let target = std::fs::read_link(path).ok()?;
        target.to_str()?.contains("memfd:").then(|| std::fs::metadata(path).ok()).flatten()
    };
    let blocks = files.filter_map(|file| Some(of_memfd(&file.path())?.blocks())).sum();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    (blocks, rss.trim().trim_end_matches(" kB").parse().expect("KiB"))
}

#[test]
fn a_vmm_without_a_kernel_is_told_so_and_grows_by_nothing() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::new();
    let memfd = [
        "-object",
        "memory-backend-memfd,id=ram,size=4G,share=on",
        "-machine",
        "memory-backend=ram",
    ];
    for (number, more) in [&[][..], &memfd].into_iter().enumerate() {
        let name = format!("vmeter-test-{}-{number}", std::process::id());
        let child = Command::new("qemu-system-x86_64")
            .args(["-name", &format!("guest={name}"), "-accel", "tcg", "-S", "-m", "4096"])
            .args(["-nodefaults", "-display", "none"])
            .args(more)
            .stdin(Stdio::null())
            .spawn();
        let vmm = Ended(child.expect("QEMU"));
        let mut before = held(vmm.0.id());
        // Until it has come to its rest.
        let begun = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = held(vmm.0.id());
            if now == before && begun.elapsed() > Duration::from_secs(1) {
                break;
            }
            before = now;
        }
        let ran = lab.run(&["look", &format!("libvirt:{name}")]);
        if ran.stderr.contains("this user may not read the memory") {
            return eprintln!("skipped: {}", ran.stderr);
        }
        assert_eq!(ran.status, 3, "{}", ran.stderr);
        assert!(ran.stderr.contains("found no Linux kernel in the guest's RAM"), "{}", ran.stderr);
        let after = held(vmm.0.id());
        assert_eq!(after.0, before.0, "blocks of a file of RAM");
        assert!(after.1 < before.1 + 1024, "{before:?} {after:?}");
        let runs = std::fs::read_dir(lab.path("vmeter/runs")).into_iter().flatten().count();
        assert_eq!(runs, 0, "nothing is left of a look that found nothing");
    }
}

#[test]
fn what_is_no_vm_is_told_with_the_next_step() {
    let lab = Lab::new();
    let own = std::process::id().to_string();
    let cases: [(&[&str], i32, &str); 8] = [
        (&["look"], 2, "PID|libvirt:NAME"),
        (&["look", "web"], 2, "expected the pid of a VMM, or libvirt:NAME"),
        (&["look", "999999999"], 3, "no process has the number 999999999"),
        (&["look", "libvirt:vmeter-none"], 3, "virsh list"),
        (&["look", &own], 3, "is no VMM that vmeter knows"),
        (&["look", &own, "--until", "poweroff"], 2, "userspace, systemd-ready or line:REGEX"),
        (&["look", &own, "--until", "line:["], 2, "expected a regular expression"),
        (&["look", &own, "--follow", "--export-json", "-"], 2, "export to a file"),
    ];
    for (arguments, status, words) in cases {
        let ran = lab.run(arguments);
        assert_eq!(ran.status, status, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
    }
}

/// Its first program logs, and executes, as fast as it can: each line has its number twice and the time, each file
/// its number.
const AT_FULL_SPEED: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc p /proc
/bin/busybox mount -t devtmpfs d /dev
(n=0; while :; do
  n=$((n + 1)); read up rest < /proc/uptime; pad=${pad}x; [ ${#pad} -gt 200 ] && pad=
  echo \"count $n at $up $pad $n.\" > /dev/kmsg
done) &
while :; do for n in 0 1 2 3 4 5 6 7 8 9; do /bin/$n; done; done
";

/// A guest at full speed on two vCPUs, whose rings have long wrapped.
fn guest_at_full_speed(lab: &Lab, kernel: &Path) -> Option<Ended> {
    let busybox = Path::new("/bin/busybox");
    let is_static = Command::new("ldd").arg(busybox).output().is_ok_and(|o| !o.status.success());
    if !busybox.exists() || !is_static {
        eprintln!("skipped: needs busybox-static");
        return None;
    }
    let init = lab.script("fast", AT_FULL_SPEED);
    let mut files = vec![format!("/fast={}", text(&init))];
    let nothing = lab.script("nothing", "#!/bin/busybox true\n");
    files.extend((0..10).map(|n| format!("/bin/{n}={}", text(&nothing))));
    files.push("/bin/busybox=/bin/busybox".into());
    let initrd = lab.path("fast.cpio");
    let mut all = vec!["appliance", "build", "-o", text(&initrd)];
    all.extend(files.iter().flat_map(|file| ["--file", file]));
    let ran = lab.run(&all);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let words = "console=ttyS0 quiet rdinit=/fast printk.devkmsg=on trace_buf_size=64K trace_clock=x86-tsc \
                 trace_event=sched:sched_process_exec,sched:sched_process_exit,sched:sched_switch";
    let child = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg", "-smp", "2", "-m", "256", "-nodefaults", "-display", "none"])
        .args(["-kernel", text(kernel), "-initrd", text(&initrd), "-append", words])
        .stdin(Stdio::null())
        .spawn();
    Some(Ended(child.expect("QEMU")))
}

/// What a line of that guest's says, checked in all its parts; none of another line.
fn counted(record: &PrintkRecord) -> Option<u64> {
    let rest = record.text.strip_prefix("count ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let whole = match words[..] {
        [n, "at", up, pad, last] if pad.bytes().all(|b| b == b'x') && pad.len() <= 200 => {
            let (n, up): (u64, f64) = (n.parse().expect("a number"), up.parse().expect("s"));
            let late = record.ts_ns as f64 / 1e9 - up;
            // /proc/uptime began a little before the log's clock, and a guest's process waits for its CPU.
            assert!(late > -1.0 && late < 5.0, "{late} s: {record:?}");
            (last == format!("{n}.")).then_some(n)
        }
        _ => None,
    };
    Some(whole.unwrap_or_else(|| panic!("torn: {record:?}")))
}

/// Lines of the log are whole, in order and without a hole but for those that are counted as torn.
fn is_whole(log: &PrintkDump) -> usize {
    let records = log.records();
    let holes: u64 = records.windows(2).map(|two| two[1].seq - two[0].seq - 1).sum();
    assert!(holes <= log.torn(), "{holes} holes, {} torn", log.torn());
    assert!(records.windows(2).all(|two| two[0].ts_ns <= two[1].ts_ns));
    let numbers: Vec<(u64, u64)> =
        records.iter().filter_map(|record| Some((record.seq, counted(record)?))).collect();
    let others = |from: u64, to: u64| {
        records.iter().filter(|r| r.seq > from && r.seq < to && counted(r).is_none()).count() as u64
    };
    for two in numbers.windows(2) {
        let [(seq, n), (next_seq, next)] = [two[0], two[1]];
        assert_eq!(next_seq - seq - others(seq, next_seq), next - n, "{two:?}");
    }
    numbers.len()
}

/// Executed files follow one another as they do in the guest, but where a page was lost or overwritten.
fn follows(trace: &Decoded) -> usize {
    let numbers: Vec<u64> = trace
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            FtraceKind::ProcessExec { file, .. } => file.strip_prefix("/bin/")?.parse().ok(),
            _ => None,
        })
        .collect();
    let gaps = numbers.windows(2).filter(|two| two[1] != (two[0] + 1) % 10).count();
    // Each CPU's ring begins somewhere of its own, and one page of each may be lost.
    assert!(gaps <= 8, "{gaps} gaps in {numbers:?}");
    assert_eq!(trace.damaged_pages, 0);
    numbers.len()
}

/// Its rings are read while it writes them as fast as it can; the VMM grows by nothing that the guest does not use.
#[test]
fn a_guest_at_full_speed_is_read_whole() {
    let Some((_, image)) = kernel() else { return };
    let _alone = GUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let Some(guest) = guest_at_full_speed(&lab, &image) else { return };
    let vmm = Vmm::of(guest.0.id() as i32).expect("it runs");
    let cache = lab.path("cache");
    std::fs::create_dir_all(&cache).expect("scratch space");
    let begun = Instant::now();
    let read = || {
        let mut looked = vmeter_record::look::find(&vmm, &cache, &cache).ok()?;
        let both = looked.kernel.look_into(&looked.tracee, |guest| {
            Ok((PrintkDump::take(guest)?, FtraceDump::take(guest)?))
        });
        both.ok()
    };
    let wrapped = |(log, trace): &(PrintkDump, FtraceDump)| {
        log.records().first().is_some_and(|first| first.seq > 1000) && trace.decode().lost > 0
    };
    while !read().is_some_and(|both| wrapped(&both)) {
        assert!(begun.elapsed() < PATIENCE, "its rings did not wrap");
        std::thread::sleep(Duration::from_millis(200));
    }
    let mut looked = vmeter_record::look::find(&vmm, &cache, &cache).expect("a kernel");
    let (_, before) = held(guest.0.id());
    let (mut lines, mut execs, mut torn, mut failed) = (0, 0, [0, 0], 0);
    let reads = common::amount(50, 1000);
    for _ in 0..reads {
        let both = looked.kernel.look_into(&looked.tracee, |guest| {
            Ok((PrintkDump::take(guest)?, FtraceDump::take(guest)?))
        });
        let Ok((log, trace)) = both else {
            failed += 1;
            continue;
        };
        lines += is_whole(&log);
        execs += follows(&trace.decode());
        torn = [torn[0] + log.torn(), torn[1] + trace.torn()];
    }
    let (_, after) = held(guest.0.id());
    eprintln!(
        "{reads} reads, {failed} failed: {lines} lines and {execs} execs; torn and left out: {} records, {} \
         pages; the VMM has {} KiB more",
        torn[0],
        torn[1],
        after.saturating_sub(before)
    );
    assert!(lines > 100 * reads && execs > reads, "{lines} lines, {execs} execs");
    assert!(failed * 20 <= reads, "{failed} reads failed");
}
