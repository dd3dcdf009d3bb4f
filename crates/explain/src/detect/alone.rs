//! What calls alone tell, where nobody recorded who had a CPU (strace): naps, time-outs, calls for
//! a few bytes.

use super::habits::link;
use super::view::LEAST_COUNT;
use super::waits::waits_for_others;
use super::{Candidate, View};
use crate::evidence::calls::Calls;
use crate::evidence::groups::GroupId;
use crate::evidence::intervals::Interval;
use crate::kind::Why;
use crate::moment::Sym;
use crate::result::Severity;
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, grouped, three_digits};

/// Share of the traced time that naps take, and how many they are; fewer if they take more.
const NAPS: [(f64, u64); 2] = [(0.1, 20), (0.3, 8)];
/// The same of questions that one who is known does not answer.
const UNANSWERED: (u64, f64) = (2, 0.1);
/// Calls that return 0 when their time is up.
const POLLS: [&str; 7] =
    ["poll", "ppoll", "epoll_wait", "epoll_pwait", "epoll_pwait2", "select", "pselect6"];
/// Calls that return how many bytes they have moved.
const MOVES: [&str; 9] = [
    "read",
    "write",
    "pread64",
    "pwrite64",
    "sendfile",
    "sendto",
    "recvfrom",
    "splice",
    "copy_file_range",
];
/// Calls that start processes; so many, and this share of the traced time waiting for them.
const FORKS: [&str; 4] = ["clone", "clone3", "fork", "vfork"];
const STARTS: (u64, f64) = (20, 0.5);
/// So many calls for so few bytes each, none of them waiting so long (s), and of all calls this
/// share.
const BYTES: (u64, u64, f64, f64) = (1000, 512, 100e-6, 0.25);

/// Share of all time-outs' time that the longest have, from which these are the ones.
const MOST_OF: f64 = 0.6;

/// Share of the traced time that time-outs take, where it is recorded who woke whom as well.
const ASKED: f64 = 0.3;

/// Calls that wait until there is room, or nobody else has the lock: who is in one has something
/// to do.
const ENDED_BY_OTHERS: [&str; 11] = [
    "sendto",
    "sendmsg",
    "sendmmsg",
    "mq_timedsend",
    "msgsnd",
    "write",
    "writev",
    "flock",
    "semop",
    "semtimedop",
    "connect",
];

type Known<'a> = (GroupId, Sym, &'a Calls);

/// Everything of the kind.
pub fn habits(view: &View<'_>) -> Vec<Candidate> {
    if view.evidence.runs_seen() {
        return ended_by_time(view);
    }
    let ledger = view.evidence.ledger.calls.iter();
    let mut all: Vec<Known<'_>> = ledger.map(|((who, call), calls)| (*who, *call, calls)).collect();
    all.sort_by_key(|(who, call, _)| (*who, *call));
    let count: u64 = all.iter().map(|(_, _, calls)| calls.count).sum();
    let found: Vec<Candidate> = all
        .into_iter()
        .filter_map(|known| {
            let bytes = || bytes(view, known, count).filter(|_| view.requests().is_empty());
            nap(view, known).or_else(|| times_out(view, known)).or_else(bytes)
        })
        .collect();
    starts(view).into_iter().chain(found).collect()
}

/// Threads that start processes over and over, and wait for each.
fn starts(view: &View<'_>) -> Vec<Candidate> {
    let mut by: BTreeMap<GroupId, (u64, u64, Option<&Calls>)> = BTreeMap::new();
    for ((who, call), calls) in &view.evidence.ledger.calls {
        let (name, sum) = (view.name(*call), by.entry(*who).or_default());
        if FORKS.contains(&name) {
            sum.0 += calls.count;
        }
        if matches!(name, "wait4" | "waitid" | "vfork") {
            sum.1 = sum.1.saturating_add(calls.ticks);
            sum.2 = Some(calls);
        }
    }
    let many = by
        .into_iter()
        .filter(|(_, (count, waits, _))| *count >= STARTS.0 && view.share(*waits) >= STARTS.1);
    let told = many.filter_map(|(who, (count, waits, calls))| {
        let (calls, file) = (calls?, view.evidence.groups.get(who)?.first.file);
        let (who, number) = (view.threads(who), grouped(&count.to_string()));
        let claim = format!(
            "{number} processes started, {} waiting for them, {} of the traced time",
            view.time(waits as f64),
            brief_percent(view.share(waits))
        );
        Some(Candidate {
            why: Why::Child,
            subject: who.clone(),
            saving: waits,
            summary: format!("{who} starts {number} processes (fork, exec) and waits for each"),
            chain: vec![link(view, file, claim, count, waits, calls.worst)],
            suggestion: "do it in the process itself, or many at a time in one process (xargs, +)"
                .into(),
            confirm: "strace -f -c -e trace=process COMMAND".into(),
            at_most: Some(Severity::Medium),
            ..Candidate::default()
        })
    });
    told.collect()
}

