//! What commits scatter by where no level changes.

use super::neighbour_sd;
use crate::rng::Rng;
use crate::sample::median;
use crate::signed_rank::pseudo_median;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Centres of runs that are drawn for the null distribution.
const CENTRES: usize = 2000;
/// A commit is judged by its own runs if those of others scatter as much with this chance, by so
/// many draws.
const LOUD: f64 = 0.002;
const LOUD_DRAWS: usize = 1000;
/// Beyond so many degrees of freedom Student's t is the normal distribution.
const MOST_FREEDOM: usize = 40;
/// With fewer deviations their tails are not known.
const FEWEST_DEVIATIONS: usize = 12;

/// For each value what it may be where no level changes.
pub(super) struct Scatter(pub Vec<Draws>);

/// One of the centres of what runs do, and a normal part; or, of a commit that is noisier than the
/// others, what its own runs tell.
#[derive(Clone)]
pub(super) struct Draws {
    centres: Arc<[f64]>,
    normal: f64,
    /// Standard deviation of the commit's own centre, and its degrees of freedom.
    own: Option<(f64, usize)>,
}

impl Draws {
    pub fn draw(&self, rng: &mut Rng) -> f64 {
        let scatter = if self.normal > 0.0 { self.normal * rng.normal() } else { 0.0 };
        match self.own {
            Some((sd, freedom)) => {
                // Student's t: the deviation is known by so few runs.
                let squares: f64 = (0..freedom).map(|_| rng.normal().powi(2)).sum();
                let times = (freedom as f64 / squares.max(1e-9)).sqrt();
                scatter + sd * times * rng.normal()
            }
            None if self.centres.is_empty() => scatter,
            None => scatter + self.centres[rng.below(self.centres.len())],
        }
    }
}

impl Scatter {
    pub fn normal(values: usize) -> Self {
        Scatter(vec![Draws { centres: Arc::new([]), normal: 1.0, own: None }; values])
    }

    pub fn of(runs: &[Vec<f64>], centres: &[f64], seed: u64) -> Self {
        let deviations: Vec<Vec<f64>> = runs.iter().map(|own| deviations(own)).collect();
        let mut rng = Rng::new(seed ^ 0x7363_6174);
        let is_loud = loud(&deviations, &mut rng);
        let calm: Vec<f64> = deviations
            .iter()
            .zip(&is_loud)
            .filter(|(_, loud)| !**loud)
            .flat_map(|(own, _)| own.iter().copied())
            .collect();
        let is_known = calm.len() >= FEWEST_DEVIATIONS
            && calm.iter().all(|d| d.is_finite())
            && calm.iter().any(|d| *d != 0.0);
        if !is_known {
            return Self::normal(runs.len());
        }
        let between = neighbour_sd(centres);
        let mut known: BTreeMap<usize, Draws> = BTreeMap::new();
        let mut of_commit = |(own, loud): (&Vec<f64>, &bool)| {
            let like = known.entry(own.len()).or_insert_with(|| {
                let mut one = || pseudo_median(&drawn(&calm, own.len(), &mut rng));
                let centres: Arc<[f64]> = (0..CENTRES).map(|_| one()).collect();
                // As robust as that of the values is.
                let normal = (between.powi(2) - neighbour_sd(&centres).powi(2)).max(0.0).sqrt();
                Draws { centres, normal, own: None }
            });
            let n = own.len();
            let told = loud.then(|| ((square(own) / n as f64).sqrt(), (n - 1).min(MOST_FREEDOM)));
            Draws { own: told, ..like.clone() }
        };
        Scatter(deviations.iter().zip(&is_loud).map(&mut of_commit).collect())
    }
}

/// Runs about the middle of their commit, with the scatter of single runs.
fn deviations(runs: &[f64]) -> Vec<f64> {
    let n = runs.len() as f64;
    let scale = if n > 1.0 { (n / (n - 1.0)).sqrt() } else { 0.0 };
    let middle = median(runs);
    runs.iter().map(|y| (y - middle) * scale).collect()
}

fn drawn(from: &[f64], count: usize, rng: &mut Rng) -> Vec<f64> {
    (0..count).map(|_| from[rng.below(from.len())]).collect()
}

/// Mean square.
fn square(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>() / values.len().max(1) as f64
}

/// Which commits are noisier than runs of all others make as many runs.
fn loud(deviations: &[Vec<f64>], rng: &mut Rng) -> Vec<bool> {
    let mut is_loud = vec![false; deviations.len()];
    for (i, own) in deviations.iter().enumerate().filter(|(_, own)| own.len() > 2) {
        let others: Vec<f64> = deviations
            .iter()
            .enumerate()
            .filter(|(j, _)| *j != i)
            .flat_map(|(_, d)| d.iter().copied())
            .collect();
        if others.len() < FEWEST_DEVIATIONS {
            continue;
        }
        let size = square(own);
        let as_loud =
            (0..LOUD_DRAWS).filter(|_| square(&drawn(&others, own.len(), rng)) >= size).count();
        is_loud[i] = as_loud as f64 <= LOUD * LOUD_DRAWS as f64;
    }
    let count = is_loud.iter().filter(|loud| **loud).count();
    if 4 * count > deviations.len() {
        return vec![false; deviations.len()];
    }
    is_loud
}
