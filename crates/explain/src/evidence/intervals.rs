//! The longest calls of a trace that has nothing else (strace): who is in which call, and who is
//! in none, at any moment.

use crate::moment::{Sym, Tid};
use std::collections::BTreeMap;

/// Most calls that are kept: the longest.
const MOST: usize = 1 << 16;
/// Most threads.
const MAX_THREADS: usize = 1 << 12;

/// A call, from when to when, ticks of the common base.
#[derive(Debug, Clone, Copy)]
pub struct Interval {
    /// Whose.
    pub thread: Tid,
    /// Which.
    pub call: Sym,
    /// From.
    pub start: u64,
    /// To.
    pub end: u64,
    /// It returned because its time was up, if it waits.
    pub timed_out: bool,
}

/// Calls, and threads from their first to their last.
#[derive(Debug, Default)]
pub struct Intervals {
    list: Vec<Interval>,
    lives: BTreeMap<Tid, (u64, u64)>,
}

impl Intervals {
    /// A call is over.
    pub fn add(&mut self, interval: Interval) {
        let Interval { thread, start, end, .. } = interval;
        if self.lives.len() < MAX_THREADS || self.lives.contains_key(&thread) {
            let life = self.lives.entry(thread).or_insert((start, end));
            *life = (life.0.min(start), life.1.max(end));
        }
        if self.list.len() >= MOST {
            self.list.sort_unstable_by_key(|i| std::cmp::Reverse(i.end.saturating_sub(i.start)));
            self.list.truncate(MOST / 2);
        }
        self.list.push(interval);
    }

    /// The calls that are kept, by their begin.
    pub fn sorted(&self) -> Vec<Interval> {
        let mut all = self.list.clone();
        all.sort_by_key(|interval| (interval.start, interval.end, interval.thread));
        all
    }

    /// From whose first call to whose last.
    pub fn lives(&self) -> impl Iterator<Item = (Tid, (u64, u64))> + '_ {
        self.lives.iter().map(|(thread, life)| (*thread, *life))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_trace::ops::NameId;

    #[test]
    fn of_too_many_the_longest_are_kept() {
        let mut intervals = Intervals::default();
        let call = Sym { file: 0, id: NameId(0) };
        for n in 0..3 * MOST as u64 {
            let end = 10 * n + if n % 7 == 0 { 9 } else { 1 };
            let thread = Tid { file: 0, tid: (n % 9) as i32 };
            intervals.add(Interval { thread, call, start: 10 * n, end, timed_out: false });
        }
        let kept = intervals.sorted();
        assert!(kept.len() <= MOST);
        let long = kept.iter().filter(|interval| interval.end - interval.start == 9).count();
        assert_eq!(long, 3 * MOST / 7 + 1);
        assert_eq!(intervals.lives().count(), 9);
    }
}
