//! Where nothing else says what went on, the lines that were printed do: each stretch from a
//! line to the next is `after: LINE`, which is no more than what is known. Where lines come
//! thick, all of them together are `lines from: FIRST LINE`.
//!
//! The first line of a program also tells that init is there by then.
//!
//! So it is with initcalls that nobody traced, and with programs that no trace names. Numbers
//! in a line are left out of the name, so that it is the same in every run.

use super::kernel::initcall_phase;
use super::processes::USERSPACE;
use super::{to_rom, RuleSet};
use crate::anchors::{Anchor, Anchors, Candidates, Stamp, Trust};
use crate::facts::RunIndex;
use crate::landmarks::{is_linux, open_end};
use crate::lines::{Line, BANNER, EXACT_NS};
use crate::patterns::On;
use crate::tree::{Fill, Growing, Node};
use std::collections::HashSet;
use vmeter_model::{EventKind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors, spans };

/// Shorter stretches are nobody's concern: this share of the run, and this long, ns.
const WORTH_A_NAME: Ns = 200;
const SHORTEST_NS: Ns = 5_000_000;
/// A line that is off by more is not known to be in its place.
const MOST_ERROR_NS: Ns = 10_000_000;
/// What a guest does that is seen by the lines of its console alone: whether they are a program's of
/// Linux is not known.
const GUEST: &str = "guest";
/// What QEMU prints of itself where its monitor has the same output.
const MONITOR: [&str; 2] = ["QEMU ", "(qemu)"];
/// From the kernel's hand-over to the first that a program says.
const START: &str = "/init:start";
/// Longest name, characters.
const MAX_NAME: usize = 60;

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    if facts.calls.builtin().next().is_none() {
        if let Some((from, to)) = initcall_phase(tree).map(|n| (n.start, n.end)) {
            place(tree, stretches(facts, |_| true, from, to));
        }
    }
    let programs = [Anchor::Userspace, Anchor::Programs].into_iter().find_map(|a| anchors.get(a));
    let (name, begin) = match (programs, first_of_guest(facts, anchors)) {
        (Some(begin), _) => (USERSPACE, begin),
        (None, Some(begin)) => (GUEST, begin),
        (None, None) => return,
    };
    let limit = open_end(facts, anchors, begin.at);
    for (from, to) in gaps(tree, begin.at, limit) {
        // What the kernel says meanwhile tells nothing of the programs.
        let of_programs = |l: &Line<'_>| l.console && l.stamp.is_none();
        let mut nodes = before(facts, of_programs, begin.at, from, to);
        nodes.extend(stretches(facts, of_programs, from, to));
        let Some(first) = nodes.first() else { continue };
        let framed = tree.root.children.iter().any(|n| n.start <= from && to <= n.end);
        if !framed {
            let frame = Node::new(name, from, to, first.source);
            tree.place(Node { fill: Fill::Unattributed, error: first.error, ..frame });
        }
        place(tree, nodes);
    }
}

/// The first line of a program says that init was there by then, which is worth something where
/// nothing tells it better.
fn anchors<'a>(facts: &RunIndex<'a>, found: &mut Candidates<'a>) {
    if !is_linux(facts) {
        return;
    }
    let told = found.best(Anchor::Userspace).is_some_and(|stamp| stamp.error <= MOST_ERROR_NS);
    let Some(since) = kernel_runs(facts, found).filter(|_| !told) else { return };
    if let Some(line) = programs(facts).find(|line| line.at > since) {
        found.offer(Anchor::Programs, Trust::Near, stamp_of(&line));
    }
}

fn stamp_of<'a>(line: &Line<'a>) -> Stamp<'a> {
    Stamp { at: line.at, error: line.error, source: line.source }
}

