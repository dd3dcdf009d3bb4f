//! The factors of hosts that carried out one session together.
//!
//! A slower host is slower by a factor. The factors are estimated from all runs together with
//! the differences of what was run (`vmeter_stats::hosts`); a time divided by its host's is
//! what it would have been on the average host.

use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::run::SessionRecord;
use vmeter_model::shard::HostEffect;
use vmeter_session::shares::{self, Host};
use vmeter_stats::dist::t_quantile;
use vmeter_stats::hosts::{adjust, Adjusted, HostSample};

/// A timed run: its number, which machine of the session it was of, and its time, s.
pub(crate) type Timed = (u32, usize, f64);

/// What several hosts did to a session's runs.
#[derive(Debug, Default)]
pub(crate) struct Factors {
    /// The hosts; none where there is one only.
    pub hosts: Vec<HostEffect>,
    /// What can't be told, in words.
    pub warnings: Vec<String>,
    of_run: BTreeMap<u32, usize>,
}

impl Factors {
    /// Of a session, `finished` being the numbers of all its runs and `timed` those that
    /// times are of. `what` names what was run, e.g. `points`.
    pub fn of(
        record: &SessionRecord,
        finished: &BTreeSet<u32>,
        timed: &[Timed],
        what: &str,
    ) -> Self {
        let hosts = shares::hosts(record, finished);
        if hosts.len() < 2 {
            return Factors::default();
        }
        let of_run: BTreeMap<u32, usize> = hosts
            .iter()
            .enumerate()
            .flat_map(|(host, (_, runs))| runs.iter().map(move |run| (*run, host)))
            .collect();
        let sample = |(run, group, value): &Timed| {
            Some(HostSample { host: *of_run.get(run)?, group: *group, value: *value })
        };
        let samples: Vec<HostSample> = timed.iter().filter_map(sample).collect();
        let adjusted = adjust(&samples);
        let effects = hosts.iter().enumerate();
        let effects = effects.map(|(index, (host, _))| effect(index, host, &samples, &adjusted));
        let mut warnings: Vec<String> = together(record, &adjusted, what).into_iter().collect();
        warnings.extend(mixed(&hosts));
        Factors { hosts: effects.collect(), warnings, of_run }
    }

    /// The host of a run and its factor; none where one host carried out all.
    pub fn of_run(&self, run: u32) -> Option<(&str, f64)> {
        let effect = self.hosts.get(*self.of_run.get(&run)?)?;
        Some((&effect.name, effect.factor.unwrap_or(1.0)))
    }
}

/// A warning where machines and hosts can't be told apart.
fn together(record: &SessionRecord, adjusted: &Adjusted, what: &str) -> Option<String> {
    let (a, b) = adjusted.confounded.first()?;
    let label = |at: &usize| record.machines.get(*at).map(|m| m.label.as_str());
    let pair = label(a).zip(label(b));
    let example = pair.map(|(a, b)| format!(" ({a} and {b})")).unwrap_or_default();
    Some(format!(
        "for {} pairs of {what}{example}, no host ran both machines, and no other runs show how \
            fast their hosts are relative to each other. A difference between the two machines may \
            be a difference between the hosts; use --runs 2 or more",
        adjusted.confounded.len()
    ))
}

fn effect(index: usize, host: &Host, samples: &[HostSample], adjusted: &Adjusted) -> HostEffect {
    let runs = samples.iter().filter(|s| s.host == index).count();
    let known = runs > 0 && adjusted.confounded.is_empty();
    let factor = adjusted.host_factors.get(index).copied().filter(|_| known);
    HostEffect {
        name: shares::name(host),
        cpu_model: shares::field(host, "cpu_model"),
        runs,
        factor,
        factor_ci95: factor.and_then(|factor| interval(index, factor, samples, adjusted)),
    }
}

/// Of one host's effect against the mean of all, on logarithms: exact where every point ran
/// equally often on every host, nearly so otherwise.
fn interval(
    index: usize,
    factor: f64,
    samples: &[HostSample],
    adjusted: &Adjusted,
) -> Option<[f64; 2]> {
    let distinct =
        |of: fn(&HostSample) -> usize| samples.iter().map(of).collect::<BTreeSet<usize>>();
    let (hosts, groups) = (distinct(|s| s.host), distinct(|s| s.group));
    let df = (samples.len() + 1).checked_sub(hosts.len() + groups.len()).filter(|df| *df > 0)?;
    let n = |host: usize| samples.iter().filter(|s| s.host == host).count() as f64;
    let count = hosts.len() as f64;
    let others: f64 = hosts.iter().map(|host| 1.0 / n(*host)).sum();
    let variance = (1.0 - 2.0 / count) / n(index) + others / (count * count);
    let half = t_quantile(0.975, df as f64) * adjusted.within_sd * variance.max(0.0).sqrt();
    Some([factor * (-half).exp(), factor * half.exp()])
}

fn mixed(hosts: &[(Host, BTreeSet<u32>)]) -> Option<String> {
    let models: BTreeSet<String> =
        hosts.iter().map(|(host, _)| shares::field(host, "cpu_model")).collect();
    let listed: Vec<String> = models.into_iter().collect();
    (listed.len() > 1).then(|| {
        format!(
            "the hosts have different CPU models ({}): for each host, vmeter divides all \
                durations by one factor. If a phase needs a different factor, the divided \
                durations of this phase are wrong",
            listed.join("; ")
        )
    })
}
