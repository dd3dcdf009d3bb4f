// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Three ways to harvest, under the names of the measurement that compared them in KVM: the
//! patch series on the kvm mailing list in 2010 that moved its dirty bitmaps to user space.

use crate::bits::Bits;
use crate::harvest::Harvest;
use crate::slot::{when_unused, BadPageSize, Buffers, Locked, Slot};
use crate::sync::plain;
use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::ops::Deref;
use std::str::FromStr;

/// One of the three.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum StrategyKind {
    /// [`GetOrg`].
    GetOrg,
    /// [`GetOpt`].
    GetOpt,
    /// [`SwitchOpt`].
    SwitchOpt,
}

impl StrategyKind {
    /// All, slowest first.
    pub const ALL: [Self; 3] = [Self::GetOrg, Self::GetOpt, Self::SwitchOpt];

    /// Its name in that measurement.
    pub fn name(self) -> &'static str {
        match self {
            Self::GetOrg => "get_org",
            Self::GetOpt => "get_opt",
            Self::SwitchOpt => "switch_opt",
        }
    }

    /// A bitmap that harvests this way, for `bytes` of memory in pages of `page_size`.
    ///
    /// # Errors
    /// The page size is not a power of two.
    pub fn bitmap(self, bytes: usize, page_size: usize) -> Result<Box<dyn DirtyLog>, BadPageSize> {
        Ok(match self {
            Self::GetOrg => Box::new(DirtyBitmap::<GetOrg>::new(bytes, page_size)?),
            Self::GetOpt => Box::new(DirtyBitmap::<GetOpt>::new(bytes, page_size)?),
            Self::SwitchOpt => Box::new(DirtyBitmap::<SwitchOpt>::new(bytes, page_size)?),
        })
    }
}

impl fmt::Display for StrategyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No strategy has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected get_org, get_opt or switch_opt, found {0:?}")]
pub struct UnknownStrategy(pub String);

impl FromStr for StrategyKind {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownStrategy(name.into()))
    }
}

/// A dirty bitmap of a memory slot: marked as a [`Slot`], harvested by some strategy.
pub trait DirtyLog: Deref<Target = Slot> + Send + Sync + Debug {
    /// Which strategy.
    fn strategy(&self) -> StrategyKind;

    /// Takes what was marked since the last harvest.
    ///
    /// Each mark is in exactly one harvest: in this one if it returned before this began,
    /// in the next one if it began after this returned. What a thread wrote to a page
    /// before it marked it is visible once the page is in a harvest. Harvests of the same
    /// slot wait for one another.
    ///
    /// # Panics
    /// This thread has a [`Harvest`] of this slot that the new one would wait for. See
    /// [`crate::use_full_fences`]: membarrier(2) worked before and is refused now.
    fn harvest(&self) -> Harvest<'_>;
}

/// How a [`DirtyBitmap`] harvests.
pub trait Strategy: private::Strategy {}

pub(crate) mod private {
    use super::{Bits, Harvest, Locked, SavedConfig, Slot, StrategyKind};

    pub trait Strategy: Send + Sync + std::fmt::Debug + 'static {
        const KIND: StrategyKind;

        /// Harvests use the heavy fence whether it is needed or not.
        const WAITS_ALWAYS: bool = false;

        /// Allocates what harvests need, if they keep it.
        fn prepare(slot: &Slot);

        /// The harvest of a clean slot.
        #[inline]
        fn clean(slot: &Slot) -> Harvest<'_> {
            Harvest::clean(slot)
        }

        /// Nothing if the slot is clean; else its buffers, and what writers get next.
        fn begin(slot: &Slot) -> Option<SavedConfig<'_>>;

        /// Makes a harvest of what the writers used, and use no more.
        fn finish<'a>(slot: &'a Slot, buffers: Locked<'a>, old: Bits) -> Harvest<'a>;
    }
}

/// A harvest that found something: the slot's buffers, and what writers get next.
pub(crate) type SavedConfig<'a> = (Locked<'a>, Bits);

/// The same first look for all slots that keep their bitmaps.
#[inline]
fn begin_if_dirty(slot: &Slot) -> Option<SavedConfig<'_>> {
    // SAFETY: `GetOpt` and `SwitchOpt` free no bitmap while the slot lives.
    if unsafe { slot.looks_clean() } {
        return None;
    }
    let mut buffers = slot.lock();
    let next = buffers.take_spare(slot);
    Some((buffers, next))
}

#[inline]
fn harvest<S: Strategy>(slot: &Slot) -> Harvest<'_> {
    match S::begin(slot) {
        None => S::clean(slot),
        Some((buffers, next)) => switch::<S>(slot, buffers, next),
    }
}

#[inline(never)]
fn switch<'a, S: Strategy>(slot: &'a Slot, mut buffers: Locked<'a>, next: Bits) -> Harvest<'a> {
    let retired = slot.exchange(next, &mut buffers);
    match when_unused([retired], S::WAITS_ALWAYS).next() {
        Some(old) => S::finish(slot, buffers, old),
        None => Harvest::clean(slot),
    }
}

