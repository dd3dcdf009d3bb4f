//! The harness: fresh VMs with devices, enabled under the conditions that were asked for.
//! The rounds, the fit and the trace of a commit are all built on it.

use crate::error::IrqError;
use crate::guest::{target, Guest};
use crate::options::{Limit, Options};
use crate::placement::Placement;
use msi_routes::measure::{BusyCpus, MeasureError, Shape};
use msi_routes::{enable, prepare, EnableError, Enabled, Msix, Router, Source, Strategy};
use std::collections::BTreeSet;
use std::time::Duration;
use vmeter_model::irq::{IrqDelivery, IrqRun};

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
fn devices(router: &Router, options: &Options, total: usize) -> Result<Vec<Msix>, IrqError> {
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
    pub(crate) placement: Placement,
    _busy: BusyCpus,
}

impl<'o> Bench<'o> {
    /// Starts what keeps CPUs busy and puts this thread in its place, until it is dropped.
    ///
    /// # Errors
    /// [`IrqError::Usage`], and what this host can't do.
    pub(crate) fn new(options: &'o Options) -> Result<Self, IrqError> {
        let limit = options.check()?;
        let busy = BusyCpus::start(options.busy_cpus).map_err(IrqError::Thread)?;
        let placement = Placement::new(options.pin.as_ref())?;
        Ok(Bench { options, limit, placement, _busy: busy })
    }
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
    pub(crate) fn run(&self, strategy: Strategy, round: usize, warmup: bool) -> IrqRun {
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
    pub(crate) fn deliver(&mut self) -> Result<IrqDelivery, IrqError> {
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

impl From<msi_routes::Failure> for IrqError {
    fn from(failure: msi_routes::Failure) -> Self {
        IrqError::Measure(MeasureError::Enable(EnableError::Vector(failure)))
    }
}
