//! How each cost grows with a parameter, and where it jumps.

use crate::figures::{ActivityKey, Figures, INSNS};
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::sweep::{
    MarginalStep, Scaling, Series, Settings, SweepBreak, SweepPoint, SweptParameter,
};
use vmeter_stats::blocked::{blocked_fit, without_blocks, BlockedRun};
use vmeter_stats::breaks::detectable_jump;
use vmeter_stats::{benjamini_hochberg, breaks_among, cut, linear_fit, mean, welch};

/// Chance of any false break among all series of one kind.
const ALPHA: f64 = 0.05;
/// A jump in time below this share of the boot is not worth a reader's attention.
const MATERIAL_TIME: f64 = 0.001;
/// A jump of a count below this share of its largest value.
const MATERIAL_COUNT: f64 = 0.01;
/// Activities below this share of the boot, over all points, are not looked at: a filter
/// that knows nothing of the slope (R. Bourgon et al., PNAS 107, 2010).
const SMALL_ACTIVITY: f64 = 2e-4;
/// An activity's jump below this share of its phase's explains nothing.
const EXPLAINS: f64 = 0.1;
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
    /// The block of each run.
    blocks: &'a BTreeMap<u32, usize>,
}

/// Everything that is known of the numeric parameters.
pub(super) fn scale(
    parameters: &[SweptParameter],
    measured: &[Measured<'_>],
    blocks: &BTreeMap<u32, usize>,
    seed: u64,
) -> (Vec<Scaling>, Vec<MarginalStep>) {
    let lines: Vec<Line<'_>> = parameters.iter().flat_map(|p| lines(p, measured, blocks)).collect();
    let mut scaling = times(&lines, seed);
    let activities = activities(&lines, &scaling, seed);
    scaling.extend(counts(&lines, seed));
    scaling.extend(activities);
    (scaling, lines.iter().flat_map(steps).collect())
}

fn lines<'a>(
    parameter: &'a SweptParameter,
    measured: &'a [Measured<'a>],
    blocks: &'a BTreeMap<u32, usize>,
) -> Vec<Line<'a>> {
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
            None => {
                let points = vec![(x, each)];
                lines.push(Line { parameter: &parameter.name, at, points, blocks });
            }
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

    /// Samples with the blocks of their runs; none where samples are not one a run.
    fn blocked(&self, samples: &Samples) -> Option<Vec<BlockedRun>> {
        let mut all = Vec::new();
        for ((x, values), (_, measured)) in samples.iter().zip(&self.points) {
            if values.len() != measured.runs.len() {
                return None;
            }
            for (y, run) in values.iter().zip(&measured.runs) {
                all.push((*x, *self.blocks.get(&run.run.index)?, *y));
            }
        }
        Some(all)
    }

    /// The samples as if all blocks had met the host alike, with the scatter of single runs.
    fn normalised(&self, samples: &Samples) -> Samples {
        let points = samples.len() as f64;
        let Some(runs) = self.blocked(samples).filter(|_| points > 1.0) else {
            return samples.clone();
        };
        let values = without_blocks(&runs);
        // With the blocks' means a share of each run's own deviation was taken out as well.
        let widen = (points / (points - 1.0)).sqrt();
        let mut rest = values.as_slice();
        let point = |(x, of): &(f64, Vec<f64>)| {
            let (own, others) = rest.split_at(of.len());
            rest = others;
            let centre = mean(own);
            (*x, own.iter().map(|y| centre + (y - centre) * widen).collect())
        };
        samples.iter().map(point).collect()
    }

    fn scaling(&self, series: Series, name: &str, samples: &Samples) -> Option<Scaling> {
        let blocked = self.blocked(samples).and_then(|runs| blocked_fit(&runs));
        let runs = || samples.iter().flat_map(|(x, s)| s.iter().map(|y| (*x, *y)));
        let fit = blocked.or_else(|| linear_fit(&runs().collect::<Vec<_>>()))?;
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
            usual_step: None,
            breaks: Vec::new(),
            detectable_jump: None,
        })
    }

    /// Samples without what blocks add. Rare slow runs are cut before: one of them would move its whole block.
    fn calm(&self, samples: &Samples) -> Samples {
        let runs: Vec<Vec<f64>> = samples.iter().map(|(_, runs)| runs.clone()).collect();
        let calm = samples.iter().zip(cut(&runs)).map(|((x, _), runs)| (*x, runs)).collect();
        self.normalised(&calm)
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
            let samples = line.samples(count);
            let samples = if name == INSNS { once(samples) } else { samples };
            (line, Series::Count, name, samples)
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
            let steps = exact_steps(samples);
            scaling.usual_step = usual(&steps);
            scaling.exact_step = scaling.usual_step.filter(|u| steps.iter().all(|s| s == u));
        }
        if !constant(samples) {
            let calm = line.calm(samples);
            scaling.breaks = breaks(&calm, worth(line, samples), tested, seed);
            if *kind == Series::Total && scaling.breaks.is_empty() {
                scaling.detectable_jump = detectable_jump(&calm, ALPHA, tested, seed);
            }
        }
        found.push(scaling);
    }
    adjust(&mut found);
    found
}

