//! What threads do again and again, by the number of it: calls that grow from turn to turn or
//! from call to call, wake-ups in vain, hand-overs for little, naps where nobody recorded
//! switches.

use super::growth::{series_grows, Growth};
use super::levels::level_of;
use super::segments::PathSegment;
use super::view::LEAST_SHARE;
use super::waits::waits;
use super::{Candidate, Detector, View};
use crate::evidence::calls::{Calls, Wakes};
use crate::evidence::groups::GroupId;
use crate::evidence::name_traits::Traits;
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::moment::{Place, Sym};
use crate::result::{Link, Severity};
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, grouped, three_digits};

/// Fewer calls than this are no pattern.
const LEAST: u64 = 20;
/// Calls that prepare a file to be written or read as a whole.
const OPENS: [&str; 6] = ["open", "openat", "creat", "truncate", "ftruncate", "rename"];
/// Bytes of a call at the end that are many.
const MANY_BYTES: f64 = 65_536.0;
/// Threads that one call wakes on average, from which they are a herd.
const HERD: f64 = 4.0;
/// Wake-ups from which they are a pattern.
const WAKES: u64 = 100;
/// Share of them in vain.
const VAIN: f64 = 0.5;
/// Hand-overs from which they are looked at, and the time between two, s.
const HAND_OVERS: (u64, f64) = (500, 400e-6);
/// A stretch on a CPU of this length, s, is no more than a few calls.
const CALLS_S: f64 = 60e-6;

/// What threads do again and again.
pub struct Patterns;

impl Detector for Patterns {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let mut all = habits(view);
        all.extend(super::throttled::throttled(view));
        all
    }
}

/// Everything of the kind.
fn habits(view: &View<'_>) -> Vec<Candidate> {
    let mut all = herds(view);
    all.extend(growing(view));
    all.extend(growing_bytes(view));
    all.extend(hand_overs(view));
    all
}

/// A link that is about no request.
pub(super) fn link(
    view: &View<'_>,
    file: u16,
    claim: String,
    count: u64,
    ticks: u64,
    worst: Option<(u64, Place)>,
) -> Link {
    view.link(file, claim, (count, ticks), &[], &[worst])
}

fn growing(view: &View<'_>) -> Vec<Candidate> {
    let mut all: Vec<(&(GroupId, Sym), &Calls)> = view.evidence.ledger.calls.iter().collect();
    all.sort_by_key(|(key, _)| **key);
    let found = all.into_iter().filter_map(|(&(who, call), calls)| {
        let life = view.tree().root_of(Frame::Life(who));
        let life = life.and_then(|at| view.tree().node(at)).map_or(0, |node| node.ticks);
        let waits = waits(view.name(call));
        // Of one that waits by design, what it has a CPU for.
        let ticks = if waits { calls.times.sum(|point| point.calls) } else { calls.ticks };
        let much = view.share(ticks) >= LEAST_SHARE || ticks.saturating_mul(20) >= life.max(1);
        if calls.count < LEAST
            || waits
                && !Traits::of(view.name(call)).has(Traits::MOVES)
                && !view.evidence.runs_seen()
            || !much
        {
            return None;
        }
        let number = series_grows(&calls.turns, |point| point.calls).filter(|g| g.last >= 8.0);
        let time = match waits {
            true if view.evidence.runs_seen() => series_grows(&calls.times, |point| point.calls),
            true => None,
            false => series_grows(&calls.times, |point| point.ticks),
        };
        let calls = (calls, ticks);
        match (number, time) {
            (Some(growth), _) => Some(grows(view, (who, call), calls, growth, true)),
            (_, Some(growth)) => Some(grows(view, (who, call), calls, growth, false)),
            _ => None,
        }
    });
    found.collect()
}

