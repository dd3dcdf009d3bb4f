//! `vmeter dirty` as an experiment: a session begins or is gone on with, and comes to a
//! result.

use crate::analysis;
use crate::asked::{Asked, Begun, Given};
use crate::harness::{self, none_of, Harness};
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
use vmeter_session::{begin, execute, identity, record, resumed, RunOptions, Session, Watch};
use vmeter_session::{Answer, Cut, Experiment, Views};

const KIND: &str = "dirty";

/// Measures, or goes on with a session; `runs` are passes.
///
/// # Errors
/// Options that can't be, or are not those that the session was begun with; /dev/kvm is
/// missing or runs no guest code natively; no tracker is to be had; the guest died; an
/// interruption (finished runs are saved).
pub fn measure(given: &Given, options: &RunOptions, watch: &mut Watch<'_>) -> Result<DirtyResult> {
    let saved = resumed(KIND, options, watch, |session: &Session<PlannedPass>, typed| {
        let begun: Begun = session.asked()?;
        typed.fields(given, &begun.asked);
        let fewer = options.runs.filter(|runs| *runs < begun.asked.passes);
        typed.option("--runs", fewer, begun.asked.passes);
        Ok(())
    })?;
    match saved {
        Some(session) => go_on(session, options, watch),
        None => anew(given, options, watch),
    }
}

/// What the guests of a session write to, and where.
fn workload(asked: &Asked, layout: &Layout, seed: u64) -> Workload {
    let bytes = asked.buffer_bytes(layout.scale);
    Workload::new(asked.workload, layout, bytes, asked.share(), seed)
}

/// The folder is made before the guests, which take seconds: an interruption then leaves
/// something to go on with. What the host can be asked for without a guest is asked before.
fn anew(given: &Given, options: &RunOptions, watch: &mut Watch<'_>) -> Result<DirtyResult> {
    let asked = Asked::new(given, options.runs).map_err(DirtyError::classified)?;
    let pin = options.pinned()?;
    let budget_bytes = asked.memory.map_or_else(memory::budget, |mib| mib << 20);
    let layout = asked.fitted(budget_bytes).map_err(DirtyError::classified)?;
    if !asked.vms.is_empty() {
        asked.shared(budget_bytes).map_err(DirtyError::classified)?;
    }
    let blank = record(KIND, options);
    let load = workload(&asked, &layout, blank.seed);
    let skipped = harness::not_here(&asked).map_err(DirtyError::classified)?;
    let begun = Begun { asked, budget_bytes, buffer_bytes: load.buffer_bytes(), skipped };
    let session = begin(planned(blank, &begun, &layout, &load)?, options, watch)?;
    stand(session, begun, &layout, &load, &pin, watch)
}

/// The same guests once more, for what is left of the plan.
fn go_on(
    mut session: Session<PlannedPass>,
    options: &RunOptions,
    watch: &mut Watch<'_>,
) -> Result<DirtyResult> {
    let mut begun: Begun = session.asked()?;
    begun.asked.check().map_err(DirtyError::classified)?;
    lengthen(&mut session, &mut begun, options.runs)?;
    if session.finished_as::<RunHead>()?.0.len() >= session.record.plan.len() {
        return analysis::result(&session);
    }
    let layout = begun.layout().map_err(DirtyError::classified)?;
    let now = machines(&begun, &layout, &record::<PlannedPass>(KIND, options).host);
    identity::check_provenance(&session.dir, &session.record, &now)?;
    let load = workload(&begun.asked, &layout, session.record.seed);
    let pinned = RunOptions { pin: session.record.pin.clone(), ..RunOptions::default() };
    let pin = pinned.pinned()?;
    session.take_over()?;
    session.save()?;
    stand(session, begun, &layout, &load, &pin, watch)
}

/// Makes the guests and carries out the plan. A tracker that only a guest shows not to work
/// is left out, as long as no run was finished.
fn stand(
    mut session: Session<PlannedPass>,
    mut begun: Begun,
    layout: &Layout,
    load: &Workload,
    pin: &[usize],
    watch: &mut Watch<'_>,
) -> Result<DirtyResult> {
    let made = Harness::new(&begun.asked, layout, load, &begun.trackers(), pin, watch);
    let (harness, lost) = made.map_err(DirtyError::classified).inspect_err(|error| {
        if class(error) != Class::Interrupted {
            session.abandon();
        }
    })?;
    if !lost.is_empty() {
        if !session.finished_as::<RunHead>()?.0.is_empty() {
            return Err(none_of(&lost).classified());
        }
        begun.skipped.extend(lost);
        session.record = planned(session.record.clone(), &begun, layout, load)?;
        session.save()?;
    }
    carry_out(&session, &begun, layout, load, harness, watch)
}

/// The record with its machines and plan.
fn planned(
    record: SessionRecord<PlannedPass>,
    begun: &Begun,
    layout: &Layout,
    load: &Workload,
) -> Result<SessionRecord<PlannedPass>> {
    Ok(SessionRecord {
        machines: machines(begun, layout, &record.host),
        plan: plan(begun, load, record.seed),
        asked: serde_json::to_value(begun)?,
        ..record
    })
}

fn carry_out(
    session: &Session<PlannedPass>,
    begun: &Begun,
    layout: &Layout,
    load: &Workload,
    harness: Harness,
    watch: &mut Watch<'_>,
) -> Result<DirtyResult> {
    let passes = Passes::new(begun, layout, load, harness, session.record.seed);
    let mut passes = passes.map_err(DirtyError::classified)?;
    execute(session, &mut passes, session.record.prepare.as_deref(), watch)?;
    analysis::result(session)
}

fn guests(begun: &Begun, seed: u64) -> Orders {
    Orders { guests: begun.trackers().len() + 1, seed }
}

/// Warm-ups, measured passes, fits.
fn plan(begun: &Begun, load: &Workload, seed: u64) -> Vec<PlannedPass> {
    let (orders, asked) = (guests(begun, seed), &begun.asked);
    let mut plan = orders.passes(0..asked.warmup, true);
    plan.extend(orders.passes(0..asked.passes, false));
    if !asked.no_fit {
        plan.extend(orders.fits(load.all().len()));
    }
    plan.extend(orders.together(&asked.vms, asked.passes));
    plan
}

/// Adds the passes that `--runs` asks for beyond those planned.
fn lengthen(
    session: &mut Session<PlannedPass>,
    begun: &mut Begun,
    runs: Option<u32>,
) -> Result<()> {
    let Some(runs) = runs.filter(|runs| *runs > begun.asked.passes) else { return Ok(()) };
    let orders = guests(begun, session.record.seed);
    session.record.plan.extend(orders.passes(begun.asked.passes..runs, false));
    begun.asked.passes = runs;
    session.record.asked = serde_json::to_value(&*begun)?;
    session.save()
}

/// The untracked guest, and one for each tracker.
fn machines(
    begun: &Begun,
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

    fn cut(&self) -> Result<&dyn Cut, &'static str> {
        Err("its guests share one host's memory and take turns there, so it is not cut into shards")
    }

    fn boots(&self) -> Result<(), &'static str> {
        Err("its runs are passes of a guest of vmeter's own, not boots; compare the exports")
    }
}

impl Answer for DirtyResult {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(DirtyReport::new(self))
    }

    fn is_bad(&self) -> bool {
        self.checked_bits > 0 && !self.verified
    }
}
