//! The JSON body of a bench. Field names are fixed by schema `vmeter/1`.

use crate::boot::{machine_json, MachineJson};
use serde::Serialize;
use vmeter_model::result::{BenchMachine, BenchResult, Comparison};
use vmeter_model::run::Outcome;
use vmeter_model::Estimate;

/// The fields after the envelope.
#[derive(Debug, Serialize)]
pub(super) struct Body<'a> {
    machines: Vec<Machine<'a>>,
    comparisons: &'a [Comparison],
    warnings: &'a [String],
    hints: &'a [String],
    saved_in: &'a str,
}

#[derive(Debug, Serialize)]
struct Machine<'a> {
    label: &'a str,
    estimate: Estimate,
    samples_s: &'a [f64],
    cpu: Estimate,
    cpu_samples_s: &'a [f64],
    max_rss_bytes: u64,
    failures: Vec<Failure<'a>>,
    outliers: &'a [usize],
    machine: MachineJson<'a>,
}

#[derive(Debug, Serialize)]
struct Failure<'a> {
    run: u32,
    outcome: &'a Outcome,
}

/// The body of a bench's JSON.
pub(super) fn body(result: &BenchResult) -> Body<'_> {
    Body {
        machines: result.machines.iter().map(machine).collect(),
        comparisons: &result.comparisons,
        warnings: &result.warnings,
        hints: &result.hints,
        saved_in: &result.saved_in,
    }
}

fn machine(machine: &BenchMachine) -> Machine<'_> {
    let failures = machine.failures.iter();
    Machine {
        label: &machine.label,
        estimate: machine.estimate,
        samples_s: &machine.samples_s,
        cpu: machine.cpu,
        cpu_samples_s: &machine.cpu_samples_s,
        max_rss_bytes: machine.max_rss_bytes,
        failures: failures.map(|(run, outcome)| Failure { run: *run, outcome }).collect(),
        outliers: &machine.outliers,
        machine: machine_json(&machine.machine),
    }
}
