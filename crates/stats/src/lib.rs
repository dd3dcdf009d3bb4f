//! Estimates, comparisons, scaling fits and change points: pure functions over samples.
//!
//! Boot times on a shared host are few, skewed, drifting and full of outliers. So
//! the defaults here assume little: tests permute, intervals of small samples use
//! Student's t, robust variants stand beside least squares, outliers are flagged
//! and never dropped. Every function names the method's source, and everything
//! that draws random numbers takes a seed and gives the same answer for it on
//! every machine and in every version (hence the small generator of its own).
//!
//! Samples that are not finite are left out everywhere; [`Estimate::n`] counts
//! what was used.

pub mod autocorrelation;
pub mod bisect;
pub mod blocked;
pub mod breaks;
pub mod cut;
pub mod decide;
pub mod discovery;
pub mod dist;
pub mod fit;
pub mod hosts;
pub mod localisation;
pub mod mann_whitney;
pub mod mean_ratio;
pub mod order;
pub mod outliers;
pub mod pairs;
pub mod permutation;
pub mod plan;
pub mod race;
pub mod rare;
pub mod rng;
pub mod sample;
pub mod segments;
pub mod sequential;
pub mod shape;
pub mod shards;
pub mod signed_rank;
pub mod step;
pub mod summary;
pub mod tails;

pub use bisect::{Answer, Bisection};
pub use breaks::{breaks, breaks_among, Break};
pub use cut::cut;
pub use decide::{Decided, Rule};
pub use discovery::{benjamini_hochberg, student, tarone, welch, Difference};
pub use fit::{linear_fit, theil_sen, LinearFit};
pub use mann_whitney::{mann_whitney, MannWhitney};
pub use mean_ratio::{ratio_of_means, MeanRatio, Slow};
pub use order::{choose_order, power_law, Order};
pub use outliers::outliers;
pub use pairs::{observations, paired_ratio, paired_t, PairedRatio};
pub use permutation::holm;
pub use plan::{mirrored, plan, Slot};
pub use race::Race;
pub use sample::{mean, median, quantile};
pub use sequential::{Decision, OverheadRule};
pub use shards::{sharded_plan, ShardSlot};
pub use summary::{estimate, estimate_signed};
pub use vmeter_model::{Estimate, Verdict};

/// How much of something a test does: `few` in `make test`, `many` in `make test-long`.
#[cfg(test)]
fn amount(few: usize, many: usize) -> usize {
    if std::env::var_os("VMETER_LONG").is_some_and(|value| value == "1") {
        return many;
    }
    println!("cut: {few} of {many} cases run (make test-long runs all)");
    few
}
