//! Results to a terminal, JSON, CSV, Markdown, HTML and Perfetto.
//!
//! Results and outputs meet in the middle, so that their numbers add instead of
//! multiplying. A result implements [`Report`]: its JSON body, its raw rows, its
//! timelines, and a [`Document`] of blocks (facts, tables, charts, outlines). An
//! output implements [`Output`] and draws those, knowing nothing of results. A
//! new result is one file and works in every output; a new output is one file
//! and a line in [`outputs::OUTPUTS`], and works for every result.
//!
//! Strings come from guests and from files that anyone may have written. They
//! stay raw up to the output, which is the one that knows how to escape them.

pub mod chart;
pub mod document;
pub mod error;
pub mod export;
pub mod exported;
pub mod outputs;
pub mod palette;
pub mod quantity;
pub mod table;
pub mod text;
pub mod tone;

pub use document::{Detail, Document};
pub use error::ReportError;
pub use export::{check_writable, export, Target};
pub use outputs::terminal::{ColorChoice, Screen};
pub use outputs::{by_extension, Output, OUTPUTS};

use std::io;
use vmeter_base::{Envelope, Ns};

/// The version of every export's form. What is stored on disk has a version of its own.
pub const EXPORT: &str = "vmeter/1";

/// A result, as the outputs see it.
pub trait Report {
    /// What heads every export.
    fn envelope(&self) -> &Envelope;

    /// The fields that follow the envelope in JSON; must serialise as a map.
    fn body(&self) -> Box<dyn erased_serde::Serialize + '_>;

    /// The result in reading order.
    fn document(&self, detail: Detail) -> Document;

    /// The raw rows.
    fn records(&self) -> Records;

    /// The rows one by one instead, where there are too many to hold; [`Records::rows`] is
    /// empty then.
    fn stream(&self) -> Option<&dyn RecordStream> {
        None
    }

    /// The timelines, where there are any.
    fn timelines(&self) -> Vec<RunTimeline<'_>> {
        Vec::new()
    }
}

/// The timeline of one run, with what places it in time.
#[derive(Debug, Clone)]
pub struct RunTimeline<'a> {
    /// Names the run, e.g. `default run 3`.
    pub label: String,
    /// `CLOCK_MONOTONIC` of the start, ns; everything below counts from it.
    pub start_ns: Ns,
    /// `CLOCK_REALTIME` of the same moment, ns since the epoch, where it is known.
    pub start_realtime_ns: Option<Ns>,
    /// Its length, ns.
    pub total: Ns,
    /// What it consists of: each stretch before those inside it, in order of start.
    pub nested: Vec<Stretch<'a>>,
    /// What ran beside that; may overlap.
    pub beside: Vec<Stretch<'a>>,
    /// Moments with a word.
    pub marks: &'a [(Ns, String)],
}

/// A stretch of a [`RunTimeline`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch<'a> {
    /// Name.
    pub name: &'a str,
    /// Begin, ns.
    pub start: Ns,
    /// End, ns.
    pub end: Ns,
    /// Guest instructions in it, where counted.
    pub insns: Option<u64>,
    /// Where its boundaries come from.
    pub source: &'a str,
    /// How far off they can be, ns.
    pub error_ns: Ns,
    /// How many of the stretches before it it is inside of.
    pub depth: usize,
}

/// Raw rows for a spreadsheet or a script.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Records {
    /// Column names.
    pub header: Vec<&'static str>,
    /// Rows, each as long as the header.
    pub rows: Vec<Vec<Field>>,
}

/// A column of [`Records`]: its name, and what it says of one row's origin.
pub type RecordColumn<T> = (&'static str, fn(&T) -> Field);

impl Records {
    /// A row for each of `all`.
    pub fn of<T, const COLUMNS: usize>(
        all: impl IntoIterator<Item = T>,
        columns: [RecordColumn<T>; COLUMNS],
    ) -> Self {
        let row = |one: T| columns.iter().map(|(_, field)| field(&one)).collect();
        Records {
            header: columns.iter().map(|(name, _)| *name).collect(),
            rows: all.into_iter().map(row).collect(),
        }
    }
}

/// Rows that come one by one.
pub trait RecordStream {
    /// Gives every row to `each`.
    ///
    /// # Errors
    /// Those of the rows' origin, and `each`'s.
    fn for_each(&self, each: &mut dyn FnMut(Vec<Field>) -> io::Result<()>) -> io::Result<()>;
}

/// A value of [`Records`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// Nothing.
    Empty,
    /// A number, already spelled.
    Number(String),
    /// Words, which may come from anyone.
    Text(String),
}

impl Field {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Field::Text(text.into())
    }

    /// A number, or nothing if there is none.
    pub fn number(number: Option<impl ToString>) -> Self {
        number.map_or(Field::Empty, |n| Field::Number(n.to_string()))
    }

    /// Nanoseconds as seconds with nine decimals.
    pub fn seconds(ns: Ns) -> Self {
        Field::Number(decimal_seconds(ns))
    }
}

/// Nanoseconds as a decimal number of seconds, exactly: `3.912345678`.
pub fn decimal_seconds(ns: Ns) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    format!("{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}
