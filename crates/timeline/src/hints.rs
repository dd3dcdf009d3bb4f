//! How a run seems to have ended, by what its guest said.

use crate::input::Seen;
use crate::lines;
use crate::patterns::Means;
use vmeter_model::{Event, EventKind, Ns};

/// What the guest's own words say of the end of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// The kernel's first panic line, and when.
    pub panic: Option<(Ns, String)>,
    /// When the guest told the machine to power off, halt or restart.
    pub power_down: Option<Ns>,
    /// When the guest said that it was ready.
    pub ready: Option<Ns>,
}

/// Looks for a panic, a power-off and the ready point, whatever the outcome on record.
pub fn hints(events: &[Event]) -> Hints {
    let total = events.iter().map(|e| e.at).max().unwrap_or(0).max(0);
    let mut seen: Vec<Seen<'_>> = events
        .iter()
        .map(|e| Seen {
            at: e.at.clamp(0, total),
            error: e.error_ns.max(0),
            source: &e.source,
            insns: None,
            what: &e.what,
        })
        .collect();
    seen.sort_by_key(|s| s.at);
    let lines = lines::lines(&seen, total);
    let hits = lines::hits(&lines);
    let first = |what: &EventKind| seen.iter().find(|s| s.what == what).map(|s| s.at);
    let line = |means| hits.iter().find(|h| h.means == means);
    Hints {
        panic: line(Means::Panic).map(|h| (h.at, h.text.to_owned())),
        power_down: line(Means::PowerOff).map(|h| h.at).or(first(&EventKind::PowerOff)),
        ready: first(&EventKind::Ready),
    }
}
