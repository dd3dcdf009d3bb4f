use super::*;
use crate::printk::PrintkRecord;
use proptest::prelude::*;

/// 2 MiB of RAM of a guest.
const RAM: usize = 2 << 20;
const INFOS: usize = 0x4_0000;
const DESCRIPTORS: usize = 0xa_0030;
const TEXTS: usize = 0x10_0040;
/// The first id of kernels, and what it would be in 64 bits (`DESC0_ID`).
const FIRST: u64 = (1 << 32) - 256;
const FIRST_OF_64: u64 = (1 << 62) - 256;

/// A log of 256 records at most, as a kernel that said `count` lines has it.
struct Kernel {
    ram: Vec<u8>,
    moved: usize,
    first: u64,
    text_bits: u32,
    /// Bytes of an info: 112 with the context in which a line was said.
    info: usize,
}

impl Kernel {
    fn new(first: u64, text_bits: u32) -> Self {
        Kernel { ram: vec![0; RAM], moved: 0, first, text_bits, info: 88 }
    }

    fn put(&mut self, at: usize, words: &[u64]) {
        let at = at + self.moved;
        for (word, place) in words.iter().zip((at..).step_by(8)) {
            self.ram[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    fn text(line: u64) -> String {
        format!("line {line} {}", "x".repeat((line % 40) as usize))
    }

    /// Says lines; gives the ids and the begins of those whose text is still there.
    fn says(&mut self, count: u64) -> &mut Self {
        let size = 1u64 << self.text_bits;
        let mut head = size.wrapping_neg();
        let mut blocks: Vec<(u64, u64, u64)> = Vec::new();
        for line in 0..count {
            let id = self.first.wrapping_add(line) & array::ID;
            let text = Self::text(line);
            let length = (8 + text.len() as u64).next_multiple_of(8);
            let fits = head / size == (head.wrapping_add(length) - 1) / size
                || head.wrapping_add(length) == 0;
            let (at, next) = match fits {
                true => (head % size, head.wrapping_add(length)),
                false => (0, (head / size * size).wrapping_add(size).wrapping_add(length)),
            };
            let index = (id % 256) as usize;
            self.put(DESCRIPTORS + 24 * index, &[2 << 62 | id, head, next]);
            let info = INFOS + self.info * index;
            self.put(info, &[line, line * 1_000_000, text.len() as u64, 0]);
            if self.info == 112 {
                // caller_id2 of a CPU, "swapper/0".
                self.put(info + 24, &[0x7061_7773_8000_0001, 0x30_2f72_6570]);
            }
            self.put(TEXTS + at as usize, &[id]);
            let start = TEXTS + self.moved + at as usize + 8;
            self.ram[start..start + text.len()].copy_from_slice(text.as_bytes());
            blocks.push((id, head, next));
            head = next;
        }
        // What was overwritten was taken back before.
        let tail = head.wrapping_sub(size);
        for (id, begin, next) in blocks.iter().rev().take(256) {
            if begin.wrapping_sub(tail) > size {
                let index = (id % 256) as usize;
                self.put(DESCRIPTORS + 24 * index, &[3 << 62 | id, *begin, *next]);
            }
        }
        self
    }

    fn find(&self) -> Result<Vec<PrintkRecord>> {
        let block = Candidate { address: 0, length: self.ram.len() as u64 };
        find(&[block], &self.ram[..], 0).map(|dump| dump.records())
    }
}

/// That a log is whole from some line on, to the last.
fn ends_with(records: &[PrintkRecord], count: u64) -> u64 {
    let first = records.first().expect("a record").seq;
    assert_eq!(records.len() as u64, count - first);
    for (line, record) in (first..).zip(records) {
        let expected = (line, line * 1_000_000, Kernel::text(line));
        assert_eq!((record.seq, record.ts_ns, record.text.clone()), expected);
    }
    first
}

#[test]
fn a_log_is_found_whole_full_and_wrapped() {
    for first in [FIRST, FIRST_OF_64] {
        for (count, text_bits) in [(20, 14), (256, 14), (256, 12), (300, 14), (1000, 14), (700, 13)]
        {
            for info in [88, 112] {
                let mut kernel = Kernel { info, ..Kernel::new(first, text_bits) };
                let records = kernel.says(count).find().expect("a log");
                let begins = ends_with(&records, count);
                let full = count > 256 || text_bits == 12;
                assert_eq!(begins > 0, full, "{count} lines in 2^{text_bits} bytes, {info}");
            }
        }
    }
}

#[test]
fn a_log_that_was_copied_is_the_copy_and_two_are_none() {
    let mut kernel = Kernel::new(FIRST, 13);
    kernel.says(30);
    kernel.moved = 0x2_0000;
    kernel.says(60);
    assert_eq!(kernel.find().expect("the later one").len(), 60);
    // Another kernel's: the same places are of other lines.
    kernel.moved = 0x2_0000;
    kernel.put(INFOS + 88 * 5, &[5, 5_000_007]);
    let error = kernel.find().expect_err("two").to_string();
    assert!(error.contains("2 kernel logs"), "{error}");
}

#[test]
fn a_log_among_more_forged_arrays_than_are_followed_is_none() {
    let mut kernel = Kernel::new(FIRST, 13);
    for page in 0..MAX_FOUND {
        for n in 0..40 {
            kernel.put(0x2000 * page + 88 * n, &[n as u64, n as u64, 7]);
        }
    }
    let error = kernel.says(30).find().expect_err("who knows which").to_string();
    assert!(error.contains("8 or more"), "{error}");
}

#[test]
fn what_only_begins_like_a_log_is_none() {
    assert!(Kernel::new(FIRST, 13).find().is_err(), "empty RAM");
    assert!(Kernel::new(FIRST, 13).says(5).find().is_err(), "too short to be told from chance");
    let mut counting = Kernel::new(FIRST, 13);
    for n in 0..4000 {
        counting.put(INFOS + 88 * n, &[n as u64, n as u64, 7]);
        counting
            .put(DESCRIPTORS + 24 * n, &[2 << 62 | n as u64, 64 * n as u64, 64 * n as u64 + 64]);
    }
    assert!(counting.find().is_err(), "arrays without texts");
}

#[test]
fn a_page_of_time_gives_the_clock_of_a_log_that_trusts_it() {
    let line = |text: &str| PrintkRecord {
        seq: 0,
        ts_ns: 0,
        level: 6,
        caller_id: 0,
        by_kernel: true,
        text: text.into(),
    };
    for (place, mask) in [(0, 16), (128, 16), (0, 24), (128, 24)] {
        let mut page = vec![0; 512];
        let mut put = |at: usize, word: u64| {
            page[place + at..place + at + 8].copy_from_slice(&word.to_le_bytes());
        };
        put(0, 1 << 32 | 1234);
        put(8, 9_000_000_000);
        put(mask, u64::MAX);
        // 2 GHz: half a ns a cycle.
        put(mask + 8, 24 << 32 | 1 << 23);
        for clock in [1, 7] {
            put(mask + 16 + 16 * clock, 4);
            put(mask + 24 + 16 * clock, 250_000_000 << 24);
        }
        let found = time::Time::at(&page).expect("a page of time");
        let said = "sched_clock: Marking stable (990000000, 10000000)->(1600000000, -600000000)";
        let clocks = time::clocks(&[found, found], &[line("x"), line(said)]).expect("clocks");
        assert_eq!((clocks.cycle_last, clocks.monotonic_ns), (9_000_000_000, 4_250_000_000));
        assert_eq!((clocks.log_ns(true), clocks.raw_ns()), (4_260_000_000, 4_860_000_000));
        assert_eq!(time::clocks(&[found], &[line("x")]), None, "the log does not say");
        page[place + 8] ^= 1;
        let other = time::Time::at(&page).expect("another");
        assert_eq!(time::clocks(&[found, other], &[line(said)]), None, "which one is not known");
    }
}

proptest! {
    #[test]
    fn damaged_ram_never_panics(
        count in 0u64..400,
        damage in proptest::collection::vec((0..RAM / 8, any::<u64>()), 0..40),
        near in proptest::collection::vec((0usize..0x6000, any::<u64>()), 0..20),
    ) {
        let mut kernel = Kernel::new(FIRST, 13);
        kernel.says(count);
        for (place, word) in damage {
            kernel.put(place * 8, &[word]);
        }
        for (place, word) in near {
            kernel.put(DESCRIPTORS + place / 8 * 8, &[word]);
            kernel.put(INFOS + place / 8 * 8, &[word]);
        }
        let _ = kernel.find();
    }
}
