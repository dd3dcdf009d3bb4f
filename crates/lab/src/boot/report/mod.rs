//! `vmeter boot`: where a boot's time goes.

mod actionable;
mod causes;
mod chain;
pub(crate) mod facts;
pub(crate) mod json;
mod named;
mod notices;
mod pictures;
mod screen;
mod stages;
mod tables;
mod tree;
mod views;

use crate::colours::Palette;
use crate::phrases::ended_text;
use tree::SpanTree;
use vmeter_model::result::{AnalysedRun, BootResult, Envelope, Phase};
use vmeter_model::run::{Origin, Outcome};
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::time::seconds;
use vmeter_model::{Cause, Moment, Ns, RunRecord, Span, Timeline};
use vmeter_record::look::{BEGINS, CLOCK_BEGAN};
use vmeter_render::document::{Block, Detail, Document, Fact, Notice, Outline};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{percent, Quantity};
use vmeter_render::{Field, Records, Report, RunTimeline, Stretch};

/// A script ends within this of its last command, ns: a shell takes 0.2 to 0.5 ms.
const ENDING: Ns = 1_000_000;
/// Where the time of a boot begins that vmeter started.
const EXEC: &str = "the VMM's exec";

/// What to show of a boot besides its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct BootView {
    /// Activities in the list of the longest.
    pub top: usize,
    /// `--long`: all tables, where a terminal has one screen otherwise.
    pub long: bool,
    /// `--blame`: every activity, longest first.
    pub blame: bool,
    /// `--critical-chain`: from the end back to the exec, with the longest parts.
    pub critical_chain: bool,
    /// `--tree`: the spans as a tree.
    pub tree: Option<TreeView>,
}

impl Default for BootView {
    fn default() -> Self {
        BootView { top: 10, long: false, blame: false, critical_chain: false, tree: None }
    }
}

/// Options of `--tree`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TreeView {
    /// Number of the run to show ([`vmeter_model::RunRecord::index`]); the mean over runs if absent.
    pub run: Option<u32>,
    /// Shorter spans are left out, ns.
    pub min_duration: Ns,
}

/// A [`BootResult`] with what to show of it.
#[derive(Debug)]
pub struct BootReport<'a> {
    /// The result.
    pub result: &'a BootResult,
    /// What to show.
    pub view: BootView,
}

/// What a run that is measured to its power-off ends with: said of the VMM.
const EXIT_AFTER_POWER_OFF: &str = "its exit after power-off";

impl<'a> BootReport<'a> {
    /// The result with the default view.
    pub fn new(result: &'a BootResult) -> Self {
        BootReport { result, view: BootView::default() }
    }

