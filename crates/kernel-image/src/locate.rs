//! Finding guest RAM among a VMM's mappings, and the kernel in it.
//!
//! The kernel's banner is at a known distance from `_text`, and `_text` is on a
//! 2 MiB boundary of physical memory wherever the boot loader or KASLR put it:
//! one short read a candidate finds it without scanning. The rest follows from
//! the kernel's own variables. `phys_base` ties physical to virtual addresses,
//! which gives the KASLR offset. The last entry of the top page table holds the
//! *physical* address of a table whose place in the image is known, which gives
//! the distance of mapping offsets from guest-physical addresses. `max_pfn`
//! and the guest's own memory map tell how the hole below 4 GiB cuts its blocks.

use crate::bytes::{u32_at, u64_at};
use crate::clocks::Clocks;
use crate::error::{Error, Result};
use crate::guest::{Guest, KernelPlace};
use crate::info::KernelInfo;
use crate::ram::{HostMemory, MappedRam, Region, KERNEL_MAP, PAGE};

/// How much of it is searched for the banner, bytes: it is 224 to 512 bytes in.
const HEAD: usize = 4096;
/// How a kernel introduces itself.
pub(crate) const BANNER: &[u8] = b"Linux version ";

/// The finest alignment of a relocated kernel (`CONFIG_PHYSICAL_ALIGN`).
const KERNEL_ALIGN: u64 = 2 << 20;
/// Guest RAM smaller than this can't hold a kernel where it is without physical KASLR.
const SMALLEST: u64 = 16 << 20;
/// Largest mapping searched.
const LARGEST: u64 = 1 << 40;
const FOUR_GIB: u64 = 4 << 30;
/// The virtual KASLR offset is below `KERNEL_IMAGE_SIZE`.
const KASLR_LIMIT: u64 = 1 << 30;
/// Starts of the hole below 4 GiB in use: QEMU q35 2 GiB or 2.75 GiB, pc 3 or
/// 3.5 GiB, microvm, cloud-hypervisor and Firecracker 3 GiB, kvmtool and older
/// Firecrackers 3.25 GiB.
const HOLES: [u64; 6] = [2 << 30, 0xb000_0000, 3 << 30, 0xd000_0000, 0xe000_0000, FOUR_GIB];
/// How much of the top of low RAM firmware may keep for itself.
const FIRMWARE_RESERVE: u64 = 64 << 20;

/// A mapping of a VMM that may hold guest RAM, or a RAM file at address 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its address in the [`HostMemory`].
    pub address: u64,
    /// Its length, bytes.
    pub length: u64,
}

/// Guest RAM and the kernel in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Guest RAM.
    pub regions: Vec<Region>,
    /// The kernel.
    pub place: KernelPlace,
    /// What tells it from one that ran before it.
    pub life: Life,
}

/// What is left of a kernel that gave way to another (kexec, a reset) stays in RAM until somebody
/// writes there. Of two kernels the greater is the one that ran last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    /// Its clocks can be read.
    has_clocks: bool,
    /// It has not begun to give way (`system_state`).
    goes_on: bool,
    /// The cycles of its clocksource at its last tick.
    last_tick: u64,
}

/// `SYSTEM_RESTART` of include/linux/kernel.h: the machine is reset, or kexec's kernel is next.
const RESTARTS: u32 = 6;

impl Life {
    fn of(guest: &Guest<'_>) -> Self {
        let state = guest.symbol("system_state").and_then(|at| guest.bytes(at, 4));
        let clocks = Clocks::take(guest, 0).ok();
        Life {
            has_clocks: clocks.is_some(),
            goes_on: state.ok().and_then(|state| u32_at(&state, 0)) != Some(RESTARTS),
            last_tick: clocks.map_or(0, |clocks| clocks.cycle_last),
        }
    }

    /// False for a kernel that another may have come after.
    pub fn goes_on(self) -> bool {
        self.has_clocks && self.goes_on
    }
}

