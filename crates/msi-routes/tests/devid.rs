// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Devices' ids: an arm64 VM with a GICv3 ITS needs one with each message, others get none.

use kvm_bindings::{kvm_irq_routing_entry, KVM_MSI_VALID_DEVID};
use msi_routes::{Errno, EventFd, FixedRoute, Kernel, MsiMessage, Msix, Router, Routing, Source};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const DEVID: u32 = 0x0108;

/// A VM that has an ITS, or gets one.
#[derive(Default)]
struct Model {
    its: AtomicBool,
    asked: AtomicUsize,
    table: Mutex<Vec<kvm_irq_routing_entry>>,
    signalled: Mutex<Vec<MsiMessage>>,
}

impl Model {
    /// Each entry's flags and device id.
    fn ids(&self) -> Vec<(u32, u32)> {
        let table = self.table.lock().unwrap();
        // SAFETY: all entries here are messages; both variants of the inner union are one u32.
        table.iter().map(|e| (e.flags, unsafe { e.u.msi.__bindgen_anon_1.devid })).collect()
    }
}

impl Kernel for Model {
    fn route_limit(&self) -> usize {
        64
    }

    fn set_routing(&self, routes: &Routing) -> Result<(), Errno> {
        *self.table.lock().unwrap() = routes.as_ref().as_slice().to_vec();
        Ok(())
    }

    fn attach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn detach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn takes_devid(&self) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.its.load(Ordering::SeqCst)
    }

    fn signals(&self) -> bool {
        true
    }

    fn signal(&self, message: MsiMessage) -> Result<(), Errno> {
        self.signalled.lock().unwrap().push(message);
        Ok(())
    }
}

fn vm(its: bool) -> (Arc<Model>, Router) {
    let model = Arc::new(Model { its: AtomicBool::new(its), ..Default::default() });
    (model.clone(), Router::new(model, []).unwrap())
}

/// A device of one vector, which the guest has enabled.
fn device(router: &Router) -> Msix {
    let mut device = Msix::new([Source::gate(router.kernel()).unwrap()], Some(DEVID)).unwrap();
    // What Linux writes for an ITS: GITS_TRANSLATER, and the event's number.
    for (offset, word) in [(0, 0x0809_0040), (8, 5), (12, 0)] {
        let _ = device.write_table(offset, &u32::to_le_bytes(word));
    }
    let _ = device.set_control(1 << 15);
    device
}

fn sync(router: &Router, device: &mut Msix) -> usize {
    let mut batch = router.batch();
    device.sync(&mut batch).unwrap();
    batch.commit().unwrap().complete().unwrap().commits
}

#[test]
fn an_its_gets_the_device_of_each_message_and_others_get_none() {
    for (its, expected) in [(true, (KVM_MSI_VALID_DEVID, DEVID)), (false, (0, 0))] {
        let (model, router) = vm(its);
        let mut device = device(&router);
        assert_eq!(sync(&router, &mut device), 1);
        assert_eq!(model.ids(), [expected], "ITS: {its}");
        // The entry is as the guest wants it, so there is nothing to commit.
        assert_eq!(sync(&router, &mut device), 0);
        let message = device.route(0).unwrap().message();
        let mut batch = router.batch();
        batch.set_message(device.route(0).unwrap(), message).unwrap();
        assert_eq!(batch.commit().unwrap().counts.commits, 0);
        assert_eq!(message.devid, Some(DEVID));
    }
}

#[test]
fn signalled_and_fixed_messages_have_it_as_well() {
    for its in [true, false] {
        let (model, router) = vm(its);
        router.set_lazy(true);
        let mut device = device(&router);
        assert_eq!(sync(&router, &mut device), 0);
        device.source(0).unwrap().raise().unwrap();
        let signalled = model.signalled.lock().unwrap()[0].devid;
        assert_eq!(signalled, its.then_some(DEVID));
        let message = MsiMessage { address: 0x0809_0040, data: 7, devid: Some(DEVID) };
        let mut batch = router.batch();
        batch.add_fixed(FixedRoute::msi(3, message)).unwrap();
        batch.commit().unwrap().complete().unwrap();
        router.promote().unwrap().complete().unwrap();
        let expected = if its { (KVM_MSI_VALID_DEVID, DEVID) } else { (0, 0) };
        assert_eq!(model.ids(), [expected; 2]);
    }
}

#[test]
fn an_its_may_be_made_later_and_is_asked_about_once() {
    let (model, router) = vm(false);
    let mut first = device(&router);
    assert_eq!(sync(&router, &mut first), 1);
    model.its.store(true, Ordering::SeqCst);
    let mut second = device(&router);
    assert_eq!(sync(&router, &mut second), 1);
    let asked = model.asked.load(Ordering::SeqCst);
    let mut third = device(&router);
    assert_eq!(sync(&router, &mut third), 1);
    assert_eq!(model.ids()[1..], [(KVM_MSI_VALID_DEVID, DEVID); 2]);
    assert_eq!(model.asked.load(Ordering::SeqCst), asked);
}

#[test]
fn messages_without_an_id_ask_nothing() {
    let (model, router) = vm(true);
    let mut batch = router.batch();
    let gate = Source::gate(router.kernel()).unwrap();
    let _route = batch.add(MsiMessage::x86(0, 64), gate).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!((model.ids(), model.asked.load(Ordering::SeqCst)), (vec![(0, 0)], 0));
}
