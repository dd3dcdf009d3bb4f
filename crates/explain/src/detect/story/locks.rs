//! What the kernel's own events say of locks: which kind, whose wait, in what call, who let go.

use super::super::levels::Level;
use super::super::signals::SENDS;
use super::super::View;
use super::Story;
use crate::evidence::calls::Contended;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::result::Link;
use std::collections::BTreeMap;
use vmeter_render::quantity::grouped;
use vmeter_trace::ops::Lock;

/// Waits from which they are told of.
const MANY: u64 = 10;

/// Fewer are told of if they take so much of the traced time.
const FEW: u64 = 3;
const MUCH: f64 = 0.1;

/// The kernel's name of a lock, with its article.
pub(in crate::detect) fn a(kind: Lock) -> String {
    let article = if kind.name().starts_with('r') { "an" } else { "a" };
    format!("{article} {}", kind.name())
}

/// Waits of threads of a name for one kind of lock.
pub(super) struct Waits {
    pub(super) kind: Lock,
    pub(super) all: Contended,
    /// Who let most of them go on, where that is known.
    pub(super) holder: Option<GroupId>,
}

/// True if processes of a name let each other go on by signals: locks of programs that share
/// memory and no threads are built so.
pub(super) fn by_signals(view: &View<'_>, who: GroupId) -> bool {
    let wakes = view.evidence.ledger.wakes.iter();
    let own = wakes.filter(|((by, _, woken), _)| *by == who && *woken == who);
    let (mut all, mut signals) = (0_u64, 0_u64);
    for ((_, call, _), wakes) in own {
        all += wakes.wakes;
        if call.is_some_and(|call| SENDS.contains(&view.name(call))) {
            signals += wakes.wakes;
        }
    }
    signals >= MANY && signals * 2 >= all
}

impl Story {
    /// The waits for the kind of lock that take most of a level's time, in one call if given.
    pub(super) fn contended(
        &self,
        view: &View<'_>,
        level: &Level,
        call: Option<Frame>,
    ) -> Option<Waits> {
        let who = level.who.or(self.subject_group(view))?;
        let own = view.evidence.ledger.locks.iter().filter(|((group, inside, ..), _)| {
            *group == who && call.is_none_or(|call| inside.map(Frame::Call) == Some(call))
        });
        let mut kinds: BTreeMap<Lock, (Contended, BTreeMap<Option<GroupId>, u64>)> =
            BTreeMap::new();
        for ((.., kind, holder), waits) in own {
            let (sum, holders) = kinds.entry(*kind).or_default();
            sum.count += waits.count;
            sum.ticks = sum.ticks.saturating_add(waits.ticks);
            if waits.worst.map(|(ticks, _)| ticks) > sum.worst.map(|(ticks, _)| ticks) {
                sum.worst = waits.worst;
            }
            *holders.entry(*holder).or_default() += waits.ticks;
        }
        let (kind, (all, holders)) = kinds.into_iter().max_by_key(|(_, (all, _))| all.ticks)?;
        let known = holders.into_iter().filter_map(|(holder, ticks)| Some((ticks, holder?)));
        let holder = known.max().map(|(_, holder)| holder);
        let much = all.count >= FEW && view.share(all.ticks) >= MUCH;
        (all.count >= MANY || much).then_some(Waits { kind, all, holder })
    }

    /// The lock that most of a level's waiting for somebody is for, as the kernel's events say.
    pub(super) fn known_lock(&self, view: &View<'_>, via: &Level, who: GroupId) -> Option<Waits> {
        let (call, _) = via.most_in(|state| state == Frame::Waker(who))?;
        let waits = self.contended(view, via, call)?;
        let waker = |state| state == Frame::Waker(who);
        let waiting = via.ticks(|inside, state| waker(state) && (call.is_none() || inside == call));
        (waits.all.ticks * 2 >= waiting).then_some(waits)
    }

    /// The same of the last wait on the way.
    pub(super) fn last_lock(&self, view: &View<'_>) -> Option<Waits> {
        let via = self.levels.len().checked_sub(2).and_then(|at| self.levels.get(at))?;
        self.known_lock(view, via, self.last().who?)
    }

    /// The spinlock that the last one on the way is on a CPU for, most of that time.
    pub(super) fn spins(&self, view: &View<'_>) -> Option<Waits> {
        let runs = self.last().ticks(|_, state| state == Frame::Runs);
        let waits = self.contended(view, self.last(), None)?;
        let spins = matches!(waits.kind, Lock::Spinlock | Lock::Rwlock);
        (spins && waits.all.ticks * 2 >= runs).then_some(waits)
    }

    /// A link for what the events say.
    pub(super) fn lock_link(&self, view: &View<'_>) -> Option<Link> {
        let (waits, level) = match self.last_lock(view) {
            Some(waits) => (waits, self.levels.iter().rev().nth(1)?),
            None => (self.spins(view)?, self.last()),
        };
        let who = level.who.or(self.subject_group(view))?;
        let by = waits.holder.map(|holder| format!(", until {} lets go", view.threads(holder)));
        let claim = format!(
            "contention_begin to contention_end: {} waits {} times for {} of the kernel, {} in all{}",
            view.threads(who),
            grouped(&waits.all.count.to_string()),
            a(waits.kind),
            view.time(waits.all.ticks as f64),
            by.unwrap_or_default()
        );
        let figures = (waits.all.count, waits.all.ticks);
        Some(view.link(self.file(view), claim, figures, &[], &[waits.all.worst]))
    }
}
