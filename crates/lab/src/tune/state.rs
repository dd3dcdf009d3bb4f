//! How far a tuning is: what its stages say of each candidate so far. Nothing is remembered that does not
//! follow from what is on disk.

use super::booted::{Boots, Pairs, Seen, TELLING};
use super::config::{candidate, in_order, Config, Group, Kind, Stage, ORIGINAL};
use super::inventory::{compare, difference};
use super::round::Round;
use crate::findings::catalogue::Part;
use std::rc::Rc;
use vmeter_model::tune::Keep;
use vmeter_model::Estimate;
use vmeter_render::quantity::{brief_percent, compact_seconds};
use vmeter_stats::race::Standing as Raced;
use vmeter_stats::{estimate_signed, Race};

/// Chance of a false "helps" among all comparisons of a round.
const ALPHA: f64 = 0.05;
/// Said of candidates that together save nothing beyond noise.
pub(crate) const NOTHING_PROVEN: &str = "nothing that is proven";
/// Candidates that are left out of a machine together, at most.
const GROUP: usize = 4;
/// A candidate that seems to save so many times what is worth it is a group of its own.
const LARGE: f64 = 2.0;

/// What is known of a candidate.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    /// Its id.
    pub id: String,
    /// What the watched boot says that it saves, s.
    pub predicted: Option<Estimate>,
    /// What came of it.
    pub fate: Fate,
    /// True if a machine with it was booted.
    pub booted: bool,
    /// What it saved in those parts of the boot alone, s.
    pub alone: Option<f64>,
    /// Boots without and with it, beside all other steps, s.
    pub pairs: Pairs,
    /// The same by runs that chose nothing.
    pub fresh: Pairs,
}

/// What came of a candidate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fate {
    /// It is in the race.
    Open,
    /// It is not taken, and why.
    Out(String),
    /// It is taken, and why.
    In(String),
}

/// How far it is.
pub(crate) struct State<'a> {
    /// What is asked, and what was done.
    pub asked: &'a Config,
    /// The boots.
    pub boots: &'a Boots<'a>,
    /// Each candidate.
    pub standings: Vec<Standing>,
    /// The original's watched boot.
    pub original: Option<Rc<Seen>>,
    /// Why there is none, in words.
    pub lost: Option<String>,
    /// Candidates of the machine that has all that are in the race, once one boots.
    pub all: Option<Vec<String>>,
    /// True if all candidates together did not boot, so that they are added one by one.
    pub building: bool,
    /// Boots of the original and of all together, s.
    pub gate: Pairs,
    /// What is left out in turn now.
    pub round: Option<Round>,
    /// What is to be left out in turn next.
    pub waiting: Vec<Vec<String>>,
    /// True once what is left out was chosen.
    pub grouped: bool,
    /// Rounds so far.
    pub rounds: usize,
    /// The tuned machine's watched boot.
    pub checked: Option<Result<Rc<Seen>, String>>,
    /// True once the last measurement was planned.
    pub fresh: bool,
    /// True once the phases were.
    pub phases: bool,
    /// Why the search ended early, if it did.
    pub cut: Option<String>,
    /// Length of a boot with all candidates, s.
    pub all_s: f64,
}

impl<'a> State<'a> {
    /// By the stages so far.
    pub fn of(asked: &'a Config, boots: &'a Boots<'a>) -> Self {
        let standing = |planned: &super::config::Planned| Standing {
            id: planned.id.clone(),
            predicted: None,
            fate: planned.barred.clone().map_or(Fate::Open, Fate::Out),
            booted: false,
            alone: None,
            pairs: Pairs::default(),
            fresh: Pairs::default(),
        };
        let mut state = State {
            asked,
            boots,
            standings: asked.candidates.iter().map(standing).collect(),
            original: None,
            lost: None,
            all: None,
            building: false,
            gate: Pairs::default(),
            round: None,
            waiting: Vec::new(),
            grouped: false,
            rounds: 0,
            checked: None,
            fresh: false,
            phases: false,
            cut: None,
            all_s: 0.0,
        };
        for stage in &asked.stages {
            state.take(stage);
        }
        state
    }

