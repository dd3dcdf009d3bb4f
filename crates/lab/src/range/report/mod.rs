//! `vmeter range`: the commit that changed the time, and how sure that is.

mod json;

use crate::diff::report as diff;
use crate::verdict::verdict_tone;
use vmeter_model::range::{Change, Effort, MeasuredCommit, Metric, RangeResult};
use vmeter_model::result::Envelope;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::sweep::DiffResult;
use vmeter_model::{ChangeShape, CommitState, Estimate, RangeVerdict, Verdict};
use vmeter_render::chart::{Strip, Strips};
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{added_percent, percent, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_render::{Field, Records, Report};

/// Commits of the table at a glance that did not change anything.
const GLANCE: usize = 24;
/// The smallest change that a search is after, %, unless `--detect` says otherwise.
const SMALLEST_PCT: f64 = 3.0;
/// Below this a commit is as good as cleared.
const SUSPECT: f64 = 0.005;

/// A [`RangeResult`] to be written.
#[derive(Debug)]
pub struct RangeReport<'a> {
    /// The result.
    pub result: &'a RangeResult,
}

impl<'a> RangeReport<'a> {
    /// The result.
    pub fn new(result: &'a RangeResult) -> Self {
        RangeReport { result }
    }

    fn named(&self, at: usize) -> String {
        let commit = self.result.commits.get(at);
        commit.map_or_else(String::new, |c| format!("{} \"{}\"", short(c), c.subject))
    }

    /// The first and the last commit that have samples: a search ends there.
    fn outermost(&self) -> (usize, usize) {
        let measured = |c: &MeasuredCommit| c.state == CommitState::Measured;
        let commits = &self.result.commits;
        let last = commits.len().saturating_sub(1);
        let at = |found: Option<usize>, none| found.unwrap_or(none);
        (at(commits.iter().position(measured), 0), at(commits.iter().rposition(measured), last))
    }

    fn answer(&self) -> String {
        let broken = |c: &&MeasuredCommit| c.state == CommitState::DoesNotRun;
        let broken = self.result.commits.iter().filter(broken).map(|commit| {
            let why = commit.failure.as_deref().unwrap_or_default();
            format!(" {} is not compared: {why}.", self.named(commit.index))
        });
        self.verdict() + &broken.collect::<String>() + &self.blind()
    }

    /// The commits of whose guests only the VMM's exit is known, in a sentence.
    fn blind(&self) -> String {
        let blind = |c: &&MeasuredCommit| c.state == CommitState::NotCompared;
        let all: Vec<&MeasuredCommit> = self.result.commits.iter().filter(blind).collect();
        let Some(first) = all.first() else { return String::new() };
        let why = first.failure.as_deref().unwrap_or_default();
        match all.len() {
            1 => format!(" {} is not compared: {why}.", self.named(first.index)),
            n => format!(" {n} commits were skipped: {why}."),
        }
    }

    fn verdict(&self) -> String {
        let result = self.result;
        let sure = result.probability.map(percent).unwrap_or_default();
        match result.verdict {
            RangeVerdict::Changed => {
                let all: Vec<String> = result.changes.iter().map(|c| self.sentence(c)).collect();
                all.join(" ") + &self.the_rest() + &self.seen_once()
            }
            RangeVerdict::NoChange if result.record.bisect => format!(
                "No change of {} or more between {} and {} ({sure} sure). A change of exactly \
                    that size is easier to miss than a larger one.{}{}",
                self.excluded(),
                self.named(self.outermost().0),
                self.named(self.outermost().1),
                self.by_the_ends(),
                self.between_the_ends()
            ),
            RangeVerdict::NoChange => format!(
                "These runs do not show that any of the {} commits changed the time.{}",
                result.commits.len().saturating_sub(1),
                match result.detectable_pct {
                    Some(step) => format!(
                        " vmeter would have found, with 80 % power, a change of {step:.1} % that \
                            affects the last quarter of the commits."
                    ),
                    None => String::new(),
                }
            ),
            RangeVerdict::Undecided if !result.seen_once.is_empty() => {
                format!("No commit is named.{}", self.seen_once())
            }
            RangeVerdict::Undecided if result.suspects.is_empty() => match result.excluded_pct {
                Some(_) => format!(
                    "Undecided. The probability of no change, or of one smaller than {:.1} %, is \
                        {sure}. That is too low for a verdict: these runs rule out only a change \
                        of more than {}.",
                    result.record.detect.unwrap_or(SMALLEST_PCT),
                    self.excluded()
                ),
                None => "Undecided: there are too few runs of each commit to show any change; \
                    with 6 or more runs of each commit, vmeter can show a change."
                    .to_owned(),
            },
            RangeVerdict::Undecided => format!(
                "Undecided. If one commit made the change, it is one of {} commits ({sure} sure); \
                    more runs can show which one. If several commits made the change, use `vmeter \
                    range` without --bisect: it then measures every commit.",
                result.suspects.len()
            ),
            RangeVerdict::NotMeasurable => {
                "Fewer than two commits can be measured: there is nothing to compare.".to_owned()
            }
        }
    }

