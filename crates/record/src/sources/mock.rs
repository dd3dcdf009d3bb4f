//! The recording of a machine that was played from a script.

use crate::recorder::{Context, Live, NoParameters, Recorder, Saved, SourceError};
use std::path::Path;
use vmeter_machine::backends::mock;
use vmeter_model::run::SourceRecord;
use vmeter_model::Event;

/// A played recording: its file holds the events themselves.
pub struct Mock;

impl Recorder for Mock {
    type Parameters = NoParameters;
    type Raw = Vec<Event>;
    const NAME: &'static str = mock::SOURCE;

    /// Nothing is attached: the mock writes its recording itself.
    fn live(&self, _context: &Context<'_>) -> Option<Box<dyn Live>> {
        None
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        _: NoParameters,
    ) -> Result<Vec<Event>, SourceError> {
        mock::events(dir, source)
            .map_err(|error| SourceError::Io { path: dir.join(&source.name), error })
    }

    fn decode(
        &self,
        events: &Vec<Event>,
        _: &SourceRecord,
        _: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        Ok(events.clone())
    }
}
