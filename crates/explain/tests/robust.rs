//! Events in any order, files cut anywhere: no panic, bounded memory, shares that are shares.

mod common;

use common::fixture;
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use vmeter_explain::report::ExplainReport;
use vmeter_explain::result::ExplainResult;
use vmeter_explain::{explain, Options};
use vmeter_render::outputs::terminal::Terminal;
use vmeter_render::{Output, Screen};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Memory is measured for the whole process: one measurement at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Everything that an interpreter may meet, with numbers that repeat and numbers that don't.
fn event() -> impl Strategy<Value = String> {
    let thread = 0..5_u32;
    let number = prop_oneof![0..8_u64, Just(16), Just(56), Just(202), Just(435), any::<u64>()];
    prop_oneof![
        thread.clone().prop_map(|t| format!("sched_waking: comm=t{t} pid={t} prio=120 target_cpu=000")),
        thread.clone().prop_map(|t| format!("sched_wakeup_new: comm=t{t} pid={t} prio=120 target_cpu=000")),
        thread.clone().prop_map(|t| format!(
            "sched_process_fork: comm=a pid=1 child_comm=a child_pid={t}"
        )),
        (thread.clone(), "[RSDTtZXI]", thread).prop_map(|(a, state, b)| format!(
            "sched_switch: prev_comm=t{a} prev_pid={a} prev_prio=1 prev_state={state} ==> next_comm=t{b} next_pid={b} next_prio=1"
        )),
        (number.clone(), 0..3_u64).prop_map(|(n, request)| {
            let request = [0xae80_u64, 0x4008_ae6a, 0][request as usize];
            format!("sys_enter: NR {} ({n}, {request:x}, 0, 0, 0, 0)", n % 500)
        }),
        (number.clone(), any::<i64>()).prop_map(|(n, back)| format!("sys_exit: NR {} = {}", n % 500, back % 3)),
        (number.clone(), "(SPIN|READ|WRITE|RT|PERCPU|MUTEX|SPIN.MUTEX|)").prop_map(|(n, flags)| {
            format!("contention_begin: {n:#x} (flags={flags})")
        }),
        number.clone().prop_map(|n| format!("contention_end: {n:#x} (ret=0)")),
        number.clone().prop_map(|n| format!(
            "workqueue_queue_work: work struct={n:#x} function=f{} workqueue=events req_cpu=0 cpu=0", n % 3
        )),
        number.clone().prop_map(|n| format!("workqueue_execute_start: work struct {n:#x}: function f{}", n % 3)),
        number.prop_map(|n| format!("workqueue_execute_end: work struct {n:#x}: function f{}", n % 3)),
        prop::sample::select(FIXED).prop_map(str::to_string),
    ]
}

const FIXED: &[&str] = &[
    "kvm_entry: vcpu 0, rip 0x1",
    "kvm_exit: vcpu 0 reason io rip 0x1 info1 0x0 info2 0x0",
    "kvm_exit: vcpu 0 reason HLT rip 0x1 info1 0x0 info2 0x0",
    "kvm_userspace_exit: reason KVM_EXIT_IO (2)",
    "kvm_pio: pio_write at 0x1f7 size 1 count 1 val 0x1",
    "kvm_pio: pio_read at 0x3f8 size 1 count 1 val 0x1",
    "kvm_mmio: mmio write len 4 gpa 0xfee00020 val 0x0",
    "kvm_msr: msr_write c0000080 = 0x0",
    "kvm_hypercall: nr 0x5 a0 0x0 a1 0x0 a2 0x0 a3 0x0",
    "irq_handler_entry: irq=1 name=timer0",
    "irq_handler_exit: irq=1 ret=handled",
    "softirq_entry: vec=1 [action=TIMER]",
    "softirq_entry: vec=3 [action=NET_RX]",
    "softirq_exit: vec=1 [action=TIMER]",
    "hrtimer_expire_entry: hrtimer=0x1 function=hrtimer_wakeup now=1",
    "hrtimer_expire_exit: hrtimer=0x1",
    "local_timer_entry: vector=236",
    "local_timer_exit: vector=236",
    "ipi_send_cpu: cpu=1 callsite=f+0x1 callback=0x0",
    "csd_queue_cpu: cpu=1 callsite=f+0x1 func=flush_tlb_func csd=0x1",
    "page_fault_user: address=0x1 ip=0x1 error_code=0x6",
    "signal_generate: sig=19 errno=0 code=0 comm=a pid=1 grp=1 res=0",
    "kvm_write_tsc_offset: vcpu=0 prev=0 next=18446744073709551615",
    "garbage",
];

