//! A sweep as tables: what is swept across, phases down, as an engineer would draw it.

use super::{spelled, Panel, SweepReport};
use vmeter_model::sweep::{ExplainedBreak, MarginalStep, Scaling, Series, SweepBreak, SweepPoint};
use vmeter_model::Estimate;
use vmeter_render::quantity::{grouped, p_value, Quantity, Scale, Unit};
use vmeter_render::table::{Cell, Column, Row, Table};
use vmeter_render::tone::Tone;

/// Phases below this share of every boot are added up at a glance.
const SMALL: f64 = 0.005;
/// Counts whose cost per step has a column.
const STEP_COUNTS: [&str; 3] = ["pci_config_reads", "pci_config_writes", "guest_insns"];

impl<'a> SweepReport<'a> {
    /// Phases by parameter value; TOTAL as increase over the first point.
    pub(super) fn phase_table(&self, panel: &Panel<'a>, all: bool) -> Table {
        let mut table = Table::new(panel.columns("phase", self.is_numeric(panel)));
        let whole = |point: &SweepPoint| point.total.map_or(0.0, |t| t.mean);
        let largest = panel.points.iter().map(|p| whole(p)).fold(0.0, f64::max);
        let scale = Unit::Seconds.column_scale(largest);
        let names: Vec<&str> = match panel.points.first() {
            Some(first) => first.phases.iter().map(|p| p.name.as_str()).collect(),
            None => return table,
        };
        let mut small: Vec<f64> = vec![0.0; panel.points.len()];
        let mut added = 0;
        for name in names {
            let of = |point: &SweepPoint| {
                point.phases.iter().find(|p| p.name == name).map(|p| p.estimate)
            };
            let estimates: Vec<Option<Estimate>> = panel.points.iter().map(|p| of(p)).collect();
            let means = estimates.iter().flatten().map(|e| e.mean);
            let scaling = self.scaling(panel, Series::Phase, name);
            let jumps = scaling.is_some_and(|s| !s.breaks.is_empty());
            let is_small = means.fold(0.0, f64::max) < SMALL * largest;
            if is_small && !all && !jumps && name != vmeter_model::span::UNATTRIBUTED {
                let means = estimates.iter().map(|e| e.map_or(0.0, |e| e.mean));
                small.iter_mut().zip(means).for_each(|(sum, mean)| *sum += mean);
                added += 1;
                continue;
            }
            let mut cells = vec![Cell::Name(name.to_owned())];
            cells.extend(estimates.iter().map(|e| time(e.as_ref(), scale)));
            cells.extend(growth(scaling, scale));
            table.row(cells);
        }
        if added > 0 {
            let at = table.rows.len().saturating_sub(1);
            let mut cells = vec![Cell::Toned(format!("{added} shorter phases"), Tone::Muted)];
            let value =
                |sum: &f64| Cell::Text(Quantity::exact(*sum, Unit::Seconds).digits(scale).value);
            cells.extend(small.iter().map(value));
            table.rows.insert(at, Row { cells, ..Row::default() });
        }
        self.total_rows(panel, scale, &mut table);
        table
    }

    fn total_rows(&self, panel: &Panel<'a>, scale: Scale, table: &mut Table) {
        let mut cells = vec![Cell::Text("whole boot".into())];
        cells.extend(panel.points.iter().map(|p| time(p.total.as_ref(), scale)));
        table.rows.push(Row { cells, tone: Tone::Normal, ruled: true });
        let first = panel.points.iter().find_map(|p| p.total);
        let mut cells = vec![Cell::Text("TOTAL".into())];
        cells.extend(panel.points.iter().map(|point| match (point.total, first) {
            (Some(total), Some(first)) => {
                let (rise, half) = (total.mean - first.mean, total.ci95[1] - total.mean);
                let rise = Estimate { mean: rise, ci95: [rise - half, rise + half], ..total };
                time(Some(&rise), scale)
            }
            _ => Cell::Text("-".into()),
        }));
        cells.extend(growth(self.scaling(panel, Series::Total, "TOTAL"), scale));
        table.toned_row(Tone::Strong, cells);
    }

