//! What stands out in threads' whole lives: of whom a story is told, how severe it is, and which
//! of several that end alike.

use super::super::levels::{levels, Doing};
use super::super::view::LEAST_COUNT;
use super::super::{Candidate, View};
use super::{Story, CLOSED, FEWEST, LEAST_GOES, LEAST_WAITS, MANY_WAITS, ONCE};
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::result::Severity;
use std::collections::BTreeMap;

/// A thread's part of the traced time from which it is looked at.
const LEAST_LIFE: f64 = 0.05;
/// Share of the traced time that what the recording's maker started does something, from which
/// that is what it was made for.
const ASKED: f64 = 0.03;
/// Share of the traced time that somebody waits for one that matters to it.
const LEAST_WAITED: f64 = 0.02;
/// Part of a thread's life that it does something else than those of its name, from which it is told
/// of by itself; and most of a name that are.
const OTHERWISE: f64 = 0.35;
const MOST_ALONE: usize = 12;
/// A part of what the most active of a name does, from which another is no idler.
const ACTIVE: u64 = 20;
/// Most subjects that are told of where none was named.
const MOST: usize = 3;

/// Its maker waits for another that it has made, and nobody waits for this one: it runs beside what
/// was to be recorded.
fn beside_others(view: &View<'_>, own: GroupId) -> bool {
    let Some(maker) = view.evidence.maker(own).filter(|maker| *maker != own) else { return false };
    let tree = view.tree();
    let waited = |by: GroupId| -> (u64, u64, u64) {
        let Some(root) = tree.root_of(Frame::Life(by)) else { return (0, 0, 0) };
        let (mut open, mut found) = (vec![root], (0, 0, 0));
        found.0 = tree.node(root).map_or(0, |node| node.ticks);
        while let Some(at) = open.pop() {
            for (at, node) in tree.within(at) {
                match node.frame {
                    Frame::Waker(who) if who == own => found.1 += node.ticks,
                    Frame::Waker(who) if view.evidence.maker(who) == Some(by) => {
                        found.2 += node.ticks;
                    }
                    _ => open.push(at),
                }
            }
        }
        found
    };
    let (life, _, another) = waited(maker);
    let chosen = view.own().into_iter().flatten().filter(|by| **by != own);
    let for_this = |by: &GroupId| view.share(waited(*by).1) >= LEAST_WAITED;
    another * 2 >= life && !chosen.into_iter().any(for_this)
}

/// True if what the recording's maker started does something: then it is asked about.
pub fn is_asked(view: &View<'_>) -> bool {
    let own = &view.evidence.own;
    let stories = own.iter().filter_map(|group| Story::of(view, Frame::Life(*group)));
    let busy = crate::sum(stories.map(|story| story.busy));
    view.share(busy) >= ASKED || own.iter().any(|group| naps_often(view, *group))
}

/// It sleeps until a timer fires, over and over: who only waits for the recording's end does so
/// once.
fn naps_often(view: &View<'_>, group: GroupId) -> bool {
    let Some(level) = levels(view, Frame::Life(group)).into_iter().next() else { return false };
    let naps = level.parts.iter().filter(|((_, state), _)| *state == Frame::Timer);
    let (count, ticks) = naps.fold((0_u64, 0_u64), |sum, (_, naps)| {
        (sum.0 + naps.count, sum.1.saturating_add(naps.ticks))
    });
    count >= LEAST_GOES && view.share(ticks) >= ONCE
}

/// Whose lives are told of: those of a name, or each of them where they live differently.
fn subjects(view: &View<'_>) -> Vec<Frame> {
    let mut single: BTreeMap<GroupId, Vec<(u64, Frame)>> = BTreeMap::new();
    let mut all = Vec::new();
    for (_, node) in view.tree().roots() {
        match node.frame {
            Frame::Life(_) => all.push(node.frame),
            Frame::Thread(group, _) if !view.evidence.groups.is_kernel(group) => {
                let ticks = view.loud_tree().root_of(node.frame);
                let ticks = ticks.and_then(|at| view.loud_tree().node(at)).map_or(0, |n| n.ticks);
                if view.share(ticks) >= LEAST_LIFE {
                    single.entry(group).or_default().push((ticks, node.frame));
                }
            }
            _ => {}
        }
    }
    for (group, mut threads) in single {
        if threads.len() < 2 || !differ(view, group, &threads) {
            continue;
        }
        // Who does something once where another does it many times idles.
        let most = threads.iter().map(|(_, frame)| active(view, *frame)).max().unwrap_or(0);
        threads.retain(|(_, frame)| active(view, *frame) * ACTIVE >= most);
        threads.sort_by_key(|(ticks, frame)| (std::cmp::Reverse(*ticks), *frame));
        all.retain(|frame| *frame != Frame::Life(group));
        all.extend(threads.into_iter().take(MOST_ALONE).map(|(_, frame)| frame));
    }
    all
}

