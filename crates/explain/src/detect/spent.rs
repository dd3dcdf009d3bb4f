//! Where the time of those went that a recording was made for, if little else is said of them:
//! the largest branch, named truthfully, is an answer, and silence is none.

use super::habits::link;
use super::view::LEAST_SHARE;
use super::waits::{waits, waits_for_others, writes_data};
use super::{Candidate, View};
use crate::evidence::calls::Calls;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::moment::{Place, Sym};
use crate::result::Severity;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_render::quantity::{brief_percent, grouped};

/// Most branches that are told of.
const MOST: usize = 6;
/// Share of the traced time from which the largest is worth a finding; on a host that leaves them
/// little, of what those have.
const LEAST: f64 = 0.1;
const OF_OWN: (f64, f64) = (0.03, 0.3);
/// A part of what they have from which a branch is told of.
const ENOUGH: u64 = 20;

/// Share of the traced time that is most of it.
const HALF: f64 = 0.5;

/// A `read` that takes no longer on average, s, finds what it reads.
const SHORT_S: f64 = 100e-6;

/// Between two calls, s, beyond what strace takes to write them down.
const BETWEEN_S: f64 = 500e-6;

/// What somebody's time went into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// On a CPU.
    Runs,
    /// Asleep until a timer fires, in a call for that.
    Naps,
    /// Asleep for a device.
    Device,
    /// Asleep until something came by the network, if only from this machine.
    Network,
    /// Asleep in a call, for whatever.
    Sleeps,
    /// Where nobody recorded who had a CPU.
    In,
    /// The same, in no call.
    Between,
}

/// Who, in which call; none outside calls.
type Doing = (GroupId, Option<Sym>, What);

/// Ticks, how often, and the longest.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    ticks: u64,
    count: u64,
    worst: Option<(u64, Place)>,
}

/// The largest branch of those that the recording was made for; none if that is not known, a
/// guest's requests tell, or what is `told` says so.
pub fn spent(view: &View<'_>, told: &[Candidate]) -> Option<Candidate> {
    if !view.requests().is_empty() {
        return None;
    }
    let much =
        |all: &Vec<(Doing, Sum)>| all.first().is_some_and(|(_, s)| view.share(s.ticks) >= LEAST);
    let (mut sleeping, mut program) = (false, false);
    let all = match view.evidence.runs_seen() {
        true => {
            let asleep = asleep(view, told);
            sleeping = asleep.is_some();
            asleep.unwrap_or_else(|| sorted(by_lives(view, false)))
        }
        // Who does nothing but wait says so.
        false => Some(sorted_by_cost(view, by_calls(view, false)))
            .filter(much)
            .or_else(|| {
                program = true;
                let writes = writes(view, by_calls(view, false));
                Some(sorted(writes)).filter(much)
            })
            .unwrap_or_else(|| {
                program = false;
                sorted(by_calls(view, true))
            }),
    };
    let &((who, call, what), sum) = all.first()?;
    let said = |other: &Candidate| call.is_some_and(|call| other.summary.contains(view.name(call)));
    let whole = crate::sum(all.iter().map(|(_, sum)| sum.ticks)).max(1);
    let share = view.share(sum.ticks);
    let of_own = sum.ticks as f64 / whole as f64;
    let little = share < LEAST && (share < OF_OWN.0 || of_own < OF_OWN.1);
    if little || told.iter().any(said) {
        return None;
    }
    let enough = |sum: &Sum| view.share(sum.ticks) >= LEAST_SHARE || sum.ticks >= whole / ENOUGH;
    let much = all.iter().take(MOST).filter(|(_, sum)| enough(sum));
    let lines: Vec<String> = much.map(|(doing, sum)| line(view, *doing, *sum)).collect();
    let mut claim = format!("where the time goes, of all traced: {}", lines.join("; "));
    if program {
        claim = format!("{claim}, all threads and all calls that write together");
    }
    let file = view.evidence.groups.get(who).map_or(0, |group| group.first.file);
    let (name, share) = (view.threads(who), brief_percent(share));
    let calls = view.evidence.seen(file).syscalls;
    let (why, summary) = if program {
        let name = call.map_or("", |call| view.name(call));
        let times = grouped(&sum.count.to_string());
        (
            Why::InCall,
            format!("the program writes {share} of the time: {times} calls of {name} and its like"),
        )
    } else {
        headline(&name, call.map(|call| view.name(call)), (what, calls), &share)
    };
    Some(Candidate {
        why,
        subject: if program { "the program".into() } else { name },
        saving: sum.ticks,
        summary,
        chain: vec![link(view, file, claim, sum.count, sum.ticks, sum.worst)],
        suggestion:
            "the largest part comes first: do it less often, for more at a time, or beside \
                     the rest"
                .into(),
        confirm: "perf record -g -p PID sleep 5; perf trace -s -p PID sleep 5".into(),
        at_most: Some(Severity::Low),
        life: true,
        aside: !sleeping || !told.is_empty(),
        ..Candidate::default()
    })
}

