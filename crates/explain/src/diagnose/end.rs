//! What a path ends at: the state that the last thread on it spends most of its time in.

use super::loops::loops;
use super::path::Path;
use crate::detect::segments::{NoCpu, PathSegment, Sum};
use crate::detect::{is_grace, syncs, waits, View};
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::evidence::work::Work;
use crate::moment::Sym;
use std::collections::BTreeMap;

/// Share of a level's time in one call that does not wait by design, from which that call is what it does.
const CALL: f64 = 0.5;
/// A part of a level's time, without and with what idles, that is a cause at all.
const LEAST: u64 = 4;
const OF_ALL: u64 = 20;
/// Share of the traced time from which a wait is told though what the other did is not recorded.
const ONCE: f64 = 0.3;
/// Page faults, and the longest time in user space for each, s, from which they are what takes it.
pub const FAULTS: (u64, f64) = (100, 20e-6);

/// Three times as long as it does something in two, from which the wait for a CPU is the cause.
const CROWDED: (u64, u64) = (3, 2);
/// Calls that give memory back, from which somebody does so over and over.
const DROPS: u64 = 20;

/// What it takes at most to queue a work item and to wake its worker, s.
const ITEM: f64 = 500e-6;
/// What strace takes between two calls of a thread at most, s, on average.
const BETWEEN: f64 = 300e-6;
/// A call that did not wait takes no longer, s.
const BRIEF: f64 = 100e-6;

/// Where a path ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// User space computes.
    User,
    /// Memory is touched for the first time.
    Faults,
    /// Memory is touched again that another has given back.
    Dropped(GroupId),
    /// A guest runs.
    Guest,
    /// On a CPU in a system call.
    Syscall,
    /// In a system call of a trace that does not tell more.
    InCall,
    /// A work function runs.
    Work(Sym),
    /// Threads of the kernel are waited for.
    Kernel(GroupId),
    /// Another has the CPU.
    Cpu(GroupId),
    /// Several others have the CPU.
    HostLoad,
    /// A quota keeps it from the CPU.
    Quota,
    /// Asleep until a timer fires.
    Timer,
    /// Asleep until a device answers.
    Disk,
    /// Asleep until something comes from the network.
    Network,
    /// Stopped until another lets it go on.
    Stopped(GroupId),
    /// It waits for another and that one for it, back and forth.
    Peer(GroupId),
    /// Until another lets it go on; what that one did meanwhile is not recorded.
    Held,
    /// Asleep until an interrupt; of what is not recorded.
    Interrupt,
    /// Asleep for a disk, a lock of the kernel or a worker: what ends that is not recorded.
    Deep,
    /// Asleep; what ends that is not recorded.
    Asleep,
    /// The same of a subject, in a call that waits by design: it may idle.
    Idle,
}

/// An end with its figures.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    /// What it is.
    pub end: End,
    /// In what call.
    pub call: Option<Sym>,
    /// Time.
    pub ticks: u64,
    /// Stretches, or calls.
    pub count: u64,
}

type Parts = BTreeMap<(Option<Sym>, End), Sum>;

/// Where a path ends.
pub fn ending(view: &View<'_>, path: &Path) -> Ending {
    let last = path.last();
    let unknown = last.ticks(|_, state| state == Frame::Unknown);
    let kernel = last.who.is_some_and(|who| view.evidence.groups.is_kernel(who));
    let hop = path.hop(path.levels.len() - 1);
    let held = || {
        let waits = hop.and_then(|hop| hop.call).is_none_or(|call| waits(view.name(call)));
        !waits && view.share(last.all.ticks) >= ONCE
    };
    if path.levels.len() > 1 && !kernel && unknown.saturating_mul(2) >= last.all.ticks && held() {
        let (who, waiter) = (last.who, path.group_at(view, path.levels.len() - 2));
        let call =
            who.zip(waiter).and_then(|(by, whom)| view.evidence.ledger.let_go(by, whom, |_| true));
        let count = hop.map_or(0, |hop| hop.count);
        return Ending { end: End::Held, call, ticks: last.all.ticks, count };
    }
    let mut own = of_level(view, path, path.levels.len() - 1);
    let Some(workers) = path.workers() else { return on_each_cpu(view, path, own) };
    // Below the doer there are threads of the kernel: what they do is done in the doer's call.
    let hop = path.hop(path.doer + 1);
    let call = hop.and_then(|hop| hop.call);
    let disk = |name: &str| ["jbd2", "xfsaild", "loop"].iter().any(|begin| name.starts_with(begin));
    own.end = match own.end {
        End::Cpu(_) | End::Quota => own.end,
        End::Work(_) => own.end,
        End::Disk | End::Network if work(path).is_none() => own.end,
        _ if disk(view.evidence.groups.name(workers)) => End::Disk,
        _ => work(path).or_else(|| provoked(view, path)).map_or(End::Kernel(workers), End::Work),
    };
    if call.is_some_and(|call| syncs(view.name(call))) && !matches!(own.end, End::Cpu(_)) {
        own.end = End::Disk;
    }
    if own.end != End::Quota && !matches!(own.end, End::Cpu(_)) {
        // All of the call is for what the kernel does in it.
        let doing = path.doing();
        let whole =
            call.and_then(|call| doing.calls.get(&Some(Frame::Call(call))).map(|sum| sum.ticks));
        let waited = path.levels.get(path.doer + 1).map_or(last.all.ticks, |level| level.all.ticks);
        own.ticks = whole.unwrap_or(waited).max(own.ticks).min(doing.all.ticks);
        own.count = hop.map_or(own.count, |hop| hop.count);
    }
    own.call = call.or(own.call);
    own
}

