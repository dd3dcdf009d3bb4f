//! Does a cost grow with the number of items? Least squares, with how well it fits.

use crate::evidence::series::{Point, Series};
use crate::evidence::subject::Subject;
use vmeter_stats::linear_fit;

/// Fewest points that are a trend.
const FEWEST: usize = 16;

/// Times are less even than numbers of calls.
const TIME_R2: f64 = 0.65;

/// Part of the rise from the first third to the last that each of the two steps between has.
const THIRD: f64 = 0.15;

/// A straight line through what instances cost, by their number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// Value at number 0.
    pub intercept: f64,
    /// Growth an item.
    pub slope: f64,
    /// Share of the variance explained, 0 to 1.
    pub r2: f64,
    /// Fitted value at the last point.
    pub last: f64,
}

/// Fits a line; none for fewer than 3 points.
pub fn line(points: &[(f64, f64)]) -> Option<Growth> {
    let fit = linear_fit(points).filter(|fit| fit.n >= 3)?;
    let last = fit.intercept + fit.slope * points.last()?.0;
    Some(Growth { intercept: fit.intercept, slope: fit.slope, r2: fit.r_squared, last })
}

/// How the calls of a request grow with its number, if they do.
pub fn calls_grow(subject: &Subject) -> Option<Growth> {
    // Less than a handful of calls more at the end is no growing loop.
    growing(&subject.series.means(|point| point.calls)).filter(|growth| growth.last >= 8.0)
}

/// How the time of a request grows with its number, if it does.
pub fn time_grows(subject: &Subject) -> Option<Growth> {
    growing(&clipped_times(subject)).filter(|growth| growth.r2 >= TIME_R2)
}

/// The times of a request by its number, the highest twentieth of the values' excess dropped:
/// a few instances that an interrupt hit would bend a least-squares line.
pub fn clipped_times(subject: &Subject) -> Vec<(f64, f64)> {
    clipped(subject.series.means(|point| point.ticks))
}

fn clipped(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let mut values: Vec<f64> = points.iter().map(|point| point.1).collect();
    values.sort_by(f64::total_cmp);
    if let Some(limit) = values.get(values.len().saturating_mul(19) / 20) {
        points.iter_mut().for_each(|point| point.1 = point.1.min(*limit));
    }
    points
}

/// How the values of a series grow, if they do; the highest twentieth's excess dropped.
pub fn series_grows(series: &Series, value: impl Fn(&Point) -> u64) -> Option<Growth> {
    let points = clipped(series.means(value));
    let (last, before) = points.split_last()?;
    // Not the last one alone.
    let steady = points.len() >= FEWEST && last.1 <= 3.0 * before.last()?.1;
    growing(&points).filter(|_| steady)
}

/// The line, if the value grows from instance to instance: it explains at least half of the
/// spread, and its end is at least three times its beginning.
fn growing(points: &[(f64, f64)]) -> Option<Growth> {
    let growth = line(points)?;
    let first = (growth.intercept + growth.slope * points.first()?.0).max(0.0);
    // A host that got slower half way is one step, of which a line explains three quarters.
    let grows = growth.r2 > one_step(points)
        && goes_on(points)
        && growth.slope > 0.0
        && growth.r2 >= 0.5
        && growth.last >= 3.0 * first
        && growth.last > 0.0;
    grows.then_some(growth)
}

/// The values rise from their first third to the second, and from that to the last.
fn goes_on(points: &[(f64, f64)]) -> bool {
    let mean = |points: &[(f64, f64)]| {
        points.iter().map(|point| point.1).sum::<f64>() / points.len().max(1) as f64
    };
    let length = points.len() / 3;
    let Some((head, rest)) = points.split_at_checked(length).filter(|_| length > 0) else {
        return true;
    };
    let (middle, tail) = rest.split_at(rest.len() - length);
    let (first, second, last) = (mean(head), mean(middle), mean(tail));
    let least = THIRD * (last - first);
    last > first && second - first >= least && last - second >= least
}

/// Share of the variance that two levels explain, meeting where that is the most.
fn one_step(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let centre = points.iter().map(|point| point.1).sum::<f64>() / n;
    let total: f64 = points.iter().map(|point| (point.1 - centre).powi(2)).sum();
    let (mut sum, mut before, mut most) = (0.0, 0.0, 0.0_f64);
    for point in points.iter().take(points.len().saturating_sub(1)) {
        sum += point.1 - centre;
        before += 1.0;
        most = most.max(sum * sum * n / (before * (n - before)));
    }
    if total > 0.0 {
        most / total
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values about a level with a scatter of a tenth of it.
    fn points(level: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let mut rng = vmeter_stats::rng::Rng::new(3);
        let mut value = |i: f64| level(i) * (1.0 + 0.1 * rng.normal());
        (0..100).map(|i| (f64::from(i), value(f64::from(i)))).collect()
    }

    /// Review E14.
    /// 10 us, and 30 to 40 from some instance on: a line explains up to 0.75 of it, and its ends
    /// differ by three times.
    #[test]
    fn a_step_is_no_growth() {
        for at in [30.0, 40.0, 50.0, 60.0, 70.0] {
            for after in [30.0, 35.0, 40.0] {
                let step = points(|i| if i < at { 10.0 } else { after });
                assert!(line(&step).is_some_and(|line| line.r2 >= 0.5), "{at}");
                assert_eq!(growing(&step), None, "{at} {after}");
            }
        }
    }

    #[test]
    fn growth_is_growth() {
        for (first, last) in [(1.0, 40.0), (10.0, 35.0), (2.0, 100.0)] {
            let grown = points(|i| first + (last - first) * i / 99.0);
            assert!(growing(&grown).is_some(), "{first} {last}");
        }
        assert!(growing(&points(|i| 1.0 + 0.01 * i * i)).is_some());
        // A table that is made larger now and then.
        assert!(growing(&points(|i| 10.0 + 20.0 * (i / 20.0).floor())).is_some());
    }
}
