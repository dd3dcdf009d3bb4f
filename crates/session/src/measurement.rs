//! From options to finished runs, in one order for every experiment: begin or resume, prepare,
//! plan, save, execute, and extend the plan as long as the experiment wants more runs.

use crate::execute::{execute, Runner};
use crate::failure::usage;
use crate::identity;
use crate::options::{begin, record, RunOptions};
use crate::progress::Watch;
use crate::resume_overrides::{resumed, ResumeOverrides};
use crate::store::Session;
use anyhow::Result;
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::path::Path;
use vmeter_model::run::{Planned, SessionMachine, SessionRecord};

/// The parts of an experiment that differ from those of others. [`carry_out`] does the rest.
///
/// The configuration is saved whole. The plan follows from the configuration, the machines and the
/// seed alone, so a session that is resumed has the plan that it was begun with, or a longer one.
pub trait Measurement {
    /// What the plan says of a run.
    type Planned: Planned;
    /// What was asked, and what was found out about the host for it.
    type Config: Serialize + DeserializeOwned;
    /// Carries out the runs of the machines that were prepared.
    type Runner: Runner<Self::Planned>;

    /// The configuration of a session that begins.
    ///
    /// # Errors
    /// Class usage: options that exclude each other.
    fn config(&self) -> Result<Self::Config>;

    /// Notes the options given beside `--resume` that differ from `begun`.
    fn note_given(&self, begun: &Self::Config, given: &mut ResumeOverrides);

    /// Changes what a session that is resumed may have more of, such as runs.
    fn grow(&self, config: &mut Self::Config);

    /// Prepares the machines: how they are saved, and what runs them. No folder exists yet, so a
    /// host that cannot run them leaves none. A session that is resumed has its machines in
    /// `record`.
    ///
    /// # Errors
    /// Class usage: a machine that is not valid. Class host: one that this host cannot run.
    fn prepare(
        &self,
        config: &mut Self::Config,
        record: &SessionRecord<Self::Planned>,
        watch: &mut Watch<'_>,
    ) -> Result<(Vec<SessionMachine>, Self::Runner)>;

    /// Plans the runs of the record's machines, and the part of a shard.
    ///
    /// # Errors
    /// Class usage: a plan that cannot be cut into shards.
    fn plan(
        &self,
        config: &Self::Config,
        runner: &Self::Runner,
        record: &mut SessionRecord<Self::Planned>,
    ) -> Result<()>;

    /// Warns about what the plan cannot show, and makes what takes long, once the folder exists.
    ///
    /// # Errors
    /// Class host: what this host cannot do.
    fn start(
        &self,
        config: &mut Self::Config,
        runner: &mut Self::Runner,
        session: &mut Session<Self::Planned>,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let _ = (config, runner, session, watch);
        Ok(())
    }

    /// True if the finished runs call for more, which the configuration then says.
    ///
    /// # Errors
    /// When the session's folder cannot be read.
    fn extend(&self, config: &mut Self::Config, session: &Session<Self::Planned>) -> Result<bool> {
        let _ = (config, session);
        Ok(false)
    }
}

/// Begins or resumes a session of `kind`, and runs it to its end; `options` say how runs are repeated.
///
/// # Errors
/// As the methods of [`Measurement`]; options that differ from those of the session that is
/// resumed; a folder that cannot be written; an interruption (finished runs are saved).
pub fn carry_out<M: Measurement>(
    kind: &str,
    options: &RunOptions,
    asked: &M,
    watch: &mut Watch<'_>,
) -> Result<Session<M::Planned>> {
    let saved = resumed(kind, options, watch, |session, given| {
        asked.note_given(&session.asked()?, given);
        Ok(())
    })?;
    let mut config = match &saved {
        None => asked.config()?,
        Some(session) => {
            let mut config = session.asked()?;
            asked.grow(&mut config);
            config
        }
    };
    if let Some(session) = saved.as_ref().filter(|session| session.record.plan.is_empty()) {
        return Err(usage(format!(
            "{}: session.json has no plan, so vmeter does not know which runs to make: start \
             again without --resume",
            session.dir.display()
        )));
    }
    let begun = saved.as_ref().map_or_else(|| record(kind, options), |s| s.record.clone());
    let (machines, mut runner) = asked.prepare(&mut config, &begun, watch)?;
    if let Some(session) = &saved {
        identity::check_provenance(&session.dir, &session.record, &machines)?;
    }
    let mut planned = SessionRecord { machines, ..begun };
    planned.asked = serde_json::to_value(&config)?;
    let dir = saved.as_ref().map(|session| session.dir.as_path());
    lengthen(asked, &config, &runner, &mut planned, dir)?;
    let mut session = match saved {
        None => begin(planned, options, watch)?,
        Some(mut session) => {
            session.record = planned;
            session.take_over()?;
            session.save()?;
            session
        }
    };
    asked.start(&mut config, &mut runner, &mut session, watch)?;
    loop {
        execute(&session, &mut runner, watch)?;
        let more = asked.extend(&mut config, &session)?;
        session.record.asked = serde_json::to_value(&config)?;
        if more {
            let dir = session.dir.clone();
            lengthen(asked, &config, &runner, &mut session.record, Some(&dir))?;
        }
        session.save()?;
        if !more {
            return Ok(session);
        }
    }
}

/// Plans anew, and refuses a plan that does not begin with the one that was.
fn lengthen<M: Measurement>(
    asked: &M,
    config: &M::Config,
    runner: &M::Runner,
    record: &mut SessionRecord<M::Planned>,
    dir: Option<&Path>,
) -> Result<()> {
    let begun = record.plan.clone();
    asked.plan(config, runner, record)?;
    let Some(dir) = dir.filter(|_| !record.plan.starts_with(&begun)) else { return Ok(()) };
    let each = |warmup: bool| {
        begun.iter().filter(|run| run.machine() == 0 && run.warmup() == warmup).count()
    };
    Err(usage(format!(
        "{} was begun with {} runs and {} warm-ups of each machine: resume it with more --runs, or without --runs and --warmup",
        dir.display(),
        each(false),
        each(true)
    )))
}
