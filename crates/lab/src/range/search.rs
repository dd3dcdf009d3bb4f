//! Carrying a range out: build, boot, decide what is next; all that is decided follows from
//! what is on disk, so a range that is resumed goes on as if it had not been interrupted.

mod noisy;

use super::added::{Added, Sizing};
use super::builds::{Build, Builds};
use super::decision::Taken;
use super::detect::Needs;
use super::{decision, levels, place, sizing, template, times};
use crate::booter::Recorder;
use crate::boots::{BootRequest, Booter, Boots};
use crate::prepare::prepare;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use vmeter_model::range::RangeRecord;
use vmeter_model::run::{Outcome, PlannedRun, RunRecord, SessionMachine};
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
    /// The session's machine of each commit's builds that have one.
    machines: BTreeMap<(usize, u32), usize>,
    /// The booter's machine of each of the session's that was prepared.
    prepared: BTreeMap<usize, usize>,
    /// Runs that are on disk.
    finished: BTreeSet<u32>,
    /// Runs of each machine that failed.
    failures: BTreeMap<usize, usize>,
    /// What the runs took.
    taken: Taken,
}

impl<'a> Search<'a> {
    /// Takes up what is on disk.
    pub fn open(session: Session, record: &'a RangeRecord) -> Result<Self> {
        let references = template::references(&record.machine)?;
        let builds = Builds::new(record, &session.dir, references);
        let mut search = Search {
            booter: Recorder::of(Vec::new(), session.record.pin.as_deref())?,
            session,
            record,
            builds,
            machines: BTreeMap::new(),
            prepared: BTreeMap::new(),
            finished: BTreeSet::new(),
            failures: BTreeMap::new(),
            taken: Taken::new(),
        };
        search.take_up()?;
        Ok(search)
    }

    fn take_up(&mut self) -> Result<()> {
        let labels: Vec<String> =
            self.session.record.machines.iter().map(|m| m.label.clone()).collect();
        for (machine, label) in labels.iter().enumerate() {
            let commit = self.record.of_label(label).ok_or_else(|| {
                usage(format!("session.json names {label}, which is no commit of range.json"))
            })?;
            self.machines.insert(commit, machine);
        }
        let (runs, _) = self.session.finished()?;
        let (own, _) = decision::comparable(&self.session.record, runs.iter().map(|(_, run)| run));
        for (dir, run) in &runs {
            self.finished.insert(run.index);
            let Some(of) = self.record.of_label(&run.label) else { continue };
            let foreign = self.record.bisect && !own.contains(&run.index);
            let sample = times::sample(self.record, dir, run);
            self.note(of, run.index, sample, run.warmup || foreign);
        }
        Ok(())
    }

