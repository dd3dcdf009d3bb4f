//! `--bisect`: which build is run next, and the runs that tell how large the step is.

use super::super::added::{Added, Sizing};
use super::super::decision;
use super::super::sizing;
use super::Search;
use anyhow::{Context, Result};
use vmeter_model::run::PlannedRun;
use vmeter_session::Watch;
use vmeter_stats::rng::Rng;
use vmeter_stats::{Answer, Bisection};

impl Search<'_> {
    pub(super) fn bisect(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let mut bisection = decision::fresh(self.record);
        let mut seen = self.observe(&mut bisection, 0);
        loop {
            self.skip_failing(&mut bisection);
            let Some(commit) = bisection.next_index() else {
                if self.size(&bisection, watch)? {
                    continue;
                }
                return Ok(());
            };
            let Some(machine) = self.machine((commit, self.next_build(commit)), watch)? else {
                bisection.skip(commit);
                continue;
            };
            let beside = if self.record.reference { self.reference(watch)? } else { None };
            self.warm([Some(machine), beside].into_iter().flatten())?;
            self.plan_sample(machine, beside)?;
            self.outstanding(watch)?;
            let now = self.observe(&mut bisection, seen);
            if now == seen {
                bisection.skip(commit);
            }
            seen = now;
        }
    }

    fn skip_failing(&self, bisection: &mut Bisection) {
        for commit in 0..self.record.commits.len() {
            if self.is_failing(commit) {
                bisection.skip(commit);
            }
        }
    }

    /// Runs builds on either side of the step that was found; false if that is done, or nothing was.
    fn size(&mut self, bisection: &Bisection, watch: &mut Watch<'_>) -> Result<bool> {
        let Some(Answer::Changed { commits, .. }) = bisection.finished() else { return Ok(false) };
        let added = Added::of(&self.session.record);
        if !sizing::of(&added, &self.taken, &commits).is_empty() {
            return Ok(false);
        }
        let open = self.candidates(&commits);
        let sides = sizing::chosen(open, |of| self.machine(of, watch))?;
        if sides.iter().any(Vec::is_empty) {
            return Ok(false);
        }
        self.warm(sides.concat().into_iter())?;
        let exact = self.is_exact()?;
        let mut own = Sizing { commits, sides, ..Sizing::default() };
        let each = own.runs_each(&added, &self.taken, exact);
        let plan = &self.session.record.plan;
        let is_new = |m: &usize| !exact || !plan.iter().any(|p| !p.warmup && p.machine == *m);
        let machines: Vec<usize> = own.sides.concat().into_iter().filter(is_new).collect();
        own.runs = self.plan_more(&machines, each)?;
        self.note_added(|added| added.sizing.push(own))?;
        self.session.save()?;
        self.outstanding(watch)?;
        Ok(true)
    }

    /// Virtual time is the same each time.
    fn is_exact(&self) -> Result<bool> {
        let (finished, _) = self.session.finished()?;
        Ok(finished.iter().all(|(_, run)| run.icount))
    }

    /// The builds on either side of a step, nearest first, and whether each is there.
    fn candidates(&self, guilty: &[usize]) -> [sizing::Candidates; 2] {
        let (first, last) = (guilty[0], guilty[guilty.len() - 1]);
        let builds = 1..=self.record.builds.max(1);
        let side = |commits: &mut dyn Iterator<Item = usize>| -> sizing::Candidates {
            commits
                .filter(|commit| !self.is_failing(*commit))
                .flat_map(|commit| builds.clone().map(move |build| (commit, build)))
                .map(|of| (of, self.machines.contains_key(&of)))
                .collect()
        };
        [side(&mut (0..first).rev()), side(&mut (last..self.record.commits.len()))]
    }

    /// Shows the search what it has not seen of what the runs say; how much there is.
    fn observe(&self, bisection: &mut Bisection, seen: usize) -> usize {
        let all = decision::observations(&Added::of(&self.session.record), &self.taken);
        for (commit, build, value) in all.iter().skip(seen) {
            bisection.observe_build(*commit, *build, *value);
        }
        all.len()
    }

    /// The build of a commit that has the fewest samples; references are none.
    fn next_build(&self, commit: usize) -> u32 {
        let all = decision::observations(&Added::of(&self.session.record), &self.taken);
        let runs =
            |build: &u32| all.iter().filter(|(c, b, _)| (*c, *b) == (commit, *build)).count();
        (1..=self.record.builds.max(1)).min_by_key(runs).unwrap_or(1)
    }

    /// The machine of the good end: the first commit that can be measured.
    fn reference(&mut self, watch: &mut Watch<'_>) -> Result<Option<usize>> {
        for commit in 0..self.record.commits.len() {
            let machine = self.machine((commit, 1), watch)?;
            if machine.is_some() {
                return Ok(machine);
            }
        }
        Ok(None)
    }

    /// Plans a sample, and the reference before or after it by a coin, so that neither gains by its
    /// place.
    fn plan_sample(&mut self, machine: usize, beside: Option<usize>) -> Result<()> {
        let at = u32::try_from(self.session.record.plan.len()).context("too many runs")?;
        let mut pair = vec![machine];
        if let Some(reference) = beside {
            let coin = Rng::new(self.session.record.seed.wrapping_add(u64::from(at))).below(2);
            pair.insert(coin, reference);
            let pair = [at + 1 - coin as u32, at + coin as u32];
            self.note_added(|added| added.references.push(pair))?;
        }
        let planned: Vec<PlannedRun> =
            pair.into_iter().map(|machine| self.planned(machine, false)).collect();
        self.session.record.plan.extend(planned);
        self.session.save()
    }
}
