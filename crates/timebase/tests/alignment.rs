//! A host's trace and a device model's log with another clock, as files: what is told of
//! the offset, the drift and the error is held against what was planted.

use std::fmt::Write as _;
use vmeter_timebase::{align, Alignment};

/// Rounds of accesses.
const ROUNDS: u64 = 12_000;
/// What the log's clock is ahead by, and how much faster it runs.
const AHEAD_NS: f64 = 17e9;
const PPM: f64 = 50.0;

/// Pseudo-random numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

/// The host's trace and the log: every `wrong`th access is logged 40 ms late.
fn traces(reads: bool, wrong: u64) -> (String, String) {
    let (mut host, mut log) = ("# tracer: nop\n#\n".to_string(), String::new());
    let mut random = Random(7);
    let mut event = |ns: u64, what: &str| {
        let (s, us) = (ns / 1_000_000_000, ns % 1_000_000_000 / 1_000);
        writeln!(host, " q-131 [000] ..... {s}.{us:06}: {what}").expect("a string");
    };
    for n in 0..ROUNDS {
        let at = 1_000_000_000 + n * 200_000;
        let (port, read) = (0x1f0 + random.below(40), reads && random.below(2) == 0);
        let served = at + 5_000 + random.below(30_000);
        let done = served + 3_000 + random.below(30_000);
        event(at, "kvm_exit: vcpu 0 reason io rip 0x10 info1 0 info2 0");
        let tail = format!("at {port:#x} size 1 count 1 val 0x1 ");
        if !read {
            event(at + 1_000, &format!("kvm_pio: pio_write {tail}"));
        }
        event(at + 2_000, "kvm_userspace_exit: reason KVM_EXIT_IO (2)");
        if read {
            event(done, &format!("kvm_pio: pio_read {tail}"));
        }
        event(done + 2_000, "kvm_entry: vcpu 0, rip 0x12");
        let late = if wrong > 0 && n % wrong == 5 { 40_000_000 } else { 0 };
        let shown = AHEAD_NS + served as f64 * (1.0 + PPM / 1e6) + late as f64;
        let (s, us) = ((shown / 1e9) as u64, (shown % 1e9 / 1e3) as u64);
        let name = if read { "cpu_in" } else { "cpu_out" };
        writeln!(log, "131@{s}.{us:06}:{name} addr {port:#x}(b) value 1").expect("a string");
    }
    (host, log)
}

fn aligned(traces: (String, String)) -> Alignment {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [folder.path().join("host.txt"), folder.path().join("qemu.log")];
    std::fs::write(&files[0], traces.0).expect("a file");
    std::fs::write(&files[1], traces.1).expect("a file");
    let readers = files.each_ref().map(|file| {
        let input = vmeter_trace::Input::open(file).expect("a file");
        vmeter_trace::open(input).expect("a trace")
    });
    let known = [0, 1].map(|at| (files[at].as_path(), readers[at].info()));
    let clocks = align(&known, None).expect("traces");
    let told = clocks.alignments().nth(1).expect("the log's");
    told.clone()
}

/// The truth is within the error at both ends of the trace.
fn is_right(told: &Alignment) {
    assert_eq!(told.method, "matched pairs", "{told:?}");
    let error = told.error_s.expect("an error");
    assert!(error < 30e-6, "{told:?}");
    // The log begins a second after the host's clock did.
    let first = 1.0 + AHEAD_NS / 1e9;
    let length = ROUNDS as f64 * 200e-6;
    for after in [0.0, length] {
        let truth = -(AHEAD_NS / 1e9) - (first + after - AHEAD_NS / 1e9) * PPM / 1e6;
        let found = told.offset_s + after * told.drift_ppm / 1e6;
        assert!((found - truth).abs() <= error + 3e-6, "{found} for {truth}: {told:?}");
    }
}

#[test]
fn writes_bound_the_clocks() {
    is_right(&aligned(traces(false, 0)));
}

#[test]
fn reads_are_told_of_after_they_are_served() {
    is_right(&aligned(traces(true, 0)));
}

#[test]
fn a_few_wrong_pairs_do_not_part_the_clocks() {
    is_right(&aligned(traces(true, 1_500)));
}
