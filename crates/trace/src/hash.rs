//! Maps by small integers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Mixes one integer: keys are small numbers, and the tables are bounded.
#[derive(Default, Clone, Copy)]
pub struct Mix(u64);

impl Hasher for Mix {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    #[inline]
    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }

    /// The discriminants of enums, too.
    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    #[inline]
    fn write_i32(&mut self, n: i32) {
        self.write_u64(n as u64);
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A map whose keys are a few integers; bounded by whoever fills it.
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// Numbers of the texts that were looked up last, before a map by whole text is asked.
///
/// A trace has a few dozen names that come over and over; the map's hash withstands texts that are
/// made to collide and takes longer than reading the name. Here a text that shares its slot only
/// replaces another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recent([u32; Recent::SLOTS]);

impl Default for Recent {
    fn default() -> Recent {
        Recent([0; Recent::SLOTS])
    }
}

impl Recent {
    const SLOTS: usize = 128;

    /// The slot of a text: by its length and both its ends.
    #[inline]
    fn slot(text: &[u8]) -> usize {
        let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut mix = Mix::default();
        match text.len() {
            0..=7 => mix.write(text),
            _ => {
                mix.write_u64(word(text.first_chunk()));
                mix.write_u64(word(text.last_chunk()) ^ text.len() as u64);
            }
        }
        (mix.finish() >> 32) as usize % Recent::SLOTS
    }

    /// The number that a text may have; to be compared.
    #[inline]
    pub(crate) fn guess(&self, text: &str) -> u32 {
        self.0[Recent::slot(text.as_bytes())]
    }

    /// Takes note of a text's number.
    #[inline]
    pub(crate) fn note(&mut self, text: &str, number: u32) {
        self.0[Recent::slot(text.as_bytes())] = number;
    }
}
