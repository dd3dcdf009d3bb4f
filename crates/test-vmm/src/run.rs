//! The machine from its making to its end.

use crate::memory::Ram;
use crate::{linux, ring3, End, Machine};
use anyhow::{Context, Result};
use kvm_bindings::{kvm_mp_state, kvm_pit_config, kvm_userspace_memory_region, CpuId};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, KVM_MP_STATE_RUNNABLE};
use kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd, VmFd};
use std::io::Stdout;
use std::os::unix::thread::JoinHandleExt;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

const TSS: usize = 0xfffb_d000;
const COM1: std::ops::Range<u16> = 0x3f8..0x400;
const COM1_GSI: u32 = 4;
/// The keyboard controller's command port, and its command to reset the machine.
const I8042: (u16, u8) = (0x64, 0xfe);
const CMOS: u16 = 0x71;

/// The serial port's interrupt.
struct Line(EventFd);

impl Trigger for Line {
    type E = std::io::Error;
    fn trigger(&self) -> std::io::Result<()> {
        self.0.write(1)
    }
}

type Port = Arc<Mutex<Serial<Line, NoEvents, Stdout>>>;

/// Runs it.
pub fn run(machine: &Machine) -> Result<()> {
    let memory = machine.memory << 20;
    let ram = Ram::map(memory, machine.hole << 20, machine.layout)?;
    let entry = match &machine.plant {
        Some(file) => {
            ram.plant(file)?;
            ring3::load(&ram)?;
            None
        }
        None => Some(linux::load(&ram, machine)?),
    };
    // Only what vCPUs do shows who they are: the thread that makes the VM is another.
    let made = if machine.vm_thread {
        let make = || make(machine, &ram, entry);
        std::thread::scope(|scope| {
            let named = std::thread::Builder::new().name("vmm".into());
            named.spawn_scoped(scope, make)?.join().ok().context("the VM's thread panicked")?
        })?
    } else {
        make(machine, &ram, entry)?
    };
    let (vm, vcpus, serial) = made;
    let threads: Vec<_> = vcpus
        .into_iter()
        .enumerate()
        .map(|(n, vcpu)| {
            let name = machine.thread_name.replace('%', &n.to_string());
            let (serial, end) = (serial.clone(), machine.end);
            std::thread::Builder::new().name(name).spawn(move || serve(vcpu, &serial, end))
        })
        .collect::<std::io::Result<_>>()?;
    if machine.kicks > 0 {
        kick(&threads, Duration::from_secs(1) / machine.kicks);
    }
    for thread in threads {
        thread.join().ok().context("a vCPU's thread panicked")??;
    }
    drop(vm);
    ram.unmap();
    Ok(())
}

/// Sends signals that do nothing to vCPUs' threads, until all have ended.
fn kick<T>(threads: &[JoinHandle<T>], pause: Duration) {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t) };
    while threads.iter().any(|thread| !thread.is_finished()) {
        for thread in threads {
            // SAFETY: a thread that was not joined has its number, even if it has ended.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        }
        std::thread::park_timeout(pause);
    }
}

fn make(machine: &Machine, ram: &Ram, entry: Option<u64>) -> Result<(VmFd, Vec<VcpuFd>, Port)> {
    let kvm = Kvm::new()?;
    let vm = kvm.create_vm()?;
    vm.set_tss_address(TSS)?;
    vm.create_irq_chip()?;
    vm.create_pit2(kvm_pit_config { flags: 1, ..Default::default() })?;
    for (slot, region) in (0..).zip(&ram.regions) {
        let region = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr: region.gpa,
            memory_size: region.length,
            userspace_addr: region.host,
        };
        // SAFETY: the mapping is this guest's own and outlives the VM.
        unsafe { vm.set_user_memory_region(region)? };
    }
    let line = EventFd::new(EFD_NONBLOCK)?;
    vm.register_irqfd(&line, COM1_GSI)?;
    let serial = Arc::new(Mutex::new(Serial::new(Line(line), std::io::stdout())));
    let cpuid = cpuid(&kvm, &vm)?;
    let vcpus = if entry.is_some() { 1 } else { machine.vcpus };
    let make = |n: u8| -> Result<VcpuFd> {
        let vcpu = vm.create_vcpu(n.into())?;
        vcpu.set_cpuid2(&cpuid)?;
        match entry {
            Some(entry) => linux::enter(&vcpu, entry)?,
            None => ring3::enter(&vcpu, machine.work)?,
        }
        // Others than the first would wait for the first to start them.
        vcpu.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE })?;
        Ok(vcpu)
    };
    let vcpus = (0..vcpus).map(make).collect::<Result<_>>()?;
    Ok((vm, vcpus, serial))
}

/// What KVM supports, and what it leaves to VMMs to say: that there is a hypervisor, without
/// which Linux looks for no clock of KVM's and calibrates its own by a timer that a busy host
/// makes useless; and the TSC deadline timer (Documentation/virt/kvm/api.rst).
fn cpuid(kvm: &Kvm, vm: &VmFd) -> Result<CpuId> {
    const FEATURES: u32 = 1;
    const HYPERVISOR: u32 = 1 << 31;
    const TSC_DEADLINE: u32 = 1 << 24;
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let deadline = if vm.check_extension(Cap::TscDeadlineTimer) { TSC_DEADLINE } else { 0 };
    for entry in cpuid.as_mut_slice().iter_mut().filter(|entry| entry.function == FEATURES) {
        entry.ecx |= HYPERVISOR | deadline;
    }
    Ok(cpuid)
}

/// A vCPU's thread: until the guest is over.
fn serve(mut vcpu: VcpuFd, serial: &Port, end: End) -> Result<()> {
    loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(port, data)) => {
                let value = data.first().copied().unwrap_or(0);
                if (port, value) == I8042 || port == ring3::DONE {
                    break;
                }
                if COM1.contains(&port) {
                    let mut serial = serial.lock().unwrap_or_else(|e| e.into_inner());
                    let _ = serial.write((port - COM1.start) as u8, value);
                }
            }
            Ok(VcpuExit::IoIn(port, data)) => {
                let value = match port {
                    port if COM1.contains(&port) => {
                        let mut serial = serial.lock().unwrap_or_else(|e| e.into_inner());
                        serial.read((port - COM1.start) as u8)
                    }
                    port if port == I8042.0 || port == CMOS => 0,
                    _ => 0xff,
                };
                data.fill(value);
            }
            Ok(VcpuExit::MmioRead(_, data)) => data.fill(0xff),
            Ok(VcpuExit::MmioWrite(..)) => {}
            Ok(VcpuExit::Hlt | VcpuExit::Shutdown) => break,
            Ok(other) => anyhow::bail!("an exit that is not expected: {other:?}"),
            Err(error) if error.errno() == libc::EINTR => {}
            Err(error) => return Err(error).context("KVM_RUN"),
        }
    }
    if end == End::Exit {
        std::process::exit(0);
    }
    Ok(())
}
