//! Lines as `trace-cmd report` prints them, which every ftrace reader takes.

use super::Sink;
use crate::event::Event;
use crate::formats::ftrace_text::ENTRIES;
use crate::print::{printable, Printer};
use crate::TraceInfo;
use std::io::{self, Write};

/// The text format. Whatever a terminal could obey is escaped.
#[derive(Debug, Default)]
pub struct Text {
    line: String,
    headed: bool,
}

impl Text {
    /// Lines with a heading that says so if the oldest events were overwritten: for a file that
    /// is read as a trace again.
    pub fn headed() -> Text {
        Text { headed: true, ..Text::default() }
    }
}

impl Sink for Text {
    fn begin(&mut self, info: &TraceInfo, out: &mut dyn Write) -> io::Result<()> {
        match info.overwritten {
            // As tracefs has it: without it nobody knows that the beginning is missing.
            Some((kept, written)) if self.headed => writeln!(out, "# {ENTRIES} {kept}/{written}"),
            _ => Ok(()),
        }
    }

    fn event(
        &mut self,
        event: &Event<'_>,
        printer: &mut Printer,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        self.line.clear();
        printer.line(event, &mut self.line);
        out.write_all(printable(&self.line).as_bytes())?;
        out.write_all(b"\n")
    }
}
