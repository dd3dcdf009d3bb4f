//! `vmeter restore` as a document.

mod json;

use super::prefetch::Gain;
use super::proof::Proof;
use super::result::{RestoreResult, Restored};
use crate::boot::report::facts::watch_fact;
use crate::boot::report::BootReport;
use crate::verdict::{said_once, sentence};
use std::collections::BTreeSet;
use vmeter_base::shell;
use vmeter_model::result::{BootResult, Envelope};
use vmeter_model::run::Outcome;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Identity, Kind};
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact, Notice, NoticeKind};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{compact_seconds, percent, plural, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::{Field, Records, Report, RunTimeline};
use vmeter_session::Views;

/// Devices of which a table is made at a glance.
const DEVICES: usize = 5;
/// Owners of pages that are shown of each machine at a glance.
const OWNERS: usize = 8;
/// Machines that stand side by side on 80 columns.
const BESIDE: usize = 3;
/// How often a guest prints its line: its answer may be that much late. No part of the total.
const PERIOD: &str = "ready line's period";

/// A [`RestoreResult`] to be written.
#[derive(Debug)]
pub struct RestoreReport<'a> {
    result: &'a RestoreResult,
    long: bool,
    /// Each machine's runs, as a boot's.
    machines: Vec<BootReport<'a>>,
}

impl<'a> RestoreReport<'a> {
    /// The result, with what to show of it.
    pub fn new(result: &'a RestoreResult, views: &Views) -> Self {
        let machines = result.machines.iter().map(|machine| BootReport::new(&machine.runs));
        RestoreReport { result, long: views.long, machines: machines.collect() }
    }

    /// The machine whose restores take the least.
    fn fastest(&self) -> Option<usize> {
        let totals = self.result.machines.iter().enumerate();
        let totals = totals.filter_map(|(at, one)| Some((at, one.runs.total.as_ref()?.mean)));
        totals.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
    }

    fn answer(&self) -> String {
        let Some(at) = self.fastest() else {
            let all = self.result.machines.iter().flat_map(|machine| &machine.runs.runs);
            let why = all.filter_map(|run| {
                crate::phrases::ended_text(&run.record.outcome, run.record.end.as_ref())
            });
            return format!("No guest was restored: {}.", why.take(1).collect::<String>());
        };
        let machine = &self.result.machines[at];
        let mut said = vec![self.one(at)];
        if let Some(boot) = self.against_boot(machine) {
            said.push(boot);
        }
        said.extend(pays(machine, self.result.boot.as_ref()));
        said.join(" ")
    }

    /// How long one machine takes.
    fn one(&self, at: usize) -> String {
        let machine = &self.result.machines[at];
        let Some(total) = &machine.runs.total else { return String::new() };
        let until = machine.runs.machine.spec.until.as_deref().unwrap_or("the end");
        let until = match until == super::proof::OWN {
            true => "the guest's first sign of life".to_owned(),
            false => format!("`{}`", until.trim_start_matches("line:")),
        };
        let several = self.result.machines.len() > 1;
        format!(
            "{}{}: {} from the VMM's exec to {until} ({}; mean ± 95 % CI); spans with a name \
                cover {} of it.",
            if several { "Fastest is " } else { "" },
            machine.label(),
            Quantity::duration(total).inline(),
            plural(total.n as u64, "run"),
            percent(self.machines[at].coverage()),
        )
    }

    fn against_boot(&self, machine: &Restored) -> Option<String> {
        let found = self.result.comparisons.iter().find(|c| c.b == machine.label())?;
        Some(said_once(sentence(found)))
    }

