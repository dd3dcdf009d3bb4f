//! Two traces, row by row: does it happen more often, does it take longer?
//!
//! A count is compared by the conditional test of two Poisson rates (J. Przyborowski,
//! H. Wilenski, "Homogeneity of results in testing samples from Poisson series",
//! Biometrika 31, 1940). Durations are compared by ranks, from the histograms
//! ([`vmeter_stats::mann_whitney`] with ties). Both take events to be independent,
//! which they seldom are: bursts would pass for differences. So each is also tested
//! on the means of the trace's slices ([`vmeter_trace::stat::slices`]) by Welch's
//! test, and the larger p-value counts. That is about two recordings; whether the
//! machines differ is told by several recordings a side ([`super::repeated`]). All
//! p-values of a comparison are adjusted together by Benjamini and Hochberg.

use super::repeated::{self, Rate};
use super::Counted;
use std::collections::BTreeMap;
use vmeter_stats::dist::{f_upper, normal_cdf};
use vmeter_stats::{benjamini_hochberg, median, welch};
use vmeter_trace::stat::versus::{Per, Side, Test, Versus, VersusRow};
use vmeter_trace::stat::{Report, Row};

/// Fewer slices than this with events in them are no sample.
const MIN_SLICES: usize = 4;
/// Histogram buckets in an octave of time.
const LEVELS_PER_OCTAVE: f64 = 32.0;

/// Compares every row of two sides, each of one recording or of several.
pub fn compare(a: &[Counted], b: &[Counted], per: Per) -> Versus {
    let mut found: BTreeMap<(usize, Key<'_>), Pair<'_>> = BTreeMap::new();
    for (side, traces) in [a, b].into_iter().enumerate() {
        for (at, trace) in traces.iter().enumerate() {
            for (table, (name, rows)) in trace.report.tables().into_iter().enumerate() {
                for row in rows {
                    let pair =
                        found.entry((table, key(row))).or_insert_with(|| Pair::new(name, a, b));
                    if let Some(slot) = pair.sides.get_mut(side).and_then(|s| s.get_mut(at)) {
                        slot.1 = Some(row);
                    }
                }
            }
        }
    }
    let mut rows: Vec<VersusRow> = found.into_values().map(|pair| pair.row(per)).collect();
    let tests = adjust(&mut rows);
    let change = |row: &VersusRow| {
        let total = |side: &Side| side.total_s.unwrap_or(0.0);
        (total(&row.b) - total(&row.a)).abs()
    };
    rows.sort_by(|x, y| change(y).total_cmp(&change(x)));
    let files = |side: &[Counted]| side.iter().map(|trace| trace.file.clone()).collect();
    Versus { a: files(a), b: files(b), per, tests, rows }
}

type Key<'a> = (Option<u32>, Option<u64>, Option<u32>, Option<&'static str>, &'a str);

/// What a row is of.
fn key(row: &Row) -> Key<'_> {
    (row.port, row.address, row.msr, row.direction, row.name.as_str())
}

/// A recording and its row, if it has one.
type Recorded<'a> = (&'a Report, Option<&'a Row>);

/// The rows of one thing in all recordings.
struct Pair<'a> {
    table: &'static str,
    sides: [Vec<Recorded<'a>>; 2],
}

impl<'a> Pair<'a> {
    fn new(table: &'static str, a: &'a [Counted], b: &'a [Counted]) -> Self {
        let empty = |side: &'a [Counted]| side.iter().map(|trace| (&trace.report, None)).collect();
        Pair { table, sides: [empty(a), empty(b)] }
    }

    fn row(&self, per: Per) -> VersusRow {
        let [a, b] = &self.sides;
        let named = a.iter().chain(b).find_map(|(_, row)| *row);
        VersusRow {
            table: self.table,
            name: named.map(|r| r.name.clone()).unwrap_or_default(),
            port: named.and_then(|r| r.port),
            address: named.and_then(|r| r.address),
            direction: named.and_then(|r| r.direction),
            a: side(a),
            b: side(b),
            counts: counts(a, b, per),
            times: times(a, b),
        }
    }
}