/// Calls that move more bytes each time: all there is so far is read or written again.
fn growing_bytes(view: &View<'_>) -> Vec<Candidate> {
    let mut all: Vec<(&(GroupId, Sym), &Calls)> = view.evidence.ledger.calls.iter().collect();
    all.sort_by_key(|(key, _)| **key);
    let mut by: BTreeMap<GroupId, Vec<(Sym, &Calls, Growth)>> = BTreeMap::new();
    for (&(who, call), calls) in &all {
        let Some(bytes) = calls.bytes.as_ref().filter(|_| calls.count >= LEAST) else { continue };
        let growth = series_grows(bytes, |point| point.ticks).filter(|g| g.last >= MANY_BYTES);
        by.entry(who).or_default().extend(growth.map(|growth| (call, *calls, growth)));
    }
    let found = by.into_iter().filter_map(|(who, mut growing)| {
        growing.sort_by(|a, b| b.2.last.total_cmp(&a.2.last));
        let (call, calls, growth) = *growing.first()?;
        // What is written anew is opened and cut off before.
        let opens = |call: Sym| OPENS.contains(&view.name(call));
        let opening = all.iter().filter(|((own, call), _)| *own == who && opens(*call));
        let opening = crate::sum(opening.map(|(_, calls)| calls.ticks));
        let moving = crate::sum(growing.iter().map(|(_, calls, _)| calls.ticks));
        let (who, names) = (view.threads(who), growing.iter().map(|(call, ..)| view.name(*call)));
        let names: Vec<&str> = names.collect();
        let (name, names) = (view.name(call), names.join(" and "));
        let number = |bytes: f64| grouped(&(bytes.max(0.0) as u64).to_string());
        let claim = format!(
            "of {} calls of {name}, the n-th moves ({} + {} × n) bytes (linear fit, R² {}). \
                Together these calls move {} bytes, a total that grows with the square \
                of the number of calls. The {names} calls take {}. Together with the calls by \
                which the same threads open, truncate or rename files, they take {}",
            grouped(&calls.count.to_string()),
            number(growth.intercept),
            number(growth.slope),
            three_digits(growth.r2),
            grouped(&calls.returned.to_string()),
            view.time(moving as f64),
            view.time(moving.saturating_add(opening) as f64)
        );
        (view.share(moving) >= LEAST_SHARE).then(|| Candidate {
            why: Why::Grows,
            subject: who.clone(),
            saving: moving.saturating_add(opening),
            summary: format!(
                "each {names} of {who} moves more bytes than the one before: the last one moves {}",
                number(growth.last)
            ),
            chain: vec![link(view, call.file(), claim, calls.count, calls.ticks, calls.worst)],
            suggestion: format!(
                "call {names} for the new data only (append), not for everything so far"
            ),
            confirm: format!("strace -f -e trace={name} -p PID"),
            ..Candidate::default()
        })
    });
    found.collect()
}

fn grows(
    view: &View<'_>,
    (who, call): (GroupId, Sym),
    (calls, ticks): (&Calls, u64),
    growth: Growth,
    number: bool,
) -> Candidate {
    let (who, name) = (view.threads(who), view.name(call));
    let first = (growth.intercept.max(0.0) / growth.last.max(1e-9)).clamp(0.0, 1.0);
    // A line from `first` to 1: its mean is (first + 1) / 2.
    let saving = ticks as f64 * (1.0 - first / ((first + 1.0) / 2.0)).max(0.0);
    let (summary, claim) = if number {
        (
            format!(
                "{who} calls {name} between two waits, and the number of these calls grows: {} \
                    calls between the last two waits",
                three_digits(growth.last)
            ),
            format!(
                "between its waits n-1 and n, {who} makes {} + {} × n calls of {name} (R² {}): the \
                    total is quadratic in the number of waits, and all {} calls take {}",
                three_digits(growth.intercept.max(0.0)),
                three_digits(growth.slope),
                three_digits(growth.r2),
                grouped(&calls.count.to_string()),
                view.time(ticks as f64)
            ),
        )
    } else {
        (
            format!(
                "each {name} of {who} takes longer than the one before: the last one takes {}",
                view.time(growth.last)
            ),
            format!(
                "of {} calls, the n-th takes {} + {} × n (R² {}): the calls take {} in all, and \
                    this total is quadratic in the number of calls",
                grouped(&calls.count.to_string()),
                view.time(growth.intercept.max(0.0)),
                view.time(growth.slope),
                three_digits(growth.r2),
                view.time(ticks as f64)
            ),
        )
    };
    Candidate {
        why: Why::Grows,
        subject: who,
        saving: saving as u64,
        summary,
        chain: vec![link(view, call.file(), claim, calls.count, ticks, calls.worst)],
        suggestion: format!("do {name} once for all items, or for the new one only"),
        confirm: "vmeter explain TRACE_WITH_TWICE_THE_ITEMS (if the total grows fourfold, the \
            work is quadratic)"
            .into(),
        ..Candidate::default()
    }
}

