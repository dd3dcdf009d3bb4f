//! An object a line, an event an object, with the fields of binary records.

use super::{cpu, tid, Sink};
use crate::event::{Body, Event};
use crate::format::{Tick, TraceInfo};
use crate::print::{fields, FieldValue, Printer};
use std::io::{self, Write};

/// The JSON Lines format.
#[derive(Debug, Default)]
pub struct JsonLines {
    seconds: bool,
    text: String,
}

impl Sink for JsonLines {
    fn begin(&mut self, info: &TraceInfo, _out: &mut dyn Write) -> io::Result<()> {
        self.seconds = info.clock.tick == Tick::Nanosecond;
        Ok(())
    }

    fn event(
        &mut self,
        event: &Event<'_>,
        printer: &mut Printer,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        self.text.clear();
        printer.stamp(event.ts, &mut self.text);
        let unit = if self.seconds { "time_s" } else { "ticks" };
        write!(out, "{{\"{unit}\":{}", self.text)?;
        cpu(event).map_or(Ok(()), |cpu| write!(out, ",\"cpu\":{cpu}"))?;
        tid(event).map_or(Ok(()), |tid| write!(out, ",\"tid\":{tid}"))?;
        if let Some(thread) = printer.thread(event) {
            write!(out, ",\"thread\":{}", Quoted(thread))?;
        }
        if !event.kind.system.is_empty() {
            write!(out, ",\"system\":{}", Quoted(&event.kind.system))?;
        }
        write!(out, ",\"event\":{}", Quoted(&event.kind.name))?;
        self.text.clear();
        printer.text(event, &mut self.text);
        write!(out, ",\"text\":{}", Quoted(&self.text))?;
        match event.body {
            Body::Record(record) => {
                out.write_all(b",\"fields\":{")?;
                for (at, (name, value)) in fields(event.kind, record).enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(out, "{comma}{}:{}", Quoted(name), Spelled(value))?;
                }
                out.write_all(b"}")?;
            }
            Body::Lost(Some(count)) => write!(out, ",\"lost\":{count}")?,
            _ => {}
        }
        out.write_all(b"}\n")
    }
}

/// A string, in ASCII.
struct Quoted<'a>(&'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("\"")?;
        let mut plain = 0;
        for (at, c) in self.0.char_indices() {
            if (' '..='~').contains(&c) && c != '"' && c != '\\' {
                continue;
            }
            f.write_str(&self.0[plain..at])?;
            plain = at + c.len_utf8();
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(f, "\\u{unit:04x}")?;
            }
        }
        f.write_str(&self.0[plain..])?;
        f.write_str("\"")
    }
}

struct Spelled<'a>(FieldValue<'a>);

impl std::fmt::Display for Spelled<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            FieldValue::Signed(n) => write!(f, "{n}"),
            FieldValue::Unsigned(n) => write!(f, "{n}"),
            FieldValue::Text(text) => write!(f, "{}", Quoted(text)),
            FieldValue::Bytes(bytes) => {
                f.write_str("\"")?;
                bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
                f.write_str("\"")
            }
        }
    }
}
