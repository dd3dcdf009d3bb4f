//! The boot on one screen of 24 lines and 80 columns: what a terminal shows unless more is
//! asked for.

use super::causes::known_causes;
use super::facts::is_of;
use super::named::named_marks;
use super::stages::bars;
use super::things::{things, Thing, REMEDY_COLUMNS};
use super::BootReport;
use vmeter_model::span::{Span, OBSERVE, UNATTRIBUTED};
use vmeter_model::time::seconds;
use vmeter_model::Timeline;
use vmeter_record::end::READS_LIKE_A_PANIC;
use vmeter_render::document::{Block, Document, Fact, Notice, NoticeKind, Tone};
use vmeter_render::quantity::{
    added_range, compact_seconds, percent, three_digits, Quantity, Unit,
};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::text::neutralise;

/// Things that can be acted upon.
const LARGEST: usize = 5;
/// Lines of the screen for bars, things, facts and notices: 24 without the answer, two of
/// them, what stands between, and one for the prompt that follows.
const LINES: usize = 17;
/// Failures that are told here.
const FAILURES: usize = 2;
/// Columns of a fact's value, and of a notice.
const VALUE_COLUMNS: usize = 64;
/// What took a smaller share of the boot is nobody's concern.
const WORTH_A_ROW: f64 = 0.01;
/// Known causes in their line.
const CAUSES: usize = 3;
/// Marks in theirs.
const MARKS: usize = 3;

