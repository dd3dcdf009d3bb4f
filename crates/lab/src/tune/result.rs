//! From saved boots to the answer. Live and old sessions both come through here.

use super::booted::{Boots, Read, Seen};
use super::candidates;
use super::config::{candidate, Config, Kind, Stage, ORIGINAL};
use super::inventory::compare;
use super::search;
use super::state::{broken, Fate, Standing, State};
use anyhow::Result;
use std::rc::Rc;
use vmeter_model::run::SessionMachine;
use vmeter_model::time::seconds;
use vmeter_model::tune::{InventoryItem, PhaseChange, TuneResult, TuneStep};
use vmeter_model::Estimate;
use vmeter_session::{envelope, Session};
use vmeter_stats::{estimate, estimate_signed, paired_t, Decided, Rule};

/// What the last measurement says.
struct Fresh {
    /// Original, tuned, s.
    pairs: Vec<(f64, f64)>,
    decided: Option<Decided>,
    /// The same of CPU time.
    cpu: Option<Decided>,
    tuned: String,
}

/// The result of a saved session.
///
/// # Errors
/// When the session's folder cannot be read or holds no finished run.
pub fn result(session: &Session) -> Result<TuneResult> {
    let asked: Config = session.asked()?;
    let read = Read::default();
    let (boots, mut warnings) = Boots::of(session, &read)?;
    if boots.count() == 0 {
        return Err(session.no_runs(&warnings));
    }
    let mut state = State::of(&asked, &boots);
    let unfinished = search::next(&mut state).is_some() || !boots.is_whole();
    warnings.extend(remarks(&state, unfinished, session));
    let fresh = fresh(&state);
    let decided = fresh.as_ref().and_then(|fresh| fresh.decided);
    let whole = !unfinished
        && state.checked.as_ref().is_some_and(Result::is_ok)
        && fresh.as_ref().is_some_and(|fresh| !boots.has_failed(&fresh.tuned));
    let shown = |found: &Decided| found.pairs >= found.needed && found.ratio.ci95[0] > 1.0;
    let recommended = whole && decided.as_ref().is_some_and(shown);
    let steps = steps(&state, recommended);
    let samples = fresh.as_ref().map(|fresh| fresh.pairs.clone()).unwrap_or_default();
    let (before, after) = sides(&state, &samples);
    let tuned = fresh.as_ref().map_or(ORIGINAL, |fresh| &fresh.tuned);
    let chosen = if recommended { tuned } else { ORIGINAL };
    let machine = |label: &str| session.record.machines.iter().find(|m| m.label == label).cloned();
    let command = machine(chosen).map(|m| command(&m)).unwrap_or_default();
    let mut result = TuneResult {
        envelope: envelope::envelope(&session.record),
        machine: machine(ORIGINAL).unwrap_or_default(),
        predictions: predictions(&steps),
        steps,
        inventory: inventory(&state),
        before,
        after,
        ratio: decided.map(|found| found.ratio),
        cpu_ratio: fresh.as_ref().and_then(|fresh| fresh.cpu).map(|found| found.ratio),
        p_value: decided.map(|found| found.p_value),
        samples_s: samples,
        phases: phases(&state),
        command,
        recommended,
        ended: search::ended(&state),
        boots: boots.count(),
        took_s: boots.took_s(),
        budget_s: asked.budget_s,
        worth: asked.worth,
        warnings,
        hints: Vec::new(),
        saved_in: session.dir.display().to_string(),
    };
    result.hints = hints(&result);
    Ok(result)
}

/// What is to be said of the search besides its answer.
fn remarks(state: &State<'_>, unfinished: bool, session: &Session) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(why) = &state.lost {
        remarks.push(format!(
            "the original machine does not reach the end of the measurement: \
            {why}"
        ));
    } else if unfinished {
        let dir = vmeter_base::shell::path(&session.dir);
        remarks.push(format!("the search is not finished: vmeter tune --resume {dir}"));
    }
    if let Some(Err(why)) = &state.checked {
        remarks.push(format!("the tuned machine is not recommended: {why}"));
    }
    remarks
}

