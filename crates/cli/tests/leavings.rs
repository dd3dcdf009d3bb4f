//! vmeter is killed with -9 at any moment: nothing of it stays, and what was finished stands.

use crate::common;
use crate::repository;
use crate::sources;

use common::{amount, finished, kernel, signal, text, Lab, Ran};
use repository::{build, mock_guest, repository};
use sources::{has_make, Sources};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long the guard may take.
const SOON: Duration = Duration::from_secs(20);
/// A QEMU in a wrapper that does not execute it: what `PR_SET_PDEATHSIG` does not reach. Only
/// the wrapper ends it, as all that is started here: where that is killed it stays for ever.
const WRAPPED: &str =
    "qemu-system-x86_64 -S -M pc -m 16 -display none & sleep 0.4; kill -9 $!; wait; true";
/// A command that ends what it has begun only while its vmeter lives.
const HELPER: &str = "sleep 1000 & sleep 0.3; kill -0 $PPID && kill $!; wait";

/// All that a vmeter could leave on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Host {
    processes: BTreeSet<String>,
    instances: BTreeSet<PathBuf>,
    uprobes: String,
    mounts: String,
    temporary: BTreeSet<PathBuf>,
    shared_memory: BTreeSet<PathBuf>,
    /// In vmeter's own folders, and in the session's.
    unfinished: BTreeSet<PathBuf>,
}

fn names(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Below a folder, at so many levels, what is not finished: named after a vmeter, or by chance.
fn unfinished(folder: &Path, own: &str, depth: usize) -> BTreeSet<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.contains(own) || name.starts_with(".tmp")
    };
    let (mut found, others): (BTreeSet<PathBuf>, BTreeSet<PathBuf>) =
        names(folder).into_iter().partition(is_one);
    for below in others.iter().filter(|_| depth > 1) {
        found.extend(unfinished(below, own, depth - 1));
    }
    found
}

fn cache() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let own = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    own.unwrap_or_default().join("vmeter")
}

fn named(folder: &str, part: &str) -> BTreeSet<PathBuf> {
    let all = names(Path::new(folder)).into_iter();
    all.filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().contains(part)))
        .collect()
}

/// Processes that have the lab's folder of temporary files in their environment: all that its
/// vmeter starts, its guard among it.
fn processes(lab: &Lab) -> BTreeSet<String> {
    let tag = format!("TMPDIR={}", text(&lab.path("tmp")));
    let of_ours = |path: &PathBuf| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == tag.as_bytes())
    };
    let described = |path: PathBuf| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        format!("{} {}", path.display(), String::from_utf8_lossy(&line).replace('\0', " "))
    };
    names(Path::new("/proc")).into_iter().filter(of_ours).map(described).collect()
}

/// What is there now, of a vmeter with this process id. Others may be at work on this host.
fn host(lab: &Lab, pid: u32) -> Host {
    let own = format!("vmeter-{pid}-");
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    Host {
        processes: processes(lab),
        instances: named("/sys/kernel/tracing/instances", &own),
        uprobes: read("/sys/kernel/tracing/uprobe_events"),
        mounts: read("/proc/self/mounts"),
        temporary: names(&lab.path("tmp")),
        shared_memory: named("/dev/shm", "vmeter"),
        unfinished: [(cache(), 2), (lab.path("cache"), 3), (lab.path("vmeter"), 3)]
            .iter()
            .flat_map(|(folder, depth)| unfinished(folder, &own, *depth))
            .collect(),
    }
}

