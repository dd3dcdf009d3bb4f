//! The state a vCPU starts in: 64-bit long mode without a boot.
//!
//! Set by ioctl, so the guest has neither firmware nor kernel. The ring-3 state
//! is the one that runs natively on every KVM, also on those that interpret
//! kernel mode: I/O privilege level 3 makes `out` legal there. There is no IDT:
//! any exception is a triple fault, seen as `KVM_EXIT_SHUTDOWN`.
//!
//! Bits and segment types: Intel SDM vol. 3, chapters 2.5 (control registers),
//! 3.4.5 (segment descriptors), 4.5 (4-level paging).

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};

/// Privilege level the guest's code runs at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Ring {
    /// Kernel mode.
    Zero,
    /// User mode, with IOPL 3.
    Three,
}

/// PE, MP, ET, NE, WP, AM, PG.
const CR0: u64 = 0x8005_0033;
/// PAE, PGE, OSFXSR, OSXMMEXCPT. Not PCIDE, which SET_SREGS may refuse.
const CR4: u64 = 0x6a0;
/// SCE, LME, LMA, NXE.
const EFER: u64 = 0xd01;

const RFLAGS_RESERVED: u64 = 0x2;
const RFLAGS_IOPL3: u64 = 0x3000;

/// Guest-physical addresses of the system slot's parts.
pub(crate) const CODE_BASE: u64 = 0x1000;
pub(crate) const CODE_MAX: usize = 0xf000;
const STACK_BASE: u64 = 0x1_0000;
const STACKS: u64 = 16;
const PAGE: u64 = 0x1000;
const PML4: u64 = 0x2_0000;
const PDPT: u64 = 0x2_1000;
const PD: u64 = 0x2_2000;

const GIB: u64 = 1 << 30;
const LARGE_PAGE: u64 = 2 << 20;
/// One PDPT's reach.
pub(crate) const MAX_MAPPED: u64 = 512 * GIB;

/// Present, writable, user, accessed, dirty: set beforehand so that the CPU never
/// writes to the tables, and dirty logs hold the guest's own writes only.
const TABLE: u64 = 0x27;
const LEAF: u64 = 0x67 | 0x80;

/// Bytes of the system slot that hold the identity map of `mapped` bytes.
pub(crate) fn system_bytes(mapped: u64) -> u64 {
    (PD + mapped.div_ceil(GIB) * PAGE).next_multiple_of(LARGE_PAGE)
}

/// Page tables that map the first `mapped` bytes to themselves with 2 MiB pages,
/// as (guest-physical address, entry).
pub(crate) fn page_tables(mapped: u64) -> impl Iterator<Item = (u64, u64)> {
    let directories = mapped.div_ceil(GIB);
    let upper = (0..directories).map(|i| (PDPT + i * 8, (PD + i * PAGE) | TABLE));
    let leaves = (0..directories * 512).map(|i| (PD + i * 8, (i * LARGE_PAGE) | LEAF));
    std::iter::once((PML4, PDPT | TABLE)).chain(upper).chain(leaves)
}

fn segment(selector: u16, type_: u8, ring: Ring, long: bool) -> kvm_segment {
    let dpl = if ring == Ring::Three { 3 } else { 0 };
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector: selector | u16::from(dpl),
        type_,
        present: 1,
        dpl,
        db: u8::from(!long),
        s: 1,
        l: u8::from(long),
        g: 1,
        ..Default::default()
    }
}

/// Writes the long-mode state over what `KVM_GET_SREGS` returned.
pub(crate) fn set_sregs(sregs: &mut kvm_sregs, ring: Ring) {
    let (code, data) = match ring {
        Ring::Zero => (0x10, 0x18),
        Ring::Three => (0x30, 0x28),
    };
    sregs.cr0 = CR0;
    sregs.cr3 = PML4;
    sregs.cr4 = CR4;
    sregs.efer = EFER;
    // Execute/read, accessed; read/write, accessed.
    sregs.cs = segment(code, 0xb, ring, true);
    let data = segment(data, 0x3, ring, false);
    sregs.ds = data;
    sregs.es = data;
    sregs.ss = data;
    sregs.fs = data;
    sregs.gs = data;
    // VM entry wants a busy 64-bit TSS.
    sregs.tr =
        kvm_segment { limit: 0x67, selector: 0x40, type_: 0xb, present: 1, ..Default::default() };
    sregs.ldt = kvm_segment { unusable: 1, ..Default::default() };
    sregs.gdt.limit = 0;
    sregs.idt.limit = 0;
}

/// Completes `regs` (general registers and rip as the caller wants them).
pub(crate) fn set_regs(regs: &mut kvm_regs, ring: Ring, vcpu: u64) {
    regs.rflags = match ring {
        Ring::Zero => RFLAGS_RESERVED,
        Ring::Three => RFLAGS_RESERVED | RFLAGS_IOPL3,
    };
    if regs.rip == 0 {
        regs.rip = CODE_BASE;
    }
    if regs.rsp == 0 {
        regs.rsp = STACK_BASE + (vcpu % STACKS + 1) * PAGE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_stay_inside_the_system_slot() {
        for mapped in [1, GIB, 4 * GIB, 5 * GIB + 1, MAX_MAPPED] {
            let end = system_bytes(mapped);
            assert!(page_tables(mapped).all(|(gpa, _)| gpa >= PML4 && gpa + 8 <= end));
            let leaves = page_tables(mapped).filter(|(_, e)| e & 0x80 != 0).count() as u64;
            assert!(leaves * LARGE_PAGE >= mapped);
        }
    }
}
