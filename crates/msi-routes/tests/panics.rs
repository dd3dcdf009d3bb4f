// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A `Kernel` of the user's that panics, before or after it has done what it was asked: what its
//! routes say is so, the next `sync` stages what is missing, and no interrupt is lost or doubled.

use msi_routes::{
    Errno, EventFd, Gate, Kernel, MsiMessage, Msix, Phase, Route, Router, Routing, Source,
};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const LIMIT: usize = 40;
const FIRST_GSI: u32 = 24;
const VECTOR: u32 = 0x41;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    SetRouting,
    Attach,
    Detach,
    Signal,
}

/// When the call panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Before,
    After,
}

#[derive(Default)]
struct State {
    panic: Option<(Call, When)>,
    /// GSI to vector.
    table: HashMap<u32, u32>,
    irqfds: HashMap<RawFd, (EventFd, u32)>,
    arrived: Vec<u32>,
}

#[derive(Default)]
struct Model(Mutex<State>);

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_panic(&self, call: Call, when: When) {
        let planted = self.state().panic.take_if(|planted| *planted == (call, when));
        assert!(planted.is_none(), "planted");
    }

    /// What has arrived since the last call.
    fn arrived(&self) -> Vec<u32> {
        let mut state = self.state();
        state.pump();
        std::mem::take(&mut state.arrived)
    }
}

impl State {
    /// KVM consumes what is written to an irqfd's eventfd; without an entry it is lost.
    fn pump(&mut self) {
        for (eventfd, gsi) in self.irqfds.values() {
            if eventfd.read().is_ok() {
                self.arrived.extend(self.table.get(gsi));
            }
        }
    }
}

impl Kernel for Model {
    fn route_limit(&self) -> usize {
        LIMIT
    }

    fn set_routing(&self, routes: &Routing) -> Result<(), Errno> {
        self.may_panic(Call::SetRouting, When::Before);
        // SAFETY: this library's entries are all messages here.
        let data = |entry: &kvm_bindings::kvm_irq_routing_entry| unsafe { entry.u.msi.data };
        let entries = routes.as_ref().as_slice().iter();
        self.state().table = entries.map(|entry| (entry.gsi, data(entry))).collect();
        self.may_panic(Call::SetRouting, When::After);
        Ok(())
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.may_panic(Call::Attach, When::Before);
        let mut state = self.state();
        if state.irqfds.contains_key(&eventfd.as_raw_fd()) {
            return Err(Errno::new(libc::EBUSY));
        }
        state.irqfds.insert(eventfd.as_raw_fd(), (eventfd.try_clone()?, gsi));
        state.pump();
        drop(state);
        self.may_panic(Call::Attach, When::After);
        Ok(())
    }

    /// As KVM's: one that is not attached is no error.
    fn detach(&self, eventfd: &EventFd, _: u32) -> Result<(), Errno> {
        self.may_panic(Call::Detach, When::Before);
        let mut state = self.state();
        state.pump();
        state.irqfds.remove(&eventfd.as_raw_fd());
        drop(state);
        self.may_panic(Call::Detach, When::After);
        Ok(())
    }

    fn signals(&self) -> bool {
        true
    }

    fn signal(&self, message: MsiMessage) -> Result<(), Errno> {
        self.may_panic(Call::Signal, When::Before);
        self.state().arrived.push(message.data);
        Ok(())
    }
}

fn vm() -> (Arc<Model>, Router) {
    let model = Arc::new(Model::default());
    let router = Router::with_first_gsi(model.clone(), [], FIRST_GSI).unwrap();
    (model, router)
}

