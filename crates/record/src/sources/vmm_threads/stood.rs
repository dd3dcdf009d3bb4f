//! When a whole machine stood still: its vCPUs' threads were stopped by a signal, or ready to run and the
//! host gave them no CPU. Whatever the guest was at did not take that time.

use super::Look;
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_base::process::Stat;
use vmeter_model::event::Stall;
use vmeter_model::{EventKind, Ns};

/// What the words of these threads begin with.
pub(super) const MARK: char = '~';
/// Most threads that are followed.
pub(super) const MOST: usize = 8;
/// Shortest time that is told, ns: a busy host's time slices are shorter.
const LEAST: Ns = 300_000_000;
/// Times that a thread was given a CPU in one wait: the one that ended it, and one more.
const TIMES: u64 = 2;

/// A thread's counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// How long it ran and waited for a CPU, ns.
    ran: u64,
    waited: u64,
    /// How often it was given one.
    times: u64,
    /// It is stopped (by a signal; by one as its tracer has it).
    stopped: bool,
}

/// A thread's word in a line: its counts, and the letter of its state (proc_pid_stat(5)).
pub(super) fn noted(tasks: &Path, tid: &str) -> Option<String> {
    let read = |name: &str| std::fs::read_to_string(tasks.join(tid).join(name)).ok();
    let counts = read("schedstat")?.split_whitespace().collect::<Vec<_>>().join(":");
    let state = Stat::parse(&read("stat")?)?.state;
    Some(format!(" {MARK}{tid}:{counts}:{state}"))
}

pub(super) fn parse(word: &str) -> Option<(i32, Counts)> {
    let mut parts = word.strip_prefix(MARK)?.split(':');
    let tid = parts.next()?.parse().ok()?;
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (ran, waited, times) = (number()?, number()?, number()?);
    Some((tid, Counts { ran, waited, times, stopped: matches!(parts.next()?, "T" | "t") }))
}

/// Each time that the machine stood still: until when, how far off that is, and for how long.
pub(super) fn stalls(looks: &[Look]) -> Vec<(Ns, Ns, EventKind)> {
    let looks: Vec<&Look> = looks.iter().filter(|look| !look.at_work.is_empty()).collect();
    let mut stalls = stopped(&looks);
    stalls.extend(looks.windows(2).filter_map(|pair| starved(pair[0], pair[1])));
    stalls.sort_by_key(|(at, ..)| *at);
    stalls
}

fn stall(from: Ns, to: Ns, error: Ns, by: Stall) -> Option<(Ns, Ns, EventKind)> {
    let ns = to.saturating_sub(from);
    (ns >= LEAST && error < ns).then_some((to, error, EventKind::Stalled { ns, by }))
}

/// Rows of looks that found every thread stopped.
fn stopped(looks: &[&Look]) -> Vec<(Ns, Ns, EventKind)> {
    let is = |look: &&Look| look.at_work.values().all(|thread| thread.stopped);
    let mut stalls = Vec::new();
    let mut at = 0;
    while at < looks.len() {
        let row = looks[at..].iter().take_while(|look| is(look)).count();
        if row > 0 {
            let (first, last) = (looks[at].at, looks[at + row - 1].at);
            let before = at.checked_sub(1).map_or(first, |before| looks[before].at);
            let after = looks.get(at + row).map_or(last, |after| after.at);
            let error = first.saturating_sub(before).max(after.saturating_sub(last));
            stalls.extend(stall(first, last, error, Stall::Stopped));
        }
        at += row + 1;
    }
    stalls
}

/// One wait of every thread, which is counted when it is over.
fn starved(before: &Look, look: &Look) -> Option<(Ns, Ns, EventKind)> {
    let since = |tid: &i32, now: &Counts| {
        let then = before.at_work.get(tid)?;
        let ran = Ns::try_from(now.ran.saturating_sub(then.ran)).ok()?;
        let waited = Ns::try_from(now.waited.saturating_sub(then.waited)).ok()?;
        (now.times.saturating_sub(then.times) <= TIMES).then_some((ran, waited))
    };
    let all: Option<BTreeMap<i32, (Ns, Ns)>> =
        look.at_work.iter().map(|(tid, now)| Some((*tid, since(tid, now)?))).collect();
    let all = all?;
    let waited = all.values().map(|(_, waited)| *waited).min()?;
    let ran = all.values().map(|(ran, _)| *ran).max()?;
    let (to, gap) = (look.at.saturating_sub(ran), look.at.saturating_sub(before.at));
    // It may have begun long before the look before, and was over after that.
    let error = if gap >= waited { gap - waited } else { gap };
    stall(to.saturating_sub(waited), to, error, Stall::NoCpu).filter(|_| ran < waited)
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const MS: Ns = 1_000_000;

    fn told(text: &str) -> Vec<(Ns, Ns, Stall)> {
        let told = stalls(&parse(text)).into_iter().filter_map(|(at, _, what)| match what {
            EventKind::Stalled { ns, by } => Some((at / MS, ns / MS, by)),
            _ => None,
        });
        told.collect()
    }

    fn line(ms: Ns, counts: &str) -> String {
        format!("{}000000 1 ~9:{counts}\n", ms)
    }

    #[test]
    fn a_vmm_that_a_signal_stopped_stood_still() {
        let runs = |ms: Ns, ran: Ns| line(ms, &format!("{}000000:0:{ms}:R", ran));
        let stops = |ms: Ns| line(ms, "100000000:0:7:T");
        let row: String = (4..60).map(|n| stops(n * 50)).collect();
        let text = format!("7\n{}{}{row}{}", runs(100, 80), runs(150, 100), runs(3_000, 140));
        assert_eq!(told(&text), [(2_950, 2_750, Stall::Stopped)]);
        // One look that finds it so is a moment.
        assert_eq!(told(&format!("7\n{}{}{}", runs(100, 80), stops(150), runs(200, 100))), []);
    }

    #[test]
    fn one_long_wait_for_a_cpu_is_told_and_many_short_ones_are_not() {
        let counts = |ms: Ns, ran: Ns, waited: Ns, times: Ns| {
            line(ms, &format!("{ran}000000:{waited}000000:{times}:R"))
        };
        let before = counts(100, 80, 0, 5);
        let long = format!("7\n{before}{}", counts(1_150, 90, 1_000, 6));
        assert_eq!(told(&long), [(1_140, 1_000, Stall::NoCpu)]);
        let short = format!("7\n{before}{}", counts(1_150, 90, 1_000, 60));
        assert_eq!(told(&short), []);
        // A vCPU that sleeps is the guest's own idleness.
        let idle: String = (3..40).map(|n| line(n * 50, "80000000:0:5:S")).collect();
        assert_eq!(told(&format!("7\n{before}{idle}")), []);
    }
}