/// A side's recordings together; the median is that of their medians.
fn side(recorded: &[Recorded<'_>]) -> Side {
    let count = recorded.iter().filter_map(|(_, row)| *row).map(|r| r.count).sum();
    let durations: Option<f64> =
        recorded.iter().map(|(report, _)| report.duration_s.filter(|d| *d > 0.0)).sum();
    let totals: Vec<f64> = recorded.iter().filter_map(|(_, row)| (*row)?.total_s).collect();
    let medians: Vec<f64> = recorded.iter().filter_map(|(_, row)| (*row)?.median_s).collect();
    Side {
        count,
        per_s: durations.map(|d| count as f64 / d),
        total_s: (!totals.is_empty()).then(|| totals.iter().sum()),
        median_s: (!medians.is_empty()).then(|| median(&medians)),
    }
}

/// How often, and of how much: seconds of the recording, or the recording.
fn rated(recorded: &[Recorded<'_>], per: Per) -> Option<Vec<Rate>> {
    let rate = |(report, row): &Recorded<'_>| {
        let of = match per {
            Per::Trace => 1.0,
            Per::Second => report.duration_s.filter(|d| *d > 0.0)?,
        };
        Some((row.map_or(0, |r| r.count), of))
    };
    recorded.iter().map(rate).collect()
}

fn counts(a: &[Recorded<'_>], b: &[Recorded<'_>], per: Per) -> Option<Test> {
    let (of_a, of_b) = (rated(a, per)?, rated(b, per)?);
    let rate = |side: &[Rate]| {
        let (count, of) = side.iter().fold((0, 0.0), |sum, r| (sum.0 + r.0, sum.1 + r.1));
        (count > 0).then(|| count as f64 / of)
    };
    let ratio = rate(&of_a).map(|a| rate(&of_b).unwrap_or(0.0) / a);
    let ([(report_a, row_a)], [(report_b, row_b)]) = (a, b) else {
        return repeated::counts(&of_a, &of_b).map(|p| test(ratio, p, "traces"));
    };
    let (Some(one), Some(other)) = (of_a.first(), of_b.first()) else { return None };
    let poisson = rate_test([one.0, other.0], [one.1, other.1]);
    let slices = match per {
        Per::Trace => None,
        Per::Second => welch(&rates(report_a, *row_a), &rates(report_b, *row_b), 0.0)
            .filter(|_| [report_a, report_b].iter().all(|r| slices(r) >= MIN_SLICES))
            .and_then(|d| d.p_value),
    };
    Some(larger(ratio, poisson, slices))
}

fn test(ratio: Option<f64>, p_value: f64, basis: &'static str) -> Test {
    Test { ratio, p_value, p_adjusted: p_value, basis }
}

/// The larger p-value of two tests of one recording a side.
fn larger(ratio: Option<f64>, events: f64, slices: Option<f64>) -> Test {
    match slices {
        Some(slices) => test(ratio, slices.max(events), "slices"),
        None => test(ratio, events, "events"),
    }
}

/// Number of whole slices of a trace.
fn slices(report: &Report) -> usize {
    match (report.duration_s, report.slice_s) {
        (Some(duration), Some(slice)) if slice > 0.0 => (duration / slice) as usize,
        _ => 0,
    }
}

/// Events a second in each whole slice.
fn rates(report: &Report, row: Option<&Row>) -> Vec<f64> {
    let slice = report.slice_s.unwrap_or(1.0);
    let batches = row.map_or(&[][..], |r| &r.batches);
    let count = |at: usize| batches.get(at).map_or(0, |b| b.count);
    (0..slices(report)).map(|at| f64::from(count(at)) / slice).collect()
}

/// Two-sided p-value that counts come from the same rate, `exposure` being what each is of.
pub fn rate_test(counts: [u64; 2], exposure: [f64; 2]) -> f64 {
    let n = counts[0].saturating_add(counts[1]);
    let share = exposure[1] / (exposure[0] + exposure[1]);
    let above = at_least(counts[1], n, share);
    let below = at_least(counts[0], n, 1.0 - share);
    (2.0 * above.min(below)).min(1.0)
}

/// P(X >= k) for X binomial of n and p, by the F distribution (N. Johnson, A. Kemp,
/// S. Kotz, "Univariate Discrete Distributions", 3.4).
fn at_least(k: u64, n: u64, p: f64) -> f64 {
    if k == 0 {
        return 1.0;
    }
    let (k, rest) = (k as f64, (n - k + 1) as f64);
    f_upper((1.0 - p) * k / (p * rest), 2.0 * rest, 2.0 * k)
}

fn times(a: &[Recorded<'_>], b: &[Recorded<'_>]) -> Option<Test> {
    let median = |recorded: &[Recorded<'_>]| side(recorded).median_s;
    let ratio = median(a).zip(median(b)).filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a);
    let (&[(report_a, row_a)], &[(report_b, row_b)]) = (a, b) else {
        let [a, b] = [a, b].map(|side| side.iter().filter_map(level).collect::<Vec<f64>>());
        let enough = a.len().min(b.len()) >= repeated::FEWEST;
        let p = welch(&a, &b, 0.0).filter(|_| enough).and_then(|d| d.p_value)?;
        return Some(test(ratio, p, "traces"));
    };
    let (a, b) = row_a.zip(row_b)?;
    let (tick_a, tick_b) = (report_a.tick_s?, report_b.tick_s?);
    let scaled = |row: &Row, tick: f64| -> Vec<(f64, f64)> {
        row.times.iter().map(|(t, n)| (t * tick, f64::from(*n))).collect()
    };
    let ranks = ranks(&scaled(a, tick_a), &scaled(b, tick_b))?;
    let (levels_a, levels_b) = (levels(a, tick_a), levels(b, tick_b));
    let enough = levels_a.len().min(levels_b.len()) >= MIN_SLICES;
    let slices = welch(&levels_a, &levels_b, 0.0).filter(|_| enough).and_then(|d| d.p_value);
    Some(larger(ratio, ranks, slices))
}

/// Mean logarithm of a recording's times, octaves.
fn level((report, row): &Recorded<'_>) -> Option<f64> {
    let (row, tick) = ((*row)?, report.tick_s?);
    let logs = row.times.iter().filter(|(t, _)| *t > 0.0);
    let (sum, n) = logs.fold((0.0, 0.0), |(sum, n), (t, times)| {
        let times = f64::from(*times);
        (sum + times * (t * tick).log2(), n + times)
    });
    (n > 0.0).then(|| sum / n)
}

/// Mean logarithm of the times in each slice that has some, octaves.
fn levels(row: &Row, tick_s: f64) -> Vec<f64> {
    let timed = row.batches.iter().filter(|b| b.timed > 0);
    let mean = |levels: u64, timed: u32| levels as f64 / f64::from(timed) / LEVELS_PER_OCTAVE;
    timed.map(|b| mean(b.levels, b.timed) + tick_s.log2()).collect()
}

/// The rank-sum test of two histograms, ascending (value, count): two-sided p-value by the
/// normal approximation with ties (H. Mann, D. Whitney, 1947; Hollander & Wolfe, ch. 4).
fn ranks(a: &[(f64, f64)], b: &[(f64, f64)]) -> Option<f64> {
    let size = |side: &[(f64, f64)]| side.iter().map(|(_, n)| n).sum::<f64>();
    let (m, n) = (size(a), size(b));
    if m < 1.0 || n < 1.0 {
        return None;
    }
    let mut pooled: Vec<(f64, f64, f64)> = a.iter().map(|&(v, c)| (v, c, 0.0)).collect();
    pooled.extend(b.iter().map(|&(v, c)| (v, 0.0, c)));
    pooled.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut u, mut before, mut ties) = (0.0, 0.0, 0.0);
    for same in pooled.chunk_by(|x, y| x.0 == y.0) {
        let (of_a, of_b) = same.iter().fold((0.0, 0.0), |(p, q), s| (p + s.1, q + s.2));
        u += of_b * (before + of_a / 2.0);
        before += of_a;
        ties += (of_a + of_b).powi(3) - (of_a + of_b);
    }
    let all = m + n;
    let variance = m * n / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    if variance <= 0.0 || variance.is_nan() {
        return Some(1.0);
    }
    let distance = ((u - m * n / 2.0).abs() - 0.5).max(0.0);
    Some((2.0 * normal_cdf(-distance / variance.sqrt())).min(1.0))
}

