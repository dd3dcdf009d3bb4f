//! The JSON body of a bench. Field names are fixed by schema `vmeter/1`.

use crate::json_common::{self, Comparison};
use vmeter_model::result::{BenchMachine, BenchResult, FailedRun, NotCompared};
use vmeter_model::Cause;
use vmeter_render::exported;
use vmeter_render::exported::{exported, Estimate};
use vmeter_stats::tails::{tails, Tail};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of BenchResult {
        machines: Vec<Machine<'a>>,
        comparisons: Vec<Comparison<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        not_compared: Vec<Refused<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        said: Vec<&'a str> = |result| result.said.iter().map(String::as_str).collect(),
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
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<&'static str> = |machine| machine.end.map(Cause::word),
        outliers: &'a [usize],
        tails: Vec<Quantile> = |machine| tails(&machine.samples_s).iter().map(exported).collect(),
        machine: json_common::Machine<'a>,
    }

    struct Quantile of Tail {
        quantile: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        value_s: Option<f64> = |tail| tail.found.map(|(value, _)| value),
        #[serde(skip_serializing_if = "Option::is_none")]
        ci95: Option<[f64; 2]> = |tail| tail.found.map(|(_, ci95)| ci95),
        runs_needed: usize = |tail| tail.needs,
    }

    struct Failure<'a> of FailedRun {
        run: u32,
        outcome: json_common::Failure<'a> = |failed| exported(&failed.outcome),
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<json_common::End<'a>>,
    }

    struct Refused<'a> of NotCompared {
        a: &'a str,
        b: &'a str,
        why: &'a str,
    }
}
