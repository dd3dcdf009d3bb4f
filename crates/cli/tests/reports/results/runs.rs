//! Saved sessions and runs, as the index would have them.

use super::envelope;
use std::io;
use vmeter_index::result::*;
use vmeter_index::RunSource;

fn session(id: &str, command: &str) -> SavedSession {
    SavedSession {
        id: id.into(),
        path: format!("/runs/{id}").into(),
        command: command.into(),
        started_at: "2026-05-01T12:00:00Z".into(),
        argv: vec!["vmeter".into(), command.into(), "--runs".into(), "5".into()],
        cpu_model: "AMD EPYC 7763".into(),
        machines: 1,
        machine: "q35 tcg SeaBIOS".into(),
        machine_id: Some("a1b2c3d4".into()),
        runs: 5,
        warmups: 1,
        failed: 0,
        planned: 6,
        mean_s: Some(3.904),
        bytes: 12 << 20,
        problem: None,
    }
}

pub fn list() -> RunsResult {
    let broken = SavedSession {
        problem: Some("session.json: expected `{`".into()),
        mean_s: None,
        machine_id: None,
        runs: 2,
        failed: 1,
        ..session("2026-05-02T08-00-00-bench", "bench")
    };
    RunsResult {
        envelope: envelope("runs list"),
        action: "saved".into(),
        sessions: vec![session("2026-05-01T12-00-00-boot", "boot"), broken],
        found: 3,
        runs: 9,
        bytes: 25 << 20,
        warnings: vec!["2026-05-02T08-00-00-bench cannot be read".into()],
        hints: vec!["vmeter show 2026-05-01T12-00-00-boot".into()],
    }
}

/// Two runs, one of them a warm-up.
pub struct Two;

impl RunSource for Two {
    fn for_each(&self, each: &mut dyn FnMut(SavedRun) -> io::Result<()>) -> io::Result<()> {
        for run in 0..2 {
            each(SavedRun {
                session: "2026-05-01T12-00-00-boot".into(),
                path: "/runs/2026-05-01T12-00-00-boot".into(),
                command: "boot".into(),
                session_started_at: "2026-05-01T12:00:00Z".into(),
                cpu_model: "AMD EPYC 7763".into(),
                run,
                label: "default".into(),
                machine_id: "a1b2c3d4".into(),
                machine: "q35 tcg SeaBIOS".into(),
                warmup: run == 0,
                outcome: "done".into(),
                started_s: Some(1_777_636_800.5),
                total_s: 3.904,
                user_s: 3.5,
                system_s: 0.25,
                max_rss_bytes: 312 << 20,
                steal_s: 0.004,
                bytes: 2 << 20,
            })?;
        }
        Ok(())
    }
}
