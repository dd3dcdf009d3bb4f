//! `vmeter restore`: where the time goes from a snapshot to a guest that answers.
//!
//! The snapshot is made once, when the session begins: by vmeter for a machine of QEMU's, or by a command
//! of the user's. Each run then starts a VMM that goes on from it, up to the guest's first answer. Machines
//! differ in how they restore and in whether the snapshot is in the page cache; a cold boot of the same
//! machine to the same point takes turns with them, where vmeter can make one.

mod config;
mod image;
mod make;
mod method;
mod pages;
mod prefetch;
mod proof;
mod ready;
pub mod report;
mod result;
mod runner;
mod saved_machine;

pub use config::Prefetch;
pub use image::Cache;
pub use make::Made;
pub use method::Method;
pub use pages::Pages;
pub use prefetch::{prefetch_list, read_list, Gain};
pub use proof::Proof;
pub use result::{result, RestoreResult, Restored};

use crate::at_once::{self, Spread};
use crate::blocks::in_blocks;
use crate::boot::overhead;
use crate::boot::plan::Levels;
use crate::booter::Recorder;
use crate::looks::Repeats;
use crate::prepare::{prepare_with, Prepared, Wishes};
use crate::shown::Shown;
use anyhow::Result;
use config::{Config, BOOT, CACHE, METHOD, PLACE, PREFETCH};
use report::RestoreReport;
use runner::{Restores, Target};
use saved_machine::Saved;
use std::path::{Path, PathBuf};
use vmeter_base::words::Word;
use vmeter_machine::{argv, capabilities};
use vmeter_model::run::{PlannedRun, SessionMachine, SessionRecord, WatchLevel};
use vmeter_model::{MachineSpec, ResolvedOption};
use vmeter_render::Report;
use vmeter_session::failure::{host, usage};
use vmeter_session::{cache_dir, carry_out, Measurement, ResumeOverrides, RunOptions, Session};
use vmeter_session::{failed_runs, Answer, Experiment, Shardable, Views, Watch, NOT_CUT};

const KIND: &str = "restore";
/// Restores are watched in one way only.
const WATCHED: Levels = Levels { asked: WatchLevel::Light, timed: WatchLevel::Light };
/// Measured restores of each machine, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 10;
/// Between two signs of life of vmeter's own guest, ms.
const TICK_MS: u32 = 1;
/// What to restore.
#[derive(Debug, Clone)]
pub struct RestoreOptions {
    /// The machine that vmeter boots, saves and restores; of a user's own commands the ready point,
    /// the timeout and what is done to a command line.
    pub spec: MachineSpec,
    /// The user's command that makes the snapshot.
    pub create: Option<String>,
    /// The user's command that goes on from it.
    pub restore: Option<String>,
    /// The snapshot's files; found, if none are named.
    pub images: Vec<PathBuf>,
    /// How QEMU restores; all that this QEMU has, if empty.
    pub methods: Vec<Method>,
    /// Whether the snapshot is in the page cache; warm, if empty.
    pub caches: Vec<Cache>,
    /// Pages that are loaded first, in turn with restores without that.
    pub prefetch: Option<Prefetch>,
    /// Take turns with unwatched restores, to measure what watching costs.
    pub overhead: bool,
    /// Leave out the cold boots.
    pub no_boot: bool,
    /// So many at once, each number in turn; one, if empty.
    pub concurrency: Vec<u32>,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// Makes snapshots, restores, analyses.
///
/// # Errors
/// A machine that is not valid, a host that can't run it, a snapshot that cannot be made, an interruption.
pub fn restore(options: &RestoreOptions, watch: &mut Watch<'_>) -> Result<(Spread, RestoreResult)> {
    let session = carry_out(KIND, &options.runs, options, watch)?;
    let result = result(&session)?;
    Ok((Spread::of(&session)?, result))
}

fn words<W: Word>(all: &[W]) -> Vec<String> {
    all.iter().map(|word| word.word().to_owned()).collect()
}

fn of_words<W: std::str::FromStr>(all: &[String]) -> Vec<W> {
    all.iter().filter_map(|word| word.parse().ok()).collect()
}

impl Measurement for RestoreOptions {
    type Planned = PlannedRun;
    type Config = Config;
    type Runner = Restores;

    fn config(&self) -> Result<Config> {
        self.check()?;
        let caches = if self.caches.is_empty() { &[Cache::Warm][..] } else { &self.caches };
        Ok(Config {
            spec: self.spec.clone(),
            create: self.create.clone(),
            restore: self.restore.clone(),
            images: self.images.clone(),
            methods: words(&self.methods),
            caches: words(caches),
            prefetch: self.prefetch.clone(),
            // A boot beside so many restores would be another load.
            no_boot: self.no_boot || self.overhead || !self.concurrency.is_empty(),
            overhead: self.overhead,
            repeats: Repeats::of(&self.runs, None).at_once(&self.concurrency)?,
            ..Config::default()
        })
    }

