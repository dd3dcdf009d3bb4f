//! The answer of `vmeter tune`.

mod json;

use crate::colours::Palette;
use vmeter_model::result::Envelope;
use vmeter_model::tune::{PhaseChange, Sameness, TuneResult, TuneStep};
use vmeter_model::{Estimate, ResolvedOption};
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{compact_seconds, p_value, plural, ratio_interval, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_render::{Field, Records, Report};

/// A phase below this is not shown at a glance, s.
const SHORT_S: f64 = 1e-3;

/// A [`TuneResult`] to be written.
#[derive(Debug)]
pub struct TuneReport<'a> {
    /// The result.
    pub result: &'a TuneResult,
    /// Every candidate.
    pub long: bool,
}

impl<'a> TuneReport<'a> {
    /// The result at a glance.
    pub fn new(result: &'a TuneResult) -> Self {
        TuneReport { result, long: false }
    }

    /// What was found, in a few sentences.
    fn answer(&self) -> String {
        let result = self.result;
        let kept = result.steps.iter().filter(|step| step.kept).count();
        let booted = result.steps.iter().filter(|step| step.booted).count();
        let apply = result.steps.iter().filter(|step| step.predicted.is_some()).count();
        let searched = format!(
            "{apply} candidates apply. vmeter measured {booted} of them, and made {} in all; {}.",
            plural(result.boots as u64, "boot"),
            result.ended
        );
        let by_cpu = result.cpu_ratio.as_ref().map(|ratio| {
            format!(
                "Measured by the VMM's CPU time, the machine with these steps is {} times as \
                    fast as the original. ",
                ratio_interval(ratio)
            )
        });
        let searched = by_cpu.unwrap_or_default() + &searched;
        let Some(before) = &result.before else {
            return "The original machine does not reach the end of the measurement, so there is \
                nothing to tune."
                .into();
        };
        match (&result.ratio, &result.after) {
            (Some(ratio), Some(after)) if result.recommended => format!(
                "{} times as fast, with {}: {} → {}, measured by {} pairs of boots that vmeter \
                 did not use to choose steps. {searched}",
                ratio_interval(ratio),
                plural(kept as u64, "step"),
                compact_seconds(before.mean),
                compact_seconds(after.mean),
                result.samples_s.len(),
            ),
            (Some(ratio), _) => format!(
                "vmeter recommends no step, because it could not confirm a gain: with all steps \
                    that seemed to help, the machine boots {} times as fast as the original. \
                    {searched}",
                ratio_interval(ratio)
            ),
            _ => format!(
                "vmeter recommends no step. A boot takes {}. {searched}",
                compact_seconds(before.mean)
            ),
        }
    }

    fn waterfall(&self) -> Option<Table> {
        let mut table = Table::new(vec![
            Column::name("phase"),
            Column::number("before", 0),
            Column::number("after", 0),
            Column::number("saved", 0),
            Column::text("boot time", 1).meaning(
                "the bars lead from the original's boot time to the tuned machine's: each begins \
                    where the bar above it ends",
            ),
        ]);
        let time = |s: f64| Cell::Inline(Quantity::exact(s, Unit::Seconds));
        let whole: f64 = self.result.phases.iter().map(|phase| phase.before.mean).sum();
        let palette = Palette::new(self.result.phases.iter().map(|phase| phase.name.as_str()));
        let (mut before, mut after) = (0.0, 0.0);
        for phase in &self.result.phases {
            // What is left of the boot, before this phase's saving and after it.
            let left = whole - (before - after);
            before += phase.before.mean;
            after += phase.after.mean;
            let now = whole - (before - after);
            let (from, to) = (left.min(now) / whole, left.max(now) / whole);
            if phase.before.mean.max(phase.after.mean) >= SHORT_S || self.long {
                table.row(vec![
                    Cell::Name(phase.name.clone()),
                    time(phase.before.mean),
                    time(phase.after.mean),
                    Cell::Inline(Quantity::of(&saved(phase), Unit::Seconds)),
                    Cell::Bar { from, to, colour: palette.colour(&phase.name) },
                ]);
            }
        }
        let any = !table.rows.is_empty();
        table.total_row(vec![
            Cell::Name("whole boot, watched".into()),
            time(before),
            time(after),
            time(before - after),
            Cell::Bar { from: 0.0, to: after / whole, colour: palette.colour("") },
        ]);
        any.then_some(table)
    }

