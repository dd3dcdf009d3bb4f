//! `vmeter migrate`: time, downtime as QEMU and as the guest have it, and why not.

use crate::chart::{Curve, Curves};
use crate::document::{closing_notices, Block, Detail, Document, Fact, Tone};
use crate::quantity::{compact_seconds, grouped};
use crate::table::{Cell, Column, Table};
use crate::{Field, Records, Report};
use serde::Serialize;
use serde_json::{Map, Value};
use vmeter_model::migrate::{
    MigrateOutcome, MigratePoint, MigratePrediction, MigrateResult, MigrateRun, MigrateSetup,
    MigrateWorkload,
};
use vmeter_model::result::Envelope;
use vmeter_model::Estimate;

/// Rounds of a point at a glance.
const ROUNDS: usize = 6;
/// Points whose rounds and curves are shown at a glance.
const GLANCE: usize = 6;

/// A [`MigrateResult`] to be written.
#[derive(Debug)]
pub struct MigrateReport<'a> {
    /// The result.
    pub result: &'a MigrateResult,
}

impl<'a> MigrateReport<'a> {
    /// The result.
    pub fn new(result: &'a MigrateResult) -> Self {
        MigrateReport { result }
    }

    fn answer(&self) -> String {
        match &self.result.setup.killed {
            Some(side) => self.answer_where_killed(side),
            None => self.answer_where_not(),
        }
    }

    fn answer_where_killed(&self, side: &str) -> String {
        let runs = &self.result.runs;
        let on = runs.iter().filter(|run| run.source_runs_on == Some(true)).count();
        let arrived = runs.iter().filter(|run| run.destination_ran).count();
        let left = match (on, arrived) {
            (n, _) if n == runs.len() => "the guest runs on at the source every time.".to_owned(),
            (0, 0) => "the guest is lost; no part of it ran at the destination.".to_owned(),
            (0, _) => "the guest is lost: it had begun to run at the destination.".to_owned(),
            (n, _) => format!("the guest runs on at the source {n} of {} times.", runs.len()),
        };
        format!("The {side} was killed in the middle of the migration: {left}")
    }

    fn answer_where_not(&self) -> String {
        let points = &self.result.points;
        let converged: Vec<&MigratePoint> = points.iter().filter(|p| p.converged).collect();
        let mut text = match (converged.len(), points.len()) {
            (0, 0) => return "Nothing was measured.".into(),
            (0, n) => format!("None of {n} settings converges."),
            (n, all) if n == all && n == 1 => "It converges.".into(),
            (n, all) if n == all => format!("All {n} settings converge."),
            (n, all) => format!("{n} of {all} settings converge."),
        };
        let longest = converged
            .iter()
            .max_by(|a, b| a.guest_gap_s.unwrap_or(0.0).total_cmp(&b.guest_gap_s.unwrap_or(0.0)));
        if let Some((point, gap)) = longest.and_then(|point| Some((point, point.guest_gap_s?))) {
            let said = point.downtime_s.map(compact_seconds).unwrap_or_default();
            let which = if converged.len() > 1 {
                format!(" at most ({})", self.label(point))
            } else {
                String::new()
            };
            text += &format!(
                " The guest stood still for {}{which}; QEMU says {said}.",
                compact_seconds(gap)
            );
        }
        text += match self.verified() {
            (0, _) => "",
            (n, equal) if n == equal => " Its memory was the same on both sides every time.",
            _ => " Its memory was NOT the same on both sides.",
        };
        text
    }

    /// Comparisons, and how many of them came out equal.
    fn verified(&self) -> (usize, usize) {
        let all = self.result.runs.iter().filter_map(|run| run.verification.as_ref());
        (all.clone().count(), all.filter(|v| v.equal).count())
    }

