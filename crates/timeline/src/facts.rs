//! What the rules know of a run: its events, and what was read out of them once.

use crate::anchors::Stamp;
use crate::calls::{self, Calls};
use crate::input::{Input, Seen};
use crate::landmarks::is_itself;
use crate::lines::{self, Hit, Line};
use crate::processes::Processes;
use crate::rules::Another;
use crate::second_kernel::By;
use crate::systemd;
use crate::unit_files::Orders;
use std::collections::BTreeMap;
use vmeter_model::kernel_log;
use vmeter_model::{Cause, EventKind, Moment, Ns, Outcome, RunRecord};

/// Ends in which the kernel panicked, or may have.
const PANICS: [Cause; 3] = [Cause::Panic, Cause::OutOfMemory, Cause::TimedOut];

/// Everything known of one run.
#[derive(Debug)]
pub(crate) struct RunIndex<'a> {
    /// End of the run, ns.
    pub total: Ns,
    /// True if time is the guest's, and 0 is its reset vector.
    pub virtual_time: bool,
    /// Where a run in virtual time was cut, in the host's time, ns after exec.
    pub host_end: Option<Ns>,
    /// True if the guest was still at work when the run ended: at its ready point, or stopped
    /// short.
    pub goes_on: bool,
    /// True if it is known that the kernel did not panic, whatever the console reads like.
    pub no_panic: bool,
    /// For how long the command line asks the firmware to wait at its boot menu, ns.
    pub menu_wait: Option<Ns>,
    /// Events in order.
    pub seen: &'a [Seen<'a>],
    /// Lines, in order.
    pub lines: Vec<Line<'a>>,
    /// Lines that mean something, in order.
    pub hits: Vec<Hit<'a>>,
    /// Initcalls and what was printed of them.
    pub calls: Calls<'a>,
    /// Processes of user space.
    pub processes: Processes<'a>,
    /// How many of the guest's trace's first records were overwritten, and the time of the first
    /// that is left; the end of the run, where none is.
    pub lost: Option<(u64, Ns)>,
    /// How many of the first records of the guest's log were overwritten.
    pub log_lost: u64,
    /// Sizes, bytes, of a log and of a trace that would have kept all, where they are known.
    pub wanted: [Option<u64>; 2],
    /// How many of its records have no place in the run.
    pub log_unplaced: u64,
    /// What its kernel lacks to be read by, of [`kernel_log::LACKS`].
    pub lacks: [bool; 3],
    /// Records of the log, and pages of the trace, that a running guest wrote while they were copied.
    pub torn: [u64; 2],
    /// True if the guest's first process is known to be systemd.
    pub systemd: bool,
    /// Which unit of systemd comes after which.
    pub orders: Orders<'a>,
    /// Addresses reached, in order.
    pub reached: Vec<(&'a str, Stamp<'a>)>,
    /// When vmeter held the VMM, ns after exec, in order.
    pub held: Vec<(Ns, Ns)>,
    /// What spoke before the kernel, and is neither firmware nor boot loader.
    pub another: Option<Another<'a>>,
    /// The kernel that came after this one, of which nothing else here is.
    pub second: Option<Second<'a>>,
    insns: BTreeMap<Ns, u64>,
}

/// A kernel that came after another.
#[derive(Debug)]
pub(crate) struct Second<'a> {
    /// When the first gave way.
    pub since: Stamp<'a>,
    /// How.
    pub by: By,
    /// What is known of the second.
    pub facts: Box<RunIndex<'a>>,
}