/// Where most of the time goes, if that is a sleep, and what else is told is less than half of it.
fn asleep(view: &View<'_>, told: &[Candidate]) -> Option<Vec<(Doing, Sum)>> {
    let all = sorted(by_lives(view, true));
    let said = told.iter().map(|other| other.saving).max().unwrap_or(0);
    let chosen = view.comm().is_some() || view.evidence.ends.any_gaps() || told.is_empty();
    let ((.., what), sum) = all.first()?;
    let most = *what == What::Sleeps && sum.ticks > said.saturating_mul(2);
    (chosen && most).then_some(all)
}

/// The kind of what takes most, and a sentence; `calls` says whether these are recorded.
fn headline(
    name: &str,
    call: Option<&str>,
    (what, calls): (What, bool),
    share: &str,
) -> (Why, String) {
    match (what, call) {
        (What::Runs, None) if !calls => {
            (Why::OnCpu, format!("{name} is on a CPU {share} of the time"))
        }
        (What::Between, _) => (
            Why::OnCpu,
            format!("{name} is in no call {share} of the time: it computes, or has no CPU"),
        ),
        (What::Runs, None) => (Why::Computes, format!("{name} computes {share} of the time")),
        (What::Runs, Some(call)) => {
            (Why::Busy, format!("{name} is busy in {call} {share} of the time"))
        }
        (What::Naps, call) => {
            let inside = call.map_or(String::new(), |call| format!(" in {call}"));
            (Why::Timer, format!("{name} sleeps{inside} {share} of the time"))
        }
        (What::Device, call) => {
            let inside = call.map_or(String::new(), |call| format!(" in {call}"));
            (Why::Device, format!("{name} waits for a device{inside} {share} of the time"))
        }
        (What::Network, call) => {
            let inside = call.map_or(String::new(), |call| format!(" in {call}"));
            (Why::Network, format!("{name} waits for the network{inside} {share} of the time"))
        }
        (What::Sleeps, call) => (
            Why::InCall,
            format!("{name} is asleep in {} {share} of the time", call.unwrap_or("calls")),
        ),
        (What::In, Some(call)) if waits(call) => (
            Why::InCall,
            format!("{name} waits in {call} {share} of the time; for whom is not recorded"),
        ),
        (What::In, call) => {
            (Why::InCall, format!("{name} is in {} {share} of the time", call.unwrap_or("calls")))
        }
    }
}

fn sorted(sums: BTreeMap<Doing, Sum>) -> Vec<(Doing, Sum)> {
    let mut all: Vec<(Doing, Sum)> = sums.into_iter().collect();
    all.sort_by_key(|(doing, sum)| (std::cmp::Reverse(sum.ticks), *doing));
    all
}