fn external() -> Source {
    Source::external(EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap()
}

/// A device of one vector, which the guest has enabled.
fn device(source: Source) -> Msix {
    let mut device = Msix::new([source], None).unwrap();
    for (offset, word) in [(0, 0xfee0_0000), (8, VECTOR), (12, 0)] {
        let _ = device.write_table(offset, &u32::to_le_bytes(word));
    }
    let _ = device.set_control(1 << 15);
    device
}

fn sync(router: &Router, device: &mut Msix) {
    let mut batch = router.batch();
    device.sync(&mut batch).unwrap();
    batch.commit().unwrap().complete().unwrap();
}

/// The call panics in a commit of what the device's registers say.
fn panics(model: &Model, router: &Router, device: &mut Msix, call: Call, when: When) {
    model.state().panic = Some((call, when));
    let commit = || {
        let mut batch = router.batch();
        device.sync(&mut batch).unwrap();
        drop(batch.commit());
    };
    assert!(catch_unwind(AssertUnwindSafe(commit)).is_err(), "{call:?} was not reached");
}

fn phase(device: &Msix) -> Option<Phase> {
    device.route(0).map(Route::phase)
}

/// What the guest does when the kernel panics, and then takes back.
#[derive(Clone, Copy, Debug)]
enum Change {
    Disable,
    Mask,
}

impl Change {
    fn write(self, device: &mut Msix, on: bool) {
        let _ = match self {
            Self::Disable => device.set_control(u16::from(on) << 15),
            Self::Mask => device.write_table(12, &u32::from(!on).to_le_bytes()),
        };
    }
}

fn each_case(mut case: impl FnMut(Source, Call, When, Change)) {
    for call in [Call::Detach, Call::SetRouting, Call::Attach] {
        for when in [When::Before, When::After] {
            for change in [Change::Disable, Change::Mask] {
                case(external(), call, when, change);
                // Masking a gate calls nobody.
                if matches!(change, Change::Disable) {
                    case(Source::Gate(Gate::new(&Model::default()).unwrap()), call, when, change);
                }
            }
        }
    }
}

/// One that is live is delivered, one that waits is staged by `sync` and delivered with it.
fn fires_once(model: &Model, router: &Router, device: &mut Msix) {
    device.source(0).unwrap().raise().unwrap();
    let mut arrived = model.arrived();
    let live = phase(device) == Some(Phase::Live);
    assert!(arrived.len() <= 1 && (!live || arrived.len() == 1), "{arrived:?}, live: {live}");
    let mut batch = router.batch();
    device.sync(&mut batch).unwrap();
    assert!(live || !batch.is_empty(), "nothing is staged");
    batch.commit().unwrap().complete().unwrap();
    arrived.extend(model.arrived());
    assert_eq!((arrived, phase(device)), (vec![VECTOR], Some(Phase::Live)));
}

#[test]
fn a_vector_that_a_panic_closed_is_opened_by_the_next_sync() {
    each_case(|source, call, when, change| {
        // Nothing of an enabled vector is masked by a table alone.
        if matches!((call, change), (Call::SetRouting, Change::Mask)) {
            return;
        }
        let (model, router) = vm();
        let mut device = device(source);
        if call == Call::Attach {
            panics(&model, &router, &mut device, call, when);
        } else {
            sync(&router, &mut device);
            change.write(&mut device, false);
            panics(&model, &router, &mut device, call, when);
            change.write(&mut device, true);
        }
        fires_once(&model, &router, &mut device);
        fires_once(&model, &router, &mut device);
    });
}

#[test]
fn a_vector_that_the_guest_masks_is_detached_after_a_panic() {
    for when in [When::Before, When::After] {
        let (model, router) = vm();
        let mut device = device(external());
        sync(&router, &mut device);
        Change::Mask.write(&mut device, false);
        panics(&model, &router, &mut device, Call::Detach, when);
        sync(&router, &mut device);
        device.source(0).unwrap().raise().unwrap();
        assert_eq!((model.arrived(), device.is_pending(0)), (vec![], true), "{when:?}");
        Change::Mask.write(&mut device, true);
        sync(&router, &mut device);
        assert_eq!(model.arrived(), [VECTOR], "{when:?}");
    }
}

#[test]
fn a_gsi_whose_irqfd_may_be_attached_is_nobody_elses() {
    let (model, router) = vm();
    let mut first = device(external());
    panics(&model, &router, &mut first, Call::Attach, When::After);
    assert_eq!(phase(&first), Some(Phase::Gone));
    let mut second = device(external());
    sync(&router, &mut second);
    first.source(0).unwrap().raise().unwrap();
    assert_eq!(model.arrived(), [], "it came as the other device's");
    sync(&router, &mut first);
    assert_eq!(model.arrived(), [VECTOR]);
}

#[test]
fn a_table_that_may_have_been_taken_is_handed_over_again() {
    let (model, router) = vm();
    let mut device = device(external());
    panics(&model, &router, &mut device, Call::SetRouting, When::After);
    assert_eq!(model.state().table.len(), 1);
    router.sweep().unwrap().complete().unwrap();
    assert_eq!((model.state().table.len(), router.msi_routes()), (0, 0));
}

#[test]
fn an_interrupt_that_the_kernel_panics_at_waits() {
    let (model, router) = vm();
    router.set_lazy(true);
    let mut device = device(Source::gate(router.kernel()).unwrap());
    sync(&router, &mut device);
    model.state().panic = Some((Call::Signal, When::Before));
    let fire = || device.source(0).unwrap().raise();
    assert!(catch_unwind(AssertUnwindSafe(fire)).is_err());
    assert_eq!(model.arrived(), []);
    router.promote().unwrap().complete().unwrap();
    assert_eq!(model.arrived(), [VECTOR]);
}

#[test]
fn a_promotion_that_panics_keeps_no_gsi() {
    for (call, when) in [
        (Call::SetRouting, When::Before),
        (Call::SetRouting, When::After),
        (Call::Attach, When::Before),
        (Call::Attach, When::After),
    ] {
        let (model, router) = vm();
        router.set_lazy(true);
        let mut devices = [(); 3].map(|()| device(Source::gate(router.kernel()).unwrap()));
        devices.iter_mut().for_each(|device| sync(&router, device));
        model.state().panic = Some((call, when));
        assert!(catch_unwind(AssertUnwindSafe(|| drop(router.promote()))).is_err());
        router.promote().unwrap().complete().unwrap();
        assert_eq!(router.free(), LIMIT - FIRST_GSI as usize - 3, "{call:?} {when:?}");
        for device in &devices {
            device.source(0).unwrap().raise().unwrap();
        }
        assert_eq!(model.arrived(), [VECTOR; 3], "{call:?} {when:?}");
    }
}
