//! The JSON body of a bench. Field names are fixed by schema `vmeter/1`.

use crate::parts::{self, Comparison};
use vmeter_model::result::{BenchMachine, BenchResult};
use vmeter_model::run::Outcome;
use vmeter_render::exported;
use vmeter_render::exported::{exported, Estimate};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of BenchResult {
        machines: Vec<Machine<'a>>,
        comparisons: Vec<Comparison<'a>>,
        warnings: &'a [String],
        hints: &'a [String],
        saved_in: &'a str,
    }

    struct Machine<'a> of BenchMachine {
        label: &'a str,
        estimate: Estimate,
        samples_s: &'a [f64],
        cpu: Estimate,
        cpu_samples_s: &'a [f64],
        max_rss_bytes: u64,
        failures: Vec<Failure<'a>>,
        outliers: &'a [usize],
        machine: parts::Machine<'a>,
    }

    struct Failure<'a> of (u32, Outcome) {
        run: u32 = |(run, _)| *run,
        outcome: parts::Failure<'a> = |(_, outcome)| exported(outcome),
    }
}
