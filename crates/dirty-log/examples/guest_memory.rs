// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A rust-vmm VMM with this bitmap instead of vm-memory's `AtomicBitmap`: one type
//! argument changes. Guest memory of two regions, of which one is hot-added; a device
//! thread writes while a pre-copy migration sends what is dirty, pass by pass.
//!
//! `cargo run -p dirty-log --example guest_memory`

use dirty_log::{host_page_size, SummaryBitmap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use vm_memory::mmap::{GuestRegionMmap, MmapRegion};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

type Memory = GuestMemoryMmap<SummaryBitmap>;

const LOW: GuestAddress = GuestAddress(0);
const HOT: GuestAddress = GuestAddress(4 << 30);

fn region(at: GuestAddress, bytes: usize) -> Arc<GuestRegionMmap<SummaryBitmap>> {
    let mapping = MmapRegion::new(bytes).expect("anonymous memory");
    Arc::new(GuestRegionMmap::new(mapping, at).expect("it ends below 2^64"))
}

/// Sends the pages that are dirty to the destination; returns how many.
fn send_dirty(from: &Memory, to: &Memory) -> usize {
    let mut sent = 0;
    for region in from.iter() {
        // The mapping's own bitmap: `GuestMemoryRegion::bitmap` is a slice of it.
        let dirty = (**region).bitmap();
        let page = dirty.page_size();
        dirty.harvest_runs(|run| {
            let at = GuestAddress(region.start_addr().0 + (run.start * page) as u64);
            let mut pages = vec![0; run.len() * page];
            from.read_slice(&mut pages, at).expect("the run is inside the region");
            to.write_slice(&pages, at).expect("the destination has the same regions");
            sent += run.len();
        });
    }
    sent
}

/// A device: writes a counter all over both regions until told to stop.
fn device(memory: &Memory, stop: &AtomicBool) -> u64 {
    let (page, mut counter) = (host_page_size().get() as u64, 0);
    while !stop.load(Ordering::Acquire) {
        counter += 1;
        let base = if counter % 3 == 0 { HOT } else { LOW };
        let at = GuestAddress(base.0 + counter * 7919 % 500 * page + 8);
        memory.write_obj(counter, at).expect("inside a region");
    }
    counter
}

fn migrate() -> (Vec<usize>, Memory, Memory) {
    let page = host_page_size().get();
    let source = Memory::from_ranges(&[(LOW, 512 * page)]).expect("anonymous memory");
    let source = source.insert_region(region(HOT, 500 * page)).expect("nothing is there");
    let ranges = [(LOW, 512 * page), (HOT, 500 * page)];
    let destination = Memory::from_ranges(&ranges).expect("anonymous memory");
    let stop = AtomicBool::new(false);
    let mut passes = Vec::new();
    std::thread::scope(|scope| {
        let device = scope.spawn(|| device(&source, &stop));
        while passes.iter().filter(|&&sent| sent > 0).count() < 5 {
            passes.push(send_dirty(&source, &destination));
        }
        stop.store(true, Ordering::Release);
        device.join().expect("the device does not panic");
    });
    // The guest is stopped: the last pass.
    passes.push(send_dirty(&source, &destination));
    (passes, source, destination)
}

fn content(memory: &Memory) -> Vec<u8> {
    let mut all = Vec::new();
    for region in memory.iter() {
        let mut bytes = vec![0; region.len() as usize];
        memory.read_slice(&mut bytes, region.start_addr()).expect("the region is there");
        all.append(&mut bytes);
    }
    all
}

fn main() {
    let (passes, source, destination) = migrate();
    let equal = content(&source) == content(&destination);
    println!("pages sent in each pass: {passes:?}; memory equal after: {equal}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::bitmap::{Bitmap, BS};

    #[test]
    fn the_destination_has_all() {
        let (passes, source, destination) = migrate();
        assert!(content(&source) == content(&destination), "{passes:?}");
        assert!(content(&source).iter().any(|&byte| byte != 0));
        assert_eq!(send_dirty(&source, &destination), 0, "something was sent twice");
    }

    #[test]
    fn writes_mark_their_pages_only() {
        let page = host_page_size().get();
        let memory = Memory::from_ranges(&[(LOW, 8 * page)]).unwrap();
        let region = memory.iter().next().unwrap();
        let dirty = || {
            let mut pages = Vec::new();
            (**region).bitmap().harvest_runs(|run| pages.extend(run));
            pages
        };
        memory.write_slice(&vec![1; 2 * page], GuestAddress(page as u64 + 1)).unwrap();
        memory.store(1u32, GuestAddress(7 * page as u64), Ordering::Relaxed).unwrap();
        let slice: BS<'_, SummaryBitmap> = region.bitmap().slice_at(3 * page);
        assert!(slice.dirty_at(0) && !slice.dirty_at(page));
        assert_eq!(dirty(), [1, 2, 3, 7]);
        let mut byte = [0];
        memory.read_slice(&mut byte, GuestAddress(0)).unwrap();
        assert_eq!(dirty(), [0; 0], "reads mark nothing");
    }
}
