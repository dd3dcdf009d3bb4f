//! `vmeter restore` with real QEMUs under TCG. Nothing here asserts a time, but that a planted one is
//! found where it was planted.

use crate::common;

use common::{amount, is_alive, kernel, text, Lab};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A machine that boots in seconds, and is saved in little.
const MACHINE: [&str; 8] =
    ["--accel", "tcg", "--machine", "pvh", "--memory", "256", "--warmup", "0"];
/// What vmeter's own guest prints.
const TICK: &str = "line:vmeter: tick (?<nonce>[0-9a-f]{16}) [0-9]+";

fn machine<'a>(result: &'a Value, label: &str) -> &'a Value {
    let all = result["machines"].as_array().expect("machines");
    all.iter().find(|machine| machine["label"] == label).unwrap_or_else(|| panic!("no {label}"))
}

fn runs<'a>(result: &'a Value, label: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = result["runs"].as_array().expect("runs");
    all.iter().filter(move |run| run["label"] == label)
}

fn mean(machine: &Value, phase: &str) -> f64 {
    common::phase(machine, phase)
}

#[test]
fn every_way_of_qemus_is_accounted_for() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::alone();
    let times = amount(1, 2);
    let result = lab.json(&[&["restore", "--runs", &times.to_string()], &MACHINE[..]].concat());
    assert_eq!(result["command"], "restore");
    for label in ["loadvm", "incoming", "shared"] {
        let found = machine(&result, label);
        assert_eq!(found["proofs"], serde_json::json!(vec!["nonce"; times]), "{label}");
        for field in ["create_s", "boot_s", "save_s"] {
            assert!(found[field].as_f64().is_some_and(|s| s > 0.0), "{label}: {field}");
        }
        // The guest sleeps for a millisecond between two lines, or longer where the host is busy.
        let period = found["period_s"].as_f64().expect("a period");
        assert!((0.0009..0.5).contains(&period), "{label}: {period}");
        assert!(found["create_s"].as_f64() > found["boot_s"].as_f64(), "{label}");
        assert!(found["image_bytes"].as_u64().is_some_and(|n| n > 100_000), "{label}");
        assert_eq!(found["resident"].as_array().map(Vec::len), Some(times), "{label}");
        for run in runs(&result, label) {
            assert_eq!(run["outcome"], "done", "{run}");
            assert!(run["coverage"].as_f64().is_some_and(|c| c > 0.95), "{}", common::names(run));
            let injected = run["injected"].to_string();
            assert!(!injected.contains("kernel:"), "nothing for the kernel: {injected}");
            let sources = run["sources"].to_string();
            for gone in ["guest-printk", "guest-ftrace", "tcg-plugin", "firmware"] {
                assert!(!sources.contains(gone), "{label}: {gone}");
            }
        }
        for phase in ["vmm:link", "vmm:init", "vmm:load-state", "vmm:resume", "guest:until-ready"] {
            assert!(mean(found, phase) > 0.0, "{label}: {phase}");
        }
        let devices = found["activities"].as_array().expect("activities").iter();
        let devices = devices.filter_map(|a| a["name"].as_str()).filter(|n| n.starts_with("load "));
        assert!(devices.count() > 3, "{label}: states by device");
    }
    // RAM that is a file of its own is mapped, not loaded.
    let ram = |label: &str| mean(machine(&result, label), "vmm:load-ram");
    assert!(ram("shared") < ram("incoming") / 3.0, "{} {}", ram("shared"), ram("incoming"));
    let boot = result["boot"]["total"]["mean"].as_f64().expect("a boot");
    let incoming = machine(&result, "incoming")["total"]["mean"].as_f64().expect("a total");
    assert!(incoming < boot, "{incoming} {boot}");
    assert_eq!(result["comparisons"].as_array().map(Vec::len), Some(3));
}

