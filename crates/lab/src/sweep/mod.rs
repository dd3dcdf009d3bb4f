//! `vmeter sweep`: how each phase grows with a setting, and where it jumps.

mod hosts;
pub mod parameters;
pub mod points;
mod scaling;

pub mod report;

use crate::blocks::{blocks, ByBlock};
use crate::compare::{against_the_first, Compared, Sampled};
use crate::diff;
use crate::ends::{Ends, TO_LEARN_IT};
use crate::figures::{self, Figures};
use crate::shown::Shown;
use anyhow::Result;
use parameters::Parameter;
use report::SweepReport;
use scaling::Measured;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use vmeter_base::shell;
use vmeter_model::run::{Outcome, PlannedRun, SessionMachine, WatchLevel};
use vmeter_model::sweep::{
    ExplainedBreak, Scaling, Series, SweepPoint, SweepResult, SweptParameter, SweptRun,
};
use vmeter_model::MachineSpec;
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::RunOptions;
use vmeter_session::{carry_out, envelope, SavedRun, Session, Watch};
use vmeter_session::{failed_runs, Answer, Experiment, Shardable, Views};
use vmeter_stats::{estimate, Rule};

/// Breaks that are explained, the largest first.
const EXPLAINED: usize = 4;

/// With fewer runs a point chance may put all of them into the host's slow spells.
const ENOUGH_RUNS: usize = 4;

