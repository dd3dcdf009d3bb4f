//! The mappings of a VMM that can be guest RAM.
//!
//! A VMM may map one file of RAM (a memfd, shared memory) in pieces: low RAM around the
//! VGA hole, a piece of each bank. The kernel's image is then on no boundary of any of them,
//! and what belongs together lies apart. The file's own order is the guest's, so it is put
//! together again: addresses from [`FILES`] on are places in such files.

use super::populated::Populated;
use super::slots::{self, Piece};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use vmeter_kernel_image::{Candidate, HostMemory};
use vmeter_machine::launch::{Mapping, Tracee};

/// Guest RAM smaller than this can't hold a kernel.
const SMALLEST: u64 = 16 << 20;
const PAGE: u64 = 4096;
/// Beyond all addresses of a process: files that are mapped in pieces, [`REACH`] apart.
pub(super) const FILES: u64 = 1 << 60;
const REACH: u64 = 1 << 48;
/// More than any VMM maps; what is beyond is left out.
const MAX_FILES: usize = 1 << 10;

/// A VMM's memory, with files that it maps in pieces put together.
#[derive(Debug)]
pub struct Memory<'a> {
    tracee: &'a Tracee,
    /// Mappings that can be RAM, and files in pieces.
    candidates: Vec<Candidate>,
    files: Vec<Vec<Piece>>,
    populated: Populated,
    running: bool,
}

impl<'a> Memory<'a> {
    /// The memory of a stopped VMM, whose run has this folder.
    ///
    /// # Errors
    /// When its mappings cannot be read.
    pub fn of(tracee: &'a Tracee, dir: &Path) -> io::Result<Self> {
        let mappings = tracee.mappings()?;
        let (candidates, files) = arrange(&mappings, slots::of(dir, tracee));
        let populated = Populated::of(tracee, &mappings);
        Ok(Memory { tracee, candidates, files, populated, running: false })
    }

    /// The same of a VMM that runs.
    pub fn running(self, running: bool) -> Self {
        Memory { running, ..self }
    }

    /// What can be guest RAM: writable and large.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The pieces of the file that an address lies in, and the place in it; none of the process's own.
    fn in_file(&self, address: u64) -> Option<(&[Piece], u64)> {
        let place = address.checked_sub(FILES)?;
        let pieces = usize::try_from(place / REACH).ok().and_then(|n| self.files.get(n));
        Some((pieces.map_or(&[], Vec::as_slice), place % REACH))
    }

    /// The process's own address of one, and how many bytes go on from there.
    fn own(&self, address: u64) -> io::Result<(u64, u64)> {
        let Some((pieces, place)) = self.in_file(address) else {
            return Ok((address, u64::MAX - address));
        };
        let mut within = pieces.iter().filter_map(|p| Some((place.checked_sub(p.offset)?, p)));
        let found = within.find(|(within, piece)| *within < piece.length);
        let (within, piece) = found.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((piece.address.saturating_add(within), piece.length - within))
    }

    /// Of these the process's own mappings, in which all of it is, once.
    pub fn mapped(&self) -> Vec<Candidate> {
        self.candidates.iter().filter(|candidate| candidate.address < FILES).copied().collect()
    }
}

impl HostMemory for Memory<'_> {
    fn changes(&self) -> bool {
        self.running
    }

    /// Those of pages that are there, all in one piece: a stretch of [`HostMemory::next_there`] or a part of one.
    fn read_heads(&self, address: u64, length: usize, heads: &mut [u8]) -> io::Result<()> {
        let (own, _) = self.own(address)?;
        // Where memory ends within a head, there is that one alone.
        if heads.len() < length {
            return self.tracee.read(own, heads);
        }
        let count = heads.len() / length;
        let pages = (own..).step_by(PAGE as usize).take(count);
        let read = self.tracee.read_parts(pages, length, heads);
        (read == count).then_some(()).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn next_there(&self, address: u64, end: u64) -> Range<u64> {
        let Some((pieces, mut place)) = self.in_file(address) else {
            return self.populated.next_there(address, end);
        };
        let base = address - place;
        while base + place < end {
            let ahead = pieces.iter().filter(|p| p.offset + p.length > place);
            let Some(piece) = ahead.min_by_key(|piece| piece.offset) else { break };
            let within = place.saturating_sub(piece.offset);
            let found =
                self.populated.next_there(piece.address + within, piece.address + piece.length);
            if !found.is_empty() {
                let in_file = |at: u64| (base + piece.offset + (at - piece.address)).min(end);
                return in_file(found.start)..in_file(found.end);
            }
            place = piece.offset + piece.length;
        }
        end..end
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        if address < FILES {
            return self.populated.read(self.tracee, address, buffer);
        }
        let mut done = 0;
        while done < buffer.len() {
            let (own, there) = self.own(address.saturating_add(done as u64))?;
            let left = buffer.len() - done;
            let here = usize::try_from(there).unwrap_or(left).min(left);
            self.populated.read(self.tracee, own, &mut buffer[done..done + here])?;
            done += here;
        }
        Ok(())
    }
}

