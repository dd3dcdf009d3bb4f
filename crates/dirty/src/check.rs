//! Is every bit what the guest wrote?
//!
//! The guest writes the number of the run to each page. So there are three things to
//! compare, for each page of each slot: the pages that the guest was told to write to, its
//! memory, and each bitmap.

use crate::bitmaps::Harvested;
use crate::layout::{Layout, PAGE};
use crate::station::Pass;
use crate::workload::Page;
use crate::DirtyError;
use serde::{Deserialize, Serialize};
use vmeter_kvm_probe::GuestSlot;

/// Mismatches that are kept.
pub(crate) const KEPT: usize = 100;

/// All comparisons of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Bits compared.
    pub bits: u64,
    /// Those that were wrong.
    pub wrong: u64,
    /// Which, at most a hundred.
    pub mismatches: Vec<Wrong>,
}

/// A bit that was wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrong {
    /// `tracker`, `memory`, or a strategy's name.
    pub source: String,
    /// Slot's number.
    pub slot: u32,
    /// Page in it.
    pub page: u64,
    /// The guest wrote to it.
    pub written: bool,
}

/// A bit for each page of a slot.
pub(crate) type Words = Vec<u64>;

/// The pages of a pass, a bitmap for each slot.
pub(crate) fn expected(layout: &Layout, pages: &[Page]) -> Vec<Words> {
    let mut all: Vec<Words> =
        layout.slots.iter().map(|slot| vec![0; slot.pages().div_ceil(64) as usize]).collect();
    for page in pages {
        all[page.slot][(page.page / 64) as usize] |= 1 << (page.page % 64);
    }
    all
}

/// The pages whose memory begins with `generation`.
pub(crate) fn in_memory(slots: &[GuestSlot], generation: u64) -> Result<Vec<Words>, DirtyError> {
    let slot = |slot: &GuestSlot| {
        let pages = slot.bytes() / PAGE;
        let mut words = vec![0; pages.div_ceil(64) as usize];
        let mut first = [0; 8];
        for page in 0..pages {
            slot.read(page * PAGE, &mut first)?;
            if u64::from_le_bytes(first) == generation {
                words[(page / 64) as usize] |= 1 << (page % 64);
            }
        }
        Ok(words)
    };
    slots.iter().map(slot).collect()
}

/// Sparse words as a bitmap.
pub(crate) fn whole(len: usize, sparse: &[(usize, u64)]) -> Words {
    let mut words = vec![0; len];
    for &(i, word) in sparse {
        if let Some(to) = words.get_mut(i) {
            *to = word;
        }
    }
    words
}

impl Check {
    /// Adds another guest's.
    pub(crate) fn add(&mut self, other: Check) {
        self.bits += other.bits;
        self.wrong += other.wrong;
        let room = KEPT.saturating_sub(self.mismatches.len());
        self.mismatches.extend(other.mismatches.into_iter().take(room));
    }

    /// Compares one slot's bitmap with what was written.
    pub(crate) fn compare(
        &mut self,
        source: &str,
        layout: &Layout,
        slot: usize,
        written: &[u64],
        found: &[u64],
    ) {
        self.bits += layout.slots[slot].pages();
        for (i, (written, found)) in written.iter().zip(found).enumerate() {
            let mut wrong = written ^ found;
            self.wrong += u64::from(wrong.count_ones());
            while wrong != 0 && self.mismatches.len() < KEPT {
                let bit = wrong.trailing_zeros();
                wrong &= wrong - 1;
                self.mismatches.push(Wrong {
                    source: source.into(),
                    slot: layout.slots[slot].number,
                    page: i as u64 * 64 + u64::from(bit),
                    written: written >> bit & 1 == 1,
                });
            }
        }
    }
}

/// Compares all that there is with what the guest was told to write.
pub(crate) fn compared(layout: &Layout, memory: &[Vec<u64>], pages: &[Page], done: &Pass) -> Check {
    let written = expected(layout, pages);
    let mut check = Check { wrong: u64::from(!done.same), ..Check::default() };
    for (slot, written) in written.iter().enumerate() {
        check.compare("memory", layout, slot, written, &memory[slot]);
        if let Some(told) = done.told.get(slot) {
            check.compare("tracker", layout, slot, written, &whole(written.len(), told));
        }
    }
    for Harvested { slot, strategy, words, .. } in &done.harvested {
        let found = whole(written[*slot].len(), words);
        check.compare(strategy.name(), layout, *slot, &written[*slot], &found);
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_and_what_is_extra_is_found() {
        let layout = Layout::gui();
        let written = expected(&layout, &[Page { slot: 0, page: 3 }, Page { slot: 0, page: 5 }]);
        let mut check = Check::default();
        check.compare("switch_opt", &layout, 0, &written[0], &[1 << 3 | 1 << 5]);
        assert_eq!((check.bits, check.wrong), (8, 0));
        check.compare("switch_opt", &layout, 0, &written[0], &whole(1, &[(0, 1 << 3 | 1 << 7)]));
        let found: Vec<(u64, bool)> =
            check.mismatches.iter().map(|wrong| (wrong.page, wrong.written)).collect();
        assert_eq!((found, check.wrong), (vec![(5, true), (7, false)], 2));
        assert_eq!(check.mismatches[0].slot, 7);
    }
}
