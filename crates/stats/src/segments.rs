//! Where the level of a series of builds changes.
//!
//! Commits have no natural trend, so what is looked for is not a step between two neighbours but
//! levels: a stretch of commits that differs from all others. The statistic is that of circular
//! binary segmentation (A. Olshen et al., Biostatistics 5, 2004), the largest standardised
//! difference between any stretch and the rest, a stretch at either end being an ordinary step.
//! A small change that lasts is found by all commits after it together, and a slow creep is
//! found as several levels.
//!
//! What a build adds to all of its runs (layout) is scatter between commits. Its size is taken robustly from
//! neighbours, of which few are changes: a permutation of commits could not find a change that came with the last
//! one, or one that the next commit mended. Where commits have several runs, these say the rest ([`scores`]).
//! What is found is divided there and looked at again.

mod levels;
mod memory;
mod order;
mod scores;
mod stretch;

pub use order::{detectable_among, level_changes_in_order, OrderedChange};
pub use scores::Run;

use crate::cut::sd_of_runs;
use crate::rng::Rng;
use crate::sample::{median, parts_between, MAD_TO_SD};
use crate::signed_rank::pseudo_median;
pub use stretch::FEWEST;
use stretch::{centred, chosen, largest, Stretch};

/// Draws of the null distribution.
const DRAWS: usize = 999;
/// Draws after which a series is looked at first, and the p-value from which on no further draws are made: no
/// level that anybody asks for comes near it (of 199 draws at 5 %, 40 are as large in one of 10^13 series).
const FIRST_DRAWS: usize = 199;
const NO_CHANGE: f64 = 0.2;
/// Values of the series of which [`detectable_step`] knows the power, and how many it tries.
const MOST_SIMULATED: usize = 128;
const TRIALS: usize = 200;
/// Work that one null distribution may cost, in stretches looked at.
const WORK: usize = 60_000_000;

/// The level changes from value `at` on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelChange {
    /// Index of the first value of the new level.
    pub at: usize,
    /// p-value of the stretch that it bounds, among all stretches that could have been.
    pub p_value: f64,
}

/// Changes of level, in order; the chance that a series without one shows any is `alpha`.
pub fn level_changes(values: &[f64], alpha: f64, seed: u64) -> Vec<LevelChange> {
    if values.iter().any(|v| !v.is_finite()) {
        return Vec::new();
    }
    let mut rng = Rng::new(seed);
    let normal =
        |series: &mut [f64], rng: &mut Rng| series.iter_mut().for_each(|v| *v = rng.normal());
    let test = |[begin, end]: [usize; 2]| tested(&values[begin..end], DRAWS, normal, &mut rng);
    changes(values.len(), alpha, test)
}

/// As [`level_changes`], by the runs of each commit; where these are too few to show how they scatter, by the
/// centres of each (Hodges-Lehmann).
pub fn level_changes_of_runs(runs: &[Vec<Run>], alpha: f64, seed: u64) -> Vec<LevelChange> {
    if runs.iter().flatten().any(|(_, y)| !y.is_finite()) {
        return Vec::new();
    }
    let times = |own: &Vec<Run>| own.iter().map(|(_, y)| *y).collect();
    let times: Vec<Vec<f64>> = runs.iter().map(times).collect();
    let Some(sd) = sd_of_runs(&times) else {
        let centres: Vec<f64> = times.iter().map(|own| pseudo_median(own)).collect();
        return level_changes(&centres, alpha, seed);
    };
    let mut rng = Rng::new(seed);
    let test = |[begin, end]: [usize; 2]| scores::differing(&runs[begin..end], sd, &mut rng);
    changes(runs.len(), alpha, test)
}

/// Runs of which the nth of each commit was in block n.
pub fn in_blocks(runs: &[Vec<f64>]) -> Vec<Vec<Run>> {
    runs.iter().map(|own| own.iter().copied().enumerate().collect()).collect()
}

