//! A guest in 64-bit ring 3 without a kernel, which runs natively on every KVM: it counts
//! down, then writes to a port. Bits: Intel SDM vol. 3, chapters 2.5, 3.4.5 and 4.5.

use crate::memory::Ram;
use anyhow::Result;
use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;

/// The port that says that it is done.
pub const DONE: u16 = 0xf4;
const CODE: u64 = 0x1000;
const PML4: u64 = 0x2_0000;
/// Present, writable, user, accessed, dirty; the last level has large pages.
const TABLE: u64 = 0x27;
const LARGE: u64 = 0x67 | 0x80;

/// Puts code and page tables (the first GiB, mapped to itself) below 640 KiB.
pub fn load(ram: &Ram) -> Result<()> {
    // dec rcx; jnz -5; out DONE, al; jmp to itself.
    ram.write(CODE, &[0x48, 0xff, 0xc9, 0x75, 0xfb, 0xe6, DONE as u8, 0xeb, 0xfe])?;
    ram.write(PML4, &((PML4 + 0x1000) | TABLE).to_le_bytes())?;
    ram.write(PML4 + 0x1000, &((PML4 + 0x2000) | TABLE).to_le_bytes())?;
    for n in 0..512 {
        ram.write(PML4 + 0x2000 + n * 8, &((n << 21) | LARGE).to_le_bytes())?;
    }
    Ok(())
}

/// A segment of the long mode.
pub fn segment(selector: u16, type_: u8, dpl: u8) -> kvm_segment {
    let long = u8::from(type_ == 0xb);
    let base = kvm_segment {
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl,
        s: 1,
        g: 1,
        ..Default::default()
    };
    kvm_segment { l: long, db: 1 - long, ..base }
}

/// Sets a vCPU to the code, with its count.
pub fn enter(vcpu: &VcpuFd, work: u64) -> Result<()> {
    let mut sregs = vcpu.get_sregs()?;
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (0x8005_0033, PML4, 0x6a0, 0xd01);
    sregs.cs = segment(0x33, 0xb, 3);
    let data = segment(0x2b, 3, 3);
    (sregs.ds, sregs.es, sregs.ss, sregs.fs, sregs.gs) = (data, data, data, data, data);
    sregs.tr =
        kvm_segment { limit: 0x67, selector: 0x40, type_: 0xb, present: 1, ..Default::default() };
    sregs.ldt = kvm_segment { unusable: 1, ..Default::default() };
    (sregs.gdt.limit, sregs.idt.limit) = (0, 0);
    vcpu.set_sregs(&sregs)?;
    // I/O privilege level 3, so that `out` is allowed.
    let regs =
        kvm_regs { rip: CODE, rcx: work / 2, rsp: 0x1_8000, rflags: 0x3002, ..Default::default() };
    Ok(vcpu.set_regs(&regs)?)
}
