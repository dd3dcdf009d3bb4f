//! The serial console, stamped on arrival, and the ready point on it.

use super::firmware::ARRIVAL_ERROR_NS;
use super::read_bounded;
use crate::ready::ConsoleWatch;
use crate::source::{Context, Live, Source, SourceError};
use crate::stamped::{self, Stamper, Tap};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Event, Moment, Ns, RunRecord, What};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "console";

const FILE: &str = "console.chunks";
/// Parameter: the line in which the ready point was seen.
const READY_LINE: &str = "ready_line";

/// The VMM's standard output: its guest's console.
pub struct Console;

impl Source for Console {
    fn name(&self) -> &'static str {
        NAME
    }

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        Some(Box::new(Recording {
            dir: context.dir.to_owned(),
            watches: context.watches.clone(),
            ready: context.ready.clone(),
            stamper: None,
        }))
    }

    fn decode(
        &self,
        dir: &Path,
        run: &RunRecord,
        source: &SourceRecord,
    ) -> Result<Vec<Event>, SourceError> {
        let saved = read_bounded(dir, source, 0)?;
        let bytes = stamped::chunks(&saved).map(|(_, bytes)| bytes.len() as u64).sum();
        let event = |at, what| Event {
            at,
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what,
        };
        let mut events: Vec<Event> = stamped::lines(&saved)
            .into_iter()
            .filter(|line| !line.text.is_empty())
            .map(|line| {
                let what = What::ConsoleLine { text: line.text, end: line.end - run.exec_ns };
                event(line.start - run.exec_ns, what)
            })
            .collect();
        let count = What::Count { name: "console_bytes".into(), value: bytes };
        events.push(event(run.total_ns, count));
        let ready = source.parameters.get(READY_LINE).and_then(Value::as_str);
        if let (Some(text), Some(at)) = (ready, run.moment(&Moment::Ready)) {
            events.push(event(at, What::ReadyLine { text: text.into() }));
        }
        Ok(events)
    }
}

struct Recording {
    dir: PathBuf,
    watches: Vec<Arc<ConsoleWatch>>,
    ready: Option<Arc<ConsoleWatch>>,
    stamper: Option<Stamper>,
}

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        let path = self.dir.join(FILE);
        let io = |error| SourceError::Io { path: path.clone(), error };
        let (read, write) = stamped::pipe().map_err(io)?;
        plan.stdout = Some(write);
        let mut watches = std::mem::take(&mut self.watches);
        watches.extend(self.ready.clone());
        let mut cutter = stamped::LineCutter::default();
        let tap: Tap = Box::new(move |at, bytes| {
            cutter.push(at, bytes);
            for line in cutter.take() {
                watches.iter().for_each(|watch| watch.see(line.start, &line.text));
            }
            // A login prompt has no line end.
            watches.iter().for_each(|watch| watch.see(at, &cutter.open_line()));
        });
        self.stamper = Some(Stamper::start(read, &path, Some(tap)).map_err(io)?);
        Ok(())
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let Some(stamper) = self.stamper else {
            return Ok(None);
        };
        let path = self.dir.join(FILE);
        let totals = stamper.finish().map_err(|error| SourceError::Io { path, error })?;
        let mut parameters = std::collections::BTreeMap::new();
        if totals.dropped > 0 {
            parameters.insert("dropped_bytes".into(), totals.dropped.into());
        }
        if let Some((_, line)) = self.ready.and_then(|watch| watch.reached()) {
            parameters.insert(READY_LINE.into(), line.into());
        }
        Ok(Some(SourceRecord {
            name: NAME.into(),
            files: vec![FILE.into()],
            clock: "stamped on arrival".into(),
            error_ns: ARRIVAL_ERROR_NS,
            parameters,
        }))
    }
}
