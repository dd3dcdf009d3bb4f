//! Everything that two machines can differ in, tested together.
//!
//! Times and counts are compared by Student's test, lines by permutation; hundreds of
//! comparisons find something in any two sets of runs, so p-values are adjusted: see
//! [`vmeter_stats::discovery`]. Lines have a share of the chance of a false alarm of their
//! own, so that the whole keeps to 5 %.

use crate::diff::normalised::Speeds;
use crate::diff::Side;
use crate::figures::{ActivityKey, Figures, INSNS};
use std::collections::BTreeSet;
use vmeter_model::sweep::{DiffKind, DiffRow, Presence};
use vmeter_stats::{benjamini_hochberg, estimate, mean, student, tarone, welch};

/// Chance of a false alarm of the total, which is tested first and by itself: what is said of it
/// does not depend on how many of its parts differ.
pub const ALPHA_TOTAL: f64 = 0.015;
/// Chance of a false alarm among its parts and the counts.
pub const ALPHA: f64 = 0.025;
/// Chance of a false alarm among lines.
pub const ALPHA_LINES: f64 = 0.01;
/// Activities below this share of the boot are not tested. The filter looks at the mean of
/// both sides together, which knows nothing of their difference (R. Bourgon, R. Gentleman,
/// W. Huber, "Independent filtering increases detection power", PNAS 107, 2010).
const SMALL: f64 = 2e-4;
/// Finest difference of a clock that is believed, s.
const RESOLUTION_S: f64 = 1e-6;
/// Instructions are counted in few boots, and differ between boots by less than this share.
const INSNS_SPREAD: f64 = 0.01;
/// Rows without significance that are kept, the largest.
const OTHERS: usize = 30;

/// One thing with its samples on both sides.
struct Candidate {
    kind: DiffKind,
    name: String,
    place: Option<String>,
    samples: [Vec<f64>; 2],
    seen_in: [usize; 2],
    /// Samples closer than this are the same.
    resolution: f64,
    tested: bool,
}

/// Rows and the number of tests that they are adjusted for.
pub struct Rows {
    pub rows: Vec<DiffRow>,
    pub lines: Vec<DiffRow>,
    pub tests: usize,
}

/// Compares all that the sides have. `exact`: neither has noise.
pub fn rows(a: &Side, b: &Side, exact: bool, seed: u64) -> Rows {
    let mut candidates = vec![total(a, b)];
    candidates.extend(phases(a, b));
    candidates.extend(marks(a, b));
    candidates.extend(activities(a, b));
    candidates.extend(counts(a, b));
    let tested = candidates.iter().filter(|c| c.tested).count();
    let part = |c: &&Candidate| c.tested && c.kind != DiffKind::Total;
    let raw: Vec<f64> = candidates.iter().filter(part).map(p_value).collect();
    let mut adjusted = benjamini_hochberg(&raw).into_iter();
    let known = a.runs.len() + b.runs.len() > 2;
    let mut beside = beside(&candidates, a, b).into_iter();
    let rows: Vec<DiffRow> = candidates
        .into_iter()
        .map(|c| {
            let beside = beside.next().flatten().filter(|_| known && !exact);
            let (p, alpha) = match c.kind {
                DiffKind::Total => (Some(p_value(&c)), ALPHA_TOTAL),
                _ if c.tested => (adjusted.next(), ALPHA),
                _ => (None, ALPHA),
            };
            let p = p.filter(|_| known && !exact);
            DiffRow { p_value_levelled: beside, ..row(c, p, alpha, exact) }
        })
        .map(|row| DiffRow {
            significant: row.significant && row.p_value_levelled.is_none_or(|p| p <= ALPHA),
            ..row
        })
        .collect();
    let (lines, line_tests) = lines(a, b, exact, seed);
    Rows { rows: ranked(rows), lines, tests: tested + line_tests }
}

fn p_value(candidate: &Candidate) -> f64 {
    p_of(&candidate.samples, candidate.resolution)
}

fn p_of([a, b]: &[Vec<f64>; 2], resolution: f64) -> f64 {
    student(a, b, resolution).unwrap_or(1.0)
}

/// For each candidate the adjusted p-value of its times at the speed of their runs; none of
/// what is no part of a boot, or where runs' speeds can't be told.
fn beside(candidates: &[Candidate], a: &Side, b: &Side) -> Vec<Option<f64>> {
    let speeds = Speeds::of(a, b);
    let raw: Vec<Option<f64>> = candidates
        .iter()
        .map(|c| {
            let is_part = matches!(c.kind, DiffKind::Phase | DiffKind::Mark | DiffKind::Activity);
            let normalised = speeds.as_ref()?.level(&c.samples).filter(|_| is_part && c.tested)?;
            Some(p_of(&normalised, c.resolution))
        })
        .collect();
    let tested: Vec<f64> = raw.iter().copied().flatten().collect();
    let mut adjusted = benjamini_hochberg(&tested).into_iter();
    raw.into_iter().map(|p| p.and_then(|_| adjusted.next())).collect()
}

