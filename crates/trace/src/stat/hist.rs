//! Durations in bounded memory.

/// Sub-buckets of an octave, as a power of two.
const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;

/// Count, total, extremes and a log-linear histogram of durations in ticks.
///
/// Count, total, minimum and maximum are exact. Buckets are 1/32 of an octave
/// wide and values below 64 ticks have their own, so a quantile is off by at most
/// 1/64 of its value (1.6 %). Takes at most 8 KiB.
#[derive(Debug, Clone, Default)]
pub struct Hist {
    count: u64,
    total: u128,
    min: u64,
    max: u64,
    base: usize,
    buckets: Vec<u32>,
}

impl Hist {
    /// Adds a duration; gives the number of its bucket.
    #[inline]
    pub fn add(&mut self, value: u64) -> usize {
        if self.count == 0 || value < self.min {
            self.min = value;
        }
        self.max = self.max.max(value);
        self.count += 1;
        self.total += u128::from(value);
        let index = bucket(value);
        match index.checked_sub(self.base).and_then(|at| self.buckets.get_mut(at)) {
            Some(bucket) => *bucket = bucket.saturating_add(1),
            None => {
                self.grow(index);
                self.buckets[index - self.base] += 1;
            }
        }
        index
    }

    /// Makes room for a bucket.
    #[cold]
    fn grow(&mut self, index: usize) {
        if self.buckets.is_empty() {
            self.base = index & !(SUB - 1);
        } else if index < self.base {
            let base = index & !(SUB - 1);
            let more = self.base - base;
            self.buckets.splice(0..0, std::iter::repeat_n(0, more));
            self.base = base;
        }
        let at = index - self.base;
        if at >= self.buckets.len() {
            self.buckets.resize((at + 1).next_multiple_of(SUB), 0);
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum, ticks.
    pub fn total(&self) -> u128 {
        self.total
    }

    /// The shortest, ticks.
    pub fn min(&self) -> u64 {
        self.min
    }

    /// The longest, ticks.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Arithmetic mean, ticks; none if there is nothing.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.total as f64 / self.count as f64)
    }

    /// Durations and how many of each: (middle of a bucket in ticks, count), ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u32)> + '_ {
        let filled = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        filled.map(|(at, n)| (middle(self.base + at), *n))
    }

    /// Adds all of another histogram's.
    pub fn merge(&mut self, other: &Hist) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.total += other.total;
        for (at, &n) in other.buckets.iter().enumerate().filter(|(_, n)| **n > 0) {
            let index = other.base + at;
            match index.checked_sub(self.base).and_then(|at| self.buckets.get_mut(at)) {
                Some(bucket) => *bucket = bucket.saturating_add(n),
                None => {
                    self.grow(index);
                    self.buckets[index - self.base] = n;
                }
            }
        }
    }

    /// The value below which a share `q` (0 to 1) lies, within 1.6 %: between two neighbours by a
    /// straight line (type 7 of Hyndman and Fan, as R and NumPy do).
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let at = q.clamp(0.0, 1.0) * self.count.checked_sub(1)? as f64;
        let below = self.ranked(at as u64);
        let above = self.ranked(at.ceil() as u64);
        Some(below + at.fract() * (above - below))
    }

    /// The duration before which `rank` shorter ones lie.
    fn ranked(&self, rank: u64) -> f64 {
        let mut seen = 0;
        let reached = self.buckets.iter().position(|&n| {
            seen += u64::from(n);
            seen > rank
        });
        let value = reached.map_or(self.max as f64, |at| middle(self.base + at));
        value.clamp(self.min as f64, self.max as f64)
    }
}

fn bucket(value: u64) -> usize {
    let octave = 63 - (value | 1).leading_zeros();
    let shift = octave.saturating_sub(SUB_BITS);
    (shift as usize) * SUB + (value >> shift) as usize
}

fn middle(bucket: usize) -> f64 {
    if bucket < 2 * SUB {
        return bucket as f64;
    }
    let shift = bucket / SUB - 1;
    let low = (bucket - shift * SUB) as f64;
    (low + 0.5) * (shift as f64).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn merged_is_as_if_added(
            a in proptest::collection::vec(any::<u64>(), 0..40),
            b in proptest::collection::vec(0u64..1 << 20, 0..40),
        ) {
            let of = |values: &[u64]| {
                let mut hist = Hist::default();
                for &v in values {
                    hist.add(v);
                }
                hist
            };
            let mut merged = of(&a);
            merged.merge(&of(&b));
            let whole = of(&[a, b].concat());
            prop_assert_eq!((merged.count, merged.total), (whole.count, whole.total));
            prop_assert_eq!((merged.min, merged.max), (whole.min, whole.max));
            prop_assert!(merged.buckets().eq(whole.buckets()));
        }

        #[test]
        fn a_value_is_found_again_within_the_stated_error(value: u64) {
            let mut hist = Hist::default();
            hist.add(value);
            hist.add(value);
            let found = hist.quantile(0.5).unwrap_or(f64::NAN);
            prop_assert!((found - value as f64).abs() <= value as f64 / 64.0);
            prop_assert!((middle(bucket(value)) - value as f64).abs() <= value as f64 / 64.0);
        }

        #[test]
        fn quantiles_are_near_the_exact_ones(mut values in proptest::collection::vec(0u64..1 << 40, 1..300)) {
            let mut hist = Hist::default();
            for &v in &values {
                hist.add(v);
            }
            values.sort_unstable();
            prop_assert!(hist.buckets.len() <= 2048);
            prop_assert_eq!(hist.total(), values.iter().map(|&v| u128::from(v)).sum::<u128>());
            for q in [0.5, 0.99] {
                let at = q * (values.len() - 1) as f64;
                let (below, above) = (values[at as usize] as f64, values[at.ceil() as usize] as f64);
                let exact = below + at.fract() * (above - below);
                let found = hist.quantile(q).unwrap_or(f64::NAN);
                prop_assert!((found - exact).abs() <= exact / 64.0 + 1e-9, "{found} {exact}");
            }
        }
    }
}
