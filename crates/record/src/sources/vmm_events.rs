//! What a VMM reports of itself in JSON: cloud-hypervisor's event monitor.
//!
//! `--event-monitor fd=N` has it write an object for each event, one behind the other: a
//! `timestamp` counted from its own start, a `source`, an `event` and `properties`
//! (event_monitor/src/lib.rs). A thread of its own writes them, so that the arrival of the one
//! that was quickest tells when it began to count; the others follow from their stamps.

use super::firmware::ARRIVAL_ERROR_NS;
use super::read_bounded;
use crate::end::EndEvidence;
use crate::piped::Piped;
use crate::recorder::{Context, Live, Recorder, Saved, SourceError};
use crate::stamped::{self, Dropped};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::{Origin, SourceRecord, WatchLevel};
use vmeter_model::{Event, EventKind, Ns};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "vmm-events";

const FILE: &str = "vmm-events.chunks";
/// More than a VMM reports of any boot.
const MOST: usize = 1 << 12;
/// No event is longer.
const LONGEST: usize = 64 << 10;

/// A VMM's event monitor.
pub struct VmmEvents;

/// An event as it is written.
#[derive(Debug, Clone, Deserialize)]
struct Reported {
    timestamp: Since,
    source: String,
    event: String,
    #[serde(default)]
    properties: Option<serde_json::Map<String, Value>>,
}

/// A `std::time::Duration` as serde writes it.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Since {
    secs: u32,
    nanos: u32,
}

/// Events and when they arrived, `CLOCK_MONOTONIC` ns, and what of them was not kept.
#[derive(Debug)]
pub struct Raw {
    events: Vec<(Ns, Reported)>,
    cut: Dropped,
}

impl Recorder for VmmEvents {
    type Parameters = Dropped;
    type Raw = Raw;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        (context.watch != WatchLevel::None && context.vmm.event_monitor)
            .then(|| Box::new(Recording(Piped::to(context.dir, FILE))) as _)
    }

    fn read(&self, dir: &Path, source: &SourceRecord, cut: Dropped) -> Result<Raw, SourceError> {
        let saved = read_bounded(dir, source, 0)?;
        Ok(Raw { events: reported(stamped::chunks(&saved)), cut })
    }

    fn decode(
        &self,
        raw: &Raw,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let Some(begun) = raw.events.iter().map(|(at, e)| at.saturating_sub(e.since())).min()
        else {
            return Ok(Vec::new());
        };
        let restored = saved.run.origin == Origin::Restore;
        let what = |reported: &Reported| match (&*reported.source, &*reported.event) {
            ("vm", "resumed") if restored => EventKind::RunState { state: "running".into() },
            _ => EventKind::Note { text: reported.text() },
        };
        let event = |(_, reported): &(Ns, Reported)| Event {
            at: begun.saturating_add(reported.since()).saturating_sub(saved.run.exec_ns),
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what: what(reported),
        };
        Ok(raw.events.iter().map(event).collect())
    }

    fn clues(&self, raw: &Raw, clues: &mut EndEvidence) {
        clues.cut.extend(raw.cut.said("the VMM's events"));
    }
}

impl Reported {
    fn since(&self) -> Ns {
        Ns::from(self.timestamp.secs) * 1_000_000_000 + Ns::from(self.timestamp.nanos)
    }

    fn text(&self) -> String {
        let mut text = format!("VMM: {} {}", self.source, self.event);
        for (name, value) in self.properties.iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.push_str(&format!(" {name}={value}"));
        }
        text
    }
}

/// The events of a stream in chunks, each with the arrival of its last byte.
fn reported<'a>(chunks: impl Iterator<Item = (Ns, &'a [u8])>) -> Vec<(Ns, Reported)> {
    let mut events = Vec::new();
    let mut pending: Vec<u8> = Vec::new();
    for (at, bytes) in chunks {
        pending.extend_from_slice(bytes);
        let mut stream = serde_json::Deserializer::from_slice(&pending).into_iter::<Value>();
        let mut broken = false;
        for value in &mut stream {
            match value.map(serde_json::from_value) {
                Ok(Ok(event)) if events.len() < MOST => events.push((at, event)),
                Ok(_) => {}
                Err(error) => {
                    broken = !error.is_eof();
                    // It would go on behind what is not there yet.
                    break;
                }
            }
        }
        let whole = stream.byte_offset();
        if broken || pending.len() - whole > LONGEST {
            pending.clear();
        } else {
            pending.drain(..whole);
        }
    }
    events
}

struct Recording(Piped);

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        let taken = plan.argv.iter().any(|a| a.to_string_lossy().starts_with("--event-monitor"));
        if !plan.may_inject || taken {
            return Ok(());
        }
        let fd = plan.pass_fd(self.0.begin(None, None)?);
        plan.inject(&["--event-monitor", &format!("fd={fd}")]);
        Ok(())
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let clock = "the VMM's own clock, aligned by the event that arrived with the least delay";
        self.0.source::<VmmEvents>(FILE, clock, ARRIVAL_ERROR_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
  "timestamp": { "secs": 0, "nanos": 2000 }, "source": "vmm", "event": "starting",
  "properties": null
}
{ "timestamp": { "secs": 1, "nanos": 5 }, "source": "virtio-device", "event": "activated",
  "properties": { "id": "_disk0" } }"#;

    #[test]
    fn events_in_chunks() {
        let bytes = TEXT.as_bytes();
        for cut in 0..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let events = reported([(10_000, first), (30_000, second)].into_iter());
            let texts: Vec<String> = events.iter().map(|(_, e)| e.text()).collect();
            let expected = ["VMM: vmm starting", "VMM: virtio-device activated id=_disk0"];
            assert_eq!(texts, expected, "cut at {cut}");
            assert_eq!(events[1].0 - events[1].1.since(), 30_000 - 1_000_000_005);
        }
        for broken in ["", "{", "[1, 2]", "}}}", "{\"timestamp\": {\"secs\": -1}}", "nul"] {
            assert!(reported([(1, broken.as_bytes())].into_iter()).is_empty(), "{broken}");
        }
    }
}
