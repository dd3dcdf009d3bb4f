//! Ways to enable the vectors of real devices, in turn.

use super::device::{Device, Opened};
use super::error::VfioError;
use super::options::{VfioOptions, VfioStrategy};
use super::sysfs::Address;
use crate::apparatus::Apparatus;
use crate::bench::thread_cpu;
use crate::config::{allow_files, Found};
use crate::data::{ns, Data, Delivered, Enabled};
use crate::error::IrqError;
use crate::guest::{target, Guest};
use crate::placement::Placement;
use crate::plan::{IrqPlanned, Purpose};
use crate::pressure::Pressure;
use msi_routes::measure::{BusyCpus, Shape};
use msi_routes::{Batch, CommitError, EventFd, Failure, Route, Source};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use vmeter_base::CpuList;

/// A device's eventfds, twice: VFIO writes to one descriptor, msi-routes owns the other.
struct Vectors {
    sources: Vec<Source>,
    fds: Vec<RawFd>,
}

/// The devices, opened, and where they are measured.
pub(crate) struct Lab<'o> {
    options: &'o VfioOptions,
    opened: Opened,
    shape: Shape,
    strategies: Vec<VfioStrategy>,
    left_out: Vec<String>,
    gsi_limit: usize,
    placement: Placement,
    _busy: BusyCpus,
}

/// What one run left: everything enabled and held.
struct Held {
    guest: Option<Guest>,
    vectors: Vec<Vectors>,
    routes: Vec<Route>,
}

/// Strategies that this host can do, and what it can't.
#[derive(Default)]
struct Possible {
    strategies: Vec<VfioStrategy>,
    left_out: Vec<String>,
    gsi_limit: usize,
}

