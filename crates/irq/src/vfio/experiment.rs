//! Ways to enable the vectors of real devices, in turn.

use super::device::{Device, Opened};
use super::error::VfioError;
use super::sysfs::Address;
use crate::bench::{go_on, thread_cpu, Watcher};
use crate::error::IrqError;
use crate::guest::{target, Guest};
use crate::options::allow_files;
use crate::placement::Placement;
use crate::pressure::Pressure;
use crate::summary;
use msi_routes::measure::{BusyCpus, Shape};
use msi_routes::{Batch, CommitError, EventFd, Failure, Route, Source};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, RawFd};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;
use vmeter_base::CpuList;
use vmeter_model::irq::{IrqDelivery, IrqResult, IrqRun, IrqSetup};
use vmeter_model::result::Envelope;
use vmeter_stats::plan;

/// How vectors of real devices are enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VfioStrategy {
    /// `VFIO_DEVICE_SET_IRQS` for 1, 2, … vectors, off in between. No VM.
    Growing,
    /// One vector added at a time, the others staying enabled (Linux 6.4 and later). No VM.
    Adding,
    /// All of a device at once. No VM.
    AtOnce,
    /// The whole enable as VMMs did it: growing, and for each vector a commit and an irqfd.
    VmPerVector,
    /// The whole enable as QEMU does it now: at once, one commit a device, then irqfds.
    VmPerDevice,
    /// The whole enable of all devices: at once each, and one commit for all.
    VmPerVm,
}

impl VfioStrategy {
    /// All of them, the slowest first.
    pub const ALL: [Self; 6] = [
        Self::Growing,
        Self::Adding,
        Self::AtOnce,
        Self::VmPerVector,
        Self::VmPerDevice,
        Self::VmPerVm,
    ];

    /// Its name: `growing`, `adding`, `at_once`, `vm_per_vector`,
    /// `vm_per_device`, `vm_per_vm`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Growing => "growing",
            Self::Adding => "adding",
            Self::AtOnce => "at_once",
            Self::VmPerVector => "vm_per_vector",
            Self::VmPerDevice => "vm_per_device",
            Self::VmPerVm => "vm_per_vm",
        }
    }

    fn needs_vm(self) -> bool {
        matches!(self, Self::VmPerVector | Self::VmPerDevice | Self::VmPerVm)
    }
}

impl FromStr for VfioStrategy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| {
            format!("no strategy for VFIO is called {name:?}: there are {}", names())
        })
    }
}

/// The experiment with real devices.
#[derive(Debug, Clone)]
pub struct VfioOptions {
    /// The devices.
    pub devices: Vec<Address>,
    /// Vectors of each to enable; all that the smallest has, if absent.
    pub vectors: Option<usize>,
    /// vCPUs of the VM.
    pub vcpus: usize,
    /// Threads that keep CPUs busy.
    pub busy_cpus: usize,
    /// vCPUs that run.
    pub running_vcpus: usize,
    /// Strategies; what this host can do, if empty.
    pub strategies: Vec<VfioStrategy>,
    /// Measured runs.
    pub runs: usize,
    /// Runs before them.
    pub warmup: usize,
    /// Seed of the order.
    pub seed: u64,
    /// CPUs of the committing thread; all but the boot CPU if absent.
    pub pin: Option<CpuList>,
}

/// A device's eventfds, twice: VFIO writes to one descriptor, msi-routes owns the other.
struct Vectors {
    sources: Vec<Source>,
    fds: Vec<RawFd>,
}

struct Lab<'o> {
    options: &'o VfioOptions,
    opened: Opened,
    shape: Shape,
    placement: Option<Placement>,
    warnings: Vec<String>,
    gsi_limit: usize,
}

/// What one run left: everything enabled and held.
struct Held {
    guest: Option<Guest>,
    vectors: Vec<Vectors>,
    routes: Vec<Route>,
}