fn line() -> impl Strategy<Value = String> {
    let time = prop_oneof![20 => 0..5_000_000_u64, 1 => Just(u64::MAX / 1_000_001)];
    ("[ab]", 0..5_i32, 0..3_u32, time, "(d|\\.)\\.(h|s|H|\\.)(0|1)\\.", event()).prop_map(
        |(name, tid, cpu, us, flags, event)| {
            let (s, us) = (us / 1_000_000, us % 1_000_000);
            format!(" {name}-{tid} [{cpu:03}] {flags} {s}.{us:06}: {event}\n")
        },
    )
}

const HEAD: &str = "# tracer: nop\n#\n";

fn told(files: &[PathBuf]) -> Option<ExplainResult> {
    let result = explain(files, &Options::default()).ok()?;
    for finding in &result.findings {
        assert!((0.0..=1.0).contains(&finding.saving_share), "{finding:?}");
        assert!(finding.saving_s.is_none_or(f64::is_finite), "{finding:?}");
    }
    let mut screen = Vec::new();
    Terminal { screen: Screen::PLAIN }
        .write(&ExplainReport::new(&result), &mut screen)
        .expect("a Vec takes everything");
    Some(result)
}

fn written(folder: &Path, name: &str, text: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_events_in_any_order_are_explained(
        lines in prop::collection::vec(line(), 1..200),
        sorted in any::<bool>(),
    ) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("a folder");
        let mut lines = lines;
        if sorted {
            lines.sort_by_key(|line| line.split("] ").nth(1).map(str::to_string));
        }
        let one = written(folder.path(), "one.txt", format!("{HEAD}{}", lines.concat()).as_bytes());
        let half = lines[lines.len() / 2..].concat();
        let other = written(folder.path(), "other.txt", format!("{HEAD}{half}").as_bytes());
        // A stream of garbage alone is no trace: an error is right then.
        let _ = told(&[one, other]);
    }
}

/// Unpacked; gives the bytes.
fn unpacked(path: &Path) -> Vec<u8> {
    let file = std::fs::File::open(path).expect("a file");
    let mut bytes = Vec::new();
    let name = path.to_string_lossy();
    if name.ends_with(".gz") {
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).expect("gzip");
    } else {
        { file }.read_to_end(&mut bytes).expect("a file");
    }
    bytes
}

/// Numbers that look random and are the same each time.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed | 1;
    move |below| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below.max(1)
    }
}

/// `make test-long` runs tests whole.
fn is_long() -> bool {
    std::env::var_os("VMETER_LONG").is_some_and(|value| value == "1")
}

#[test]
fn a_trace_cut_at_any_byte_is_explained_as_far_as_it_goes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cuts = if is_long() { 100 } else { 3 };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/explain");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "gz"))
        .collect();
    files.sort();
    let small = ["small.ftrace.txt", "small.perf.txt", "small.qemu.log", "small.strace.txt"];
    files.extend(small.map(fixture));
    let scratch = tempfile::tempdir().expect("a folder");
    for (seed, path) in (7..).zip(&files) {
        let whole = unpacked(path);
        let mut below = random(seed);
        let name = path.file_name().expect("a name").to_string_lossy();
        let name = name.trim_end_matches(".gz");
        for _ in 0..cuts {
            let cut = below(whole.len() as u64) as usize;
            let file = written(scratch.path(), name, &whole[..cut]);
            let events = told(&[file]).map(|result| result.files[0].events);
            let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert!(events.is_none_or(|events| events <= lines + 1), "{name} cut at {cut}");
        }
    }
}

#[test]
fn memory_does_not_grow_with_what_a_trace_names() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = HEAD.to_string();
    let mut below = random(1);
    let (events, threads) = if is_long() { (150_000_u64, 100_000) } else { (30_000, 20_000) };
    for n in 0..events {
        let (tid, woken, us) = (1 + below(threads), 1 + below(threads), n);
        let (s, us) = (us / 1_000_000, us % 1_000_000);
        let event = match n % 6 {
            0 => format!("sched_waking: comm=w{woken} pid={woken} prio=120 target_cpu=000"),
            1 => format!("workqueue_execute_start: work struct {n:#x}: function f{n}"),
            2 => format!("sys_enter: NR {} (0, 0, 0, 0, 0, 0)", below(400)),
            3 => format!("contention_begin: {n:#x} (flags=WRITE)"),
            4 => format!("csd_queue_cpu: cpu=1 callsite=f+0x1 func=g{n} csd=0x1"),
            _ => format!("sched_switch: prev_comm=n{n} prev_pid={tid} prev_prio=1 prev_state=S ==> next_comm=m{n} next_pid={woken} next_prio=1"),
        };
        writeln!(text, " name{n}-{tid} [{:03}] d..1. {s}.{us:06}: {event}", n % 64)
            .expect("a string");
    }
    let path = written(folder.path(), "many.txt", text.as_bytes());
    drop(text);
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    told(&[path]).expect("a trace");
    let used = MEMORY.peak_usage().saturating_sub(before);
    assert!(used <= 128 << 20, "{used} bytes");
}
