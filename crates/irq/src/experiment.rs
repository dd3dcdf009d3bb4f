//! A session: begun or gone on with, carried out, analysed.

use crate::analysis::result;
use crate::committer::Committer;
use crate::config::{Config, Found, SavedConfig};
use crate::plan::{plan, IrqPlanned};
use crate::report::IrqReport;
use crate::result::{IrqDelivery, IrqResult};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_model::run::{SessionMachine, SessionRecord};
use vmeter_render::Report;
use vmeter_session::{carry_out, host, pinned, Measurement, ResumeOverrides};
use vmeter_session::{Answer, Experiment, RunOptions, Session, Shardable, Views, Watch};

const KIND: &str = "irq";

/// What to measure, and how often.
#[derive(Debug)]
pub struct IrqOptions {
    /// What is asked, defaults filled in.
    pub asked: Config,
    /// The options that were given, under the names that [`Config`] has on disk.
    pub given: serde_json::Value,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// Measures, saves, analyses.
///
/// # Errors
/// Options that contradict each other or are out of range; what this host cannot run; an
/// interruption.
pub fn measure(options: &IrqOptions, watch: &mut Watch<'_>) -> Result<IrqResult> {
    result(&carry_out(KIND, &options.runs, options, watch)?)
}

impl Measurement for IrqOptions {
    type Planned = IrqPlanned;
    type Config = SavedConfig;
    type Runner = Committer;

    fn config(&self) -> Result<SavedConfig> {
        Ok(SavedConfig { asked: self.asked.clone(), found: Found::default() })
    }

    fn note_given(&self, begun: &SavedConfig, given: &mut ResumeOverrides) {
        given.fields(&self.given, begun);
    }

    /// The plan ends with the traces and samples of a fixed number of rounds.
    fn grow(&self, _: &mut SavedConfig) {}

    fn prepare(
        &self,
        kept: &mut SavedConfig,
        record: &SessionRecord<IrqPlanned>,
        _: &mut Watch<'_>,
    ) -> Result<(Vec<SessionMachine>, Committer)> {
        let begun = !record.machines.is_empty();
        if begun {
            kept.check().map_err(|error| error.classified())?;
        }
        let machines =
            |kept: &SavedConfig| plan(kept, record.seed, &provenance(&host::describe())).0;
        let pin = pinned(record.pin.as_deref())?;
        let pin = (!pin.is_empty()).then(|| pin.into_iter().collect());
        let before = begun.then(|| kept.found.clone());
        let started = Committer::start(kept.asked.clone(), pin, before);
        let (committer, found) = started.map_err(|error| error.classified())?;
        if !begun {
            kept.found = found;
        }
        Ok((machines(kept), committer))
    }

    fn plan(
        &self,
        kept: &SavedConfig,
        _: &Committer,
        record: &mut SessionRecord<IrqPlanned>,
    ) -> Result<()> {
        record.plan = plan(kept, record.seed, &provenance(&record.host)).1;
        Ok(())
    }
}

/// What is measured is the host's kernel.
fn provenance(host: &BTreeMap<String, serde_json::Value>) -> BTreeMap<String, String> {
    let kernel = host.get("kernel").and_then(|kernel| kernel.as_str());
    kernel.map(|kernel| ("kernel".to_owned(), kernel.to_owned())).into_iter().collect()
}

/// The kind `irq`.
#[derive(Debug)]
pub struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(result(&Session::open(dir)?)?))
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err("it compares its strategies in turn on one host, so vmeter cannot split it into \
            shards")
    }

    fn boots(&self) -> Result<(), &'static str> {
        Err("its runs are not boots; one session of `vmeter irq` already compares the strategies")
    }
}

impl Answer for IrqResult {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(IrqReport::new(self))
    }

    fn failure(&self) -> Option<String> {
        let lost = |d: &IrqDelivery| d.arrived != d.raised || d.stray > 0;
        let any = self.totals.iter().filter_map(|total| total.delivery.as_ref()).any(lost);
        any.then(|| "interrupts were lost, or arrived at a wrong vector".to_owned())
    }
}