/// What to sweep and how.
#[derive(Debug, Clone)]
pub struct SweepOptions {
    /// The machine that the parameters change.
    pub spec: MachineSpec,
    /// What is varied.
    pub parameters: Vec<Parameter>,
    /// How closely to watch; `light`, or as the session that is gone on with, if absent.
    pub watch: Option<WatchLevel>,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// Measures every point and analyses how the costs grow.
///
/// # Errors
/// A parameter or machine that is not valid, a host that can't boot it, a folder that
/// can't be written, an interruption.
pub fn sweep(options: &SweepOptions, watch: &mut Watch<'_>) -> Result<SweepResult> {
    result(&carry_out(points::KIND, &options.runs, options, watch)?)
}

/// The points that were asked for.
///
/// # Errors
/// Class usage: a parameter that is not valid, or none.
pub(crate) fn points_of(options: &SweepOptions) -> Result<Vec<parameters::Point>> {
    match options.parameters.as_slice() {
        [] => Err(usage(
            "nothing to sweep: vary something with -P pcie-root-ports=0..4 or -L smp=1,2,4",
        )),
        given => {
            let points = parameters::points(&options.spec, options.runs.prepare.as_deref(), given)?;
            options.runs.check_size(points.len())?;
            Ok(points)
        }
    }
}

/// The result of a saved sweep.
///
/// # Errors
/// When the session's folder cannot be read or holds no finished run.
pub fn result(session: &Session) -> Result<SweepResult> {
    let (finished, unread) = session.finished()?;
    let machines = &session.record.machines;
    let mut figures: Vec<Vec<Figures>> =
        machines.iter().map(|m| crate::measured::of_machine(&finished, &m.label)).collect();
    let numbers: BTreeSet<u32> = finished.iter().map(|(_, record)| record.index).collect();
    let normalised = hosts::level(&session.record, &numbers, &mut figures);
    if figures.iter().all(Vec::is_empty) {
        return Err(session.no_runs(&unread));
    }
    let mut warnings = unread;
    warnings.extend(normalised.warnings);
    warnings.extend(session.record.notes.iter().cloned());
    let phases = figures::phase_order(figures.iter().flatten().map(Figures::phase_names));
    let points: Vec<SweepPoint> =
        machines.iter().zip(&figures).map(|(m, f)| point(m, f, &phases)).collect();
    let parameters = parameters_of(machines);
    let measured: Vec<Measured<'_>> = points
        .iter()
        .zip(&figures)
        .map(|(point, f)| {
            let alike = is_like(&points, point);
            let runs = f.iter().filter(|f| alike && f.is_done()).collect();
            Measured { point, runs }
        })
        .collect();
    let blocks = blocks(&session.record.plan);
    let (scaling, steps) = scaling::scale(&parameters, &measured, &blocks, session.record.seed);
    warnings.extend(warnings_of(&points, session, &finished));
    let Compared { comparisons, refused, warnings: left_out } =
        comparisons(&parameters, &points, &finished, &session.record.plan);
    warnings.extend(left_out);
    warnings
        .extend(refused.iter().map(|n| format!("{} is not compared with {}: {}", n.b, n.a, n.why)));
    let explained = explain(&scaling, &points, session, &finished);
    let result = SweepResult {
        envelope: envelope::envelope(&session.record),
        comparisons,
        parameters,
        hints: hints(&explained, &points, session),
        points,
        scaling,
        steps,
        explained,
        hosts: normalised.hosts,
        warnings,
        saved_in: session.dir.display().to_string(),
    };
    Ok(result)
}

fn point(machine: &SessionMachine, figures: &[Figures], phases: &[String]) -> SweepPoint {
    let done: Vec<&Figures> = figures.iter().filter(|f| f.is_done()).collect();
    let totals: Vec<f64> = done.iter().map(|f| f.run.total_s).collect();
    let samples = |name: &str| done.iter().map(|f| f.phase(name)).collect();
    SweepPoint {
        label: machine.label.clone(),
        parameters: machine.parameters.clone(),
        machine: machine.clone(),
        runs: figures.iter().map(|f| f.run.clone()).collect(),
        total: (!totals.is_empty()).then(|| estimate(&totals)),
        phases: figures::phases(phases, totals.iter().sum(), samples),
        counts: figures::counts(done.iter().flat_map(|f| &f.run.counts).map(|(n, v)| (n, *v))),
    }
}

/// The parameters as the session's machines have them.
fn parameters_of(machines: &[SessionMachine]) -> Vec<SweptParameter> {
    let mut found: Vec<SweptParameter> = Vec::new();
    for (name, value) in machines.iter().flat_map(|m| &m.parameters) {
        match found.iter_mut().find(|p| p.name == *name) {
            Some(parameter) if parameter.values.contains(value) => {}
            Some(parameter) => parameter.values.push(value.clone()),
            None => found.push(SweptParameter {
                name: name.clone(),
                values: vec![value.clone()],
                numeric: false,
            }),
        }
    }
    for parameter in &mut found {
        let number = |value: &String| value.parse::<f64>().is_ok_and(f64::is_finite);
        parameter.numeric = parameter.values.iter().all(number);
    }
    found
}

/// True if a point's runs are measured to what those of the first that has any are, and
/// more than its VMM's exit is known of how they ended.
fn is_like(points: &[SweepPoint], point: &SweepPoint) -> bool {
    let ends = |point: &SweepPoint| Ends::of_swept(point.runs.iter());
    let own = ends(point);
    if own.is_unknown() {
        return false;
    }
    let known = |ends: &Ends| !ends.to().is_empty() && !ends.is_unknown();
    let first = points.iter().map(ends).find(known);
    first.is_none_or(|first| own.to().is_empty() || *own.to() == *first.to())
}

fn warnings_of(points: &[SweepPoint], session: &Session, finished: &[SavedRun]) -> Vec<String> {
    let mut warnings = Vec::new();
    for point in points {
        let done = point.runs.iter().filter(|r| r.outcome == Outcome::Done).count();
        if done == 0 && !point.runs.is_empty() {
            warnings.push(format!("{}: no run reached its end", point.label));
        } else if Ends::of_swept(point.runs.iter()).is_unknown() {
            warnings.push(format!(
                "{}: vmeter does not use this point to compute the growth, because it does not \
                    know how the point's guest ended, {TO_LEARN_IT}",
                point.label
            ));
        } else if !is_like(points, point) {
            warnings.push(format!(
                "{}: the runs at this point ended differently from the runs at the first point, so \
                    vmeter does not use this point to compute the growth. To compare all points, \
                    give an --until that all of them reach",
                point.label
            ));
        }
    }
    if let Some(own) = &session.record.shard {
        let is_own = |(_, run): &&SavedRun| own.runs.contains(&run.index);
        let there = finished.iter().filter(is_own).count();
        warnings.push(format!(
            "this is shard {} of a sweep; {there} of the shard's {} runs are finished; join the \
                shards with `vmeter merge`",
            own.shard,
            own.runs.len()
        ));
        return warnings;
    }
    warnings.extend(crate::missing::warning(session, finished));
    let few = |p: &&SweepPoint| p.total.is_some_and(|t| t.sd > 0.0 && t.n < ENOUGH_RUNS);
    if points.iter().any(|p| few(&p)) {
        warnings.push(format!(
            "at least one point has fewer than {ENOUGH_RUNS} runs: if the host is slow during all \
                runs of a point, this looks like a jump"
        ));
    }
    warnings
}

/// Each other point against the first, block by block, where a parameter has no order.
fn comparisons(
    parameters: &[SweptParameter],
    points: &[SweepPoint],
    finished: &[SavedRun],
    plan: &[PlannedRun],
) -> Compared {
    let unordered = parameters.iter().any(|p| !p.numeric && p.values.len() > 1);
    if !unordered {
        return Compared::default();
    }
    let blocks = blocks(plan);
    let virtual_time: BTreeSet<u32> =
        finished.iter().filter(|(_, run)| run.icount).map(|(_, run)| run.index).collect();
    let sampled: Vec<_> = points.iter().map(|p| sampled(p, &blocks, &virtual_time)).collect();
    against_the_first(&sampled, Rule::default())
}

fn sampled<'p>(
    point: &'p SweepPoint,
    blocks: &BTreeMap<u32, usize>,
    virtual_time: &BTreeSet<u32>,
) -> Sampled<'p> {
    let done = || point.runs.iter().filter(|r| r.outcome == Outcome::Done);
    let samples = |of: fn(&SweptRun) -> f64| -> ByBlock {
        done().filter_map(|r| Some((*blocks.get(&r.index)?, of(r)))).collect()
    };
    Sampled {
        label: &point.label,
        wall: samples(|r| r.total_s),
        cpu: samples(|r| r.cpu_s),
        ends: Ends::of_swept(point.runs.iter()),
        exact: done().count() > 0 && done().all(|r| virtual_time.contains(&r.index)),
    }
}

