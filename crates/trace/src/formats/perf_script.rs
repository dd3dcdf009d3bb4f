//! The text of `perf script`.
//!
//! `comm pid[/tid] [cpu] seconds: [period] system:event: text`; lines of call
//! chains are passed over.

use super::lines::{any_event, split_cpu, split_name, Head, Line, TextReader};
use crate::format::{EventReader, Tick, TraceFormat, TraceInfo};
use crate::text::{split_at_byte, stamp};
use crate::{Error, Input};

/// The format.
pub struct PerfScript;

impl TraceFormat for PerfScript {
    fn name(&self) -> &'static str {
        "perf script"
    }

    fn probe(&self, head: &[u8]) -> bool {
        any_event(head, parse)
    }

    fn open(&self, input: Input) -> Result<Box<dyn EventReader>, Error> {
        let info = TraceInfo::new(self.name(), "seconds", Tick::Nanosecond);
        Ok(Box::new(TextReader::new(input.into_lines(), info, parse)))
    }
}

fn parse(line: &str, _number: u64) -> Line<'_> {
    if let Some(head) = event(line) {
        return Line::Event(head);
    }
    if let Some((_, lost)) = line.split_once("PERF_RECORD_LOST") {
        let count = lost.split_whitespace().find_map(|word| word.parse().ok());
        let cpu = split_cpu(line).map_or(crate::NO_CPU, |(_, cpu, _)| cpu);
        return Line::Lost { cpu, count };
    }
    let chain = line.starts_with(['\t', ' ', '#']) || line.trim().is_empty();
    if chain || line.contains("PERF_RECORD_") {
        Line::Nothing
    } else {
        Line::Unreadable
    }
}

/// Splits at the last blank.
fn split_last(text: &str) -> Option<(&str, &str)> {
    let at = memchr::memrchr2(b' ', b'\t', text.as_bytes())?;
    Some((&text[..at], &text[at + 1..]))
}

fn event(line: &str) -> Option<Head<'_>> {
    let (left, cpu, right) = split_cpu(line)?;
    let (comm, ids) = split_last(left.trim_ascii())?;
    let tid = split_at_byte(ids, b'/').map_or(ids, |(_, tid)| tid).parse().ok()?;
    let (seconds, rest) = split_at_byte(right.trim_ascii_start(), b':')?;
    let (ts, true) = stamp(seconds)? else { return None };
    let mut rest = rest.trim_ascii_start();
    let period = rest.bytes().take_while(u8::is_ascii_digit).count();
    if period > 0 && rest[period..].starts_with(' ') {
        rest = rest[period..].trim_ascii_start();
    }
    let (system, rest) = split_name(rest)?;
    let (name, text) = split_name(rest)?;
    Some(Head {
        system,
        prefix: "",
        name,
        ts,
        cpu,
        tid,
        comm: comm.trim_ascii(),
        text,
        ..Head::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_losses_are_read() {
        let line = "     migration/0    18/19 [000]  1124.438057:       1  sched:sched_switch: prev_comm=migration/0 prev_pid=18";
        let Line::Event(head) = parse(line, 1) else { panic!("no event") };
        assert_eq!((head.comm, head.tid, head.cpu), ("migration/0", 19, 0));
        assert_eq!((head.system, head.name, head.ts), ("sched", "sched_switch", 1_124_438_057_000));
        assert_eq!(head.text, "prev_comm=migration/0 prev_pid=18");
        let lost = "a 1 [001] 5.0: PERF_RECORD_LOST lost 17";
        assert_eq!(parse(lost, 1), Line::Lost { cpu: 1, count: Some(17) });
        assert_eq!(parse("\t    7f3 main+0x1 (/bin/x)", 1), Line::Nothing);
        let ftrace = " q-131     [000] d..1.    69.243562: kvm_entry: vcpu 0";
        assert!(!matches!(parse(ftrace, 1), Line::Event(_)), "ftrace text is not perf's");
    }
}
