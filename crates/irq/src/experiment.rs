//! The strategies in turn: the table, the ratios, and how the cost grows.

use crate::error::IrqError;
use crate::guest::{target, Guest};
use crate::options::{FitRange, Limit, Options};
use crate::placement::Placement;
use crate::pressure::Pressure;
use crate::{fit, summary};
use msi_routes::measure::{BusyCpus, MeasureError, Shape};
use msi_routes::{enable, prepare, EnableError, Enabled, Msix, Router, Source, Strategy};
use std::collections::BTreeSet;
use std::time::Duration;
use vmeter_model::irq::{IrqDelivery, IrqResult, IrqRun, IrqSetup};
use vmeter_model::result::Envelope;
use vmeter_stats::plan;

/// What the caller hears and says while it is measured.
pub trait Watcher {
    /// A stage of so many runs begins.
    fn stage(&mut self, _name: &str, _runs: usize) {}
    /// A run is over.
    fn run(&mut self, _news: &str) {}
    /// True if it is to end early.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// Hears nothing.
impl Watcher for () {}

pub(crate) fn go_on(watcher: &dyn Watcher) -> Result<(), IrqError> {
    match watcher.is_interrupted() {
        true => Err(IrqError::Interrupted),
        false => Ok(()),
    }
}

/// Devices whose vectors are all unmasked, as a resumed VM's are: as many as `total` vectors
/// fill, the last one perhaps with fewer vectors than the others.
pub(crate) fn devices(
    router: &Router,
    options: &Options,
    total: usize,
) -> Result<Vec<Msix>, IrqError> {
    let (full, rest) = (total / options.vectors, total % options.vectors);
    let shape = Shape { devices: full, vectors: options.vectors, vcpus: options.vcpus };
    let mut devices = shape.devices(router)?;
    if rest > 0 {
        let mut state = shape.state(full);
        state.control = 1 << 15 | (rest - 1) as u16;
        state.table.truncate(rest);
        state.pba = vec![0; rest.div_ceil(64)];
        let sources = (0..rest).map(|_| Source::gate(router)).collect::<Result<Vec<_>, _>>()?;
        let mut msix = Msix::new(sources, None)?;
        msix.restore(&state)?;
        devices.push(msix);
    }
    Ok(devices)
}

/// What is measured, and where.
pub(crate) struct Bench<'o> {
    pub(crate) options: &'o Options,
    pub(crate) limit: Limit,
    placement: Placement,
    _busy: BusyCpus,
}

/// A VM with its devices enabled.
pub(crate) struct Done {
    pub(crate) guest: Guest,
    pub(crate) devices: Vec<Msix>,
    pub(crate) prepared: Duration,
    pub(crate) enabled: Enabled,
    /// CPU time of this thread meanwhile.
    pub(crate) cpu: Duration,
}

/// CPU time of the calling thread (CLOCK_THREAD_CPUTIME_ID).
pub(crate) fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Enables so many vectors on a fresh VM; `start` is called just before time begins.
pub(crate) fn run_once(
    bench: &Bench<'_>,
    strategy: Strategy,
    total: usize,
    start: impl FnOnce(),
) -> Result<Done, IrqError> {
    let options = bench.options;
    let guest = Guest::new(options.vcpus, options.running_vcpus, bench.placement.before())?;
    let mut devices = devices(&guest.router, options, total)?;
    let failed = |e: EnableError| IrqError::enable(strategy.name())(e);
    let prepared = match strategy.is_ahead() {
        true => prepare(&guest.router, &mut devices, strategy).map_err(failed)?,
        false => Duration::ZERO,
    };
    start();
    let before = thread_cpu();
    let enabled = enable(&guest.router, &mut devices, strategy).map_err(failed)?;
    let cpu = thread_cpu().saturating_sub(before);
    Ok(Done { guest, devices, prepared, enabled, cpu })
}

impl Done {
    fn run(&self, strategy: Strategy, round: usize, warmup: bool) -> IrqRun {
        let Enabled { devices, shared, commits, total } = &self.enabled;
        IrqRun {
            strategy: strategy.name().into(),
            round,
            warmup,
            prepared_s: self.prepared.as_secs_f64(),
            vfs_s: devices.iter().map(|d| d.time.as_secs_f64()).collect(),
            shared_s: shared.as_secs_f64(),
            total_s: total.as_secs_f64(),
            cpu_s: self.cpu.as_secs_f64(),
            commits: *commits,
            set_irqs: None,
        }
    }

    /// Raises every vector once and looks where it arrives. In waves, where there are more
    /// vectors than targets.
    fn deliver(&mut self) -> Result<IrqDelivery, IrqError> {
        self.guest.stop()?;
        let mut delivery = IrqDelivery::default();
        let vectors = self.devices.iter().flat_map(|d| (0..d.vectors()).map(move |n| (d, n)));
        let mut wave: Vec<&Source> = Vec::new();
        let mut expected = BTreeSet::new();
        for (device, n) in vectors {
            let (Some(source), Some(route)) = (device.source(n), device.route(n)) else {
                continue;
            };
            if !expected.insert(target(route.message())) {
                self.wave(&wave, &expected, &mut delivery)?;
                wave.clear();
                expected = BTreeSet::from([target(route.message())]);
            }
            wave.push(source);
        }
        self.wave(&wave, &expected, &mut delivery)?;
        Ok(delivery)
    }

    fn wave(
        &self,
        wave: &[&Source],
        expected: &BTreeSet<(u8, u8)>,
        delivery: &mut IrqDelivery,
    ) -> Result<(), IrqError> {
        let raised = wave.iter().filter(|source| source.raise().is_ok());
        delivery.raised += raised.count();
        let arrived = self.guest.take(expected)?;
        delivery.arrived += arrived.intersection(expected).count();
        delivery.stray += arrived.difference(expected).count();
        Ok(())
    }
}

/// Runs the whole experiment.
///
/// # Errors
/// [`IrqError::Usage`], [`IrqError::Interrupted`], and what this host can't do.
pub fn measure(
    options: &Options,
    envelope: Envelope,
    watcher: &mut dyn Watcher,
) -> Result<IrqResult, IrqError> {
    let limit = options.check()?;
    let busy = BusyCpus::start(options.busy_cpus).map_err(IrqError::Thread)?;
    let placement = Placement::new(options.pin.as_ref())?;
    let bench = Bench { options, limit, placement, _busy: busy };
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

impl From<msi_routes::Failure> for IrqError {
    fn from(failure: msi_routes::Failure) -> Self {
        IrqError::Measure(MeasureError::Enable(EnableError::Vector(failure)))
    }
}
