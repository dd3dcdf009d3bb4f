//! A tuning's boots as they are on disk.

use super::config::Stage;
use super::inventory::Inventory;
use super::predict::Watched;
use crate::blocks::{pairs, ByBlock};
use crate::findings::catalogue::Part;
use crate::phrases::ended_text;
use anyhow::Result;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use vmeter_model::run::{Outcome, RunRecord, SessionMachine, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_session::Session;
use vmeter_stats::race::Standing as Raced;
use vmeter_stats::Race;

/// The rest of a boot tells how fast the host was if it is more than this share of the boot.
pub(crate) const TELLING: f64 = 0.1;

/// Watched boots that were read already, by their numbers.
pub(crate) type Read = RefCell<BTreeMap<u32, Rc<Seen>>>;

/// All finished boots, by their numbers.
#[derive(Debug)]
pub(crate) struct Boots<'a> {
    read: &'a Read,
    all: BTreeMap<u32, (PathBuf, RunRecord)>,
    machines: Vec<SessionMachine>,
    plan: Vec<usize>,
}

/// Pairs of boots of two machines, s.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Pairs {
    /// Of wall time.
    pub wall: Vec<(f64, f64)>,
    /// Of the VMM's CPU time, which a busy host leaves as it is.
    pub cpu: Vec<(f64, f64)>,
    /// Of boots that differ only in the parts that were predicted to change: the rest of both boots tells how
    /// fast the host was, and is taken to be alike. Watched boots have them.
    pub parts: Vec<(f64, f64)>,
}

impl Pairs {
    /// Adds those of another look.
    pub fn extend(&mut self, more: Pairs) {
        self.wall.extend(more.wall);
        self.cpu.extend(more.cpu);
        self.parts.extend(more.parts);
    }

    /// What they say of (without, with). Each of the three has a third of the chance of error. That a step
    /// helps may be shown by the wall times, or by the predicted parts or the CPU times if the wall times lean the
    /// same way. That it is not worth it may be shown by the wall times, or by the predicted parts if the wall times do
    /// not contradict.
    pub fn say(&self, race: Race) -> Raced {
        let third = Race { comparisons: 3 * race.comparisons.max(1), ..race };
        let [wall, cpu, parts] =
            [&self.wall, &self.cpu, &self.parts].map(|pairs| third.decide(pairs));
        let lean: f64 = self.wall.iter().map(|(without, with)| (without / with).ln()).sum();
        let helps = |raced: &Raced| *raced == Raced::Helps && lean > 0.0;
        match wall {
            Raced::Helps | Raced::NotWorth => wall,
            _ if [&cpu, &parts].into_iter().any(helps) => Raced::Helps,
            _ if parts == Raced::NotWorth && !gains(&self.wall) => Raced::NotWorth,
            open => open,
        }
    }

    /// True if (without, with) differ for the better by any of the three, at the level of one comparison and one
    /// look.
    pub fn leans(&self) -> bool {
        [&self.wall, &self.cpu, &self.parts].into_iter().any(|pairs| gains(pairs))
    }

    /// What (without, with) differ by: in the predicted parts where all boots were watched, or in wall time.
    pub fn clearest(&self) -> &[(f64, f64)] {
        match self.parts.len() == self.wall.len() {
            true => &self.parts,
            false => &self.wall,
        }
    }

    /// The differences of [`Self::clearest`], s.
    pub fn saved(&self) -> Vec<f64> {
        self.clearest().iter().map(|(without, with)| without - with).collect()
    }
}

/// True if the second of each pair is shorter beyond noise, at the level of one comparison.
fn gains(pairs: &[(f64, f64)]) -> bool {
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
    logs.len() > 2 && vmeter_stats::estimate_signed(&logs).ci95[0] > 0.0
}

/// What a watched boot shows.
#[derive(Debug)]
pub(crate) struct Seen {
    /// What its time was spent on.
    pub watched: Watched,
    /// What the guest has.
    pub inventory: Inventory,
}

