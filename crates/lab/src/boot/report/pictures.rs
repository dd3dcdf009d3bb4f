//! A boot's timeline as charts: a lane a phase, a lane a depth, a lane a run.

use super::tree::{length, SpanTree};
use crate::colours::{group_of, Palette};
use std::collections::{HashMap, HashSet};
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::{Ns, Span, Timeline};
use vmeter_render::chart::{Chart, Lane, Segment};
use vmeter_render::palette::{Colour, Group};

fn segment(span: &Span, colour: Colour) -> Segment {
    Segment {
        name: span.name.clone(),
        start: span.start,
        end: span.end.max(span.start),
        insns: span.insns,
        source: span.source.clone(),
        error_ns: span.error_ns,
        colour,
    }
}

/// A phase this large, as a share of the run, is drawn with its parts.
const OPENED_SHARE: f64 = 0.12;
/// A part this large, as a share of the run, is drawn.
const PART_SHARE: f64 = 0.02;
/// Most parts drawn of one phase.
const PARTS: usize = 4;
/// Most stretches of one depth that [`icicle`] keeps, longest first.
const ICICLE_SEGMENTS: usize = 4000;
/// Most depths that [`icicle`] draws.
const ICICLE_DEPTH: usize = 8;

fn by_name<'a>(tree: &SpanTree<'a>, spans: &[usize]) -> Vec<(&'a str, Vec<usize>, Ns)> {
    let mut slots: HashMap<&str, usize> = HashMap::new();
    let mut groups: Vec<(&str, Vec<usize>, Ns)> = Vec::new();
    for at in spans {
        let span = tree.span(*at);
        let slot = *slots.entry(&span.name).or_insert_with(|| {
            groups.push((&span.name, Vec::new(), 0));
            groups.len() - 1
        });
        groups[slot].1.push(*at);
        groups[slot].2 = groups[slot].2.saturating_add(length(span));
    }
    groups
}

fn lane(tree: &SpanTree, name: &str, depth: usize, spans: &[usize], colour: Colour) -> Lane {
    let segments = spans.iter().map(|at| segment(tree.span(*at), colour)).collect();
    Lane { name: name.to_owned(), depth, segments }
}

/// Lanes for the largest parts of a phase, in order of time.
fn part_lanes(tree: &SpanTree, phase: &str, segments: &[usize], total: Ns) -> Vec<Lane> {
    let mut inside: Vec<usize> = Vec::new();
    for at in segments {
        let mut at = *at;
        while let [only] = tree.children(at) {
            at = *only;
        }
        inside.extend(tree.children(at));
    }
    let mut groups = by_name(tree, &inside);
    groups.retain(|(_, _, ns)| *ns as f64 >= PART_SHARE * total as f64);
    groups.sort_by_key(|(_, _, ns)| std::cmp::Reverse(*ns));
    groups.truncate(PARTS);
    groups.sort_by_key(|(_, spans, _)| tree.span(spans[0]).start);
    let lanes = groups.into_iter().map(|(name, spans, _)| {
        let shown = if name == phase { "itself" } else { name };
        let group = match group_of(name) {
            Group::Unattributed => Group::Unattributed,
            _ => group_of(phase),
        };
        lane(tree, shown, 1, &spans, Colour { group, bright: true })
    });
    lanes.collect()
}

/// The run at a glance: everything in one lane, then a lane a phase in order of
/// time, the larger ones with their largest parts.
pub(super) fn waterfall(timeline: &Timeline, palette: &Palette) -> Chart {
    let tree = SpanTree::new(timeline);
    let names: HashSet<&str> = timeline.phases.iter().map(|(name, _)| name.as_str()).collect();
    let mut phases = tree.phase_segments(&names);
    phases.sort_by_key(|(name, _)| *name == UNATTRIBUTED);
    let mut lanes = vec![strip_lane(&tree, &phases, palette, "")];
    for (name, spans) in &phases {
        let spent: Ns = spans.iter().map(|at| length(tree.span(*at))).sum();
        if spent == 0 {
            continue;
        }
        lanes.push(lane(&tree, name, 0, spans, palette.colour(name)));
        if spent as f64 >= OPENED_SHARE * timeline.total as f64 {
            lanes.extend(part_lanes(&tree, name, spans, timeline.total));
        }
    }
    let caption = format!("{} phases of a boot on a time axis", phases.len());
    let marks = timeline.marks.clone();
    Chart { caption, total: timeline.total.max(1), lanes, marks, legend: Vec::new() }
}

