//! A thread on the way down a tree of time: what it does, whom it waits for, who has its CPU.

use super::throttled::by_quota;
use super::waits::waits;
use super::View;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::moment::{Place, Sym};
use std::collections::BTreeMap;

/// Ready beside an idle CPU for so long, s, is no wake-up's delay.
const THROTTLED_S: f64 = 2e-3;
/// Sleeps that somebody is known to have ended, from which others in the call are like those.
const LEAST_KNOWN: u64 = 50;
/// Share of the time without a CPU that one other has it, from which it is the cause.
const ONE: f64 = 0.65;
/// Calls that a vCPU's guest runs and idles in; none where they are not recorded.
pub const GUEST: [&str; 2] = ["", "KVM_RUN"];
/// Stretches in user space, and how long, s, each is at most, from which a thread does nothing but calls.
const BETWEEN: (u64, f64) = (500, 4e-6);
const ROW: u64 = 8; // Calls from one sleep to the next.

/// What time at a level went into: the call or work function, and the state in it.
pub type Doing = (Option<Frame>, Frame);

/// Time, how often, and where the longest stretch is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum {
    /// Ticks.
    pub ticks: u64,
    /// Stretches.
    pub count: u64,
    /// The longest.
    pub worst: Option<(u64, Place)>,
}

impl Sum {
    pub(super) fn add(&mut self, ticks: u64, count: u64, worst: Option<(u64, Place)>) {
        self.ticks = self.ticks.saturating_add(ticks);
        self.count += count;
        if worst.map(|(ticks, _)| ticks) > self.worst.map(|(ticks, _)| ticks) {
            self.worst = worst;
        }
    }
}

/// What the time without a CPU is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NoCpu {
    /// The host's other load has it, now this and now that.
    #[default]
    HostLoad,
    /// A quota holds it back.
    Quota,
    /// One has it by a higher priority.
    Preempted(GroupId),
    /// One has it, as often as the subject, and belongs to what is traced or never leaves.
    Shared(GroupId),
    /// Those have it that it waits for, or that wait for it.
    Path(GroupId),
}

/// One thread, or threads of one name, on the way.
#[derive(Debug, Clone, Default)]
pub struct PathSegment {
    /// Who; none for the subject.
    pub who: Option<GroupId>,
    /// A vCPU's thread.
    pub vcpu: bool,
    /// Time in all.
    pub all: Sum,
    /// Sum of the squares of its stretches' ticks.
    pub squares: f64,
    /// By what was done.
    pub parts: BTreeMap<Doing, Sum>,
    /// By call or work function.
    pub calls: BTreeMap<Option<Frame>, Sum>,
    /// Sleeps that nobody is known to have ended, taken to be for who ends all others in the call.
    pub assumed: Sum,
    /// What the time without a CPU is.
    pub no_cpu: NoCpu,
    /// Waits for others of the same name, by call: what those did meanwhile is in `parts`.
    pub own_waits: BTreeMap<Option<Frame>, Sum>,
    /// Waits for those who wait for it meanwhile: the way does not go back to them.
    pub back: BTreeMap<GroupId, u64>,
    /// While without a CPU: the CPU had nothing to do.
    pub idle: Sum,
    /// While without a CPU: who had it by a higher priority.
    pub preempted: BTreeMap<GroupId, Sum>,
    /// While without a CPU: who had it, doing what.
    pub preempters: BTreeMap<(GroupId, Option<Frame>), Sum>,
}

impl PathSegment {
    /// Leaves out what is done in some calls and states.
    pub(super) fn without(&mut self, unwanted: impl Fn(Option<Frame>, Frame) -> bool) {
        let (calls, all) = (&mut self.calls, &mut self.all);
        self.parts.retain(|(call, state), sum| {
            let out = unwanted(*call, *state);
            if out {
                all.ticks = all.ticks.saturating_sub(sum.ticks);
                if let Some(of_call) = calls.get_mut(call) {
                    of_call.ticks = of_call.ticks.saturating_sub(sum.ticks);
                }
            }
            !out
        });
    }

    /// Where one is known to end nearly all sleeps in a call, those that nobody is known to have
    /// ended are like those.
    pub(super) fn assume(&mut self) {
        let asleep: Vec<(Option<Frame>, Sum)> = self
            .parts
            .iter()
            .filter(|((call, state), sum)| {
                call.is_some() && *state == Frame::Asleep && sum.ticks * 4 >= self.all.ticks
            })
            .map(|((call, _), sum)| (*call, *sum))
            .collect();
        for (call, unknown) in asleep {
            let ends = |state: Frame| {
                matches!(state, Frame::Waker(_) | Frame::Timer | Frame::Irq(_) | Frame::Interrupt)
            };
            let known = self.parts.iter().filter(|((c, s), _)| *c == call && ends(*s));
            let all: u64 = known.clone().map(|(_, sum)| sum.count).sum();
            let most = known.max_by_key(|(_, sum)| sum.count);
            let Some((&(call, waker @ Frame::Waker(_)), sum)) = most else { continue };
            if sum.count < LEAST_KNOWN || sum.count * 10 < all * 9 {
                continue;
            }
            self.parts.remove(&(call, Frame::Asleep));
            self.parts.entry((call, waker)).or_default().add(unknown.ticks, 0, unknown.worst);
            self.assumed.add(unknown.ticks, unknown.count, unknown.worst);
        }
    }

