//! Machines against the first of them, for `vmeter bench` and the points of a sweep.

use crate::ends::Ends;
use vmeter_model::result::{Comparison, NotCompared};
use vmeter_stats::compare::Options;
use vmeter_stats::{compare, holm};

/// What is compared of a machine: its runs' times in the order of the blocks of the plan, a
/// failed run being NaN, so that runs of one block stay together.
pub(crate) struct Sampled<'l> {
    pub(crate) label: &'l str,
    /// Wall time, s.
    pub(crate) wall: Vec<f64>,
    /// CPU time, s.
    pub(crate) cpu: Vec<f64>,
    /// How its runs ended.
    pub(crate) ends: Ends,
}

/// Each other machine against the first, block by block, p-values corrected for their number
/// (Holm). Those whose ends differ are not compared, and one without a ratio is left out.
pub(crate) fn against_the_first(machines: &[Sampled<'_>], seed: u64) -> Compared {
    let Some((first, others)) = machines.split_first() else { return Compared::default() };
    let options = Options { paired: true, seed, ..Options::default() };
    let mut refused = Vec::new();
    let mut alike = |other: &&Sampled<'_>| match Ends::differ(
        (first.label, &first.ends),
        (other.label, &other.ends),
    ) {
        None => true,
        Some(why) => {
            let (a, b) = (first.label.to_owned(), other.label.to_owned());
            refused.push(NotCompared { a, b, why });
            false
        }
    };
    let others: Vec<_> = others.iter().filter(&mut alike).collect();
    let compared: Vec<_> = others
        .iter()
        .filter_map(|other| {
            let wall = compare(&first.wall, &other.wall, &options)?;
            let cpu = compare(&first.cpu, &other.cpu, &options);
            Some((other.label, wall, cpu.map_or(wall.ratio, |cpu| cpu.ratio)))
        })
        .collect();
    let corrected = holm(&compared.iter().map(|(_, c, _)| c.p_value.p).collect::<Vec<_>>());
    let comparison =
        |((label, wall, cpu_ratio), p_value): ((&str, vmeter_stats::Compared, _), f64)| {
            Comparison {
                a: first.label.to_owned(),
                b: label.to_owned(),
                ratio: wall.ratio,
                cpu_ratio,
                p_value,
                verdict: options.verdict(p_value, wall.ratio.mean),
            }
        };
    let comparisons = compared.into_iter().zip(corrected).map(comparison).collect();
    Compared { comparisons, refused }
}

/// Machines against the first.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) comparisons: Vec<Comparison>,
    /// Those that are not compared, and why.
    pub(crate) refused: Vec<NotCompared>,
}
