//! Where the time of a commit goes, from a trace that vmeter takes itself.
//!
//! `KVM_SET_GSI_ROUTING` copies the table, updates every irqfd, and waits for an SRCU grace
//! period (virt/kvm/irqchip.c, `kvm_set_irq_routing`). The grace period is a work item,
//! `process_srcu`, that a kworker has to run, and its callback is another one,
//! `srcu_invoke_callbacks`, that wakes the caller (kernel/rcu/srcutree.c). So a commit may
//! take long because the table is large, because readers are slow, or because no CPU is free
//! for the kworker; scheduler, workqueue and system call events tell which.
//!
//! One run of each strategy is recorded through a tracefs instance of its own, apart from
//! the runs that are measured. Its trace is kept, and taken apart whenever the session is
//! shown.

mod dissect;
mod marks;

use crate::bench::{run_once, Bench};
use crate::data::{Data, Traced};
use crate::error::IrqError;
use crate::result::{IrqAnatomy, IrqCommitPart, IrqStep};
use crate::strategy::IrqStrategy;
use dissect::{Call, Part, PARTS};
use marks::Marks;
use msi_routes::Strategy;
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_base::clock;
use vmeter_stats::median;
use vmeter_trace::Input;
use vmeter_tracefs::{Plan, Tracefs};

/// Events, each with what is to be recorded of it; `TID` is the committing thread.
const EVENTS: &[(&str, &str)] = &[
    ("syscalls:sys_enter_ioctl", "common_pid == TID"),
    ("syscalls:sys_exit_ioctl", "common_pid == TID"),
    (
        "sched:sched_switch",
        "prev_pid == TID || next_pid == TID || prev_comm ~ \"kworker*\" || next_comm ~ \"kworker*\"",
    ),
    ("sched:sched_waking", "pid == TID || comm ~ \"kworker*\""),
    ("workqueue:workqueue_queue_work", ""),
    ("workqueue:workqueue_execute_start", ""),
    ("workqueue:workqueue_execute_end", ""),
];
/// Ring buffer of each CPU: the commits of a second, with room to spare.
const BUFFER_KIB: u64 = 8192;
const LIMIT_BYTES: u64 = 128 << 20;
/// Steps of a commit that are shown.
const STEPS: usize = 24;

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceFailed {
    /// No tracefs, or not for this user.
    #[error(transparent)]
    Tracefs(#[from] vmeter_tracefs::Error),
    /// The trace can't be read back.
    #[error("the trace can't be read back: {0}")]
    Read(#[from] vmeter_trace::Error),
    /// It has no ioctl of ours.
    #[error(
        "the trace has no KVM_SET_GSI_ROUTING: this kernel needs CONFIG_FTRACE_SYSCALLS \
         for syscalls:sys_enter_ioctl"
    )]
    NoCalls,
    /// No file for it.
    #[error("the trace can't be kept: {0}")]
    File(#[from] std::io::Error),
    /// The experiment itself failed.
    #[error(transparent)]
    Run(#[from] IrqError),
}

/// The trace's name in the run's folder.
const TRACE: &str = "trace.dat";

/// Carries out a run, and records it in a trace in `dir`. A host that cannot be traced is no
/// error: the run says why.
pub(crate) fn record(bench: &Bench<'_>, strategy: Strategy, dir: &Path) -> Result<Data, IrqError> {
    match recorded(bench, strategy, &dir.join(TRACE)) {
        Ok(traced) => Ok(Data::Traced(traced)),
        Err(TraceFailed::Run(error)) => Err(error),
        Err(failed) => Ok(Data::NotTraced(failed.to_string())),
    }
}

fn recorded(bench: &Bench<'_>, strategy: Strategy, file: &Path) -> Result<Traced, TraceFailed> {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let instance = Tracefs::find()?.record(&plan(tid))?;
    let mut from_ns = 0;
    let total = bench.options.vfs * bench.options.vectors;
    let done = run_once(bench, strategy, total, || from_ns = now())?;
    let to_ns = now();
    drop(done);
    instance.stop()?.save(file)?;
    std::fs::File::open(file)?.sync_all()?;
    Ok(Traced { tid, from_ns, to_ns })
}

/// Takes a run's trace apart.
pub(crate) fn read(
    strategy: IrqStrategy,
    traced: &Traced,
    dir: &Path,
) -> Result<IrqAnatomy, TraceFailed> {
    let mut reader = vmeter_trace::open(Input::open(&dir.join(TRACE))?)?;
    let marks = Marks::read(reader.as_mut());
    let lost = reader.losses().lost_events + reader.losses().uncounted_gaps;
    anatomy(strategy, traced, &marks, lost).ok_or(TraceFailed::NoCalls)
}

fn plan(tid: i32) -> Plan {
    let names: Vec<&str> = EVENTS.iter().map(|(name, _)| *name).collect();
    let plan = Plan::new(&names)
        .clocks(&["mono"])
        .with_symbols_of("srcu")
        .buffer_kib(BUFFER_KIB)
        .limit(LIMIT_BYTES);
    let filters = EVENTS.iter().filter(|(_, filter)| !filter.is_empty());
    filters.fold(plan, |plan, (name, filter)| {
        plan.filter(name, &filter.replace("TID", &tid.to_string()))
    })
}

/// CLOCK_MONOTONIC, the trace clock `mono`, ns.
fn now() -> u64 {
    clock::monotonic() as u64
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn anatomy(
    strategy: IrqStrategy,
    traced: &Traced,
    marks: &Marks,
    lost_events: u64,
) -> Option<IrqAnatomy> {
    let Traced { tid, from_ns, to_ns } = *traced;
    let calls = dissect::dissect(&marks.list, tid, from_ns..to_ns);
    let commits: Vec<&Call> = calls.iter().filter(|call| call.is_commit()).collect();
    let commit_ns: u64 = commits.iter().map(|call| call.length()).sum();
    let irqfd_ns: u64 = calls.iter().filter(|c| c.is_irqfd()).map(|c| c.length()).sum();
    let typical = typical(&commits)?;
    let parts = parts(&commits, commit_ns);
    Some(IrqAnatomy {
        strategy,
        commits: commits.len(),
        commit_s: seconds(commit_ns),
        irqfd_s: seconds(irqfd_ns),
        total_s: seconds(to_ns.saturating_sub(from_ns)),
        cause: cause(&parts, &commits, marks),
        parts: parts.into_iter().map(|(_, part)| part).collect(),
        chain: chain(typical, marks),
        lost_events,
    })
}

/// The commit of median length.
fn typical<'c>(commits: &[&'c Call]) -> Option<&'c Call> {
    let mut by_length = commits.to_vec();
    by_length.sort_by_key(|call| call.length());
    by_length.get(by_length.len() / 2).copied()
}

