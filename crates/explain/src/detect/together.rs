//! Who keeps the others waiting, where nobody recorded who woke whom (strace): at any moment the
//! time is of those that are in no call that waits by design; if all are, of the first whose
//! time is up.

use super::habits::link;
use super::waits::waits_for_others;
use super::{Candidate, View};
use crate::evidence::groups::GroupId;
use crate::evidence::intervals::Interval;
use crate::moment::{Place, Sym, Tid};
use crate::result::Severity;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_render::quantity::brief_percent;

/// Share of the time from which somebody keeps the others waiting, and how often.
const SHARE: f64 = 0.3;
const OFTEN: u64 = 20;
/// Share of that in which others wait for a lock, from which it is held meanwhile.
const LOCKED: f64 = 0.5;
/// Most that share a moment.
const MOST: usize = 8;

/// What somebody does: in which call; none outside calls.
type Doing = (GroupId, Option<Sym>);

/// Time that goes by in something, and what the others wait in meanwhile.
#[derive(Default)]
struct Sum {
    ticks: u64,
    meanwhile: BTreeMap<Sym, u64>,
    calls: BTreeSet<usize>,
}

/// Threads at a moment.
#[derive(Default)]
struct Now {
    /// In which of the calls, by number; none outside.
    active: BTreeMap<Tid, Option<usize>>,
    /// In calls that wait: until when, if their time is up then.
    asleep: BTreeSet<(u64, Tid, usize)>,
    /// In how many of each.
    waiting: BTreeMap<Sym, usize>,
}

/// Who keeps the others waiting.
pub fn together(view: &View<'_>) -> Option<Candidate> {
    let (calls, lives) = (view.evidence.intervals.sorted(), &view.evidence.intervals);
    if lives.lives().count() < 2 {
        return None;
    }
    // Ends before begins of the same moment.
    let mut steps: Vec<(u64, bool, Tid, Option<usize>)> = Vec::new();
    for (thread, (start, end)) in lives.lives() {
        steps.extend([(start, true, thread, None), (end, false, thread, None)]);
    }
    for (at, call) in calls.iter().enumerate() {
        let at = Some(at);
        steps.extend([(call.start, true, call.thread, at), (call.end, false, call.thread, at)]);
    }
    steps.sort_unstable();
    let (mut now, mut sums, mut before) = (Now::default(), BTreeMap::new(), 0);
    for (time, begins, thread, at) in steps {
        now.spend(view, &calls, time.saturating_sub(before), &mut sums);
        before = time;
        now.step(view, &calls, begins, (thread, at));
    }
    told(view, &calls, sums)
}

fn by_design(view: &View<'_>, call: Sym) -> bool {
    waits_for_others(view.name(call))
}

impl Now {
    fn step(
        &mut self,
        view: &View<'_>,
        calls: &[Interval],
        begins: bool,
        what: (Tid, Option<usize>),
    ) {
        let (thread, at) = what;
        let call = at.and_then(|at| Some((at, calls.get(at)?)));
        match call {
            None if begins => drop(self.active.insert(thread, None)),
            None => drop(self.active.remove(&thread)),
            Some((at, call)) if by_design(view, call.call) => {
                let count = self.waiting.entry(call.call).or_default();
                *count = if begins { *count + 1 } else { count.saturating_sub(1) };
                let sleep = (call.end, thread, at);
                if begins {
                    self.active.remove(&thread);
                    if call.timed_out {
                        self.asleep.insert(sleep);
                    }
                } else {
                    self.active.insert(thread, None);
                    self.asleep.remove(&sleep);
                }
            }
            Some((at, _)) => drop(self.active.insert(thread, begins.then_some(at))),
        }
    }

    /// Gives a stretch of time to those who are active.
    fn spend(
        &self,
        view: &View<'_>,
        calls: &[Interval],
        ticks: u64,
        sums: &mut BTreeMap<Doing, Sum>,
    ) {
        let first = self.asleep.first().map(|(_, thread, at)| (*thread, Some(*at)));
        let idle = first.filter(|_| self.active.is_empty());
        let all: Vec<(Tid, Option<usize>)> =
            self.active.iter().map(|(t, at)| (*t, *at)).chain(idle).take(MOST).collect();
        let meanwhile = self.waiting.iter().filter(|(_, count)| **count > 0);
        let meanwhile =
            meanwhile.max_by_key(|(call, count)| (**count, **call)).map(|(call, _)| *call);
        for (thread, at) in &all {
            let Some(group) = view.evidence.groups.group_of(*thread) else { continue };
            let call = at.and_then(|at| calls.get(at)).map(|call| call.call);
            let sum = sums.entry((group, call)).or_default();
            let share = ticks / all.len().max(1) as u64;
            sum.ticks = sum.ticks.saturating_add(share);
            sum.calls.extend(*at);
            if let Some(other) = meanwhile {
                let of = sum.meanwhile.entry(other).or_default();
                *of = of.saturating_add(share);
            }
        }
    }
}

fn told(view: &View<'_>, calls: &[Interval], sums: BTreeMap<Doing, Sum>) -> Option<Candidate> {
    let ((group, call), sum) = sums.into_iter().max_by_key(|(doing, sum)| (sum.ticks, *doing))?;
    let (call, count) = (call?, sum.calls.len() as u64);
    if view.share(sum.ticks) < SHARE || count < OFTEN {
        return None;
    }
    let (who, name) = (view.threads(group), view.name(call));
    let (other, waiting) = sum.meanwhile.iter().max_by_key(|(_, ticks)| **ticks)?;
    let other = view.name(*other);
    let lock = ["futex", "flock", "fcntl", "sem"].iter().any(|begin| other.starts_with(begin));
    let held = lock && *waiting as f64 >= LOCKED * sum.ticks as f64;
    let (share, sleeps) = (brief_percent(view.share(sum.ticks)), by_design(view, call));
    let (kind, summary) = match (held, sleeps) {
        (true, _) => (
            "lock-wait",
            format!("others wait in {other} while {who} is in {name}, {share} of the time"),
        ),
        (_, true) => (
            "timer-paced",
            format!("all wait while {who} is in {name} until its time is up, {share} of the time"),
        ),
        _ => {
            ("slow-call", format!("the others wait while {who} is in {name}, {share} of the time"))
        }
    };
    let claim = format!(
        "{count} calls of {name}: {} in which nobody else does anything but wait, most in {other} \
         ({})",
        view.time(sum.ticks as f64),
        view.time(*waiting as f64)
    );
    let longest = sum.calls.iter().filter_map(|at| calls.get(*at));
    let longest = longest.max_by_key(|call| call.end.saturating_sub(call.start))?;
    let Tid { file, tid } = longest.thread;
    let stamp = longest.start;
    let place = Place { file, stamp, tid, event: "system call", ..Place::default() };
    Some(Candidate {
        kind,
        subject: who,
        saving: sum.ticks,
        summary,
        chain: vec![link(view, file, claim, count, sum.ticks, Some((0, place)))],
        suggestion: format!("keep {name} out of what the others wait for, or do it less often"),
        confirm: format!(
            "perf trace -s -p PID sleep 5; strace -f -T -e trace={name},{other} -p PID"
        ),
        at_most: Some(Severity::Medium),
        ..Candidate::default()
    })
}