    /// Takes note of a finished run; none for one that failed.
    fn note(&mut self, of: (usize, u32), run: u32, sample: Option<f64>, warmup: bool) {
        match sample {
            Some(_) if warmup => {}
            Some(sample) => {
                self.taken.insert(run, (of.0, of.1, sample));
            }
            None => *self.failures.entry(of.0).or_default() += 1,
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
            (None, false) => {
                let each = super::detect::runs_each(self.record, &self.session.record)
                    + self.record.warmup;
                n * (each * self.record.builds.max(1)) as usize
            }
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

    /// Builds what this shard's runs need, then carries them out. Commits that another shard
    /// builds now come last: where shards share their builds, each then builds a part.
    fn shard(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let mut busy = Vec::new();
        for machine in super::shards::order(&self.session.record, &self.finished) {
            let Some(of) = self.of_machine(machine) else { continue };
            if self.busy(of, watch)? {
                busy.push(of);
            }
        }
        for of in busy {
            self.machine(of, watch)?;
        }
        self.outstanding(watch)
    }

    /// The commit and build that a machine of the session is of.
    fn of_machine(&self, machine: usize) -> Option<(usize, u32)> {
        self.machines.iter().find(|(_, at)| **at == machine).map(|(of, _)| *of)
    }

    fn build_of(&self, (commit, number): (usize, u32)) -> Result<Build<'a>> {
        let record: &'a RangeRecord = self.record;
        Ok(Build { commit: record.commits.get(commit).context("no such commit")?, number })
    }

    /// Builds a commit; true if another shard is at it.
    fn busy(&mut self, of: (usize, u32), watch: &mut Watch<'_>) -> Result<bool> {
        if watch.interrupt.is_raised() {
            return Err(self.interrupted());
        }
        let what = self.build_of(of)?;
        if self.builds.done(what).is_none() {
            watch.progress.note(&format!("building {} {}", what.label(), what.commit.subject));
        }
        Ok(self.builds.build_unless_busy(what, watch)?.is_none())
    }

    /// Builds all, then boots all in turn.
    fn all(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let machines = self.builds_of_all(0..self.record.commits.len(), watch)?;
        self.in_turn(&machines, watch)?;
        while self.record.detect.is_some() && self.more_runs()? {
            self.in_turn(&machines, watch)?;
        }
        if self.record.place {
            self.count_slow(watch)?;
            self.place(watch)?;
            self.size_steps(watch)?;
        }
        Ok(())
    }

    /// Runs builds on either side of each step that was found, for its size; again where these
    /// do not show it.
    fn size_steps(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        for _ in 0..sizing::TRIES {
            let open = levels::to_size(self.record, &self.session)?;
            let most = sizing::most_runs(place::first_pass(&self.session), open.len());
            for step in open {
                self.size_step(step, most, watch)?;
            }
            self.session.save()?;
            self.outstanding(watch)?;
        }
        Ok(())
    }

    /// Runs all anew, to see whether slow boots are as frequent as they seemed.
    fn count_slow(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        while super::slow::is_open(self.record, &self.session)? {
            let machines = self.builds_of_all(0..self.record.commits.len(), watch)?;
            let runs = self.plan_more(&machines, self.half())?;
            self.note_added(|added| added.slow.push(runs))?;
            self.session.save()?;
            self.outstanding(watch)?;
        }
        Ok(())
    }

    /// Half of the runs of a build in the first pass.
    fn half(&self) -> usize {
        let each = super::detect::runs_each(self.record, &self.session.record);
        each.div_ceil(2).max(1) as usize
    }

    /// Plans the runs that size a step, of builds that have not sized it, as far as there are some.
    fn size_step(
        &mut self,
        step: levels::ToSize,
        most: usize,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let added = Added::of(&self.session.record);
        let had: BTreeSet<usize> = added.builds_that_sized(&step.commits);
        let room = sizing::builds_each(most);
        let mut sides = [Vec::new(), Vec::new()];
        for (side, level) in sides.iter_mut().zip(step.levels) {
            let mut again = Vec::new();
            for commit in level {
                if side.len() < room {
                    let (old, new): (Vec<usize>, Vec<usize>) =
                        self.builds_of(commit, watch)?.into_iter().partition(|m| had.contains(m));
                    side.extend(new);
                    again.extend(old);
                }
            }
            side.extend(again.into_iter().take(room.saturating_sub(side.len())));
        }
        if sides.iter().any(Vec::is_empty) {
            return Ok(());
        }
        let sides = sides.map(|side| sizing::fill(&side, room));
        let machines = sides.concat();
        let each = sizing::runs_of_each(most, machines.len(), self.record.runs);
        let runs = self.plan_more(&machines, each)?;
        let sizing = Sizing { commits: step.commits, sides, runs };
        self.note_added(|added| added.sizing.push(sizing))
    }

    /// Plans as many more runs of each commit as the change to be found needs, but as many again
    /// at most; false if there are enough.
    fn more_runs(&mut self) -> Result<bool> {
        let (finished, _) = self.session.finished()?;
        if finished.iter().all(|(_, run)| run.icount) {
            return Ok(false);
        }
        let (times, commits) = times::timed(self.record, &self.session, &finished)?;
        let needs = levels::needs((self.record, &self.session), (&commits, &finished), &times);
        let builds = self.record.builds.max(1);
        let have = super::detect::runs_each(self.record, &self.session.record) * builds;
        let Some(Needs::Runs(wanted)) = needs else {
            return Ok(false);
        };
        let wanted = wanted.min(super::detect::MOST);
        if wanted <= have {
            return Ok(false);
        }
        self.note_added(|added| added.runs = Some(wanted.min(2 * have)))?;
        Ok(true)
    }

    /// Boots all of them in turn, as often as is wanted so far.
    fn in_turn(&mut self, machines: &[usize], watch: &mut Watch<'_>) -> Result<()> {
        let runs = super::detect::runs_each(self.record, &self.session.record) as usize;
        let warmup = self.record.warmup as usize;
        let seed = self.session.record.seed;
        let wanted: Vec<PlannedRun> = vmeter_stats::plan(machines.len(), warmup, runs, seed)
            .into_iter()
            .map(|slot| self.planned(machines[slot.machine], slot.warmup))
            .collect();
        // A longer plan of the same machines begins with the shorter one.
        let added = Added::of(&self.session.record);
        let had =
            self.session.record.plan.len() - added.further().min(self.session.record.plan.len());
        if had == self.session.record.plan.len() && wanted.starts_with(&self.session.record.plan) {
            self.session.record.plan = wanted;
        } else {
            self.session.record.plan.extend(wanted.into_iter().skip(had));
        }
        self.session.save()?;
        self.outstanding(watch)
    }

    /// Boots the commits about each step again, until it is known which commit it came with.
    fn place(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let each = self.half();
        loop {
            let wanted = levels::to_place(self.record, &self.session)?;
            let machines = self.builds_of_all(wanted, watch)?;
            if machines.is_empty() {
                return Ok(());
            }
            let runs = self.plan_more(&machines, each)?;
            self.note_added(|added| added.placing.push(runs))?;
            self.session.save()?;
            self.outstanding(watch)?;
        }
    }

    /// Plans more runs of each of these machines, in an order of their own behind what is planned;
    /// the first of them, and the one after the last.
    fn plan_more(&mut self, machines: &[usize], each: usize) -> Result<[u32; 2]> {
        let from = self.session.record.plan.len();
        let seed = self.session.record.seed.wrapping_add(from as u64);
        let slots = vmeter_stats::plan(machines.len(), 0, each, seed);
        let more: Vec<PlannedRun> =
            slots.into_iter().map(|s| self.planned(machines[s.machine], false)).collect();
        self.session.record.plan.extend(more);
        let number = |at: usize| u32::try_from(at).context("too many runs");
        Ok([number(from)?, number(self.session.record.plan.len())?])
    }

    fn planned(&self, machine: usize, warmup: bool) -> PlannedRun {
        PlannedRun { machine, warmup, watch: self.record.watch }
    }

    /// Plans the warm-ups of machines that had none.
    fn warm(&mut self, machines: impl Iterator<Item = usize>) -> Result<()> {
        for machine in machines {
            if !self.session.record.plan.iter().any(|p| p.machine == machine) {
                let warmups = (0..self.record.warmup).map(|_| self.planned(machine, true));
                let warmups: Vec<PlannedRun> = warmups.collect();
                self.session.record.plan.extend(warmups);
            }
        }
        self.session.save()
    }

    /// Notes with the session what is added to its plan.
    fn note_added(&mut self, note: impl FnOnce(&mut Added)) -> Result<()> {
        let mut added = Added::of(&self.session.record);
        note(&mut added);
        self.session.record.asked = serde_json::to_value(&added)?;
        Ok(())
    }

    /// The machines of all builds of these commits.
    fn builds_of_all(
        &mut self,
        commits: impl IntoIterator<Item = usize>,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<usize>> {
        let mut machines = Vec::new();
        for commit in commits {
            machines.extend(self.builds_of(commit, watch)?);
        }
        Ok(machines)
    }

    /// The machines of all builds of a commit.
    fn builds_of(&mut self, commit: usize, watch: &mut Watch<'_>) -> Result<Vec<usize>> {
        let mut machines = Vec::new();
        for build in 1..=self.record.builds.max(1) {
            machines.extend(self.machine((commit, build), watch)?);
        }
        Ok(machines)
    }

    /// The machine of a build, made if it is not; none where that failed.
    fn machine(&mut self, of: (usize, u32), watch: &mut Watch<'_>) -> Result<Option<usize>> {
        if self.is_failing(of.0) {
            return Ok(None);
        }
        let planned = self.machines.get(&of).copied();
        if let Some(ready) = planned.filter(|machine| self.prepared.contains_key(machine)) {
            return Ok(Some(ready));
        }
        if watch.interrupt.is_raised() {
            return Err(self.interrupted());
        }
        let what = self.build_of(of)?;
        let label = what.label();
        let known = self.builds.done(what).is_some();
        if !known {
            watch.progress.note(&format!("building {label} {}", what.commit.subject));
        }
        let build = self.builds.build(what, watch)?;
        if let Some(why) = &build.failure {
            if !known {
                let log = self.builds.log(what);
                watch.progress.warn(&format!(
                    "{label} cannot be measured and is skipped: {why} (see {})",
                    log.display()
                ));
            }
            return Ok(None);
        }
        let spec = template::filled(&self.record.machine, &self.builds.kept(what))?;
        let mut prepared = prepare(&label, &spec, &cache_dir()?)
            .map_err(|e| usage(format!("{label} was built, but: {e:#}")))?;
        prepared.session.parameters = super::shards::parameters(what.commit);
        if let Some(was) = planned.and_then(|at| self.session.record.machines.get(at)) {
            same_files(&self.session.dir, was, &prepared.session)?;
        }
        let record = &mut self.session.record;
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
        self.machines.insert(of, machine);
        Ok(Some(machine))
    }

    fn is_failing(&self, commit: usize) -> bool {
        self.failures.get(&commit).is_some_and(|n| *n >= FAILURES)
    }

    /// Carries out run `index` of the plan, if it is not on disk.
    fn boot(&mut self, index: usize, watch: &mut Watch<'_>) -> Result<()> {
        let number = u32::try_from(index).context("too many runs")?;
        let planned = *self.session.record.plan.get(index).context("no such run")?;
        let of = self.of_machine(planned.machine).ok_or_else(|| {
            usage(format!(
                "session.json: run {number} names a machine that belongs to no commit of this range"
            ))
        })?;
        let shard = self.session.record.shard.as_ref();
        let foreign = shard.is_some_and(|own| own.runs.binary_search(&number).is_err());
        if foreign || self.finished.contains(&number) || self.is_failing(of.0) {
            return Ok(());
        }
        let Some(machine) = self.machine(of, watch)? else { return Ok(()) };
        let slot = *self.prepared.get(&machine).context("a machine that was not prepared")?;
        let booter = Slotted { recorder: &self.booter, slot };
        let mut boots = Boots(&booter);
        let run = one_run(&self.session, &mut boots, number, &planned, watch)?;
        watch.progress.run(&run.label, &boots.summary(&run));
        self.finished.insert(number);
        let dir = self.session.run_dir(number);
        self.note(of, number, times::sample(self.record, &dir, &run), run.warmup);
        if run.outcome != Outcome::Done {
            let why = crate::boots::fatal_reason(&run).unwrap_or_default();
            watch.progress.warn(&format!("{why}: this commit is skipped"));
        } else if times::is_blind(self.record, &run) {
            let why = times::blindness();
            watch.progress.warn(&format!("{}: {why}: this commit is not compared", run.label));
        }
        Ok(())
    }

    fn interrupted(&self) -> anyhow::Error {
        failure(
            Class::Interrupted,
            format!(
                "interrupted; {}: continue with --resume {}",
                vmeter_session::are_saved(self.finished.len()),
                vmeter_base::shell::path(&self.session.dir)
            ),
        )
    }
}

/// Refuses a machine whose files are others than they were. What was kept lies in a shard's folder,
/// or in this one after a merge.
fn same_files(dir: &Path, was: &SessionMachine, now: &SessionMachine) -> Result<()> {
    let placeless = |all: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        let of = |text: &String| text.rsplit("/kept/").next().unwrap_or(text).to_owned();
        all.iter().map(|(what, text)| (what.clone(), of(text))).collect()
    };
    let (before, after) = (placeless(&was.provenance), placeless(&now.provenance));
    identity::same(dir, &identity::provenance(&now.label, &before, &after))
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
