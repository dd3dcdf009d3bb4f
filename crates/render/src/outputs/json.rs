//! JSON: the whole result in one object, as `vmeter/1` fixes it.
//!
//! Outer levels are indented and inner ones stand on one line, so a span is a
//! line: short to read, quick to grep, and a diff shows the span that changed.
//! Seconds are doubles that print as the nanoseconds they came from: the
//! shortest decimal that reads back as the same double is that of the integer,
//! as long as it has no more than 15 digits (eleven days).

use crate::exported::Of;
use crate::text::is_hostile;
use crate::{Output, Report, ReportError, EXPORT};
use serde::ser::{Serialize, Serializer};
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Write};
use vmeter_base::Envelope;

/// The JSON output.
#[derive(Debug)]
pub struct Json;

impl Output for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn about(&self) -> &'static str {
        "JSON: everything, with every raw sample and span"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["json"]
    }

    fn write(&self, report: &dyn Report, out: &mut dyn Write) -> Result<(), ReportError> {
        let mut serializer = serde_json::Serializer::with_formatter(&mut *out, Lines::new());
        let written = Whole(report).serialize(&mut serializer).map_err(io::Error::from);
        written.and_then(|()| out.write_all(b"\n")).map_err(ReportError::stream("json"))
    }
}

crate::exported! {
    /// What heads every export.
    struct Head<'a> of Envelope {
        schema: &'static str = |_| EXPORT,
        command: &'a str,
        argv: &'a [String],
        started_at: &'a str,
        host: BTreeMap<&'a str, &'a Value>,
        provenance: BTreeMap<&'a str, &'a str>,
    }
}

/// Head and body in one object.
struct Whole<'a>(&'a dyn Report);

impl Serialize for Whole<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Flat<'a> {
            #[serde(flatten)]
            head: Head<'a>,
            #[serde(flatten)]
            body: Box<dyn erased_serde::Serialize + 'a>,
        }
        Flat { head: Head::of(self.0.envelope()), body: self.0.body() }.serialize(serializer)
    }
}

/// Levels of nesting that are indented: `{ "runs": [ { "spans": [ …`.
const INDENTED_LEVELS: usize = 4;

/// Pretty outside, compact inside, and nothing that a terminal would obey.
struct Lines {
    pretty: PrettyFormatter<'static>,
    depth: usize,
}

impl Lines {
    fn new() -> Self {
        Lines { pretty: PrettyFormatter::with_indent(b" "), depth: 0 }
    }

    fn indented(&self) -> bool {
        self.depth <= INDENTED_LEVELS
    }

    fn separator<W: ?Sized + Write>(&self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        if self.indented() {
            return self.pretty.begin_array(out);
        }
        out.write_all(b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        let indented = self.indented();
        self.depth -= 1;
        if indented {
            return self.pretty.end_array(out);
        }
        out.write_all(b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if self.indented() {
            return self.pretty.begin_array_value(out, first);
        }
        self.separator(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.pretty.end_array_value(out)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        if self.indented() {
            return self.pretty.begin_object(out);
        }
        out.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        let indented = self.indented();
        self.depth -= 1;
        if indented {
            return self.pretty.end_object(out);
        }
        out.write_all(b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if self.indented() {
            return self.pretty.begin_object_key(out, first);
        }
        self.separator(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.pretty.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.pretty.end_object_value(out)
    }

    /// `serde_json` escapes C0 itself; C1 controls and bidirectional overrides
    /// become `\u` escapes too, which every reader turns back.
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain = 0;
        for (at, c) in fragment.char_indices().filter(|(_, c)| is_hostile(*c)) {
            out.write_all(&fragment.as_bytes()[plain..at])?;
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                write!(out, "\\u{unit:04x}")?;
            }
            plain = at + c.len_utf8();
        }
        out.write_all(&fragment.as_bytes()[plain..])
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.pretty.write_char_escape(out, escape)
    }
}
