//! `vmeter migrate`: time, downtime as QEMU and as the guest have it, and why not.

mod json;
mod tables;

use crate::{
    MigrateOutcome, MigratePoint, MigrateResult, MigrateRun, MigrateVerification, MigrateWorkload,
    Migration, Side,
};
use vmeter_model::result::Envelope;
use vmeter_render::chart::{Curve, Curves};
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{compact_seconds, plural};
use vmeter_render::tone::Tone;
use vmeter_render::{Field, Records, Report};

/// Rounds of a point at a glance.
const ROUNDS: usize = 6;
/// What the rounds are.
const ROUNDS_NOTE: &str =
    "one run per setting. When the remaining pages fit into the downtime limit, QEMU adds to \
        them the pages that the guest wrote since the round began. If the sum no longer fits, QEMU \
        begins a new round. If it fits, QEMU stops the guest and sends these pages in the last round";
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
        match self.result.setup.killed {
            Some(side) => self.answer_where_killed(side),
            None => self.answer_where_not(),
        }
    }

    fn answer_where_killed(&self, side: Side) -> String {
        let runs = &self.result.runs;
        let on = runs.iter().filter(|run| run.seen.source_runs_on == Some(true)).count();
        let arrived = runs.iter().filter(|run| run.seen.destination_ran).count();
        let left = match (on, arrived) {
            (n, _) if n == runs.len() => {
                "the guest keeps running on the source every time.".to_owned()
            }
            (0, 0) => "the guest is lost; it never ran at the destination.".to_owned(),
            (0, _) => "the guest is lost: it failed after it had begun to run at the \
                destination."
                .to_owned(),
            (n, _) => {
                format!("in {n} of {} runs the guest continues to run on the source.", runs.len())
            }
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
            let most = if converged.len() > 1 { "at most " } else { "" };
            let which = match converged.len() {
                1 => String::new(),
                _ => format!(" ({})", self.label(point)),
            };
            let gap = compact_seconds(gap);
            text += &format!(
                " In the median run, the guest had no heartbeat across the switch for {most}{gap}{which}; \
                    QEMU reports {said} of downtime."
            );
            text += &self.gap_before();
        }
        text += match self.verified() {
            (0, _) => "",
            (n, equal) if n == equal => " Its memory was the same on both sides every time.",
            _ => " Its memory was NOT the same on both sides.",
        };
        text
    }

    /// A gap while the guest still ran at the source, where it is longer than that of its stop.
    fn gap_before(&self) -> String {
        let points = self.result.points.iter().enumerate();
        let longest = points
            .filter_map(|(n, point)| Some((point, self.shown(n)?)))
            .filter(|(_, run)| run.guest_gap_s.is_some_and(|gap| run.longest_gap_before_s > gap))
            .max_by(|a, b| a.1.longest_gap_before_s.total_cmp(&b.1.longest_gap_before_s));
        longest.map_or_else(String::new, |(point, run)| {
            let gap = compact_seconds(run.longest_gap_before_s);
            format!(
                " In one run ({}), the longest gap between two heartbeats of the guest before the \
                    switch was {gap}.",
                self.label(point)
            )
        })
    }

    /// Comparisons, and how many of them came out equal.
    fn verified(&self) -> (usize, usize) {
        let all = self.result.runs.iter().filter_map(|run| run.seen.verification.as_ref());
        (all.clone().count(), all.filter(|v| v.equal).count())
    }

    fn facts(&self) -> Vec<Fact> {
        let setup = &self.result.setup;
        let mut facts: Vec<Fact> = setup
            .chosen
            .iter()
            .filter(|c| matches!(c.what.as_str(), "vmm" | "accel" | "machine" | "smp" | "memory"))
            .map(|c| Fact::new(&c.what, &c.value, &c.note))
            .collect();
        if let Some(point) = self.result.points.first() {
            let MigrateWorkload { working_set_bytes, resident_bytes, .. } = point.workload;
            let value = format!(
                "{} MiB with data; the guest writes {} MiB of these, page by page, over and \
                    over, at the dirty rate",
                resident_bytes >> 20,
                working_set_bytes >> 20
            );
            facts.push(Fact::new("guest", value, "-L resident, working-set, written-bytes"));
        }
        let (compared, equal) = self.verified();
        let value = match compared {
            0 => "nothing to compare: no guest arrived".to_owned(),
            n => format!(
                "all {} MiB are the same on both sides in {equal} of {n} migrations \
                    (warm-ups included)",
                setup.memory_bytes >> 20
            ),
        };
        facts.push(Fact::new(
            "memory after",
            value,
            "SHA-256 of both RAMs. After the migration, vmeter stops the guest at the \
                destination. vmeter then lets the guest at the source run until both guests \
                have written the same number of pages, and compares the two RAMs",
        ));
        facts
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
        if varied.is_empty() {
            names.collect()
        } else {
            varied
        }
    }

    /// The run of a point that is drawn: the first measured one.
    fn shown(&self, point: usize) -> Option<&Migration> {
        let of_point = || self.result.runs.iter().filter(|run| run.point == point);
        of_point().find(|run| !run.warmup).or_else(|| of_point().next()).map(|run| &run.seen)
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
            caption: "data still to send, over time".into(),
            unit: "MB".into(),
            curves: points.filter_map(curve).take(most).collect(),
        }
    }

    /// What happened to settings that did not complete.
    fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for (n, point) in self.result.points.iter().enumerate() {
            let runs = self.result.runs.iter().filter(|run| run.point == n);
            let on: Vec<bool> = runs.filter_map(|run| run.seen.source_runs_on).collect();
            if point.reason.is_empty() && on.is_empty() {
                continue;
            }
            let going = on.iter().filter(|on| **on).count();
            let left = match on.len() {
                0 => String::new(),
                all if all == going => " The guest continues to run on the source.".into(),
                all => format!(
                    " In {going} of {all} runs the guest continues to run on the \
                    source."
                ),
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

impl Report for MigrateReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let result = self.result;
        let mut document =
            Document { title: "vmeter migrate".into(), answer: self.answer(), blocks: Vec::new() };
        document.push(Block::Facts(self.facts()));
        let note = format!(
            "medians of {}; the guest has a heartbeat every {:.0} ms",
            plural(result.setup.runs as u64, "run"),
            result.setup.heartbeat_s * 1e3
        );
        document.heading("Migrations", note);
        document.push(Block::Table(self.main_table()));
        let reasons = self.reasons();
        if !reasons.is_empty() {
            document.heading("Why not", "");
        }
        document.blocks.extend(reasons.into_iter().map(Block::Paragraph));
        document.heading(
            "Remaining",
            "MB still to send, over time; one run per setting, all on one scale; the number at the \
                start of a row is the row's highest value; ─: nothing more to send",
        );
        document.push(Block::Curves(self.curves(detail)));
        document.heading("Predicted", "before the migration, from the guest and the settings");
        document.push(Block::Table(self.predictions()));
        document.heading("Rounds", ROUNDS_NOTE);
        document.push(Block::Table(self.rounds(detail)));
        let gaps = self.gaps();
        if !gaps.rows.is_empty() {
            document.heading("Downtime", "one run per setting");
            document.push(Block::Table(gaps));
        }
        document.push(Block::Notices(closing_notices(
            &result.warnings,
            &result.hints,
            &result.saved_in,
        )));
        document
    }

    fn records(&self) -> Records {
        fn digest(run: &MigrateRun, of: fn(&MigrateVerification) -> &String) -> Field {
            run.seen.verification.as_ref().map_or(Field::Empty, |v| Field::text(of(v)))
        }
        Records::of(
            self.result.runs.iter().map(|run| (self.result.points.get(run.point), run)),
            [
                ("point", |(_, run)| Field::number(Some(run.point))),
                ("parameters", |(point, _)| Field::text(point.map(full_label).unwrap_or_default())),
                ("run", |(_, run)| Field::number(Some(run.block))),
                ("warmup", |(_, run)| Field::text(run.warmup.to_string())),
                ("outcome", |(_, run)| Field::text(word(run.seen.outcome).0)),
                ("total_s", |(_, run)| Field::number(Some(run.seen.total_s))),
                ("downtime_s", |(_, run)| Field::number(run.seen.downtime_s)),
                ("guest_gap_s", |(_, run)| Field::number(run.seen.guest_gap_s)),
                ("guest_clock_gap_s", |(_, run)| Field::number(run.seen.guest_clock_gap_s)),
                ("stopped_s", |(_, run)| Field::number(run.seen.stopped_s)),
                ("rounds", |(_, run)| Field::number(Some(run.seen.rounds.len()))),
                ("dirty_pages_per_s_before", |(_, run)| {
                    Field::number(Some(run.seen.dirty_pages_per_s_before))
                }),
                ("dirty_pages_per_s", |(_, run)| Field::number(Some(run.seen.dirty_pages_per_s))),
                ("transferred_bytes", |(_, run)| Field::number(Some(run.seen.transferred_bytes))),
                ("bandwidth_bytes_per_s", |(_, run)| {
                    Field::number(Some(run.seen.bandwidth_bytes_per_s))
                }),
                ("throttle_percent", |(_, run)| Field::number(Some(run.seen.throttle_percent))),
                ("source_runs_on", |(_, run)| {
                    run.seen.source_runs_on.map_or(Field::Empty, |on| Field::text(on.to_string()))
                }),
                ("verified", |(_, run)| {
                    run.seen
                        .verification
                        .as_ref()
                        .map_or(Field::Empty, |v| Field::text(v.equal.to_string()))
                }),
                ("source_sha256", |(_, run)| digest(run, |v| &v.source_sha256)),
                ("destination_sha256", |(_, run)| digest(run, |v| &v.destination_sha256)),
            ],
        )
    }
}
