//! Locks of the kernel, by its own events (`lock:contention_begin`).

use crate::detect::segments::PathSegment;
use crate::detect::View;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use vmeter_trace::ops::Lock;

/// Waits from which they count.
const FEWEST: u64 = 3;

/// The lock of the kernel that most of a level's waiting for a group is for.
pub fn known(
    view: &View<'_>,
    via: &PathSegment,
    (waiter, who): (GroupId, GroupId),
) -> Option<Lock> {
    let waiting = via.ticks(|_, state| state == Frame::Waker(who));
    most(view, waiter)
        .filter(|(_, count, ticks)| *count >= FEWEST && ticks * 2 >= waiting)
        .map(|(kind, ..)| kind)
}

/// The spinlock that threads of a name are on a CPU for, most of the time that they are on one.
pub fn spins(view: &View<'_>, level: &PathSegment, who: GroupId) -> Option<Lock> {
    let runs = level.ticks(|_, state| state == Frame::Runs);
    let (kind, count, ticks) = most(view, who)?;
    let spins = matches!(kind, Lock::Spinlock | Lock::Rwlock);
    (spins && count >= FEWEST && ticks * 2 >= runs).then_some(kind)
}

fn most(view: &View<'_>, who: GroupId) -> Option<(Lock, u64, u64)> {
    let mut kinds: std::collections::BTreeMap<Lock, (u64, u64)> = Default::default();
    for ((group, _, kind, _), waits) in &view.evidence.ledger.locks {
        if *group == who {
            let sum = kinds.entry(*kind).or_default();
            *sum = (sum.0 + waits.count, sum.1.saturating_add(waits.ticks));
        }
    }
    let most = kinds.into_iter().max_by_key(|(_, (_, ticks))| *ticks);
    most.map(|(kind, (count, ticks))| (kind, count, ticks))
}
