//! Which commit made it slower, in logarithmic time although every measurement is noisy.
//!
//! `git bisect` trusts each answer; one slow run on a good commit sends it astray for good.
//! Probabilistic bisection keeps a distribution over the guilty commit instead, measures
//! where that distribution is halved, and multiplies in what the sample says (M. Horstein,
//! "Sequential transmission using noiseless feedback", IEEE Trans. Inf. Theory 9, 1963; M.
//! Ben-Or, A. Hassidim, "The Bayesian learner is optimal for noisy binary search", FOCS
//! 2008; R. Waeber, P. Frazier, S. Henderson, "Bisection search with noisy responses", SIAM J.
//! Control Optim. 51, 2013). A commit near the answer is measured again by itself when its
//! first sample was doubtful.
//!
//! Neither the size of the change nor the noise is known before. So both ends are measured
//! first, in turn, until a change between them is credible, and every sample so far is then
//! weighed under every hypothesis: "the samples before commit c have one mean, those from c
//! on another, with a common variance". Means and variance are integrated out in closed form
//! (normal model with Zellner's g-prior on the change; F. Liang et al., "Mixtures of g
//! priors", JASA 103, 2008). Samples are taken as logarithms, costs being multiplicative, and
//! those far outside the ends' samples are pulled in (P. Huber, 1964), so that a boot that
//! met a busy host counts as slow, not as proof.
//!
//! If the host drifts, give ratios to a baseline run measured beside each sample.

use crate::sample::median;

/// Prior standard deviation of the change, in standard deviations of the noise.
const PRIOR_CHANGE: f64 = 2.0;
/// Samples of each end before the distribution is consulted at all.
const FIRST_END_SAMPLES: usize = 4;
/// … and of ends that repeat to the last digit, as instruction counts do.
const FIRST_EXACT_SAMPLES: usize = 2;
/// Doubt about there being a change at which the search between the ends begins. The answer
/// itself needs the confidence asked for, this doubt included.
const ACCEPTED_DOUBT: f64 = 0.2;
/// Robust standard deviations beyond the ends' medians at which a sample is pulled in.
const PULL_IN: f64 = 2.0;

/// Turns the median |difference| of two normal samples into their standard deviation:
/// 1 / (0.6745 x sqrt 2).
const MEDIAN_DIFFERENCE_TO_SD: f64 = 1.048_358;

/// How to search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// Posterior probability at which the search ends, e.g. 0.97.
    pub confidence: f64,
    /// Prior probability that the ends do not differ at all.
    pub no_change: f64,
    /// Samples of each end after which "no change" is accepted.
    pub max_end_samples: usize,
    /// Samples after which the search ends with what it has.
    pub max_samples: usize,
}

impl Default for Search {
    fn default() -> Self {
        Self { confidence: 0.97, no_change: 0.5, max_end_samples: 30, max_samples: 500 }
    }
}

/// What the search found.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The change came with one of these commits: one, or several where those between could
    /// not be measured.
    Changed {
        /// Indices of the commits, in order.
        commits: Vec<usize>,
        /// Posterior probability that it is one of them.
        posterior: f64,
        /// Cost after over cost before, from the samples on either side.
        ratio: f64,
    },
    /// The ends show no change.
    NoChange {
        /// Posterior probability of it.
        posterior: f64,
    },
    /// `max_samples` were used up: the smallest set of commits that holds the answer with
    /// the confidence asked for.
    Unfinished {
        /// Indices of the commits, in order.
        commits: Vec<usize>,
        /// Posterior probability that it is one of them.
        posterior: f64,
    },
    /// Fewer than two commits can be measured.
    Impossible,
}

/// A search over commits 0 (known good) to n - 1 (suspected bad).
///
/// Pure state: replaying the same calls gives the same search, so a saved list of samples is
/// enough to resume.
#[derive(Debug, Clone)]
pub struct Bisection {
    search: Search,
    /// Relative prior weight of "the change came with commit i"; 0 for commit 0.
    prior: Vec<f64>,
    skipped: Vec<bool>,
    /// Logarithms of the samples of each commit.
    samples: Vec<Vec<f64>>,
}

impl Bisection {
    /// Over `n` commits, each equally suspect.
    pub fn new(n: usize, search: Search) -> Self {
        Self::with_prior(vec![1.0; n], search)
    }

    /// Over commits with prior weights, e.g. by lines changed in the part concerned. Weights
    /// that are not finite and above 0 rule a commit out; the first can't be guilty.
    pub fn with_prior(mut weights: Vec<f64>, search: Search) -> Self {
        for (i, w) in weights.iter_mut().enumerate() {
            if i == 0 || !w.is_finite() || *w < 0.0 {
                *w = 0.0;
            }
        }
        let n = weights.len();
        Self { search, prior: weights, skipped: vec![false; n], samples: vec![Vec::new(); n] }
    }

