//! The ratio of paired measurements, as interleaved runs give them.
//!
//! Both runs of a pair meet the same state of the host, so a drift that would drown the
//! difference of two means cancels in each pair's ratio. Ratios are averaged as logarithms:
//! watched over unwatched and its inverse then tell the same story.

use crate::dist::t_two_sided;
use crate::sample::sd;
use crate::signed_rank::{interval, pseudo_median, signed_rank};
use crate::summary::{estimate, estimate_signed};
use vmeter_model::Estimate;

/// What pairs say about a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedRatio {
    /// Over the pairs' ratios. `mean` is their geometric mean with Student's t interval of the
    /// logarithms (P. Fleming, J. Wallace, "How not to lie with statistics", CACM 29, 1986).
    pub estimate: Estimate,
    /// Hodges-Lehmann centre of the ratios: hardly moved by single slow runs.
    pub centre: f64,
    /// Its 95 % interval from signed ranks; none below six pairs.
    pub centre_ci95: Option<[f64; 2]>,
    /// Two-sided signed-rank p-value against a ratio of 1.
    pub p_value: f64,
}

/// Ratio of first over second, e.g. watched over unwatched. Pairs with a side that is not
/// finite and above 0 are left out; none if no pair is left.
pub fn paired_ratio(pairs: &[(f64, f64)]) -> Option<PairedRatio> {
    let logs = log_ratios(pairs);
    if logs.is_empty() {
        return None;
    }
    let ratios: Vec<f64> = logs.iter().map(|l| l.exp()).collect();
    let of_logs = estimate_signed(&logs);
    let estimate = Estimate {
        mean: of_logs.mean.exp(),
        ci95: of_logs.ci95.map(f64::exp),
        sd: sd(&ratios),
        ..estimate(&ratios)
    };
    Some(PairedRatio {
        estimate,
        centre: pseudo_median(&logs).exp(),
        centre_ci95: interval(&logs, 0.025).map(|ends| ends.map(f64::exp)),
        p_value: signed_rank(&logs).two_sided(),
    })
}

/// Two-sided p-value of Student's paired t of the logarithms: is the ratio 1? Unlike ranks it
/// can decide with a few pairs, and after a correction for many questions; it takes the
/// logarithms' differences for normal. None with fewer than two usable pairs.
pub fn paired_t(pairs: &[(f64, f64)]) -> Option<f64> {
    let logs = log_ratios(pairs);
    let n = logs.len() as f64;
    if logs.len() < 2 {
        return None;
    }
    let (mean, error) = (estimate_signed(&logs).mean, sd(&logs) / n.sqrt());
    Some(match (error > 0.0, mean == 0.0) {
        (true, _) => t_two_sided(mean / error, n - 1.0),
        (false, true) => 1.0,
        (false, false) => 0.0,
    })
}

/// Pairs that count as one observation, `size` neighbours in a row each, by their geometric means;
/// those at the end that are too few for one are left out.
pub fn observations(pairs: &[(f64, f64)], size: usize) -> Vec<(f64, f64)> {
    let mean = |pairs: &[(f64, f64)], side: fn(&(f64, f64)) -> f64| {
        (pairs.iter().map(|pair| side(pair).ln()).sum::<f64>() / pairs.len() as f64).exp()
    };
    let whole = pairs.chunks_exact(size.max(1));
    whole.map(|pairs| (mean(pairs, |pair| pair.0), mean(pairs, |pair| pair.1))).collect()
}

