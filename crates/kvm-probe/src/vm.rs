//! A VM made of memory slots and code, without firmware or kernel.

use crate::cpu;
use crate::error::VmError;
use crate::memory::{GuestSlot, SlotSpec};
use crate::open;
use kvm_bindings::{kvm_enable_cap, kvm_userspace_memory_region, CpuId, KVM_MAX_CPUID_ENTRIES};
use kvm_ioctls::{Kvm, VmFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// VMX without unrestricted guest keeps three pages of its own here (as QEMU has it).
const TSS_ADDRESS: u64 = 0xfffb_d000;
/// From the identity map page below the TSS to the local APIC's end: no slot may be here.
const RESERVED: std::ops::Range<u64> = 0xfec0_0000..0x1_0000_0000;
const PAGE: u64 = 0x1000;
/// The slot with code, stacks and page tables.
const SYSTEM_SLOT: u32 = 0;

/// Which interrupt controllers the kernel emulates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Irqchip {
    /// None: no GSI routing and no irqfd.
    None,
    /// PIC, IO-APIC and local APICs (`KVM_CREATE_IRQCHIP`).
    #[default]
    Full,
    /// Local APICs only, with this many routes reserved for the IO-APIC in user space
    /// (`KVM_CAP_SPLIT_IRQCHIP`).
    Split(u64),
}

/// What a VM is to be.
#[derive(Debug)]
pub struct VmBuilder {
    node: PathBuf,
    irqchip: Irqchip,
    code: Vec<u8>,
    slots: Vec<SlotSpec>,
    caps: Vec<kvm_enable_cap>,
    mapped: u64,
}

impl Default for VmBuilder {
    fn default() -> Self {
        Self {
            node: "/dev/kvm".into(),
            irqchip: Irqchip::default(),
            code: Vec::new(),
            slots: Vec::new(),
            caps: Vec::new(),
            mapped: 4 << 30,
        }
    }
}

impl VmBuilder {
    /// Another node than `/dev/kvm`.
    pub fn node(mut self, path: impl AsRef<Path>) -> Self {
        self.node = path.as_ref().into();
        self
    }

    /// Interrupt controllers; all in the kernel by default.
    pub fn irqchip(mut self, irqchip: Irqchip) -> Self {
        self.irqchip = irqchip;
        self
    }

    /// The guest's program, e.g. from [`crate::code`]; where [`Vcpu::enter`] starts.
    pub fn code(mut self, code: impl Into<Vec<u8>>) -> Self {
        self.code = code.into();
        self
    }

    /// A memory slot. The first is slot 1: slot 0 is the VM's own, with code and page
    /// tables, and ends at [`Vm::FIRST_FREE_GPA`] while no slot ends above 470 GiB.
    pub fn slot(mut self, slot: SlotSpec) -> Self {
        self.slots.push(slot);
        self
    }

    /// `KVM_ENABLE_CAP` on the VM before any slot or vCPU exists, as dirty rings and
    /// manual dirty-log protection need it.
    pub fn enable_cap(mut self, cap: u32, args: [u64; 4]) -> Self {
        self.caps.push(kvm_enable_cap { cap, args, ..Default::default() });
        self
    }

    /// How much of guest-physical memory is mapped 1:1 into the guest's virtual memory,
    /// bytes: 4 GiB, or up to the highest slot's end if more.
    pub fn mapped(mut self, bytes: u64) -> Self {
        self.mapped = self.mapped.max(bytes);
        self
    }

    /// Makes the VM.
    ///
    /// # Errors
    /// The node can't be opened, slots overlap or are misaligned, KVM refuses a step.
    pub fn build(self) -> Result<Vm, VmError> {
        let mapped = self.checked_layout()?;
        let kvm = open::open(&self.node)?;
        let fd = kvm.create_vm().map_err(VmError::kvm("KVM_CREATE_VM"))?;
        for cap in &self.caps {
            fd.enable_cap(cap).map_err(VmError::kvm("KVM_ENABLE_CAP"))?;
        }
        fd.set_tss_address(TSS_ADDRESS as usize).map_err(VmError::kvm("KVM_SET_TSS_ADDR"))?;
        create_irqchip(&fd, self.irqchip)?;
        let cpuid = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(VmError::kvm("KVM_GET_SUPPORTED_CPUID"))?;
        let system = system_slot(&self.code, mapped)?;
        let mut slots = vec![system];
        for (spec, id) in self.slots.iter().zip(SYSTEM_SLOT + 1..) {
            slots.push(GuestSlot::map(id, spec)?);
        }
        let vm = Vm(Arc::new(Inner { kvm, cpuid, fd, slots }));
        vm.set_flags(&vm.0.slots[0], 0)?;
        for (spec, slot) in self.slots.iter().zip(vm.slots()) {
            vm.set_flags(slot, spec.flags)?;
        }
        Ok(vm)
    }

