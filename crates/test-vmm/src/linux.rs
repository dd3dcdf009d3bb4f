//! Linux by the 64-bit boot protocol (Documentation/arch/x86/boot.rst, zero-page.rst): the
//! segments of a vmlinux where they belong, the initial RAM disk, the command line, and a zero
//! page with the memory map. No ACPI, no MP tables: one vCPU, its interrupts by the PIC.

use crate::memory::Ram;
use crate::ring3::segment;
use crate::Machine;
use anyhow::{Context, Result};
use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::Endianness;

const ZERO_PAGE: u64 = 0x7000;
const PML4: u64 = 0x9000;
const CMDLINE: u64 = 0x2_0000;
const PAGE: u64 = 4096;
const FOUR_GIB: u64 = 4 << 30;

/// Loads everything; the address at which the kernel is entered.
pub fn load(ram: &Ram, machine: &Machine) -> Result<u64> {
    let path = machine.kernel.as_deref().context("no kernel")?;
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let elf = ElfFile64::<Endianness>::parse(&*bytes)?;
    let endian = elf.endian();
    for header in elf.elf_program_headers() {
        if header.p_type(endian) == object::elf::PT_LOAD {
            let data = header.data(endian, &*bytes).ok().context("a segment outside the file")?;
            ram.write(header.p_paddr(endian), data)?;
        }
    }
    let initrd = match &machine.initrd {
        Some(path) => std::fs::read(path).with_context(|| path.display().to_string())?,
        None => Vec::new(),
    };
    let below = ram.sizes.0.min(0x3800_0000) - initrd.len() as u64;
    let place = below / PAGE * PAGE;
    ram.write(place, &initrd)?;
    ram.write(CMDLINE, format!("{}\0", machine.cmdline).as_bytes())?;
    ram.write(ZERO_PAGE, &zero_page(ram.sizes, place, initrd.len(), machine.cmdline.len()))?;
    ram.write(PML4, &((PML4 + PAGE) | 3).to_le_bytes())?;
    ram.write(PML4 + PAGE, &((PML4 + 2 * PAGE) | 3).to_le_bytes())?;
    for n in 0..512u64 {
        ram.write(PML4 + 2 * PAGE + n * 8, &((n << 21) | 0x83).to_le_bytes())?;
    }
    Ok(elf.elf_header().e_entry(endian))
}

/// `struct boot_params`: the setup header's fields that a boot loader fills, and the map.
fn zero_page((low, high): (u64, u64), initrd: u64, length: usize, cmdline: usize) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1fe, &0xaa55u16.to_le_bytes());
    put(0x202, b"HdrS");
    put(0x210, &[0xff]);
    put(0x218, &(initrd as u32).to_le_bytes());
    put(0x21c, &(length as u32).to_le_bytes());
    put(0x228, &(CMDLINE as u32).to_le_bytes());
    put(0x230, &(16u32 << 20).to_le_bytes());
    put(0x238, &(cmdline as u32).to_le_bytes());
    let mut map = vec![(0, 0x9_fc00), (1 << 20, low - (1 << 20))];
    if high > 0 {
        map.push((FOUR_GIB, high));
    }
    put(0x1e8, &[map.len() as u8]);
    for (n, (start, length)) in map.into_iter().enumerate() {
        let at = 0x2d0 + n * 20;
        put(at, &u64::to_le_bytes(start));
        put(at + 8, &u64::to_le_bytes(length));
        put(at + 16, &1u32.to_le_bytes());
    }
    page
}

/// Sets the vCPU to the kernel's entry.
pub fn enter(vcpu: &VcpuFd, entry: u64) -> Result<()> {
    let mut sregs = vcpu.get_sregs()?;
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (0x8000_0011, PML4, 0x20, 0x500);
    sregs.cs = segment(0x10, 0xb, 0);
    let data = segment(0x18, 3, 0);
    (sregs.ds, sregs.es, sregs.ss, sregs.fs, sregs.gs) = (data, data, data, data, data);
    sregs.tr =
        kvm_segment { limit: 0x67, selector: 0x20, type_: 0xb, present: 1, ..Default::default() };
    vcpu.set_sregs(&sregs)?;
    let regs =
        kvm_regs { rip: entry, rsi: ZERO_PAGE, rsp: 0x8ff0, rflags: 2, ..Default::default() };
    Ok(vcpu.set_regs(&regs)?)
}
