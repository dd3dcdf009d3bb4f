//! Steps, or a creep: what a rise that was found looks like.
//!
//! Levels ([`crate::segments`]) fit a creep as well, as a staircase: that there is a step says not that
//! one commit made it. So each stretch of commits that goes one way is held against both: the steps that
//! were found, and a straight line. Each is rejected by draws from the other's best fit (D. Cox, "Tests
//! of separate families of hypotheses", 4th Berkeley Symposium, 1961; by the parametric bootstrap:
//! L. Wahrendorf, H. Becher, C. Brown, Applied Statistics 36, 1987): the line by how much better as
//! many steps fit, the steps by what still rises within their levels.

use crate::dist::t_quantile;
use crate::localisation::Spread;
use crate::rng::Rng;
use crate::sample::{mean, parts_between};
use crate::signed_rank::pseudo_median;

/// Draws of either null distribution.
const DRAWS: usize = 400;
/// A creep that is told as steps: in so many cases at most.
const AS_STEPS: f64 = 0.04;
/// Steps that are told as something else.
const AS_OTHER: f64 = 0.01;

/// Variance of centres about a line over that about steps: what is more is the step itself.
const MOST_SCATTER: f64 = 2.0;

/// What a stretch was found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// An even creep would not look like this, and steps do.
    StepChange,
    /// Steps would not look like this, and an even creep does.
    Creep,
    /// The data leave it open, or it is neither.
    Open,
}

/// A stretch of commits whose levels go one way.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// Its commits: the first, and the one after the last.
    pub commits: [usize; 2],
    /// Which of the steps lie in it: the first, and the one after the last.
    pub steps: [usize; 2],
    /// What it is.
    pub shape: Shape,
    /// Chance of an even creep to look as much like steps.
    pub p_creep: f64,
    /// Chance of steps to leave as much of a rise within their levels.
    pub p_steps: f64,
    /// The last commit less the first, if it is a creep, and half of its 95 % interval.
    pub rise: (f64, f64),
}

impl Stretch {
    /// True for a step of it, by its number.
    pub fn holds(&self, step: usize) -> bool {
        (self.steps[0]..self.steps[1]).contains(&step)
    }
}

/// A commit's centre and its weight, one over its variance.
type Cell = (f64, f64);

/// The stretches that `steps` in the values of `runs` make up, in order. Of exact values steps are
/// steps.
pub fn stretches(runs: &[Vec<f64>], steps: &[usize], seed: u64) -> Vec<Stretch> {
    let inside = |at: &usize| (1..runs.len()).contains(at);
    if steps.is_empty() || !steps.iter().all(inside) || !steps.windows(2).all(|w| w[0] < w[1]) {
        return Vec::new();
    }
    let centres: Vec<Option<f64>> =
        runs.iter().map(|own| (!own.is_empty()).then(|| pseudo_median(own))).collect();
    let groups = groups(&centres, steps);
    // A creep is no scatter of steps, and steps are none of a creep.
    let of_line = about_lines(runs, &centres, steps, &groups);
    let of_steps = Spread::of(runs, steps);
    // Nor is a large step in a short range a scatter of builds.
    let each = runs.iter().map(Vec::len).max().unwrap_or(0).max(1) as f64;
    let most = MOST_SCATTER * (of_steps.build + of_steps.run / each);
    let of_line = Spread { build: of_line.build.min(most), ..of_line };
    let of_steps = Spread { build: of_steps.build.min(of_line.build), ..of_steps };
    let cells = |spread: Spread| -> Vec<Cell> {
        let all = runs.iter().zip(&centres);
        all.map(|(own, y)| y.map_or((0.0, 0.0), |y| (1.0 / spread.of_centre(own.len()), y)))
            .collect()
    };
    let cells = [of_line, of_steps].map(cells);
    let mut rng = Rng::new(seed);
    let tell = |[from, to]: [usize; 2]| {
        let [begin, end] = commits(steps, runs.len(), [from, to]);
        let part = [&cells[0][begin..end], &cells[1][begin..end]];
        let own: Vec<usize> = steps[from..to].iter().map(|at| at - begin).collect();
        let told = ShapeFit::of(part, &own, &mut rng);
        let commits = [begin, end];
        let ShapeFit { shape, p_creep, p_steps, rise } = told;
        Stretch { commits, steps: [from, to], shape, p_creep, p_steps, rise }
    };
    groups.into_iter().map(tell).collect()
}

/// Commits of the steps `from` to `to`, and the levels before and after them.
fn commits(steps: &[usize], n: usize, [from, to]: [usize; 2]) -> [usize; 2] {
    let begin = from.checked_sub(1).and_then(|k| steps.get(k)).copied().unwrap_or(0);
    [begin, steps.get(to).copied().unwrap_or(n)]
}