/// Adjusts all p-values together; gives their number.
fn adjust(rows: &mut [VersusRow]) -> usize {
    fn tests(row: &mut VersusRow) -> impl Iterator<Item = &mut Test> {
        row.counts.iter_mut().chain(row.times.iter_mut())
    }
    let all: Vec<f64> = rows.iter_mut().flat_map(tests).map(|t| t.p_value).collect();
    let adjusted = benjamini_hochberg(&all);
    for (test, p) in rows.iter_mut().flat_map(tests).zip(&adjusted) {
        test.p_adjusted = *p;
    }
    all.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_stats::mann_whitney;

    /// Counts of 5 against 11 in equal times: R's poisson.test(c(11, 5), c(1, 1)) has
    /// p = 0.2101.
    #[test]
    fn rates_as_r_has_them() {
        assert!((rate_test([5, 11], [1.0, 1.0]) - 0.210_1).abs() < 1e-4);
        assert_eq!(rate_test([7, 7], [1.0, 1.0]), 1.0);
        assert!(rate_test([100_000, 101_000], [1.0, 1.0]) < 0.05);
        assert!(rate_test([1000, 2000], [1.0, 2.0]) > 0.9, "twice as many in twice the time");
        assert!((rate_test([0, 5], [1.0, 1.0]) - 2.0 / 32.0).abs() < 1e-9);
    }

    #[test]
    fn ranks_of_histograms_are_those_of_their_samples() {
        let a: Vec<f64> = (0..60).map(|n| f64::from(n % 7)).collect();
        let b: Vec<f64> = (0..50).map(|n| f64::from(n % 8)).collect();
        let histogram = |samples: &[f64]| -> Vec<(f64, f64)> {
            let count = |v: f64| samples.iter().filter(|s| **s == v).count() as f64;
            (0..8).map(|v| (f64::from(v), count(f64::from(v)))).filter(|h| h.1 > 0.0).collect()
        };
        let found = ranks(&histogram(&a), &histogram(&b)).expect("two samples");
        assert!((found - mann_whitney(&a, &b).p).abs() < 1e-12);
        assert_eq!(ranks(&[], &[(1.0, 1.0)]), None);
    }
}
