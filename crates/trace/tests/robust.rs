//! Garbage and torn files: no panic, no unbounded memory, and what is whole is read.

mod common;

use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use std::sync::{Mutex, PoisonError};
use vmeter_trace::{TraceFormat, FORMATS};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Memory is measured for the whole process: one measurement at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Tables and buffers that every reader has, whatever it reads, and the streams of as many CPUs
/// as Linux has: a damaged head may claim them, and their pages may be the same. A MiB is for the
/// samples that other tests of this process make meanwhile.
const FLOOR: usize = (7 << 20) + (8192 << 10);

fn format(name: &str) -> &'static dyn TraceFormat {
    *FORMATS.iter().find(|f| f.name() == name).expect("a format")
}

/// Reads bytes as a format, within input size x 8; gives the events read.
fn read(format: &dyn TraceFormat, bytes: &[u8]) -> Option<u64> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let report = common::try_format(format, bytes);
    let used = MEMORY.peak_usage().saturating_sub(before);
    assert!(
        used <= bytes.len() * 8 + FLOOR,
        "{}: {used} bytes were taken for an input of {}",
        format.name(),
        bytes.len()
    );
    report.map(|r| r.events)
}

#[test]
fn samples_are_found_by_their_content() {
    for (name, bytes) in common::samples() {
        let found = FORMATS.iter().find(|f| f.probe(&bytes[..bytes.len().min(8192)]));
        assert_eq!(found.map(|f| f.name()), Some(name));
    }
}

#[test]
fn a_file_cut_at_any_byte_yields_what_is_whole() {
    for (name, bytes) in common::samples() {
        let format = format(name);
        let whole = read(format, &bytes).expect("the whole sample");
        assert!(whole > 3, "{name}");
        // Within the large zero fill of pages every cut is like the next.
        let step = |at: usize| if bytes[at..].iter().take(64).all(|&b| b == 0) { 61 } else { 1 };
        let (mut at, mut most) = (0, 0);
        while at < bytes.len() {
            if let Some(events) = read(format, &bytes[..at]) {
                assert!(events <= whole, "{name} cut at {at}: {events} of {whole} events");
                most = most.max(events);
            }
            at += step(at);
        }
        // perf writes the format texts last: without them nothing can be made of the rest.
        let least = if name == "perf.data" { 0 } else { whole - 2 };
        assert!(most >= least, "{name}: at most {most} of {whole} events");
    }
}

#[test]
fn a_clock_of_xentrace_that_goes_back_is_said() {
    let whole = common::xentrace();
    assert!(common::report_of_bytes(whole.clone()).losses.missing.is_empty());
    let stamp = 200u64.to_le_bytes();
    let at = whole.windows(8).position(|part| part == stamp).expect("the second record's");
    let mut later = whole;
    later[at..at + 8].copy_from_slice(&9_000_000u64.to_le_bytes());
    let missing = common::report_of_bytes(later).losses.missing;
    let said = missing.iter().find(|text| text.contains("backwards"));
    assert!(said.is_some_and(|text| text.contains("cycles")), "{missing:?}");
}

#[test]
fn a_cut_trace_says_what_is_missing() {
    let cut = |name: &str, keep: f64| {
        let (_, bytes) = common::samples().into_iter().find(|(n, _)| *n == name).expect("sample");
        let keep = (bytes.len() as f64 * keep) as usize;
        common::try_format(format(name), &bytes[..keep]).expect("a head that is whole")
    };
    assert!(!cut("trace.dat", 0.6).losses.missing.is_empty());
    assert!(!cut("xentrace", 0.5).losses.missing.is_empty());
}

/// A sample with a few bytes changed, cut or doubled.
fn damaged() -> impl Strategy<Value = (usize, Vec<(usize, u8)>, usize)> {
    let changes = proptest::collection::vec((any::<usize>(), any::<u8>()), 0..12);
    (0..common::samples().len(), changes, any::<usize>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        for format in FORMATS {
            read(*format, &bytes);
        }
    }

    #[test]
    fn text_garbage_never_panics(text in "[ \\-\\[\\]<>=.:,(){}@#+0-9a-zé\n]{0,400}") {
        for format in FORMATS {
            read(*format, text.as_bytes());
        }
    }

    #[test]
    fn damage_never_panics((which, changes, cut) in damaged()) {
        let (name, mut bytes) = common::samples().swap_remove(which);
        for (at, byte) in changes {
            // Most of a trace.dat's meaning is in its head and its pages' first bytes.
            let at = if at % 3 == 0 { at % bytes.len().min(6000) } else { at % bytes.len() };
            bytes[at] = byte;
        }
        if cut % 4 == 0 {
            bytes.truncate(cut % bytes.len());
        }
        read(format(name), &bytes);
    }
}

/// `VMETER_FUZZ_SEEDS=DIR` has the samples written there, a folder a fuzz target, for the
/// corpus: see fuzz/README.md.
#[test]
fn samples_can_seed_the_fuzzer() {
    let Some(folder) = std::env::var_os("VMETER_FUZZ_SEEDS").map(std::path::PathBuf::from) else {
        return;
    };
    for (number, (name, bytes)) in common::samples().into_iter().enumerate() {
        let target = match name {
            "QEMU trace log" => "qemu_log".to_owned(),
            other => other.replace([' ', '.'], "_"),
        };
        for target in [target.as_str(), "any"] {
            let folder = folder.join(target);
            std::fs::create_dir_all(&folder).expect("a folder for seeds");
            std::fs::write(folder.join(format!("sample-{number}")), &bytes).expect("a seed");
        }
    }
}
