//! The way down a tree of time: from a subject to whom it waits for, to whom that one waits
//! for, as long as most of the time goes that way.

use super::View;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::{Frame, Tree};
use crate::moment::Place;
use std::collections::BTreeMap;

/// The way goes on to another thread that has this share of the level's time.
const GOES_ON: f64 = 0.4;
/// And this share of the subject's.
const KEEPS: f64 = 0.2;
/// Ready beside an idle CPU for so long, s, is no wake-up's delay.
const THROTTLED_S: f64 = 2e-3;
/// Sleeps that somebody is known to have ended, from which others in the call are like those.
const LEAST_KNOWN: u64 = 50;
/// Most levels.
const MOST: usize = 9;

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
    fn add(&mut self, ticks: u64, count: u64, worst: Option<(u64, Place)>) {
        self.ticks = self.ticks.saturating_add(ticks);
        self.count += count;
        if worst.map(|(ticks, _)| ticks) > self.worst.map(|(ticks, _)| ticks) {
            self.worst = worst;
        }
    }
}

/// One thread, or threads of one name, on the way.
#[derive(Debug, Clone, Default)]
pub struct Level {
    /// Who; none for the subject.
    pub who: Option<GroupId>,
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
    /// While without a CPU: the CPU had nothing to do.
    pub idle: Sum,
    /// While without a CPU: who had it, doing what.
    pub rivals: BTreeMap<(GroupId, Option<Frame>), Sum>,
}