/// Those first that take most with their ways into the kernel and back, as far as time is left for
/// these; what is in no call comes first only if it is most of the time.
fn sorted_by_cost(view: &View<'_>, sums: BTreeMap<Doing, Sum>) -> Vec<(Doing, Sum)> {
    let (mut count, mut ticks) = (0_u64, 0_u64);
    for ((_, call), calls) in &view.evidence.ledger.calls {
        count += calls.count;
        if !waits_for_others(view.name(*call)) {
            ticks = ticks.saturating_add(calls.ticks);
        }
    }
    let left = view.evidence.span().saturating_sub(ticks);
    let each = left / count.max(1);
    let cost = |((_, _, what), sum): &(Doing, Sum)| match what {
        What::Between if view.share(sum.ticks) < HALF => (0, sum.ticks),
        _ => (sum.ticks.saturating_add(each.saturating_mul(sum.count)), sum.ticks),
    };
    let mut all: Vec<(Doing, Sum)> = sums.into_iter().collect();
    all.sort_by_key(|part| (std::cmp::Reverse(cost(part)), part.0));
    all
}

fn line(view: &View<'_>, (who, call, what): Doing, sum: Sum) -> String {
    let inside = match call {
        Some(call) => format!("in {}", view.name(call)),
        None => "outside calls".into(),
    };
    let state = match what {
        What::Runs => ", on a CPU",
        What::Naps => ", asleep until a timer fires",
        What::Device => ", for a device",
        What::Network => ", until something came by the network",
        What::Sleeps => ", asleep",
        What::In | What::Between => "",
    };
    let times = match sum.count {
        0 | 1 => String::new(),
        count => format!(" ({} times)", grouped(&count.to_string())),
    };
    format!("{} {inside}{state} {}{times}", view.threads(who), brief_percent(view.share(sum.ticks)))
}

/// By the lives of the threads that the recording was made for.
fn by_lives(view: &View<'_>, sleeping: bool) -> BTreeMap<Doing, Sum> {
    let (mut sums, tree) = (BTreeMap::new(), view.tree());
    let groups = &view.evidence.groups;
    let all = match view.own() {
        Some(own) => own.clone(),
        // Where only some threads are recorded, these are what is asked about.
        None if view.comm().is_none() && view.evidence.ends.any_gaps() => {
            let calls = view.evidence.ledger.calls.keys().map(|(who, _)| *who);
            calls.filter(|group| !groups.is_kernel(*group)).collect()
        }
        None => BTreeSet::new(),
    };
    for who in &all {
        let Some(root) = tree.root_of(Frame::Life(*who)) else { continue };
        for (at, node) in tree.within(root) {
            let (call, states) = match node.frame {
                Frame::Call(call) => (Some(call), tree.within(at)),
                _ => (None, vec![(at, node)]),
            };
            for (_, state) in states {
                let name = call.map_or("", |call| view.name(call));
                let what = match state.frame {
                    Frame::Runs => What::Runs,
                    Frame::Timer if name.contains("nanosleep") => What::Naps,
                    Frame::Timer if call.is_none() && blind(view, *who) => What::Naps,
                    Frame::Irq(irq) if is_network(view.name(irq)) && !waits(name) => What::Network,
                    // A timer's soft interrupt, a scheduler's: no device is waited for.
                    Frame::Irq(irq) if SOFT.contains(&view.name(irq)) => continue,
                    Frame::Irq(_) | Frame::Deep if !waits(name) => What::Device,
                    Frame::NoCpu | Frame::Unknown | Frame::Guest | Frame::Faults => continue,
                    _ if sleeping && call.is_some() => What::Sleeps,
                    _ => continue,
                };
                let sum: &mut Sum = sums.entry((*who, call, what)).or_default();
                sum.ticks = sum.ticks.saturating_add(state.ticks);
                sum.count += if call.is_some() { node.count } else { 0 };
                sum.worst = longer(sum.worst, state.worst);
            }
        }
    }
    sums
}

