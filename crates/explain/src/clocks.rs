//! The traces' clocks on one time base, that of the first file.

use crate::merge::Read;
use crate::ExplainError;
use std::path::PathBuf;
use vmeter_model::explain::{Alignment, ExplainedFile};
use vmeter_trace::{open, Input, Tick};

/// How one file's stamps become ticks of the common base: `(stamp - origin) x scale + offset`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    pub(crate) scale: f64,
    /// Ticks of the common base.
    pub(crate) offset: i64,
    pub(crate) told: Alignment,
}

/// Relations of all files' clocks.
#[derive(Debug, Clone, Default)]
pub struct Clocks {
    pub(crate) lines: Vec<Line>,
    pub(crate) tick_s: Option<f64>,
}

impl Clocks {
    /// A stamp of a file on the common base.
    #[inline]
    pub fn common(&self, file: u16, stamp: u64) -> u64 {
        let Some(line) = self.lines.get(file as usize) else { return stamp };
        let scaled = match line.scale {
            1.0 => stamp,
            scale => (stamp as f64 * scale) as u64,
        };
        scaled.saturating_add_signed(line.offset)
    }

    /// Seconds a tick of the common base, where known.
    pub fn tick_s(&self) -> Option<f64> {
        self.tick_s
    }

    /// The files, with how each was aligned.
    pub fn describe(&self, sources: &[Read]) -> Vec<ExplainedFile> {
        let files = sources.iter().zip(&self.lines);
        files
            .map(|(source, line)| ExplainedFile {
                file: source.file.clone(),
                format: source.format.to_string(),
                clock: source.clock.clone(),
                events: source.events,
                lost_events: source.lost(),
                alignment: line.told.clone(),
            })
            .collect()
    }
}

/// Finds out how the files' clocks relate.
///
/// # Errors
/// A file that is no trace.
pub fn align(files: &[PathBuf], cpu_hz: Option<f64>) -> Result<Clocks, ExplainError> {
    let mut clocks = Clocks::default();
    let mut first = None;
    for path in files {
        let reader = open(Input::open(path)?)?;
        let clock = reader.info().clock.clone();
        let tick_s = match clock.tick {
            Tick::Nanosecond => Some(1e-9),
            Tick::Cycle => cpu_hz.map(|hz| 1.0 / hz),
            Tick::Order => None,
        };
        let mut line = Line { scale: 1.0, ..Line::default() };
        match &first {
            None => {
                line.told = Alignment {
                    method: "reference".into(),
                    error_s: Some(0.0),
                    ..Alignment::default()
                };
                clocks.tick_s = tick_s;
                first = Some(clock);
            }
            Some(first) => line.told = related(first, &clock),
        }
        clocks.lines.push(line);
    }
    Ok(clocks)
}

/// What the names of two clocks say of their relation.
fn related(first: &vmeter_trace::Clock, other: &vmeter_trace::Clock) -> Alignment {
    let cycles = |clock: &vmeter_trace::Clock| clock.tick == Tick::Cycle;
    let exact = |method: &str| Alignment {
        method: method.into(),
        error_s: Some(0.0),
        ..Alignment::default()
    };
    match (cycles(first), cycles(other)) {
        (true, true) => exact("same TSC"),
        (false, false) if first == other => exact("same clock"),
        _ => Alignment { method: "none".into(), ..Alignment::default() },
    }
}