/// A snapshot of QEMU's that a user's own commands make and restore.
struct Saved<'l> {
    lab: &'l Lab,
    qemu: String,
    create: PathBuf,
}

impl<'l> Saved<'l> {
    fn new(lab: &'l Lab, image: &Path) -> Self {
        let initrd = lab.path("initrd");
        let ran = lab.run(&["appliance", "build", "--out", text(&initrd)]);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let qemu = format!(
            "qemu-system-x86_64 -nodefaults -no-user-config -display none -machine q35 -accel tcg -m 256 \
             -kernel {} -initrd {} -append 'console=ttyS0 quiet no_timer_check vmeter.tick=2'",
            text(image),
            text(&initrd)
        );
        let serial = lab.path("serial");
        let create = lab.script("create", &format!(
            "#!/bin/sh\nrm -f {0}\n{{ until grep -q 'tick .* 9' {0}; do sleep 0.1; done; \
             echo 'migrate \"exec:cat >'$1'/state\"'; echo quit; }} | {qemu} -serial file:{0} -monitor stdio >/dev/null\n\
             grep tick {0} | head -n 2\n",
            text(&serial)
        ));
        Saved { lab, qemu, create }
    }

    /// So many restores by a shell's script, which starts `./qemu` with more arguments.
    fn restored(&self, script: &str, runs: usize) -> Value {
        let vmm = self.lab.script("restore", script);
        let start = "export LD_PRELOAD=$PRELOAD; unset PRELOAD; exec";
        self.lab
            .script("qemu", &format!("#!/bin/sh\n{start} {} -serial stdio \"$@\"\n", self.qemu));
        let (create, restore) =
            (format!("{} {{image}}", text(&self.create)), format!("{} {{image}}", text(&vmm)));
        let all = ["restore", "--create", &create, "--restore", &restore, "--ready", TICK];
        let runs = runs.to_string();
        self.lab.json(&[&all[..], &["--runs", &runs, "--warmup", "0"]].concat())
    }
}

/// Processes of QEMU's whose command line names this folder.
fn left(dir: &Path) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let names = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("qemu") && line.contains(text(dir)) && is_alive(pid)
    };
    pids.filter(names).collect()
}

/// The guest is vmeter's own: one program, which sleeps and prints.
#[test]
fn pages_have_the_names_of_their_owners_or_none() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let list = lab.path("list");
    let all = ["restore", "--runs", "3", "--method", "shared,incoming", "--no-boot"];
    let result = lab.json(&[&all[..], &["--prefetch-list", text(&list)], &MACHINE[..]].concat());
    let pages = result["pages"].as_array().expect("pages");
    assert!(pages.iter().all(|of| of["label"] == "shared"), "only that one is mapped");
    let count = |of: &Value| of["faults"].as_f64().expect("a number");
    let named = |owner: &str| pages.iter().find(|of| of["owner"] == owner).map_or(0.0, count);
    for owner in ["kernel code", "kernel variables", "file /init", "anonymous of init"] {
        assert!(named(owner) >= 1.0, "{owner}");
    }
    let whole: f64 = pages.iter().map(count).sum();
    assert!(named("unknown") < 0.4 * whole, "{} of {whole}", named("unknown"));
    let known = ["kernel ", "slab ", "file /", "anonymous", "page tables", "free", "unknown"];
    for of in pages {
        let owner = of["owner"].as_str().expect("an owner");
        assert!(known.iter().any(|begin| owner.starts_with(begin)), "{owner}");
        // The one process that there is.
        assert!(!owner.starts_with("anonymous of") || owner == "anonymous of init", "{owner}");
        assert!(count(of) <= whole && of["always"].as_f64() <= Some(count(of)), "{of}");
    }
    let list = std::fs::read_to_string(list).expect("a list");
    let listed: u64 = list
        .lines()
        .filter(|line| line.starts_with("ram "))
        .map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("a length"))
        .sum();
    let always: f64 = pages.iter().map(|of| of["always"].as_f64().expect("a number")).sum();
    assert_eq!(listed, always as u64 * 4096);
}

