//! `vmeter diff`: what two machines differ in, the largest first.

mod json;

pub(crate) use json::Body;

use super::rows::{ALPHA, ALPHA_TOTAL};
use vmeter_model::result::Envelope;
use vmeter_model::sweep::{DiffKind, DiffResult, DiffRow, DiffSetting, DiffSide, Presence};
use vmeter_model::DiffVerdict;
use vmeter_model::Estimate;
use vmeter_render::chart::{Strip, Strips};
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{added_percent, p_value, percent, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_render::{Field, Records, Report};

/// Rows of each table at a glance.
const GLANCE: usize = 12;
/// Reasons that the answer names.
const NAMED: usize = 3;

/// A [`DiffResult`] to be written.
#[derive(Debug)]
pub struct DiffReport<'a> {
    /// The result.
    pub result: &'a DiffResult,
}

impl<'a> DiffReport<'a> {
    /// The result.
    pub fn new(result: &'a DiffResult) -> Self {
        DiffReport { result }
    }
}

/// The total and its difference in one sentence, and what explains it in another.
pub(crate) fn answer(result: &DiffResult) -> String {
    let names = format!("{} and {}", result.a.name, result.b.name);
    let Some(total) = result.rows.iter().find(|r| r.kind == DiffKind::Total) else {
        return format!("{names} have no runs to compare.");
    };
    let change = signed(total, Unit::Seconds);
    let percent = result.ratio.as_ref().map(added_percent).unwrap_or_default();
    let first = match result.verdict {
        verdict @ (DiffVerdict::Slower | DiffVerdict::Faster) => format!(
            "{} is {verdict} than {} by {} ({percent}{}).",
            result.b.name,
            result.a.name,
            change.trim_start_matches(['+', '-']),
            spelled_p(total.p_value)
        ),
        DiffVerdict::Different => format!(
            "No difference found in the time of {names} ({change}, {percent}{}), but other results differ.",
            short_of(total.p_value)
        ),
        DiffVerdict::NotKnown => format!(
            "With one run of each machine, vmeter cannot tell whether the difference of {change} \
                ({percent}) between {names} is more than noise."
        ),
        DiffVerdict::EndsNotKnown => {
            return format!(
                "vmeter does not know how the guests of {names} ended, so it cannot say which \
                    guest boots sooner. vmeter knows only the difference between the run \
                    times of the VMM processes: {change} ({percent}{}). Leave out --no-inject, \
                    watch with --watch light, or measure to a console line: --until 'line:REGEX'.",
                spelled_p(total.p_value)
            )
        }
        DiffVerdict::NoDifference => format!(
            "No difference found between {names}: {change} ({percent}{}).",
            short_of(total.p_value)
        ),
    };
    match explanation(result, total) {
        Some(second) => format!("{first} {second}"),
        None => first,
    }
}

/// What differs most inside of the runs, without a verdict on their totals.
pub(crate) fn explained(result: &DiffResult) -> Option<String> {
    explanation(result, result.rows.iter().find(|r| r.kind == DiffKind::Total)?)
}

/// The total's p where no difference was found. Its level is below that of the interval beside it.
fn short_of(p: Option<f64>) -> String {
    let asked = match p.is_some_and(|p| p > ALPHA_TOTAL && p <= 0.05) {
        true => format!(
            "; a difference of the whole boot counts as significant only at p < {ALPHA_TOTAL}, \
             not at p < 0.05, because vmeter tests the parts of the boot too"
        ),
        false => String::new(),
    };
    spelled_p(p) + &asked
}

fn spelled_p(p: Option<f64>) -> String {
    match p.map(p_value) {
        Some(p) if p.starts_with('<') => format!(", p {p}"),
        Some(p) => format!(", p = {p}"),
        None => String::new(),
    }
}

