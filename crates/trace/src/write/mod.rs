//! Events written again in another format, one at a time.

mod csv;
mod json;
mod text;

use crate::event::{Event, NO_CPU};
use crate::print::Printer;
use crate::{EventReader, TraceInfo};
pub use csv::Csv;
pub use json::JsonLines;
use std::io::{self, Write};
pub use text::Text;

/// A format that events are written in.
pub trait Sink {
    /// Writes what comes before the first event.
    ///
    /// # Errors
    /// Those of the stream.
    fn begin(&mut self, _info: &TraceInfo, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    /// Writes an event.
    ///
    /// # Errors
    /// Those of the stream.
    fn event(
        &mut self,
        event: &Event<'_>,
        printer: &mut Printer,
        out: &mut dyn Write,
    ) -> io::Result<()>;

    /// Writes what comes after the last event.
    ///
    /// # Errors
    /// Those of the stream.
    fn end(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the events of a trace for which `wanted` holds; gives their number.
///
/// # Errors
/// Those of the stream.
pub fn copy(
    reader: &mut dyn EventReader,
    mut wanted: impl FnMut(&Event<'_>) -> bool,
    sink: &mut dyn Sink,
    out: &mut dyn Write,
) -> io::Result<u64> {
    let mut printer = Printer::new(reader);
    sink.begin(reader.info(), out)?;
    let mut written = 0;
    while let Some(event) = reader.next_event() {
        printer.learn(&event);
        if wanted(&event) {
            sink.event(&event, &mut printer, out)?;
            written += 1;
        }
    }
    sink.end(out)?;
    Ok(written)
}

/// The CPU, if the trace says.
fn cpu(event: &Event<'_>) -> Option<u32> {
    (event.cpu != NO_CPU).then_some(event.cpu)
}

/// The thread, if the trace says.
fn tid(event: &Event<'_>) -> Option<i32> {
    (event.tid >= 0).then_some(event.tid)
}
