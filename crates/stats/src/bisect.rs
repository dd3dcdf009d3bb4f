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
//! weighed under every hypothesis: "the builds before commit c have one mean, those from c on
//! another". Every commit is another binary: layout and link order shift each a little, and all
//! of its runs with it (T. Mytkowicz et al., "Producing wrong data without doing anything
//! obviously wrong", ASPLOS 2009; T. Kalibera, R. Jones, "Rigorous benchmarking in reasonable
//! time", ISMM 2013). So a build has a random effect of its own ([`Search::build_sd`]): what
//! many runs of one build agree on is no proof. Where a commit is built several times, its builds
//! share that effect out, and what they differ by among themselves enters its size. Means and change are integrated out in closed
//! form (normal model; the noise, being estimated, by Student's t). Samples are taken as
//! logarithms, costs being multiplicative; those far outside the ends' samples are pulled in
//! (P. Huber, 1964), so that a boot that met a busy host counts as slow, not as proof; and a
//! drift of the host is one of the hypotheses.

mod drift;
mod evidence;

use crate::sample::median;
use evidence::Evidence;
pub use evidence::Posterior;

/// A drift is not what pulls samples in where it is so many standard errors.
const DRIFT: f64 = 3.0;
/// Scatter of builds in samples that repeat to the last digit, as virtual time does.
const EXACT_BUILD_SD: f64 = 0.0015;
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
    /// Standard deviation of what a build adds to all of its runs, as a part of the cost.
    pub build_sd: f64,
    /// Builds that each commit has: their effects average out.
    pub builds: usize,
    /// The smallest change that is asked for, as a part of the cost: "no change" is said of
    /// changes of this size and above.
    pub smallest: f64,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            confidence: 0.97,
            no_change: 0.5,
            max_end_samples: 30,
            max_samples: 500,
            build_sd: 0.01,
            builds: 1,
            smallest: 0.03,
        }
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
    /// There is no change of [`Search::smallest`] or more.
    NoChange {
        /// Posterior probability of it.
        posterior: f64,
    },
    /// The ends are measured as often as was asked, and neither show a change nor exclude one.
    NotFound {
        /// Posterior probability that there is no change of [`Search::smallest`] or more.
        posterior: f64,
        /// A change beyond this part of the cost is excluded with the confidence asked for.
        excluded: f64,
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
    /// The samples of each commit.
    samples: Vec<Vec<Seen>>,
}

