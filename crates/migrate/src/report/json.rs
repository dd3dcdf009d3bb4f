//! The JSON body of a migration. Field names are fixed by schema `vmeter/1`.

use crate::data::{MigrateRound, MigrateSample, MigrateVerification, Migration};
use crate::result::{
    MigratePoint, MigratePrediction, MigrateResult, MigrateRun, MigrateSetup, MigrateWorkload,
};
use serde_json::{Map, Value};
use vmeter_model::sweep::Settings;
use vmeter_render::exported;
use vmeter_render::exported::{Estimate, Word};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of MigrateResult {
        setup: Setup<'a>,
        points: Vec<Point<'a>>,
        runs: Vec<Run<'a>>,
        warnings: &'a [String],
        hints: &'a [String],
        saved_in: &'a str,
    }

    struct Setup<'a> of MigrateSetup {
        argv: &'a [String],
        chosen: Vec<[&'a str; 3]> = |setup| {
            setup.chosen.iter().map(|c| [&c.what[..], &c.value, &c.note]).collect()
        },
        memory_bytes: u64,
        runs: usize,
        warmup: usize,
        seed: u64,
        heartbeat_s: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        killed: Option<Word>,
    }

    struct Point<'a> of MigratePoint {
        parameters: Map<String, Value> = |point| settings(&point.parameters),
        total_s: f64,
        downtime_s: Option<f64>,
        guest_gap_s: Option<f64>,
        guest_clock_gap_s: Option<f64>,
        rounds: u64,
        dirty_pages_per_s: f64,
        transferred_bytes: u64,
        bandwidth_bytes_per_s: f64,
        converged: bool,
        verified: Option<bool>,
        outcomes: Map<String, Value> = |point| {
            let outcomes = point.outcomes.iter();
            outcomes.map(|(outcome, n)| (outcome.word().to_owned(), Value::from(*n))).collect()
        },
        reason: &'a str,
        prediction: Prediction<'a>,
        total: Estimate,
        downtime: Option<Estimate>,
        guest_gap: Option<Estimate>,
        workload: Workload,
    }

    struct Prediction<'a> of MigratePrediction {
        converges: bool,
        rounds: Option<u64>,
        total_s: Option<f64>,
        downtime_s: Option<f64>,
        dirty_bytes_per_s: f64,
        bandwidth_bytes_per_s: f64,
        bandwidth_from: &'a str,
        because: &'a str,
        right: Option<bool>,
    }

    struct Workload of MigrateWorkload {
        dirty_bytes_per_s: f64,
        working_set_bytes: u64,
        resident_bytes: u64,
        written_bytes: u64,
    }

    struct Run<'a> of MigrateRun {
        point: usize,
        block: usize,
        warmup: bool,
        #[serde(flatten)]
        seen: Seen<'a>,
    }

    struct Seen<'a> of Migration {
        outcome: Word,
        reason: &'a str,
        total_s: f64,
        setup_s: f64,
        downtime_s: Option<f64>,
        guest_gap_s: Option<f64>,
        guest_clock_gap_s: Option<f64>,
        stopped_s: Option<f64>,
        longest_gap_before_s: f64,
        longest_gap_after_s: f64,
        lost_after_s: f64,
        rounds: Vec<Round>,
        dirty_pages_per_s_before: f64,
        dirty_pages_per_s: f64,
        transferred_bytes: u64,
        bandwidth_bytes_per_s: f64,
        throttle_percent: u64,
        source_runs_on: Option<bool>,
        destination_ran: bool,
        verification: Option<Verification<'a>>,
        samples: Vec<Sample>,
    }

    struct Round of MigrateRound {
        round: u64,
        start_s: f64,
        length_s: f64,
        pages: u64,
        transferred_bytes: u64,
        written_pages: u64,
        throttle_percent: u64,
    }

    struct Verification<'a> of MigrateVerification {
        equal: bool,
        bytes: u64,
        differing_pages: u64,
        first_difference: Option<u64>,
        source_sha256: &'a str,
        destination_sha256: &'a str,
        written_pages: u64,
    }

    struct Sample of MigrateSample {
        at_s: f64,
        round: u64,
        remaining_bytes: u64,
        transferred_bytes: u64,
        throttle_percent: u64,
    }
}

/// Numbers as numbers.
fn settings(settings: &Settings) -> Map<String, Value> {
    let value = |text: &String| {
        let number = text.parse::<serde_json::Number>();
        number.map_or_else(|_| Value::String(text.clone()), Value::Number)
    };
    settings.iter().map(|(name, text)| (name.clone(), value(text))).collect()
}
