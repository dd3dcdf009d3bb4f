//! Events a second through `trace stat`, on one CPU and on several, beside
//! `trace-cmd report` on the same file in the same run.
//!
//! `VMETER_TRACE_DATA` names a recording; without it one of 2 million events is made.
//! A busy host stretches wall times, so CPU time is printed as well.
//! `VMETER_BENCH_GIB=5` has a file of that size made and read by a process of its own, whose
//! largest resident memory is printed.

#[path = "../tests/common/trace_dat.rs"]
#[allow(dead_code)]
mod trace_dat;

use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use trace_dat::{record, v6, v7, Packing, Page};
use vmeter_trace::stat::{read_with, Report};
use vmeter_trace::{open, Input};

const RUNS: usize = 3;
const EVENTS: u32 = 2_000_000;
const CPUS: u32 = 4;
/// Events of a page of 4 KiB in the made trace.
const PER_PAGE: u32 = 100;
/// Set to have this program read a file once and say what memory that took.
const ONE: &str = "VMETER_BENCH_ONE";
const SIZE: &str = "VMETER_BENCH_GIB";

fn main() {
    if let Some(path) = std::env::var_os(ONE) {
        return read_one(path.as_ref());
    }
    let scratch = std::env::temp_dir().join(format!("vmeter-bench-{}.dat", std::process::id()));
    let path = match std::env::var_os("VMETER_TRACE_DATA").map(PathBuf::from) {
        Some(path) => path,
        None => {
            std::fs::write(&scratch, made()).expect("a temporary file");
            scratch.clone()
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads: Vec<usize> = vec![1, 2, cpus];
    threads.sort_unstable();
    threads.dedup();
    println!("{:<24} {:>12} {:>12} {:>14}", "", "wall, s", "CPU, s", "events/s (wall)");
    let mut alone = f64::NAN;
    for threads in threads {
        let (wall, cpu, events) = best(|| {
            let report = stat(&path, threads);
            report.events
        });
        println!(
            "{:<24} {wall:>12.3} {cpu:>12.3} {:>14.0}",
            format!("stat, {threads} threads"),
            events as f64 / wall
        );
        match threads {
            1 => alone = events as f64 / wall,
            _ => println!("{:<24} {:>12.2}", "  times as fast as 1", events as f64 / wall / alone),
        }
    }
    match best_peer(&path) {
        Some((wall, events)) => {
            let rate = events as f64 / wall;
            println!("{:<24} {wall:>12.3} {:>12} {rate:>14.0}", "trace-cmd report", "");
            println!("stat on one thread is {:.1} times as fast", alone / rate);
        }
        None => println!("skipped: no trace-cmd to compare with"),
    }
    if let Some(gib) = std::env::var(SIZE).ok().and_then(|gib| gib.parse().ok()) {
        big(&scratch, gib).expect("room for the file");
        let own = std::env::current_exe().expect("this program");
        let mut child = Command::new(own).env(ONE, &scratch).spawn().expect("it starts");
        assert!(child.wait().expect("it ends").success());
    }
    // Where there was a recording there is no such file.
    let _ = std::fs::remove_file(&scratch);
}

/// Reads a file on all CPUs; prints its size, the events, the time and the memory.
fn read_one(path: &Path) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let bytes = std::fs::metadata(path).map_or(0, |meta| meta.len());
    let begin = Instant::now();
    let events = stat(path, cpus).events;
    let wall = begin.elapsed().as_secs_f64();
    // proc_pid_status(5): the most that was ever resident, in kB.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    println!(
        "{bytes} bytes, {events} events, {cpus} threads: {wall:.1} s, resident at most {}",
        line.unwrap_or("?").trim()
    );
}

/// Writes a file of so many GiB, page by page.
fn big(path: &Path, gib: u64) -> io::Result<()> {
    let head = v6(vec![("", (0..CPUS).map(|_| Vec::new()).collect())]);
    let mark = b"flyrecord\0";
    let table = head.windows(mark.len()).rposition(|w| w == mark).map_or(0, |at| at + mark.len());
    let pages = (gib << 30) / 4096 / u64::from(CPUS);
    let mut file = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    file.write_all(&head)?;
    for cpu in 0..CPUS {
        for n in 0..pages {
            file.write_all(&page(cpu, n as u32).bytes())?;
        }
    }
    file.seek(SeekFrom::Start(table as u64))?;
    for cpu in 0..u64::from(CPUS) {
        file.write_all(&(head.len() as u64 + cpu * pages * 4096).to_le_bytes())?;
        file.write_all(&(pages * 4096).to_le_bytes())?;
    }
    file.flush()
}

fn stat(path: &Path, threads: usize) -> Report {
    let reader = open(Input::open(path).expect("the trace")).expect("a trace.dat");
    read_with(reader, None, threads).expect("threads can be started")
}

/// Shortest wall time of some runs, with the CPU time of that run.
fn best(mut run: impl FnMut() -> u64) -> (f64, f64, u64) {
    let mut best = (f64::INFINITY, 0.0, 0);
    for _ in 0..RUNS {
        let (begin, cpu) = (Instant::now(), cpu_s());
        let events = run();
        let wall = begin.elapsed().as_secs_f64();
        if wall < best.0 {
            best = (wall, cpu_s() - cpu, events);
        }
    }
    best
}

/// CPU time of this process so far, s (proc_pid_stat(5), fields 14 and 15, in 1/100 s).
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// trace-cmd's wall time and number of events.
fn best_peer(path: &Path) -> Option<(f64, u64)> {
    let begin = Instant::now();
    let mut child = Command::new("trace-cmd")
        .args(["report", "-i"])
        .arg(path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut out = child.stdout.take()?;
    let (mut buffer, mut lines) = (vec![0; 1 << 16], 0);
    loop {
        match out.read(&mut buffer).ok()? {
            0 => break,
            n => lines += buffer[..n].iter().filter(|b| **b == b'\n').count() as u64,
        }
    }
    child.wait().ok()?;
    Some((begin.elapsed().as_secs_f64(), lines.saturating_sub(1)))
}

/// Exits, port accesses and system calls on some CPUs.
fn made() -> Vec<u8> {
    let stream = |cpu: u32| -> Vec<Page> {
        let pages = EVENTS / CPUS / PER_PAGE;
        (0..pages).map(|n| page(cpu, n)).collect()
    };
    v7(vec![("", (0..CPUS).map(stream).collect())], Packing::None)
}

/// A page of a CPU's.
fn page(cpu: u32, n: u32) -> Page {
    let mut page = Page::new(u64::from(n) * 100_000 + u64::from(cpu));
    for at in 0..PER_PAGE / 5 {
        let tid = 100 + ((cpu * 7 + n) % 40) as i32;
        let port = 0x3f8 + (at % 8);
        page = page
            .event(500, &record(12, tid, &[30, 1]))
            .event(200, &record(14, tid, &[1, port]))
            .event(900, &record(13, tid, &[0]))
            .event(300, &record(10, tid, &[0, 0]))
            .event(700, &record(11, tid, &[0, 0, 1, 0]));
    }
    page
}