fn strip_lane(
    tree: &SpanTree,
    phases: &[(&str, Vec<usize>)],
    palette: &Palette,
    name: &str,
) -> Lane {
    let mut segments: Vec<Segment> = Vec::new();
    for (name, spans) in phases {
        let colour = palette.colour(name);
        segments.extend(spans.iter().map(|at| segment(tree.span(*at), colour)));
    }
    segments.sort_by_key(|s| (s.start, s.end));
    Lane { name: name.to_owned(), depth: 0, segments }
}

/// Every span, a lane a depth; spans beside the tree follow in lanes of their own.
pub(super) fn icicle(timeline: &Timeline, palette: &Palette) -> Chart {
    let tree = SpanTree::new(timeline);
    let mut lanes: Vec<Lane> = Vec::new();
    for visit in tree.walk().iter().filter(|v| v.depth < ICICLE_DEPTH) {
        while lanes.len() <= visit.depth {
            lanes.push(Lane { name: String::new(), depth: lanes.len(), segments: Vec::new() });
        }
        let span = tree.span(visit.at);
        let mut colour = palette.colour(&tree.span(visit.top).name);
        if group_of(&span.name) == Group::Unattributed {
            colour.group = Group::Unattributed;
        }
        lanes[visit.depth].segments.push(segment(span, colour));
    }
    let mut overlapping = overlapping_lanes(timeline);
    if let Some(first) = overlapping.first_mut() {
        first.name = "beside it".into();
    }
    lanes.append(&mut overlapping);
    for lane in &mut lanes {
        keep_longest(&mut lane.segments, ICICLE_SEGMENTS);
    }
    Chart {
        caption: "every span of one run, nested".into(),
        total: timeline.total.max(1),
        lanes,
        marks: timeline.marks.clone(),
        legend: Vec::new(),
    }
}

fn keep_longest(segments: &mut Vec<Segment>, most: usize) {
    if segments.len() > most {
        segments.sort_by_key(|s| std::cmp::Reverse(s.end - s.start));
        segments.truncate(most);
    }
    segments.sort_by_key(|s| (s.start, s.end));
}

/// Most lanes that spans beside the tree are spread over.
const OVERLAPPING_LANES: usize = 8;

/// Spans beside the tree in as few lanes as keep them apart; what finds no room is left out.
fn overlapping_lanes(timeline: &Timeline) -> Vec<Lane> {
    let mut spans: Vec<&Span> = timeline.overlapping.iter().collect();
    spans.sort_by_key(|s| (s.start, s.end, s.id));
    let mut lanes: Vec<Lane> = Vec::new();
    for span in spans {
        let drawn = segment(span, Colour { group: group_of(&span.name), bright: true });
        let fits = |lane: &Lane| lane.segments.last().is_none_or(|last| last.end <= drawn.start);
        match lanes.iter().position(fits) {
            Some(free) => lanes[free].segments.push(drawn),
            None if lanes.len() < OVERLAPPING_LANES => {
                lanes.push(Lane { name: String::new(), depth: 0, segments: vec![drawn] });
            }
            None => {}
        }
    }
    lanes
}

/// A lane a run, all on the scale of the longest.
pub(super) fn multiples<'a>(
    runs: impl IntoIterator<Item = (String, &'a Timeline)>,
    palette: &Palette,
    legend: Vec<(String, Colour)>,
) -> Chart {
    let mut chart =
        Chart { caption: "phases of every run".into(), total: 1, legend, ..Chart::default() };
    for (label, timeline) in runs {
        let tree = SpanTree::new(timeline);
        let names = timeline.phases.iter().map(|(name, _)| name.as_str()).collect();
        let phases = tree.phase_segments(&names);
        chart.total = chart.total.max(timeline.total);
        chart.lanes.push(strip_lane(&tree, &phases, palette, &label));
    }
    chart
}
