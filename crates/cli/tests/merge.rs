//! Sweeps in shards from the command line, put together by `vmeter merge`.

use crate::common;

use common::{text, Lab};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// `slower` stretches every time.
fn script(lab: &Lab, slower: u32) -> PathBuf {
    let path = lab.path("hosts.mock");
    let lines = format!(
        "vmeter-mock 1
run-spread 1%
{}ms vmm-main
{}ms reach start_kernel
{}ms+{}ms*pcie_root_ports initcall acpi_init
5ms reach run_init_process
count pci_config_reads 397+291*pcie_root_ports
1ms ready
",
        3 * slower,
        30 * slower,
        9 * slower,
        slower
    );
    std::fs::write(&path, lines).expect("scratch space");
    path
}

/// The common command line of all hosts.
fn arguments(script: &Path) -> Vec<String> {
    let fixed = ["sweep", "-P", "pcie-root-ports=0..3", "--vmm", "mock", "--until", "userspace"];
    let own = ["--machine", text(script)];
    fixed.iter().chain(&own).map(|a| (*a).to_owned()).collect()
}

fn shard(lab: &Lab, script: &Path, index: u32, more: &[&str]) -> PathBuf {
    let save = lab.path(&format!("shard-{index}"));
    let all = arguments(script);
    let part = format!("{index}/3");
    let own = ["--shard", &part, "--save", text(&save)];
    let all: Vec<&str> = all.iter().map(String::as_str).chain(own).chain(more.to_vec()).collect();
    let ran = lab.run(&all);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    save
}

/// Rewrites what a session says of its host.
fn pretend(dir: &Path, what: &str, value: &str) {
    let file = dir.join("session.json");
    let bytes = std::fs::read(&file).expect("session.json");
    let mut session: Value = serde_json::from_slice(&bytes).expect("JSON");
    session["host"][what] = value.into();
    std::fs::write(&file, session.to_string()).expect("session.json");
}

/// How often each run number is in the result, by point.
fn runs(result: &Value) -> Vec<Vec<u64>> {
    let points = result["points"].as_array().expect("points");
    let of = |point: &Value| {
        let runs = point["runs"].as_array().expect("runs");
        runs.iter().map(|r| r["index"].as_u64().expect("a number")).collect()
    };
    points.iter().map(of).collect()
}

#[test]
fn shards_of_unequal_hosts_make_one_sweep() {
    let lab = Lab::new();
    let dirs: Vec<PathBuf> = [(1, 10), (2, 15), (3, 10)]
        .into_iter()
        .map(|(index, slower)| {
            let dir = shard(&lab, &script(&lab, slower), index, &["--runs", "5"]);
            pretend(&dir, "hostname", &format!("node-{index}"));
            dir
        })
        .collect();
    let save = lab.path("all");
    let mut merge = vec!["merge", "--save", text(&save)];
    merge.extend(dirs.iter().map(|d| text(d)));
    let result = lab.json(&merge);

    let all = runs(&result);
    let mut numbers: Vec<u64> = all.iter().flatten().copied().collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!((all.len(), numbers.len()), (4, 20), "every point five times: {all:?}");
    assert!(all.iter().all(|point| point.len() == 5), "{all:?}");

    // The second host is slower by half, and no point is for that.
    let factors: BTreeMap<&str, f64> = result["hosts"]
        .as_array()
        .expect("hosts")
        .iter()
        .map(|h| (h["name"].as_str().expect("a name"), h["factor"].as_f64().expect("a factor")))
        .collect();
    let ratio = factors["node-2"] / factors["node-1"];
    assert!((1.4..1.6).contains(&ratio), "{factors:?}");
    let totals = result["points"][0]["total"].clone();
    let spread = totals["sd"].as_f64().expect("sd") / totals["mean"].as_f64().expect("mean");
    assert!(spread < 0.05, "the hosts' difference is out of the times: {totals}");
    let counts = result["count_scaling"].as_array().expect("count_scaling");
    let reads = counts.iter().find(|c| c["count"] == "pci_config_reads").expect("reads");
    assert_eq!(reads["exact_step"], 291.0);

    // The same from disk, and longer: an ordinary session.
    let again = lab.json(&["show", text(&save)]);
    assert_eq!((&again["points"], &again["hosts"]), (&result["points"], &result["hosts"]));
    // A shard was edited, so that what is made of it is not taken for this user's own.
    let asked = lab.run(&["sweep", "--resume", text(&save), "--runs", "6"]);
    assert!(asked.status == 2 && asked.stderr.contains("--trust"), "{}", asked.stderr);
    let longer = lab.json(&["sweep", "--resume", text(&save), "--trust", "--runs", "6"]);
    assert!(runs(&longer).iter().all(|point| point.len() == 6), "{:?}", runs(&longer));
    let side = |ports: u32| format!("{}#pcie-root-ports={ports}", save.display());
    assert_eq!(lab.json(&["diff", &side(0), &side(0)])["verdict"], "no difference found");
}

