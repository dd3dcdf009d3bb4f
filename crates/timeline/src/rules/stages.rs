//! The stages of user space that a guest's own lines tell apart: initrd, the switch to the
//! root file system, systemd (its set-up, the loading of units, the starting of them).

use super::firmware::part_name;
use super::{no_anchors, units, RuleSet};
use crate::anchors::{Anchor, Anchors, Stamp};
use crate::facts::RunIndex;
use crate::landmarks::open_end;
use crate::lines::Line;
use crate::patterns::On;
use crate::processes::{base, Image};
use crate::systemd::{can_be_logged, stamps, SAYS};
use crate::tree::{Fill, Growing, Node};
use vmeter_model::{Identity, Kind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

pub(super) const INITRD: &str = "initrd";
const SWITCH_ROOT: &str = "switch-root";
/// The service manager of the root file system, from its first line on.
pub(crate) const SYSTEMD: &str = "systemd";
/// The part of it in which units start.
pub(super) const UNITS: &str = "systemd:units";
/// The part in which an initrd's own systemd starts units.
pub(super) const INITRD_UNITS: &str = "initrd:units";

/// The part of an initrd in which its udev is at work.
const UDEV: &str = "initrd:udev";
/// Parts of an initrd that only a systemd of its own has.
const OWN_SYSTEMD: &[&str] = &["initrd:systemd", INITRD_UNITS];
/// How it says first which version it is.
const BEGINS: &str = "systemd[1]: systemd ";

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(begin) = anchors.get(Anchor::Userspace) else { return };
    let limit = open_end(facts, anchors, begin.at);
    let mut initrd = parts(facts, Kind::Initrd, begin.at, limit);
    let root = root_begins(facts, begin.at, limit);
    initrd.retain(|(_, stamp)| root.is_none_or(|root| stamp.at < root.at));
    let after = initrd.last().map_or(begin, |(_, stamp)| *stamp);
    // An initrd's systemd says as much as the one after it, which begins anew. It reaps daemons
    // as well, whose lives say nothing of the lines that it prints in them.
    let its_own = initrd.iter().any(|(name, _)| OWN_SYSTEMD.contains(name));
    if !its_own {
        snap(facts, &mut initrd);
    }
    if initrd.iter().any(|(name, _)| *name == INITRD_UNITS) {
        // What dracut's hooks say they say as units.
        initrd.retain(|(name, _)| !name.starts_with("initrd:dracut-"));
    }
    let says = if its_own { BEGINS } else { SAYS };
    let systemd = systemd_begins(facts, says, after.at, limit);
    let exec = switched(facts, begin.at, limit);
    if let Some(switch) = exec.filter(|_| initrd.is_empty()) {
        by_switch(tree, begin, switch, systemd);
    }
    let next = systemd.or(root);
    // Where it says no more, it goes on until somebody else does.
    let left = initrd.iter().any(|(name, _)| *name == "initrd:end");
    let leaves = exec.map(|(leaves, _)| leaves.at).filter(|at| !its_own && *at > after.at);
    // A root file system's udev says the same.
    if leaves.or(next.map(|next| next.at)).is_none() && initrd.iter().all(|(name, _)| *name == UDEV)
    {
        initrd.clear();
    }
    if let Some((_, first)) = initrd.first() {
        let end = match (leaves, next) {
            (Some(leaves), _) => leaves,
            // Its systemd says when it leaves.
            (None, None) if its_own && !left => limit,
            (None, None) if !left => next_program(facts, after.at).unwrap_or(limit).min(limit),
            _ => last_end(facts, after.at, limit),
        };
        stage(tree, INITRD, begin, end, &initrd, first.error);
        let init = exec.and_then(|(_, init)| init).filter(|init| init.at > end);
        if let Some(next) = init.or(next).filter(|next| next.at > end) {
            let from = Stamp { at: end, ..after };
            stage(tree, SWITCH_ROOT, from, next.at, &[], next.error);
        }
    }
    if let Some(systemd) = systemd {
        // It is there from its exec on.
        let from = exec.and_then(|(_, init)| init).filter(|init| init.at < systemd.at);
        let mut parts = parts(facts, Kind::Systemd, systemd.at, limit);
        if parts.iter().all(|(name, _)| *name != UNITS) {
            parts.extend(units::first(facts, systemd.at, limit).map(|first| (UNITS, first)));
        }
        stage(tree, SYSTEMD, from.unwrap_or(systemd), limit, &parts, 0);
    }
}

/// What other inits than systemd say first: sysvinit, OpenRC, runit.
const ROOTS: &[&str] = &["INIT: version ", "OpenRC ", "- runit: "];

/// The first line of the root's own init, if that is not systemd.
fn root_begins<'a>(facts: &RunIndex<'a>, from: Ns, to: Ns) -> Option<Stamp<'a>> {
    let says = |text: &str| ROOTS.iter().any(|root| text.trim_start().starts_with(root));
    let its = |l: &&Line<'a>| l.timed && l.console && l.at > from && l.at < to && says(l.text);
    let line = facts.lines.iter().find(its)?;
    Some(Stamp { at: line.at, error: line.error, source: line.source })
}

/// When a program next said something on the console: the kernel's own lines have a stamp.
fn next_program(facts: &RunIndex<'_>, from: Ns) -> Option<Ns> {
    let its = |l: &&Line<'_>| l.console && l.stamp.is_none() && !l.text.trim().is_empty();
    facts.lines.iter().filter(its).map(|l| l.at).find(|at| *at > from)
}