    /// A phase a row, a machine a column.
    fn phases(&self, machines: &[Restored]) -> Table {
        let mut columns = vec![Column::name("phase")];
        columns.extend(machines.iter().enumerate().map(|(at, machine)| {
            Column::number(machine.label(), u8::try_from(at).unwrap_or(u8::MAX))
        }));
        let mut table = Table::new(columns);
        let mut names: Vec<&str> = Vec::new();
        for machine in machines {
            // A phase that only some have stands behind the one that it follows.
            let mut next = 0;
            for phase in machine.runs.phases.iter().filter(|phase| phase.name != UNATTRIBUTED) {
                let known = names.iter().position(|name| *name == phase.name);
                let at = known.unwrap_or(next);
                if known.is_none() {
                    names.insert(at, &phase.name);
                }
                next = at + 1;
            }
        }
        names.push(UNATTRIBUTED);
        for name in names {
            let of = |machine: &Restored| {
                let phase = machine.runs.phases.iter().find(|phase| phase.name == name);
                phase.map_or_else(|| Cell::Text("-".into()), |p| cell(p.estimate.mean))
            };
            let name = Cell::Name(name.to_owned());
            table.row(std::iter::once(name).chain(machines.iter().map(of)).collect());
        }
        let total = |machine: &Restored| {
            let total = machine.runs.total.as_ref();
            total.map_or_else(|| Cell::Text("-".into()), |t| cell(t.mean))
        };
        let name = Cell::Name("total".into());
        table.total_row(std::iter::once(name).chain(machines.iter().map(total)).collect());
        for name in launched(machines) {
            let length = |machine: &Restored| {
                let mean = launched_s(machine, &name);
                mean.map_or_else(|| Cell::Text("-".into()), cell)
            };
            let lengths = machines.iter().map(length);
            table.row(std::iter::once(Cell::Name(name.clone())).chain(lengths).collect());
        }
        let period = |machine: &Restored| {
            let period = machine.made.as_ref().and_then(|made| made.period_s);
            period.map_or_else(|| Cell::Text("-".into()), cell)
        };
        let name = Cell::Name(PERIOD.into());
        table.row(std::iter::once(name).chain(machines.iter().map(period)).collect());
        table
    }

    /// What each snapshot cost, and in which state it was.
    fn snapshots(&self) -> Table {
        let mut table = Table::new(vec![
            Column::name("snapshot"),
            Column::number("created in", 0),
            Column::number("of it boot", 2),
            Column::number("of it save", 1),
            Column::number("image", 0),
            Column::text("in page cache", 0),
            Column::text("proof", 1),
        ]);
        for machine in &self.result.machines {
            let made = machine.made.as_ref();
            let time = |s: Option<f64>| s.map_or_else(|| Cell::Text("-".into()), cell);
            table.row(vec![
                Cell::Name(machine.label().to_owned()),
                time(made.map(|made| made.create_s)),
                time(made.and_then(|made| made.boot_s)),
                time(made.and_then(|made| made.save_s)),
                made.map_or_else(
                    || Cell::Text("-".into()),
                    |made| Cell::Inline(Quantity::exact(made.image_bytes as f64, Unit::Bytes)),
                ),
                Cell::Text(residency(machine)),
                Cell::Text(proven(machine)),
            ]);
        }
        table
    }

