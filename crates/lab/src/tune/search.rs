//! What is booted next.

use super::config::{in_order, Group, Kind, ORIGINAL};
use super::state::{Fate, State, NOTHING_PROVEN};
use vmeter_model::run::WatchLevel;
use vmeter_stats::race::{Standing as Raced, LOOKS};

/// Of the budget, the share that boots of single candidates may take.
const ALONE: f64 = 0.35;
/// Blocks of the last measurement, at least and at most, unless `--runs` says otherwise.
const FRESH: [usize; 2] = [6, 16];
/// From so many comparisons on the machine that all are held against boots three times in a block.
const FEW_GROUPS: usize = 5;
/// Blocks with which the last measurement also boots the tuned machine without each step.
const WITH_PARTS: usize = 10;
/// Watched boots of each machine for its phases, besides those before.
const PHASES: usize = 4;

/// A stage to be added to the plan.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Next {
    /// What it is for.
    pub kind: Kind,
    /// Machines that it needs: label, and ids of candidates.
    pub machines: Vec<(String, Vec<String>)>,
    /// In each block every machine boots once, in random order.
    pub blocks: usize,
    /// How its boots are watched.
    pub watch: WatchLevel,
    /// True to begin with a boot that does not count.
    pub warmup: bool,
    /// How often the first machine boots in each block: what all are held against.
    pub replicas: usize,
}

impl Next {
    fn watched(kind: Kind, machines: Vec<(String, Vec<String>)>, blocks: usize) -> Option<Self> {
        Some(Next { kind, machines, blocks, watch: WatchLevel::Light, warmup: false, replicas: 1 })
    }

    fn timed(kind: Kind, machines: Vec<(String, Vec<String>)>, blocks: usize) -> Option<Self> {
        Some(Next { kind, machines, blocks, watch: WatchLevel::None, warmup: false, replicas: 1 })
    }
}

/// The next stage; none when all is done. The state is brought to its end then.
pub(crate) fn next(state: &mut State<'_>) -> Option<Next> {
    if state.asked.stages.is_empty() {
        let look = Next::watched(Kind::Look, vec![(ORIGINAL.into(), Vec::new())], 1)?;
        return Some(Next { warmup: true, ..look });
    }
    state.original.as_ref()?;
    alone(state)
        .or_else(|| together(state))
        .or_else(|| gate(state))
        .or_else(|| round(state))
        .or_else(|| check(state))
        .or_else(|| fresh(state))
        .or_else(|| phases(state))
}

/// Seconds of the budget that are left.
fn left_s(state: &State<'_>) -> f64 {
    state.asked.budget_s - state.boots.took_s()
}

fn has(state: &State<'_>, is_it: fn(&Kind) -> bool) -> bool {
    state.asked.stages.iter().any(|stage| is_it(&stage.kind))
}

/// A label for a machine with these candidates: the one that it has, or this.
fn label(state: &State<'_>, ids: &[String], wanted: impl Into<String>) -> String {
    state.asked.label_of(ids).map_or_else(|| wanted.into(), str::to_owned)
}

/// Each candidate alone: does it boot, and is it the same machine?
fn alone(state: &mut State<'_>) -> Option<Next> {
    if has(state, |kind| matches!(kind, Kind::Alone { .. })) {
        return None;
    }
    let mut ids = state.alive();
    if ids.is_empty() {
        return None;
    }
    let most =
        |id: &String| state.standing(id).and_then(|s| s.predicted).map_or(0.0, |p| p.ci95[1]);
    ids.sort_by(|a, b| most(b).total_cmp(&most(a)));
    let room = (ALONE * state.asked.budget_s - state.boots.took_s()) / state.original_s().max(1e-9);
    ids.truncate((room.max(1.0)) as usize);
    let machines = ids.iter().map(|id| (format!("with {id}"), vec![id.clone()])).collect();
    Next::watched(Kind::Alone { ids: in_order(ids) }, machines, 1)
}

