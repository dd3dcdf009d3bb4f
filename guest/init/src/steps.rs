//! Steps: bracketed by trace markers, failures printed, the boot goes on.

use crate::sys::{self, Errno};
use crate::text::Text;
use core::ffi::CStr;

/// Where steps are written to.
pub struct Steps {
    marker: Option<i32>,
    report: Text<1024>,
}

impl Steps {
    /// No marker file yet.
    pub fn new() -> Self {
        Steps { marker: None, report: Text::new() }
    }

    /// Opens ftrace's marker file; without it, markers go nowhere.
    pub fn open_marker(&mut self, path: &CStr) {
        self.marker = sys::open(path, sys::O_WRONLY | sys::O_CLOEXEC).ok();
    }

    /// Writes one marker.
    pub fn mark(&self, text: &[u8]) {
        if let Some(file) = self.marker {
            sys::write(file, text);
        }
    }

    /// Writes to the console in one go.
    pub fn print(&self, text: &[u8]) {
        sys::write(1, text);
    }

    /// Prints `vmeter: WHAT: WORD`.
    pub fn complain(&self, what: &[u8], word: &[u8]) {
        let mut line = Text::<256>::new();
        line.push(b"vmeter: ").push(word).push(b": ").push(what).push(b"\n");
        self.print(line.bytes());
    }

    /// Prints and marks a failure.
    pub fn check(&self, name: &[u8], result: Result<(), Errno>) {
        let Err(error) = result else { return };
        let number = error.0.unsigned_abs().into();
        let mut line = Text::<256>::new();
        line.push(b"vmeter: ").push(name).push(b": error ").push_number(number).push(b"\n");
        self.print(line.bytes());
        let mut marker = Text::<256>::new();
        marker.push(b"vmeter:error ").push_number(number).push(b" ").push(name);
        self.mark(marker.bytes());
    }

    /// Runs one step between its markers.
    pub fn run(&mut self, name: &[u8], body: impl FnOnce(&mut Self) -> Result<(), Errno>) {
        self.bracket(b"vmeter:begin ", name);
        let result = body(self);
        self.bracket(b"vmeter:end ", name);
        self.check(name, result);
    }

    /// Runs one step and records its own clock, inside the markers.
    pub fn run_clocked(&mut self, name: &[u8], body: impl FnOnce(&mut Self) -> Result<(), Errno>) {
        let mut clock = (0, 0);
        self.run(name, |steps| {
            let from = sys::monotonic_ns();
            let result = body(steps);
            clock = (from, sys::monotonic_ns());
            result
        });
        let mut text = Text::<256>::new();
        text.push(b"vmeter:clock ").push_number(clock.0).push(b" ").push_number(clock.1);
        text.push(b" ").push(name);
        self.mark(text.bytes());
        self.report.push(b"vmeter: clock ").push_number(clock.0).push(b" ");
        self.report.push_number(clock.1).push(b" ").push(name).push(b"\n");
    }

    /// Prints the clocks of the planted steps, in one write.
    pub fn print_report(&mut self, wanted: bool) {
        if wanted && !self.report.bytes().is_empty() {
            self.run(b"report", |steps| {
                steps.print(steps.report.bytes());
                Ok(())
            });
        }
    }

    /// Copies ftrace's text to the console, between two lines of its own, with tracing
    /// off: printing would be traced faster than it can be printed.
    pub fn dump_trace(&mut self) {
        if let Ok(file) = sys::open(c"/sys/kernel/tracing/tracing_on", sys::O_WRONLY) {
            sys::write(file, b"0");
            sys::close(file);
        }
        self.print(b"vmeter: trace\n");
        let result = sys::copy_to_console(c"/sys/kernel/tracing/trace");
        self.print(b"vmeter: end of trace\n");
        self.check(b"dump_trace", result);
    }

    fn bracket(&self, what: &[u8], name: &[u8]) {
        let mut text = Text::<256>::new();
        text.push(what).push(name);
        self.mark(text.bytes());
    }
}

/// `/proc/meminfo` between two lines of its own, in one write.
#[inline(never)]
pub fn print_meminfo() -> Result<(), Errno> {
    let mut content = [0u8; 6144];
    let content = sys::read_file(c"/proc/meminfo", &mut content)?;
    let mut text = Text::<8192>::new();
    text.push(b"vmeter: meminfo\n").push(content).push(b"vmeter: end of meminfo\n");
    sys::write(1, text.bytes());
    Ok(())
}