/// Totals by themselves: what is said of them does not depend on how many parts they have.
fn adjust(scaling: &mut [Scaling]) {
    for totals in [true, false] {
        let of = |s: &&mut Scaling| (s.series == Series::Total) == totals;
        let group: Vec<&mut Scaling> = scaling.iter_mut().filter(of).collect();
        let adjusted = benjamini_hochberg(&group.iter().map(|s| s.p_value).collect::<Vec<_>>());
        group.into_iter().zip(adjusted).for_each(|(s, p)| s.p_value = p);
    }
}

/// The rise per unit of each step, if the runs of every point agree.
fn exact_steps(samples: &Samples) -> Vec<f64> {
    let value = |(x, runs): &(f64, Vec<f64>)| {
        let first = runs.first().copied()?;
        runs.iter().all(|y| *y == first).then_some((*x, first))
    };
    let points: Option<Vec<(f64, f64)>> = samples.iter().map(value).collect();
    let points = points.unwrap_or_default();
    points.windows(2).map(|w| (w[1].1 - w[0].1) / (w[1].0 - w[0].0)).collect()
}

/// What more than half of the steps are.
fn usual(steps: &[f64]) -> Option<f64> {
    let times = |step: &f64| steps.iter().filter(|s| *s == step).count();
    steps.iter().copied().find(|step| 2 * times(step) > steps.len())
}

