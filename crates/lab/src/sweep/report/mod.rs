//! `vmeter sweep`: how each phase grows with a setting, and where it jumps.

mod json;
mod tables;

use crate::diff::report as diff;
use crate::ends::Ends;
use crate::hosts_report as hosts;
use crate::phrases::{ended_text, grouped, host_line, outcome_text, run_list};
use crate::verdict::{interval_pct, ratio_words, verdict_tone, verdict_words, P};
use std::collections::BTreeMap;
use vmeter_base::shell;
use vmeter_model::result::Envelope;
use vmeter_model::sweep::{
    ExplainedBreak, Scaling, Series, Settings, SweepPoint, SweepResult, SweptParameter,
};
use vmeter_render::chart::{Strip, Strips};
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact, Notice, NoticeKind};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{p_value, ratio_interval, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::{Field, Records, Report};

/// Reasons named for a break.
const REASONS: usize = 6;
/// Exact counts that the answer names.
const EXACT_COUNTS: [(&str, &str); 2] =
    [("pci_config_reads", "PCI config reads"), ("pci_config_writes", "PCI config writes")];

/// A [`SweepResult`] to be written.
#[derive(Debug)]
pub struct SweepReport<'a> {
    /// The result.
    pub result: &'a SweepResult,
}

/// Points that differ only in the parameter that goes across: one table.
struct Panel<'a> {
    /// What goes across; none if nothing was varied.
    parameter: Option<&'a SweptParameter>,
    /// The other parameters.
    at: Settings,
    points: Vec<&'a SweepPoint>,
}

impl Panel<'_> {
    fn value(&self, point: &SweepPoint) -> String {
        let own = self.parameter.map(|p| p.name.as_str());
        let found = point.parameters.iter().find(|(name, _)| Some(name.as_str()) == own);
        match found {
            Some((_, value)) if value.is_empty() => "(none)".into(),
            Some((_, value)) => value.clone(),
            None => point.label.clone(),
        }
    }

    /// A column for each point, then slope and breaks. The ends stay longest.
    fn columns(&self, what: &str, numeric: bool) -> Vec<Column> {
        let last = self.points.len().saturating_sub(1);
        let mut columns = vec![Column { shrinks_to: Some(24), ..Column::name(what) }];
        columns.extend(self.points.iter().enumerate().map(|(i, point)| {
            let inner = i != 0 && i != last;
            Column::number(&self.value(point), u8::from(inner) * 2)
        }));
        if numeric {
            columns.extend([Column::number("slope", 0), Column::text("jumps", 3)]);
        }
        columns
    }
}

impl<'a> SweepReport<'a> {
    /// The result.
    pub fn new(result: &'a SweepResult) -> Self {
        SweepReport { result }
    }

