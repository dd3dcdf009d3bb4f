// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Random guests on a model of KVM that refuses, fails and panics at random. After every commit a
//! live vector has its entry and its irqfd; no interrupt is lost and none comes twice.
//! `MSI_ROUTES_SEEDS=FIRST-LAST` runs other seeds; a failure prints its own.

use crate::kernels;

use kernels::Random;
use kvm_bindings::KVM_IRQ_ROUTING_MSI;
use msi_routes::{Errno, EventFd, Kernel, MsiMessage, Msix, Phase, Router, Routing, Source};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const DEVICES: usize = 2;
const VECTORS: usize = 4;
/// Upper halves of addresses that `translate` and the table refuse.
const UNTRANSLATABLE: u32 = 0xbad00;
const REFUSED: u32 = 0x1;

#[derive(Clone, Copy, PartialEq)]
enum Faults {
    /// Only what the guest's messages make it refuse.
    None,
    Errors,
    Panics,
}

struct State {
    random: Random,
    faults: Faults,
    /// An eventfd's irqfd when the kernel panicked: detaching it twice is no error then.
    doubtful: HashSet<RawFd>,
    /// GSI to the id in its message's data.
    table: HashMap<u32, u32>,
    irqfds: HashMap<RawFd, (EventFd, u32)>,
    /// By id: an interrupt was raised, and has not arrived since.
    owed: Vec<bool>,
    /// Interrupts that nobody raised.
    extra: Vec<usize>,
}

struct Model(Mutex<State>);

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// May fail this call.
    fn call(&self) -> Result<(), Errno> {
        let mut state = self.state();
        state.pump();
        if state.faults == Faults::None || state.random.below(8) > 0 {
            return Ok(());
        }
        if state.faults == Faults::Panics {
            state.panic();
        }
        let errnos = [libc::EINVAL, libc::ENOMEM, libc::EINTR, libc::EBUSY];
        Err(Errno::new(errnos[state.random.below(4)]))
    }

    /// True if the kernel panicked when it was last asked about this irqfd.
    fn doubt(&self, fd: RawFd) -> bool {
        let mut state = self.state();
        let doubtful = state.doubtful.contains(&fd);
        if state.faults == Faults::Panics {
            state.doubtful.insert(fd);
        }
        doubtful
    }

    /// May panic after the call has done its work.
    fn done(&self) {
        let mut state = self.state();
        if state.faults == Faults::Panics && state.random.below(8) == 0 {
            state.panic();
        }
    }
}

impl State {
    fn panic(&mut self) -> ! {
        self.faults = Faults::None;
        panic!("planted");
    }

    /// What was written to eventfds that have an irqfd arrives, as it does at once in KVM.
    fn pump(&mut self) {
        let written = |(eventfd, gsi): &(EventFd, u32)| eventfd.read().ok().map(|_| *gsi);
        let gsis: Vec<u32> = self.irqfds.values().filter_map(written).collect();
        gsis.into_iter().for_each(|gsi| self.inject(gsi));
    }

    /// A GSI without an entry drops it.
    fn inject(&mut self, gsi: u32) {
        if let Some(&id) = self.table.get(&gsi) {
            self.arrive(id);
        }
    }

    fn arrive(&mut self, id: u32) {
        let id = id as usize;
        if !std::mem::take(&mut self.owed[id]) {
            self.extra.push(id);
        }
    }
}

impl Kernel for Model {
    fn route_limit(&self) -> usize {
        64
    }

    fn set_routing(&self, routes: &Routing) -> Result<(), Errno> {
        self.call()?;
        let mut table = HashMap::new();
        for entry in routes.as_ref().as_slice().iter().filter(|e| e.type_ == KVM_IRQ_ROUTING_MSI) {
            // SAFETY: the type says that the union holds a message.
            let msi = unsafe { entry.u.msi };
            if msi.address_hi == REFUSED {
                return Err(Errno::new(libc::EINVAL));
            }
            table.insert(entry.gsi, msi.data);
        }
        self.state().table = table;
        self.done();
        Ok(())
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.doubt(eventfd.as_raw_fd());
        self.call()?;
        let mut state = self.state();
        let busy = state.irqfds.insert(eventfd.as_raw_fd(), (eventfd.try_clone()?, gsi)).is_some();
        assert!(!busy, "{gsi} is attached twice");
        state.pump();
        drop(state);
        self.done();
        self.state().doubtful.remove(&eventfd.as_raw_fd());
        Ok(())
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        let fd = eventfd.as_raw_fd();
        let again = self.doubt(fd);
        self.call()?;
        match self.state().irqfds.remove(&fd) {
            Some((_, of)) => assert_eq!(of, gsi, "detached from another GSI"),
            None if !again => return Err(Errno::new(libc::ENOENT)),
            None => {}
        }
        self.done();
        self.state().doubtful.remove(&fd);
        Ok(())
    }

