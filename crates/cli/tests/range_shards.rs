//! `vmeter range --shard I/N` by hand, and `vmeter merge`.

use crate::common;
use crate::repository;

use common::{text, Lab};
use repository::{build, mock_guest, repository, slower_host};
use serde_json::Value;
use std::path::{Path, PathBuf};

const SHARDS: usize = 2;

/// The shards of a range of ten commits that is slower from the sixth on.
fn shards(lab: &Lab) -> Vec<PathBuf> {
    let length = |i: usize| if i >= 6 { 120.0 } else { 50.0 };
    let (repo, range) =
        repository(lab, 10, |i| vec![("source", mock_guest(length(i))), build(i, &[2])]);
    let fixed = ["range", "--repo", text(&repo), &range, "--build", "sh build.sh", "--runs", "4"];
    let machine = ["--vmm", "mock", "--machine", "{worktree}/product", "--warmup", "0"];
    let part = |n: usize| {
        let (save, shard) = (lab.path(&format!("shard-{n}")), format!("{n}/{SHARDS}"));
        let own = ["--shard", &shard, "--save", text(&save)];
        let ran = lab.run(&[&fixed[..], &machine[..], &own[..]].concat());
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert!(ran.stdout.contains("vmeter merge"), "{}", ran.stdout);
        save
    };
    (1..=SHARDS).map(part).collect()
}

fn merged(lab: &Lab, dirs: &[PathBuf], save: &Path) -> common::Ran {
    let mut words = vec!["merge"];
    words.extend(dirs.iter().map(|dir| text(dir)));
    words.extend(["--save", text(save), "--export-json", "-"]);
    lab.run(&words)
}

#[test]
fn shards_of_unequal_hosts_make_one_range() {
    let lab = Lab::new();
    let dirs = shards(&lab);
    slower_host(&dirs[1], 1.5);
    let whole = lab.path("whole");
    let ran = merged(&lab, &dirs, &whole);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let changes = result["changes"].as_array().expect("changes");
    // One level in twenty is a chance, as everywhere, but a small one.
    let small =
        |change: &Value| (change["ratio"]["mean"].as_f64().expect("one") - 1.0).abs() < 0.03;
    let large: Vec<&Value> = changes.iter().filter(|change| !small(change)).collect();
    assert_eq!((large.len(), &large[0]["commits"][0]), (1, &6.into()), "{changes:?}");
    for commit in result["commits"].as_array().expect("commits") {
        let measured = if commit["index"] == 2 { 0 } else { 4 };
        assert_eq!(commit["samples_s"].as_array().map(Vec::len), Some(measured), "{commit}");
    }
    let factors: Vec<f64> = result["hosts"]
        .as_array()
        .expect("hosts")
        .iter()
        .filter_map(|host| host["factor"].as_f64())
        .collect();
    assert_eq!(factors.len(), 2);
    let ratio = factors[0].max(factors[1]) / factors[0].min(factors[1]);
    assert!((1.45..1.55).contains(&ratio), "{factors:?}");
    assert_eq!(lab.json(&["show", text(&whole)])["changes"], result["changes"]);

    // Gone on with on one host: what was built elsewhere is built again, runs are not.
    let more = lab.json(&["range", "--resume", text(&whole), "--runs", "5", "--trust"]);
    let commits = more["commits"].as_array().expect("commits");
    assert!(commits[4]["samples_s"].as_array().map(Vec::len) >= Some(5), "{}", commits[4]);
    let sized = more["changes"].as_array().expect("changes").iter();
    assert!(sized.clone().all(|change| change["sizing"].is_u64()), "a shard makes none: {sized:?}");
}

#[test]
fn what_cannot_be_cut_or_merged_is_named() {
    let lab = Lab::new();
    let dirs = shards(&lab);
    let part = merged(&lab, &dirs[..1], &lab.path("part"));
    assert_eq!(part.status, 1, "half of the runs are missing: {}", part.stderr);
    let record = dirs[1].join("range.json");
    let other = std::fs::read_to_string(&record).expect("a record").replace("build.sh", "make.sh");
    std::fs::write(&record, other).expect("scratch space");
    let ran = merged(&lab, &dirs, &lab.path("two"));
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("different ranges"), "{}", ran.stderr);
    assert!(!lab.path("two").exists(), "nothing is left behind");
    let repo = lab.path("repo");
    let search = ["range", "--repo", text(&repo), "HEAD~3..HEAD", "--run", "true", "--bisect"];
    let ran = lab.run(&[&search[..], &["--shard", "1/2"]].concat());
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("--bisect"), "{}", ran.stderr);
    let ran = lab.run(&["range", "--resume", text(&dirs[0]), "--shard", "2/2"]);
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("is shard 1/2"), "{}", ran.stderr);
}
