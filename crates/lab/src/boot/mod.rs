//! `vmeter boot`: the same machine several times, every millisecond accounted for.

mod baseline;
mod beside;
mod config;
pub mod overhead;
pub(crate) mod plan;
pub mod regression;
pub mod report;
pub(crate) mod result;

use crate::at_once::{self, Spread};
use crate::blocks::runs_each;
use crate::booter::{Ready, Recorder};
use crate::boots::Boots;
use crate::looks::Repeats;
use crate::prepare::{prepare, Prepared};
use crate::shown::Shown;
use anyhow::Result;
use baseline::LABELS;
pub use config::BootOptions;
use config::Config;
pub(crate) use config::KIND;
use plan::{plan, Levels};
use report::{BootReport, BootView, TreeView};
pub use result::{marked, result};
use std::path::Path;
use vmeter_model::result::BootResult;
use vmeter_model::run::{Outcome, PlannedRun, SessionRecord};
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::NOT_CUT;
use vmeter_session::{cache_dir, carry_out, Measurement, ResumeOverrides, Session};
use vmeter_session::{failed_runs, Answer, Experiment, Shardable, Views, Watch};

/// Boots, saves, analyses.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, an interruption.
pub fn boot(options: &BootOptions, watch: &mut Watch<'_>) -> Result<(Spread, BootResult)> {
    if options.detect.is_some() && options.baseline.is_none() && options.runs.resume.is_none() {
        return Err(usage(
            "--detect needs a baseline: add --baseline DIR, where DIR is a saved \
            session",
        ));
    }
    let session = carry_out(KIND, &options.runs, options, watch)?;
    let result = result(&session)?;
    Ok((Spread::of(&session)?, result))
}

impl Measurement for BootOptions {
    type Planned = PlannedRun;
    type Config = Config;
    type Runner = Boots<Recorder>;

    fn config(&self) -> Result<Config> {
        Ok(Config {
            spec: self.spec.clone(),
            watch: self.watch.unwrap_or_default(),
            overhead: self.overhead,
            repeats: Repeats::of(&self.runs, self.detect).at_once(&self.concurrency)?,
        })
    }

    fn note_given(&self, begun: &Config, given: &mut ResumeOverrides) {
        given.fields(&self.spec, &begun.spec);
        given.option("--watch", self.watch, begun.watch);
        given.option("--detect", self.detect.map(Some), begun.repeats.detect);
        begun.repeats.note_given(given, &self.concurrency);
        given.option("--overhead", self.overhead.then_some(true), begun.overhead);
        if begun.overhead {
            let pairs = overhead::most_pairs(begun.repeats.runs);
            given.option("--runs", self.runs.runs.filter(|runs| *runs < pairs), pairs);
        }
    }

    fn grow(&self, config: &mut Config) {
        config.repeats.grow(&self.runs);
    }

    fn prepare(
        &self,
        config: &mut Config,
        record: &SessionRecord,
        watch: &mut Watch<'_>,
    ) -> Result<Ready> {
        if !config.repeats.concurrency.is_empty() {
            let one = prepare(LABELS[0], &config.spec, &cache_dir()?)?;
            return Recorder::ready(at_once::spread(one, &config.repeats.concurrency), record);
        }
        let first = record.machines.first();
        let (label, spec) =
            first.map_or((LABELS[0], &config.spec), |m| (m.label.as_str(), &m.spec));
        let mut prepared = vec![prepare(label, spec, &cache_dir()?)?];
        prepared.extend(self.other(record, watch)?);
        if config.repeats.detect.is_some() && prepared.len() < 2 {
            return Err(usage(
                "--detect must boot the baseline's machine in turn with this machine, but vmeter \
                 cannot boot the baseline's machine",
            ));
        }
        Recorder::ready(prepared, record)
    }

    fn plan(
        &self,
        config: &Config,
        runner: &Boots<Recorder>,
        record: &mut SessionRecord,
    ) -> Result<()> {
        let levels = Levels::of(config.watch, &runner.0);
        record.plan = if config.overhead {
            overhead::plan(levels, &config.repeats, record.seed)
        } else {
            plan(&config.repeats, levels, record.machines.len(), record.seed)
        };
        runner.0.widen(record);
        Ok(())
    }

    fn start(
        &self,
        config: &mut Config,
        _: &mut Boots<Recorder>,
        session: &mut Session,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        if config.overhead {
            overhead::warn_of_few(&session.record.plan, config.repeats.runs, watch);
        }
        Ok(())
    }

    /// Beside a baseline until what is there to be found would have been; with `--overhead` until
    /// the pairs decide.
    fn extend(&self, config: &mut Config, session: &Session) -> Result<bool> {
        let (finished, _) = session.finished()?;
        if config.overhead {
            return Ok(overhead::extend(&mut config.repeats, session, &finished));
        }
        let Some(sides) = beside::sides(session, &finished) else { return Ok(false) };
        let failed = finished.iter().any(|(_, run)| run.outcome != Outcome::Done);
        Ok(config.repeats.look(&sides, runs_each(&session.record.plan), failed))
    }
}

impl BootOptions {
    /// The machine that takes turns with this one: the baseline's, if it can be booted as it was,
    /// or that of the session that is resumed.
    fn other(&self, record: &SessionRecord, watch: &mut Watch<'_>) -> Result<Option<Prepared>> {
        if !record.machines.is_empty() {
            let machine = record.machines.get(1);
            return machine.map(|m| prepare(&m.label, &m.spec, &cache_dir()?)).transpose();
        }
        let Some(dir) = self.baseline.as_deref().filter(|_| !self.overhead) else {
            return Ok(None);
        };
        match baseline::bootable(dir) {
            Ok(prepared) => Ok(Some(prepared)),
            Err(why) => {
                watch.progress.warn(&format!(
                    "vmeter compares with the baseline's saved runs only, because it cannot boot \
                        the baseline again: {why}"
                ));
                Ok(None)
            }
        }
    }
}

/// The kind `boot`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        self.marked(dir, &[])
    }

    fn marked(&self, dir: &Path, marks: &[String]) -> Result<Box<dyn Answer>> {
        let session = Session::open(dir)?;
        Ok(Spread::of(&session)?.shown(Shown(marked(&session, marks)?)))
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err(NOT_CUT)
    }

    fn boots(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Answer for Shown<BootResult> {
    fn report(&self, views: &Views) -> Box<dyn Report + '_> {
        let view = BootView {
            long: views.long,
            blame: views.blame,
            critical_chain: views.critical_chain,
            tree: views.tree.then_some(TreeView { run: None, min_duration: 500_000 }),
            ..BootView::default()
        };
        Box::new(BootReport { result: &self.0, view })
    }

    fn failure(&self) -> Option<String> {
        failed_runs(self.0.runs.iter().map(|run| &run.record.outcome))
    }
}