/// Steps one after the other that go the same way.
fn groups(centres: &[Option<f64>], steps: &[usize]) -> Vec<[usize; 2]> {
    let level = |[begin, end]: [usize; 2]| {
        mean(&centres[begin..end].iter().flatten().copied().collect::<Vec<_>>())
    };
    let parts = parts_between(0, steps, centres.len()).into_iter();
    let levels: Vec<f64> = parts.map(level).collect();
    let up: Vec<bool> = levels.windows(2).map(|w| w[1] > w[0]).collect();
    let mut groups: Vec<[usize; 2]> = Vec::new();
    for (k, is_up) in up.iter().enumerate() {
        match groups.last_mut() {
            Some([_, end]) if up[*end - 1] == *is_up => *end = k + 1,
            _ => groups.push([k, k + 1]),
        }
    }
    groups
}

/// What runs and builds scatter by about lines in the place of steps.
fn about_lines(
    runs: &[Vec<f64>],
    centres: &[Option<f64>],
    steps: &[usize],
    groups: &[[usize; 2]],
) -> Spread {
    let mut level = runs.to_vec();
    let mut begins = Vec::new();
    for [from, to] in groups {
        let [begin, end] = commits(steps, runs.len(), [*from, *to]);
        let end = if *to == steps.len() { end } else { steps[*to - 1] };
        begins.extend((begin > 0).then_some(begin));
        let cell = |y: &Option<f64>| y.map_or((0.0, 0.0), |y| (1.0, y));
        let cells: Vec<Cell> = centres[begin..end].iter().map(cell).collect();
        let line = Line::of(&cells);
        for (x, own) in level[begin..end].iter_mut().enumerate() {
            own.iter_mut().for_each(|y| *y -= line.slope * x as f64);
        }
    }
    Spread::of(&level, &begins)
}

/// A straight line through cells.
struct Line {
    at_0: f64,
    slope: f64,
    /// Weighted squares that it leaves.
    left: f64,
    /// Variance of the slope, if the weights are right.
    variance: f64,
}

impl Line {
    fn of(cells: &[Cell]) -> Self {
        let weight: f64 = cells.iter().map(|(w, _)| w).sum();
        let numbered = || cells.iter().enumerate().map(|(x, (w, y))| (x as f64, *w, *y));
        let x_0 = numbered().map(|(x, w, _)| w * x).sum::<f64>() / weight;
        let y_0 = numbered().map(|(_, w, y)| w * y).sum::<f64>() / weight;
        let xx: f64 = numbered().map(|(x, w, _)| w * (x - x_0).powi(2)).sum();
        let xy: f64 = numbered().map(|(x, w, y)| w * (x - x_0) * (y - y_0)).sum();
        let slope = if xx > 0.0 { xy / xx } else { 0.0 };
        let at_0 = y_0 - slope * x_0;
        let left = numbered().map(|(x, w, y)| w * (y - at_0 - slope * x).powi(2)).sum();
        Line { at_0, slope, left, variance: if xx > 0.0 { 1.0 / xx } else { 0.0 } }
    }
}

/// What levels between `cuts` leave, and the rise that is left within them, in standard deviations.
struct Stairs {
    left: f64,
    within: f64,
}

impl Stairs {
    fn of(cells: &[Cell], cuts: &[usize]) -> Self {
        let (mut left, mut xy, mut xx) = (0.0, 0.0, 0.0);
        for part in parts(cells, cuts) {
            let weight: f64 = part.iter().map(|(w, _)| w).sum();
            if weight <= 0.0 {
                continue;
            }
            let numbered = || part.iter().enumerate().map(|(x, (w, y))| (x as f64, *w, *y));
            let x_0 = numbered().map(|(x, w, _)| w * x).sum::<f64>() / weight;
            let y_0 = level(part);
            left += numbered().map(|(_, w, y)| w * (y - y_0).powi(2)).sum::<f64>();
            xy += numbered().map(|(x, w, y)| w * (x - x_0) * (y - y_0)).sum::<f64>();
            xx += numbered().map(|(x, w, _)| w * (x - x_0).powi(2)).sum::<f64>();
        }
        let within = if xx > 0.0 { xy / xx.sqrt() } else { 0.0 };
        Stairs { left, within }
    }

    /// So many cuts, each where it explains most beside those before it.
    fn best(cells: &[Cell], count: usize) -> Self {
        let mut cuts: Vec<usize> = Vec::new();
        for _ in 0..count {
            let parts = parts_between(0, &cuts, cells.len()).into_iter();
            let best = parts.filter_map(|[begin, end]| cut(&cells[begin..end], begin));
            let Some((at, _)) = best.max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            cuts.push(at);
            cuts.sort_unstable();
        }
        Stairs::of(cells, &cuts)
    }
}