/// Logarithms of the usable pairs' ratios.
pub(crate) fn log_ratios(pairs: &[(f64, f64)]) -> Vec<f64> {
    let usable = |x: f64| x.is_finite() && x > 0.0;
    let pairs = pairs.iter().filter(|(a, b)| usable(*a) && usable(*b));
    pairs.map(|(a, b)| a.ln() - b.ln()).filter(|l| l.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn drift_cancels() {
        let mut rng = Rng::new(3);
        let pairs: Vec<(f64, f64)> = (0..12)
            .map(|i| {
                let host = 2.5 + f64::from(i) * 0.2;
                (host * 1.05 * (1.0 + 0.01 * rng.normal()), host * (1.0 + 0.01 * rng.normal()))
            })
            .collect();
        let found = paired_ratio(&pairs).unwrap();
        assert!((found.estimate.mean - 1.05).abs() < 0.01, "{found:?}");
        assert!(found.p_value < 0.001);
        let [lo, hi] = found.centre_ci95.unwrap();
        assert!(lo > 1.03 && hi < 1.07);
        let unpaired = |side: fn(&(f64, f64)) -> f64| pairs.iter().map(side).collect::<Vec<_>>();
        let wide = crate::ratio_of_means(&unpaired(|p| p.1), &unpaired(|p| p.0)).unwrap();
        assert!(wide.ci95[0] < 1.0, "unpaired says nothing here: {wide:?}");
    }

    /// A host that alternates by 8 %, its phase lost now and then, as one was seen to: of 20
    /// sessions of 40 pairs, how far apart their centres are.
    #[test]
    fn two_mirrored_pairs_say_more_of_a_host_that_alternates() {
        let mut rng = Rng::new(12);
        let mut scatter = |plan: &dyn Fn(u64) -> Vec<crate::Slot>, size: usize| {
            let centres: Vec<f64> = (0..20)
                .map(|seed| {
                    let (mut phase, mut sides) = (0, [Vec::new(), Vec::new()]);
                    for slot in plan(seed) {
                        phase += 1 + usize::from(rng.below(12) == 0);
                        let cold = 0.08 * (phase % 2) as f64;
                        let watched = if slot.machine == 0 { 0.02 } else { 0.0 };
                        sides[slot.machine].push((cold + watched + 0.02 * rng.normal()).exp());
                    }
                    let pairs: Vec<(f64, f64)> =
                        sides[0].iter().copied().zip(sides[1].iter().copied()).collect();
                    pseudo_median(&log_ratios(&observations(&pairs, size)))
                })
                .collect();
            sd(&centres)
        };
        let coin = scatter(&|seed| crate::plan(2, 0, 40, seed), 1);
        let mirrored = scatter(&|seed| crate::plan::mirrored(0, 40, seed), 2);
        println!("scatter of the centre: by a coin {coin:.4}, mirrored {mirrored:.4}");
        assert!(mirrored < 0.7 * coin, "{mirrored} {coin}");
    }

    #[test]
    fn the_inverse_is_the_inverse() {
        let pairs = [(1.0, 2.0), (3.0, 4.0), (5.0, 4.0), (2.0, 2.5)];
        let inverse: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
        let (f, g) = (paired_ratio(&pairs).unwrap(), paired_ratio(&inverse).unwrap());
        assert!((f.estimate.mean * g.estimate.mean - 1.0).abs() < 1e-12);
        assert!((f.estimate.ci95[0] * g.estimate.ci95[1] - 1.0).abs() < 1e-12);
        assert_eq!(f.p_value, g.p_value);
        assert_eq!(paired_ratio(&[(0.0, 1.0), (f64::NAN, 1.0)]), None);
        let one = paired_ratio(&[(3.0, 2.0)]).unwrap();
        assert!((one.estimate.mean - 1.5).abs() < 1e-12 && one.estimate.n == 1);
        assert_eq!(one.p_value, 1.0);
    }

    #[test]
    fn few_pairs_decide_what_is_large_and_nothing_else() {
        let mut rng = crate::rng::Rng::new(3);
        let mut p = |ratio: f64| {
            let mut value = |of: f64| of * (1.0 + 0.03 * rng.normal());
            let pairs: Vec<(f64, f64)> = (0..3).map(|_| (value(1.0), value(ratio))).collect();
            paired_t(&pairs).unwrap()
        };
        let found = |ratio: f64, p: &mut dyn FnMut(f64) -> f64| {
            (0..1000).filter(|_| p(ratio) <= 0.05).count()
        };
        let wrong = found(1.0, &mut p);
        println!("of 1000: {wrong} equals told apart");
        assert!((25..=80).contains(&wrong), "{wrong}");
        assert!(found(2.0, &mut p) > 990);
        assert_eq!(paired_t(&[(1.0, 2.0)]), None);
        assert_eq!(paired_t(&[(1.0, 2.0), (2.0, 4.0)]), Some(0.0));
        assert_eq!(paired_t(&[(1.0, 1.0), (2.0, 2.0), (0.0, f64::NAN)]), Some(1.0));
    }
}
