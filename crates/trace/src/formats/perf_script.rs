//! The text of `perf script`.
//!
//! `comm pid[/tid] [cpu] seconds: [period] system:event: text`, and samples of what is no
//! tracepoint: `period event[/terms/][modifiers]: text`; lines of call chains are passed over.

use super::lines::{any_event, split_cpu, split_name, Head, Line, TextReader};
use crate::format::{EventReader, Tick, TraceFormat, TraceInfo};
use crate::text::{split_at_byte, stamp_at};
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
    if chain && stamped(line).is_none() || line.contains("PERF_RECORD_") {
        Line::Nothing
    } else {
        Line::Unreadable
    }
}

/// What all lines of events begin with, and the rest of the line.
#[inline]
fn stamped(line: &str) -> Option<(Head<'_>, &str)> {
    let (left, cpu, right) = split_cpu(line)?;
    let left = left.trim_ascii_end();
    let blank = left.bytes().rposition(|b| matches!(b, b' ' | b'\t'))?;
    let (comm, ids) = left.split_at(blank);
    let ids = &ids[1..];
    let tid = split_at_byte(ids, b'/').map_or(ids, |(_, tid)| tid).parse().ok()?;
    let right = right.trim_ascii_start();
    let (ts, true, length) = stamp_at(right)? else { return None };
    let rest = right[length..].strip_prefix(':')?;
    Some((Head { ts, cpu, tid, comm: comm.trim_ascii(), ..Head::default() }, rest))
}

#[inline]
fn event(line: &str) -> Option<Head<'_>> {
    let (head, rest) = stamped(line)?;
    let mut rest = rest.trim_ascii_start();
    let period = rest.bytes().take_while(u8::is_ascii_digit).count();
    let has_period = period > 0 && rest[period..].starts_with(' ');
    if has_period {
        rest = rest[period..].trim_ascii_start();
    }
    let tracepoint = split_name(rest)
        .and_then(|(system, rest)| split_name(rest).map(|(name, text)| (system, name, text)));
    let sample = || sample(rest).filter(|_| has_period).map(|(name, text)| ("", name, text));
    let (system, name, text) = tracepoint.or_else(sample)?;
    Some(Head { system, name, text, ..head })
}

/// Splits `cpu-clock/freq=2000/u: text`: one word, perhaps with terms and modifiers.
fn sample(text: &str) -> Option<(&str, &str)> {
    let blank = memchr::memchr2(b' ', b'\t', text.as_bytes()).unwrap_or(text.len());
    let (name, rest) = text.split_at(blank);
    let name = name.strip_suffix(':').filter(|name| !name.is_empty())?;
    Some((name, rest.trim_ascii_start()))
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
        let sample = "  bash 16880 [000]  8051.476331:     500000  cpu-clock/freq=2000/u:      7f28aa0af0af handle+0x2f (/lib/ld.so)";
        let Line::Event(head) = parse(sample, 1) else { panic!("no sample") };
        assert_eq!((head.system, head.name, head.tid), ("", "cpu-clock/freq=2000/u", 16880));
        assert_eq!(head.text, "7f28aa0af0af handle+0x2f (/lib/ld.so)");
        let unknown = "  bash 16880 [000]  8051.476331: something else";
        assert_eq!(parse(unknown, 1), Line::Unreadable, "not dropped without a word");
        let ftrace = " q-131     [000] d..1.    69.243562: kvm_entry: vcpu 0";
        assert!(!matches!(parse(ftrace, 1), Line::Event(_)), "ftrace text is not perf's");
    }
}