fn parts(commits: &[&Call], commit_ns: u64) -> Vec<(Part, IrqCommitPart)> {
    let part = |part: Part| {
        let each: Vec<f64> = commits.iter().map(|call| seconds(call.part(part))).collect();
        let total_s: f64 = each.iter().sum();
        let share = total_s / seconds(commit_ns).max(f64::MIN_POSITIVE);
        let name = part.name().to_owned();
        (part, IrqCommitPart { name, total_s, median_s: median(&each), share })
    };
    let mut parts: Vec<_> = PARTS.into_iter().map(part).collect();
    parts.retain(|(_, part)| part.total_s > 0.0);
    parts.sort_by(|a, b| b.1.total_s.total_cmp(&a.1.total_s));
    parts
}

/// One sentence: what most of the time is, and who was in the way.
fn cause(parts: &[(Part, IrqCommitPart)], commits: &[&Call], marks: &Marks) -> String {
    let share =
        |wanted: Part| parts.iter().find(|(part, _)| *part == wanted).map_or(0.0, |p| p.1.share);
    let percent = |share: f64| format!("{:.0}%", 100.0 * share);
    let kworker = share(Part::KworkerQueued) + share(Part::KworkerRunnable);
    let (at_work, readers) = (share(Part::KworkerRuns), share(Part::GracePeriod));
    let (woken, resumed, work) = (share(Part::Woken), share(Part::Resumed), share(Part::Work));
    let asleep = kworker + at_work + readers + woken + resumed;
    if work >= asleep && work >= share(Part::Preempted) {
        let text = "of the commits' time is on CPU, copying routes and updating irqfds";
        return format!("table copy: {} {text}", percent(work));
    }
    let behind = |who: fn(&Call) -> Option<i32>| {
        let name = usual(commits.iter().filter_map(|call| who(call)), marks);
        name.map_or(String::new(), |name| format!(" (mostly behind {name})"))
    };
    if share(Part::Preempted) > asleep {
        let part = percent(share(Part::Preempted));
        let text = "of the commits' time passes while another thread runs on the committing \
            thread's CPU";
        return format!("preemption: {part} {text}{}", behind(|c| c.preempted_by));
    }
    let own = woken + resumed;
    let what = match kworker + at_work {
        _ if readers > asleep - readers => "SRCU grace period waiting for readers",
        queued if queued >= own => "SRCU grace period waiting for a kworker",
        _ if resumed > woken => "idle CPU starting the committer after the SRCU grace period",
        _ => "committer waiting for a busy CPU after the SRCU grace period",
    };
    let pieces = [
        (kworker, format!("for a kworker to run{}", behind(|c| c.kworker_followed))),
        (at_work, "while the kworker runs".to_owned()),
        (readers, "for readers or a timer".to_owned()),
        (resumed, "for an idle CPU to start the committer".to_owned()),
        (woken, format!("for a CPU after the grace period{}", behind(|c| c.caller_followed))),
    ];
    let waits: f64 = pieces.iter().map(|(share, _)| share).sum();
    let mut pieces: Vec<_> = pieces.into_iter().filter(|(share, _)| *share >= 0.005).collect();
    pieces.sort_by(|a, b| b.0.total_cmp(&a.0));
    let pieces: Vec<String> =
        pieces.into_iter().map(|(share, text)| format!("{} {text}", percent(share))).collect();
    let (pieces, waits) = (pieces.join(", "), percent(waits));
    format!("{what}: the commits spend {waits} of their time on waits: {pieces}")
}

/// The thread named most often, the idle thread left out; kworkers are one.
fn usual(threads: impl Iterator<Item = i32>, marks: &Marks) -> Option<&str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in threads.filter(|tid| *tid != 0).filter_map(|tid| marks.names.get(&tid)) {
        let name = if name.starts_with("kworker/") { "a kworker" } else { name };
        *counts.entry(name).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name)
}

fn chain(call: &Call, marks: &Marks) -> Vec<IrqStep> {
    let step = |(at, step): &(u64, dissect::Step)| IrqStep {
        at_s: seconds(at.saturating_sub(call.from)),
        what: step.describe(marks),
    };
    call.steps.iter().take(STEPS).map(step).collect()
}

#[cfg(test)]
mod tests;
