//! From raw runs to the table of the patch that docs/IRQ.md cites.

use crate::result::{IrqResult, IrqRow, IrqRun, IrqSetup, IrqTotal};
use crate::strategy::IrqStrategy;
use vmeter_model::Estimate;
use vmeter_stats::{estimate, paired_ratio};

fn measured(runs: &[IrqRun], strategy: IrqStrategy) -> impl Iterator<Item = &IrqRun> {
    runs.iter().filter(move |run| !run.warmup && run.strategy == strategy)
}

/// A row per VF and strategy. The last VF's row has the commit that all of them share.
pub(crate) fn rows(runs: &[IrqRun], strategies: &[IrqStrategy], vectors: usize) -> Vec<IrqRow> {
    let vfs = runs.first().map_or(0, |run| run.vfs_s.len());
    let mut rows = Vec::new();
    for vf in 0..vfs {
        for &strategy in strategies {
            let time = |run: &IrqRun| {
                let shared = if vf + 1 == vfs { run.shared_s } else { 0.0 };
                Some(run.vfs_s.get(vf)? + shared)
            };
            let samples: Vec<f64> = measured(runs, strategy).filter_map(time).collect();
            if samples.is_empty() {
                continue;
            }
            let estimate = estimate(&samples);
            rows.push(IrqRow {
                vf: vf + 1,
                irqfds_assigned: (vf + 1).saturating_mul(vectors),
                strategy,
                milliseconds: estimate.median * 1e3,
                estimate,
            });
        }
    }
    rows
}

/// Totals of each strategy that was measured, with the ratio to its baseline over the
/// rounds' pairs.
pub(crate) fn totals(
    runs: &[IrqRun],
    strategies: &[IrqStrategy],
    baseline: impl Fn(IrqStrategy) -> Option<IrqStrategy>,
) -> Vec<IrqTotal> {
    let total = |strategy: IrqStrategy| {
        let of = |value: fn(&IrqRun) -> f64| -> Vec<f64> {
            measured(runs, strategy).map(value).collect()
        };
        let estimate_s = estimate(&of(|run| run.total_s));
        let other = baseline(strategy);
        let ratio = other.and_then(|baseline| ratio(runs, baseline, strategy));
        IrqTotal {
            strategy,
            milliseconds: estimate_s.median * 1e3,
            estimate: estimate_s,
            cpu: estimate(&of(|run| run.cpu_s)),
            prepared: estimate(&of(|run| run.prepared_s)),
            commits: measured(runs, strategy).map(|run| run.commits).max().unwrap_or(0),
            ratio_to: ratio.and(other),
            ratio,
            set_irqs: measured(runs, strategy).filter_map(|run| run.set_irqs).max(),
            delivery: None,
        }
    };
    let measured = |strategy: &IrqStrategy| measured(runs, *strategy).next().is_some();
    strategies.iter().copied().filter(measured).map(total).collect()
}

/// How many times as fast: runs of the same round are pairs. `mean` and `ci95` are the
/// Hodges-Lehmann centre of the pairs' ratios and its interval from signed ranks, where there
/// are six pairs: a preempted run of half a millisecond is ten times as long, and a mean of
/// ratios would tell of it alone. Below six pairs, the geometric mean.
fn ratio(runs: &[IrqRun], baseline: IrqStrategy, strategy: IrqStrategy) -> Option<Estimate> {
    let pair = |base: &IrqRun| {
        let other = measured(runs, strategy).find(|run| run.round == base.round)?;
        Some((base.total_s, other.total_s))
    };
    let pairs: Vec<(f64, f64)> = measured(runs, baseline).filter_map(pair).collect();
    let ratio = paired_ratio(&pairs)?;
    Some(match ratio.centre_ci95 {
        Some(ci95) => Estimate { mean: ratio.centre, ci95, ..ratio.estimate },
        None => ratio.estimate,
    })
}

/// Share of the time in which threads waited for CPUs that is worth a warning.
const DISTURBED: f64 = 0.05;

/// A warning, if others wanted the CPUs while it was measured.
pub(crate) fn disturbed(share: f64) -> Option<String> {
    (share > DISTURBED).then(|| {
        format!(
            "programs waited for a CPU for {:.0}% of the time (/proc/pressure/cpu), and the \
                measured times include these waits: stop other programs and measure again",
            100.0 * share
        )
    })
}

/// Says what is wrong with a result.
pub(crate) fn advise(result: &mut IrqResult) {
    for total in &result.totals {
        let Some(delivery) = total.delivery else { continue };
        if delivery.arrived != delivery.raised || delivery.stray > 0 {
            result.warnings.push(format!(
                "{}: of {} raised interrupts, {} arrived; {} further interrupts arrived at \
                    vectors where vmeter had raised none: this host's KVM or the library \
                    msi-routes has a bug",
                total.strategy, delivery.raised, delivery.arrived, delivery.stray
            ));
        }
    }
    let lost: u64 = result.anatomy.iter().map(|a| a.lost_events).sum();
    if lost > 0 {
        result.warnings.push(format!("{lost} trace events were lost: percentages are approximate"));
    }
    let busy = result.warnings.iter().any(|warning| warning.contains("/proc/pressure/cpu"));
    if result.setup.busy_cpus == 0 && result.setup.devices.is_empty() && !busy {
        let IrqSetup { vfs, vectors, .. } = result.setup;
        result.hints.push(format!(
            "vmeter irq --vfs {vfs} --vectors {vectors} --busy-cpus 3   # the same on busy CPUs"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use IrqStrategy::{PerVector, PerVm};

    fn run(
        strategy: IrqStrategy,
        round: usize,
        warmup: bool,
        vfs_s: &[f64],
        shared_s: f64,
    ) -> IrqRun {
        IrqRun {
            strategy,
            round,
            warmup,
            prepared_s: 0.0,
            vfs_s: vfs_s.to_vec(),
            shared_s,
            total_s: vfs_s.iter().sum::<f64>() + shared_s,
            cpu_s: 0.0,
            commits: vfs_s.len(),
            set_irqs: None,
        }
    }

    #[test]
    fn the_shared_commit_is_the_last_vfs_and_warm_ups_count_nowhere() {
        let runs = [
            run(PerVector, 0, true, &[9.0, 9.0], 0.0),
            run(PerVm, 0, true, &[9.0, 9.0], 9.0),
            run(PerVector, 1, false, &[2.0, 6.0], 0.0),
            run(PerVm, 1, false, &[0.5, 0.5], 1.0),
            run(PerVm, 2, false, &[0.5, 0.5], 1.0),
            run(PerVector, 2, false, &[2.0, 6.0], 0.0),
        ];
        let strategies = [PerVector, PerVm];
        let rows = rows(&runs, &strategies, 65);
        let of = |strategy: IrqStrategy| -> Vec<(usize, f64)> {
            let rows = rows.iter().filter(|row| row.strategy == strategy);
            rows.map(|row| (row.irqfds_assigned, row.milliseconds)).collect()
        };
        assert_eq!(of(PerVector), [(65, 2000.0), (130, 6000.0)]);
        assert_eq!(of(PerVm), [(65, 500.0), (130, 1500.0)]);
        let baseline = |one| (one != PerVector).then_some(PerVector);
        let totals = totals(&runs, &strategies, baseline);
        assert!(totals[0].ratio.is_none() && totals[0].milliseconds == 8000.0);
        let ratio = totals[1].ratio.unwrap();
        assert!((ratio.mean - 4.0).abs() < 1e-9 && ratio.n == 2);
        assert_eq!(totals[1].ratio_to, Some(PerVector));
    }
}
