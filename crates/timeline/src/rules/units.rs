//! systemd's units by its lines on the console: from `Starting X` to `Finished X`.
//!
//! Units run side by side. The chain that leads to the end of the run goes into the tree: the
//! unit that ended last, before its start the one that had ended last by then, and so on. The
//! others are beside it. Early lines come through the kernel's log with the whole name, later
//! ones from systemd itself, where a name may be cut in its middle.

use super::stages::{SAYS, SYSTEMD};
use super::{no_anchors, RuleSet};
use crate::anchors::{Anchors, Stamp};
use crate::facts::Facts;
use crate::tree::{Growing, Node};
use vmeter_model::Ns;

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

/// More units at once than any boot starts.
const MAX_OPEN: usize = 512;
/// Where systemd leaves out the middle of a name.
const CUT: char = '\u{2026}';

fn spans<'a>(facts: &Facts<'a>, _: &Anchors<'a>, tree: &mut Growing<'a>) {
    let systemd = tree.root.children.iter().find(|n| n.name == SYSTEMD);
    let Some((from, to)) = systemd.map(|n| (n.start, n.end)) else { return };
    let mut units = units(facts, from, to);
    units.sort_by_key(|u| (u.end, u.start));
    let mut at = to;
    for node in units.into_iter().rev() {
        if node.end <= at {
            at = node.start;
            tree.place(node);
        } else {
            tree.beside.push(node);
        }
    }
}

/// What a line says of a unit.
#[derive(Debug, PartialEq, Eq)]
enum Verb {
    Begins,
    Ends,
}

const VERBS: &[(&str, Verb)] = &[
    ("Starting ", Verb::Begins),
    ("Mounting ", Verb::Begins),
    ("Started ", Verb::Ends),
    ("Finished ", Verb::Ends),
    ("Mounted ", Verb::Ends),
    ("Failed to start ", Verb::Ends),
    ("Failed to mount ", Verb::Ends),
];

/// The verb and the unit's name in a line.
fn said(text: &str) -> Option<(&'static Verb, &str)> {
    let text = text.strip_prefix(SAYS).unwrap_or(text);
    let status = text.strip_prefix('[').and_then(|t| t.split_once("] ")).map(|(_, rest)| rest);
    let text = status.unwrap_or(text).trim_start();
    let (verb, rest) = VERBS.iter().find_map(|(v, verb)| Some((verb, text.strip_prefix(v)?)))?;
    let name = rest.trim_end().trim_end_matches('.');
    let unit = name.split_once(" - ").map(|(unit, _)| unit);
    // Without a name (`systemd.status_unit_format=description`) the description is all there is.
    let name = unit.filter(|unit| unit.contains('.') && !unit.contains(' ')).unwrap_or(name);
    (!name.is_empty()).then_some((verb, name))
}

/// True for two texts of one unit, whose middles may have been left out in different places.
fn same(a: &str, b: &str) -> bool {
    match (a.split_once(CUT), b.split_once(CUT)) {
        (None, None) => a == b,
        (Some((head, _)), None) => b.starts_with(head) && b.contains('.'),
        (None, Some((head, _))) => a.starts_with(head) && a.contains('.'),
        (Some((head, tail)), Some((other, end))) => {
            (head.starts_with(other) || other.starts_with(head))
                && (tail.ends_with(end) || end.ends_with(tail))
        }
    }
}

fn units<'a>(facts: &Facts<'a>, from: Ns, to: Ns) -> Vec<Node<'a>> {
    let mut open: Vec<(&str, Stamp<'a>)> = Vec::new();
    let mut units = Vec::new();
    let lines = facts.lines.iter().filter(|l| l.console && l.timed);
    for line in lines.filter(|l| (from..to).contains(&l.at)) {
        let Some((verb, name)) = said(line.text) else { continue };
        let known = open.iter().position(|(of, _)| same(of, name));
        match (verb, known) {
            (Verb::Begins, None) if open.len() < MAX_OPEN => {
                let stamp = Stamp { at: line.at, error: line.error, source: line.source };
                open.push((name, stamp));
            }
            (Verb::Begins, Some(at)) if open[at].0.contains(CUT) => open[at].0 = name,
            (Verb::Ends, Some(at)) => {
                let (begun, start) = open.remove(at);
                let name = if begun.contains(CUT) { name } else { begun };
                let node = Node::new(format!("unit {name}"), start.at, line.at, line.source);
                units.push(Node { error: start.error.max(line.error), ..node });
            }
            _ => {}
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_systemd_are_read() {
        for (line, verb, name) in [
            ("systemd[1]: Starting kmod.service - Create List...", Verb::Begins, "kmod.service"),
            ("Starting ssh.service - OpenBSD Secure Shell server...", Verb::Begins, "ssh.service"),
            ("[  OK  ] Finished a-b.service - Planted.", Verb::Ends, "a-b.service"),
            ("[FAILED] Failed to start x.service - X.", Verb::Ends, "x.service"),
            ("[  OK  ] Started OpenSSH Daemon.", Verb::Ends, "OpenSSH Daemon"),
            (
                "Mounting dev-mqueue.mount\u{2026}Queue File System...",
                Verb::Begins,
                "dev-mqueue.mount\u{2026}Queue File System",
            ),
        ] {
            assert_eq!(said(line), Some((&verb, name)), "{line}");
        }
        assert_eq!(said("Reached target x"), None);
    }

    #[test]
    fn names_that_are_cut_are_matched() {
        assert!(same(
            "systemd-tmp\u{2026}ate Nodes in /dev",
            "systemd-tmpf\u{2026}eate Nodes in /dev"
        ));
        assert!(!same("systemd-tmp\u{2026}ate Nodes in /dev", "systemd-tmp\u{2026}Directories"));
        assert!(same("systemd-udevd.ser\u{2026}ger for Events", "systemd-udevd.service"));
        assert!(!same("a.service", "b.service"));
    }
}