/// A call that has each CPU run a work item returns when the last has run it: what the call itself
/// does meanwhile is to queue them and to wake their workers.
fn on_each_cpu(view: &View<'_>, path: &Path, own: Ending) -> Ending {
    let who = path.group_at(view, path.doer);
    let (End::Syscall, Some(call), Some(who)) = (own.end, own.call, who) else { return own };
    let brief = |items: u64| view.seconds(own.ticks / items.max(1)).is_some_and(|s| s <= ITEM);
    let each = |function: Sym| {
        let work = view.evidence.works.get(&function);
        work.is_some_and(Work::of_each_cpu) && !is_grace(view.name(function))
    };
    // In one of two requests at least, or in each of its calls.
    let least = match path.root {
        Frame::Request(key) => view.evidence.subjects.get(&key).map_or(0, |s| s.timed / 2),
        _ => own.count,
    };
    let provoked = view.evidence.ledger.provoked.iter();
    let provoked = provoked.filter(|((by, inside, function), made)| {
        let items = made.count;
        *by == who && *inside == Some(call) && items >= least && brief(items) && each(*function)
    });
    let most = provoked.max_by_key(|((.., function), made)| (made.count, *function));
    most.map_or(own, |((.., function), _)| Ending { end: End::Work(*function), ..own })
}

/// The work function that threads of the kernel on the path run most.
fn work(path: &Path) -> Option<Sym> {
    path.levels.iter().skip(path.doer + 1).rev().find_map(|level| {
        let works = PathSegment::sorted(&level.calls).into_iter();
        let mut works = works.filter_map(|(call, sum)| match call {
            Some(Frame::Work(work)) => Some((work, sum)),
            _ => None,
        });
        works
            .find(|(_, sum)| sum.ticks * 5 >= level.all.ticks || sum.count >= 10)
            .map(|(work, _)| work)
    })
}

/// The work function that the doer has workers run most, about once a wait for these.
fn provoked(view: &View<'_>, path: &Path) -> Option<Sym> {
    let doer = path.group_at(view, path.doer)?;
    let waits = path.hop(path.doer + 1).map_or(0, |hop| hop.count);
    let mut by: BTreeMap<Sym, u64> = BTreeMap::new();
    for ((who, _, function), made) in &view.evidence.ledger.provoked {
        if *who == doer || path.workers() == Some(*who) {
            *by.entry(*function).or_default() += made.count;
        }
    }
    let (function, count) = by.into_iter().max_by_key(|(_, count)| *count)?;
    (count * 2 >= waits).then_some(function)
}