    fn steps(&self) -> Option<Table> {
        let mut table = Table::new(vec![
            Column::name("step"),
            Column::text("predicted", 0),
            Column::number("found", 0),
            Column::number("p", 1),
            Column { shrinks_to: Some(16), ..Column::text("gives up", 0) },
            Column::text("change", 3),
        ]);
        for step in self.result.steps.iter().filter(|step| step.kept) {
            table.row(vec![
                Cell::Name(step.id.clone()),
                Cell::Text(predicted(step)),
                found(step),
                Cell::Text(step.p_value.map_or_else(|| "-".into(), p_value)),
                Cell::Text(step.gives_up.clone()),
                Cell::Text(step.change.clone()),
            ]);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// Each gain that was measured by itself, drawn over its prediction.
    fn agreement(&self) -> Option<(String, Table)> {
        let both = |step: &'a TuneStep| Some((step, step.predicted?, step.saving?));
        let both: Vec<_> = self.result.steps.iter().filter_map(both).collect();
        let ends = || both.iter().flat_map(|(_, p, found)| p.ci95.into_iter().chain(found.ci95));
        let low = ends().filter(|s| s.is_finite()).fold(0.0, f64::min);
        let high = ends().filter(|s| s.is_finite()).fold(0.0, f64::max);
        let share = |s: f64| (s - low) / (high - low);
        let mut table = Table::new(vec![
            Column::name("candidate"),
            Column::text("predicted", 1),
            Column::number("found", 1),
            Column::text("", 0),
        ]);
        for (step, expected, gain) in &both {
            table.row(vec![
                Cell::Name(step.id.clone()),
                Cell::Text(predicted(step)),
                found(step),
                Cell::Range {
                    expected: expected.ci95.map(share),
                    found: gain.ci95.map(share),
                    centre: share(gain.mean),
                },
            ]);
        }
        let note = format!(
            "shaded: the predicted range; line: the measured gain with its 95 % interval; the \
                axis goes from {} to {}",
            compact_seconds(low),
            compact_seconds(high)
        );
        (high > low && !table.rows.is_empty()).then_some((note, table))
    }

    /// What was not taken: at a glance, what was booted.
    fn rejected(&self, all: bool) -> Option<Table> {
        let mut table = Table::new(vec![
            Column::name("candidate"),
            Column::text("predicted", 1),
            Column { shrinks_to: Some(24), ..Column::text("why not", 0) },
        ]);
        for step in self.result.steps.iter().filter(|step| !step.kept && (all || step.booted)) {
            let cells = vec![
                Cell::Name(step.id.clone()),
                Cell::Text(predicted(step)),
                Cell::Text(step.reason.clone()),
            ];
            table.toned_row(if step.booted { Tone::Normal } else { Tone::Muted }, cells);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    fn inventory(&self) -> Vec<Fact> {
        let all = self.result.inventory.iter();
        all.map(|item| {
            let value = match (&item.original, &item.tuned) {
                (Some(a), Some(b)) if a == b => a.clone(),
                (Some(a), Some(b)) => format!("{a} → {b}"),
                (Some(a), None) => format!("{a} → not shown"),
                (None, Some(b)) => format!("not shown → {b}"),
                (None, None) => "not shown".into(),
            };
            let note = if item.sameness == Sameness::Same { "" } else { item.sameness.word() };
            Fact::new(&item.what, value, note)
        })
        .collect()
    }

    fn sections(&self, document: &mut Document, all: bool) {
        if let Some(table) = self.waterfall() {
            document.heading("Before and after", "means of watched boots");
            document.push(Block::Table(table));
        }
        if let Some(table) = self.steps() {
            let (within, of) = self.result.predictions;
            let note = format!(
                "found: how much longer the tuned machine takes without the change, ± half of \
                    the 95 % interval; {within} of {of} measured gains are in the predicted \
                    range"
            );
            document.heading("Steps", note);
            document.push(Block::Table(table));
        }
        if let Some((note, table)) = self.agreement().filter(|_| all) {
            document.heading("Predicted and found", note);
            document.push(Block::Table(table));
        }
        let inventory = self.inventory();
        if !inventory.is_empty() {
            document.heading("The same machine", "what the guest says of itself");
            document.push(Block::Facts(inventory));
        }
        if let Some(table) = self.rejected(all) {
            let rest = self.result.steps.iter().filter(|step| !step.kept && !step.booted).count();
            let note = match all || rest == 0 {
                true => String::new(),
                false => format!("and {rest} more without a boot (--long)"),
            };
            document.heading("Rejected", note);
            document.push(Block::Table(table));
        }
    }

    fn facts(&self) -> Vec<Fact> {
        let result = self.result;
        let took = format!(
            "in {} of {}",
            compact_seconds(result.took_s),
            compact_seconds(result.budget_s)
        );
        let mut facts = vec![
            Fact::new("command", vmeter_base::shell::join(&result.envelope.argv), ""),
            Fact::new("started at", &result.envelope.started_at, ""),
            Fact::new("host", crate::phrases::host_line(&result.envelope.host), ""),
            Fact::new("boots", result.boots.to_string(), took),
        ];
        for ResolvedOption { what, value, note } in &result.machine.chosen {
            facts.push(Fact::new(what, value, note));
        }
        let versions = result.machine.provenance.iter();
        facts.extend(versions.map(|(what, version)| Fact::new(what, version, "")));
        facts
    }
}

/// What a phase saves, from the means of both sides and their intervals.
fn saved(phase: &PhaseChange) -> Estimate {
    let PhaseChange { before, after, .. } = phase;
    let half = |of: &Estimate| (of.ci95[1] - of.ci95[0]) / 2.0;
    let (mean, half) = (before.mean - after.mean, half(before).hypot(half(after)));
    Estimate { mean, ci95: [mean - half, mean + half], n: before.n.min(after.n), ..*before }
}

fn predicted(step: &TuneStep) -> String {
    let Some(predicted) = &step.predicted else { return "-".into() };
    let [least, most] = predicted.ci95;
    match most {
        0.0 => "0".into(),
        _ => format!("{} to {}", compact_seconds(least), compact_seconds(most)),
    }
}

fn found(step: &TuneStep) -> Cell {
    let quantity = |found: &Estimate| Cell::Inline(Quantity::of(found, Unit::Seconds));
    step.saving.as_ref().map_or_else(|| Cell::Text("-".into()), quantity)
}

impl Report for TuneReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let title = "vmeter tune".into();
        let mut document = Document { title, answer: self.answer(), blocks: Vec::new() };
        self.sections(&mut document, self.long || detail != Detail::Glance);
        if detail == Detail::Full {
            document.push(Block::Folded {
                summary: "Provenance".into(),
                blocks: vec![Block::Facts(self.facts())],
            });
        }
        let TuneResult { warnings, hints, saved_in, .. } = self.result;
        document.push(Block::Notices(closing_notices(warnings, hints, saved_in)));
        document
    }

    fn records(&self) -> Records {
        let header = vec![
            "step",
            "kept",
            "predicted_low_s",
            "predicted_high_s",
            "saving_s",
            "saving_low_s",
            "saving_high_s",
            "p_value",
            "reason",
        ];
        let mut records = Records { header, rows: Vec::new() };
        for step in &self.result.steps {
            let ends = |estimate: &Option<Estimate>, at: usize| {
                Field::number(estimate.map(|e| e.ci95[at]))
            };
            records.rows.push(vec![
                Field::text(&step.id),
                Field::text(if step.kept { "yes" } else { "no" }),
                ends(&step.predicted, 0),
                ends(&step.predicted, 1),
                Field::number(step.saving.map(|saving| saving.mean)),
                ends(&step.saving, 0),
                ends(&step.saving, 1),
                Field::number(step.p_value),
                Field::text(&step.reason),
            ]);
        }
        records
    }
}
