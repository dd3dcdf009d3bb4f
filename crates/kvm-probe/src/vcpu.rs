//! A vCPU and its run loop.

use crate::cpu::{self, Ring};
use crate::error::VmError;
use crate::kick::{KickState, Kickable, Kicker};
use crate::vm::Vm;
use kvm_bindings::{kvm_mp_state, kvm_regs, KVM_MP_STATE_RUNNABLE};
use kvm_ioctls::{VcpuExit, VcpuFd};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop<T> {
    /// The callback said so.
    Done(T),
    /// The deadline passed.
    Deadline,
    /// A [`Kicker`] was used.
    Kicked,
}

impl Vm {
    /// A vCPU; `id` is its local APIC id.
    pub fn vcpu(&self, id: u64) -> Result<Vcpu, VmError> {
        Vcpu::new(self.clone(), id)
    }
}

/// A vCPU. It can be moved to a thread of its own, and keeps its VM alive.
#[derive(Debug)]
pub struct Vcpu {
    fd: VcpuFd,
    id: u64,
    kick: Arc<KickState>,
    vm: Vm,
}

impl Vcpu {
    fn new(vm: Vm, id: u64) -> Result<Self, VmError> {
        let fd = vm.fd().create_vcpu(id).map_err(VmError::kvm("KVM_CREATE_VCPU"))?;
        fd.set_cpuid2(vm.cpuid()).map_err(VmError::kvm("KVM_SET_CPUID2"))?;
        Ok(Self { fd, id, kick: Arc::default(), vm })
    }

    /// The VM it belongs to.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// The vCPU's file, for ioctls that this crate has no name for.
    pub fn fd(&self) -> &VcpuFd {
        &self.fd
    }

    /// The same, mutably (`KVM_RUN`'s shared page).
    pub fn fd_mut(&mut self) -> &mut VcpuFd {
        &mut self.fd
    }

    /// A handle that makes [`Self::run`] return.
    pub fn kicker(&self) -> Kicker {
        Kicker(self.kick.clone())
    }

    /// Sets where and in which ring the guest goes on.
    ///
    /// rflags are set; rip and rsp are too where they are 0: to the code given to the
    /// builder, and to a page of this vCPU's own.
    pub fn enter(&self, ring: Ring, mut regs: kvm_regs) -> Result<(), VmError> {
        // With local APICs all vCPUs but the first wait for a start-up IPI that never comes.
        let runnable = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
        self.fd.set_mp_state(runnable).map_err(VmError::kvm("KVM_SET_MP_STATE"))?;
        let mut sregs = self.fd.get_sregs().map_err(VmError::kvm("KVM_GET_SREGS"))?;
        cpu::set_sregs(&mut sregs, ring);
        self.fd.set_sregs(&sregs).map_err(VmError::kvm("KVM_SET_SREGS"))?;
        cpu::set_regs(&mut regs, ring, self.id);
        self.fd.set_regs(&regs).map_err(VmError::kvm("KVM_SET_REGS"))
    }

    /// Runs the guest, handing each exit to `on_exit` until that breaks, the deadline
    /// passes or a [`Kicker`] is used.
    ///
    /// # Errors
    /// `KVM_RUN` failing other than by a signal; setting up the deadline failing.
    pub fn run<T>(
        &mut self,
        deadline: Option<Instant>,
        mut on_exit: impl FnMut(VcpuExit<'_>) -> ControlFlow<T>,
    ) -> Result<Stop<T>, VmError> {
        let passed = |at: Instant| Instant::now() >= at;
        let timeout = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let kickable = Kickable::enter(&self.kick, self.fd.as_raw_fd(), timeout)?;
        loop {
            if self.kick.take() {
                return Ok(Stop::Kicked);
            }
            match self.fd.run() {
                Ok(exit) => {
                    if let ControlFlow::Break(value) = on_exit(exit) {
                        return Ok(Stop::Done(value));
                    }
                }
                Err(e) if e.errno() == libc::EINTR => kickable.drain(),
                Err(e) if e.errno() == libc::EAGAIN => {}
                Err(e) => return Err(VmError::Kvm { step: "KVM_RUN", source: e }),
            }
            if deadline.is_some_and(passed) {
                return Ok(Stop::Deadline);
            }
        }
    }

    /// Runs the guest until it writes to `port`; any other exit is an error.
    pub fn run_to_out(
        &mut self,
        port: u16,
        deadline: Option<Instant>,
    ) -> Result<Stop<()>, VmError> {
        let stop = self.run(deadline, |exit| match exit {
            VcpuExit::IoOut(p, _) if p == port => ControlFlow::Break(None),
            other => ControlFlow::Break(Some(format!("{other:?}"))),
        })?;
        match stop {
            Stop::Done(None) => Ok(Stop::Done(())),
            Stop::Done(Some(exit)) => {
                let rip = self.fd.get_regs().map(|r| r.rip).unwrap_or_default();
                Err(VmError::UnexpectedExit { exit, rip, port })
            }
            Stop::Deadline => Ok(Stop::Deadline),
            Stop::Kicked => Ok(Stop::Kicked),
        }
    }
}

impl AsRawFd for Vcpu {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
