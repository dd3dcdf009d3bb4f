//! The serial console, stamped on arrival, and the ready point on it.

use super::firmware::ARRIVAL_ERROR_NS;
use super::read_bounded;
use crate::end::EndEvidence;
use crate::guest_line::is_of_guest;
use crate::piped::Piped;
use crate::ready::ConsoleWatch;
use crate::recorder::{self, Context, Live, Recorder, Saved, SourceError};
use crate::stamped::{self, Dropped, Input, Line, Lines, Tap};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Event, EventKind, Moment, Ns, RunRecord};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "console";

pub(crate) const FILE: &str = "console.chunks";

/// The VMM's standard output: its guest's console.
pub struct Console;

impl Recorder for Console {
    type Parameters = Parameters;
    type Raw = Raw;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        // Nobody reads an unwatched console while it runs, but for a ready point on it, or what
        // the guest says of its memory.
        if context.watch == WatchLevel::None && context.ready.is_none() && !context.memory {
            return None;
        }
        Some(Box::new(Recording {
            piped: Piped::to(context.dir, FILE),
            watches: context.watches.clone(),
            ready: context.ready.clone(),
            guest: Arc::default(),
        }))
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        parameters: Parameters,
    ) -> Result<Raw, SourceError> {
        let saved = read_bounded(dir, source, 0)?;
        let bytes = stamped::chunks(&saved).map(|(_, bytes)| bytes.len() as u64).sum();
        Ok(Raw { said: Lines::of(&saved), bytes, parameters })
    }

    fn decode(
        &self,
        raw: &Raw,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let run = saved.run;
        let event = |at, what| Event {
            at,
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what,
        };
        // What a VMM wrote before it exited may be read later; one that runs on has not.
        let exit = run.moment(&Moment::VmmExit).filter(|_| !run.runs_on).unwrap_or(Ns::MAX);
        let in_run = |at: Ns| at.saturating_sub(run.exec_ns).min(exit);
        let said = raw.lines().iter().filter(|line| !line.text.is_empty());
        let mut events: Vec<Event> = said
            .map(|line| {
                let (start, end) = (in_run(line.start), in_run(line.end));
                let later = line.later.iter().map(|(from, at)| (*from, in_run(*at))).collect();
                let what = match vmeter_machine::backend::own_words(&line.text) {
                    Some((vmm, words)) => EventKind::Note { text: format!("{vmm}: {words}") },
                    None => EventKind::ConsoleLine { text: line.text.clone(), end, later },
                };
                event(start, what)
            })
            .collect();
        let cleared = raw.said.cleared.iter();
        let cleared = cleared.map(|at| event(in_run(*at), EventKind::ScreenCleared));
        events.extend(cleared);
        // What was not kept was printed all the same.
        let dropped = raw.parameters.cut.dropped_bytes.unwrap_or(0);
        let value = raw.bytes.saturating_add(dropped);
        let count = EventKind::Count { name: "console_bytes".into(), value };
        events.push(event(run.total_ns, count));
        let ready = raw.parameters.ready_line.clone();
        if let (Some(text), Some(at)) = (ready, run.moment(&Moment::Ready)) {
            events.push(event(at, EventKind::ReadyLine { text }));
        }
        Ok(events)
    }

    fn clues(&self, raw: &Raw, clues: &mut EndEvidence) {
        clues.console.extend(raw.lines().iter().map(|line| line.text.clone()));
        clues.cut.extend(raw.said.said("the console"));
        clues.cut.extend(raw.parameters.cut.said("the console"));
    }
}

/// What is known of the console besides its bytes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Parameters {
    #[serde(flatten)]
    cut: Dropped,
    /// The line in which the ready point was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ready_line: Option<String>,
}

/// The line in which a run's ready point was seen, as far as it had arrived.
pub fn ready_line(run: &RunRecord) -> Option<&str> {
    run.sources.iter().find(|source| source.name == NAME)?.parameters.get("ready_line")?.as_str()
}

/// The console's lines.
#[derive(Debug)]
pub struct Raw {
    said: Lines,
    bytes: u64,
    parameters: Parameters,
}

impl Raw {
    /// Its lines, in order.
    pub(super) fn lines(&self) -> &[Line] {
        &self.said.lines
    }
}

struct Recording {
    piped: Piped,
    watches: Vec<Arc<ConsoleWatch>>,
    ready: Option<Arc<ConsoleWatch>>,
    /// True once a line was a guest's.
    guest: Arc<AtomicBool>,
}

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        let mut watches = self.watches.clone();
        watches.extend(self.ready.clone());
        let mut cutter = stamped::LineCutter::default();
        let guest = self.guest.clone();
        let tap: Tap = Box::new(move |at, bytes| {
            cutter.push(at, bytes);
            for line in cutter.take() {
                watches.iter().for_each(|watch| watch.see(&line));
                if !guest.load(Ordering::Relaxed) && is_of_guest(&line.text) {
                    guest.store(true, Ordering::Relaxed);
                }
            }
            // A login prompt has no line end.
            let open = cutter.open_line();
            watches.iter().for_each(|watch| watch.see(&open));
        });
        plan.stdout = Some(self.piped.begin(Some(tap), None)?);
        Ok(())
    }

    fn has_seen_guest(&self) -> bool {
        self.guest.load(Ordering::Relaxed)
    }

    fn input(&self) -> Option<Input> {
        self.piped.input()
    }

    fn shared(&mut self, apart: bool) {
        if apart {
            self.input().iter().for_each(Input::shut_pipe);
        } else {
            let all = self.watches.iter().chain(&self.ready);
            all.for_each(|watch| watch.doubt());
        }
    }

    fn ended(&mut self) -> Result<(), SourceError> {
        self.piped.end()
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let Some(totals) = self.piped.finish()? else {
            return Ok(None);
        };
        let parameters = Parameters {
            cut: totals.into(),
            ready_line: self.ready.and_then(|watch| watch.reached()).map(|(_, line)| line),
        };
        let clock = "stamped on arrival";
        Ok(Some(recorder::record::<Console>(&[FILE], clock, ARRIVAL_ERROR_NS, &parameters)))
    }
}