    /// A measurement of commit `index`: a cost above 0, in any unit. Others are ignored, as
    /// is an index out of range.
    pub fn observe(&mut self, index: usize, sample: f64) {
        let log = sample.ln();
        if let Some(samples) = self.samples.get_mut(index).filter(|_| log.is_finite()) {
            samples.push(log);
        }
    }

    /// Commit `index` can't be measured (does not build, does not boot).
    pub fn skip(&mut self, index: usize) {
        if let Some(skipped) = self.skipped.get_mut(index) {
            *skipped = true;
        }
    }

    /// Samples taken so far.
    pub fn samples_taken(&self) -> usize {
        self.samples.iter().map(Vec::len).sum()
    }

    /// The commit to measure next; none when finished.
    pub fn next_index(&self) -> Option<usize> {
        if self.finished().is_some() {
            return None;
        }
        let (first, last) = self.ends()?;
        let (at_first, at_last) = (self.samples[first].len(), self.samples[last].len());
        let posterior = self.posterior();
        let fewest = at_first.min(at_last);
        let end = if at_first <= at_last { first } else { last };
        let doubtful = posterior.no_change > ACCEPTED_DOUBT;
        if fewest < self.first_samples(first, last)
            || (doubtful && fewest < self.search.max_end_samples)
        {
            return Some(end);
        }
        // Where the change is as likely at or before as after.
        let change: f64 = posterior.commits.iter().sum();
        let mut before = 0.0;
        let mut best = (f64::INFINITY, first);
        for i in first..last {
            before += posterior.commits[i];
            let distance = (before / change - 0.5).abs();
            if !self.skipped[i] && distance < best.0 {
                best = (distance, i);
            }
        }
        // A commit known better than what it is compared with tells nothing new.
        Some(if self.samples[best.1].len() >= fewest { end } else { best.1 })
    }

    /// The answer, once there is one.
    pub fn finished(&self) -> Option<Answer> {
        let Some((first, last)) = self.ends() else { return Some(Answer::Impossible) };
        let fewest = self.samples[first].len().min(self.samples[last].len());
        let spent = self.samples_taken() >= self.search.max_samples;
        if fewest < self.first_samples(first, last) && !spent {
            return None;
        }
        let posterior = self.posterior();
        if fewest >= self.search.max_end_samples && posterior.no_change > ACCEPTED_DOUBT {
            return Some(Answer::NoChange { posterior: posterior.no_change });
        }
        let groups = self.groups(&posterior.commits, first, last);
        let (commits, share) = groups.first()?.clone();
        if share >= self.search.confidence {
            let ratio = self.ratio(commits[0]);
            return Some(Answer::Changed { commits, posterior: share, ratio });
        }
        spent.then(|| self.credible_set(groups))
    }

    /// Posterior probabilities: that the change came with each commit, and that there is none.
    pub fn posterior(&self) -> Posterior {
        let n = self.prior.len();
        let Some((first, last)) = self.ends() else {
            return Posterior { commits: vec![0.0; n], no_change: 1.0 };
        };
        let suspects = first + 1..last + 1;
        let weight: f64 = self.prior[suspects.clone()].iter().sum();
        let evidence = Evidence::new(&self.pulled_in(first, last));
        let change = 1.0 - self.search.no_change;
        let mut logs = vec![f64::NEG_INFINITY; n + 1];
        for c in suspects {
            logs[c] = (change * self.prior[c] / weight).ln() + evidence.of_change_at(c);
        }
        logs[n] = self.search.no_change.ln() + evidence.of_no_change();
        let largest =
            logs.iter().copied().filter(|l| !l.is_nan()).fold(f64::NEG_INFINITY, f64::max);
        let share = |l: &f64| if l.is_nan() { 0.0 } else { (l - largest).exp() };
        let shares: Vec<f64> = logs.iter().map(share).collect();
        let total: f64 = shares.iter().sum();
        if !(total > 0.0 && total.is_finite()) {
            return Posterior { commits: vec![0.0; n], no_change: 1.0 };
        }
        Posterior {
            commits: shares[..n].iter().map(|s| s / total).collect(),
            no_change: shares[n] / total,
        }
    }

    /// Samples of each end before anything is concluded.
    fn first_samples(&self, first: usize, last: usize) -> usize {
        let exact = |end: usize| {
            let samples = self.samples.get(end).map_or(&[][..], Vec::as_slice);
            samples.len() >= FIRST_EXACT_SAMPLES && samples.windows(2).all(|s| s[0] == s[1])
        };
        if exact(first) && exact(last) {
            FIRST_EXACT_SAMPLES
        } else {
            FIRST_END_SAMPLES
        }
    }