/// Opens the devices, measures, and gives them back.
///
/// # Errors
/// [`IrqError::Vfio`] with what is in the way, and what this host can't do.
pub fn measure(
    options: &VfioOptions,
    envelope: Envelope,
    watcher: &mut dyn Watcher,
) -> Result<IrqResult, IrqError> {
    let mut lab = Lab::new(options)?;
    let strategies = lab.strategies()?;
    let busy = BusyCpus::start(options.busy_cpus).map_err(IrqError::Thread)?;
    lab.placement = Some(Placement::new(options.pin.as_ref())?);
    let names: Vec<&str> = strategies.iter().map(|s| s.name()).collect();
    let mut deliveries = Vec::new();
    watcher.stage("delivery", strategies.len());
    for strategy in &strategies {
        go_on(watcher)?;
        deliveries.push(lab.deliver(*strategy)?);
        watcher.run(strategy.name());
    }
    let slots = plan::plan(strategies.len(), options.warmup, options.runs, options.seed);
    watcher.stage("strategies", slots.len());
    let pressure = Pressure::now();
    let mut runs = Vec::new();
    for slot in slots {
        go_on(watcher)?;
        let strategy = strategies[slot.machine];
        let (run, held) = lab.run(strategy, slot.block, slot.warmup)?;
        lab.release(held)?;
        runs.push(run);
        watcher.run(strategy.name());
    }
    let disturbed = pressure.share().filter(|_| options.busy_cpus == 0);
    lab.warnings.extend(disturbed.and_then(summary::disturbed));
    drop(busy);
    let mut totals = summary::totals(&runs, &names, None);
    for (strategy, total) in strategies.iter().zip(&mut totals) {
        total.ratio_to = baseline(*strategy, &strategies).map(|s| s.name().to_owned());
        let baseline = total.ratio_to.as_deref();
        total.ratio = baseline.and_then(|base| summary::ratio(&runs, base, strategy.name()));
    }
    for (total, delivery) in totals.iter_mut().zip(deliveries) {
        total.delivery = Some(delivery);
    }
    let mut result = IrqResult {
        envelope,
        setup: lab.setup(),
        rows: summary::rows(&runs, &names, lab.shape.vectors),
        totals,
        fit: Vec::new(),
        anatomy: Vec::new(),
        runs,
        warnings: lab.warnings,
        hints: Vec::new(),
    };
    summary::advise(&mut result);
    Ok(result)
}

/// What a strategy is compared with: the slowest way to the same end.
fn baseline(strategy: VfioStrategy, among: &[VfioStrategy]) -> Option<VfioStrategy> {
    let slowest = match strategy.needs_vm() {
        true => VfioStrategy::VmPerVector,
        false => VfioStrategy::Growing,
    };
    Some(slowest).filter(|slowest| *slowest != strategy && among.contains(slowest))
}

impl<'o> Lab<'o> {
    fn new(options: &'o VfioOptions) -> Result<Self, IrqError> {
        if let Some(twice) = twice(&options.devices) {
            return Err(VfioError::Twice(twice.to_string()).into());
        }
        let opened = Opened::new(&options.devices)?;
        let least = opened.devices.iter().min_by_key(|device| device.msix.count);
        let Some(least) = least else {
            return Err(IrqError::Usage("--vfio: expected at least one device".into()));
        };
        let vectors = options.vectors.unwrap_or(least.msix.count);
        if vectors == 0 || vectors > least.msix.count {
            let (address, found) = (least.address.to_string(), least.msix.count);
            return Err(VfioError::Vectors { address, found, wanted: vectors.max(1) }.into());
        }
        let devices = opened.devices.len();
        allow_files((devices * vectors + 8 * options.vcpus + 64) as u64)?;
        let shape = Shape { devices, vectors, vcpus: options.vcpus };
        Ok(Lab { options, opened, shape, placement: None, warnings: Vec::new(), gsi_limit: 0 })
    }

