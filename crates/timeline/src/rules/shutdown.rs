//! The end: the guest shuts down, the VMM cleans up and exits.
//!
//! A guest goes down from its first word of it: what an init says before it ends everything,
//! the row of units that systemd stops which leads to a target that all others need, or the
//! program that an init of runlevels begins for its last one.

use super::firmware::part_name;
use super::units::sayings;
use super::verbs::{same, Verb};
use super::RuleSet;
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::backbone::SHUTDOWN;
use crate::facts::RunIndex;
use crate::patterns::{Means, On};
use crate::processes::{base, words};
use crate::tree::{Fill, Growing, Node};
use vmeter_model::{EventKind, Identity, Kind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// Where the kernel carries out a shutdown (kernel/reboot.c).
const KERNEL_ENDS: &[&str] = &["kernel_power_off", "kernel_restart", "kernel_halt"];
/// The guest's part of it.
pub(super) const GUEST: &str = "shutdown:guest";
/// QEMU's main loop leaves, cleans up its devices and then exits.
const CLEANUP_NS: Ns = 50_000_000;

fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    let said = going_down(facts);
    for start in [facts.first(|w| *w == EventKind::ShutdownStart), said].into_iter().flatten() {
        found.offer(Anchor::Shutdown, Trust::Exact, start);
    }
    let near = [facts.first_reached(KERNEL_ENDS), facts.first(|w| *w == EventKind::PowerOff)];
    for stamp in near.into_iter().flatten() {
        found.offer(Anchor::Shutdown, Trust::Near, stamp);
    }
    for hit in facts.hits.iter().filter(|h| h.means == Means::PowerOff) {
        let error = hit.error.saturating_add(CLEANUP_NS);
        let stamp = Stamp { at: hit.at, error, source: hit.source };
        found.offer(Anchor::Shutdown, Trust::Text, stamp);
    }
    // The guest's end, where nothing tells of its way there: what follows is the VMM's.
    if let Some(stopped) = stopped(facts).filter(|_| !found.has(Anchor::Shutdown)) {
        found.offer(Anchor::Shutdown, Trust::Text, stopped);
    }
    let gone = |w: &EventKind| matches!(w, EventKind::VmmExiting | EventKind::VmmKilled);
    if let Some(exiting) = facts.first(gone) {
        found.offer(Anchor::Exiting, Trust::Exact, exiting);
    } else if let Some(stopped) = stopped(facts) {
        let error = stopped.error.saturating_add(CLEANUP_NS);
        found.offer(Anchor::Exiting, Trust::Near, Stamp { error, ..stopped });
    }
    if let Some(resumed) = facts.first(|w| *w == EventKind::WrapperResumed) {
        found.offer(Anchor::Resumed, Trust::Exact, resumed);
    }
    let panicked =
        |w: &EventKind| matches!(w, EventKind::RunState { state } if state == "guest-panicked");
    for panic in [facts.first_reached(&["panic"]), facts.first(panicked)].into_iter().flatten() {
        found.offer(Anchor::Panic, Trust::Near, panic);
    }
}

/// Targets without which nothing is up, and their descriptions.
const NEEDED: &[&str] = &[
    "graphical.target",
    "multi-user.target",
    "basic.target",
    "Graphical Interface",
    "Multi-User System",
    "Basic System",
];
/// Between two units of a row that is stopped, ns.
const ROW_NS: Ns = 1_000_000_000;

/// The first word of going down.
fn going_down<'a>(facts: &RunIndex<'a>) -> Option<Stamp<'a>> {
    let words = facts.hits.iter().filter(|h| h.on == On::Kernel && h.means == Means::GoesDown);
    let word = words
        .filter(|h| h.timed)
        .map(|h| Stamp { at: h.at, error: h.error, source: h.source })
        .min_by_key(|stamp| stamp.at);
    let begun = facts.first(|w| *w == EventKind::ShutdownStart);
    let ends = stopped(facts).or_else(|| facts.first(|w| *w == EventKind::PowerOff)).or(begun);
    let run = last_rc(facts).filter(|run| ends.is_none_or(|ends| run.at <= ends.at));
    [word, stopping(facts), run].into_iter().flatten().min_by_key(|stamp| stamp.at)
}

/// The first program since the last word of another runlevel that takes the guest down: what an
/// init of runlevels begins for its last one, or who tells it to.
fn last_rc<'a>(facts: &RunIndex<'a>) -> Option<Stamp<'a>> {
    let images = facts.processes.all.iter().filter(|p| p.pid != 1);
    let mut found: Vec<(bool, Stamp<'a>)> = images
        .flat_map(|p| p.images.iter().map(|image| (image, p.start)))
        .filter_map(|(image, start)| {
            let down = takes_down(&words(image))?;
            Some((down, Stamp { at: image.at, ..start }))
        })
        .collect();
    found.sort_by_key(|(_, stamp)| stamp.at);
    let up = found.iter().rposition(|(down, _)| !down).map_or(0, |at| at + 1);
    found.get(up).map(|(_, stamp)| *stamp)
}

/// Whether a command takes a guest down, or to a runlevel in which it works; none of any other.
fn takes_down(command: &str) -> Option<bool> {
    let mut words = command.split(' ');
    let program = base(words.next()?);
    let words: Vec<&str> = words.collect();
    match (program, words.as_slice()) {
        ("rc" | "init" | "telinit", ["0" | "6"]) => Some(true),
        ("rc" | "init" | "telinit", ["2" | "3" | "4" | "5" | "S"]) => Some(false),
        ("openrc", ["shutdown" | "reboot"]) => Some(true),
        ("openrc", ["sysinit" | "boot" | "default"]) => Some(false),
        ("shutdown" | "openrc-shutdown", [options @ .., "now" | "+0"]) => {
            let ends = |option: &&str| {
                option.starts_with('-') && option.contains(['h', 'H', 'P', 'p', 'r'])
            };
            options.iter().any(ends).then_some(true)
        }
        _ => None,
    }
}

