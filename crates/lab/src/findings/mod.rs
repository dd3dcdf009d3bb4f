//! `vmeter findings`: each known cause of a slow boot, measured here or on the user's machine.

mod blocks;
mod catalogue;
mod change;
mod consoles;
mod gate;
mod kitchen;
mod own;
mod plan;
pub mod report;
mod result;

use crate::booter::Recorder;
use crate::boots::Boots;
use crate::prepare::{check_same, prepare, Prepared};
use crate::shown::Shown;
use anyhow::Result;
use catalogue::{Finding, Own, CATALOGUE};
use kitchen::Kitchen;
use plan::{Menu, BASELINE};
use report::FindingsReport;
pub use result::result;
use serde::{Deserialize, Serialize};
use std::path::Path;
use vmeter_model::findings::{FindingsResult, PlannedFinding};
use vmeter_model::run::{Outcome, SessionRecord};
use vmeter_model::{FindingVerdict, MachineSpec};
use vmeter_render::quantity::plural;
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::{begin, cache_dir, execute, record, resumed, RunOptions, Session, Watch};
use vmeter_session::{Answer, Experiment, Views};

const KIND: &str = "findings";

/// Measured boots of each machine, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 10;
/// A boot takes about so long where nothing is known of it, s.
const USUAL_BOOT_S: f64 = 5.0;

/// What is asked.
#[derive(Debug, Clone)]
pub struct FindingsOptions {
    /// Ids of the catalogue; all if empty.
    pub ids: Vec<String>,
    /// The machine.
    pub spec: MachineSpec,
    /// True to leave out the boots in virtual time.
    pub no_icount: bool,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// What a session of its own keeps besides machines and plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Ids as they were given.
    ids: Vec<String>,
    /// The machine.
    spec: MachineSpec,
    /// `--no-icount`.
    no_icount: bool,
    /// `--runs`.
    runs: u32,
    /// `--warmup`.
    warmup: u32,
    /// Machines that take turns; those in virtual time follow them.
    pub timed: u32,
    /// What is compared.
    pub findings: Vec<PlannedFinding>,
    /// Labels of the machines that print known amounts.
    #[serde(default)]
    pub printing: Vec<String>,
}

/// What `--list` says: (id, title, what it is).
pub fn list() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    CATALOGUE.iter().map(|finding| (finding.cause.id, finding.cause.title, finding.what))
}

/// True for a cause of which there is a pair of machines, with and without it.
/// On a machine of one's own it takes a remedy that leaves the machine what it is.
pub(crate) fn is_measurable(id: &str, own: bool) -> bool {
    catalogue::named(id).is_some_and(|finding| !own || matches!(finding.own, Own::Remedy { .. }))
}

/// Measures findings.
///
/// # Errors
/// An id or a machine that is not valid, a host that can't boot it, an interruption.
pub fn findings(options: &FindingsOptions, watch: &mut Watch<'_>) -> Result<FindingsResult> {
    let saved = resumed(KIND, &options.runs, watch, |session: &Session, given| {
        let begun: Asked = session.asked()?;
        given.fields(&options.spec, &begun.spec);
        let ids = (!options.ids.is_empty()).then(|| options.ids.clone());
        given.option("findings", ids, begun.ids);
        given.option("--runs", options.runs.runs, begun.runs);
        given.option("--warmup", options.runs.warmup, begun.warmup);
        given.option("--no-icount", options.no_icount.then_some(true), begun.no_icount);
        Ok(())
    })?;
    let (session, prepared) = match saved {
        Some(mut session) => {
            let prepared = session.record.machines.iter().map(|m| one(&m.label, &m.spec));
            let prepared = prepared.collect::<Result<Vec<_>>>()?;
            check_same(&session, &prepared)?;
            session.record.machines = prepared.iter().map(|p| p.session.clone()).collect();
            (session, prepared)
        }
        None => begun(options, watch)?,
    };
    session.save()?;
    let pin = session.record.pin.as_deref().or(options.runs.pin.as_deref());
    let recorder = Recorder::of(prepared, pin)?;
    execute(&session, &mut Boots(&recorder), session.record.prepare.as_deref(), watch)?;
    result(&session)
}

