//! Runs of several hosts in one table.
//!
//! A slower host is slower by a factor. The factors are estimated from all runs together with
//! the points' differences (`vmeter_stats::hosts`), and every time is divided by its host's:
//! what is left is what the points would have taken on the average host. Counts and virtual
//! time are the same on every host and stay as they are.

use super::figures::Figures;
use crate::shares::{self, Host};
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::run::SessionRecord;
use vmeter_model::shard::HostEffect;
use vmeter_stats::dist::t_quantile;
use vmeter_stats::hosts::{adjust, Adjusted, HostSample};

/// What several hosts did to a session's runs.
#[derive(Debug, Default)]
pub(super) struct Levelled {
    /// The hosts; none where there is one only.
    pub hosts: Vec<HostEffect>,
    /// What can't be told, in words.
    pub warnings: Vec<String>,
}

/// Takes the hosts' factors out of the figures of each point. Nothing is done for one host,
/// for virtual time, or where points and hosts can't be told apart.
pub(super) fn level(
    record: &SessionRecord,
    finished: &BTreeSet<u32>,
    figures: &mut [Vec<Figures>],
) -> Levelled {
    let hosts = shares::hosts(record, finished);
    if hosts.len() < 2 {
        return Levelled::default();
    }
    let host_of: BTreeMap<u32, usize> = hosts
        .iter()
        .enumerate()
        .flat_map(|(host, (_, runs))| runs.iter().map(move |run| (*run, host)))
        .collect();
    let mut samples = Vec::new();
    for (group, runs) in figures.iter().enumerate() {
        let timed = runs.iter().filter(|f| f.is_done() && !f.icount);
        samples.extend(timed.filter_map(|f| {
            let host = *host_of.get(&f.run.index)?;
            Some(HostSample { host, group, value: f.run.total_s })
        }));
    }
    let adjusted = adjust(&samples);
    let apart = adjusted.confounded.is_empty();
    let effects: Vec<HostEffect> = hosts
        .iter()
        .enumerate()
        .map(|(index, (host, _))| effect(index, host, &samples, &adjusted))
        .collect();
    for run in figures.iter_mut().flatten() {
        let Some(effect) = host_of.get(&run.run.index).and_then(|h| effects.get(*h)) else {
            continue;
        };
        let factor = effect.factor.filter(|_| run.is_done() && !run.icount).unwrap_or(1.0);
        run.level(&effect.name, factor);
    }
    let mut warnings = Vec::new();
    if !apart {
        let labels: Vec<&str> = record.machines.iter().map(|m| m.label.as_str()).collect();
        let first = adjusted.confounded.first();
        let pair = first.and_then(|(a, b)| Some((labels.get(*a)?, labels.get(*b)?)));
        let example = pair.map(|(a, b)| format!(" ({a} and {b})")).unwrap_or_default();
        warnings.push(format!(
            "{} pairs of points{example} share no chain of hosts: their difference may be that of their hosts; 2 or more --runs a point mend that",
            adjusted.confounded.len()
        ));
    }
    warnings.extend(mixed(&hosts));
    Levelled { hosts: effects, warnings }
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
            "hosts of different CPU models ({}): a factor a host does not make phases that scale differently comparable",
            listed.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::run::{Outcome, SessionMachine};
    use vmeter_model::shard::HostShare;
    use vmeter_model::sweep::SweptRun;
    use vmeter_stats::rng::Rng;
    use vmeter_stats::{mean, sharded_plan};

    fn host(name: &str) -> Host {
        [("hostname".to_owned(), name.into()), ("cpu_model".to_owned(), "X".into())].into()
    }

    fn run(index: u32, total: f64) -> Figures {
        Figures {
            run: SweptRun {
                index,
                outcome: Outcome::Done,
                total_s: total,
                cpu_s: total,
                phases: vec![("all".into(), total)],
                counts: [("pci_config_reads".to_owned(), 397.0)].into(),
                warnings: vec![],
                host: None,
            },
            activities: [(("all".into(), "work".into()), (total, None))].into(),
            icount: false,
        }
    }

    /// Four points of 1, 1.1, 1.2, 1.3 s on three hosts, five runs each.
    fn measured(runs: usize) -> (SessionRecord, BTreeSet<u32>, Vec<Vec<Figures>>) {
        let (names, speeds) = (["a", "b", "c"], [1.0, 1.5, 0.8]);
        let mut rng = Rng::new(5);
        let mut record = SessionRecord {
            machines: (0..4)
                .map(|n| SessionMachine { label: format!("n={n}"), ..SessionMachine::default() })
                .collect(),
            shares: names.iter().map(|n| HostShare { host: host(n), runs: vec![] }).collect(),
            host: host("nobody"),
            ..SessionRecord::default()
        };
        let mut figures = vec![Vec::new(); 4];
        let plan = sharded_plan(4, 0, runs, 3, 3);
        for (index, planned) in plan.iter().enumerate() {
            let (machine, shard) = (planned.slot.machine, planned.shard);
            let length = (1.0 + 0.1 * machine as f64) * speeds[shard];
            let length = length * (0.01 * rng.normal()).exp();
            record.shares[shard].runs.push(index as u32);
            figures[machine].push(run(index as u32, length));
        }
        (record, (0..plan.len() as u32).collect(), figures)
    }

    #[test]
    fn slow_hosts_do_not_make_slow_points() {
        let (record, finished, mut figures) = measured(5);
        let levelled = level(&record, &finished, &mut figures);
        assert_eq!(levelled.warnings, Vec::<String>::new());
        let factors: Vec<f64> = levelled.hosts.iter().filter_map(|h| h.factor).collect();
        let average = (1.0f64 * 1.5 * 0.8).cbrt();
        for (found, planted) in factors.iter().zip([1.0, 1.5, 0.8]) {
            assert!((found * average / planted - 1.0).abs() < 0.02, "{factors:?}");
        }
        let ci = levelled.hosts[1].factor_ci95.expect("an interval");
        assert!(ci[0] < factors[1] && factors[1] < ci[1] && ci[1] / ci[0] < 1.05, "{ci:?}");
        for (point, runs) in figures.iter().enumerate() {
            let totals: Vec<f64> = runs.iter().map(|f| f.run.total_s).collect();
            let wanted = (1.0 + 0.1 * point as f64) * average;
            assert!((mean(&totals) / wanted - 1.0).abs() < 0.02, "{totals:?}");
            let first = &runs[0];
            assert_eq!(first.run.total_s, first.run.phases[0].1);
            assert_eq!(first.run.counts["pci_config_reads"], 397.0);
            assert!(first.run.host.as_ref().is_some_and(|(_, factor)| *factor != 1.0));
        }
    }

    #[test]
    fn points_that_ran_on_one_host_each_are_left_as_they_are() {
        let (record, finished, mut figures) = measured(1);
        let before = figures[2][0].run.total_s;
        let levelled = level(&record, &finished, &mut figures);
        assert!(levelled.warnings[0].contains("share no chain of hosts"), "{levelled:?}");
        assert!(levelled.hosts.iter().all(|h| h.factor.is_none()));
        assert_eq!(figures[2][0].run.total_s, before);
    }

    #[test]
    fn one_host_and_virtual_time_need_nothing() {
        let (record, finished, mut figures) = measured(5);
        figures.iter_mut().flatten().for_each(|f| f.icount = true);
        let levelled = level(&record, &finished, &mut figures);
        assert!(levelled.hosts.iter().all(|h| h.factor.is_none() && h.runs == 0));
        let alone = SessionRecord { shares: vec![], ..record };
        assert!(level(&alone, &finished, &mut figures).hosts.is_empty());
    }
}
