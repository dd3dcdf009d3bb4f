//! What strace's lines tell by themselves: what a descriptor stands for, and what one run does that
//! another does not, whatever numbers their threads have.

use std::fmt::Write as _;
use vmeter_explain::result::{ExplainResult, Severity};
use vmeter_explain::{explain, Options};

/// A strace being written; times in µs.
#[derive(Default)]
struct Log {
    lines: Vec<(u64, String)>,
}

impl Log {
    fn call(&mut self, tid: u32, at: u64, call: &str, us: u64) {
        let (s, sub) = (1_700_000_000 + at / 1_000_000, at % 1_000_000);
        let (long, rest) = (us / 1_000_000, us % 1_000_000);
        let mut line = String::new();
        write!(line, "{tid} {s}.{sub:06} {call} <{long}.{rest:06}>").expect("a string");
        self.lines.push((at, line));
    }

    fn text(mut self) -> String {
        self.lines.sort_by_key(|(at, _)| *at);
        self.lines.into_iter().map(|(_, line)| line + "\n").collect()
    }
}

fn explained(slow: Log, twin: Option<Log>) -> ExplainResult {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["slow.strace", "twin.strace"].map(|name| folder.path().join(name));
    std::fs::write(&paths[0], slow.text()).expect("a file");
    let vs = twin.map(|twin| {
        std::fs::write(&paths[1], twin.text()).expect("a file");
        paths[1].clone()
    });
    explain(&paths[..1], &Options { vs, ..Options::default() }).expect("a trace")
}

/// A main thread that asks a pool for writes, as often with `sync` as without; the pool's threads
/// have those numbers.
fn writes(pool: [u32; 3], sync: bool) -> Log {
    let mut log = Log::default();
    let each = if sync { 1_500 } else { 400 };
    for n in 0..400 {
        let at = n * each;
        let worker = pool[n as usize % 3];
        log.call(
            pool[0] - 1,
            at,
            "ppoll([{fd=3, events=POLLIN}], 1, NULL, NULL, 8) = 1",
            each - 50,
        );
        log.call(worker, at, "pwrite64(9, \"\", 4096, 0) = 4096", 60);
        if sync {
            log.call(worker, at + 100, "fdatasync(9) = 0", 1_000);
        }
        for idle in pool.iter().filter(|idle| **idle != worker) {
            log.call(*idle, at, "futex(0x7f00, FUTEX_WAIT_PRIVATE, 0, NULL) = 0", each - 20);
        }
    }
    log
}

#[test]
fn runs_are_compared_by_their_calls_whatever_numbers_their_threads_have() {
    let result = explained(writes([11, 12, 13], true), Some(writes([911, 914, 919], false)));
    let first = &result.findings[0];
    assert!(first.summary.contains("fdatasync"), "{:#?}", result.findings);
    let alarms = result.findings.iter().filter(|finding| finding.severity > Severity::Low);
    let idle = |summary: &str| summary.contains("futex");
    assert_eq!(alarms.filter(|finding| idle(&finding.summary)).count(), 0, "{result:#?}");
}

#[test]
fn a_name_server_that_does_not_answer_is_named() {
    let mut log = Log::default();
    let server = "{sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr(\"10.0.0.9\")}";
    for n in 0..4 {
        let at = n * 1_100_000;
        log.call(7, at, &format!("connect(7, {server}, 16) = 0"), 20);
        log.call(7, at + 100, "poll([{fd=7, events=POLLIN}], 1, 1000) = 0 (Timeout)", 1_000_000);
        log.call(7, at + 1_000_200, "close(7) = 0", 5);
    }
    let result = explained(log, None);
    let first = &result.findings[0];
    assert!(first.summary.contains("DNS server 10.0.0.9"), "{first:#?}");
    assert_eq!((first.kind.name(), first.severity), ("timer-wait", Severity::Medium));
}

#[test]
fn naps_between_tries_of_a_lock_are_no_pauses() {
    let mut log = Log::default();
    for n in 0..60 {
        let at = n * 30_000;
        let fails =
            "fcntl(3, F_SETLK, {l_type=F_WRLCK}) = -1 EAGAIN (Resource temporarily unavailable)";
        for (turn, nap) in [(0, 1_000), (1, 2_000), (2, 5_000), (3, 10_000)] {
            let at = at + turn * 5_000;
            log.call(7, at, fails, 20);
            log.call(
                7,
                at + 50,
                "clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=0}, NULL) = 0",
                nap.min(4_900),
            );
        }
        log.call(7, at + 20_100, "fcntl(3, F_SETLK, {l_type=F_WRLCK}) = 0", 20);
        // Another one paces itself.
        log.call(8, at, "clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=0}, NULL) = 0", 29_000);
        log.call(8, at + 29_100, "write(5, \"x\", 1) = 1", 20);
    }
    let result = explained(log, None);
    let first = &result.findings[0];
    assert!(first.summary.contains("between tries of fcntl, 240 times"), "{:#?}", result.findings);
    assert_eq!(first.kind.name(), "timer-wait");
}

#[test]
fn a_file_of_the_kernel_is_nobody_to_wait_for() {
    let mut log = Log::default();
    for n in 0..200 {
        let at = n * 400;
        log.call(7, at, "openat(3, \"self/mountinfo\", O_RDONLY) = 6", 10);
        log.call(7, at + 20, "read(6, \"22 28\"..., 1024) = 1024", 200);
        log.call(7, at + 300, "close(6) = 0", 5);
    }
    let result = explained(log, None);
    let first = &result.findings[0];
    assert!(first.summary.contains("read of /proc/self/mountinfo"), "{first:#?}");
    assert!(!first.summary.contains("for whom"), "{first:#?}");
}