    /// What the ends alone leave possible.
    fn by_the_ends(&self) -> String {
        let Some(ends) = &self.result.ends else { return String::new() };
        let most = ends.ci95.map(|end| 100.0 * (end - 1.0).abs()).into_iter().fold(0.0, f64::max);
        format!(
            " A comparison of only the first and the last commit shows a difference of less \
            than {most:.1} % (95 % sure)."
        )
    }

    /// What a search that compared its ends only cannot see.
    fn between_the_ends(&self) -> String {
        let commits = &self.result.commits;
        let measured = commits.iter().filter(|c| c.state == CommitState::Measured).count();
        if measured == commits.len() {
            return String::new();
        }
        format!(
            " vmeter measured {measured} of {} commits, so it can miss a change that a later \
                commit reverted.",
            commits.len()
        )
    }

    /// What is left of the difference between the ends beside the one commit that a search names.
    fn the_rest(&self) -> String {
        let (Some(ends), [change]) = (&self.result.ends, self.result.changes.as_slice()) else {
            return String::new();
        };
        let Some(own) = change.ratio.as_ref().filter(|_| self.result.record.bisect) else {
            return String::new();
        };
        let half = |e: &Estimate| (e.ci95[1].ln() - e.ci95[0].ln()) / 2.0;
        let (rest, half) = (ends.mean.ln() - own.mean.ln(), half(ends).hypot(half(own)));
        if rest.is_nan() || rest.abs() <= half {
            return String::new();
        }
        format!(
            " The first and the last commit differ by {}: another commit changed the time too. \
                `vmeter range --bisect` names only one commit; `vmeter range` without --bisect \
                measures every commit.",
            added_percent(ends)
        )
    }

    /// What fresh runs did not show.
    fn seen_once(&self) -> String {
        let one = |change: &Change| {
            let last = change.commits.last().map_or_else(String::new, |at| self.named(*at));
            let by = change.ratio.as_ref().map(added_percent).unwrap_or_default();
            if let Some(shares) = Self::shares(change) {
                return format!(
                    " Not confirmed: in the first round, slow boots were {} at {last} and \
                        later commits than at earlier commits. A second round booted all \
                        commits again, and did not show this change ({shares}).",
                    if change.verdict == Verdict::Slower { "more frequent" } else { "rarer" }
                );
            }
            let Some(runs) = change.sizing else {
                return format!(
                    " The distribution of the times changed between {} and {last}, but these \
                        runs do not show whether they rose or fell (estimate and 95 % CI: {by}): \
                        make more runs of each commit (--resume with --runs N).",
                    self.named(change.before)
                );
            };
            format!(
                " Not confirmed: the first boots showed a change at {last}, but {runs} new boots \
                    of commits before and after it do not show it ({by})."
            )
        };
        self.result.seen_once.iter().map(one).collect()
    }

    /// A commit with which slow boots came, or went.
    fn of_tail(&self, change: &Change) -> Option<String> {
        let shares = Self::shares(change)?;
        let last = change.commits.last().map_or_else(String::new, |at| self.named(*at));
        let mean = change.ratio.as_ref().map(added_percent).unwrap_or_default();
        let typical = match self.result.changes.iter().all(|c| c.shape == ChangeShape::Tail) {
            true => " The typical boot is as before.",
            false => "",
        };
        Some(format!(
            "Since {last}, {shares}{}.{typical} The mean: {mean}.",
            self.or_beside(change)
        ))
    }

