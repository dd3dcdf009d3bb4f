//! Time in which the guest did nothing, whatever it was at: vmeter itself held the VMM while its guest was
//! not done (at its exec, and at the breakpoints of its start), or the host let the VMM stand still. It is
//! part of the run and is shown as what it is.

use super::{no_anchors, RuleSet};
use crate::anchors::Anchors;
use crate::facts::RunIndex;
use crate::tree::{Growing, Node};
use vmeter_model::span::OBSERVE;
use vmeter_model::EventKind;

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

fn spans<'a>(facts: &RunIndex<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    for seen in facts.seen {
        let EventKind::Stalled { ns, by } = *seen.what else { continue };
        let (start, name) = (seen.at.saturating_sub(ns).max(0), by.word());
        let stood = Node { error: seen.error, ..Node::new(name, start, seen.at, seen.source) };
        tree.root.carve(stood);
    }
    for (start, end) in &facts.held {
        tree.root.carve(Node::new(OBSERVE, *start, *end, "process"));
    }
}
