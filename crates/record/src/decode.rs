//! A saved run's events, from all its sources, on its own clock.

use crate::recorder::Saved;
use crate::sources::{self, guest_ftrace, guest_printk, guest_units, kvm_trace};
use std::collections::BTreeSet;
use std::path::Path;
use vmeter_model::run::Origin;
use vmeter_model::{Event, EventKind, Moment, Ns, RunRecord};

/// Decodes every source of a run. The events are in order of time; what could
/// not be decoded comes back as warnings, in words for the user.
pub fn events(dir: &Path, run: &RunRecord) -> (Vec<Event>, Vec<String>) {
    let saved = Saved::new(dir, run);
    let mut warnings = Vec::new();
    let mut events = process_events(run, &mut warnings);
    for source in 0..run.sources.len() {
        decode(&saved, source, &mut events, &mut warnings);
    }
    for recorder in sources::all() {
        recorder.refine_events(&saved, &mut events);
    }
    if let Some(at) = kvm_trace::went_on(&saved) {
        leave_out_before(at, &mut events);
        if run.origin == Origin::Restore {
            events.push(runs(at));
        } else {
            warnings.push(RESTORED.to_owned());
        }
    }
    events.sort_by_key(|e| e.at);
    (events, warnings)
}

/// What is in a guest's RAM.
const IN_RAM: [&str; 3] = [guest_ftrace::NAME, guest_printk::NAME, guest_units::NAME];

/// Its VMM need not have been told so on its command line.
const RESTORED: &str =
    "this is no boot: the guest was restored from a snapshot, and its kernel ran before the VMM \
     started. vmeter left out what the kernel logged and traced before that start";

/// By its first exit, a guest that is known to be restored goes on.
fn runs(at: Ns) -> Event {
    let what = EventKind::RunState { state: "running".into() };
    Event { at, error_ns: EXIT_NS, source: kvm_trace::NAME.into(), insns: None, what }
}

/// The first exit comes so long after the first instruction, if not at once, ns.
const EXIT_NS: Ns = 1_000_000;

/// Leaves out what the guest did before it went on, and the end of what it had begun then.
fn leave_out_before(at: Ns, events: &mut Vec<Event>) {
    let in_ram = |event: &Event| IN_RAM.contains(&&*event.source);
    events.retain(|event| event.at >= at || !in_ram(event));
    let begun: BTreeSet<String> = events.iter().filter_map(|e| begins(&e.what)).collect();
    events.retain(|e| !in_ram(e) || ends(&e.what).is_none_or(|what| begun.contains(what)));
}

fn begins(what: &EventKind) -> Option<String> {
    match what {
        EventKind::StepStart { step } => Some(step.clone()),
        EventKind::InitcallStart { function, .. } => Some(function.clone()),
        _ => None,
    }
}

fn ends(what: &EventKind) -> Option<&str> {
    match what {
        EventKind::StepEnd { step } => Some(step),
        EventKind::InitcallEnd { function, .. } => Some(function),
        _ => None,
    }
}

/// The events of one source alone, as [`events`].
pub fn of_source(dir: &Path, run: &RunRecord, name: &str) -> (Vec<Event>, Vec<String>) {
    let saved = Saved::new(dir, run);
    let (mut events, mut warnings) = (Vec::new(), Vec::new());
    for source in (0..run.sources.len()).filter(|n| run.sources[*n].name == name) {
        decode(&saved, source, &mut events, &mut warnings);
    }
    (events, warnings)
}

fn decode(saved: &Saved<'_>, source: usize, events: &mut Vec<Event>, warnings: &mut Vec<String>) {
    let name = &saved.run.sources[source].name;
    let Some(recorder) = sources::all().iter().find(|r| r.name() == name) else {
        warnings.push(format!("source {name:?} is unknown to this vmeter: left out"));
        return;
    };
    match recorder.decode(source, saved) {
        Ok(decoded) => {
            // Virtual time does not go on while the VMM is held.
            let on_clock = Some(saved.run.on_clock()).filter(|_| !saved.run.icount);
            let placed = |event: Event| match &on_clock {
                Some(on_clock) => Event { at: on_clock(event.at), ..event },
                None => event,
            };
            events.extend(decoded.into_iter().map(placed));
        }
        Err(error) => warnings.push(format!("source {name} left out: {error}")),
    }
}