impl Level {
    /// Leaves states out.
    fn without(&mut self, unwanted: impl Fn(Frame) -> bool) {
        let (calls, all) = (&mut self.calls, &mut self.all);
        self.parts.retain(|(call, state), sum| {
            let out = unwanted(*state);
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
    fn assume(&mut self) {
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

    /// Takes a part of all of it, or several times as much.
    fn scale(&mut self, part: f64) {
        let scale = |sum: &mut Sum| sum.ticks = (sum.ticks as f64 * part) as u64;
        scale(&mut self.all);
        scale(&mut self.idle);
        self.parts.values_mut().chain(self.calls.values_mut()).for_each(scale);
        self.rivals.values_mut().for_each(scale);
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

    /// Time that says nothing of the way: not recorded, or without a CPU that now this has and
    /// now that, which is the host's business.
    pub fn noise(&self) -> u64 {
        let no_cpu = self.ticks(|_, state| state == Frame::NoCpu);
        let mut by: BTreeMap<GroupId, u64> = BTreeMap::new();
        for ((group, _), sum) in &self.rivals {
            *by.entry(*group).or_default() += sum.ticks;
        }
        let one = by.values().any(|ticks| *ticks * 5 >= no_cpu * 4);
        let unknown = self.ticks(|_, state| state == Frame::Unknown);
        let idle = self.idle.ticks * 2 >= no_cpu;
        unknown.saturating_add(if one || idle { 0 } else { no_cpu })
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
        Level::sorted(&wakers)
    }
}

/// The levels from a root on.
pub fn levels(view: &View<'_>, first: Frame) -> Vec<Level> {
    let Some(root) = view.tree().root_of(first) else { return Vec::new() };
    let mut nodes = vec![root];
    let mut who = None;
    let mut path: Vec<GroupId> = match first.life() {
        Some(group) => vec![group],
        None => view.evidence.vcpu_groups().into_iter().collect(),
    };
    let mut all: Vec<Level> = Vec::new();
    let mut waited = 0;
    while all.len() < MOST {
        let (mut level, wakers) = known(view, &nodes, who, &path);
        if waited > level.all.ticks && level.all.ticks > 0 {
            level.scale(waited as f64 / level.all.ticks as f64);
        }
        level.assume();
        let total = level.all.ticks.saturating_sub(level.noise());
        let whole = all.first().map_or(total, |f| f.all.ticks.saturating_sub(f.noise()));
        let next = level.wakers().first().copied();
        let assumes = level.assumed.ticks > 0;
        all.push(level);
        let Some((group, sum)) = next else { break };
        let share = sum.ticks as f64 / total.max(1) as f64;
        if share < GOES_ON || (sum.ticks as f64) < KEEPS * whole as f64 {
            break;
        }
        nodes = wakers.into_iter().filter(|(g, _)| *g == group).map(|(_, at)| at).collect();
        who = Some(group);
        path.push(group);
        waited = if assumes { sum.ticks } else { 0 };
    }
    all
}

/// While anybody on the way from a root had no CPU: who had it, and the ticks of all of that.
pub fn hogs(view: &View<'_>, root: Frame) -> (BTreeMap<GroupId, u64>, u64) {
    let tree = view.tree();
    tree.root_of(root).map(|root| hogs_in(tree, root)).unwrap_or_default()
}

/// The same of a tree.
pub fn hogs_in(tree: &Tree, root: u32) -> (BTreeMap<GroupId, u64>, u64) {
    let (mut by, mut all) = (BTreeMap::new(), 0_u64);
    let mut open = vec![root];
    while let Some(at) = open.pop() {
        for (at, node) in tree.within(at) {
            match node.frame {
                Frame::NoCpu => all = all.saturating_add(node.ticks),
                Frame::Has(group) => {
                    let sum: &mut u64 = by.entry(group).or_default();
                    *sum = sum.saturating_add(node.ticks);
                    continue;
                }
                _ => {}
            }
            open.push(at);
        }
    }
    (by, all)
}

/// One level, and the nodes of whom it waits for. What those did who were waited for long is no
/// longer kept of that time: then it is what they do with their whole lives.
fn known(
    view: &View<'_>,
    nodes: &[u32],
    who: Option<GroupId>,
    path: &[GroupId],
) -> (Level, Vec<(GroupId, u32)>) {
    let (own, wakers) = level(view, nodes, who);
    let unknown = |level: &Level| level.ticks(|_, state| state == Frame::Unknown);
    let life = who.and_then(|who| view.tree().root_of(Frame::Life(who)));
    let Some(life) = life.filter(|_| unknown(&own) * 2 > own.all.ticks) else {
        return (own, wakers);
    };
    let (mut whole, mut wakers_of_life) = level(view, &[life], who);
    // That it waits for those who wait for it is another time.
    whole.without(|state| matches!(state, Frame::Waker(group) if path.contains(&group)));
    wakers_of_life.retain(|(group, _)| !path.contains(group));
    // It was not there for most of that.
    if whole.all.ticks * 2 < own.all.ticks {
        return (own, wakers);
    }
    if whole.all.ticks == 0 || unknown(&whole) * 4 > whole.all.ticks {
        return (own, wakers);
    }
    whole.scale((own.all.ticks as f64 / whole.all.ticks.max(1) as f64).min(1.0));
    (whole, wakers_of_life)
}

/// One level, and the nodes of whom it waits for.
fn level(view: &View<'_>, nodes: &[u32], who: Option<GroupId>) -> (Level, Vec<(GroupId, u32)>) {
    let tree = view.tree();
    let mut level = Level { who, ..Level::default() };
    let mut wakers = Vec::new();
    for &at in nodes {
        let Some(node) = tree.node(at) else { continue };
        level.all.add(node.ticks, node.count, node.worst);
        level.squares += node.squares;
        for (at, child) in tree.within(at) {
            let (call, states) = match child.frame {
                Frame::Call(_) | Frame::Work(_) => (Some(child.frame), tree.within(at)),
                _ => (None, vec![(at, child)]),
            };
            let of_call = level.calls.entry(call).or_default();
            of_call.add(child.ticks, if call.is_some() { child.count } else { 0 }, child.worst);
            for (at, state) in states {
                let sum = level.parts.entry((call, state.frame)).or_default();
                sum.add(state.ticks, state.count, state.worst);
                match state.frame {
                    Frame::Waker(group) => wakers.push((group, at)),
                    Frame::NoCpu => rivals(view, at, &mut level),
                    _ => {}
                }
            }
        }
    }
    (level, wakers)
}

fn rivals(view: &View<'_>, at: u32, level: &mut Level) {
    let tree = view.tree();
    for (at, rival) in tree.within(at) {
        if rival.frame == Frame::Idle {
            level.idle.add(rival.ticks, rival.count, rival.worst);
        }
        let Frame::Has(group) = rival.frame else { continue };
        let mut left = rival.ticks;
        for (_, doing) in tree.within(at) {
            let sum = level.rivals.entry((group, Some(doing.frame))).or_default();
            sum.add(doing.ticks, doing.count, doing.worst);
            left = left.saturating_sub(doing.ticks);
        }
        if left > 0 {
            level.rivals.entry((group, None)).or_default().add(left, rival.count, rival.worst);
        }
    }
}

/// The tree below a root as text: for those who build detectors.
pub fn outline(view: &View<'_>, root: Frame) -> String {
    fn line(view: &View<'_>, at: u32, depth: usize, whole: u64, out: &mut String) {
        let Some(node) = view.tree().node(at) else { return };
        let share = node.ticks as f64 / whole.max(1) as f64;
        if share < 0.02 || depth > 16 {
            return;
        }
        let name = view.frame(node.frame);
        let indent = "  ".repeat(depth);
        out.push_str(&format!("{indent}{name} {:.1} % ×{}\n", share * 100.0, node.count));
        for (at, _) in view.tree().within(at) {
            line(view, at, depth + 1, whole, out);
        }
    }
    let mut out = String::new();
    if let Some(at) = view.tree().root_of(root) {
        let whole = view.tree().node(at).map_or(0, |node| node.ticks);
        line(view, at, 0, whole, &mut out);
    }
    out
}
