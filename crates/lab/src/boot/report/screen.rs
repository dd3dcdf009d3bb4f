//! The boot on one screen of 24 lines and 80 columns: what a terminal shows unless more is
//! asked for.

use super::actionable::{things, Actionable, REMEDY_COLUMNS};
use super::causes::{known_causes, Known};
use super::facts::is_of;
use super::named::named_marks;
use super::stages::{bars, Bar};
use super::BootReport;
use crate::booter::UNTRACED;
use std::collections::BTreeSet;
use vmeter_model::result::AnalysedRun;
use vmeter_model::run::Outcome;
use vmeter_model::span::{OBSERVE, UNATTRIBUTED};
use vmeter_model::time::seconds;
use vmeter_model::{Cause, Timeline};
use vmeter_record::end::READS_LIKE_A_PANIC;
use vmeter_record::look::next::{BEGAN_UNSEEN, PAUSED, RESTARTED};
use vmeter_record::look::STILL;
use vmeter_record::run::SEVERAL;
use vmeter_record::sources::vmm_threads;
use vmeter_render::document::{Block, Document, Fact, Notice, NoticeKind};
use vmeter_render::quantity::{added_range, compact_seconds, percent, three_digits, Quantity};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::text::neutralise;
use vmeter_render::tone::Tone;

/// Things that can be acted upon.
const LARGEST: usize = 5;
/// Lines of the screen for bars, things, facts and notices: 24 without the answer, two of
/// them, what stands between, and one for the prompt that follows.
const LINES: usize = 17;
/// Failures that are told here.
const FAILURES: usize = 2;
/// Columns of a fact's value, and of a notice.
const VALUE_COLUMNS: usize = 66;
/// What took a smaller share of the boot is nobody's concern.
pub(super) const WORTH_A_ROW: f64 = 0.01;
/// Known causes in their line.
const CAUSES: usize = 3;
/// Less of the time with a name has its reason on the screen: so many remarks, in so many lines.
const WELL_NAMED: f64 = 0.9;
const REASONS: usize = 2;
const REASON_LINES: usize = 6;
/// From this share of the time on in which the VMM, or some task, waits for a CPU a host is busy.
const BUSY: f64 = 0.5;
/// Names the fact with the command that measures the causes.
const MEASURE: &str = "measure it";
/// Marks in theirs.
const MARKS: usize = 3;