fn parts<'c>(cells: &'c [Cell], cuts: &[usize]) -> impl Iterator<Item = &'c [Cell]> {
    let parts = parts_between(0, cuts, cells.len()).into_iter();
    parts.filter_map(move |[begin, end]| cells.get(begin..end))
}

fn level(cells: &[Cell]) -> f64 {
    let weight: f64 = cells.iter().map(|(w, _)| w).sum();
    cells.iter().map(|(w, y)| w * y).sum::<f64>() / weight
}

/// Where one cut explains most of these cells, the first of which is number `begin`, and how much.
fn cut(cells: &[Cell], begin: usize) -> Option<(usize, f64)> {
    let centre = level(cells);
    let total: f64 = cells.iter().map(|(w, _)| w).sum();
    let (mut weight, mut sum) = (0.0, 0.0);
    let mut best: Option<(usize, f64)> = None;
    for (i, (w, y)) in cells.iter().enumerate() {
        let gain = sum * sum * total / (weight * (total - weight));
        if weight > 0.0 && total - weight > 0.0 && best.is_none_or(|(_, most)| gain > most) {
            best = Some((begin + i, gain));
        }
        weight += w;
        sum += w * (y - centre);
    }
    best
}

/// What a stretch was told to be.
struct ShapeFit {
    shape: Shape,
    p_creep: f64,
    p_steps: f64,
    rise: (f64, f64),
}

impl ShapeFit {
    /// Of cells weighted as about a line, and as about steps.
    fn of([cells, of_steps]: [&[Cell]; 2], steps: &[usize], rng: &mut Rng) -> Self {
        let line = Line::of(cells);
        let n = cells.iter().filter(|(w, _)| *w > 0.0).count();
        let way = if line.slope < 0.0 { -1.0 } else { 1.0 };
        let count = steps.len();
        let like_steps = |cells: &[Cell]| Line::of(cells).left - Stairs::best(cells, count).left;
        let rising = |cells: &[Cell]| way * Stairs::best(cells, count).within;
        let on_line: Vec<f64> =
            (0..cells.len()).map(|x| line.at_0 + line.slope * x as f64).collect();
        let on_stairs: Vec<f64> = parts(of_steps, steps)
            .flat_map(|part| std::iter::repeat_n(level(part), part.len()))
            .collect();
        let p_creep = p_value(cells, &on_line, like_steps, rng);
        let p_steps = p_value(of_steps, &on_stairs, rising, rng);
        let shape = match (p_creep <= AS_STEPS, p_steps <= AS_OTHER) {
            // Of two commits, one made it.
            _ if n < 3 => Shape::StepChange,
            (true, false) => Shape::StepChange,
            (false, true) => Shape::Creep,
            (true, true) | (false, false) => Shape::Open,
        };
        let freedom = (n as f64 - 2.0).max(1.0);
        let scale = (line.left / freedom).max(1.0) * line.variance;
        let width = cells.len().saturating_sub(1) as f64;
        let half = t_quantile(0.975, freedom) * scale.sqrt() * width;
        ShapeFit { shape, p_creep, p_steps, rise: (line.slope * width, half) }
    }
}