    /// A thread that makes one call after another and next to nothing in between: the time between them is
    /// that of the call that it makes most.
    pub(super) fn calls_only(&mut self, view: &View<'_>) {
        let Some(between) = self.parts.get(&(None, Frame::Runs)).copied() else { return };
        let each = view.seconds(between.ticks / between.count.max(1));
        let brief = between.count >= BETWEEN.0 && each.is_some_and(|each| each <= BETWEEN.1);
        let on_cpu = |state| matches!(state, Frame::Runs | Frame::NoCpu | Frame::Guest);
        let sleeps = self.parts.iter().filter(|((_, state), _)| !on_cpu(*state));
        let sleeps: u64 = sleeps.map(|(_, sum)| sum.count).sum();
        let calls = self.calls.iter().filter(|(call, _)| matches!(call, Some(Frame::Call(_))));
        let all: u64 = calls.clone().map(|(_, sum)| sum.count).sum();
        let Some((&call, sum)) = calls.max_by_key(|(_, sum)| sum.count) else { return };
        let in_rows = sum.count >= ROW * sleeps && sum.count * 4 >= all && all * 2 >= between.count;
        if !brief || !in_rows || view.evidence.only_calls() {
            return;
        }
        self.parts.remove(&(None, Frame::Runs));
        self.parts.entry((call, Frame::Runs)).or_default().add(between.ticks, 0, None);
        self.calls.entry(call).or_default().add(between.ticks, 0, None);
        if let Some(outside) = self.calls.get_mut(&None) {
            outside.ticks = outside.ticks.saturating_sub(between.ticks);
        }
    }

    /// Takes a part of all of it, or several times as much.
    pub(super) fn scale(&mut self, part: f64) {
        let scale = |sum: &mut Sum| sum.ticks = (sum.ticks as f64 * part) as u64;
        scale(&mut self.all);
        scale(&mut self.idle);
        self.parts.values_mut().chain(self.calls.values_mut()).for_each(scale);
        self.preempters.values_mut().for_each(scale);
        self.squares *= part * part;
    }

    /// Ticks of the states that `want` chooses.
    pub fn ticks(&self, want: impl Fn(Option<Frame>, Frame) -> bool) -> u64 {
        crate::sum(self.parts.iter().filter(|((c, s), _)| want(*c, *s)).map(|(_, sum)| sum.ticks))
    }

    /// The call or work function with most of the time that `want` chooses.
    pub fn most_in(&self, want: impl Fn(Frame) -> bool) -> Option<(Option<Frame>, Sum)> {
        let mut calls: BTreeMap<Option<Frame>, Sum> = BTreeMap::new();
        for ((call, _), sum) in self.parts.iter().filter(|((_, state), _)| want(*state)) {
            calls.entry(*call).or_default().add(sum.ticks, sum.count, sum.worst);
        }
        calls.into_iter().max_by_key(|(_, sum)| sum.ticks)
    }

    /// Largest of a map's sums first.
    pub fn sorted<K: Copy + Ord>(map: &BTreeMap<K, Sum>) -> Vec<(K, Sum)> {
        let mut all: Vec<(K, Sum)> = map.iter().map(|(key, sum)| (*key, *sum)).collect();
        all.sort_by_key(|(key, sum)| (std::cmp::Reverse(sum.ticks), *key));
        all
    }

    /// Its system calls, the one with most time first.
    pub fn system_calls(&self) -> impl Iterator<Item = (Sym, Sum)> {
        PathSegment::sorted(&self.calls).into_iter().filter_map(|(call, sum)| match call {
            Some(Frame::Call(call)) => Some((call, sum)),
            _ => None,
        })
    }

    /// Time that says nothing of the way: not recorded, or without a CPU that now this has and
    /// now that, which is the host's business.
    pub fn noise(&self) -> u64 {
        let unknown = self.ticks(|_, state| state == Frame::Unknown);
        unknown.saturating_add(self.load())
    }

    /// Time without a CPU because of the host's other load.
    pub fn load(&self) -> u64 {
        self.ticks(|_, state| self.is_crowd(state))
    }

    /// True for that state.
    pub fn is_crowd(&self, state: Frame) -> bool {
        state == Frame::NoCpu && self.no_cpu == NoCpu::HostLoad
    }

    /// Ticks without a CPU by who had it.
    pub fn had_by(&self) -> BTreeMap<GroupId, u64> {
        let mut by: BTreeMap<GroupId, u64> = BTreeMap::new();
        for ((group, _), sum) in &self.preempters {
            let all = by.entry(*group).or_default();
            *all = all.saturating_add(sum.ticks);
        }
        by
    }

