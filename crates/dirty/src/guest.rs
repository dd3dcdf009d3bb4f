//! The guest: a vCPU thread that writes to pages, marks them in bitmaps, and spins.
//!
//! It spins while its pages are harvested: a harvest has to wait for threads that may be
//! inside a mark, and what that costs depends on whether they run. It does not write then,
//! so that every bit can be checked.

use crate::counts::{difference, Counters, Counts};
use crate::placement::stay_on;
use crate::DirtyError;
use rustix::thread::CpuSet;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmeter_kvm_probe::kvm_bindings::kvm_regs;
use vmeter_kvm_probe::{GuestSlot, Kicker, Ring, Stop, Vcpu, VcpuExit, Vm, VmError};
use vmeter_session::Interrupt;

const DONE: u8 = 0xf4;
/// A guest that writes nothing for so long is stuck.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long an interrupt is not heard while the guest writes.
const DEAF: Duration = Duration::from_millis(100);
/// linux/kvm.h: the exits that kvm-ioctls has no name for.
const KVM_EXIT_DIRTY_RING_FULL: u32 = 31;
const KVM_EXIT_MEMORY_FAULT: u32 = 39;
/// Where the loop that does nothing begins: address of the code, and what comes before.
const SPIN: u64 = 0x1000 + 38;

/// Writes rbx to each of the rcx addresses in the table at rsi, and says so, with the time
/// stamp counter before in r8 and after in r9; and, from [`SPIN`] on, nothing at all.
pub(crate) fn program() -> Vec<u8> {
    vec![
        0x0f, 0x31, // rdtsc
        0x48, 0xc1, 0xe2, 0x20, // shl rdx, 32
        0x48, 0x09, 0xd0, // or rax, rdx
        0x49, 0x89, 0xc0, // mov r8, rax
        0x48, 0xad, // lodsq
        0x48, 0x89, 0x18, // mov [rax], rbx
        0x48, 0xff, 0xc9, // dec rcx
        0x75, 0xf6, // jnz -10
        0x0f, 0x31, // rdtsc
        0x48, 0xc1, 0xe2, 0x20, // shl rdx, 32
        0x48, 0x09, 0xd0, // or rax, rdx
        0x49, 0x89, 0xc1, // mov r9, rax
        0xe6, DONE, // out DONE, al
        0xeb, 0xda, // jmp -38
        0x48, 0xff, 0x07, // inc qword [rdi]
        0xf3, 0x90, // pause
        0xeb, 0xf9, // jmp -7
    ]
}

/// Why the guest can't go on without help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// The dirty ring is full.
    RingFull,
    /// A page of this address may not be written to.
    Fault(u64),
}

/// What writing took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wrote {
    /// By the guest's own clock, from before the first write until after the last.
    pub(crate) cycles: u64,
    pub(crate) counts: Counts,
    pub(crate) interruptions: u32,
}

enum Command {
    Write {
        regs: kvm_regs,
    },
    /// Answers an interruption: go on, or give up.
    GoOn(bool),
    Call(Box<dyn FnOnce() + Send>),
    /// Count at this address.
    Spin(u64),
}

enum Report {
    Done(Wrote),
    Interrupted(Interruption),
    Failed(DirtyError),
}

/// A guest with one vCPU on a thread of its own.
pub(crate) struct Guest {
    commands: Option<Sender<Command>>,
    reports: Receiver<Report>,
    kicker: Kicker,
    thread: Option<JoinHandle<()>>,
    vm: Vm,
    spinning: bool,
    interrupt: Interrupt,
}

impl Guest {
    /// Starts the thread, on these CPUs. The VM's code is [`program`], its last slot is for
    /// the tables. An interrupt ends what it writes.
    pub(crate) fn start(
        vm: Vm,
        vcpu: Vcpu,
        ring: Ring,
        cpus: Option<CpuSet>,
        interrupt: &Interrupt,
    ) -> Result<Self, DirtyError> {
        let (commands, inbox) = channel();
        let (outbox, reports) = channel();
        let kicker = vcpu.kicker();
        let counters = [Counters::of(vm.fd()), Counters::of(vcpu.fd())].into_iter().flatten();
        let worker = Worker { vcpu, ring, counters: counters.collect(), inbox, outbox };
        let thread = std::thread::Builder::new()
            .name("vcpu".into())
            .spawn(move || {
                stay_on(cpus);
                worker.serve();
            })
            .map_err(|source| DirtyError::System { step: "starting the vCPU's thread", source })?;
        Ok(Self {
            commands: Some(commands),
            reports,
            kicker,
            thread: Some(thread),
            vm,
            spinning: false,
            interrupt: interrupt.clone(),
        })
    }

