//! Between which two events of a device model's log time goes by.
//!
//! QEMU's log has any event that its user has asked for, of which only accesses mean something
//! here. What two events have between them, over and over, is a request all the same: sent and
//! answered, before a sleep and after it.

use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::NameId;

/// Most pairs that are told apart.
const MAX_PAIRS: usize = 1 << 12;

/// The time between two events that follow each other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gap {
    /// Ticks in all.
    pub ticks: u64,
    /// How often.
    pub count: u64,
    /// The longest one's ticks, and the stamp and thread of the event that ended it.
    pub worst: (u64, u64, i32),
}

/// All such times of a file.
#[derive(Debug, Default)]
pub struct LogGaps {
    first: Option<u64>,
    last: Option<(u64, NameId)>,
    gaps: FastMap<(NameId, NameId), Gap>,
}

impl LogGaps {
    /// Takes the next event.
    pub fn add(&mut self, name: NameId, stamp: u64, tid: i32) {
        self.first.get_or_insert(stamp);
        let Some((before, earlier)) = self.last.replace((stamp, name)) else { return };
        if self.gaps.len() >= MAX_PAIRS && !self.gaps.contains_key(&(earlier, name)) {
            return;
        }
        // Threads write their lines as they come to it.
        let ticks = stamp.saturating_sub(before);
        let gap = self.gaps.entry((earlier, name)).or_default();
        gap.ticks = gap.ticks.saturating_add(ticks);
        gap.count += 1;
        if ticks >= gap.worst.0 {
            gap.worst = (ticks, stamp, tid);
        }
    }

    /// Ticks from the first event to the last.
    pub fn span(&self) -> u64 {
        let ends = self.first.zip(self.last);
        ends.map_or(0, |(first, (last, _))| last.saturating_sub(first))
    }

    /// Events but the first.
    pub fn count(&self) -> u64 {
        self.gaps.values().map(|gap| gap.count).sum()
    }

    /// Between which of those that are asked for most of the time went by.
    pub fn most(&self, want: impl Fn(NameId, NameId) -> bool) -> Option<((NameId, NameId), Gap)> {
        let wanted = self.gaps.iter().filter(|((before, after), _)| want(*before, *after));
        let most = wanted.max_by_key(|(names, gap)| (gap.ticks, **names));
        most.map(|(names, gap)| (*names, *gap))
    }
}
