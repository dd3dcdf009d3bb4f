//! How each cost grows with a parameter, and where it jumps.

use crate::sweep::figures::{ActivityKey, Figures};
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::sweep::{
    MarginalStep, Scaling, Series, Settings, SweepBreak, SweepPoint, SweptParameter,
};
use vmeter_stats::{benjamini_hochberg, breaks_among, linear_fit, mean, welch};

/// Chance of any false break among all series of one kind.
const ALPHA: f64 = 0.05;
/// A jump in time below this share of the boot is not worth a reader's attention.
const MATERIAL_TIME: f64 = 0.001;
/// A jump of a count below this share of its largest value.
const MATERIAL_COUNT: f64 = 0.01;
/// Activities below this share of the boot, over all points, are not looked at: a filter
/// that knows nothing of the slope (R. Bourgon et al., PNAS 107, 2010).
const SMALL_ACTIVITY: f64 = 2e-4;
/// Activities that are reported at most.
const ACTIVITIES: usize = 20;
/// Finest difference of a clock that is believed, s.
const RESOLUTION_S: f64 = 1e-6;

/// A point with its runs that reached their end.
pub(super) struct Measured<'a> {
    pub point: &'a SweepPoint,
    pub runs: Vec<&'a Figures>,
}

/// Points that differ in one parameter only, in its order.
struct Line<'a> {
    parameter: &'a str,
    at: Settings,
    points: Vec<(f64, &'a Measured<'a>)>,
}

/// Everything that is known of the numeric parameters.
pub(super) fn scale(
    parameters: &[SweptParameter],
    measured: &[Measured<'_>],
    seed: u64,
) -> (Vec<Scaling>, Vec<MarginalStep>) {
    let lines: Vec<Line<'_>> = parameters.iter().flat_map(|p| lines(p, measured)).collect();
    let mut scaling = times(&lines, seed);
    scaling.extend(counts(&lines, seed));
    scaling.extend(activities(&lines));
    (scaling, lines.iter().flat_map(steps).collect())
}

fn lines<'a>(parameter: &'a SweptParameter, measured: &'a [Measured<'a>]) -> Vec<Line<'a>> {
    if !parameter.numeric || parameter.values.len() < 2 {
        return Vec::new();
    }
    let mut lines: Vec<Line<'a>> = Vec::new();
    for each in measured.iter().filter(|m| !m.runs.is_empty()) {
        let (own, at): (Settings, Settings) =
            each.point.parameters.iter().cloned().partition(|(name, _)| *name == parameter.name);
        let Some(x) = own.first().and_then(|(_, value)| value.parse::<f64>().ok()) else {
            continue;
        };
        match lines.iter_mut().find(|line| line.at == at) {
            Some(line) => line.points.push((x, each)),
            None => lines.push(Line { parameter: &parameter.name, at, points: vec![(x, each)] }),
        }
    }
    lines.retain(|line| line.points.len() >= 2);
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

/// Samples of one series at each point of a line.
type Samples = Vec<(f64, Vec<f64>)>;

impl Line<'_> {
    fn samples(&self, value: impl Fn(&Figures) -> f64) -> Samples {
        let of = |m: &Measured<'_>| m.runs.iter().map(|r| value(r)).collect();
        self.points.iter().map(|(x, m)| (*x, of(m))).collect()
    }

    fn mean_total(&self) -> f64 {
        let totals = self.samples(|run| run.run.total_s);
        mean(&totals.into_iter().flat_map(|(_, s)| s).collect::<Vec<_>>())
    }

    fn scaling(&self, series: Series, name: &str, samples: &Samples) -> Option<Scaling> {
        let runs: Vec<(f64, f64)> =
            samples.iter().flat_map(|(x, s)| s.iter().map(|y| (*x, *y))).collect();
        let fit = linear_fit(&runs)?;
        Some(Scaling {
            series,
            name: name.to_owned(),
            phase: None,
            parameter: self.parameter.to_owned(),
            at: self.at.clone(),
            slope: fit.slope,
            slope_ci95: fit.slope_ci95,
            p_value: fit.p_value,
            exact_step: None,
            breaks: Vec::new(),
        })
    }
}

