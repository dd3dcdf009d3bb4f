//! The JSON body of a migration. Field names are fixed by schema `vmeter/1`.

use serde::Serialize;
use serde_json::{Map, Value};
use vmeter_model::migrate::{
    MigrateOutcome, MigratePoint, MigratePrediction, MigrateResult, MigrateRun, MigrateSetup,
    MigrateWorkload,
};
use vmeter_model::Estimate;

/// The fields after the envelope.
#[derive(Debug, Serialize)]
pub(super) struct Body<'a> {
    setup: &'a MigrateSetup,
    points: Vec<Point<'a>>,
    runs: &'a [MigrateRun],
    warnings: &'a [String],
    hints: &'a [String],
}

#[derive(Debug, Serialize)]
struct Point<'a> {
    parameters: Map<String, Value>,
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
    outcomes: Map<String, Value>,
    reason: &'a str,
    prediction: &'a MigratePrediction,
    total: Estimate,
    downtime: Option<Estimate>,
    guest_gap: Option<Estimate>,
    workload: MigrateWorkload,
}

/// Numbers as numbers.
fn json_value(text: &str) -> Value {
    let number = text.parse::<serde_json::Number>();
    number.map_or_else(|_| Value::String(text.to_owned()), Value::Number)
}

fn json_point(point: &MigratePoint) -> Point<'_> {
    let outcome = |(outcome, count): &(MigrateOutcome, usize)| {
        let name = serde_json::to_value(outcome).ok()?.as_str()?.to_owned();
        Some((name, Value::from(*count)))
    };
    let parameters = point.parameters.iter();
    Point {
        parameters: parameters.map(|(n, v)| (n.clone(), json_value(v))).collect(),
        total_s: point.total_s,
        downtime_s: point.downtime_s,
        guest_gap_s: point.guest_gap_s,
        guest_clock_gap_s: point.guest_clock_gap_s,
        rounds: point.rounds,
        dirty_pages_per_s: point.dirty_pages_per_s,
        transferred_bytes: point.transferred_bytes,
        bandwidth_bytes_per_s: point.bandwidth_bytes_per_s,
        converged: point.converged,
        verified: point.verified,
        outcomes: point.outcomes.iter().filter_map(outcome).collect(),
        reason: &point.reason,
        prediction: &point.prediction,
        total: point.total,
        downtime: point.downtime,
        guest_gap: point.guest_gap,
        workload: point.workload,
    }
}

/// The body.
pub(super) fn body(result: &MigrateResult) -> Body<'_> {
    let MigrateResult { setup, points, runs, warnings, hints, .. } = result;
    Body { setup, points: points.iter().map(json_point).collect(), runs, warnings, hints }
}