fn row(c: Candidate, p: Option<f64>, alpha: f64, exact: bool) -> DiffRow {
    let [a, b] = &c.samples;
    let found = welch(a, b, c.resolution);
    let difference = mean(b) - mean(a);
    let presence = match c.seen_in {
        [0, n] if n > 0 => Presence::New,
        [n, 0] if n > 0 => Presence::Gone,
        _ => Presence::Both,
    };
    let significant =
        if exact { difference != 0.0 } else { p.is_some_and(|p| p <= alpha) && difference != 0.0 };
    let agree = c.kind == DiffKind::Count && estimate(a).sd + estimate(b).sd == 0.0;
    DiffRow {
        kind: c.kind,
        name: c.name,
        place: c.place,
        a: estimate(a),
        b: estimate(b),
        difference,
        difference_ci95: found.and_then(|d| d.ci95).filter(|_| !exact && !agree),
        seen_in: c.seen_in,
        presence,
        p_value: p,
        p_value_levelled: None,
        significant,
    }
}

/// The total, then what differs, then what is only on one side, then the largest of the
/// rest; within these times before counts, and the largest difference first.
fn ranked(rows: Vec<DiffRow>) -> Vec<DiffRow> {
    let group = |row: &DiffRow| match (row.kind, row.significant, row.presence) {
        (DiffKind::Total, ..) => 0,
        (_, true, _) => 1,
        (_, false, Presence::New | Presence::Gone) => 2,
        _ => 3,
    };
    let mut rows: Vec<DiffRow> =
        rows.into_iter().filter(|r| r.kind == DiffKind::Total || r.difference != 0.0).collect();
    let in_time = |row: &DiffRow| row.kind <= DiffKind::Activity;
    rows.sort_by(|a, b| {
        let size = |row: &DiffRow| row.difference.abs();
        (group(a), !in_time(a)).cmp(&(group(b), !in_time(b))).then(size(b).total_cmp(&size(a)))
    });
    let mut others = 0;
    rows.retain(|row| {
        others += usize::from(group(row) == 3);
        group(row) < 3 || others <= OTHERS
    });
    rows
}

fn both<T>(a: &Side, b: &Side, value: impl Fn(&Figures) -> T) -> [Vec<T>; 2] {
    [a, b].map(|side| side.runs.iter().map(&value).collect())
}

fn total(a: &Side, b: &Side) -> Candidate {
    Candidate {
        kind: DiffKind::Total,
        name: "TOTAL".into(),
        place: None,
        samples: both(a, b, |f| f.run.total_s),
        seen_in: [a.runs.len(), b.runs.len()],
        resolution: RESOLUTION_S,
        tested: true,
    }
}

fn phases(a: &Side, b: &Side) -> Vec<Candidate> {
    let runs = a.runs.iter().chain(&b.runs);
    let names: BTreeSet<&str> =
        runs.flat_map(|f| f.run.phases.iter().map(|(name, _)| name.as_str())).collect();
    let candidate = |name: &str| {
        let has = |f: &Figures| f.run.phases.iter().any(|(n, s)| n == name && *s > 0.0);
        Candidate {
            kind: DiffKind::Phase,
            name: name.to_owned(),
            place: None,
            samples: both(a, b, |f| f.phase(name)),
            seen_in: both(a, b, has).map(|seen| seen.into_iter().filter(|s| *s).count()),
            resolution: RESOLUTION_S,
            tested: true,
        }
    };
    names.into_iter().map(candidate).collect()
}

/// Moments are compared over the runs that have them: one that was not seen has no time.
fn marks(a: &Side, b: &Side) -> Vec<Candidate> {
    let runs = a.runs.iter().chain(&b.runs);
    let names: BTreeSet<&String> = runs.flat_map(|f| f.marks.keys()).collect();
    let candidate = |name: &String| {
        let samples: [Vec<f64>; 2] =
            both(a, b, |f| f.marks.get(name).copied()).map(|s| s.into_iter().flatten().collect());
        let seen_in = [samples[0].len(), samples[1].len()];
        seen_in.iter().all(|seen| *seen > 0).then(|| Candidate {
            kind: DiffKind::Mark,
            name: name.clone(),
            place: None,
            samples,
            seen_in,
            resolution: RESOLUTION_S,
            tested: true,
        })
    };
    names.into_iter().filter_map(candidate).collect()
}

