//! `vmeter dirty` as an experiment: a session begins or is gone on with, and comes to a
//! result.

use crate::analysis;
use crate::config::{CliOptions, Config, SavedConfig};
use crate::harness::{self, none_of};
use crate::layout::Layout;
use crate::memory;
use crate::plan::{Orders, PlannedPass};
use crate::report::DirtyReport;
use crate::result::DirtyResult;
use crate::run::Passes;
use crate::source::label;
use crate::workload::Workload;
use crate::DirtyError;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_model::run::{RunHead, SessionMachine, SessionRecord};
use vmeter_render::Report;
use vmeter_session::failure::{class, Class};
use vmeter_session::{carry_out, host, pinned, Measurement, ResumeOverrides};
use vmeter_session::{Answer, Experiment, RunOptions, Session, Shardable, Views, Watch};

const KIND: &str = "dirty";

/// What to measure, and how often; `runs` are passes.
#[derive(Debug)]
pub struct DirtyOptions {
    /// What was typed.
    pub given: CliOptions,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// Measures, saves, analyses.
///
/// # Errors
/// Options that can't be, or differ from those that the session was begun with; /dev/kvm is
/// missing or runs no guest code natively; no tracker is to be had; the guest died; an
/// interruption (finished runs are saved).
pub fn measure(options: &DirtyOptions, watch: &mut Watch<'_>) -> Result<DirtyResult> {
    analysis::result(&carry_out(KIND, &options.runs, options, watch)?)
}

impl Measurement for DirtyOptions {
    type Planned = PlannedPass;
    type Config = SavedConfig;
    type Runner = Passes;

    fn config(&self) -> Result<SavedConfig> {
        let asked = Config::new(&self.given, self.runs.runs).map_err(DirtyError::classified)?;
        let budget_bytes = asked.memory.map_or_else(memory::budget, |mib| mib << 20);
        let layout = asked.fitted(budget_bytes).map_err(DirtyError::classified)?;
        if !asked.vms.is_empty() {
            asked.shared(budget_bytes).map_err(DirtyError::classified)?;
        }
        let skipped = harness::not_here(&asked).map_err(DirtyError::classified)?;
        let buffer_bytes = workload(&asked, &layout, 0).buffer_bytes();
        Ok(SavedConfig { asked, budget_bytes, buffer_bytes, skipped })
    }

    fn note_given(&self, begun: &SavedConfig, given: &mut ResumeOverrides) {
        given.fields(&self.given, &begun.asked);
        let fewer = self.runs.runs.filter(|runs| *runs < begun.asked.passes);
        given.option("--runs", fewer, begun.asked.passes);
    }

    fn grow(&self, begun: &mut SavedConfig) {
        begun.asked.passes = self.runs.runs.unwrap_or(begun.asked.passes);
    }

    fn prepare(
        &self,
        begun: &mut SavedConfig,
        record: &SessionRecord<PlannedPass>,
        _: &mut Watch<'_>,
    ) -> Result<(Vec<SessionMachine>, Passes)> {
        begun.asked.check().map_err(DirtyError::classified)?;
        let layout = begun.layout().map_err(DirtyError::classified)?;
        let load = workload(&begun.asked, &layout, record.seed);
        let machines = machines(begun, &layout, &host::describe());
        Ok((machines, Passes::new(begun.clone(), layout, load, pinned(record.pin.as_deref())?)))
    }

    /// Warm-ups, measured passes, fits, several guests at once; then the passes that a session
    /// was given more of.
    fn plan(
        &self,
        begun: &SavedConfig,
        passes: &Passes,
        record: &mut SessionRecord<PlannedPass>,
    ) -> Result<()> {
        let planned = record.plan.iter().filter_map(PlannedPass::measured).max();
        let (orders, asked) = (guests(begun, record.seed), &begun.asked);
        if let Some(last) = planned {
            record.plan.extend(orders.passes(last + 1..asked.passes, false));
            return Ok(());
        }
        let mut plan = orders.passes(0..asked.warmup, true);
        plan.extend(orders.passes(0..asked.passes, false));
        if !asked.no_fit {
            plan.extend(orders.fits(passes.load().all().len()));
        }
        plan.extend(orders.together(&asked.vms, asked.passes));
        record.plan = plan;
        Ok(())
    }

    /// Makes the guests, which takes seconds. A tracker that only a guest shows not to work is left
    /// out, as long as no run was finished.
    fn start(
        &self,
        begun: &mut SavedConfig,
        passes: &mut Passes,
        session: &mut Session<PlannedPass>,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let finished = session.finished_as::<RunHead>()?.0.len();
        if finished >= session.record.plan.len() {
            return Ok(());
        }
        let made = passes.make_guests(session.record.seed, watch);
        let lost = made.map_err(DirtyError::classified).inspect_err(|error| {
            if class(error) != Class::Interrupted {
                session.abandon();
            }
        })?;
        if lost.is_empty() {
            return Ok(());
        }
        if finished > 0 {
            return Err(none_of(&lost).classified());
        }
        begun.skipped.extend(lost);
        session.record.machines = machines(begun, passes.layout(), &session.record.host);
        session.record.plan.clear();
        session.record.asked = serde_json::to_value(&*begun)?;
        self.plan(begun, passes, &mut session.record)?;
        session.save()
    }
}

/// What the guests of a session write to, and where.
fn workload(asked: &Config, layout: &Layout, seed: u64) -> Workload {
    let bytes = asked.buffer_bytes(layout.scale);
    Workload::new(asked.workload, layout, bytes, asked.share(), seed)
}

fn guests(begun: &SavedConfig, seed: u64) -> Orders {
    Orders { guests: begun.trackers().len() + 1, seed }
}

/// The untracked guest, and one for each tracker.
fn machines(
    begun: &SavedConfig,
    layout: &Layout,
    host: &BTreeMap<String, serde_json::Value>,
) -> Vec<SessionMachine> {
    let asked = &begun.asked;
    let kernel = host.get("kernel").and_then(|kernel| kernel.as_str());
    let machine = |label: &str| SessionMachine {
        label: label.to_owned(),
        provenance: kernel.map(|k| ("kernel".to_owned(), k.to_owned())).into_iter().collect(),
        parameters: [
            ("tracker", label.to_owned()),
            ("workload", asked.workload.word().to_owned()),
            ("buffer_bytes", begun.buffer_bytes.to_string()),
            ("memory_bytes", layout.bytes().to_string()),
            ("ring", asked.ring.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
        ..SessionMachine::default()
    };
    let trackers = begun.trackers().into_iter().map(Some);
    std::iter::once(None).chain(trackers).map(|tracker| machine(label(tracker))).collect()
}

/// The kind `dirty`.
#[derive(Debug)]
pub struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(analysis::result(&Session::open(dir)?)?))
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err("the session measures its trackers in turn on the memory of one host, so vmeter cannot \
            split the session into shards")
    }

    fn boots(&self) -> Result<(), &'static str> {
        Err("its runs are not boots; in each run, a test guest writes to guest memory; to compare \
            two such sessions, export both as JSON")
    }
}

impl Answer for DirtyResult {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(DirtyReport::new(self))
    }

    fn failure(&self) -> Option<String> {
        let differ = self.checked_bits > 0 && !self.verified;
        differ.then(|| "a tracker's bits differ from the pages that the guest wrote".to_owned())
    }
}