/// Machines and plan are worked out before the folder is made: a typo leaves none behind.
fn begun(options: &FindingsOptions, watch: &mut Watch<'_>) -> Result<(Session, Vec<Prepared>)> {
    let cache = cache_dir()?;
    let chosen = chosen(&options.ids)?;
    let base = one(BASELINE, &options.spec)?;
    let runs = options.runs.runs.unwrap_or(DEFAULT_RUNS);
    let warmup = options.runs.warmups();
    watch.progress.note("making what the findings need");
    let Menu { timed, exact, findings, printing } = if options.spec.command.is_empty() {
        let kitchen = Kitchen { cache: &cache, base: &options.spec };
        let exact = !options.no_icount && base.is_slowed_by_counting();
        plan::of_options(&chosen, &kitchen, exact)
    } else {
        plan::of_own(&chosen, &options.spec, &base.machine)
    };
    options.runs.check_size(timed.len())?;
    let prepared = timed.iter().chain(&exact).map(|(label, spec)| one(label, spec));
    let prepared = prepared.collect::<Result<Vec<_>>>()?;
    let seed = options.runs.order();
    let plan = plan::runs(timed.len(), exact.len(), warmup, runs, seed);
    watch.progress.say(&how_long(plan.len(), timed.len(), &options.spec));
    let asked = Asked {
        ids: options.ids.clone(),
        spec: options.spec.clone(),
        no_icount: options.no_icount,
        runs,
        warmup,
        timed: timed.len() as u32,
        findings,
        printing,
    };
    let record = SessionRecord {
        machines: prepared.iter().map(|p| p.session.clone()).collect(),
        asked: serde_json::to_value(asked)?,
        plan,
        ..record(KIND, &options.runs)
    };
    Ok((begin(record, &options.runs, watch)?, prepared))
}

/// The findings with these ids; all if there are none.
fn chosen(ids: &[String]) -> Result<Vec<&'static Finding>> {
    if ids.is_empty() {
        return Ok(CATALOGUE.to_vec());
    }
    let one = |id: &String| {
        catalogue::named(id).ok_or_else(|| {
            let known: Vec<&str> = CATALOGUE.iter().map(|finding| finding.cause.id).collect();
            usage(format!("no finding is called {id:?}; there are {}", known.join(", ")))
        })
    };
    let mut found: Vec<&Finding> = ids.iter().map(one).collect::<Result<_>>()?;
    found.dedup_by_key(|finding| finding.cause.id);
    Ok(found)
}

/// What is said before it begins.
fn how_long(boots: usize, machines: usize, spec: &MachineSpec) -> String {
    let boots_of = plural(boots as u64, "boot");
    let machines = plural(machines as u64, "machine");
    if spec.vmm.as_deref() == Some("mock") {
        return format!("{boots_of} of {machines}, all simulated (--vmm mock)");
    }
    let minutes = (boots as f64 * USUAL_BOOT_S / 60.0).ceil();
    format!(
        "{boots_of} of {machines}: about {} at {USUAL_BOOT_S} s a boot; Ctrl-C ends it, --resume goes on",
        plural(minutes as u64, "minute")
    )
}

fn one(label: &str, spec: &MachineSpec) -> Result<Prepared> {
    let cache = cache_dir()?;
    let mut prepared = prepare(label, spec, &cache)?;
    prepared.machine.own_init |= kitchen::is_own(&spec.initrd, &cache);
    Ok(prepared)
}

/// Why this machine can't be had here, in words.
pub(crate) fn describable(spec: &MachineSpec, kitchen: &Kitchen<'_>) -> Result<(), String> {
    if kitchen.is_mock() {
        return Ok(());
    }
    let described = prepare("", spec, kitchen.cache);
    described.map(drop).map_err(|error| format!("{error:#}"))
}

/// The kind `findings`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(Shown(result(&Session::open(dir)?)?)))
    }
}

impl Answer for Shown<FindingsResult> {
    fn report(&self, views: &Views) -> Box<dyn Report + '_> {
        Box::new(FindingsReport { result: &self.0, long: views.long })
    }

    /// A machine of a finding that does not boot makes it inapplicable, with the reason; only the
    /// one that was asked about must.
    fn is_bad(&self) -> bool {
        self.0.baseline.is_none()
    }
}

/// True for a verdict that has figures.
pub(crate) fn is_measured(verdict: FindingVerdict) -> bool {
    !matches!(verdict, FindingVerdict::Inapplicable | FindingVerdict::Unfinished)
}

/// Why a run was no boot to compare, in words.
pub(crate) fn failed(outcome: &Outcome, end: Option<&vmeter_model::End>) -> String {
    crate::words::ended_text(outcome, end).unwrap_or_default()
}
