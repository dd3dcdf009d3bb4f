//! The JSON body of findings. Field names are fixed by schema `vmeter/1`.

use crate::json_common;
use vmeter_model::findings::{
    ConsoleCost, ConsoleShare, Contrast, ExactContrast, FindingRow, FindingsResult, Moved,
};
use vmeter_model::FindingVerdict;
use vmeter_render::exported;
use vmeter_render::exported::{exported, Estimate, Word};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of FindingsResult {
        machine: json_common::Machine<'a>,
        own: bool,
        baseline: Option<Estimate>,
        findings: Vec<Finding<'a>> = |result| exported(&result.rows),
        consoles: Vec<Console<'a>>,
        console_share: Option<Share>,
        boots: usize,
        took_s: f64,
        source: &'static str = |_| crate::findings::catalogue::SOURCE,
        warnings: &'a [String],
        hints: &'a [String],
        saved_in: &'a str,
    }

    /// A known cause; its figures are those of its first comparison.
    struct Finding<'a> of FindingRow {
        id: &'a str,
        title: &'a str,
        what: &'a str,
        applies: bool = |row| row.verdict != FindingVerdict::Inapplicable,
        published: &'a str,
        stand_in: &'a str,
        expected: &'a [String],
        price: Word,
        remedy: &'a str,
        baseline: Option<Estimate> = |row| row.contrasts.first().map(|c| exported(&c.baseline)),
        changed: Option<Estimate> = |row| row.contrasts.first().map(|c| exported(&c.changed)),
        saving_s: Option<Estimate> = |row| row.contrasts.first().map(|c| exported(&c.saving)),
        phase: Option<&'a str> = |row| {
            row.contrasts.first().and_then(Contrast::phase).map(|(name, _)| name)
        },
        phase_by: Option<&'static str> = |row| {
            row.contrasts.first().and_then(Contrast::phase).map(|(_, by)| by.word())
        },
        p_value: Option<f64> = |row| {
            row.contrasts.first().map(|c| c.p_value).filter(|p| p.is_finite())
        },
        detectable_s: Option<f64> = |row| row.contrasts.first().and_then(|c| c.detectable_s),
        verdict: Word,
        reason: &'a str,
        comparisons: Vec<Comparison<'a>> = |row| exported(&row.contrasts),
    }

    struct Comparison<'a> of Contrast {
        name: &'a str,
        with: &'a str,
        without: Option<&'a str>,
        baseline: Estimate,
        changed: Estimate,
        saving_s: Estimate = |contrast| exported(&contrast.saving),
        cpu_saving_s: Estimate = |contrast| exported(&contrast.cpu_saving),
        moved: Vec<Place<'a>>,
        p_value: Option<f64> = |contrast| Some(contrast.p_value).filter(|p| p.is_finite()),
        detectable_s: Option<f64>,
        detectable_in: Option<&'a str> = |contrast| contrast.detectable_in.as_deref(),
        detectable_whole_s: Option<f64>,
        unit: Option<&'a str> = |contrast| contrast.unit.as_ref().map(|(name, _)| name.as_str()),
        per_unit_s: Option<Estimate> = |contrast| {
            contrast.unit.as_ref().map(|(_, estimate)| exported(estimate))
        },
        exits_per_unit: Option<Estimate> = |contrast| exported(&contrast.exits_per_unit),
        icount: Option<Exact<'a>> = |contrast| exported(&contrast.exact),
        samples_s: Vec<[f64; 2]> = |contrast| {
            contrast.samples_s.iter().map(|(with, without)| [*with, *without]).collect()
        },
    }

    /// A phase or an activity in which the machines differ beyond noise.
    struct Place<'a> of Moved {
        name: &'a str,
        phase: &'a str,
        saving_s: Estimate = |moved| exported(&moved.saving),
        p_value: f64,
    }

    struct Exact<'a> of ExactContrast {
        baseline_s: f64,
        saving_s: f64,
        phase: &'a str,
        phase_saving_s: f64,
    }

    struct Console<'a> of ConsoleCost {
        console: &'a str,
        per_char_s: Estimate = |cost| exported(&cost.per_char),
        exits_per_char: Option<Estimate> = |cost| exported(&cost.exits_per_char),
        samples_s: &'a [f64],
    }

    struct Share of ConsoleShare {
        bytes: Estimate,
        share: Estimate,
    }
}