    fn facts(&self) -> Vec<Fact> {
        let setup = &self.result.setup;
        let mut facts: Vec<Fact> = setup
            .chosen
            .iter()
            .filter(|(what, _, _)| {
                matches!(what.as_str(), "vmm" | "accel" | "machine" | "smp" | "memory")
            })
            .map(|(what, value, why)| Fact::new(what, value, why))
            .collect();
        if let Some(point) = self.result.points.first() {
            let MigrateWorkload { working_set_bytes, resident_bytes, .. } = point.workload;
            let value = format!(
                "{} MiB with data, {} MiB of it dirtied in turn",
                resident_bytes >> 20,
                working_set_bytes >> 20
            );
            facts.push(Fact::new("guest", value, "-L resident, working-set, written-bytes"));
        }
        let (compared, equal) = self.verified();
        let value = match compared {
            0 => "nothing to compare: no guest arrived".to_owned(),
            n => format!("{equal} of {n} times equal, all {} MiB", setup.memory_bytes >> 20),
        };
        facts.push(Fact::new(
            "memory after",
            value,
            "SHA-256 of both sides' RAM, guest at the same write",
        ));
        facts
    }

    fn main_table(&self) -> Table {
        let names = self.varied();
        let mut columns: Vec<Column> = names.iter().map(|name| Column::text(name, 0)).collect();
        columns.extend([
            Column::text("came to", 0),
            Column::number("total", 0),
            Column::number("downtime", 0),
            Column::number("guest gap", 0),
            Column::number("rounds", 1),
            Column::number("dirtied", 2),
            Column::number("sent", 2),
            Column::number("bandwidth", 1),
            Column::text("memory", 1),
        ]);
        let mut table = Table::new(columns);
        for point in &self.result.points {
            let mut cells: Vec<Cell> = names.iter().map(|n| Cell::Text(value(point, n))).collect();
            let seconds =
                |s: Option<f64>| s.map_or(Cell::Empty, |s| Cell::Text(compact_seconds(s)));
            let (word, tone) = outcome(point);
            cells.extend([
                Cell::Toned(word, tone),
                seconds(Some(point.total_s)),
                seconds(point.downtime_s),
                seconds(point.guest_gap_s),
                Cell::Text(point.rounds.to_string()),
                Cell::Text(rate(point.dirty_pages_per_s * 4096.0)),
                Cell::Text(megabytes(point.transferred_bytes as f64)),
                Cell::Text(rate(point.bandwidth_bytes_per_s)),
                match point.verified {
                    Some(true) => Cell::Toned("equal".into(), Tone::Good),
                    Some(false) => Cell::Toned("DIFFERS".into(), Tone::Bad),
                    None => Cell::Empty,
                },
            ]);
            table.row(cells);
        }
        table
    }

    fn predictions(&self) -> Table {
        let names = self.varied();
        let mut columns: Vec<Column> = names.iter().map(|name| Column::text(name, 0)).collect();
        columns.extend([
            Column::number("dirty rate", 0),
            Column::number("bandwidth", 0),
            Column::text("converges", 0),
            Column::number("rounds", 2),
            Column::number("total", 1),
            Column::number("downtime", 1),
            Column::text("and it", 0),
        ]);
        let mut table = Table::new(columns);
        for point in &self.result.points {
            let p = &point.prediction;
            let mut cells: Vec<Cell> = names.iter().map(|n| Cell::Text(value(point, n))).collect();
            let seconds =
                |s: Option<f64>| s.map_or(Cell::Empty, |s| Cell::Text(compact_seconds(s)));
            cells.extend([
                Cell::Text(rate(p.dirty_bytes_per_s)),
                Cell::Text(rate(p.bandwidth_bytes_per_s)),
                Cell::Text(if p.converges { "yes" } else { "no" }.into()),
                p.rounds.map_or(Cell::Empty, |n| Cell::Text(n.to_string())),
                seconds(p.total_s),
                seconds(p.downtime_s),
                match p.right {
                    Some(true) => Cell::Toned("did so".into(), Tone::Good),
                    Some(false) => Cell::Toned("did not".into(), Tone::Bad),
                    None => Cell::Text("was not seen".into()),
                },
            ]);
            table.row(cells);
        }
        table
    }

    /// What tells a point from the others.
    fn label(&self, point: &MigratePoint) -> String {
        let words = self.varied();
        let words = words.iter().map(|name| format!("{name}={}", value(point, name)));
        words.collect::<Vec<_>>().join(",")
    }

