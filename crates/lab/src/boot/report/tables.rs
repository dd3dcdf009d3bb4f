//! The tables of a boot.

use super::BootReport;
use vmeter_model::result::Phase;
use vmeter_model::run::Outcome;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Identity, Kind};
use vmeter_render::document::{Block, Document, Fact};
use vmeter_render::quantity::{Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_timeline::names;

fn range_cells(estimate: &Estimate) -> [Cell; 3] {
    [estimate.median, estimate.min, estimate.max]
        .map(|value| Cell::Quantity(Quantity::beside(value, estimate, Unit::Seconds)))
}

/// Columns of the activities that not every result has.
struct Extra {
    cpu: bool,
    beside: bool,
    insns: bool,
    partial: bool,
}

/// An activity's own time, not rounded to less than the whole is: it is no more than that.
fn own(own: &Estimate, whole: &Estimate) -> Quantity {
    let width = |estimate: &Estimate| estimate.ci95[1] - estimate.ci95[0];
    let half = width(own).min(width(whole)) / 2.0;
    let ci95 = [own.mean - half, own.mean + half];
    Quantity::duration(&Estimate { ci95, ..*own }).without_interval()
}

impl Extra {
    fn heads(&self) -> Vec<Column> {
        let mut columns = vec![
            Column::name("activity"),
            Column::number("critical path", 0),
            Column::number("self", 1),
        ];
        columns.extend(self.cpu.then(|| Column::number("CPU", 0)));
        columns.extend(self.beside.then(|| Column::number("off path", 1)));
        columns.push(Column::text("phase", 4));
        columns.extend(self.insns.then(|| Column::number("instructions", 2)));
        columns.extend(self.partial.then(|| Column::number("in runs", 3)));
        columns
    }
}

impl BootReport<'_> {
    /// What the figures of the tables are.
    pub(super) fn means_note(&self) -> String {
        match self.shown_runs().len() {
            1 => "one run: --runs N shows the spread".into(),
            n if self.result.total.is_none() => {
                format!("mean of {n} failed runs, each up to the point that it reached")
            }
            n => format!("mean of {n} runs ± 95 % CI"),
        }
    }

    /// What ± and brackets are, where several runs give them.
    pub(super) fn what_brackets_are(&self, runs: usize) -> &'static str {
        let open = |estimate: &Estimate| Quantity::duration(estimate).at_most.is_some();
        match runs {
            0 | 1 => "",
            _ if self.result.phases.iter().any(|phase| open(&phase.estimate)) => {
                "; means; ± or [ ]: 95 % CI"
            }
            _ => "; mean ± 95 % CI",
        }
    }

    /// What the columns of the activities are.
    pub(super) fn activities_note(&self) -> String {
        let all = || self.result.activities.iter();
        let mut notes = vec![
            "time on the critical path; self: the part of that time that no named \
            child span covers",
        ];
        if all().any(|activity| activity.beside.is_some()) {
            notes.push("off path: time in parallel to the critical path");
        }
        if all().any(|activity| Quantity::duration(&activity.estimate).at_most.is_some()) {
            notes.push("mean ± 95 % CI; a mean without ± has a CI that includes 0");
        }
        if all().any(|activity| activity.seen_in < self.shown_runs().len()) {
            notes.push(
                "in runs: in how many runs vmeter saw the activity on the critical path; the mean \
                counts 0 for the other runs",
            );
        }
        if all().any(|activity| Identity::of(&activity.name).kind == Kind::Several) {
            notes.push(
                "a+b: one time for two activities, because no marker shows where the first ends; \
                a row of the first alone has only its part before that time",
            );
        }
        if all().any(|activity| activity.name.ends_with(": between its parts")) {
            notes.push(
                "between its parts: time within a span, but outside of the spans that it \
                contains",
            );
        }
        notes.join("; ")
    }

    /// Phases in order of time, `unattributed` and the total last.
    pub(super) fn phase_table(&self) -> Table {
        let palette = self.palette();
        let several = self.shown_runs().len() > 1;
        let off: Vec<String> = self.phases().iter().map(|phase| self.phase_off_by(phase)).collect();
        let any_off = off.iter().any(|off| !off.is_empty());
        let mut columns = vec![
            Column::name("phase"),
            Column::number(if several { "mean" } else { "time" }, 0),
            Column::number("share", 0),
        ];
        columns.extend(any_off.then(|| Column::text("", 1)));
        columns.push(Column::text("", 1));
        if several {
            columns
                .extend([("median", 2), ("min", 3), ("max", 3)].map(|(t, p)| Column::number(t, p)));
        }
        let mut table = Table::new(columns);
        let largest = self.result.phases.iter().map(|p| p.share).fold(0.0, f64::max);
        for (phase, off) in self.phases().into_iter().zip(off) {
            let to = if largest > 0.0 { phase.share / largest } else { 0.0 };
            let mut cells = vec![
                Cell::Name(phase.name.clone()),
                Cell::Quantity(Quantity::duration(&phase.estimate)),
                Cell::Share(phase.share),
            ];
            cells.extend(any_off.then_some(Cell::Text(off)));
            cells.push(Cell::Bar { from: 0.0, to, colour: palette.colour(&phase.name) });
            cells.extend(range_cells(&phase.estimate));
            let tone = if phase.name == UNATTRIBUTED { Tone::Muted } else { Tone::Normal };
            table.toned_row(tone, cells);
        }
        if let Some(total) = &self.result.total {
            let quantity = Quantity::duration(total);
            let name = Cell::Text("TOTAL".into());
            let mut cells = vec![name, Cell::Quantity(quantity), Cell::Share(1.0)];
            cells.extend(any_off.then_some(Cell::Empty));
            cells.push(Cell::Empty);
            cells.extend(range_cells(total));
            table.total_row(cells);
        }
        table
    }

    /// How far off a phase's begin or end can be, where that is worth a word.
    fn phase_off_by(&self, phase: &Phase) -> String {
        let timelines = self.shown_timelines();
        let spans = timelines.iter().flat_map(|timeline| &timeline.spans);
        let own = spans.filter(|s| s.parent.is_none() && s.name == phase.name);
        let error = own.map(|span| span.error_ns).max().unwrap_or(0);
        super::screen::error(error, phase.estimate.mean)
    }

    /// The longest activities.
    pub(super) fn activity_table(&self, most: usize) -> Table {
        let activities = &self.result.activities;
        let listed = || activities.iter().take(most);
        let runs = self.shown_runs().len();
        let columns = Extra {
            cpu: listed().any(|activity| activity.cpu.is_some()),
            beside: listed().any(|activity| activity.beside.is_some()),
            insns: listed().any(|activity| activity.insns.is_some()),
            partial: listed().any(|activity| activity.seen_in < runs),
        };
        let mut table = Table::new(columns.heads());
        let time = |estimate: &Option<Estimate>| {
            let known = estimate.as_ref();
            known.map_or(Cell::Empty, |known| {
                Cell::Quantity(Quantity::duration(known).without_interval())
            })
        };
        for activity in listed() {
            let mut cells = vec![
                Cell::Name(activity.name.clone()),
                Cell::Quantity(Quantity::duration(&activity.estimate)),
                Cell::Quantity(own(&activity.own, &activity.estimate)),
            ];
            cells.extend(columns.cpu.then(|| time(&activity.cpu)));
            cells.extend(columns.beside.then(|| time(&activity.beside)));
            cells.push(Cell::Name(activity.phase.clone()));
            if columns.insns {
                cells.push(activity.insns.as_ref().map_or(Cell::Empty, |insns| {
                    Cell::Inline(Quantity::exact(insns.mean.round(), Unit::Count))
                }));
            }
            if columns.partial {
                cells.push(Cell::Text(format!("{} of {runs}", activity.seen_in)));
            }
            table.row(cells);
        }
        table
    }

    /// What the names of the activities in the table mean.
    pub(super) fn name_blocks(&self, most: usize, document: &mut Document) {
        let mut facts: Vec<Fact> = Vec::new();
        for activity in self.result.activities.iter().take(most) {
            let Some((name, meaning)) = names::meaning(&activity.name) else { continue };
            if facts.iter().all(|fact| fact.name != *name) {
                facts.push(Fact::new(*name, *meaning, ""));
            }
        }
        if !facts.is_empty() {
            document.heading("Names", "what each span in these tables is");
            document.push(Block::Facts(facts));
        }
    }

    /// Everything counted.
    pub(super) fn count_table(&self) -> Table {
        let several = self.shown_runs().len() > 1;
        let mut columns = vec![Column::name("count")];
        columns.push(Column::number(if several { "mean" } else { "in the run" }, 0));
        if several {
            columns.extend(["min", "max"].map(|title| Column::number(title, 2)));
        }
        let mut table = Table::new(columns);
        for (name, estimate) in &self.result.counts {
            let exact = |value: f64| Cell::Inline(Quantity::exact(value, Unit::Count));
            table.row(vec![
                Cell::Name(name.clone()),
                Cell::Inline(Quantity::of(estimate, Unit::Count)),
                exact(estimate.min),
                exact(estimate.max),
            ]);
        }
        table
    }

    /// One row a run.
    pub(super) fn run_table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::number("run", 0),
            Column::text("outcome", 0),
            Column::number("total", 0),
            Column::number("covered", 0),
            Column::number("user", 1),
            Column::number("system", 1),
            Column::number("stolen", 2),
            Column::number("peak RSS", 2),
            Column::text("watch", 3),
        ]);
        for run in &self.result.runs {
            let record = &run.record;
            let seconds_cell = |value| Cell::Quantity(Quantity::exact(value, Unit::Seconds));
            let tone = if record.outcome == Outcome::Done { Tone::Normal } else { Tone::Bad };
            let rss = Quantity::exact(record.usage.max_rss_bytes as f64, Unit::Bytes);
            table.toned_row(
                tone,
                vec![
                    Cell::Text(record.index.to_string()),
                    Cell::Text(record.outcome.word().into()),
                    seconds_cell(seconds(run.timeline.total)),
                    Cell::Share(run.timeline.coverage()),
                    seconds_cell(record.usage.user_s),
                    seconds_cell(record.usage.system_s),
                    seconds_cell(record.steal_s),
                    Cell::Quantity(rss),
                    Cell::Text(super::facts::watch_name(record.watch).into()),
                ],
            );
        }
        table
    }
}