/// The first unit of the row that is stopped when systemd goes down. An initrd's targets are
/// stopped as well, and others are reached after that.
pub(super) fn stopping<'a>(facts: &RunIndex<'a>) -> Option<Stamp<'a>> {
    let sayings = sayings(facts, 0, facts.total);
    let needed = |name: &str| NEEDED.iter().any(|needed| same(name, needed));
    let reached = sayings.iter().rposition(|(_, verb, name)| *verb == Verb::Ends && needed(name));
    let after = reached.map_or(0, |index| index + 1);
    let stops =
        |(_, verb, _): &(Stamp<'a>, Verb, &str)| matches!(verb, Verb::Stops | Verb::Stopped);
    let target = sayings[after..].iter().position(|s| s.1 == Verb::Stopped && needed(s.2))?;
    let mut first = after + target;
    while let Some(before) = first.checked_sub(1).filter(|before| *before >= after) {
        let near = sayings[first].0.at - sayings[before].0.at <= ROW_NS
            || is_stopped_across(&sayings[after..], first - after);
        if !stops(&sayings[before]) || !near {
            break;
        }
        first = before;
    }
    // What ended before it was up was no part of what went down.
    while first < after + target && was_starting(&sayings, first) {
        first += 1;
    }
    Some(sayings[first].0)
}

/// True for a unit that is stopped, and of which the last word before was that it starts.
fn was_starting(sayings: &[(Stamp<'_>, Verb, &str)], at: usize) -> bool {
    let (_, verb, name) = sayings[at];
    let before = sayings[..at].iter().rfind(|(_, _, of)| same(of, name));
    verb == Verb::Stopped && before.is_some_and(|(_, verb, _)| *verb == Verb::Begins)
}

/// True if a unit that was being stopped before this word is stopped only by it or after it: nothing
/// is said while systemd waits for one that hangs.
fn is_stopped_across(sayings: &[(Stamp<'_>, Verb, &str)], at: usize) -> bool {
    let (before, after) = sayings.split_at(at);
    let open = before.iter().rev().filter(|s| s.1 == Verb::Stops);
    open.take(MOST_OPEN).any(|(_, _, name)| {
        let of = |s: &&(Stamp<'_>, Verb, &str)| s.1 == Verb::Stopped && same(s.2, name);
        after.iter().any(|s| of(&s)) && !before.iter().rev().take(MOST_OPEN).any(|s| of(&s))
    })
}

/// So many of the last words before a silence are looked at.
const MOST_OPEN: usize = 200;

/// When the VMM last stopped its guest for good.
fn stopped<'a>(facts: &RunIndex<'a>) -> Option<Stamp<'a>> {
    let state = |w: &EventKind| matches!(w, EventKind::RunState { state } if state == "shutdown");
    facts.seen.iter().rev().find(|s| state(s.what)).map(Stamp::of)
}

/// `shutdown` in two, the guest's part and the VMM's, and the guest's by the
/// kernel functions reached in it.
fn spans<'a>(facts: &RunIndex<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(phase) = tree.root.children.iter().find(|n| n.name == SHUTDOWN) else { return };
    let (start, end) = (phase.start, phase.end);
    let inside = |s: &Stamp<'_>| start <= s.at && s.at < end;
    let off = stopped(facts)
        .or_else(|| facts.seen.iter().rev().find(|s| *s.what == EventKind::PowerOff).map(Stamp::of))
        .filter(inside);
    let part = |name: String, from: Ns, to: Ns, by: Stamp<'a>| Node {
        error: by.error,
        ..Node::new(name, from, to, by.source)
    };
    if let Some(off) = off {
        if start < off.at {
            let guest = part(GUEST.into(), start, off.at, off);
            // Where units were stopped, they are what it was spent on.
            let fill = if stopping(facts).is_some() { Fill::Unattributed } else { Fill::Own };
            tree.place(Node { fill, ..guest });
        }
        tree.place(part("shutdown:vmm".into(), off.at, end, off));
    }
    let off = off.map_or(end, |off| off.at);
    let mut cuts = parts(facts, start, off);
    let reached = facts.reached.iter().filter(|(_, s)| inside(s) && s.at < off);
    cuts.extend(reached.map(|(symbol, at)| (format!("shutdown:{symbol}"), *at)));
    cuts.sort_by_key(|(_, stamp)| stamp.at);
    for (index, (name, at)) in cuts.iter().enumerate() {
        let to = cuts.get(index + 1).map_or(off, |(_, next)| next.at);
        if at.at < to {
            tree.place(part(name.clone(), at.at, to, *at));
        }
    }
}

/// By whom what was still there was ended, in order.
fn parts<'a>(facts: &RunIndex<'a>, from: Ns, to: Ns) -> Vec<(String, Stamp<'a>)> {
    let inside = facts.hits.iter().filter(|h| h.timed && (from..to).contains(&h.at));
    let mut parts: Vec<(String, Stamp<'a>)> = inside
        .filter_map(|h| {
            let name =
                part_name(h.means).filter(|part| Identity::of(part).kind == Kind::Shutdown)?;
            Some((name.to_owned(), Stamp { at: h.at, error: h.error, source: h.source }))
        })
        .collect();
    parts.sort_by_key(|(_, stamp)| stamp.at);
    parts.dedup_by(|next, kept| next.0 == kept.0);
    parts
}