    fn take(&mut self, stage: &Stage) {
        let same = |round: &Round| matches!(stage.kind, Kind::Round { number, .. } if number == round.number);
        if self.round.as_ref().is_some_and(|round| !same(round)) {
            self.close_round();
        }
        match &stage.kind {
            Kind::Look => self.take_look(stage),
            Kind::Alone { ids } => self.take_alone(stage, ids),
            Kind::Together { ids, added } => self.take_together(stage, ids, added.as_deref()),
            Kind::Gate { all } => {
                let parts = parts(self.asked.sets.get(all).map_or(&[], Vec::as_slice));
                self.gate.extend(self.boots.pairs(stage, ORIGINAL, all, &parts));
            }
            Kind::Round { number, all, groups } => self.take_round(stage, *number, all, groups),
            Kind::Check { tuned } => self.checked = Some(self.check(stage, tuned)),
            Kind::Fresh { tuned, without } => {
                self.fresh = true;
                for group in without {
                    let pairs = self.boots.pairs(stage, &group.label, tuned, &parts(&group.ids));
                    let own = |s: &&mut Standing| group.ids == [s.id.clone()];
                    if let Some(standing) = self.standings.iter_mut().find(own) {
                        standing.fresh.extend(pairs);
                    }
                }
            }
            Kind::Phases { .. } => self.phases = true,
        }
    }

    /// Length of a boot of the original, s.
    pub fn original_s(&self) -> f64 {
        self.original.as_ref().map_or(0.0, |seen| seen.watched.total_s())
    }

    /// What is worth it beside the original, s.
    fn worth_s(&self) -> f64 {
        self.asked.worth * self.original_s()
    }

    /// Ids of candidates that may still be taken, or are.
    pub fn alive(&self) -> Vec<String> {
        let alive = self.standings.iter().filter(|s| !matches!(s.fate, Fate::Out(_)));
        alive.map(|s| s.id.clone()).collect()
    }

    /// A candidate's standing.
    pub fn standing(&self, id: &str) -> Option<&Standing> {
        self.standings.iter().find(|s| s.id == id)
    }

    /// What a candidate seems to save, s: by its own boot, or by what was predicted.
    fn seems_s(&self, id: &str) -> f64 {
        let predicted = |standing: &Standing| standing.predicted.map(|predicted| predicted.mean);
        self.standing(id).and_then(|s| s.alone.or_else(|| predicted(s))).unwrap_or(0.0)
    }

    /// What a candidate saved, alone, in the parts of the boot that it should make shorter, s; the rest of
    /// both boots tells how fast the host was.
    fn alone_s(&self, id: &str, seen: &Seen) -> Option<f64> {
        let parts = candidate(id)?.remedy.predicts;
        let original = self.original.as_ref()?;
        let (before, rest) = original.watched.split(parts);
        let (after, rest_after) = seen.watched.split(parts);
        let telling = rest > TELLING * original.watched.total_s() && rest_after > 0.0;
        telling.then(|| before - after * rest / rest_after)
    }

    /// Decides on a candidate; what was decided stands.
    pub fn decide(&mut self, id: &str, fate: Fate) {
        let open =
            self.standings.iter_mut().find(|s| s.id == id && !matches!(s.fate, Fate::Out(_)));
        if let Some(standing) = open {
            standing.fate = fate;
        }
    }

    fn take_look(&mut self, stage: &Stage) {
        let Some(seen) = self.boots.seen(stage, ORIGINAL).into_iter().next_back() else {
            let why = self.boots.failure(stage, ORIGINAL);
            self.lost = Some(why.unwrap_or_else(|| "no boot of the original is finished".into()));
            return;
        };
        self.original = Some(Rc::clone(&seen));
        let (worth_s, total_s) = (self.worth_s(), self.original_s());
        for standing in self.standings.iter_mut().filter(|s| s.fate == Fate::Open) {
            let Some(candidate) = candidate(&standing.id) else { continue };
            let predicted = seen.watched.predicted(candidate.remedy.predicts);
            let most = predicted.ci95[1];
            standing.predicted = Some(predicted);
            if most == 0.0 {
                let why = "the recorded boot shows no time that this step would save";
                standing.fate = Fate::Out(why.into());
            } else if most < worth_s {
                standing.fate = Fate::Out(format!(
                    "in the recorded boot this step could save at most {}: that is below \
                        --worth {} (this boot took {})",
                    compact_seconds(most),
                    brief_percent(self.asked.worth),
                    compact_seconds(total_s)
                ));
            }
        }
    }