    /// Counts that the parameter changes; what they grow by each step, if always the same.
    pub(super) fn count_table(&self, panel: &Panel<'a>, all: bool) -> Option<Table> {
        let mut table = Table::new(panel.columns("count", self.is_numeric(panel)));
        let first = panel.points.first()?;
        let names = panel.points.iter().flat_map(|p| p.counts.keys());
        let names: std::collections::BTreeSet<&String> = names.collect();
        for name in names.into_iter().filter(|name| all || !name.contains(':')) {
            let values: Vec<Option<&Estimate>> =
                panel.points.iter().map(|p| p.counts.get(name)).collect();
            let same = |e: &Option<&Estimate>| {
                let reference = first.counts.get(name);
                e.map(|e| (e.min, e.max)) == reference.map(|r| (r.min, r.max))
            };
            if values.iter().all(same) {
                continue;
            }
            let mut cells = vec![Cell::Name(name.clone())];
            cells.extend(values.iter().map(|e| e.map_or(Cell::Text("-".into()), count)));
            if let Some(scaling) = self.scaling(panel, Series::Count, name) {
                cells.push(Cell::Text(match self.exactly(scaling) {
                    Some(text) => text,
                    None => slope_text(scaling, Unit::Count),
                }));
                cells.push(Cell::Text(breaks_text(&scaling.breaks, Unit::Count)));
            }
            table.row(cells);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// `+83 each`; `+291 each, 1→2 +292` where a step differs.
    pub(super) fn exactly(&self, scaling: &Scaling) -> Option<String> {
        let usual = scaling.usual_step?;
        let own = |s: &&MarginalStep| s.parameter == scaling.parameter && s.at == scaling.at;
        let others = self.result.steps.iter().filter(own).filter_map(|step| {
            let [from, to] = step.between;
            let rise = *step.counts.get(&scaling.name)?;
            let differs = rise != usual * (to - from);
            differs.then(|| format!(", {from}→{to} {}", signed_count(rise)))
        });
        Some(format!("{} each{}", signed_count(usual), others.collect::<String>()))
    }

    /// The series that jump at one step, the largest first.
    pub(super) fn jump_table(&self, explained: &ExplainedBreak) -> Option<Table> {
        let in_time = |s: &&Scaling| !matches!(s.series, Series::Insns | Series::Count);
        let here = self.result.scaling.iter().filter(in_time).filter_map(|s| {
            let own = s.parameter == explained.parameter;
            let found = s.breaks.iter().find(|b| own && b.between == explained.between)?;
            Some((s, found))
        });
        let mut here: Vec<(&Scaling, &SweepBreak)> = here.collect();
        here.sort_by(|a, b| b.1.jump.abs().total_cmp(&a.1.jump.abs()));
        let mut table = Table::new(vec![
            Column::name("what jumps"),
            Column::number("beyond the trend", 0),
            Column::number("p", 0),
            Column::text("phase", 2),
        ]);
        for (scaling, found) in here {
            table.row(vec![
                Cell::Name(scaling.name.clone()),
                Cell::Text(spelled(found.jump, Unit::Seconds)),
                Cell::Text(p_value(found.p_value)),
                scaling.phase.clone().map_or(Cell::Empty, Cell::Name),
            ]);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// What each step adds.
    pub(super) fn step_table(&self, panel: &Panel<'a>) -> Option<Table> {
        let parameter = panel.parameter?;
        let steps = self.result.steps.iter();
        let steps: Vec<_> =
            steps.filter(|s| s.parameter == parameter.name && s.at == panel.at).collect();
        let counted = |name: &&str| {
            steps.iter().any(|s| s.counts.get(*name).is_some_and(|rise| *rise != 0.0))
        };
        let counts: Vec<&str> = STEP_COUNTS.into_iter().filter(counted).collect();
        let mut columns = vec![Column::text(&parameter.name, 0), Column::number("whole boot", 0)];
        columns.extend(counts.iter().map(|name| Column::number(name, 1)));
        columns.push(Column { shrinks_to: Some(24), ..Column::text("jump beyond the trend", 0) });
        let mut table = Table::new(columns);
        for step in &steps {
            let half = step.total_ci95.map(|[low, high]| (high - low) / 2.0);
            let total =
                Quantity { half_width: half, ..Quantity::exact(step.total_s, Unit::Seconds) };
            let jump = self.jumps(panel, step.between);
            let tone = if jump.is_empty() { Tone::Normal } else { Tone::Strong };
            let mut cells = vec![
                Cell::Text(format!("{} → {}", step.between[0], step.between[1])),
                Cell::Quantity(total),
            ];
            let rise = |name: &&str| step.counts.get(*name).map(|r| Cell::Text(signed_count(*r)));
            cells.extend(counts.iter().map(|name| rise(name).unwrap_or(Cell::Empty)));
            cells.push(Cell::Text(jump));
            table.toned_row(tone, cells);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// The jumps in time at one step, in words.
    fn jumps(&self, panel: &Panel<'a>, between: [f64; 2]) -> String {
        let here = |b: &&SweepBreak| b.between == between;
        let series = self.of_panel(panel);
        let series = series.filter(|s| matches!(s.series, Series::Total | Series::Phase));
        let jumps = series.filter_map(|s| {
            let found = s.breaks.iter().find(here)?;
            Some(format!("{} {}", s.name, spelled(found.jump, Unit::Seconds)))
        });
        jumps.collect::<Vec<_>>().join(", ")
    }

    /// Activities whose time, or whose instructions, grow.
    pub(super) fn activity_table(&self, panel: &Panel<'a>) -> Option<Table> {
        let of = |series| self.of_panel(panel).filter(move |s| s.series == series);
        let insns_of =
            |row: &Scaling| of(Series::Insns).find(|s| s.name == row.name && s.phase == row.phase);
        let counted = of(Series::Insns).next().is_some();
        let mut columns = vec![Column::name("activity"), Column::number("a unit", 0)];
        if counted {
            columns.push(Column::number("instructions a unit", 1));
        }
        columns.extend([Column::number("p", 2), Column::text("phase", 3)]);
        let mut table = Table::new(columns);
        let in_time: Vec<&Scaling> = of(Series::Activity).collect();
        let only_insns = of(Series::Insns)
            .filter(|row| !in_time.iter().any(|t| t.name == row.name && t.phase == row.phase));
        for row in in_time.iter().copied().chain(only_insns) {
            let mut cells = vec![Cell::Name(row.name.clone())];
            let is_time = row.series == Series::Activity;
            cells.push(if is_time {
                Cell::Quantity(slope(row, Unit::Seconds))
            } else {
                Cell::Empty
            });
            if counted {
                let insns = insns_of(row).map(|s| Cell::Text(slope_text(s, Unit::Count)));
                cells.push(insns.unwrap_or(Cell::Empty));
            }
            cells.push(Cell::Text(p_value(row.p_value)));
            cells.push(row.phase.clone().map_or(Cell::Empty, Cell::Name));
            table.row(cells);
        }
        (!table.rows.is_empty()).then_some(table)
    }
}

/// A time in the table's scale, with as many decimals as its neighbours.
fn plain(seconds: f64, scale: Scale) -> String {
    let decimals = if scale.suffix == "s" { 3 } else { 1 };
    format!("{:.decimals$}", seconds / scale.factor)
}

/// A mean in the table's scale.
fn time(estimate: Option<&Estimate>, scale: Scale) -> Cell {
    match estimate.filter(|e| e.n > 0) {
        Some(estimate) => Cell::Text(plain(estimate.mean, scale)),
        None => Cell::Text("-".into()),
    }
}

/// A count: exact where all runs agree.
fn count(estimate: &Estimate) -> Cell {
    let exact = estimate.min == estimate.max;
    let quantity = if exact {
        Quantity::exact(estimate.mean, Unit::Count)
    } else {
        Quantity::beside(estimate.mean, estimate, Unit::Count)
    };
    Cell::Text(quantity.inline())
}

/// Slope and breaks of a row.
fn growth(scaling: Option<&Scaling>, scale: Scale) -> Vec<Cell> {
    let Some(scaling) = scaling else { return Vec::new() };
    let quantity = slope(scaling, Unit::Seconds);
    let digits = quantity.digits(scale);
    let half = digits.half_width.filter(|_| quantity.half_width.is_some_and(|h| h > 0.0));
    let text = match half {
        Some(half) => format!("{} ± {half}", digits.value),
        None => digits.value,
    };
    vec![Cell::Text(text), Cell::Text(breaks_text(&scaling.breaks, Unit::Seconds))]
}

pub(super) fn slope(scaling: &Scaling, unit: Unit) -> Quantity {
    let [low, high] = scaling.slope_ci95;
    let half = Some((high - low) / 2.0).filter(|h| *h > 0.0);
    Quantity { half_width: half, ..Quantity::exact(scaling.slope, unit) }
}

fn slope_text(scaling: &Scaling, unit: Unit) -> String {
    let sign = if scaling.slope > 0.0 { "+" } else { "" };
    format!("{sign}{}", slope(scaling, unit).inline())
}

/// `+291`, `-3`, `+1,204`; a fraction keeps its digits.
pub(super) fn signed_count(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    if value.fract() == 0.0 && value.abs() < 1e15 {
        format!("{sign}{}", grouped(&format!("{value:.0}")))
    } else {
        format!("{sign}{}", Quantity::exact(value, Unit::Count).inline())
    }
}

fn breaks_text(breaks: &[SweepBreak], unit: Unit) -> String {
    let each = breaks.iter().map(|b| {
        let [from, to] = b.between;
        format!("{from}→{to} {}", spelled(b.jump, unit))
    });
    each.collect::<Vec<_>>().join(", ")
}
