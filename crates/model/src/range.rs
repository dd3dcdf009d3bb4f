//! `vmeter range`: what a range of commits costs, commit by commit.

use crate::estimate::Estimate;
use crate::machine::MachineSpec;
use crate::result::Envelope;
use crate::run::WatchLevel;
use crate::shard::HostEffect;
use crate::sweep::DiffResult;
use crate::verdict::{ChangeShape, CommitState, RangeVerdict, Verdict};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A commit of the range; the first is the one that the others are compared with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// Object name, in full.
    pub hash: String,
    /// First line of its message.
    pub subject: String,
}

impl Commit {
    /// The name as people write it, and the label of its machine.
    pub fn short(&self) -> &str {
        self.hash.get(..12).unwrap_or(&self.hash)
    }
}

vmeter_base::words! {
    /// What a sample of a commit is.
    #[derive(Default)]
    pub enum Metric {
        /// Time from the VMM's exec until the VMM ends.
        #[default]
        Wall = "wall",
        /// User and system CPU time of the VMM's process: less noise on a busy host.
        Cpu = "cpu",
    }
}

/// `range.json`: what a range session is about, beside its `session.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RangeRecord {
    /// [`crate::SCHEMA`].
    pub schema: String,
    /// The user's repository; it is only read.
    pub repo: String,
    /// The range as given.
    pub range: String,
    /// Its commits, oldest first.
    pub commits: Vec<Commit>,
    /// Commits on merged branches, which are left out.
    pub merged: usize,
    /// `--build`: a command line for sh, run in the checkout.
    pub build: Option<String>,
    /// `--run`: measured in the place of a machine.
    pub run: Option<String>,
    /// The machine, with `{worktree}` where files of the commit belong.
    pub machine: MachineSpec,
    /// Search for the first slow commit, instead of measuring all.
    pub bisect: bool,
    /// Remove what is not in the commit before each build.
    pub clean: bool,
    /// Measured runs of each commit, when all are measured.
    pub runs: u32,
    /// Warm-ups of each commit.
    pub warmup: u32,
    /// How runs are watched.
    pub watch: WatchLevel,
    /// What is compared.
    pub metric: Metric,
    /// Probability at which a search ends.
    pub confidence: f64,
    /// Runs after which a search ends undecided.
    pub max_boots: usize,
    /// Runs of each end after which a search accepts that nothing changed.
    pub end_runs: usize,
    /// How often each commit is built.
    #[serde(default = "one")]
    pub builds: u32,
    /// A search boots the good end's machine beside each sample, and compares the two.
    #[serde(default)]
    pub reference: bool,
    /// The change, %, that is to be found with four chances in five.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detect: Option<f64>,
    /// Boot the commits around each step that was found again, until it is known which it is.
    /// Ranges of before this was do not.
    #[serde(default)]
    pub place: bool,
    /// Folder of the builds that shards on one file system share; each session keeps its own
    /// if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builds_in: Option<PathBuf>,
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde wants it.
fn is_one(build: &u32) -> bool {
    *build == 1
}

impl RangeRecord {
    /// The label of a build's machine: the commit's, with a number from its second build on.
    pub fn label(commit: &Commit, build: u32) -> String {
        match build {
            0 | 1 => commit.short().to_owned(),
            n => format!("{}-{n}", commit.short()),
        }
    }

    /// The commit that a machine's label names, and its build.
    pub fn of_label(&self, label: &str) -> Option<(usize, u32)> {
        let (short, build) = match label.split_once('-') {
            Some((short, number)) => (short, number.parse().ok()?),
            None => (label, 1),
        };
        Some((self.commits.iter().position(|c| c.short() == short)?, build))
    }

    /// Measured runs of each build in the first pass: a commit's are spread over its builds.
    pub fn runs_each(&self) -> u32 {
        self.runs.div_ceil(self.builds.max(1))
    }
}

/// How the build of a commit ended; saved, so that it is not repeated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuildRecord {
    /// [`crate::SCHEMA`].
    pub schema: String,
    /// The commit.
    pub hash: String,
    /// Which of its builds; the first if absent.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub build: u32,
    /// Why it cannot be measured: the build's exit status, a file that it did not make.
    pub failure: Option<String>,
    /// How long the build took, s.
    pub build_s: f64,
    /// Files and folders of the checkout that are kept for the runs.
    pub kept: Vec<String>,
    /// True if these are byte for byte those of the commit's first build.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeats: bool,
}

