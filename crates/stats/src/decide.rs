//! What pairs of runs can say of two machines, before and after they are made.
//!
//! One procedure gives all of it: the signed-rank test of the pairs' log ratios and the
//! interval that is its inversion ([`crate::signed_rank`]). So verdict and interval never
//! contradict each other, and both hold for any noise that the random order within a pair
//! makes symmetric. Several comparisons share the chance of error equally (Bonferroni), which
//! keeps that true of their intervals as well.
//!
//! That centre is the typical run's, which a slow tenth of all runs cannot move. The mean is another question
//! ([`crate::mean_ratio`]). b is slower if either is shown to be: where runs are slow beyond what the bulk
//! explains, the mean has a fifth of the chance of error and the centre the rest. Without such runs the mean
//! decides nothing by itself, and the centre has all of it: which runs these are does not depend on which side
//! of a pair they are on, so the level holds in both cases. b is equal only if both are (an intersection-union
//! test; R. Berger, Technometrics 24, 1982), which needs no share.

use crate::mean_ratio::{MeanRatio, Slow};
use crate::pairs::log_ratios;
use crate::rng::Rng;
use crate::sample::{sd, sorted, sorted_quantile};
use crate::signed_rank::{averages_to_drop, interval, lower_end, pseudo_median, signed_rank};
use crate::summary::estimate;
use vmeter_model::{Estimate, Verdict};

/// Chance of finding a difference that is called detectable.
pub const POWER: f64 = 0.8;
/// Up to here the detectable difference is found by redrawing the pairs, beyond it from the
/// interval's width, which is then as good.
const REDRAWN: usize = 40;
/// Redrawings.
const DRAWS: usize = 400;
/// What a number of pairs that is itself estimated must be larger by: too few cost more power than
/// too many add.
const UNSURE: f64 = 1.17;
/// Of the squared sizes of differences at least so much is noise, whatever effect is looked for.
const LEAST_NOISE: f64 = 0.05;
/// Of the chance of error, that of the mean where runs are slow beyond what the bulk explains.
const OF_THE_MEAN: f64 = 0.2;
/// Margin of "equal", unless the user has one: 2 %.
pub const MARGIN: f64 = 0.02;

/// How pairs are judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Chance of any false difference among all comparisons.
    pub alpha: f64,
    /// Comparisons that are made together.
    pub comparisons: usize,
    /// Ratios within 1 ± this are called equal.
    pub margin: f64,
    /// The values have no noise: each is the machine's own, and one pair says all.
    pub exact: bool,
}

impl Default for Rule {
    fn default() -> Self {
        Rule { alpha: 0.05, comparisons: 1, margin: MARGIN, exact: false }
    }
}

/// The typical run's ratio or the mean's.
#[derive(Debug, Clone, Copy)]
struct Side {
    ratio: f64,
    /// The interval by which it is called equal.
    near: [f64; 2],
    /// That by which it is called slower or faster; none where it decides nothing.
    shown: Option<[f64; 2]>,
}

/// What the pairs say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decided {
    /// Over the pairs' ratios b / a: `mean` is their Hodges-Lehmann centre, `ci95` the interval
    /// of it at which all comparisons together are right in 95 %. Where so few pairs have no
    /// such interval, the smallest and largest ratio.
    pub ratio: Estimate,
    /// The ratio of the means, with the interval by which b can be called equal.
    pub mean: Estimate,
    /// The interval of it by which b can be called slower or faster, which is wider; none where the mean
    /// decides nothing by itself.
    pub mean_alone: Option<[f64; 2]>,
    /// Runs of a and of b that are slow beyond what the bulk explains.
    pub slow: [Slow; 2],
    /// Two-sided p-value of slow runs being as likely, and as slow, on either side.
    pub slow_p_value: f64,
    /// Two-sided, adjusted for the number of comparisons: the smaller one of the typical run's and the mean's.
    pub p_value: f64,
    /// What is said of b.
    pub verdict: Verdict,
    /// Pairs that were used.
    pub pairs: usize,
    /// Pairs below which nothing can be decided.
    pub needed: usize,
    /// The relative difference that as many pairs with this noise would have shown with a
    /// chance of [`POWER`]; none where nothing could be.
    pub detectable: Option<f64>,
}