/// Soft interrupts that are no device's.
const SOFT: [&str; 5] = ["TIMER", "HRTIMER", "SCHED", "RCU", "TASKLET"];

/// True for the network's soft interrupts.
fn is_network(irq: &str) -> bool {
    matches!(irq, "NET_RX" | "NET_TX")
}

/// True if calls are not recorded where these are.
fn blind(view: &View<'_>, who: GroupId) -> bool {
    let file = view.evidence.groups.get(who).map_or(0, |group| group.first.file);
    !view.evidence.seen(file).syscalls
}

/// By calls, where there is nothing else; with those that wait by design, if asked for.
fn by_calls(view: &View<'_>, waiting: bool) -> BTreeMap<Doing, Sum> {
    let mut sums = BTreeMap::new();
    for ((who, call), calls) in &view.evidence.ledger.calls {
        let name = view.name(*call);
        let what = match name.contains("nanosleep") {
            true => What::Naps,
            false if name == "KVM_RUN" => continue,
            false if !waiting && waits(name) && !(calls.kind.moves && is_short(view, calls)) => {
                continue
            }
            false => What::In,
        };
        let sum: &mut Sum = sums.entry((*who, Some(*call), what)).or_default();
        sum.ticks = sum.ticks.saturating_add(calls.ticks);
        sum.count += calls.count;
        sum.worst = longer(sum.worst, calls.worst);
    }
    sums.extend(between(view));
    sums
}

/// What all threads write together, by the call that takes most: a pool shares the work.
fn writes(view: &View<'_>, sums: BTreeMap<Doing, Sum>) -> BTreeMap<Doing, Sum> {
    let name = |call: &Option<Sym>| call.map_or("", |call| view.name(call));
    let all = sums.into_iter().filter(|((_, call, _), _)| writes_data(name(call)));
    let all: Vec<(Doing, Sum)> = all.collect();
    let Some((most, _)) = all.iter().max_by_key(|(_, sum)| sum.ticks).copied() else {
        return BTreeMap::new();
    };
    let whole = all.into_iter().fold(Sum::default(), |whole, (_, sum)| Sum {
        ticks: whole.ticks.saturating_add(sum.ticks),
        count: whole.count + sum.count,
        worst: longer(whole.worst, sum.worst),
    });
    BTreeMap::from([(most, whole)])
}

/// What is between calls, where that is more than what writes them down takes.
fn between(view: &View<'_>) -> BTreeMap<Doing, Sum> {
    let mut lives: BTreeMap<GroupId, (u64, u64)> = BTreeMap::new();
    for (tid, (start, end)) in view.evidence.intervals.lives() {
        let Some(group) = view.evidence.groups.group_of(tid) else { continue };
        let life = lives.entry(group).or_default();
        life.0 = life.0.saturating_add(end.saturating_sub(start));
    }
    for ((who, _), calls) in &view.evidence.ledger.calls {
        let Some(life) = lives.get_mut(who) else { continue };
        *life = (life.0.saturating_sub(calls.ticks), life.1 + calls.count);
    }
    let computes = |(ticks, count): &(u64, u64)| {
        view.seconds(ticks / (*count).max(1)).is_some_and(|each| each >= BETWEEN_S)
    };
    let known = lives.into_iter().filter(|(_, life)| computes(life));
    known
        .map(|(who, (ticks, _))| ((who, None, What::Between), Sum { ticks, ..Sum::default() }))
        .collect()
}

/// It does not wait for somebody to send something.
fn is_short(view: &View<'_>, calls: &Calls) -> bool {
    view.seconds(calls.ticks / calls.count.max(1)).is_some_and(|each| each <= SHORT_S)
}

/// The longer of two.
fn longer(one: Option<(u64, Place)>, other: Option<(u64, Place)>) -> Option<(u64, Place)> {
    let ticks = |worst: Option<(u64, Place)>| worst.map(|(ticks, _)| ticks);
    match ticks(one) >= ticks(other) {
        true => one,
        false => other,
    }
}
