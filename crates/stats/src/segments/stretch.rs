//! The stretch of a series that differs most from the rest.

use crate::sample::mean;

/// With fewer values there is no scatter to be told from a change.
pub const FEWEST: usize = 4;

/// A stretch of values that differs from the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub(super) begin: usize,
    pub(super) end: usize,
    /// Squared difference of the means over its variance for values of variance 1.
    pub(super) size: f64,
}

impl Stretch {
    /// Where it begins and ends inside `n` values.
    pub(super) fn cuts(&self, n: usize) -> impl Iterator<Item = usize> {
        [self.begin, self.end].into_iter().filter(move |cut| *cut > 0 && *cut < n)
    }
}

/// The stretch of these values that differs most; none of too few, or of equal ones.
pub(super) fn chosen(part: &[f64]) -> Option<Stretch> {
    let n = part.len();
    if n < FEWEST {
        return None;
    }
    let (step, stretch) = largest(part);
    let total: f64 = centred(part).iter().map(|v| v * v).sum();
    if total <= 1e-18 * n as f64 {
        return None;
    }
    // Two cuts explain more than one in any series: a stretch inside must be worth its cut.
    let left = ((total - stretch.size) / (n as f64 - 3.0).max(1.0)).max(total * 1e-12);
    let worth = left * (3.0 * (n as f64).ln() + 3.0);
    Some(if stretch.size - step.size > worth { stretch } else { step })
}

/// The best step, and the best stretch of all.
pub(super) fn largest(values: &[f64]) -> (Stretch, Stretch) {
    let n = values.len();
    let mut sums = Vec::with_capacity(n + 1);
    let mut sum = 0.0;
    sums.push(sum);
    for value in centred(values) {
        sum += value;
        sums.push(sum);
    }
    let none = Stretch { begin: 0, end: n, size: 0.0 };
    let (mut step, mut any) = (none, none);
    for begin in 0..n {
        for end in begin + 1..=n {
            let inside = (end - begin) as f64;
            let outside = n as f64 - inside;
            if outside == 0.0 {
                continue;
            }
            let difference = sums[end] - sums[begin];
            let size = difference * difference * (1.0 / inside + 1.0 / outside);
            let found = Stretch { begin, end, size };
            if size > any.size {
                any = found;
            }
            if (begin == 0 || end == n) && size > step.size {
                step = found;
            }
        }
    }
    (step, any)
}

pub(super) fn centred(values: &[f64]) -> Vec<f64> {
    let centre = mean(values);
    values.iter().map(|v| v - centre).collect()
}