/// What differs most, with its share of the total's difference. Nothing, where the sides
/// were found not to differ.
fn explanation(result: &DiffResult, total: &DiffRow) -> Option<String> {
    let mut reasons = reasons(result, usize::MAX);
    if reasons.iter().any(|r| r.significant) {
        reasons.retain(|r| r.significant);
    } else if result.verdict == DiffVerdict::NoDifference {
        return None;
    }
    let named: Vec<String> = reasons
        .iter()
        .take(NAMED)
        .map(|row| {
            let note = match row.presence {
                Presence::New => ", not there before",
                Presence::Gone => ", gone",
                Presence::Both => "",
            };
            format!("{} ({}{note})", row.name, signed(row, Unit::Seconds))
        })
        .collect();
    if named.is_empty() {
        return None;
    }
    let share = reasons.first().map(|row| row.difference / total.difference);
    let share = match (share, result.verdict) {
        (Some(share), DiffVerdict::Slower | DiffVerdict::Faster) if share > 0.0 && share <= 1.5 => {
            format!("; the first activity listed is {} of the whole difference", percent(share))
        }
        _ => String::new(),
    };
    let only = if reasons.first().is_some_and(|r| r.significant) {
        "What differs most"
    } else {
        "Only one side has these activities, perhaps by chance"
    };
    Some(format!("{only}: {}{share}.", named.join(", ")))
}

/// Activities that differ beyond noise, or that all runs of one side have and none of the
/// other, the largest first.
pub(crate) fn reasons(result: &DiffResult, most: usize) -> Vec<&DiffRow> {
    let total = result.rows.iter().find(|r| r.kind == DiffKind::Total);
    let least = total.map_or(0.0, |t| 1e-3 * t.a.mean.abs());
    let differs = |row: &&DiffRow| {
        let everywhere = match row.presence {
            Presence::New => row.seen_in[1] == result.b.runs.len(),
            Presence::Gone => row.seen_in[0] == result.a.runs.len(),
            Presence::Both => false,
        };
        let one_sided = everywhere && row.difference.abs() >= least;
        row.kind == DiffKind::Activity && (row.significant || one_sided)
    };
    let mut rows: Vec<&DiffRow> = result.rows.iter().filter(differs).collect();
    rows.sort_by(|a, b| b.difference.abs().total_cmp(&a.difference.abs()));
    rows.truncate(most);
    rows
}

/// Lines that differ beyond noise, or that all of three and more runs of one side have and
/// none of the other.
pub(crate) fn telling_lines(result: &DiffResult) -> impl Iterator<Item = &DiffRow> {
    let runs = [result.a.runs.len(), result.b.runs.len()];
    let several = runs.iter().all(|n| *n >= 3);
    result.lines.iter().filter(move |row| {
        let one_sided = row.seen_in == [0, runs[1]] || row.seen_in == [runs[0], 0];
        row.significant || several && one_sided
    })
}

/// The difference with its sign and half of its interval.
pub(crate) fn signed(row: &DiffRow, unit: Unit) -> String {
    let quantity = difference(row, unit);
    let sign = if row.difference > 0.0 { "+" } else { "" };
    format!("{sign}{}", quantity.inline())
}

pub(crate) fn difference(row: &DiffRow, unit: Unit) -> Quantity {
    let half = row.difference_ci95.map(|[low, high]| ((high - low) / 2.0).max(0.0));
    Quantity { half_width: half, ..Quantity::exact(row.difference, unit) }
}

fn unit(kind: DiffKind) -> Unit {
    match kind {
        DiffKind::Total | DiffKind::Phase | DiffKind::Mark | DiffKind::Activity => Unit::Seconds,
        DiffKind::Insns | DiffKind::Count | DiffKind::Line => Unit::Count,
    }
}

/// True for a part that differs beyond noise, and no more than the rest of the boot.
fn as_the_rest(row: &DiffRow) -> bool {
    let p = row.p_value.zip(row.p_value_levelled);
    p.is_some_and(|(raw, normalised)| raw <= ALPHA && normalised > ALPHA)
}

