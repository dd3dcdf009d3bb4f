//! Runs of several hosts in one table.
//!
//! Every time is divided by its host's factor ([`crate::host_factors`]). Counts and virtual
//! time are the same on every host and stay as they are.

use crate::figures::Figures;
use crate::host_factors::{Factors, Timed};
use std::collections::BTreeSet;
use vmeter_model::run::SessionRecord;

/// Takes the hosts' factors out of the figures of each point. Nothing is done for one host,
/// for virtual time, or where points and hosts can't be told apart.
pub(super) fn level(
    record: &SessionRecord,
    finished: &BTreeSet<u32>,
    figures: &mut [Vec<Figures>],
) -> Factors {
    let timed = |time: fn(&Figures) -> f64| -> Vec<Timed> {
        let groups = figures.iter().enumerate();
        let runs = groups.flat_map(|(group, runs)| runs.iter().map(move |run| (group, run)));
        let of_time = runs.filter(|(_, f)| f.is_done() && !f.icount && time(f) > 0.0);
        of_time.map(|(group, f)| (f.run.index, group, time(f))).collect()
    };
    let factors = Factors::of(record, finished, &timed(|f| f.run.total_s), "points");
    let of_cpu = Factors::of(record, finished, &timed(|f| f.run.cpu_s), "points");
    for run in figures.iter_mut().flatten() {
        let Some((name, factor)) = factors.of_run(run.run.index) else { continue };
        let cpu = of_cpu.of_run(run.run.index).map_or(1.0, |(_, factor)| factor);
        let counts = run.is_done() && !run.icount;
        let (factor, cpu) = if counts { (factor, cpu) } else { (1.0, 1.0) };
        run.level(name, factor, cpu);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::run::{Outcome, SessionMachine};
    use vmeter_model::shard::HostShare;
    use vmeter_model::sweep::SweptRun;
    use vmeter_session::shares::Host;
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
                end: None,
                total_s: total,
                cpu_s: 1.0,
                phases: vec![("all".into(), total)],
                counts: [("pci_config_reads".to_owned(), 397.0)].into(),
                warnings: vec![],
                host: None,
            },
            activities: [(("all".into(), "work".into()), (total, None))].into(),
            marks: std::collections::BTreeMap::new(),
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
        let normalised = level(&record, &finished, &mut figures);
        assert_eq!(normalised.warnings, Vec::<String>::new());
        let factors: Vec<f64> = normalised.hosts.iter().filter_map(|h| h.factor).collect();
        let average = (1.0f64 * 1.5 * 0.8).cbrt();
        for (found, planted) in factors.iter().zip([1.0, 1.5, 0.8]) {
            assert!((found * average / planted - 1.0).abs() < 0.02, "{factors:?}");
        }
        let ci = normalised.hosts[1].factor_ci95.expect("an interval");
        assert!(ci[0] < factors[1] && factors[1] < ci[1] && ci[1] / ci[0] < 1.05, "{ci:?}");
        for (point, runs) in figures.iter().enumerate() {
            let totals: Vec<f64> = runs.iter().map(|f| f.run.total_s).collect();
            let wanted = (1.0 + 0.1 * point as f64) * average;
            assert!((mean(&totals) / wanted - 1.0).abs() < 0.02, "{totals:?}");
            let first = &runs[0];
            assert_eq!(first.run.total_s, first.run.phases[0].1);
            assert!((first.run.cpu_s - 1.0).abs() < 1e-9, "no host took more CPU time");
            assert_eq!(first.run.counts["pci_config_reads"], 397.0);
            assert!(first.run.host.as_ref().is_some_and(|(_, factor)| *factor != 1.0));
        }
    }

    #[test]
    fn points_that_ran_on_one_host_each_are_left_as_they_are() {
        let (record, finished, mut figures) = measured(1);
        let before = figures[2][0].run.total_s;
        let normalised = level(&record, &finished, &mut figures);
        assert!(normalised.warnings[0].contains("no host ran both"), "{normalised:?}");
        assert!(normalised.hosts.iter().all(|h| h.factor.is_none()));
        assert_eq!(figures[2][0].run.total_s, before);
    }

    #[test]
    fn one_host_and_virtual_time_need_nothing() {
        let (record, finished, mut figures) = measured(5);
        figures.iter_mut().flatten().for_each(|f| f.icount = true);
        let normalised = level(&record, &finished, &mut figures);
        assert!(normalised.hosts.iter().all(|h| h.factor.is_none() && h.runs == 0));
        let alone = SessionRecord { shares: vec![], ..record };
        assert!(level(&alone, &finished, &mut figures).hosts.is_empty());
    }
}