/// Who wakes, in what call, and whom.
type Herd = (GroupId, Option<Sym>, GroupId);

fn herds(view: &View<'_>) -> Vec<Candidate> {
    let mut all: Vec<(&Herd, &Wakes)> = view.evidence.ledger.wakes.iter().collect();
    all.sort_by_key(|(key, _)| **key);
    all.into_iter().filter_map(|(key, wakes)| herd(view, *key, wakes)).collect()
}

fn herd(
    view: &View<'_>,
    (by, call, woken): (GroupId, Option<Sym>, GroupId),
    wakes: &Wakes,
) -> Option<Candidate> {
    let (each, groups) = (wakes.each(), &view.evidence.groups);
    let few = wakes.wakes < WAKES || wakes.instances < LEAST;
    if each < HERD || few || view.is_aside(by) || view.is_aside(woken) {
        return None;
    }
    // One that is woken again and again in a call is none.
    if groups.get(woken).is_none_or(|woken| !woken.many) {
        return None;
    }
    let (turns, vain) = view.evidence.ledger.turns.get(&woken).copied().unwrap_or_default();
    let share = vain as f64 / turns.max(1) as f64;
    // Without calls nobody knows what they do: then only many are a herd.
    let known = view.evidence.ledger.calls.keys().any(|(who, _)| *who == woken);
    if known && share < VAIN || !known && each < 2.0 * HERD {
        return None;
    }
    let own = level_of(view, Frame::Life(woken))?;
    let asleep = own.most_in(|state| state == Frame::Waker(by))?.0;
    // Whoever waits for something does so in a call.
    if known && asleep.is_none() {
        return None;
    }
    let inside = asleep.map_or(String::new(), |call| format!(" out of {}", view.frame_name(call)));
    let cpu = own.ticks(|_, state| state == Frame::Runs);
    let file = groups.get(by).map_or(0, |by| by.first.file);
    let with = Some(woken);
    let (by, woken) = (view.threads(by), view.threads(woken));
    let call = call.map_or("run", |call| view.name(call));
    let claim = format!(
        "{} calls of {call} make {} wake-ups, {} per call; in {} of {} activations of {woken} \
            (wake-up to next sleep), the thread made no useful call",
        grouped(&wakes.instances.to_string()),
        grouped(&wakes.wakes.to_string()),
        three_digits(each),
        grouped(&vain.to_string()),
        grouped(&turns.to_string()),
    );
    let mut chain = vec![link(view, file, claim, wakes.wakes, cpu, own.all.worst)];
    if !known {
        chain.push(not_recorded("which call wakes them and what they do then"));
    }
    let vain = match known {
        true => format!("{} have nothing to do", brief_percent(share)),
        false => "it seems that most of these threads have nothing to do".into(),
    };
    let each = three_digits(each);
    Some(Candidate {
        why: Why::Herd,
        subject: by.clone(),
        with,
        saving: if known { (cpu as f64 * share) as u64 } else { cpu / 2 },
        summary: format!("each {call} of {by} wakes {each} {woken}{inside}; {vain}"),
        chain,
        suggestion: "wake only one thread: use EPOLLEXCLUSIVE, a queue for each thread, or \
            pthread_cond_signal instead of broadcast"
            .into(),
        confirm: "perf stat -e context-switches -p PID sleep 5 (run this while one \
            thread waits, then while all of them wait)"
            .into(),
        max_severity: (!known).then_some(Severity::Medium),
        ..Candidate::default()
    })
}

/// What system calls would tell.
fn not_recorded(unknown: &str) -> Link {
    let claim = format!("not known: {unknown} (record raw_syscalls:*)");
    Link { claim, ..Link::default() }
}

