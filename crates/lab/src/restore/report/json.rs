//! The JSON body of `vmeter restore`. Field names are fixed by schema `vmeter/1`.

use crate::boot::report::json::{Activity, Overhead, Run};
use crate::json_common::{Comparison, Machine, Phase};
use crate::restore::make::Made;
use crate::restore::prefetch::Gain;
use crate::restore::result::{RestoreResult, Restored};
use vmeter_render::exported;
use vmeter_render::exported::{exported, Estimate, Word};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of RestoreResult {
        cold: bool = |result| result.machines.iter().all(|machine| machine.cold),
        create_s: Option<f64> = |result| made(result).map(|made| made.create_s),
        image_bytes: Option<u64> = |result| made(result).map(|made| made.image_bytes),
        machines: Vec<Row<'a>>,
        boot: Option<Booted> = |result| {
            result.boot.as_ref().map(|boot| Booted { total: exported(&boot.total) })
        },
        comparisons: Vec<Comparison<'a>>,
        prefetch: Vec<GainRow<'a>>,
        overhead: Option<Overhead<'a>>,
        pages: Vec<Page<'a>> = |result| {
            let each = |machine: &'a Restored| {
                let label = machine.label();
                machine.pages.owners.iter().map(move |of| Page {
                    label,
                    owner: &of.owner,
                    faults: of.pages,
                    written: (!machine.pages.unknown_writes).then_some(of.written),
                    always: of.always,
                    waited_s: of.waited_s,
                })
            };
            result.machines.iter().flat_map(each).collect()
        },
        warnings: &'a [String],
        hints: &'a [String],
        saved_in: &'a str,
        runs: Vec<Run<'a>> = |result| {
            let boots = result.boot.iter().flat_map(|boot| &boot.runs);
            let restores = result.machines.iter().flat_map(|machine| &machine.runs.runs);
            restores.chain(boots).map(Run::of).collect()
        },
    }

    struct GainRow<'a> of Gain {
        label: &'a str,
        against: &'a str,
        pages: u64,
        load: Estimate,
        predicted: Option<Estimate> = |gain| gain.predicted.as_ref().ok().map(exported),
        unknown: Option<&'a str> = |gain| gain.predicted.as_ref().err().map(String::as_str),
        found: Estimate,
        beyond: Option<Estimate>,
        within: Option<bool> = |gain| gain.within(),
    }

    struct Row<'a> of Restored {
        label: &'a str = |machine| machine.label(),
        method: Option<&'a str> = |machine| machine.method.as_deref(),
        cold: bool,
        resident: &'a [f64],
        proofs: Vec<Word> = |machine| machine.proofs.iter().map(Word::of).collect(),
        create_s: Option<f64> = |machine| machine.made.as_ref().map(|made| made.create_s),
        boot_s: Option<f64> = |machine| machine.made.as_ref().and_then(|made| made.boot_s),
        save_s: Option<f64> = |machine| machine.made.as_ref().and_then(|made| made.save_s),
        image_bytes: Option<u64> = |machine| machine.made.as_ref().map(|made| made.image_bytes),
        period_s: Option<f64> = |machine| machine.made.as_ref().and_then(|made| made.period_s),
        total: Option<Estimate> = |machine| exported(&machine.runs.total),
        phases: Vec<Phase<'a>> = |machine| exported(&machine.runs.phases),
        activities: Vec<Activity<'a>> = |machine| exported(&machine.runs.activities),
        machine: Machine<'a> = |machine| Machine::of(&machine.runs.machine),
    }
}

/// The boot of the same machine.
#[derive(Debug, serde::Serialize)]
struct Booted {
    total: Option<Estimate>,
}

/// Pages that a guest had mapped at its first answer.
#[derive(Debug, serde::Serialize)]
struct Page<'a> {
    label: &'a str,
    owner: &'a str,
    faults: f64,
    written: Option<f64>,
    always: u64,
    waited_s: Option<f64>,
}

fn made(result: &RestoreResult) -> Option<&Made> {
    result.machines.first()?.made.as_ref()
}
