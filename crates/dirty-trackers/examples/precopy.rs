// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A pre-copy loop over a tracker that reports and protects apart: each round asks what was
//! written, and protects each run right before it is copied, so that what is written again
//! before its turn is sent once in that round. The last round is with the writers stopped.
//!
//! Memory of this process stands for a guest's: PAGEMAP_SCAN sees both alike.
//! `cargo run -p dirty-trackers --example precopy`

use dirty_log::PageSet;
use dirty_trackers::{page_size, PagemapScan, TrackError, TrackedSlot, Tracker};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGES: usize = 4096;
/// Rounds until the guest is stopped.
const ROUNDS: usize = 5;

/// Memory that a guest writes to, a word a page.
struct Memory(*mut u8, usize);

// SAFETY: a mapping is bound to no thread; it is accessed by atomics only.
unsafe impl Sync for Memory {}

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

    fn word(&self, page: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping, aligned, and accessed by atomics only.
        unsafe { AtomicU64::from_ptr(self.0.add(page * page_size()).cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// One round: the pages that were written, protected and copied a run at a time.
fn round(tracker: &mut dyn Tracker, from: &Memory, to: &mut [u64]) -> Result<usize, TrackError> {
    let mut dirty = [PageSet::with_len(PAGES * page_size())];
    tracker.report(&mut dirty)?;
    let mut runs: Vec<Range<usize>> = Vec::new();
    dirty[0].for_each_run(|run| runs.push(run));
    let mut copied = 0;
    for run in runs {
        copied += tracker.protect(0, run.clone())?;
        run.for_each(|page| to[page] = from.word(page).load(Ordering::Relaxed));
    }
    Ok(copied)
}

/// Copied in each round, and whether the copy is the memory.
fn migrate(memory: &Memory) -> Result<(Vec<usize>, bool), TrackError> {
    let slot = TrackedSlot::new(0, 0, memory.0, PAGES * page_size());
    let mut tracker = PagemapScan::new(vec![slot])?;
    tracker.start()?;
    // From here on all that is written is seen: the first copy is of everything.
    let mut copy: Vec<u64> =
        (0..PAGES).map(|page| memory.word(page).load(Ordering::Relaxed)).collect();
    let stop = AtomicBool::new(false);
    let mut rounds = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (1..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                memory.word((n * n * 7 % PAGES as u64) as usize).store(n, Ordering::Relaxed);
            }
        });
        let live = (0..ROUNDS).try_for_each(|_| {
            let copied = round(&mut tracker, memory, &mut copy)?;
            rounds.push(copied);
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        live
    })?;
    // The guest is stopped: one round more has all there is.
    rounds.push(round(&mut tracker, memory, &mut copy)?);
    tracker.stop()?;
    let same = (0..PAGES).all(|page| memory.word(page).load(Ordering::Relaxed) == copy[page]);
    Ok((rounds, same))
}

fn main() {
    match migrate(&Memory::new()) {
        Ok((rounds, same)) => println!("pages copied by round: {rounds:?}; the same: {same}"),
        Err(error) => println!("skipped: {error}"),
    }
}

#[test]
fn the_copy_is_the_memory() {
    match migrate(&Memory::new()) {
        Ok((rounds, same)) => assert!(same && rounds.len() >= ROUNDS, "{rounds:?}"),
        Err(error) => println!("skipped: {error}"),
    }
}