impl BootReport<'_> {
    /// The screen.
    pub(super) fn screen(&self, document: &mut Document) {
        let timelines = self.shown_timelines();
        let stages = self.stage_table(&timelines);
        let mut facts = self.brief_facts(&timelines);
        let mut notices = self.brief_notices();
        let more = self.the_rest(1).map_or(0, |fact| lines(&fact.value));
        let other: usize = stages.rows.len()
            + more
            + facts.iter().map(|fact| lines(&fact.value)).sum::<usize>()
            + notices.iter().map(|notice| lines(&notice.text)).sum::<usize>()
            + usize::from(!notices.is_empty());
        document.push(Block::Table(stages));
        let room = LINES.saturating_sub(other);
        let largest = largest_table(&timelines, room.min(LARGEST));
        let rows = if self.result.total.is_some() { largest.rows.len() } else { 0 };
        if rows > 0 {
            document.heading("Largest that can be acted upon", self.brief_note());
            document.push(Block::Table(largest));
        }
        // Without things, their heading's lines are free as well.
        let heading = if rows > 0 { 0 } else { 2 };
        let free = (LINES + heading).saturating_sub(other + rows);
        let left = self.add_remarks(&mut notices, free);
        facts.extend(self.the_rest(left));
        document.push(Block::Facts(facts));
        document.push(Block::Notices(notices));
    }

    /// Warnings of single runs as far as there are lines for them; how many are left out.
    fn add_remarks(&self, notices: &mut Vec<Notice>, mut free: usize) -> usize {
        let mut remarks: Vec<Notice> = self.notices();
        remarks.retain(|n| n.kind == NoticeKind::Warning && !self.is_told(n));
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

    /// True for a warning that is told whatever lines it takes: one on the whole result, or on
    /// how a run ended.
    fn is_told(&self, warning: &Notice) -> bool {
        self.result.warnings.contains(&warning.text) || warning.text.contains(READS_LIKE_A_PANIC)
    }

    fn brief_note(&self) -> String {
        match self.shown_runs().len() {
            1 => "one run; --runs N tells the spread".into(),
            n => format!("means over {n} runs"),
        }
    }

    /// Six bars, and what is not known.
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
        let mut bars = bars(timelines);
        // What it costs to look is worth a row where it is more than a share of the noise.
        bars.retain(|bar| bar.phase.as_deref() != Some(OBSERVE) || bar.share > WORTH_A_ROW);
        let nothing = self.result.phases.iter().find(|phase| phase.name == UNATTRIBUTED);
        let shares = bars.iter().map(|bar| bar.share).chain(nothing.map(|phase| phase.share));
        let largest = shares.fold(0.0, f64::max);
        for bar in &bars {
            let to = if largest > 0.0 { bar.share / largest } else { 0.0 };
            let colour = palette.colour(bar.phase.as_deref().unwrap_or_default());
            let name = Cell::Text(bar.name.clone());
            if bar.phase.is_none() {
                table.toned_row(Tone::Muted, vec![name, Cell::Text("-".into())]);
                continue;
            }
            table.row(vec![
                name,
                Cell::Inline(Quantity::of(&bar.estimate, Unit::Seconds)),
                Cell::Share(bar.share),
                Cell::Bar { from: 0.0, to, colour },
                Cell::Text(off_by(bar.error, bar.estimate.mean)),
            ]);
        }
        if let Some(phase) = nothing {
            let to = if largest > 0.0 { phase.share / largest } else { 0.0 };
            let cells = vec![
                Cell::Text(UNATTRIBUTED.into()),
                Cell::Inline(Quantity::of(&phase.estimate, Unit::Seconds)),
                Cell::Share(phase.share),
                Cell::Bar { from: 0.0, to, colour: palette.colour(UNATTRIBUTED) },
            ];
            table.toned_row(Tone::Muted, cells);
        }
        table
    }

    /// What would be given back, what is not known, what was added.
    fn brief_facts(&self, timelines: &[&Timeline]) -> Vec<Fact> {
        let mut facts = Vec::new();
        let known = known_causes(timelines);
        if !known.is_empty() {
            let named: Vec<String> = known
                .iter()
                .take(CAUSES)
                .map(|cause| format!("{} {}", brief(cause.at_most_s), cause.id))
                .collect();
            let more = known.len().saturating_sub(CAUSES);
            let more = if more > 0 { format!(", {more} more") } else { String::new() };
            facts.push(Fact::new("at most back", format!("{}{more}", named.join(", ")), ""));
        }
        let marks = named_marks(timelines);
        if !marks.is_empty() {
            let shown = marks.iter().take(MARKS).map(|mark| {
                format!("{} at {}", mark.name, Quantity::of(&mark.estimate, Unit::Seconds).inline())
            });
            let more = if marks.len() > MARKS { ", …" } else { "" };
            let shown: Vec<String> = shown.collect();
            facts.push(Fact::new("marks", format!("{}{more}", shown.join(", ")), ""));
        }
        facts.extend(not_exact(timelines));
        facts.extend(self.not_known(timelines));
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

    /// The largest stretch that nothing explains, or of which nobody saw which phase it was.
    fn not_known(&self, timelines: &[&Timeline]) -> Option<Fact> {
        let run = self.typical_run()?;
        let spans = unknown(&run.timeline);
        let longest = spans.iter().max_by_key(|span| span.len())?;
        // Means of all runs, of the time and of what is not known of it: one run's parts are no
        // shares of another's.
        let own = [&run.timeline];
        let timelines = if timelines.is_empty() { &own[..] } else { timelines };
        let runs = timelines.len() as f64;
        let mean = timelines.iter().map(|t| seconds(t.total)).sum::<f64>() / runs;
        let lengths = timelines.iter().flat_map(|t| unknown(t)).map(|span| seconds(span.len()));
        let all = lengths.sum::<f64>() / runs;
        if all < 0.001 * mean {
            return None;
        }
        let what = match (longest.name == UNATTRIBUTED, run.record.injected.is_empty()) {
            (true, _) => "",
            (false, true) => ", phases not told apart (--no-inject)",
            (false, false) => ", phases not told apart",
        };
        let value = format!(
            "{}, {}, the longest from {} on{what}",
            brief(all),
            percent(all / mean.max(f64::MIN_POSITIVE)),
            brief(seconds(longest.start)),
        );
        Some(Fact::new("not known", value, ""))
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
        parts.extend((!vmm.is_empty()).then(|| some(vmm.len(), "option") + " of the VMM"));
        parts.extend((words > 0).then(|| some(words, "word") + " of the kernel"));
        let measured = self.result.overhead.as_ref();
        let measured = measured.filter(|measured| is_of(measured, run.record.watch));
        let cost = match measured.map(|measured| added_range(&measured.ratio)) {
            Some(cost) if parts.is_empty() => format!("nothing; watching: {cost}"),
            None if parts.is_empty() => "nothing".into(),
            Some(cost) => format!(": {cost}"),
            None => "; cost: --overhead".into(),
        };
        parts.join(", ") + &cost
    }

    /// Failures and what the command was to say; of the rest, how much there is.
    fn brief_notices(&self) -> Vec<Notice> {
        let mut notices: Vec<Notice> = self.notices();
        notices.retain(|notice| match notice.kind {
            NoticeKind::Failure => true,
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
        let urgent = self.result.hints.iter().filter(|hint| hint.contains("--until"));
        notices.extend(urgent.map(|hint| Notice::new(NoticeKind::Hint, hint)));
        notices
    }
}

/// Spans that nothing explains, and phases of which nobody saw which they were; what lies in one
/// of these is not counted again.
fn unknown(timeline: &Timeline) -> Vec<&Span> {
    let mixed = |span: &Span| span.parent.is_none() && span.name.contains('+');
    let within = |span: &Span| {
        let mut parent = span.parent;
        while let Some(at) = parent {
            let Some(above) = timeline.spans.iter().find(|s| s.id == at) else { break };
            if mixed(above) {
                return true;
            }
            parent = above.parent;
        }
        false
    };
    let nothing = |span: &Span| span.name == UNATTRIBUTED && !within(span);
    timeline.spans.iter().filter(|span| mixed(span) || nothing(span)).collect()
}

/// Lines that a text takes.
fn lines(text: &str) -> usize {
    neutralise(text).wrap(VALUE_COLUMNS).len()
}

/// Seconds with three digits.
fn brief(seconds: f64) -> String {
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

/// How far off a time can be, where that is worth a word.
pub(super) fn off_by(error_ns: vmeter_model::Ns, of_s: f64) -> String {
    let error = seconds(error_ns);
    if error > 0.01 * of_s.abs() && error > 0.0 && of_s > 0.0 {
        format!("off by {}", compact_seconds(error))
    } else {
        String::new()
    }
}

/// Which of the largest things is off by most, where that is more than a hundredth of it, and how
/// many others are.
fn not_exact(timelines: &[&Timeline]) -> Option<Fact> {
    let things = things(timelines);
    let off = |thing: &Thing| off_by(thing.error, thing.estimate.mean);
    let inexact: Vec<&Thing> =
        things.iter().take(LARGEST).filter(|thing| !off(thing).is_empty()).collect();
    let most = inexact.iter().max_by_key(|thing| thing.error)?;
    let others = match inexact.len() - 1 {
        0 => String::new(),
        n => format!(", {n} more"),
    };
    Some(Fact::new("not exact", format!("{} {}{others}", most.name, off(most)), ""))
}

fn largest_table(timelines: &[&Timeline], most: usize) -> Table {
    let mut table = Table::new(vec![
        Column { shrinks_to: Some(24), ..Column::name("") },
        Column::number("", 0),
        Column::number("", 1),
        Column { shrinks_to: Some(REMEDY_COLUMNS), ..Column::text("", 2) },
    ]);
    let whole: f64 = timelines.iter().map(|t| seconds(t.total)).sum::<f64>();
    let mean = whole / timelines.len().max(1) as f64;
    let things = things(timelines);
    let large = |thing: &&Thing| thing.estimate.mean > WORTH_A_ROW * mean;
    for thing in things.iter().take(most).filter(large) {
        let share = if mean > 0.0 { thing.estimate.mean / mean } else { 0.0 };
        table.row(vec![
            Cell::Name(thing.name.clone()),
            Cell::Inline(Quantity::of(&thing.estimate, Unit::Seconds)),
            Cell::Share(share),
            Cell::Text(thing.remedy.into()),
        ]);
    }
    table
}