    /// Judges the time without a CPU: a busy host is no cause, one that goes first is.
    pub(super) fn judge(&mut self, view: &View<'_>, own: Option<GroupId>, path: &[GroupId]) {
        let all = self.ticks(|_, state| state == Frame::NoCpu);
        if all == 0 || view.evidence.ends.any_gaps() {
            return;
        }
        let by = self.had_by();
        let first = self.preempted.iter().map(|(group, sum)| (sum.ticks, *group)).max();
        // Who has its CPU by a higher priority may come at a period as well.
        let first = first.filter(|(ticks, _)| *ticks * 2 >= all);
        let quota = first.is_none() && own.is_some_and(|own| by_quota(view, own).is_some());
        if self.idles(view) || quota {
            self.no_cpu = NoCpu::Quota;
            return;
        }
        let Some((ticks, rival)) = by.iter().map(|(group, ticks)| (*ticks, *group)).max() else {
            return;
        };
        if Some(rival) == own && ticks as f64 >= ONE * all as f64 {
            self.no_cpu = NoCpu::Shared(rival);
            return;
        }
        let waited = |group: GroupId| {
            self.wakers().iter().any(|(waker, sum)| *waker == group && sum.ticks * 10 >= all)
        };
        let near = |group: GroupId| Some(group) == own || path.contains(&group) || waited(group);
        if near(rival) && ticks * 2 >= all {
            self.no_cpu = NoCpu::Path(rival);
        } else if let Some((_, group)) = first {
            self.no_cpu = NoCpu::Preempted(group);
        } else if ticks as f64 >= ONE * all as f64
            && view.belongs(own, rival, all * 2 >= self.all.ticks)
        {
            self.no_cpu = NoCpu::Shared(rival);
        }
    }

    /// Ticks asleep of its own accord: until a timer fires, or nobody knows what, in a call that waits
    /// by design. A vCPU idles in its guest, and not until a time-out of its own.
    pub fn pauses(&self, view: &View<'_>) -> u64 {
        self.ticks(|call, state| {
            let name = call.map_or("", |call| view.frame_name(call));
            let idles = !self.vcpu || GUEST.contains(&name);
            (name.is_empty() || waits(name))
                && match state {
                    Frame::Timer => idles,
                    state => matches!(state, Frame::Asleep | Frame::Interrupt),
                }
        })
    }

    /// Whom it waits for, and who of these has its CPU meanwhile, longest first.
    pub(super) fn next(&self, view: &View<'_>) -> Option<(Vec<GroupId>, Sum)> {
        let had = match self.no_cpu {
            NoCpu::Path(_) => self.had_by(),
            _ => BTreeMap::new(),
        };
        let mut all = self.waited_for(view);
        for (who, sum) in &mut all {
            let of = |map: &BTreeMap<GroupId, u64>| {
                crate::sum(who.iter().filter_map(|group| map.get(group).copied()))
            };
            sum.ticks = sum.ticks.saturating_sub(of(&self.back)).saturating_add(of(&had));
        }
        all.into_iter().max_by_key(|(who, sum)| (sum.ticks, std::cmp::Reverse(who.clone())))
    }

    /// Whom it waits for, longest first: processes that come and go are one, called as the first of them.
    pub fn waited_for(&self, view: &View<'_>) -> Vec<(Vec<GroupId>, Sum)> {
        let goes = |group: &GroupId| view.evidence.groups.comes_and_goes(*group);
        let (children, others): (Vec<_>, Vec<_>) =
            self.wakers().into_iter().partition(|(group, _)| goes(group));
        let mut all: Vec<(Vec<GroupId>, Sum)> =
            others.into_iter().map(|(group, sum)| (vec![group], sum)).collect();
        let mut together = Sum::default();
        children.iter().for_each(|(_, sum)| together.add(sum.ticks, sum.count, sum.worst));
        if !children.is_empty() {
            all.push((children.into_iter().map(|(group, _)| group).collect(), together));
        }
        all
    }

    /// True if it is ready for milliseconds while its CPU has nothing to do: it may not run.
    pub fn idles(&self, view: &View<'_>) -> bool {
        let no_cpu = self.ticks(|_, state| state == Frame::NoCpu);
        let each = view.seconds(self.idle.ticks / self.idle.count.max(1));
        self.idle.ticks * 2 >= no_cpu && each.is_some_and(|each| each >= THROTTLED_S)
    }

    /// Who is waited for, longest first.
    pub fn wakers(&self) -> Vec<(GroupId, Sum)> {
        let mut wakers: BTreeMap<GroupId, Sum> = BTreeMap::new();
        for ((_, state), sum) in &self.parts {
            if let Frame::Waker(group) = state {
                wakers.entry(*group).or_default().add(sum.ticks, sum.count, sum.worst);
            }
        }
        PathSegment::sorted(&wakers)
    }
}