impl<'a> RunIndex<'a> {
    /// Reads the events once.
    pub(crate) fn new(input: &'a Input<'a>, lines: &[Line<'a>], run: &RunRecord) -> Self {
        let seen = input.seen.as_slice();
        let all: Vec<(&str, Stamp<'_>)> = seen
            .iter()
            .filter_map(|s| match s.what {
                EventKind::Reached { symbol } => Some((symbol.as_str(), Stamp::of(s))),
                _ => None,
            })
            .collect();
        let itself = |(symbol, stamp): &(&str, Stamp<'_>)| is_itself(seen, &all, symbol, *stamp);
        let reached = all.iter().copied().filter(itself).collect();
        let insns = seen.iter().filter_map(|s| Some((s.at, s.insns?))).collect();
        let ready = run.moment(&Moment::Ready).is_some_and(|at| at >= run.total_ns);
        let killed = seen.iter().any(|s| *s.what == EventKind::VmmKilled);
        let processes = Processes::of(seen);
        RunIndex {
            total: input.total,
            virtual_time: input.virtual_time,
            host_end: input.host_end,
            goes_on: run.outcome != Outcome::Done || ready || killed,
            no_panic: run.end.as_ref().is_some_and(|end| !PANICS.contains(&end.cause)),
            menu_wait: menu_wait(&run.argv),
            seen,
            lines: lines.to_vec(),
            hits: lines::hits(lines),
            calls: calls::collect(seen, lines, input.total),
            lost: lost(seen, input.total),
            log_lost: count(seen, kernel_log::LOST).map_or(0, |(_, count)| count),
            wanted: kernel_log::WANTED.map(|of| count(seen, of).map(|(_, bytes)| bytes)),
            torn: kernel_log::TORN.map(|of| count(seen, of).map_or(0, |(_, count)| count)),
            lacks: kernel_log::LACKS.map(|of| count(seen, of).is_some()),
            log_unplaced: count(seen, kernel_log::UNPLACED).map_or(0, |(_, count)| count),
            systemd: systemd::is_there(lines, &processes),
            processes,
            orders: Orders::of(seen, lines),
            reached,
            held: held(run, input),
            another: None,
            second: None,
            insns,
        }
    }

    /// The run's own end.
    pub(crate) fn end(&self) -> Stamp<'a> {
        Stamp { at: self.total, error: 0, source: "" }
    }

    /// The first time that one of `symbols` was reached.
    pub(crate) fn first_reached(&self, symbols: &[&str]) -> Option<Stamp<'a>> {
        self.reached.iter().find(|(symbol, _)| symbols.contains(symbol)).map(|(_, stamp)| *stamp)
    }

    /// The first event that `pick` accepts.
    pub(crate) fn first(&self, pick: impl Fn(&EventKind) -> bool) -> Option<Stamp<'a>> {
        self.seen.iter().find(|s| pick(s.what)).map(Stamp::of)
    }

    /// Guest instructions between two moments, if both were counted.
    pub(crate) fn insns_between(&self, start: Ns, end: Ns) -> Option<u64> {
        self.insns.get(&end)?.checked_sub(*self.insns.get(&start)?)
    }

    /// Guest instructions at the last moment they were counted.
    pub(crate) fn last_insns(&self) -> Option<u64> {
        self.insns.values().max().copied()
    }
}

/// QEMU's `-boot menu=on,splash-time=MS`; without the menu no firmware waits.
fn menu_wait(argv: &[String]) -> Option<Ns> {
    let values = argv.windows(2).filter(|pair| pair[0].trim_start_matches('-') == "boot");
    let options = values.flat_map(|pair| pair[1].split(','));
    let options: Vec<(&str, &str)> = options.filter_map(|one| one.trim().split_once('=')).collect();
    let last = |key: &str| options.iter().rfind(|(own, _)| *own == key).map(|(_, value)| *value);
    last("menu").filter(|menu| matches!(*menu, "on" | "yes" | "true"))?;
    let wait: u16 = last("splash-time")?.parse().ok()?;
    Some(Ns::from(wait) * 1_000_000).filter(|wait| *wait > 0)
}

/// A trace is kept in a ring: what was recorded first is overwritten first.
fn lost(seen: &[Seen<'_>], total: Ns) -> Option<(u64, Ns)> {
    let (source, count) = count(seen, "guest_trace_lost")?;
    let is_count = |s: &&Seen<'_>| matches!(s.what, EventKind::Count { .. });
    let first = seen.iter().filter(|s| s.source == source && !is_count(s)).map(|s| s.at).min();
    Some((count, first.unwrap_or(total))).filter(|(count, _)| *count > 0)
}

/// A count of a source.
fn count<'a>(seen: &[Seen<'a>], of: &str) -> Option<(&'a str, u64)> {
    seen.iter().find_map(|s| match s.what {
        EventKind::Count { name, value } if name == of => Some((s.source, *value)),
        _ => None,
    })
}

/// The stops that the recorder noted, paired. Guest time knows nothing of them.
fn held(run: &RunRecord, input: &Input<'_>) -> Vec<(Ns, Ns)> {
    let total = input.total;
    if input.virtual_time {
        return Vec::new();
    }
    let mut held: Vec<(Ns, Ns)> = Vec::new();
    let mut open: Option<Ns> = None;
    for (at, moment) in &run.moments {
        if *moment == Moment::VmeterHold {
            open = open.or(Some(*at));
        } else if let (Moment::VmeterRelease, Some(start)) = (moment, open) {
            held.push((start.clamp(0, total), (*at).clamp(0, total)));
            open = None;
        }
    }
    held.retain(|(start, end)| start < end);
    held
}