impl Rule {
    /// Level of one comparison.
    pub fn level(&self) -> f64 {
        self.alpha / self.comparisons.max(1) as f64
    }

    /// Pairs that at least are needed to find any difference, however large: the smallest
    /// p-value of n pairs is 2 / 2^n.
    pub fn needed(&self) -> usize {
        if self.exact {
            return 1;
        }
        (2.0 / self.level().clamp(1e-300, 1.0)).log2().ceil().max(1.0) as usize
    }

    /// Judges pairs of (a, b). Pairs with a side that is not finite and above 0 are left out;
    /// none if no pair is left.
    pub fn decide(&self, pairs: &[(f64, f64)]) -> Option<Decided> {
        let swapped: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
        let logs = log_ratios(&swapped);
        let first = *logs.first()?;
        if self.exact {
            return Some(self.without_noise(first));
        }
        let ratios = estimate(&logs.iter().map(|l| l.exp()).collect::<Vec<_>>());
        let enough = logs.len() >= self.needed();
        let of_mean = MeanRatio::of_pairs(pairs);
        let with_share = |of: &MeanRatio| {
            let level = self.level() * (1.0 - OF_THE_MEAN);
            of.has_slow() && averages_to_drop(logs.len(), level / 2.0).is_some()
        };
        let share = of_mean.as_ref().filter(|of| with_share(of)).map_or(0.0, |_| OF_THE_MEAN);
        let ends = interval(&logs, self.level() * (1.0 - share) / 2.0).filter(|_| enough);
        let ends = ends.map(|ends| ends.map(f64::exp));
        let centre = Side {
            ratio: pseudo_median(&logs).exp(),
            near: ends.unwrap_or([ratios.min, ratios.max]),
            shown: ends,
        };
        let mean = of_mean.as_ref().map_or(centre, |of| Side {
            ratio: of.ratio,
            near: of.interval(self.level()),
            shown: (share > 0.0).then(|| of.interval(self.level() * share)),
        });
        let p_mean =
            of_mean.as_ref().filter(|_| share > 0.0).map_or(1.0, |of| of.p_value() / share);
        let p_value = p_mean.min(signed_rank(&logs).two_sided() / (1.0 - share));
        Some(Decided {
            ratio: Estimate { mean: centre.ratio, ci95: centre.near, ..ratios },
            mean: Estimate { mean: mean.ratio, ci95: mean.near, ..ratios },
            mean_alone: mean.shown.filter(|_| enough),
            slow: of_mean.as_ref().map_or_else(Default::default, |of| of.slow),
            slow_p_value: of_mean.as_ref().map_or(1.0, MeanRatio::slow_p_value),
            p_value: (p_value * self.comparisons.max(1) as f64).min(1.0),
            verdict: if enough { self.verdict(&centre, &mean) } else { Verdict::Undecidable },
            pairs: logs.len(),
            needed: self.needed(),
            detectable: ends.and_then(|_| self.detectable(&logs)).map(f64::exp_m1),
        })
    }

    /// What the typical run and the mean say together. Slower or faster is what either of them is shown to be.
    /// Undecidable is where they are shown to differ in opposite directions, or where the typical run differs
    /// and the mean looks as if it did less, by more than the margin or half of it, and may not differ at all.
    fn verdict(&self, centre: &Side, mean: &Side) -> Verdict {
        let slower = [centre, mean].map(|side| side.shown.is_some_and(|[low, _]| low > 1.0));
        let faster = [centre, mean].map(|side| side.shown.is_some_and(|[_, high]| high < 1.0));
        let less = (mean.ratio / centre.ratio).ln();
        let allowed = self.margin.ln_1p().min(centre.ratio.ln().abs() / 2.0);
        let [low, high] = mean.near;
        match (slower, faster) {
            ([true, _], [_, true]) | ([_, true], [true, _]) => Verdict::Undecidable,
            ([true, false], _) if less < -allowed && low <= 1.0 => Verdict::Undecidable,
            (_, [true, false]) if less > allowed && high >= 1.0 => Verdict::Undecidable,
            ([true, _] | [_, true], _) => Verdict::Slower,
            (_, [true, _] | [_, true]) => Verdict::Faster,
            _ if self.is_within(centre.near) && self.is_within(mean.near) => Verdict::Equal,
            _ => Verdict::NoDifference,
        }
    }