/// An initrd that says nothing that is known: it lasts until its init gives way to the root's.
fn by_switch<'a>(
    tree: &mut Growing<'a>,
    begin: Stamp<'a>,
    (leaves, exec): (Stamp<'a>, Option<Stamp<'a>>),
    systemd: Option<Stamp<'a>>,
) {
    let error = begin.error.max(leaves.error);
    let node = Node::new(INITRD, begin.at, leaves.at, leaves.source);
    tree.place(Node { error, fill: Fill::LogMessage, ..node });
    if let Some(end) = exec.or(systemd) {
        stage(tree, SWITCH_ROOT, leaves, end.at, &[], 0);
    }
}

/// What an initrd's init executes to leave it: util-linux's and busybox's, klibc's.
const SWITCHES: &[&str] = &["switch_root", "run-init"];

/// When the first process executed what leaves an initrd, and when the root's own init.
fn switched<'a>(facts: &RunIndex<'a>, from: Ns, to: Ns) -> Option<(Stamp<'a>, Option<Stamp<'a>>)> {
    let init = facts.processes.all.iter().find(|p| p.pid == 1)?;
    let switches = |image: &Image<'_>| {
        let words =
            [image.file].into_iter().chain(image.arguments.iter().take(2).map(String::as_str));
        words.into_iter().any(|word| SWITCHES.contains(&base(word)))
    };
    let index = init.images.iter().position(|i| from < i.at && i.at < to && switches(i))?;
    let stamp = |image: &Image<'_>| Stamp { at: image.at, ..init.start };
    let next = init.images.get(index + 1).filter(|next| next.at < to);
    Some((stamp(&init.images[index]), next.map(stamp)))
}

/// A stage and its parts, each from its line to the next one's.
fn stage<'a>(
    tree: &mut Growing<'a>,
    name: &'static str,
    from: Stamp<'a>,
    to: Ns,
    parts: &[(&'static str, Stamp<'a>)],
    error: Ns,
) {
    let error = from.error.max(error);
    if to.saturating_sub(from.at) <= error {
        return;
    }
    tree.place(Node { error, ..Node::new(name, from.at, to, from.source) });
    for (index, (part, at)) in parts.iter().enumerate() {
        let end = parts.get(index + 1).map_or(to, |(_, next)| next.at);
        if from.at <= at.at && at.at < end {
            // That units start says nothing of what the time went into.
            let fill =
                if [UNITS, INITRD_UNITS].contains(part) { Fill::Unattributed } else { Fill::Own };
            tree.place(Node { error: at.error, fill, ..Node::new(*part, at.at, end, at.source) });
        }
    }
}

/// A line that a program says which init waited for is of a part that began with it.
fn snap<'a>(facts: &RunIndex<'a>, parts: &mut Vec<(&'static str, Stamp<'a>)>) {
    let all = &facts.processes.all;
    let of_init = |parent: usize| all[parent].pid == 1;
    let waited = all.iter().filter(|p| p.waited.is_some() && p.parent.is_some_and(of_init));
    let waited: Vec<(Stamp<'a>, Ns)> = waited.filter_map(|p| Some((p.start, p.end?))).collect();
    for (_, at) in parts.iter_mut() {
        let holds = waited.iter().find(|(start, end)| start.at < at.at && at.at < *end);
        at.at = holds.map_or(at.at, |(start, _)| start.at);
    }
    parts.sort_by_key(|(_, at)| at.at);
    // Of two that one program says, the later names it.
    let mut index = 0;
    while index + 1 < parts.len() {
        if parts[index].1.at == parts[index + 1].1.at {
            parts.remove(index);
        } else {
            index += 1;
        }
    }
}

/// Parts of a kind, in order, each name once.
fn parts<'a>(facts: &RunIndex<'a>, of: Kind, from: Ns, to: Ns) -> Vec<(&'static str, Stamp<'a>)> {
    let inside = facts.hits.iter().filter(|h| h.on == On::Kernel && h.timed);
    let inside = inside.filter(|h| (from..to).contains(&h.at));
    let mut parts: Vec<(&'static str, Stamp<'a>)> = inside
        .filter_map(|h| {
            let name = part_name(h.means).filter(|name| Identity::of(name).kind == of)?;
            Some((name, Stamp { at: h.at, error: h.error, source: h.source }))
        })
        .collect();
    // The kernel's log and the console show a line twice.
    let mut known: Vec<&str> = Vec::new();
    parts.retain(|(name, _)| {
        let fresh = !known.contains(name);
        known.push(name);
        fresh
    });
    parts
}

/// The first line of the systemd that is no initrd's.
fn systemd_begins<'a>(facts: &RunIndex<'a>, says: &str, from: Ns, to: Ns) -> Option<Stamp<'a>> {
    if !facts.systemd {
        return None;
    }
    let stamps = stamps(&facts.lines);
    let its = |l: &&Line<'a>| {
        let inside = l.at > from && l.at < to;
        l.timed && l.text.starts_with(says) && inside && can_be_logged(l, stamps)
    };
    let line = facts.lines.iter().find(its)?;
    Some(Stamp { at: line.at, error: line.error, source: line.source })
}

/// When the line that begins at `at` was all there: a script says `done.` on it. Of several that
/// came at once it is the last.
fn last_end(facts: &RunIndex<'_>, at: Ns, limit: Ns) -> Ns {
    let line = facts.lines.iter().rfind(|l| l.console && l.at == at);
    line.map_or(at, |l| l.end.min(limit))
}
