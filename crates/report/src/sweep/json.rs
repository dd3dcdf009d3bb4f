//! The JSON body of a sweep. Field names are fixed by schema `vmeter/1`.

use crate::boot::{machine_json, outcome_word, MachineJson};
use crate::diff;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use vmeter_model::result::{Comparison, Phase};
use vmeter_model::run::Outcome;
use vmeter_model::shard::HostEffect;
use vmeter_model::sweep::{
    MarginalStep, Scaling, Series, Settings, SweepPoint, SweepResult, SweptParameter, SweptRun,
};
use vmeter_model::Estimate;

/// The fields after the envelope.
#[derive(Debug, Serialize)]
pub(super) struct Body<'a> {
    parameters: &'a [SweptParameter],
    points: Vec<Point<'a>>,
    scaling: Vec<TimeScaling<'a>>,
    count_scaling: Vec<CountScaling<'a>>,
    activity_scaling: Vec<ActivityScaling<'a>>,
    steps: Vec<Step<'a>>,
    comparisons: &'a [Comparison],
    breaks_explained: Vec<Explained<'a>>,
    #[serde(skip_serializing_if = "<[HostEffect]>::is_empty")]
    hosts: &'a [HostEffect],
    warnings: &'a [String],
    hints: &'a [String],
    saved_in: &'a str,
}

#[derive(Debug, Serialize)]
struct Point<'a> {
    parameters: Map<String, Value>,
    label: &'a str,
    total: Option<Estimate>,
    phases: &'a [Phase],
    counts: &'a BTreeMap<String, Estimate>,
    runs: Vec<Run<'a>>,
    machine: MachineJson<'a>,
}

#[derive(Debug, Serialize)]
struct Run<'a> {
    index: u32,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Outcome>,
    total_s: f64,
    cpu_s: f64,
    phases: Vec<RunPhase<'a>>,
    counts: &'a BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    /// What every time of the run was divided by.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_factor: Option<f64>,
    warnings: &'a [String],
}

#[derive(Debug, Serialize)]
struct RunPhase<'a> {
    name: &'a str,
    total_s: f64,
}

#[derive(Debug, Serialize)]
struct TimeScaling<'a> {
    phase: &'a str,
    parameter: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    at: Map<String, Value>,
    slope_s: f64,
    slope_ci95: [f64; 2],
    p_value: f64,
    breaks: Vec<TimeBreak>,
}

#[derive(Debug, Serialize)]
struct TimeBreak {
    between: [f64; 2],
    jump_s: f64,
    p_value: f64,
}

#[derive(Debug, Serialize)]
struct CountScaling<'a> {
    count: &'a str,
    parameter: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    at: Map<String, Value>,
    slope: f64,
    slope_ci95: [f64; 2],
    p_value: f64,
    exact_step: Option<f64>,
    usual_step: Option<f64>,
    breaks: &'a [vmeter_model::sweep::SweepBreak],
}

#[derive(Debug, Serialize)]
struct ActivityScaling<'a> {
    activity: &'a str,
    phase: Option<&'a str>,
    parameter: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    at: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slope_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slope_insns: Option<f64>,
    slope_ci95: [f64; 2],
    p_value: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    breaks: Vec<TimeBreak>,
}

#[derive(Debug, Serialize)]
struct Step<'a> {
    parameter: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    at: Map<String, Value>,
    between: [f64; 2],
    total_s: f64,
    total_ci95: Option<[f64; 2]>,
    counts: &'a BTreeMap<String, f64>,
}

#[derive(Debug, Serialize)]
struct Explained<'a> {
    parameter: &'a str,
    between: [f64; 2],
    diff: diff::Body<'a>,
}