    /// Names of parameters that have more than one value; all names where none has.
    fn varied(&self) -> Vec<&str> {
        let points = &self.result.points;
        let Some(first) = points.first() else { return Vec::new() };
        let names = first.parameters.iter().map(|(name, _)| name.as_str());
        let varied: Vec<&str> = names
            .clone()
            .filter(|name| points.iter().any(|p| value(p, name) != value(first, name)))
            .collect();
        match varied.is_empty() {
            true => names.collect(),
            false => varied,
        }
    }

    /// The run of a point that is drawn: the first measured one.
    fn shown(&self, point: usize) -> Option<&MigrateRun> {
        let of_point = || self.result.runs.iter().filter(|run| run.point == point);
        of_point().find(|run| !run.warmup).or_else(|| of_point().next())
    }

    fn curves(&self, detail: Detail) -> Curves {
        let most = if detail == Detail::Full { usize::MAX } else { GLANCE };
        let curve = |(n, point): (usize, &MigratePoint)| {
            let run = self.shown(n)?;
            let points = run.samples.iter().map(|s| (s.at_s, s.remaining_bytes as f64 / 1e6));
            // Before the first round QEMU says that nothing is left.
            let points = points.skip_while(|(_, left)| *left == 0.0);
            Some(Curve { label: self.label(point), points: points.collect() })
        };
        let points = self.result.points.iter().enumerate();
        Curves {
            caption: "left to send over time".into(),
            unit: "MB".into(),
            curves: points.filter_map(curve).take(most).collect(),
        }
    }

    fn rounds(&self, detail: Detail) -> Table {
        let (points, rounds) = match detail {
            Detail::Full => (usize::MAX, usize::MAX),
            Detail::Glance => (GLANCE, ROUNDS),
        };
        let mut table = Table::new(vec![
            Column::name("setting"),
            Column::number("round", 0),
            Column::number("begins", 0),
            Column::number("takes", 0),
            Column::number("pages to send", 0),
            Column::number("sent", 1),
            Column::number("written meanwhile", 0),
            Column::number("throttle", 2),
        ]);
        for (n, point) in self.result.points.iter().enumerate().take(points) {
            let Some(run) = self.shown(n) else { continue };
            let mut name = self.label(point);
            for round in run.rounds.iter().take(rounds) {
                table.row(vec![
                    Cell::Name(std::mem::take(&mut name)),
                    Cell::Text(round.round.to_string()),
                    Cell::Text(compact_seconds(round.start_s.max(0.0))),
                    Cell::Text(compact_seconds(round.length_s)),
                    Cell::Text(grouped(&round.pages.to_string())),
                    Cell::Text(megabytes(round.transferred_bytes as f64)),
                    Cell::Text(grouped(&round.written_pages.to_string())),
                    match round.throttle_percent {
                        0 => Cell::Empty,
                        percent => Cell::Text(format!("{percent}%")),
                    },
                ]);
            }
            if run.rounds.len() > rounds {
                let more = format!("and {} more", run.rounds.len() - rounds);
                table.row(vec![Cell::Empty, Cell::Text(more)]);
            }
        }
        table
    }

    fn gaps(&self) -> Table {
        let mut table = Table::new(vec![
            Column::name("setting"),
            Column::number("guest gap", 0),
            Column::number("stopped", 0),
            Column::number("QEMU says", 0),
            Column::number("guest's clock", 0),
            Column::number("longest before", 1),
            Column::number("longest after", 1),
            Column::number("lost after", 2),
        ]);
        for (n, point) in self.result.points.iter().enumerate() {
            let Some(run) = self.shown(n).filter(|run| run.guest_gap_s.is_some()) else { continue };
            let seconds =
                |s: Option<f64>| s.map_or(Cell::Empty, |s| Cell::Text(compact_seconds(s)));
            table.row(vec![
                Cell::Name(self.label(point)),
                seconds(run.guest_gap_s),
                seconds(run.stopped_s),
                seconds(run.downtime_s),
                seconds(run.guest_clock_gap_s),
                seconds(Some(run.longest_gap_before_s)),
                seconds(Some(run.longest_gap_after_s)),
                seconds(Some(run.lost_after_s)),
            ]);
        }
        table
    }