/// From when on the lines of the console that are not the kernel's are its programs': it has begun,
/// and its own lines have a stamp or do not come.
fn kernel_runs(facts: &RunIndex<'_>, found: &Candidates<'_>) -> Option<Ns> {
    let first = |of: &dyn Fn(&Line<'_>) -> bool| facts.lines.iter().find(|l| of(l)).map(|l| l.at);
    let stamped = first(&|l| l.console && l.stamp.is_some());
    if stamped.is_none() && first(&|l| l.console && l.text.starts_with(BANNER)).is_some() {
        return None;
    }
    let entry = found.best(Anchor::KernelEntry).filter(|entry| entry.error <= EXACT_NS);
    let entry = entry.map(|entry| entry.at.saturating_add(entry.error));
    let logged = first(&|l| l.on == On::Kernel && !l.console && l.timed);
    let image = found.best(Anchor::KernelFirst).map(|first| first.at);
    let known = [stamped, entry, logged, image].into_iter().flatten().min();
    let unplaced = facts.log_unplaced > 0 || first(&|l| l.on == On::Kernel && !l.timed).is_some();
    known.or_else(|| main(facts).filter(|_| unplaced && is_direct(facts)))
}

/// When the VMM's own code began.
fn main(facts: &RunIndex<'_>) -> Option<Ns> {
    facts.first(|what| *what == EventKind::VmmMain).map(|main| main.at)
}

/// True if the console shows no boot loader: what it shows after a firmware's lines is the work of
/// what the VMM was given as a kernel.
fn is_direct(facts: &RunIndex<'_>) -> bool {
    to_rom(facts).is_some() || facts.hits.iter().all(|h| h.on != On::Loader)
}

/// Lines of the console that are neither the kernel's, a firmware's, a boot loader's nor QEMU's.
pub(super) fn programs<'f, 'a>(facts: &'f RunIndex<'a>) -> impl Iterator<Item = Line<'a>> + 'f {
    let logged: HashSet<&str> =
        facts.lines.iter().filter(|l| !l.console).map(|l| l.text.trim()).collect();
    let last_of_loader = facts.hits.iter().filter(|h| h.on == On::Loader).map(|h| h.at).max();
    facts.lines.iter().copied().filter(move |line| {
        let others = MONITOR.iter().any(|begin| line.text.starts_with(begin))
            || last_of_loader.is_some_and(|last| line.at <= last);
        let own = line.console && line.timed && line.stamp.is_none() && has_name(line);
        own && !others && !logged.contains(line.text.trim())
    })
}

/// The first line of a guest that shows no sign of Linux, after what its loader handed over to began.
fn first_of_guest<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>) -> Option<Stamp<'a>> {
    let begun = [Anchor::KernelEntry, Anchor::Decompress, Anchor::KernelFirst];
    let begun = begun.into_iter().find_map(|anchor| anchors.get(anchor)).map(|at| at.at);
    let loads = begun.is_none() && anchors.get(Anchor::Loader).is_some();
    let main = main(facts).filter(|_| !is_linux(facts) && !loads && is_direct(facts))?;
    let since = begun.map_or(main, |begun| begun.max(main));
    programs(facts).find(|line| line.at > since).map(|line| stamp_of(&line))
}

/// A stretch that something else explains is nothing that went on beside it.
fn place<'a>(tree: &mut Growing<'a>, stretches: Vec<Node<'a>>) {
    for node in stretches {
        let _ = tree.root.place(node);
    }
}

/// What is unexplained of user space: between phases, and in `userspace` between its parts.
pub(super) fn gaps(tree: &Growing<'_>, from: Ns, to: Ns) -> Vec<(Ns, Ns)> {
    let mut gaps = Vec::new();
    let mut at = from;
    for phase in tree.root.children.iter().filter(|n| n.end > from && n.start < to) {
        gaps.push((at, phase.start));
        at = phase.end.max(at);
        unexplained(phase, &mut gaps);
    }
    gaps.push((at, to));
    gaps.retain(|(from, to)| to - from >= SHORTEST_NS);
    gaps
}

/// True for a span whose gaps nothing explains, or its own name alone.
fn is_open(node: &Node<'_>) -> bool {
    matches!(node.fill, Fill::Unattributed | Fill::LogMessage)
}

/// The gaps between the parts of a span that explains none of them, and of those inside it.
fn unexplained(node: &Node<'_>, gaps: &mut Vec<(Ns, Ns)>) {
    if node.children.is_empty() {
        gaps.extend(is_open(node).then_some((node.start, node.end)));
        return;
    }
    let mut at = node.start;
    for child in &node.children {
        gaps.extend(is_open(node).then_some((at, child.start)));
        at = child.end.max(at);
        unexplained(child, gaps);
    }
    gaps.extend(is_open(node).then_some((at, node.end)));
}

/// What went on when a gap began: after the last line before it, or, before any program's
/// first line, init's start.
pub(super) fn before<'a>(
    facts: &RunIndex<'a>,
    of: impl Fn(&Line<'a>) -> bool,
    begin: Ns,
    from: Ns,
    to: Ns,
) -> Vec<Node<'a>> {
    let own = facts.lines.iter().filter(|l| of(l) && l.timed && l.at >= begin);
    let mut lines: Vec<Line<'a>> = own.flat_map(|l| l.grown(SHORTEST_NS)).collect();
    lines.retain(has_name);
    lines.sort_by_key(|l| l.at);
    let next = lines.partition_point(|l| l.at < from);
    let end = lines.get(next).map_or(to, |l| l.at.min(to));
    let last = next.checked_sub(1).and_then(|last| lines.get(last));
    let name = match (last, lines.get(next)) {
        (Some(_), _) => format!("after: {}", name_of(&lines, next - 1)),
        (None, Some(first)) if first.at <= to => START.to_owned(),
        (None, _) => return Vec::new(),
    };
    let by = last.or(lines.get(next));
    let long = end - from >= (facts.total / WORTH_A_NAME).max(SHORTEST_NS);
    by.filter(|_| long)
        .map(|by| Node { error: by.error, ..Node::new(name, from, end, by.source) })
        .into_iter()
        .collect()
}

