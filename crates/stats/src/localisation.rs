//! With which commit a change of level came, and which commits to run again to know it better.
//!
//! That there is a change is decided elsewhere ([`crate::segments`]): here a step is given, and
//! only moved between its neighbours. Each place that it may have is weighed by how well two
//! levels, meeting there, explain the commits' centres (the posterior of a change point with flat
//! priors; A. Smith, "A Bayesian approach to inference about a change-point", Biometrika 62,
//! 1975). A centre has the variance of its runs' mean and that of its build, so commits that were
//! run again weigh more, up to what their build allows.

use crate::sample::{mean, median, parts_between, MAD_TO_SD};
use crate::signed_rank::pseudo_median;

/// Deviations of runs beyond so many robust standard deviations are cut to that: a slow spell is
/// not the runs' noise.
const CUT: f64 = 3.0;
/// A level of so few commits is run again as well.
const SHORT: usize = 2;

/// Where a step is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placed {
    /// The likeliest first commit of the new level.
    pub at: usize,
    /// First and last of the commits that it may be, with the probability asked for.
    pub within: [usize; 2],
}

/// Variances of a commit's centre.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Of one run.
    pub run: f64,
    /// Of what a build adds to all of its runs.
    pub build: f64,
}

impl Spread {
    /// From runs of commits whose level changes at `steps`.
    pub fn of(runs: &[Vec<f64>], steps: &[usize]) -> Self {
        let run = within(runs);
        let mut squares = 0.0;
        let mut freedom = 0.0;
        let mut expected = 0.0;
        for (begin, end) in segments(steps, runs.len()) {
            let own: Vec<&Vec<f64>> =
                runs[begin..end].iter().filter(|own| !own.is_empty()).collect();
            let centres: Vec<f64> = own.iter().map(|own| pseudo_median(own)).collect();
            let level = mean(&centres);
            squares += centres.iter().map(|y| (y - level).powi(2)).sum::<f64>();
            let spare = (own.len() as f64 - 1.0).max(0.0);
            freedom += spare;
            let of_runs: Vec<f64> = own.iter().map(|own| run / own.len() as f64).collect();
            expected += if own.is_empty() { 0.0 } else { spare * mean(&of_runs) };
        }
        let build = if freedom > 0.0 { ((squares - expected) / freedom).max(0.0) } else { 0.0 };
        Spread { run, build }
    }

    /// Variance of the centre of so many runs.
    pub(crate) fn of_centre(self, runs: usize) -> f64 {
        (self.build + self.run / runs.max(1) as f64).max(1e-24)
    }

    /// True if more runs of a commit that has so many tell more than what its build adds hides.
    pub fn is_worth_more(self, runs: usize) -> bool {
        self.run / runs.max(1) as f64 > self.build
    }
}

/// Places `steps` anew, each between the ones beside it, with the probability `sure` for where
/// each may be. Commits without runs count for nothing.
pub fn placed(runs: &[Vec<f64>], steps: &[usize], sure: f64) -> Vec<Placed> {
    let spread = Spread::of(runs, steps);
    let cells: Vec<(f64, f64)> = runs
        .iter()
        .map(|own| match own.len() {
            0 => (0.0, 0.0),
            n => (1.0 / spread.of_centre(n), pseudo_median(own)),
        })
        .collect();
    let mut at: Vec<usize> = steps.to_vec();
    let mut found = Vec::new();
    // A step's neighbours may have moved once.
    for _ in 0..2 {
        found.clear();
        for k in 0..at.len() {
            let begin = if k == 0 { 0 } else { at[k - 1] };
            let end = at.get(k + 1).copied().unwrap_or(cells.len());
            let own = one(&cells, (begin, end), at[k], sure);
            at[k] = own.at;
            found.push(own);
        }
    }
    found
}

/// One step among the cells (weight, centre) from `begin` to `end`.
fn one(cells: &[(f64, f64)], (begin, end): (usize, usize), at: usize, sure: f64) -> Placed {
    let unmoved = Placed { at, within: [at, at] };
    let part = cells.get(begin..end).unwrap_or_default();
    let candidates: Vec<(usize, f64)> = (1..part.len())
        .filter_map(|cut| {
            let (left, right) = part.split_at(cut);
            Some((begin + cut, level(left)? + level(right)?))
        })
        .collect();
    let best = candidates.iter().map(|(_, log)| *log).fold(f64::NEG_INFINITY, f64::max);
    let mut shares: Vec<(usize, f64)> =
        candidates.iter().map(|(at, log)| (*at, (log - best).exp())).collect();
    let total: f64 = shares.iter().map(|(_, share)| share).sum();
    if !total.is_finite() || total <= 0.0 {
        return unmoved;
    }
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let Some((likeliest, _)) = shares.first().copied() else { return unmoved };
    let mut within = [likeliest, likeliest];
    let mut held = 0.0;
    for (at, share) in shares {
        if held >= sure * total {
            break;
        }
        held += share;
        within = [within[0].min(at), within[1].max(at)];
    }
    Placed { at: likeliest, within }
}

