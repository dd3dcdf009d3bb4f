//! The VM that is measured: an irqchip, vCPUs, and nothing that needs to boot.
//!
//! vCPUs that do not run keep what arrives in their local APIC's IRR, where it can be read.
//! Those that run spin in user mode, natively on VMX, SVM and PVM alike: their KVM_RUN
//! holds an SRCU read lock most of the time, which is what a commit may have to wait for.

use crate::error::IrqError;
use crate::placement;
use kvm_bindings::{kvm_lapic_state, kvm_regs};
use msi_routes::{Errno, EventFd, FixedRoute, Kernel, MsiMessage, Router, Routing};
use rustix::thread::CpuSet;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmeter_kvm_probe::{Kicker, Ring, Vcpu, Vm, VmError};

/// `jmp $`
const FOREVER: [u8; 2] = [0xeb, 0xfe];
/// Offsets in the local APIC's page (Intel SDM vol. 3, 11.4.1).
const SPURIOUS: usize = 0xf0;
const IRR: usize = 0x200;
/// Software enable, spurious vector 255 (SDM vol. 3, 11.9).
const APIC_ON: u32 = 0x1ff;
/// How long an interrupt may take to arrive: KVM may hand it to a kworker.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where an interrupt arrives: (APIC id, vector).
pub(crate) type Target = (u8, u8);

/// Where a message leads.
pub(crate) fn target(message: MsiMessage) -> Target {
    ((message.address >> 12) as u8, message.data as u8)
}

/// A VM's ioctls. Once `ended`, irqfds are not detached one by one: each would wait for a
/// grace period, and the end of the VM takes them all.
pub(crate) struct ByVm {
    vm: Vm,
    ended: Arc<AtomicBool>,
}

impl Kernel for ByVm {
    fn route_limit(&self) -> usize {
        self.vm.fd().route_limit()
    }

    fn set_routing(&self, routes: &Routing) -> Result<(), Errno> {
        self.vm.fd().set_routing(routes)
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.vm.fd().attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        if self.ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.vm.fd().detach(eventfd, gsi)
    }
}

/// A VM with its vCPUs, of which the first few may run.
pub(crate) struct Guest {
    /// Its routes.
    pub(crate) router: Router,
    ended: Arc<AtomicBool>,
    idle: Vec<Vcpu>,
    kickers: Vec<Kicker>,
    threads: Vec<JoinHandle<Result<Vcpu, VmError>>>,
    /// Where vCPUs may run: not only where the thread that makes them may.
    cpus: Option<CpuSet>,
}

impl Guest {
    /// Makes it, and starts `running` of its `vcpus`.
    pub(crate) fn new(
        vcpus: usize,
        running: usize,
        cpus: Option<CpuSet>,
    ) -> Result<Self, IrqError> {
        let vm = Vm::builder().code(FOREVER).build()?;
        let ended = Arc::new(AtomicBool::new(false));
        let kernel = ByVm { vm: vm.clone(), ended: ended.clone() };
        let router = Router::new(kernel, FixedRoute::pc_defaults())?;
        let idle = (0..vcpus as u64).map(|id| vm.vcpu(id)).collect::<Result<Vec<_>, _>>()?;
        let mut guest =
            Guest { router, ended, idle, kickers: Vec::new(), threads: Vec::new(), cpus };
        for vcpu in &guest.idle {
            let mut apic = lapic(vcpu)?;
            let spurious = word(&apic, SPURIOUS) | APIC_ON;
            set_word(&mut apic, SPURIOUS, spurious);
            set_lapic(vcpu, &apic)?;
        }
        for vcpu in guest.idle.drain(..running.min(vcpus)).collect::<Vec<_>>() {
            guest.start(vcpu)?;
        }
        Ok(guest)
    }

    fn start(&mut self, mut vcpu: Vcpu) -> Result<(), IrqError> {
        vcpu.enter(Ring::Three, kvm_regs::default())?;
        self.kickers.push(vcpu.kicker());
        let cpus = self.cpus;
        let run = move || {
            // Should it fail, the vCPU shares the committing thread's CPUs.
            let _ = cpus.map(|cpus| placement::allow(&cpus));
            vcpu.run(None, |_| ControlFlow::Break(())).map(|_| vcpu)
        };
        let thread = std::thread::Builder::new().name(format!("vcpu-{}", self.threads.len()));
        self.threads.push(thread.spawn(run).map_err(IrqError::Thread)?);
        Ok(())
    }

    /// Stops the vCPUs, so that their APICs can be read.
    pub(crate) fn stop(&mut self) -> Result<(), IrqError> {
        self.kickers.drain(..).for_each(|kicker| kicker.kick());
        for thread in self.threads.drain(..) {
            let vcpu = thread.join().map_err(|_| panicked())?;
            self.idle.push(vcpu?);
        }
        Ok(())
    }

    /// What has arrived once all that is expected has, or patience has ended. Takes it out
    /// of the APICs; nothing may be under way. The vCPUs have to be stopped.
    pub(crate) fn take(&self, expected: &BTreeSet<Target>) -> Result<BTreeSet<Target>, IrqError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let arrived = self.arrived()?;
            if arrived.is_superset(expected) || Instant::now() > deadline {
                self.clear()?;
                return Ok(arrived);
            }
            std::thread::yield_now();
        }
    }

    fn arrived(&self) -> Result<BTreeSet<Target>, IrqError> {
        let mut all = BTreeSet::new();
        for vcpu in &self.idle {
            let apic = lapic(vcpu)?;
            let id = (word(&apic, 0x20) >> 24) as u8;
            let bit = |v: &u8| word(&apic, IRR + usize::from(v / 32) * 16) >> (v % 32) & 1 == 1;
            all.extend((0..=255).filter(bit).map(|vector| (id, vector)));
        }
        Ok(all)
    }

    fn clear(&self) -> Result<(), IrqError> {
        for vcpu in &self.idle {
            let mut apic = lapic(vcpu)?;
            (0..8).for_each(|i| set_word(&mut apic, IRR + i * 16, 0));
            set_lapic(vcpu, &apic)?;
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.kickers.iter().for_each(Kicker::kick);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn panicked() -> IrqError {
    IrqError::Thread(std::io::Error::other("a vCPU's thread panicked"))
}

fn lapic(vcpu: &Vcpu) -> Result<kvm_lapic_state, VmError> {
    vcpu.fd().get_lapic().map_err(|source| VmError::Kvm { step: "KVM_GET_LAPIC", source })
}

fn set_lapic(vcpu: &Vcpu, apic: &kvm_lapic_state) -> Result<(), VmError> {
    vcpu.fd().set_lapic(apic).map_err(|source| VmError::Kvm { step: "KVM_SET_LAPIC", source })
}

fn word(apic: &kvm_lapic_state, at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| apic.regs[at + i] as u8))
}

fn set_word(apic: &mut kvm_lapic_state, at: usize, value: u32) {
    value.to_le_bytes().iter().enumerate().for_each(|(i, b)| apic.regs[at + i] = *b as _);
}
