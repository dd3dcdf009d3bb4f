//! Samples from several hosts, merged.
//!
//! A job array spreads one experiment over machines of different speed. Pooled naively, the
//! hosts' differences drown the effect, or fake one if a setting ran more often on a slow
//! host. [`adjust`] takes each host's factor out of its samples, on logarithms: a slower host is
//! slower by a factor.

use crate::sample::{mean, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One run somewhere.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostSample {
    /// Index of the host.
    pub host: usize,
    /// Index of what was run (machine, setting).
    pub group: usize,
    /// Cost, above 0.
    pub value: f64,
}

/// Result of [`adjust`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adjusted {
    /// The samples without their host's factor, in the order given; NaN for unusable ones.
    pub values: Vec<f64>,
    /// Each host's factor (1 is the average host, geometrically); 1 for hosts without samples.
    pub host_factors: Vec<f64>,
    /// Standard deviation of one run on one host, as a part of its cost.
    pub within_sd: f64,
    /// Pairs of groups that share no chain of hosts: they can't be told from their hosts'
    /// difference, and comparing them is worth nothing.
    pub confounded: Vec<(usize, usize)>,
}

/// Takes the hosts' factors out: least squares of log cost = group + host (two-way layout
/// without interaction; H. Scheffé, The Analysis of Variance, 1959, ch. 4), by alternating
/// means, which converges for any pattern of missing cells.
pub fn adjust(samples: &[HostSample]) -> Adjusted {
    let usable: Vec<(usize, usize, f64)> = samples
        .iter()
        .filter(|s| s.value > 0.0 && s.value.is_finite())
        .map(|s| (s.host, s.group, s.value.ln()))
        .collect();
    let (hosts, host_of) = numbered(usable.iter().map(|s| s.0));
    let (groups, group_of) = numbered(usable.iter().map(|s| s.1));
    let mut host_effects = vec![0.0; hosts.len()];
    let mut group_effects = vec![0.0; groups.len()];
    for _ in 0..500 {
        let left = usable.iter().zip(&host_of).map(|(s, h)| s.2 - host_effects[*h]);
        group_effects = means_by(&group_of, left, groups.len());
        let left = usable.iter().zip(&group_of).map(|(s, g)| s.2 - group_effects[*g]);
        let mut next = means_by(&host_of, left, hosts.len());
        let centre = mean(&next);
        next.iter_mut().for_each(|e| *e -= centre);
        let moved = next.iter().zip(&host_effects).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        host_effects = next;
        if moved < 1e-12 {
            break;
        }
    }
    let residuals: f64 = usable
        .iter()
        .zip(host_of.iter().zip(&group_of))
        .map(|(s, (h, g))| (s.2 - host_effects[*h] - group_effects[*g]).powi(2))
        .sum();
    let df = (usable.len() + 1).saturating_sub(hosts.len() + groups.len());
    let effect_of = |host: usize| hosts.binary_search(&host).map_or(0.0, |h| host_effects[h]);
    let slots = samples.iter().map(|s| s.host + 1).max().unwrap_or(0).min(MAX_INDEX);
    Adjusted {
        values: samples.iter().map(|s| clean(s.value) / effect_of(s.host).exp()).collect(),
        host_factors: (0..slots).map(|h| effect_of(h).exp()).collect(),
        within_sd: if df > 0 { (residuals / df as f64).sqrt() } else { 0.0 },
        confounded: confounded(&usable, &groups),
    }
}

/// The logarithms of the samples without what their block (`host`) adds, in the order given; NaN for unusable
/// ones. Medians in the place of [`adjust`]'s means (the median polish; J. Tukey, Exploratory Data Analysis, 1977,
/// ch. 11): one boot that takes three times as long moves no other of its block.
pub fn without_blocks(samples: &[HostSample]) -> Vec<f64> {
    let log = |s: &HostSample| clean(s.value).ln();
    let by = |key: fn(&HostSample) -> usize| {
        let mut all: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, sample) in samples.iter().enumerate().filter(|(_, s)| log(s).is_finite()) {
            all.entry(key(sample)).or_default().push(at);
        }
        all
    };
    let (hosts, groups) = (by(|s| s.host), by(|s| s.group));
    let mut left: Vec<f64> = samples.iter().map(log).collect();
    let mut of_host: BTreeMap<usize, f64> = BTreeMap::new();
    for _ in 0..POLISHES {
        for own in groups.values() {
            let level = median(&own.iter().map(|at| left[*at]).collect::<Vec<_>>());
            own.iter().for_each(|at| left[*at] -= level);
        }
        for (host, own) in &hosts {
            let adds = median(&own.iter().map(|at| left[*at]).collect::<Vec<_>>());
            own.iter().for_each(|at| left[*at] -= adds);
            *of_host.entry(*host).or_default() += adds;
        }
    }
    let centre = mean(&of_host.values().copied().collect::<Vec<_>>());
    samples
        .iter()
        .map(|s| log(s) - of_host.get(&s.host).map_or(0.0, |adds| adds - centre))
        .collect()
}

