//! The strategies in turn: the table, the ratios, and how the cost grows.

use crate::bench::{go_on, run_once, Bench, Watcher};
use crate::error::IrqError;
use crate::options::{FitRange, Options};
use crate::pressure::Pressure;
use crate::{fit, summary};
use msi_routes::Strategy;
use vmeter_model::irq::{IrqDelivery, IrqResult, IrqRun, IrqSetup};
use vmeter_model::result::Envelope;
use vmeter_stats::plan;

/// Runs the whole experiment.
///
/// # Errors
/// [`IrqError::Usage`], [`IrqError::Interrupted`], and what this host can't do.
pub fn measure(
    options: &Options,
    envelope: Envelope,
    watcher: &mut dyn Watcher,
) -> Result<IrqResult, IrqError> {
    let bench = Bench::new(options)?;
    let deliveries = deliveries(&bench, watcher)?;
    let pressure = Pressure::now();
    let runs = rounds(&bench, watcher)?;
    let disturbed = pressure.share().filter(|_| options.busy_cpus == 0);
    let mut result = IrqResult {
        envelope,
        setup: setup(&bench),
        rows: summary::rows(&runs, &names(options), options.vectors),
        totals: summary::totals(&runs, &names(options), options.baseline().map(Strategy::name)),
        fit: Vec::new(),
        anatomy: Vec::new(),
        runs,
        warnings: disturbed.and_then(summary::disturbed).into_iter().collect(),
        hints: Vec::new(),
    };
    for (total, delivery) in result.totals.iter_mut().zip(deliveries) {
        total.delivery = Some(delivery);
    }
    if options.trace {
        watcher.stage("tracing", options.strategies.len());
        match crate::anatomy::trace(&bench, watcher) {
            Ok(anatomy) => result.anatomy = anatomy,
            Err(crate::anatomy::TraceFailed::Run(error)) => return Err(error),
            Err(failed) => result
                .warnings
                .push(format!("where the time of a commit goes is not known: {failed}")),
        }
    }
    if options.fit != FitRange::None {
        result.fit = fit::fits(&bench, watcher)?;
        if result.fit.is_empty() {
            let few = format!(
                "no fit: {} vectors are too few sizes to tell a line from a parabola",
                options.vfs * options.vectors
            );
            result.warnings.push(few);
        }
    }
    drop(bench);
    summary::advise(&mut result);
    Ok(result)
}

fn names(options: &Options) -> Vec<&'static str> {
    options.strategies.iter().map(|s| s.name()).collect()
}

fn setup(bench: &Bench<'_>) -> IrqSetup {
    let options = bench.options;
    IrqSetup {
        vfs: options.vfs,
        vectors: options.vectors,
        vcpus: options.vcpus,
        busy_cpus: options.busy_cpus,
        running_vcpus: options.running_vcpus,
        runs: options.runs,
        warmup: options.warmup,
        seed: options.seed,
        gsi_limit: bench.limit.gsis,
        cpus: bench.placement.cpus.as_slice().to_vec(),
        devices: Vec::new(),
    }
}

/// A run of each strategy that no figure includes, whose vectors are all raised.
fn deliveries(bench: &Bench<'_>, watcher: &mut dyn Watcher) -> Result<Vec<IrqDelivery>, IrqError> {
    let options = bench.options;
    watcher.stage("delivery", options.strategies.len());
    let deliver = |strategy: &Strategy| {
        go_on(watcher)?;
        let mut done = run_once(bench, *strategy, options.vfs * options.vectors, || ())?;
        let delivery = done.deliver()?;
        watcher.run(strategy.name());
        Ok(delivery)
    };
    options.strategies.iter().map(deliver).collect()
}

fn rounds(bench: &Bench<'_>, watcher: &mut dyn Watcher) -> Result<Vec<IrqRun>, IrqError> {
    let options = bench.options;
    let slots = plan::plan(options.strategies.len(), options.warmup, options.runs, options.seed);
    watcher.stage("strategies", slots.len());
    let run = |slot: plan::Slot| {
        go_on(watcher)?;
        let strategy = options.strategies[slot.machine];
        let done = run_once(bench, strategy, options.vfs * options.vectors, || ())?;
        watcher.run(strategy.name());
        Ok(done.run(strategy, slot.block, slot.warmup))
    };
    slots.into_iter().map(run).collect()
}
