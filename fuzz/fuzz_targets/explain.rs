#![no_main]
//! Whatever events come in whatever order, explaining them neither panics nor takes memory
//! without bound, and shares stay shares.
//!
//! Eight bytes of the input are one event: what, by whom, on which CPU, in what context, how long
//! after the one before (or before it), and two numbers for its fields.

use libfuzzer_sys::fuzz_target;
use peak_alloc::PeakAlloc;
use std::fmt::Write as _;
use std::io::Write as _;
use vmeter_explain::report::ExplainReport;
use vmeter_explain::{explain, Options};
use vmeter_render::outputs::terminal::Terminal;
use vmeter_render::{Output, Screen};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What an interpreter has before the first event, and its tables at their largest, bytes.
const FLOOR: usize = 128 << 20;

/// Events with numbers in them: `{a}` and `{b}` are the last two bytes of the eight, `{t}` is who.
const EVENTS: [&str; 36] = [
    "sched_waking: comm=t{a} pid={a} prio=120 target_cpu=000",
    "sched_wakeup: comm=t{a} pid={a} prio=120 target_cpu=000",
    "sched_wakeup_new: comm=t{a} pid={a} prio=120 target_cpu=000",
    "sched_process_fork: comm=a pid={a} child_comm=a child_pid={b}",
    "sched_process_exec: filename=/bin/t{a} pid={a} old_pid={a}",
    "sched_process_exit: comm=t{a} pid={a} prio=120",
    "sched_switch: prev_comm=t{t} prev_pid={t} prev_prio=1 prev_state=S ==> next_comm=t{a} next_pid={a} next_prio=1",
    "sched_switch: prev_comm=t{t} prev_pid={t} prev_prio=1 prev_state=D ==> next_comm=t{a} next_pid={a} next_prio=1",
    "sched_switch: prev_comm=t{t} prev_pid={t} prev_prio=1 prev_state=R ==> next_comm=t{a} next_pid={a} next_prio=1",
    "sched_switch: prev_comm=t{a} prev_pid={a} prev_prio=1 prev_state=T ==> next_comm=t{b} next_pid={b} next_prio=1",
    "sys_enter: NR {a} ({b}, ae80, 0, 0, 0, 0)",
    "sys_enter: NR 16 ({a}, 4008ae6a, 0, 0, 0, 0)",
    "sys_exit: NR {a} = {b}",
    "sys_exit: NR {a} = -{b}",
    "contention_begin: 0x{a} (flags=MUTEX)",
    "contention_begin: 0x{a} (flags=SPIN)",
    "contention_end: 0x{a} (ret=0)",
    "workqueue_queue_work: work struct=0x{a} function=f{b} workqueue=events req_cpu=0 cpu=0",
    "workqueue_execute_start: work struct 0x{a}: function f{b}",
    "workqueue_execute_end: work struct 0x{a}: function f{b}",
    "kvm_entry: vcpu {a}, rip 0x{b}",
    "kvm_exit: vcpu {a} reason io rip 0x{b} info1 0x0 info2 0x0",
    "kvm_exit: vcpu {a} reason HLT rip 0x{b} info1 0x0 info2 0x0",
    "kvm_userspace_exit: reason KVM_EXIT_IO (2)",
    "kvm_pio: pio_write at 0x{a} size 1 count 1 val 0x{b}",
    "kvm_mmio: mmio write len 4 gpa 0x{a} val 0x{b}",
    "kvm_hypercall: nr 0x{a} a0 0x{b} a1 0x0 a2 0x0 a3 0x0",
    "irq_handler_entry: irq={a} name=timer0",
    "irq_handler_exit: irq={a} ret=handled",
    "softirq_entry: vec={b} [action=NET_RX]",
    "softirq_exit: vec={b} [action=NET_RX]",
    "hrtimer_expire_entry: hrtimer=0x{a} function=hrtimer_wakeup now={b}",
    "ipi_send_cpu: cpu={a} callsite=f+0x1 callback=0x0",
    "csd_queue_cpu: cpu={a} callsite=f+0x1 func=flush_tlb_func csd=0x{b}",
    "page_fault_user: address=0x{a} ip=0x{b} error_code=0x6",
    "signal_generate: sig={a} errno=0 code=0 comm=a pid={b} grp=1 res=0",
];

fn text(bytes: &[u8]) -> String {
    let mut out = String::from("# tracer: nop\n#\n");
    let mut us = 1_000_000_i64;
    for event in bytes.chunks_exact(8) {
        let [what, tid, cpu, flags, low, high, a, b] = event else { continue };
        us = (us + i64::from(i16::from_le_bytes([*low, *high]))).max(0);
        let what = EVENTS[*what as usize % EVENTS.len()];
        let what = what.replace("{t}", &tid.to_string());
        let what = what.replace("{a}", &a.to_string()).replace("{b}", &b.to_string());
        let context = ["d....", "d.h1.", "d.s1.", "d.H1."][*flags as usize % 4];
        let (s, us) = (us / 1_000_000, us % 1_000_000);
        let cpu = cpu % 4;
        let _ = writeln!(out, " t{tid}-{tid} [{cpu:03}] {context} {s}.{us:06}: {what}");
    }
    out
}

fuzz_target!(|bytes: &[u8]| {
    let text = text(bytes);
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("room");
    let path = [file.path().to_path_buf()];
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    for vs in [None, Some(path[0].clone())] {
        let Ok(result) = explain(&path, &Options { vs, ..Options::default() }) else { continue };
        for finding in &result.findings {
            assert!((0.0..=1.0).contains(&finding.saving_share), "{finding:?}");
            assert!(finding.saving_s.is_none_or(f64::is_finite), "{finding:?}");
        }
        let mut screen = Vec::new();
        Terminal { screen: Screen::PLAIN }
            .write(&ExplainReport::new(&result), &mut screen)
            .expect("a Vec takes everything");
    }
    let used = MEMORY.peak_usage().saturating_sub(before);
    assert!(used <= text.len() * 8 + FLOOR, "{used} bytes for a trace of {}", text.len());
});
