//! Any number of threads comes to the same report.

use crate::common;

use common::trace_dat::{sample, Packing};
use vmeter_trace::stat::{read_with, Report};
use vmeter_trace::{open, Input};

fn on(threads: usize, input: impl Fn() -> Input) -> Report {
    let reader = open(input()).expect("a trace");
    read_with(reader, Some(1e9), threads).expect("threads can be started")
}

fn all_alike(input: impl Fn() -> Input) -> Report {
    let alone = on(1, &input);
    for threads in [2, 3, 5] {
        let report = on(threads, &input);
        assert_eq!(report, alone, "{threads} threads");
    }
    alone
}

#[test]
fn of_small_traces_in_every_format() {
    for (format, bytes) in common::samples() {
        let report =
            all_alike(|| Input::from_bytes(format, bytes.clone()).expect("readable bytes"));
        assert!(report.events > 0, "{format}");
    }
}

#[test]
fn of_a_torn_trace() {
    let whole = sample(6, Packing::None);
    for len in (whole.len() / 2..whole.len()).step_by(97) {
        let input = || Input::from_bytes("torn", whole[..len].to_vec()).expect("readable bytes");
        if open(input()).is_ok() {
            all_alike(input);
        }
    }
}

#[test]
fn of_millions_of_events() {
    let Some(path) = std::env::var_os("VMETER_TRACE_DATA") else {
        println!("skipped: VMETER_TRACE_DATA names no host-busy.trace.dat");
        return;
    };
    let report = all_alike(|| Input::open(path.as_ref()).expect("the trace"));
    assert_eq!(report.events, 6_163_011);
    assert!(report.syscalls.len() > 50 && report.threads.len() > 100);
}