    fn note_given(&self, begun: &Config, given: &mut ResumeOverrides) {
        given.fields(&self.spec, &begun.spec);
        given.option("--create", self.create.as_ref().map(Some), begun.create.as_ref());
        given.option("--restore", self.restore.as_ref().map(Some), begun.restore.as_ref());
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        given.option("--method", some(words(&self.methods)), begun.methods.clone());
        given.option("--cold and --warm", some(words(&self.caches)), begun.caches.clone());
        given.option("--prefetch", self.prefetch.clone().map(Some), begun.prefetch.clone());
        given.option("--overhead", self.overhead.then_some(true), begun.overhead);
        given.option("--no-boot", self.no_boot.then_some(true), begun.no_boot);
        begun.repeats.note_given(given, &self.concurrency);
        let images = (!self.images.is_empty()).then(|| self.images.clone());
        given.option("--image", images, begun.images.clone());
    }

    fn grow(&self, config: &mut Config) {
        config.repeats.grow(&self.runs);
    }

    fn prepare(
        &self,
        config: &mut Config,
        record: &SessionRecord,
        watch: &mut Watch<'_>,
    ) -> Result<(Vec<SessionMachine>, Restores)> {
        let (prepared, targets): (Vec<Prepared>, Vec<Target>) = match &config.restore {
            Some(restore) => of_commands(config, restore)?,
            None => of_vmm(config, watch)?,
        }
        .into_iter()
        .flat_map(|(one, target)| {
            let spread = at_once::spread(one, &config.repeats.concurrency);
            spread.into_iter().map(move |one| (one, target.clone()))
        })
        .unzip();
        let machines = prepared.iter().map(|one| one.session.clone()).collect();
        let recorder = Recorder::of(prepared, record.pin.as_deref())?;
        Ok((machines, Restores::new(recorder, targets)))
    }

    fn plan(&self, config: &Config, runner: &Restores, record: &mut SessionRecord) -> Result<()> {
        let amount = (config.repeats.warmups(), config.repeats.planned(DEFAULT_RUNS));
        let machines = record.machines.len();
        if config.overhead {
            only_one(&record.machines)?;
            record.plan = overhead::plan(WATCHED, &config.repeats, record.seed);
            return Ok(());
        }
        record.plan = in_blocks(machines, amount, record.seed, |slot| {
            // A watched boot would have words added to its kernel's command line.
            match runner.restores(slot.machine) {
                true => WatchLevel::Light,
                false => WatchLevel::None,
            }
        });
        runner.widen(record);
        Ok(())
    }

    fn start(
        &self,
        config: &mut Config,
        runner: &mut Restores,
        session: &mut Session,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        config.skipped.iter().for_each(|skipped| watch.progress.warn(skipped));
        if runner.is_complete(session)? {
            return Ok(());
        }
        if config.overhead {
            overhead::warn_of_few(&session.record.plan, config.repeats.runs, watch);
        }
        let made = runner.make(config, session, watch)?;
        config.made.extend(made);
        session.record.asked = serde_json::to_value(&*config)?;
        session.save()
    }

