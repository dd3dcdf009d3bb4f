// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How many tables a guest's boot and a restore hand to the kernel: the table of docs/COMMITS.md.
//! 12 devices of 9 vectors, in the order of register writes that Linux has (drivers/pci/msi).

use crate::kernels;

use kernels::Null;
use msi_routes::{
    Errno, EventFd, FixedRoute, Gate, Kernel, MsiMessage, Msix, MsixState, Router, Source,
};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;

const DEVICES: u8 = 12;
const VECTORS: u8 = 9;
const ENABLE: u16 = 1 << 15;
const FUNCTION_MASK: u16 = 1 << 14;

/// Counts tables; takes signals.
struct Counting(Null, AtomicUsize);

impl Kernel for Counting {
    fn route_limit(&self) -> usize {
        self.0.route_limit()
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        self.1.fetch_add(1, SeqCst);
        self.0.set_routing(routes)
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.0.attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.0.detach(eventfd, gsi)
    }

    fn signals(&self) -> bool {
        true
    }

    fn signal(&self, _: MsiMessage) -> Result<(), Errno> {
        Ok(())
    }
}

struct Vm {
    kernel: Arc<Counting>,
    router: Router,
    devices: Vec<Msix>,
}

impl Vm {
    fn new(lazy: bool) -> Self {
        let kernel = Arc::new(Counting(Null(4096), AtomicUsize::new(0)));
        let router = Router::new(kernel.clone(), FixedRoute::pc_defaults()).unwrap();
        router.set_lazy(lazy);
        let gate = |_| Source::Gate(Gate::new(router.kernel()).unwrap());
        let device = |_| Msix::new((0..VECTORS).map(gate), None).unwrap();
        let devices = (0..DEVICES).map(device).collect();
        Self { kernel, router, devices }
    }

    fn tables(&self) -> usize {
        self.kernel.1.swap(0, SeqCst)
    }

    /// A register write, and a commit if it asks for one.
    fn write(&mut self, device: usize, write: impl FnOnce(&mut Msix) -> bool) {
        let msix = &mut self.devices[device];
        if write(msix) {
            let mut batch = self.router.batch();
            msix.sync(&mut batch).unwrap();
            batch.commit().unwrap().complete().unwrap();
        }
    }

    fn each_vector(&mut self, apic: u8) {
        for device in 0..usize::from(DEVICES) {
            for vector in 0..VECTORS {
                let at = u64::from(vector) * 16;
                let message = MsiMessage::x86(apic, 40 + device as u8 * VECTORS + vector);
                let (low, high) = (message.address as u32, (message.address >> 32) as u32);
                for (offset, word) in [(12, 1), (0, low), (4, high), (8, message.data), (12, 0)] {
                    self.write(device, |msix| msix.write_table(at + offset, &word.to_le_bytes()));
                }
            }
        }
    }

    fn control(&mut self, value: u16) {
        (0..usize::from(DEVICES)).for_each(|n| self.write(n, |msix| msix.set_control(value)));
    }

    fn promote(&self) {
        self.router.promote().unwrap().complete().unwrap();
    }
}

/// (probe, request_irq of each, promotion, affinity of each, disable)
fn boot(lazy: bool) -> [usize; 5] {
    let mut vm = Vm::new(lazy);
    vm.control(ENABLE | FUNCTION_MASK);
    vm.control(ENABLE);
    let probe = vm.tables();
    vm.each_vector(0);
    let request = vm.tables();
    vm.promote();
    let promotion = vm.tables();
    vm.each_vector(1);
    let affinity = vm.tables();
    vm.control(0);
    [probe, request, promotion, affinity, vm.tables()]
}

fn restore(lazy: bool) -> usize {
    let mut source = Vm::new(false);
    source.control(ENABLE);
    source.each_vector(0);
    let saved: Vec<MsixState> = source.devices.iter().map(Msix::state).collect();
    let mut vm = Vm::new(lazy);
    let mut batch = vm.router.batch();
    for (device, state) in vm.devices.iter_mut().zip(&saved) {
        device.restore(state).unwrap();
        device.sync(&mut batch).unwrap();
    }
    batch.commit().unwrap().complete().unwrap();
    vm.tables()
}

#[test]
fn tables_of_a_boot_and_of_a_restore() {
    let (eager, lazy) = (boot(false), boot(true));
    println!("{eager:?} {lazy:?}");
    assert_eq!(eager, [0, 108, 0, 108, 12]);
    assert_eq!(lazy, [0, 0, 1, 108, 12]);
    assert_eq!((restore(false), restore(true)), (1, 0));
}
