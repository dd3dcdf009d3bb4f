//! ftrace's text: `trace`, `trace_pipe` and `trace-cmd report`.
//!
//! `comm-pid [(tgid)] [cpu] [flags] stamp: event: text`. The stamp is seconds, or
//! an integer where the trace clock counts cycles (`x86-tsc`). tracefs prints
//! system calls without their event's name: `sys_read(fd: 3)` and `sys_read -> 0x1`.

use super::lines::{any_event, first_event, split_cpu, split_name, Head, Line, TextReader};
use crate::event::Context;
use crate::format::{EventReader, Tick, TraceFormat, TraceInfo};
use crate::text::stamp;
use crate::{Error, Input};

/// The format.
pub struct FtraceText;

impl TraceFormat for FtraceText {
    fn name(&self) -> &'static str {
        "ftrace text"
    }

    fn probe(&self, head: &[u8]) -> bool {
        head.starts_with(b"# tracer: ") || any_event(head, parse)
    }

    fn open(&self, input: Input) -> Result<Box<dyn EventReader>, Error> {
        let first = first_event(input.head(), parse).unwrap_or_default();
        let seconds = split_cpu(first).is_none_or(|(_, _, right)| {
            right.split(':').next().is_some_and(|stamp| stamp.contains('.') && seconds(right))
        });
        let (clock, tick) = if seconds {
            ("seconds", Tick::Nanosecond)
        } else {
            ("counter (x86-tsc)", Tick::Cycle)
        };
        let mut info = TraceInfo::new(self.name(), clock, tick);
        info.overwritten = heading(input.head());
        Ok(Box::new(TextReader::new(input.into_lines(), info, parse)))
    }
}

/// True if the stamp behind the flags is in seconds.
fn seconds(right: &str) -> bool {
    split_stamp(right).is_some_and(|(_, in_seconds, ..)| in_seconds)
}

/// Splits `[flags] stamp: rest`.
fn split_stamp(right: &str) -> Option<(u64, bool, &str, Context)> {
    let (mut rest, mut column) = (right.trim_ascii_start(), Context::Unknown);
    // Flags (`d.h1.`) come first, unless the recorder left them out.
    for _ in 0..2 {
        let blank = rest.bytes().position(|b| b.is_ascii_whitespace());
        let end = blank.unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if let Some((ts, in_seconds)) = word.strip_suffix(':').and_then(stamp) {
            return Some((ts, in_seconds, after.trim_ascii_start(), column));
        }
        column = Context::of_column(word);
        rest = after.trim_ascii_start();
    }
    None
}

fn parse(line: &str, _number: u64) -> Line<'_> {
    let begin = line.trim_ascii_start();
    if begin.starts_with('#') || begin.is_empty() {
        return comment(line);
    }
    match event(line) {
        Some(head) => Line::Event(head),
        None => other(line),
    }
}

fn event(line: &str) -> Option<Head<'_>> {
    let (left, cpu, right) = split_cpu(line)?;
    let mut task = left.trim_ascii();
    // The thread group, if recorded: `( 123)` or `(-----)`.
    if let Some((before, _)) = task.strip_suffix(')').and_then(|t| t.rsplit_once('(')) {
        task = before.trim_end();
    }
    let (comm, tid) = task.rsplit_once('-')?;
    let tid = tid.parse().ok()?;
    let (ts, _, rest, column) = split_stamp(right)?;
    let head = Head { ts, cpu, tid, comm, column, ..Head::default() };
    if let Some((name, text)) = split_name(rest) {
        return Some(Head { name, text, ..head });
    }
    if let Some(call) = rest.strip_prefix("sys_") {
        return system_call(call, head);
    }
    // The function tracers and whatever prints without a name.
    Some(Head { name: "function", text: rest, ..head })
}

/// `read(fd: 3, …)` begins a call, `read -> 0x1` ends it.
fn system_call<'a>(call: &'a str, head: Head<'a>) -> Option<Head<'a>> {
    let end = call.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))?;
    let (name, rest) = call.split_at(end);
    if let Some(arguments) = rest.strip_prefix('(') {
        return Some(Head {
            system: "syscalls",
            prefix: "sys_enter",
            name,
            text: arguments,
            ..head
        });
    }
    let result = rest.trim_start().strip_prefix("->")?;
    Some(Head { system: "syscalls", prefix: "sys_exit", name, text: result.trim(), ..head })
}

