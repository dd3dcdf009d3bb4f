//! A small result of `vmeter range`: four commits, the third slower.

use super::{envelope, estimate};
use vmeter_model::machine::MachineSpec;
use vmeter_model::range::*;
use vmeter_model::run::WatchLevel;
use vmeter_model::shard::HostEffect;
use vmeter_model::SCHEMA;
use vmeter_model::{ChangeShape, CommitState, RangeVerdict, Verdict};

fn commit(index: usize) -> MeasuredCommit {
    let built = index != 1;
    let time = if index >= 2 { 2.4 } else { 2.0 };
    let samples_s = if built { vec![time, time * 1.01, time * 0.99] } else { vec![] };
    MeasuredCommit {
        index,
        hash: format!("{index}").repeat(40),
        subject: format!("change {index}"),
        state: if built { CommitState::Measured } else { CommitState::BuildFailed },
        failure: (!built).then(|| "make: exit status 2".into()),
        estimate: built.then(|| estimate(&samples_s)),
        samples_s,
        probability: None,
    }
}

pub fn result() -> RangeResult {
    let commits: Vec<MeasuredCommit> = (0..4).map(commit).collect();
    let record = RangeRecord {
        schema: SCHEMA.into(),
        repo: "/home/user/seabios".into(),
        range: "rel-1.15.0..rel-1.16.0".into(),
        commits: commits
            .iter()
            .map(|c| Commit { hash: c.hash.clone(), subject: c.subject.clone() })
            .collect(),
        merged: 2,
        build: Some("make".into()),
        run: None,
        machine: MachineSpec {
            firmware: Some("{worktree}/bios.bin".into()),
            ..MachineSpec::default()
        },
        bisect: false,
        clean: false,
        runs: 3,
        warmup: 1,
        watch: WatchLevel::None,
        metric: Metric::Wall,
        confidence: 0.99,
        max_boots: 200,
        end_runs: 12,
        builds: 1,
        reference: false,
        detect: None,
        place: true,
        builds_in: None,
    };
    RangeResult {
        envelope: envelope("range"),
        record,
        commits,
        changes: vec![Change {
            shape: ChangeShape::Step,
            commits: vec![1, 2],
            before: 0,
            verdict: Verdict::Slower,
            ratio: Some(estimate(&[1.19, 1.2, 1.21])),
            mean: None,
            jump_s: 0.4,
            p_value: Some(0.002),
            probability: None,
            sizing: None,
            place: Some([1, 3]),
            slow: None,
        }],
        seen_once: vec![],
        verdict: RangeVerdict::Changed,
        suspects: vec![],
        probability: None,
        excluded_pct: None,
        detectable_pct: None,
        ends: Some(estimate(&[1.19, 1.2, 1.21])),
        hosts: vec![
            HostEffect {
                name: "node1".into(),
                cpu_model: "AMD EPYC 7763".into(),
                runs: 5,
                factor: Some(1.025),
                factor_ci95: Some([1.01, 1.04]),
            },
            HostEffect {
                name: "node2".into(),
                cpu_model: "AMD EPYC 7763".into(),
                runs: 4,
                factor: None,
                factor_ci95: None,
            },
        ],
        effort: Effort {
            boots: 16,
            placing: 3,
            sizing: 0,
            slow: 0,
            builds: 4,
            linear_boots: 16,
            linear_builds: 4,
        },
        explained: Some(super::sweep::diff()),
        warnings: vec!["1 commit cannot be built".into()],
        hints: vec!["git show 222222222222".into()],
        saved_in: "/runs/2026-05-03T10-00-00-range".into(),
    }
}