fn activities(a: &Side, b: &Side) -> Vec<Candidate> {
    let runs = || a.runs.iter().chain(&b.runs);
    let keys: BTreeSet<&ActivityKey> = runs().flat_map(|f| f.activities.keys()).collect();
    let whole: f64 = runs().map(|f| f.run.total_s).sum();
    let mut found = Vec::new();
    for key in keys {
        let of = |f: &Figures| f.activities.get(key).copied();
        let times = both(a, b, |f| of(f).map_or(0.0, |(time, _)| time));
        let seen_in = both(a, b, |f| of(f).is_some()).map(|s| s.iter().filter(|s| **s).count());
        let tested = times.iter().flatten().sum::<f64>() >= SMALL * whole;
        let insns = both(a, b, |f| of(f).map_or(Some(0.0), |(_, insns)| insns));
        let activity = |kind, samples, resolution, tested| Candidate {
            kind,
            name: key.1.clone(),
            place: Some(key.0.clone()),
            samples,
            seen_in,
            resolution,
            tested,
        };
        found.push(activity(DiffKind::Activity, times, RESOLUTION_S, tested));
        let counted: [Option<Vec<f64>>; 2] = insns.map(|side| side.into_iter().collect());
        if let ([Some(a), Some(b)], true) = (counted, tested) {
            let spread = INSNS_SPREAD * mean(&a).max(mean(&b));
            found.push(activity(DiffKind::Insns, [once(a), once(b)], spread, true));
        }
    }
    found
}

/// Runs that all took their count from one boot that counted are one sample of it.
fn once(mut samples: Vec<f64>) -> Vec<f64> {
    samples.dedup();
    samples
}

fn counts(a: &Side, b: &Side) -> Vec<Candidate> {
    let runs = a.runs.iter().chain(&b.runs);
    let names: BTreeSet<&str> =
        runs.flat_map(|f| f.run.counts.keys().map(String::as_str)).collect();
    let candidate = |name: &str| {
        let value = |f: &Figures| f.run.counts.get(name).copied();
        let mut samples = both(a, b, |f| value(f).unwrap_or(0.0));
        let mut resolution = 1.0;
        if name == INSNS {
            resolution = INSNS_SPREAD * samples.iter().map(|s| mean(s)).fold(0.0, f64::max);
            samples = samples.map(once);
        }
        Candidate {
            kind: DiffKind::Count,
            name: name.to_owned(),
            place: None,
            samples,
            seen_in: both(a, b, |f| value(f).is_some()).map(|s| s.iter().filter(|s| **s).count()),
            resolution,
            // One device's part of a sum that is tested.
            tested: !name.contains(':'),
        }
    };
    names.into_iter().map(candidate).collect()
}

/// Lines that the sides do not print equally often.
fn lines(a: &Side, b: &Side, exact: bool, seed: u64) -> (Vec<DiffRow>, usize) {
    let keys: BTreeSet<&(&'static str, String)> =
        a.lines.iter().chain(&b.lines).flat_map(|counts| counts.keys()).collect();
    let mut found = Vec::new();
    for key in keys {
        let samples = [a, b].map(|side| -> Vec<f64> {
            side.lines.iter().map(|counts| counts.get(key).copied().unwrap_or(0.0)).collect()
        });
        let mut all = samples.iter().flatten();
        let first = all.next();
        if samples.iter().any(Vec::is_empty) || all.all(|n| Some(n) == first) {
            continue;
        }
        found.push(Candidate {
            kind: DiffKind::Line,
            name: key.1.clone(),
            place: Some(key.0.to_owned()),
            seen_in: [0, 1].map(|side| samples[side].iter().filter(|n| **n > 0.0).count()),
            samples,
            resolution: 0.0,
            tested: true,
        });
    }
    let tests: Vec<(Vec<f64>, Vec<f64>)> =
        found.iter().map(|c| (c.samples[0].clone(), c.samples[1].clone())).collect();
    let known = a.lines.len() + b.lines.len() > 2 && !exact;
    let p_values = if known { tarone(&tests, ALPHA_LINES, seed) } else { Vec::new() };
    let count = found.len();
    let rows = found.into_iter().enumerate().map(|(i, c)| {
        let p = p_values.get(i).copied();
        DiffRow { difference_ci95: None, ..row(c, p, ALPHA_LINES, exact) }
    });
    (ranked(rows.collect()), count)
}
