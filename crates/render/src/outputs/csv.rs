//! CSV: the raw rows, one per span or sample.
//!
//! A spreadsheet runs a cell that begins like a formula, and span names come
//! from guests, so such text is led by an apostrophe (OWASP, "CSV Injection").
//! Numbers are vmeter's own and stay as they are. Control characters are shown
//! as escapes: a CSV file is read with `cat` as often as with anything else.

use crate::text::neutralise;
use crate::{Field, Output, Report, ReportError};
use std::io::{self, Write};
use vmeter_base::sheet::guard;

/// The CSV output.
#[derive(Debug)]
pub struct Csv;

impl Output for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn about(&self) -> &'static str {
        "CSV: the raw rows, e.g. one per span or sample"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["csv"]
    }

    fn write(&self, report: &dyn Report, out: &mut dyn Write) -> Result<(), ReportError> {
        let records = report.records();
        let mut writer = csv::Writer::from_writer(out);
        let mut write = || -> io::Result<()> {
            writer.write_record(&records.header)?;
            for row in &records.rows {
                writer.write_record(row.iter().map(spelled))?;
            }
            if let Some(stream) = report.stream() {
                stream.for_each(&mut |row| Ok(writer.write_record(row.iter().map(spelled))?))?;
            }
            writer.flush()
        };
        write().map_err(ReportError::stream("csv"))
    }
}

fn spelled(field: &Field) -> String {
    match field {
        Field::Empty => String::new(),
        Field::Number(number) => number.clone(),
        Field::Text(text) => {
            let text = neutralise(text);
            format!("{}{text}", guard(text.as_str()))
        }
    }
}