    /// What happened to settings that did not complete.
    fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for (n, point) in self.result.points.iter().enumerate() {
            let runs = self.result.runs.iter().filter(|run| run.point == n);
            let on: Vec<bool> = runs.filter_map(|run| run.source_runs_on).collect();
            if point.reason.is_empty() && on.is_empty() {
                continue;
            }
            let going = on.iter().filter(|on| **on).count();
            let left = match on.len() {
                0 => String::new(),
                all if all == going => " The guest runs on at the source.".into(),
                all => format!(" The guest runs on at the source {going} of {all} times."),
            };
            let stop = if point.reason.ends_with('.') { "" } else { "." };
            reasons.push(format!("{}: {}{stop}{left}", self.label(point), point.reason));
        }
        reasons
    }
}

/// All that was set.
fn full_label(point: &MigratePoint) -> String {
    let words = point.parameters.iter().map(|(name, value)| format!("{name}={value}"));
    words.collect::<Vec<_>>().join(",")
}

fn value(point: &MigratePoint, name: &str) -> String {
    let found = point.parameters.iter().find(|(other, _)| other == name);
    found.map_or_else(String::new, |(_, value)| value.clone())
}

fn rate(bytes_per_s: f64) -> String {
    format!("{:.0} MB/s", bytes_per_s / 1e6)
}

fn megabytes(bytes: f64) -> String {
    format!("{:.0} MB", bytes / 1e6)
}

fn word(outcome: MigrateOutcome) -> (&'static str, Tone) {
    match outcome {
        MigrateOutcome::Completed => ("converged", Tone::Good),
        MigrateOutcome::NotConverged => ("not converged", Tone::Bad),
        MigrateOutcome::TimedOut => ("timed out", Tone::Bad),
        MigrateOutcome::Failed => ("failed", Tone::Bad),
        MigrateOutcome::DestinationDied => ("destination died", Tone::Bad),
        MigrateOutcome::SourceDied => ("source died", Tone::Bad),
    }
}

fn outcome(point: &MigratePoint) -> (String, Tone) {
    match point.outcomes.as_slice() {
        [] => (String::new(), Tone::Muted),
        [(only, _)] => {
            let (word, tone) = word(*only);
            (word.to_owned(), tone)
        }
        several => {
            let words = several.iter().map(|(outcome, n)| format!("{n} {}", word(*outcome).0));
            (words.collect::<Vec<_>>().join(", "), Tone::Bad)
        }
    }
}

/// The fields after the envelope.
#[derive(Debug, Serialize)]
struct Body<'a> {
    setup: &'a MigrateSetup,
    points: Vec<Point<'a>>,
    runs: &'a [MigrateRun],
    warnings: &'a [String],
    hints: &'a [String],
}

#[derive(Debug, Serialize)]
struct Point<'a> {
    parameters: Map<String, Value>,
    total_s: f64,
    downtime_s: Option<f64>,
    guest_gap_s: Option<f64>,
    guest_clock_gap_s: Option<f64>,
    rounds: u64,
    dirty_pages_per_s: f64,
    transferred_bytes: u64,
    bandwidth_bytes_per_s: f64,
    converged: bool,
    verified: Option<bool>,
    outcomes: Map<String, Value>,
    reason: &'a str,
    prediction: &'a MigratePrediction,
    total: Estimate,
    downtime: Option<Estimate>,
    guest_gap: Option<Estimate>,
    workload: MigrateWorkload,
}

/// Numbers as numbers.
fn json_value(text: &str) -> Value {
    let number = text.parse::<serde_json::Number>();
    number.map_or_else(|_| Value::String(text.to_owned()), Value::Number)
}

