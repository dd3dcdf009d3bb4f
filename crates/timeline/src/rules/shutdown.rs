//! The end: the guest shuts down, the VMM cleans up and exits.

use super::RuleSet;
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::backbone::SHUTDOWN;
use crate::facts::Facts;
use crate::patterns::Means;
use crate::tree::{Growing, Node};
use vmeter_model::{Ns, What};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// Where the kernel carries out a shutdown (kernel/reboot.c).
const KERNEL_ENDS: &[&str] = &["kernel_power_off", "kernel_restart", "kernel_halt"];
/// QEMU's main loop leaves, cleans up its devices and then exits.
const CLEANUP_NS: Ns = 50_000_000;

fn anchors<'a>(facts: &Facts<'a>, found: &mut Candidates<'a>) {
    if let Some(start) = facts.first(|w| *w == What::ShutdownStart) {
        found.offer(Anchor::Shutdown, Trust::Exact, start);
    }
    let near = [facts.first_reached(KERNEL_ENDS), facts.first(|w| *w == What::PowerOff)];
    for stamp in near.into_iter().flatten() {
        found.offer(Anchor::Shutdown, Trust::Near, stamp);
    }
    for hit in facts.hits.iter().filter(|h| h.means == Means::PowerOff) {
        let error = hit.error.saturating_add(CLEANUP_NS);
        let stamp = Stamp { at: hit.at, error, source: hit.source };
        found.offer(Anchor::Shutdown, Trust::Text, stamp);
    }
    let gone = |w: &What| matches!(w, What::VmmExiting | What::VmmKilled);
    if let Some(exiting) = facts.first(gone) {
        found.offer(Anchor::Exiting, Trust::Exact, exiting);
    } else if let Some(stopped) = stopped(facts) {
        let error = stopped.error.saturating_add(CLEANUP_NS);
        found.offer(Anchor::Exiting, Trust::Near, Stamp { error, ..stopped });
    }
    if let Some(resumed) = facts.first(|w| *w == What::WrapperResumed) {
        found.offer(Anchor::Resumed, Trust::Exact, resumed);
    }
    let panicked = |w: &What| matches!(w, What::RunState { state } if state == "guest-panicked");
    for panic in [facts.first_reached(&["panic"]), facts.first(panicked)].into_iter().flatten() {
        found.offer(Anchor::Panic, Trust::Near, panic);
    }
}

/// When the VMM last stopped its guest for good.
fn stopped<'a>(facts: &Facts<'a>) -> Option<Stamp<'a>> {
    let state = |w: &What| matches!(w, What::RunState { state } if state == "shutdown");
    facts.seen.iter().rev().find(|s| state(s.what)).map(Stamp::of)
}

/// `shutdown` in two, the guest's part and the VMM's, and the guest's by the
/// kernel functions reached in it.
fn spans<'a>(facts: &Facts<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(phase) = tree.root.children.iter().find(|n| n.name == SHUTDOWN) else { return };
    let (start, end) = (phase.start, phase.end);
    let inside = |s: &Stamp<'_>| start <= s.at && s.at < end;
    let off = stopped(facts)
        .or_else(|| facts.seen.iter().rev().find(|s| *s.what == What::PowerOff).map(Stamp::of))
        .filter(inside)
        .filter(|s| s.at > start);
    let Some(off) = off else { return };
    let part = |name: String, from: Ns, to: Ns, by: Stamp<'a>| Node {
        error: by.error,
        ..Node::new(name, from, to, by.source)
    };
    tree.place(part("shutdown:guest".into(), start, off.at, off));
    tree.place(part("shutdown:vmm".into(), off.at, end, off));
    let reached: Vec<_> =
        facts.reached.iter().filter(|(_, s)| inside(s) && s.at < off.at).collect();
    for (index, (symbol, at)) in reached.iter().enumerate() {
        let to = reached.get(index + 1).map_or(off.at, |(_, next)| next.at);
        if at.at < to {
            tree.place(part(format!("shutdown:{symbol}"), at.at, to, *at));
        }
    }
}
