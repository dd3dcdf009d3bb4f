//! A guest's physical memory, wherever it is kept.
//!
//! A VMM keeps guest RAM in one or several blocks of its own memory, and a PC
//! has a hole below 4 GiB, so guest-physical addresses are found through a list
//! of [`Region`]s. Where the bytes come from is a [`HostMemory`]: a file, a
//! slice, or a closure over `process_vm_readv`.

use crate::error::{Error, Result};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// `__START_KERNEL_map`: where x86-64 maps the kernel's own image.
pub const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// The smallest page.
pub const PAGE: u64 = 4096;

/// Memory addressed as its holder addresses it.
pub trait HostMemory {
    /// Fills `buffer` from `address`.
    ///
    /// # Errors
    /// When any byte of it can't be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Fills `heads` with the first `length` bytes of each page from `address` on, which is a page's.
    ///
    /// # Errors
    /// When any byte of them can't be read.
    fn read_heads(&self, address: u64, length: usize, heads: &mut [u8]) -> io::Result<()> {
        let pages = (address..).step_by(PAGE as usize);
        pages.zip(heads.chunks_mut(length)).try_for_each(|(page, head)| self.read(page, head))
    }

    /// True if it may change while it is read: its guest runs.
    fn changes(&self) -> bool {
        false
    }

    /// The first stretch from `address` on, before `end`, in which there can be anything but zeros; an empty one at
    /// `end` if there is none.
    fn next_there(&self, address: u64, end: u64) -> Range<u64> {
        address.min(end)..end
    }
}

impl<F: Fn(u64, &mut [u8]) -> io::Result<()>> HostMemory for F {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self(address, buffer)
    }
}

impl HostMemory for [u8] {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let source = usize::try_from(address)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(buffer.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(source);
        Ok(())
    }
}

impl HostMemory for File {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, address)
    }
}

/// A stretch of guest-physical addresses and where its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First guest-physical address.
    pub gpa: u64,
    /// Length, bytes.
    pub length: u64,
    /// Address in the [`HostMemory`].
    pub host: u64,
}

/// A guest's RAM by guest-physical address.
pub trait GuestRam {
    /// Fills `buffer` from a guest-physical address.
    ///
    /// # Errors
    /// [`Error::Ram`] when any byte of it is not RAM or can't be read.
    fn read(&self, gpa: u64, buffer: &mut [u8]) -> Result<()>;

    /// Bytes of RAM.
    fn size(&self) -> u64;
}

/// Guest RAM as regions of some host memory.
#[derive(Debug)]
pub struct MappedRam<'a, H: ?Sized> {
    regions: Vec<Region>,
    host: &'a H,
}

impl<'a, H: HostMemory + ?Sized> MappedRam<'a, H> {
    /// RAM made of `regions` of `host`.
    pub fn new(regions: Vec<Region>, host: &'a H) -> Self {
        MappedRam { regions, host }
    }

    /// The regions it is made of.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }
}

impl<H: HostMemory + ?Sized> GuestRam for MappedRam<'_, H> {
    fn read(&self, gpa: u64, buffer: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let at = gpa.checked_add(done as u64).ok_or_else(|| outside(gpa))?;
            let (offset, region) = self
                .regions
                .iter()
                .filter_map(|r| Some((at.checked_sub(r.gpa)?, r)))
                .find(|(offset, r)| *offset < r.length)
                .ok_or_else(|| outside(at))?;
            let left = buffer.len() - done;
            let here = usize::try_from(region.length - offset).unwrap_or(left).min(left);
            let host = region.host.checked_add(offset).ok_or_else(|| outside(at))?;
            self.host.read(host, &mut buffer[done..done + here]).map_err(|e| {
                Error::Ram(format!(
                    "cannot read {here} bytes at guest-physical address {at:#x}: \
                    {e}"
                ))
            })?;
            done += here;
        }
        Ok(())
    }

    fn size(&self) -> u64 {
        self.regions.iter().map(|r| r.length).sum()
    }
}

fn outside(gpa: u64) -> Error {
    Error::Ram(format!("guest-physical address {gpa:#x} is not RAM"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_across_regions_and_refuses_the_hole() {
        let bytes: Vec<u8> = (0..=255).collect();
        let regions = vec![
            Region { gpa: 0, length: 100, host: 0 },
            Region { gpa: 100, length: 20, host: 200 },
            Region { gpa: 4096, length: 10, host: 150 },
        ];
        let ram = MappedRam::new(regions, &bytes[..]);
        assert_eq!(ram.size(), 130);
        let mut buffer = [0; 4];
        ram.read(98, &mut buffer).unwrap();
        assert_eq!(buffer, [98, 99, 200, 201]);
        ram.read(4100, &mut buffer).unwrap();
        assert_eq!(buffer, [154, 155, 156, 157]);
        let error = ram.read(118, &mut buffer).unwrap_err().to_string();
        assert!(error.contains("0x78 is not RAM"), "{error}");
        assert!(ram.read(u64::MAX - 1, &mut buffer).is_err());
    }
}
