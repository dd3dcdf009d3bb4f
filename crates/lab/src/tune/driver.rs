//! Boots what the search wants: machines are made as they are needed, and each boot is kept.

use super::config::{with, Config, ORIGINAL};
use super::search::Next;
use crate::booter::Recorder;
use crate::boots::Boots;
use crate::findings::machine_builder;
use crate::prepare::{prepare, Prepared};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use vmeter_machine::argv;
use vmeter_model::run::{Outcome, PlannedRun};
use vmeter_model::{MachineSpec, RunRecord};
use vmeter_session::failure::{failure, usage, Class};
use vmeter_session::{cache_dir, identity, one_run, Runner, Session, Watch};

/// A candidate's boot takes so many times as long as the original's at most, and so long more, s.
const PATIENCE: (f64, f64) = (5.0, 10.0);

/// A tuning on its way.
pub(crate) struct Driver {
    /// The session.
    pub session: Session,
    recorder: Recorder,
    cache: PathBuf,
    /// Runs that are on disk.
    finished: BTreeSet<u32>,
    /// Machines that failed: they are not booted again.
    failed: BTreeSet<String>,
}

impl Driver {
    /// Takes up a session.
    ///
    /// # Errors
    /// A machine that can't be described any more, or is another one by now.
    pub fn open(mut session: Session) -> Result<Self> {
        let machines = session.record.machines.iter().map(|m| one(&m.label, &m.spec));
        let prepared = machines.collect::<Result<Vec<_>>>()?;
        let machines: Vec<_> = prepared.iter().map(|p| p.session.clone()).collect();
        identity::check_provenance(&session.dir, &session.record, &machines)?;
        session.record.machines = machines;
        session.save()?;
        let pin = session.record.pin.clone();
        let mut driver = Driver {
            recorder: Recorder::of(prepared, pin.as_deref())?,
            cache: cache_dir()?,
            finished: BTreeSet::new(),
            failed: BTreeSet::new(),
            session,
        };
        let (runs, _) = driver.session.finished()?;
        runs.iter().for_each(|(_, run)| driver.note(run));
        Ok(driver)
    }

    fn note(&mut self, run: &RunRecord) {
        self.finished.insert(run.index);
        if run.outcome != Outcome::Done {
            self.failed.insert(run.label.clone());
        }
    }

    /// Carries out what is left of the plan.
    ///
    /// # Errors
    /// An interruption, a run that can't be begun, a full disk; the original fails.
    pub fn carry_out(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let plan = self.session.record.plan.clone();
        watch.progress.begin("tune", plan.len(), self.finished.len());
        for (index, planned) in plan.iter().enumerate() {
            let index = u32::try_from(index).context("too many runs")?;
            let label = self.label(planned.machine)?;
            if self.finished.contains(&index) || self.failed.contains(&label) {
                continue;
            }
            let mut boots = Boots(&self.recorder);
            let run = one_run(&self.session, &mut boots, index, planned, watch);
            let run = run.inspect_err(|error| {
                watch.progress.end();
                self.session.withdraw(error);
            })?;
            watch.progress.run(&run.label, &boots.summary(&run));
            self.note(&run);
        }
        watch.progress.end();
        Ok(())
    }

    fn label(&self, machine: usize) -> Result<String> {
        let found = self.session.record.machines.get(machine);
        found
            .map(|m| m.label.clone())
            .ok_or_else(|| usage(format!("session.json: no machine {machine}")))
    }

    /// Adds a stage to the plan, with the machines that it needs.
    ///
    /// # Errors
    /// A machine that can't be described, a full disk.
    pub fn add(&mut self, next: &Next, asked: &mut Config, original_s: f64) -> Result<()> {
        let mut machines = Vec::new();
        for (label, ids) in &next.machines {
            machines.push(self.machine(label, ids, asked, original_s)?);
        }
        let plan = &mut self.session.record.plan;
        let from = plan.len();
        let planned = |machine, warmup| PlannedRun { machine, warmup, watch: next.watch };
        if next.warmup {
            plan.extend(machines.first().map(|machine| planned(*machine, true)));
        }
        let seed = self.session.record.seed.wrapping_add(from as u64);
        // Further boots of the first machine stand behind the others.
        let first = machines.first().copied().context("no machine")?;
        let each = machines.len() + next.replicas.max(1) - 1;
        let slots = vmeter_stats::plan(each, 0, next.blocks, seed);
        let machine = |at: usize| machines.get(at).copied().unwrap_or(first);
        plan.extend(slots.iter().map(|slot| planned(machine(slot.machine), false)));
        let number = |at: usize| u32::try_from(at).context("too many runs");
        let (from, to) = (number(from)?, number(plan.len())?);
        let base = next.machines.first().map(|(label, _)| label.clone()).unwrap_or_default();
        let (kind, replicas) = (next.kind.clone(), next.replicas);
        asked.stages.push(super::config::Stage { kind, from, to, base, replicas });
        self.session.record.asked = serde_json::to_value(&asked)?;
        self.session.save()
    }

    /// The session's machine with these candidates, which is made if there is none.
    fn machine(
        &mut self,
        label: &str,
        ids: &[String],
        asked: &mut Config,
        original_s: f64,
    ) -> Result<usize> {
        if let Some(known) = self.session.record.machines.iter().position(|m| m.label == label) {
            return Ok(known);
        }
        let base = self.recorder.machines.first().context("no machine")?;
        let made = with(&asked.base, &base.machine, ids, &self.cache);
        let spec = made.map_err(|why| failure(Class::Host, format!("{label}: {why}")))?;
        let patience = (PATIENCE.0 * original_s + PATIENCE.1).ceil() as u32;
        let timeout = spec.timeout_s.map_or(patience, |s| s.min(patience));
        let spec = MachineSpec { timeout_s: Some(timeout), ..spec };
        let prepared = one(label, &spec)?;
        self.session.record.machines.push(prepared.session.clone());
        self.recorder.machines.push(prepared);
        asked.sets.insert(label.to_owned(), ids.to_vec());
        Ok(self.session.record.machines.len() - 1)
    }
}

/// A machine, ready to be booted; vmeter's own init is known by the initrd's place.
///
/// # Errors
/// As [`prepare`].
pub(crate) fn one(label: &str, spec: &MachineSpec) -> Result<Prepared> {
    let cache = cache_dir()?;
    let mut prepared = prepare(label, spec, &cache)?;
    prepared.machine.own_init |= is_own(&prepared, &cache);
    Ok(prepared)
}

fn is_own(prepared: &Prepared, cache: &Path) -> bool {
    let named = argv::values(&prepared.machine.argv, "initrd").pop().map(PathBuf::from);
    machine_builder::is_own(&named, cache)
}

/// The machine as a command line: what options describe is what they are turned into. One that is played
/// from a script stays as it is.
///
/// # Errors
/// As [`prepare`].
pub(crate) fn as_command(given: &MachineSpec) -> Result<(MachineSpec, Prepared)> {
    let prepared = one(ORIGINAL, given)?;
    if !given.command.is_empty() || prepared.machine.script.is_some() {
        return Ok((given.clone(), prepared));
    }
    let base = MachineSpec {
        command: prepared.machine.argv_text(),
        until: given.until.clone(),
        mark: given.mark.clone(),
        timeout_s: given.timeout_s,
        no_inject: given.no_inject,
        end_vm: given.end_vm,
        ..MachineSpec::default()
    };
    let prepared = one(ORIGINAL, &base)?;
    Ok((base, prepared))
}