/// What a row's figures mean, in two words.
fn finding(row: &DiffRow, exact: bool, alone: bool) -> Cell {
    let worse = if row.difference > 0.0 { Tone::Bad } else { Tone::Good };
    match (row.presence, row.significant) {
        (Presence::New, true) => Cell::Toned("not there before".into(), worse),
        (Presence::Gone, true) => Cell::Toned("gone".into(), worse),
        (_, false) if as_the_rest(row) => Cell::Toned("as the rest".into(), Tone::Muted),
        (_, false) if exact && row.presence == Presence::Both => {
            Cell::Toned("the same".into(), Tone::Muted)
        }
        (_, false) if alone => Cell::Toned("one run a side".into(), Tone::Muted),
        (_, false) => Cell::Toned("within noise".into(), Tone::Muted),
        (Presence::Both, true) if row.kind == DiffKind::Line => {
            Cell::Toned("differs".into(), Tone::Normal)
        }
        (Presence::Both, true) => {
            let word = if row.difference > 0.0 { "more" } else { "less" };
            Cell::Toned(word.into(), worse)
        }
    }
}

/// A table of rows of one unit.
pub(crate) fn table<'r>(
    result: &DiffResult,
    what: &str,
    rows: impl Iterator<Item = &'r DiffRow>,
) -> Table {
    let mut table = Table::new(vec![
        Column::name(what),
        Column::number("before", 2),
        Column::number("after", 2),
        Column::number("difference", 0),
        Column::number("p", 1),
        Column::text("", 0),
        Column::number("seen in", 3),
        Column::text("where", 4),
    ]);
    for row in rows {
        let unit = unit(row.kind);
        let value = |estimate: &Estimate| match unit {
            Unit::Seconds => Cell::Quantity(Quantity::beside(estimate.mean, estimate, unit)),
            _ => Cell::Inline(Quantity::beside(estimate.mean, estimate, unit)),
        };
        let tone = if row.kind == DiffKind::Total { Tone::Strong } else { Tone::Normal };
        let [a, b] = row.seen_in;
        let seen = format!("{a}/{}, {b}/{}", result.a.runs.len(), result.b.runs.len());
        let difference = match unit {
            Unit::Seconds => Cell::Quantity(difference(row, unit)),
            _ if row.kind == DiffKind::Line && row.difference.fract() != 0.0 => {
                Cell::Text(format!("{:+.1}", row.difference))
            }
            _ => Cell::Text(signed(row, unit)),
        };
        table.toned_row(
            tone,
            vec![
                Cell::Name(row.name.clone()),
                value(&row.a),
                value(&row.b),
                difference,
                row.p_value.map_or(Cell::Empty, |p| Cell::Text(p_value(p))),
                finding(row, result.exact, result.verdict == DiffVerdict::NotKnown),
                Cell::Text(seen),
                row.place.clone().map_or(Cell::Empty, Cell::Text),
            ],
        );
    }
    table
}

/// Tables of what differs, each only if there is something in it.
pub(crate) fn blocks(result: &DiffResult, detail: Detail, document: &mut Document) {
    let most = if detail == Detail::Full { usize::MAX } else { GLANCE };
    let of = |kinds: &'static [DiffKind]| {
        result.rows.iter().filter(move |r| kinds.contains(&r.kind)).take(most)
    };
    let sections: [(&str, &str, &'static [DiffKind]); 5] = [
        ("Phases", "phase", &[DiffKind::Total, DiffKind::Phase]),
        ("Marks", "mark", &[DiffKind::Mark]),
        ("Activities", "activity", &[DiffKind::Activity]),
        ("Instructions", "activity", &[DiffKind::Insns]),
        ("Counts", "count", &[DiffKind::Count]),
    ];
    for (title, what, kinds) in sections {
        if of(kinds).next().is_some() {
            document.heading(title, "");
            document.push(Block::Table(table(result, what, of(kinds))));
        }
    }
    if !result.lines.is_empty() {
        document.heading("Lines", "how often a run printed each line; # stands for any number");
        let lines = result.lines.iter().take(most);
        document.push(Block::Table(table(result, "line", lines)));
        let more = result.lines.len().saturating_sub(most);
        if more > 0 {
            let text = format!("{more} more kinds of line differ: --export-csv has them all.");
            document.push(Block::Paragraph(text));
        }
    }
}