/// A sample.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// When it was taken, counted in samples.
    at: f64,
    /// Its logarithm.
    log: f64,
    /// Which of its commit's builds it is of.
    build: u32,
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
        self.observe_build(index, 1, sample);
    }

    /// As [`Bisection::observe`], of one of the commit's builds.
    pub fn observe_build(&mut self, index: usize, build: u32, sample: f64) {
        let log = sample.ln();
        let at = self.samples_taken() as f64;
        if let Some(samples) = self.samples.get_mut(index).filter(|_| log.is_finite()) {
            samples.push(Seen { at, log, build });
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
        // Where the change is as likely at or before as after; but not a build of which more
        // runs tell nothing more, as long as there is another nearby.
        let enough = self.enough(first, last);
        let change: f64 = posterior.commits.iter().sum();
        let mut before = 0.0;
        let mut best = [(f64::INFINITY, None); 2];
        for i in first..last {
            before += posterior.commits[i];
            let distance = (before / change - 0.5).abs();
            let spent = usize::from(self.samples[i].len() >= enough);
            if !self.skipped[i] && distance < best[spent].0 {
                best[spent] = (distance, Some(i));
            }
        }
        let open = best[0].1.filter(|_| best[0].0 < 0.5 - 1e-9);
        let next = open.or(best[1].1).unwrap_or(first);
        // A commit known better than what it is compared with tells nothing new.
        Some(if self.samples[next].len() >= fewest.min(enough) && fewest < enough {
            end
        } else {
            next
        })
    }

    /// Runs of a build after which its own scatter is what is left of its error.
    fn enough(&self, first: usize, last: usize) -> usize {
        let build = self.build_sd(first, last);
        let noise = self.noise();
        if noise == 0.0 {
            return 1;
        }
        let runs = (noise / build.max(1e-9)).powi(2).ceil() * 2.0;
        (runs as usize * self.search.builds.max(1))
            .clamp(FIRST_END_SAMPLES, self.search.max_samples.max(FIRST_END_SAMPLES))
    }

    /// True where more runs of any commit tell next to nothing more.
    fn is_exhausted(&self, first: usize, last: usize) -> bool {
        let enough = self.enough(first, last);
        (first..=last).all(|i| self.skipped[i] || self.samples[i].len() >= enough)
    }

    /// What builds are taken to differ by.
    pub fn build_scatter(&self) -> f64 {
        self.ends().map_or(self.search.build_sd, |(first, last)| self.build_sd(first, last))
    }

    fn build_sd(&self, first: usize, last: usize) -> f64 {
        if self.is_exact(first) && self.is_exact(last) {
            self.search.build_sd.min(EXACT_BUILD_SD)
        } else {
            self.search.build_sd
        }
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
        let exact = self.is_exact(first) && self.is_exact(last);
        let ends_are_done = exact || fewest >= self.search.max_end_samples;
        if ends_are_done && posterior.no_change > ACCEPTED_DOUBT {
            let none = posterior.without_change_of(self.search.smallest);
            if none >= self.search.confidence || spent || self.is_exhausted(first, last) {
                return Some(self.without_change(&posterior));
            }
        }
        let groups = self.groups(&posterior.commits, first, last);
        let (commits, share) = groups.first()?.clone();
        if share >= self.search.confidence {
            let ratio = self.ratio(commits[0]);
            return Some(Answer::Changed { commits, posterior: share, ratio });
        }
        spent.then(|| self.credible_set(groups))
    }

    /// What is said where the ends show no change.
    fn without_change(&self, posterior: &Posterior) -> Answer {
        let none = |least: f64| posterior.without_change_of(least);
        let share = none(self.search.smallest);
        if share >= self.search.confidence {
            return Answer::NoChange { posterior: share };
        }
        let mut excluded = self.search.smallest;
        while none(excluded) < self.search.confidence && excluded < 10.0 {
            excluded *= 1.05;
        }
        Answer::NotFound { posterior: share, excluded }
    }

    /// Posterior probabilities: that the change came with each commit, and that there is none.
    pub fn posterior(&self) -> Posterior {
        let n = self.prior.len();
        let unknown =
            Posterior { commits: vec![0.0; n], no_change: 1.0, sizes: vec![(0.0, 0.0); n] };
        let Some((first, last)) = self.ends() else { return unknown };
        let suspects = first + 1..last + 1;
        let weight: f64 = self.prior[suspects.clone()].iter().sum();
        let evidence = self.evidence(first, last);
        let change = 1.0 - self.search.no_change;
        let mut logs = vec![f64::NEG_INFINITY; n + 1];
        let mut sizes = vec![(0.0, 0.0); n];
        for c in suspects {
            let (log, size) = evidence.of_change_at(c);
            logs[c] = (change * self.prior[c] / weight).ln() + log;
            sizes[c] = size;
        }
        logs[n] = self.search.no_change.ln() + evidence.of_no_change();
        let largest =
            logs.iter().copied().filter(|l| !l.is_nan()).fold(f64::NEG_INFINITY, f64::max);
        let share = |l: &f64| if l.is_nan() { 0.0 } else { (l - largest).exp() };
        let shares: Vec<f64> = logs.iter().map(share).collect();
        let total: f64 = shares.iter().sum();
        if !(total > 0.0 && total.is_finite()) {
            return unknown;
        }
        Posterior {
            commits: shares[..n].iter().map(|s| s / total).collect(),
            no_change: shares[n] / total,
            sizes,
        }
    }

    /// Samples of each end before anything is concluded.
    fn first_samples(&self, first: usize, last: usize) -> usize {
        if self.is_exact(first) && self.is_exact(last) {
            FIRST_EXACT_SAMPLES
        } else {
            FIRST_END_SAMPLES
        }
    }

    /// True for a commit whose samples repeat to the last digit.
    fn is_exact(&self, commit: usize) -> bool {
        let samples = self.samples.get(commit).map_or(&[][..], Vec::as_slice);
        let of = |build: u32| samples.iter().filter(move |s| s.build == build);
        let repeats = |s: &Seen| of(s.build).all(|other| other.log == s.log);
        let again = samples.iter().any(|s| of(s.build).count() >= FIRST_EXACT_SAMPLES);
        again && samples.iter().all(repeats)
    }

    /// First and last commit that can be measured.
    fn ends(&self) -> Option<(usize, usize)> {
        let first = self.skipped.iter().position(|s| !s)?;
        let last = self.skipped.iter().rposition(|s| !s)?;
        let suspects = self.prior.get(first + 1..=last)?;
        suspects.iter().any(|w| *w > 0.0).then_some((first, last))
    }

    fn evidence(&self, first: usize, last: usize) -> Evidence {
        let pulled = self.pulled_in(first, last);
        let timed = self.samples.iter().zip(pulled);
        let timed: Vec<Vec<evidence::At>> =
            timed.map(|(seen, values)| seen.iter().map(|s| s.at).zip(values).collect()).collect();
        Evidence::new(&self.by_build(&timed), self.build_sd(first, last))
    }

    /// The last commit's level less the first one's, in logarithms, and half of its 95 % interval,
    /// of which what builds differ by is a part; none before both have samples.
    pub fn ends_apart(&self) -> Option<(f64, f64)> {
        let (first, last) = self.ends()?;
        self.evidence(first, last).difference(first, last)
    }

    /// Robust standard deviation within commits.
    fn noise(&self) -> f64 {
        noise(&self.by_build(&self.without_drift()))
    }

    /// The samples of each build of each commit, in order.
    fn builds_of_all(&self) -> impl Iterator<Item = Vec<Seen>> + '_ {
        self.samples.iter().flat_map(|samples| {
            builds_in(samples).into_iter().map(|build| {
                samples.iter().copied().filter(|s| s.build == build).collect::<Vec<Seen>>()
            })
        })
    }

    /// Values of the samples, by commit and build.
    fn by_build<T: Copy>(&self, values: &[Vec<T>]) -> Vec<Vec<Vec<T>>> {
        let commits = self.samples.iter().zip(values);
        commits
            .map(|(samples, values)| {
                let own = |build: u32| {
                    let of_build = samples.iter().zip(values).filter(|(s, _)| s.build == build);
                    of_build.map(|(_, value)| *value).collect()
                };
                builds_in(samples).into_iter().map(own).collect()
            })
            .collect()
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
        let samples = self.without_drift();
        let (before, after) = samples.split_at(change);
        (median(&after.concat()) - median(&before.concat())).exp()
    }
}

/// The builds that samples are of.
fn builds_in(samples: &[Seen]) -> Vec<u32> {
    let mut builds: Vec<u32> = samples.iter().map(|s| s.build).collect();
    builds.sort_unstable();
    builds.dedup();
    builds
}

/// Robust standard deviation within builds, from the median difference of two samples of one
/// build.
fn noise(samples: &[Vec<Vec<f64>>]) -> f64 {
    let mut differences = Vec::new();
    for samples in samples.iter().flatten() {
        for (i, a) in samples.iter().enumerate() {
            differences.extend(samples[i + 1..].iter().map(|b| (a - b).abs()));
        }
    }
    median(&differences) * MEDIAN_DIFFERENCE_TO_SD
}
