//! Time in which vmeter itself held the VMM while its guest was not done: at its exec, and at the
//! breakpoints of its start. It is part of the run and is shown as what it is.

use super::{no_anchors, RuleSet};
use crate::anchors::Anchors;
use crate::facts::Facts;
use crate::tree::{Growing, Node};
use vmeter_model::span::OBSERVE;

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

fn spans<'a>(facts: &Facts<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    for (start, end) in &facts.held {
        tree.root.carve(Node::new(OBSERVE, *start, *end, "process"));
    }
}