/// How to read the tables.
pub(crate) fn method(result: &DiffResult) -> String {
    if result.exact {
        return "Both machines ran in virtual time, which has no noise: every difference comes \
            from the machines."
            .into();
    }
    format!(
        "Each p is adjusted for {} comparisons: of all diffs between equal machines, at most 5 % \
            report a difference. docs/STATISTICS.md describes the tests.",
        result.tests
    )
}

fn side_fact(name: &str, side: &DiffSide) -> Fact {
    let total = side.total.as_ref().map(|t| Quantity::of(t, Unit::Seconds).inline());
    let time = if side.icount { " of virtual time" } else { "" };
    let runs = match side.runs.len() {
        1 => "1 run".to_owned(),
        n => format!("{n} runs"),
    };
    let value = format!("{}: {}{time}, {runs}", side.name, total.unwrap_or_else(|| "-".into()));
    Fact::new(name, value, format!("of {}", side.started_at))
}

impl Report for DiffReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let result = self.result;
        let mut document =
            Document { title: "vmeter diff".into(), answer: answer(result), blocks: Vec::new() };
        let sides = vec![side_fact("before", &result.a), side_fact("after", &result.b)];
        document.push(Block::Facts(sides));
        if !result.settings.is_empty() {
            document.heading("Settings that differ", "");
            document.push(Block::Table(setting_table(&result.settings)));
        }
        blocks(result, detail, &mut document);
        if detail == Detail::Full {
            document.heading("Samples", crate::phrases::DOTS);
            document.push(Block::Strips(strips(result)));
        }
        document.push(Block::Paragraph(method(result)));
        let notices = closing_notices(&result.warnings, &result.hints, "");
        document.push(Block::Notices(notices));
        document
    }

    fn records(&self) -> Records {
        Records::of(
            self.result.rows.iter().chain(&self.result.lines),
            [
                ("kind", |row| Field::text(json::kind(row.kind))),
                ("name", |row| Field::text(&row.name)),
                ("where", |row| row.place.as_ref().map_or(Field::Empty, Field::text)),
                ("before", |row| Field::number(Some(row.a.mean))),
                ("after", |row| Field::number(Some(row.b.mean))),
                ("difference", |row| Field::number(Some(row.difference))),
                ("ci95_low", |row| Field::number(row.difference_ci95.map(|[low, _]| low))),
                ("ci95_high", |row| Field::number(row.difference_ci95.map(|[_, high]| high))),
                ("p_value", |row| Field::number(row.p_value)),
                ("significant", |row| Field::number(Some(row.significant))),
                ("presence", |row| Field::text(json::presence(row.presence))),
                ("seen_before", |row| Field::number(Some(row.seen_in[0]))),
                ("seen_after", |row| Field::number(Some(row.seen_in[1]))),
            ],
        )
    }
}

fn strips(result: &DiffResult) -> Strips {
    let strip = |side: &DiffSide| {
        Some(Strip {
            label: side.name.clone(),
            samples: side.samples_s.clone(),
            estimate: side.total?,
            outliers: Vec::new(),
        })
    };
    let strips = [&result.a, &result.b].into_iter().filter_map(strip).collect();
    Strips { caption: "length of every run".into(), strips }
}

fn setting_table(settings: &[DiffSetting]) -> Table {
    let shortened = |title: &str| Column { shrinks_to: Some(16), ..Column::text(title, 0) };
    let mut table =
        Table::new(vec![Column::text("setting", 0), shortened("before"), shortened("after")]);
    for setting in settings {
        table.row(vec![
            Cell::Name(setting.name.clone()),
            Cell::Text(setting.a.clone()),
            Cell::Text(setting.b.clone()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::short_of;

    #[test]
    fn a_p_that_is_short_of_the_totals_level_says_so() {
        assert!(short_of(Some(0.045)).contains("significant only at p < 0.015"));
        assert!(!short_of(Some(0.2)).contains("significant"));
        assert_eq!(short_of(None), "");
    }
}
