//! Two traces, row by row: does it happen more often, does it take longer?
//!
//! A count is compared by the conditional test of two Poisson rates (J. Przyborowski,
//! H. Wilenski, "Homogeneity of results in testing samples from Poisson series",
//! Biometrika 31, 1940). Durations are compared by ranks, from the histograms
//! ([`vmeter_stats::mann_whitney`] with ties). Both take events to be independent,
//! which they seldom are: bursts would pass for differences. So each is also tested
//! on the means of the trace's slices ([`vmeter_trace::stat::slices`]) by Welch's
//! test, and the larger p-value counts. All p-values of a comparison are adjusted
//! together by Benjamini and Hochberg.

use super::Counted;
use std::collections::BTreeMap;
use vmeter_stats::dist::{f_upper, normal_cdf};
use vmeter_stats::{benjamini_hochberg, welch};
use vmeter_trace::stat::versus::{Per, Side, Test, Versus, VersusRow};
use vmeter_trace::stat::{Report, Row};

/// Fewer slices than this with events in them are no sample.
const MIN_SLICES: usize = 4;
/// Histogram buckets in an octave of time.
const LEVELS_PER_OCTAVE: f64 = 32.0;

/// Compares every row of the two.
pub fn compare(a: &Counted, b: &Counted, per: Per) -> Versus {
    let mut rows = Vec::new();
    for ((table, ours), (_, theirs)) in a.report.tables().into_iter().zip(b.report.tables()) {
        rows.extend(
            pairs(ours, theirs)
                .into_iter()
                .map(|(one, other)| row(table, (&a.report, one), (&b.report, other), per)),
        );
    }
    let tests = adjust(&mut rows);
    let change = |row: &VersusRow| {
        let total = |side: &Side| side.total_s.unwrap_or(0.0);
        (total(&row.b) - total(&row.a)).abs()
    };
    rows.sort_by(|x, y| change(y).total_cmp(&change(x)));
    Versus { a: a.file.clone(), b: b.file.clone(), per, tests, rows }
}

type Key<'a> = (Option<u32>, Option<u64>, Option<u32>, Option<&'static str>, &'a str);

/// Rows of two tables by what they are of.
fn pairs<'a>(a: &'a [Row], b: &'a [Row]) -> Vec<(Option<&'a Row>, Option<&'a Row>)> {
    let key = |r: &'a Row| -> Key<'a> { (r.port, r.address, r.msr, r.direction, r.name.as_str()) };
    let mut both: BTreeMap<Key<'a>, (Option<&Row>, Option<&Row>)> = BTreeMap::new();
    a.iter().for_each(|r| both.entry(key(r)).or_default().0 = Some(r));
    b.iter().for_each(|r| both.entry(key(r)).or_default().1 = Some(r));
    both.into_values().collect()
}

fn row(
    table: &'static str,
    (report_a, a): (&Report, Option<&Row>),
    (report_b, b): (&Report, Option<&Row>),
    per: Per,
) -> VersusRow {
    let named = a.or(b);
    let side = |report: &Report, row: Option<&Row>| {
        let duration = report.duration_s.filter(|d| *d > 0.0);
        let count = row.map_or(0, |r| r.count);
        Side {
            count,
            per_s: duration.map(|d| count as f64 / d),
            total_s: row.and_then(|r| r.total_s),
            median_s: row.and_then(|r| r.median_s),
        }
    };
    VersusRow {
        table,
        name: named.map(|r| r.name.clone()).unwrap_or_default(),
        port: named.and_then(|r| r.port),
        address: named.and_then(|r| r.address),
        direction: named.and_then(|r| r.direction),
        a: side(report_a, a),
        b: side(report_b, b),
        counts: counts((report_a, a), (report_b, b), per),
        times: a.zip(b).and_then(|(a, b)| times((report_a, a), (report_b, b))),
    }
}

fn counts(
    (report_a, a): (&Report, Option<&Row>),
    (report_b, b): (&Report, Option<&Row>),
    per: Per,
) -> Option<Test> {
    let [count_a, count_b] = [a, b].map(|r| r.map_or(0, |r| r.count));
    let exposure = match per {
        Per::Trace => [1.0, 1.0],
        Per::Second => [report_a.duration_s?, report_b.duration_s?],
    };
    if exposure.iter().any(|e| *e <= 0.0) {
        return None;
    }
    let ratio =
        (count_a > 0).then(|| count_b as f64 / exposure[1] / (count_a as f64 / exposure[0]));
    let poisson = rate_test([count_a, count_b], exposure);
    let slices = match per {
        Per::Trace => None,
        Per::Second => welch(&rates(report_a, a), &rates(report_b, b), 0.0)
            .filter(|_| [report_a, report_b].iter().all(|r| slices(r) >= MIN_SLICES))
            .and_then(|d| d.p_value),
    };
    Some(test(ratio, poisson, slices))
}

fn test(ratio: Option<f64>, events: f64, slices: Option<f64>) -> Test {
    let p_value = slices.map_or(events, |p| p.max(events));
    let basis = if slices.is_some() { "slices" } else { "events" };
    Test { ratio, p_value, p_adjusted: p_value, basis }
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

fn times((report_a, a): (&Report, &Row), (report_b, b): (&Report, &Row)) -> Option<Test> {
    let (tick_a, tick_b) = (report_a.tick_s?, report_b.tick_s?);
    let scaled = |row: &Row, tick: f64| -> Vec<(f64, f64)> {
        row.times.iter().map(|(t, n)| (t * tick, f64::from(*n))).collect()
    };
    let ranks = ranks(&scaled(a, tick_a), &scaled(b, tick_b))?;
    let (levels_a, levels_b) = (levels(a, tick_a), levels(b, tick_b));
    let enough = levels_a.len().min(levels_b.len()) >= MIN_SLICES;
    let slices = welch(&levels_a, &levels_b, 0.0).filter(|_| enough).and_then(|d| d.p_value);
    let ratio = a.median_s.zip(b.median_s).filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a);
    Some(test(ratio, ranks, slices))
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
