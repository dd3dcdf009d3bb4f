//! The way down a tree of time: from a subject to whom it waits for, to whom that one waits
//! for, as long as most of the time goes that way.

use super::segments::{NoCpu, PathSegment};
use super::View;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;

/// The way goes on to another thread that has this share of the level's time.
const GOES_ON: f64 = 0.4;
/// And this share of the subject's.
const KEEPS: f64 = 0.2;
/// Most levels.
const MOST: usize = 9;

/// Where a path goes on from its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// To whom the root waits for most, if for somebody.
    Most,
    /// To these, whom it waits for as well.
    At(GroupId),
    /// To nobody: what it does itself.
    Alone,
    /// The same but for that call, or what it does outside of any.
    Besides(Option<Frame>),
}

/// The levels from a root on.
pub fn levels(view: &View<'_>, first: Frame, start: Start) -> Vec<PathSegment> {
    let Some(root) = view.tree().root_of(first) else { return Vec::new() };
    let mut nodes = vec![root];
    let mut who = None;
    let mut path: Vec<GroupId> = match first.life() {
        Some(group) => vec![group],
        None => view.evidence.vcpu_groups().into_iter().collect(),
    };
    let mut all: Vec<PathSegment> = Vec::new();
    let mut waited = 0;
    let mut whole = 0;
    while all.len() < MOST {
        let own = who.or(path.first().copied());
        let (mut level, wakers) = known(view, &nodes, (who, own), &path);
        level.vcpu = own.is_some_and(|own| view.is_vcpu(own));
        if waited > level.all.ticks && level.all.ticks > 0 {
            level.scale(waited as f64 / level.all.ticks as f64);
        }
        level.assume();
        level.calls_only(view);
        level.judge(view, own, &path);
        // Who has its CPU is one that it waits for.
        let beside = matches!(level.no_cpu, NoCpu::Path(_));
        let others = |state| matches!(state, Frame::Waker(_)) || beside && state == Frame::NoCpu;
        match start {
            Start::Alone if all.is_empty() => level.without(|_, state| others(state)),
            Start::Besides(of) if all.is_empty() => {
                level.without(|call, state| others(state) || call == of);
            }
            _ => {}
        }
        // What the subject sleeps between two pieces of work is no part of either.
        let pauses = if all.is_empty() && first.life().is_some() { level.pauses(view) } else { 0 };
        let total = level.all.ticks.saturating_sub(level.noise()).saturating_sub(pauses);
        whole = if all.is_empty() { total } else { whole };
        let next = match start {
            Start::At(group) if all.is_empty() => {
                level.waited_for(view).into_iter().find(|(who, _)| who.first() == Some(&group))
            }
            _ => level.next(view),
        };
        let assumes = level.assumed.ticks > 0;
        all.push(level);
        let Some((who_next, sum)) = next else { break };
        let Some(&group) = who_next.first() else { break };
        let share = sum.ticks as f64 / total.max(1) as f64;
        match start {
            Start::At(_) if all.len() == 1 => whole = sum.ticks,
            _ if share < GOES_ON || (sum.ticks as f64) < KEEPS * whole as f64 => break,
            _ => {}
        }
        nodes =
            wakers.into_iter().filter(|(g, _)| who_next.contains(g)).map(|(_, at)| at).collect();
        who = Some(group);
        path.push(group);
        waited = if assumes { sum.ticks } else { 0 };
    }
    all
}

/// The first level of a root.
pub fn level_of(view: &View<'_>, root: Frame) -> Option<PathSegment> {
    levels(view, root, Start::Most).into_iter().next()
}

/// One level, and the nodes of whom it waits for. What those did who were waited for long is no
/// longer kept of that time: then it is what they do with their whole lives.
fn known(
    view: &View<'_>,
    nodes: &[u32],
    (who, group): (Option<GroupId>, Option<GroupId>),
    path: &[GroupId],
) -> (PathSegment, Vec<(GroupId, u32)>) {
    let (own, wakers) = level(view, nodes, who, group);
    let unknown = |level: &PathSegment| level.ticks(|_, state| state == Frame::Unknown);
    let life = who.and_then(|who| view.tree().root_of(Frame::Life(who)));
    let Some(life) = life.filter(|_| unknown(&own) * 2 > own.all.ticks) else {
        return (own, wakers);
    };
    let (mut whole, mut wakers_of_life) = level(view, &[life], who, group);
    // That it waits for those who wait for it is another time.
    whole.without(|_, state| matches!(state, Frame::Waker(group) if path.contains(&group)));
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

/// One level, and the nodes of whom it waits for. A wait for another of the same name is what that one
/// did meanwhile: a lock that goes from one to the next is waited for by all of them.
fn level(
    view: &View<'_>,
    nodes: &[u32],
    who: Option<GroupId>,
    own: Option<GroupId>,
) -> (PathSegment, Vec<(GroupId, u32)>) {
    let tree = view.tree();
    let mut level = PathSegment { who, ..PathSegment::default() };
    let mut wakers = Vec::new();
    for &at in nodes {
        let Some(node) = tree.node(at) else { continue };
        level.all.add(node.ticks, node.count, node.worst);
        level.squares += node.squares;
    }
    let mut open: Vec<u32> = nodes.to_vec();
    while let Some(at) = open.pop() {
        for (at, child) in tree.within(at) {
            let (call, states) = match child.frame {
                Frame::Call(_) | Frame::Work(_) => (Some(child.frame), tree.within(at)),
                _ => (None, vec![(at, child)]),
            };
            let count = if call.is_some() { child.count } else { 0 };
            let (mut ticks, worst) = (child.ticks, child.worst);
            for (at, state) in states {
                if let Frame::Waker(group) = state.frame {
                    if own == Some(group) {
                        let waits = level.own_waits.entry(call).or_default();
                        waits.add(state.ticks, state.count, state.worst);
                        open.push(at);
                        let rest = tree.own(at);
                        ticks = ticks.saturating_sub(state.ticks).saturating_add(rest);
                        if rest > 0 {
                            let sum = level.parts.entry((call, state.frame)).or_default();
                            sum.add(rest, 0, None);
                        }
                        continue;
                    }
                    wakers.push((group, at));
                    let back = level.back.entry(group).or_default();
                    *back = back.saturating_add(tree.own(at));
                }
                let sum = level.parts.entry((call, state.frame)).or_default();
                sum.add(state.ticks, state.count, state.worst);
                if state.frame == Frame::NoCpu {
                    preempters(view, at, &mut level);
                }
            }
            level.calls.entry(call).or_default().add(ticks, count, worst);
        }
    }
    (level, wakers)
}

fn preempters(view: &View<'_>, at: u32, level: &mut PathSegment) {
    let tree = view.tree();
    for (at, rival) in tree.within(at) {
        if rival.frame == Frame::Idle {
            level.idle.add(rival.ticks, rival.count, rival.worst);
        }
        let group = match rival.frame {
            Frame::Has(group) => group,
            Frame::Preempts(group) => {
                let sum = level.preempted.entry(group).or_default();
                sum.add(rival.ticks, rival.count, rival.worst);
                group
            }
            _ => continue,
        };
        let mut left = rival.ticks;
        for (_, doing) in tree.within(at) {
            let sum = level.preempters.entry((group, Some(doing.frame))).or_default();
            sum.add(doing.ticks, doing.count, doing.worst);
            left = left.saturating_sub(doing.ticks);
        }
        if left > 0 {
            level.preempters.entry((group, None)).or_default().add(left, rival.count, rival.worst);
        }
    }
}
