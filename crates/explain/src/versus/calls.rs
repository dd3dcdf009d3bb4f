//! Calls that a trace has beyond its twin's, where nobody recorded who had a CPU and who woke
//! whom (strace).

use crate::detect::{waiting_meanwhile, waits, waits_for_others, writes_data, Candidate, View};
use crate::evidence::groups::GroupId;
use crate::kind::Why;
use crate::moment::{Place, Sym};
use crate::result::{Evidence, Link};
use std::collections::{BTreeMap, BTreeSet};
use vmeter_render::quantity::{brief_percent, grouped};

/// Share of what the trace takes beyond its twin from which a call is named.
const SHARE: f64 = 0.2;
/// So many times as often, and so many more, are more calls, not longer ones.
const OFTEN: (f64, u64) = (2.0, 20);
/// What a call costs at most besides its own time: the way into the kernel and back, and what
/// writes it down, s.
const BESIDES: f64 = 150e-6;
/// Calls that make processes.
const FORKS: [&str; 5] = ["clone", "clone3", "fork", "vfork", "execve"];
/// Most that are told of.
const MOST: usize = 3;

/// A call of threads of a name.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    count: f64,
    seconds: f64,
    zeros: f64,
    worst: Option<(u64, Place)>,
    of: Option<(GroupId, Sym)>,
}

/// By thread's name and call; none in `by_call` for the threads' names.
fn sums(view: &View<'_>, by_call: bool) -> BTreeMap<(String, String), Sum> {
    let mut all: BTreeMap<(String, String), Sum> = BTreeMap::new();
    for ((who, call), calls) in &view.evidence.ledger.calls {
        let group = if by_call { "" } else { view.evidence.groups.common(*who) };
        // A pool writes by whichever of these calls fits.
        let name = match view.name(*call) {
            name if by_call && writes_data(name) => "write",
            name => name,
        };
        let sum = all.entry((group.to_string(), name.to_string())).or_default();
        sum.count += calls.count as f64;
        sum.seconds += view.seconds(calls.ticks).unwrap_or(0.0);
        sum.zeros += view.seconds(calls.zeros.1).unwrap_or(0.0);
        if calls.worst.map(|(ticks, _)| ticks) >= sum.worst.map(|(ticks, _)| ticks) {
            (sum.worst, sum.of) = (calls.worst, Some((*who, *call)));
        }
    }
    all
}

/// A call of which there is more than in the twin.
struct More {
    of: (GroupId, Sym),
    now: Sum,
    before: Sum,
    /// What that costs, s.
    cost: f64,
    /// Time in it that is somebody else's, s.
    waiting: f64,
}

/// It waits, and returns 0 if its time is up: of a futex, that is who was woken.
fn times_out(call: &str) -> bool {
    waits(call) && !call.starts_with("futex")
}

/// It waits for somebody else by design, and not for a time.
fn by_design(call: &str) -> bool {
    waits_for_others(call) && !call.contains("nanosleep")
}

/// Threads of a pool that have nothing to do, side by side.
fn pools(call: &str, now: &Sum, span: f64) -> bool {
    call.starts_with("futex") && now.seconds > span
}

/// Share of the time in calls that threads have whose names the other trace has as well, from which
/// threads can be told by their names: strace knows those of some, and numbers differ.
const PAIRED: f64 = 0.95;

/// True if most of the time in calls is of threads whose names the twin has, too.
fn is_paired(
    now: &BTreeMap<(String, String), Sum>,
    before: &BTreeMap<(String, String), Sum>,
) -> bool {
    let known: BTreeSet<&str> = before.keys().map(|(who, _)| who.as_str()).collect();
    let time = |known: &dyn Fn(&str) -> bool| -> f64 {
        now.iter().filter(|((who, _), _)| known(who)).map(|(_, sum)| sum.seconds).sum()
    };
    time(&|who| known.contains(who)) >= PAIRED * time(&|_| true)
}