fn json_point(point: &MigratePoint) -> Point<'_> {
    let outcome = |(outcome, count): &(MigrateOutcome, usize)| {
        let name = serde_json::to_value(outcome).ok()?.as_str()?.to_owned();
        Some((name, Value::from(*count)))
    };
    let parameters = point.parameters.iter();
    Point {
        parameters: parameters.map(|(n, v)| (n.clone(), json_value(v))).collect(),
        total_s: point.total_s,
        downtime_s: point.downtime_s,
        guest_gap_s: point.guest_gap_s,
        guest_clock_gap_s: point.guest_clock_gap_s,
        rounds: point.rounds,
        dirty_pages_per_s: point.dirty_pages_per_s,
        transferred_bytes: point.transferred_bytes,
        bandwidth_bytes_per_s: point.bandwidth_bytes_per_s,
        converged: point.converged,
        verified: point.verified,
        outcomes: point.outcomes.iter().filter_map(outcome).collect(),
        reason: &point.reason,
        prediction: &point.prediction,
        total: point.total,
        downtime: point.downtime,
        guest_gap: point.guest_gap,
        workload: point.workload,
    }
}

impl Report for MigrateReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        let MigrateResult { setup, points, runs, warnings, hints, .. } = self.result;
        let points = points.iter().map(json_point).collect();
        Box::new(Body { setup, points, runs, warnings, hints })
    }

    fn document(&self, detail: Detail) -> Document {
        let result = self.result;
        let mut document =
            Document { title: "vmeter migrate".into(), answer: self.answer(), blocks: Vec::new() };
        document.push(Block::Facts(self.facts()));
        let note = format!(
            "medians of {} runs; guest gap: between its heartbeats, {:.0} ms apart",
            result.setup.runs,
            result.setup.heartbeat_s * 1e3
        );
        document.heading("Migrations", note);
        document.push(Block::Table(self.main_table()));
        let reasons = self.reasons();
        if !reasons.is_empty() {
            document.heading("Why not", "");
        }
        document.blocks.extend(reasons.into_iter().map(Block::Paragraph));
        document.heading("Left to send", "MB over time, one run a setting");
        document.push(Block::Curves(self.curves(detail)));
        document.heading("Predicted", "from dirty rate and bandwidth alone");
        document.push(Block::Table(self.predictions()));
        document.heading("Rounds", "one run a setting");
        document.push(Block::Table(self.rounds(detail)));
        let gaps = self.gaps();
        if !gaps.rows.is_empty() {
            document.heading("Standing still", "one run a setting; stopped: from STOP to RESUME");
            document.push(Block::Table(gaps));
        }
        document.push(Block::Notices(closing_notices(&result.warnings, &result.hints, "")));
        document
    }

    fn records(&self) -> Records {
        let header = vec![
            "point",
            "parameters",
            "run",
            "warmup",
            "outcome",
            "total_s",
            "downtime_s",
            "guest_gap_s",
            "guest_clock_gap_s",
            "stopped_s",
            "rounds",
            "dirty_pages_per_s_before",
            "dirty_pages_per_s",
            "transferred_bytes",
            "bandwidth_bytes_per_s",
            "throttle_percent",
            "source_runs_on",
            "verified",
            "source_sha256",
            "destination_sha256",
        ];
        let row = |run: &MigrateRun| {
            let point = self.result.points.get(run.point);
            let verified = run.verification.as_ref();
            let digest = |digest: Option<&String>| digest.map_or(Field::Empty, Field::text);
            vec![
                Field::number(Some(run.point)),
                Field::text(point.map(full_label).unwrap_or_default()),
                Field::number(Some(run.block)),
                Field::text(run.warmup.to_string()),
                Field::text(word(run.outcome).0),
                Field::number(Some(run.total_s)),
                Field::number(run.downtime_s),
                Field::number(run.guest_gap_s),
                Field::number(run.guest_clock_gap_s),
                Field::number(run.stopped_s),
                Field::number(Some(run.rounds.len())),
                Field::number(Some(run.dirty_pages_per_s_before)),
                Field::number(Some(run.dirty_pages_per_s)),
                Field::number(Some(run.transferred_bytes)),
                Field::number(Some(run.bandwidth_bytes_per_s)),
                Field::number(Some(run.throttle_percent)),
                run.source_runs_on.map_or(Field::Empty, |on| Field::text(on.to_string())),
                verified.map_or(Field::Empty, |v| Field::text(v.equal.to_string())),
                digest(verified.map(|v| &v.source_sha256)),
                digest(verified.map(|v| &v.destination_sha256)),
            ]
        };
        Records { header, rows: self.result.runs.iter().map(row).collect() }
    }
}