/// The strategies asked for, or all that this host can do.
fn possible(asked: &[VfioStrategy], opened: &Opened) -> Result<Possible, IrqError> {
    let all = asked.is_empty();
    let strategies = if all { VfioStrategy::ALL.to_vec() } else { asked.to_vec() };
    let mut possible = Possible { strategies, ..Possible::default() };
    if !opened.devices.iter().all(|device| device.msix.grows) {
        possible.strategies.retain(|s| *s != VfioStrategy::Adding);
        if !all && asked.contains(&VfioStrategy::Adding) {
            let text = "vmeter skips the strategy `adding`: this kernel cannot add vectors one \
                by one (VFIO_IRQ_INFO_NORESIZE; Linux 6.4 and later can)";
            possible.left_out.push(text.into());
        }
    }
    if possible.strategies.iter().any(|s| s.needs_vm()) {
        match Guest::new(1, 0, None) {
            Ok(guest) => possible.gsi_limit = guest.router.kernel().route_limit(),
            Err(error) if all => {
                possible.strategies.retain(|s| !s.needs_vm());
                possible.left_out.push(format!(
                    "vmeter skips the strategies vm_per_vector, vm_per_device and vm_per_vm: \
                        {error}"
                ));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(possible)
}

impl<'o> Lab<'o> {
    /// Opens the devices; they are given back when it is dropped. `before` is what was found
    /// when the session began that is gone on with.
    ///
    /// # Errors
    /// [`IrqError::Vfio`] with what is in the way, and what this host can't do.
    pub(crate) fn new(
        options: &'o VfioOptions,
        pin: Option<&CpuList>,
        before: Option<&Found>,
    ) -> Result<Self, IrqError> {
        options.load().check()?;
        if let Some(twice) = twice(&options.devices) {
            return Err(VfioError::Twice(twice.to_string()).into());
        }
        let opened = Opened::new(&options.devices)?;
        let least = opened.devices.iter().min_by_key(|device| device.msix.count);
        let Some(least) = least else {
            return Err(IrqError::Usage("--vfio: expected at least one device".into()));
        };
        let wanted = options.vectors.or(before.map(|before| before.vectors));
        let vectors = wanted.unwrap_or(least.msix.count);
        if vectors == 0 || vectors > least.msix.count {
            let (address, found) = (least.address.to_string(), least.msix.count);
            return Err(VfioError::Vectors { address, found, wanted: vectors.max(1) }.into());
        }
        let devices = opened.devices.len();
        allow_files((devices * vectors + 8 * options.vcpus + 64) as u64)?;
        let shape = Shape { devices, vectors, vcpus: options.vcpus };
        let asked = match before {
            Some(before) => strategies(before)?,
            None => options.strategies.clone(),
        };
        let Possible { strategies, left_out, gsi_limit } = possible(&asked, &opened)?;
        if before.is_some_and(|before| before.strategies.len() != strategies.len()) {
            return Err(IrqError::Usage(format!(
                "the resumed session has strategies that this host cannot measure: {}",
                left_out.join("; ")
            )));
        }
        let busy = BusyCpus::start(options.busy_cpus).map_err(IrqError::Thread)?;
        let placement = Placement::new(pin)?;
        Ok(Lab { options, opened, shape, strategies, left_out, gsi_limit, placement, _busy: busy })
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

    /// Enables all, and leaves it so.
    fn run(&self, strategy: VfioStrategy) -> Result<(Enabled, Held), IrqError> {
        let needs_vm = strategy.needs_vm();
        let cpus = self.placement.before();
        let guest =
            needs_vm.then(|| Guest::new(self.options.vcpus, self.options.running_vcpus, cpus));
        let guest = guest.transpose()?;
        let mut held = Held { guest, vectors: self.vectors()?, routes: Vec::new() };
        let mut run = Enabled { set_irqs: Some(0), ..Enabled::default() };
        let (begin, cpu) = (Instant::now(), thread_cpu());
        let mut shared = held.guest.as_ref().map(|guest| guest.router.batch());
        for n in 0..self.shape.devices {
            let start = Instant::now();
            self.enable(strategy, n, &mut held, shared.as_mut(), &mut run)?;
            run.vfs_ns.push(ns(start.elapsed()));
        }
        if let Some(batch) = shared.filter(|batch| !batch.is_empty()) {
            let start = Instant::now();
            commit(batch, strategy, &mut run)?;
            run.shared_ns = ns(start.elapsed());
        }
        run.total_ns = ns(begin.elapsed());
        run.cpu_ns = ns(thread_cpu().saturating_sub(cpu));
        Ok((run, held))
    }

    /// Enables one device.
    fn enable(
        &self,
        strategy: VfioStrategy,
        n: usize,
        held: &mut Held,
        shared: Option<&mut Batch>,
        run: &mut Enabled,
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
                    commit(batch, strategy, run)?;
                }
                Ok(calls)
            }
            (VfioStrategy::VmPerDevice, Some(guest)) => {
                let mut batch = guest.router.batch();
                all.into_iter().try_for_each(|vector| stage(&mut batch, vector))?;
                commit(batch, strategy, run)?;
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
    fn deliver(&self, strategy: VfioStrategy) -> Result<Delivered, IrqError> {
        let (_, mut held) = self.run(strategy)?;
        let mut delivery = Delivered { held: self.held(), ..Delivered::default() };
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

    fn all_raised(&self, delivery: &mut Delivered) -> Result<(), IrqError> {
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
        delivery: &mut Delivered,
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

impl Apparatus for Lab<'_> {
    fn found(&self) -> Found {
        Found {
            gsi_limit: self.gsi_limit,
            free_routes: 0,
            vfs: self.shape.devices,
            vectors: self.shape.vectors,
            cpus: self.placement.cpus.as_slice().to_vec(),
            strategies: self.strategies.iter().map(|s| (*s).into()).collect(),
            left_out: self.left_out.clone(),
        }
    }

    fn carry_out(&self, planned: &IrqPlanned, _: &Path) -> Result<Data, IrqError> {
        let strategy = self.strategies.get(planned.strategy).copied();
        let strategy = strategy.ok_or_else(|| planned.is_unknown())?;
        match planned.purpose {
            Purpose::Delivery => Ok(Data::Delivered(self.deliver(strategy)?)),
            Purpose::Round { .. } => {
                let pressure = Pressure::now();
                let (enabled, held) = self.run(strategy)?;
                self.release(held)?;
                Ok(Data::Enabled(Enabled { stalled: pressure.stalled(), ..enabled }))
            }
            Purpose::Together { .. }
            | Purpose::Trace
            | Purpose::Growth { .. }
            | Purpose::Limit { .. } => Err(planned.is_unknown()),
        }
    }
}

/// The strategies of a session that is gone on with.
fn strategies(before: &Found) -> Result<Vec<VfioStrategy>, IrqError> {
    let wrong = |error| IrqError::Usage(format!("session.json: {error}"));
    before.strategies.iter().map(|s| s.word().parse().map_err(wrong)).collect()
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

fn commit(batch: Batch, strategy: VfioStrategy, run: &mut Enabled) -> Result<(), IrqError> {
    let failed = || IrqError::enable(strategy.word());
    let report = batch.commit().map_err(|e: CommitError| failed()(e.into()))?;
    let counts = report.complete().map_err(|e: Failure| failed()(e.into()))?;
    run.commits += counts.commits;
    Ok(())
}

fn twice(devices: &[Address]) -> Option<&Address> {
    let mut seen = BTreeSet::new();
    devices.iter().find(|address| !seen.insert(*address))
}
