//! Lines as `trace-cmd report` prints them, which every ftrace reader takes.

use super::Sink;
use crate::event::Event;
use crate::print::{printable, Printer};
use std::io::{self, Write};

/// The text format. Whatever a terminal could obey is escaped.
#[derive(Debug, Default)]
pub struct Text {
    line: String,
}

impl Sink for Text {
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