/// Activities that grow, and those that jump where their phase does.
fn activities(lines: &[Line<'_>], wholes: &[Scaling], seed: u64) -> Vec<Scaling> {
    let mut times = Vec::new();
    let mut insns = Vec::new();
    let all: Vec<(&Line<'_>, BTreeSet<&ActivityKey>)> =
        lines.iter().map(|line| (line, worth_a_look(line))).collect();
    let tested = all.iter().map(|(_, keys)| keys.len()).sum();
    for (line, keys) in all {
        let least = MATERIAL_TIME * line.mean_total();
        for key in keys {
            let time = |run: &Figures| run.activities.get(key).map_or(0.0, |(time, _)| *time);
            let samples = line.samples(time);
            let phase = |row| Scaling { phase: Some(key.0.clone()), ..row };
            insns.extend(counted(line, key).map(phase));
            let Some(mut row) = line.scaling(Series::Activity, &key.1, &samples).map(phase) else {
                continue;
            };
            if range(&samples) >= least && wholes.iter().any(|w| !w.breaks.is_empty()) {
                row.breaks = breaks(&line.calm(&samples), least, tested, seed);
                row.breaks.retain(|b| explains(line, &key.0, b, wholes));
            }
            times.push(row);
        }
    }
    for rows in [&mut times, &mut insns] {
        adjust(rows);
        rows.retain(|row| row.p_value <= ALPHA && row.slope != 0.0 || !row.breaks.is_empty());
        rows.sort_by(|a, b| b.slope.abs().total_cmp(&a.slope.abs()));
        rows.truncate(ACTIVITIES);
    }
    times.extend(insns);
    times
}

/// True if the activity's phase jumps at that step as well, or, where no phase does, the
/// whole boot: a part is looked at only if its whole was found to jump (N. Meinshausen,
/// "Hierarchical testing of variable importance", Biometrika 95, 2008).
fn explains(line: &Line<'_>, phase: &str, found: &SweepBreak, wholes: &[Scaling]) -> bool {
    let own = |s: &&Scaling| s.parameter == line.parameter && s.at == line.at;
    let here = |s: &Scaling| {
        let jump = s.breaks.iter().find(|b| b.between == found.between);
        jump.is_some_and(|b| found.jump.abs() >= EXPLAINS * b.jump.abs())
    };
    let any_phase = wholes
        .iter()
        .filter(own)
        .any(|s| s.series == Series::Phase && s.breaks.iter().any(|b| b.between == found.between));
    wholes.iter().filter(own).any(|s| match s.series {
        Series::Phase => s.name == phase && here(s),
        _ => !any_phase && here(s),
    })
}

/// Activities of some length that are not a whole phase, which has a row as such.
fn worth_a_look<'l>(line: &'l Line<'_>) -> BTreeSet<&'l ActivityKey> {
    let runs = || line.points.iter().flat_map(|(_, m)| &m.runs);
    let mut sums: BTreeMap<&ActivityKey, f64> = BTreeMap::new();
    for (key, (time, _)) in runs().flat_map(|run| &run.activities) {
        *sums.entry(key).or_default() += time;
    }
    let least = SMALL_ACTIVITY * line.mean_total() * runs().count() as f64;
    let long = sums.into_iter().filter(|((phase, name), sum)| *sum >= least && phase != name);
    long.map(|(key, _)| key).collect()
}

/// From the smallest mean of a point to the largest.
fn range(samples: &Samples) -> f64 {
    let means = || samples.iter().map(|(_, runs)| mean(runs));
    means().fold(f64::NEG_INFINITY, f64::max) - means().fold(f64::INFINITY, f64::min)
}

fn breaks(samples: &Samples, least: f64, tested: usize, seed: u64) -> Vec<SweepBreak> {
    let found = breaks_among(samples, ALPHA, tested, seed).into_iter();
    let found = found.filter(|b| b.jump.abs() >= least);
    found
        .map(|b| SweepBreak {
            between: [b.between.0, b.between.1],
            jump: b.jump,
            p_value: b.p_value,
        })
        .collect()
}

/// Instructions of an activity, where every run that has it counts them.
fn counted(line: &Line<'_>, key: &ActivityKey) -> Option<Scaling> {
    let runs = line.points.iter().flat_map(|(_, m)| &m.runs);
    let counted = runs.filter_map(|run| run.activities.get(key));
    if !counted.into_iter().all(|(_, insns)| insns.is_some()) {
        return None;
    }
    let insns = |run: &Figures| run.activities.get(key).and_then(|(_, n)| *n).unwrap_or(0.0);
    line.scaling(Series::Insns, &key.1, &once(line.samples(insns)))
}

/// Runs of a point that all took their count from the one boot that counted are one sample.
fn once(mut samples: Samples) -> Samples {
    samples.iter_mut().for_each(|(_, runs)| runs.dedup());
    samples
}

fn steps(line: &Line<'_>) -> Vec<MarginalStep> {
    let totals = line.normalised(&line.samples(|run| run.run.total_s));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::point;
    use vmeter_model::run::{Outcome, SessionMachine};
    use vmeter_model::sweep::SweptRun;
    use vmeter_stats::rng::Rng;

    const PHASES: [(&str, f64); 6] = [
        ("vmm:init", 0.03),
        ("bios:overhead", 0.15),
        ("kernel:decompress", 0.4),
        ("kernel:entry", 0.6),
        ("kernel:initcalls-before-userspace", 1.5),
        ("/init:mount", 0.01),
    ];

    /// A boot with `ports`, each costing 10 ms of initcalls and `jump` s from 4 ports on.
    fn boot(rng: &mut Rng, ports: u32, jump: f64) -> Figures {
        let slow = (0.03 * rng.normal()).exp();
        let planted = if ports >= 4 { jump } else { 0.0 };
        let mut phases: Vec<(String, f64)> = PHASES
            .iter()
            .map(|(name, length)| ((*name).to_owned(), length * slow * (0.03 * rng.normal()).exp()))
            .collect();
        phases[4].1 += 0.01 * f64::from(ports) + planted;
        let part = |name: &str, time| ((phases[4].0.clone(), name.to_owned()), (time, None));
        let rest = phases[4].1 - planted;
        Figures {
            activities: [part("initcall slow_init", planted), part("initcall rest", rest)].into(),
            run: SweptRun {
                index: 0,
                outcome: Outcome::Done,
                end: None,
                total_s: phases.iter().map(|(_, s)| s).sum(),
                cpu_s: 1.0,
                phases,
                counts: [("pci_config_reads".to_owned(), f64::from(397 + 291 * ports))].into(),
                warnings: vec![],
                host: None,
            },
            marks: BTreeMap::new(),
            icount: false,
        }
    }

    fn scaled(rng: &mut Rng, runs: usize, jump: f64) -> Vec<Scaling> {
        let names: Vec<String> = PHASES.iter().map(|(name, _)| (*name).to_owned()).collect();
        let figures: Vec<Vec<Figures>> =
            (0..7).map(|ports| (0..runs).map(|_| boot(rng, ports, jump)).collect()).collect();
        let points: Vec<SweepPoint> = figures
            .iter()
            .enumerate()
            .map(|(n, runs)| {
                let machine = SessionMachine {
                    parameters: vec![("ports".into(), n.to_string())],
                    ..SessionMachine::default()
                };
                point(&machine, runs, &names)
            })
            .collect();
        let measured: Vec<Measured<'_>> = points
            .iter()
            .zip(&figures)
            .map(|(point, runs)| Measured { point, runs: runs.iter().collect() })
            .collect();
        let parameter = SweptParameter {
            name: "ports".into(),
            values: (0..7).map(|n| n.to_string()).collect(),
            numeric: true,
        };
        scale(&[parameter], &measured, &BTreeMap::new(), 1).0
    }

    #[test]
    fn noise_is_no_break_in_any_phase() {
        let mut rng = Rng::new(8);
        let alarms = (0..100)
            .filter(|_| scaled(&mut rng, 5, 0.0).iter().any(|s| !s.breaks.is_empty()))
            .count();
        assert!(alarms <= 5, "{alarms} of 100 sweeps");
    }

    #[test]
    fn what_is_said_of_the_total_is_what_its_interval_says() {
        let mut rng = Rng::new(10);
        for _ in 0..60 {
            let all = scaled(&mut rng, 3, 0.0);
            let total = all.iter().find(|s| s.series == Series::Total).expect("a total");
            let [low, high] = total.slope_ci95;
            assert_eq!(total.p_value <= 0.05, low > 0.0 || high < 0.0, "{total:?}");
        }
    }

    #[test]
    fn a_jump_is_found_where_it_is_and_by_its_activity() {
        let mut rng = Rng::new(9);
        let mut found = 0;
        for _ in 0..20 {
            let all = scaled(&mut rng, 5, 0.6);
            let broken: Vec<&Scaling> = all.iter().filter(|s| !s.breaks.is_empty()).collect();
            assert!(broken.iter().all(|s| s.breaks.iter().all(|b| b.between == [3.0, 4.0])));
            let has = |name: &str| broken.iter().any(|s| s.name == name);
            found += usize::from(has("TOTAL") && has("initcall slow_init"));
        }
        assert!(found >= 19, "{found} of 20");
    }

    #[test]
    fn counts_rise_by_exactly_as_much_each_step() {
        let all = scaled(&mut Rng::new(1), 2, 0.0);
        let reads = all.iter().find(|s| s.name == "pci_config_reads").expect("reads");
        assert_eq!((reads.exact_step, reads.slope), (Some(291.0), 291.0));
        assert_eq!(usual(&[291.0, 292.0, 291.0]), Some(291.0));
        assert_eq!(usual(&[1.0, 2.0]), None);
    }
}
