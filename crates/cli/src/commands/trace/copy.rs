//! `vmeter trace report` and `vmeter trace convert`: events again, one by one.

use super::select::Selection;
use super::stat::hertz;
use crate::output::{self, Output};
use crate::status::Status;
use anyhow::Context;
use clap::{Args, ValueEnum};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use vmeter_host_tracing::stat::trace_error;
use vmeter_host_tracing::PerfettoEvents;
use vmeter_render::export::write_whole;
use vmeter_render::{ReportError, Target};
use vmeter_session::failure::usage;
use vmeter_trace::write::{copy, Csv, JsonLines, Sink, Text};
use vmeter_trace::{EventReader, Input};

/// `vmeter trace report`.
#[derive(Debug, Args)]
pub struct Report {
    /// A trace of any format.
    file: PathBuf,
    /// Which events.
    #[command(flatten)]
    selection: Selection,
}

/// `vmeter trace convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// A trace of any format.
    file: PathBuf,
    /// File to write (`-` for standard output); its ending picks the format.
    #[arg(short, long, value_name = "OUT")]
    output_file: PathBuf,
    /// The output format (default: the format that the file's ending names).
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Clock rate of a trace whose time stamps count cycles; needed for Perfetto output (default:
    /// vmeter's estimate, if the trace allows one).
    #[arg(long, value_name = "HZ", value_parser = hertz)]
    cpu_hz: Option<f64>,
    /// Which events.
    #[command(flatten)]
    selection: Selection,
}

/// Output format of the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For ui.perfetto.dev (.pftrace, .perfetto-trace).
    Perfetto,
    /// An object a line (.jsonl, .ndjson, .json).
    Jsonl,
    /// One line per event (.csv).
    Csv,
    /// As `trace-cmd report` prints (.txt).
    Text,
}

impl Format {
    fn by_extension(path: &Path) -> Option<Format> {
        Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "pftrace" | "perfetto-trace" => Format::Perfetto,
            "jsonl" | "ndjson" | "json" => Format::Jsonl,
            "csv" => Format::Csv,
            "txt" => Format::Text,
            _ => return None,
        })
    }

    fn sink(self, cpu_hz: Option<f64>) -> Box<dyn Sink> {
        match self {
            Format::Perfetto => Box::new(PerfettoEvents::new(cpu_hz)),
            Format::Jsonl => Box::new(JsonLines::default()),
            Format::Csv => Box::new(Csv::default()),
            Format::Text => Box::new(Text::headed()),
        }
    }
}

/// Prints events as text.
///
/// # Errors
/// A file that is no trace. A closed pipe is no error.
pub fn report(arguments: &Report, out: &Output) -> anyhow::Result<Status> {
    let mut reader = open(&arguments.file)?;
    let mut stdout = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut sink = Text::default();
    let written = write(reader.as_mut(), &arguments.selection, &mut sink, &mut stdout)?;
    let read = match written {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Status::Good),
        Err(error) => return Err(error).context("cannot write to standard output"),
    };
    check(&arguments.file, reader.as_ref(), read)?;
    warn(&arguments.file, reader.as_ref(), out);
    Ok(Status::Good)
}

/// Writes a trace in another format.
///
/// # Errors
/// A file that is no trace, an ending that names no format, a file that can't be written.
pub fn convert(arguments: &Convert, out: &Output) -> anyhow::Result<Status> {
    let path = &arguments.output_file;
    let format = arguments.format.or_else(|| Format::by_extension(path)).ok_or_else(|| {
        usage(format!(
            "{}: the file's ending names no format; known endings: .pftrace, .jsonl, .csv, .txt; \
                or choose a format with --format",
            path.display()
        ))
    })?;
    let mut reader = open(&arguments.file)?;
    let mut sink = format.sink(arguments.cpu_hz);
    let selection = &arguments.selection;
    if path.as_os_str() == "-" {
        let mut stdout = BufWriter::with_capacity(1 << 16, io::stdout().lock());
        let read = match write(reader.as_mut(), selection, sink.as_mut(), &mut stdout)? {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Status::Good),
            Err(error) => return Err(error).context("cannot write to standard output"),
        };
        check(&arguments.file, reader.as_ref(), read)?;
    } else {
        output::check_target(&Target::File(path.clone()))?;
        let mut refused = None;
        write_whole(path, |file| match write(reader.as_mut(), selection, sink.as_mut(), file) {
            Ok(Ok(read)) => {
                refused = check(&arguments.file, reader.as_ref(), read).err();
                match refused {
                    None => Ok(()),
                    Some(_) => {
                        Err(ReportError::stream("converted")(io::ErrorKind::InvalidInput.into()))
                    }
                }
            }
            Ok(Err(error)) => Err(ReportError::stream("converted")(error)),
            Err(error) => {
                refused = Some(error);
                Err(ReportError::stream("converted")(io::ErrorKind::InvalidInput.into()))
            }
        })
        .map_err(|error| refused.unwrap_or_else(|| error.into()))?;
    }
    warn(&arguments.file, reader.as_ref(), out);
    Ok(Status::Good)
}

fn open(path: &Path) -> anyhow::Result<Box<dyn EventReader>> {
    Input::open(path).and_then(vmeter_trace::open).map_err(trace_error)
}

/// Returns an error if vmeter gave up reading the trace before its end, or could parse none of it.
fn check(path: &Path, reader: &dyn EventReader, read: u64) -> anyhow::Result<()> {
    reader.losses().check_read(&path.display().to_string(), read).map_err(trace_error)
}

/// Copies the selected events to `out`, and counts all events. The outer error concerns the
/// selection, the inner error concerns writing to `out`.
fn write(
    reader: &mut dyn EventReader,
    selection: &Selection,
    sink: &mut dyn Sink,
    out: &mut dyn Write,
) -> anyhow::Result<io::Result<u64>> {
    let mut select = selection.select()?;
    let [from, to] = selection.limits(reader.info().clock.tick)?;
    let (mut first, mut read) = (None, 0);
    let wanted = |event: &vmeter_trace::Event<'_>| {
        read += 1;
        if first.is_none() {
            first = Some(event.ts);
            select.from = from.map(|stamp| stamp.resolve(event.ts));
            select.to = to.map(|stamp| stamp.resolve(event.ts));
        }
        select.has(event)
    };
    let copied = copy(reader, wanted, sink, out);
    Ok(copied.and_then(|_| out.flush()).map(|()| read))
}

/// Says what is missing from the trace.
fn warn(path: &Path, reader: &dyn EventReader, out: &Output) {
    let losses = reader.losses();
    if out.quiet || losses.is_empty() {
        return;
    }
    let file = path.display().to_string();
    let file = vmeter_render::text::neutralise(&file);
    let lost = losses.lost_events.saturating_add(losses.overwritten);
    if lost > 0 || losses.uncounted_gaps > 0 {
        let gaps = losses.uncounted_gaps;
        eprintln!(
            "warning: {file}: {lost} events were lost, and an unknown number in {gaps} \
            further gaps"
        );
    }
    if losses.unreadable > 0 {
        eprintln!("warning: {file}: vmeter could not parse {} lines or records", losses.unreadable);
    }
    for what in &losses.missing {
        eprintln!("warning: {file}: {}", vmeter_render::text::neutralise(what));
    }
}
