//! Time without a CPU that other programs of the host had: no part of what is slow.
//!
//! A program that hardly gets a CPU waits for one wherever it is. Which call that is, and for
//! whom it waits then, says nothing; what it does when it has one does. So that time is taken
//! out, and told apart. It stays where those had the CPU that have to do with the program, where
//! a quota or nobody at all is to blame, and, if nobody knows what the trace was made for, where
//! one other program has it for most of the time.

use super::levels::hogs_in;
use super::story::HOG;
use super::throttled::by_quota;
use super::View;
use crate::evidence::groups::{is_vcpu_name, GroupId};
use crate::evidence::tree::{Frame, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// A part of a subject's life in which it waits for somebody, from which that is no chance.
const RELATED: f64 = 0.01;

/// What a subject's time without a CPU was.
#[derive(Default)]
struct Root {
    /// Those that have to do with it.
    related: BTreeSet<GroupId>,
    /// Ticks that others had the CPU, and those of them that are left out.
    had: (u64, u64),
}

/// The tree without that time; none if there is none.
pub fn quiet(view: &View<'_>) -> Option<Tree> {
    let (evidence, tree) = (view.evidence, &view.evidence.tree);
    if !evidence.runs_seen() || evidence.ends.any_gaps() {
        return None;
    }
    let asked = view.own().filter(|_| view.comm().is_none());
    let throttled = throttled(view);
    let places = places(tree);
    let mut roots = roots(view, &places, asked.is_some());
    let kernel = |group| evidence.groups.is_kernel(group);
    let foreign = |root: &Root, group: GroupId| {
        let own = asked.unwrap_or(&root.related);
        !own.contains(&group) && !kernel(group)
    };
    let starved = starved(view);
    let mut left_out = BTreeSet::new();
    for (at, node) in tree.nodes() {
        let Frame::Has(group) = node.frame else { continue };
        if starved.contains(&node.parent) {
            continue;
        }
        let Some((at_root, holder)) = places.get(at as usize).copied() else { continue };
        let Some(root) = roots.get_mut(&at_root) else { continue };
        root.had.0 = root.had.0.saturating_add(node.ticks);
        if foreign(root, group) && !holder.is_some_and(|who| throttled.contains(&who)) {
            root.had.1 = root.had.1.saturating_add(node.ticks);
            left_out.insert(at);
        }
    }
    if left_out.is_empty() {
        return None;
    }
    Some(tree.reduced(|at, own| {
        let Some(node) = tree.node(at) else { return own };
        let within = |at: u32| left_out.contains(&at);
        match node.frame {
            _ if within(at) || within(node.parent) => 0,
            // Now this had it and now that: like the rest.
            Frame::NoCpu if starved.contains(&at) => own,
            Frame::NoCpu => {
                let (root, holder) = places.get(at as usize).copied().unwrap_or_default();
                if holder.is_some_and(|who| throttled.contains(&who)) {
                    return own;
                }
                let (had, out) = roots.get(&root).map_or((0, 0), |root| root.had);
                let stays = had.saturating_sub(out) as f64 / had.max(1) as f64;
                (own as f64 * stays) as u64
            }
            _ => own,
        }
    }))
}

/// Where vCPUs have no CPU themselves: that is a guest's own time, whoever has it, if it is more than
/// they have one.
fn starved(view: &View<'_>) -> BTreeSet<u32> {
    let tree = &view.evidence.tree;
    let mut starved = BTreeSet::new();
    for (at, node) in tree.roots() {
        let Some(group) = node.frame.life() else { continue };
        if !is_vcpu_name(view.evidence.groups.name(group)) {
            continue;
        }
        let inside = tree.within(at).into_iter().flat_map(|(at, node)| match node.frame {
            Frame::Call(_) | Frame::Work(_) => tree.within(at),
            _ => vec![(at, node)],
        });
        let (mut nodes, mut without, mut runs) = (Vec::new(), 0_u64, 0_u64);
        for (at, node) in inside {
            match node.frame {
                Frame::NoCpu => {
                    nodes.push(at);
                    without = without.saturating_add(node.ticks);
                }
                Frame::Runs | Frame::Guest => runs = runs.saturating_add(node.ticks),
                _ => {}
            }
        }
        if without > runs {
            starved.extend(nodes);
        }
    }
    starved
}

/// Each node's root, and whose time it is.
fn places(tree: &Tree) -> Vec<(u32, Option<GroupId>)> {
    let mut places: Vec<(u32, Option<GroupId>)> = Vec::new();
    for (at, node) in tree.nodes() {
        let (root, above) = match node.parent {
            parent if parent == at => (at, None),
            parent => places.get(parent as usize).copied().unwrap_or((at, None)),
        };
        let who = match node.frame {
            Frame::Life(group) | Frame::Thread(group, _) | Frame::Waker(group) => Some(group),
            _ => above,
        };
        places.push((root, who));
    }
    places
}

/// The subjects, with those that have to do with each: whom it waits for, and, where it is not
/// known what the trace was made for, the one that has the CPU for most of the time.
fn roots(view: &View<'_>, places: &[(u32, Option<GroupId>)], asked: bool) -> BTreeMap<u32, Root> {
    let tree = &view.evidence.tree;
    let mut all: BTreeMap<u32, Root> = BTreeMap::new();
    for (at, node) in tree.roots() {
        let root = all.entry(at).or_default();
        match node.frame.life() {
            Some(group) => root.related.extend([group]),
            None => root.related.extend(view.evidence.vcpu_groups()),
        }
        let (by, without) = hogs_in(tree, at);
        let most = by.into_iter().max_by_key(|(_, ticks)| *ticks);
        let one = most.filter(|(_, ticks)| *ticks as f64 >= HOG * without as f64);
        root.related.extend(one.filter(|_| !asked).map(|(group, _)| group));
    }
    for (at, node) in tree.nodes() {
        let (Frame::Waker(group), Some((root, _))) = (node.frame, places.get(at as usize)) else {
            continue;
        };
        let whole = tree.node(*root).map_or(0, |root| root.ticks);
        if node.ticks as f64 >= RELATED * whole as f64 {
            all.entry(*root).or_default().related.insert(group);
        }
    }
    all
}

/// Those that a quota keeps from running.
fn throttled(view: &View<'_>) -> BTreeSet<GroupId> {
    view.evidence.late.keys().copied().filter(|group| by_quota(view, *group).is_some()).collect()
}
