//! A line an event (RFC 4180): stamp, place, thread, name and text.

use super::{cpu, tid, Sink};
use crate::event::Event;
use crate::format::TraceInfo;
use crate::print::{printable, Printer};
use std::io::{self, Write};
use vmeter_base::sheet::guard;

/// The CSV format.
#[derive(Debug, Default)]
pub struct Csv {
    text: String,
}

impl Sink for Csv {
    fn begin(&mut self, _info: &TraceInfo, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"time,cpu,tid,thread,system,event,text\r\n")
    }

    fn event(
        &mut self,
        event: &Event<'_>,
        printer: &mut Printer,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        self.text.clear();
        printer.stamp(event.ts, &mut self.text);
        write!(out, "{},", self.text)?;
        cpu(event).map_or(Ok(()), |cpu| write!(out, "{cpu}"))?;
        out.write_all(b",")?;
        tid(event).map_or(Ok(()), |tid| write!(out, "{tid}"))?;
        let thread = printer.thread(event).unwrap_or_default().to_string();
        self.text.clear();
        printer.text(event, &mut self.text);
        for field in [&thread, &event.kind.system, &event.kind.name, &self.text] {
            write!(out, ",{}", quoted(field))?;
        }
        out.write_all(b"\r\n")
    }
}

/// In quotes where something inside asks for them, and no formula.
fn quoted(text: &str) -> String {
    let text = printable(text);
    let lead = guard(&text);
    if text.contains([',', '"']) {
        format!("\"{lead}{}\"", text.replace('"', "\"\""))
    } else {
        format!("{lead}{text}")
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_guests_text_is_no_formula() {
        assert_eq!(quoted("=cmd|'/C calc'!A0"), "'=cmd|'/C calc'!A0");
        assert_eq!(quoted("=a,\"b\""), "\"'=a,\"\"b\"\"\"");
        assert_eq!(quoted("irq=28"), "irq=28");
    }
}