/// Whole boots of the original and of the tuned machine, s; of the original its watched boot where there
/// are no others.
fn sides(state: &State<'_>, samples: &[(f64, f64)]) -> (Option<Estimate>, Option<Estimate>) {
    let side = |of: fn(&(f64, f64)) -> f64| {
        let times: Vec<f64> = samples.iter().map(of).collect();
        (!times.is_empty()).then(|| estimate(&times))
    };
    let looked = || state.original.as_ref().map(|seen| estimate(&[seen.watched.total_s()]));
    (side(|pair| pair.0).or_else(looked), side(|pair| pair.1))
}

fn fresh(state: &State<'_>) -> Option<Fresh> {
    let stage = |stage: &&Stage| matches!(stage.kind, Kind::Fresh { .. });
    let stage = state.asked.stages.iter().find(stage)?;
    let Kind::Fresh { tuned, .. } = &stage.kind else { return None };
    let pairs = state.boots.pairs(stage, ORIGINAL, tuned, &[]);
    // Of the tuned machine's time, the original's.
    let of = |pairs: &[(f64, f64)]| {
        let swapped: Vec<(f64, f64)> =
            pairs.iter().map(|(original, tuned)| (*tuned, *original)).collect();
        Rule::default().decide(&swapped)
    };
    let (decided, cpu) = (of(&pairs.wall), of(&pairs.cpu));
    Some(Fresh { decided, cpu, pairs: pairs.wall, tuned: tuned.clone() })
}

fn steps(state: &State<'_>, recommended: bool) -> Vec<TuneStep> {
    let mut steps: Vec<TuneStep> =
        state.standings.iter().map(|standing| step(state, standing, recommended)).collect();
    steps.extend(candidates::never().map(|(id, title, why)| TuneStep {
        id: id.to_owned(),
        title: title.to_owned(),
        change: String::new(),
        predicted: None,
        saving: None,
        p_value: None,
        kept: false,
        gives_up: String::new(),
        reason: why.to_owned(),
        booted: false,
    }));
    let predicted = |step: &TuneStep| step.predicted.map_or(-1.0, |p| p.ci95[1]);
    let rank = |step: &TuneStep| (!step.kept, !step.booted);
    steps.sort_by(|a, b| rank(a).cmp(&rank(b)).then(predicted(b).total_cmp(&predicted(a))));
    steps
}

fn step(state: &State<'_>, standing: &Standing, recommended: bool) -> TuneStep {
    let known = candidate(&standing.id);
    let has = state.all.as_ref().is_some_and(|all| all.contains(&standing.id));
    let alive = !matches!(standing.fate, Fate::Out(_)) && has;
    let reason = match &standing.fate {
        Fate::Out(why) => why.clone(),
        _ if !recommended => "vmeter could not show that the tuned machine is faster and still \
            equivalent to the original"
            .to_owned(),
        Fate::In(why) => why.clone(),
        Fate::Open => "not measured alone: the budget had no room".to_owned(),
    };
    let is_fresh = standing.fresh.wall.len() > 1;
    let pairs = if is_fresh { &standing.fresh } else { &standing.pairs };
    let saved = pairs.saved();
    TuneStep {
        id: standing.id.clone(),
        title: known.map_or("", |c| c.cause.title).to_owned(),
        change: known.map(|c| c.change()).unwrap_or_default(),
        predicted: standing.predicted,
        saving: (saved.len() > 1).then(|| estimate_signed(&saved)),
        p_value: paired_t(pairs.clearest()),
        kept: recommended && alive,
        gives_up: known.map_or("", |c| c.remedy.gives_up).to_owned(),
        reason,
        booted: standing.booted,
    }
}

