#![no_main]
//! Whatever the bytes are, finding their format and reading them does not panic.

use libfuzzer_sys::fuzz_target;
use vmeter_trace::stat::Stats;
use vmeter_trace::{open, Input};

fuzz_target!(|bytes: &[u8]| {
    let Ok(input) = Input::from_bytes("fuzz", bytes.to_vec()) else { return };
    let Ok(mut reader) = open(input) else { return };
    let mut stats = Stats::new(reader.info());
    while let Some(event) = reader.next_event() {
        stats.add(&event);
    }
    stats.finish(reader.as_ref(), Some(1e9));
});
