//! How the cost grows with the number of vectors, up to the host's limit of routes.
//!
//! Each size is enabled on VMs of its own, sizes and strategies interleaved at random, so
//! that points are independent: sums over the devices of one run would not be, and the
//! tests would find curvature in noise. The model is chosen over each size's shortest sample
//! by an F test of the quadratic term together with AICc ([`vmeter_stats::order`]): what else
//! a host does only ever adds to a run, and adds the more the longer it is, so the minimum is
//! what tells of the cost itself (J. Chen, J. Revels, "Robust benchmarking in noisy
//! environments", HPEC 2016). The committing thread's CPU time is fitted beside the time: it
//! has none of the waiting, be that for a kworker (which is the cost's own) or for a CPU that
//! another program has (which is not).

use crate::data::Enabled;
use crate::result::{IrqAtLimit, IrqCurve, IrqFit, IrqFitPoint};
use crate::strategy::IrqStrategy;
use vmeter_base::seconds;
use vmeter_stats::{choose_order, estimate, power_law};

/// A number of vectors, with its samples.
pub(crate) fn point(vectors: usize, samples: &[&Enabled]) -> IrqFitPoint {
    let samples_s: Vec<f64> = samples.iter().map(|one| seconds(one.total_ns)).collect();
    let cpu_samples_s: Vec<f64> = samples.iter().map(|one| seconds(one.cpu_ns)).collect();
    let least = |samples: &[f64]| samples.iter().copied().fold(f64::INFINITY, f64::min);
    IrqFitPoint {
        vectors,
        min_s: least(&samples_s),
        min_cpu_s: least(&cpu_samples_s),
        samples_s,
        cpu_samples_s,
    }
}

/// Chooses the order of growth, of the time and of the CPU time.
pub(crate) fn fit(strategy: IrqStrategy, points: Vec<IrqFitPoint>) -> Option<IrqFit> {
    Some(IrqFit {
        strategy,
        time: curve(points.iter().map(|p| (p.vectors as f64, p.min_s)).collect())?,
        cpu: curve(points.iter().map(|p| (p.vectors as f64, p.min_cpu_s)).collect())?,
        points,
        at_limit: None,
    })
}

fn curve(costs: Vec<(f64, f64)>) -> Option<IrqCurve> {
    let found = choose_order(&costs)?;
    let power = power_law(&costs);
    Some(IrqCurve {
        order: found.order,
        p_value: found.p_value,
        aicc_linear: found.aicc_linear,
        aicc_quadratic: found.aicc_quadratic,
        quadratic_share: found.quadratic_share,
        coefficients: found.coefficients().to_vec(),
        exponent: power.as_ref().map(|fit| fit.slope),
        exponent_ci95: power.map(|fit| fit.slope_ci95),
    })
}

fn predict(fit: &IrqFit, vectors: usize) -> f64 {
    fit.time.coefficients.iter().rev().fold(0.0, |sum, c| sum * vectors as f64 + c)
}

/// The cost where the host's routes end, at `vfs` of so many vectors.
pub(crate) fn at_limit(
    fit: &IrqFit,
    vfs: usize,
    vectors: usize,
    samples: &[Enabled],
) -> IrqAtLimit {
    let samples_s: Vec<f64> = samples.iter().map(|one| seconds(one.total_ns)).collect();
    let vectors = vfs.saturating_mul(vectors);
    IrqAtLimit {
        vfs,
        vectors,
        predicted_s: predict(fit, vectors),
        measured: (!samples_s.is_empty()).then(|| estimate(&samples_s)),
        samples_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_stats::Order;

    fn measured(cost: impl Fn(f64) -> f64) -> Vec<IrqFitPoint> {
        let mut noise = vmeter_stats::rng::Rng::new(5);
        let mut point = |vectors: &usize| {
            let min_s = cost(*vectors as f64) * (1.0 + 0.03 * noise.normal());
            IrqFitPoint {
                vectors: *vectors,
                samples_s: vec![min_s],
                min_s,
                cpu_samples_s: vec![min_s / 2.0],
                min_cpu_s: min_s / 2.0,
            }
        };
        (1..=10).map(|i| 208 * i).map(|vectors| point(&vectors)).collect()
    }

    /// What the word stands for: a line is not called so, and what bends upwards is, whatever its
    /// law; of a power the interval has the exponent.
    #[test]
    fn superlinear_is_what_bends_and_nothing_else() {
        type Law = fn(f64) -> f64;
        let laws: [(Law, Option<f64>, usize); 4] = [
            // So close to a line, it takes less noise or more sizes.
            (|n| 1e-7 * n.powf(1.2), Some(1.2), 120),
            (|n| 1e-7 * n.powf(2.0), Some(2.0), 200),
            (|n| 1e-8 * n * n.ln(), None, 120),
            (|n| n * 8e-6 + 0.0625e-6 * n * n, None, 200),
        ];
        let sampled = |law: Law, noise: f64, seed: u64| {
            let mut rng = vmeter_stats::rng::Rng::new(seed);
            let cost = |n: f64| (n, law(n) * (1.0 + noise * rng.normal()));
            curve((1..=10).map(|i| f64::from(208 * i)).map(cost).collect()).unwrap()
        };
        for (law, exponent, least) in laws {
            let curves: Vec<IrqCurve> = (0..200).map(|seed| sampled(law, 0.01, seed)).collect();
            let bends = curves.iter().filter(|c| c.order == Order::Quadratic).count();
            let within = |c: &&IrqCurve| {
                let [low, high] = c.exponent_ci95.unwrap();
                exponent.is_none_or(|e| low <= e && e <= high)
            };
            let right = curves.iter().filter(within).count();
            println!("superlinear {bends} of 200, exponent within its interval {right} of 200");
            assert!(bends >= least && right >= 180, "{bends} {right}");
        }
        let line: Law = |n| 8e-6 + 0.585e-6 * n;
        let wrong = (0..1000).filter(|&seed| sampled(line, 0.05, seed).order == Order::Quadratic);
        let wrong = wrong.count();
        println!("{wrong} of 1000 lines called superlinear");
        assert!(wrong <= 20, "{wrong}");
    }

    /// The costs of docs/results/facts.md, "MSI-X routes": 8 + 0.085 routes + 0.04 irqfds us a commit, 0.06 ms for irqfds.
    #[test]
    fn one_commit_a_vector_is_quadratic_and_one_for_all_is_linear() {
        let each = fit(IrqStrategy::PerVector, measured(|n| n * 8e-6 + 0.0625e-6 * n * n)).unwrap();
        assert_eq!(
            (each.time.order, each.cpu.order),
            (Order::Quadratic, Order::Quadratic),
            "{each:?}"
        );
        assert_eq!(each.time.coefficients.len(), 3);
        let all = fit(IrqStrategy::PerVm, measured(|n| 8e-6 + 0.585e-6 * n)).unwrap();
        assert_eq!(all.time.order, Order::Linear, "{all:?}");
        let at = predict(&all, 4030);
        assert!((at / 2.366e-3 - 1.0).abs() < 0.1, "{at}");
    }
}
