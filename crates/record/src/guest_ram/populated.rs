//! Reading a VMM's memory without giving it any.
//!
//! To read a page that its guest never touched has the host allocate it, in a file of RAM (a
//! memfd, shared memory) and in huge pages: a look for a kernel in a guest of 64 GiB would fill
//! some of it, and may take the last huge pages of a host. `/proc/PID/pagemap` says which pages
//! are there. What is not is zero, as its guest would find it. Pages of a file that this process does
//! not map (another one wrote them, or they were swapped out) are found by `SEEK_DATA`, where
//! the VMM's file can be opened.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use vmeter_base::process::descriptors;
use vmeter_machine::launch::{Mapping, Tracee};

const PAGE: u64 = 4096;
/// Bits of an entry of pagemap: the page is there, or in swap (Documentation/admin-guide/mm/pagemap.rst).
const THERE: u64 = 3 << 62;
/// Most pages that are asked for at once.
const MOST: u64 = 1 << 9;

/// A VMM's mappings, and which of their pages are there.
#[derive(Debug)]
pub(super) struct Populated {
    /// In order of addresses.
    mappings: Vec<Known>,
    /// None where it can't be read: nothing is known then.
    pagemap: Option<File>,
}

#[derive(Debug)]
struct Known {
    start: u64,
    end: u64,
    offset: u64,
    /// What is mapped, where it can be opened.
    file: Option<File>,
}

impl Populated {
    /// Of a VMM whose mappings are these.
    pub(super) fn of(tracee: &Tracee, mappings: &[Mapping]) -> Self {
        let files = open_files(tracee.pid);
        let file = |mapping: &Mapping| {
            let (_, inode) = mapping.file.as_ref()?;
            let named = |path: &str| path == mapping.path;
            let found = files.iter().find(|file| file.inode == *inode && named(&file.name))?;
            File::open(&found.path).ok()
        };
        let known = |m: &Mapping| Known {
            start: m.start,
            end: m.end,
            offset: m.offset,
            file: m.permissions.starts_with("rw").then(|| file(m)).flatten(),
        };
        let mut mappings: Vec<Known> = mappings.iter().map(known).collect();
        mappings.sort_by_key(|mapping| mapping.start);
        let pagemap = File::open(format!("/proc/{}/pagemap", tracee.pid)).ok();
        Populated { mappings, pagemap }
    }

    /// Fills `buffer` from an address of the process.
    ///
    /// # Errors
    /// As [`Tracee::read`].
    pub(super) fn read(&self, tracee: &Tracee, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Some(pagemap) = &self.pagemap else { return tracee.read(address, buffer) };
        let mut done = 0;
        while done < buffer.len() {
            let at = address.checked_add(done as u64).ok_or(io::ErrorKind::InvalidInput)?;
            let left = (buffer.len() - done) as u64;
            let stretches = match self.mapping(at) {
                Some(mapping) => stretches(pagemap, mapping, at, left)?,
                None => vec![(true, left)],
            };
            for (there, length) in stretches {
                let part = &mut buffer[done..done + length as usize];
                if there {
                    tracee.read(address + done as u64, part)?;
                } else {
                    part.fill(0);
                }
                done += part.len();
            }
        }
        Ok(())
    }

    /// The first stretch from an address on, before `end`, that is there, or of which that is not known.
    pub(super) fn next_there(&self, mut address: u64, end: u64) -> Range<u64> {
        let Some(pagemap) = &self.pagemap else { return address.min(end)..end };
        while address < end {
            let Some(mapping) = self.mapping(address) else { break };
            let Ok(found) = stretches(pagemap, mapping, address, end - address) else { break };
            for (there, length) in found {
                if there {
                    return address..address + length;
                }
                address += length;
            }
        }
        address.min(end)..end
    }

    fn mapping(&self, address: u64) -> Option<&Known> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        (address < mapping.end).then_some(mapping)
    }
}

/// What is there from an address on, and what is not: stretches that are alike, with their bytes, `left` in all at
/// most.
fn stretches(pagemap: &File, mapping: &Known, at: u64, left: u64) -> io::Result<Vec<(bool, u64)>> {
    let left = left.min(mapping.end - at);
    let first = at / PAGE;
    let pages = ((at + left).div_ceil(PAGE) - first).min(MOST);
    let mut entries = vec![0; pages as usize * 8];
    pagemap.read_exact_at(&mut entries, first * 8)?;
    let end = at + left;
    let mut found: Vec<(bool, u64)> = Vec::new();
    // One question of the file a hole, not one a page.
    let mut hole = 0;
    for (page, entry) in (first..).zip(entries.chunks_exact(8)) {
        let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
        let address = page * PAGE;
        if entry & THERE == 0 && address >= hole {
            hole = mapping.next_data(address);
        }
        let there = entry & THERE != 0 || address >= hole;
        let bytes = ((page + 1) * PAGE).min(end) - (page * PAGE).max(at);
        match found.last_mut() {
            Some((same, length)) if *same == there => *length += bytes,
            _ => found.push((there, bytes)),
        }
    }
    Ok(found)
}

