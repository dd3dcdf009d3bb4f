//! Whether a series of runs is one of independent runs of one thing.
//!
//! Intervals of a mean assume it. Runs that are like the run before them count as fewer than
//! they are; a first run that is unlike all others was one that warmed something up.

use crate::rng::Rng;
use crate::sample::{lag_1, mad, mean, median, sum_squares, MAD_TO_SD};

const PERMUTATIONS: usize = 1999;
/// A first run so many standard deviations from the others' median is unlike them.
const UNLIKE: f64 = 4.0;
const FEWEST: usize = 8;

/// Neighbours that are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alike {
    /// Correlation of each run with the next.
    pub lag_1: f64,
    /// One-sided p-value, by permutation of the order (A. Wald, J. Wolfowitz, "An exact test
    /// for randomness in the non-parametric case based on serial correlation", Annals of
    /// Mathematical Statistics 14, 1943).
    pub p_value: f64,
    /// As many independent runs say as much of the mean: n (1 - r) / (1 + r).
    pub effective: f64,
}

/// How alike neighbours are; none of fewer than eight runs, or of equal ones.
pub fn alike(samples: &[f64]) -> Option<Alike> {
    let found = lag_1(samples)?;
    let mut rng = Rng::new(0);
    let mut order = samples.to_vec();
    let as_much = (0..PERMUTATIONS).filter(|_| {
        rng.shuffle(&mut order);
        lag_1(&order).is_some_and(|r| r >= found)
    });
    let p_value = (as_much.count() + 1) as f64 / (PERMUTATIONS + 1) as f64;
    let effective = samples.len() as f64 * (1.0 - found) / (1.0 + found);
    Some(Alike { lag_1: found, p_value, effective })
}

/// A correlation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoesWith {
    /// Pearson's coefficient.
    pub r: f64,
    /// One-sided p-value against "no more than 0", by permutation.
    pub p_value: f64,
}

/// Whether runs are long where something else, told of each run, is large; none of fewer than
/// eight runs, or where either is the same in all.
pub fn goes_with(samples: &[f64], beside: &[f64]) -> Option<GoesWith> {
    if samples.len() < FEWEST || samples.len() != beside.len() {
        return None;
    }
    let found = correlation(samples, beside)?;
    let mut rng = Rng::new(0);
    let mut order = beside.to_vec();
    let as_much = (0..PERMUTATIONS).filter(|_| {
        rng.shuffle(&mut order);
        correlation(samples, &order).is_some_and(|r| r >= found - 1e-12)
    });
    Some(GoesWith { r: found, p_value: (as_much.count() + 1) as f64 / (PERMUTATIONS + 1) as f64 })
}

fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let (x, y) = (mean(a), mean(b));
    let products: f64 = a.iter().zip(b).map(|(a, b)| (a - x) * (b - y)).sum();
    let r = products / (sum_squares(a) * sum_squares(b)).sqrt();
    r.is_finite().then_some(r)
}

/// The first run over the median of the others, if it is unlike all of them.
pub fn first_unlike(samples: &[f64]) -> Option<f64> {
    let (first, rest) = samples.split_first().filter(|(_, rest)| rest.len() >= FEWEST)?;
    let (centre, spread) = (median(rest), MAD_TO_SD * mad(rest));
    let far = (first - centre).abs() > UNLIKE * spread;
    let beyond = rest.iter().all(|x| x < first) || rest.iter().all(|x| x > first);
    (spread > 0.0 && far && beyond && centre > 0.0).then(|| first / centre)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_with_the_runs_is_told_and_nothing_else() {
        let mut rng = Rng::new(8);
        let mut told = |weight: f64| {
            let of = 400;
            let found = (0..of).filter(|_| {
                let beside: Vec<f64> = (0..12).map(|_| rng.normal()).collect();
                let samples: Vec<f64> = beside.iter().map(|c| weight * c + rng.normal()).collect();
                goes_with(&samples, &beside).expect("enough").p_value <= 0.01
            });
            found.count() as f64 / f64::from(of)
        };
        let (never, always) = (told(0.0), told(2.0));
        println!("no relation: {never}, r 0.9: {always}");
        assert!(never <= 0.03 && always >= 0.9, "{never} {always}");
        assert_eq!(goes_with(&[1.0; 9], &[1.0; 9]), None);
        assert_eq!(goes_with(&[1.0, 2.0], &[1.0, 2.0]), None);
    }

    /// Series of 20 runs, each like the one before by `rho`: the share that is called alike.
    fn called(seed: u64, rho: f64) -> f64 {
        let mut rng = Rng::new(seed);
        let found = (0..400).filter(|_| {
            let mut last = rng.normal();
            let series: Vec<f64> = (0..20)
                .map(|_| {
                    last = rho * last + (1.0 - rho * rho).sqrt() * rng.normal();
                    100.0 + 3.0 * last
                })
                .collect();
            alike(&series).is_some_and(|a| a.p_value <= 0.05)
        });
        found.count() as f64 / 400.0
    }

    #[test]
    fn runs_that_follow_each_other_are_seen_and_others_not() {
        assert!(called(1, 0.0) <= 0.075, "{}", called(1, 0.0));
        assert!(called(2, 0.7) >= 0.8, "{}", called(2, 0.7));
        assert_eq!(alike(&[1.0; 20]), None);
    }

    #[test]
    fn a_first_run_that_warms_up() {
        let mut rng = Rng::new(7);
        let mut series = |first: f64| -> Vec<f64> {
            let rest = (0..12).map(|_| 100.0 + rng.normal());
            std::iter::once(first).chain(rest).collect()
        };
        assert!(first_unlike(&series(130.0)).is_some_and(|r| (1.25..1.35).contains(&r)));
        let false_alarms = (0..1000).filter(|_| first_unlike(&series(100.0)).is_some()).count();
        assert_eq!(false_alarms, 0);
        assert_eq!(first_unlike(&[9.0, 1.0, 1.0]), None);
    }
}