    /// Checks slots against each other and the reserved addresses; returns the mapped size.
    fn checked_layout(&self) -> Result<u64, VmError> {
        let bad = |what: String| Err(VmError::Layout(what));
        if self.code.len() > cpu::CODE_MAX {
            return bad(format!(
                "the code has {} bytes; at most {} bytes fit",
                self.code.len(),
                cpu::CODE_MAX
            ));
        }
        let mut ranges = Vec::new();
        let mut mapped = self.mapped;
        for slot in &self.slots {
            let aligned = slot.gpa % PAGE == 0 && slot.bytes % PAGE == 0 && slot.bytes > 0;
            let Some(end) = slot.end().filter(|_| aligned) else {
                return bad(format!(
                    "the slot at {:#x} of {:#x} bytes does not consist of whole pages",
                    slot.gpa, slot.bytes
                ));
            };
            mapped = mapped.max(end);
            ranges.push(slot.gpa..end);
        }
        if mapped > cpu::MAX_MAPPED {
            let limit = cpu::MAX_MAPPED;
            return bad(format!("memory ends at {mapped:#x}, above the limit {limit:#x}"));
        }
        ranges.extend([0..cpu::system_bytes(mapped), RESERVED]);
        ranges.sort_by_key(|r| r.start);
        for pair in ranges.windows(2) {
            if pair[1].start < pair[0].end {
                return bad(format!("{:#x?} overlaps {:#x?}", pair[0], pair[1]));
            }
        }
        Ok(mapped)
    }
}

fn create_irqchip(fd: &VmFd, irqchip: Irqchip) -> Result<(), VmError> {
    match irqchip {
        Irqchip::None => Ok(()),
        Irqchip::Full => fd.create_irq_chip().map_err(VmError::kvm("KVM_CREATE_IRQCHIP")),
        Irqchip::Split(routes) => {
            let cap = kvm_enable_cap {
                cap: kvm_bindings::KVM_CAP_SPLIT_IRQCHIP,
                args: [routes, 0, 0, 0],
                ..Default::default()
            };
            fd.enable_cap(&cap).map_err(VmError::kvm("KVM_ENABLE_CAP(KVM_CAP_SPLIT_IRQCHIP)"))
        }
    }
}

fn system_slot(code: &[u8], mapped: u64) -> Result<GuestSlot, VmError> {
    let system = GuestSlot::map(SYSTEM_SLOT, &SlotSpec::new(0, cpu::system_bytes(mapped)))?;
    system.write(cpu::CODE_BASE, code)?;
    for (gpa, entry) in cpu::page_tables(mapped) {
        system.write(gpa, &entry.to_le_bytes())?;
    }
    Ok(system)
}

/// A VM; clones are handles of the same one. Its memory lives as long as any handle or vCPU.
#[derive(Debug, Clone)]
pub struct Vm(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Dropped before the memory that KVM knows by address.
    fd: VmFd,
    kvm: Kvm,
    cpuid: CpuId,
    slots: Vec<GuestSlot>,
}

impl Vm {
    /// Where slots may begin: the system slot ends here.
    pub const FIRST_FREE_GPA: u64 = 2 << 20;

    /// Starts building one.
    pub fn builder() -> VmBuilder {
        VmBuilder::default()
    }
    /// The VM's file, for ioctls that this crate has no name for.
    pub fn fd(&self) -> &VmFd {
        &self.0.fd
    }

    /// The node's file.
    pub fn kvm(&self) -> &Kvm {
        &self.0.kvm
    }

    pub(crate) fn cpuid(&self) -> &CpuId {
        &self.0.cpuid
    }

    /// The slots given to the builder, in its order.
    pub fn slots(&self) -> &[GuestSlot] {
        &self.0.slots[1..]
    }

    /// Changes a slot's `KVM_MEM_*` flags, e.g. switches dirty logging on or off.
    ///
    /// # Errors
    /// KVM refuses, or the slot is another VM's.
    pub fn set_flags(&self, slot: &GuestSlot, flags: u32) -> Result<(), VmError> {
        let own = self.0.slots.get(slot.id() as usize);
        if !own.is_some_and(|own| std::ptr::eq(own, slot)) {
            return Err(VmError::Layout(format!("slot {} is another VM's", slot.id())));
        }
        let region = kvm_userspace_memory_region {
            slot: slot.id(),
            flags,
            guest_phys_addr: slot.gpa(),
            memory_size: slot.bytes(),
            userspace_addr: slot.host() as u64,
        };
        // SAFETY: the region is a mapping that this VM owns and that outlives its file and
        // every vCPU (which hold the same Arc); the layout was checked for overlaps.
        unsafe { self.0.fd.set_user_memory_region(region) }
            .map_err(VmError::kvm("KVM_SET_USER_MEMORY_REGION"))
    }

    /// Takes a slot's dirty bitmap (`KVM_GET_DIRTY_LOG`): one bit a 4 KiB page, cleared by
    /// it unless manual protection is enabled.
    pub fn dirty_log(&self, slot: &GuestSlot) -> Result<Vec<u64>, VmError> {
        self.0
            .fd
            .get_dirty_log(slot.id(), slot.bytes() as usize)
            .map_err(VmError::kvm("KVM_GET_DIRTY_LOG"))
    }
}