/// Share of draws about `fit`, and the cells themselves, of which `size` is as large as of the cells.
fn p_value(cells: &[Cell], fit: &[f64], size: impl Fn(&[Cell]) -> f64, rng: &mut Rng) -> f64 {
    let own = size(cells);
    let drawn = (0..DRAWS).filter(|_| {
        let draw = |((w, _), y): (&Cell, &f64)| {
            let sd = if *w > 0.0 { 1.0 / w.sqrt() } else { 0.0 };
            (*w, y + sd * rng.normal())
        };
        let drawn: Vec<Cell> = cells.iter().zip(fit).map(draw).collect();
        size(&drawn) >= own
    });
    (1 + drawn.count()) as f64 / (1 + DRAWS) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::localisation::{doubtful, placed};
    use crate::segments::{in_blocks, level_changes_of_runs};

    /// What a range tells of `level` by commit: five runs of each with a standard deviation of `sd`, builds
    /// that differ by `build`, and more runs about what was found, as [`crate::localisation`] does.
    fn told(
        rng: &mut Rng,
        (n, sd, build): (usize, f64, f64),
        level: impl Fn(usize) -> f64,
        seed: u64,
    ) -> Option<(Vec<Stretch>, Vec<usize>)> {
        let levels: Vec<f64> = (0..n).map(|i| level(i) + build * rng.normal()).collect();
        let more = |rng: &mut Rng, at: usize, count: usize| -> Vec<f64> {
            (0..count).map(|_| levels[at] + sd * rng.normal()).collect()
        };
        let mut runs: Vec<Vec<f64>> = (0..n).map(|i| more(rng, i, 5)).collect();
        let first = n * 5;
        let steps: Vec<usize> =
            level_changes_of_runs(&in_blocks(&runs), 0.05, seed).iter().map(|c| c.at).collect();
        if steps.is_empty() {
            return None;
        }
        let mut found = placed(&runs, &steps, 0.95);
        let mut spent = 0;
        for _ in 0..60 {
            let at: Vec<usize> = found.iter().map(|p| p.at).collect();
            let spread = Spread::of(&runs, &at);
            let open = doubtful(&found, n).into_iter();
            let open: Vec<usize> = open
                .filter(|i| runs[*i].len() < 60 && spread.is_worth_more(runs[*i].len()))
                .collect();
            if open.is_empty() || spent * 2 >= first {
                break;
            }
            for at in &open {
                let own = more(rng, *at, 1);
                runs[*at].extend(own);
            }
            spent += open.len() + 2;
            found = placed(&runs, &steps, 0.95);
        }
        let at: Vec<usize> = found.iter().map(|p| p.at).collect();
        Some((stretches(&runs, &at, seed), at))
    }

    fn shapes(
        trials: u64,
        setup: (usize, f64, f64),
        level: impl Fn(usize) -> f64,
    ) -> (usize, [usize; 3]) {
        let mut rng = Rng::new(setup.0 as u64);
        let (mut found, mut of) = (0, [0; 3]);
        for seed in 0..trials {
            let Some((stretches, _)) = told(&mut rng, setup, &level, seed) else { continue };
            found += 1;
            let any = |shape: Shape| stretches.iter().any(|s| s.shape == shape);
            for (count, shape) in of.iter_mut().zip([Shape::StepChange, Shape::Creep, Shape::Open])
            {
                *count += usize::from(any(shape));
            }
        }
        (found, of)
    }

    /// Ranges of 17 commits with a creep of half a standard deviation of a run each were told as one or two
    /// commits in all cases.
    #[test]
    fn a_creep_names_nobody() {
        let (found, [steps, creep, open]) = shapes(60, (17, 1.0, 0.0), |i| 0.5 * i as f64);
        println!("creep: {found} of 60 found, as steps {steps}, a creep {creep}, open {open}");
        assert!(found >= 58 && steps <= 4 && creep >= 45, "{found} {steps} {creep} {open}");
    }

    #[test]
    fn steps_are_told_where_a_creep_is_not() {
        let at = |i: usize, at: usize| f64::from(u8::from(i >= at));
        let (found, [steps, creep, open]) = shapes(40, (64, 1.0, 0.0), |i| at(i, 33));
        println!("a step: {found} of 40 found, as steps {steps}, a creep {creep}, open {open}");
        assert!(steps >= 36 && creep <= 1, "{found} {steps} {creep} {open}");
        let (found, [steps, creep, open]) = shapes(40, (64, 1.0, 0.0), |i| at(i, 20) + at(i, 40));
        println!("two steps: {found} of 40 found, as steps {steps}, a creep {creep}, open {open}");
        assert!(steps >= 35 && creep <= 2, "{found} {steps} {creep} {open}");
        // As large as it is, at the last commit alone.
        let (_, [steps, ..]) = shapes(20, (10, 0.5, 0.0), |i| 4.0 * at(i, 9));
        assert!(steps >= 18, "{steps}");
    }

    #[test]
    fn up_and_down_are_two_stretches_and_nonsense_is_none() {
        let level = |i: usize| [0.0, 9.0, 0.0][usize::from(i >= 4) + usize::from(i >= 8)];
        let mut rng = Rng::new(3);
        let runs: Vec<Vec<f64>> =
            (0..12).map(|i| (0..5).map(|_| level(i) + 0.1 * rng.normal()).collect()).collect();
        let found = stretches(&runs, &[4, 8], 1);
        let ends: Vec<_> = found.iter().map(|s| (s.commits, s.steps, s.shape)).collect();
        assert_eq!(
            ends,
            [([0, 8], [0, 1], Shape::StepChange), ([4, 12], [1, 2], Shape::StepChange)]
        );
        for steps in [&[][..], &[0], &[12], &[8, 4], &[4, 4]] {
            assert_eq!(stretches(&runs, steps, 1), [], "{steps:?}");
        }
        assert_eq!(stretches(&[], &[1], 1), []);
        let empty = stretches(&[vec![], vec![], vec![1.0], vec![]], &[2], 1);
        assert!(empty.len() <= 1, "no panic: {empty:?}");
    }
}