    /// What goes across: the numeric parameter with the most values, or else any.
    fn across(&self) -> Option<&'a SweptParameter> {
        let parameters = self.result.parameters.iter();
        parameters.rev().max_by_key(|p| (p.values.len() > 1, p.numeric, p.values.len()))
    }

    fn panels(&self) -> Vec<Panel<'a>> {
        let parameter = self.across();
        let mut panels: Vec<Panel<'a>> = Vec::new();
        for point in &self.result.points {
            let own = |(name, _): &&(String, String)| Some(name) != parameter.map(|p| &p.name);
            let at: Settings = point.parameters.iter().filter(own).cloned().collect();
            match panels.iter_mut().find(|panel| panel.at == at) {
                Some(panel) => panel.points.push(point),
                None => panels.push(Panel { parameter, at, points: vec![point] }),
            }
        }
        panels
    }

    /// `smp=2` for those parameters that have several values.
    fn varied(&self, at: &Settings) -> Vec<String> {
        let parameters = &self.result.parameters;
        let varied = |name: &str| parameters.iter().any(|p| p.name == name && p.values.len() > 1);
        let others = at.iter().filter(|(name, _)| varied(name));
        others.map(|(name, value)| format!("{name}={value}")).collect()
    }

    fn is_numeric(&self, panel: &Panel<'_>) -> bool {
        panel.parameter.is_some_and(|p| p.numeric && p.values.len() > 1)
    }

    fn of_panel<'s>(&'s self, panel: &'s Panel<'_>) -> impl Iterator<Item = &'a Scaling> + 's {
        let own = |s: &&Scaling| {
            panel.parameter.is_some_and(|p| p.name == s.parameter) && s.at == panel.at
        };
        self.result.scaling.iter().filter(own)
    }

    fn scaling(&self, panel: &Panel<'_>, series: Series, name: &str) -> Option<&'a Scaling> {
        self.of_panel(panel).find(|s| s.series == series && s.name == name)
    }

    fn answer(&self) -> String {
        let mut sentences = Vec::new();
        let totals = self.result.scaling.iter().filter(|s| s.series == Series::Total);
        for total in totals {
            sentences.push(self.growth_sentence(total));
        }
        sentences.extend(self.break_sentence());
        if sentences.is_empty() {
            let verdicts = self
                .result
                .comparisons
                .iter()
                .map(|c| format!("{}: {} ({})", c.b, verdict_words(c), ratio_words(c)));
            let verdicts: Vec<String> = verdicts.take(8).collect();
            if let (Some(first), false) = (self.result.points.first(), verdicts.is_empty()) {
                sentences.push(format!("Against {}: {}.", first.label, verdicts.join("; ")));
            }
        }
        sentences.extend(self.blind_sentence());
        sentences.join(" ")
    }

    /// Of how many points only the VMM's exit is known.
    fn blind_sentence(&self) -> Option<String> {
        let blind = |point: &&SweepPoint| Ends::of_swept(point.runs.iter()).is_unknown();
        let count = self.result.points.iter().filter(blind).count();
        (count > 0).then(|| {
            let all = self.result.points.len();
            format!(
                "At {count} of {all} points, vmeter does not know how the guests ended, so it \
                    does not compare these points."
            )
        })
    }

    fn growth_sentence(&self, total: &Scaling) -> String {
        let at = self.varied(&total.at);
        let each =
            if at.is_empty() { "Each".to_owned() } else { format!("At {}, each", at.join(", ")) };
        let slope = tables::slope(total, Unit::Seconds);
        let sign = if total.slope > 0.0 { "+" } else { "" };
        let exact: Vec<String> = EXACT_COUNTS
            .into_iter()
            .filter_map(|(count, words)| {
                let same = |s: &&Scaling| {
                    s.series == Series::Count
                        && s.name == count
                        && s.parameter == total.parameter
                        && s.at == total.at
                };
                let counted = self.result.scaling.iter().find(same)?;
                let text = self.exactly(counted).filter(|_| counted.usual_step != Some(0.0))?;
                Some(format!("{words} {text}"))
            })
            .collect();
        let exactly = if exact.is_empty() {
            String::new()
        } else {
            format!("; exact counts: {}", exact.join("; "))
        };
        let sure = match total.p_value {
            p if p <= 0.05 => String::new(),
            _ => " (no growth found beyond noise)".to_owned(),
        };
        let unit = &total.parameter;
        format!("{each} unit of {unit} costs {sign}{}{sure}{exactly}.", slope.inline())
    }

    fn break_sentence(&self) -> Option<String> {
        let points = self.panels().iter().map(|p| p.points.len()).max().unwrap_or(0);
        let mut steps: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let in_time = |s: &&Scaling| matches!(s.series, Series::Total | Series::Phase);
        for scaling in self.result.scaling.iter().filter(in_time) {
            for found in &scaling.breaks {
                let at: String =
                    self.varied(&scaling.at).iter().map(|at| format!(" at {at}")).collect();
                let [from, to] = found.between;
                let place = format!("between {} {from} and {to}{at}", scaling.parameter);
                let jump = spelled(found.jump, Unit::Seconds);
                steps.entry(place).or_default().push(format!("{} {jump}", scaling.name));
            }
        }
        let jumps = steps.into_iter().map(|(place, what)| format!("{place} ({})", what.join(", ")));
        let jumps: Vec<String> = jumps.collect();
        if !jumps.is_empty() {
            return Some(format!("It jumps {}.", jumps.join("; ")));
        }
        let totals = || self.result.scaling.iter().filter(|s| s.series == Series::Total);
        let jump = totals().filter_map(|s| s.detectable_jump).reduce(f64::max);
        let found = jump.map_or_else(String::new, |jump| {
            let jump = Quantity::exact(jump, Unit::Seconds).inline();
            format!(" A jump of {jump} in the whole boot would have been found with 80 % power.")
        });
        let numeric = totals().next().is_some();
        (numeric && points >= 4).then(|| format!("No jump beyond the trend was found.{found}"))
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![Fact::new("host", host_line(&self.result.envelope.host), "")];
        for parameter in &self.result.parameters {
            let varied = parameter.values.join(", ");
            facts.push(Fact::new(&parameter.name, varied, ""));
        }
        let runs: Vec<usize> = self.result.points.iter().map(|p| p.runs.len()).collect();
        let (least, most) = (runs.iter().min().unwrap_or(&0), runs.iter().max().unwrap_or(&0));
        let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let order = "vmeter runs every point once, in a random order, then every point again, \
            and so on; --runs sets the number of runs of each point, --seed sets the order";
        facts.push(Fact::new("runs a point", range, order));
        if let Some(first) = self.result.points.first() {
            let swept = |what: &String| self.result.parameters.iter().any(|p| p.name == *what);
            let chosen = first.machine.chosen.iter().filter(|chosen| !swept(&chosen.what));
            facts.extend(chosen.map(|c| Fact::new(&c.what, &c.value, &c.note)));
        }
        facts
    }

    fn comparison_table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::name("point"),
            Column::text("wall time, ratio", 0),
            Column::text("CPU time, ratio", 2),
            Column::number("p", 0).meaning(P),
            Column::text("verdict", 0),
        ]);
        for comparison in &self.result.comparisons {
            let tone = verdict_tone(comparison.verdict);
            table.row(vec![
                Cell::Name(comparison.b.clone()),
                Cell::Text(ratio_words(comparison)),
                Cell::Text(ratio_interval(&comparison.cpu_ratio)),
                Cell::Text(p_value(comparison.p_value)),
                Cell::Toned(verdict_words(comparison), tone),
            ]);
        }
        table
    }

    fn panel_blocks(&self, panel: &Panel<'a>, detail: Detail, document: &mut Document) {
        let all = detail == Detail::Full;
        let title = self.varied(&panel.at).join(", ");
        let across = panel.parameter.map_or("", |p| p.name.as_str());
        let by = |what: &str| match title.as_str() {
            "" => format!("{what} by {across}"),
            other => format!("{what} by {across}, {other}"),
        };
        let means = "means in ms (in s if 10 s or more); the row TOTAL shows how much longer the \
            whole boot takes than at the first point";
        let slopes = "; slope (± half of its 95 % interval): least-squares change per unit";
        let slopes = if self.is_numeric(panel) { slopes } else { "" };
        document.heading(by("Phases"), format!("{means}{slopes}"));
        document.push(Block::Table(self.phase_table(panel, all)));
        if let Some(table) = self.count_table(panel, all) {
            document.heading(by("Counts"), "exact where all runs agree");
            document.push(Block::Table(table));
        }
        if let Some(table) = self.step_table(panel) {
            document.heading(by("Marginal cost"), "change per step ± half of its 95 % interval");
            document.push(Block::Table(table));
        }
        if let Some(table) = self.activity_table(panel) {
            document.heading(by("What grows"), "activities; p adjusted for their number");
            document.push(Block::Table(table));
        }
    }

    fn break_blocks(&self, explained: &ExplainedBreak, detail: Detail, document: &mut Document) {
        let [from, to] = explained.between;
        let title = format!("What changes between {} {from} and {to}", explained.parameter);
        document.heading(title, "a comparison of the two points, as `vmeter diff` makes it");
        if let Some(table) = self.jump_table(explained) {
            document.push(Block::Table(table));
        }
        document.push(Block::Paragraph(diff::answer(&explained.diff)));
        if detail == Detail::Full {
            diff::blocks(&explained.diff, Detail::Glance, document);
            return;
        }
        let mut reasons = diff::reasons(&explained.diff, REASONS);
        reasons.retain(|r| r.significant);
        if !reasons.is_empty() {
            let table = diff::table(&explained.diff, "activity", reasons.into_iter());
            document.push(Block::Table(table));
        }
        let lines: Vec<_> = diff::telling_lines(&explained.diff).take(REASONS).collect();
        if !lines.is_empty() {
            document.push(Block::Table(diff::table(&explained.diff, "line", lines.into_iter())));
        }
    }

    fn strips(&self) -> Strips {
        let strips = self.result.points.iter().filter_map(|point| {
            let done = point.runs.iter().filter(|r| outcome_text(&r.outcome).is_none());
            Some(Strip {
                label: point.label.clone(),
                samples: done.map(|r| r.total_s).collect(),
                estimate: point.total?,
                outliers: Vec::new(),
            })
        });
        Strips { caption: "length of every run".into(), strips: strips.collect() }
    }

    fn notices(&self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for point in &self.result.points {
            notices.extend(point.runs.iter().filter_map(|run| {
                let text = ended_text(&run.outcome, run.end.as_ref())?;
                let text = format!("{}, run {}: {text}", point.label, run.index);
                Some(Notice::new(NoticeKind::Failure, text))
            }));
        }
        let runs = || self.result.points.iter().flat_map(|point| &point.runs);
        let texts = runs().flat_map(|r| r.warnings.iter().map(move |w| (r.index, w.clone())));
        for (text, affected) in grouped(texts) {
            let text = if affected.len() >= runs().count() {
                text
            } else {
                format!("{}: {text}", run_list(&affected))
            };
            notices.push(Notice::new(NoticeKind::Warning, text));
        }
        let SweepResult { warnings, hints, saved_in, .. } = self.result;
        notices.extend(closing_notices(warnings, hints, saved_in));
        notices
    }
}

