//! Threads that may not run until their cgroup's quota is refilled, whoever else has the CPUs.

use super::habits::link;
use super::{Candidate, View};
use crate::evidence::groups::GroupId;
use crate::kind::Why;
use crate::result::Severity;
use std::collections::BTreeSet;
use std::f64::consts::TAU;
use vmeter_render::quantity::{brief_percent, grouped};

/// The usual period of a quota (`cpu.cfs_period_us`, `cpu.max`), s, and a wait for a CPU that is
/// long beside a scheduler's slice.
const PERIOD_S: f64 = 0.1;
const LATE_S: f64 = 10e-3;
/// So many of these, and how much they must be at the same time of the period: 1 for all.
const LEAST_LATE: f64 = 8.0;
const SAME: f64 = 0.85;
/// Fewer are enough if they are at the same millisecond of it: the timer that refills the quota is
/// as exact, and three others agree with the first by chance once in 10⁵.
const FEW_LATE: f64 = 4.0;
const EXACT: f64 = 0.998;

/// Share of the traced time that they are held back.
const SHARE: f64 = 0.1;
/// How far, s, from the usual moment of the period a wait may end that the quota ended: others
/// may have the CPU then.
const NEAR_S: f64 = 0.02;

/// Stretches of time, with how many waits they are of.
type Waits = (Vec<(u64, u64)>, u64);

/// Everything of the kind: one finding for all that are let go on at the same moments.
pub fn throttled(view: &View<'_>) -> Vec<Candidate> {
    if view.evidence.ends.any_gaps() {
        return Vec::new();
    }
    let of_group = |who: &GroupId| {
        let (spans, count) = waits(view, *who, by_quota(view, *who)?);
        told(view, *who, (union(spans), count))
    };
    let mut found: Vec<Candidate> = view.evidence.late.keys().filter_map(of_group).collect();
    found.sort_by_key(|candidate| (candidate.foreign, std::cmp::Reverse(candidate.saving)));
    // Threads of one program are of one cgroup.
    found.truncate(1);
    found
}

/// When in the period, s, threads of a name get a CPU again after they waited long, if they do so
/// at multiples of it only, whoever else has it: their cgroup's quota is refilled then.
pub(super) fn by_quota(view: &View<'_>, who: GroupId) -> Option<f64> {
    let late = view.evidence.late.get(&who).into_iter().flatten();
    let long = late.filter(|(_, waited)| view.seconds(*waited).is_some_and(|s| s >= LATE_S));
    // Waits for others' slices are shorter: they count for less.
    let waits: Vec<(f64, f64)> = long
        .filter_map(|(at, waited)| {
            let angle = view.seconds(*at)? / PERIOD_S * TAU;
            Some((angle, view.seconds(*waited)?.powi(2)))
        })
        .collect();
    let periods: BTreeSet<i64> =
        waits.iter().map(|(angle, _)| (angle / TAU).round() as i64).collect();
    // The mean of vectors is as long as they are if all point the same way.
    let sum = |of: fn(f64) -> f64| waits.iter().map(|(angle, long)| of(*angle) * long).sum::<f64>();
    let all: f64 = waits.iter().map(|(_, long)| long).sum();
    let same = sum(f64::cos).hypot(sum(f64::sin)) / all.max(f64::MIN_POSITIVE);
    // So many of equal length would weigh as much.
    let squares: f64 = waits.iter().map(|(_, long)| long * long).sum();
    let many = all * all / squares.max(f64::MIN_POSITIVE);
    let least = if same >= EXACT { FEW_LATE } else { LEAST_LATE };
    let often = many.min(periods.len() as f64) >= least;
    (often && same >= SAME).then(|| {
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
        waited >= LATE_S && away.min(PERIOD_S - away) <= NEAR_S
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
    let share = view.share(ticks);
    if share < SHARE {
        return None;
    }
    let file = view.evidence.groups.get(who).map_or(0, |group| group.first.file);
    let (name, foreign) = (view.threads(who), view.is_foreign(who));
    let claim = format!(
        "{name}, ready, gets no CPU for {} ({} of the traced time), {} times, and goes on at the \
         same moment of each 100 ms: so does who has used up its quota",
        view.time(ticks as f64),
        brief_percent(share),
        grouped(&count.to_string())
    );
    Some(Candidate {
        why: Why::Throttled,
        summary: format!(
            "{name} gets a CPU at multiples of 100 ms only: throttled, it seems (a cgroup's cpu.max)"
        ),
        subject: name,
        saving: ticks,
        chain: vec![link(view, file, claim, count, ticks, None)],
        suggestion: "raise the cgroup's cpu.max (cpu.cfs_quota_us), or do with less CPU time".into(),
        confirm: "grep . /sys/fs/cgroup/CGROUP/cpu.stat (nr_throttled: before and after)".into(),
        at_most: Some(if foreign { Severity::Low } else { Severity::Medium }),
        foreign,
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
