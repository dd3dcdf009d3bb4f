//! How often and how long, slice by slice of the trace's time.
//!
//! Two traces can only be compared with regard to how much one differs from
//! itself: events come in bursts, so that neither their number is Poisson nor
//! their durations independent. The means of long enough slices are nearly so
//! (batch means; R. Conway, "Some tactical problems in digital simulation",
//! Management Science 10, 1963). The length of a trace is not known before its
//! end: slices begin short and are doubled when they run out, each row's when it
//! is next touched.

/// Most slices of a row; the last is in the upper half once slices were doubled.
pub const SLICES: usize = 32;

/// The first slices are this long, as a power of two of ticks.
const SHORTEST: u32 = 14;

/// Which slice of a trace's time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    index: u8,
    shift: u8,
}

impl Default for Slice {
    fn default() -> Slice {
        Slice { index: 0, shift: SHORTEST as u8 }
    }
}

/// The clock of slices: turns stamps into slices.
#[derive(Debug, Clone, Copy)]
pub struct Slicer {
    origin: Option<u64>,
    shift: u32,
}

impl Default for Slicer {
    fn default() -> Slicer {
        Slicer { origin: None, shift: SHORTEST }
    }
}

impl Slicer {
    /// The slice that a stamp is in.
    #[inline]
    pub fn at(&mut self, ts: u64) -> Slice {
        let origin = *self.origin.get_or_insert(ts);
        let age = ts.saturating_sub(origin);
        while age >> self.shift >= SLICES as u64 {
            self.shift += 1;
        }
        Slice { index: (age >> self.shift) as u8, shift: self.shift as u8 }
    }

    /// Makes slices count from `origin` even if no stamp was that early.
    pub fn begin(&mut self, origin: u64) {
        self.origin.get_or_insert(origin);
    }

    /// Where slices count from.
    pub fn origin(&self) -> Option<u64> {
        self.origin
    }

    /// Length of a slice, ticks.
    pub fn length(&self) -> u64 {
        1 << self.shift
    }
}

/// One slice of one row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Batch {
    /// How often.
    pub count: u32,
    /// How many were timed.
    pub timed: u32,
    /// Sum of their histogram buckets' numbers: a logarithmic scale of 32 to the octave
    /// from 64 ticks up.
    pub levels: u64,
}

impl Batch {
    fn merge(&mut self, other: Batch) {
        self.count = self.count.saturating_add(other.count);
        self.timed = self.timed.saturating_add(other.timed);
        self.levels = self.levels.saturating_add(other.levels);
    }
}

/// The slices of one row.
#[derive(Debug, Clone)]
pub struct Slices {
    shift: u8,
    batches: Vec<Batch>,
}

impl Default for Slices {
    fn default() -> Slices {
        Slices { shift: SHORTEST as u8, batches: Vec::new() }
    }
}

impl Slices {
    /// The batch of a slice.
    #[inline]
    pub fn batch(&mut self, slice: Slice) -> &mut Batch {
        if self.shift != slice.shift || self.batches.len() <= slice.index as usize {
            self.reach(slice);
        }
        &mut self.batches[slice.index as usize]
    }

    #[cold]
    fn reach(&mut self, slice: Slice) {
        self.double(u32::from(slice.shift));
        let needed = slice.index as usize + 1;
        if self.batches.len() < needed {
            self.batches.resize(needed, Batch::default());
        }
    }

    fn double(&mut self, shift: u32) {
        let by = shift.saturating_sub(u32::from(self.shift)).min(63);
        if by > 0 {
            for at in 0..self.batches.len() {
                let batch = std::mem::take(&mut self.batches[at]);
                self.batches[at >> by].merge(batch);
            }
            self.batches.truncate((self.batches.len().saturating_sub(1) >> by) + 1);
            self.shift = shift as u8;
        }
    }

    /// Adds another row's slices of the same trace.
    pub fn merge(&mut self, other: &Slices) {
        let mut other = other.clone();
        let shift = self.shift.max(other.shift);
        self.double(u32::from(shift));
        other.double(u32::from(shift));
        if self.batches.len() < other.batches.len() {
            self.batches.resize(other.batches.len(), Batch::default());
        }
        for (own, batch) in self.batches.iter_mut().zip(other.batches) {
            own.merge(batch);
        }
    }

    /// The row's batches for slices of the length that `slicer` ended with.
    pub fn batches(&self, slicer: &Slicer) -> Vec<Batch> {
        let mut all = self.clone();
        all.double(slicer.shift);
        all.batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn doubling_loses_nothing_and_keeps_order(mut stamps in proptest::collection::vec(0u64..1 << 40, 1..200)) {
            stamps.sort_unstable();
            let mut slicer = Slicer::default();
            let (mut whole, mut halves) = (Slices::default(), [Slices::default(), Slices::default()]);
            for (n, &ts) in stamps.iter().enumerate() {
                let slice = slicer.at(ts);
                whole.batch(slice).count += 1;
                halves[n % 2].batch(slice).count += 1;
            }
            let batches = whole.batches(&slicer);
            prop_assert!(batches.len() <= SLICES);
            for (at, batch) in batches.iter().enumerate() {
                let of = |ts: &&u64| (**ts - stamps[0]) / slicer.length() == at as u64;
                prop_assert_eq!(batch.count as usize, stamps.iter().filter(of).count());
            }
            let [mut first, second] = halves;
            first.merge(&second);
            prop_assert_eq!(first.batches(&slicer), batches);
        }
    }
}
