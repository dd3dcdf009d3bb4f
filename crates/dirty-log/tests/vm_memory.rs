// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Under vm-memory's names, what vm-memory's `AtomicBitmap` does.

use dirty_log::SummaryBitmap;
use vm_memory::bitmap::{AtomicBitmap, NewBitmap};

const PAGE: usize = 4096;

macro_rules! both {
    ($theirs:ident, $ours:ident: $call:ident $args:tt) => {{
        $theirs.$call $args;
        $ours.$call $args;
    }};
}

#[test]
fn it_answers_to_vm_memorys_names() {
    let (bytes, page) = (1000 * PAGE + 17, PAGE.try_into().unwrap());
    let (mut theirs, mut ours) = (AtomicBitmap::new(bytes, page), SummaryBitmap::new(bytes, page));
    assert_eq!((ours.len(), ours.byte_size()), (theirs.len(), theirs.byte_size()));
    let ranges = [(0, 1), (PAGE - 1, 2), (70 * PAGE, 5 * PAGE + 1), (999 * PAGE, 9 * PAGE)];
    for (start, len) in ranges {
        both!(theirs, ours: set_addr_range(start, len));
    }
    both!(theirs, ours: set_bit(500));
    both!(theirs, ours: reset_bit(500));
    both!(theirs, ours: reset_addr_range(72 * PAGE - 1, 2));
    both!(theirs, ours: reset_addr_range(5 * PAGE, 0));
    both!(theirs, ours: enlarge(200 * PAGE));
    assert_eq!((ours.len(), ours.byte_size()), (theirs.len(), theirs.byte_size()));
    both!(theirs, ours: set_bit(1100));
    let copy = ours.clone();
    for page in 0..1300 {
        let at = page * PAGE + 7;
        let found = (ours.is_bit_set(page), ours.is_addr_set(at), copy.is_bit_set(page));
        let set = theirs.is_bit_set(page);
        assert_eq!(found, (set, theirs.is_addr_set(at), set), "page {page}");
    }
    assert_eq!(ours.get_and_reset(), theirs.get_and_reset());
    both!(theirs, ours: set_bit(3));
    both!(theirs, ours: reset());
    assert_eq!(ours.get_and_reset(), theirs.get_and_reset());
    assert!(ours.is_clean() && !copy.is_clean());
}

/// What vm-memory does not count.
#[test]
fn pages_that_change_are_counted() {
    let log = SummaryBitmap::new(1000 * PAGE, PAGE.try_into().unwrap());
    let counts = [
        log.mark_pages(10..30),
        log.mark_pages(20..40),
        log.mark_words_at(0, &[1 << 5 | 1 << 20]),
        log.take_range(0..11, drop),
        log.take_range(0..20, drop),
    ];
    assert_eq!((counts, log.snapshot()[0]), ([20, 10, 1, 2, 9], (1 << 40) - (1 << 20)));
}

#[test]
fn what_is_beyond_the_end_is_ignored() {
    let log = SummaryBitmap::new(100 * PAGE, PAGE.try_into().unwrap());
    log.set_bit(100);
    log.set_bit(usize::MAX);
    assert_eq!(log.mark_pages(100..5000), 0);
    assert_eq!(log.mark_words_at(64, &[u64::MAX; 9]), 36);
    assert_eq!(log.mark_words_at(usize::MAX, &[1]), 0);
    log.set_addr_range(usize::MAX, usize::MAX);
    log.set_addr_range(99 * PAGE, usize::MAX);
    assert!(!log.is_bit_set(100) && !log.is_bit_set(usize::MAX));
    let mut runs = Vec::new();
    log.harvest_runs(|run| runs.push(run));
    assert_eq!(runs.into_iter().flatten().collect::<Vec<_>>(), (64..100).collect::<Vec<_>>());
    let none = SummaryBitmap::default();
    none.set_bit(0);
    assert!(none.is_empty() && none.is_clean() && none.mark_pages(0..1) == 0);
}

#[test]
fn with_len_has_the_hosts_pages() {
    let page = dirty_log::host_page_size().get();
    let log = SummaryBitmap::with_len(5 * page + 1);
    assert_eq!((log.len(), log.page_size()), (6, page));
}

/// AtomicBitmap takes any page size, and so does this, with the same pages.
#[test]
fn pages_of_any_size_are_those_of_vm_memory() {
    for page_size in [1usize, 3, 1000, 4096, 4097, 12_288] {
        let size = page_size.try_into().unwrap();
        let bytes = 77 * page_size + 5;
        let (own, theirs) = (SummaryBitmap::new(bytes, size), AtomicBitmap::new(bytes, size));
        assert_eq!((own.len(), own.page_size()), (theirs.len(), page_size));
        for (at, len) in [(0, 1), (page_size - 1, 2), (5 * page_size, page_size), (bytes - 1, 9)] {
            own.set_addr_range(at, len);
            theirs.set_addr_range(at, len);
        }
        own.reset_addr_range(page_size, 1);
        theirs.reset_addr_range(page_size, 1);
        for at in (0..bytes + page_size).step_by(page_size.div_ceil(2)) {
            assert_eq!(own.is_addr_set(at), theirs.is_addr_set(at), "{page_size}: {at}");
        }
    }
}
