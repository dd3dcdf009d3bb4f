//! Traces made for the tests, and what every test does with one.

#![allow(dead_code)]

pub mod perf_data;
pub mod trace_dat;

use std::path::PathBuf;
use vmeter_trace::stat::{Report, Stats};
use vmeter_trace::{open, EventReader, Input, TraceFormat};

/// A file under the repository's fixtures/trace.
pub fn fixture(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../../fixtures/trace").join(name)
}

/// Statistics of a reader's events.
pub fn report_of(mut reader: Box<dyn EventReader>, cpu_hz: Option<f64>) -> Report {
    let mut stats = Stats::new(reader.info());
    while let Some(event) = reader.next_event() {
        stats.add(&event);
    }
    stats.finish(reader.as_ref(), cpu_hz)
}

/// Statistics of bytes in any format.
pub fn report_of_bytes(bytes: Vec<u8>) -> Report {
    let input = Input::from_bytes("test", bytes).expect("readable bytes");
    report_of(open(input).expect("a trace"), None)
}

/// Statistics of bytes that are taken for a format, right or wrong; none if it refuses.
pub fn try_format(format: &dyn TraceFormat, bytes: &[u8]) -> Option<Report> {
    let input = Input::from_bytes("test", bytes.to_vec()).ok()?;
    Some(report_of(format.open(input).ok()?, Some(1e9)))
}

/// A small whole trace of each format: (name of the format, bytes).
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let read = |name: &str| std::fs::read(fixture(name)).expect("a fixture");
    vec![
        ("trace.dat", trace_dat::sample(6, trace_dat::Packing::None)),
        ("trace.dat", trace_dat::sample(7, trace_dat::Packing::Zstd)),
        ("trace.dat", trace_dat::sample(7, trace_dat::Packing::Zlib)),
        ("perf.data", perf_data::file()),
        ("xentrace", xentrace()),
        ("ftrace text", read("small.ftrace.txt")),
        ("perf script", read("small.perf.txt")),
        ("QEMU trace log", read("small.qemu.log")),
        ("strace", read("small.strace.txt")),
    ]
}

fn record(event: u32, tsc: Option<u64>, words: &[u32]) -> Vec<u8> {
    let header = event | (words.len() as u32) << 28 | u32::from(tsc.is_some()) << 31;
    let mut bytes = header.to_le_bytes().to_vec();
    bytes.extend(tsc.into_iter().flat_map(u64::to_le_bytes));
    bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    bytes
}

/// Two CPUs: a VMX guest's port access, a loss, and the guest again.
pub fn xentrace() -> Vec<u8> {
    let vcpu = 1 << 16;
    let windows = [
        (
            0u32,
            vec![
                record(0x21101, Some(100), &[vcpu]),
                record(0x81102, Some(200), &[30, 0x1000, 0]),
                record(0x82216, None, &[0x3f8, 0x41]),
                record(0x81001, Some(260), &[]),
            ],
        ),
        (
            1,
            vec![
                record(0x21101, Some(150), &[32767 << 16 | 1]),
                record(0x20100d, Some(170), &[29]),
            ],
        ),
        (
            0,
            vec![
                record(0x1f001, Some(1000), &[12, vcpu.rotate_left(16), 400, 0]),
                record(0x81102, Some(1100), &[12, 0x1000, 0]),
                record(0x81001, Some(1130), &[]),
            ],
        ),
    ];
    let mut bytes = Vec::new();
    for (cpu, records) in windows {
        let body = records.concat();
        bytes.extend(record(0x1f003, None, &[cpu, body.len() as u32]));
        bytes.extend(body);
    }
    bytes
}