/// Two that hand over to each other for little.
fn hand_overs(view: &View<'_>) -> Vec<Candidate> {
    if !view.requests().is_empty() {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (_, node) in view.tree().roots() {
        let Frame::Life(group) = node.frame else { continue };
        if view.is_aside(group) {
            continue;
        }
        let Some(level) = level_of(view, node.frame) else { continue };
        all.extend(hand_over(view, group, &level));
    }
    // Each pair is there twice.
    all.sort_by_key(|(_, candidate)| std::cmp::Reverse(candidate.saving));
    let mut told: Vec<(GroupId, GroupId)> = Vec::new();
    all.retain(|((a, b), _)| {
        let fresh = !told.contains(&(*b, *a));
        told.push((*a, *b));
        fresh
    });
    all.into_iter().map(|(_, candidate)| candidate).collect()
}

/// True if both of a pair do little with what they are handed, so many times.
fn both_little(view: &View<'_>, (a, b): (GroupId, GroupId), count: u64) -> bool {
    own_is_little(view, a, b, count) && own_is_little(view, b, a, count)
}

fn hand_over(
    view: &View<'_>,
    group: GroupId,
    level: &PathSegment,
) -> Option<((GroupId, GroupId), Candidate)> {
    let (other, sum) = level.wakers().first().copied()?;
    let evidence = view.evidence;
    if other == group || view.is_aside(other) || sum.count < HAND_OVERS.0 {
        return None;
    }
    let (there, back) = (evidence.asked(group, other), evidence.asked(other, group));
    if there * 2 < sum.count || back * 2 < sum.count {
        return None;
    }
    let unknown = level.ticks(|_, state| state == Frame::Unknown);
    let life = level.all.ticks.saturating_sub(unknown);
    let own = computing(view, group, level, sum.count);
    let each = view.seconds(life / sum.count)?;
    if each > HAND_OVERS.1 || own * 3 > life || !both_little(view, (other, group), sum.count) {
        return None;
    }
    let pair = (view.threads(group), view.threads(other));
    let count = grouped(&sum.count.to_string());
    let round = view.time(life as f64 / sum.count as f64);
    let computing = brief_percent(own as f64 / life.max(1) as f64);
    let claim = format!(
        "{} waits {count} times for a wake-up by {}. One round trip takes {round} on average. \
            The trace records {} of the waiter's time. The waiter computes for {computing} of \
            this time, and spends the rest on calls, wake-ups and waits for a CPU",
        pair.0,
        pair.1,
        view.time(life as f64)
    );
    let file = evidence.groups.get(group).map_or(0, |group| group.first.file);
    let mut chain = vec![link(view, file, claim, sum.count, life, sum.worst)];
    if !evidence.seen(file).syscalls {
        chain.push(not_recorded("by which call"));
    }
    let candidate = Candidate {
        why: Why::HandOver,
        subject: pair.0.clone(),
        with: Some(other),
        saving: life.saturating_sub(own),
        summary: format!(
            "{} and {} hand work to each other in {count} round trips, which take {round} each \
                on average",
            pair.0, pair.1
        ),
        chain,
        suggestion:
            "hand over more at a time: whole messages or batches, not single bytes or items".into(),
        confirm:
            "perf stat -e context-switches -p PID sleep 5 (run perf stat before and after you \
            make the messages larger)"
                .into(),
        // Whether so little should be handed over at a time, one trace does not tell.
        max_severity: Some(Severity::Low),
        ..Candidate::default()
    };
    Some(((group, other), candidate))
}

/// Computing of one's own; without system calls, short stretches on a CPU are taken for calls.
fn computing(view: &View<'_>, group: GroupId, level: &PathSegment, rounds: u64) -> u64 {
    let own = level.ticks(|call, state| call.is_none() && state == Frame::Runs);
    let file = view.evidence.groups.get(group).map_or(0, |group| group.first.file);
    let each = view.seconds(own / rounds.max(1)).unwrap_or(0.0);
    match view.evidence.seen(file).syscalls {
        false if each <= CALLS_S => 0,
        _ => own,
    }
}

/// True if those who are handed over to do little with it.
fn own_is_little(view: &View<'_>, group: GroupId, other: GroupId, rounds: u64) -> bool {
    let level = level_of(view, Frame::Life(group));
    level.is_some_and(|level| {
        let known = level.ticks(|_, state| state != Frame::Unknown);
        let own = computing(view, group, &level, rounds);
        let elsewhere = level.ticks(|call, state| {
            let by_design = call.is_none_or(|call| {
                let name = view.frame_name(call);
                waits(name) || state == Frame::Runs && name.starts_with("write")
            });
            let kernel = |of: GroupId| of != other && view.evidence.groups.is_kernel(of);
            let others = matches!(state, Frame::Waker(of) if kernel(of));
            !by_design || others || matches!(state, Frame::Timer | Frame::Irq(_) | Frame::Deep)
        });
        own * 3 <= known && elsewhere * 5 <= known
    })
}