    fn translate(&self, message: MsiMessage) -> Result<MsiMessage, Errno> {
        match message.address >> 32 {
            high if high == u64::from(UNTRANSLATABLE) => Err(Errno::new(libc::EINVAL)),
            _ => Ok(message),
        }
    }

    fn signals(&self) -> bool {
        true
    }

    fn signal(&self, message: MsiMessage) -> Result<(), Errno> {
        self.call()?;
        if message.address >> 32 == u64::from(REFUSED) {
            return Err(Errno::new(libc::EPERM));
        }
        self.state().arrive(message.data);
        Ok(())
    }
}

fn same(one: &Source, other: &Source) -> bool {
    match (one, other) {
        (Source::External(one), Source::External(other)) => Arc::ptr_eq(one, other),
        _ => true,
    }
}

struct Guest {
    seed: u64,
    model: Arc<Model>,
    router: Router,
    devices: Vec<Msix>,
    random: Random,
}

impl Guest {
    fn new(seed: u64, faults: Faults) -> Self {
        let state = State {
            random: Random(seed * 2 + 1),
            faults,
            doubtful: HashSet::new(),
            table: HashMap::new(),
            irqfds: HashMap::new(),
            owed: vec![false; DEVICES * VECTORS],
            extra: Vec::new(),
        };
        let model = Arc::new(Model(Mutex::new(state)));
        // Room for five of the eight vectors in some guests.
        let first = [24, 59][seed as usize % 2];
        let router = Router::with_first_gsi(model.clone(), [], first).unwrap();
        router.set_signals(seed % 3 > 0);
        router.set_lazy(seed % 5 == 0);
        router.set_detach_threads(1 + seed as usize % 3);
        let source = |n: usize| match n % 2 {
            0 => Source::external(EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap(),
            _ => Source::gate(router.kernel()).unwrap(),
        };
        let device = |_| Msix::new((0..VECTORS).map(source), None).unwrap();
        let devices = (0..DEVICES).map(device).collect();
        Self { seed, model, router, devices, random: Random(seed * 7 + 3) }
    }

    fn raise(&mut self, device: usize, vector: usize) {
        self.model.state().owed[device * VECTORS + vector] = true;
        // One that the kernel refuses, or panics at, is pending.
        let source = self.devices[device].source(vector).unwrap();
        let _ = catch_unwind(AssertUnwindSafe(|| source.raise()));
    }

    fn write(&mut self, device: usize, vector: usize, word: u64, value: u32) {
        let offset = vector as u64 * 16 + word * 4;
        let _ = self.devices[device].write_table(offset, &value.to_le_bytes());
    }

    fn register(&mut self, device: usize) {
        let vector = self.random.below(VECTORS);
        let id = (device * VECTORS + vector) as u32;
        match self.random.below(10) {
            0..=2 => {
                let high = [0, 0, 0, UNTRANSLATABLE, REFUSED][self.random.below(5)];
                self.write(device, vector, 1, high);
            }
            3 => {
                let to = self.random.below(4) as u32;
                self.write(device, vector, 0, 0xfee0_0000 | to << 12);
            }
            4..=8 => {
                self.write(device, vector, 2, id);
                let masked = self.random.below(2) as u32;
                self.write(device, vector, 3, masked);
            }
            _ => {
                let control = [1 << 15, 1 << 15, 3 << 14, 0][self.random.below(4)];
                let _ = self.devices[device].set_control(control);
            }
        }
    }

    /// The device gets another eventfd, to which it writes from now on.
    fn exchange(&mut self, device: usize) {
        let vector = self.random.below(VECTORS / 2) * 2;
        let eventfd = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        self.devices[device].set_eventfd(vector, eventfd).unwrap();
    }

    fn demote(&self, device: usize) {
        let routes = (0..VECTORS).filter_map(|vector| self.devices[device].route(vector));
        drop(self.router.demote(routes));
    }

    /// A few registers, in one batch.
    fn step(&mut self) {
        let mut batch = self.router.batch();
        for _ in 0..1 + self.random.below(4) {
            let device = self.random.below(DEVICES);
            self.register(device);
            if self.random.below(8) == 0 {
                self.exchange(device);
            }
            if self.random.below(2) == 0 {
                drop(self.devices[device].sync(&mut batch));
            }
        }
        for device in &mut self.devices {
            drop(device.sync(&mut batch));
        }
        match self.random.below(9) {
            0 => drop(batch),
            3 => {
                drop(batch);
                self.demote(self.seed as usize % DEVICES);
            }
            1 => {
                drop(batch);
                drop(self.router.promote());
            }
            2 => {
                drop(batch);
                drop(self.router.sweep());
            }
            _ => drop(batch.commit()),
        }
    }

    /// What is live is in the kernel, too.
    fn check(&self, when: &str) {
        let seed = self.seed;
        let mut state = self.model.state();
        state.pump();
        for (n, device) in self.devices.iter().enumerate() {
            for vector in 0..VECTORS {
                let Some(route) = device.route(vector) else { continue };
                if route.phase() != Phase::Live || route.is_signalled() {
                    continue;
                }
                let gsi = route.gsi();
                let entry = state.table.contains_key(&gsi);
                assert!(entry, "seed {seed}, {when}: device {n}, {route:?}: no entry");
                let attached = state.irqfds.values().any(|&(_, of)| of == gsi);
                assert!(attached, "seed {seed}, {when}: device {n}, {route:?}: no irqfd");
                if !same(&route.source(), device.source(vector).unwrap()) {
                    continue; // an exchange that is not committed yet
                }
                let owed = state.owed[n * VECTORS + vector];
                assert!(!owed, "seed {seed}, {when}: device {n}, {route:?}: raised, not arrived");
            }
        }
        assert!(state.extra.is_empty(), "seed {seed}, {when}: {:?} came twice", state.extra);
    }

    /// The guest mends its messages and unmasks all: what was raised has arrived then.
    fn mend(&mut self) {
        self.model.state().faults = Faults::None;
        let mut batch = self.router.batch();
        for device in 0..DEVICES {
            for vector in 0..VECTORS {
                let id = (device * VECTORS + vector) as u32;
                for (word, value) in [(1, 0), (0, 0xfee0_0000), (2, id), (3, 0)] {
                    self.write(device, vector, word, value);
                }
            }
            let _ = self.devices[device].set_control(1 << 15);
            drop(self.devices[device].sync(&mut batch));
        }
        let report = batch.commit().unwrap();
        assert!(report.failures.is_empty(), "seed {}: {:?}", self.seed, report.failures);
        self.check("mended");
        for device in 0..DEVICES {
            for vector in 0..VECTORS {
                self.arrived(device, vector);
            }
        }
    }

    /// Nothing is left of devices that are no more.
    fn unplug(&mut self) {
        self.devices.clear();
        let swept = self.router.sweep().unwrap();
        let left = (swept.counts.routes, self.router.msi_routes(), self.model.state().irqfds.len());
        assert_eq!(left, (0, 0, 0), "seed {}: entries, GSIs, irqfds", self.seed);
    }

    fn arrived(&self, device: usize, vector: usize) {
        let (seed, source) = (self.seed, self.devices[device].source(vector).unwrap());
        let Some(route) = self.devices[device].route(vector) else { return };
        if route.phase() != Phase::Live || !same(&route.source(), source) {
            return; // no room for it, or for another vector before it
        }
        let owed = self.model.state().owed[device * VECTORS + vector];
        // KVM refused it when it was raised: it waits, and the device was told.
        let refused =
            route.is_signalled() && matches!(source, Source::Gate(gate) if gate.pending());
        assert!(!owed || refused, "seed {seed}: {device}.{vector} ({route:?}) is lost");
    }
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("MSI_ROUTES_SEEDS") else { return 1..1 + count };
    let (first, last) = range.split_once('-').expect("MSI_ROUTES_SEEDS=FIRST-LAST");
    first.parse().unwrap()..last.parse::<u64>().unwrap() + 1
}

fn run(seed: u64, faults: Faults) {
    let mut guest = Guest::new(seed, faults);
    for round in 0..60 {
        match catch_unwind(AssertUnwindSafe(|| guest.step())) {
            Ok(()) => {}
            Err(_) if faults == Faults::Panics => guest.model.state().faults = faults,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        guest.check(&format!("round {round}"));
        let (device, vector) = (guest.random.below(DEVICES), guest.random.below(VECTORS));
        guest.raise(device, vector);
        guest.check(&format!("round {round}, raised {device}.{vector}"));
    }
    guest.mend();
    guest.unplug();
}

#[test]
fn a_guest_loses_no_interrupt_to_what_it_writes() {
    seeds(600).for_each(|seed| run(seed, Faults::None));
}

#[test]
fn a_guest_loses_no_interrupt_to_a_kernel_that_refuses() {
    seeds(600).for_each(|seed| run(seed, Faults::Errors));
}

#[test]
fn a_guest_loses_no_interrupt_to_a_kernel_that_panics() {
    std::panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref::<&str>() != Some(&"planted") {
            eprintln!("{info}");
        }
    }));
    seeds(600).for_each(|seed| run(seed, Faults::Panics));
}