/// A jump or rise with its sign: `+600 ms`, `+291`.
fn spelled(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Count => tables::signed_count(value),
        unit => {
            let sign = if value > 0.0 { "+" } else { "" };
            format!("{sign}{}", Quantity::exact(value, unit).inline())
        }
    }
}

impl Report for SweepReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let names = self.result.parameters.iter().map(|p| p.name.as_str());
        let title = format!("vmeter sweep: {}", names.collect::<Vec<_>>().join(" × "));
        let mut document = Document { title, answer: self.answer(), blocks: Vec::new() };
        document.push(Block::Facts(self.facts()));
        for panel in self.panels() {
            self.panel_blocks(&panel, detail, &mut document);
        }
        if let Some(first) = self.result.comparisons.first() {
            let sure = interval_pct(first);
            let note = format!(
                "typical run (Hodges-Lehmann) as a multiple of {}'s, with {sure} % CI; runs \
                    paired in random blocks",
                first.a
            );
            document.heading("Comparison", note);
            document.push(Block::Table(self.comparison_table()));
        }
        for explained in &self.result.explained {
            self.break_blocks(explained, detail, &mut document);
        }
        hosts::blocks(&self.result.hosts, &mut document);
        document.heading("Samples", crate::phrases::DOTS);
        document.push(Block::Strips(self.strips()));
        if detail == Detail::Full {
            let facts = vec![
                Fact::new("command", shell::join(&self.result.envelope.argv), ""),
                Fact::new("started at", &self.result.envelope.started_at, ""),
            ];
            let machines = self.result.points.iter().map(|point| {
                Fact::new(&point.label, shell::join(&point.machine.argv), "as without watching")
            });
            document.push(Block::Folded {
                summary: "Provenance".into(),
                blocks: vec![Block::Facts(facts.into_iter().chain(machines).collect())],
            });
        }
        document.push(Block::Notices(self.notices()));
        document
    }

    fn records(&self) -> Records {
        let header = vec!["point", "run", "outcome", "kind", "name", "value"];
        let mut records = Records { header, rows: Vec::new() };
        for point in &self.result.points {
            for run in &point.runs {
                let mut row = |kind: &str, name: &str, value: f64| {
                    records.rows.push(vec![
                        Field::text(&point.label),
                        Field::number(Some(run.index)),
                        Field::text(run.outcome.word()),
                        Field::text(kind),
                        Field::text(name),
                        Field::number(Some(value)),
                    ]);
                };
                row("total_s", "TOTAL", run.total_s);
                row("cpu_s", "CPU", run.cpu_s);
                run.phases.iter().for_each(|(name, seconds)| row("phase_s", name, *seconds));
                run.counts.iter().for_each(|(name, count)| row("count", name, *count));
            }
        }
        records
    }
}
