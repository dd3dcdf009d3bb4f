#![no_main]
//! Whatever the bytes are, the perf.data reader takes them without a panic.

use libfuzzer_sys::fuzz_target;
use vmeter_trace::stat::Stats;
use vmeter_trace::{Input, FORMATS};

fuzz_target!(|bytes: &[u8]| {
    let Some(format) = FORMATS.iter().find(|f| f.name() == "perf.data") else { return };
    let Ok(input) = Input::from_bytes("fuzz", bytes.to_vec()) else { return };
    let Ok(mut reader) = format.open(input) else { return };
    let mut stats = Stats::new(reader.info());
    while let Some(event) = reader.next_event() {
        stats.add(&event);
    }
    stats.finish(reader.as_ref(), Some(1e9));
});
