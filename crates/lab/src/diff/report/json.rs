//! The JSON body of a comparison. Field names are fixed by schema `vmeter/1`.

use vmeter_model::sweep::{self, DiffKind, DiffResult, Presence};
use vmeter_render::exported;
use vmeter_render::exported::{Estimate, Word};

exported! {
    /// The fields after the envelope.
    pub(crate) struct Body<'a> of DiffResult {
        a: Side<'a>,
        b: Side<'a>,
        verdict: Word,
        ratio: Option<Estimate>,
        exact: bool,
        tests: usize,
        rows: Vec<Row<'a>>,
        lines: Vec<Row<'a>>,
        settings: Vec<Setting<'a>>,
        warnings: &'a [String],
        hints: &'a [String],
    }

    struct Side<'a> of sweep::DiffSide {
        name: &'a str,
        label: &'a str,
        runs: &'a [u32],
        samples_s: &'a [f64],
        total: Option<Estimate>,
        icount: bool,
        started_at: &'a str,
    }

    struct Row<'a> of sweep::DiffRow {
        kind: &'static str = |row| kind(row.kind),
        name: &'a str,
        place: Option<&'a str>,
        a: Estimate,
        b: Estimate,
        difference: f64,
        difference_ci95: Option<[f64; 2]>,
        seen_in: [usize; 2],
        presence: &'static str = |row| presence(row.presence),
        p_value: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        p_value_levelled: Option<f64>,
        significant: bool,
    }

    struct Setting<'a> of sweep::DiffSetting {
        name: &'a str,
        a: &'a str,
        b: &'a str,
    }
}

pub(super) fn kind(kind: DiffKind) -> &'static str {
    match kind {
        DiffKind::Total => "total",
        DiffKind::Phase => "phase",
        DiffKind::Mark => "mark",
        DiffKind::Activity => "activity",
        DiffKind::Insns => "insns",
        DiffKind::Count => "count",
        DiffKind::Line => "line",
    }
}

pub(super) fn presence(presence: Presence) -> &'static str {
    match presence {
        Presence::Both => "both",
        Presence::New => "new",
        Presence::Gone => "gone",
    }
}