    /// Why a watched boot is none of the same machine, if so.
    fn unlike(&self, stage: &Stage, label: &str, ids: &[String]) -> Option<String> {
        if self.boots.has_failed(label) {
            let why = self.boots.failure(stage, label);
            return Some(why.unwrap_or_else(|| {
                "in at least one boot, the machine with this step did not reach the end of the \
                    boot"
                    .into()
            }));
        }
        let (seen, original) =
            (self.boots.seen(stage, label).into_iter().next_back()?, self.original.as_ref()?);
        difference(&compare(&original.inventory, &seen.inventory, &broken(ids)))
    }

    fn take_alone(&mut self, stage: &Stage, ids: &[String]) {
        for at in 0..self.standings.len() {
            let standing = &self.standings[at];
            if standing.fate != Fate::Open {
                continue;
            }
            let id = standing.id.clone();
            let own = [id.clone()];
            let Some(label) = self.asked.label_of(&own).filter(|_| ids.contains(&id)) else {
                self.standings[at].fate =
                    Fate::Out("the budget had no time left to boot with this step".into());
                continue;
            };
            let seen = self.boots.seen(stage, label).into_iter().next_back();
            let why = self.unlike(stage, label, &own);
            self.standings[at].booted |= seen.is_some() || why.is_some();
            match (why, seen) {
                (Some(why), _) => self.standings[at].fate = Fate::Out(why),
                (None, None) => self.standings[at].fate = Fate::Out("it was not booted".into()),
                (None, Some(seen)) => self.standings[at].alone = self.alone_s(&id, &seen),
            }
        }
        self.exclude();
    }

    /// Of candidates that exclude each other the one that should save most stays.
    fn exclude(&mut self) {
        let mut ids = self.alive();
        ids.sort_by(|a, b| self.seems_s(b).total_cmp(&self.seems_s(a)));
        let mut taken: Vec<String> = Vec::new();
        for id in ids {
            let excludes = |other: &&String| {
                candidate(&id).zip(candidate(other)).is_some_and(|(a, b)| a.excludes(&b))
            };
            match taken.iter().find(excludes) {
                Some(other) => {
                    let why = format!("{other} excludes this candidate, and seems to save more");
                    self.decide(&id, Fate::Out(why));
                }
                None => taken.push(id),
            }
        }
    }

    fn take_together(&mut self, stage: &Stage, ids: &[String], added: Option<&str>) {
        let Some(label) = self.asked.label_of(ids) else { return };
        let seen = self.boots.seen(stage, label).into_iter().next_back();
        match (self.unlike(stage, label, ids), added, seen) {
            (None, _, Some(seen)) => {
                self.all_s = seen.watched.total_s();
                self.all = Some(ids.to_vec());
            }
            (why, Some(added), _) => {
                let why = why.unwrap_or_else(|| "it was not booted".into());
                self.decide(added, Fate::Out(format!("beside the others: {why}")));
            }
            (_, None, _) => self.building = true,
        }
    }

    /// The candidates of all that are not in the machine that is built up, the best first.
    pub fn not_built(&self) -> Vec<String> {
        let built = self.all.clone().unwrap_or_default();
        let mut ids = self.alive();
        ids.retain(|id| !built.contains(id));
        ids.sort_by(|a, b| self.seems_s(b).total_cmp(&self.seems_s(a)));
        ids
    }

    /// What the boots of the original and of all together say.
    pub fn gate_says(&self) -> Raced {
        let worth = 1.0 + self.asked.worth;
        self.gate.say(Race { alpha: ALPHA, comparisons: 1, worth })
    }