/// Each line's stretch that is worth a name.
pub(super) fn stretches<'a>(
    facts: &RunIndex<'a>,
    of: impl Fn(&Line<'a>) -> bool,
    from: Ns,
    to: Ns,
) -> Vec<Node<'a>> {
    let shortest = (facts.total / WORTH_A_NAME).max(SHORTEST_NS);
    let known = |l: &&Line<'a>| l.timed && l.error <= MOST_ERROR_NS;
    let known = facts.lines.iter().filter(|l| of(l)).filter(known);
    let mut lines: Vec<Line<'a>> = known.flat_map(|l| l.grown(shortest)).collect();
    lines.retain(|l| (from..to).contains(&l.at) && has_name(l));
    lines.sort_by_key(|l| l.at);
    let lines = once(lines, shortest);
    let mut nodes = Vec::new();
    // Lines that follow each other closely have one stretch together.
    let mut first: Option<Line<'a>> = None;
    for (index, line) in lines.iter().enumerate() {
        let end = lines.get(index + 1).map_or(to, |next| next.at);
        let long = end - line.at >= shortest;
        if let Some(many) = first.filter(|_| long || index + 1 == lines.len()) {
            let until = if long { line.at } else { end };
            if until - many.at >= shortest {
                let name = format!("lines from: {}", name(many.text));
                nodes.push(Node {
                    error: many.error,
                    ..Node::new(name, many.at, until, many.source)
                });
            }
        }
        first = if long { None } else { first.or(Some(*line)) };
        if long {
            let node =
                Node::new(format!("after: {}", name_of(&lines, index)), line.at, end, line.source);
            nodes.push(Node { error: line.error, ..node });
        }
    }
    nodes
}

/// Lines that are one, written over and over as something goes on (`10 %`, `20 %`), once.
fn once(lines: Vec<Line<'_>>, shortest: Ns) -> Vec<Line<'_>> {
    let mut kept: Vec<Line<'_>> = Vec::with_capacity(lines.len());
    let mut before: Option<(Ns, &str)> = None;
    for line in lines {
        let again = |(at, text): (Ns, &str)| line.at - at < shortest && alike(text, line.text);
        if !before.is_some_and(again) {
            kept.push(line);
        }
        before = Some((line.at, line.text));
    }
    kept
}

/// True for two lines of the same letters, of which there are some.
fn alike(one: &str, other: &str) -> bool {
    let letters = |text: &'_ str| text.chars().filter(|c| c.is_alphabetic()).collect::<Vec<_>>();
    let one = letters(one);
    !one.is_empty() && one == letters(other)
}

/// True for a line that is a status and no more (OpenRC's ` [ ok ]`, ` [ !! ]`).
fn is_status(text: &str) -> bool {
    let inner = text.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inner.is_some_and(|inner| matches!(inner.trim(), "ok" | "OK" | "!!" | "FAILED" | "fail"))
}

/// The name of a line; of one that only says how it went, with the line before.
fn name_of(lines: &[Line<'_>], index: usize) -> String {
    let text = lines[index].text;
    match index.checked_sub(1).and_then(|before| lines.get(before)) {
        Some(before) if is_status(text) => {
            name(&format!("{} {}", before.text.trim_end(), text.trim()))
        }
        _ => name(text),
    }
}

/// True for a line that says something: a screen is drawn with lines of blanks, too.
fn has_name(line: &Line<'_>) -> bool {
    line.text.chars().any(char::is_alphanumeric)
}

/// A line without its numbers, cut to what a table can show.
fn name(text: &str) -> String {
    let number = |word: &str| {
        let word = word.trim_matches(['[', ']', '(', ')']);
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_hexdigit() || ".,:x%".contains(c))
    };
    // Some rc prints a NUL between two of its children's words.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words: Vec<&str> =
        text.split_whitespace().map(|word| if number(word) { "#" } else { word }).collect();
    let whole = words.join(" ");
    match whole.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}\u{2026}", whole[..end].trim_end()),
        None => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_counts_is_one_line() {
        assert!(alike("Fetch: 9%", "Fetch:10% [##  ]") && !alike("10%", "11%"));
        assert!(!alike("Fetch: 9%", "Unpack: 9%"));
    }

    #[test]
    fn a_status_is_no_name() {
        assert!(is_status(" [ ok ]") && is_status("[ !! ]"));
        assert!(!is_status("[ ok ] Starting cron.") && !is_status("[    0.5] x"));
    }

    #[test]
    fn a_name_is_the_same_in_every_run() {
        assert_eq!(name("planted  sleep begin 3.151"), "planted sleep begin #");
        assert_eq!(name("rc: S01net 0.2"), "rc: S01net #");
        assert_eq!(name("kernel: [    0.769125] audit"), "kernel: [ # audit");
        assert_eq!(name(&"x".repeat(80)).chars().count(), MAX_NAME + 1);
    }
}
