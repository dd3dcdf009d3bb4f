//! Who works in a loop: a thread that is there all the time and waits, or calls, over and over.
//!
//! What is started for something once (a compiler, a recorder's `sleep`, the shell that starts
//! these) runs beside the load. It is no subject while somebody works in a loop.

use crate::detect::View;
use crate::evidence::tree::Frame;
use crate::evidence::witness::records;

/// Part of the traced time that it is there, and waits or calls from which it goes round; or so many
/// waits in less time.
const STAYS: f64 = 0.3;
const ROUNDS: (u64, u64) = (25, 500);
const MANY: (f64, u64) = (0.1, 250);

/// True if a root's thread, or one of those of its name, works in a loop.
pub fn loops(view: &View<'_>, root: Frame) -> bool {
    let Some(group) = root.life() else { return true };
    let groups = &view.evidence.groups;
    if groups.is_kernel(group) || records(groups.name(group)) {
        return false;
    }
    if view.evidence.vcpu_groups().contains(&group) {
        return true;
    }
    let tree = &view.evidence.tree;
    let single = groups.get(group).is_some_and(|own| !own.many);
    let own = tree.roots().filter(|(_, node)| match (node.frame, root) {
        (frame, Frame::Thread(..)) => frame == root,
        (Frame::Thread(of, _), _) => of == group,
        (Frame::Life(of), _) => of == group && single,
        _ => false,
    });
    let mut own = own.map(|(at, node)| (view.share(node.ticks), rounds(view, at)));
    own.any(|(share, (waits, calls))| {
        share >= STAYS && (waits >= ROUNDS.0 || calls >= ROUNDS.1)
            || share >= MANY.0 && waits >= MANY.1
    })
}

/// How often a thread sleeps, and how many calls it makes.
fn rounds(view: &View<'_>, root: u32) -> (u64, u64) {
    let tree = &view.evidence.tree;
    let sleeps = |frame: Frame| {
        matches!(
            frame,
            Frame::Waker(_)
                | Frame::Timer
                | Frame::Irq(_)
                | Frame::Interrupt
                | Frame::Deep
                | Frame::Asleep
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
