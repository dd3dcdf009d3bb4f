//! `vmeter bench`: how long a boot takes unobserved, and which machine is faster.

mod json;

use crate::phrases::ended_text;
use crate::verdict::{
    interval_pct, ratio_words, said_once, sentence, verdict_tone, verdict_words, P,
};
use vmeter_base::shell;
use vmeter_model::result::{BenchMachine, BenchResult, Envelope, FailedRun};
use vmeter_model::{Cause, ResolvedOption};
use vmeter_render::chart::{Strip, Strips};
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact, Notice, NoticeKind};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{compact_seconds, p_value, plural, ratio_interval, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_render::{Field, Records, Report};
use vmeter_stats::tails::tails;

/// A [`BenchResult`] to be written.
#[derive(Debug)]
pub struct BenchReport<'a> {
    /// The result.
    pub result: &'a BenchResult,
}

impl<'a> BenchReport<'a> {
    /// The result.
    pub fn new(result: &'a BenchResult) -> Self {
        BenchReport { result }
    }

    /// One sentence a comparison, in words that need no table.
    fn answer(&self) -> String {
        let refused = self.result.not_compared.iter();
        let refused = refused.map(|n| format!("{} is not compared with {}: {}.", n.b, n.a, n.why));
        if self.result.comparisons.is_empty() && self.result.not_compared.is_empty() {
            let means = self.result.machines.iter().map(|machine| {
                if machine.estimate.n == 0 {
                    let why = machine.failures.iter().find_map(why).unwrap_or_default();
                    return format!("No run of {} reached its end: {why}.", machine.label);
                }
                let estimate = Quantity::duration(&machine.estimate).inline();
                let runs = plural(machine.estimate.n as u64, "run");
                if machine.end == Some(Cause::Exit) {
                    return format!(
                        "{} exits after {estimate} ({runs}); vmeter does not know whether a \
                         guest ran in it, or how that guest ended.",
                        machine.label
                    );
                }
                format!("{} boots in {estimate} ({runs}).", machine.label)
            });
            return means.collect::<Vec<_>>().join(" ");
        }
        let compared = self.result.comparisons.iter().map(sentence);
        said_once(compared.chain(refused).collect::<Vec<_>>().join(" "))
    }

    fn machine_table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::name("machine"),
            Column::number("mean ± sd", 0),
            Column::number("min", 2),
            Column::number("max", 2),
            Column::number("CPU time", 1),
            Column::number("runs", 3),
            Column::number("median", 4),
            Column::number("peak RSS", 4),
            Column::text("over time", 5),
        ]);
        for machine in &self.result.machines {
            if machine.estimate.n == 0 {
                table.toned_row(Tone::Muted, none_done(machine));
                continue;
            }
            let exact = |value| Cell::Quantity(Quantity::exact(value, Unit::Seconds));
            table.row(vec![
                Cell::Name(machine.label.clone()),
                Cell::Quantity(Quantity::with_sd(&machine.estimate, Unit::Seconds)),
                exact(machine.estimate.min),
                exact(machine.estimate.max),
                Cell::Quantity(Quantity::with_sd(&machine.cpu, Unit::Seconds)),
                Cell::Text(machine.samples_s.len().to_string()),
                exact(machine.estimate.median),
                Cell::Inline(Quantity::exact(machine.max_rss_bytes as f64, Unit::Bytes)),
                Cell::Spark(machine.samples_s.clone()),
            ]);
        }
        table
    }

    fn comparison_table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::name("machine"),
            Column::text("typical run", 0),
            Column::text("mean", 1),
            Column::text("CPU time", 2),
            Column::number("p", 0).meaning(P),
            Column::text("verdict", 0),
        ]);
        for comparison in &self.result.comparisons {
            table.row(vec![
                Cell::Name(comparison.b.clone()),
                Cell::Text(ratio_words(comparison)),
                Cell::Text(ratio_interval(&comparison.mean_ratio)),
                Cell::Text(ratio_interval(&comparison.cpu_ratio)),
                Cell::Text(p_value(comparison.p_value)),
                Cell::Toned(verdict_words(comparison), verdict_tone(comparison.verdict)),
            ]);
        }
        table
    }

    /// Quantiles of machines; none where runs are too few for any but the median, unless `all`.
    fn tail_table(&self, all: bool) -> Option<Table> {
        let mut table = Table::new(vec![
            Column::name("machine"),
            Column::text("p50", 0),
            Column::text("p90", 0),
            Column::text("p99", 0),
        ]);
        let measured = self.result.machines.iter().filter(|machine| machine.estimate.n > 0);
        let mut told = all;
        for machine in measured {
            let tails = tails(&machine.samples_s);
            told |= tails.iter().skip(1).any(|tail| tail.found.is_some());
            let mut row = vec![Cell::Name(machine.label.clone())];
            row.extend(tails.iter().map(|tail| match tail.found {
                Some((value, ci95)) => Cell::Text(spelled(value, ci95)),
                None => Cell::Toned(format!("needs {} runs", tail.needs), Tone::Muted),
            }));
            table.row(row);
        }
        told.then_some(table)
    }

    fn strips(&self) -> Strips {
        let measured = self.result.machines.iter().filter(|machine| machine.estimate.n > 0);
        let strips = measured.map(|machine| Strip {
            label: machine.label.clone(),
            samples: machine.samples_s.clone(),
            estimate: machine.estimate,
            outliers: machine.outliers.clone(),
        });
        Strips { caption: "wall time of every run".into(), strips: strips.collect() }
    }

    fn notices(&self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for machine in &self.result.machines {
            notices.extend(machine.failures.iter().filter_map(|failed| {
                let text = format!("{}, run {}: {}", machine.label, failed.run, why(failed)?);
                Some(Notice::new(NoticeKind::Failure, text))
            }));
        }
        notices.extend(self.result.machines.iter().filter_map(outlier_notice));
        let BenchResult { said, warnings, hints, saved_in, .. } = self.result;
        notices.extend(said.iter().map(|text| Notice::new(NoticeKind::Note, text)));
        notices.extend(closing_notices(warnings, hints, saved_in));
        notices
    }

    fn machine_facts(&self) -> Vec<Fact> {
        let mut facts = vec![
            Fact::new("command", shell::join(&self.result.envelope.argv), ""),
            Fact::new("started at", &self.result.envelope.started_at, ""),
        ];
        let host = crate::phrases::host_line(&self.result.envelope.host);
        facts.push(Fact::new("host", host, ""));
        for machine in &self.result.machines {
            let label = &machine.label;
            facts.push(Fact::new(label, shell::join(&machine.machine.argv), "as executed"));
            for ResolvedOption { what, value, note } in &machine.machine.chosen {
                facts.push(Fact::new(format!("{label}: {what}"), value, note));
            }
            let versions = machine.machine.provenance.iter();
            facts.extend(
                versions.map(|(what, version)| Fact::new(format!("{label}: {what}"), version, "")),
            );
        }
        facts
    }
}

