#![no_main]
//! Whatever a run's recording is, showing it neither panics nor takes memory without bound.

mod common;
mod saved;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    saved::damaged(bytes, |file| {
        let recorded = ["chunks", "bin", "log", "events", "txt", "jsonl"];
        file.extension().is_some_and(|e| recorded.iter().any(|known| e == *known))
    });
});