fn of_level(view: &View<'_>, path: &Path, at: usize) -> Ending {
    let level = &path.levels[at];
    let parts = parts(view, path, at);
    let by_end = |call: Option<Sym>, only: bool| {
        let mut ends: BTreeMap<End, (u64, u64)> = BTreeMap::new();
        for ((c, end), sum) in &parts {
            if !only || *c == call {
                let all = ends.entry(*end).or_default();
                *all = (all.0.saturating_add(sum.ticks), all.1 + sum.count);
            }
        }
        ends
    };
    // Between two calls of strace is its own time, too: that is brief.
    let outside = level.parts.get(&(None, Frame::Runs)).copied().unwrap_or_default();
    let each = view.seconds(outside.ticks / outside.count.max(1));
    let brief = view.evidence.only_calls() && each.is_some_and(|each| each <= BETWEEN);
    let between = |end: &End| brief && *end == End::User;
    let crowd =
        crate::sum(parts.iter().filter(|((_, e), _)| *e == End::HostLoad).map(|(_, s)| s.ticks));
    // It is the host's load, but for one that waits for a CPU for longer than for all else.
    let pauses = if at == 0 { level.pauses(view) } else { 0 };
    let other = level.all.ticks.saturating_sub(crowd).saturating_sub(pauses);
    let crowded = path.levels.len() == 1 && crowd * CROWDED.1 >= other * CROWDED.0;
    let vague = |end: &End| match end {
        End::HostLoad => !crowded,
        End::Idle => true,
        end => between(end),
    };
    let vaguely = crate::sum(parts.iter().filter(|((_, end), _)| vague(end)).map(|(_, s)| s.ticks));
    let unknown = level.ticks(|_, state| state == Frame::Unknown);
    let known = level.all.ticks.saturating_sub(unknown).saturating_sub(vaguely);
    let most = |ends: BTreeMap<End, (u64, u64)>| {
        let much =
            |ticks: u64| ticks * LEAST >= known && ticks * OF_ALL >= level.all.ticks - unknown;
        let clear = ends.iter().filter(|(end, (ticks, _))| !vague(end) && much(*ticks));
        let computes = |end: &End| view.evidence.only_calls() && *end == End::User;
        let clear = clear.max_by_key(|(end, (ticks, _))| (!computes(end), *ticks));
        let clear = clear.map(|(e, s)| (*e, *s));
        clear.or_else(|| ends.into_iter().max_by_key(|(_, (ticks, _))| *ticks))
    };
    let much = |sum: &Sum| sum.ticks * OF_ALL >= level.all.ticks - unknown;
    if let Some((call, sum)) = focus(view, level, known).filter(|(_, sum)| much(sum)) {
        let ends = by_end(Some(call), true);
        let inside = most(ends).unwrap_or((End::Syscall, (sum.ticks, sum.count)));
        let end = match inside.0 {
            _ if syncs(view.name(call)) && !matches!(inside.0, End::Cpu(_) | End::Quota) => {
                End::Disk
            }
            End::User => End::Syscall,
            End::Asleep if view.evidence.only_calls() => End::InCall,
            end => end,
        };
        let whole = matches!(
            end,
            End::Syscall
                | End::Disk
                | End::Network
                | End::Work(_)
                | End::Kernel(_)
                | End::Asleep
                | End::Interrupt
                | End::Deep
                | End::InCall
        );
        let (ticks, count) = if whole { (sum.ticks, sum.count) } else { inside.1 };
        return Ending { end, call: Some(call), ticks, count };
    }
    let (end, (ticks, count)) = most(by_end(None, false)).unwrap_or((End::Asleep, (0, 0)));
    let calls = parts.iter().filter(|((_, e), _)| *e == end);
    let call = calls.max_by_key(|(_, sum)| sum.ticks).and_then(|((call, _), _)| *call);
    let call = call.filter(|_| !matches!(end, End::User | End::Guest));
    let mut ending = Ending { end, call, ticks, count };
    if end == End::User {
        let faults: u64 = level
            .parts
            .iter()
            .filter(|((_, s), _)| *s == Frame::Faults)
            .map(|(_, s)| s.count)
            .sum();
        let each = view.seconds(ticks / faults.max(1));
        let who = path.group_at(view, at);
        match who.and_then(|who| drops(view, who)).filter(|_| faults >= FAULTS.0) {
            Some((by, call)) => {
                ending = Ending { end: End::Dropped(by), call: Some(call), ticks, count: faults };
            }
            None if faults >= FAULTS.0 && each.is_some_and(|each| each <= FAULTS.1) => {
                (ending.end, ending.count) = (End::Faults, faults);
            }
            None => {}
        }
    }
    ending
}

/// Who gives a vCPU's memory back over and over: of those, the one whose number is nearest, as threads of a
/// process are started in a row.
fn drops(view: &View<'_>, who: GroupId) -> Option<(GroupId, Sym)> {
    let evidence = view.evidence;
    let tid = |group| evidence.groups.get(group).map_or(0, |own| own.first.tid);
    let calls = evidence.ledger.calls.iter().filter(|((by, call), calls)| {
        view.is_vcpu(who) && *by != who && calls.count >= DROPS && view.name(*call) == "madvise"
    });
    let by = calls.map(|(key, _)| *key).filter(|(by, _)| loops(view, Frame::Life(*by)));
    by.min_by_key(|(by, call)| (tid(*by).abs_diff(tid(who)), *call))
}

/// The call, not one that waits by design, that most of a level's time goes by in.
fn focus(view: &View<'_>, level: &PathSegment, known: u64) -> Option<(Sym, Sum)> {
    let (call, sum) = level.system_calls().next()?;
    (!waits(view.name(call)) && sum.ticks as f64 >= CALL * known as f64).then_some((call, sum))
}