/// A time and its interval.
fn spelled(value: f64, [low, high]: [f64; 2]) -> String {
    let [value, low, high] = [value, low, high].map(compact_seconds);
    format!("{value} [{low}, {high}]")
}

/// The row of a machine of which no run reached its end: no figures, and what ended it.
fn none_done(machine: &BenchMachine) -> Vec<Cell> {
    let dash = || Cell::Text("-".into());
    let ended = machine.failures.iter().find_map(|failed| failed.end.as_ref());
    let ended = ended.map_or("failed", |end| end.cause.word());
    let name = Cell::Name(machine.label.clone());
    let mut row = vec![name, Cell::Text(ended.into()), dash(), dash(), dash()];
    row.extend([Cell::Text("0".into()), dash(), dash(), dash()]);
    row
}

/// Why a run failed, in words.
fn why(failed: &FailedRun) -> Option<String> {
    ended_text(&failed.outcome, failed.end.as_ref())
}

fn outlier_notice(machine: &BenchMachine) -> Option<Notice> {
    let outliers = machine.outliers.iter();
    let named: Vec<String> = outliers
        .filter_map(|at| {
            Some(format!("run {at} ({})", compact_seconds(*machine.samples_s.get(*at)?)))
        })
        .collect();
    let text = format!(
        "the figures of {} include these outliers: {}; a quiet host or --pin reduces outliers",
        machine.label,
        named.join(", ")
    );
    (!named.is_empty()).then(|| Notice::new(NoticeKind::Warning, text))
}

impl Report for BenchReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let title = "vmeter bench".into();
        let mut document = Document { title, answer: self.answer(), blocks: Vec::new() };
        let measured = self.result.machines.iter().any(|machine| machine.estimate.n > 0);
        if measured {
            document.heading(
                "Machines",
                "wall and CPU time (user + system), mean ± sample standard deviation",
            );
            document.push(Block::Table(self.machine_table()));
        }
        if let Some(table) = self.tail_table(detail == Detail::Full).filter(|_| measured) {
            document.heading(
                "Tails",
                "quantiles of wall time [95 % interval, from order \
                statistics]",
            );
            document.push(Block::Table(table));
        }
        if let Some(first) = self.result.comparisons.first() {
            let sure = interval_pct(first);
            let note = format!(
                "ratio of each machine's time to {}'s time [{sure} % CI of the \
                ratio], paired in random blocks",
                first.a
            );
            document.heading("Comparison", note);
            document.push(Block::Table(self.comparison_table()));
        }
        if measured {
            document.heading("Samples", crate::phrases::DOTS);
            document.push(Block::Strips(self.strips()));
        }
        if detail == Detail::Full {
            document.push(Block::Folded {
                summary: "Provenance".into(),
                blocks: vec![Block::Facts(self.machine_facts())],
            });
        }
        document.push(Block::Notices(self.notices()));
        document
    }

    fn records(&self) -> Records {
        let header = vec!["machine", "sample", "wall_s", "cpu_s", "outlier"];
        let mut records = Records { header, rows: Vec::new() };
        for machine in &self.result.machines {
            for (at, wall) in machine.samples_s.iter().enumerate() {
                records.rows.push(vec![
                    Field::text(&machine.label),
                    Field::number(Some(at)),
                    Field::number(Some(wall)),
                    Field::number(machine.cpu_samples_s.get(at)),
                    Field::number(Some(machine.outliers.contains(&at))),
                ]);
            }
        }
        records
    }
}