#[test]
fn several_at_once_have_quantiles_and_a_tear_down() {
    if common::is_left_to_test_long() {
        return;
    }
    if kernel().is_none() {
        return;
    }
    let lab = Lab::alone();
    let all = ["restore", "--method", "shared", "--concurrency", "1,3", "--runs", "3"];
    let result = lab.json(&[&all[..], &MACHINE[..]].concat());
    let concurrency = &result["concurrency"][0];
    assert_eq!(concurrency["machine"], "shared");
    for (level, (at_once, vms)) in
        concurrency["levels"].as_array().expect("levels").iter().zip([(1, 3), (3, 9)])
    {
        assert_eq!((&level["at_once"], &level["waves"]), (&at_once.into(), &3.into()));
        assert_eq!(level["samples_s"].as_array().map(Vec::len), Some(vms));
        let p50 = &level["quantiles"][0];
        assert_eq!(p50["value_s"].is_number(), vms >= 6, "{p50}");
        assert!(level["tear_down"]["mean"].as_f64().is_some_and(|s| s > 0.0), "{level}");
        assert!(level["to_last_exit"]["mean"].as_f64() >= level["tear_down"]["min"].as_f64());
    }
    let runs = runs(&result, "shared, 3 at once");
    let mut starts: Vec<i64> = runs.filter_map(|run| run["exec_monotonic_ns"].as_i64()).collect();
    starts.sort_unstable();
    assert_eq!(starts.len(), 9);
    // Those of a wave begin together, and the next wave begins when they are gone.
    let gap = |pair: &[i64]| pair[1] - pair[0];
    let (within, between) = (gap(&starts[1..3]), gap(&starts[2..4]));
    assert!(within < between, "{starts:?}");
}

#[test]
fn no_vmm_outlives_a_vmeter_that_was_killed() {
    if kernel().is_none() {
        return;
    }
    let cases = [("KILL", 3), ("INT", 1), ("KILL", 1), ("INT", 3)];
    for (name, at_once) in cases.into_iter().take(amount(2, cases.len())) {
        ends_with_vmeter(name, at_once);
    }
}