    /// The strategies asked for, or all that this host can do.
    fn strategies(&mut self) -> Result<Vec<VfioStrategy>, IrqError> {
        let asked = &self.options.strategies;
        let all = asked.is_empty();
        let mut strategies = if all { VfioStrategy::ALL.to_vec() } else { asked.clone() };
        if !self.opened.devices.iter().all(|device| device.msix.grows) {
            strategies.retain(|s| *s != VfioStrategy::Adding);
            if !all && asked.contains(&VfioStrategy::Adding) {
                let text = "adding is left out: vectors can't be added one by one \
                            (VFIO_IRQ_INFO_NORESIZE; Linux 6.4 and later can)";
                self.warnings.push(text.into());
            }
        }
        if strategies.iter().any(|s| s.needs_vm()) {
            match Guest::new(1, 0, None) {
                Ok(guest) => self.gsi_limit = guest.router.kernel().route_limit(),
                Err(error) if all => {
                    strategies.retain(|s| !s.needs_vm());
                    self.warnings.push(format!("the whole enable was not measured: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(strategies)
    }

    fn setup(&self) -> IrqSetup {
        let options = self.options;
        IrqSetup {
            vfs: self.shape.devices,
            vectors: self.shape.vectors,
            vcpus: options.vcpus,
            busy_cpus: options.busy_cpus,
            running_vcpus: options.running_vcpus,
            runs: options.runs,
            warmup: options.warmup,
            seed: options.seed,
            gsi_limit: self.gsi_limit,
            cpus: self.placement.as_ref().map_or(Vec::new(), |p| p.cpus.as_slice().to_vec()),
            devices: options.devices.iter().map(ToString::to_string).collect(),
        }
    }

    fn vectors(&self) -> Result<Vec<Vectors>, IrqError> {
        let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
        let one = |_| -> Result<(Source, RawFd), IrqError> {
            let eventfd = EventFd::new(flags);
            let eventfd = eventfd.map_err(|e| VfioError::ioctl("eventfd", "a vector")(e))?;
            let fd = eventfd.as_raw_fd();
            Ok((Source::External(Arc::new(eventfd)), fd))
        };
        let device = |_| {
            let both = (0..self.shape.vectors).map(one).collect::<Result<Vec<_>, _>>()?;
            let (sources, fds) = both.into_iter().unzip();
            Ok(Vectors { sources, fds })
        };
        (0..self.shape.devices).map(device).collect()
    }

    /// One run, which leaves everything enabled.
    fn run(
        &self,
        strategy: VfioStrategy,
        round: usize,
        warmup: bool,
    ) -> Result<(IrqRun, Held), IrqError> {
        let needs_vm = strategy.needs_vm();
        let cpus = self.placement.as_ref().and_then(Placement::before);
        let guest =
            needs_vm.then(|| Guest::new(self.options.vcpus, self.options.running_vcpus, cpus));
        let guest = guest.transpose()?;
        let mut held = Held { guest, vectors: self.vectors()?, routes: Vec::new() };
        let mut run = IrqRun {
            strategy: strategy.name().into(),
            round,
            warmup,
            prepared_s: 0.0,
            vfs_s: Vec::new(),
            shared_s: 0.0,
            total_s: 0.0,
            cpu_s: 0.0,
            commits: 0,
            set_irqs: Some(0),
        };
        let (begin, cpu) = (Instant::now(), thread_cpu());
        let mut shared = held.guest.as_ref().map(|guest| guest.router.batch());
        for n in 0..self.shape.devices {
            let start = Instant::now();
            self.enable(strategy, n, &mut held, shared.as_mut(), &mut run)?;
            run.vfs_s.push(start.elapsed().as_secs_f64());
        }
        if let Some(batch) = shared.filter(|batch| !batch.is_empty()) {
            let start = Instant::now();
            commit(batch, &mut run)?;
            run.shared_s = start.elapsed().as_secs_f64();
        }
        run.total_s = begin.elapsed().as_secs_f64();
        run.cpu_s = thread_cpu().saturating_sub(cpu).as_secs_f64();
        Ok((run, held))
    }

    /// Enables one device.
    fn enable(
        &self,
        strategy: VfioStrategy,
        n: usize,
        held: &mut Held,
        shared: Option<&mut Batch>,
        run: &mut IrqRun,
    ) -> Result<(), IrqError> {
        let device = &self.opened.devices[n];
        let Held { guest, vectors, routes } = held;
        let Vectors { sources, fds } = &vectors[n];
        let mut stage = |batch: &mut Batch, vector: usize| {
            let source = sources[vector].clone();
            batch.add(self.shape.message(n, vector), source).map(|route| routes.push(route))
        };
        let all = 0..self.shape.vectors;
        let set_irqs = match (strategy, guest) {
            (VfioStrategy::Growing, _) => all.map(|vector| grow(device, fds, vector)).sum(),
            (VfioStrategy::Adding, _) => {
                all.map(|vector| set(device, vector, &fds[vector..=vector])).sum()
            }
            (VfioStrategy::VmPerVector, Some(guest)) => {
                let mut calls = 0;
                for vector in all {
                    calls += grow(device, fds, vector)?;
                    let mut batch = guest.router.batch();
                    stage(&mut batch, vector)?;
                    commit(batch, run)?;
                }
                Ok(calls)
            }
            (VfioStrategy::VmPerDevice, Some(guest)) => {
                let mut batch = guest.router.batch();
                all.into_iter().try_for_each(|vector| stage(&mut batch, vector))?;
                commit(batch, run)?;
                set(device, 0, fds)
            }
            (VfioStrategy::VmPerVm, Some(_)) => {
                if let Some(batch) = shared {
                    all.into_iter().try_for_each(|vector| stage(batch, vector))?;
                }
                set(device, 0, fds)
            }
            _ => set(device, 0, fds),
        };
        let calls = set_irqs?;
        run.set_irqs = run.set_irqs.map(|before| before + calls);
        Ok(())
    }

    /// Gives all back, ready for another run.
    fn release(&self, held: Held) -> Result<(), IrqError> {
        self.opened.devices.iter().try_for_each(Device::disable)?;
        let Held { guest, vectors, routes } = held;
        // The VM first: its irqfds then go all at once.
        drop(guest);
        drop((routes, vectors));
        Ok(())
    }

    /// Enables all, has every vector raised by VFIO while all are held, and counts.
    fn deliver(&self, strategy: VfioStrategy) -> Result<IrqDelivery, IrqError> {
        let (_, mut held) = self.run(strategy, 0, true)?;
        let mut delivery = IrqDelivery { held: self.held(), ..IrqDelivery::default() };
        if let Some(guest) = &mut held.guest {
            guest.stop()?;
            let mut done = 0;
            while done < held.routes.len() {
                done = self.wave(guest, &held.routes, done, &mut delivery)?;
            }
        } else {
            self.all_raised(&mut delivery)?;
            for source in held.vectors.iter().flat_map(|vectors| &vectors.sources) {
                let Source::External(eventfd) = source else { continue };
                match eventfd.read() {
                    Ok(1) => delivery.arrived += 1,
                    Ok(more) => delivery.stray += more as usize,
                    Err(_) => {}
                }
            }
        }
        self.release(held)?;
        Ok(delivery)
    }

    /// The host's interrupts that VFIO has for these devices now; none where /proc does not say.
    fn held(&self) -> Option<usize> {
        let interrupts = std::fs::read_to_string("/proc/interrupts").ok()?;
        let own = |line: &&str| {
            let of = |device: &Device| line.contains(device.address.as_str());
            line.contains("vfio-msix") && self.opened.devices.iter().any(of)
        };
        Some(interrupts.lines().filter(own).count())
    }

    fn all_raised(&self, delivery: &mut IrqDelivery) -> Result<(), IrqError> {
        for device in &self.opened.devices {
            for vector in 0..self.shape.vectors {
                device.raise(vector)?;
                delivery.raised += 1;
            }
        }
        Ok(())
    }

    /// Raises as many vectors from `from` on as lead to targets of their own; gives the next.
    fn wave(
        &self,
        guest: &Guest,
        routes: &[Route],
        from: usize,
        delivery: &mut IrqDelivery,
    ) -> Result<usize, IrqError> {
        let mut expected = BTreeSet::new();
        let own = |route: &&Route| expected.insert(target(route.message()));
        let count = routes[from..].iter().take_while(own).count();
        for n in from..from + count {
            self.opened.devices[n / self.shape.vectors].raise(n % self.shape.vectors)?;
        }
        let arrived = guest.take(&expected)?;
        delivery.raised += count;
        delivery.arrived += arrived.intersection(&expected).count();
        delivery.stray += arrived.difference(&expected).count();
        Ok(from + count)
    }
}

/// MSI-X with all vectors up to this one, switched off before if it was on.
fn grow(device: &Device, fds: &[RawFd], vector: usize) -> Result<usize, IrqError> {
    if vector > 0 {
        device.disable()?;
    }
    Ok(set(device, 0, &fds[..=vector])? + usize::from(vector > 0))
}

fn set(device: &Device, start: usize, fds: &[RawFd]) -> Result<usize, IrqError> {
    device.enable(start, fds)?;
    Ok(1)
}

fn commit(batch: Batch, run: &mut IrqRun) -> Result<(), IrqError> {
    let report =
        batch.commit().map_err(|e: CommitError| IrqError::enable(&run.strategy)(e.into()))?;
    let counts =
        report.complete().map_err(|e: Failure| IrqError::enable(&run.strategy)(e.into()))?;
    run.commits += counts.commits;
    Ok(())
}

fn twice(devices: &[Address]) -> Option<&Address> {
    let mut seen = BTreeSet::new();
    devices.iter().find(|address| !seen.insert(*address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for strategy in VfioStrategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        assert!("per_vm".parse::<VfioStrategy>().unwrap_err().contains("vm_per_vm"));
    }

    #[test]
    fn each_kind_is_compared_with_its_own_slowest() {
        use VfioStrategy::{AtOnce, Growing, VmPerVector, VmPerVm};
        let all = VfioStrategy::ALL;
        assert_eq!(baseline(AtOnce, &all), Some(Growing));
        assert_eq!(baseline(VmPerVm, &all), Some(VmPerVector));
        assert_eq!(baseline(VmPerVm, &[AtOnce, VmPerVm]), None);
        assert_eq!(baseline(Growing, &all), None);
    }
}