    /// How many boots are slow since a change, and before it.
    fn shares(change: &Change) -> Option<String> {
        let slow = change.slow?;
        let [now, of] = slow.since;
        let [then, of_then] = slow.before;
        let new = if change.sizing.is_some() { "new " } else { "" };
        Some(format!(
            "{now} of {of} {new}boots take {:.1} times as long as the others; before this \
             commit, {then} of {of_then} did",
            slow.times
        ))
    }

    fn excluded(&self) -> String {
        format!("{:.1} %", self.result.excluded_pct.unwrap_or_default().max(0.0))
    }

    fn sentence(&self, change: &Change) -> String {
        if let Some(tail) = self.of_tail(change) {
            return tail;
        }
        let is_searched = change.probability.is_some() && change.sizing.is_none();
        let told = match is_searched {
            true => {
                " The runs that found the change overestimate its size: only new runs measure the \
                    size correctly."
            }
            false => "",
        };
        self.plain_sentence(change) + told
    }

    /// What a stretch of commits came to together, of which none is named.
    fn of_stretch(&self, change: &Change, figures: &str) -> String {
        let (first, last) = (self.named(change.before), change.commits.last());
        let last = last.map_or_else(String::new, |at| self.named(*at));
        let Change { verdict, commits, .. } = change;
        if change.shape == ChangeShape::Creep {
            let each = change
                .ratio
                .as_ref()
                .map_or(1.0, |r| r.mean)
                .powf(1.0 / commits.len().max(1) as f64);
            return format!(
                "The boot got {verdict} little by little across {} commits: {last} is {verdict} \
                    than {first} {figures}, {:+.2} % per commit. No single commit caused this.",
                commits.len(),
                100.0 * (each - 1.0)
            );
        }
        format!(
            "{last} is {verdict} than {first} {figures}. These runs do not show whether only one \
                of these {} commits caused this or each of them caused a part: to find out, make \
                more runs of each commit (--resume with --runs N).",
            commits.len()
        )
    }

    fn plain_sentence(&self, change: &Change) -> String {
        let by = change.ratio.as_ref().map(added_percent).unwrap_or_default();
        let time = Quantity::exact(change.jump_s.abs(), Unit::Seconds).inline();
        let sure = match change.probability {
            Some(probability) => format!(", {} sure", percent(probability)),
            None => String::new(),
        };
        let figures = format!("by {time} ({by}{sure})");
        if change.shape != ChangeShape::Step {
            return self.of_stretch(change, &figures);
        }
        match change.commits.as_slice() {
            [one] => format!(
                "{} made the run {} {figures}{}.",
                self.named(*one),
                change.verdict,
                self.or_beside(change)
            ),
            [first, .., last] => format!(
                "One of {} commits, {} to {}, made the run {} {figures}; vmeter could measure \
                    only the last of these commits.",
                change.commits.len(),
                self.named(*first),
                self.named(*last),
                change.verdict
            ),
            [] => String::new(),
        }
    }

    /// The commits that it may as well have come with.
    fn or_beside(&self, change: &Change) -> String {
        match change.place {
            Some([from, to]) if from < to => {
                let name = |at: usize| self.result.commits.get(at).map_or("", short);
                format!(
                    "; vmeter is 95 % sure only that one of the commits from {} to {} did this",
                    name(from),
                    name(to)
                )
            }
            _ => String::new(),
        }
    }

    /// What differs between the builds on either side of a change: no verdict of its own, as the range
    /// has one, which may be by the runs of more commits.
    fn inside(explained: &DiffResult) -> String {
        let (a, b) = (&explained.a, &explained.b);
        let what = diff::explained(explained);
        format!(
            "This comparison uses {} runs of {} and {} runs of {}; the first sentence of the \
                report gives the verdict. {}",
            a.runs.len(),
            a.name,
            b.runs.len(),
            b.name,
            what.as_deref().unwrap_or("No activity differs by more than noise."),
        )
    }

