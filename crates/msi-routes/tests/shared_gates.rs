// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A small pool of gates that routes share, one after another, with handles that are kept,
//! cloned and dropped at random: whatever becomes of a route, the gate of another one stays
//! as that one needs it. Against a kernel that knows what an irqfd is: it refuses an eventfd
//! that is attached, delivers through the table, and loses what has no route there.

use msi_routes::{Batch, Errno, EventFd, Gate, Kernel, MsiMessage, Phase, Route, Router, Source};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generate;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const GATES: usize = 3;

/// irqfds and a table, and what came through them.
#[derive(Default)]
struct Model {
    state: Mutex<State>,
    /// So many of the next tables are refused.
    refuse: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// Of each GSI that has a route: its message's data.
    table: BTreeMap<u32, u32>,
    /// Of each eventfd that is attached: another handle of it, and its GSI.
    attached: BTreeMap<i32, (EventFd, u32)>,
    /// Data of the messages delivered.
    arrived: Vec<u32>,
    lost: usize,
}

impl State {
    /// What was written to attached eventfds.
    fn inject(&mut self) {
        for (eventfd, gsi) in self.attached.values() {
            if eventfd.read().is_ok() {
                match self.table.get(gsi) {
                    Some(&data) => self.arrived.push(data),
                    None => self.lost += 1,
                }
            }
        }
    }
}

impl Kernel for Model {
    fn route_limit(&self) -> usize {
        64
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        if self.refuse.load(SeqCst) > 0 {
            self.refuse.fetch_sub(1, SeqCst);
            return Err(Errno::new(libc::ENOMEM));
        }
        let mut state = self.state.lock().unwrap();
        state.inject();
        // SAFETY: all members of the union are plain data; these are all MSI routes.
        let data = |e: &kvm_bindings::kvm_irq_routing_entry| (e.gsi, unsafe { e.u.msi.data });
        state.table = routes.as_ref().as_slice().iter().map(data).collect();
        assert_eq!(state.table.len(), routes.as_ref().as_slice().len(), "one MSI route a GSI");
        Ok(())
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap();
        if state.attached.contains_key(&eventfd.as_raw_fd()) {
            return Err(Errno::new(libc::EBUSY));
        }
        let own = eventfd.try_clone().unwrap();
        state.attached.insert(eventfd.as_raw_fd(), (own, gsi));
        state.inject();
        Ok(())
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap();
        state.inject();
        let at = eventfd.as_raw_fd();
        if state.attached.get(&at).is_none_or(|(_, attached)| *attached != gsi) {
            return Err(Errno::new(libc::ENOENT));
        }
        state.attached.remove(&at);
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Step {
    Add { gate: usize, live: bool },
    Remove(usize),
    Mask(usize),
    Unmask(usize),
    Clone(usize),
    Drop(usize),
    Commit,
    Refused,
    Forget,
    Fire(usize),
}

fn steps(most: usize) -> impl Generate<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..GATES, any::<bool>()).prop_map(|(gate, live)| Step::Add { gate, live }),
        3 => any::<usize>().prop_map(Step::Remove),
        1 => any::<usize>().prop_map(Step::Mask),
        2 => any::<usize>().prop_map(Step::Unmask),
        2 => any::<usize>().prop_map(Step::Clone),
        4 => any::<usize>().prop_map(Step::Drop),
        5 => Just(Step::Commit),
        1 => Just(Step::Refused),
        1 => Just(Step::Forget),
        3 => (0..GATES).prop_map(Step::Fire),
    ];
    proptest::collection::vec(step, 1..most)
}

/// The VM, the gates, and the handles that somebody keeps.
struct Lab {
    kernel: Arc<Model>,
    router: Router,
    gates: Vec<Gate>,
    /// With the gate that each is made from.
    handles: Vec<(usize, Route)>,
    batch: Option<Batch>,
    /// A gate raised what has not arrived yet.
    owed: [bool; GATES],
    next: u32,
    fired: usize,
    arrived: usize,
    /// Raised while one waited: one interrupt, as in hardware.
    merged: usize,
}

impl Lab {
    fn new() -> Self {
        let kernel = Arc::new(Model::default());
        let router = Router::new(kernel.clone(), []).unwrap();
        let gates = (0..GATES).map(|_| Gate::new(router.kernel()).unwrap()).collect();
        let (handles, batch, owed) = (Vec::new(), None, [false; GATES]);
        let (next, fired, arrived, merged) = (0, 0, 0, 0);
        Self { kernel, router, gates, handles, batch, owed, next, fired, arrived, merged }
    }

    fn batch(&mut self) -> &mut Batch {
        self.batch.get_or_insert_with(|| self.router.batch())
    }

