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

use crate::bench::{go_on, run_once, Bench, Watcher};
use crate::error::IrqError;
use crate::options::FitRange;
use msi_routes::Strategy;
use vmeter_model::irq::{IrqAtLimit, IrqCurve, IrqFit, IrqFitPoint};
use vmeter_stats::{choose_order, estimate, plan, power_law, Order};

/// Sizes that are measured.
const SIZES: usize = 10;
/// Samples of each, at most.
const SAMPLES: usize = 8;
/// Samples at the limit, at most.
const LIMIT_SAMPLES: usize = 3;
/// No further sample at the limit is taken once they took this long, s.
const LIMIT_ENOUGH_S: f64 = 3.0;

/// Numbers of vectors, evenly spread up to `most`.
fn sizes(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=SIZES).map(|i| most * i / SIZES).filter(|n| *n > 0).collect();
    sizes.dedup();
    sizes
}

/// The fit of every strategy; none if there are too few sizes.
pub(crate) fn fits(bench: &Bench<'_>, watcher: &mut dyn Watcher) -> Result<Vec<IrqFit>, IrqError> {
    let options = bench.options;
    let sizes = sizes(options.vfs * options.vectors);
    if sizes.len() < 5 {
        return Ok(Vec::new());
    }
    let runs = options.runs.min(SAMPLES);
    let slots = plan::plan(options.strategies.len() * sizes.len(), 0, runs, options.seed);
    watcher.stage("growth", slots.len());
    let mut samples = vec![Vec::new(); options.strategies.len() * sizes.len()];
    for slot in slots {
        go_on(watcher)?;
        let strategy = options.strategies[slot.machine / sizes.len()];
        let size = sizes[slot.machine % sizes.len()];
        let done = run_once(bench, strategy, size, || ())?;
        samples[slot.machine].push([done.enabled.total, done.cpu].map(|t| t.as_secs_f64()));
        watcher.run(strategy.name());
    }
    let mut fits = Vec::new();
    for (strategy, samples) in options.strategies.iter().zip(samples.chunks(sizes.len())) {
        let points = points(&sizes, samples);
        let Some(mut fit) = fit(strategy.name(), points) else { continue };
        fit.at_limit = at_limit(bench, *strategy, &fit, watcher)?;
        fits.push(fit);
    }
    Ok(fits)
}

fn points(sizes: &[usize], samples: &[Vec<[f64; 2]>]) -> Vec<IrqFitPoint> {
    let point = |(vectors, samples): (&usize, &Vec<[f64; 2]>)| {
        let [samples_s, cpu_samples_s] =
            [0, 1].map(|which| samples.iter().map(|both| both[which]).collect::<Vec<f64>>());
        let least = |samples: &[f64]| samples.iter().copied().fold(f64::INFINITY, f64::min);
        IrqFitPoint {
            vectors: *vectors,
            min_s: least(&samples_s),
            min_cpu_s: least(&cpu_samples_s),
            samples_s,
            cpu_samples_s,
        }
    };
    sizes.iter().zip(samples).map(point).collect()
}

/// Chooses the order of growth, of the time and of the CPU time.
pub(crate) fn fit(strategy: &str, points: Vec<IrqFitPoint>) -> Option<IrqFit> {
    Some(IrqFit {
        strategy: strategy.into(),
        time: curve(points.iter().map(|p| (p.vectors as f64, p.min_s)).collect())?,
        cpu: curve(points.iter().map(|p| (p.vectors as f64, p.min_cpu_s)).collect())?,
        points,
        at_limit: None,
    })
}

fn curve(costs: Vec<(f64, f64)>) -> Option<IrqCurve> {
    let found = choose_order(&costs)?;
    let order = match found.order {
        Order::Linear => "linear",
        Order::Quadratic => "quadratic",
    };
    Some(IrqCurve {
        order: order.into(),
        p_value: found.p_value,
        aicc_linear: found.aicc_linear,
        aicc_quadratic: found.aicc_quadratic,
        quadratic_share: found.quadratic_share,
        coefficients: found.coefficients().to_vec(),
        exponent: power_law(&costs).map(|fit| fit.slope),
    })
}

fn predict(fit: &IrqFit, vectors: usize) -> f64 {
    fit.time.coefficients.iter().rev().fold(0.0, |sum, c| sum * vectors as f64 + c)
}

fn at_limit(
    bench: &Bench<'_>,
    strategy: Strategy,
    fit: &IrqFit,
    watcher: &mut dyn Watcher,
) -> Result<Option<IrqAtLimit>, IrqError> {
    let Bench { options, limit, .. } = bench;
    let vfs = limit.free / options.vectors;
    let vectors = vfs * options.vectors;
    if vfs <= options.vfs {
        return Ok(None);
    }
    let mut samples = Vec::new();
    if options.fit == FitRange::Limit {
        watcher.stage("the limit", LIMIT_SAMPLES);
        while samples.len() < LIMIT_SAMPLES && samples.iter().sum::<f64>() < LIMIT_ENOUGH_S {
            go_on(watcher)?;
            let done = run_once(bench, strategy, vectors, || ())?;
            samples.push(done.enabled.total.as_secs_f64());
            watcher.run(strategy.name());
        }
    }
    Ok(Some(IrqAtLimit {
        vfs,
        vectors,
        predicted_s: predict(fit, vectors),
        measured: (!samples.is_empty()).then(|| estimate(&samples)),
        samples_s: samples,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn measured(cost: impl Fn(f64) -> f64) -> Vec<IrqFitPoint> {
        let mut noise = vmeter_stats::rng::Rng::new(5);
        let point = |vectors: &usize| {
            let min_s = cost(*vectors as f64) * (1.0 + 0.03 * noise.normal());
            IrqFitPoint {
                vectors: *vectors,
                samples_s: vec![min_s],
                min_s,
                cpu_samples_s: vec![min_s / 2.0],
                min_cpu_s: min_s / 2.0,
            }
        };
        sizes(2080).iter().map(point).collect()
    }

    /// The costs of FACTS: 8 + 0.085 routes + 0.04 irqfds us a commit, 0.06 ms for irqfds.
    #[test]
    fn one_commit_a_vector_is_quadratic_and_one_for_all_is_linear() {
        let each = fit("per_vector", measured(|n| n * 8e-6 + 0.0625e-6 * n * n)).unwrap();
        assert_eq!(
            (each.time.order.as_str(), each.cpu.order.as_str()),
            ("quadratic", "quadratic"),
            "{each:?}"
        );
        assert_eq!(each.time.coefficients.len(), 3);
        let all = fit("per_vm", measured(|n| 8e-6 + 0.585e-6 * n)).unwrap();
        assert_eq!(all.time.order, "linear", "{all:?}");
        let at = predict(&all, 4030);
        assert!((at / 2.366e-3 - 1.0).abs() < 0.1, "{at}");
    }

    #[test]
    fn sizes_end_at_what_was_asked_for() {
        assert_eq!(sizes(520).len(), SIZES);
        assert_eq!(sizes(520).last(), Some(&520));
        assert_eq!(sizes(3), [1, 2, 3]);
    }

    proptest! {
        #[test]
        fn any_sizes_rise(most in 1usize..10_000) {
            let sizes = sizes(most);
            prop_assert!(sizes.windows(2).all(|w| w[0] < w[1]));
            prop_assert_eq!(sizes.last(), Some(&most));
        }
    }
}