/// Finds which candidates are guest RAM, how they are laid out, and where in
/// them the kernel of `info` is, with KASLR or without.
///
/// # Errors
/// [`Error::Ram`] when no candidate holds this kernel, or when its variables do
/// not agree with one another, as in a guest that ended before it set up its
/// page tables; [`Error::Missing`] when the kernel's symbols do not suffice.
pub fn locate<H: HostMemory + ?Sized>(
    candidates: &[Candidate],
    host: &H,
    info: &KernelInfo,
) -> Result<Located> {
    let mut blocks: Vec<Candidate> =
        candidates.iter().copied().filter(|c| (SMALLEST..=LARGEST).contains(&c.length)).collect();
    blocks.sort_by_key(|c| std::cmp::Reverse(c.length));
    let banner = Banner::of(info)?;
    let (mut best, mut problem): (Option<Located>, _) = (None, None);
    let all = blocks.iter().flat_map(|&b| places(b).map(move |text| (b, text)));
    for (block, text) in all.filter(|&(_, text)| banner.is_at(host, text)) {
        match (Finding { blocks: &blocks, block, text, host, info }).resolve() {
            Ok(located) if best.as_ref().is_none_or(|best| best.life < located.life) => {
                best = Some(located);
            }
            Ok(_) => {}
            Err(error) => problem = Some(error),
        }
    }
    best.ok_or_else(|| problem.unwrap_or_else(|| Error::Ram(absent(&blocks, host, info))))
}

/// Why the kernel is in none of the blocks: there is no RAM, another one runs, or none yet.
fn absent<H: HostMemory + ?Sized>(blocks: &[Candidate], host: &H, info: &KernelInfo) -> String {
    let (version, most) = (&info.version, SMALLEST >> 20);
    if blocks.is_empty() {
        return format!(
            "cannot search for kernel {version}: the VMM has no memory mapping of {most} MiB or \
             more, because it has already unmapped its guest's RAM"
        );
    }
    if let Some(other) = first_banner(blocks, host).filter(|b| *b != info.banner) {
        let other = other.strip_prefix("Linux version ").unwrap_or(&other);
        let other = other.split(' ').next().unwrap_or(other);
        return format!("the guest runs kernel {other}; expected {version}");
    }
    format!(
        "no kernel, neither {version} nor another, is in the {} mappings of {most} MiB or more: \
         the guest ended before its kernel was loaded",
        blocks.len()
    )
}

/// Where what begins on a boundary of 2 MiB of guest-physical memory can be in a block, as
/// host addresses: RAM begins where the mapping does, or ends where it does, or is on
/// boundaries of the host's own where mappings were merged.
pub(crate) fn places(block: Candidate) -> impl Iterator<Item = u64> {
    let end = block.address.saturating_add(block.length);
    let aligned = block.address.checked_next_multiple_of(KERNEL_ALIGN).unwrap_or(end);
    let second = if aligned == block.address { end } else { aligned };
    let third = block.address.saturating_add(block.length % KERNEL_ALIGN);
    let third = if third == block.address || third == aligned { end } else { third };
    let step = KERNEL_ALIGN as usize;
    [block.address, second, third].into_iter().flat_map(move |from| (from..end).step_by(step))
}

/// The banner, and how far it is from `_text`.
struct Banner {
    text: Vec<u8>,
    distance: u64,
}

impl Banner {
    fn of(info: &KernelInfo) -> Result<Self> {
        let distance = info.symbol("linux_banner")?.wrapping_sub(info.symbol("_text")?);
        Ok(Banner { text: format!("{}\n", info.banner).into_bytes(), distance })
    }

    fn is_at<H: HostMemory + ?Sized>(&self, host: &H, text: u64) -> bool {
        let mut buffer = vec![0; self.text.len()];
        let at = text.checked_add(self.distance);
        at.is_some_and(|at| host.read(at, &mut buffer).is_ok()) && buffer == self.text
    }
}

/// A place where the kernel seems to be.
struct Finding<'a, H: ?Sized> {
    blocks: &'a [Candidate],
    block: Candidate,
    /// Host address of `_text`.
    text: u64,
    host: &'a H,
    info: &'a KernelInfo,
}

