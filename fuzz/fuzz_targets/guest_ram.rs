#![no_main]
//! Whatever a guest left in its RAM, looking for its kernel and its log there neither panics nor
//! goes on for ever: a log as kernels have it, with the input written over it.

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use vmeter_kernel_image::{discover, locate::Candidate, shape};

const RAM: usize = 1 << 20;
const DESCRIPTORS: usize = 0x2_0030;
const INFOS: usize = 0x4_0000;
const TEXTS: usize = 0x8_0040;
const LINES: usize = 200;
/// The first id of kernels of 64 bits (`DESC0_ID` of kernel/printk/printk_ringbuffer.h).
const FIRST: u64 = (1 << 32) - 256;

fn put(ram: &mut [u8], at: usize, words: &[u64]) {
    for (place, word) in (at..).step_by(8).zip(words) {
        ram[place..place + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// RAM with a banner, and a log of lines of 16 bytes.
fn guest() -> Vec<u8> {
    let mut ram = vec![0; RAM];
    ram[0x1000..0x1030].copy_from_slice(b"Linux version 6.1.0-56-cloud-amd64 (a@b) (gcc)\n\0");
    let size = 1u64 << 13;
    for line in 0..LINES {
        let id = FIRST.wrapping_add(line as u64);
        let begin = size.wrapping_neg().wrapping_add(32 * line as u64);
        let next = begin.wrapping_add(32);
        put(&mut ram, DESCRIPTORS + 24 * line, &[2 << 62 | id, begin, next]);
        put(&mut ram, INFOS + 88 * line, &[line as u64, line as u64 * 1_000_000, 24]);
        put(&mut ram, TEXTS + 32 * line, &[id]);
        let text = TEXTS + 32 * line + 8;
        ram[text..text + 24].copy_from_slice(format!("line {line:>19}").as_bytes());
    }
    ram
}

fuzz_target!(|bytes: &[u8]| {
    let mut ram = guest();
    // Where, how long, and what: seven bytes at most a place.
    for piece in bytes.chunks(10) {
        let [a, b, c, data @ ..] = piece else { continue };
        let at = (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)) % (RAM - 8);
        ram[at..at + data.len()].copy_from_slice(data);
    }
    let block = [Candidate { address: 0, length: RAM as u64 }];
    if let Ok(dump) = shape::find(&block, &ram[..], 0) {
        assert!(dump.records().len() <= LINES);
    }
    let _ = discover(&block, &ram[..], Path::new("/nonexistent"));
});