    /// Runs that reached the end; all runs if none did.
    fn shown_runs(&self) -> Vec<&'a AnalysedRun> {
        done(self.result)
    }

    /// Their timelines.
    fn shown_timelines(&self) -> Vec<&'a Timeline> {
        done_timelines(self.result)
    }

    /// The run whose total is closest to the median: means of spans do not tile, a run does.
    fn typical_run(&self) -> Option<&'a AnalysedRun> {
        let runs = self.shown_runs();
        let mut totals: Vec<Ns> = runs.iter().map(|run| run.timeline.total).collect();
        totals.sort_unstable();
        let median = *totals.get(totals.len() / 2)?;
        runs.into_iter().min_by_key(|run| (run.timeline.total.abs_diff(median), run.record.index))
    }

    /// Phases with `unattributed` last, whatever the order they came in.
    fn phases(&self) -> Vec<&'a Phase> {
        let (last, mut phases): (Vec<_>, Vec<_>) =
            self.result.phases.iter().partition(|phase| phase.name == UNATTRIBUTED);
        phases.extend(last);
        phases
    }

    fn palette(&self) -> Palette {
        Palette::new(self.phases().iter().map(|phase| phase.name.as_str()))
    }

    /// How a run is called in titles: its place among several.
    fn run_title(&self, run: &AnalysedRun) -> String {
        match self.shown_runs().len() {
            0 | 1 => format!("run {}", run.record.index),
            n => format!("run {}, closest to the median of {n} runs", run.record.index),
        }
    }

    /// All tables, from the machine to the counts.
    fn page(&self, document: &mut Document) {
        document.push(Block::Facts(self.facts()));
        self.timeline_blocks(document);
        document.heading("Phases", self.means_note());
        document.push(Block::Table(self.phase_table()));
        let known = causes::known_causes(&self.shown_timelines());
        if !known.is_empty() {
            document.heading("Known causes", "at most: removing the cause saves at most this time");
            document.push(Block::Table(causes::table(&known)));
        }
        let marks = named::named_marks(&self.shown_timelines());
        if !marks.is_empty() {
            document.heading("Marks", "--mark: the first line of the console that matches");
            document.push(Block::Table(named::table(&marks, self.shown_runs().len())));
        }
        if !self.result.activities.is_empty() {
            document.heading("Longest activities", self.activities_note());
            document.push(Block::Table(self.activity_table(self.view.top)));
            self.name_blocks(self.view.top, document);
        }
        if !self.result.counts.is_empty() {
            document.heading("Counts", "");
            document.push(Block::Table(self.count_table()));
        }
    }

    /// How long it took, to what end, in a line.
    fn brief_answer(&self) -> String {
        let Some(total) = &self.result.total else { return self.answer() };
        let all = self.result.runs.len();
        let of_all = if total.n < all { format!(" of {all}") } else { String::new() };
        let unknown = match self.ends_unknown() {
            true => "; vmeter does not know how the guest ended",
            false => "",
        };
        format!(
            "{} from {} to {} ({}{of_all} {}{}), {} of {} named{unknown}.",
            Quantity::duration(total).inline(),
            self.measured_from(),
            self.measured_to_last(),
            total.n,
            if all == 1 { "run" } else { "runs" },
            self.what_brackets_are(total.n),
            percent(self.coverage()),
            self.named_of(),
        )
    }

    /// How long the launcher went on after the VMM's end, s, where that is worth a word.
    fn after_s(&self) -> Option<f64> {
        let timelines = self.shown_timelines();
        let whole: Ns = timelines.iter().map(|timeline| timeline.total).sum();
        let after: Ns = timelines.iter().map(|timeline| timeline.after()).sum();
        let is_much = after as f64 >= screen::WORTH_A_ROW * whole as f64;
        let each = after / (timelines.len() as Ns).max(1);
        (each >= ENDING && is_much).then(|| seconds(after) / timelines.len() as f64)
    }

    /// What a part of has names, in words.
    fn named_of(&self) -> &'static str {
        if self.after_s().is_some() {
            "the time to the VMM's end"
        } else {
            "it"
        }
    }

    /// As [`Self::measured_to`], or to the end of a launcher that went on after it.
    fn measured_to_last(&self) -> String {
        let to = self.measured_to();
        self.after_s().map_or(to, |after| {
            format!("its launcher's end, {} after the VMM's end", screen::brief(after))
        })
    }

    /// Share of the runs' time in named spans.
    pub(crate) fn coverage(&self) -> f64 {
        let runs = self.shown_runs();
        let coverage: f64 = runs.iter().map(|run| run.timeline.coverage()).sum();
        coverage / runs.len().max(1) as f64
    }

    /// True if it is of a VM that ran already.
    fn is_look(&self) -> bool {
        self.result.runs.iter().any(|run| run.record.origin == Origin::Look)
    }

    /// What the runs are measured from, in words.
    fn measured_from(&self) -> &'static str {
        if self.shown_runs().iter().any(|run| run.record.icount) {
            "the reset vector, in virtual time,"
        } else if self.is_look() {
            self.looked_from()
        } else {
            EXEC
        }
    }

    /// The same of a VM that ran already.
    fn looked_from(&self) -> &'static str {
        let begins = self.result.said.iter().find_map(|said| said.strip_prefix(BEGINS));
        match begins {
            Some(begins) if begins.contains(CLOCK_BEGAN) => "the start of the guest's clock",
            Some(_) => "the oldest line that is still in the guest's log",
            None => "the VMM's start",
        }
    }

    fn answer(&self) -> String {
        let Some(total) = &self.result.total else {
            let why = self.result.runs.iter().find_map(|run| why(&run.record));
            let why = why.map_or(String::new(), |why| format!(": {}", why.trim_end_matches('.')));
            return format!("No run reached its end{why}.");
        };
        let ends = self.measured_to_last();
        let of = self.named_of();
        let coverage = self.coverage();
        let named = self.phases().into_iter().filter(|phase| phase.name != UNATTRIBUTED);
        let longest = named.max_by(|a, b| a.share.total_cmp(&b.share));
        let longest = longest.map_or(String::new(), |phase| {
            format!("; the longest phase is {}, {}", phase.name, percent(phase.share))
        });
        let from = self.measured_from();
        let all = self.result.runs.len();
        let of_all = if total.n < all { format!(" of {all}") } else { String::new() };
        let plural = if all == 1 { "run" } else { "runs" };
        let brackets = match Quantity::duration(total).at_most {
            _ if total.n < 2 => "",
            Some(_) => "; mean [95 % CI]",
            None => "; mean ± 95 % CI",
        };
        let unknown = match self.ends_unknown() {
            true => " The VMM exited; vmeter does not know how the guest ended.",
            false => "",
        };
        format!(
            "{} from {from} to {ends} ({}{of_all} {plural}{brackets}).{unknown} Spans with a name cover {} of {of}{longest}.",
            Quantity::duration(total).inline(),
            total.n,
            percent(coverage),
        )
    }

    /// True if nothing says what the guest of a run did in the end.
    fn ends_unknown(&self) -> bool {
        let exits = |run: &&AnalysedRun| {
            run.record.end.as_ref().is_some_and(|end| end.cause == Cause::Exit)
        };
        self.shown_runs().iter().any(exits)
    }

    /// How the runs are called that ended with their machine: by what ended all of them.
    fn shutdown(&self) -> &'static str {
        let runs = self.shown_runs();
        let all = |cause| {
            runs.iter().all(|run| run.record.end.as_ref().is_some_and(|end| end.cause == cause))
        };
        if all(Cause::Restart) {
            "the guest's restart, which ends this machine's run"
        } else if all(Cause::Launcher) {
            "the signal with which the launcher ends the VMM"
        } else if self.ends_unknown() {
            "the VMM's exit"
        } else {
            EXIT_AFTER_POWER_OFF
        }
    }

    /// What a run is measured to, in words.
    fn ready_point(&self, run: &AnalysedRun) -> String {
        match why(&run.record) {
            Some(_) => "the end of a run that failed".into(),
            None => match self.measured_to() {
                exit if exit == EXIT_AFTER_POWER_OFF => "the VMM's exit".into(),
                other => other,
            },
        }
    }

    /// What the runs are measured to, in words.
    fn measured_to(&self) -> String {
        match self.result.machine.spec.until.as_deref() {
            Some("userspace") => "user space".into(),
            Some("systemd-ready") => "what systemd boots to".into(),
            Some("guest-booted") => "the guest's signal that it has booted".into(),
            Some(until) => match until.strip_prefix("line:") {
                Some(line) => format!("the line `{line}`"),
                None => self.shutdown().into(),
            },
            None if !self.is_look() => "the end".into(),
            None => {
                match self.shown_runs().iter().all(|r| r.record.moment(&Moment::Ready).is_some()) {
                    true => "the guest's report that it is up".into(),
                    false => "the last line of its boot".into(),
                }
            }
        }
    }

    /// The timeline of the typical run.
    pub(crate) fn timeline_blocks(&self, document: &mut Document) {
        let Some(run) = self.typical_run() else { return };
        document.heading("Timeline", self.run_title(run));
        let palette = self.palette();
        document.push(Block::Chart(pictures::waterfall(&run.timeline, &palette)));
    }

    fn view_blocks(&self, document: &mut Document) {
        if self.view.blame {
            document.heading("Blame", self.activities_note());
            document.push(Block::Table(self.activity_table(usize::MAX)));
            self.name_blocks(usize::MAX, document);
        }
        if let Some(run) = self.typical_run().filter(|_| self.view.critical_chain) {
            document.heading("Critical chain", self.run_title(run));
            let ready = self.ready_point(run);
            document.push(self.outline(chain::critical_chain(&run.timeline, &ready)));
        }
        if let Some(tree) = &self.view.tree {
            self.tree_blocks(tree, document);
        }
    }

    /// An outline whose times count from what the runs are measured from.
    fn outline(&self, mut outline: Outline) -> Block {
        if self.is_look() {
            outline.legend = outline.legend.replace(EXEC, self.measured_from());
        }
        Block::Outline(outline)
    }

    fn tree_blocks(&self, view: &TreeView, document: &mut Document) {
        let wanted = |run: &&AnalysedRun| Some(run.record.index) == view.run;
        let runs = match view.run {
            Some(_) => self.result.runs.iter().filter(wanted).collect(),
            None => self.shown_runs(),
        };
        let title = match (view.run, runs.as_slice()) {
            (Some(index), []) => {
                let text = format!("There is no run {index} in this result.");
                document.push(Block::Paragraph(text));
                return;
            }
            (_, [run]) => format!("run {}", run.record.index),
            (_, runs) => format!("mean over {} runs", runs.len()),
        };
        document.heading("Tree", title);
        let timelines: Vec<_> = runs.iter().map(|run| &run.timeline).collect();
        document.push(self.outline(views::tree(&timelines, view.min_duration)));
        let beside = views::beside(&timelines, view.min_duration);
        if !beside.roots.is_empty() {
            document.heading("Off the critical path", "ran in parallel to the tree");
            document.push(Block::Outline(beside));
        }
    }

    fn full_blocks(&self, document: &mut Document) {
        let palette = self.palette();
        if let Some(run) = self.typical_run() {
            document.heading("Every span", self.run_title(run));
            document.push(Block::Chart(pictures::icicle(&run.timeline, &palette)));
        }
        document.heading("Every run", "phases, on one scale");
        let runs = self.result.runs.iter().map(|run| (self.run_label(run), &run.timeline));
        let legend = self.phases().into_iter();
        let legend = legend.map(|p| (p.name.clone(), palette.colour(&p.name))).collect();
        document.push(Block::Chart(pictures::multiples(runs, &palette, legend)));
        document.push(Block::Folded {
            summary: "Runs".into(),
            blocks: vec![Block::Table(self.run_table())],
        });
        document.push(Block::Folded {
            summary: "Every activity".into(),
            blocks: vec![Block::Table(self.activity_table(2000))],
        });
        document.push(Block::Folded {
            summary: "Provenance".into(),
            blocks: vec![Block::Facts(self.provenance_facts())],
        });
    }

    /// The moments that the user named, as spans without a length: the run's place, and each.
    fn marks_as_spans(&self) -> Vec<(usize, Span)> {
        let runs = self.result.runs.iter().enumerate();
        let marks = runs.flat_map(|(of, run)| {
            let (spans, beside) = (run.timeline.spans.len(), run.timeline.overlapping.len());
            run.timeline.named_marks.iter().enumerate().map(move |(at, (name, when))| {
                let id = u32::try_from(spans + beside + at).unwrap_or(u32::MAX);
                let (name, source) = (name.clone(), "console".to_owned());
                (of, Span { id, name, start: *when, end: *when, source, ..Span::default() })
            })
        });
        marks.collect()
    }

    fn run_label(&self, run: &AnalysedRun) -> String {
        let total = vmeter_render::quantity::compact_seconds(vmeter_model::time::seconds(
            run.timeline.total,
        ));
        let bad = if run.record.outcome == Outcome::Done { "" } else { " (failed)" };
        format!("run {}  {total}{bad}", run.record.index)
    }
}