/// How often it has begun to do something else.
fn active(view: &View<'_>, frame: Frame) -> u64 {
    let level = levels(view, frame).into_iter().next();
    level.map_or(0, |level| level.parts.values().map(|sum| sum.count).sum())
}

/// One of them does something else for much of its life than those of its name do together.
fn differ(view: &View<'_>, group: GroupId, threads: &[(u64, Frame)]) -> bool {
    let shares = |frame: Frame| -> BTreeMap<Doing, f64> {
        let Some(level) = levels(view, frame).into_iter().next() else { return BTreeMap::new() };
        let all = level.all.ticks.max(1) as f64;
        level.parts.iter().map(|(doing, sum)| (*doing, sum.ticks as f64 / all)).collect()
    };
    let together = shares(Frame::Life(group));
    threads.iter().any(|(_, frame)| {
        let own = shares(*frame);
        let part = |all: &BTreeMap<Doing, f64>, doing| all.get(doing).copied().unwrap_or(0.0);
        let more = own.iter().map(|(doing, share)| (share - part(&together, doing)).max(0.0));
        more.sum::<f64>() >= OTHERWISE
    })
}

/// What stands out in the lives of threads, where there are no requests of a guest.
pub fn lives(view: &View<'_>) -> Vec<Candidate> {
    let requests = view.requests();
    let of_guest = requests.iter().any(|(_, subject)| subject.count >= LEAST_COUNT);
    let of_guest = of_guest && view.comm().is_none();
    // What a vCPU waits for in its requests is told of these.
    let of_requests = requests.iter().filter(|_| of_guest);
    let of_requests = of_requests.filter_map(|(key, _)| Story::of(view, Frame::Request(*key)));
    let told_of: Vec<_> = of_requests.map(|story| story.end(view).0).collect();
    let loud = view.as_loud();
    let mut all: Vec<(f64, Story, Candidate)> = Vec::new();
    for frame in subjects(view) {
        let Some(group) = frame.life() else { continue };
        let chosen = view.comm().map(|comm| view.evidence.groups.has_name(group, comm));
        let life = view.loud_tree().root_of(frame).and_then(|at| view.loud_tree().node(at));
        let life = life.map_or(0, |node| node.ticks);
        let shows = match chosen {
            Some(chosen) => chosen,
            None => !view.evidence.groups.is_kernel(group) && view.share(life) >= LEAST_LIFE,
        };
        if !shows {
            continue;
        }
        let Some((story, candidate)) = told(view, loud.as_ref(), frame) else { continue };
        // What a guest waits for, its requests tell; that it has no CPU, a warning.
        let vcpu = view.evidence.vcpu_groups().contains(&group);
        let alone = vcpu && story.levels.len() == 1 && chosen.is_none();
        // Or it runs on the same host: nothing that the guest asks for leads to it.
        let few = story.waits < LEAST_WAITS && story.levels.len() == 1;
        let beside = few || !vcpu && view.own().is_none_or(|own| !own.contains(&group));
        let again = vcpu && told_of.contains(&story.end(view).0);
        if alone || again || of_guest && beside {
            continue;
        }
        let long = candidate.as_ref().is_some_and(|c| view.share(c.saving) >= ONCE);
        let own = view.own().is_some_and(|own| own.contains(&group)) && long;
        let locked = story.last_lock(view).is_some();
        let seldom = story.waits < LEAST_WAITS && story.levels.len() > 1;
        let once = seldom && chosen.is_none() && !locked;
        if once && !own && !story.is_held(view) {
            continue;
        }
        // That one computes until another joins it is what it was made for.
        let next = story.levels.get(1).and_then(|level| level.who);
        let joins = next.is_some_and(|next| story.joins(view, &story.levels[0], next));
        let computes = joins && chosen.is_none() && !view.is_beyond();
        let candidate = candidate.filter(|c| !computes || !c.why.is_thread());
        if let Some(candidate) = candidate {
            let (closed, candidate) = weighed(view, (group, once), &story, candidate);
            // Of findings as severe, that of a request and its answer goes first.
            all.push((closed, story, candidate));
        }
    }
    most_severe(view, all)
}

