// SPDX-License-Identifier: Apache-2.0 OR MIT

//! GSI numbers: allocated lowest first, because the kernel's cost grows with the highest.

use crate::error::RouteError;
use crate::message::FixedRoute;
use crate::source::Source;
use std::collections::{BTreeMap, VecDeque};

/// A set of GSIs.
#[derive(Debug, Clone)]
pub(crate) struct GsiSet(Vec<u64>);

impl GsiSet {
    fn new(limit: usize) -> Self {
        Self(vec![0; limit.div_ceil(64)])
    }

    fn contains(&self, gsi: u32) -> bool {
        self.0[gsi as usize / 64] >> (gsi % 64) & 1 == 1
    }

    fn insert(&mut self, gsi: u32) {
        self.0[gsi as usize / 64] |= 1 << (gsi % 64);
    }

    fn remove(&mut self, gsi: u32) {
        self.0[gsi as usize / 64] &= !(1 << (gsi % 64));
    }

    /// The lowest GSI from `first` on that is not in the set and below `limit`.
    fn first_missing(&self, first: u32, limit: usize) -> Option<u32> {
        (first as usize / 64..self.0.len()).find_map(|word| {
            let below = if word == first as usize / 64 { (1 << (first % 64)) - 1 } else { 0 };
            let free = !(self.0[word] | below);
            let gsi = word * 64 + free.trailing_zeros() as usize;
            (free != 0 && gsi < limit).then_some(gsi as u32)
        })
    }

    /// Takes out all of them that `keep` has not got.
    fn drain_but<'a>(&'a mut self, keep: &'a Self) -> impl Iterator<Item = u32> + 'a {
        self.0.iter_mut().zip(&keep.0).enumerate().flat_map(|(word, (bits, keep))| {
            let mut taken = *bits & !keep;
            *bits &= keep;
            std::iter::from_fn(move || {
                let bit = (taken != 0).then(|| taken.trailing_zeros())?;
                taken &= taken - 1;
                Some(word as u32 * 64 + bit)
            })
        })
    }
}

/// The fixed routes of one GSI: their irqchips (None: not an irqchip pin).
#[derive(Debug, Default)]
struct FixedGsi {
    /// In the table.
    present: Vec<Option<u32>>,
    /// Staged beside those.
    added: Vec<Option<u32>>,
    /// How many each staged change puts in the place of those.
    changes: Vec<usize>,
}

impl FixedGsi {
    /// Entries that the table may come to have, whichever batch is committed first.
    fn room(&self) -> usize {
        let changed = self.changes.iter().copied().max().unwrap_or(0);
        self.present.len().max(changed) + self.added.len()
    }

    fn is_unused(&self) -> bool {
        self.room() == 0 && self.changes.is_empty()
    }
}

/// Routes that are signalled, at most: as many as the largest table has.
pub(crate) const MOST_SIGNALLED: usize = 4096;

/// Which GSIs are taken, by whom, and how many table entries that makes.
#[derive(Debug)]
pub(crate) struct Pool {
    limit: usize,
    first: u32,
    /// No GSI from `first` to here is free.
    lowest: u32,
    /// MSI routes' and fixed routes' GSIs.
    used: GsiSet,
    /// GSIs from `first` on that fixed routes have.
    fixed_above: usize,
    /// Given back, perhaps still in the kernel's table.
    retired: GsiSet,
    msi: usize,
    /// Numbers above the limit, for routes that are not in the table.
    signalled: GsiSet,
    fixed: BTreeMap<u32, FixedGsi>,
    fixed_entries: usize,
    /// Dropped routes whose irqfd could not be detached: their GSIs stay taken.
    stuck: VecDeque<(Source, u32)>,
}

impl Pool {
    /// MSI routes get GSIs from `first` on.
    pub(crate) fn new(limit: usize, first: u32) -> Self {
        Self {
            limit,
            first,
            lowest: first,
            used: GsiSet::new(limit),
            fixed_above: 0,
            retired: GsiSet::new(limit),
            msi: 0,
            signalled: GsiSet::new(MOST_SIGNALLED),
            fixed: BTreeMap::new(),
            fixed_entries: 0,
            stuck: VecDeque::new(),
        }
    }

    pub(crate) fn msi(&self) -> usize {
        self.msi
    }

    /// Entries that the table has room for.
    fn room(&self) -> usize {
        self.limit - self.msi - self.fixed_entries
    }

    /// MSI routes that can be added: there is room for an entry, and a GSI.
    pub(crate) fn free(&self) -> usize {
        let gsis = self.limit.saturating_sub(self.first as usize) - self.fixed_above - self.msi;
        self.room().min(gsis)
    }

