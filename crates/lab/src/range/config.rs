//! What to measure of a range, and how.

use std::path::PathBuf;
use vmeter_model::range::Metric;
use vmeter_model::run::WatchLevel;
use vmeter_model::MachineSpec;
use vmeter_session::RunOptions;

/// Measured runs of each commit, unless `--runs` says otherwise.
pub(crate) const DEFAULT_RUNS: u32 = 5;
pub(super) const KIND: &str = "range";

/// What to measure and how.
#[derive(Debug, Clone)]
pub struct RangeOptions {
    /// The repository; none when a session is resumed.
    pub repo: Option<PathBuf>,
    /// `A..B`; none when a session is resumed.
    pub range: Option<String>,
    /// Command line that builds a commit, for sh.
    pub build: Option<String>,
    /// Command line that is measured in the place of a machine.
    pub run: Option<String>,
    /// The machine, with `{worktree}` where files of the commit belong.
    pub spec: MachineSpec,
    /// Search for the first slow commit.
    pub bisect: bool,
    /// Remove what is not in the commit before each build.
    pub clean: bool,
    /// What is compared; wall time if absent. Of this and what follows a session that is gone
    /// on with keeps what it was begun with.
    pub metric: Option<Metric>,
    /// Probability at which a search ends, 0.5 to 1.
    pub confidence: Option<f64>,
    /// Runs after which a search ends undecided.
    pub max_boots: Option<usize>,
    /// Runs of each end after which a search accepts that nothing changed; a resumed
    /// search may be given more.
    pub end_runs: Option<usize>,
    /// How often each commit is built; once if absent.
    pub builds: Option<u32>,
    /// A search boots the good end's machine beside each sample.
    pub reference: bool,
    /// The change, %, to be found with four chances in five.
    pub detect: Option<f64>,
    /// Boot no commits again to place the steps that were found.
    pub no_place: bool,
    /// How closely to watch; if absent `light`, and not at all where `run` is measured.
    pub watch: Option<WatchLevel>,
    /// How runs are repeated.
    pub runs: RunOptions,
}
