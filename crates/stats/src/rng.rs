//! A small seeded generator, so that a saved seed gives the same order for ever.
//!
//! xoshiro256** 1.0, seeded by splitmix64 (D. Blackman, S. Vigna, "Scrambled linear
//! pseudorandom number generators", ACM TOMS 47(4), 2021). Not for secrets.

/// The generator.
#[derive(Debug, Clone)]
pub struct Rng([u64; 4]);

impl Rng {
    /// Seeds it; equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..n without bias (D. Lemire, "Fast random integer generation in an
    /// interval", ACM TOMACS 29(1), 2019). 0 for n = 0.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n as u64;
        let threshold = n.wrapping_neg().checked_rem(n).unwrap_or(0);
        loop {
            let product = u128::from(self.bits()) * u128::from(n);
            if product as u64 >= threshold {
                return (product >> 64) as usize;
            }
        }
    }

    /// Standard normal (G. Box, M. Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_never_changes() {
        let mut rng = Rng::new(0);
        // The first state word of splitmix64(0) is the published 0xe220a8397b1dcdaf.
        assert_eq!(rng.0[0], 0xe220_a839_7b1d_cdaf);
        let first: Vec<u64> = (0..3).map(|_| rng.bits()).collect();
        assert_eq!(
            first,
            [11_091_344_671_253_066_420, 13_793_997_310_169_335_082, 1_900_383_378_846_508_768]
        );
    }

    #[test]
    fn draws_are_uniform_and_normal() {
        let mut rng = Rng::new(7);
        let mut counts = [0u32; 6];
        (0..60_000).for_each(|_| counts[rng.below(6)] += 1);
        assert!(counts.iter().all(|&c| (9_600..10_400).contains(&c)), "{counts:?}");
        let normal: Vec<f64> = (0..50_000).map(|_| rng.normal()).collect();
        let mean = crate::mean(&normal);
        let inside = normal.iter().filter(|x| x.abs() < 1.96).count();
        assert!(mean.abs() < 0.02 && (47_300..47_700).contains(&inside), "{mean} {inside}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }
}
