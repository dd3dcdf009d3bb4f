#![no_main]
//! Whatever a session's or a run's JSON is, showing it neither panics nor takes memory without bound.

mod common;
mod saved;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    saved::damaged(bytes, |file| file.extension().is_some_and(|e| e == "json"));
});