    fn is_within(&self, [low, high]: [f64; 2]) -> bool {
        low >= 1.0 - self.margin && high <= 1.0 + self.margin
    }

    fn without_noise(&self, log: f64) -> Decided {
        let ratio = log.exp();
        let verdict = match ratio.total_cmp(&1.0) {
            std::cmp::Ordering::Less => Verdict::Faster,
            std::cmp::Ordering::Greater => Verdict::Slower,
            std::cmp::Ordering::Equal => Verdict::Equal,
        };
        let p_value = if verdict == Verdict::Equal { 1.0 } else { 0.0 };
        let needed = 1;
        Decided {
            ratio: estimate(&[ratio]),
            mean: estimate(&[ratio]),
            mean_alone: None,
            slow: [Slow::default(); 2],
            slow_p_value: 1.0,
            p_value,
            verdict,
            pairs: 1,
            needed,
            detectable: Some(0.0),
        }
    }

    /// The difference of logarithms that as many pairs with this noise show with [`POWER`].
    pub(crate) fn detectable(&self, logs: &[f64]) -> Option<f64> {
        let tail = self.level() / 2.0;
        let centre = pseudo_median(logs);
        let n = logs.len();
        if n > REDRAWN {
            let [low, high] = interval(logs, tail)?;
            let z = |p: f64| crate::dist::normal_quantile(p);
            return Some((high - low) / 2.0 * (z(1.0 - tail) + z(POWER)) / z(1.0 - tail));
        }
        // A shift is found where it carries the interval past 0: so much as the interval of
        // noise alone reaches below it. Noise is symmetric, pairs being in random order; its
        // size is that of a sample, which has one degree of freedom less than it has values,
        // and whose standard deviation is too small on average by 1 part in 4 (n - 1).
        let freedom = (n as f64 - 1.0).max(1.0);
        let widen = (n as f64 / freedom).sqrt() * (1.0 + 0.25 / freedom);
        let dropped = averages_to_drop(n, tail)?;
        let sizes: Vec<f64> = logs.iter().map(|l| (l - centre).abs() * widen).collect();
        let mut rng = Rng::new(0x6465_7465_6374);
        let mut draw = vec![0.0; n];
        let reach: Vec<f64> = (0..DRAWS)
            .map(|_| {
                draw.iter_mut().for_each(|x| {
                    let sign = if rng.bits() >> 63 == 1 { 1.0 } else { -1.0 };
                    *x = sign * sizes[rng.below(n)];
                });
                -lower_end(&draw, dropped)
            })
            .collect();
        Some(sorted_quantile(&sorted(&reach), POWER).max(0.0))
    }

    /// As [`Rule::pairs_for`], from how far the two sides of the pairs are apart and not from
    /// which of them is the slower one: where nothing differs the sides of a pair are as likely
    /// in either order, so that a number of pairs that is planned by this alone leaves the level
    /// of a test of signs or signed ranks what it is, however often it is planned anew (M.
    /// Gould, W. Shih, Communications in Statistics 21, 1992, of blinded sample size; the signs
    /// are independent of the sizes). What the effect itself would add to them is taken out.
    pub fn planned_pairs(&self, pairs: &[(f64, f64)], effect: f64) -> Option<usize> {
        let sizes: Vec<f64> = log_ratios(pairs).iter().map(|l| l.abs()).collect();
        let square = sizes.iter().map(|l| l * l).sum::<f64>() / sizes.len().max(1) as f64;
        let share = 1.0 - effect.ln_1p().powi(2) / square.max(1e-300);
        let times = share.max(LEAST_NOISE).sqrt();
        let mut rng = Rng::new(0x626c_696e_6465_6400);
        let mut side =
            |size: &f64| if rng.bits() >> 63 == 1 { times * size } else { -times * size };
        let blind: Vec<(f64, f64)> = sizes.iter().map(|size| (side(size).exp(), 1.0)).collect();
        let wanted = self.pairs_for(&blind, effect)? as f64;
        Some((wanted * UNSURE).ceil() as usize)
    }