/// Sends a signal once so many guests run: the one that is to be saved, or those of a wave.
fn ends_with_vmeter(name: &str, at_once: usize) {
    let lab = Lab::new();
    let dir = lab.path("session");
    let number = at_once.to_string();
    let all = ["restore", "--method", "shared", "--concurrency", &number, "--save", text(&dir)];
    let mut child = lab
        .command(&[&all[..], &MACHINE[..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("vmeter runs");
    let begun = Instant::now();
    while left(&dir).len() < at_once && begun.elapsed() < Duration::from_secs(120) {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(left(&dir).len() >= at_once, "{at_once} guests run");
    common::signal(&child, name);
    child.wait().expect("a child");
    let killed = Instant::now();
    while !left(&dir).is_empty() {
        assert!(killed.elapsed() < Duration::from_secs(30), "{name}: {:?} runs on", left(&dir));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The waits for pages of a machine, s.
fn waited(result: &Value, label: &str) -> f64 {
    let all = result["pages"].as_array().expect("pages");
    let own = all.iter().filter(|of| of["label"] == label);
    own.map(|of| of["waited_s"].as_f64().unwrap_or_else(|| panic!("{of}"))).sum()
}

/// Pages that are there are not waited for: what was predicted is found, and both are nothing where the
/// snapshot is in the page cache anyway.
#[test]
fn pages_that_are_loaded_first_are_not_waited_for() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::alone();
    let all = ["restore", "--method", "shared", "--cold", "--warm", "--no-boot", "--runs", "4"];
    let rest = ["--prefetch", "first", "--warmup", "1", "--export-json", "-"];
    let ran = lab.run(&[&all[..], &MACHINE[..6], &rest[..]].concat());
    if ran.stderr.contains("still in the page cache") {
        return eprintln!("skipped: this file system is its own page cache");
    }
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    if ran.stderr.contains("vmeter cannot time the VMM's waits for pages") {
        return eprintln!("skipped: no perf events on this host");
    }
    let gain = |label: &str| {
        let all = result["prefetch"].as_array().expect("gains");
        all.iter().find(|gain| gain["label"] == label).unwrap_or_else(|| panic!("no {label}"))
    };
    let (warm, cold) = (gain("shared, prefetched"), gain("shared, cold, prefetched"));
    assert_eq!((&warm["against"], &cold["against"]), (&"shared".into(), &"shared, cold".into()));
    let mean = |gain: &Value, field: &str| gain[field]["mean"].as_f64().expect("a mean");
    assert!(mean(cold, "predicted") > 4.0 * mean(warm, "predicted"), "{warm} {cold}");
    for gain in [warm, cold] {
        assert!(gain["within"].is_boolean() && gain["unknown"].is_null(), "{gain}");
        assert!(
            gain["pages"].as_u64().is_some_and(|n| n > 0) && mean(gain, "load") > 0.0,
            "{gain}"
        );
        assert_eq!(gain["found"]["n"], 4, "{gain}");
    }
    // What was predicted is what is no longer waited for.
    let (bare, loaded) =
        (waited(&result, "shared, cold"), waited(&result, "shared, cold, prefetched"));
    assert!(loaded < 0.5 * bare, "{bare} {loaded}");
    // Both are sums of the same waits, in another order.
    let predicted = mean(cold, "predicted");
    assert!(predicted > 0.3 * bare && predicted <= bare * 1.000_001, "{bare} {cold}");
    let resident = |label: &str| machine(&result, label)["resident"][0].as_f64().expect("a share");
    assert!(resident("shared, cold") < resident("shared, cold, prefetched"));
    assert!(resident("shared, cold, prefetched") < 0.5);
}

#[test]
fn a_list_that_cannot_be_loaded_is_refused() {
    let lab = Lab::new();
    let list = lab.path("list");
    let fails = |lines: &str, more: &[&str], words: &str| {
        std::fs::write(&list, lines).expect("written");
        let ran = lab.run(&[&["restore", "--prefetch", text(&list)], more].concat());
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
        assert_eq!(ran.status, 2, "{}", ran.stderr);
    };
    fails("ram 1\n", &[], "FILE OFFSET LENGTH");
    fails("ram 0 4096\n", &["--concurrency", "2"], "--concurrency");
    let ran = lab.run(&["restore", "--prefetch", "first", "--warmup", "0"]);
    assert!(ran.status == 2 && ran.stderr.contains("--warmup"), "{}", ran.stderr);
}

/// Each restore pauses in another phase. `pause` notes from when to when.
///
/// The dynamic linker and QEMU read from a FIFO that the pause holds open. The stream stops in the RAM, among the
/// devices, which are before the description of the stream, and after all that is loaded.
const PAUSES: &str = r#"#!/bin/sh
cd FOLDER
n=$(cat n 2>/dev/null || echo 0)
echo $((n + 1)) >n
state=$1/state
now() { date +%s.%N; }
pause() { a=$(now); sleep 0.3; echo "$1 $a $(now)" >>pauses; }
held() { rm -f fifo; mkfifo fifo; { exec 3>fifo; pause $1; rm fifo; exec 3>&-; } & }
stopped() { echo "exec:head -c -$2 $state; a=\$(date +%s.%N); sleep 0.3; echo $1 \$a \$(date +%s.%N) >>pauses; tail -c $2 $state"; }
described=$(grep -abo '{"page_size"' $state | tail -n 1 | cut -d: -f1)
devices=$(($(stat -c %s $state) - described + 4000))
case $((n % 6)) in
0) held vmm:link; PRELOAD=./fifo exec ./qemu -incoming "exec:cat $state" ;;
1) held vmm:init; exec ./qemu -readconfig fifo -incoming "exec:cat $state" ;;
2) exec ./qemu -incoming "$(stopped vmm:load-ram 2000000)" ;;
3) exec ./qemu -incoming "$(stopped vmm:load-state $devices)" ;;
4) exec ./qemu -incoming "$(stopped vmm:resume 16)" ;;
5) ./qemu -incoming "exec:cat $state" | { read -r line; pause guest:until-ready; echo "$line"; cat; } ;;
esac"#;