/// All that were left, together; if that is no machine, one after the other.
fn together(state: &mut State<'_>) -> Option<Next> {
    let alive = in_order(state.alive());
    if alive.is_empty() || state.grouped {
        return None;
    }
    if !state.building {
        if state.all.is_some() {
            return None;
        }
        let machines = vec![(label(state, &alive, "together"), alive.clone())];
        return Next::watched(Kind::Together { ids: alive, added: None }, machines, 1);
    }
    let added = state.not_built().into_iter().next()?;
    let ids = in_order(state.all.iter().flatten().cloned().chain([added.clone()]));
    let machines = vec![(label(state, &ids, format!("up to {added}")), ids.clone())];
    Next::watched(Kind::Together { ids, added: Some(added) }, machines, 1)
}

/// The machine that has all that are in the race: its label, and what it has.
fn everything(state: &State<'_>) -> Option<(String, Vec<String>)> {
    let ids = state.all.clone().filter(|ids| !ids.is_empty())?;
    Some((label(state, &ids, format!("together {}", state.rounds)), ids))
}

/// Do they save anything together?
fn gate(state: &mut State<'_>) -> Option<Next> {
    let (all, ids) = everything(state)?;
    let over = has(state, |kind| matches!(kind, Kind::Round { .. } | Kind::Check { .. }));
    if over {
        return None;
    }
    match state.gate_says() {
        Raced::Helps => None,
        Raced::NotWorth | Raced::Unproven => {
            state.close_gate(None);
            None
        }
        Raced::Open { next_look } => {
            let blocks = next_look - state.gate.wall.len();
            let failed = [ORIGINAL, &all].into_iter().find(|label| state.boots.has_failed(label));
            let cost = blocks as f64 * (state.original_s() + state.all_s);
            let room = left_s(state) - reserve_s(state);
            if let Some(label) = failed {
                state.close_gate(Some(format!("{label} failed in one of its boots")));
                return None;
            }
            // The last measurement decides on all of them together then.
            if !state.gate.wall.is_empty() && cost > room {
                state.cut = Some("the budget ended it".into());
                return None;
            }
            let machines = vec![(ORIGINAL.into(), Vec::new()), (all.clone(), ids)];
            Next::watched(Kind::Gate { all }, machines, blocks)
        }
    }
}

/// What the last measurement takes at least, s.
fn reserve_s(state: &State<'_>) -> f64 {
    FRESH[0] as f64 * (state.original_s() + state.all_s)
        + PHASES as f64 * (state.original_s() + state.all_s)
}

/// All, and all without each.
fn round(state: &mut State<'_>) -> Option<Next> {
    if has(state, |kind| matches!(kind, Kind::Check { .. })) {
        return None;
    }
    loop {
        let (all, ids) = everything(state)?;
        let (number, groups, blocks) = match &state.round {
            Some(round) => {
                let (open, blocks) = round.open();
                if open.is_empty() || state.cut.is_some() {
                    state.close_round();
                    continue;
                }
                (round.number, open, blocks)
            }
            None => {
                state.groups();
                if state.waiting.is_empty() || state.cut.is_some() {
                    return None;
                }
                let rest = |out: &Vec<String>| -> Vec<String> {
                    ids.iter().filter(|id| !out.contains(id)).cloned().collect()
                };
                let named = state.waiting.iter().map(|out| {
                    let wanted = format!("{all} without {}", out.join(", "));
                    Group { ids: out.clone(), label: label(state, &rest(out), wanted) }
                });
                (state.rounds + 1, named.collect::<Vec<Group>>(), LOOKS[0])
            }
        };
        // Many comparisons with one machine are resolved best by several boots of it (C. Dunnett, JASA 50,
        // 1955); of three the median counts.
        let replicas = match &state.round {
            Some(round) => round.replicas,
            None if groups.len() < FEW_GROUPS => 1,
            None => 3,
        };
        let cost = blocks as f64 * (replicas + groups.len()) as f64 * state.all_s * 1.15;
        if cost > left_s(state) - reserve_s(state) {
            state.cut.get_or_insert_with(|| "the budget was used".to_owned());
            continue;
        }
        let mut machines = vec![(all.clone(), ids.clone())];
        machines.extend(groups.iter().map(|group| {
            let rest = ids.iter().filter(|id| !group.ids.contains(id)).cloned().collect();
            (group.label.clone(), rest)
        }));
        let next = Next::watched(Kind::Round { number, all, groups }, machines, blocks)?;
        return Some(Next { replicas, ..next });
    }
}

