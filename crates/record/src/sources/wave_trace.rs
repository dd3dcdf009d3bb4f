//! What the host's kernel did while several VMs ran at once: a trace of all of them, which the first of them
//! keeps. Their own timelines have no part in it; it tells what they waited for.

use super::path_of;
use crate::recorder::{self, Context, Live, Recorder, Saved, SourceError};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use vmeter_model::run::SourceRecord;
use vmeter_model::Event;

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "wave-trace";
/// The trace in the run's folder.
pub const FILE: &str = "wave-trace.dat";

/// The trace of a wave.
pub struct WaveTrace;

/// What is known besides the trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// Why there is none, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// vmeter's own threads when it began.
    #[serde(default)]
    pub makers: Vec<i32>,
}

impl Recorder for WaveTrace {
    type Parameters = Parameters;
    /// Where the trace is, and vmeter's own threads in it; or why there is none.
    type Raw = Result<(PathBuf, Vec<i32>), String>;
    const NAME: &'static str = NAME;

    /// Nothing is attached: who starts the wave records it.
    fn live(&self, _: &Context<'_>) -> Option<Box<dyn Live>> {
        None
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        parameters: Parameters,
    ) -> Result<Self::Raw, SourceError> {
        match parameters.trouble {
            Some(trouble) => Ok(Err(trouble)),
            None => path_of(dir, source, 0).map(|path| Ok((path, parameters.makers))),
        }
    }

    fn decode(
        &self,
        _: &Self::Raw,
        _: &SourceRecord,
        _: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        Ok(Vec::new())
    }
}

/// The record of a trace that was saved as [`FILE`], or of why it was not.
pub fn record(trouble: Option<String>, makers: Vec<i32>) -> SourceRecord {
    let files: &[&str] = if trouble.is_none() { &[FILE] } else { &[] };
    recorder::record::<WaveTrace>(files, "CLOCK_MONOTONIC", 1_000, &Parameters { trouble, makers })
}