    /// The devices whose state takes longest to load.
    fn devices(&self, most: usize) -> Option<Table> {
        let mut table = Table::new(vec![
            Column::name("device"),
            Column::number("load", 0),
            Column::text("snapshot", 0),
        ]);
        for machine in &self.result.machines {
            let all = machine.runs.activities.iter();
            let all = all.map(|activity| (activity, Identity::of(&activity.name)));
            for (activity, of) in all.filter(|(_, of)| of.kind == Kind::Device).take(most) {
                table.row(vec![
                    Cell::Name(of.name.to_owned()),
                    Cell::Inline(Quantity::of(&activity.estimate, Unit::Seconds)),
                    Cell::Text(machine.label().to_owned()),
                ]);
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// Whose the pages are that guests had mapped.
    fn pages(&self, most: usize) -> Option<Table> {
        let mut table = Table::new(vec![
            Column { shrinks_to: Some(24), ..Column::name("owner") },
            Column::number("pages", 0),
            Column::number("written", 1),
            Column::number("in every run", 1),
            Column::number("waited", 0),
            // Of one machine alone it is told by the headline.
            Column::text("snapshot", if self.result.machines.len() > 1 { 0 } else { 2 }),
        ]);
        for machine in &self.result.machines {
            for of in machine.pages.owners.iter().take(most) {
                table.row(vec![
                    Cell::Name(of.owner.clone()),
                    Cell::Text(format!("{:.0}", of.pages)),
                    Cell::Text(match machine.pages.unknown_writes {
                        true => "-".into(),
                        false => format!("{:.0}", of.written),
                    }),
                    Cell::Text(of.always.to_string()),
                    of.waited_s.map_or_else(|| Cell::Text("-".into()), cell),
                    Cell::Text(machine.label().to_owned()),
                ]);
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// What watching cost.
    fn overhead(&self) -> Option<Block> {
        let cost = self.result.overhead.as_ref()?;
        // A restore is watched in one way only.
        let value = watch_fact(cost.watch, Some(cost)).value;
        Some(Block::Facts(vec![Fact::new("watch", value, "")]))
    }

    /// What loading pages first should gain, and does.
    fn prefetch(&self, document: &mut Document) {
        if self.result.prefetch.is_empty() {
            return;
        }
        let note = "predicted gain: the time for which the restores without prefetch waited for \
            these pages; mean ± 95 % CI";
        document.heading("Pages that are loaded before a restore", note);
        let mut table = Table::new(vec![
            Column::name("snapshot"),
            Column::number("pages", 1),
            Column::number("loaded in", 0),
            Column::number("predicted gain", 0),
            Column::number("measured gain", 0),
        ]);
        let time = |estimate: &Estimate| Cell::Inline(Quantity::of(estimate, Unit::Seconds));
        for gain in &self.result.prefetch {
            let predicted = gain.predicted.as_ref();
            table.row(vec![
                Cell::Name(gain.against.clone()),
                Cell::Text(gain.pages.to_string()),
                time(&gain.load),
                predicted.map_or_else(|_| Cell::Text("not known".into()), time),
                time(&gain.found),
            ]);
        }
        document.push(Block::Table(table));
        for gain in &self.result.prefetch {
            document.push(Block::Paragraph(prediction(gain)));
        }
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![
            Fact::new("command", shell::join(&self.result.envelope.argv), ""),
            Fact::new("started at", &self.result.envelope.started_at, ""),
            Fact::new("host", crate::phrases::host_line(&self.result.envelope.host), ""),
        ];
        for machine in &self.result.machines {
            let of = &machine.runs.machine;
            facts.push(Fact::new(&of.label, shell::join(&of.argv), "as restored"));
            let versions = of.provenance.iter();
            facts.extend(versions.map(|(what, version)| Fact::new(what, version, "")));
        }
        facts
    }

    fn notices(&self) -> Vec<Notice> {
        let machines = self.result.machines.iter().map(|machine| &machine.runs);
        let all = machines.chain(&self.result.boot).flat_map(|result| &result.runs);
        let failed = all.filter_map(|run| {
            let why = crate::phrases::ended_text(&run.record.outcome, run.record.end.as_ref())?;
            let (label, index) = (&run.record.label, run.record.index);
            Some(Notice::new(NoticeKind::Failure, format!("{label}, run {index}: {why}")))
        });
        let RestoreResult { warnings, hints, saved_in, .. } = self.result;
        failed.chain(closing_notices(warnings, hints, saved_in)).collect()
    }
}

/// Whether a prediction holds.
fn prediction(gain: &Gain) -> String {
    let label = &gain.against;
    match (&gain.predicted, gain.within(), &gain.beyond) {
        (Err(why), ..) => format!("{label}: nothing is predicted: {why}."),
        (_, Some(true), _) => {
            format!(
                "{label}: the measured gain agrees with the prediction: the interval of their \
                difference contains 0."
            )
        }
        (_, Some(false), Some(beyond)) => {
            let more = if beyond.mean > 0.0 { "more" } else { "less" };
            let mut ends = beyond.ci95.map(f64::abs);
            ends.sort_by(f64::total_cmp);
            let [low, high] = ends.map(compact_seconds);
            let by = compact_seconds(beyond.mean.abs());
            format!("{label}: the measured gain is {by} [{low}, {high}] {more} than predicted.")
        }
        _ => format!(
            "{label}: there are too few runs to compare the measured gain with the \
            predicted one."
        ),
    }
}

fn cell(s: f64) -> Cell {
    Cell::Quantity(Quantity::exact(s, Unit::Seconds))
}

/// After how many restores a snapshot has paid for itself, or that it never does.
fn pays(machine: &Restored, boot: Option<&BootResult>) -> Option<String> {
    let (made, total) = (machine.made.as_ref()?, machine.runs.total.as_ref()?);
    let boot = boot?.total.as_ref()?;
    let gain = boot.mean - total.mean;
    let cost = compact_seconds(made.create_s);
    Some(match gain > 0.0 {
        true => {
            let times = (made.create_s / gain).ceil().max(1.0) as u64;
            format!(
                "Making the snapshot took {cost}. A restore is faster than a boot: after restore \
                number {times}, the restores together have saved more time than the snapshot \
                took."
            )
        }
        false => {
            format!("The snapshot took {cost} to make, and restoring it is slower than booting.")
        }
    })
}

/// How much of a snapshot was in the page cache before its runs.
fn residency(machine: &Restored) -> String {
    let shares = machine.resident.iter().copied();
    let least = shares.clone().fold(f64::INFINITY, f64::min);
    let most = shares.fold(f64::NEG_INFINITY, f64::max);
    match (least.is_finite(), percent(least) == percent(most)) {
        (false, _) => "not known".into(),
        (true, true) => percent(least),
        (true, false) => format!("{} to {}", percent(least), percent(most)),
    }
}

/// By what its guests are known to be restored.
/// What launchers do for the VMMs.
fn launched(machines: &[Restored]) -> BTreeSet<String> {
    let runs = machines.iter().flat_map(|machine| &machine.runs.runs);
    let beside = runs.flat_map(|run| &run.timeline.overlapping);
    let of_launcher = beside.filter(|span| Identity::of(&span.name).kind == Kind::Launcher);
    of_launcher.map(|span| span.name.clone()).collect()
}

/// How long a launcher is at something, in the mean of a machine's runs, s.
fn launched_s(machine: &Restored, name: &str) -> Option<f64> {
    let runs = machine.runs.runs.iter().filter(|run| !run.record.warmup);
    let beside = runs.flat_map(|run| &run.timeline.overlapping);
    let found: Vec<f64> =
        beside.filter(|span| span.name == name).map(|span| seconds(span.len())).collect();
    let runs = machine.runs.runs.iter().filter(|run| !run.record.warmup).count();
    (!found.is_empty()).then(|| found.iter().sum::<f64>() / runs as f64)
}

fn proven(machine: &Restored) -> String {
    let count = |proof: Proof| machine.proofs.iter().filter(|p| **p == proof).count();
    let all = machine.proofs.len();
    match (count(Proof::Nonce), count(Proof::Clock)) {
        _ if all == 0 => "-".into(),
        (nonce, _) if nonce == all => "nonce".into(),
        (_, clock) if clock == all => "clock".into(),
        (nonce, clock) => format!("{} of {all}", nonce + clock),
    }
}

impl Report for RestoreReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let title = "vmeter restore".into();
        let mut document = Document { title, answer: self.answer(), blocks: Vec::new() };
        document.heading("Phases", "means of the measured runs");
        for some in self.result.machines.chunks(BESIDE) {
            document.push(Block::Table(self.phases(some)));
        }
        document.heading(
            "Snapshots",
            "in page cache: cached share of the snapshot files' bytes before each run",
        );
        document.push(Block::Table(self.snapshots()));
        let all = self.long || detail == Detail::Full;
        if let Some(table) = self
            .devices(if all { usize::MAX } else { DEVICES })
            .filter(|_| self.long || detail != Detail::Glance)
        {
            document.heading("State by device", "longest first, mean ± 95 % CI");
            document.push(Block::Table(table));
        }
        if let Some(table) = self.pages(if all { usize::MAX } else { OWNERS }) {
            let note =
                "4 KiB pages of the snapshot; a read of a mapped file also maps up to 15 neighbours";
            document.heading("Mapped at the first answer", note);
            document.push(Block::Table(table));
        }
        self.prefetch(&mut document);
        document.blocks.extend(self.overhead());
        if let Some(at) = self.fastest().filter(|_| self.long || detail != Detail::Glance) {
            self.machines[at].timeline_blocks(&mut document);
        }
        if detail == Detail::Full {
            document.push(Block::Folded {
                summary: "Provenance".into(),
                blocks: vec![Block::Facts(self.facts())],
            });
        }
        document.push(Block::Notices(self.notices()));
        document
    }

    fn records(&self) -> Records {
        let header = vec!["machine", "cold", "run", "outcome", "phase", "seconds"];
        let mut records = Records { header, rows: Vec::new() };
        for machine in &self.result.machines {
            for run in &machine.runs.runs {
                let total = ("total", run.timeline.total);
                let phases = run.timeline.phases.iter().map(|(name, ns)| (name.as_str(), *ns));
                records.rows.extend(phases.chain([total]).map(|(name, ns)| {
                    vec![
                        Field::text(machine.label()),
                        Field::text(if machine.cold { "true" } else { "false" }),
                        Field::number(Some(run.record.index)),
                        Field::text(run.record.outcome.word()),
                        Field::text(name),
                        Field::seconds(ns),
                    ]
                }));
            }
        }
        let boots = self.result.boot.iter().flat_map(|boot| &boot.runs);
        records.rows.extend(boots.filter(|run| run.record.outcome == Outcome::Done).map(|run| {
            vec![
                Field::text(&run.record.label),
                Field::text(""),
                Field::number(Some(run.record.index)),
                Field::text(run.record.outcome.word()),
                Field::text("total"),
                Field::seconds(run.timeline.total),
            ]
        }));
        records
    }

    fn timelines(&self) -> Vec<RunTimeline<'_>> {
        self.machines.iter().flat_map(|machine| machine.timelines()).collect()
    }
}