impl<H: HostMemory + ?Sized> Finding<'_, H> {
    fn resolve(&self) -> Result<Located> {
        let five_levels = match self.info.symbol("__pgtable_l5_enabled") {
            Ok(_) => self.image_number("__pgtable_l5_enabled", 4)? != 0,
            Err(_) => false,
        };
        let table = if five_levels { "level4_kernel_pgt" } else { "level3_kernel_pgt" };
        let top = self.image_address("init_top_pgt")?;
        let entry = self.number(top.wrapping_add(511 * 8), 8)?;
        // Guest-physical address less host address, the same over the whole block
        // (or over the part of it on this side of the hole).
        let shift = (entry & 0x000f_ffff_ffff_f000).wrapping_sub(self.image_address(table)?);
        let physical = self.text.wrapping_add(shift);
        let linked = self.info.symbol("_text")?.wrapping_sub(KERNEL_MAP);
        let phys_base = self.image_number("phys_base", 8)?;
        let kaslr_offset = physical.wrapping_sub(linked).wrapping_sub(phys_base);
        if entry & 1 == 0 || physical % KERNEL_ALIGN != 0 || kaslr_offset >= KASLR_LIMIT {
            return Err(Error::Ram(format!(
                "found kernel {}, but its page tables and phys_base ({phys_base:#x}) do not \
                    agree: the guest ended before it had set them up",
                self.info.version
            )));
        }
        let place = KernelPlace { physical, kaslr_offset, five_levels };
        let end = self.memory_end(physical)?;
        let layouts = self.layouts(physical, end)?;
        let verified = layouts.iter().find(|regions| self.agrees(regions, place, end));
        let regions = verified.or(layouts.first()).ok_or_else(misplaced)?.clone();
        let ram = MappedRam::new(regions.clone(), self.host);
        let guest = Guest::new(&ram, self.info, place)?;
        let banner = guest.symbol("linux_banner")?;
        if guest.text(banner, 1024)? != format!("{}\n", self.info.banner) {
            let text = "the kernel's page tables do not map linux_banner to the kernel's banner";
            return Err(Error::Ram(text.into()));
        }
        Ok(Located { life: Life::of(&guest), regions, place })
    }

    /// Where the guest's memory ends, guest-physical.
    fn memory_end(&self, physical: u64) -> Result<u64> {
        let end = self.image_number("max_pfn", 8)?.saturating_mul(PAGE);
        if end <= physical || end > LARGEST {
            // So in a copy of the kernel's file, which a VMM may keep besides RAM.
            return Err(Error::Ram(format!(
                "found kernel {}, but its max_pfn gives {end:#x} as the end of RAM: the guest \
                    ended before it had counted its memory",
                self.info.version
            )));
        }
        Ok(end)
    }

    /// Ways in which blocks can be laid out around the hole below 4 GiB, the
    /// likeliest first: one block cut in two, a block on either side, or both merged.
    fn layouts(&self, physical: u64, end: u64) -> Result<Vec<Vec<Region>>> {
        let high = end.saturating_sub(FOUR_GIB);
        let block = self.block;
        let block_end = block.address.saturating_add(block.length);
        if physical >= FOUR_GIB {
            // So all of this block from 4 GiB on is above the hole too.
            let host = self.text.wrapping_sub(physical - FOUR_GIB);
            let before = host.checked_sub(block.address).ok_or_else(misplaced)?;
            let length = high.min(block_end.checked_sub(host).ok_or_else(misplaced)?);
            let above = Region { gpa: FOUR_GIB, length, host };
            let below =
                |b: Candidate| vec![Region { gpa: 0, length: b.length, host: b.address }, above];
            if before > 0 {
                return Ok(vec![below(Candidate { length: before.min(FOUR_GIB), ..block })]);
            }
            let rest = Candidate { address: host + length, length: block.length - length };
            let merged = Some(rest).filter(|r| (SMALLEST..=FOUR_GIB).contains(&r.length));
            return Ok(merged
                .into_iter()
                .chain(self.others(|l| l <= FOUR_GIB))
                .map(below)
                .collect());
        }
        let zero = self.text.wrapping_sub(physical);
        let length =
            block_end.checked_sub(zero).filter(|&l| l >= SMALLEST).ok_or_else(misplaced)?;
        let low = |length: u64| Region { gpa: 0, length, host: zero };
        if high == 0 {
            return Ok(vec![vec![low(length.min(FOUR_GIB))]]);
        }
        let above = |host: u64| Region { gpa: FOUR_GIB, length: high, host };
        let cut = length.checked_sub(high).into_iter().chain(HOLES);
        let one_block = cut
            .filter(|&l| l > physical && l <= FOUR_GIB && length - high.min(length) >= l)
            .map(|l| vec![low(l), above(zero + l)]);
        let two_blocks = self
            .others(|l| l == high)
            .filter(|_| length <= FOUR_GIB)
            .map(|b| vec![low(length), above(b.address)]);
        // Mapped later, high RAM lies below low RAM, and the host has merged the two.
        let merged = zero
            .checked_sub(high)
            .filter(|&host| host >= block.address && length <= FOUR_GIB)
            .map(|host| vec![low(length), above(host)]);
        Ok(one_block.chain(two_blocks).chain(merged).collect())
    }

    /// Checks a layout against the memory map that the firmware gave the guest
    /// (`e820_table`: a u32 count, then packed entries of u64 address, u64 size,
    /// u32 type): it must be readable, end where memory ends, and its low part
    /// must end where the low region does, save what the firmware keeps there.
    fn agrees(&self, regions: &[Region], place: KernelPlace, end: u64) -> bool {
        const ENTRY: usize = 20;
        const MOST: u64 = 4096;
        let ram = MappedRam::new(regions.to_vec(), self.host);
        let usable_ends = || -> Result<Vec<u64>> {
            let guest = Guest::new(&ram, self.info, place)?;
            let table = guest.u64(guest.symbol("e820_table")?)?;
            let count = u64::from(guest.u64(table)? as u32);
            if count > MOST {
                return Err(misplaced());
            }
            let entries = guest.bytes(table.wrapping_add(4), count as usize * ENTRY)?;
            Ok(entries
                .chunks_exact(ENTRY)
                .filter(|e| u32_at(e, 16) == Some(1))
                .filter_map(|e| u64_at(e, 0)?.checked_add(u64_at(e, 8)?))
                .collect())
        };
        let Ok(ends) = usable_ends() else { return false };
        let low_end = ends.iter().copied().filter(|&e| e <= FOUR_GIB).max().unwrap_or(0);
        ends.iter().max().is_some_and(|e| e / PAGE == end / PAGE)
            && regions
                .iter()
                .any(|r| r.gpa == 0 && (low_end..=low_end + FIRMWARE_RESERVE).contains(&r.length))
    }

    /// Other blocks whose length is right.
    fn others<'b>(
        &'b self,
        right: impl Fn(u64) -> bool + 'b,
    ) -> impl Iterator<Item = Candidate> + 'b {
        let own = self.block;
        self.blocks.iter().copied().filter(move |b| *b != own && right(b.length))
    }

    /// Host address of a symbol of the kernel's image.
    fn image_address(&self, name: &str) -> Result<u64> {
        let offset = self.info.symbol(name)?.wrapping_sub(self.info.symbol("_text")?);
        Ok(self.text.wrapping_add(offset))
    }

    fn image_number(&self, name: &str, bytes: usize) -> Result<u64> {
        self.number(self.image_address(name)?, bytes)
    }

    fn number(&self, address: u64, bytes: usize) -> Result<u64> {
        let mut buffer = [0; 8];
        self.host.read(address, &mut buffer[..bytes]).map_err(|e| {
            Error::Ram(format!(
                "cannot read address {address:#x} in the VMM's \
                memory: {e}"
            ))
        })?;
        Ok(u64::from_le_bytes(buffer))
    }
}

fn misplaced() -> Error {
    Error::Ram(
        "the kernel's physical address does not fit the block of RAM that holds the \
        kernel"
            .into(),
    )
}

/// The banner of the first kernel in a VMM's memory, if there is any.
fn first_banner<H: HostMemory + ?Sized>(candidates: &[Candidate], host: &H) -> Option<String> {
    candidates.iter().flat_map(|c| places(*c)).find_map(|at| head(host, at))
}

/// The banner in the first page at an address, if one is there.
pub(crate) fn head<H: HostMemory + ?Sized>(host: &H, at: u64) -> Option<String> {
    let mut page = [0; HEAD];
    host.read(at, &mut page).ok()?;
    memchr::memmem::find_iter(&page, BANNER).find_map(|start| {
        let rest = page.get(start..)?;
        let digit = rest.get(BANNER.len()).is_some_and(u8::is_ascii_digit);
        let end = memchr::memchr2(b'\n', 0, rest).filter(|_| digit)?;
        std::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
    })
}