    fn pick(&self, n: usize) -> Option<Route> {
        self.handles.get(n % self.handles.len().max(1)).map(|(_, route)| route.clone())
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Add { gate, live } => {
                self.next += 1;
                let data = self.next * GATES as u32 + gate as u32;
                let message = MsiMessage { data, ..MsiMessage::x86(0, 0) };
                let add = if live { Batch::add } else { Batch::add_masked };
                let source = Source::Gate(self.gates[gate].clone());
                // A full table is refused; that is another test's.
                if let Ok(route) = add(self.batch(), message, source) {
                    self.handles.push((gate, route));
                }
            }
            Step::Remove(n) => self.edit(n, |batch, route| drop(batch.remove(route))),
            Step::Mask(n) => self.edit(n, |batch, route| drop(batch.mask(route))),
            Step::Unmask(n) => self.edit(n, |batch, route| drop(batch.unmask(route))),
            Step::Clone(n) => {
                let at = n % self.handles.len().max(1);
                self.handles.extend(self.handles.get(at).cloned());
            }
            Step::Drop(n) => {
                if !self.handles.is_empty() {
                    drop(self.handles.swap_remove(n % self.handles.len()));
                }
            }
            Step::Commit => drop(self.batch.take().map(Batch::commit)),
            Step::Refused => {
                self.kernel.refuse.store(1, SeqCst);
                drop(self.batch.take().map(Batch::commit));
                self.kernel.refuse.store(0, SeqCst);
            }
            Step::Forget => drop(self.batch.take()),
            Step::Fire(gate) => {
                self.gates[gate].fire();
                self.merged += usize::from(std::mem::replace(&mut self.owed[gate], true));
                self.fired += 1;
            }
        }
    }

    fn edit(&mut self, n: usize, edit: impl FnOnce(&mut Batch, &Route)) {
        if let Some(route) = self.pick(n) {
            edit(self.batch(), &route);
        }
    }

    /// Every gate with a live route delivers there, once; every other one keeps what it has.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let mut kernel = self.kernel.state.lock().unwrap();
        kernel.inject();
        let arrived = std::mem::take(&mut kernel.arrived);
        prop_assert_eq!(kernel.lost, 0, "interrupts without a route");
        drop(kernel);
        for (gate, owed) in self.owed.iter_mut().enumerate() {
            let own = self.handles.iter().filter(|(of, _)| *of == gate).map(|(_, route)| route);
            let live: Vec<&Route> = own.filter(|r| r.phase() == Phase::Live).collect();
            let of_gate = |data: &&u32| **data as usize % GATES == gate;
            let came: Vec<u32> = arrived.iter().filter(of_gate).copied().collect();
            prop_assert!(came.len() <= usize::from(*owed), "gate {}: {:?} came", gate, came);
            *owed &= came.is_empty();
            let pending = self.gates[gate].pending();
            // The last handle of a live route may be a batch's.
            prop_assert_eq!(pending, *owed, "gate {} with {:?}", gate, live);
            if let Some(route) = live.first() {
                prop_assert!(live.iter().all(|other| other.gsi() == route.gsi()));
                prop_assert!(!*owed, "gate {} of {:?} is closed", gate, route);
                prop_assert!(came.iter().all(|data| *data == route.message().data));
            }
        }
        self.arrived += arrived.len();
        Ok(())
    }

    /// All handles but live ones are dropped, and then those, too: nothing stays behind.
    fn end(mut self) -> Result<(), TestCaseError> {
        self.batch = None;
        self.handles.retain(|(_, route)| route.phase() == Phase::Live);
        self.check()?;
        self.handles.clear();
        prop_assert_eq!(self.router.msi_routes(), 0);
        prop_assert!(self.kernel.state.lock().unwrap().attached.is_empty());
        self.check()
    }
}

fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut lab = Lab::new();
    for step in steps {
        lab.apply(step);
        lab.check()?;
        // A gate whose route is live must be heard: the fault is silent otherwise.
        for gate in 0..GATES {
            let of = |(of, route): &(usize, Route)| *of == gate && route.phase() == Phase::Live;
            if lab.handles.iter().any(of) {
                lab.apply(&Step::Fire(gate));
                lab.check()?;
            }
        }
    }
    lab.end()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_gate_is_its_live_routes_whatever_becomes_of_others(steps in steps(40)) {
        run(&steps)?;
    }
}

/// The same, one long run: each interrupt arrives once, or is waiting at its gate.
/// `MSI_ROUTES_SHARED_INTERRUPTS` sets how many (default 5,000).
#[test]
fn no_interrupt_is_lost_over_a_long_time() {
    let wanted = std::env::var("MSI_ROUTES_SHARED_INTERRUPTS");
    let wanted = wanted.map_or(5_000, |n| n.parse().unwrap());
    let mut lab = Lab::new();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % n as u64) as usize
    };
    while lab.fired < wanted {
        let n = below(1 << 20);
        let step = match below(20) {
            _ if lab.handles.len() > 12 => Step::Drop(n),
            0..=2 => Step::Add { gate: n % GATES, live: n % 2 == 0 },
            3..=5 => Step::Remove(n),
            6 => Step::Mask(n),
            7 | 8 => Step::Unmask(n),
            9 => Step::Clone(n),
            10..=12 => Step::Drop(n),
            13..=15 => Step::Commit,
            16 => [Step::Refused, Step::Forget][n % 2].clone(),
            _ => Step::Fire(n % GATES),
        };
        lab.apply(&step);
        lab.check().unwrap();
    }
    let (fired, arrived, merged) = (lab.fired, lab.arrived, lab.merged);
    let waiting = lab.owed.iter().filter(|owed| **owed).count();
    println!("{fired} raised: {arrived} arrived, {merged} of a burst, {waiting} wait");
    assert_eq!(fired, arrived + merged + waiting);
    lab.end().unwrap();
}
