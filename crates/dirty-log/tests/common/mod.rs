// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A caller who stops, or panics, in the middle of a harvest. The test of the double-buffered bitmap
//! (crates/dirty/switch) uses it too.

use proptest::prelude::*;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// Pages at most: several words of the summary's top level. Miri is slow.
pub const MOST: usize = if cfg!(miri) { 9_000 } else { 300_000 };

#[derive(Debug, Clone, Copy)]
pub enum Stop {
    Fails,
    Panics,
}

impl Stop {
    /// Takes pages until so many calls were made, and calls `harvest` with that.
    pub fn after<T>(
        self,
        calls: usize,
        taken: &mut Vec<usize>,
        harvest: impl FnOnce(&mut dyn FnMut(&mut dyn Iterator<Item = usize>) -> Result<(), ()>) -> T,
    ) -> Option<T> {
        let mut left = calls;
        let mut take = |pages: &mut dyn Iterator<Item = usize>| {
            if left == 0 {
                return match self {
                    Stop::Fails => Err(()),
                    // Without the hook's message.
                    Stop::Panics => resume_unwind(Box::new("the caller")),
                };
            }
            left -= 1;
            taken.extend(pages);
            Ok(())
        };
        catch_unwind(AssertUnwindSafe(|| harvest(&mut take))).ok()
    }
}

/// Calls a caller for each run, or word.
pub type Harvest<'a> = dyn Fn(&mut dyn FnMut()) + 'a;

/// What was taken and what is left are what was marked.
pub fn check(marked: &[usize], mut taken: Vec<usize>, left: Vec<usize>) {
    assert!(taken.windows(2).all(|pair| pair[0] < pair[1]), "out of order");
    assert!(taken.last() < left.first() || left.is_empty() || taken.is_empty());
    taken.extend(left);
    assert_eq!(taken, marked);
}

pub fn marks() -> impl Strategy<Value = Vec<Range<usize>>> {
    let length = prop_oneof![4 => 1usize..4, 2 => 1usize..200, 1 => 1usize..9000];
    let run = (0..MOST, length).prop_map(|(at, len)| at..(at + len).min(MOST));
    prop::collection::vec(run, 1..20)
}

pub fn marked(runs: &[Range<usize>], mut mark: impl FnMut(Range<usize>)) -> Vec<usize> {
    runs.iter().cloned().for_each(&mut mark);
    let mut pages: Vec<usize> = runs.iter().cloned().flatten().collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}

pub fn config() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 2, failure_persistence: None, ..Default::default() }
    } else {
        ProptestConfig { cases: 48, ..Default::default() }
    }
}

/// Calls a harvest whose caller panics at the third run, or word.
pub fn third(harvest: &Harvest<'_>) {
    let mut calls = 0;
    let mut f = || {
        calls += 1;
        if calls == 3 {
            resume_unwind(Box::new("the caller"));
        }
    };
    assert!(catch_unwind(AssertUnwindSafe(|| harvest(&mut f))).is_err());
}