/// What is known of a commit.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredCommit {
    /// Position in the range; 0 is what the others are compared with.
    pub index: usize,
    /// Object name.
    pub hash: String,
    /// First line of its message.
    pub subject: String,
    /// How far it got.
    pub state: CommitState,
    /// Why, where it could not be measured.
    pub failure: Option<String>,
    /// Its samples, s.
    pub samples_s: Vec<f64>,
    /// Their estimate.
    pub estimate: Option<Estimate>,
    /// Posterior probability that the change came with it (a search only).
    pub probability: Option<f64>,
}

/// A commit (or several that cannot be told apart) with which the time changed, or a stretch of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// One commit that did it, or a creep.
    pub shape: ChangeShape,
    /// Positions of the commits: one, or several where those between cannot be measured; of what is no
    /// step all of the stretch but the first, which is `before`.
    pub commits: Vec<usize>,
    /// Position of the last commit before it that was measured.
    pub before: usize,
    /// The way it changed: never [`Verdict::NoDifference`].
    pub verdict: Verdict,
    /// Time after over time before, from all samples on either side of it; of a stretch the last commit
    /// over the first, with an interval that holds for steps and for a creep where it is undecided.
    pub ratio: Option<Estimate>,
    /// Time after less time before, s.
    pub jump_s: f64,
    /// Of the test for breaks, adjusted for all steps (all commits measured).
    pub p_value: Option<f64>,
    /// Posterior probability (a search).
    pub probability: Option<f64>,
    /// Runs that tell its size and had no part in finding it; none if the ratio is of those that
    /// found it, which overstate it.
    pub sizing: Option<usize>,
    /// The same of the means, by the runs of `sizing`, where some of these are slow beyond what the others explain.
    pub mean: Option<Estimate>,
    /// First and last of the commits that it may have come with (95 %; all commits measured).
    pub place: Option<[usize; 2]>,
    /// Of what changed how often boots are slow ([`ChangeShape::Tail`]): how often, before and since.
    pub slow: Option<SlowBoots>,
}

/// How often boots are far slower than the typical one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowBoots {
    /// Slow boots, and all boots, before the change.
    pub before: [usize; 2],
    /// The same from it on.
    pub since: [usize; 2],
    /// Their time over that of the others.
    pub times: f64,
}

/// What was spent, and what measuring every commit would take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effort {
    /// Runs, warm-ups among them.
    pub boots: usize,
    /// Of these, runs that place steps which were found without them.
    pub placing: usize,
    /// Of these, runs that tell the size of steps which were found without them.
    pub sizing: usize,
    /// Of these, runs of all commits that count slow boots anew.
    pub slow: usize,
    /// Builds, failed ones among them.
    pub builds: usize,
    /// Runs of a linear scan with the same warm-ups and its own number of runs.
    pub linear_boots: usize,
    /// Builds of a linear scan.
    pub linear_builds: usize,
}

/// Result of `vmeter range`.
#[derive(Debug, Clone, PartialEq)]
pub struct RangeResult {
    /// Head.
    pub envelope: Envelope,
    /// What it is about.
    pub record: RangeRecord,
    /// Every commit.
    pub commits: Vec<MeasuredCommit>,
    /// What changed the time, the earliest first.
    pub changes: Vec<Change>,
    /// What seemed to, and runs that were made anew do not show: seen once, and not again.
    pub seen_once: Vec<Change>,
    /// What is said of the range.
    pub verdict: RangeVerdict,
    /// Undecided: the commits that hold the answer with the confidence asked for.
    pub suspects: Vec<usize>,
    /// Posterior probability that nothing changed, or that the suspects hold the answer.
    pub probability: Option<f64>,
    /// A slowdown beyond this, %, would have been found: with the confidence of a search, or
    /// with 97.5 % wherever in a range of which every commit was measured; 0 at least.
    pub excluded_pct: Option<f64>,
    /// The step, %, that a quarter of the commits have and that is found in four of five such ranges or more, by
    /// how runs and builds scatter and the number of runs: no matter what was seen. Of a range of
    /// which every commit was measured, in real time, that shows no change.
    pub detectable_pct: Option<f64>,
    /// The last commit over the first; of a search by its own model, in which builds differ.
    pub ends: Option<Estimate>,
    /// The hosts, where several carried it out; their factors are taken out of the samples.
    pub hosts: Vec<HostEffect>,
    /// What was spent.
    pub effort: Effort,
    /// What differs across the first change.
    pub explained: Option<DiffResult>,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
    /// Folder of the session.
    pub saved_in: String,
}