/// Large writable mappings, and what files in pieces are made of. What KVM was told is such a
/// file, whose places are guest-physical addresses.
fn arrange(mappings: &[Mapping], slots: Vec<Piece>) -> (Vec<Candidate>, Vec<Vec<Piece>>) {
    let writable = || mappings.iter().filter(|m| m.permissions.starts_with("rw"));
    let length = |m: &Mapping| m.end.saturating_sub(m.start);
    let mut of_file: BTreeMap<_, Vec<Piece>> = BTreeMap::new();
    for mapping in writable().filter(|m| m.permissions.ends_with('s')) {
        if let Some(file) = &mapping.file {
            let piece =
                Piece { offset: mapping.offset, address: mapping.start, length: length(mapping) };
            of_file.entry(file).or_default().push(piece);
        }
    }
    let in_pieces = |pieces: &Vec<Piece>| pieces.len() > 1 || pieces.iter().any(|p| p.offset > 0);
    let in_files = of_file.into_values().filter(in_pieces).take(MAX_FILES);
    let told = Some(slots).filter(|slots| !slots.is_empty());
    let files: Vec<Vec<Piece>> = told.into_iter().chain(in_files).collect();
    let whole = |(number, pieces): (usize, &Vec<Piece>)| {
        let end = pieces.iter().map(|p| p.offset.saturating_add(p.length)).max().unwrap_or(0);
        Candidate { address: FILES + number as u64 * REACH, length: end.min(REACH) }
    };
    let mut candidates: Vec<Candidate> =
        writable().map(|m| Candidate { address: m.start, length: length(m) }).collect();
    candidates.extend(files.iter().enumerate().map(whole));
    candidates.retain(|c| c.length >= SMALLEST);
    (candidates, files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, length: u64, offset: u64, inode: u64) -> Mapping {
        Mapping {
            start,
            end: start + length,
            permissions: "rw-s".into(),
            offset,
            file: (inode != 0).then(|| ("00:01".into(), inode)),
            path: String::new(),
        }
    }

    #[test]
    fn what_kvm_was_told_is_a_candidate_by_guest_physical_addresses() {
        const GIB: u64 = 1 << 30;
        let bytes: Vec<u8> = (0..=255).collect();
        let at = bytes.as_ptr() as u64;
        let low = Piece { offset: 0, address: at, length: 128 };
        let high = Piece { offset: 4 * GIB, address: at + 128, length: 64 };
        let (candidates, files) = arrange(&[], vec![low, high]);
        assert_eq!(candidates, [Candidate { address: FILES, length: 4 * GIB + 64 }]);
        let tracee = Tracee { pid: std::process::id() as i32, stopped_ns: 0 };
        let populated = Populated::of(&tracee, &tracee.mappings().expect("own maps"));
        let memory = Memory { tracee: &tracee, candidates, files, populated, running: false };
        let mut buffer = [0; 2];
        memory.read(FILES + 4 * GIB, &mut buffer).expect("high RAM");
        assert_eq!(buffer, [128, 129]);
        assert!(memory.read(FILES + 3 * GIB, &mut buffer).is_err(), "the hole");
    }

    #[test]
    fn a_file_in_pieces_is_put_together() {
        const MIB: u64 = 1 << 20;
        let bytes: Vec<u8> = (0..=255).collect();
        let at = bytes.as_ptr() as u64;
        // The second half of these bytes is the file's first, after it a hole.
        let mappings = [
            mapping(at + 128, 128, 0, 7),
            mapping(at, 64, 192, 7),
            mapping(1 << 40, 32 * MIB, 2 * MIB, 7),
            mapping(1 << 41, 64 * MIB, 0, 8),
            mapping(1 << 42, 16 * MIB, 0, 0),
        ];
        let (candidates, files) = arrange(&mappings, Vec::new());
        assert_eq!((candidates.len(), files.len()), (4, 1), "{candidates:?}");
        assert_eq!(candidates[3], Candidate { address: FILES, length: 34 * MIB });
        let tracee = Tracee { pid: std::process::id() as i32, stopped_ns: 0 };
        let populated = Populated::of(&tracee, &tracee.mappings().expect("own maps"));
        let memory = Memory { tracee: &tracee, candidates, files, populated, running: false };
        let mut buffer = [0; 4];
        memory.read(FILES + 126, &mut buffer[..2]).expect("the first piece");
        assert_eq!(buffer[..2], [254, 255]);
        assert!(memory.read(FILES + 126, &mut buffer).is_err(), "a hole follows");
        memory.read(FILES + 192, &mut buffer).expect("the second piece");
        assert_eq!(buffer, [0, 1, 2, 3]);
        memory.read(at + 5, &mut buffer).expect("an address of the process");
        assert_eq!(buffer, [5, 6, 7, 8]);
        assert!(memory.read(FILES + REACH, &mut buffer).is_err());
        assert!(memory.read(u64::MAX - 1, &mut buffer).is_err());
    }
}
