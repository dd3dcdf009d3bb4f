//! QEMU's `log` trace backend: `-trace events=FILE -D LOG -msg timestamp=on`.
//!
//! `tid@seconds.micros:event text`, in wall-clock time; without `-msg
//! timestamp=on` just `event text`, whose lines have an order but no time.

use super::lines::{any_event, Head, Line, TextReader};
use crate::event::NO_CPU;
use crate::format::{EventReader, Tick, TraceFormat, TraceInfo};
use crate::text::stamp;
use crate::{Error, Input};

/// The format.
pub struct QemuLog;

impl TraceFormat for QemuLog {
    fn name(&self) -> &'static str {
        "QEMU trace log"
    }

    fn probe(&self, head: &[u8]) -> bool {
        any_event(head, parse_stamped) || looks_bare(head)
    }

    fn open(&self, input: Input) -> Result<Box<dyn EventReader>, Error> {
        let stamped = any_event(input.head(), parse_stamped);
        let (clock, tick) = if stamped {
            ("realtime", Tick::Nanosecond)
        } else {
            ("none: to get time stamps, start QEMU with -msg timestamp=on", Tick::Order)
        };
        let info = TraceInfo::new(self.name(), clock, tick);
        let parse = if stamped { parse_stamped } else { parse_bare };
        Ok(Box::new(TextReader::new(input.into_lines(), info, parse)))
    }
}

fn event_name(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (name.len() > 2 && name.bytes().all(word)).then_some((name, rest))
}

fn parse_stamped(line: &str, _number: u64) -> Line<'_> {
    let head = || {
        let (tid, rest) = line.split_once('@')?;
        let (seconds, rest) = rest.split_once(':')?;
        let (ts, true) = stamp(seconds)? else { return None };
        let (name, text) = event_name(rest)?;
        let (tid, cpu) = (tid.parse().ok()?, NO_CPU);
        Some(Head { ts, cpu, tid, name, text, ..Head::default() })
    };
    match head() {
        Some(head) => Line::Event(head),
        None if line.trim().is_empty() => Line::Nothing,
        None => Line::Unreadable,
    }
}

fn parse_bare(line: &str, number: u64) -> Line<'_> {
    match event_name(line) {
        Some((name, text)) if name.contains('_') => {
            Line::Event(Head { ts: number, cpu: NO_CPU, tid: -1, name, text, ..Head::default() })
        }
        _ if line.trim().is_empty() => Line::Nothing,
        _ => Line::Unreadable,
    }
}

/// Few texts have an underscored first word and arguments on every line.
fn looks_bare(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines().filter(|l| !l.trim().is_empty()).take(4).peekable();
    let is_event = |l: &str| match parse_bare(l, 1) {
        Line::Event(head) => head.name.bytes().all(|b| !b.is_ascii_uppercase()),
        _ => false,
    };
    lines.peek().is_some() && lines.all(is_event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_with_and_without_stamps() {
        let line = "11252@1795225741.517363:pci_cfg_read i440FX 00:00.0 @0x0 -> 0x8086";
        let Line::Event(head) = parse_stamped(line, 1) else { panic!("no event") };
        assert_eq!((head.tid, head.name), (11252, "pci_cfg_read"));
        assert_eq!(
            (head.ts, head.text),
            (1_795_225_741_517_363_000, "i440FX 00:00.0 @0x0 -> 0x8086")
        );
        let Line::Event(head) = parse_bare("fw_cfg_select 0x55 key 0x0000", 9) else { panic!() };
        assert_eq!((head.ts, head.name), (9, "fw_cfg_select"));
        assert!(!looks_bare(b"Hello there\n"));
    }
}
