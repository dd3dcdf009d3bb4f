//! A guest's memory by the kernel's virtual addresses.
//!
//! Addresses are translated by walking the kernel's own page tables from
//! `init_top_pgt`, with 4 or 5 levels, so that the image, the direct map, vmalloc
//! and modules are all found alike and no randomised base needs to be known.
//! Small reads go through a cache of whole pages: a few dozen pages hold all the
//! pointers on the way to both rings.

use crate::bytes::{text_until_nul, u64_at};
use crate::error::{Error, Result};
use crate::info::KernelInfo;
use crate::ram::{GuestRam, KERNEL_MAP, PAGE};
use std::cell::RefCell;
use std::collections::HashMap;

/// Page-table entries: the address of a table or page.
const ENTRY_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const ENTRY_PRESENT: u64 = 1;
const ENTRY_LARGE: u64 = 1 << 7;
/// Most pages cached, 64 MiB: more than any bounded walk reads.
const MAX_CACHED: usize = 1 << 14;

/// Where the kernel is in a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPlace {
    /// Physical address of `_text`.
    pub physical: u64,
    /// What KASLR adds to every link-time virtual address; 0 without KASLR.
    pub kaslr_offset: u64,
    /// True when page tables have five levels.
    pub five_levels: bool,
}

/// A guest whose kernel has been found.
pub struct Guest<'a> {
    ram: &'a dyn GuestRam,
    info: &'a KernelInfo,
    place: KernelPlace,
    top_table: u64,
    pages: RefCell<HashMap<u64, Box<[u8; PAGE as usize]>>>,
}

impl<'a> Guest<'a> {
    /// A guest's memory, with its kernel at `place`.
    ///
    /// # Errors
    /// [`Error::Missing`] without the symbols `_text` and `init_top_pgt`.
    pub fn new(ram: &'a dyn GuestRam, info: &'a KernelInfo, place: KernelPlace) -> Result<Self> {
        let top_table = info
            .symbol("init_top_pgt")?
            .wrapping_sub(info.symbol("_text")?)
            .wrapping_add(place.physical);
        Ok(Guest { ram, info, place, top_table, pages: RefCell::default() })
    }

    /// Forgets the pages that were read: of a guest that runs, they may hold something else by now.
    pub fn forget(&self) {
        self.pages.borrow_mut().clear();
    }

