//! What a comparison of two traces says, row by row.
//!
//! Only the data: the tests are `vmeter-host-tracing`'s, which knows the statistics.

/// One side of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Side {
    /// How often.
    pub count: u64,
    /// How often a second of the trace; none where it measures no time.
    pub per_s: Option<f64>,
    /// Sum of the times, s.
    pub total_s: Option<f64>,
    /// Median, s.
    pub median_s: Option<f64>,
}

/// What a test found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Test {
    /// b over a; none where a is zero.
    pub ratio: Option<f64>,
    /// Two-sided p-value of no difference.
    pub p_value: f64,
    /// Adjusted for all tests of the comparison: compare this one with 0.05.
    pub p_adjusted: f64,
    /// `traces` where each side has several; else `slices` of the trace's time, or single
    /// `events` where there are too few slices.
    pub basis: &'static str,
}

/// The same thing on both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct VersusRow {
    /// Table of [`super::Report`] that it is in, e.g. `ports`.
    pub table: &'static str,
    /// What.
    pub name: String,
    /// Port number.
    pub port: Option<u32>,
    /// Guest-physical address.
    pub address: Option<u64>,
    /// `read` or `write`.
    pub direction: Option<&'static str>,
    /// On the first side.
    pub a: Side,
    /// On the other.
    pub b: Side,
    /// Does it happen more or less often?
    pub counts: Option<Test>,
    /// Does it take longer or shorter?
    pub times: Option<Test>,
}

/// How counts are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Per {
    /// A second of each trace: traces of something that goes on.
    #[default]
    Second,
    /// Each whole trace: traces of something with an end, e.g. a boot.
    Trace,
}

/// Two sides compared, of one trace each or of several each.
#[derive(Debug, Clone, PartialEq)]
pub struct Versus {
    /// Files of the first side.
    pub a: Vec<String>,
    /// Files of the other.
    pub b: Vec<String>,
    /// What counts were divided by.
    pub per: Per,
    /// Number of tests that p-values are adjusted for.
    pub tests: usize,
    /// Rows, the largest difference of total time first.
    pub rows: Vec<VersusRow>,
}

impl Versus {
    /// True where each side is of one trace: what is found is then about two recordings.
    pub fn is_of_two(&self) -> bool {
        self.a.len() == 1 && self.b.len() == 1
    }
}