/// Where it is recorded who woke whom: an interrupt's wake-up may look like a thread's, but what
/// a call returns does not.
fn ended_by_time(view: &View<'_>) -> Vec<Candidate> {
    let own = &view.evidence.own;
    let all = view.evidence.ledger.calls.iter();
    let mut all: Vec<Known<'_>> = all
        .filter(|((who, _), calls)| own.contains(who) && view.share(calls.zeros.1) >= ASKED)
        .map(|((who, call), calls)| (*who, *call, calls))
        .collect();
    all.sort_by_key(|(who, call, _)| (*who, *call));
    let told = all.into_iter().filter_map(|known| times_out(view, known));
    told.map(|told| Candidate { at_most: Some(Severity::Low), ..told }).collect()
}

fn is_pattern(view: &View<'_>, (count, ticks): (u64, u64)) -> bool {
    let share = view.share(ticks);
    NAPS.iter().any(|(least, often)| share >= *least && count >= *often)
}

fn nap(view: &View<'_>, (who, call, calls): Known<'_>) -> Option<Candidate> {
    let name = view.name(call);
    let naps = (calls.count, calls.ticks);
    if !name.contains("nanosleep") || !is_pattern(view, naps) {
        return None;
    }
    if let Some((other, inside)) = waiting_meanwhile(view, (who, call)) {
        let each = view.time(calls.ticks as f64 / calls.count.max(1) as f64);
        let count = grouped(&calls.count.to_string());
        let own = paced(view, (who, call, calls), "sleeps", naps);
        let (other, who) = (view.threads(other), view.threads(who));
        let summary = format!(
            "{other} waits in {} while {who} sleeps in {name}, {count} times, {each} each",
            view.name(inside)
        );
        return Some(Candidate { summary, ..own });
    }
    let own = paced(view, (who, call, calls), &format!("polls: it sleeps in {name}"), naps);
    match busier(view, (who, calls.ticks)) {
        true => Some(Candidate { at_most: Some(Severity::Low), aside: true, ..own }),
        false => Some(own),
    }
}

/// True if the same threads are longer in a call that does not wait by design.
fn busier(view: &View<'_>, (who, naps): (GroupId, u64)) -> bool {
    let calls = view.evidence.ledger.calls.iter();
    let mut own = calls.filter(|((by, call), _)| *by == who && !waits_for_others(view.name(*call)));
    own.any(|(_, calls)| calls.count >= LEAST_COUNT && calls.ticks > naps)
}

/// Others that wait for most of the time of these naps in a call that ends when somebody else
/// takes what is there, or lets go of a lock.
pub fn waiting_meanwhile(view: &View<'_>, (who, call): (GroupId, Sym)) -> Option<(GroupId, Sym)> {
    let all = view.evidence.intervals.sorted();
    let of = |interval: &Interval| view.evidence.groups.group_of(interval.thread);
    let naps: Vec<Interval> =
        all.iter().filter(|i| i.call == call && of(i) == Some(who)).copied().collect();
    let ticks = crate::sum(naps.iter().map(|nap| nap.end.saturating_sub(nap.start)));
    let mut sums: BTreeMap<(GroupId, Sym), u64> = BTreeMap::new();
    for other in all.iter().filter(|i| ENDED_BY_OTHERS.contains(&view.name(i.call))) {
        let Some(group) = of(other) else { continue };
        let begin = naps.partition_point(|nap| nap.end <= other.start);
        let within = naps.iter().skip(begin).take_while(|nap| nap.start < other.end);
        let within = within.filter(|nap| nap.thread != other.thread);
        let both =
            within.map(|nap| nap.end.min(other.end).saturating_sub(nap.start.max(other.start)));
        let sum = sums.entry((group, other.call)).or_default();
        *sum = sum.saturating_add(crate::sum(both));
    }
    let (most, both) = sums.into_iter().max_by_key(|(of, both)| (*both, *of))?;
    (both > 0 && both as f64 >= MOST_OF * ticks as f64).then_some(most)
}

fn times_out(view: &View<'_>, (who, call, calls): Known<'_>) -> Option<Candidate> {
    let name = view.name(call);
    let most = POLLS.contains(&bare(name)) && calls.zeros.1 * 2 >= calls.ticks;
    let (times, share) = (calls.zeros.0, view.share(calls.zeros.1));
    let unanswered = is_answered(name) && times >= UNANSWERED.0 && share >= UNANSWERED.1;
    if !most || !unanswered && !is_pattern(view, calls.zeros) {
        return None;
    }
    // Of threads side by side, those that wait long are the ones: the others look now and then.
    let least = if calls.zeros.1 > view.evidence.span() { MOST_OF / 2.0 } else { MOST_OF };
    let least = (least * calls.zeros.1 as f64) as u64;
    let zeros = long_ones(view, (who, call), least).unwrap_or(calls.zeros);
    let told = format!("waits in {name} until its time is up:");
    // A main loop that nobody has anything for does that, too.
    let own = paced(view, (who, call, calls), &told, zeros);
    // Who asks a name server does not idle.
    let at_most = if is_answered(name) { Severity::Medium } else { Severity::Low };
    Some(Candidate { at_most: Some(at_most), ..own })
}