#[test]
fn what_is_missing_double_or_foreign_is_named() {
    let lab = Lab::new();
    let script = script(&lab, 10);
    let dirs: Vec<PathBuf> =
        (1..=3).map(|index| shard(&lab, &script, index, &["--runs", "3"])).collect();
    let merge = |dirs: &[&Path], save: &str, more: &[&str]| {
        let save = lab.path(save);
        let mut all = vec!["merge", "--save", text(&save)];
        all.extend(dirs.iter().map(|d| text(d)));
        all.extend(more);
        lab.run(&all)
    };
    let [one, two, three] = dirs.as_slice() else { panic!("three shards") };

    let short = merge(&[one, three], "short", &[]);
    assert_eq!(short.status, 1, "{}", short.stderr);
    assert!(short.stdout.contains("pcie-root-ports=0 (1 of 3 runs)"), "{}", short.stdout);

    // One run of shard 1 was carried out by shard 2 as well.
    let session: Value =
        serde_json::from_slice(&std::fs::read(one.join("session.json")).expect("session.json"))
            .expect("JSON");
    let own = session["shard"]["runs"][5].as_u64().expect("a run");
    let (from, to) = (one.join(format!("runs/{own:04}")), two.join(format!("runs/{own:04}")));
    std::fs::create_dir(&to).expect("scratch space");
    for file in std::fs::read_dir(&from).expect("a run").flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("scratch space");
    }
    let double = merge(&[one, two, three, one], "double", &[]);
    assert_eq!(double.status, 0, "{}", double.stderr);
    let said = crate::common::one_line(&double.stdout);
    assert!(said.contains(&format!("run {own} (pcie-root-ports=")), "{said}");
    assert!(said.contains("was named twice"), "{said}");

    // Another CPU: refused unless told otherwise.
    pretend(three, "cpu_model", "Another CPU");
    let mixed = merge(&[one, two, three], "mixed", &[]);
    assert_eq!(mixed.status, 2, "{}", mixed.stdout);
    assert!(mixed.stderr.contains("Another CPU") && mixed.stderr.contains("--mixed-hosts"));
    assert!(!lab.path("mixed").exists());
    let allowed = merge(&[one, two, three], "mixed", &["--mixed-hosts"]);
    assert_eq!(allowed.status, 0, "{}", allowed.stderr);
    let taken = merge(&[one, two, three], "mixed", &["--mixed-hosts"]);
    assert_eq!(taken.status, 2);
    assert!(taken.stderr.contains("holds a session already"), "{}", taken.stderr);

    // Another plan.
    let other = lab.path("other");
    let all = arguments(&script);
    let more = ["--runs", "3", "--seed", "2", "--shard", "3/3", "--save", text(&other)];
    let all: Vec<&str> = all.iter().map(String::as_str).chain(more).collect();
    assert_eq!(lab.run(&all).status, 0);
    let foreign = merge(&[one, &other], "foreign", &[]);
    assert_eq!(foreign.status, 2);
    assert!(foreign.stderr.contains("--seed differs"), "{}", foreign.stderr);
    let nothing = merge(&[&lab.path("nowhere")], "foreign", &[]);
    assert_eq!(nothing.status, 2, "{}", nothing.stderr);
}

#[test]
fn a_shard_goes_on_with_its_own_part_only() {
    let lab = Lab::new();
    let script = script(&lab, 10);
    let save = lab.path("shard");
    let marker = lab.path("prepared");
    let mended = lab.path("mended");
    let prepare = format!(
        "echo run >> {0}; test -e {1} || test $(wc -l < {0}) -lt 4",
        marker.display(),
        mended.display()
    );
    let all = arguments(&script);
    let more = ["--shard", "2/3", "--runs", "3", "--save", text(&save), "--prepare", &prepare];
    let all: Vec<&str> = all.iter().map(String::as_str).chain(more).collect();
    let broken = lab.run(&all);
    assert_eq!(broken.status, 3, "{}", broken.stderr);
    let runs = || std::fs::read_dir(save.join("runs")).expect("runs").count();
    assert_eq!(runs(), 3);
    let other = lab.run(&["sweep", "--resume", text(&save), "--shard", "1/3"]);
    assert_eq!(other.status, 2);
    assert!(other.stderr.contains("shard 2/3"), "{}", other.stderr);
    let another = lab.run(&["sweep", "--resume", text(&save), "--prepare", "true"]);
    assert_eq!(another.status, 2);
    assert!(another.stderr.contains("another --prepare"), "{}", another.stderr);
    std::fs::write(&mended, "").expect("scratch space");
    let resumed = lab.run(&["sweep", "--resume", text(&save)]);
    assert_eq!(resumed.status, 0, "{}", resumed.stderr);
    // A warm-up and one of three blocks.
    assert_eq!(runs(), 8);
    assert!(resumed.stdout.contains("shard 2/3"), "{}", resumed.stdout);

    let fixed = arguments(&script);
    for (wrong, why) in [("0/3", "I/N"), ("4/3", "I/N"), ("1/900", "at most")] {
        let all: Vec<&str> = fixed.iter().map(String::as_str).chain(["--shard", wrong]).collect();
        let ran = lab.run(&all);
        assert_eq!(ran.status, 2, "{wrong}");
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
    }
}
