//! Whose time is explained: a guest's requests, and the threads that these do not lead to.

use super::loops::loops;
use crate::detect::levels::level_of;
use crate::detect::segments::{Doing, PathSegment};
use crate::detect::View;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use std::collections::BTreeMap;

/// A thread's part of the traced time from which it is looked at.
const LEAST_LIFE: f64 = 0.05;
/// Requests from which the trace is about the guest that makes them.
const LEAST_COUNT: u64 = 20;
/// Part of a thread's time in which it does something else than those of its name, from which it
/// is a subject of its own; and most of these.
const OTHERWISE: f64 = 0.35;
const MOST_ALONE: usize = 12;
/// A part of what the most active thread of a name does, from which another does not idle.
const ACTIVE: u64 = 20;

/// Share of the traced time that what the recording's maker started does something, from which the
/// trace is about that; and naps from which that is a program's way.
const ASKED: f64 = 0.03;
const NAPS: (u64, f64) = (20, 0.3);

/// All subjects, in a fixed order.
pub fn subjects(view: &View<'_>) -> Vec<Frame> {
    let requests = requests(view);
    let of_guest = requests.iter().map(|(_, count)| count).sum::<u64>() >= LEAST_COUNT;
    let vcpus = view.evidence.vcpu_groups();
    let mut all: Vec<Frame> = requests.into_iter().map(|(frame, _)| frame).collect();
    all.extend(threads(view).into_iter().filter(|frame| {
        let Some(group) = frame.life() else { return false };
        // Where a guest asks, what its requests and vCPUs do not lead to runs beside it.
        let own = view.own().is_some_and(|own| own.contains(&group));
        let of_others = !of_guest || view.comm().is_some() || own || vcpus.contains(&group);
        view.is_subject(group) && of_others
    }));
    all
}

/// Requests of a guest that is asked about, with how many there are.
fn requests(view: &View<'_>) -> Vec<(Frame, u64)> {
    let vcpus = view.evidence.vcpu_groups();
    let asked = !view.is_about_one() || vcpus.iter().any(|vcpu| view.is_subject(*vcpu));
    let all = view.requests().into_iter().filter(|_| asked);
    all.map(|(key, subject)| (Frame::Request(key), subject.count)).collect()
}

/// Threads by name; those that live differently one by one.
fn threads(view: &View<'_>) -> Vec<Frame> {
    let mut single: BTreeMap<GroupId, Vec<(u64, Frame)>> = BTreeMap::new();
    let mut all = Vec::new();
    for (_, node) in view.tree().roots() {
        let Some(group) = node.frame.life() else { continue };
        let named = view.is_named(group);
        let shows = view.share(node.ticks) >= LEAST_LIFE && !view.is_aside(group);
        match node.frame {
            _ if !shows && !named => {}
            Frame::Life(_) => all.push(node.frame),
            _ => single.entry(group).or_default().push((node.ticks, node.frame)),
        }
    }
    for (group, mut threads) in single {
        if threads.len() < 2 || !differ(view, group, &threads) {
            continue;
        }
        let most = threads.iter().map(|(_, frame)| active(view, *frame)).max().unwrap_or(0);
        threads.retain(|(_, frame)| active(view, *frame) * ACTIVE >= most);
        threads.sort_by_key(|(ticks, frame)| (std::cmp::Reverse(*ticks), *frame));
        all.retain(|frame| *frame != Frame::Life(group));
        all.extend(threads.into_iter().take(MOST_ALONE).map(|(_, frame)| frame));
    }
    all
}

/// True if what the recording's maker started does something, or naps over and over, and others do not
/// work in a loop while it does not: then the trace is about that.
pub fn is_asked(view: &View<'_>) -> bool {
    let own = &view.evidence.own;
    let levels: Vec<PathSegment> =
        own.iter().map(|group| first(view, Frame::Life(*group))).collect();
    let busy = levels.iter().map(|level| {
        let unknown = level.ticks(|_, state| state == Frame::Unknown);
        let idle = unknown.saturating_add(level.pauses(view));
        level.all.ticks.saturating_sub(idle)
    });
    let naps = |level: &PathSegment| {
        let naps = level.parts.iter().filter(|((_, state), _)| *state == Frame::Timer);
        let (count, ticks) = naps.fold((0, 0_u64), |(count, ticks), (_, sum)| {
            (count + sum.count, ticks.saturating_add(sum.ticks))
        });
        count >= NAPS.0 && view.share(ticks) >= NAPS.1
    };
    let does = view.share(crate::sum(busy)) >= ASKED || levels.iter().any(naps);
    let round = |group: &GroupId| loops(view, Frame::Life(*group));
    let groups = &view.evidence.groups;
    let others = || groups.all().filter(|group| !own.contains(group)).any(|group| round(&group));
    // Who is asked over and over by what it has started is no recorder.
    let asked = |group: &GroupId| {
        let maker = view.evidence.maker_now(*group).filter(|maker| !own.contains(maker));
        let wakers = first(view, Frame::Life(*group)).wakers();
        wakers.iter().any(|(who, sum)| Some(*who) == maker && sum.count >= LEAST_COUNT)
    };
    does && !own.iter().any(asked) && (own.iter().any(round) || !others())
}

fn first(view: &View<'_>, frame: Frame) -> PathSegment {
    level_of(view, frame).unwrap_or_default()
}

/// How often a thread has begun to do something else.
fn active(view: &View<'_>, frame: Frame) -> u64 {
    first(view, frame).parts.values().map(|sum| sum.count).sum()
}

/// One of them does something else for much of its time than those of its name do together.
fn differ(view: &View<'_>, group: GroupId, threads: &[(u64, Frame)]) -> bool {
    let shares = |frame: Frame| -> BTreeMap<Doing, f64> {
        let level = first(view, frame);
        let all = level.all.ticks.max(1) as f64;
        level.parts.iter().map(|(doing, sum)| (*doing, sum.ticks as f64 / all)).collect()
    };
    let together = shares(Frame::Life(group));
    threads.iter().any(|(_, frame)| {
        let part = |doing| together.get(doing).copied().unwrap_or(0.0);
        let own = shares(*frame);
        own.iter().map(|(doing, share)| (share - part(doing)).max(0.0)).sum::<f64>() >= OTHERWISE
    })
}

/// With whom threads of a name wait for each other most, how much of their time (0 to 1), and how often.
pub fn partner(view: &View<'_>, own: GroupId) -> Option<(GroupId, f64, u64)> {
    let level = first(view, Frame::Life(own));
    let share = |level: &PathSegment, of: GroupId| {
        let ticks = level.ticks(|_, state| state == Frame::Waker(of));
        let life = level.ticks(|_, state| state != Frame::Unknown).max(1);
        ticks as f64 / life as f64
    };
    let many = view.evidence.groups.get(own).is_some_and(|group| group.many);
    let wakers = level.wakers().into_iter().take(4);
    let asks = |other: GroupId, count: u64| view.evidence.asked(own, other) * 4 >= count;
    let often = wakers.filter(|(other, sum)| {
        (*other != own || many) && sum.count >= 10 && asks(*other, sum.count)
    });
    let all = often.map(|(other, sum)| {
        let back = share(&first(view, Frame::Life(other)), own);
        (other, (share(&level, other) + back).min(1.0), sum.count)
    });
    all.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
}