/// Log evidence of cells that share a level, which may be any; none without a cell that has runs.
fn level(cells: &[(f64, f64)]) -> Option<f64> {
    let weight: f64 = cells.iter().map(|(w, _)| w).sum();
    if weight <= 0.0 {
        return None;
    }
    let centre = cells.iter().map(|(w, y)| w * y).sum::<f64>() / weight;
    let squares: f64 = cells.iter().map(|(w, y)| w * (y - centre).powi(2)).sum();
    Some(-0.5 * squares - 0.5 * weight.ln())
}

/// The commits that are on either side of a step for all that is known, of `n`; with the nearest
/// ones of levels that are known by a few commits only.
pub fn doubtful(placed: &[Placed], n: usize) -> Vec<usize> {
    let mut all = Vec::new();
    for (k, step) in placed.iter().enumerate() {
        let [from, to] = step.within;
        if from == to {
            continue;
        }
        all.extend(from..to);
        let begin = if k == 0 { 0 } else { placed[k - 1].at };
        let end = placed.get(k + 1).map_or(n, |next| next.at);
        if from.saturating_sub(begin) <= SHORT {
            all.extend(from.checked_sub(1).filter(|at| *at >= begin));
        }
        if end.saturating_sub(to) <= SHORT && to < end {
            all.push(to);
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Variance of runs within their commits, the far ones cut.
fn within(runs: &[Vec<f64>]) -> f64 {
    let deviations: Vec<f64> = runs
        .iter()
        .filter(|own| own.len() > 1)
        .flat_map(|own| {
            let centre = mean(own);
            let n = own.len() as f64;
            own.iter().map(move |y| (y - centre) * (n / (n - 1.0)).sqrt())
        })
        .collect();
    let sizes: Vec<f64> = deviations.iter().map(|d| d.abs()).collect();
    let most = CUT * MAD_TO_SD * median(&sizes);
    let cut = |d: &f64| if most > 0.0 { d.abs().min(most).powi(2) } else { d * d };
    let all: Vec<f64> = deviations.iter().map(cut).collect();
    if all.is_empty() {
        0.0
    } else {
        mean(&all)
    }
}

fn segments(steps: &[usize], n: usize) -> Vec<(usize, usize)> {
    let inside: Vec<usize> = steps.iter().copied().filter(|at| *at <= n).collect();
    let parts = parts_between(0, &inside, n).into_iter();
    parts.map(|[begin, end]| (begin, end.max(begin))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// 64 commits of five runs, a step of one standard deviation of a run; `build` is what builds
    /// differ by.
    fn range(rng: &mut Rng, at: usize, build: f64) -> (Vec<f64>, Vec<Vec<f64>>) {
        let levels: Vec<f64> = (0..64).map(|i| f64::from(i >= at) + build * rng.normal()).collect();
        let runs = levels.iter().map(|level| more(rng, *level, 5)).collect();
        (levels, runs)
    }

    fn more(rng: &mut Rng, level: f64, count: usize) -> Vec<f64> {
        (0..count).map(|_| level + rng.normal()).collect()
    }

    /// Least squares of five runs each, the noise being known, are within a commit in 89 %.
    #[test]
    fn a_few_runs_where_it_matters_place_a_step() {
        for (build, least) in [(0.0, 97), (0.3, 80)] {
            let mut rng = Rng::new(8);
            let (mut first, mut near, mut held, mut boots) = (0, 0, 0, 0);
            for trial in 0..100 {
                let at = 10 + trial % 44;
                let (levels, mut runs) = range(&mut rng, at, build);
                let mut found = placed(&runs, &[at], 0.95);
                first += usize::from(found[0].at.abs_diff(at) <= 1);
                for _ in 0..12 {
                    let spread = Spread::of(&runs, &[found[0].at]);
                    let open = doubtful(&found, 64).into_iter();
                    let open: Vec<usize> =
                        open.filter(|i| spread.is_worth_more(runs[*i].len())).collect();
                    for i in &open {
                        runs[*i].extend(more(&mut rng, levels[*i], 3));
                    }
                    boots += 3 * open.len();
                    found = placed(&runs, &[found[0].at], 0.95);
                }
                near += usize::from(found[0].at.abs_diff(at) <= 1);
                held += usize::from((found[0].within[0]..=found[0].within[1]).contains(&at));
            }
            println!("builds {build}: near {first}, then {near}, held {held}, {boots} runs more");
            assert!(near >= least && held >= 90 && boots < 100 * 80, "{near} {held} {boots}");
        }
    }

    #[test]
    fn a_step_stays_between_its_neighbours() {
        let level = |i: usize| [0.0, 9.0, 0.0][usize::from(i >= 4) + usize::from(i >= 5)];
        let runs: Vec<Vec<f64>> = (0..9).map(|i| vec![level(i), level(i) + 0.1]).collect();
        let found = placed(&runs, &[4, 5], 0.99);
        assert_eq!(found.iter().map(|p| p.at).collect::<Vec<_>>(), [4, 5]);
        assert!(doubtful(&found, 9).is_empty(), "{found:?}");
        assert_eq!(placed(&[], &[], 0.9), []);
        assert_eq!(placed(&[vec![], vec![]], &[1], 0.9), [Placed { at: 1, within: [1, 1] }]);
    }
}
