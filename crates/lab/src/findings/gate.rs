//! Is a machine faster without a cause, and where? One decision for every finding.
//!
//! Machines are compared block by block. What is looked at of a pair is the ratio of the whole
//! boots, by its logarithm, and so of their CPU times; and, for each phase and each activity that
//! was named before, what the machine without the cause saves there, as a share of the boot.
//!
//! A busy host stretches a boot, and all its phases with it. So before phases are compared both
//! boots are brought to the speed half way between them: the median, over the phases that both
//! have, of the ratio of their lengths. What changes a few phases does not move a median; what
//! changes most of them is left to the whole boot and the CPU time.
//!
//! The blocks' values are tested by Student's paired t: unlike a permutation of 10
//! blocks (which reaches 0.002 at best) it can stand a correction for everything that is looked
//! at. The difference of two alike is symmetric, so that slow spells make it cautious, not bold.
//! The whole boot, the VMM's CPU time, the named parts and the phases have a share of the level
//! each, phases are corrected for their number, and the session's comparisons by Holm.
//!
//! A named part that only the machine with the cause has is no difference of two alike: what it
//! takes is held against [`PART_MATTERS_S`], by its logarithm, which one slow boot of ten moves little.

use std::collections::BTreeSet;
use vmeter_model::findings::Moved;
use vmeter_model::Estimate;
use vmeter_stats::dist::{normal_quantile, t_quantile, t_two_sided};
use vmeter_stats::{estimate_signed, holm, mean, median};

/// Chance at most that a session calls anything a saving that is none.
pub(crate) const ALPHA: f64 = 0.01;
/// Phases below this share of the boot are not tested. The filter looks at both sides together,
/// which knows nothing of their difference.
const SMALL: f64 = 2e-4;
/// A part of a boot matters from here on, s: what the published findings call long for an
/// initcall.
pub(crate) const PART_MATTERS_S: f64 = 1e-3;
/// Differences of runs that agree more closely are the clock's, as a share of the boot.
const RESOLUTION: f64 = 1e-6;
/// What levelling leaves of an effect in one phase of six, by simulation: that phase pulls the
/// median as well.
const LEVELLED: f64 = 0.83;
/// The smallest effect that is stated is found in this share of sessions.
const POWER: f64 = 0.8;

/// A boot of one block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Boot {
    /// Whole, s.
    pub total: f64,
    /// CPU time of the VMM, s: what a busy host leaves as it is.
    pub cpu: f64,
    /// Phases and activities by name, s.
    pub parts: std::collections::BTreeMap<String, f64>,
    /// Which of `parts` are phases.
    pub phases: BTreeSet<String>,
    /// The phase of each other part.
    pub within: std::collections::BTreeMap<String, String>,
}

impl Boot {
    fn part(&self, name: &str) -> f64 {
        self.parts.get(name).copied().unwrap_or(0.0)
    }
}

/// Phases that are long enough to tell a host's speed, as a share of the boot.
const TELLING: f64 = 0.01;
/// With fewer of them nothing is normalised.
const ENOUGH_PHASES: usize = 5;

/// By how much, as a logarithm, the host was slower in `a` than in `b`.
fn slowness(a: &Boot, b: &Boot) -> f64 {
    let long = |boot: &Boot, name: &str| {
        Some(boot.part(name)).filter(|s| *s > 0.0 && *s >= TELLING * boot.total)
    };
    let ratio = |name: &String| Some((long(a, name)? / long(b, name)?).ln());
    let ratios: Vec<f64> = a.phases.intersection(&b.phases).filter_map(ratio).collect();
    if ratios.len() < ENOUGH_PHASES {
        return 0.0;
    }
    median(&ratios)
}

/// What `b` saves of a part, as a share of the boot, both boots brought to the speed half way
/// between them.
fn normalised(a: &Boot, b: &Boot, name: &str) -> f64 {
    let half = (slowness(a, b) / 2.0).exp();
    let saved = a.part(name) / half - b.part(name) * half;
    let whole = (a.total / half + b.total * half) / 2.0;
    saved / whole
}