/// Where `test` finds a stretch that differs, and again in the parts that it makes.
fn changes(
    n: usize,
    alpha: f64,
    mut test: impl FnMut([usize; 2]) -> Option<(Stretch, f64)>,
) -> Vec<LevelChange> {
    let mut found = Vec::new();
    let mut parts = vec![([0, n], alpha)];
    while let Some(([begin, end], alpha)) = parts.pop() {
        let differs = test([begin, end]);
        let Some((stretch, p_value)) = differs.filter(|(_, p)| *p <= alpha) else { continue };
        let cuts: Vec<usize> = stretch.cuts(end - begin).map(|cut| begin + cut).collect();
        found.extend(cuts.iter().map(|at| LevelChange { at: *at, p_value }));
        // What it is divided into shares the chance of one that is none.
        let divided = parts_between(begin, &cuts, end);
        let shared = alpha / divided.len().max(1) as f64;
        parts.extend(divided.into_iter().map(|part| (part, shared)));
    }
    found.sort_by_key(|change| change.at);
    found
}

/// The stretch of these values that differs most, and its p-value among series that `redraw` makes.
fn tested(
    part: &[f64],
    most_draws: usize,
    mut redraw: impl FnMut(&mut [f64], &mut Rng),
    rng: &mut Rng,
) -> Option<(Stretch, f64)> {
    let n = part.len();
    let chosen = chosen(part)?;
    let draws = most_draws.min(affordable(n));
    let mut series = part.to_vec();
    let mut all = vec![Sizes::of(part)];
    let first = (draws / 10).max(FIRST_DRAWS).min(draws);
    let mut p_value = 1.0;
    for draws in [first, draws - first].into_iter().filter(|draws| *draws > 0) {
        all.extend((0..draws).map(|_| {
            redraw(&mut series, rng);
            Sizes::of(&series)
        }));
        p_value = joint_p_value(&all);
        if p_value > NO_CHANGE {
            break;
        }
    }
    Some((chosen, p_value))
}

/// Draws of a null distribution of so many values.
fn draws(n: usize) -> usize {
    DRAWS.min(affordable(n))
}

/// Draws that cost no more than [`WORK`].
fn affordable(n: usize) -> usize {
    (WORK / (n * n).max(1)).max(199)
}

/// The step, in standard deviations of a value, that is found in `power` of cases among `n` values
/// with normal scatter, a quarter of which are of the other level. None of fewer than [`FEWEST`].
pub fn detectable_step(n: usize, alpha: f64, power: f64) -> Option<f64> {
    if n < FEWEST {
        return None;
    }
    detectable_by(n, (alpha, power), |values| values.to_vec())
}