fn times(lines: &[Line<'_>], seed: u64) -> Vec<Scaling> {
    let mut found = Vec::new();
    for line in lines {
        let runs = || line.points.iter().flat_map(|(_, m)| &m.runs);
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in runs().flat_map(|run| &run.run.phases) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let total = line.samples(|run| run.run.total_s);
        found.push((line, Series::Total, "TOTAL", total));
        found.extend(
            names.into_iter().map(|n| (line, Series::Phase, n, line.samples(|r| r.phase(n)))),
        );
    }
    let worth = |line: &Line<'_>, _: &Samples| MATERIAL_TIME * line.mean_total();
    finished(found, worth, seed)
}

fn counts(lines: &[Line<'_>], seed: u64) -> Vec<Scaling> {
    let mut found = Vec::new();
    for line in lines {
        let names: BTreeSet<&str> = line
            .points
            .iter()
            .flat_map(|(_, m)| &m.runs)
            .flat_map(|run| run.run.counts.keys())
            // A count of one device is there or it is not: the sum tells how it grows.
            .filter(|name| !name.contains(':'))
            .map(String::as_str)
            .collect();
        found.extend(names.into_iter().map(|name| {
            let count = |run: &Figures| run.run.counts.get(name).copied().unwrap_or(0.0);
            (line, Series::Count, name, line.samples(count))
        }));
    }
    let largest = |samples: &Samples| {
        samples.iter().flat_map(|(_, s)| s).fold(0.0f64, |largest, y| largest.max(y.abs()))
    };
    let worth = |_: &Line<'_>, samples: &Samples| MATERIAL_COUNT * largest(samples);
    finished(found, worth, seed)
}

/// Slopes and breaks of series of one kind, adjusted for their number.
fn finished<'a>(
    series: Vec<(&Line<'a>, Series, &str, Samples)>,
    worth: impl Fn(&Line<'a>, &Samples) -> f64,
    seed: u64,
) -> Vec<Scaling> {
    let constant = |samples: &Samples| {
        let mut values = samples.iter().flat_map(|(_, s)| s);
        let first = values.next();
        values.all(|y| Some(y) == first)
    };
    let tested = series.iter().filter(|(.., samples)| !constant(samples)).count();
    let mut found = Vec::new();
    for (line, kind, name, samples) in &series {
        let Some(mut scaling) = line.scaling(*kind, name, samples) else { continue };
        if *kind == Series::Count {
            scaling.exact_step = exact_step(samples);
        }
        if !constant(samples) {
            let least = worth(line, samples);
            let breaks = breaks_among(samples, ALPHA, tested, seed);
            scaling.breaks = breaks
                .into_iter()
                .filter(|b| b.jump.abs() >= least)
                .map(|b| SweepBreak {
                    between: [b.between.0, b.between.1],
                    jump: b.jump,
                    p_value: b.p_value,
                })
                .collect();
        }
        found.push(scaling);
    }
    adjust(&mut found);
    found
}

fn adjust(scaling: &mut [Scaling]) {
    let adjusted = benjamini_hochberg(&scaling.iter().map(|s| s.p_value).collect::<Vec<_>>());
    scaling.iter_mut().zip(adjusted).for_each(|(s, p)| s.p_value = p);
}

/// The rise per unit, if runs agree and every step has the same.
fn exact_step(samples: &Samples) -> Option<f64> {
    let value = |(x, runs): &(f64, Vec<f64>)| {
        let first = runs.first().copied()?;
        runs.iter().all(|y| *y == first).then_some((*x, first))
    };
    let points: Option<Vec<(f64, f64)>> = samples.iter().map(value).collect();
    let points = points?;
    let mut rises = points.windows(2).map(|w| (w[1].1 - w[0].1) / (w[1].0 - w[0].0));
    let first = rises.next()?;
    rises.all(|rise| rise == first).then_some(first)
}

fn activities(lines: &[Line<'_>]) -> Vec<Scaling> {
    let mut found = Vec::new();
    for line in lines {
        let runs = || line.points.iter().flat_map(|(_, m)| &m.runs);
        let count = runs().count().max(1) as f64;
        let mut sums: BTreeMap<&ActivityKey, f64> = BTreeMap::new();
        for (key, (time, _)) in runs().flat_map(|run| &run.activities) {
            *sums.entry(key).or_default() += time;
        }
        let least = SMALL_ACTIVITY * line.mean_total();
        // An activity that is a whole phase has a row as such.
        sums.retain(|(phase, name), sum| *sum / count >= least && phase != name);
        for key in sums.into_keys() {
            let time = |run: &Figures| run.activities.get(key).map_or(0.0, |(time, _)| *time);
            let row = line.scaling(Series::Activity, &key.1, &line.samples(time));
            let insns = insns(line, key);
            let phase = |row| Scaling { phase: Some(key.0.clone()), ..row };
            found.extend(row.into_iter().chain(insns).map(phase));
        }
    }
    let (mut insns, mut times): (Vec<Scaling>, Vec<Scaling>) =
        found.into_iter().partition(|s| s.series == Series::Insns);
    for rows in [&mut times, &mut insns] {
        adjust(rows);
        rows.retain(|row| row.p_value <= ALPHA && row.slope != 0.0);
        rows.sort_by(|a, b| b.slope.abs().total_cmp(&a.slope.abs()));
        rows.truncate(ACTIVITIES);
    }
    times.extend(insns);
    times
}

/// Instructions of an activity, where every run that has it counts them.
fn insns(line: &Line<'_>, key: &ActivityKey) -> Option<Scaling> {
    let runs = line.points.iter().flat_map(|(_, m)| &m.runs);
    let counted = runs.filter_map(|run| run.activities.get(key));
    if !counted.into_iter().all(|(_, insns)| insns.is_some()) {
        return None;
    }
    let insns = |run: &Figures| run.activities.get(key).and_then(|(_, n)| *n).unwrap_or(0.0);
    line.scaling(Series::Insns, &key.1, &line.samples(insns))
}

fn steps(line: &Line<'_>) -> Vec<MarginalStep> {
    let totals = line.samples(|run| run.run.total_s);
    let pairs = line.points.windows(2).zip(totals.windows(2));
    pairs
        .filter_map(|(points, totals)| {
            let (before, after) = (points[0].1.point, points[1].1.point);
            let rise = welch(&totals[0].1, &totals[1].1, RESOLUTION_S)?;
            let rises = before.counts.iter().filter_map(|(name, a)| {
                let b = after.counts.get(name)?;
                Some((name.clone(), b.mean - a.mean))
            });
            Some(MarginalStep {
                parameter: line.parameter.to_owned(),
                at: line.at.clone(),
                between: [points[0].0, points[1].0],
                labels: [before.label.clone(), after.label.clone()],
                total_s: rise.difference,
                total_ci95: rise.ci95,
                counts: rises.collect(),
            })
        })
        .collect()
}