impl<'r> Boots<'r> {
    /// Reads them.
    ///
    /// # Errors
    /// When the session's folder cannot be read.
    pub fn of(session: &Session, read: &'r Read) -> Result<(Self, Vec<String>)> {
        let (finished, warnings) = session.finished()?;
        let all = finished.into_iter().map(|(dir, run)| (run.index, (dir, run))).collect();
        let machines = session.record.machines.clone();
        let plan = session.record.plan.iter().map(|planned| planned.machine).collect();
        Ok((Boots { read, all, machines, plan }, warnings))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// True if all of the plan is there, but for machines that failed.
    pub fn is_whole(&self) -> bool {
        let there = |(index, machine): (u32, &usize)| {
            let label = self.machines.get(*machine).map_or("", |m| m.label.as_str());
            self.all.contains_key(&index) || self.has_failed(label)
        };
        (0u32..).zip(&self.plan).all(there)
    }

    /// What they took, s: from each one's beginning until vmeter had read what it left.
    pub fn took_s(&self) -> f64 {
        let of = |run: &RunRecord| {
            let ends = run.clocks.first().zip(run.clocks.last());
            let whole = ends.map_or(0, |(a, b)| b.monotonic_ns - a.monotonic_ns);
            seconds(whole.max(run.total_ns))
        };
        self.all.values().map(|(_, run)| of(run)).sum()
    }

    fn of_stage<'a>(&'a self, stage: &'a Stage) -> impl Iterator<Item = &'a (PathBuf, RunRecord)> {
        self.all.range(stage.from..stage.to).map(|(_, run)| run).filter(|(_, run)| !run.warmup)
    }

    /// A stage's figures of a machine by block: boots that reached their end.
    fn figures<const N: usize>(
        &self,
        stage: &Stage,
        label: &str,
        of: impl Fn(&Path, &RunRecord) -> Option<[f64; N]>,
    ) -> [ByBlock; N] {
        let machine = self.machines.iter().position(|m| m.label == label);
        let own = (stage.from..stage.to).filter(|index| {
            self.plan.get(*index as usize).copied() == machine && machine.is_some()
        });
        let done = |index: u32| {
            let (dir, run) = self.all.get(&index)?;
            (run.outcome == Outcome::Done).then(|| of(dir, run))?
        };
        // The first machine of a stage may boot several times in a block.
        let each = if stage.base == label { stage.replicas.max(1) } else { 1 };
        let mut blocks: BTreeMap<usize, Vec<[f64; N]>> = BTreeMap::new();
        for (nth, index) in own.enumerate() {
            if let Some(figures) = done(index) {
                blocks.entry(nth / each).or_default().push(figures);
            }
        }
        // A boot that took three times as long moves no median of three.
        let centre = |all: &[[f64; N]], at: usize| {
            vmeter_stats::median(&all.iter().map(|figures| figures[at]).collect::<Vec<_>>())
        };
        std::array::from_fn(|at| blocks.iter().map(|(n, all)| (*n, centre(all, at))).collect())
    }

    /// A stage's pairs of two machines, block by block, which differ by candidates that were predicted to change
    /// `parts`.
    pub fn pairs(&self, stage: &Stage, a: &str, b: &str, parts: &[Part]) -> Pairs {
        let times = |label| {
            self.figures(stage, label, |_, run| Some([seconds(run.total_ns), run.usage.cpu_s()]))
        };
        let ([wall_a, cpu_a], [wall_b, cpu_b]) = (times(a), times(b));
        Pairs {
            wall: pairs(&wall_a, &wall_b).0,
            cpu: pairs(&cpu_a, &cpu_b).0,
            parts: self.parts(stage, a, b, parts),
        }
    }

    /// The pairs' lengths if the rest of both boots, without `parts`, took as long.
    fn parts(&self, stage: &Stage, a: &str, b: &str, parts: &[Part]) -> Vec<(f64, f64)> {
        let split = |dir: &Path, run: &RunRecord| {
            if run.watch == WatchLevel::None {
                return None;
            }
            let (part, rest) = self.seen_in(dir, run).watched.split(parts);
            (rest > TELLING * (part + rest)).then_some([part / rest, rest])
        };
        let figures = |label| self.figures(stage, label, split);
        let ([share_a, rest_a], [share_b, rest_b]) = (figures(a), figures(b));
        let (shares, (rests, _)) = (pairs(&share_a, &share_b).0, pairs(&rest_a, &rest_b));
        let one = |((a, b), rest): (&(f64, f64), (f64, f64))| {
            let rest = (rest.0 + rest.1) / 2.0;
            (rest * (1.0 + a), rest * (1.0 + b))
        };
        shares.iter().zip(rests).map(one).collect()
    }

    /// What a watched boot shows; each is read once.
    fn seen_in(&self, dir: &Path, run: &RunRecord) -> Rc<Seen> {
        let mut known = self.read.borrow_mut();
        Rc::clone(known.entry(run.index).or_insert_with(|| Rc::new(seen(dir, run))))
    }

    /// How the first boot of a machine in a stage ended that did not reach its end, in words.
    pub fn failure(&self, stage: &Stage, label: &str) -> Option<String> {
        let own =
            |run: &&(PathBuf, RunRecord)| run.1.label == label && run.1.outcome != Outcome::Done;
        let (dir, run) = self.of_stage(stage).find(own)?;
        let text = ended_text(&run.outcome, run.end.as_ref()).unwrap_or_default();
        let (events, _) = vmeter_record::decode::events(dir, run);
        let inventory = Inventory::of(run, &events);
        Some(match inventory.last_line().filter(|line| !text.contains(line)) {
            Some(line) => format!("{text}; the last line seen is: {line}"),
            None => text,
        })
    }

    /// True if a machine failed in any boot.
    pub fn has_failed(&self, label: &str) -> bool {
        let failed = |run: &RunRecord| run.label == label && run.outcome != Outcome::Done;
        self.all.values().any(|(_, run)| failed(run))
    }

    /// What a stage's watched boots of a machine show, those that reached their end.
    pub fn seen(&self, stage: &Stage, label: &str) -> Vec<Rc<Seen>> {
        let own = |run: &&(PathBuf, RunRecord)| {
            let (_, run) = run;
            run.label == label && run.outcome == Outcome::Done && run.watch != WatchLevel::None
        };
        let read = |(dir, run): &(PathBuf, RunRecord)| self.seen_in(dir, run);
        self.of_stage(stage).filter(own).map(read).collect()
    }
}

fn seen(dir: &Path, run: &RunRecord) -> Seen {
    let (events, _) = vmeter_record::decode::events(dir, run);
    let timeline = vmeter_timeline::build(&events, run);
    let line = timeline.command_line.clone().unwrap_or_default();
    let words = line.split_whitespace().map(str::to_owned).collect();
    let inventory = Inventory::of(run, &events);
    Seen { watched: Watched::of(timeline, &events, words), inventory }
}
