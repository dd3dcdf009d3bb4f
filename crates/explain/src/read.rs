//! A file whose events have all come: what is left are names and losses.

use crate::log_gaps::LogGaps;
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::{Decoder, NameId};
use vmeter_trace::{EventReader, Losses};

/// A file that was read to its end.
pub struct Read {
    /// As it was named.
    pub file: String,
    /// Its format.
    pub format: &'static str,
    /// Its clock.
    pub clock: String,
    /// Events read.
    pub events: u64,
    /// What is missing.
    pub losses: Losses,
    pub(crate) decoder: Decoder,
    pub(crate) names: FastMap<i32, Box<str>>,
    pub(crate) reader: Box<dyn EventReader>,
    pub(crate) stands: Option<LogGaps>,
}

impl Read {
    /// The name behind a number.
    pub fn name(&self, id: NameId) -> &str {
        self.decoder.names().name(id)
    }

    /// A thread's name.
    pub fn thread_name(&self, tid: i32) -> &str {
        let own = self.names.get(&tid).map(|name| &**name);
        own.or_else(|| self.reader.thread_name(tid)).unwrap_or("")
    }

    /// Events known to be missing.
    pub fn lost(&self) -> u64 {
        self.losses.lost_events.saturating_add(self.losses.overwritten)
    }
}
