//! What every target does with its input, and how much memory that may take.

use peak_alloc::PeakAlloc;
use vmeter_trace::stat::Stats;
use vmeter_trace::{open, Error, EventReader, Input, FORMATS};

#[global_allocator]
pub static MEMORY: PeakAlloc = PeakAlloc;

/// Tables and buffers that every reader has, whatever it reads, bytes.
#[allow(dead_code)]
const FLOOR: usize = 6 << 20;
/// Windows of what unpacks zst and xz on top of that, bytes (input.rs has the same limits).
#[allow(dead_code)]
pub const UNPACKING: usize = 192 << 20;

/// Most bytes that come out of a decompressor at once: a chunk of a trace.dat.
#[allow(dead_code)]
const BUFFER: u64 = 16 << 20;

#[allow(dead_code)]
fn stat(mut reader: Box<dyn EventReader>) {
    let mut stats = Stats::new(reader.info());
    while let Some(event) = reader.next_event() {
        stats.add(&event);
    }
    stats.finish(reader.as_ref(), Some(1e9));
}

#[allow(dead_code)]
/// Runs something on the input; it may take 8 times its size beyond the floor.
fn bounded(bytes: &[u8], more: usize, run: impl FnOnce(Input) -> Result<(), Error>) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    // Refusing the input is an answer.
    if let Ok(input) = Input::from_bytes("fuzz", bytes.to_vec()) {
        let budget = input.budget().clone();
        let _ = run(input);
        // What goes beyond is not unpacked to its end, but a buffer of it has come by then.
        assert!(budget.unpacked() <= budget.most_unpacked() + BUFFER, "{budget:?}");
        assert!(budget.kept() <= budget.most_kept(), "{budget:?}");
    }
    let used = MEMORY.peak_usage().saturating_sub(before);
    let most = bytes.len() * 8 + FLOOR + more;
    assert!(used <= most, "{used} bytes were taken for an input of {}", bytes.len());
}

/// Reads the input as a format to its end, with all statistics.
#[allow(dead_code)]
pub fn as_format(name: &str, bytes: &[u8]) {
    let Some(format) = FORMATS.iter().find(|f| f.name() == name) else { return };
    bounded(bytes, 0, |input| format.open(input).map(stat));
}

/// Finds the format, and reads the input to its end.
#[allow(dead_code)]
pub fn as_any(bytes: &[u8]) {
    bounded(bytes, UNPACKING, |input| open(input).map(stat));
}
