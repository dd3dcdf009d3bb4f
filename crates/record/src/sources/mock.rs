//! The recording of a machine that was played from a script.

use crate::source::{Context, Live, Source, SourceError};
use std::path::Path;
use vmeter_machine::backends::mock;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Event, RunRecord};

/// A played recording: its file holds the events themselves.
pub struct Mock;

impl Source for Mock {
    fn name(&self) -> &'static str {
        mock::SOURCE
    }

    /// Nothing is attached: the mock writes its recording itself.
    fn live(&self, _context: &Context<'_>) -> Option<Box<dyn Live>> {
        None
    }

    fn decode(
        &self,
        dir: &Path,
        _run: &RunRecord,
        source: &SourceRecord,
    ) -> Result<Vec<Event>, SourceError> {
        mock::events(dir, source)
            .map_err(|error| SourceError::Io { path: dir.join(&source.name), error })
    }
}