/// Seconds that one of a logarithm is, so that the blocks' mean is what lies between the two
/// geometric means, and its interval is that of the test: the logarithmic mean of the two.
fn seconds_of_log(a: f64, b: f64) -> f64 {
    let ratio = (a / b).ln();
    if ratio.abs() < 1e-9 {
        a
    } else {
        (a - b) / ratio
    }
}

fn geometric(values: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = values.map(f64::ln).filter(|log| log.is_finite()).collect();
    mean(&logs).exp()
}

/// Two machines in the blocks that both have, and where a saving is expected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    /// With the cause.
    pub with: &'a [&'a Boot],
    /// Without it, in the same blocks; none for a part of the boot as it is.
    pub without: Option<&'a [&'a Boot]>,
    /// Parts that were named before.
    pub expected: &'a [String],
}

/// What is looked at.
#[derive(Debug, Clone, PartialEq)]
enum Of {
    Whole,
    Cpu,
    Part(String),
}

/// What came of a question, before it is corrected for the others.
struct Looked {
    /// Group by group: whole boot, CPU time, named parts, phases.
    quantities: Vec<Quantity>,
    p: f64,
}

struct Quantity {
    what: Of,
    /// Logarithms of ratios, or shares of the boot.
    logs: Vec<f64>,
    /// s, block by block: what is tested, at one scale for all blocks.
    savings: Vec<f64>,
    /// Corrected within its comparison.
    p: f64,
    /// By how many it was corrected.
    of: f64,
    /// A part that the machine without the cause has not: `logs` are of its length over what matters.
    alone: bool,
}

/// The decision.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    /// Corrected for everything.
    pub p_value: f64,
    /// Where, beyond noise, the largest first; phases before activities.
    pub moved: Vec<Moved>,
    /// Less of the whole boot.
    pub saving: Estimate,
    /// The smallest saving, s, that would have been found where it was expected, and where that is.
    pub detectable: Option<(f64, String)>,
    /// The same of the whole boot.
    pub detectable_whole_s: Option<f64>,
    /// Of whole boot, CPU time and named parts, that with the smallest p-value.
    pub nearest: Option<(Estimate, String)>,
    /// Less CPU time of the VMM.
    pub cpu_saving: Estimate,
    /// True if the whole boot changed beyond noise.
    pub whole_changed: bool,
    /// True if the CPU time did.
    pub cpu_changed: bool,
    /// True if it is a saving; false if it is a loss, or nothing.
    pub saves: bool,
    /// True if it is a loss beyond noise.
    pub costs: bool,
}

