// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A VM whose local APICs show what arrived.

#![allow(dead_code)]

use crate::kernels;

#[allow(unused_imports)]
pub use kernels::*;

use msi_routes::{Errno, EventFd, FixedRoute, Kernel, Route, Router};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use vmeter_kvm_probe::kvm_bindings::kvm_lapic_state;
use vmeter_kvm_probe::{Vcpu, Vm};

/// Offsets in the APIC page (Intel SDM vol. 3, 11.4.1).
const SPURIOUS: usize = 0xf0;
const IRR: usize = 0x200;

/// What arrived: (APIC id, vector).
pub type Arrived = BTreeSet<(u8, u8)>;

/// vCPUs that never run: what arrives stays in their IRR.
pub struct TestVm {
    pub vm: Vm,
    pub vcpus: Vec<Vcpu>,
}

/// A VM, or a line that says why there is none.
pub fn test_vm(vcpus: u64) -> Option<TestVm> {
    match Vm::builder().build() {
        Ok(vm) => Some(TestVm::new(vm, vcpus)),
        Err(e) => {
            println!("skipped: {e}");
            None
        }
    }
}

impl TestVm {
    pub fn new(vm: Vm, vcpus: u64) -> Self {
        let vcpus: Vec<Vcpu> = (0..vcpus).map(|id| vm.vcpu(id).unwrap()).collect();
        for vcpu in &vcpus {
            let mut apic = vcpu.fd().get_lapic().unwrap();
            let enabled = word(&apic, SPURIOUS) | 0x1ff;
            set_word(&mut apic, SPURIOUS, enabled);
            vcpu.fd().set_lapic(&apic).unwrap();
        }
        Self { vm, vcpus }
    }

    pub fn kernel(&self) -> VmKernel {
        VmKernel(self.vm.clone())
    }

    pub fn router(&self) -> Router {
        router(&self.vm)
    }

    /// What has arrived since [`Self::clear`].
    pub fn arrived(&self) -> Arrived {
        let mut all = Arrived::new();
        for (id, vcpu) in (0u8..).zip(&self.vcpus) {
            let apic = vcpu.fd().get_lapic().unwrap();
            let bit = |v: &u8| word(&apic, IRR + usize::from(v / 32) * 16) >> (v % 32) & 1 == 1;
            all.extend((0..=255).filter(bit).map(|vector| (id, vector)));
        }
        all
    }

    /// Empties the IRRs. Nothing may be under way.
    pub fn clear(&self) {
        for vcpu in &self.vcpus {
            let mut apic = vcpu.fd().get_lapic().unwrap();
            (0..8).for_each(|i| set_word(&mut apic, IRR + i * 16, 0));
            vcpu.fd().set_lapic(&apic).unwrap();
        }
    }

    /// Waits for `done` of what has arrived: KVM may inject from a kworker.
    pub fn wait(&self, done: impl Fn(&Arrived) -> bool) -> Arrived {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let arrived = self.arrived();
            if done(&arrived) || Instant::now() > deadline {
                return arrived;
            }
            std::thread::yield_now();
        }
    }

    /// What arrives, once it is what was expected; then clears.
    pub fn take(&self, expected: &Arrived) -> Arrived {
        let arrived = self.wait(|arrived| arrived.is_superset(expected));
        self.clear();
        arrived
    }
}

pub fn router(vm: &Vm) -> Router {
    Router::new(VmKernel(vm.clone()), FixedRoute::pc_defaults()).unwrap()
}

fn word(apic: &kvm_lapic_state, at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| apic.regs[at + i] as u8))
}

fn set_word(apic: &mut kvm_lapic_state, at: usize, value: u32) {
    value.to_le_bytes().iter().enumerate().for_each(|(i, b)| apic.regs[at + i] = *b as _);
}

pub fn arrives(routes: &[&Route]) -> Arrived {
    routes.iter().map(|route| target(route.message())).collect()
}

#[derive(Clone)]
pub struct VmKernel(pub Vm);

impl Kernel for VmKernel {
    fn route_limit(&self) -> usize {
        self.0.fd().route_limit()
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        self.0.fd().set_routing(routes)
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.0.fd().attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.0.fd().detach(eventfd, gsi)
    }
}