/// What begins the comment that says how many events there are and were.
pub(crate) const ENTRIES: &str = "entries-in-buffer/entries-written:";

/// Events kept and written, if the heading says that some were overwritten.
fn heading(head: &[u8]) -> Option<(u64, u64)> {
    let mut lines = head.split(|&b| b == b'\n').take_while(|line| line.starts_with(b"#"));
    let found = lines.find_map(|line| entries(std::str::from_utf8(line).ok()?));
    found.filter(|(kept, written)| kept < written)
}

fn entries(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.split_once(ENTRIES)?;
    let mut numbers = counts.trim_start().split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|n| n.parse::<u64>().ok());
    Some((number()?, number()?))
}

fn comment(line: &str) -> Line<'_> {
    match entries(line) {
        Some((kept, written)) => Line::Overwritten(written.saturating_sub(kept)),
        None => Line::Nothing,
    }
}

/// `CPU:1 [LOST 12 EVENTS]`, `CPU:1 [12 EVENTS DROPPED]`, and headings.
fn other(line: &str) -> Line<'_> {
    let line = line.trim();
    if let Some((cpu, what)) = line.strip_prefix("CPU:").and_then(|l| l.split_once(" [")) {
        if what.contains("LOST") || what.contains("DROPPED") {
            let count = what.split_whitespace().find_map(|word| word.parse().ok());
            return Line::Lost { cpu: cpu.trim().parse().unwrap_or(crate::NO_CPU), count };
        }
    }
    let heading = ["cpus=", "version =", "CPU ", "##### CPU", "trace-cmd:", "  bprint"];
    if heading.iter().any(|h| line.starts_with(h.trim())) {
        return Line::Nothing;
    }
    Line::Unreadable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(line: &str) -> Head<'_> {
        match parse(line, 1) {
            Line::Event(head) => head,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn events_of_every_dialect_are_read() {
        let tracefs =
            head(" qemu-system-x86-131     [000] d..1.    69.243562: kvm_entry: vcpu 0, rip 0xf");
        assert_eq!((tracefs.comm, tracefs.tid, tracefs.cpu), ("qemu-system-x86", 131, 0));
        assert_eq!((tracefs.name, tracefs.ts), ("kvm_entry", 69_243_562_000));
        let tsc = head(
            "          <idle>-0       [001] d.h1.  48514612054: irq_handler_entry: irq=28 name=c",
        );
        assert_eq!((tsc.ts, tsc.text), (48_514_612_054, "irq=28 name=c"));
        let report = head("           <...>-5911  [001]  1944.996837: sys_exit_write:        0x1");
        assert_eq!((report.name, report.text), ("sys_exit_write", "0x1"));
        let tgid = head(
            "  CPU 0/KVM-12   (  9) [012] .....  1.000001: sys_ioctl(fd: d, cmd: ae80, arg: 0)",
        );
        assert_eq!((tgid.comm, tgid.tid, tgid.cpu), ("CPU 0/KVM", 12, 12));
        assert_eq!((tgid.prefix, tgid.name), ("sys_enter", "ioctl"));
        let back = head("  a b [0-7  [000] ..... 2.5: sys_ioctl -> 0x0");
        assert_eq!((back.prefix, back.name, back.tid, back.text), ("sys_exit", "ioctl", 7, "0x0"));
    }

    #[test]
    fn losses_are_read() {
        let counts = "# entries-in-buffer/entries-written: 279174/1121770   #P:2";
        assert_eq!(parse(counts, 1), Line::Overwritten(842_596));
        assert_eq!(parse("CPU:1 [LOST 12 EVENTS]", 1), Line::Lost { cpu: 1, count: Some(12) });
        assert_eq!(parse("CPU:0 [EVENTS DROPPED]", 1), Line::Lost { cpu: 0, count: None });
        assert_eq!(parse("cpus=2", 1), Line::Nothing);
        assert_eq!(parse("what is this", 1), Line::Unreadable);
    }
}
