//! `--tree`, and what is beside the tree.

use super::tree::{length, SpanTree};
use crate::colours::group_of;
use std::collections::{HashMap, HashSet};
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::time::seconds;
use vmeter_model::{Ns, Timeline};
use vmeter_render::document::{Node, Outline};
use vmeter_render::palette::Group;
use vmeter_render::quantity::compact_seconds;
use vmeter_render::tone::Tone;

pub(super) fn start_and_length(start: Ns, length: Ns) -> String {
    format!("@{} +{}", compact_seconds(seconds(start)), compact_seconds(seconds(length)))
}

/// How far off a length can be, where that is more than a hundredth of it.
pub(super) fn off_by(error: Ns, length: Ns) -> String {
    match error.saturating_mul(100) > length && length > 0 && error > 0 {
        true => format!(" ±{}", compact_seconds(seconds(error))),
        false => String::new(),
    }
}

pub(super) fn tone(name: &str) -> Tone {
    match group_of(name) {
        Group::Unattributed => Tone::Muted,
        _ => Tone::Normal,
    }
}

/// Spans of several runs that are the same by name and place.
#[derive(Default)]
struct Merged {
    name: String,
    start: i128,
    length: i128,
    shortest: Ns,
    longest: Ns,
    error: Ns,
    insns: u128,
    counted: bool,
    /// Runs it appears in.
    runs: usize,
    last_run: Option<usize>,
    in_last_run: Ns,
    children: Vec<usize>,
}

/// What is left of a span outside of its parts.
const ITSELF: &str = "itself";

/// The span tree of one run as it is, or the mean over several: there, spans are
/// the same when they and everything they are part of have the same names.
pub(super) fn tree(timelines: &[&Timeline], min_duration: Ns) -> Outline {
    let mut merged: Vec<Merged> = vec![Merged::default()];
    let mut places = Places::new();
    for (run, timeline) in timelines.iter().enumerate() {
        let run = (timelines.len() > 1).then_some(run);
        merge(&SpanTree::new(timeline), run, &mut merged, &mut places);
    }
    let count = timelines.len().max(1);
    let folded = Folding { merged: &merged, runs: count, min_duration };
    let several = if count > 1 {
        " The times are means; a span counts as 0 in each run that lacks it. The shortest and \
            the longest time are in brackets."
    } else {
        ""
    };
    Outline {
        legend: format!(
            "After \"@\": when the span began, counted from the VMM's exec. After \"+\": how \
             long it took. After \"±\": the error of this time, if it exceeds 1 % of the time. \
             \"itself\" is a span's own time, which none of its parts covers. Spans under {} are \
             left out.{several}",
            compact_seconds(seconds(min_duration)),
        ),
        roots: folded.nodes(0),
    }
}

/// Where a span of a tree goes: its parent, its name, and what keeps it apart.
type Places = HashMap<(usize, String, usize), usize>;

/// Adds a run's spans; those of the only run (`run` is `None`) stay apart.
fn merge(tree: &SpanTree, run: Option<usize>, merged: &mut Vec<Merged>, places: &mut Places) {
    let mut pending: Vec<(usize, usize)> = tree.top().iter().rev().map(|at| (*at, 0)).collect();
    let mut started: HashSet<usize> = HashSet::new();
    while let Some((at, parent)) = pending.pop() {
        let span = tree.span(at);
        let apart = if run.is_none() { at } else { 0 };
        let place = *places.entry((parent, span.name.clone(), apart)).or_insert_with(|| {
            let place = merged.len();
            merged.push(Merged { name: span.name.clone(), shortest: Ns::MAX, ..Merged::default() });
            merged[parent].children.push(place);
            place
        });
        let node = &mut merged[place];
        if node.last_run != Some(run.unwrap_or(0)) {
            node.close_run();
            node.last_run = Some(run.unwrap_or(0));
            node.runs += 1;
        }
        if started.insert(place) {
            node.start += i128::from(span.start);
        }
        node.in_last_run = node.in_last_run.saturating_add(length(span));
        node.length += i128::from(length(span));
        node.error = node.error.max(span.error_ns);
        node.insns += u128::from(span.insns.unwrap_or(0));
        node.counted |= span.insns.is_some();
        pending.extend(tree.children(at).iter().rev().map(|at| (*at, place)));
    }
    for place in started {
        merged[place].close_run();
    }
}