    /// Pairs with which a relative difference of `effect` would be found with [`POWER`], the
    /// noise being that of these pairs; none if they do not show their noise.
    pub fn pairs_for(&self, pairs: &[(f64, f64)], effect: f64) -> Option<usize> {
        let logs = log_ratios(pairs);
        if logs.len() < 3 || effect <= 0.0 {
            return None;
        }
        let seen = match self.detectable(&logs) {
            Some(seen) => seen,
            // Too few for an interval: by the standard deviation, as if noise were normal.
            None => {
                let z = crate::dist::normal_quantile(1.0 - self.level() / 2.0)
                    + crate::dist::normal_quantile(POWER);
                sd(&logs) * z / (logs.len() as f64).sqrt()
            }
        };
        let times = (seen / effect.ln_1p()).powi(2);
        let wanted = (logs.len() as f64 * times).ceil();
        (wanted.is_finite() && wanted < 1e6).then(|| (wanted as usize).max(self.needed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    fn pairs(rng: &mut Rng, n: usize, ratio: f64, noise: f64) -> Vec<(f64, f64)> {
        let mut one = |times: f64| times * (noise * rng.normal()).exp();
        (0..n).map(|_| (one(2.0), one(2.0 * ratio))).collect()
    }

    #[test]
    fn pairs_that_are_needed() {
        let needed = |comparisons| Rule { comparisons, ..Rule::default() }.needed();
        assert_eq!([1, 2, 11].map(needed), [6, 7, 9]);
        assert_eq!(Rule { exact: true, ..Rule::default() }.needed(), 1);
    }

    /// Review E1 and E13: the smallest p-value of so few pairs was known and used by nobody.
    #[test]
    fn ten_times_slower_is_slower_with_the_pairs_that_are_needed_and_no_fewer() {
        for comparisons in [1, 2, 11] {
            let rule = Rule { comparisons, ..Rule::default() };
            let all: Vec<(f64, f64)> =
                (0..rule.needed()).map(|i| (1.0 + 0.01 * i as f64, 10.0)).collect();
            let found = rule.decide(&all).expect("pairs");
            assert_eq!(found.verdict, Verdict::Slower);
            assert!(found.ratio.ci95[0] > 1.0 && found.p_value <= 0.05);
            let few = rule.decide(&all[1..]).expect("pairs");
            assert_eq!((few.verdict, few.detectable), (Verdict::Undecidable, None));
        }
    }

    #[test]
    fn verdict_and_interval_never_contradict_each_other() {
        let mut rng = Rng::new(4);
        for trial in 0..400 {
            let n = 6 + trial % 20;
            let found = Rule::default().decide(&pairs(&mut rng, n, 1.03, 0.03)).expect("pairs");
            let [low, high] = found.ratio.ci95;
            let differs = low > 1.0 || high < 1.0;
            assert_eq!(differs, found.p_value <= 0.05, "{found:?}");
            let none = matches!(found.verdict, Verdict::NoDifference | Verdict::Equal);
            assert_eq!(differs, !none, "{found:?}");
            assert!(low <= found.ratio.mean && found.ratio.mean <= high);
        }
    }

    #[test]
    fn what_is_called_detectable_is_found_in_80_percent() {
        let rule = Rule::default();
        for n in [6, 10, 25, 60] {
            let mut rng = Rng::new(n as u64);
            let noise = 0.03;
            let said: Vec<f64> = (0..60)
                .filter_map(|_| rule.decide(&pairs(&mut rng, n, 1.0, noise))?.detectable)
                .collect();
            let said = crate::median(&said);
            let trials = 1500;
            let found = (0..trials).filter(|_| {
                let decided = rule.decide_fast(&pairs(&mut rng, n, 1.0 + said, noise));
                decided == Some(true)
            });
            let share = found.count() as f64 / f64::from(trials);
            println!("{n} pairs: {:.2} % said to be detectable, found in {share:.3}", 100.0 * said);
            assert!((0.72..0.88).contains(&share), "{n}: {share}");
        }
    }

    impl Rule {
        /// As [`Rule::decide`], only whether b is slower.
        fn decide_fast(&self, pairs: &[(f64, f64)]) -> Option<bool> {
            let swapped: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
            interval(&log_ratios(&swapped), self.level() / 2.0).map(|[low, _]| low > 0.0)
        }
    }

    #[test]
    fn equal_is_a_verdict_of_its_own() {
        let mut rng = Rng::new(11);
        let found = Rule::default().decide(&pairs(&mut rng, 20, 1.0, 0.005)).expect("pairs");
        assert_eq!(found.verdict, Verdict::Equal, "{found:?}");
        let wrong = (0..1000).filter(|_| {
            let at_the_margin = pairs(&mut rng, 12, 1.0 + MARGIN, 0.003);
            Rule::default().decide(&at_the_margin).expect("pairs").verdict == Verdict::Equal
        });
        let wrong = wrong.count();
        assert!(wrong <= 50, "{wrong} of 1000 called equal at the margin");
    }

    /// 88 of 100 runs are 3 % faster and 12 take 1.5 times as long: the mean is 2.8 % slower.
    #[test]
    fn a_machine_whose_mean_is_slower_is_neither_faster_nor_equal() {
        let mut rng = Rng::new(21);
        let mut judged = |rare: f64, times: f64, rest: f64| {
            let mut one = |rare: f64, times: f64| {
                let slow = if rng.uniform() * rare < 1.0 { times } else { 1.0 };
                slow * (0.01 * rng.normal()).exp()
            };
            let pairs: Vec<(f64, f64)> =
                (0..40).map(|_| (one(1e9, 1.0), rest * one(rare, times))).collect();
            Rule::default().decide(&pairs).expect("pairs")
        };
        let wrong = |found: &Decided| matches!(found.verdict, Verdict::Faster | Verdict::Equal);
        let count =
            |judged: &mut dyn FnMut() -> Decided| (0..200).filter(|_| wrong(&judged())).count();
        // Sessions without a slow run, and of the first those with one: 3.9 %, 1.5 % and 13 %.
        assert!(count(&mut || judged(100.0 / 12.0, 1.5, 0.97)) <= 17);
        assert!(count(&mut || judged(10.0, 1.3, 1.0)) <= 8);
        assert!(count(&mut || judged(20.0, 3.0, 1.0)) <= 38);
        assert!(
            count(&mut || judged(1e9, 3.0, 1.0)) >= 190,
            "a machine without a slow run is equal"
        );
    }

    #[test]
    fn values_without_noise_are_one_observation() {
        let rule = Rule { exact: true, ..Rule::default() };
        let found = rule.decide(&[(1.0, 1.000_001); 5]).expect("pairs");
        assert_eq!((found.verdict, found.ratio.n), (Verdict::Slower, 1));
        assert_eq!(rule.decide(&[(1.0, 1.0)]).expect("a pair").verdict, Verdict::Equal);
    }

    #[test]
    fn runs_that_an_effect_needs() {
        let mut rng = Rng::new(2);
        let pilot = pairs(&mut rng, 30, 1.0, 0.03);
        let n = Rule::default().pairs_for(&pilot, 0.02).expect("a number");
        // 2 x 0.03^2 (1.96 + 0.84)^2 / 0.02^2, and 5 % for ranks.
        assert!((25..55).contains(&n), "{n}");
        assert_eq!(Rule::default().pairs_for(&pilot[..2], 0.02), None);
    }

    proptest! {
        #[test]
        fn any_pairs(
            pairs in prop::collection::vec((any::<f64>(), any::<f64>()), 0..15),
            comparisons in 0usize..5,
        ) {
            let rule = Rule { comparisons, ..Rule::default() };
            if let Some(found) = rule.decide(&pairs) {
                prop_assert!((0.0..=1.0).contains(&found.p_value));
                prop_assert!(found.ratio.ci95[0] <= found.ratio.ci95[1]);
                prop_assert!(found.detectable.is_none_or(|d| d >= 0.0));
            }
        }
    }
}
