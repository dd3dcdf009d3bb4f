//! Events to a tree of spans that accounts for the whole of a boot.
//!
//! Sources of very different sight (a stamp on every initcall, a line of text
//! that arrived late) say what happened; any of them may be missing. [`build`]
//! makes of them one tree whose leaves tile the run, from the exec of the VMM to
//! its end, exactly in ns. Whatever no source explains is a leaf of its own,
//! `unattributed`: it is never given to a neighbour.
//!
//! How the time is divided:
//!
//! 1. `input`: events onto the run's clock, in order (an icount run: the
//!    guest's virtual time, and only what the guest itself stamped).
//! 2. `anchors`: the moments that every boot passes in order are chosen from all
//!    that the rules offer, the most direct evidence first, and reconciled.
//! 3. `backbone`: phases from anchor to anchor. Where an anchor is missing, the
//!    phase before it ends with the last thing seen in it.
//! 4. `rules`: each family places the spans it sees inside the phases.
//! 5. `tree`: overlaps within the sources' errors are trimmed, others go beside
//!    the tree, and gaps are filled.
//!
//! What fills a gap depends on what it is in:
//!
//! | in | a gap is |
//! |---|---|
//! | the run itself, or `userspace`, or a process that has parts | `unattributed` |
//! | `kernel:initcalls-before-userspace`, a level of initcalls | `kernel:between-initcalls`, after the last one `kernel:after-initcalls` |
//! | any other phase, step or initcall with parts | more of its own name |
//!
//! What begins and is not seen to end (an initcall, a step) lasts until a panic, or
//! until the end of a run that stopped short: there it may have hung. If the guest
//! is known to have gone on, its end was lost: it gets no time, and the stretch
//! after it is `unattributed`.
//!
//! `Timeline::phases` are the lengths of the top-level spans by name, in order of
//! first start, and `unattributed` last. That figure is all there is of it, at any
//! depth; what of it lies inside a phase is taken out of the phase's own figure, so
//! that the figures add up to the total.
//!
//! Spans are placed by time alone. That a process or a module's load lies inside
//! another process's span says that it happened then, not that it was its child.
//!
//! Text is read by two tables only: `patterns` (what lines mean) and [`console`]
//! (`initcall_debug`'s lines).

mod anchors;
mod authors;
mod backbone;
mod calls;
mod causes;
pub mod console;
mod counts;
mod facts;
mod hints;
mod input;
mod lacks;
mod landmarks;
mod lines;
mod marks;
mod missing;
mod named;
pub mod names;
mod patterns;
mod printing;
mod processes;
mod restored;
mod rules;
mod second_kernel;
mod systemd;
mod totals;
mod tree;
mod unit_files;
mod verify;

pub use causes::registry;
pub use causes::{causes, is_wait, smaller_initrd, Cause};
pub use hints::{hints, Hints};
pub use marks::is_login;
pub use missing::GAVE_WAY;
pub use named::{NamedMark, MOST_MARKS};
pub use totals::{activity_times, phase_of, phases_of};
pub use verify::verify;

use anchors::{Anchors, Candidates};
use facts::RunIndex;
use tree::Growing;
use vmeter_model::run::Origin;
use vmeter_model::{Event, Ns, RunRecord, Span, Timeline};

/// Accounts for the whole of a run.
///
/// `events` may be in any order and of any quality. The result always holds what
/// [`verify`] checks; what was wrong or missing is in its `warnings`.
///
/// The run's length is `run.total_ns`; in an icount run, it is the guest's
/// virtual time from its reset vector (0) to the last thing it did.
pub fn build(events: &[Event], run: &RunRecord) -> Timeline {
    let (input, later) = second_kernel::split(input::prepare(events, run));
    let lines = lines::lines(&input.seen, input.total);
    let mut all_lines = lines.clone();
    let mut facts = RunIndex::new(&input, &lines, run);
    let mut warnings = input.warnings.clone();
    warnings.extend(lines::said_again(&input.seen));
    if let Some(later) = &later {
        let lines = lines::lines(&later.input.seen, later.input.total);
        warnings.extend(lines::said_again(&later.input.seen));
        warnings.push(missing::of_first(later.since, later.by));
        let second = Box::new(RunIndex::new(&later.input, &lines, run));
        facts.second = Some(facts::Second { since: later.since, by: later.by, facts: second });
        all_lines.extend(lines);
    }
    let restored = run.origin == Origin::Restore;
    facts.another = rules::another(&facts).filter(|_| !restored);
    let (anchors, mut tree) = match restored {
        true => restored::grow(&facts),
        false => grow(&facts, &mut warnings),
    };
    tree.root.fill();
    warnings.append(&mut tree.warnings);
    let mut timeline = Timeline { total: facts.total, ..Timeline::default() };
    spans_of(tree, &facts, &mut timeline);
    timeline.phases = totals::phases(&timeline);
    timeline.counts = counts::counts(events, &facts);
    let kernels = std::iter::once(&input).chain(later.iter().map(|later| &later.input));
    timeline.printing = printing::printing(kernels);
    let (named, unseen) = named::find(&run.marks, &all_lines);
    warnings.extend(unseen);
    timeline.marks = marks::marks(&facts, &anchors, &named);
    timeline.named_marks = named;
    timeline.processes = facts.processes.shown();
    timeline.command_line = marks::command_line(&facts, &run.argv);
    warnings.extend(missing::lost(&facts));
    warnings.extend(missing::lost_time(&facts, &anchors));
    warnings.extend(lacks::said(&facts));
    warnings.extend(match restored {
        true => restored::explain(&timeline, &facts),
        false => missing::explain(&timeline, &facts, &anchors, run),
    });
    timeline.warnings = warnings;
    timeline
}

/// The anchors of a boot, and its tree.
fn grow<'a>(facts: &RunIndex<'a>, warnings: &mut Vec<String>) -> (Anchors<'a>, Growing<'a>) {
    let mut candidates = Candidates::default();
    for rules in rules::RULES {
        (rules.anchors)(facts, &mut candidates);
    }
    let mut anchors = Anchors::choose(&candidates, warnings);
    backbone::settle_entry(facts, &mut anchors);
    backbone::settle_initcalls(&mut anchors);
    let mut tree = backbone::phases(facts, &anchors);
    for rules in rules::RULES {
        (rules.spans)(facts, &anchors, &mut tree);
    }
    backbone::unpacked(facts, &mut tree);
    backbone::begun_in_shared(&mut tree);
    (anchors, tree)
}

/// The tree's top level is the phases: the run itself is no span.
fn spans_of(tree: Growing<'_>, facts: &RunIndex<'_>, timeline: &mut Timeline) {
    let mut top = tree.root.children;
    if top.is_empty() && facts.total > 0 {
        top.push(tree::Node::new(vmeter_model::span::UNATTRIBUTED, 0, facts.total, ""));
    }
    for node in top {
        tree::flatten(node, None, &mut timeline.spans);
    }
    let first = timeline.spans.len();
    let mut beside = tree.beside;
    beside.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    for (index, node) in beside.into_iter().enumerate() {
        let mut of_node = Vec::new();
        tree::flatten(node, None, &mut of_node);
        let id = u32::try_from(first + index).unwrap_or(u32::MAX);
        timeline.overlapping.extend(of_node.into_iter().take(1).map(|s| Span { id, ..s }));
    }
    for span in timeline.spans.iter_mut().chain(&mut timeline.overlapping) {
        span.insns = facts.insns_between(span.start, span.end);
        span.error_ns = span.error_ns.clamp(0, Ns::MAX);
    }
}
