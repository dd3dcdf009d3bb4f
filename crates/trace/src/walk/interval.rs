//! Intervals: where they begin, and how long they take as far as that is known.

use crate::event::{Context, Event};

/// An interval so many medians long, of a time when not all CPUs are recorded, is rather two
/// whose end and begin are missing.
pub const IMPLAUSIBLE: f64 = 100.0;
/// The longest intervals of a kind that are kept to be judged, or shown, at the end.
pub const LONGEST: usize = 8;

/// When and where an event happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Stamp, ticks.
    pub ts: u64,
    /// CPU, or [`crate::NO_CPU`].
    pub cpu: u32,
    /// Thread.
    pub tid: i32,
    /// What the CPU did, as far as the event says.
    pub context: Context,
}

impl At {
    /// Of an event.
    #[inline]
    pub fn of(event: &Event<'_>) -> At {
        At { ts: event.ts, cpu: event.cpu, tid: event.tid, context: event.context() }
    }
}

/// An interval that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// When, ticks.
    pub start: u64,
    /// CPU it began on.
    pub cpu: u32,
}

impl Open {
    #[inline]
    pub(super) fn at(at: &At) -> Open {
        Open { start: at.ts, cpu: at.cpu }
    }
}

/// How long something took, as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// Ticks.
    Ticks(u64),
    /// Its begin and its end are there, but maybe of two: the trace's oldest events were
    /// overwritten.
    Doubtful {
        /// From the one to the other.
        ticks: u64,
        /// Stamp of its begin.
        start: u64,
        /// Thread.
        tid: i32,
    },
    /// Events were lost in between.
    Cut,
    /// Its begin or its end was not seen.
    Unknown,
}

impl From<Option<u64>> for Took {
    fn from(ticks: Option<u64>) -> Took {
        ticks.map_or(Took::Unknown, Took::Ticks)
    }
}

impl Took {
    /// An equal share of it, for each of `count`.
    pub fn shared(self, count: usize) -> Took {
        let count = count.max(1) as u64;
        match self {
            Took::Ticks(ticks) => Took::Ticks(ticks / count),
            Took::Doubtful { ticks, start, tid } => {
                Took::Doubtful { ticks: ticks / count, start, tid }
            }
            other => other,
        }
    }
}