/// The body of a sweep's JSON.
pub(super) fn body(result: &SweepResult) -> Body<'_> {
    let of =
        |kinds: &'static [Series]| result.scaling.iter().filter(move |s| kinds.contains(&s.series));
    let explained = result.explained.iter().map(|e| Explained {
        parameter: &e.parameter,
        between: e.between,
        diff: diff::body(&e.diff),
    });
    Body {
        parameters: &result.parameters,
        points: result.points.iter().map(|p| point(p, &result.parameters)).collect(),
        scaling: of(&[Series::Total, Series::Phase]).map(time_scaling).collect(),
        count_scaling: of(&[Series::Count]).map(count_scaling).collect(),
        activity_scaling: of(&[Series::Activity, Series::Insns]).map(activity_scaling).collect(),
        steps: result.steps.iter().map(step).collect(),
        comparisons: &result.comparisons,
        breaks_explained: explained.collect(),
        hosts: &result.hosts,
        warnings: &result.warnings,
        hints: &result.hints,
        saved_in: &result.saved_in,
    }
}

/// Numbers as numbers, words as words.
fn settings(settings: &Settings, parameters: &[SweptParameter]) -> Map<String, Value> {
    let value = |(name, value): &(String, String)| {
        let numeric = parameters.iter().any(|p| p.name == *name && p.numeric);
        let number = || serde_json::from_str::<serde_json::Number>(value).ok();
        let value = match number().filter(|_| numeric) {
            Some(number) => Value::Number(number),
            None => Value::String(value.clone()),
        };
        (name.clone(), value)
    };
    settings.iter().map(value).collect()
}

fn words(at: &Settings) -> Map<String, Value> {
    settings(at, &[])
}

fn point<'a>(point: &'a SweepPoint, parameters: &[SweptParameter]) -> Point<'a> {
    Point {
        parameters: settings(&point.parameters, parameters),
        label: &point.label,
        total: point.total,
        phases: &point.phases,
        counts: &point.counts,
        runs: point.runs.iter().map(run).collect(),
        machine: machine_json(&point.machine),
    }
}

fn run(run: &SweptRun) -> Run<'_> {
    let phases = run.phases.iter().map(|(name, total_s)| RunPhase { name, total_s: *total_s });
    Run {
        index: run.index,
        outcome: outcome_word(&run.outcome),
        failure: Some(&run.outcome).filter(|outcome| **outcome != Outcome::Done),
        total_s: run.total_s,
        cpu_s: run.cpu_s,
        phases: phases.collect(),
        counts: &run.counts,
        host: run.host.as_ref().map(|(name, _)| name.as_str()),
        host_factor: run.host.as_ref().map(|(_, factor)| *factor),
        warnings: &run.warnings,
    }
}

fn time_breaks(scaling: &Scaling) -> Vec<TimeBreak> {
    let breaks = scaling.breaks.iter();
    breaks.map(|b| TimeBreak { between: b.between, jump_s: b.jump, p_value: b.p_value }).collect()
}

fn time_scaling(scaling: &Scaling) -> TimeScaling<'_> {
    TimeScaling {
        phase: &scaling.name,
        parameter: &scaling.parameter,
        at: words(&scaling.at),
        slope_s: scaling.slope,
        slope_ci95: scaling.slope_ci95,
        p_value: scaling.p_value,
        breaks: time_breaks(scaling),
    }
}

fn count_scaling(scaling: &Scaling) -> CountScaling<'_> {
    CountScaling {
        count: &scaling.name,
        parameter: &scaling.parameter,
        at: words(&scaling.at),
        slope: scaling.slope,
        slope_ci95: scaling.slope_ci95,
        p_value: scaling.p_value,
        exact_step: scaling.exact_step,
        usual_step: scaling.usual_step,
        breaks: &scaling.breaks,
    }
}

fn activity_scaling(scaling: &Scaling) -> ActivityScaling<'_> {
    let is_time = scaling.series == Series::Activity;
    ActivityScaling {
        activity: &scaling.name,
        phase: scaling.phase.as_deref(),
        parameter: &scaling.parameter,
        at: words(&scaling.at),
        slope_s: is_time.then_some(scaling.slope),
        slope_insns: (!is_time).then_some(scaling.slope),
        slope_ci95: scaling.slope_ci95,
        p_value: scaling.p_value,
        breaks: time_breaks(scaling),
    }
}

fn step(step: &MarginalStep) -> Step<'_> {
    Step {
        parameter: &step.parameter,
        at: words(&step.at),
        between: step.between,
        total_s: step.total_s,
        total_ci95: step.total_ci95,
        counts: &step.counts,
    }
}
