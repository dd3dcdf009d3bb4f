#![no_main]
//! Whatever the bytes are, finding their format and reading them neither panics nor takes memory without bound.

mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| common::as_any(bytes));