impl BootReport<'_> {
    /// The screen.
    pub(super) fn screen(&self, document: &mut Document) {
        let timelines = self.shown_timelines();
        let stages = self.stage_table(&timelines);
        let mut facts = self.brief_facts(&timelines);
        let mut notices = self.brief_notices();
        notices.extend(self.why_unattributed());
        let more = self.the_rest(1).map_or(0, |fact| lines(&fact.value));
        let other: usize = stages.rows.len()
            + more
            + facts.iter().map(fact_lines).sum::<usize>()
            + notices.iter().map(|notice| lines(&notice.text)).sum::<usize>()
            + usize::from(!notices.is_empty());
        if !stages.rows.is_empty() {
            document.push(Block::Table(stages));
        }
        let all = self.room();
        let room = all.saturating_sub(other);
        let largest = largest_table(&timelines, room.min(LARGEST));
        let rows = if self.result.total.is_some() { largest.rows.len() } else { 0 };
        if rows > 0 {
            document.heading("Largest with a remedy", self.brief_note());
            document.push(Block::Table(largest));
        }
        if rows == 0 {
            // It says of which of them each cause is.
            facts.iter_mut().filter(|f| f.name == MEASURE).for_each(|f| f.note.clear());
        }
        // Without things, their heading's lines are free as well.
        let heading = if rows > 0 { 0 } else { 2 };
        let free = (all + heading).saturating_sub(other + rows);
        let left = self.add_remarks(&mut notices, free);
        facts.extend(self.the_rest(left));
        document.push(Block::Facts(facts));
        document.push(Block::Notices(notices));
    }

    /// Lines of the screen that a long answer leaves.
    fn room(&self) -> usize {
        const ANSWER_LINES: usize = 2;
        const ANSWER_COLUMNS: usize = 80;
        let answer = neutralise(&self.brief_answer()).wrap(ANSWER_COLUMNS).len();
        LINES.saturating_sub(answer.saturating_sub(ANSWER_LINES))
    }

    /// Warnings of single runs as far as there are lines for them; how many are left out.
    fn add_remarks(&self, notices: &mut Vec<Notice>, mut free: usize) -> usize {
        let mut remarks: Vec<Notice> = self.notices();
        remarks.retain(|n| n.kind == NoticeKind::Warning && !self.is_told(n));
        remarks.retain(|remark| !notices.contains(remark));
        // What was found out while it was recorded before why time is unattributed.
        remarks.sort_by_key(|n| n.text.contains(UNATTRIBUTED));
        let mut left = 0;
        for remark in remarks {
            let needed = lines(&remark.text) + usize::from(notices.is_empty());
            if needed > free {
                left += 1;
                continue;
            }
            free -= needed;
            let urgent = |n: &Notice| n.kind > NoticeKind::Warning;
            let at = notices.iter().position(urgent).unwrap_or(notices.len());
            notices.insert(at, remark);
        }
        left
    }

    /// True for a warning that is told whatever lines it takes: one on the whole result, on
    /// how a run ended, on which VMM it is of, or on how it was watched.
    fn is_told(&self, warning: &Notice) -> bool {
        let told = [READS_LIKE_A_PANIC, SEVERAL, UNTRACED, RESTARTED, PAUSED, BEGAN_UNSEEN, STILL];
        let of_end = told.iter().any(|begin| warning.text.contains(begin));
        of_end || self.result.warnings.contains(&warning.text)
    }

    /// Where much of the time has no name: the remarks that say why, as many as there is room for.
    fn why_unattributed(&self) -> Vec<Notice> {
        if self.result.total.is_none() || self.coverage() >= WELL_NAMED {
            return Vec::new();
        }
        let (mut why, others): (Vec<Notice>, Vec<Notice>) = self
            .notices()
            .into_iter()
            .filter(|n| n.kind == NoticeKind::Warning && !self.is_told(n))
            .partition(|notice| notice.text.contains(UNATTRIBUTED));
        why.truncate(1);
        why.extend(others);
        let mut room = REASON_LINES;
        why.retain(|notice| {
            let fits = lines(&notice.text) <= room;
            room -= if fits { lines(&notice.text) } else { 0 };
            fits
        });
        why.truncate(REASONS);
        why
    }

    fn brief_note(&self) -> String {
        match self.shown_runs().len() {
            1 => "one run: --runs N shows the spread".into(),
            n => format!("time (mean of {n} runs), share of the boot, what to try"),
        }
    }

    /// Six bars, and what is unattributed; none of a VMM that failed at its start.
    fn stage_table(&self, timelines: &[&Timeline]) -> Table {
        let palette = self.palette();
        // Without titles: the line of the answer says what these are.
        let mut table = Table::new(vec![
            Column { shrinks_to: Some(26), ..Column::name("") },
            Column::number("", 0),
            Column::number("", 0),
            Column::text("", 2),
            Column::text("", 1),
        ]);
        if self.never_ran() {
            return table;
        }
        let mut bars = bars(timelines);
        // What it costs to look is worth a row where it is more than a share of the noise.
        bars.retain(|bar| bar.phase.as_deref() != Some(OBSERVE) || bar.share > WORTH_A_ROW);
        let nothing = self.result.phases.iter().find(|phase| phase.name == UNATTRIBUTED);
        let shares = bars.iter().map(|bar| bar.share).chain(nothing.map(|phase| phase.share));
        let largest = shares.fold(0.0, f64::max);
        for bar in &bars {
            let to = if largest > 0.0 { bar.share / largest } else { 0.0 };
            let colour = palette.colour(bar.phase.as_deref().unwrap_or_default());
            let name = Cell::Text(shown(bar).to_owned());
            if bar.phase.is_none() {
                table.toned_row(Tone::Muted, vec![name, Cell::Text("none seen".into())]);
                continue;
            }
            table.row(vec![
                name,
                Cell::Inline(Quantity::duration(&bar.estimate)),
                Cell::Share(bar.share),
                Cell::Bar { from: 0.0, to, colour },
                Cell::Text(error(bar.error, bar.estimate.mean)),
            ]);
        }
        if let Some(phase) = nothing {
            let to = if largest > 0.0 { phase.share / largest } else { 0.0 };
            let cells = vec![
                Cell::Text(UNATTRIBUTED.into()),
                Cell::Inline(Quantity::duration(&phase.estimate)),
                Cell::Share(phase.share),
                Cell::Bar { from: 0.0, to, colour: palette.colour(UNATTRIBUTED) },
            ];
            table.toned_row(Tone::Muted, cells);
        }
        table
    }

    /// True if the VMM failed in every run: how long it took to fail is no part of a boot.
    fn never_ran(&self) -> bool {
        let failed = |run: &AnalysedRun| {
            let runs_on = run.record.end.as_ref().is_some_and(|end| end.cause == Cause::RunsOn);
            runs_on || matches!(run.record.outcome, Outcome::VmmFailed { .. })
        };
        self.result.runs.iter().all(failed)
    }

    /// What would be given back, how busy the host was, what was added.
    fn brief_facts(&self, timelines: &[&Timeline]) -> Vec<Fact> {
        let mut facts = Vec::new();
        if self.never_ran() {
            return vec![Fact::new("added", self.added(), "")];
        }
        let (known, things) = (known_causes(timelines), things(timelines));
        if !known.is_empty() {
            let named: Vec<String> = known
                .iter()
                .take(CAUSES)
                .map(|cause| format!("{} by {}", brief(cause.at_most_s), cause.id))
                .collect();
            let more = known.len().saturating_sub(CAUSES);
            let more = if more > 0 { format!(", {more} more") } else { String::new() };
            let unknown = things.iter().take(LARGEST).any(|thing| {
                thing.cause.is_some_and(|id| known.iter().all(|cause| cause.id != id))
            });
            let rest =
                if unknown { "; unknown for the other remedies, until measured" } else { "" };
            let sum = if known.len() > 1 { "sums of their spans" } else { "the sum of its spans" };
            let saves = format!("at most {}{more} ({sum}){rest}", named.join(", "));
            facts.push(Fact::new("could save", saves, ""));
        }
        facts.extend(self.how_to_measure(&known, &things));
        let marks = named_marks(timelines);
        if !marks.is_empty() {
            let shown = marks.iter().take(MARKS).map(|mark| {
                format!("{} at {}", mark.name, Quantity::duration(&mark.estimate).inline())
            });
            let more = if marks.len() > MARKS { ", …" } else { "" };
            let shown: Vec<String> = shown.collect();
            facts.push(Fact::new("marks", format!("{}{more}", shown.join(", ")), ""));
        }
        facts.extend(inexact(timelines));
        facts.extend(self.busy_host());
        facts.push(Fact::new("added", self.added(), ""));
        facts
    }

    /// Where the rest is, and how many remarks on the figures are there.
    fn the_rest(&self, remarks: usize) -> Option<Fact> {
        if self.result.saved_in.is_empty() {
            return None;
        }
        let rest = match remarks {
            0 => "--long, --tree, --blame".to_owned(),
            1 => "--long (1 remark), --tree".to_owned(),
            n => format!("--long ({n} remarks), --tree"),
        };
        let saved = vmeter_base::shell::quote(&name_of(&self.result.saved_in));
        let value = format!("vmeter show {saved} {rest}");
        Some(Fact::new("more", value, ""))
    }

    /// The command that measures the causes that were found, where it can.
    fn how_to_measure(&self, known: &[Known], things: &[Actionable]) -> Option<Fact> {
        let own = !self.result.machine.spec.command.is_empty();
        let caused = things.iter().take(LARGEST).filter_map(|thing| thing.cause);
        let mut ids: Vec<&str> = known.iter().map(|cause| cause.id).chain(caused).collect();
        ids.retain(|id| crate::findings::is_measurable(id, own));
        let mut seen = BTreeSet::new();
        ids.retain(|id| seen.insert(*id));
        ids.truncate(CAUSES);
        // One that "could save" does not name: which of the largest it is about.
        let about = |id: &&str| {
            let told = known.iter().any(|cause| cause.id == *id);
            let thing = things.iter().find(|thing| thing.cause == Some(*id)).filter(|_| !told)?;
            let which = if ids.len() == 1 { String::new() } else { format!("{id} is ") };
            Some(format!("{which}for {}", thing.name))
        };
        let note = ids.iter().filter_map(about).collect::<Vec<_>>().join(", ");
        let machine = if own { " -- \u{2026}" } else { "" };
        (!ids.is_empty()).then(|| {
            Fact::new(MEASURE, format!("vmeter findings {}{machine}", ids.join(" ")), note)
        })
    }

    /// How long the VMM waited for a CPU, where that was much; or any task of this host, where the
    /// VMM's own wait is not known.
    fn busy_host(&self) -> Option<Fact> {
        let runs = self.shown_runs();
        let own = runs.iter().map(|run| vmm_threads::waited(&run.record).map(seconds));
        let own = own.sum::<Option<f64>>();
        let any = || runs.iter().map(|run| run.record.cpu_pressure_s).sum::<Option<f64>>();
        let total = runs.iter().map(|run| seconds(run.record.total_ns)).sum::<f64>();
        let share = own.or_else(any)? / total.max(f64::MIN_POSITIVE);
        let who = match own {
            Some(_) => "the VMM waited for a CPU",
            None => "some program waited for a CPU",
        };
        let cpu: f64 =
            runs.iter().map(|run| run.record.usage.user_s + run.record.usage.system_s).sum();
        (share >= BUSY).then(|| {
            // Of a VM that somebody else started it is not known.
            let had = match cpu > 0.0 {
                true => format!("; its CPU time: {}", brief(cpu / runs.len() as f64)),
                false => String::new(),
            };
            Fact::new(
                "busy host",
                format!("{who} {} of the time{had}", percent(share.min(1.0))),
                "",
            )
        })
    }

    /// What vmeter added to the machine, in a line.
    fn added(&self) -> String {
        let Some(run) = self.result.runs.first() else { return "nothing".into() };
        let injected = &run.record.injected;
        let (kernel, vmm): (Vec<&String>, Vec<&String>) =
            injected.iter().partition(|words| words.starts_with("kernel: "));
        let words: usize = kernel.iter().map(|words| words.split_whitespace().count() - 1).sum();
        let some = |n: usize, one: &str| match n {
            1 => format!("1 {one}"),
            n => format!("{n} {one}s"),
        };
        let mut parts = Vec::new();
        parts.extend((!vmm.is_empty()).then(|| some(vmm.len(), "VMM option")));
        parts.extend((words > 0).then(|| some(words, "kernel parameter")));
        let measured = self.result.overhead.as_ref();
        let measured = measured.filter(|measured| is_of(measured, run.record.watch));
        let cost = match measured.map(|measured| added_range(&measured.ratio)) {
            Some(cost) if parts.is_empty() => format!("nothing; watching: {cost}"),
            None if parts.is_empty() => "nothing".into(),
            Some(cost) => format!(" (--long): {cost}"),
            None => " (--long); their cost: --overhead".into(),
        };
        parts.join(", ") + &cost
    }

    /// Failures and what the command was to say; of the rest, how much there is.
    fn brief_notices(&self) -> Vec<Notice> {
        let mut notices: Vec<Notice> = self.notices();
        let has_failures = self.answer_has_failures();
        notices.retain(|notice| match notice.kind {
            NoticeKind::Failure => !has_failures,
            NoticeKind::Warning => self.is_told(notice),
            NoticeKind::Note => self.result.said.contains(&notice.text),
            NoticeKind::Hint => false,
        });
        let failures = notices.iter().filter(|n| n.kind == NoticeKind::Failure).count();
        if failures > FAILURES {
            notices.drain(FAILURES..failures);
            let text = format!("{} more, otherwise: --long", failures - FAILURES);
            notices.insert(FAILURES, Notice::new(NoticeKind::Failure, text));
        }
        let urgent = self.result.hints.iter().filter(|hint| hint.contains("waits for a login"));
        notices.extend(urgent.map(|hint| Notice::new(NoticeKind::Hint, hint)));
        notices
    }
}

