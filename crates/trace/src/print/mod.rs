//! Events as text, as tracefs and `trace-cmd report` show them.
//!
//! A binary record is printed by its own `print fmt`, compiled once per type; one that
//! uses something beyond [`expr`] is printed field by field. Text stays as it is.

mod expr;
mod format;

use crate::event::{Body, Event, EventType, FieldKind, NO_CPU};
use crate::format::{EventReader, Tick};
use crate::symbols::Symbols;
use format::Format;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

/// Most threads whose names are kept.
const MAX_THREADS: usize = 1 << 16;
/// Bytes of a field that is neither number nor text that are shown.
const SHOWN_BYTES: usize = 32;

/// A field's value.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue<'a> {
    /// A signed integer.
    Signed(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// Text.
    Text(&'a str),
    /// Anything else.
    Bytes(&'a [u8]),
}

/// Prints events.
pub struct Printer {
    formats: Vec<Option<Option<Format>>>,
    symbols: Option<Arc<Symbols>>,
    threads: HashMap<i32, String>,
    tick: Tick,
}

impl Printer {
    /// A printer of a reader's events.
    pub fn new(reader: &dyn EventReader) -> Printer {
        Printer {
            formats: Vec::new(),
            symbols: reader.symbols(),
            threads: reader.threads().into_iter().take(MAX_THREADS).collect(),
            tick: reader.info().clock.tick,
        }
    }

    /// Name of the thread that an event happened in.
    pub fn thread<'a>(&'a self, event: &Event<'a>) -> Option<&'a str> {
        match (event.comm, event.tid) {
            (Some(comm), _) => Some(comm),
            (None, 0) => Some("<idle>"),
            (None, tid) => self.threads.get(&tid).map(String::as_str),
        }
    }

    /// Name of the kernel symbol at or below an address, if the trace carries symbols.
    pub fn symbol(&self, address: u64) -> Option<&str> {
        self.symbols.as_deref()?.name(address)
    }

    /// Takes thread names from switches, which have them: a process changes its name.
    pub fn learn(&mut self, event: &Event<'_>) {
        let Body::Record(record) = event.body else { return };
        if event.kind.name != "sched_switch" {
            return;
        }
        for (pid, comm) in [("prev_pid", "prev_comm"), ("next_pid", "next_comm")] {
            let tid = event.kind.int(pid).get(record).map_or(0, |tid| tid as i32);
            let name = event.kind.string(comm).get(record).unwrap_or_default();
            let room = self.threads.len() < MAX_THREADS;
            match self.threads.get_mut(&tid) {
                _ if tid <= 0 => {}
                Some(known) if known == name => {}
                Some(known) => *known = name.to_string(),
                None if room => {
                    self.threads.insert(tid, name.to_string());
                }
                None => {}
            }
        }
    }

    /// Appends a line as `trace-cmd report` prints it, without its end.
    pub fn line(&mut self, event: &Event<'_>, out: &mut String) {
        if let Body::Lost(count) = event.body {
            let cpu = if event.cpu == NO_CPU { 0 } else { event.cpu };
            let count = count.map_or("SOME".to_string(), |n| n.to_string());
            return push(out, format_args!("CPU:{cpu} [LOST {count} EVENTS]"));
        }
        let cpu = if event.cpu == NO_CPU { 0 } else { event.cpu };
        let comm = self.thread(event).unwrap_or("<...>");
        push(out, format_args!("{comm:>16}-{:<7} [{cpu:03}] ", event.tid.max(0)));
        self.stamp(event.ts, out);
        push(out, format_args!(": {}: ", event.kind.name));
        self.text(event, out);
    }

    /// Appends a stamp: seconds where the clock counts time, else the number.
    pub fn stamp(&self, ts: u64, out: &mut String) {
        match self.tick {
            Tick::Nanosecond => {
                push(out, format_args!("{}.{:09}", ts / 1_000_000_000, ts % 1_000_000_000));
            }
            Tick::Cycle | Tick::Order => push(out, format_args!("{ts}")),
        }
    }

    /// Appends what the event says.
    pub fn text(&mut self, event: &Event<'_>, out: &mut String) {
        match event.body {
            Body::Record(record) => {
                let id = event.kind.id as usize;
                if self.formats.len() <= id && id < 1 << 17 {
                    self.formats.resize(id + 1, None);
                }
                let slot = self.formats.get_mut(id);
                let format =
                    slot.and_then(|f| f.get_or_insert_with(|| Format::of(event.kind)).as_ref());
                let symbols = self.symbols.as_deref();
                let symbol = |address| symbols.and_then(|s| s.name(address)).map(str::to_string);
                if !format.is_some_and(|f| f.print(record, &symbol, out)) {
                    plain(event.kind, record, out);
                }
            }
            Body::Text(text) => out.push_str(text),
            Body::Words { words, .. } => {
                let words: Vec<String> = words.iter().map(|w| format!("{w:#x}")).collect();
                out.push_str(&words.join(" "));
            }
            Body::Call { arguments, result, duration } => {
                push(out, format_args!("({arguments}) = {result}"));
                if let Some(ticks) = duration {
                    out.push_str(" <");
                    self.stamp(ticks, out);
                    out.push('>');
                }
            }
            Body::Lost(count) => match count {
                Some(count) => push(out, format_args!("{count} events")),
                None => out.push_str("an unknown number of events"),
            },
        }
    }
}

/// Text with escapes for whatever a terminal could obey or a reader be misled by: only
/// printable ASCII, letters and digits stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            ' '..='~' => safe.push(c),
            c if !c.is_ascii() && c.is_alphanumeric() => safe.push(c),
            c => safe.extend(c.escape_default()),
        }
    }
    Cow::Owned(safe)
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(what);
    debug_assert!(written.is_ok(), "a String takes everything");
}