/// A level's time by call and end.
fn parts(view: &View<'_>, path: &Path, at: usize) -> Parts {
    let level = &path.levels[at];
    let mut parts = Parts::new();
    let no_cpu = no_cpu(view, path, at);
    for ((call, state), sum) in &level.parts {
        let name = call.map_or("", |call| view.frame_name(call));
        let end = match (*state, *call) {
            (Frame::Unknown | Frame::Faults | Frame::Idle, _) => continue,
            (Frame::Guest, _) => End::Guest,
            (Frame::Runs, Some(Frame::Work(work))) => End::Work(work),
            (Frame::Runs, Some(_)) => End::Syscall,
            (Frame::Runs, None) => End::User,
            (Frame::NoCpu, _) => no_cpu,
            (Frame::Timer, _) => End::Timer,
            (Frame::Irq(irq), _) => interrupt(view.name(irq), name),
            (Frame::Interrupt, _) => interrupt("", name),
            (Frame::Deep, _) if view.evidence.seen_anywhere().wakes => End::Disk,
            (Frame::Deep, _) if syncs(name) => End::Disk,
            (Frame::Deep, _) => End::Deep,
            (Frame::Stopped(by), _) => End::Stopped(by),
            (Frame::Waker(by), _) if view.evidence.groups.is_kernel(by) => End::Kernel(by),
            (Frame::Waker(by), _) => End::Peer(by),
            _ if name == "KVM_RUN" && view.evidence.only_calls() => End::Guest,
            _ if view.evidence.only_calls()
                && waits(name)
                && is_brief(view, sum.ticks, sum.count) =>
            {
                End::InCall
            }
            _ if at == 0 && path.root.life().is_some() && waits(name) => End::Idle,
            // Of a sleep of which neither the call nor its end is recorded nothing is known.
            _ if at == 0 && call.is_none() && !view.evidence.seen_anywhere().wakes => End::Idle,
            // Nothing else is waited for in it.
            (Frame::Asleep, _) if name == "connect" && view.evidence.only_calls() => End::Network,
            // strace does not tell whether a call sleeps.
            _ if view.evidence.only_calls() && !name.is_empty() && !waits(name) => End::InCall,
            _ => End::Asleep,
        };
        let call = match call {
            Some(Frame::Call(call)) => Some(*call),
            _ => None,
        };
        let all = parts.entry((call, end)).or_default();
        all.ticks = all.ticks.saturating_add(sum.ticks);
        all.count += sum.count;
    }
    parts
}

/// True if calls did not wait, though they may by design: they were over at once.
pub fn is_brief(view: &View<'_>, ticks: u64, count: u64) -> bool {
    view.seconds(ticks / count.max(1)).is_some_and(|each| each <= BRIEF)
}

/// What an interrupt ends that a thread sleeps for in a call.
fn interrupt(irq: &str, call: &str) -> End {
    let irq = irq.to_ascii_lowercase();
    let network = ["recv", "send", "accept", "connect"].iter().any(|begin| call.starts_with(begin));
    match irq.as_str() {
        irq if irq.contains("timer") => End::Timer,
        "net_rx" | "net_tx" => End::Network,
        "block" => End::Disk,
        _ if network => End::Network,
        "" if call.is_empty() => End::Interrupt,
        "" if waits(call) => End::Timer,
        _ => End::Disk,
    }
}

/// What a level's time without a CPU is.
fn no_cpu(view: &View<'_>, path: &Path, at: usize) -> End {
    let level = &path.levels[at];
    let does = |rival: GroupId| {
        let doing = level.preempters.iter().filter(|((group, _), _)| *group == rival);
        doing.max_by_key(|(key, sum)| (sum.ticks, **key)).and_then(|((_, doing), _)| *doing)
    };
    let kernel = |rival| view.evidence.groups.is_kernel(rival);
    match level.no_cpu {
        NoCpu::HostLoad => End::HostLoad,
        NoCpu::Quota => End::Quota,
        NoCpu::Preempted(rival) | NoCpu::Shared(rival) => match does(rival) {
            Some(Frame::Work(work)) if kernel(rival) => End::Work(work),
            _ => End::Cpu(rival),
        },
        // Those of its own name, and those that it waits for: their computing.
        NoCpu::Path(rival) => match does(rival) {
            Some(Frame::Call(_)) => End::Syscall,
            Some(Frame::Work(work)) => End::Work(work),
            _ if kernel(rival) => End::Kernel(rival),
            _ => End::User,
        },
    }
}