/// As [`detectable_step`], by what `seen` makes of the values; a step that is never found so often
/// is beyond all bounds.
fn detectable_by(
    n: usize,
    (alpha, power): (f64, f64),
    seen: impl Fn(&[f64]) -> Vec<f64>,
) -> Option<f64> {
    // Of many values what counts is how many there are on either side.
    let few = n.min(MOST_SIMULATED);
    let mut rng = Rng::new(few as u64);
    let noise = |rng: &mut Rng| -> Vec<f64> { (0..few).map(|_| rng.normal()).collect() };
    let null = Null::of((0..draws(few)).map(|_| Sizes::of(&seen(&noise(&mut rng)))).collect());
    let trials: Vec<Vec<f64>> = (0..TRIALS).map(|_| noise(&mut rng)).collect();
    let quarter = few.div_ceil(4);
    let power_of = |step: f64| {
        let found = trials.iter().filter(|noise| {
            let level = |i: usize| if i >= few - quarter { step } else { 0.0 };
            let values: Vec<f64> = noise.iter().enumerate().map(|(i, y)| y + level(i)).collect();
            null.p_value(&Sizes::of(&seen(&values))) <= alpha
        });
        found.count() as f64 / TRIALS as f64
    };
    let (mut low, mut high) = (0.0, 64.0);
    if power_of(high) < power {
        return None;
    }
    for _ in 0..10 {
        let middle = (low + high) / 2.0;
        if power_of(middle) < power {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(high * (few as f64 / n as f64).sqrt())
}

/// How large the largest change of a series is, by measures of which each finds best what the
/// others do not.
#[derive(Debug, Clone, Copy)]
struct Sizes([f64; 3]);

impl Sizes {
    fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let (step, any) = largest(values);
        let total: f64 = centred(values).iter().map(|v| v * v).sum();
        let left = |of: &Stretch, freedom: f64| {
            ((total - of.size) / freedom.max(1.0)).max(total * 1e-12).max(1e-300)
        };
        let scatter = neighbour_sd(values).powi(2).max(1e-300);
        Sizes([
            // One step, and one stretch, against what they leave: the likelihood ratios.
            step.size / left(&step, n - 2.0),
            any.size / left(&any, n - 3.0),
            // Where there are several changes, each is part of what the other leaves.
            any.size / scatter,
        ])
    }
}

/// The p-value of the first by the measure by which it is the rarest, among what that is of the
/// others (P. Westfall, S. Young, Resampling-Based Multiple Testing, 1993).
fn joint_p_value(all: &[Sizes]) -> f64 {
    let mut rarest = vec![all.len(); all.len()];
    for measure in 0..3 {
        let size = |i: usize| all.get(i).map_or(0.0, |sizes| sizes.0[measure]);
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by(|a, b| size(*b).total_cmp(&size(*a)));
        let mut larger = 0;
        for (place, of) in order.iter().enumerate() {
            while larger < order.len() && is_as_large(size(order[larger]), size(*of)) {
                larger += 1;
            }
            rarest[*of] = rarest[*of].min(larger.max(place + 1));
        }
    }
    let as_rare = rarest.iter().filter(|rare| **rare <= rarest[0]).count();
    as_rare as f64 / all.len().max(1) as f64
}

/// What [`joint_p_value`] compares with, where that is the same for many.
struct Null {
    sizes: Vec<Sizes>,
    /// For each and each measure, how many are as large.
    as_large: Vec<[usize; 3]>,
}

impl Null {
    fn of(sizes: Vec<Sizes>) -> Self {
        let count = |of: &Sizes, m: usize| {
            sizes.iter().filter(|other| is_as_large(other.0[m], of.0[m])).count()
        };
        let as_large = sizes.iter().map(|of| [0, 1, 2].map(|m| count(of, m))).collect();
        Null { sizes, as_large }
    }

    fn p_value(&self, own: &Sizes) -> f64 {
        let larger = |m: usize| {
            1 + self.sizes.iter().filter(|other| is_as_large(other.0[m], own.0[m])).count()
        };
        let rarest = (0..3).map(larger).min().unwrap_or(0);
        let all = self.sizes.iter().zip(&self.as_large);
        let as_rare = all.filter(|(of, counts)| {
            (0..3).any(|m| counts[m] + usize::from(is_as_large(own.0[m], of.0[m])) <= rarest)
        });
        (1 + as_rare.count()) as f64 / (1 + self.sizes.len()) as f64
    }
}

/// Equal but for rounding counts as as large.
fn is_as_large(one: f64, other: f64) -> bool {
    one >= other * (1.0 - 1e-9)
}

/// Standard deviation of single values from the differences of neighbours, of which few are
/// changes.
pub fn neighbour_sd(values: &[f64]) -> f64 {
    let differences: Vec<f64> = values.windows(2).map(|w| (w[1] - w[0]).abs()).collect();
    let squares: Vec<f64> = differences.iter().map(|d| d * d).collect();
    // A handful of differences have no good median: there the mean square without the largest.
    if differences.len() >= 12 {
        return median(&differences) * MAD_TO_SD / 2f64.sqrt();
    }
    let largest = squares.iter().copied().fold(0.0, f64::max);
    let rest = (squares.iter().sum::<f64>() - largest) / (squares.len() as f64 - 1.0).max(1.0);
    (rest / 2.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amount;
    use crate::hosts::{without_blocks, HostSample};
    use proptest::prelude::{any, prop, prop_assert, proptest, ProptestConfig};

    fn series(rng: &mut Rng, n: usize, level: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..n).map(|i| level(i) + rng.normal()).collect()
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        for (n, trials) in [(5, 300), (12, 200), (64, 100)] {
            let mut rng = Rng::new(n as u64);
            let alarms = (0..trials).filter(|&seed| {
                let values = series(&mut rng, n, |_| 0.0);
                !level_changes(&values, 0.05, seed).is_empty()
            });
            let alarms = alarms.count() as u64;
            println!("{n} values: {alarms} of {trials} series without a change show one");
            // 99 % of binomial samples at 5 % are below.
            assert!(alarms <= trials / 20 + 2 + (2.4 * (trials as f64 * 0.0475).sqrt()) as u64);
        }
    }

    /// Sessions that differ by 3 %, of which those from the 13th on are 9 % slower: by the
    /// neighbours' scatter alone, of which 20 values tell little, 31 of 60 were found.
    #[test]
    fn a_step_among_twenty_sessions() {
        let mut rng = Rng::new(12);
        let found = (0..200).filter(|&seed| {
            let values = series(&mut rng, 20, |i| if i >= 12 { 2.7 } else { 0.0 });
            level_changes(&values, 0.01, seed).iter().any(|c| c.at.abs_diff(12) <= 1)
        });
        let found = found.count();
        let alarms = (0..400)
            .filter(|&seed| !level_changes(&series(&mut rng, 20, |_| 0.0), 0.01, seed).is_empty());
        let alarms = alarms.count();
        println!("20 sessions: found {found} of 200, {alarms} of 400 false");
        assert!(found >= 170 && alarms <= 10, "{found} {alarms}");
    }

    /// 64 commits with 5 runs: a step of one standard deviation of a run is 2.2 of a commit's
    /// mean. The test of neighbouring steps found 0 of 40.
    #[test]
    fn a_step_of_one_run_s_noise_is_found_where_it_is() {
        let mut rng = Rng::new(7);
        let (mut found, mut near) = (0, 0);
        for seed in 0..60 {
            let at = 8 + rng.below(48);
            let values = series(&mut rng, 64, |i| if i >= at { 5f64.sqrt() } else { 0.0 });
            let changes = level_changes(&values, 0.05, seed);
            found += usize::from(!changes.is_empty());
            near += usize::from(changes.iter().any(|c| c.at.abs_diff(at) <= 1));
        }
        println!("found {found}, within a commit {near} of 60");
        assert!(found >= 58 && near >= 54, "{found} {near}");
    }

    /// Noise of a run by the name of a host, and whether one commit has five times as much.
    type Host = (&'static str, fn(&mut Rng) -> f64, bool);

    const HOSTS: [Host; 8] = [
        ("normal 3 %", |rng| 0.03 * rng.normal(), false),
        ("one commit five times as noisy", |rng| 0.03 * rng.normal(), true),
        ("one of twelve 15 to 30 % slower", |rng| rare(rng, 0.03, 12, 0.14 + 0.12 * 0.5), false),
        ("two modes", |rng| rare(rng, 0.03, 2, 0.262), false),
        ("1 %, one of ten 30 % slower", |rng| rare(rng, 0.01, 10, 0.262), false),
        ("1 %, one of twenty 30 % slower", |rng| rare(rng, 0.01, 20, 0.262), false),
        ("3 %, one of twenty takes 3 times as long", |rng| rare(rng, 0.03, 20, 1.0986), false),
        ("1 %, one of ten takes 3 times as long", |rng| rare(rng, 0.01, 10, 1.0986), false),
    ];

    fn rare(rng: &mut Rng, sd: f64, one_of: usize, by: f64) -> f64 {
        sd * rng.normal() + if rng.below(one_of) == 0 { by } else { 0.0 }
    }

    /// Five runs of each commit, block by block, on a host whose blocks differ by 5 %.
    fn range(host: &Host, n: usize, rng: &mut Rng, level: impl Fn(usize) -> f64) -> Vec<Vec<Run>> {
        let blocks: Vec<f64> = (0..5).map(|_| 0.05 * rng.normal()).collect();
        let mut samples = Vec::new();
        for (block, adds) in blocks.iter().enumerate() {
            for at in 0..n {
                let times = if host.2 && at == n / 2 { 5.0 } else { 1.0 };
                let value = (level(at) + adds + times * host.1(rng)).exp();
                samples.push(HostSample { host: block, group: at, value });
            }
        }
        let logs = without_blocks(&samples);
        let own = |at| {
            let own = samples.iter().zip(&logs).filter(move |(s, _)| s.group == at);
            own.map(|(s, y)| (s.host, *y)).collect()
        };
        (0..n).map(own).collect()
    }

    /// By draws from the runs' deviations 36 of 200 ranges with rare slow boots showed a change, and a step of 10 %
    /// was found in 44, or in 15, of 60.
    #[test]
    fn rare_slow_boots_are_no_change_and_hide_none() {
        for host in &HOSTS {
            for (n, ranges) in [(13, 200), (25, 300)].into_iter().take(amount(1, 2)) {
                let mut rng = Rng::new(9);
                let mut found = |trials: u64, level: &dyn Fn(usize) -> f64| {
                    let shown = |seed: &u64| {
                        let runs = range(host, n, &mut rng, level);
                        !level_changes_of_runs(&runs, 0.05, *seed).is_empty()
                    };
                    (0..trials).filter(shown).count()
                };
                let alarms = found(ranges, &|_| 0.0);
                let later = found(40, &|at| if 5 * at >= 3 * n { 0.095 } else { 0.0 });
                let last = found(40, &|at| if at + 1 == n { 0.095 } else { 0.0 });
                let name = host.0;
                println!("{name}, {n} x 5: {alarms} of {ranges}; 10 % from the middle {later}, last {last} of 40");
                // 99 % of binomial samples at 5 % are below. A commit that is noisier than the others may seem to
                // differ: runs that are made anew say that it does not.
                let ranges = ranges as usize;
                let most = if host.2 { ranges / 6 } else { ranges / 20 + 10 };
                assert!(alarms <= most, "{name}: {alarms}");
                assert!(later >= 38 || name == "two modes", "{name}: {later}");
                assert!(last >= 15 || name == "two modes", "{name}: {last}");
            }
        }
    }

    #[test]
    fn p_values_by_a_null_that_is_kept_are_the_same() {
        let mut rng = Rng::new(6);
        let null: Vec<Sizes> = (0..99).map(|_| Sizes::of(&series(&mut rng, 9, |_| 0.0))).collect();
        let kept = Null::of(null.clone());
        for by in [0.0, 1.0, 2.0, 4.0, 8.0] {
            let own = Sizes::of(&series(&mut rng, 9, |i| if i >= 5 { by } else { 0.0 }));
            let all: Vec<Sizes> = std::iter::once(own).chain(null.iter().copied()).collect();
            assert_eq!(kept.p_value(&own), joint_p_value(&all), "{by}");
        }
    }

    #[test]
    fn a_step_that_is_called_detectable_is_found() {
        for n in [8, 24] {
            let step = detectable_step(n, 0.05, 0.8).expect("a step");
            let mut rng = Rng::new(4);
            let from = n - n.div_ceil(4);
            let found = (0..200).filter(|&seed| {
                let values = series(&mut rng, n, |i| if i >= from { step } else { 0.0 });
                !level_changes(&values, 0.05, seed).is_empty()
            });
            let found = found.count();
            println!("{n} values: a step of {step:.2} is found in {found} of 200");
            assert!((140..=180).contains(&found), "{n}: {found}");
        }
        assert_eq!(detectable_step(3, 0.05, 0.8), None);
    }

    #[test]
    fn a_creep_is_found() {
        let mut rng = Rng::new(3);
        let found = (0..20).filter(|&seed| {
            let values = series(&mut rng, 64, |i| 0.25 * 5f64.sqrt() * i as f64);
            level_changes(&values, 0.05, seed).len() >= 2
        });
        assert_eq!(found.count(), 20);
    }

    #[test]
    fn one_slow_commit_that_was_mended_is_two_changes() {
        let mut rng = Rng::new(5);
        let (mut found, mut alone) = (0, 0);
        for seed in 0..20 {
            let values = series(&mut rng, 64, |i| if i == 30 { 9.0 } else { 0.0 });
            let at: Vec<usize> = level_changes(&values, 0.05, seed).iter().map(|c| c.at).collect();
            found += usize::from(at.contains(&30) && at.contains(&31));
            alone += usize::from(at == [30, 31]);
        }
        assert!(found >= 19 && alone >= 17, "{found} and {alone} of 20");
    }

    #[test]
    fn few_values() {
        assert_eq!(level_changes(&[], 0.05, 1), []);
        assert_eq!(level_changes(&[1.0, 2.0, 9.0], 0.05, 1), []);
        assert_eq!(level_changes(&[1.0; 9], 0.05, 1), []);
        let step = [0.0, 0.1, -0.1, 0.05, 20.0, 20.1, 19.9, 20.0];
        let found = level_changes(&step, 0.05, 1);
        assert!(found.len() == 1 && found[0].at == 4, "{found:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn any_series(values in prop::collection::vec(any::<f64>(), 0..12)) {
            for change in level_changes(&values, 0.05, 1) {
                prop_assert!(change.at > 0 && change.at < values.len());
                prop_assert!((0.0..=1.0).contains(&change.p_value));
            }
        }
    }
}