    /// First and last commit that can be measured.
    fn ends(&self) -> Option<(usize, usize)> {
        let first = self.skipped.iter().position(|s| !s)?;
        let last = self.skipped.iter().rposition(|s| !s)?;
        let suspects = self.prior.get(first + 1..=last)?;
        suspects.iter().any(|w| *w > 0.0).then_some((first, last))
    }

    /// Samples by commit, the far ones pulled in: those beyond both ends' medians by more than
    /// the noise within commits explains. Noise of 0 (instruction counts) pulls nothing.
    fn pulled_in(&self, first: usize, last: usize) -> Vec<Vec<f64>> {
        let ends = [&self.samples[first], &self.samples[last]];
        let reach = PULL_IN * self.noise();
        if ends.iter().any(|s| s.is_empty()) || reach == 0.0 {
            return self.samples.clone();
        }
        let [a, b] = ends.map(|s| median(s));
        let (low, high) = (a.min(b) - reach, a.max(b) + reach);
        let pull = |s: &Vec<f64>| s.iter().map(|y| y.clamp(low, high)).collect();
        self.samples.iter().map(pull).collect()
    }

    /// Robust standard deviation within commits, from the median difference of two samples of
    /// one commit.
    fn noise(&self) -> f64 {
        let mut differences = Vec::new();
        for samples in &self.samples {
            for (i, a) in samples.iter().enumerate() {
                differences.extend(samples[i + 1..].iter().map(|b| (a - b).abs()));
            }
        }
        median(&differences) * MEDIAN_DIFFERENCE_TO_SD
    }

    /// Suspects that no measurable commit separates, with their posterior, likeliest first.
    fn groups(&self, commits: &[f64], first: usize, last: usize) -> Vec<(Vec<usize>, f64)> {
        let mut groups: Vec<(Vec<usize>, f64)> = Vec::new();
        let mut joined = false;
        for (c, share) in commits.iter().enumerate().take(last + 1).skip(first + 1) {
            match groups.last_mut() {
                Some(group) if joined => {
                    group.0.push(c);
                    group.1 += share;
                }
                _ => groups.push((vec![c], *share)),
            }
            joined = self.skipped[c];
        }
        groups.sort_by(|a, b| b.1.total_cmp(&a.1));
        groups
    }

    fn credible_set(&self, groups: Vec<(Vec<usize>, f64)>) -> Answer {
        let mut posterior = 0.0;
        let mut commits = Vec::new();
        for (members, share) in groups {
            if posterior >= self.search.confidence {
                break;
            }
            commits.extend(members);
            posterior += share;
        }
        commits.sort_unstable();
        Answer::Unfinished { commits, posterior }
    }

    fn ratio(&self, change: usize) -> f64 {
        let (before, after) = self.samples.split_at(change);
        (median(&after.concat()) - median(&before.concat())).exp()
    }
}

/// Posterior distribution of a [`Bisection`]; everything adds up to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    /// That the change came with this commit.
    pub commits: Vec<f64>,
    /// That there is no change.
    pub no_change: f64,
}

/// Marginal likelihoods under the two-mean normal model with flat prior on the common mean,
/// 1/variance on the variance, and change ~ N(0, PRIOR_CHANGE² variance).
struct Evidence {
    /// Samples, and sums of their deviations from the grand mean, at commits below each index.
    counts: Vec<f64>,
    sums: Vec<f64>,
    n: f64,
    /// Sum of squares around the grand mean, never quite 0.
    squares: f64,
}

impl Evidence {
    fn new(samples: &[Vec<f64>]) -> Self {
        let all = samples.concat();
        let centre = crate::mean(&all);
        let (mut counts, mut sums) = (vec![0.0], vec![0.0]);
        let (mut count, mut sum) = (0.0, 0.0);
        for of_commit in samples {
            count += of_commit.len() as f64;
            sum += of_commit.iter().map(|y| y - centre).sum::<f64>();
            counts.push(count);
            sums.push(sum);
        }
        // Costs are known to a part in a million at best: without noise (instruction counts)
        // the likelihood must not divide by 0.
        let floor = 1e-12 * count.max(1.0);
        Self { counts, sums, n: count, squares: crate::sample::sum_squares(&all) + floor }
    }

    fn of_no_change(&self) -> f64 {
        -0.5 * (self.n - 1.0).max(0.0) * self.squares.ln()
    }

    fn of_change_at(&self, c: usize) -> f64 {
        let g = PRIOR_CHANGE * PRIOR_CHANGE;
        let before = self.counts[c];
        let szz = if self.n > 0.0 { before * (self.n - before) / self.n } else { 0.0 };
        let explained = self.sums[c] * self.sums[c] / (szz + 1.0 / g);
        let left = (self.squares - explained).max(self.squares * 1e-15);
        -0.5 * ((1.0 + g * szz).ln() + (self.n - 1.0).max(0.0) * left.ln())
    }
}