/// Lines that a fact takes, its note after its value.
fn fact_lines(fact: &Fact) -> usize {
    lines(format!("{}   {}", fact.value, fact.note).trim_end())
}

/// Lines that a text takes.
fn lines(text: &str) -> usize {
    neutralise(text).wrap(VALUE_COLUMNS).len()
}

/// Seconds with three digits.
pub(super) fn brief(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{} s", three_digits(seconds))
    } else {
        compact_seconds(seconds)
    }
}

/// A session by its name where `vmeter show` finds it by that, or by its folder.
fn name_of(folder: &str) -> String {
    let path = std::path::Path::new(folder);
    let among = vmeter_session::state_dir().ok().map(|state| state.join("runs"));
    let named = path.parent().filter(|parent| among.as_deref() == Some(*parent));
    let name = named.and_then(|_| path.file_name()).and_then(|name| name.to_str());
    name.unwrap_or(folder).to_owned()
}

/// A bar as the screen names it: of the host's time it says whose, and a kernel that the VMM or its
/// firmware loads has no boot loader.
fn shown(bar: &Bar) -> &str {
    match (bar.name.as_str(), bar.phase.as_deref()) {
        ("host", _) => "host (the VMM had no CPU)",
        ("boot loader", Some("kernel:load")) => "loading the kernel",
        (name, _) => name,
    }
}

