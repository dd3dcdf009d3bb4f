//! Carrying a range out: build, boot, decide what is next; all that is decided follows from
//! what is on disk, so a range that is resumed goes on as if it had not been interrupted.

use super::builds::Builds;
use super::place::{self, Added};
use super::{decision, outcome, template, RangeOptions};
use crate::booter::Recorder;
use crate::boots::{BootRequest, Booter, Boots};
use crate::prepare::prepare;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::range::RangeRecord;
use vmeter_model::run::{Fault, Outcome, PlannedRun, RunRecord, SessionMachine};
use vmeter_session::failure::{failure, usage, Class};
use vmeter_session::{cache_dir, identity, one_run, Runner, Session, Watch};

/// Runs of one commit that may fail before it is left alone.
const FAILURES: usize = 1;

/// A range on its way.
pub(super) struct Search<'a> {
    session: Session,
    record: &'a RangeRecord,
    builds: Builds<'a>,
    booter: Recorder,
    prepare: Option<String>,
    /// The session's machine of each commit that has one.
    machines: BTreeMap<usize, usize>,
    /// The booter's machine of each of the session's that was prepared.
    prepared: BTreeMap<usize, usize>,
    /// Runs that are on disk.
    finished: BTreeSet<u32>,
    /// Runs of each machine that failed.
    failures: BTreeMap<usize, usize>,
    /// (commit, sample) in the order in which they were measured.
    samples: Vec<(usize, f64)>,
}

impl<'a> Search<'a> {
    /// Takes up what is on disk.
    pub fn open(session: Session, record: &'a RangeRecord, options: &RangeOptions) -> Result<Self> {
        let references = template::references(&record.machine)?;
        let builds = Builds::new(record, &session.dir, references);
        let pin = session.record.pin.as_deref().or(options.runs.pin.as_deref());
        let mut search = Search {
            booter: Recorder::of(Vec::new(), pin)?,
            prepare: session.record.prepare.clone().or(options.runs.prepare.clone()),
            session,
            record,
            builds,
            machines: BTreeMap::new(),
            prepared: BTreeMap::new(),
            finished: BTreeSet::new(),
            failures: BTreeMap::new(),
            samples: Vec::new(),
        };
        search.take_up()?;
        Ok(search)
    }

    fn take_up(&mut self) -> Result<()> {
        let labels: Vec<String> =
            self.session.record.machines.iter().map(|m| m.label.clone()).collect();
        for (machine, label) in labels.iter().enumerate() {
            let commits = &self.record.commits;
            let commit = commits.iter().position(|c| c.short() == label).ok_or_else(|| {
                usage(format!("session.json names {label}, which is no commit of range.json"))
            })?;
            self.machines.insert(commit, machine);
        }
        let (runs, _) = self.session.finished()?;
        // An older vmeter saved failures of its own.
        let counts = |run: &RunRecord| run.outcome.fault() != Some(Fault::Host);
        let (own, _) = decision::comparable(&self.session.record, runs.iter().map(|(_, run)| run));
        for (dir, run) in runs.iter().filter(|(_, run)| counts(run)) {
            self.finished.insert(run.index);
            let Some(commit) = outcome::commit_of(self.record, &run.label) else { continue };
            let foreign = self.record.bisect && !own.contains(&run.index);
            self.note(commit, outcome::sample(self.record, dir, run), run.warmup || foreign);
        }
        Ok(())
    }

    /// Takes note of a finished run; none for one that failed.
    fn note(&mut self, commit: usize, sample: Option<f64>, warmup: bool) {
        match sample {
            Some(_) if warmup => {}
            Some(sample) => self.samples.push((commit, sample)),
            None => *self.failures.entry(commit).or_default() += 1,
        }
    }

    /// Measures until there is an answer, and gives the session back.
    pub fn run(mut self, watch: &mut Watch<'_>) -> Result<Session> {
        let done = self.finished.len();
        let n = self.record.commits.len();
        let expected = match (&self.session.record.shard, self.record.bisect) {
            (Some(own), _) => own.runs.len(),
            // Four of each end, warm-ups, and some samples at each halving.
            (None, true) => 8 + 8 * (usize::BITS - n.leading_zeros()) as usize,
            (None, false) => n * (self.record.runs + self.record.warmup) as usize,
        };
        watch.progress.begin("range", expected.max(done), done);
        let ended = match (&self.session.record.shard, self.record.bisect) {
            (Some(_), _) => self.shard(watch),
            (None, bisect) => self.outstanding(watch).and_then(|()| {
                if bisect {
                    self.bisect(watch)
                } else {
                    self.all(watch)
                }
            }),
        };
        watch.progress.end();
        ended.inspect_err(|error| self.session.withdraw(error)).map(|()| self.session)
    }

    /// Runs that were planned and not finished: the first of a resumed range.
    fn outstanding(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        for index in 0..self.session.record.plan.len() {
            self.boot(index, watch)?;
        }
        Ok(())
    }

