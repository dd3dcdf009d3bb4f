//! The JSON body of a tuning. Field names are fixed by schema `vmeter/1`.

use crate::json_common;
use vmeter_model::tune::{InventoryItem, PhaseChange, TuneResult, TuneStep};
use vmeter_render::exported;
use vmeter_render::exported::{Estimate, Word};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of TuneResult {
        machine: json_common::Machine<'a>,
        steps: Vec<Step<'a>>,
        inventory: Vec<Item<'a>>,
        before: Option<Estimate>,
        after: Option<Estimate>,
        ratio: Option<Estimate>,
        cpu_ratio: Option<Estimate>,
        p_value: Option<f64>,
        samples_s: Vec<[f64; 2]> = |result| {
            result.samples_s.iter().map(|(original, tuned)| [*original, *tuned]).collect()
        },
        phases: Vec<Phase<'a>>,
        tuned_command: &'a [String] = |result| &result.command,
        recommended: bool,
        ended: &'a str,
        predictions: Predictions = |result| Predictions {
            within: result.predictions.0,
            of: result.predictions.1,
        },
        boots: usize,
        took_s: f64,
        budget_s: f64,
        worth: f64,
        warnings: &'a [String],
        hints: &'a [String],
        saved_in: &'a str,
    }

    /// A candidate.
    struct Step<'a> of TuneStep {
        id: &'a str,
        title: &'a str,
        change: &'a str,
        predicted_s: Option<Estimate> = |step| exported::exported(&step.predicted),
        saving_s: Option<Estimate> = |step| exported::exported(&step.saving),
        p_value: Option<f64>,
        kept: bool,
        gives_up: &'a str,
        reason: &'a str,
        booted: bool,
    }

    /// Something that was compared.
    struct Item<'a> of InventoryItem {
        what: &'a str,
        original: Option<&'a str> = |item| item.original.as_deref(),
        tuned: Option<&'a str> = |item| item.tuned.as_deref(),
        sameness: Word,
    }

    /// A phase before and after.
    struct Phase<'a> of PhaseChange {
        name: &'a str,
        before_s: Estimate = |phase| exported::exported(&phase.before),
        after_s: Estimate = |phase| exported::exported(&phase.after),
    }
}

/// Steps whose saving was predicted, and all that were measured by themselves.
#[derive(Debug, exported::Serialize)]
struct Predictions {
    within: usize,
    of: usize,
}