impl Merged {
    /// Takes the last run's length into the range.
    fn close_run(&mut self) {
        if self.last_run.take().is_some() {
            self.shortest = self.shortest.min(self.in_last_run);
            self.longest = self.longest.max(self.in_last_run);
        }
        self.in_last_run = 0;
    }
}

struct Folding<'a> {
    merged: &'a [Merged],
    runs: usize,
    min_duration: Ns,
}

impl Folding<'_> {
    fn nodes(&self, parent: usize) -> Vec<Node> {
        let mut children = self.merged[parent].children.clone();
        children.retain(|place| self.mean_length(&self.merged[*place]) >= self.min_duration);
        children.sort_by_key(|place| self.mean_start(&self.merged[*place]));
        let mut nodes = Vec::with_capacity(children.len());
        let names: Vec<&str> = children.iter().map(|c| self.merged[*c].name.as_str()).collect();
        let mut at = 0;
        while let Some(place) = children.get(at).copied() {
            let rounds = rounds(&names[at..]);
            let row = &children[at..at + rounds];
            let leaves = row.iter().all(|place| self.merged[*place].children.is_empty());
            let fold = rounds > 1 && leaves;
            nodes.push(Node {
                name: match self.merged[place].name == self.merged[parent].name {
                    true => ITSELF.to_owned(),
                    false => self.merged[place].name.clone(),
                },
                figures: if fold { self.folded(row) } else { self.figures(place, parent) },
                tone: tone(&self.merged[place].name),
                children: self.nodes(place),
            });
            at += if fold { rounds } else { 1 };
        }
        nodes
    }

    /// The figures of a row that is told as one.
    fn folded(&self, row: &[usize]) -> String {
        let nodes = || row.iter().map(|place| &self.merged[*place]);
        let of = |unexplained: bool| -> (Ns, usize) {
            let own = nodes().filter(|node| (node.name == UNATTRIBUTED) == unexplained);
            own.fold((0, 0), |(ns, count), node| (ns + self.mean_length(node), count + 1))
        };
        let ((all, count), (between, _)) = (of(false), of(true));
        let start = row.first().map_or(0, |place| self.mean_start(&self.merged[*place]));
        let mut text = format!("{} in {count}", start_and_length(start, all));
        if between > 0 {
            text.push_str(&format!(" and {} {UNATTRIBUTED}", compact_seconds(seconds(between))));
        }
        text
    }

    /// What of a phase nothing explains: its row of the phases has the rest.
    fn unexplained(&self, place: usize) -> Ns {
        let mut all = 0;
        let mut pending = self.merged[place].children.clone();
        while let Some(place) = pending.pop() {
            let node = &self.merged[place];
            match node.name == UNATTRIBUTED {
                true => all += self.mean_length(node),
                false => pending.extend(&node.children),
            }
        }
        all
    }

    fn mean_start(&self, node: &Merged) -> Ns {
        Ns::try_from(node.start / node.runs.max(1) as i128).unwrap_or(Ns::MAX)
    }

    fn mean_length(&self, node: &Merged) -> Ns {
        Ns::try_from(node.length / self.runs as i128).unwrap_or(Ns::MAX)
    }

    fn figures(&self, place: usize, parent: usize) -> String {
        let node = &self.merged[place];
        let length = self.mean_length(node);
        let unexplained = if parent == 0 { self.unexplained(place) } else { 0 };
        let mut text = start_and_length(self.mean_start(node), length - unexplained);
        text.push_str(&off_by(node.error, length));
        if unexplained > 0 {
            let unexplained = compact_seconds(seconds(unexplained));
            text.push_str(&format!(" and {unexplained} {UNATTRIBUTED}"));
        }
        if self.runs > 1 {
            let least = if node.runs < self.runs { 0 } else { node.shortest };
            let [least, most] = [least, node.longest].map(|ns| compact_seconds(seconds(ns)));
            text.push_str(&format!(" [{least} {most}]"));
        }
        if node.counted {
            let mean = node.insns as f64 / self.runs as f64;
            let insns = vmeter_render::quantity::Quantity::exact(
                mean.round(),
                vmeter_render::quantity::Unit::Count,
            );
            text.push_str(&format!(" {} insns", insns.inline()));
        }
        text
    }
}

