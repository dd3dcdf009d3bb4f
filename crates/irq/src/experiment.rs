//! A session: begun or gone on with, carried out, analysed.

use crate::analysis::result;
use crate::asked::{Asked, Kept};
use crate::committer::Committer;
use crate::plan::{plan, IrqPlanned};
use crate::report::IrqReport;
use crate::result::{IrqDelivery, IrqResult};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_model::run::SessionRecord;
use vmeter_render::Report;
use vmeter_session::{begin, execute, identity, record, resumed, RunOptions, Session, Watch};
use vmeter_session::{Answer, Cut, Experiment, Views};

const KIND: &str = "irq";

/// Measures, saves, analyses. A session that is gone on with knows what was asked; `given` is
/// what was given all the same, under the names that [`Asked`] has on disk.
///
/// # Errors
/// A question that makes no sense, a host that can't do it, an interruption.
pub fn measure(
    asked: &Asked,
    given: &impl Serialize,
    runs: &RunOptions,
    watch: &mut Watch<'_>,
) -> Result<IrqResult> {
    let saved = resumed(KIND, runs, watch, |session: &Session<IrqPlanned>, options| {
        options.fields(given, &session.record.asked);
        Ok(())
    })?;
    let (asked, before, pin) = match &saved {
        None => (asked.clone(), None, runs.pinned()?),
        Some(session) => {
            let kept: Kept = session.asked()?;
            kept.check().map_err(|error| error.classified())?;
            let now = plan(&kept, session.record.seed, &provenance(&record(KIND, runs))).0;
            identity::check_provenance(&session.dir, &session.record, &now)?;
            let Kept { asked, found } = kept;
            let pin =
                RunOptions { pin: session.record.pin.clone(), ..RunOptions::default() }.pinned()?;
            (asked, Some(found), pin)
        }
    };
    let pin = (!pin.is_empty()).then(|| pin.into_iter().collect());
    // The host is asked before the folder is made: what it can't do leaves none behind.
    let started = Committer::start(asked.clone(), pin, before);
    let (mut committer, found) = started.map_err(|error| error.classified())?;
    let session = match saved {
        Some(session) => session,
        None => {
            let kept = Kept { asked, found };
            let record = record(KIND, runs);
            let (machines, plan) = plan(&kept, record.seed, &provenance(&record));
            let asked = serde_json::to_value(&kept)?;
            begin(SessionRecord { machines, plan, asked, ..record }, runs, watch)?
        }
    };
    execute(&session, &mut committer, session.record.prepare.as_deref(), watch)?;
    drop(committer);
    result(&session)
}

/// What is measured is the host's kernel.
fn provenance(record: &SessionRecord<IrqPlanned>) -> BTreeMap<String, String> {
    let kernel = record.host.get("kernel").and_then(|kernel| kernel.as_str());
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

    fn cut(&self) -> Result<&dyn Cut, &'static str> {
        Err("its strategies are compared on one host, in turn, and are not cut into shards")
    }

    fn boots(&self) -> Result<(), &'static str> {
        Err("its runs are no boots; it compares its strategies itself")
    }
}

impl Answer for IrqResult {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(IrqReport::new(self))
    }

    fn is_bad(&self) -> bool {
        let lost = |d: &IrqDelivery| d.arrived != d.raised || d.stray > 0;
        self.totals.iter().filter_map(|total| total.delivery.as_ref()).any(lost)
    }
}