/// The call of a name that says what it is about as well: `poll (DNS server 10.0.0.1)`.
fn bare(call: &str) -> &str {
    call.split(' ').next().unwrap_or(call)
}

/// It waits for one that is known to be asked: `poll (DNS server 10.0.0.1)`.
fn is_answered(call: &str) -> bool {
    call.contains(" (")
}

/// The longest time-outs, if they take so much time.
fn long_ones(view: &View<'_>, (who, call): (GroupId, Sym), much: u64) -> Option<(u64, u64)> {
    let known = view.evidence.intervals.sorted();
    let own = known.iter().filter(|interval| {
        let group = view.evidence.groups.group_of(interval.thread);
        interval.timed_out && interval.call == call && group == Some(who)
    });
    let ticks = |interval: &Interval| interval.end.saturating_sub(interval.start);
    let lengths: Vec<u64> = own.map(ticks).collect();
    let least = lengths.iter().max()? / 2;
    let long = lengths.into_iter().filter(|ticks| *ticks >= least);
    let sum = long.fold((0, 0_u64), |sum, ticks| (sum.0 + 1, ticks.saturating_add(sum.1)));
    (sum.1 >= much).then_some(sum)
}

fn paced(
    view: &View<'_>,
    (who, call, calls): Known<'_>,
    told: &str,
    (times, ticks): (u64, u64),
) -> Candidate {
    let (who, name) = (view.threads(who), view.name(call));
    let each = view.time(ticks as f64 / times.max(1) as f64);
    let count = grouped(&times.to_string());
    let claim = format!(
        "{count} calls of {name} take {}, {} of the traced time; {}",
        view.time(ticks as f64),
        brief_percent(view.share(ticks)),
        match (is_answered(name), view.evidence.runs_seen()) {
            (true, _) => "no answer comes in that time",
            (false, true) => "they return 0: what they wait for does not come in that time",
            (false, false) => "what they wait for is not recorded (sched_switch)",
        }
    );
    Candidate {
        why: Why::Timer,
        subject: who.clone(),
        saving: ticks,
        summary: format!("{who} {told} {count} times, {each} each"),
        chain: vec![link(view, call.file, claim, times, ticks, calls.worst)],
        suggestion: match is_answered(name) {
            true => {
                "ask one that answers first (resolv.conf: order, timeout, attempts), or see why \
                     it does not"
                    .into()
            }
            false => "wait for the event itself (eventfd, epoll, futex), not for a period; if a \
                      rate is limited, raise the limit"
                .into(),
        },
        confirm: format!(
            "strace -f -T -e trace={} -p PID (the same with half the period)",
            bare(name)
        ),
        at_most: Some(Severity::Medium),
        ..Candidate::default()
    }
}

fn bytes(view: &View<'_>, (who, call, calls): Known<'_>, all: u64) -> Option<Candidate> {
    let (least, few, long, share) = BYTES;
    let name = view.name(call);
    let each = calls.returned as f64 / calls.count.max(1) as f64;
    let time = view.seconds(calls.ticks / calls.count.max(1))?;
    let many = calls.count >= least && calls.count as f64 >= share * all as f64;
    if !MOVES.contains(&name) || !many || each > few as f64 || each <= 0.0 || time > long {
        return None;
    }
    let who = view.threads(who);
    let count = grouped(&calls.count.to_string());
    let claim = format!(
        "{count} calls of {name} move {} bytes, {} each, and take {} of their own; with their way \
         into the kernel and back, and what strace adds, most of the time",
        grouped(&calls.returned.to_string()),
        three_digits(each),
        view.time(calls.ticks as f64)
    );
    Some(Candidate {
        why: Why::Burst,
        subject: who.clone(),
        saving: calls.ticks,
        summary: format!("{who} calls {name} {count} times for {} bytes each", three_digits(each)),
        chain: vec![link(view, call.file, claim, calls.count, calls.ticks, calls.worst)],
        suggestion: format!("one {name} for many (a buffer, a larger block), not one each"),
        confirm: "perf stat -e raw_syscalls:sys_enter -- COMMAND (the same with a larger block)"
            .into(),
        at_most: Some(Severity::Medium),
        ..Candidate::default()
    })
}
