//! Time in which vmeter itself held the VMM: at its exec, at the breakpoints of
//! its start, and at its exit, when guest RAM is read. It is part of the run and
//! is shown as what it is.

use super::{no_anchors, RuleSet};
use crate::anchors::Anchors;
use crate::facts::Facts;
use crate::tree::{Growing, Node};

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

const OBSERVE: &str = "vmeter:observe";

fn spans<'a>(facts: &Facts<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    for (start, end) in &facts.held {
        tree.root.carve(Node::new(OBSERVE, *start, *end, "process"));
    }
}
