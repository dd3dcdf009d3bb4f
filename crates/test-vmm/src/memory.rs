//! Guest RAM, mapped as one VMM or another maps it.

use anyhow::{bail, Context, Result};
use clap::ValueEnum;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: u64 = 1 << 20;
const FOUR_GIB: u64 = 4 << 30;
/// The end of conventional memory, and of the VGA hole above it.
const VGA: (u64, u64) = (640 << 10, MIB);

/// How the process maps low RAM (below the hole) and high RAM (above the hole).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// One mapping, low RAM first.
    LowHigh,
    /// Two mappings that the kernel merges; high RAM is at the lower address.
    HighLow,
    /// Two mappings, apart.
    Apart,
    /// One mapping from 0 to the end of high RAM, nothing accessible in the hole.
    Gap,
    /// A memfd mapped in pieces: RAM below the VGA hole, the rest of low RAM, high RAM.
    Pieces,
    /// As `low-high`, of a memfd.
    Memfd,
}

/// A stretch of guest-physical memory, and where it is.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    /// Guest-physical address.
    pub gpa: u64,
    /// Length, bytes.
    pub length: u64,
    /// Address in this process.
    pub host: u64,
}

/// Guest RAM.
#[derive(Debug)]
pub struct Ram {
    /// What KVM is told.
    pub regions: Vec<Region>,
    /// Low and high RAM, bytes.
    pub sizes: (u64, u64),
    /// All that was mapped: address, length.
    mapped: Vec<(u64, u64)>,
}

// SAFETY of all of it: mappings are made where nothing is (a null hint) or over a
// reservation of this module's own, and never given back before `unmap`.
fn map(at: Option<u64>, length: u64, protection: i32, file: Option<(&File, u64)>) -> Result<u64> {
    let mut flags = if at.is_some() { libc::MAP_FIXED } else { 0 };
    flags |= match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    };
    let (fd, offset) = file.map_or((-1, 0), |(file, offset)| (file.as_raw_fd(), offset));
    // SAFETY: see above; the kernel checks the rest.
    let address = unsafe {
        let hint = at.unwrap_or(0) as *mut libc::c_void;
        libc::mmap(hint, length as usize, protection, flags, fd, offset as i64)
    };
    if address == libc::MAP_FAILED {
        return Err(Error::last_os_error()).context("mmap of guest RAM");
    }
    Ok(address as u64)
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PAGE: u64 = 4096;

impl Ram {
    /// Maps `memory` bytes around a hole that begins at `hole`.
    pub fn map(memory: u64, hole: u64, layout: Layout) -> Result<Self> {
        let (low, high) = (memory.min(hole), memory.saturating_sub(hole));
        let mut ram = Ram { regions: Vec::new(), sizes: (low, high), mapped: Vec::new() };
        match layout {
            Layout::LowHigh => {
                let at = ram.keep(map(None, low + high, READ_WRITE, None)?, low + high);
                ram.split(at, at + low);
            }
            Layout::HighLow => {
                let at = ram.keep(map(None, low + high, libc::PROT_NONE, None)?, low + high);
                map(Some(at + high), low, READ_WRITE, None)?;
                if high > 0 {
                    map(Some(at), high, READ_WRITE, None)?;
                }
                ram.split(at + high, at);
            }
            Layout::Apart => {
                let all = low + high + PAGE;
                let at = ram.keep(map(None, all, libc::PROT_NONE, None)?, all);
                map(Some(at), low, READ_WRITE, None)?;
                if high > 0 {
                    map(Some(at + low + PAGE), high, READ_WRITE, None)?;
                }
                ram.split(at, at + low + PAGE);
            }
            Layout::Gap => {
                let all = if high > 0 { FOUR_GIB + high } else { low };
                let at = ram.keep(map(None, all, libc::PROT_NONE, None)?, all);
                map(Some(at), low, READ_WRITE, None)?;
                if high > 0 {
                    map(Some(at + FOUR_GIB), high, READ_WRITE, None)?;
                }
                ram.split(at, at + FOUR_GIB);
            }
            Layout::Pieces => ram.pieces()?,
            Layout::Memfd => {
                let file = memfd(low + high)?;
                let at = ram.keep(map(None, low + high, READ_WRITE, Some((&file, 0)))?, low + high);
                ram.split(at, at + low);
            }
        }
        Ok(ram)
    }