    fn bisect(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let mut bisection = decision::fresh(self.record);
        for (commit, sample) in &self.samples {
            bisection.observe(*commit, *sample);
        }
        for commit in 0..self.record.commits.len() {
            if self.is_hopeless(commit) {
                bisection.skip(commit);
            }
        }
        while let Some(commit) = bisection.next_index() {
            let Some(machine) = self.machine(commit, watch)? else {
                bisection.skip(commit);
                continue;
            };
            let taken = self.samples.len();
            let warm = self.session.record.plan.iter().any(|p| p.machine == machine);
            let warmups = if warm { 0 } else { self.record.warmup };
            self.plan(machine, warmups as usize, 1)?;
            self.outstanding(watch)?;
            match self.samples.get(taken..).unwrap_or_default() {
                [] => bisection.skip(commit),
                new => new.iter().for_each(|(c, sample)| bisection.observe(*c, *sample)),
            }
        }
        Ok(())
    }

    /// Builds what this shard's runs need, then carries them out. Commits that another shard
    /// builds now come last: where shards share their builds, each then builds a part.
    fn shard(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let mut busy = Vec::new();
        for commit in super::shards::order(&self.session.record, &self.finished) {
            if self.busy(commit, watch)? {
                busy.push(commit);
            }
        }
        for commit in busy {
            self.machine(commit, watch)?;
        }
        self.outstanding(watch)
    }

    /// Builds a commit; true if another shard is at it.
    fn busy(&mut self, commit: usize, watch: &mut Watch<'_>) -> Result<bool> {
        if watch.interrupt.is_raised() {
            return Err(self.interrupted());
        }
        let what = self.record.commits.get(commit).context("no such commit")?;
        if self.builds.done(what).is_none() {
            watch.progress.note(&format!("building {} {}", what.short(), what.subject));
        }
        Ok(self.builds.build_unless_busy(what, watch)?.is_none())
    }

    /// Builds all, then boots all in turn.
    fn all(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let mut machines = Vec::new();
        for commit in 0..self.record.commits.len() {
            machines.extend(self.machine(commit, watch)?);
        }
        let (warmup, runs) = (self.record.warmup as usize, self.record.runs as usize);
        let seed = self.session.record.seed;
        let wanted: Vec<PlannedRun> = vmeter_stats::plan(machines.len(), warmup, runs, seed)
            .into_iter()
            .map(|slot| self.planned(machines[slot.machine], slot.warmup))
            .collect();
        // A longer plan of the same machines begins with the shorter one.
        let added = Added::of(&self.session.record);
        let had =
            self.session.record.plan.len() - added.count().min(self.session.record.plan.len());
        if had == self.session.record.plan.len() && wanted.starts_with(&self.session.record.plan) {
            self.session.record.plan = wanted;
        } else {
            self.session.record.plan.extend(wanted.into_iter().skip(had));
        }
        self.session.save()?;
        self.outstanding(watch)?;
        if self.record.place {
            self.place(watch)?;
        }
        Ok(())
    }

    /// Boots the commits about each step again, until it is known which commit it came with.
    fn place(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let each = self.record.runs.div_ceil(2).max(1) as usize;
        loop {
            let wanted = place::next(self.record, &self.session)?;
            let mut machines = Vec::new();
            for commit in wanted {
                machines.extend(self.machine(commit, watch)?);
            }
            let from = self.session.record.plan.len();
            let seed = self.session.record.seed.wrapping_add(from as u64);
            let slots = vmeter_stats::plan(machines.len(), 0, each, seed);
            let more: Vec<PlannedRun> =
                slots.into_iter().map(|s| self.planned(machines[s.machine], false)).collect();
            if more.is_empty() {
                return Ok(());
            }
            self.session.record.plan.extend(more);
            let mut added = Added::of(&self.session.record);
            let number = |at: usize| u32::try_from(at).context("too many runs");
            added.placing.push([number(from)?, number(self.session.record.plan.len())?]);
            self.session.record.asked = serde_json::to_value(&added)?;
            self.session.save()?;
            self.outstanding(watch)?;
        }
    }

    fn planned(&self, machine: usize, warmup: bool) -> PlannedRun {
        PlannedRun { machine, warmup, watch: self.record.watch }
    }

    fn plan(&mut self, machine: usize, warmups: usize, runs: usize) -> Result<()> {
        let planned = (0..warmups + runs).map(|i| self.planned(machine, i < warmups));
        let planned: Vec<PlannedRun> = planned.collect();
        self.session.record.plan.extend(planned);
        self.session.save()
    }