/// Calls that take longer or come more often than in a twin of `work` times as much work.
pub fn calls(view: &View<'_>, twin: &View<'_>, work: f64) -> Vec<Candidate> {
    if view.evidence.runs_seen() {
        return Vec::new();
    }
    let span = |view: &View<'_>| view.seconds(view.evidence.span()).unwrap_or(0.0);
    let longer = (span(view) - work * span(twin)).max(0.0);
    // A program that makes processes has its calls in threads that no name tells apart.
    let names = |view: &View<'_>| view.evidence.ledger.calls.keys().map(|(who, _)| *who).max();
    let by_call = names(view).max(names(twin)).unwrap_or(0) > 8
        || !is_paired(&sums(view, false), &sums(twin, false));
    let (now, before) = (sums(view, by_call), sums(twin, by_call));
    let single = view.evidence.intervals.lives().count() < 2;
    let made: f64 = now.values().map(|sum| sum.count).sum();
    // In calls that wait by design time goes by that is others'.
    let busy = now.iter().filter(|((_, call), _)| !by_design(call));
    let own: f64 = busy.map(|(_, sum)| sum.seconds).sum();
    let each = ((span(view) - own).max(0.0) / made.max(1.0)).min(BESIDES);
    let mut all: Vec<More> = now
        .into_iter()
        .filter_map(|(name, now)| {
            let other = before.get(&name).copied().unwrap_or_default();
            let before = Sum { count: other.count * work, seconds: other.seconds * work, ..other };
            let seconds = now.seconds - before.seconds;
            let idle = (now.zeros - other.zeros * work).clamp(0.0, seconds.max(0.0));
            let idle = if pools(&name.1, &now, span(view)) { 0.0 } else { idle };
            // Nobody is there that it could wait for: it reads files, or from without.
            let waits = by_design(&name.1) && !(single && name.1.starts_with("read"));
            let waiting = if waits { seconds - idle } else { 0.0 };
            // Nor does it do anything each time that it is woken.
            let each = if pools(&name.1, &now, span(view)) { 0.0 } else { each };
            let cost = seconds - waiting + (now.count - before.count) * each;
            Some(More { of: now.of?, now, before, cost, waiting })
        })
        .collect();
    all.sort_by(|a, b| b.cost.total_cmp(&a.cost).then(a.of.cmp(&b.of)));
    if all.first().is_none_or(|more| more.cost < SHARE * longer) {
        // Nobody that is waited for is in the trace: then who waits is all there is.
        // Threads that wait side by side are a pool that idles.
        let alone = |more: &&mut More| !pools(view.name(more.of.1), &more.now, span(view));
        all.iter_mut().filter(alone).for_each(|more| more.cost += more.waiting);
        all.sort_by(|a, b| b.cost.total_cmp(&a.cost).then(a.of.cmp(&b.of)));
    }
    // What a process does that is started anew each time is for that.
    let first = all.first().map_or(0.0, |more| more.cost);
    for more in all.iter_mut().filter(|more| FORKS.contains(&view.name(more.of.1))) {
        let often = more.now.count - more.before.count >= OFTEN.1 as f64;
        more.cost += if often { first } else { 0.0 };
    }
    all.sort_by(|a, b| b.cost.total_cmp(&a.cost).then(a.of.cmp(&b.of)));
    all.retain(|more| more.cost >= SHARE * longer);
    all.truncate(MOST);
    all.iter().filter_map(|more| told(view, more, longer, by_call)).collect()
}

/// What is saved is no more than the trace is longer by, if it is.
fn bound(cost: f64, longer: f64) -> f64 {
    if longer > 0.0 {
        cost.min(longer)
    } else {
        cost
    }
}

fn rounded(count: f64) -> String {
    grouped(&(count.round() as u64).to_string())
}

/// What kind of cause a call is that takes more than before, and how it is told.
struct Words {
    why: Why,
    summary: String,
    suggestion: String,
}

/// A call's name; of those that write, it stands for all.
fn shown(name: &str, by_call: bool) -> String {
    match by_call && writes_data(name) {
        true => format!("{name} and its like"),
        false => name.to_string(),
    }
}

fn words(view: &View<'_>, more: &More, who: &str, by_call: bool) -> Option<Words> {
    let More { of: (_, call), now, before, .. } = more;
    let name = &*shown(view.name(*call), by_call);
    let tick = view.seconds(1)?;
    let (longer, shorter) = (view.time(now.seconds / tick), view.time(before.seconds / tick));
    let often = now.count >= OFTEN.0 * before.count && now.count - before.count >= OFTEN.1 as f64;
    let counted =
        format!("{who} calls {name} {} times, not {}", rounded(now.count), rounded(before.count));
    Some(if FORKS.contains(&name) {
        Words {
            why: Why::Child,
            summary: counted,
            suggestion: "do it in the process itself, or keep one helper and talk to it".into(),
        }
    } else if name.contains("nanosleep") || times_out(name) && now.zeros > 0.5 * now.seconds {
        let other = waiting_meanwhile(view, more.of).filter(|_| !by_call);
        let other = other.map_or(String::new(), |(other, inside)| {
            format!("{} waits in {} while ", view.threads(other), view.name(inside))
        });
        Words {
            why: Why::Timer,
            summary: format!("{other}{who} sleeps in {name}: {longer}, not {shorter}"),
            suggestion: "wait for the event itself (eventfd, epoll, futex), not for a period"
                .into(),
        }
    } else if often {
        Words {
            why: Why::Burst,
            summary: counted,
            suggestion: format!("one {name} for many (a buffer, a larger block), not one each"),
        }
    } else {
        Words {
            why: Why::InCall,
            summary: format!("{who} is in {name} for {longer}, not {shorter}"),
            suggestion: format!(
                "find out what {name} waits for; call it less often, or for more at once"
            ),
        }
    })
}

fn told(view: &View<'_>, more: &More, longer: f64, by_call: bool) -> Option<Candidate> {
    let More { of: (who, call), now, before, cost, .. } = more;
    let name = view.name(*call);
    let tick = view.seconds(1)?;
    let time = |seconds: f64| view.time(seconds / tick);
    let who = if by_call { "the program".to_string() } else { view.threads(*who) };
    let Words { why, summary, suggestion } = words(view, more, &who, by_call)?;
    let shown = shown(name, by_call);
    let claim = format!(
        "{} calls of {shown} take {}; for as much work {} take {} in the trace it is compared with: \
         {} of the {} that it is longer",
        rounded(now.count),
        time(now.seconds),
        rounded(before.count),
        time(before.seconds),
        brief_percent((cost / longer.max(1e-9)).min(1.0)),
        time(longer),
    );
    let events = now.worst.iter().map(|(_, place)| view.event(*place)).collect();
    let evidence = Evidence {
        count: Some(now.count as u64),
        total_s: Some(now.seconds),
        events,
        lost_events: view.lost(call.file),
        ..Evidence::default()
    };
    Some(Candidate {
        why,
        subject: who,
        saving: (bound(*cost, longer) / tick) as u64,
        summary,
        chain: vec![Link { claim, evidence }],
        suggestion,
        confirm: format!("strace -f -T -e trace={name} COMMAND (both)"),
        beyond: true,
        ..Candidate::default()
    })
}