    fn facts(&self) -> Vec<Fact> {
        let result = self.result;
        let record = &result.record;
        let none = String::new;
        let metric = match record.metric {
            Metric::Wall => "wall time of each run",
            Metric::Cpu => "CPU time of each run",
        };
        let mut facts = vec![
            Fact::new("repository", record.repo.clone(), "vmeter does not change it"),
            Fact::new(
                "range",
                format!("{}, {} commits", record.range, result.commits.len().saturating_sub(1)),
                "and the commit before, as the baseline",
            ),
        ];
        if let Some(build) = &record.build {
            facts.push(Fact::new("build", build.clone(), ""));
        }
        let measured = record.run.clone().unwrap_or_else(|| "a boot".to_owned());
        facts.push(Fact::new("measured", measured, metric));
        let Effort { boots, placing, sizing, slow, builds, linear_boots, linear_builds } =
            &result.effort;
        let parts = [
            (*placing, "to find the commit of a change"),
            (*sizing, "new, to check a change and measure its size"),
            (*slow, "to boot all commits again and count the slow boots"),
        ];
        let parts = parts.iter().filter(|(runs, _)| *runs > 0);
        let parts: Vec<String> = parts.map(|(runs, what)| format!("{runs} {what}")).collect();
        let mut linear = match parts.is_empty() {
            true => none(),
            false => format!("of them {}", parts.join(", ")),
        };
        if record.bisect {
            let scan = match record.build {
                Some(_) => format!("a linear scan: {linear_boots} runs, {linear_builds} builds"),
                None => format!("a linear scan: {linear_boots} runs"),
            };
            linear = if linear.is_empty() { scan } else { format!("{linear}; {scan}") };
        }
        let mut spent = format!("{boots} runs");
        if record.warmup > 0 {
            spent += ", warm-ups included";
        }
        if record.build.is_some() {
            spent += &format!("; {builds} builds");
        }
        facts.push(Fact::new("spent", spent, linear));
        if let Some(ends) = &result.ends {
            let all = self.outermost() == (0, self.result.commits.len().saturating_sub(1));
            let of = match (all, record.bisect, &record.build) {
                (false, ..) => {
                    "the last measured commit, compared with the first measured \
                    commit; 95 % CI"
                }
                (true, false, _) => "the last commit against the baseline; 95 % CI",
                (true, true, Some(_)) => {
                    "the last commit against the baseline; the 95 % CI includes the usual \
                        variation from build to build"
                }
                (true, true, None) => {
                    "the last commit against the baseline; the 95 % CI includes the usual \
                        variation from commit to commit"
                }
            };
            facts.push(Fact::new("whole range", added_percent(ends), of));
        }
        facts
    }

    fn table(&self, detail: Detail) -> Table {
        let result = self.result;
        let searched = result.record.bisect;
        let mut columns = vec![
            Column::number("", 0),
            Column::text("commit", 0),
            Column { shrinks_to: Some(20), ..Column::text("subject", 1) },
            Column::number("runs", 2),
            Column::number("time", 0),
        ];
        if searched {
            columns.push(Column::number("guilty", 0));
        }
        columns.push(Column::text("", 0));
        let mut table = Table::new(columns);
        let shown: Vec<&MeasuredCommit> = result
            .commits
            .iter()
            .filter(|c| detail == Detail::Full || c.state != CommitState::NotMeasured)
            .collect();
        let crowded = detail != Detail::Full && shown.len() > GLANCE;
        for commit in shown {
            let is_step = |c: &&Change| matches!(c.shape, ChangeShape::Step | ChangeShape::Tail);
            let mut steps = result.changes.iter().filter(is_step);
            let guilty = steps.any(|c| c.commits.contains(&commit.index));
            let is_near = |at: &usize| commit.index + 3 > *at && commit.index < at + 3;
            let near = result.changes.iter().any(|c| {
                let last = c.commits.last().filter(|_| c.shape != ChangeShape::Step);
                c.commits.first().into_iter().chain(last).any(is_near)
            });
            let suspect = commit.probability.is_some_and(|p| p >= SUSPECT);
            if crowded && !guilty && !near && !suspect && commit.failure.is_none() {
                continue;
            }
            let mut cells = vec![
                Cell::Text(commit.index.to_string()),
                Cell::Name(short(commit).to_owned()),
                Cell::Text(commit.subject.clone()),
                Cell::Text(commit.samples_s.len().to_string()),
                commit.estimate.as_ref().map_or(Cell::Empty, |estimate| {
                    Cell::Quantity(Quantity::of(estimate, Unit::Seconds))
                }),
            ];
            if searched {
                let probability = commit.probability.filter(|p| *p >= SUSPECT);
                cells.push(probability.map_or(Cell::Empty, |p| Cell::Text(percent(p))));
            }
            cells.push(state(commit, guilty, result));
            let tone = if guilty { Tone::Strong } else { Tone::Normal };
            table.toned_row(tone, cells);
        }
        table
    }
}