fn started(lab: &Lab, case: &Case, arguments: &[String]) -> Child {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = lab.command(&words);
    command.env("TMPDIR", lab.path("tmp")).envs(case.environment.iter().cloned());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("vmeter runs")
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Where a command saves a session that can be gone on with.
#[derive(Clone, Copy, PartialEq)]
enum Saves {
    /// In the folder `session` of the lab.
    There,
    /// Among the user's sessions, of this kind.
    Among(&'static str),
    Nothing,
}

/// A command, and what becomes of it.
struct Case {
    arguments: Vec<String>,
    saves: Saves,
    /// In which it is killed, from its start, s.
    within_s: f64,
    environment: Vec<(&'static str, String)>,
}

fn wrapped(before: &str) -> Vec<String> {
    let mut all = words(before);
    all.extend(["--", "bash", "-c", WRAPPED].map(str::to_owned));
    all
}

/// A small experiment of each command; none where this host can't do it.
fn case(name: &'static str, lab: &Lab) -> Option<Case> {
    let with = |saves, arguments: Vec<String>, within_s| {
        Some(Case { arguments, saves, within_s, environment: Vec::new() })
    };
    let case = |arguments, within_s| with(Saves::There, arguments, within_s);
    let loud = |arguments, within_s| with(Saves::Nothing, arguments, within_s);
    let tracefs =
        vmeter_tracefs::Tracefs::find().is_ok() && vmeter_tracefs::Tracefs::same_processes();
    let kvm = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    match name {
        "boot" => {
            kernel()?;
            case(words("boot --warmup 0 --runs 2 --accel tcg"), 12.0)
        }
        "boot full" => {
            kernel()?;
            case(words("boot --warmup 0 --runs 1 --accel tcg --watch full"), 12.0)
        }
        "boot wrapped" => case(wrapped("boot --warmup 0 --runs 4"), 2.5),
        "boot firecracker" => {
            let (_, kernel) = kernel()?;
            let line = "#!/bin/sh\n[ \"$1\" = --version ] && exec echo 'Firecracker v1.12.0'\n\
                        sleep 0.4 & wait; echo 'vmeter: ready'\n";
            let (vmm, config) = (lab.script("firecracker", line), lab.path("vm.json"));
            let source = serde_json::json!({ "kernel_image_path": kernel, "boot_args": "a=1" });
            let asked = serde_json::json!({ "boot-source": source, "drives": [] });
            std::fs::write(&config, asked.to_string()).expect("scratch space");
            let mut all = words("boot --warmup 0 --runs 3 --");
            let own = [text(&vmm), "--no-api", "--config-file", text(&config)];
            all.extend(own.map(str::to_owned));
            case(all, 2.5)
        }
        "boot prepared" => {
            let mut all = words("boot --vmm mock --warmup 0 --runs 4");
            all.extend(["--prepare", HELPER].map(str::to_owned));
            case(all, 2.0)
        }
        "bench" => case(wrapped("bench --warmup 0 --runs 3"), 2.5),
        "sweep" => {
            let mut all = words("sweep --warmup 0 --runs 2 -L t=0.2,0.3 -- bash -c");
            all.push(WRAPPED.replace("0.4", "{t}"));
            case(all, 2.5)
        }
        "range" => {
            let guest = |i: usize| mock_guest(if i >= 2 { 90.0 } else { 50.0 });
            let (repo, range) = repository(lab, 3, |i| vec![("source", guest(i)), build(i, &[])]);
            let mut all =
                words("range --vmm mock --machine {worktree}/product --warmup 0 --runs 2 --build");
            all.push(format!("{HELPER}; sh build.sh"));
            all.extend(["--repo", text(&repo), &range].map(str::to_owned));
            case(all, 3.0)
        }
        "findings" => case(wrapped("findings --warmup 0 --runs 3"), 2.5),
        "findings made" => {
            kernel()?;
            // Initramfs and launchers come first.
            case(words("findings udev-settle fw-cfg-dma --no-icount --warmup 0 --runs 1"), 12.0)
        }
        "doctor" => with(Saves::Among("bench"), words("doctor --aa --vmm mock --runs 40"), 1.0),
        "kernel build" if has_make() => {
            let Sources { environment, folder, .. } = Sources::new(lab);
            let line = format!("kernel build --config minimal -j 1 --source {}", text(&folder));
            Some(Case { environment, ..loud(words(&line), 3.0)? })
        }
        "appliance build" => {
            kernel()?;
            let mut all = words("appliance build --modules virtio_blk,ext4 --out");
            all.push(text(&lab.path("tmp/trace.dat")).to_owned());
            loud(all, 0.06)
        }
        "report" => {
            let (dir, page) = (lab.path("shown"), lab.path("tmp/trace.dat.html"));
            lab.run(&["boot", "--vmm", "mock", "--runs", "20", "--save", text(&dir)]);
            loud(["report", text(&dir), "-o", text(&page)].map(str::to_owned).into(), 0.12)
        }
        "memory" => case(wrapped("memory --warmup 0 --runs 3"), 2.5),
        "dirty" if kvm => case(
            words("dirty --workload gui --passes 2 --tracker kvm-legacy --memory 64 --no-fit"),
            3.0,
        ),
        "irq" if kvm => {
            case(words("irq --vfs 2 --vectors 3 --vcpus 2 --runs 2 --warmup 1 --fit none"), 2.0)
        }
        "migrate" => {
            kernel()?;
            case(words("migrate --dirty-rate 0 --memory 32 --warmup 0 --runs 2"), 4.0)
        }
        "trace record" if tracefs => {
            let mut all = words("trace record --event sched:* -o");
            all.push(text(&lab.path("tmp/trace.dat")).to_owned());
            all.extend(["--", "sh", "-c"].map(str::to_owned));
            all.push(format!("trap '' TERM; {HELPER}"));
            loud(all, 2.5)
        }
        "explain live" if tracefs => {
            let mut all = words("explain --save");
            all.push(text(&lab.path("explained")).to_owned());
            // As long as it may take to be killed, on a host of any speed.
            let helper = HELPER.replace("sleep 0.3", "sleep 2");
            all.extend(["--", "sh", "-c", &helper].map(str::to_owned));
            loud(all, 2.5)
        }
        "dirty" | "irq" | "trace record" | "explain live" | "kernel build" => None,
        other => panic!("no such case: {other}"),
    }
}

/// Of a few thousand moments, the next: the same ones each time.
struct Moments(u64);

impl Moments {
    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }
}

/// Runs it, kills it at a moment, and looks; true if it was still running.
fn killed(name: &'static str, at: f64) -> Option<bool> {
    let lab = Lab::new();
    std::fs::create_dir(lab.path("tmp")).expect("scratch space");
    let case = case(name, &lab)?;
    let (saves, within_s) = (case.saves, case.within_s);
    let mut dir = lab.path("session");
    let mut all = case.arguments.clone();
    if saves == Saves::There {
        let place = all.iter().position(|word| word == "--").unwrap_or(all.len());
        all.splice(place..place, ["--save".to_owned(), text(&dir).to_owned()]);
    }
    let before = host(&lab, 0);
    let mut child = started(&lab, &case, &all);
    std::thread::sleep(Duration::from_secs_f64(at * within_s));
    let ran = child.try_wait().expect("a child").is_none();
    if ran {
        signal(&child, "KILL");
    }
    child.wait().expect("a child");
    if let Saves::Among(_) = saves {
        dir = names(&lab.path("vmeter/runs")).pop_first().unwrap_or(dir);
    }
    let saved = finished(&dir);
    let begin = Instant::now();
    let left = loop {
        let mut left = host(&lab, child.id());
        // What it was asked to write, whole.
        left.temporary.retain(|path| !path.starts_with(lab.path("tmp/trace.dat")));
        left.temporary.remove(&lab.path("tmp/trace.dat.html"));
        if left == before || begin.elapsed() > SOON {
            break left;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(left, before, "{name}, killed at {:.3} s: this stays", at * within_s);
    let kind = match saves {
        Saves::There => all[0].as_str(),
        Saves::Among(kind) => kind,
        Saves::Nothing => return Some(ran),
    };
    if dir.join("session.json").exists() {
        let resumed: Ran = {
            let mut command = lab.command(&[kind, "--resume", text(&dir)]);
            command.env("TMPDIR", lab.path("tmp")).output().expect("vmeter runs").into()
        };
        assert!([0, 1].contains(&resumed.status), "{name} --resume: {}", resumed.stderr);
        let after = finished(&dir);
        for (path, bytes) in &saved {
            assert_eq!(after.get(path), Some(bytes), "{name}: {} changed", path.display());
        }
        assert!(names(&dir.join("runs")).iter().all(|run| run.extension().is_none()), "{name}");
        assert_eq!(unfinished(&dir, ".vmeter-", 2), BTreeSet::new(), "{name} --resume: this stays");
        assert_eq!(host(&lab, child.id()), before, "{name} --resume: this stays");
    }
    Some(ran)
}

fn killed_at_moments(name: &'static str, few: usize) {
    let mut moments = Moments(name.len() as u64 + 7);
    let (mut ran, all) = (0, amount(few, 50));
    for _ in 0..all {
        match killed(name, moments.next()) {
            Some(running) => ran += usize::from(running),
            None => return eprintln!("skipped: {name}: this host can't do it"),
        }
    }
    eprintln!("{name}: {ran} of {all} were killed while running");
    assert!(ran > 0 || all < 3, "{name}: it was always over");
}

macro_rules! killed {
    ($($test:ident $name:literal $few:literal;)*) => {
        $(#[test]
        fn $test() {
            killed_at_moments($name, $few);
        })*
    };
}

killed! {
    a_boot "boot" 1;
    a_boot_with_a_plugin "boot full" 1;
    a_boot_of_a_vmm_in_a_wrapper "boot wrapped" 3;
    a_boot_of_another_vmm "boot firecracker" 2;
    a_preparation "boot prepared" 3;
    a_bench "bench" 2;
    a_sweep "sweep" 2;
    a_range "range" 2;
    findings "findings" 2;
    findings_that_need_files "findings made" 0;
    a_machine_against_itself "doctor" 2;
    a_kernel_build "kernel build" 2;
    an_appliance "appliance build" 2;
    a_report "report" 2;
    memory "memory" 2;
    dirty "dirty" 2;
    irq "irq" 2;
    migrate "migrate" 2;
    a_recording "trace record" 3;
    an_explanation "explain live" 3;
}