/// Harvests several slots and waits for writers once: one fence for all of them. As
/// [`DirtyBitmap::harvest`] for each; in the order given. Of a slot that comes twice, the
/// first has what there is.
///
/// # Panics
/// As [`DirtyLog::harvest`].
#[must_use = "what they hold is no longer marked"]
pub fn harvest_all<'a, S: Strategy>(
    logs: impl IntoIterator<Item = &'a DirtyBitmap<S>>,
) -> Vec<Harvest<'a>> {
    let slots: Vec<&Slot> = logs.into_iter().map(|log| &log.slot).collect();
    let mut harvests: Vec<Harvest<'a>> = slots.iter().map(|&slot| Harvest::clean(slot)).collect();
    // In the order of their addresses: two such harvests of the same slots must not wait
    // for one another.
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|&i| std::ptr::from_ref(slots[i]));
    order.dedup_by_key(|i| std::ptr::from_ref(slots[*i]));
    let (mut begun, mut retired) = (Vec::new(), Vec::new());
    for i in order {
        match S::begin(slots[i]) {
            None => harvests[i] = S::clean(slots[i]),
            Some((mut buffers, next)) => {
                retired.push(slots[i].exchange(next, &mut buffers));
                begun.push((i, buffers));
            }
        }
    }
    for ((i, buffers), old) in begun.into_iter().zip(when_unused(retired, S::WAITS_ALWAYS)) {
        harvests[i] = S::finish(slots[i], buffers, old);
    }
    harvests
}

/// As it was: each harvest allocates a bitmap, gives it to the writers, waits for those in
/// flight (by a barrier on every CPU, whoever is there), copies the whole slot out and frees
/// the old one, clean or not.
#[derive(Debug, Clone, Copy)]
pub struct GetOrg;

impl Strategy for GetOrg {}

impl private::Strategy for GetOrg {
    const KIND: StrategyKind = StrategyKind::GetOrg;
    const WAITS_ALWAYS: bool = true;

    fn prepare(_: &Slot) {}

    fn begin(slot: &Slot) -> Option<SavedConfig<'_>> {
        let buffers = slot.lock();
        Some((buffers, slot.new_bits()))
    }

    fn finish<'a>(slot: &'a Slot, _: Locked<'a>, old: Bits) -> Harvest<'a> {
        Harvest::owned(slot, plain(old.words()).to_vec())
    }
}

/// Clean slots return at once; two bitmaps and a buffer are allocated once; a dirty slot is
/// copied out whole. As with KVM's, the caller always gets a whole copy: of a clean slot
/// the buffer, full of zeroes, which is what a clean harvest costs more than that of
/// [`SwitchOpt`].
#[derive(Debug, Clone, Copy)]
pub struct GetOpt;

impl Strategy for GetOpt {}

impl private::Strategy for GetOpt {
    const KIND: StrategyKind = StrategyKind::GetOpt;

    fn prepare(slot: &Slot) {
        let mut buffers = slot.lock();
        buffers.out = vec![0; slot.word_count()];
        buffers.spare = Some(slot.new_bits());
    }

    fn clean(slot: &Slot) -> Harvest<'_> {
        let mut buffers = slot.lock();
        if std::mem::take(&mut buffers.out_is_dirty) {
            buffers.out.fill(0);
        }
        Harvest::zeroes(slot, buffers)
    }

    #[inline]
    fn begin(slot: &Slot) -> Option<SavedConfig<'_>> {
        begin_if_dirty(slot)
    }

    fn finish<'a>(slot: &'a Slot, mut buffers: Locked<'a>, mut old: Bits) -> Harvest<'a> {
        buffers.out.copy_from_slice(plain(old.words()));
        buffers.out_is_dirty = true;
        old.clear();
        buffers.spare = Some(old);
        Harvest::copied(slot, buffers)
    }
}

/// Clean slots return at once; else the writers' bitmap is switched for the other of two
/// and the caller gets the retired one by reference: nothing is copied. It is cleared,
/// where it is dirty, when the caller is done with it.
#[derive(Debug, Clone, Copy)]
pub struct SwitchOpt;

impl Strategy for SwitchOpt {}

impl private::Strategy for SwitchOpt {
    const KIND: StrategyKind = StrategyKind::SwitchOpt;

    fn prepare(slot: &Slot) {
        slot.lock().spare = Some(slot.new_bits());
    }

    #[inline]
    fn begin(slot: &Slot) -> Option<SavedConfig<'_>> {
        begin_if_dirty(slot)
    }

    fn finish<'a>(slot: &'a Slot, mut buffers: Locked<'a>, old: Bits) -> Harvest<'a> {
        buffers.spare = Some(old);
        Harvest::retired(slot, buffers)
    }
}

impl Buffers {
    fn take_spare(&mut self, slot: &Slot) -> Bits {
        let spare = self.spare.take();
        spare.unwrap_or_else(|| slot.new_bits())
    }
}

/// A slot's dirty bitmap, harvested as `S` does it.
#[derive(Debug)]
pub struct DirtyBitmap<S: Strategy = SwitchOpt> {
    slot: Slot,
    strategy: PhantomData<S>,
}

impl<S: Strategy> DirtyBitmap<S> {
    /// All clean, for `bytes` of memory in pages of `page_size` bytes.
    ///
    /// # Errors
    /// The page size is not a power of two.
    pub fn new(bytes: usize, page_size: usize) -> Result<Self, BadPageSize> {
        let slot = Slot::new(bytes, page_size)?;
        S::prepare(&slot);
        Ok(Self { slot, strategy: PhantomData })
    }

    /// Takes what was marked since the last harvest; see [`DirtyLog::harvest`].
    #[inline]
    pub fn harvest(&self) -> Harvest<'_> {
        harvest::<S>(&self.slot)
    }
}

impl<S: Strategy> Deref for DirtyBitmap<S> {
    type Target = Slot;

    #[inline]
    fn deref(&self) -> &Slot {
        &self.slot
    }
}

impl<S: Strategy> DirtyLog for DirtyBitmap<S> {
    fn strategy(&self) -> StrategyKind {
        S::KIND
    }

    fn harvest(&self) -> Harvest<'_> {
        harvest::<S>(&self.slot)
    }
}