impl Known {
    /// The first address from one on at which its file has something; its end if it has nothing there, or no file.
    fn next_data(&self, address: u64) -> u64 {
        let place = address.saturating_sub(self.start).saturating_add(self.offset);
        let data = |file: &File| rustix::fs::seek(file, rustix::fs::SeekFrom::Data(place)).ok();
        let ahead = self.file.as_ref().and_then(data).map(|data| data.saturating_sub(place));
        ahead.map_or(self.end, |ahead| address.saturating_add(ahead).min(self.end))
    }
}

/// A file that a process has open.
struct Open {
    path: PathBuf,
    name: String,
    inode: u64,
}

/// The files of RAM that a process has open. Those of huge pages cannot say what is in them: all of
/// it is data to `SEEK_DATA`.
fn open_files(pid: i32) -> Vec<Open> {
    let open = |(fd, target): (i32, PathBuf)| {
        let path = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
        let name = target.to_string_lossy().into_owned();
        let metadata = std::fs::metadata(&path).ok().filter(|m| m.is_file())?;
        let small = metadata.blksize() == PAGE;
        small.then(|| Open { path, name, inode: metadata.ino() })
    };
    descriptors(pid).filter_map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_ram::pieces::Memory;
    use rustix::mm::{MapFlags, ProtFlags};
    use vmeter_kernel_image::{discover, HostMemory as _};

    const GIB: u64 = 1 << 30;

    /// A file of RAM, mapped into this process; none where this host has none of this kind.
    fn mapped(flags: rustix::fs::MemfdFlags, length: u64) -> Option<(File, u64)> {
        let file = File::from(rustix::fs::memfd_create("vmeter-test-ram", flags).ok()?);
        file.set_len(length).ok()?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let (null, length) = (std::ptr::null_mut(), length as usize);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap(null, length, rights, MapFlags::SHARED, &file, 0) };
        Some((file, at.ok()? as u64))
    }

    fn touch(address: u64, text: &[u8]) {
        // SAFETY: the callers' own mapping, which is longer.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), address as *mut u8, text.len()) };
    }

    #[test]
    fn a_look_for_a_kernel_allocates_nothing() {
        let (file, at) = mapped(rustix::fs::MemfdFlags::empty(), GIB).expect("a memfd");
        touch(at + 64 * PAGE, b"a little");
        file.write_all_at(b"by another", GIB / 2).expect("written");
        let blocks = || file.metadata().expect("a file").blocks();
        let before = blocks();
        let tracee = Tracee { pid: std::process::id() as i32, stopped_ns: 0 };
        let folder = tempfile::tempdir().expect("a folder");
        let memory = Memory::of(&tracee, folder.path()).expect("its mappings");
        assert!(memory.candidates().iter().any(|c| (c.address, c.length) == (at, GIB)));
        assert!(discover(memory.candidates(), &memory, folder.path()).is_err(), "no kernel");
        let mut buffer = vec![1; 3 * PAGE as usize];
        memory.read(at + 63 * PAGE, &mut buffer).expect("read");
        assert_eq!(&buffer[PAGE as usize..][..8], b"a little");
        assert!(buffer[..PAGE as usize].iter().all(|b| *b == 0), "a hole is zero");
        memory.read(at + GIB / 2, &mut buffer).expect("read");
        assert_eq!(&buffer[..10], b"by another", "a page that is not mapped here");
        assert_eq!(blocks(), before, "nothing was allocated");
        // The look itself would have.
        tracee.read(at + 128 * PAGE, &mut buffer).expect("read");
        assert!(blocks() > before);
    }

    #[test]
    fn a_look_takes_no_huge_pages() {
        let length = 8 << 20;
        let Some((file, at)) = mapped(rustix::fs::MemfdFlags::HUGETLB, length) else {
            eprintln!("skipped: this host has no huge pages to give");
            return;
        };
        touch(at, b"x");
        let before = file.metadata().expect("a file").blocks();
        let tracee = Tracee { pid: std::process::id() as i32, stopped_ns: 0 };
        let folder = tempfile::tempdir().expect("a folder");
        let memory = Memory::of(&tracee, folder.path()).expect("its mappings");
        let mut buffer = vec![1; 16];
        memory.read(at + length - 4096, &mut buffer).expect("read");
        assert_eq!((buffer[0], file.metadata().expect("a file").blocks()), (0, before));
    }
}
