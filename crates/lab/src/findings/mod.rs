//! `vmeter findings`: each known cause of a slow boot, measured here or on the user's machine.

mod blocks;
pub(crate) mod catalogue;
mod change;
mod config;
mod consoles;
mod gate;
pub(crate) mod machine_builder;
mod plan;
pub mod report;
mod result;
pub(crate) mod user_machine;

use crate::booter::{Ready, Recorder};
use crate::boots::Boots;
use crate::prepare::{prepare, Prepared};
use crate::shown::Shown;
use anyhow::Result;
use catalogue::{Finding, UserRemedy, CATALOGUE};
use config::Config;
use machine_builder::MachineBuilder;
use plan::{Menu, BASELINE};
use report::FindingsReport;
pub use result::result;
use std::path::Path;
use vmeter_model::findings::FindingsResult;
use vmeter_model::run::{PlannedRun, SessionRecord};
use vmeter_model::MachineSpec;
use vmeter_render::quantity::plural;
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::NOT_CUT;
use vmeter_session::{cache_dir, carry_out, Measurement, ResumeOverrides};
use vmeter_session::{Answer, Experiment, RunOptions, Session, Shardable, Views, Watch};

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

/// What `--list` says: (id, title, what it is).
pub fn list() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    CATALOGUE.iter().map(|finding| (finding.cause.id, finding.cause.title, finding.what))
}

/// True for a cause of which there is a pair of machines, with and without it.
/// On a machine of one's own it takes a remedy that leaves the machine what it is.
pub(crate) fn is_measurable(id: &str, own: bool) -> bool {
    catalogue::named(id).is_some_and(|finding| match finding.user_remedy {
        _ if !own => true,
        UserRemedy::Remedy(remedy) => remedy.needs.is_none(),
        UserRemedy::Never(_) => false,
    })
}

/// Measures findings.
///
/// # Errors
/// An id or a machine that is not valid, a host that can't boot it, an interruption.
pub fn findings(options: &FindingsOptions, watch: &mut Watch<'_>) -> Result<FindingsResult> {
    result(&carry_out(KIND, &options.runs, options, watch)?)
}

impl Measurement for FindingsOptions {
    type Planned = PlannedRun;
    type Config = Config;
    type Runner = Boots<Recorder>;

    fn config(&self) -> Result<Config> {
        Ok(Config {
            ids: self.ids.clone(),
            spec: self.spec.clone(),
            no_icount: self.no_icount,
            runs: self.runs.runs.unwrap_or(DEFAULT_RUNS),
            warmup: self.runs.warmups(),
            ..Config::default()
        })
    }

    fn note_given(&self, begun: &Config, given: &mut ResumeOverrides) {
        given.fields(&self.spec, &begun.spec);
        let ids = (!self.ids.is_empty()).then(|| self.ids.clone());
        given.option("findings", ids, begun.ids.clone());
        given.option("--runs", self.runs.runs, begun.runs);
        given.option("--warmup", self.runs.warmup, begun.warmup);
        given.option("--no-icount", self.no_icount.then_some(true), begun.no_icount);
    }

    /// The machines in virtual time are booted last, so nothing can follow.
    fn grow(&self, _: &mut Config) {}

    fn prepare(
        &self,
        config: &mut Config,
        record: &SessionRecord,
        watch: &mut Watch<'_>,
    ) -> Result<Ready> {
        let machines = match record.machines.as_slice() {
            [] => chosen_machines(config, &self.runs, watch)?,
            saved => saved.iter().map(|m| (m.label.clone(), m.spec.clone())).collect(),
        };
        let prepared = machines.iter().map(|(label, spec)| one(label, spec));
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        Recorder::ready(prepared, record)
    }

    fn plan(&self, config: &Config, _: &Boots<Recorder>, record: &mut SessionRecord) -> Result<()> {
        let timed = config.timed as usize;
        let exact = record.machines.len().saturating_sub(timed);
        record.plan = plan::runs(timed, exact, config.warmup, config.runs, record.seed);
        Ok(())
    }

    fn start(
        &self,
        config: &mut Config,
        _: &mut Boots<Recorder>,
        session: &mut Session,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let left = session.record.plan.len().saturating_sub(session.finished()?.0.len());
        watch.progress.say(&how_long(left, config.timed as usize, &config.spec));
        Ok(())
    }
}

/// The machines of the findings that were asked for; those in virtual time follow the others.
fn chosen_machines(
    config: &mut Config,
    options: &RunOptions,
    watch: &mut Watch<'_>,
) -> Result<Vec<(String, MachineSpec)>> {
    let cache = cache_dir()?;
    let chosen = chosen(&config.ids)?;
    let base = one(BASELINE, &config.spec)?;
    watch.progress.note("making what the findings need");
    let Menu { mut timed, exact, findings, printing } = if config.spec.command.is_empty() {
        let builder = MachineBuilder { cache: &cache, base: &config.spec };
        let exact = !config.no_icount && base.is_slowed_by_counting();
        plan::of_options(&chosen, &builder, exact)
    } else {
        plan::of_own(&chosen, &config.spec, &base.machine, &cache)
    };
    options.check_size(timed.len())?;
    config.timed = timed.len() as u32;
    config.findings = findings;
    config.printing = printing;
    timed.extend(exact);
    Ok(timed)
}

/// The findings with these ids; all if there are none.
fn chosen(ids: &[String]) -> Result<Vec<&'static Finding>> {
    if ids.is_empty() {
        return Ok(CATALOGUE.to_vec());
    }
    let one = |id: &String| {
        catalogue::named(id).ok_or_else(|| {
            let known: Vec<&str> = CATALOGUE.iter().map(|finding| finding.cause.id).collect();
            usage(format!("no finding is called {id:?}; the findings are {}", known.join(", ")))
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
    if spec.is_played() {
        return format!("{boots_of} of {machines}, all simulated (--vmm mock)");
    }
    let minutes = (boots as f64 * USUAL_BOOT_S / 60.0).ceil();
    format!(
        "{boots_of} of {machines}: about {} at {USUAL_BOOT_S} s a boot; Ctrl-C stops the \
         session, and --resume continues it",
        plural(minutes as u64, "minute")
    )
}

fn one(label: &str, spec: &MachineSpec) -> Result<Prepared> {
    let cache = cache_dir()?;
    let mut prepared = prepare(label, spec, &cache)?;
    prepared.machine.own_init |= machine_builder::is_own(&spec.initrd, &cache);
    Ok(prepared)
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

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err(NOT_CUT)
    }

    fn boots(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Answer for Shown<FindingsResult> {
    fn report(&self, views: &Views) -> Box<dyn Report + '_> {
        Box::new(FindingsReport { result: &self.0, long: views.long })
    }

    /// A machine of a finding that does not boot makes it inapplicable, with the reason; only the
    /// one that was asked about must.
    fn failure(&self) -> Option<String> {
        self.0.baseline.is_none().then(|| "your machine did not boot".to_owned())
    }
}