/// How much of a subject's waiting is for one that waits for it, and what is told of it, as severe
/// as that makes it; `once` says that it waits too seldom to be a pattern.
fn weighed(
    view: &View<'_>,
    (group, once): (GroupId, bool),
    story: &Story,
    mut candidate: Candidate,
) -> (f64, Candidate) {
    let closed = story.closed(view);
    let few = candidate.why.is_no_cpu() && story.waits < MANY_WAITS;
    let kernel = (candidate.why == Why::EveryCpu || candidate.why.is_lock())
        && story.provoked_works(view).is_some();
    if (few || closed < CLOSED && !kernel) && !story.starves(view) {
        candidate.at_most = Some(Severity::Low);
    }
    candidate.foreign = view.is_foreign(group);
    let next = story.levels.get(1).and_then(|level| level.who);
    // Who waits until a thread has ended, or sleeps while nobody waits for it, is not slow.
    let joins = next.is_some_and(|next| story.joins(view, &story.levels[0], next));
    let naps = story.levels.len() == 1 && candidate.why == Why::Timer;
    let idles = view.comm().is_none() && !view.is_beyond() && (joins || naps);
    let helps = view.comm().is_none() && !view.is_beyond() && story.helps(view, group)
        || candidate.why == Why::Timer && story.idles_beside_others(view);
    candidate.at_most = if helps { Some(Severity::Low) } else { candidate.at_most };
    candidate.at_most = if joins && idles { Some(Severity::Low) } else { candidate.at_most };
    candidate.aside = helps
        || idles
        || view.own().is_some() && beside_others(view, group)
        || candidate.why == Why::Faults && story.begins(view)
        || view.own().is_none() && closed < CLOSED
        || once;
    let computes = story.levels.len() == 1 && candidate.why.is_thread();
    if candidate.foreign {
        candidate.at_most = Some(Severity::Low);
    } else if view.own().is_some() && view.is_beyond() && !computes && !once {
        candidate.at_most = candidate.at_most.map(|most| most.max(Severity::Medium));
    }
    (closed, candidate)
}

/// What is told of a subject. Where that is little, that one other program has the CPU, or
/// that many have, if so.
fn told(
    view: &View<'_>,
    loud: Option<&View<'_>>,
    frame: Frame,
) -> Option<(Story, Option<Candidate>)> {
    let told = Story::of(view, frame).map(|story| {
        let candidate = story.candidate(view);
        (story, candidate)
    });
    let candidate = told.as_ref().and_then(|(_, candidate)| candidate.as_ref());
    let little = |c: &Candidate| c.why.is_thread() || c.why == Why::HandOver;
    let Some(loud) = loud.filter(|_| candidate.is_none_or(little)) else { return told };
    let Some(story) = Story::of(loud, frame) else { return told };
    match story.candidate(loud).filter(|c| c.why.is_no_cpu()) {
        Some(without) if story.hog.is_some_and(|(who, _)| !view.is_foreign(who)) => {
            Some((story, Some(without)))
        }
        Some(without) if candidate.is_none() => {
            Some((story, Some(Candidate { of_host: true, ..without })))
        }
        _ => told,
    }
}

fn most_severe(view: &View<'_>, mut all: Vec<(f64, Story, Candidate)>) -> Vec<Candidate> {
    let severity = |c: &Candidate| {
        let severity = Severity::of_share(view.share(c.saving));
        c.at_most.map_or(severity, |most| severity.min(most))
    };
    let order = |closed: f64, c: &Candidate| ((0.2 + closed) * c.saving as f64) as u64;
    all.sort_by_key(|(_, _, c)| c.of_host);
    if all.first().is_some_and(|(_, _, c)| !c.of_host) {
        all.retain(|(_, _, c)| !c.of_host);
    }
    all.sort_by_key(|(closed, story, c)| {
        // Who waits for another tells of both.
        let leads_on = story.levels.len() > 1 || !c.aside;
        std::cmp::Reverse((severity(c), !c.foreign, !c.aside, leads_on, order(*closed, c)))
    });
    victims_first(view, &mut all);
    let mut ends = Vec::new();
    all.retain(|(_, story, _)| {
        let end = story.end(view);
        let fresh = !ends.contains(&end);
        ends.push(end);
        fresh
    });
    all.into_iter().take(MOST).map(|(_, _, candidate)| candidate).collect()
}

/// Who waits for one that waits for another, and does so for as long, is where the way begins: it
/// is told in place of the one that it waits for.
fn victims_first(view: &View<'_>, all: &mut Vec<(f64, Story, Candidate)>) {
    let lengths = |story: &Story| story.levels.len();
    for at in 0..all.len() {
        let (_, story, told) = &all[at];
        let Some(own) = story.root.life() else { continue };
        let begins = all.iter().enumerate().skip(at + 1).filter(|(_, (_, other, candidate))| {
            let through = other.levels.iter().skip(1).any(|level| level.who == Some(own));
            let single = matches!(other.root, Frame::Thread(..));
            let back = story.levels.iter().any(|level| level.who == other.root.life());
            // Who waits for the end of what it has started is no victim.
            let next = other.levels.get(1).and_then(|level| level.who);
            let blind = !view.evidence.seen(other.file(view)).syscalls;
            let maker = next.and_then(|next| view.evidence.maker(next));
            let joins = next.is_some_and(|next| other.joins(view, &other.levels[0], next));
            let made = joins || blind && maker == other.root.life();
            through
                && (!back || single)
                && !(made || other.supervises(view) || other.waits < FEWEST)
                && lengths(other) > lengths(story)
                && candidate.foreign == told.foreign
                && candidate.why.kind() == told.why.kind()
                && (!candidate.aside || told.aside)
                && candidate.saving.saturating_mul(3) >= told.saving
        });
        let first = begins.max_by_key(|(_, (_, other, told))| (lengths(other), told.saving));
        if let Some((from, _)) = first {
            let victim = all.remove(from);
            all.insert(at, victim);
        }
    }
}