/// Of the steps that were measured by themselves, those whose saving is within what was predicted.
fn predictions(steps: &[TuneStep]) -> (usize, usize) {
    let both = steps.iter().filter_map(|step| Some((step.predicted?, step.saving?)));
    let within = |(predicted, found): &(Estimate, Estimate)| {
        (predicted.ci95[0]..=predicted.ci95[1]).contains(&found.mean)
    };
    let all: Vec<_> = both.collect();
    (all.iter().filter(|pair| within(pair)).count(), all.len())
}

/// Watched boots of the original and of the tuned machine.
fn watched(state: &State<'_>) -> (Vec<Rc<Seen>>, Vec<Rc<Seen>>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for stage in &state.asked.stages {
        match &stage.kind {
            Kind::Look => before.extend(state.boots.seen(stage, ORIGINAL)),
            Kind::Check { tuned } => after.extend(state.boots.seen(stage, tuned)),
            Kind::Phases { tuned } => {
                before.extend(state.boots.seen(stage, ORIGINAL));
                after.extend(state.boots.seen(stage, tuned));
            }
            _ => {}
        }
    }
    (before, after)
}

fn phases(state: &State<'_>) -> Vec<PhaseChange> {
    let (before, after) = watched(state);
    if after.is_empty() {
        return Vec::new();
    }
    let all = before.iter().chain(&after).map(|seen| &seen.watched.timeline);
    let names = all.map(|t| t.phases.iter().map(|(name, _)| name.as_str()));
    let order = crate::figures::phase_order(names);
    let of = |boots: &[Rc<Seen>], name: &str| {
        let one = |seen: &Rc<Seen>| {
            let phases = seen.watched.timeline.phases.iter().filter(|(n, _)| n == name);
            seconds(phases.map(|(_, ns)| *ns).sum())
        };
        estimate(&boots.iter().map(one).collect::<Vec<_>>())
    };
    let change = |name: &String| PhaseChange {
        name: name.clone(),
        before: of(&before, name),
        after: of(&after, name),
    };
    order.iter().map(change).collect()
}

fn inventory(state: &State<'_>) -> Vec<InventoryItem> {
    let Some(original) = &state.original else { return Vec::new() };
    let Some(Ok(tuned)) = &state.checked else { return Vec::new() };
    let ids = state.all.clone().unwrap_or_default();
    compare(&original.inventory, &tuned.inventory, &broken(&ids))
}

/// The argv to run.
fn command(machine: &SessionMachine) -> Vec<String> {
    let spec = &machine.spec;
    if !spec.command.is_empty() || !spec.is_played() {
        return machine.argv.clone();
    }
    let append = spec.append.iter().flat_map(|words| ["-append".to_owned(), words.clone()]);
    machine.argv.iter().cloned().chain(append).chain(spec.vmm_arg.iter().cloned()).collect()
}

fn hints(result: &TuneResult) -> Vec<String> {
    let dir = vmeter_base::shell::path(std::path::Path::new(&result.saved_in));
    let insecure =
        result.steps.iter().filter(|step| step.reason.starts_with("needs --allow insecure"));
    let insecure: Vec<&str> = insecure.map(|step| step.id.as_str()).collect();
    let run = result.recommended.then(|| vmeter_base::shell::join(&result.command));
    let long = format!("vmeter show {dir} --long  # why vmeter took or rejected each candidate");
    let allow = (!insecure.is_empty() && result.before.is_some()).then(|| {
        let mut again = result.envelope.argv.clone();
        let at = again.iter().position(|word| word == "tune").map_or(again.len(), |at| at + 1);
        if let Some(save) = again.iter().position(|word| word == "--save") {
            again.drain(save..(save + 2).min(again.len()));
        }
        again.splice(at..at, ["--allow".to_owned(), "insecure".to_owned()]);
        format!("{}  # also tries {}", vmeter_base::shell::join(&again), insecure.join(", "))
    });
    run.into_iter().chain([long]).chain(allow).collect()
}
