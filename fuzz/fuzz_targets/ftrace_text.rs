#![no_main]
//! Whatever the bytes are, the ftrace text reader takes them without a panic and in bounded memory.

mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| common::as_format("ftrace text", bytes));