    /// The kernel that runs in it.
    pub fn info(&self) -> &'a KernelInfo {
        self.info
    }

    /// Where that kernel is.
    pub fn place(&self) -> KernelPlace {
        self.place
    }

    /// Address of a symbol as it is at run time.
    ///
    /// # Errors
    /// As [`KernelInfo::symbol`].
    pub fn symbol(&self, name: &str) -> Result<u64> {
        let address = self.info.symbol(name)?;
        Ok(if address >= KERNEL_MAP {
            address.wrapping_add(self.place.kaslr_offset)
        } else {
            address
        })
    }

    /// The guest-physical address of a virtual one.
    ///
    /// # Errors
    /// [`Error::Ram`] when it is not mapped.
    pub fn translate(&self, address: u64) -> Result<u64> {
        let unmapped = || Error::Ram(format!("virtual address {address:#x} is not mapped"));
        let levels: u32 = if self.place.five_levels { 5 } else { 4 };
        let sign = address >> (12 + 9 * levels - 1);
        if sign != 0 && sign != u64::MAX >> (12 + 9 * levels - 1) {
            return Err(unmapped());
        }
        let mut table = self.top_table;
        for level in (0..levels).rev() {
            let shift = 12 + 9 * level;
            let at = table + ((address >> shift) & 0x1ff) * 8;
            let entry = self.physical_u64(at)?;
            if entry & ENTRY_PRESENT == 0 {
                return Err(unmapped());
            }
            if level == 0 || (level <= 2 && entry & ENTRY_LARGE != 0) {
                let low = (1u64 << shift) - 1;
                return Ok((entry & ENTRY_ADDRESS & !low) | (address & low));
            }
            table = entry & ENTRY_ADDRESS;
        }
        Err(unmapped())
    }

    /// Fills `buffer` from a virtual address, page by page, without caching.
    ///
    /// # Errors
    /// [`Error::Ram`] when part of it is not mapped or not RAM.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let at = address.wrapping_add(done as u64);
            let here = ((PAGE - at % PAGE) as usize).min(buffer.len() - done);
            self.ram.read(self.translate(at)?, &mut buffer[done..done + here])?;
            done += here;
        }
        Ok(())
    }

    /// Reads `length` bytes at a virtual address through the page cache.
    ///
    /// # Errors
    /// As [`Guest::read`].
    pub fn bytes(&self, address: u64, length: usize) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(length.min(PAGE as usize));
        while out.len() < length {
            let at = address.wrapping_add(out.len() as u64);
            let physical = self.translate(at)?;
            let here = ((PAGE - at % PAGE) as usize).min(length - out.len());
            self.with_page(physical, |page, offset| {
                out.extend_from_slice(&page[offset..offset + here]);
            })?;
        }
        Ok(out)
    }

    /// A field of the structure at `address`, as an unsigned number.
    ///
    /// # Errors
    /// As [`KernelInfo::field`] and [`Guest::read`].
    pub fn field(&self, address: u64, name: &str) -> Result<u64> {
        let field = self.info.field(name)?;
        let length = (field.offset() + field.size()) - field.offset();
        let bytes = self.bytes(address.wrapping_add(field.offset()), length as usize)?;
        crate::btf::Field { bit: field.bit % 8, bits: field.bits }
            .get(&bytes)
            .ok_or_else(|| Error::malformed("field", format!("{name} is no number")))
    }

    /// As [`Guest::field`], with `None` where the kernel has no such field.
    ///
    /// # Errors
    /// As [`Guest::read`].
    pub fn optional_field(&self, address: u64, name: &str) -> Result<Option<u64>> {
        if self.info.fields.contains_key(name) {
            self.field(address, name).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A pointer or other 8-byte number.
    ///
    /// # Errors
    /// As [`Guest::read`].
    pub fn u64(&self, address: u64) -> Result<u64> {
        let bytes = self.bytes(address, 8)?;
        u64_at(&bytes, 0).ok_or_else(|| Error::Ram(format!("{address:#x} can't be read")))
    }

    /// A NUL-terminated text of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Guest::read`].
    pub fn text(&self, address: u64, limit: usize) -> Result<String> {
        let within_page = (PAGE - address % PAGE) as usize;
        let mut bytes = self.bytes(address, limit.min(within_page))?;
        if limit > within_page && !bytes.contains(&0) {
            bytes = self.bytes(address, limit)?;
        }
        Ok(text_until_nul(&bytes))
    }

    /// Reads `length` bytes at a guest-physical address, without caching.
    ///
    /// # Errors
    /// [`Error::Ram`] when part of it is not RAM.
    pub fn physical(&self, address: u64, length: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; length];
        self.ram.read(address, &mut out)?;
        Ok(out)
    }

    fn physical_u64(&self, physical: u64) -> Result<u64> {
        self.with_page(physical, u64_at)?
            .ok_or_else(|| Error::Ram(format!("{physical:#x} is not aligned")))
    }

    fn with_page<T>(&self, physical: u64, f: impl FnOnce(&[u8], usize) -> T) -> Result<T> {
        let number = physical / PAGE;
        let offset = (physical % PAGE) as usize;
        let mut pages = self.pages.borrow_mut();
        if !pages.contains_key(&number) {
            if pages.len() >= MAX_CACHED {
                pages.clear();
            }
            let mut page = Box::new([0; PAGE as usize]);
            self.ram.read(number * PAGE, &mut page[..])?;
            pages.insert(number, page);
        }
        Ok(f(&pages[&number][..], offset))
    }
}