/// The two points of each break, compared: breaks in time first, the largest first.
fn explain(
    scaling: &[Scaling],
    points: &[SweepPoint],
    session: &Session,
    finished: &[(std::path::PathBuf, vmeter_model::RunRecord)],
) -> Vec<ExplainedBreak> {
    let mut breaks: Vec<(&Scaling, [f64; 2], f64)> = scaling
        .iter()
        .flat_map(|s| s.breaks.iter().map(move |b| (s, b.between, b.jump.abs())))
        .collect();
    let is_count = |s: &Scaling| s.series == Series::Count;
    breaks.sort_by(|a, b| is_count(a.0).cmp(&is_count(b.0)).then(b.2.total_cmp(&a.2)));
    let mut explained: Vec<ExplainedBreak> = Vec::new();
    for (scaling, between, _) in breaks {
        let point = |x: f64| {
            points.iter().find(|p| {
                let own = |(name, value): &(String, String)| {
                    *name == scaling.parameter && value.parse() == Ok(x)
                        || scaling.at.contains(&(name.clone(), value.clone()))
                };
                p.parameters.iter().all(own)
            })
        };
        let (Some(a), Some(b)) = (point(between[0]), point(between[1])) else { continue };
        let again = |e: &ExplainedBreak| e.diff.a.label == a.label && e.diff.b.label == b.label;
        if explained.len() >= EXPLAINED || explained.iter().any(again) {
            continue;
        }
        let side = |label: &str| diff::Side::of_machine(session, finished, label);
        explained.push(ExplainedBreak {
            parameter: scaling.parameter.clone(),
            between,
            diff: diff::compare_sides(&side(&a.label), &side(&b.label), session.record.seed),
        });
    }
    explained
}

fn hints(explained: &[ExplainedBreak], points: &[SweepPoint], session: &Session) -> Vec<String> {
    let dir = session.dir.display();
    let mut hints = Vec::new();
    let quoted = |label: &str| shell::quote(&format!("{dir}#{label}"));
    if let Some(first) = explained.first() {
        let (a, b) = (quoted(&first.diff.a.label), quoted(&first.diff.b.label));
        hints.push(format!("vmeter diff {a} {b}  # the spans and times that differ"));
    } else if let [first, .., last] = points {
        let (a, b) = (quoted(&first.label), quoted(&last.label));
        hints.push(format!(
            "vmeter diff {a} {b}  # how the first and last point of the sweep \
            differ"
        ));
    }
    let noisy = points.iter().filter_map(|p| p.total).any(|t| t.n > 1 && t.sd > 0.0);
    if noisy {
        let runs = points.iter().filter_map(|p| p.total).map(|t| t.n).max().unwrap_or(1);
        let dir = shell::path(&session.dir);
        hints
            .push(format!("vmeter sweep --resume {dir} --runs {}  # narrower intervals", 2 * runs));
    }
    hints
}

/// The kind `sweep`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        points::KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(Shown(result(&Session::open(dir)?)?)))
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Ok(self)
    }

    fn boots(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Shardable for Kind {}

impl Answer for Shown<SweepResult> {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(SweepReport::new(&self.0))
    }

    fn failure(&self) -> Option<String> {
        failed_runs(self.0.points.iter().flat_map(|point| &point.runs).map(|run| &run.outcome))
    }
}