/// How often something of one name has to come in a row to be told as one: a script that polls.
const ROUNDS: usize = 5;

/// How many of the first of these are one thing time and again, with nothing between but what
/// nobody explains; 1 if they are not so many.
pub(super) fn rounds(names: &[&str]) -> usize {
    let Some(first) = names.first().filter(|name| **name != UNATTRIBUTED) else { return 1 };
    let (mut count, mut last) = (0, 0);
    for (at, name) in names.iter().enumerate() {
        if name == first {
            count += 1;
            last = at;
        } else if *name != UNATTRIBUTED {
            break;
        }
    }
    if count >= ROUNDS {
        last + 1
    } else {
        1
    }
}

/// Most rows of what is beside the tree.
const BESIDE: usize = 60;

/// What overlaps the tree, in order of begin, the longest if there are many. Over several
/// runs, means by name.
pub(super) fn beside(timelines: &[&Timeline], min_duration: Ns) -> Outline {
    let mut by_name: HashMap<&str, (Ns, Ns, Ns, usize)> = HashMap::new();
    for span in timelines.iter().flat_map(|timeline| &timeline.overlapping) {
        let (start, all, cpu, count) = by_name.entry(&span.name).or_insert((Ns::MAX, 0, 0, 0));
        *start = (*start).min(span.start);
        *all = all.saturating_add(length(span));
        *cpu = cpu.saturating_add(span.cpu.unwrap_or(0));
        *count += 1;
    }
    let runs = timelines.len().max(1) as Ns;
    let mut rows: Vec<_> = by_name.into_iter().collect();
    rows.retain(|(_, (_, all, _, _))| all / runs >= min_duration);
    rows.sort_by_key(|(name, (_, all, _, _))| (std::cmp::Reverse(*all), *name));
    let left = rows.len().saturating_sub(BESIDE);
    rows.truncate(BESIDE);
    rows.sort_by_key(|(name, (start, _, _, _))| (*start, *name));
    let node = |(name, (start, all, cpu, count)): (&str, (Ns, Ns, Ns, usize))| {
        let mut figures = start_and_length(start, all / runs);
        if cpu > 0 {
            figures.push_str(&format!(" {} CPU", compact_seconds(seconds(cpu / runs))));
        }
        if count as Ns > runs {
            figures.push_str(&format!(" in {count}"));
        }
        Node { name: name.to_owned(), figures, tone: tone(name), children: Vec::new() }
    };
    let more = if left > 0 { format!(" {left} shorter ones are left out.") } else { String::new() };
    Outline {
        legend: format!(
            "\"@\" shows when the first span of this name began; \"+\" shows the sum of the \
                durations of all spans of this name in a run. This sum includes time in which \
                a span did no work.{more}"
        ),
        roots: rows.into_iter().map(node).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_time_and_again_is_one_row() {
        let row = |polls: usize| -> Vec<&str> {
            let mut names: Vec<&str> = [["sleep", UNATTRIBUTED]; 8][..polls].concat();
            names.extend(["fork of init", UNATTRIBUTED, "sleep"]);
            names
        };
        assert_eq!(rounds(&row(8)), 15);
        assert_eq!(rounds(&row(ROUNDS - 1)), 1);
        assert_eq!(rounds(&row(8)[1..]), 1);
        assert_eq!(rounds(&[]), 1);
    }
}