fn state(commit: &MeasuredCommit, guilty: bool, result: &RangeResult) -> Cell {
    let change = result.changes.iter().find(|c| c.commits.contains(&commit.index));
    match (guilty, change, commit.state) {
        (
            _,
            _,
            state @ (CommitState::BuildFailed | CommitState::DoesNotRun | CommitState::NotCompared),
        ) => Cell::Toned(state.word().into(), Tone::Muted),
        (true, Some(change), _) => {
            Cell::Toned(change.verdict.word().into(), verdict_tone(change.verdict))
        }
        _ => Cell::Empty,
    }
}

fn short(commit: &MeasuredCommit) -> &str {
    commit.hash.get(..12).unwrap_or(&commit.hash)
}

impl Report for RangeReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let result = self.result;
        let title = "vmeter range".to_owned();
        let mut document = Document { title, answer: self.answer(), blocks: Vec::new() };
        document.push(Block::Facts(self.facts()));
        document.heading("Commits", "oldest first; mean ± 95 % CI of all runs");
        document.push(Block::Table(self.table(detail)));
        if detail == Detail::Full {
            let strips = result.commits.iter().filter_map(strip).collect();
            document.heading("Samples", crate::phrases::DOTS);
            document.push(Block::Strips(Strips { caption: "every run".into(), strips }));
        }
        if let Some(explained) = result.explained.as_ref().filter(|e| tells(e)) {
            document.heading("What changed in it", "");
            document.push(Block::Paragraph(Self::inside(explained)));
            diff::blocks(explained, detail, &mut document);
        }
        crate::hosts_report::blocks(&result.hosts, &mut document);
        document.push(Block::Paragraph(method(result)));
        let notices = closing_notices(&result.warnings, &result.hints, &result.saved_in);
        document.push(Block::Notices(notices));
        document
    }

    fn records(&self) -> Records {
        let header =
            vec!["index", "commit", "subject", "state", "sample", "seconds", "probability"];
        let mut rows = Vec::new();
        for commit in &self.result.commits {
            let row = |sample: Field, seconds: Option<f64>| {
                vec![
                    Field::number(Some(commit.index)),
                    Field::text(&commit.hash),
                    Field::text(&commit.subject),
                    Field::text(commit.state.word()),
                    sample,
                    Field::number(seconds),
                    Field::number(commit.probability),
                ]
            };
            if commit.samples_s.is_empty() {
                rows.push(row(Field::Empty, None));
            }
            for (n, seconds) in commit.samples_s.iter().enumerate() {
                rows.push(row(Field::number(Some(n)), Some(*seconds)));
            }
        }
        Records { header, rows }
    }
}

/// True if the comparison saw inside of the runs.
fn tells(explained: &DiffResult) -> bool {
    let inside =
        |row: &vmeter_model::sweep::DiffRow| !matches!(row.name.as_str(), "TOTAL" | UNATTRIBUTED);
    explained.rows.iter().any(inside)
}

fn strip(commit: &MeasuredCommit) -> Option<Strip> {
    Some(Strip {
        label: short(commit).to_owned(),
        samples: commit.samples_s.clone(),
        estimate: commit.estimate?,
        outliers: Vec::new(),
    })
}

/// How the answer was reached.
fn method(result: &RangeResult) -> String {
    if result.record.bisect {
        format!(
            "With --bisect, vmeter computes for each commit the probability that this commit \
                made the change. vmeter boots the first and the last commit. Of the \
                commits between these two, vmeter boots the one that has about half of the \
                probability before it and half after it. \
                When the probability of a commit reaches {}, vmeter names this commit. \
                \"Nothing changed\" is one of the possible answers. New boots \
                then measure the size of the change.",
            percent(result.record.confidence)
        )
    } else {
        "vmeter looks for the commits that changed the time of most boots; a rare slow \
            boot counts as one boot, however long it took. In at most 5 % of ranges without a \
            change, vmeter names a wrong commit. Unless --no-place or --shard is given, vmeter \
            then makes new boots to check each change and measure its size. vmeter names a \
            change only if the new boots confirm it. The first sentence of this report has the \
            result of the new boots; the table shows the means of all \
            boots."
            .to_owned()
    }
}
