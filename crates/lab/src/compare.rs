//! Machines against the first of them, for `vmeter bench` and the points of a sweep.

use vmeter_model::result::Comparison;
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
}

/// Each other machine against the first, block by block, p-values corrected for their number
/// (Holm). One without a ratio is left out.
pub(crate) fn against_the_first(machines: &[Sampled<'_>], seed: u64) -> Vec<Comparison> {
    let Some((first, others)) = machines.split_first() else { return Vec::new() };
    let options = Options { paired: true, seed, ..Options::default() };
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
    compared.into_iter().zip(corrected).map(comparison).collect()
}