/// Is what was chosen still the same machine?
fn check(state: &mut State<'_>) -> Option<Next> {
    let (tuned, ids) = everything(state)?;
    if state.checked.is_some() {
        return None;
    }
    Next::watched(Kind::Check { tuned: tuned.clone() }, vec![(tuned, ids)], 1)
}

/// The original and the tuned machine, by runs that chose nothing.
fn fresh(state: &mut State<'_>) -> Option<Next> {
    let (tuned, ids) = everything(state)?;
    if state.fresh || state.checked.as_ref().is_none_or(Result::is_err) {
        return None;
    }
    let of = |id: &String| {
        let rest: Vec<String> = ids.iter().filter(|other| *other != id).cloned().collect();
        let wanted = format!("{tuned} without {id}");
        Group { ids: vec![id.clone()], label: label(state, &rest, wanted) }
    };
    let mut without: Vec<Group> = ids.iter().map(of).collect();
    let pair = state.original_s() + state.all_s;
    let phases = PHASES as f64 * pair;
    let room = |without: &[Group]| {
        let alone = without.iter().filter(|group| group.label != ORIGINAL).count() as f64;
        ((left_s(state) - phases) / (pair + alone * state.all_s).max(1e-9)).max(0.0) as usize
    };
    // The whole comes before its parts.
    if state.asked.runs.is_none() && room(&without) < WITH_PARTS {
        without.clear();
    }
    let blocks =
        state.asked.runs.map_or_else(|| room(&without).clamp(FRESH[0], FRESH[1]), |n| n as usize);
    let mut machines = vec![(ORIGINAL.to_owned(), Vec::new()), (tuned.clone(), ids.clone())];
    for group in without.iter().filter(|group| group.label != ORIGINAL) {
        let rest = ids.iter().filter(|id| !group.ids.contains(id)).cloned().collect();
        machines.push((group.label.clone(), rest));
    }
    Next::timed(Kind::Fresh { tuned, without }, machines, blocks)
}

/// Where the time went, before and after.
fn phases(state: &mut State<'_>) -> Option<Next> {
    let (tuned, ids) = everything(state)?;
    if state.phases || !state.fresh {
        return None;
    }
    let machines = vec![(ORIGINAL.to_owned(), Vec::new()), (tuned.clone(), ids)];
    Next::watched(Kind::Phases { tuned }, machines, PHASES)
}

/// Why the search is over, in words.
pub(crate) fn ended(state: &State<'_>) -> String {
    if let Some(why) = &state.cut {
        return why.clone();
    }
    let says = |text: &str| {
        let of = |fate: &Fate| match fate {
            Fate::Out(why) | Fate::In(why) => why.contains(text),
            Fate::Open => false,
        };
        state.standings.iter().any(|standing| of(&standing.fate))
    };
    let worth = vmeter_render::quantity::brief_percent(state.asked.worth);
    if !state.waiting.is_empty() || says("the budget") {
        return "the budget ended it".into();
    }
    if says(NOTHING_PROVEN) {
        return "no gain is proven".into();
    }
    if says("not proven: ") {
        return format!(
            "after {} blocks of runs, no remaining candidate has a proven gain",
            LOOKS[LOOKS.len() - 1]
        );
    }
    format!("no remaining candidate can save more than {worth}")
}