    /// The machine of a commit, built if it is not; none where that failed.
    fn machine(&mut self, commit: usize, watch: &mut Watch<'_>) -> Result<Option<usize>> {
        if self.is_hopeless(commit) {
            return Ok(None);
        }
        let planned = self.machines.get(&commit).copied();
        if let Some(ready) = planned.filter(|machine| self.prepared.contains_key(machine)) {
            return Ok(Some(ready));
        }
        if watch.interrupt.is_raised() {
            return Err(self.interrupted());
        }
        let what = self.record.commits.get(commit).context("no such commit")?;
        let known = self.builds.done(what).is_some();
        if !known {
            watch.progress.note(&format!("building {} {}", what.short(), what.subject));
        }
        let build = self.builds.build(what, watch)?;
        if let Some(why) = &build.failure {
            if !known {
                let log = self.builds.log(&what.hash);
                watch.progress.warn(&format!(
                    "{} cannot be measured and is skipped: {why} (see {})",
                    what.short(),
                    log.display()
                ));
            }
            return Ok(None);
        }
        let spec = template::filled(&self.record.machine, &self.builds.kept(what))?;
        let mut prepared = prepare(what.short(), &spec, &cache_dir()?)
            .map_err(|e| usage(format!("{} was built, but: {e:#}", what.short())))?;
        prepared.session.parameters = super::shards::parameters(what);
        let record = &mut self.session.record;
        if let Some(was) = planned.and_then(|at| record.machines.get(at)) {
            // What was kept lies in a shard's folder, or in this one after a merge.
            let placeless = |all: &BTreeMap<String, String>| -> BTreeMap<String, String> {
                let of = |text: &String| text.rsplit("/kept/").next().unwrap_or(text).to_owned();
                all.iter().map(|(what, text)| (what.clone(), of(text))).collect()
            };
            let was = placeless(&was.provenance);
            let now = placeless(&prepared.session.provenance);
            identity::same(&self.session.dir, &identity::provenance(what.short(), &was, &now))?;
        }
        let saved = match planned.and_then(|machine| record.machines.get_mut(machine)) {
            // A shard's folder is its own: the others' machines name the files by {worktree}.
            Some(planned) if record.shard.is_some() => {
                let spec = std::mem::take(&mut planned.spec);
                *planned = SessionMachine { spec, ..prepared.session.clone() };
                true
            }
            Some(_) => false,
            None => {
                record.machines.push(prepared.session.clone());
                true
            }
        };
        let machine = planned.unwrap_or(record.machines.len() - 1);
        if saved {
            self.session.save()?;
        }
        self.prepared.insert(machine, self.booter.machines.len());
        self.booter.machines.push(prepared);
        self.machines.insert(commit, machine);
        Ok(Some(machine))
    }

    fn is_hopeless(&self, commit: usize) -> bool {
        self.failures.get(&commit).is_some_and(|n| *n >= FAILURES)
    }

    /// Carries out run `index` of the plan, if it is not on disk.
    fn boot(&mut self, index: usize, watch: &mut Watch<'_>) -> Result<()> {
        let number = u32::try_from(index).context("too many runs")?;
        let planned = *self.session.record.plan.get(index).context("no such run")?;
        let of = self.machines.iter().find(|(_, machine)| **machine == planned.machine);
        let (commit, _) = of.ok_or_else(|| {
            usage(format!("session.json: run {number} names a machine that no commit has"))
        })?;
        let commit = *commit;
        let shard = self.session.record.shard.as_ref();
        let foreign = shard.is_some_and(|own| own.runs.binary_search(&number).is_err());
        if foreign || self.finished.contains(&number) || self.is_hopeless(commit) {
            return Ok(());
        }
        let Some(machine) = self.machine(commit, watch)? else { return Ok(()) };
        let slot = *self.prepared.get(&machine).context("a machine that was not prepared")?;
        let booter = Slotted { recorder: &self.booter, slot };
        let prepare = self.prepare.as_deref();
        let mut boots = Boots(&booter);
        let run = one_run(&self.session, &mut boots, prepare, number, &planned, watch)?;
        watch.progress.run(&run.label, &boots.said(&run));
        self.finished.insert(number);
        let dir = self.session.run_dir(number);
        self.note(commit, outcome::sample(self.record, &dir, &run), run.warmup);
        if run.outcome != Outcome::Done {
            let why = crate::boots::hopeless(&run).unwrap_or_default();
            watch.progress.warn(&format!("{why}: this commit is skipped"));
        } else if outcome::is_blind(self.record, &run) {
            let why = outcome::blindness();
            watch.progress.warn(&format!("{}: {why}: this commit is not compared", run.label));
        }
        Ok(())
    }

    fn interrupted(&self) -> anyhow::Error {
        failure(
            Class::Interrupted,
            format!(
                "interrupted; {} finished runs are saved: go on with --resume {}",
                self.finished.len(),
                vmeter_base::shell::path(&self.session.dir)
            ),
        )
    }
}

/// The recorder, whose machines are numbered as they were prepared.
struct Slotted<'a> {
    recorder: &'a Recorder,
    slot: usize,
}

impl Booter for Slotted<'_> {
    fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord> {
        let planned = PlannedRun { machine: self.slot, ..*request.planned };
        self.recorder.boot(&BootRequest { planned: &planned, ..*request })
    }
}