/// The fields of a record that are the event's own, in order: (name, value).
pub fn fields<'a>(
    kind: &'a EventType,
    record: &'a [u8],
) -> impl Iterator<Item = (&'a str, FieldValue<'a>)> {
    let own = kind.fields.iter().filter(|f| !f.name.starts_with("common_"));
    own.filter_map(move |field| {
        let text = field.type_name.contains("char")
            && (field.kind != FieldKind::Plain || field.type_name.contains('['));
        let number = kind.int(&field.name);
        let value = if text {
            FieldValue::Text(kind.string(&field.name).get(record)?)
        } else if field.kind == FieldKind::Plain
            && number.is_present()
            && !field.type_name.contains('[')
        {
            let raw = number.get(record)?;
            if field.signed {
                FieldValue::Signed(raw as i64)
            } else {
                FieldValue::Unsigned(raw)
            }
        } else {
            let start = field.offset as usize;
            FieldValue::Bytes(record.get(start..start.checked_add(field.size as usize)?)?)
        };
        Some((field.name.as_str(), value))
    })
}

/// `name=value` for every field.
fn plain(kind: &EventType, record: &[u8], out: &mut String) {
    for (at, (name, value)) in fields(kind, record).enumerate() {
        if at > 0 {
            out.push(' ');
        }
        match value {
            FieldValue::Signed(n) => push(out, format_args!("{name}={n}")),
            FieldValue::Unsigned(n) => push(out, format_args!("{name}={n:#x}")),
            FieldValue::Text(text) => push(out, format_args!("{name}={text}")),
            FieldValue::Bytes(bytes) => {
                push(out, format_args!("{name}="));
                let shown = &bytes[..bytes.len().min(SHOWN_BYTES)];
                shown.iter().for_each(|b| push(out, format_args!("{b:02x}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Field;
    use proptest::prelude::*;

    fn kind(print_fmt: &str) -> EventType {
        let field = |name: &str, type_name: &str, offset, size, signed| Field {
            name: name.into(),
            type_name: type_name.into(),
            offset,
            size,
            signed,
            kind: FieldKind::Plain,
        };
        EventType {
            name: "test".into(),
            fields: vec![
                field("a", "int a", 0, 4, true),
                field("b", "unsigned long b", 8, 8, false),
                field("comm", "char comm[8]", 16, 8, false),
                field("args", "unsigned long args[2]", 24, 16, false),
            ],
            print_fmt: print_fmt.into(),
            ..EventType::default()
        }
    }

    fn record() -> Vec<u8> {
        let mut record = vec![0; 40];
        record[0..4].copy_from_slice(&(-5i32).to_le_bytes());
        record[8..16].copy_from_slice(&0xffff_ffff_8100_0010u64.to_le_bytes());
        record[16..20].copy_from_slice(b"bash");
        record[24] = 7;
        record[32] = 9;
        record
    }

    fn text(print_fmt: &str) -> String {
        let kind = kind(print_fmt);
        let format = Format::of(&kind).unwrap_or_else(|| panic!("{print_fmt} is understood"));
        let mut out = String::new();
        let symbol =
            |address: u64| (address >> 16 == 0xffff_ffff_8100).then(|| "_stext".to_string());
        assert!(format.print(&record(), &symbol, &mut out));
        out
    }

    #[test]
    fn the_kernels_formats_are_understood() {
        assert_eq!(text(r#""a=%d b=%lx", REC->a, REC->b"#), "a=-5 b=ffffffff81000010");
        assert_eq!(text(r#""%-6s|%6d|%06d", REC->comm, REC->a, REC->a"#), "bash  |    -5|-00005");
        assert_eq!(
            text(r#""%ps %p 100%%", (void *)REC->b, REC->b"#),
            "_stext 0xffffffff81000010 100%"
        );
        assert_eq!(text(r#""%u %x", (u8)REC->a, (unsigned int)REC->a"#), "251 fffffffb");
        assert_eq!(text(r#""%s%s", REC->a & 4 ? "x" : "y", !REC->a || 2 > 1 ? "+" : "-""#), "y+");
        let symbolic = r#""%s %s", __print_symbolic(REC->a, { -5, "five" }), __print_symbolic(REC->b, { 1, "A" })"#;
        assert_eq!(text(symbolic), "five 0xffffffff81000010");
        let flags = r#""%s", __print_flags(REC->args[0], "|", { 0x1, "S" }, { 1 << 1, "D" })"#;
        assert_eq!(text(flags), "S|D|0x4");
        assert_eq!(text(r#""NR %ld", (((0x01 | 0x40) + 1) << 1) - 1 + REC->args[1]"#), "NR 140");
    }

    #[test]
    fn what_is_not_understood_is_left_to_the_fields() {
        for print_fmt in
            ["", "\"%d\"", "\"%d\", REC->none", "\"%pI4\", REC->b", "\"%s\", sizeof(x)"]
        {
            assert!(Format::of(&kind(print_fmt)).is_none(), "{print_fmt}");
        }
        let mut out = String::new();
        plain(&kind(""), &record(), &mut out);
        assert!(out.starts_with("a=-5 b=0xffffffff81000010 comm=bash args=0700"), "{out}");
    }

    proptest! {
        #[test]
        fn any_format_and_any_record(
            print_fmt in r#""(%[-0]?[0-9]{0,3}l?[duxspc]|[a-z%]){0,6}"(, (REC->(a|b|comm|args)(\[[0-9]\])?|[0-9(){}?:<>&|+*/~!-]|__print_flags\(|"x"| ){0,12}){0,4}"#,
            record in proptest::collection::vec(any::<u8>(), 0..48),
        ) {
            if let Some(format) = Format::of(&kind(&print_fmt)) {
                let mut out = String::new();
                format.print(&record, &|_| None, &mut out);
                prop_assert!(out.len() < 10_000);
            }
        }

        #[test]
        fn deep_nesting_ends(depth in 1usize..20_000) {
            let print_fmt = format!("\"%d\", {}1{}", "(".repeat(depth), ")".repeat(depth));
            Format::of(&kind(&print_fmt));
        }
    }
}
