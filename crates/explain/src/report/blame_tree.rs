//! The tree of time to unfold, and the longest waits drawn over time.

use crate::result::{Branch, ExplainResult, LongWait};
use vmeter_base::Ns;
use vmeter_render::chart::{Chart, Lane, Segment};
use vmeter_render::document::{Block, Document, Fact};
use vmeter_render::palette::{Colour, Group};
use vmeter_render::quantity::{brief_percent, compact_seconds, grouped};

/// Appends both.
pub(super) fn pictures(document: &mut Document, result: &ExplainResult) {
    if !result.waits.is_empty() {
        document.heading(
            "The longest waits",
            "activity of the waiting thread and of each thread that it depends on, during the wait",
        );
    }
    for wait in &result.waits {
        let begin = format!("+{:.3} s", wait.start_s);
        document.push(Block::Paragraph(format!("{}, from {begin} on", wait.subject)));
        document.push(Block::Chart(chart(wait)));
    }
    if !result.trees.is_empty() {
        document.heading("Where the time went", "open what is of interest");
        result.trees.iter().for_each(|root| document.push(folded(root)));
    }
}

fn figures(branch: &Branch) -> String {
    let time = branch.time_s.map(|s| format!(", {}", compact_seconds(s))).unwrap_or_default();
    let count = match branch.count {
        0 => String::new(),
        count => format!(", {}\u{d7}", grouped(&count.to_string())),
    };
    format!("{}{time}{count}", brief_percent(branch.share))
}

fn folded(branch: &Branch) -> Block {
    let mut blocks = Vec::new();
    let mut leaves = Vec::new();
    for part in &branch.parts {
        if part.parts.is_empty() {
            leaves.push(Fact::new(part.name.clone(), figures(part), ""));
        } else {
            blocks.push(folded(part));
        }
    }
    if !leaves.is_empty() {
        blocks.push(Block::Facts(leaves));
    }
    Block::Folded { summary: format!("{}: {}", branch.name, figures(branch)), blocks }
}

fn chart(wait: &LongWait) -> Chart {
    let ns = |seconds: f64| (seconds * 1e9) as Ns;
    let lanes = wait.lanes.iter().map(|lane| {
        let segments = lane.pieces.iter().enumerate().map(|(at, (name, from, to, runs))| Segment {
            name: name.clone(),
            start: ns(*from),
            end: ns(*to),
            insns: None,
            source: "trace".into(),
            error_ns: 0,
            colour: Colour {
                group: if *runs { Group::Kernel } else { Group::Unattributed },
                bright: at % 2 == 1,
            },
        });
        Lane { name: lane.thread.clone(), depth: 0, segments: segments.collect() }
    });
    let colour = |group| Colour { group, bright: false };
    Chart {
        caption: format!("the longest wait of {}", wait.subject),
        total: ns(wait.time_s).max(1),
        lanes: lanes.collect(),
        marks: Vec::new(),
        legend: vec![
            ("on a CPU".into(), colour(Group::Kernel)),
            ("asleep, or without a CPU".into(), colour(Group::Unattributed)),
        ],
    }
}
