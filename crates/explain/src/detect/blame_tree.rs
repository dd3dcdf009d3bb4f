//! Where the time of those went whom findings are about: the tree, and the longest wait over time.

use super::View;
use crate::evidence::thread::{State, Waker};
use crate::evidence::tree::Frame;
use crate::evidence::wait_for::{Piece, Wait};
use crate::moment::Tid;
use crate::result::{Branch, Finding, LongWait, WaitLane};
use std::collections::BTreeMap;

/// Most roots.
const MOST: usize = 6;
/// Least share of the whole, and deepest level.
const LEAST: f64 = 0.01;
const DEEPEST: usize = 12;
/// Most threads of a wait.
const LANES: usize = 12;

/// The trees and the longest waits of the findings' subjects; of the largest, if there are none.
pub fn pictures(view: &View<'_>, findings: &[Finding]) -> (Vec<Branch>, Vec<LongWait>) {
    let tree = &view.evidence.tree;
    let told = |frame: Frame| {
        let name = view.frame(frame);
        findings
            .iter()
            .position(|finding| finding.subject == name || finding.summary.contains(&name))
    };
    let mut roots: Vec<_> = tree
        .roots()
        .filter_map(|(at, node)| Some((told(node.frame)?, std::cmp::Reverse(node.ticks), at)))
        .collect();
    roots.sort_unstable();
    roots.truncate(MOST);
    let whole = |at| tree.node(at).map_or(1, |node| node.ticks.max(1));
    let branches = roots.iter().map(|(.., at)| branch(view, *at, whole(*at), 0)).collect();
    let waits = roots.iter().filter_map(|(.., at)| long_wait(view, *at)).collect();
    (branches, waits)
}

fn branch(view: &View<'_>, at: u32, whole: u64, depth: usize) -> Branch {
    let tree = &view.evidence.tree;
    let Some(node) = tree.node(at) else { return Branch::default() };
    let mut parts = Vec::new();
    if depth < DEEPEST {
        for (at, part) in tree.within(at) {
            if part.ticks as f64 >= LEAST * whole as f64 {
                parts.push(branch(view, at, whole, depth + 1));
            }
        }
    }
    Branch {
        name: view.frame(node.frame),
        time_s: view.seconds(node.ticks),
        share: node.ticks as f64 / whole as f64,
        count: node.count,
        parts,
    }
}

fn long_wait(view: &View<'_>, root: u32) -> Option<LongWait> {
    let frame = view.evidence.tree.node(root)?.frame;
    let Wait { span, pieces } = view.evidence.waits.get(&root)?;
    let since = |at: u64| view.seconds(at.saturating_sub(span.0));
    let mut order: Vec<Tid> = Vec::new();
    let mut lanes: BTreeMap<Tid, Vec<(String, f64, f64, bool)>> = BTreeMap::new();
    for piece in pieces {
        if !order.contains(&piece.thread) {
            order.push(piece.thread);
        }
        let asleep = matches!(piece.state, State::Blocked | State::Runnable);
        let drawn = (doing(view, piece), since(piece.span.0)?, since(piece.span.1)?, !asleep);
        lanes.entry(piece.thread).or_default().push(drawn);
    }
    order.truncate(LANES);
    let lane = |tid: &Tid| {
        let mut pieces = lanes.remove(tid).unwrap_or_default();
        pieces.sort_by(|a, b| a.1.total_cmp(&b.1));
        // One may be waited for twice in the same stretch.
        let mut end = 0.0;
        pieces.retain_mut(|piece| {
            piece.1 = piece.1.max(end);
            end = piece.2.max(end);
            piece.1 < piece.2
        });
        WaitLane { thread: view.thread(*tid), pieces }
    };
    Some(LongWait {
        subject: view.frame(frame),
        start_s: view.seconds(view.evidence.age(span.0))?,
        time_s: since(span.1)?,
        lanes: order.iter().map(lane).collect(),
    })
}

/// What a thread did.
pub(super) fn doing(view: &View<'_>, piece: &Piece) -> String {
    let state = match (piece.state, piece.waker) {
        (State::Unknown, _) => "not recorded".into(),
        (State::Guest, _) => "guest".into(),
        (State::Kvm, _) => "KVM".into(),
        (State::Kernel | State::User, _) => "on a CPU".into(),
        (State::Runnable, _) => "without a CPU".into(),
        (State::Blocked, Waker::Timer) => view.frame(Frame::Timer),
        (State::Blocked, Waker::Irq(irq)) => view.frame(Frame::Irq(irq)),
        (State::Blocked, _) => "asleep".to_owned(),
    };
    match piece.doing {
        Some(frame) => format!("{}, {state}", view.frame(frame)),
        None => state,
    }
}