/// Decides all questions of a session together.
pub(crate) fn decide(questions: &[Question<'_>]) -> Vec<Decision> {
    let looked: Vec<Looked> = questions.iter().map(look).collect();
    let p_values = holm(&looked.iter().map(|l| l.p).collect::<Vec<_>>());
    let all = looked.len().max(1) as f64;
    let questions = questions.iter().zip(looked).zip(p_values);
    questions.map(|((question, looked), p)| decision(question, &looked, p, all)).collect()
}

fn look(question: &Question<'_>) -> Looked {
    let mut quantities = match question.without {
        Some(without) => of_two(question, without),
        None => question.expected.iter().map(|name| of_part(question, name)).collect(),
    };
    for quantity in &mut quantities {
        quantity.p = (test(quantity, question) * quantity.of).min(1.0);
    }
    let p = quantities.iter().map(|q| q.p).fold(1.0, f64::min);
    Looked { quantities, p }
}

/// The whole boot, then named parts, then phases.
fn of_two(question: &Question<'_>, without: &[&Boot]) -> Vec<Quantity> {
    let boots = || question.with.iter().chain(without.iter());
    let whole: f64 = boots().map(|boot| boot.total).sum();
    let large = |name: &str| boots().map(|boot| boot.part(name)).sum::<f64>() >= SMALL * whole;
    let phases: BTreeSet<&str> = boots().flat_map(|b| &b.phases).map(String::as_str).collect();
    let phases: Vec<&str> = phases.into_iter().filter(|name| large(name)).collect();
    let is_there = |name: &&String| large(name);
    let named: Vec<&String> = question.expected.iter().filter(is_there).collect();
    let any = |list: bool| f64::from(u8::from(list));
    let groups = 2.0 + any(!named.is_empty()) + any(!phases.is_empty());
    let pairs = || question.with.iter().zip(without);
    let of = |what: Of, of: f64| {
        let sides = |side: fn(&Boot) -> f64| {
            let logs = pairs().map(|(a, b)| (side(a) / side(b)).ln());
            let (a, b) = (
                geometric(question.with.iter().map(|boot| side(boot))),
                geometric(without.iter().map(|boot| side(boot))),
            );
            (logs.collect(), seconds_of_log(a, b))
        };
        let (logs, scale): (Vec<f64>, f64) = match &what {
            Of::Whole => sides(|boot| boot.total),
            Of::Cpu => sides(|boot| boot.cpu),
            Of::Part(name) => {
                let shares = pairs().map(|(a, b)| normalised(a, b, name)).collect();
                (shares, whole / (2 * without.len()).max(1) as f64)
            }
        };
        let logs: Vec<f64> = logs.into_iter().filter(|log| log.is_finite()).collect();
        let savings = logs.iter().map(|log| log * scale).collect();
        Quantity { what, logs, savings, p: 1.0, of, alone: false }
    };
    let part = |name: &str| Of::Part(name.to_owned());
    let mut all = vec![of(Of::Whole, groups), of(Of::Cpu, groups)];
    let look = |name: &&String| {
        let of = of(part(name), groups * named.len() as f64);
        match alone(question.with, without, name) {
            Some(logs) => Quantity { logs, alone: true, ..of },
            None => of,
        }
    };
    all.extend(named.iter().map(look));
    let others = phases.iter().filter(|phase| named.iter().all(|name| name.as_str() != **phase));
    all.extend(others.map(|name| of(part(name), groups * phases.len() as f64)));
    all
}

fn of_part(question: &Question<'_>, name: &str) -> Quantity {
    let savings: Vec<f64> = question.with.iter().map(|boot| boot.part(name)).collect();
    let logs = logs(question.with, &savings);
    let of = question.expected.len() as f64;
    Quantity { what: Of::Part(name.to_owned()), logs, savings, p: 1.0, of, alone: false }
}

/// Logarithms of what a part takes over what matters, if every boot of one side has it and none of
/// the other.
fn alone(with: &[&Boot], without: &[&Boot], name: &str) -> Option<Vec<f64>> {
    let lengths: Vec<f64> = with.iter().map(|boot| boot.part(name)).collect();
    let is = lengths.iter().all(|s| *s > 0.0) && without.iter().all(|boot| boot.part(name) == 0.0);
    is.then(|| lengths.iter().map(|s| (s / PART_MATTERS_S).ln()).collect())
}

/// A boot over itself less what is saved.
fn logs(with: &[&Boot], savings: &[f64]) -> Vec<f64> {
    let one = |(boot, saved): (&&Boot, &f64)| (boot.total / (boot.total - saved)).ln();
    with.iter().zip(savings).map(one).filter(|log| log.is_finite()).collect()
}

/// Student's paired test. What is a part of a boot is held against what matters, from above only.
fn test(quantity: &Quantity, question: &Question<'_>) -> f64 {
    let least = match question.without {
        Some(_) => 0.0,
        None => PART_MATTERS_S / mean(&totals(question.with)).max(f64::MIN_POSITIVE),
    };
    let Some((error, df)) = error(&quantity.logs) else { return 1.0 };
    let t = (mean(&quantity.logs) - least) / error;
    let from_above = quantity.alone || question.without.is_none();
    if from_above && t < 0.0 {
        return 1.0;
    }
    t_two_sided(t, df)
}

/// Standard error of the mean and its degrees of freedom; none for fewer than two blocks.
fn error(logs: &[f64]) -> Option<(f64, f64)> {
    let of = estimate_signed(logs);
    let df = of.n.checked_sub(1).filter(|df| *df > 0)?;
    Some((of.sd.max(RESOLUTION) / (of.n as f64).sqrt(), df as f64))
}

fn totals(boots: &[&Boot]) -> Vec<f64> {
    boots.iter().map(|boot| boot.total).collect()
}

fn decision(question: &Question<'_>, looked: &Looked, p_value: f64, all: f64) -> Decision {
    // What Holm made of this comparison's p-value is made of its parts' as well.
    let factor = if looked.p > 0.0 { (p_value / looked.p).max(1.0) } else { all };
    let adjusted = |q: &Quantity| (q.p * factor).min(1.0);
    let real = |q: &&Quantity| adjusted(q) <= ALPHA;
    let mut moved: Vec<Moved> = looked
        .quantities
        .iter()
        .filter(real)
        .filter_map(|q| {
            let Of::Part(name) = &q.what else { return None };
            let (saving, p_value) = (estimate_signed(&q.savings), adjusted(q));
            Some(Moved { name: name.clone(), phase: phase_of(question, name), saving, p_value })
        })
        .collect();
    moved.sort_by(|a, b| b.saving.mean.abs().total_cmp(&a.saving.mean.abs()));
    let of = |what: &Of| looked.quantities.iter().find(|q| q.what == *what);
    let (whole, cpu) = (of(&Of::Whole), of(&Of::Cpu));
    let changed = [whole, cpu].map(|q| q.filter(real).map(|q| mean(&q.logs)));
    let effect = changed[0].or(changed[1]);
    let effect = effect.unwrap_or_else(|| moved.first().map_or(0.0, |m| m.saving.mean));
    let saving = whole.or(looked.quantities.first());
    let savings = |q: Option<&Quantity>| estimate_signed(q.map_or(&[][..], |q| &q.savings));
    Decision {
        p_value,
        saving: savings(saving),
        cpu_saving: savings(cpu),
        whole_changed: changed[0].is_some(),
        cpu_changed: changed[1].is_some(),
        detectable: detectable_part(question, looked, all),
        detectable_whole_s: whole.and_then(|q| detectable(question, q, all)),
        nearest: nearest(question, looked),
        saves: p_value <= ALPHA && effect > 0.0,
        costs: p_value <= ALPHA && effect < 0.0,
        moved,
    }
}

/// The phase that a part is, or is in.
fn phase_of(question: &Question<'_>, name: &str) -> String {
    let boots = question.with.iter().chain(question.without.unwrap_or_default());
    let mut within = boots.filter_map(|boot| boot.within.get(name));
    within.next().map_or(name, String::as_str).to_owned()
}

/// The quantity with the smallest p-value, if any is below 1: whole boot, CPU time, or a part that
/// was named before.
fn nearest(question: &Question<'_>, looked: &Looked) -> Option<(Estimate, String)> {
    let named = |q: &&Quantity| !matches!(&q.what, Of::Part(n) if !question.expected.contains(n));
    let near = looked.quantities.iter().filter(|q| q.p < 1.0).filter(named);
    let near = near.min_by(|a, b| a.p.total_cmp(&b.p))?;
    let name = match &near.what {
        Of::Whole => "the whole boot",
        Of::Cpu => "the VMM's CPU time",
        Of::Part(name) => name,
    };
    Some((estimate_signed(&near.savings), name.to_owned()))
}

/// By the noise of the named part that has least of it, and which that is.
fn detectable_part(question: &Question<'_>, looked: &Looked, all: f64) -> Option<(f64, String)> {
    let of = |q: &Quantity| match &q.what {
        Of::Part(name) if question.expected.contains(name) => {
            Some((detectable(question, q, all)?, name.clone()))
        }
        _ => None,
    };
    looked.quantities.iter().filter_map(of).min_by(|a, b| a.0.total_cmp(&b.0))
}

fn detectable(question: &Question<'_>, q: &Quantity, all: f64) -> Option<f64> {
    let (error, df) = error(&q.logs)?;
    let level = ALPHA / (q.of * all);
    let needed = t_quantile(1.0 - level / 2.0, df);
    // The deviation is estimated as well: a noncentral t, by its normal approximation.
    let more = normal_quantile(POWER) * (1.0 + needed * needed / (2.0 * df)).sqrt();
    let least = if q.alone {
        PART_MATTERS_S * ((needed + more) * error).exp()
    } else {
        let kept = if question.without.is_some() && q.what != Of::Whole { LEVELLED } else { 1.0 };
        (needed + more) * error * mean(&totals(question.with)) / kept
    };
    Some(least).filter(|s| s.is_finite())
}

#[cfg(test)]
mod tests;
