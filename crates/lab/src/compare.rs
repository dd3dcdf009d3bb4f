//! Machines against the first of them, for `vmeter bench` and the points of a sweep.

use crate::blocks::{pairs, ByBlock};
use crate::ends::Ends;
use vmeter_model::result::{Comparison, NotCompared};
use vmeter_render::quantity::plural;
use vmeter_stats::{Decided, Rule};

/// What is compared of a machine.
pub(crate) struct Sampled<'l> {
    pub(crate) label: &'l str,
    /// Wall time of its runs that reached their end, s.
    pub(crate) wall: ByBlock,
    /// CPU time of them, s.
    pub(crate) cpu: ByBlock,
    /// How its runs ended.
    pub(crate) ends: Ends,
    /// True if its time is virtual: each run then is the same observation.
    pub(crate) exact: bool,
}

/// Each other machine against the first, block by block; `rule` says how, but for the number
/// of comparisons, which is that of the other machines. Those whose ends differ are not
/// compared, and one without a pair is left out.
pub(crate) fn against_the_first(machines: &[Sampled<'_>], rule: Rule) -> Compared {
    let Some((first, others)) = machines.split_first() else { return Compared::default() };
    let mut found = Compared::default();
    for other in others {
        let ends = ((first.label, &first.ends), (other.label, &other.ends));
        if let Some(why) = Ends::differ(ends.0, ends.1) {
            let (a, b) = (first.label.to_owned(), other.label.to_owned());
            found.refused.push(NotCompared { a, b, why });
            continue;
        }
        let exact = first.exact && other.exact;
        let rule = Rule { comparisons: others.len(), exact, ..rule };
        let (wall, single) = pairs(&first.wall, &other.wall);
        let (cpu, _) = pairs(&first.cpu, &other.cpu);
        let Some(decided) = rule.decide(&wall) else { continue };
        if single > 0 && !exact {
            found.warnings.push(format!(
                "{}: vmeter left out {}, whose block has no run of {} to compare with",
                other.label,
                plural(single as u64, "run"),
                first.label
            ));
        }
        let cpu_ratio = rule.decide(&cpu).map_or(decided.ratio, |cpu| cpu.ratio);
        found.comparisons.push(comparison((first.label, other.label), decided, cpu_ratio, &rule));
    }
    found
}

/// A comparison as it is reported.
pub(crate) fn comparison(
    (a, b): (&str, &str),
    decided: Decided,
    cpu_ratio: vmeter_model::Estimate,
    rule: &Rule,
) -> Comparison {
    Comparison {
        a: a.to_owned(),
        b: b.to_owned(),
        ratio: decided.ratio,
        sure_pct: (1e4 * (1.0 - rule.alpha)).round() / 100.0,
        mean_ratio: decided.mean,
        mean_alone: decided.mean_alone,
        tail: crate::verdict::tail(a, b, &decided),
        cpu_ratio,
        p_value: decided.p_value,
        verdict: decided.verdict,
        detectable_pct: decided.detectable.map(|effect| 100.0 * effect),
        margin_pct: 100.0 * rule.margin,
        pairs: decided.pairs,
        pairs_needed: decided.needed,
        exact: rule.exact,
    }
}

/// Machines against the first.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) comparisons: Vec<Comparison>,
    /// Those that are not compared, and why.
    pub(crate) refused: Vec<NotCompared>,
    /// What is left out, in words.
    pub(crate) warnings: Vec<String>,
}

/// Runs of each machine with which `machines` can be compared with the first of them at all.
pub(crate) fn needed_runs(machines: usize) -> usize {
    Rule { comparisons: machines.saturating_sub(1), ..Rule::default() }.needed()
}

/// What is said before the first boot of runs with which nothing can be decided.
pub(crate) fn too_few(runs: usize, machines: usize) -> Option<String> {
    let needed = needed_runs(machines);
    (machines > 1 && runs < needed).then(|| {
        format!(
            "{} of each machine cannot distinguish even a large difference from noise: comparing \
                {machines} machines needs {needed} runs of each",
            plural(runs as u64, "run")
        )
    })
}