impl Report for BootReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let label = &self.result.machine.label;
        let views = self.view.blame || self.view.critical_chain || self.view.tree.is_some();
        let brief = detail == Detail::Glance && !self.view.long;
        let answer = if brief && !views { self.brief_answer() } else { self.answer() };
        let named = !label.is_empty() && label != "default";
        let title = match (named, brief && !views) {
            (true, _) => {
                format!("vmeter {}: {label}", if self.is_look() { "look" } else { "boot" })
            }
            // The screen's lines are few, and the answer says what it is.
            (false, true) => String::new(),
            (false, false) => "vmeter boot".into(),
        };
        let mut document = Document { title, answer, blocks: Vec::new() };
        if brief && !views {
            self.screen(&mut document);
            return document;
        }
        if !brief {
            self.page(&mut document);
        }
        self.view_blocks(&mut document);
        if detail == Detail::Full {
            self.full_blocks(&mut document);
        }
        document.push(Block::Notices(self.notices()));
        document
    }

    fn records(&self) -> Records {
        let marks: Vec<(usize, Span)> = self.marks_as_spans();
        let spans = self.result.runs.iter().enumerate().flat_map(|(at, run)| {
            let tree = run.timeline.spans.iter().map(move |span| (run, span, "tree"));
            let beside = run.timeline.overlapping.iter();
            let marks = marks.iter().filter(move |(of, _)| *of == at);
            tree.chain(beside.map(move |span| (run, span, "overlapping")))
                .chain(marks.map(move |(_, span)| (run, span, "mark")))
        });
        Records::of(
            spans,
            [
                ("run", |(run, _, _)| Field::number(Some(run.record.index))),
                ("label", |(run, _, _)| Field::text(&run.record.label)),
                ("outcome", |(run, _, _)| Field::text(run.record.outcome.word())),
                ("kind", |(_, _, kind)| Field::text(*kind)),
                ("id", |(_, span, _)| Field::number(Some(span.id))),
                ("parent", |(_, span, _)| Field::number(span.parent)),
                ("name", |(_, span, _)| Field::text(&span.name)),
                ("start_s", |(_, span, _)| Field::seconds(span.start)),
                ("end_s", |(_, span, _)| Field::seconds(span.end)),
                ("duration_s", |(_, span, _)| Field::seconds(span.end.saturating_sub(span.start))),
                ("insns", |(_, span, _)| Field::number(span.insns)),
                ("source", |(_, span, _)| Field::text(&span.source)),
                ("error_s", |(_, span, _)| Field::seconds(span.error_ns)),
            ],
        )
    }

    fn timelines(&self) -> Vec<RunTimeline<'_>> {
        let several = self.result.runs.len() > 1;
        let timelines = self.result.runs.iter().map(|run| {
            let record = &run.record;
            let name = &record.label;
            let number = if several { format!(" run {}", record.index) } else { String::new() };
            let label = format!("{name}{number}");
            let realtime = |clock: &vmeter_model::time::ClockReading| {
                clock.realtime_ns.checked_add(record.exec_ns.checked_sub(clock.monotonic_ns)?)
            };
            let tree = SpanTree::new(&run.timeline);
            let nested = tree.walk().into_iter();
            RunTimeline {
                label,
                start_ns: record.exec_ns,
                start_realtime_ns: record.clocks.first().and_then(realtime),
                total: run.timeline.total,
                nested: nested.map(|at| stretch(tree.span(at.at), at.depth)).collect(),
                beside: run.timeline.overlapping.iter().map(|span| stretch(span, 0)).collect(),
                marks: &run.timeline.marks,
            }
        });
        timelines.collect()
    }
}

/// Runs that reached the end; all runs if none did.
fn done(result: &BootResult) -> Vec<&AnalysedRun> {
    let done = |run: &&AnalysedRun| run.record.outcome == Outcome::Done;
    let finished: Vec<&AnalysedRun> = result.runs.iter().filter(done).collect();
    if finished.is_empty() {
        result.runs.iter().collect()
    } else {
        finished
    }
}

/// The timelines of these runs.
fn done_timelines(result: &BootResult) -> Vec<&Timeline> {
    done(result).into_iter().map(|run| &run.timeline).collect()
}

/// Why a run failed, in words.
fn why(record: &RunRecord) -> Option<String> {
    ended_text(&record.outcome, record.end.as_ref())
}

fn stretch(span: &Span, depth: usize) -> Stretch<'_> {
    Stretch {
        name: &span.name,
        start: span.start,
        end: span.end,
        insns: span.insns,
        source: &span.source,
        error_ns: span.error_ns,
        depth,
    }
}

/// A document's facts and remarks come from these, one file each.
type Facts = Vec<Fact>;
type Notices = Vec<Notice>;
