//! Events that `explain` takes a second of CPU time, beside `trace stat` on the same file in the
//! same run.
//!
//! `VMETER_TRACE_DATA` names a recording; without it one of a million events is made, of threads
//! that ask each other and wait, as ftrace's text and as that of `perf script`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use vmeter_explain::{explain, Options};
use vmeter_trace::{open, stat, Input};

const RUNS: usize = 3;
const EVENTS: u64 = 1_000_000;
/// Events of a request and its answer.
const ROUND: u64 = 10;
const PAIRS: u64 = 8;

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    match std::env::var_os("VMETER_TRACE_DATA").map(PathBuf::from) {
        Some(path) => measure(&path),
        None => {
            for (name, line) in [("ftrace text", ftrace as Line), ("perf script", perf)] {
                let path = folder.path().join("made.txt");
                std::fs::write(&path, made(line)).expect("a file");
                println!("{name}:");
                measure(&path);
            }
        }
    }
}

fn measure(path: &Path) {
    let (mut ours, mut theirs) = (f64::INFINITY, f64::INFINITY);
    let mut events = 0;
    // By turns: the host's load is the same for both.
    for _ in 0..RUNS {
        theirs = theirs.min(cpu_of(|| stat_of(path)));
        ours = ours.min(cpu_of(|| {
            let result = explain(&[path.to_path_buf()], &Options::default());
            events = result.expect("a trace").files.iter().map(|file| file.events).sum();
        }));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("?");
    println!("{events} events; events a second of CPU time:");
    println!("explain    {:>12.0}", events as f64 / ours);
    println!("trace stat {:>12.0}", events as f64 / theirs);
    println!("explain takes {:.2} times as long; resident at most {}", ours / theirs, peak.trim());
}

fn stat_of(path: &Path) {
    let reader = open(Input::open(path).expect("the trace")).expect("a trace");
    stat::read_with(reader, None, 1).expect("threads can be started");
}

/// CPU time that something takes, s (proc_pid_stat(5), fields 14 and 15, in 1/100 s).
fn cpu_of(run: impl FnOnce()) -> f64 {
    let now = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let ticks: f64 = fields.skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum();
        ticks / 100.0
    };
    let before = now();
    run();
    now() - before
}

/// Adds an event of a thread on a CPU, at so many µs.
type Line = fn(text: &mut String, at: (u64, u64, u64), event: &str);

fn ftrace(text: &mut String, (tid, cpu, us): (u64, u64, u64), event: &str) {
    let (s, us) = (us / 1_000_000, us % 1_000_000);
    writeln!(text, " t{tid}-{tid} [{cpu:03}] d..1. {s}.{us:06}: {event}").expect("a string");
}

fn perf(text: &mut String, (tid, cpu, us): (u64, u64, u64), event: &str) {
    let (s, us) = (us / 1_000_000, us % 1_000_000);
    let system = if event.starts_with("sched_") { "sched" } else { "raw_syscalls" };
    writeln!(
        text,
        "{:>16} {tid:>5} [{cpu:03}] {s:>5}.{us:06}: {system}:{event}",
        format!("t{tid}")
    )
    .expect("a string");
}

/// Pairs of threads on a CPU each: one writes and reads, the other reads and writes.
fn made(line: Line) -> String {
    let mut text = String::new();
    for n in 0..EVENTS / ROUND {
        let cpu = n % PAIRS;
        let (asks, answers) = (100 + cpu, 200 + cpu);
        let switch = |prev: u64, next: u64| {
            format!("sched_switch: prev_comm=t{prev} prev_pid={prev} prev_prio=120 prev_state=S ==> next_comm=t{next} next_pid={next} next_prio=120")
        };
        let wakes =
            |who: u64| format!("sched_waking: comm=t{who} pid={who} prio=120 target_cpu=000");
        let round = [
            (asks, "sys_enter: NR 1 (3, 0, 1, 0, 0, 0)".to_string()),
            (asks, wakes(answers)),
            (asks, "sys_exit: NR 1 = 1".to_string()),
            (asks, "sys_enter: NR 0 (3, 0, 1, 0, 0, 0)".to_string()),
            (asks, switch(asks, answers)),
            (answers, "sys_exit: NR 0 = 1".to_string()),
            (answers, "sys_enter: NR 1 (4, 0, 1, 0, 0, 0)".to_string()),
            (answers, wakes(asks)),
            (answers, switch(answers, asks)),
            (asks, "sys_exit: NR 0 = 1".to_string()),
        ];
        for (at, (tid, event)) in (0..).zip(round) {
            let us = n * ROUND + at;
            line(&mut text, (tid, cpu, us), &event);
        }
    }
    text
}