    /// The slots that are measured.
    pub(crate) fn slots(&self) -> &[GuestSlot] {
        let all = self.vm.slots();
        &all[..all.len() - 1]
    }

    #[cfg(test)]
    pub(crate) fn vm(&self) -> &Vm {
        &self.vm
    }

    fn table(&self) -> &GuestSlot {
        let all = self.vm.slots();
        &all[all.len() - 1]
    }

    fn send(&self, command: Command) -> Result<(), DirtyError> {
        let sender = self.commands.as_ref().ok_or(DirtyError::ThreadGone)?;
        sender.send(command).map_err(|_| DirtyError::ThreadGone)
    }

    fn report(&self) -> Result<Report, DirtyError> {
        loop {
            match self.reports.recv_timeout(DEAF) {
                Ok(report) => return Ok(report),
                Err(RecvTimeoutError::Disconnected) => return Err(DirtyError::ThreadGone),
                // What it writes fails then.
                Err(RecvTimeoutError::Timeout) if self.interrupt.is_raised() => self.kicker.kick(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Lets the guest write `generation` to guest-physical addresses, in this order.
    /// `help` is called when it can't go on; false gives up.
    ///
    /// # Errors
    /// The guest died, with all before that written; or was given up.
    pub(crate) fn write(
        &mut self,
        addresses: &[u64],
        generation: u64,
        mut help: impl FnMut(Interruption) -> Result<bool, DirtyError>,
    ) -> Result<Wrote, DirtyError> {
        if addresses.is_empty() {
            return Ok(Wrote::default());
        }
        let bytes: Vec<u8> = addresses.iter().flat_map(|address| address.to_le_bytes()).collect();
        self.table().write(0, &bytes)?;
        let (rsi, rcx) = (self.table().gpa(), addresses.len() as u64);
        self.send(Command::Write {
            regs: kvm_regs { rsi, rcx, rbx: generation, ..Default::default() },
        })?;
        loop {
            match self.report()? {
                Report::Done(wrote) => return Ok(wrote),
                Report::Failed(_) if self.interrupt.is_raised() => {
                    return Err(DirtyError::Interrupted)
                }
                Report::Failed(error) => return Err(error),
                Report::Interrupted(why) => {
                    let answer = help(why);
                    self.send(Command::GoOn(matches!(answer, Ok(true))))?;
                    if let Err(error) = answer {
                        // The thread gives up, and says so.
                        self.report()?;
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Has the vCPU's thread call `f`, and waits for it.
    pub(crate) fn call(&mut self, f: impl FnOnce() + Send + 'static) -> Result<(), DirtyError> {
        self.send(Command::Call(Box::new(f)))?;
        self.report().map(drop)
    }

    /// Lets the guest spin until [`Self::rest`]; it does when this returns.
    pub(crate) fn spin(&mut self) -> Result<(), DirtyError> {
        let before = self.ticks()?;
        self.send(Command::Spin(self.table().gpa()))?;
        self.spinning = true;
        let deadline = Instant::now() + PATIENCE;
        // It takes some microseconds; there is nothing to wait on but its memory.
        while self.ticks()? == before {
            std::thread::yield_now();
            if Instant::now() > deadline {
                return Err(DirtyError::Died { exit: "it does not run".into() });
            }
        }
        Ok(())
    }

    /// What the guest counts while it spins, in the slot of tables, which nobody tracks.
    fn ticks(&self) -> Result<u64, DirtyError> {
        let mut count = [0; 8];
        self.table().read(0, &mut count)?;
        Ok(u64::from_le_bytes(count))
    }

    /// Ends the spinning.
    pub(crate) fn rest(&mut self) -> Result<(), DirtyError> {
        if !std::mem::take(&mut self.spinning) {
            return Ok(());
        }
        self.kicker.kick();
        match self.report()? {
            Report::Failed(error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.commands = None;
        self.kicker.kick();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

/// The vCPU's thread.
struct Worker {
    vcpu: Vcpu,
    ring: Ring,
    counters: Vec<Counters>,
    inbox: Receiver<Command>,
    outbox: Sender<Report>,
}

/// How a stretch of guest code ended.
enum Ended {
    Written,
    Interrupted(Interruption),
    Failed(DirtyError),
}

impl Worker {
    fn serve(mut self) {
        while let Ok(command) = self.inbox.recv() {
            let report = match command {
                Command::Write { regs } => self.write(regs),
                Command::Call(f) => {
                    f();
                    Report::Done(Wrote::default())
                }
                Command::Spin(at) => self.spin(at),
                Command::GoOn(_) => continue,
            };
            if self.outbox.send(report).is_err() {
                return;
            }
        }
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::new();
        self.counters.iter().for_each(|counters| counters.add_to(&mut counts));
        counts
    }

    fn write(&mut self, regs: kvm_regs) -> Report {
        if let Err(error) = self.vcpu.enter(self.ring, regs) {
            return Report::Failed(error.into());
        }
        let before = self.counts();
        let mut interruptions = 0;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.stretch(deadline) {
                Ended::Written => break,
                Ended::Failed(error) => return Report::Failed(error),
                Ended::Interrupted(why) => {
                    interruptions += 1;
                    let asked = self.outbox.send(Report::Interrupted(why)).is_ok();
                    if !asked || !matches!(self.inbox.recv(), Ok(Command::GoOn(true))) {
                        let exit = format!("{why:?}, and nobody helped");
                        return Report::Failed(DirtyError::Died { exit });
                    }
                }
            }
        }
        let counts = difference(&before, &self.counts());
        match self.vcpu.fd().get_regs() {
            Ok(regs) => {
                let cycles = regs.r9.wrapping_sub(regs.r8);
                Report::Done(Wrote { cycles, counts, interruptions })
            }
            Err(source) => Report::Failed(VmError::Kvm { step: "KVM_GET_REGS", source }.into()),
        }
    }

    fn stretch(&mut self, deadline: Instant) -> Ended {
        use std::ops::ControlFlow::Break;
        let died = |exit: String| Ended::Failed(DirtyError::Died { exit });
        let stop = self.vcpu.run(Some(deadline), |exit| match exit {
            VcpuExit::IoOut(port, _) if port == u16::from(DONE) => Break(Ended::Written),
            VcpuExit::Unsupported(KVM_EXIT_DIRTY_RING_FULL) => {
                Break(Ended::Interrupted(Interruption::RingFull))
            }
            VcpuExit::Shutdown => Break(died("a triple fault".into())),
            other => Break(died(format!("{other:?}"))),
        });
        match stop {
            Ok(Stop::Done(ended)) => ended,
            Ok(Stop::Deadline | Stop::Kicked) => died(format!(
                "the guest did not finish within {} s, or vmeter had to stop the guest before this limit",
                PATIENCE.as_secs()
            )),
            Err(error) => self.fault().unwrap_or_else(|| died(untold(&error))),
        }
    }

    /// The address of a memory fault, if that is why KVM_RUN failed.
    fn fault(&mut self) -> Option<Ended> {
        let run = self.vcpu.fd_mut().get_kvm_run();
        if run.exit_reason != KVM_EXIT_MEMORY_FAULT {
            return None;
        }
        // SAFETY: KVM_EXIT_MEMORY_FAULT's part of the union is plain data.
        let gpa = unsafe { run.__bindgen_anon_1.memory_fault.gpa };
        Some(Ended::Interrupted(Interruption::Fault(gpa)))
    }

    fn spin(&mut self, rdi: u64) -> Report {
        let regs = kvm_regs { rip: SPIN, rdi, ..Default::default() };
        vmeter_dirty_switch::rest();
        let ran = self.vcpu.enter(self.ring, regs).and_then(|()| {
            self.vcpu.run(None, |exit| std::ops::ControlFlow::Break(format!("{exit:?}")))
        });
        match ran {
            Ok(Stop::Done(exit)) => Report::Failed(DirtyError::Died { exit }),
            Ok(_) => Report::Done(Wrote::default()),
            Err(error) => Report::Failed(VmError::into(error)),
        }
    }
}

fn untold(error: &VmError) -> String {
    match error {
        VmError::Kvm { source, .. } if source.errno() == libc::EFAULT => {
            format!(
                "{error}; this KVM does not report the address of the fault \
                (KVM_EXIT_MEMORY_FAULT)"
            )
        }
        _ => error.to_string(),
    }
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest").field("vm", &self.vm.fd().as_raw_fd()).finish_non_exhaustive()
    }
}
