//! Threads that may not run until their cgroup's quota is refilled, whoever else has the CPUs.

use super::levels::level_of;
use super::patterns::link;
use super::segments::NoCpu;
use super::{Candidate, View};
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::result::Severity;
use std::collections::BTreeSet;
use std::f64::consts::TAU;
use vmeter_render::quantity::{brief_percent, grouped};

/// The period of quotas (`cpu.cfs_period_us`, `cpu.max`), s, as the kernel has it unless it is changed.
/// Shorter ones are also those of threads that have a CPU in turn, a tick each.
const PERIOD_S: f64 = 0.1;
/// A wait for a CPU that is longer than the slices of three others, s: these come in turns, at a period, too.
const LATE_S: f64 = 15e-3;
/// So many of these, and how much they must be at the same time of the period: 1 for all.
const LEAST_LATE: f64 = 8.0;
const SAME: f64 = 0.85;
/// On a busy host others have the CPU then: of three times as many, less has to be at the same time
/// (Rayleigh's test: by chance once in e¹¹).
const MANY_LATE: f64 = 24.0;
const MOST_SAME: f64 = 0.7;
/// Fewer are enough if they are at the same millisecond of it: the timer that refills the quota is
/// as exact, and three others agree with the first by chance once in 10⁵.
const FEW_LATE: f64 = 4.0;
const EXACT: f64 = 0.998;

/// Share of the traced time that they are held back.
const SHARE: f64 = 0.1;
/// How far from the usual moment of the period, as a part of it, a wait may end that the quota ended:
/// others may have the CPU then.
const NEAR: f64 = 0.2;

/// Stretches of time, with how many waits they are of.
type Waits = (Vec<(u64, u64)>, u64);

/// Everything of the kind: one finding for all that are let go on at the same moments.
pub fn throttled(view: &View<'_>) -> Vec<Candidate> {
    if view.evidence.ends.any_gaps() {
        return Vec::new();
    }
    let of_group = |who: &GroupId| {
        let quota = by_quota(view, *who)?;
        let level = level_of(view, Frame::Life(*who))?;
        if level.no_cpu != NoCpu::Quota {
            return None;
        }
        let (spans, count) = waits(view, *who, quota);
        told(view, *who, (union(spans), count))
    };
    let mut found: Vec<Candidate> = view.evidence.late.keys().filter_map(of_group).collect();
    found.sort_by_key(|candidate| (candidate.other_program, std::cmp::Reverse(candidate.saving)));
    // Threads of one program are of one cgroup.
    found.truncate(1);
    found
}

/// When in a period, s, threads of a name get a CPU again after they waited long, if they do so at
/// multiples of it only, whoever else has it: their cgroup's quota is refilled then.
pub fn by_quota(view: &View<'_>, who: GroupId) -> Option<f64> {
    let late = view.evidence.late.get(&who).into_iter().flatten();
    let long = late.filter_map(|(at, waited)| Some((view.seconds(*at)?, view.seconds(*waited)?)));
    let long: Vec<(f64, f64)> = long.filter(|(_, waited)| *waited >= LATE_S).collect();
    phase(&long)
}

/// When in a period waits end, if they end at the same time of it; as the resultant of vectors (Rayleigh).
fn phase(long: &[(f64, f64)]) -> Option<f64> {
    // Waits for others' slices are shorter: they count for less.
    let waits = long.iter().map(|(at, waited)| (at / PERIOD_S * TAU, waited.powi(2)));
    let waits: Vec<(f64, f64)> = waits.collect();
    let periods: BTreeSet<i64> =
        waits.iter().map(|(angle, _)| (angle / TAU).round() as i64).collect();
    // The mean of vectors is as long as they are if all point the same way.
    let sum = |of: fn(f64) -> f64| waits.iter().map(|(angle, long)| of(*angle) * long).sum::<f64>();
    let all: f64 = waits.iter().map(|(_, long)| long).sum();
    let same = sum(f64::cos).hypot(sum(f64::sin)) / all.max(f64::MIN_POSITIVE);
    // So many of equal length would weigh as much.
    let squares: f64 = waits.iter().map(|(_, long)| long * long).sum();
    let many = all * all / squares.max(f64::MIN_POSITIVE);
    let waits = many.min(periods.len() as f64);
    let enough = [(EXACT, FEW_LATE), (SAME, LEAST_LATE), (MOST_SAME, MANY_LATE)];
    enough.into_iter().any(|(part, least)| same >= part && waits >= least).then(|| {
        let turn = sum(f64::sin).atan2(sum(f64::cos)) / TAU;
        turn.rem_euclid(1.0) * PERIOD_S
    })
}

fn waits(view: &View<'_>, who: GroupId, phase: f64) -> Waits {
    let late = view.evidence.late.get(&who).into_iter().flatten();
    let held = late.filter(|(at, waited)| {
        let (Some(at), Some(waited)) = (view.seconds(*at), view.seconds(*waited)) else {
            return false;
        };
        let away = (at - phase).rem_euclid(PERIOD_S);
        waited >= LATE_S && away.min(PERIOD_S - away) <= NEAR * PERIOD_S
    });
    let spans: Vec<(u64, u64)> =
        held.map(|(at, waited)| (at.saturating_sub(*waited), *at)).collect();
    let count = spans.len() as u64;
    (spans, count)
}

/// Ticks in which at least one of them is held back.
fn union(mut spans: Vec<(u64, u64)>) -> u64 {
    spans.sort_unstable();
    let (mut all, mut end) = (0_u64, 0);
    for (from, to) in spans {
        all = all.saturating_add(to.saturating_sub(from.max(end)));
        end = end.max(to);
    }
    all
}

fn told(view: &View<'_>, who: GroupId, (ticks, count): (u64, u64)) -> Option<Candidate> {
    let period = vmeter_render::quantity::brief_seconds(PERIOD_S);
    let share = view.share(ticks);
    if share < SHARE {
        return None;
    }
    let file = view.evidence.groups.get(who).map_or(0, |group| group.first.file);
    let (name, other_program) = (view.threads(who), view.is_foreign(who));
    let claim = format!(
        "{name} is ready but gets no CPU: {} in all ({} of the traced time), in {} waits. It \
            resumes at the same point of each {period} period, like a thread that had used up \
            its quota",
        view.time(ticks as f64),
        brief_percent(share),
        grouped(&count.to_string())
    );
    Some(Candidate {
        why: Why::Throttled,
        summary: format!(
            "{name} gets a CPU only at multiples of {period}: it seems to be throttled (a \
                cgroup's cpu.max)"
        ),
        subject: name,
        saving: ticks,
        chain: vec![link(view, file, claim, count, ticks, None)],
        suggestion: "raise the cgroup's cpu.max (cpu.cfs_quota_us), or reduce the CPU time that \
            the cgroup uses"
            .into(),
        confirm: "grep . /sys/fs/cgroup/CGROUP/cpu.stat (run grep before and after the \
            thread runs for some seconds, and compare nr_throttled)"
            .into(),
        max_severity: Some(if other_program { Severity::Low } else { Severity::Medium }),
        other_program,
        ..Candidate::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_threads_wait_at_the_same_time_counts_once() {
        assert_eq!(union(vec![(10, 30), (0, 20), (40, 50), (12, 14)]), 40);
    }
}