    pub(crate) fn full(&self) -> RouteError {
        let (limit, first) = (self.limit, self.first);
        RouteError::Full { limit, fixed: self.fixed_entries, msi: self.msi, first }
    }

    pub(crate) fn reserve(&mut self) -> Result<u32, RouteError> {
        if self.free() == 0 {
            return Err(self.full());
        }
        let free = self.used.first_missing(self.lowest, self.limit);
        let gsi = free.ok_or_else(|| self.full())?;
        self.used.insert(gsi);
        self.lowest = gsi + 1;
        self.msi += 1;
        Ok(gsi)
    }

    /// A number for a route that is not in the table.
    pub(crate) fn reserve_signalled(&mut self) -> Option<u32> {
        let n = self.signalled.first_missing(0, MOST_SIGNALLED)?;
        self.signalled.insert(n);
        Some(self.limit as u32 + n)
    }

    fn freed(&mut self, gsi: u32) {
        self.used.remove(gsi);
        self.lowest = self.lowest.min(gsi.max(self.first));
    }

    pub(crate) fn release(&mut self, gsi: u32) {
        if let Some(n) = gsi.checked_sub(self.limit as u32) {
            return self.signalled.remove(n);
        }
        self.freed(gsi);
        self.retired.insert(gsi);
        self.msi -= 1;
    }

    pub(crate) fn stuck(&self) -> usize {
        self.stuck.len()
    }

    /// The one that has been stuck longest.
    pub(crate) fn take_stuck(&mut self) -> Option<(Source, u32)> {
        self.stuck.pop_front()
    }

    /// It could not be detached.
    pub(crate) fn put_back_stuck(&mut self, source: Source, gsi: u32) {
        self.stuck.push_back((source, gsi));
    }

    /// GSIs given back since the last call that nobody has taken again; of those that
    /// somebody has, it is known for later.
    pub(crate) fn take_retired(&mut self) -> Vec<u32> {
        self.retired.drain_but(&self.used).collect()
    }

    /// Undoes [`Self::take_retired`].
    pub(crate) fn put_back(&mut self, retired: &[u32]) {
        retired.iter().for_each(|&gsi| self.retired.insert(gsi));
    }

    fn check_range(&self, gsi: u32) -> Result<(), RouteError> {
        let limit = self.limit;
        ((gsi as usize) < limit).then_some(()).ok_or(RouteError::GsiRange { gsi, limit })
    }

    /// Changes what a GSI's fixed routes need, and counts the entries anew.
    fn with_fixed(&mut self, gsi: u32, change: impl FnOnce(&mut FixedGsi)) {
        let fixed = self.fixed.entry(gsi).or_default();
        let before = fixed.room();
        change(fixed);
        let (after, unused) = (fixed.room(), fixed.is_unused());
        self.fixed_entries = self.fixed_entries + after - before;
        let was_used = self.used.contains(gsi);
        if unused {
            self.fixed.remove(&gsi);
            self.freed(gsi);
        } else {
            self.used.insert(gsi);
        }
        if gsi >= self.first {
            self.fixed_above += usize::from(!unused);
            self.fixed_above -= usize::from(was_used);
        }
    }

    /// A fixed route is staged.
    pub(crate) fn reserve_fixed(&mut self, route: &FixedRoute) -> Result<(), RouteError> {
        let gsi = route.gsi();
        self.check_range(gsi)?;
        if self.room() == 0 {
            return Err(self.full());
        }
        let chip = route.chip();
        let may = match self.fixed.get(&gsi) {
            Some(fixed) => {
                let mut taken = fixed.present.iter().chain(&fixed.added);
                chip.is_some() && taken.all(|other| other.is_some() && *other != chip)
            }
            None => !self.used.contains(gsi),
        };
        if !may {
            return Err(RouteError::GsiTaken { gsi });
        }
        self.with_fixed(gsi, |fixed| fixed.added.push(chip));
        Ok(())
    }

    /// A change of all fixed routes of a GSI is staged; `more` for those that the same batch
    /// has staged for it before.
    pub(crate) fn reserve_change(
        &mut self,
        gsi: u32,
        routes: &[FixedRoute],
        more: Option<usize>,
    ) -> Result<(), RouteError> {
        self.check_range(gsi)?;
        let mut chips: Vec<_> = routes.iter().map(FixedRoute::chip).collect();
        chips.sort_unstable();
        let pins = chips.iter().all(Option::is_some) && chips.windows(2).all(|w| w[0] != w[1]);
        let others = routes.iter().any(|route| route.gsi() != gsi);
        let msi = self.used.contains(gsi) && !self.fixed.contains_key(&gsi);
        if others || msi || chips.len() > 1 && !pins {
            return Err(RouteError::GsiTaken { gsi });
        }
        let room = self.fixed.get(&gsi).map_or(0, FixedGsi::room);
        if chips.len().saturating_sub(room) > self.room() {
            return Err(self.full());
        }
        self.with_fixed(gsi, |fixed| {
            fixed.forget_change(more);
            fixed.changes.push(chips.len());
        });
        Ok(())
    }

