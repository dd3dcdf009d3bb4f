//! Writes traces of device models that behave in a known way, as ftrace text.

#![allow(dead_code)]

use std::fmt::Write as _;
use std::path::PathBuf;
use vmeter_explain::result::{ExplainResult, Finding};
use vmeter_explain::{explain, ExplainError, Options};

/// The vCPU's thread.
pub const VCPU: &str = "CPU 0/KVM-100";

/// A trace being written.
pub struct Trace {
    text: String,
    /// Now, µs.
    pub now: u64,
    /// CPU that events happen on.
    pub cpu: u32,
    /// What the CPU does, as ftrace says it.
    pub flags: &'static str,
}

impl Trace {
    /// An empty one.
    pub fn new() -> Trace {
        Trace { text: "# tracer: nop\n#\n".into(), now: 1_000_000, cpu: 0, flags: "....." }
    }

    /// An event, after some time.
    pub fn event(&mut self, after_us: u64, thread: &str, event: &str) {
        self.now += after_us;
        let (s, us) = (self.now / 1_000_000, self.now % 1_000_000);
        let (cpu, flags) = (self.cpu, self.flags);
        writeln!(self.text, " {thread} [{cpu:03}] {flags} {s}.{us:06}: {event}").expect("a string");
    }

    /// Events are lost here.
    pub fn lost(&mut self, count: u64) {
        writeln!(self.text, "CPU:{} [LOST {count} EVENTS]", self.cpu).expect("a string");
    }

    /// A switch of this CPU.
    pub fn switch(&mut self, after_us: u64, prev: &str, state: &str, next: &str) {
        let (a, b) = (split(prev), split(next));
        let text = format!(
            "sched_switch: prev_comm={} prev_pid={} prev_prio=120 prev_state={state} ==> \
             next_comm={} next_pid={} next_prio=120",
            a.0, a.1, b.0, b.1
        );
        self.event(after_us, prev, &text);
    }

    /// A thread wakes another.
    pub fn wake(&mut self, after_us: u64, by: &str, woken: &str) {
        let (comm, pid) = split(woken);
        let text = format!("sched_waking: comm={comm} pid={pid} prio=120 target_cpu=000");
        self.event(after_us, by, &text);
    }

    /// A system call that stays on its CPU.
    pub fn call(&mut self, thread: &str, number: u32, us: u64, returned: i64) {
        self.event(1, thread, &format!("sys_enter: NR {number} (0, 0, 0, 0, 0, 0)"));
        self.event(us, thread, &format!("sys_exit: NR {number} = {returned}"));
    }

    /// A port write of the guest that user space serves by `serve`.
    pub fn write(&mut self, port: u32, serve: impl FnOnce(&mut Trace)) {
        self.event(20, VCPU, "kvm_exit: vcpu 0 reason IO_INSTRUCTION rip 0x10 info1 0 info2 0");
        let pio = format!("kvm_pio: pio_write at {port:#x} size 1 count 1 val 0x1");
        self.event(1, VCPU, &pio);
        self.event(1, VCPU, "kvm_userspace_exit: reason KVM_EXIT_IO (2)");
        self.event(1, VCPU, "sys_exit: NR 16 = 0");
        serve(self);
        self.event(5, VCPU, "sys_enter: NR 16 (5, ae80, 0, 0, 0, 0)");
        self.event(1, VCPU, "kvm_entry: vcpu 0, rip 0x12");
    }

    /// Rounds over some peers and port 0x1f7, whose handler is `slow`.
    pub fn rounds(rounds: u64, mut slow: impl FnMut(&mut Trace, u64)) -> Trace {
        let mut trace = Trace::new();
        trace.event(1, VCPU, "sys_enter: NR 16 (5, ae80, 0, 0, 0, 0)");
        for n in 0..rounds {
            for port in [0x1f2, 0x1f3, 0x1f6, 0x70] {
                trace.write(port, |trace| trace.now += 10 + n % 3);
            }
            trace.write(0x1f7, |trace| slow(trace, n));
        }
        trace
    }

    /// What is said of it beside a twin.
    pub fn explain_beside(self, twin: Trace) -> ExplainResult {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["trace.txt", "twin.txt"].map(|name| folder.path().join(name));
        for (path, trace) in paths.iter().zip([&self, &twin]) {
            std::fs::write(path, &trace.text).expect("a file");
        }
        let [path, twin] = paths;
        explain(&[path], &Options { vs: Some(twin), ..Options::default() }).expect("a trace")
    }

    /// What is said of threads of a name.
    pub fn explain_comm(self, comm: &str) -> ExplainResult {
        self.try_comm(comm).expect("a trace with such a thread")
    }

    /// The same, if there are any.
    pub fn try_comm(self, comm: &str) -> Result<ExplainResult, ExplainError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.txt");
        std::fs::write(&path, self.text).expect("a file");
        let options = Options { comm: Some(comm.into()), ..Options::default() };
        explain(&[path], &options)
    }

    /// Where the time went, as text.
    pub fn outline(self) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.txt");
        std::fs::write(&path, self.text).expect("a file");
        vmeter_explain::outline(&[path], &Options::default()).expect("a trace")
    }

    /// It, as text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is said of it.
    pub fn explain(self) -> ExplainResult {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.txt");
        std::fs::write(&path, self.text).expect("a file");
        explain(&[path], &Options::default()).expect("a trace")
    }
}

fn split(thread: &str) -> (&str, &str) {
    thread.rsplit_once('-').expect("name-id")
}

/// A real trace.
pub fn fixture(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/trace");
    PathBuf::from(root).join(name)
}

/// Of each finding, in order, what is special about it, else its kind.
pub fn kinds(result: &ExplainResult) -> Vec<&str> {
    result.findings.iter().map(word).collect()
}

/// What is special about a finding, else its kind.
pub fn word(finding: &Finding) -> &'static str {
    finding.modifier.map_or(finding.kind.name(), |modifier| modifier.name())
}
