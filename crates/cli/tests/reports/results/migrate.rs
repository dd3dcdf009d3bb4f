//! A small result of `vmeter migrate`: a point that converges and one that does not.

use super::{envelope, estimate};
use vmeter_migrate::*;

fn workload() -> MigrateWorkload {
    MigrateWorkload {
        dirty_bytes_per_s: 64e6,
        working_set_bytes: 128 << 20,
        resident_bytes: 256 << 20,
        written_bytes: 8,
    }
}

fn run(point: usize) -> MigrateRun {
    MigrateRun { point, block: 0, warmup: false, seen: seen(point) }
}

fn seen(point: usize) -> Migration {
    let done = point == 0;
    Migration {
        outcome: if done { MigrateOutcome::Completed } else { MigrateOutcome::NotConverged },
        reason: if done { String::new() } else { "what was left did not become less".into() },
        total_s: 4.0 + point as f64 * 20.0,
        setup_s: 0.004,
        downtime_s: done.then_some(0.042),
        guest_gap_s: done.then_some(0.05),
        guest_clock_gap_s: done.then_some(0.001),
        stopped_s: done.then_some(0.045),
        longest_gap_before_s: 0.002,
        longest_gap_after_s: 0.003,
        lost_after_s: 0.0,
        rounds: vec![
            MigrateRound {
                round: 1,
                start_s: 0.004,
                length_s: 3.0,
                pages: 65_536,
                transferred_bytes: 256 << 20,
                written_pages: 46_000,
                throttle_percent: 0,
            },
            MigrateRound {
                round: 2,
                start_s: 3.004,
                length_s: 0.9,
                pages: 32_768,
                transferred_bytes: 128 << 20,
                written_pages: 14_000,
                throttle_percent: 20,
            },
        ],
        dirty_pages_per_s_before: 15_625.0,
        dirty_pages_per_s: 15_400.0,
        transferred_bytes: 384 << 20,
        bandwidth_bytes_per_s: 1e8,
        throttle_percent: 20,
        source_runs_on: (!done).then_some(true),
        destination_ran: done,
        verification: done.then(|| MigrateVerification {
            equal: true,
            bytes: 512 << 20,
            differing_pages: 0,
            first_difference: None,
            source_sha256: "5d1f0c".into(),
            destination_sha256: "5d1f0c".into(),
            written_pages: 60_000,
        }),
        samples: [0.0, 1.0, 2.0, 3.0]
            .map(|at_s| MigrateSample {
                at_s,
                round: 1 + (at_s as u64) / 3,
                remaining_bytes: (256 << 20) - at_s as u64 * (64 << 20),
                transferred_bytes: at_s as u64 * (64 << 20),
                throttle_percent: if at_s > 2.0 { 20 } else { 0 },
            })
            .to_vec(),
    }
}

fn point(at: usize) -> MigratePoint {
    let done = at == 0;
    let run = seen(at);
    MigratePoint {
        parameters: vec![("bandwidth".into(), if done { "100" } else { "50" }.into())],
        total_s: run.total_s,
        downtime_s: run.downtime_s,
        guest_gap_s: run.guest_gap_s,
        guest_clock_gap_s: run.guest_clock_gap_s,
        rounds: 2,
        dirty_pages_per_s: run.dirty_pages_per_s,
        transferred_bytes: run.transferred_bytes,
        bandwidth_bytes_per_s: run.bandwidth_bytes_per_s,
        converged: done,
        verified: done.then_some(true),
        outcomes: vec![(run.outcome, 3)],
        reason: if done { String::new() } else { "it dirties 64 MB/s, 50 MB/s are sent".into() },
        prediction: MigratePrediction {
            converges: done,
            rounds: done.then_some(2),
            total_s: done.then_some(4.1),
            downtime_s: done.then_some(0.04),
            dirty_bytes_per_s: 64e6,
            bandwidth_bytes_per_s: if done { 1e8 } else { 5e7 },
            bandwidth_from: "the limit".into(),
            because: "what is dirtied against what is sent".into(),
            right: Some(true),
        },
        total: estimate(&[run.total_s, run.total_s * 1.02, run.total_s * 0.98]),
        downtime: run.downtime_s.map(|s| estimate(&[s, s * 1.1])),
        guest_gap: run.guest_gap_s.map(|s| estimate(&[s, s * 1.1])),
        workload: workload(),
    }
}

pub fn result() -> MigrateResult {
    MigrateResult {
        envelope: envelope("migrate"),
        setup: MigrateSetup {
            argv: vec!["qemu-system-x86_64".into(), "-m".into(), "512".into()],
            chosen: vec![vmeter_model::ResolvedOption::new("machine", "q35", "--machine")],
            memory_bytes: 512 << 20,
            runs: 3,
            warmup: 1,
            seed: 3,
            heartbeat_s: 0.001,
            killed: None,
        },
        points: vec![point(0), point(1)],
        runs: vec![run(0), run(1)],
        warnings: vec!["one run only".into()],
        hints: vec!["vmeter migrate --post-copy".into()],
        saved_in: "/home/u/.local/state/vmeter/runs/migrate".into(),
    }
}
