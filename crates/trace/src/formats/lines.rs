//! What the line-by-line text formats share.

use crate::event::{Body, Context, Event, EventType, NO_CPU};
use crate::format::{EventReader, Kinds, Losses, TraceInfo};
use crate::input::Lines;
use crate::text::digits;
use std::ops::Range;
use vmeter_base::CpuList;

/// One line, taken apart. The texts are parts of the line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub(super) system: &'a str,
    /// Put before the name with an underscore, unless empty.
    pub(super) prefix: &'static str,
    pub(super) name: &'a str,
    pub(super) ts: u64,
    pub(super) cpu: u32,
    pub(super) tid: i32,
    pub(super) comm: &'a str,
    pub(super) column: Context,
    pub(super) text: &'a str,
}

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Event(Head<'a>),
    /// Events were lost on a CPU.
    Lost {
        cpu: u32,
        count: Option<u64>,
    },
    /// The recorder overwrote this many events.
    Overwritten(u64),
    /// Comments, headings, call chains.
    Nothing,
    /// Not what the format has.
    Unreadable,
}

/// Takes the lines of one format apart.
pub(super) type Parse = fn(line: &str, number: u64) -> Line<'_>;

/// Events of a text trace, one a line.
pub(super) struct TextReader {
    parse: Parse,
    info: TraceInfo,
    lines: Lines,
    kinds: Kinds,
    losses: Losses,
    lost: EventType,
    /// Stamp of the last event.
    last: u64,
    order: Order,
}

/// Whether stamps go on, on each CPU.
#[derive(Debug, Default)]
struct Order {
    /// Last stamp by CPU; first that of events without one.
    last: Vec<u64>,
    /// How often it went back.
    back: u64,
}

/// Threads without a CPU write their stamps a little later than they take them.
const LATE_NS: u64 = 1_000_000_000;

impl Order {
    fn note(&mut self, cpu: u32, ts: u64) {
        let (index, late) = match cpu {
            NO_CPU => (0, LATE_NS),
            cpu => (cpu as usize + 1, 0),
        };
        if index > CpuList::LIMIT {
            return;
        }
        if index >= self.last.len() {
            self.last.resize(index + 1, 0);
        }
        let last = &mut self.last[index];
        self.back += u64::from(ts.saturating_add(late) < *last);
        *last = ts;
    }

    fn problem(&self) -> Option<String> {
        (self.back > 0).then(|| {
            let back = self.back;
            format!(
                "time stamps go backwards at {back} events: durations across these events \
                are wrong"
            )
        })
    }
}

impl TextReader {
    pub(super) fn new(lines: Lines, info: TraceInfo, parse: Parse) -> TextReader {
        let mut kinds = Kinds::default();
        let lost = kinds.id("", "lost_events");
        let lost = kinds.get(lost).clone();
        TextReader {
            parse,
            info,
            lines,
            kinds,
            losses: Losses::default(),
            lost,
            last: 0,
            order: Order::default(),
        }
    }

    fn note_lost(&mut self, count: Option<u64>) {
        match count {
            Some(count) => {
                self.losses.lost_events = self.losses.lost_events.saturating_add(count);
            }
            None => self.losses.uncounted_gaps += 1,
        }
    }
}

/// A part's place in the line that it was cut from.
fn place(line: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).wrapping_sub(line.as_ptr() as usize);
    if start.checked_add(part.len()).is_some_and(|end| end <= line.len()) {
        start..start + part.len()
    } else {
        0..0
    }
}

/// What the next line that matters holds.
enum Found {
    Event {
        kind: u32,
        ts: u64,
        cpu: u32,
        tid: i32,
        comm: Range<usize>,
        column: Context,
        text: Range<usize>,
    },
    Lost(u32, Option<u64>),
}

impl EventReader for TextReader {
    fn info(&self) -> &TraceInfo {
        &self.info
    }

    fn next_event(&mut self) -> Option<Event<'_>> {
        let found = loop {
            if !self.lines.advance() {
                self.losses.missing = self.lines.problems();
                self.losses.missing.extend(self.order.problem());
                self.losses.exceeded = self.lines.exceeded();
                return None;
            }
            let line = self.lines.text();
            match (self.parse)(line, self.lines.number()) {
                Line::Nothing => {}
                Line::Unreadable => self.losses.unreadable += 1,
                Line::Overwritten(count) => {
                    self.losses.overwritten = self.losses.overwritten.saturating_add(count);
                }
                Line::Lost { cpu, count } => {
                    self.note_lost(count);
                    break Found::Lost(cpu, count);
                }
                Line::Event(head) => {
                    let kind = match head.prefix {
                        "" => self.kinds.id(head.system, head.name),
                        prefix => self.kinds.id_joined(head.system, prefix, head.name),
                    };
                    self.last = head.ts;
                    self.order.note(head.cpu, head.ts);
                    let (comm, text) = (place(line, head.comm), place(line, head.text));
                    let Head { ts, cpu, tid, column, .. } = head;
                    break Found::Event { kind, ts, cpu, tid, comm, column, text };
                }
            }
        };
        let line = self.lines.text();
        Some(match found {
            Found::Lost(cpu, count) => Event {
                kind: &self.lost,
                ts: self.last,
                cpu,
                tid: -1,
                buffer: 0,
                comm: None,
                column: Context::Unknown,
                body: Body::Lost(count),
            },
            Found::Event { kind, ts, cpu, tid, comm, column, text } => Event {
                kind: self.kinds.get(kind),
                ts,
                cpu,
                tid,
                buffer: 0,
                comm: line.get(comm).filter(|c| !c.is_empty() && *c != "<...>"),
                column,
                body: Body::Text(line.get(text).unwrap_or_default()),
            },
        })
    }

    fn losses(&self) -> &Losses {
        &self.losses
    }
}

/// True if one of the first whole lines of `head` is an event to `parse`.
pub(super) fn any_event(head: &[u8], parse: Parse) -> bool {
    first_event(head, parse).is_some()
}

/// The first line that is an event; its time stamp shows the unit: seconds have a point.
pub(super) fn first_event(head: &[u8], parse: Parse) -> Option<&str> {
    let lines = head.split(|&b| b == b'\n').take(64);
    let mut lines = lines.filter_map(|line| std::str::from_utf8(line).ok());
    lines.find(|line| matches!(parse(line, 1), Line::Event(_)))
}

/// Splits `left [001] right` at the CPU's brackets.
pub(super) fn split_cpu(line: &str) -> Option<(&str, u32, &str)> {
    let bytes = line.as_bytes();
    for open in memchr::memchr_iter(b'[', bytes) {
        let Some(left) = bytes[..open].strip_suffix(b" ") else { continue };
        let inside = &line[open + 1..];
        let Some((cpu, length @ 3..=6)) = digits(inside.as_bytes()) else { continue };
        if let Some(right) = inside[length..].strip_prefix("] ") {
            return Some((&line[..left.len()], cpu as u32, right));
        }
    }
    None
}

/// Bytes that names have.
static OF_NAMES: [bool; 256] = {
    let (mut of, mut byte) = ([false; 256], 0_u8);
    while byte < 128 {
        of[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        byte += 1;
    }
    of
};

/// Splits `name: text` where the name is one word.
pub(super) fn split_name(text: &str) -> Option<(&str, &str)> {
    let end = text.bytes().position(|b| !OF_NAMES[b as usize])?;
    let (name, rest) = text.split_at(end);
    let rest = rest.strip_prefix(':').filter(|_| !name.is_empty())?;
    Some((name, rest.trim_ascii_start()))
}