/// The share of a pause that lies in the spans of a phase.
fn share_in(run: &Value, phase: &str, (from, to): (f64, f64)) -> f64 {
    let both = |(start, end): (f64, f64)| (end.min(to) - start.max(from)).max(0.0);
    common::spans(run, phase).into_iter().map(both).sum::<f64>() / (to - from)
}

/// Seconds from CLOCK_MONOTONIC to the clock of `date`.
fn to_wall_clock() -> f64 {
    let monotonic = vmeter_base::clock::monotonic() as f64 / 1e9;
    let wall = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs_f64();
    wall - monotonic
}

#[test]
fn a_pause_is_time_of_the_phase_in_which_it_was_made() {
    let Some((_, image)) = kernel() else { return };
    let lab = Lab::alone();
    let saved = Saved::new(&lab, &image);
    let folder = lab.path("pauses").parent().expect("a folder").to_owned();
    let result = saved.restored(&PAUSES.replace("FOLDER", text(&folder)), 12);
    let pauses = std::fs::read_to_string(folder.join("pauses")).expect("pauses");
    let runs = result["runs"].as_array().expect("runs");
    let between = to_wall_clock();
    let mut shares: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (line, run) in pauses.lines().zip(runs) {
        let words: Vec<&str> = line.split(' ').collect();
        let begun = run["exec_monotonic_ns"].as_f64().expect("ns") / 1e9 + between;
        let at = |word: &str| word.parse::<f64>().expect("a time") - begun;
        let share = share_in(run, words[0], (at(words[1]), at(words[2])));
        shares.entry(words[0]).or_default().push(share);
    }
    println!("{shares:?}");
    assert!(shares.len() == 6 && shares.values().all(|all| all.len() == 2), "{pauses}");
    for (phase, all) in shares {
        // What QEMU has read before the pause it may still load in it: more of it on a busy host.
        assert!(all.iter().any(|share| *share >= 0.95), "{phase}: {all:?} of the pauses are in it");
    }
}

#[test]
fn watched_and_unwatched_restores_take_turns() {
    if common::is_left_to_test_long() {
        return;
    }
    if kernel().is_none() {
        return;
    }
    let lab = Lab::alone();
    let all = ["restore", "--method", "shared", "--overhead", "--runs", "6"];
    let result = lab.json(&[&all[..], &MACHINE[..]].concat());
    let cost = &result["overhead"];
    assert_eq!((&cost["watch"], &cost["pairs"]), (&"light".into(), &6.into()), "{cost}");
    let ratio = &cost["ratio"];
    let bound = |at: usize| ratio["ci95"][at].as_f64().expect("a bound");
    assert!(bound(0) < bound(1), "{ratio}");
    let pairs = cost["samples_s"].as_array().expect("pairs");
    assert!(pairs.iter().all(|pair| pair[0].as_f64() > Some(0.0) && pair[1].as_f64() > Some(0.0)));
    // What is told of the machine is of those that were watched.
    let watched = machine(&result, "shared");
    assert_eq!(watched["total"]["n"], 6, "{}", watched["total"]);
    assert!(runs(&result, "shared").all(|run| run["watch"] == "light"));

    let several = lab.run(&["restore", "--overhead", "--method", "shared,incoming"]);
    assert!(
        several.status == 2 && several.stderr.contains("shared; incoming"),
        "{}",
        several.stderr
    );
}
