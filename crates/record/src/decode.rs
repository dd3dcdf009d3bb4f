//! A saved run's events, from all its sources, on its own clock.

use crate::sources;
use std::path::Path;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Event, RunRecord, What};

/// Decodes every source of a run. The events are in order of time; what could
/// not be decoded comes back as warnings, in words for the user.
pub fn events(dir: &Path, run: &RunRecord) -> (Vec<Event>, Vec<String>) {
    let mut events = process_events(run);
    let mut warnings = Vec::new();
    for source in &run.sources {
        decode(dir, run, source, &mut events, &mut warnings);
    }
    sources::tcg_plugin::count(dir, run, &mut events);
    events.sort_by_key(|e| e.at);
    (events, warnings)
}

/// The events of one source alone, as [`events`].
pub fn of_source(dir: &Path, run: &RunRecord, name: &str) -> (Vec<Event>, Vec<String>) {
    let (mut events, mut warnings) = (Vec::new(), Vec::new());
    for source in run.sources.iter().filter(|s| s.name == name) {
        decode(dir, run, source, &mut events, &mut warnings);
    }
    (events, warnings)
}

fn decode(
    dir: &Path,
    run: &RunRecord,
    source: &SourceRecord,
    events: &mut Vec<Event>,
    warnings: &mut Vec<String>,
) {
    let name = &source.name;
    let Some(decoder) = sources::all().into_iter().find(|s| s.name() == name) else {
        warnings.push(format!("source {name:?} is unknown to this vmeter: left out"));
        return;
    };
    match decoder.decode(dir, run, source) {
        Ok(decoded) => events.extend(decoded),
        Err(error) => warnings.push(format!("source {name} left out: {error}")),
    }
}

/// The moments of the VMM's process, which every run has.
fn process_events(run: &RunRecord) -> Vec<Event> {
    run.moments
        .iter()
        .filter_map(|(at, name)| {
            let what = match name.as_str() {
                "wrapper-exec" => What::WrapperExec,
                "vmm-exec" => What::VmmExec,
                "vmm-entry" => What::VmmEntry,
                "vmm-main" => What::VmmMain,
                "vmm-exiting" => What::VmmExiting,
                "wrapper-resumed" => What::WrapperResumed,
                "vmm-exit" => What::VmmExit,
                "vmm-killed" => What::VmmKilled,
                "ready" => What::Ready,
                _ => return None,
            };
            Some(Event { at: *at, error_ns: 0, source: "process".into(), insns: None, what })
        })
        .collect()
}