    /// A staged fixed route is not to be.
    pub(crate) fn forget_fixed(&mut self, route: &FixedRoute) {
        self.with_fixed(route.gsi(), |fixed| take(&mut fixed.added, &route.chip()));
    }

    /// A staged change is not to be.
    pub(crate) fn forget_change(&mut self, gsi: u32, routes: usize) {
        self.with_fixed(gsi, |fixed| fixed.forget_change(Some(routes)));
    }

    /// The kernel has a fixed route.
    pub(crate) fn settle_fixed(&mut self, route: &FixedRoute) {
        self.with_fixed(route.gsi(), |fixed| {
            take(&mut fixed.added, &route.chip());
            fixed.present.push(route.chip());
        });
    }

    /// The kernel has a change.
    pub(crate) fn settle_change(&mut self, gsi: u32, routes: &[FixedRoute]) {
        self.with_fixed(gsi, |fixed| {
            fixed.forget_change(Some(routes.len()));
            fixed.present = routes.iter().map(FixedRoute::chip).collect();
        });
    }

    /// The table has a fixed route of this GSI.
    pub(crate) fn is_routed(&self, gsi: u32) -> bool {
        self.fixed.get(&gsi).is_some_and(|fixed| !fixed.present.is_empty())
    }

    pub(crate) fn has_fixed(&self, gsi: u32) -> bool {
        self.fixed.get(&gsi).is_some_and(|fixed| fixed.room() > 0)
    }
}

impl FixedGsi {
    fn forget_change(&mut self, routes: Option<usize>) {
        if let Some(routes) = routes {
            take(&mut self.changes, &routes);
        }
    }
}

fn take<T: PartialEq>(all: &mut Vec<T>, one: &T) {
    if let Some(at) = all.iter().position(|other| other == one) {
        all.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn gsis_are_the_lowest_free_ones(
            limit in 1usize..200,
            first in 0u32..100,
            steps in proptest::collection::vec(any::<Option<u16>>(), 0..300),
        ) {
            let mut pool = Pool::new(limit, first);
            let mut held = BTreeSet::new();
            for step in steps {
                match step {
                    None => match (pool.reserve(), (first..limit as u32).find(|g| !held.contains(g))) {
                        (Ok(gsi), Some(expected)) => {
                            prop_assert_eq!(gsi, expected);
                            held.insert(gsi);
                        }
                        (Err(RouteError::Full { .. }), None) => {}
                        other => prop_assert!(false, "{:?}", other),
                    },
                    Some(n) if !held.is_empty() => {
                        let gsi = *held.iter().nth(n as usize % held.len()).unwrap();
                        held.remove(&gsi);
                        pool.release(gsi);
                    }
                    Some(_) => prop_assert!(pool.take_retired().iter().all(|g| !held.contains(g))),
                }
                prop_assert_eq!(pool.msi(), held.len());
                let left = (first..limit as u32).filter(|g| !held.contains(g)).count();
                prop_assert_eq!(pool.free(), left);
            }
        }
    }

    #[test]
    fn only_different_irqchips_share_a_gsi() {
        let mut pool = Pool::new(64, 24);
        pool.reserve_fixed(&FixedRoute::irqchip(3, 0, 3)).unwrap();
        pool.reserve_fixed(&FixedRoute::irqchip(3, 2, 3)).unwrap();
        let taken = |r: Result<(), RouteError>| matches!(r, Err(RouteError::GsiTaken { gsi: 3 }));
        assert!(taken(pool.reserve_fixed(&FixedRoute::irqchip(3, 2, 4))));
        assert!(taken(pool.reserve_fixed(&FixedRoute::xen_evtchn(3, 1, 0, 0))));
        assert_eq!(pool.reserve().unwrap(), 24);
        let msi = pool.reserve_fixed(&FixedRoute::irqchip(24, 2, 1));
        assert!(matches!(msi, Err(RouteError::GsiTaken { gsi: 24 })));
        let far = pool.reserve_fixed(&FixedRoute::hv_sint(64, 0, 1));
        assert!(matches!(far, Err(RouteError::GsiRange { gsi: 64, limit: 64 })));
    }
}
