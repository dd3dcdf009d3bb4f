//! What the guest writes: the same pages in the same order for every tracker.

use crate::layout::{Layout, PAGE};
use vmeter_stats::rng::Rng;

vmeter_base::words! {
    /// What kind of guest.
    pub enum Kind {
        /// A screen that is redrawn, with a cursor that moves.
        Gui = "gui",
        /// A loop that writes to a buffer for ever.
        Migration = "migration",
        /// Nothing.
        Idle = "idle",
        /// Pages of the buffer in random order.
        Random = "random",
        /// Pages of the buffer one after the other.
        Sequential = "sequential",
    }
}

impl Kind {
    /// The share of the buffer written in a pass, 0 to 1, if `asked` is what random and
    /// sequential write; none where it differs.
    pub fn share(self, asked: f64) -> Option<f64> {
        match self {
            Self::Gui => None,
            Self::Idle => Some(0.0),
            Self::Migration => Some(1.0),
            Self::Random | Self::Sequential => Some(asked),
        }
    }

    /// What it does with a buffer, in words; `share` as for [`Kind::share`].
    pub fn description(self, buffer_bytes: u64, share: f64) -> String {
        let buffer = in_words(buffer_bytes);
        let percent = share * 100.0;
        match self {
            Self::Gui => format!(
                "every {REDRAW}nd frame redraws the first slot ({} pages), all remaining frames \
                 move a cursor (1 page)",
                buffer_bytes / PAGE
            ),
            Self::Migration => {
                format!("writes all of {buffer} and 8 pages of low memory in each pass")
            }
            Self::Idle => "nothing is written".into(),
            Self::Random => format!("writes {percent} % of {buffer} in each pass, in random order"),
            Self::Sequential => format!(
                "writes {percent} % of {buffer} in each pass, in order of \
                address"
            ),
        }
    }

    /// The publication's slots for it.
    pub fn layout(self) -> Layout {
        if self == Self::Gui {
            Layout::gui()
        } else {
            Layout::migration()
        }
    }
}

/// Bytes in the unit that shows them: a buffer that was scaled with its slots may be small.
pub(crate) fn in_words(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes.div_ceil(1 << 10)),
        _ => format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

/// A page of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page {
    /// Position of its slot in the layout.
    pub slot: usize,
    /// Page in the slot.
    pub page: u64,
}

/// A workload on a layout.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Kind.
    pub kind: Kind,
    share: f64,
    seed: u64,
    buffer: Vec<Page>,
    /// Written in each pass besides the buffer.
    always: Vec<Page>,
}

/// Frames between two that draw all of the screen; the others move the cursor.
const REDRAW: u32 = 2;

impl Workload {
    /// A workload whose buffer is as large as `buffer_bytes` at most, shared out evenly
    /// over the slots that it may be in. `share` of it is written in a pass, 0 to 1.
    pub fn new(kind: Kind, layout: &Layout, buffer_bytes: u64, share: f64, seed: u64) -> Self {
        let mut room: Vec<usize> = (0..layout.slots.len()).collect();
        room.retain(|&slot| layout.slots[slot].buffer);
        // The smallest first, so that what it has not got room for goes into the others.
        room.sort_by_key(|&slot| layout.slots[slot].bytes);
        let mut left = if kind == Kind::Gui { u64::MAX } else { buffer_bytes / PAGE };
        let mut buffer = Vec::new();
        for (done, &slot) in room.iter().enumerate() {
            let pages = layout.slots[slot].pages();
            let count = pages.min(left.div_ceil((room.len() - done) as u64));
            // At its end, as memory that a guest allocates late.
            buffer.extend((pages - count..pages).map(|page| Page { slot, page }));
            left -= count;
        }
        buffer.sort();
        // A guest's kernel writes to low memory, too.
        let low = (kind == Kind::Migration && !layout.slots[0].buffer).then_some(8);
        let low = low.unwrap_or(0).min(layout.slots[0].pages());
        let always = (0..low).map(|page| Page { slot: 0, page }).collect();
        Self { kind, share, seed, buffer, always }
    }

    /// Every page that any pass may write to.
    pub fn all(&self) -> Vec<Page> {
        self.always.iter().chain(&self.buffer).copied().collect()
    }

    /// Its buffer, bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer.len() as u64 * PAGE
    }

    /// The pages of a pass, in the order in which they are written.
    pub fn pass(&self, pass: u32) -> Vec<Page> {
        let count = |share: f64| (self.buffer.len() as f64 * share).round() as usize;
        match self.kind {
            Kind::Idle => Vec::new(),
            Kind::Migration => self.all(),
            Kind::Gui if pass % REDRAW == 0 => self.buffer.clone(),
            Kind::Gui => self.from(pass as usize * 3, 1),
            Kind::Random => self.random(count(self.share), u64::from(pass)),
            Kind::Sequential => {
                let count = count(self.share);
                self.from(pass as usize * count, count)
            }
        }
    }

    /// `count` pages without order: those of the fits.
    pub fn random(&self, count: usize, number: u64) -> Vec<Page> {
        let mut rng = Rng::new(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut order: Vec<usize> = (0..self.buffer.len()).collect();
        rng.shuffle(&mut order);
        order.into_iter().take(count).map(|i| self.buffer[i]).collect()
    }

    fn from(&self, first: usize, count: usize) -> Vec<Page> {
        let len = self.buffer.len();
        (0..count.min(len)).map(|i| self.buffer[(first + i) % len]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_migration_writes_to_slots_0_to_2() {
        let layout = Layout::migration();
        let load = Workload::new(Kind::Migration, &layout, 1 << 30, 1.0, 1);
        let pass = load.pass(0);
        let slots: BTreeSet<usize> = pass.iter().map(|page| page.slot).collect();
        assert_eq!(slots, BTreeSet::from([0, 1, 2]));
        assert_eq!(pass.len(), 262_144 + 8);
        assert!(pass.iter().all(|p| p.page < layout.slots[p.slot].pages()));
        assert_eq!(pass.iter().collect::<BTreeSet<_>>().len(), pass.len());
    }

    #[test]
    fn shares_are_shares_and_seeds_are_seeds() {
        let layout = Layout::migration();
        for kind in [Kind::Random, Kind::Sequential] {
            let load = |share, seed| Workload::new(kind, &layout, 4 << 20, share, seed);
            for share in [0.0, 0.01, 0.5, 1.0] {
                let pass = load(share, 1).pass(3);
                assert_eq!(pass.len(), (1024.0 * share).round() as usize);
                assert_eq!(pass.iter().collect::<BTreeSet<_>>().len(), pass.len());
            }
            assert_eq!(load(0.5, 1).pass(2), load(0.5, 1).pass(2));
        }
        let load = Workload::new(Kind::Random, &layout, 4 << 20, 0.5, 1);
        assert_ne!(load.pass(0), load.pass(1));
        assert!(Workload::new(Kind::Idle, &layout, 4 << 20, 0.5, 1).pass(0).is_empty());
    }

    #[test]
    fn a_screen_is_redrawn_and_its_cursor_moves() {
        let load = Workload::new(Kind::Gui, &Layout::gui(), 0, 1.0, 1);
        let counts: Vec<usize> = (0..4).map(|pass| load.pass(pass).len()).collect();
        assert_eq!(counts, [8, 1, 8, 1]);
        assert!(load.all().iter().all(|page| page.slot == 0));
        assert_ne!(load.pass(1), load.pass(3));
    }
}
