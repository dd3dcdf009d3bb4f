//! The JSON body of a sweep. Field names are fixed by schema `vmeter/1`.

use crate::diff::report as diff;
use crate::json_common::{failure, Comparison, End, Failure, Host, Machine, Phase, RunPhase};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use vmeter_model::sweep::{
    ExplainedBreak, MarginalStep, Scaling, Series, Settings, SweepBreak, SweepPoint, SweepResult,
    SweptParameter, SweptRun,
};
use vmeter_render::exported;
use vmeter_render::exported::{exported, Estimate, Of};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of SweepResult {
        parameters: Vec<Parameter<'a>>,
        points: Vec<Point<'a>> = |result| {
            result.points.iter().map(|p| Point::new(p, &result.parameters)).collect()
        },
        scaling: Vec<TimeScaling<'a>> = |result| of(result, &[Series::Total, Series::Phase]),
        count_scaling: Vec<CountScaling<'a>> = |result| of(result, &[Series::Count]),
        activity_scaling: Vec<ActivityScaling<'a>> = |result| {
            of(result, &[Series::Activity, Series::Insns])
        },
        steps: Vec<Step<'a>>,
        comparisons: Vec<Comparison<'a>>,
        breaks_explained: Vec<Explained<'a>> = |result| exported(&result.explained),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        hosts: Vec<Host<'a>>,
        warnings: &'a [String],
        hints: &'a [String],
        saved_in: &'a str,
    }

    struct Parameter<'a> of SweptParameter {
        name: &'a str,
        values: &'a [String],
        numeric: bool,
    }

    struct Point<'a> of SweepPoint {
        parameters: Map<String, Value> = |point| words(&point.parameters),
        label: &'a str,
        total: Option<Estimate>,
        phases: Vec<Phase<'a>>,
        counts: BTreeMap<&'a str, Estimate>,
        runs: Vec<Run<'a>>,
        machine: Machine<'a>,
    }

    struct Run<'a> of SweptRun {
        index: u32,
        outcome: &'static str = |run| run.outcome.word(),
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure<'a>> = |run| failure(&run.outcome),
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<End<'a>>,
        total_s: f64,
        cpu_s: f64,
        phases: Vec<RunPhase<'a>> = |run| {
            run.phases.iter().map(|(name, total_s)| RunPhase { name, total_s: *total_s }).collect()
        },
        counts: BTreeMap<&'a str, f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<&'a str> = |run| run.host.as_ref().map(|(name, _)| name.as_str()),
        /// What every time of the run was divided by.
        #[serde(skip_serializing_if = "Option::is_none")]
        host_factor: Option<f64> = |run| run.host.as_ref().map(|(_, factor)| *factor),
        warnings: &'a [String],
    }

    struct TimeScaling<'a> of Scaling {
        phase: &'a str = |scaling| &scaling.name,
        parameter: &'a str,
        #[serde(skip_serializing_if = "Map::is_empty")]
        at: Map<String, Value> = |scaling| words(&scaling.at),
        slope_s: f64 = |scaling| scaling.slope,
        slope_ci95: [f64; 2],
        p_value: f64,
        breaks: Vec<TimeBreak>,
        #[serde(skip_serializing_if = "Option::is_none")]
        detectable_jump_s: Option<f64> = |scaling| scaling.detectable_jump,
    }

    struct TimeBreak of SweepBreak {
        between: [f64; 2],
        jump_s: f64 = |found| found.jump,
        p_value: f64,
    }

    struct CountScaling<'a> of Scaling {
        count: &'a str = |scaling| &scaling.name,
        parameter: &'a str,
        #[serde(skip_serializing_if = "Map::is_empty")]
        at: Map<String, Value> = |scaling| words(&scaling.at),
        slope: f64,
        slope_ci95: [f64; 2],
        p_value: f64,
        exact_step: Option<f64>,
        usual_step: Option<f64>,
        breaks: Vec<CountBreak>,
    }

    struct CountBreak of SweepBreak {
        between: [f64; 2],
        jump: f64,
        p_value: f64,
    }

    struct ActivityScaling<'a> of Scaling {
        activity: &'a str = |scaling| &scaling.name,
        phase: Option<&'a str>,
        parameter: &'a str,
        #[serde(skip_serializing_if = "Map::is_empty")]
        at: Map<String, Value> = |scaling| words(&scaling.at),
        #[serde(skip_serializing_if = "Option::is_none")]
        slope_s: Option<f64> = |s| (s.series == Series::Activity).then_some(s.slope),
        #[serde(skip_serializing_if = "Option::is_none")]
        slope_insns: Option<f64> = |s| (s.series == Series::Insns).then_some(s.slope),
        slope_ci95: [f64; 2],
        p_value: f64,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        breaks: Vec<TimeBreak>,
    }

    struct Step<'a> of MarginalStep {
        parameter: &'a str,
        #[serde(skip_serializing_if = "Map::is_empty")]
        at: Map<String, Value> = |step| words(&step.at),
        between: [f64; 2],
        total_s: f64,
        total_ci95: Option<[f64; 2]>,
        counts: BTreeMap<&'a str, f64>,
    }

    struct Explained<'a> of ExplainedBreak {
        parameter: &'a str,
        between: [f64; 2],
        diff: diff::Body<'a>,
    }
}

impl<'a> Point<'a> {
    /// Its parameters that are numbers as numbers.
    fn new(point: &'a SweepPoint, swept: &[SweptParameter]) -> Self {
        Point { parameters: settings(&point.parameters, swept), ..exported(point) }
    }
}

fn of<'a, E: Of<'a, Scaling>>(result: &'a SweepResult, kinds: &[Series]) -> Vec<E> {
    result.scaling.iter().filter(|s| kinds.contains(&s.series)).map(E::of).collect()
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