/// How far off a time can be, where that is worth a word.
pub(super) fn error(error_ns: vmeter_model::Ns, of_s: f64) -> String {
    let error = seconds(error_ns);
    if error > 0.01 * of_s.abs() && error > 0.0 && of_s > 0.0 {
        format!("error \u{b1}{}", compact_seconds(error))
    } else {
        String::new()
    }
}

/// Which of the largest things has the largest error, where that is more than a hundredth of it,
/// and how many others have one.
fn inexact(timelines: &[&Timeline]) -> Option<Fact> {
    let things = things(timelines);
    let error = |thing: &Actionable| error(thing.error, thing.estimate.mean);
    let inexact: Vec<&Actionable> =
        things.iter().take(LARGEST).filter(|thing| !error(thing).is_empty()).collect();
    let most = inexact.iter().max_by_key(|thing| thing.error)?;
    let others = match inexact.len() - 1 {
        0 => String::new(),
        n => format!(", {n} more"),
    };
    let most = format!("{} \u{b1}{}", most.name, compact_seconds(seconds(most.error)));
    Some(Fact::new("error", format!("{most}{others}"), ""))
}

fn largest_table(timelines: &[&Timeline], most: usize) -> Table {
    let mut table = Table::new(vec![
        Column { shrinks_to: Some(20), ..Column::name("") },
        Column::number("", 0),
        Column::number("", 1),
        Column { shrinks_to: Some(REMEDY_COLUMNS), ..Column::text("", 0) },
    ]);
    let whole: f64 = timelines.iter().map(|t| seconds(t.total)).sum::<f64>();
    let mean = whole / timelines.len().max(1) as f64;
    let things = things(timelines);
    let large = |thing: &&Actionable| thing.estimate.mean > WORTH_A_ROW * mean;
    for thing in things.iter().take(most).filter(large) {
        let share = if mean > 0.0 { thing.estimate.mean / mean } else { 0.0 };
        table.row(vec![
            Cell::Name(thing.name.clone()),
            // What can be tried needs the room of the interval.
            Cell::Text(brief(thing.estimate.mean)),
            Cell::Share(share),
            Cell::Text(thing.remedy.into()),
        ]);
    }
    table
}
