//! A quantity measured several times.

use serde::{Deserialize, Serialize};

/// Summary of `n` samples, with a 95 % confidence interval of the mean.
///
/// Which interval it is (Student's t or bootstrap) is said by the code that
/// makes it, in `vmeter-stats`; the raw samples are always kept beside it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Sample standard deviation (n - 1); 0 for one sample.
    pub sd: f64,
    /// 95 % confidence interval of the mean; both ends are the sample for n = 1.
    pub ci95: [f64; 2],
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// Number of samples.
    pub n: usize,
}

impl Estimate {
    /// True if its interval is above or below a value.
    pub fn leaves_out(&self, value: f64) -> bool {
        self.ci95[0] > value || self.ci95[1] < value
    }
}