    /// Nothing is taken, since all together save nothing.
    pub fn close_gate(&mut self, failed: Option<String>) {
        let [least, most] = estimate_signed(&self.gate.saved()).ci95.map(compact_seconds);
        let nothing = || {
            format!(
                "all remaining candidates together save {least} to {most}: \
                {NOTHING_PROVEN}"
            )
        };
        let why = failed.unwrap_or_else(nothing);
        for id in self.alive() {
            self.decide(&id, Fate::Out(why.clone()));
        }
        self.all = None;
    }

    fn take_round(&mut self, stage: &Stage, number: usize, all: &str, groups: &[Group]) {
        if self.round.is_none() {
            self.groups();
            self.waiting.clear();
            // Of the tuned boot: a step that was little beside the original may be much beside it.
            let worth = 1.0 + self.asked.worth;
            let race = Race { alpha: ALPHA, comparisons: groups.len(), worth };
            self.round = Some(Round::new(number, stage.replicas, race));
            self.rounds = number;
        }
        let all = all.to_owned();
        for group in groups {
            let pairs = self.boots.pairs(stage, &group.label, &all, &parts(&group.ids));
            self.note_pairs(group, &pairs);
            let failed = self.boots.failure(stage, &group.label);
            if let Some(round) = &mut self.round {
                round.add(group, pairs, failed);
            }
        }
        if let Some(why) = self.boots.failure(stage, &all) {
            self.cut = Some(format!("the tuned machine failed in one of its boots: {why}"));
        }
    }

    fn note_pairs(&mut self, group: &Group, pairs: &Pairs) {
        let [id] = group.ids.as_slice() else { return };
        if let Some(standing) = self.standings.iter_mut().find(|s| s.id == *id) {
            standing.pairs.extend(pairs.clone());
        }
    }

    /// What is left out in turn: large ones alone, small ones together.
    pub fn groups(&mut self) {
        if self.grouped {
            return;
        }
        self.grouped = true;
        let mut ids = self.all.clone().unwrap_or_default();
        ids.sort_by(|a, b| self.seems_s(b).total_cmp(&self.seems_s(a)));
        let least = LARGE * self.asked.worth * self.all_s;
        let large = |id: &String| self.seems_s(id) >= least;
        let (large, small): (Vec<String>, Vec<String>) = ids.into_iter().partition(large);
        let few = large.len() + small.len() <= 2 * GROUP;
        let size = if few { 1 } else { GROUP };
        let small = small.chunks(size).map(<[String]>::to_vec);
        self.waiting = large.into_iter().map(|id| vec![id]).chain(small).collect();
    }

    /// Ends the round: what is proven stays, what is not goes, groups that help are taken apart.
    pub fn close_round(&mut self) {
        let Some(round) = self.round.take() else { return };
        let closed = round.close();
        for (id, why) in closed.taken {
            self.decide(&id, Fate::In(why));
        }
        for (id, why) in closed.left {
            self.decide(&id, Fate::Out(why));
        }
        self.waiting = closed.waiting;
        let alive = self.alive();
        self.all =
            self.all.take().map(|all| in_order(all.into_iter().filter(|id| alive.contains(id))));
    }

    /// What the tuned machine's watched boot shows, or why it is not the same machine.
    fn check(&self, stage: &Stage, label: &str) -> Result<Rc<Seen>, String> {
        let ids = self.asked.sets.get(label).cloned().unwrap_or_default();
        if let Some(why) = self.unlike(stage, label, &ids) {
            return Err(why);
        }
        let seen = self.boots.seen(stage, label).into_iter().next_back();
        seen.ok_or_else(|| "it was not booted".to_owned())
    }
}

/// The parts of a boot that these candidates should make shorter.
fn parts(ids: &[String]) -> Vec<Part> {
    let of = |id: &String| candidate(id).map_or(&[][..], |c| c.remedy.predicts);
    ids.iter().flat_map(of).copied().collect()
}

/// What these candidates give up.
pub(crate) fn broken(ids: &[String]) -> Vec<Keep> {
    let of = |id: &String| candidate(id).map_or(&[][..], |c| c.remedy.breaks);
    ids.iter().flat_map(of).copied().collect()
}