    /// With `--overhead` until the pairs decide. What was made for the runs goes when all are done.
    fn extend(&self, config: &mut Config, session: &Session) -> Result<bool> {
        if config.overhead {
            let (finished, _) = session.finished()?;
            if overhead::extend(&mut config.repeats, session, &finished) {
                return Ok(true);
            }
        }
        runner::remove(session)?;
        Ok(false)
    }
}

impl RestoreOptions {
    fn check_prefetch(&self) -> Result<()> {
        match &self.prefetch {
            Some(_) if !self.concurrency.is_empty() => Err(usage(
                "--prefetch cannot be used with --concurrency, whose VMs share one \
                    page cache",
            )),
            Some(Prefetch::First) if self.runs.warmup == Some(0) => Err(usage(
                "`--prefetch first` loads the pages that the warm-ups mapped, and this session \
                    has no warm-ups: give --warmup 1 or more, or --prefetch FILE with a list \
                    that --prefetch-list wrote",
            )),
            Some(Prefetch::List(text)) => prefetch::List::parse(text).map(drop),
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<()> {
        self.check_prefetch()?;
        if self.overhead && (self.prefetch.is_some() || !self.concurrency.is_empty()) {
            return Err(usage("--overhead: not with --prefetch or --concurrency"));
        }
        match (&self.create, &self.restore) {
            (Some(_), None) => Err(usage("--create also needs --restore CMD, the command that \
                restores the snapshot")),
            (None, Some(_)) => Err(usage("--restore also needs --create CMD, the command that \
                makes the snapshot")),
            (Some(_), Some(_)) if !self.methods.is_empty() => Err(usage(
                "--method selects how vmeter restores a machine; with --restore CMD, your command \
                 does that, so leave --method out",
            )),
            (Some(_), Some(_)) if self.spec.until.is_none() => Err(usage(
                "--restore CMD also needs --ready 'line:REGEX', the line that is the guest's first \
                 answer: the measurement ends at this line",
            )),
            (None, None) if !self.images.is_empty() => {
                Err(usage("--image needs --create CMD and --restore CMD: --image names a file of \
                    the snapshot that the command of --create makes"))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses to measure the cost of watching several machines.
fn only_one(machines: &[SessionMachine]) -> Result<()> {
    if machines.len() == 1 {
        return Ok(());
    }
    let labels: Vec<&str> = machines.iter().map(|machine| machine.label.as_str()).collect();
    Err(usage(format!(
        "this command line asks for {} ways to restore ({}), but --overhead can measure only one: \
            give one --method, and at most one of --warm and --cold",
        machines.len(),
        labels.join("; ")
    )))
}

/// A machine, and the same with pages that are loaded first, if that is asked for and its pages can be.
fn with_prefetched(
    config: &Config,
    (one, target): (Prepared, Target),
    all: &mut Vec<(Prepared, Target)>,
) {
    let twin = (config.prefetch.is_some() && target.may_map()).then(|| {
        let mut twin = one.clone();
        twin.session.label = format!("{}, prefetched", one.session.label);
        let chosen = ResolvedOption::new("loaded first", "pages of the snapshot", "--prefetch");
        twin.session.chosen.push(chosen);
        twin.session.parameters.push((PREFETCH.into(), one.session.label.clone()));
        (twin, target.clone().prefetched())
    });
    all.push((one, target));
    all.extend(twin);
}

/// The user's commands: a machine for each state of the page cache.
fn of_commands(config: &Config, restore: &str) -> Result<Vec<(Prepared, Target)>> {
    let spec = MachineSpec { command: split(restore), ..config.spec.clone() };
    let mut all = Vec::new();
    for cache in of_words::<Cache>(&config.caches) {
        let label = if cache == Cache::Cold { "restore, cold" } else { "restore" };
        let mut prepared = prepare_with(label, &spec, &cache_dir()?, &Wishes::default())?;
        prepared.session.parameters = vec![(CACHE.into(), cache.word().into())];
        with_prefetched(config, (prepared, Target::given(cache)), &mut all);
    }
    Ok(all)
}

/// A command as words; what only a shell understands is left to one.
fn split(command: &str) -> Vec<String> {
    let own = |c: char| c.is_alphanumeric() || " _-+./:=,@%{}".contains(c);
    match command.chars().all(own) {
        true => command.split_whitespace().map(str::to_owned).collect(),
        false => ["sh", "-c", command].map(str::to_owned).to_vec(),
    }
}

/// A machine that vmeter saves: one for each way to restore it and each state of the page cache, and its boot.
fn of_vmm(config: &mut Config, watch: &mut Watch<'_>) -> Result<Vec<(Prepared, Target)>> {
    let own = config.spec.command.is_empty() && config.spec.initrd.is_none();
    let mut spec = config.spec.clone();
    if own && spec.until.is_none() {
        spec.until = Some(proof::OWN.into());
    }
    if spec.until.as_deref().is_none_or(|until| until == "poweroff") {
        return Err(usage(
            "--ready: after the restore, the guest must print a line again and again. Name that \
                line with --ready 'line:REGEX'. Or omit both --initrd and the VMM's command line: \
                vmeter then uses its own guest, which prints such a line",
        ));
    }
    let options = if own { vec![format!("vmeter.tick={TICK_MS}")] } else { Vec::new() };
    let wishes = Wishes { options, ..Wishes::default() };
    let base = prepare_with(BOOT, &spec, &cache_dir()?, &wishes)?;
    saved_machine::check(&base.machine)?;
    if spec.no_inject {
        return Err(usage(
            "leave out --no-inject: to make and restore a snapshot, vmeter must add options to \
                the VMM's command line",
        ));
    }
    let methods = methods(config, &base, watch)?;
    let mut all = Vec::new();
    for method in methods {
        for cache in of_words::<Cache>(&config.caches) {
            let mut one = base.clone();
            let cold = if cache == Cache::Cold { ", cold" } else { "" };
            let saved = Saved { method, machine: base.machine.clone() };
            one.machine = saved.restored(Path::new(PLACE));
            one.session.label = format!("{}{cold}", method.word());
            one.session.argv = one.machine.argv_text();
            let chosen = ResolvedOption::new("restored by", method.word(), "--method");
            one.session.chosen.push(chosen);
            let parameters = [(METHOD, method.word()), (CACHE, cache.word())];
            let parameters = parameters.map(|(name, word)| (name.to_owned(), word.to_owned()));
            one.session.parameters = parameters.to_vec();
            with_prefetched(config, (one, Target::saved(saved, cache)), &mut all);
        }
    }
    if config.prefetch.is_some() && !all.iter().any(|(_, target)| target.prefetched) {
        return Err(usage(
            "--prefetch needs a VMM that maps the snapshot, as QEMU does with --method shared, and \
                Firecracker with --method file",
        ));
    }
    if !config.no_boot {
        all.push((base, Target::boot()));
    }
    Ok(all)
}

/// The ways to restore that are asked for, or all that this VMM has.
fn methods(config: &mut Config, base: &Prepared, watch: &mut Watch<'_>) -> Result<Vec<Method>> {
    let asked: Vec<Method> = of_words(&config.methods);
    let known: Vec<Method> = match saved_machine::by_api(&base.machine) {
        Some(api) => api.methods().iter().filter_map(|word| word.parse().ok()).collect(),
        None => method::OF_QEMU.to_vec(),
    };
    if let Some(other) = asked.iter().find(|method| !known.contains(method)) {
        return Err(usage(format!(
            "--method {}: this VMM does not restore in this way; expected {}",
            other.word(),
            words(&known).join(", ")
        )));
    }
    let wanted = if asked.is_empty() { known } else { asked.clone() };
    config.skipped.clear();
    match saved_machine::by_api(&base.machine) {
        Some(_) => Ok(wanted),
        None => of_this_qemu(config, base, (&asked, wanted), watch),
    }
}

/// Those of QEMU's that this one has.
fn of_this_qemu(
    config: &mut Config,
    base: &Prepared,
    (asked, wanted): (&[Method], Vec<Method>),
    watch: &mut Watch<'_>,
) -> Result<Vec<Method>> {
    let program = base.machine.argv.iter().find(|word| argv::is_qemu_name(word));
    let program = program.or(base.machine.argv.first()).cloned().unwrap_or_default();
    let known = capabilities::of(Path::new(&program), &cache_dir()?).map_err(usage)?.capabilities;
    let mut found = Vec::new();
    let alone = config.repeats.concurrency.iter().all(|level| *level == 1);
    for method in wanted {
        if method == Method::Loadvm && !alone {
            let why = "loadvm: not measured, because QEMU locks a qcow2 file, so two QEMUs \
                cannot restore from this file at the same time";
            if !asked.is_empty() {
                return Err(usage(format!("--method {why}")));
            }
            config.skipped.push(why.to_owned());
            continue;
        }
        match method.since().filter(|since| known.version < *since) {
            None => found.push(method),
            Some((major, minor, _)) => {
                let why = format!(
                    "{}: not measured, because {} has no such snapshots; QEMU {major}.{minor} \
                     has them",
                    method.word(),
                    known.version_line
                );
                if !asked.is_empty() {
                    return Err(host(format!("--method {why}")));
                }
                config.skipped.push(why);
            }
        }
    }
    watch.go_on()?;
    Ok(found)
}

/// The kind `restore`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        let session = Session::open(dir)?;
        Ok(Spread::of(&session)?.shown(Shown(result(&session)?)))
    }

    fn boots(&self) -> Result<(), &'static str> {
        Err("this session's guests were restored, not booted; vmeter show puts the session's \
            machines side by side")
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err(NOT_CUT)
    }
}

impl Answer for Shown<RestoreResult> {
    fn report(&self, views: &Views) -> Box<dyn Report + '_> {
        Box::new(RestoreReport::new(&self.0, views))
    }

    fn failure(&self) -> Option<String> {
        let all = self.0.machines.iter().map(|machine| &machine.runs).chain(&self.0.boot);
        failed_runs(all.flat_map(|result| &result.runs).map(|run| &run.record.outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_command_needs_no_shell() {
        assert_eq!(split("vmm --restore {image}/a -x"), ["vmm", "--restore", "{image}/a", "-x"]);
        assert_eq!(split("cat a | vmm"), ["sh", "-c", "cat a | vmm"]);
    }
}
