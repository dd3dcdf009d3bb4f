//! The VMM before its guest runs: exec, dynamic linking, initialisation.

use super::RuleSet;
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::facts::RunIndex;
use crate::input::RESET_VECTOR;
use crate::tree::{Growing, Node};
use vmeter_model::{EventKind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// QEMU sets `running` before its vCPU threads notice: they are woken next.
const RUNNING_ERROR_NS: Ns = 1_000_000;
/// The first line of a firmware comes this much after the reset vector at most.
const FIRST_LINE_ERROR_NS: Ns = 50_000_000;

fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    let mut offer = |anchor, trust, extra: Ns, stamp: Option<Stamp<'a>>| {
        if let Some(stamp) = stamp {
            let error = stamp.error.saturating_add(extra);
            found.offer(anchor, trust, Stamp { error, ..stamp });
        }
    };
    offer(Anchor::Wrapper, Trust::Exact, 0, facts.first(|w| *w == EventKind::WrapperExec));
    offer(Anchor::ExecDone, Trust::Exact, 0, facts.first(|w| *w == EventKind::VmmExec));
    offer(Anchor::Main, Trust::Exact, 0, facts.first(|w| *w == EventKind::VmmMain));
    offer(Anchor::Main, Trust::Near, 0, facts.first(|w| *w == EventKind::VmmEntry));
    offer(Anchor::Reset, Trust::Exact, 0, facts.first_reached(&[RESET_VECTOR]));
    offer(Anchor::Waits, Trust::Exact, 0, facts.first(|w| *w == EventKind::VmmWaits));
    let zero = Stamp { at: 0, error: 0, source: "" };
    offer(Anchor::Reset, Trust::Exact, 0, facts.virtual_time.then_some(zero));
    let running = facts.first(|w| matches!(w, EventKind::RunState { state } if state == "running"));
    offer(Anchor::Reset, Trust::Near, RUNNING_ERROR_NS, running);
    let line = facts.first(|w| matches!(w, EventKind::FirmwareLine { .. }));
    offer(Anchor::Reset, Trust::Text, FIRST_LINE_ERROR_NS, line);
}

/// `vmm:link` in two, when both `AT_ENTRY` and `main` were seen: the dynamic
/// linker's own work, and the C library's start and the constructors.
fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let entry = facts.first(|w| *w == EventKind::VmmEntry);
    let main = facts.first(|w| *w == EventKind::VmmMain).and(anchors.get(Anchor::Main));
    let (Some(entry), Some(main)) = (entry, main) else { return };
    let start = anchors.get(Anchor::ExecDone).map_or(0, |s| s.at);
    if !(start..=main.at).contains(&entry.at) {
        return;
    }
    for (name, from, to) in
        [("vmm:ld.so", start, entry.at), ("vmm:constructors", entry.at, main.at)]
    {
        if from < to {
            tree.place(Node { error: entry.error, ..Node::new(name, from, to, entry.source) });
        }
    }
}
