//! The harness: fresh VMs with devices, enabled under the conditions that were asked for.
//! The rounds, the fit and the trace of a commit are all built on it.

use crate::config::{Limit, Options};
use crate::data::{ns, Delivered, Enabled, Stalled};
use crate::error::IrqError;
use crate::guest::{target, Guest};
use crate::placement::Placement;
use crate::pressure::Pressure;
use msi_routes::measure::{BusyCpus, MeasureError, Shape};
use msi_routes::{enable, prepare, EnableError, Msix, Router, Source, Strategy};
use std::collections::BTreeSet;
use std::time::Duration;
use vmeter_base::{seconds, CpuList, Ns};

/// Samples at the host's limit of routes, at most.
const LIMIT_SAMPLES: usize = 3;
/// No further sample at the limit is taken once they took this long, s.
const LIMIT_ENOUGH_S: f64 = 3.0;

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
        let sources =
            (0..rest).map(|_| Source::gate(router.kernel())).collect::<Result<Vec<_>, _>>()?;
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
    pub(crate) fn new(options: &'o Options, pin: Option<&CpuList>) -> Result<Self, IrqError> {
        let limit = options.check()?;
        let busy = BusyCpus::start(options.busy_cpus).map_err(IrqError::Thread)?;
        let placement = Placement::new(pin)?;
        Ok(Bench { options, limit, placement, _busy: busy })
    }

    pub(crate) fn sample(&self, strategy: Strategy, vectors: usize) -> Result<Enabled, IrqError> {
        let pressure = Pressure::now();
        let done = run_once(self, strategy, vectors, || ())?;
        Ok(done.measured(pressure.stalled()))
    }

    /// Several samples, but none after they took long enough.
    pub(crate) fn samples(
        &self,
        strategy: Strategy,
        vectors: usize,
    ) -> Result<Vec<Enabled>, IrqError> {
        let mut samples: Vec<Enabled> = Vec::new();
        let enough = |all: &[Enabled]| {
            let took: Ns = all.iter().map(|one| one.total_ns).sum();
            all.len() == LIMIT_SAMPLES || seconds(took) >= LIMIT_ENOUGH_S
        };
        while !enough(&samples) {
            samples.push(self.sample(strategy, vectors)?);
        }
        Ok(samples)
    }
}

/// A VM with its devices enabled.
pub(crate) struct Done {
    pub(crate) guest: Guest,
    pub(crate) devices: Vec<Msix>,
    pub(crate) prepared: Duration,
    pub(crate) enabled: msi_routes::Enabled,
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
    let prepared = prepare(&guest.router, &mut devices, strategy).map_err(failed)?;
    start();
    let before = thread_cpu();
    let enabled = enable(&guest.router, &mut devices, strategy).map_err(failed)?;
    let cpu = thread_cpu().saturating_sub(before);
    Ok(Done { guest, devices, prepared, enabled, cpu })
}

impl Done {
    fn measured(&self, stalled: Option<Stalled>) -> Enabled {
        let msi_routes::Enabled { devices, shared, commits, total, .. } = &self.enabled;
        Enabled {
            prepared_ns: ns(self.prepared),
            vfs_ns: devices.iter().map(|device| ns(device.time)).collect(),
            shared_ns: ns(*shared),
            total_ns: ns(*total),
            cpu_ns: ns(self.cpu),
            commits: *commits,
            set_irqs: None,
            stalled,
        }
    }

    /// Raises every vector once and looks where it arrives. In waves, where there are more
    /// vectors than targets.
    pub(crate) fn deliver(&mut self) -> Result<Delivered, IrqError> {
        self.guest.stop()?;
        let mut delivery = Delivered::default();
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
        delivery: &mut Delivered,
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
