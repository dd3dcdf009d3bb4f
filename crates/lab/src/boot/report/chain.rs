//! `--critical-chain`: what the ready point waited for, link by link, back to the exec.
//!
//! The leaves of a timeline tile the run, and what nothing waited for is beside it. So what
//! ended last before a moment is what that moment waited for: read backwards, the outermost
//! spans with a handle are the chain.

use super::actionable::has_handle;
use super::tree::{length, SpanTree};
use super::views::{off_by, rounds, start_and_length, tone};
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::time::seconds;
use vmeter_model::{Ns, Timeline};
use vmeter_render::document::{Node, Outline};
use vmeter_render::quantity::compact_seconds;
use vmeter_render::tone::Tone;

/// Shorter links, as a share of the run, are told together.
const LINK_SHARE: f64 = 0.005;
/// Links from here on are emphasised.
const LONG_SHARE: f64 = 0.1;

/// A stretch of the chain.
struct Link {
    name: String,
    start: Ns,
    length: Ns,
    error: Ns,
    /// Links told together in this one.
    count: usize,
    /// How often it came, where it came time and again, and what of it nobody explains.
    rounds: Option<(usize, Ns)>,
}

impl Default for Link {
    fn default() -> Self {
        Link { name: String::new(), start: 0, length: 0, error: 0, count: 1, rounds: None }
    }
}

/// The chain of a run, from what it was measured to.
pub(super) fn critical_chain(timeline: &Timeline, ready: &str) -> Outline {
    let tree = SpanTree::new(timeline);
    let shortest = (LINK_SHARE * timeline.total as f64) as Ns;
    let mut links: Vec<Node> = Vec::new();
    let mut passed: Vec<Link> = Vec::new();
    for top in tree.top().iter().rev() {
        let mut inside = Vec::new();
        links_of(&tree, *top, &mut inside);
        inside.reverse();
        let inside = together(folded(inside), shortest);
        let span = tree.span(*top);
        if length(span) < shortest {
            let (name, start, length) = (span.name.clone(), span.start, length(span));
            passed.push(Link { name, start, length, ..Link::default() });
            continue;
        }
        links.extend(shorter(std::mem::take(&mut passed)));
        let alone = inside.len() == 1 && inside[0].name == span.name;
        let children =
            if alone { Vec::new() } else { inside.iter().map(|l| l.node(timeline)).collect() };
        let figures = start_and_length(span.start, length(span));
        let error = off_by(span.error_ns, length(span));
        let tone = if children.is_empty() {
            long(length(span), timeline, &span.name)
        } else {
            Tone::Normal
        };
        links.push(Node { name: span.name.clone(), figures: figures + &error, tone, children });
    }
    links.extend(shorter(passed));
    let root = Node {
        name: ready.to_owned(),
        figures: format!("@{}", compact_seconds(seconds(timeline.total))),
        tone: Tone::Normal,
        children: links,
    };
    Outline {
        legend: "From the event that ends the run back to the VMM's exec: each link ends where \
            the link above it begins, and links do not overlap. After \"@\": when the link \
            began. After \"+\": how long the run waited for it."
            .into(),
        roots: vec![root],
    }
}

/// The links inside a span, in order of time.
fn links_of(tree: &SpanTree, at: usize, links: &mut Vec<Link>) {
    let mut pending = vec![at];
    while let Some(at) = pending.pop() {
        let span = tree.span(at);
        if has_handle(tree, at) || tree.children(at).is_empty() {
            let (name, start, length) = (span.name.clone(), span.start, length(span));
            links.push(Link { name, start, length, error: span.error_ns, ..Link::default() });
        } else {
            pending.extend(tree.children(at).iter().rev());
        }
    }
}

/// Links from the last to the first, of which neighbours that are short are one.
fn together(links: Vec<Link>, shortest: Ns) -> Vec<Link> {
    let mut told: Vec<Link> = Vec::new();
    for link in links {
        match told.last_mut() {
            Some(last) if link.length < shortest && last.length_of_each() < shortest => {
                last.start = link.start;
                last.length += link.length;
                last.count += 1;
            }
            _ => told.push(link),
        }
    }
    told
}

/// Links from the last to the first, of which those that are one thing time and again are one.
fn folded(links: Vec<Link>) -> Vec<Link> {
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    let mut rows = Vec::new();
    let mut at = 0;
    while at < names.len() {
        let plain = links[at].count == 1 && links[at].rounds.is_none();
        let rounds = if plain { rounds(&names[at..]) } else { 1 };
        rows.push(rounds);
        at += rounds;
    }
    let mut links = links.into_iter();
    let mut told = Vec::with_capacity(rows.len());
    for row in rows {
        let mut row = links.by_ref().take(row);
        let Some(mut one) = row.next() else { break };
        let (mut count, mut between) = (1, 0);
        for link in row {
            one.start = link.start;
            one.length += link.length;
            match link.name == UNATTRIBUTED {
                true => between += link.length,
                false => count += 1,
            }
        }
        if count > 1 {
            one.length -= between;
            one.rounds = Some((count, between));
        }
        told.push(one);
    }
    told
}

fn shorter(links: Vec<Link>) -> Option<Node> {
    let first = links.last()?;
    let all = links.iter().map(|link| link.length).sum();
    let name = match links.as_slice() {
        [one] => one.name.clone(),
        several => format!("{} short links", several.len()),
    };
    let figures = start_and_length(first.start, all);
    Some(Node { name, figures, tone: Tone::Muted, children: Vec::new() })
}

impl Link {
    /// The mean length of what is told together here.
    fn length_of_each(&self) -> Ns {
        self.length / self.count.max(1) as Ns
    }

    fn node(&self, timeline: &Timeline) -> Node {
        let name = match self.count {
            1 => self.name.clone(),
            n => format!("{n} short links"),
        };
        let mut figures = start_and_length(self.start, self.length);
        if let Some((rounds, between)) = self.rounds {
            let between = compact_seconds(seconds(between));
            figures.push_str(&format!(" in {rounds} and {between} {UNATTRIBUTED}"));
        }
        let error = if self.count == 1 { off_by(self.error, self.length) } else { String::new() };
        let tone =
            if self.count == 1 { long(self.length, timeline, &self.name) } else { Tone::Muted };
        Node { name, figures: figures + &error, tone, children: Vec::new() }
    }
}

fn long(length: Ns, timeline: &Timeline, name: &str) -> Tone {
    if length as f64 >= LONG_SHARE * timeline.total as f64 {
        Tone::Strong
    } else {
        tone(name)
    }
}
