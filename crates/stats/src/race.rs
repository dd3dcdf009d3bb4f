//! A race of changes against the machine without them: which help, which are not worth it, and of which
//! nothing can be said yet, looked at as the pairs come.
//!
//! Looks are at fixed numbers of pairs. Each has the same share of the chance of a false "helps", by
//! Bonferroni's inequality over looks and comparisons, so that all of them together keep the level however
//! early a comparison ends. Two tests have half of it each: Student's paired t of the logarithms
//! ([`crate::pairs`]), which unlike a test of ranks can decide with five pairs after such a correction, and the
//! signed-rank test, which a few runs of three times the length do not blind. "Not worth it" drops a change that may
//! save a little, which is no false claim, so it has the usual level at each look.

use crate::dist::{t_quantile, t_two_sided};
use crate::pairs::log_ratios;
use crate::sample::{mean, sd};
use crate::signed_rank::{interval, signed_rank};

/// Pairs at which it is looked.
pub const LOOKS: [usize; 6] = [5, 8, 12, 18, 27, 40];
/// Chance of dropping a change that is worth it, at each look.
const DROPPED: f64 = 0.025;

/// How pairs are judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Race {
    /// Chance of any false "helps" among all comparisons and looks.
    pub alpha: f64,
    /// Comparisons that are made together.
    pub comparisons: usize,
    /// The smallest ratio of without over with that is worth it, e.g. 1.01.
    pub worth: f64,
}

/// What the pairs so far say of a change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Standing {
    /// It makes the machine faster, beyond noise, and may be worth it.
    Helps,
    /// It saves less than is worth it, if anything.
    NotWorth,
    /// Nothing can be said yet.
    Open {
        /// Pairs at the next look.
        next_look: usize,
    },
    /// The last look said nothing.
    Unproven,
}

impl Race {
    /// Decides on the pairs (without, with) so far. Only prefixes of scheduled lengths are looked at, so
    /// asking more often, or again, changes nothing.
    pub fn decide(&self, pairs: &[(f64, f64)]) -> Standing {
        let logs = log_ratios(pairs);
        let level = self.alpha / (self.comparisons.max(1) * LOOKS.len()) as f64;
        for look in LOOKS {
            let Some(seen) = logs.get(..look) else { return Standing::Open { next_look: look } };
            let df = (look - 1) as f64;
            let (centre, error) = (mean(seen), sd(seen) / (look as f64).sqrt());
            if error == 0.0 {
                return match centre > 0.0 && centre >= self.worth.ln() {
                    true => Standing::Helps,
                    false => Standing::NotWorth,
                };
            }
            // From eight pairs on there is an interval by ranks.
            let most = match interval(seen, DROPPED).filter(|_| look >= 8) {
                Some([_, most]) => most,
                None => centre + t_quantile(1.0 - DROPPED, df) * error,
            };
            // First: where noise is small, less than is worth it may be beyond noise.
            if most < self.worth.ln() {
                return Standing::NotWorth;
            }
            let by_t = centre > 0.0 && t_two_sided(centre / error, df) <= level / 2.0;
            if by_t || 2.0 * signed_rank(seen).above <= level / 2.0 {
                return Standing::Helps;
            }
        }
        Standing::Unproven
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Pairs as they come until a decision, `gain` the logarithm of without over with.
    fn ended(race: &Race, gain: f64, noise: f64, rng: &mut Rng) -> (Standing, usize) {
        let mut pairs = Vec::new();
        loop {
            match race.decide(&pairs) {
                Standing::Open { next_look } => {
                    while pairs.len() < next_look {
                        let mut one = |log: f64| {
                            let slow = if rng.below(20) == 0 { 3f64.ln() } else { 0.0 };
                            (log + slow + noise * rng.normal()).exp()
                        };
                        pairs.push((one(gain), one(0.0)));
                    }
                }
                standing => return (standing, pairs.len()),
            }
        }
    }

    #[test]
    fn what_does_not_help_seldom_does() {
        let race = Race { alpha: 0.05, comparisons: 10, worth: 1.01 };
        let mut rng = Rng::new(31);
        let mut false_ones = 0;
        for _ in 0..1500 {
            let all = (0..10).map(|_| ended(&race, 0.0, 0.03, &mut rng).0);
            false_ones += usize::from(all.filter(|s| *s == Standing::Helps).count() > 0);
        }
        println!("{false_ones} of 1500 races of ten called one that helps");
        assert!(false_ones <= 75, "{false_ones}");
    }

    #[test]
    fn large_effects_end_early_and_small_ones_are_dropped() {
        let race = Race { alpha: 0.05, comparisons: 10, worth: 1.05 };
        let mut rng = Rng::new(32);
        let mut pairs = 0;
        for _ in 0..200 {
            let pairs_of = |gain: f64, rng: &mut Rng| {
                let mut one = |log: f64| (log + 0.01 * rng.normal()).exp();
                (0..40).map(|_| (one(gain), one(0.0))).collect::<Vec<_>>()
            };
            let large = pairs_of(0.2, &mut rng);
            assert_eq!(race.decide(&large), Standing::Helps);
            pairs += LOOKS.iter().find(|n| race.decide(&large[..**n]) == Standing::Helps).unwrap();
            assert_eq!(race.decide(&pairs_of(0.0, &mut rng)), Standing::NotWorth);
        }
        assert!(pairs / 200 <= 8, "{pairs}");
    }

    #[test]
    fn slow_runs_hide_nothing() {
        let race = Race { alpha: 0.05, comparisons: 10, worth: 1.01 };
        let mut rng = Rng::new(33);
        let found =
            (0..200).filter(|_| ended(&race, 0.06, 0.03, &mut rng).0 == Standing::Helps).count();
        println!("{found} of 200 found");
        assert!(found >= 180, "{found}");
    }

    #[test]
    fn asking_again_changes_nothing() {
        let race = Race { alpha: 0.05, comparisons: 1, worth: 1.01 };
        assert_eq!(race.decide(&[]), Standing::Open { next_look: 5 });
        assert_eq!(race.decide(&[(2.0, 1.0); 4]), Standing::Open { next_look: 5 });
        assert_eq!(race.decide(&[(2.0, 1.0); 7]), Standing::Helps);
        assert_eq!(race.decide(&[(1.0, 1.0); 5]), Standing::NotWorth);
    }
}