/// The moments of the VMM's process, which every run has. Those of another version
/// are described in `warnings`.
fn process_events(run: &RunRecord, warnings: &mut Vec<String>) -> Vec<Event> {
    let mut events = Vec::with_capacity(run.moments.len());
    for (at, moment) in &run.moments {
        let what = match moment {
            Moment::WrapperExec => EventKind::WrapperExec,
            Moment::WrapperResumed => EventKind::WrapperResumed,
            Moment::VmmExec => EventKind::VmmExec,
            Moment::VmmEntry => EventKind::VmmEntry,
            Moment::VmmMain => EventKind::VmmMain,
            Moment::VmmExiting => EventKind::VmmExiting,
            Moment::VmmKilled => EventKind::VmmKilled,
            Moment::VmmExit => EventKind::VmmExit,
            Moment::Ready => EventKind::Ready,
            // Nothing of a wrapper's is told apart but its exec.
            Moment::WrapperEntry | Moment::WrapperMain => continue,
            // The timeline has these from the run itself.
            Moment::VmeterHold | Moment::VmeterRelease => continue,
            // QEMU's trace has it as an event of its own.
            Moment::VmStart => continue,
            Moment::Unknown(name) => {
                warnings.push(format!(
                    "this vmeter does not know the moment {name:?} and leaves it out; a newer \
                     vmeter can read the moment"
                ));
                continue;
            }
        };
        events.push(Event { at: *at, error_ns: 0, source: "process".into(), insns: None, what });
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder;
    use crate::sources::console::Console;

    /// A VMM goes on after vmeter looked into it at the end of its first vCPU: what it says then
    /// has been stamped by a clock that went on meanwhile.
    #[test]
    fn what_came_after_the_look_is_on_the_runs_clock() {
        let dir = tempfile::tempdir().expect("a folder");
        let chunks = b"vmeter-chunks 1\n1010 6\nfirst\n\n1150 5\nlate\n\n1190 5\nlast\n\n";
        std::fs::write(dir.path().join("console.chunks"), chunks).expect("written");
        let source = recorder::record::<Console>(&["console.chunks"], "c", 1, &Default::default());
        let run = RunRecord {
            exec_ns: 1_000,
            total_ns: 100,
            looked_ns: 100,
            sources: vec![source],
            moments: vec![
                (5, Moment::VmeterHold),
                (8, Moment::VmeterRelease),
                (60, Moment::VmeterHold),
                (60, Moment::VmeterRelease),
            ],
            ..RunRecord::default()
        };
        let lines = |run: &RunRecord| -> Vec<_> {
            let (events, _) = super::events(dir.path(), run);
            let lines =
                events.into_iter().filter(|e| matches!(e.what, EventKind::ConsoleLine { .. }));
            lines.map(|e| e.at).collect()
        };
        assert_eq!(lines(&run), [10, 60, 90], "while it was looked into, and after");
    }

    #[test]
    fn what_a_guest_did_before_it_was_restored_is_no_part_of_the_run() {
        let event = |at, source: &str| Event {
            at,
            error_ns: 0,
            source: source.into(),
            insns: None,
            what: EventKind::PowerOff,
        };
        let sources = ["guest-printk", "guest-ftrace", "guest-units", "console"];
        let mut events: Vec<Event> =
            sources.iter().flat_map(|source| [event(5, source), event(15, source)]).collect();
        let step = |at, what| Event { what, ..event(at, "guest-ftrace") };
        let (run, sync) = ("run /x".to_owned(), "sync".to_owned());
        events.push(step(5, EventKind::StepStart { step: run.clone() }));
        events.push(step(16, EventKind::StepEnd { step: run }));
        let whole = [
            step(17, EventKind::StepStart { step: sync.clone() }),
            step(18, EventKind::StepEnd { step: sync }),
        ];
        events.extend(whole.clone());
        leave_out_before(10, &mut events);
        assert_eq!(events.split_off(events.len() - 2), whole);
        let kept: Vec<_> = events.iter().map(|e| (e.at, &*e.source)).collect();
        let after = sources.map(|source| (15, source));
        assert_eq!(kept, [after[0], after[1], after[2], (5, "console"), after[3]]);
    }

    #[test]
    fn a_moment_of_another_version_is_told_and_the_rest_is_read() {
        let run = RunRecord {
            total_ns: 9,
            moments: vec![(1, "vmm-exec".into()), (2, "vmm-frozen".into()), (9, "vmm-exit".into())],
            ..RunRecord::default()
        };
        let json = serde_json::to_string(&run).expect("JSON");
        let run: RunRecord = serde_json::from_str(&json).expect("read");
        let (events, warnings) = super::events(Path::new("/nonexistent"), &run);
        let whats: Vec<_> = events.into_iter().map(|e| e.what).collect();
        assert_eq!(whats, [EventKind::VmmExec, EventKind::VmmExit]);
        assert!(warnings[0].contains("vmm-frozen"), "{warnings:?}");
    }
}