/// Rounds of [`without_blocks`]: more change little.
const POLISHES: usize = 10;

/// Hosts beyond this index get no entry in [`Adjusted::host_factors`].
const MAX_INDEX: usize = 1 << 16;

fn clean(value: f64) -> f64 {
    if value > 0.0 && value.is_finite() {
        value
    } else {
        f64::NAN
    }
}

/// The different labels in order, and each item's place among them.
fn numbered(labels: impl Iterator<Item = usize> + Clone) -> (Vec<usize>, Vec<usize>) {
    let mut different: Vec<usize> = labels.clone().collect();
    different.sort_unstable();
    different.dedup();
    let places = labels.map(|l| different.partition_point(|d| *d < l)).collect();
    (different, places)
}

fn means_by(places: &[usize], values: impl Iterator<Item = f64>, n: usize) -> Vec<f64> {
    let mut sums = vec![(0.0, 0.0); n];
    for (place, value) in places.iter().zip(values) {
        sums[*place].0 += value;
        sums[*place].1 += 1.0;
    }
    sums.into_iter().map(|(sum, count): (f64, f64)| sum / count.max(1.0)).collect()
}

/// Pairs of groups in different parts of the graph that hosts connect.
fn confounded(usable: &[(usize, usize, f64)], groups: &[usize]) -> Vec<(usize, usize)> {
    let mut part: Vec<usize> = (0..groups.len()).collect();
    let place = |group: usize| groups.partition_point(|g| *g < group);
    let mut by_host: Vec<(usize, usize)> = usable.iter().map(|s| (s.0, place(s.1))).collect();
    by_host.sort_unstable();
    for shared in by_host.windows(2).filter(|w| w[0].0 == w[1].0) {
        let (from, to) = (part[shared[1].1], part[shared[0].1]);
        part.iter_mut().filter(|p| **p == from).for_each(|p| *p = to);
    }
    let pairs = (0..groups.len()).flat_map(|i| (i + 1..groups.len()).map(move |j| (i, j)));
    pairs.filter(|(i, j)| part[*i] != part[*j]).map(|(i, j)| (groups[i], groups[j])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn run(host: usize, group: usize, noise: f64, rng: &mut Rng) -> HostSample {
        let factors = [0.7, 1.0, 1.6, 1.1];
        let value = 4.0 * factors[host] * 1.05f64.powi(group as i32) * (noise * rng.normal()).exp();
        HostSample { host, group, value }
    }

    #[test]
    fn host_factors_come_out_of_an_unbalanced_design() {
        let mut rng = Rng::new(6);
        // Group 1 ran mostly on the slow host.
        let cells = [(0, 0, 8), (0, 1, 2), (1, 0, 5), (1, 1, 5), (2, 0, 2), (2, 1, 9)];
        let samples: Vec<HostSample> = cells
            .into_iter()
            .flat_map(|(h, g, n)| (0..n).map(move |_| (h, g)))
            .map(|(h, g)| run(h, g, 0.01, &mut rng))
            .collect();
        let adjusted = adjust(&samples);
        let of = |group: usize, values: &[f64]| -> Vec<f64> {
            let with = samples.iter().zip(values).filter(|(s, _)| s.group == group);
            with.map(|(_, v)| *v).collect()
        };
        let ratio = mean(&of(1, &adjusted.values)) / mean(&of(0, &adjusted.values));
        assert!((ratio - 1.05).abs() < 0.01, "{ratio}");
        let raw: Vec<f64> = samples.iter().map(|s| s.value).collect();
        assert!(mean(&of(1, &raw)) / mean(&of(0, &raw)) > 1.3, "pooling fakes an effect");
        assert!((adjusted.host_factors[2] / adjusted.host_factors[0] - 1.6 / 0.7).abs() < 0.05);
        assert!((adjusted.within_sd - 0.01).abs() < 0.004, "{adjusted:?}");
        assert_eq!(adjusted.confounded, []);
    }

    #[test]
    fn groups_on_different_hosts_are_confounded() {
        let mut rng = Rng::new(6);
        let cells = [(0, 0), (0, 1), (1, 2), (1, 3), (1, 2)];
        let samples: Vec<HostSample> =
            cells.into_iter().map(|(h, g)| run(h, g, 0.0, &mut rng)).collect();
        assert_eq!(adjust(&samples).confounded, [(0, 2), (0, 3), (1, 2), (1, 3)]);
        let empty = adjust(&[HostSample { host: 3, group: 0, value: -1.0 }]);
        assert!(empty.values[0].is_nan() && empty.host_factors == [1.0; 4]);
        assert_eq!(adjust(&[]).values, [0.0; 0]);
    }
}