    fn keep(&mut self, address: u64, length: u64) -> u64 {
        self.mapped.push((address, length));
        address
    }

    fn split(&mut self, low: u64, high: u64) {
        self.regions.push(Region { gpa: 0, length: self.sizes.0, host: low });
        if self.sizes.1 > 0 {
            self.regions.push(Region { gpa: FOUR_GIB, length: self.sizes.1, host: high });
        }
    }

    /// Maps pieces of one file, each at an address that the kernel chooses.
    fn pieces(&mut self) -> Result<()> {
        let (low, high) = self.sizes;
        let file = memfd(low + high)?;
        let pieces = [(0, VGA.0, 0), (VGA.1, low - VGA.1, VGA.1), (FOUR_GIB, high, low)];
        for (gpa, length, offset) in pieces.into_iter().filter(|(_, length, _)| *length > 0) {
            let host = map(None, length, READ_WRITE, Some((&file, offset)))?;
            self.keep(host, length);
            self.regions.push(Region { gpa, length, host });
        }
        Ok(())
    }

    /// Writes to guest-physical memory.
    pub fn write(&self, gpa: u64, bytes: &[u8]) -> Result<()> {
        let end = gpa + bytes.len() as u64;
        let inside = |r: &&Region| gpa >= r.gpa && end <= r.gpa + r.length;
        let Some(region) = self.regions.iter().find(inside) else {
            bail!("{:#x} to {end:#x} is not RAM", gpa);
        };
        let to = (region.host + gpa - region.gpa) as *mut u8;
        // SAFETY: inside a mapping of this guest's RAM, to which nobody holds references.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Fills RAM from a file of low RAM, then high RAM. A hole in the file leaves RAM untouched.
    pub fn plant(&self, path: &Path) -> Result<()> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let (low, high) = self.sizes;
        let (mut at, end) = (0, file.metadata()?.len().min(low + high));
        let mut buffer = vec![0; MIB as usize];
        while at < end {
            // SAFETY: plain system calls on a descriptor that is open.
            let (data, hole) = unsafe {
                let data = libc::lseek(file.as_raw_fd(), at as i64, libc::SEEK_DATA);
                (data, libc::lseek(file.as_raw_fd(), data.max(0), libc::SEEK_HOLE))
            };
            if data < 0 {
                return Ok(());
            }
            at = data as u64;
            let stop = (hole as u64).min(end);
            while at < stop {
                // No chunk crosses the hole below 4 GiB, nor the VGA hole of pieces.
                let here = (stop - at).min(MIB - at % MIB) as usize;
                file.read_exact_at(&mut buffer[..here], at)?;
                let gpa = if at < low { at } else { FOUR_GIB + at - low };
                if gpa >= MIB {
                    self.write(gpa, &buffer[..here])?;
                }
                at += here as u64;
            }
        }
        Ok(())
    }

    /// Gives it all back.
    pub fn unmap(&self) {
        for &(address, length) in &self.mapped {
            // SAFETY: mapped by this module, and its users are gone.
            unsafe { libc::munmap(address as *mut libc::c_void, length as usize) };
        }
    }
}

fn memfd(length: u64) -> Result<File> {
    // SAFETY: the name is NUL-terminated; the descriptor is new and owned by nobody else.
    let file = unsafe {
        let fd = libc::memfd_create(c"test_guest".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(Error::last_os_error()).context("memfd_create");
        }
        File::from_raw_fd(fd)
    };
    file.set_len(length)?;
    Ok(file)
}
