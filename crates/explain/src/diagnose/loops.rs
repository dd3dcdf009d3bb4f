//! Who works in a loop: a thread that is there all the time and waits, or calls, over and over.
//!
//! What is started for something once (a compiler, a recorder's `sleep`, the shell that starts
//! these) runs beside the load. It is no subject while somebody works in a loop.

use crate::detect::View;
use crate::evidence::tree::{Frame, Tree};
use std::collections::BTreeMap;

/// Part of the traced time that it is there, and waits or calls from which it goes round; or so many
/// waits in less time.
const STAYS: f64 = 0.3;
const ROUNDS: (u64, u64) = (25, 500);
const MANY: (f64, u64) = (0.1, 250);

/// By root of the tree of time: ticks, waits and calls.
pub type Rounds = BTreeMap<Frame, (u64, u64, u64)>;

/// How often each thread goes round.
pub fn rounds(tree: &Tree) -> Rounds {
    let lives = tree.roots().filter(|(_, node)| node.frame.life().is_some());
    let all = lives.map(|(at, node)| {
        let (waits, calls) = count(tree, at);
        (node.frame, (node.ticks, waits, calls))
    });
    all.collect()
}

/// True if a root's thread, or one of those of its name, works in a loop.
pub fn loops(view: &View<'_>, root: Frame) -> bool {
    let Some(group) = root.life() else { return true };
    if view.is_aside(group) {
        return false;
    }
    if view.is_vcpu(group) {
        return true;
    }
    let single = view.evidence.groups.get(group).is_some_and(|own| !own.many);
    let goes_round = |(ticks, waits, calls): &(u64, u64, u64)| {
        let share = view.share(*ticks);
        share >= STAYS && (*waits >= ROUNDS.0 || *calls >= ROUNDS.1)
            || share >= MANY.0 && *waits >= MANY.1
    };
    if single || matches!(root, Frame::Thread(..)) {
        return view.rounds.get(&root).is_some_and(goes_round);
    }
    let threads = Frame::Thread(group, i32::MIN)..=Frame::Thread(group, i32::MAX);
    view.rounds.range(threads).any(|(_, own)| goes_round(own))
}

/// How often a thread sleeps, and how many calls it makes.
fn count(tree: &Tree, root: u32) -> (u64, u64) {
    let sleeps = |frame: Frame| {
        matches!(
            frame,
            Frame::Waker(_)
                | Frame::Timer
                | Frame::Irq(_)
                | Frame::Interrupt
                | Frame::Deep
                | Frame::Asleep
                | Frame::Stopped(_)
        )
    };
    let (mut waits, mut calls) = (0, 0);
    for (at, node) in tree.within(root) {
        let inside = match node.frame {
            Frame::Call(_) => {
                calls += node.count;
                tree.within(at)
            }
            _ => vec![(at, node)],
        };
        let slept = inside.iter().filter(|(_, state)| sleeps(state.frame));
        waits += slept.map(|(_, state)| state.count).sum::<u64>();
    }
    (waits, calls)
}
