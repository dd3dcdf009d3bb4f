// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Snapshots of which each but the first has only what was written since the one before it:
//! the runs of pages and their content. Restoring is applying them in order.
//!
//! Memory of this process stands for a guest's, by PAGEMAP_SCAN, or mprotect where the kernel
//! has no such thing. `cargo run -p dirty-trackers --example snapshot_diff`

use dirty_log::PageSet;
use dirty_trackers::{page_size, Mprotect, PagemapScan, TrackError, TrackedSlot, Tracker};
use std::ops::Range;

const PAGES: usize = 1000;

/// What was written since the last snapshot.
struct Diff(Vec<(Range<usize>, Vec<u8>)>);

/// Memory that a guest writes to between snapshots.
struct Memory(*mut u8, usize);

impl Memory {
    fn new() -> Self {
        let bytes = PAGES * page_size();
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "anonymous memory");
        Self(at.cast(), bytes)
    }

    fn write(&self, page: usize, value: u8) {
        // SAFETY: inside the mapping; nobody else accesses it meanwhile.
        unsafe { self.0.add(page * page_size() + 9).write_volatile(value) };
    }

    fn read(&self, pages: &Range<usize>) -> Vec<u8> {
        let (start, bytes) = (pages.start * page_size(), pages.len() * page_size());
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.0.add(start), bytes) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

fn tracker(memory: &Memory) -> Result<Box<dyn Tracker>, TrackError> {
    let slots = vec![TrackedSlot::new(0, 0, memory.0, memory.1)];
    match PagemapScan::new(slots.clone()) {
        Ok(scan) => Ok(Box::new(scan)),
        // SAFETY: the memory outlives the tracker.
        Err(_) => Ok(Box::new(unsafe { Mprotect::new(slots) }?)),
    }
}

/// A snapshot, with the guest stopped.
fn snapshot(memory: &Memory, tracker: &mut dyn Tracker) -> Result<Diff, TrackError> {
    let mut dirty = [PageSet::with_len(PAGES * page_size())];
    tracker.collect(&mut dirty)?;
    let mut runs = Vec::new();
    dirty[0].for_each_run(|run| runs.push((run.clone(), memory.read(&run))));
    Ok(Diff(runs))
}

/// Pages of each snapshot, and whether applying them gives the memory.
fn snapshots() -> Result<(Vec<usize>, bool), TrackError> {
    let memory = Memory::new();
    let mut tracker = tracker(&memory)?;
    tracker.start()?;
    let mut diffs = vec![Diff(vec![(0..PAGES, memory.read(&(0..PAGES)))])];
    for round in 1..=3u8 {
        (0..PAGES).step_by(100 * usize::from(round)).for_each(|page| memory.write(page, round));
        memory.write(501, round);
        diffs.push(snapshot(&memory, &mut *tracker)?);
    }
    tracker.stop()?;
    let mut restored = vec![0; memory.1];
    for (run, content) in diffs.iter().flat_map(|diff| &diff.0) {
        restored[run.start * page_size()..][..content.len()].copy_from_slice(content);
    }
    let pages = |diff: &Diff| diff.0.iter().map(|(run, _)| run.len()).sum();
    Ok((diffs.iter().map(pages).collect(), restored == memory.read(&(0..PAGES))))
}

fn main() {
    match snapshots() {
        Ok((pages, same)) => println!("pages by snapshot: {pages:?}; restored: {same}"),
        Err(error) => println!("skipped: {error}"),
    }
}

#[test]
fn diffs_add_up_to_the_memory() {
    assert_eq!(snapshots().unwrap(), (vec![PAGES, 11, 6, 5], true));
}
