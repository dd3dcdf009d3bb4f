//! From a session's runs to its result: the path of a live session and of a saved one.

use crate::config::{Config, FitRange, SavedConfig};
use crate::data::{Data, Delivered, Enabled, Traced};
use crate::plan::{vfs_at_limit, IrqPlanned, Purpose};
use crate::result::{IrqAnatomy, IrqDelivery, IrqFit, IrqResult, IrqRun, IrqSetup};
use crate::strategy::IrqStrategy;
use crate::{anatomy, fit, together, totals};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmeter_base::{seconds, Ns};
use vmeter_model::run::DataRun;
use vmeter_session::{envelope, Session};

/// What the runs measured, by what they were for. Strategies are those of [`SavedConfig`].
#[derive(Default)]
struct Measured {
    rounds: Vec<(IrqPlanned, Enabled)>,
    delivered: BTreeMap<usize, Delivered>,
    traced: BTreeMap<usize, Result<(PathBuf, Traced), String>>,
    growth: BTreeMap<usize, BTreeMap<usize, Vec<Enabled>>>,
    at_limit: BTreeMap<usize, Vec<Enabled>>,
    /// By strategy and number of VMs; warm-ups are left out.
    together: BTreeMap<(usize, usize), Vec<Vec<Ns>>>,
}

impl Measured {
    /// A run whose data are not what it was planned for was not made by vmeter; it is left out.
    fn take(&mut self, planned: &IrqPlanned, data: Data, dir: &Path) {
        let strategy = planned.strategy;
        match (planned.purpose, data) {
            (Purpose::Delivery, Data::Delivered(delivered)) => {
                self.delivered.insert(strategy, delivered);
            }
            (Purpose::Round { .. }, Data::Enabled(enabled)) => {
                self.rounds.push((planned.clone(), enabled));
            }
            (Purpose::Together { vms }, Data::Together(times)) if !planned.warmup => {
                self.together.entry((strategy, vms)).or_default().push(times);
            }
            (Purpose::Trace, Data::Traced(traced)) => {
                self.traced.insert(strategy, Ok((dir.to_owned(), traced)));
            }
            (Purpose::Trace, Data::NotTraced(why)) => {
                self.traced.insert(strategy, Err(why));
            }
            (Purpose::Growth { vectors }, Data::Enabled(enabled)) => {
                let sizes = self.growth.entry(strategy).or_default();
                sizes.entry(vectors).or_default().push(enabled);
            }
            (Purpose::Limit { .. }, Data::Repeated(samples)) => {
                self.at_limit.insert(strategy, samples);
            }
            _ => {}
        }
    }
}

/// The result of a session, of all its finished runs.
///
/// # Errors
/// Class usage: a folder that cannot be read, or that holds no finished run.
pub(crate) fn result(session: &Session<IrqPlanned>) -> Result<IrqResult> {
    let kept: SavedConfig = session.asked()?;
    kept.check().map_err(|error| error.classified())?;
    let (finished, unread) = session.finished_as::<DataRun<Data>>()?;
    if finished.is_empty() {
        return Err(session.no_runs(&unread));
    }
    let plan = &session.record.plan;
    let missing = plan.len().saturating_sub(finished.len());
    let mut measured = Measured::default();
    for (dir, run) in finished {
        if let Some(planned) = plan.get(run.head.index as usize) {
            measured.take(planned, run.data, &dir);
        }
    }
    let strategies = kept.found.strategies.as_slice();
    let runs = runs(strategies, &measured.rounds);
    let mut result = IrqResult {
        envelope: envelope::envelope(&session.record),
        setup: setup(&kept, session.record.seed),
        rows: totals::rows(&runs, strategies, kept.found.vectors),
        totals: totals::totals(&runs, strategies, |of| kept.asked.baseline(&kept.found, of)),
        fit: Vec::new(),
        together: together::summary(strategies, &measured.together),
        anatomy: Vec::new(),
        runs,
        warnings: kept.found.left_out.clone(),
        hints: Vec::new(),
    };
    for total in &mut result.totals {
        let at = strategies.iter().position(|strategy| *strategy == total.strategy);
        let delivery = at.and_then(|at| measured.delivered.get(&at));
        total.delivery = delivery.map(delivery_of);
    }
    result.warnings.extend(disturbed(&kept, &measured.rounds));
    result.warnings.extend(unread);
    if missing > 0 {
        result.warnings.push(format!(
            "only {} of {} planned runs are finished, and all figures come from these; make the \
                remaining runs with `vmeter irq --resume {}`",
            plan.len() - missing,
            plan.len(),
            vmeter_base::shell::path(&session.dir)
        ));
    }
    result.anatomy = anatomy(strategies, &measured, &mut result.warnings);
    result.fit = fits(&kept, &measured);
    if let Config::Vm(options) = &kept.asked {
        let planned = plan.iter().any(|run| matches!(run.purpose, Purpose::Growth { .. }));
        if options.fit != FitRange::None && !planned {
            result.warnings.push(format!(
                "no fit: with at most {} vectors there are too few points to distinguish a line \
                    from a parabola",
                options.vfs * options.vectors
            ));
        }
    }
    totals::advise(&mut result);
    Ok(result)
}

fn setup(kept: &SavedConfig, seed: u64) -> IrqSetup {
    let (runs, warmup) = kept.asked.rounds();
    let (vcpus, busy_cpus, running_vcpus, devices) = match &kept.asked {
        Config::Vm(o) => (o.vcpus, o.busy_cpus, o.running_vcpus, Vec::new()),
        Config::Vfio(o) => {
            let devices = o.devices.iter().map(ToString::to_string).collect();
            (o.vcpus, o.busy_cpus, o.running_vcpus, devices)
        }
    };
    IrqSetup {
        vfs: kept.found.vfs,
        vectors: kept.found.vectors,
        vcpus,
        busy_cpus,
        running_vcpus,
        runs,
        warmup,
        seed,
        gsi_limit: kept.found.gsi_limit,
        cpus: kept.found.cpus.clone(),
        devices,
    }
}

fn runs(strategies: &[IrqStrategy], rounds: &[(IrqPlanned, Enabled)]) -> Vec<IrqRun> {
    let run = |(planned, enabled): &(IrqPlanned, Enabled)| {
        let Purpose::Round { round } = planned.purpose else { return None };
        Some(IrqRun {
            strategy: *strategies.get(planned.strategy)?,
            round,
            warmup: planned.warmup,
            prepared_s: seconds(enabled.prepared_ns),
            vfs_s: enabled.vfs_ns.iter().copied().map(seconds).collect(),
            shared_s: seconds(enabled.shared_ns),
            total_s: seconds(enabled.total_ns),
            cpu_s: seconds(enabled.cpu_ns),
            commits: enabled.commits,
            set_irqs: enabled.set_irqs,
        })
    };
    rounds.iter().filter_map(run).collect()
}

fn delivery_of(delivered: &Delivered) -> IrqDelivery {
    let Delivered { raised, arrived, stray, held } = *delivered;
    IrqDelivery { raised, arrived, stray, held }
}

/// A warning, if others wanted the CPUs in the rounds.
fn disturbed(kept: &SavedConfig, rounds: &[(IrqPlanned, Enabled)]) -> Option<String> {
    let stalled = || rounds.iter().filter_map(|(_, enabled)| enabled.stalled);
    let watched_s: f64 = stalled().map(|s| seconds(s.watched_ns)).sum();
    let stalled_s: f64 = stalled().map(|s| seconds(s.stalled_ns)).sum();
    if kept.asked.busy_cpus() > 0 || watched_s <= 0.0 {
        return None;
    }
    totals::disturbed((stalled_s / watched_s).min(1.0))
}

/// The traced runs, taken apart. Why one could not be is said once.
fn anatomy(
    strategies: &[IrqStrategy],
    measured: &Measured,
    warnings: &mut Vec<String>,
) -> Vec<IrqAnatomy> {
    let mut found = Vec::new();
    let mut reasons: Vec<String> = Vec::new();
    for (at, traced) in &measured.traced {
        let Some(strategy) = strategies.get(*at) else { continue };
        let read = traced.as_ref().map_err(Clone::clone).and_then(|(dir, traced)| {
            anatomy::read(*strategy, traced, dir).map_err(|failed| failed.to_string())
        });
        match read {
            Ok(anatomy) => found.push(anatomy),
            Err(why) if reasons.contains(&why) => {}
            Err(why) => reasons.push(why),
        }
    }
    let said =
        reasons.iter().map(|why| format!("cannot show where the time of a commit goes: {why}"));
    warnings.extend(said);
    found
}

fn fits(kept: &SavedConfig, measured: &Measured) -> Vec<IrqFit> {
    let Config::Vm(options) = &kept.asked else { return Vec::new() };
    let limit = vfs_at_limit(options, kept.found.free_routes);
    let one = |(strategy, sizes): (&usize, &BTreeMap<usize, Vec<Enabled>>)| {
        let points = sizes
            .iter()
            .map(|(vectors, samples)| fit::point(*vectors, &samples.iter().collect::<Vec<_>>()));
        let mut fit = fit::fit(*kept.found.strategies.get(*strategy)?, points.collect())?;
        let samples = measured.at_limit.get(strategy).map_or(&[][..], Vec::as_slice);
        fit.at_limit = limit.map(|vfs| fit::at_limit(&fit, vfs, options.vectors, samples));
        Some(fit)
    };
    measured.growth.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Found, Options};
    use crate::data::Stalled;
    use crate::plan::plan;
    use crate::report::IrqReport;
    use crate::result::Order;
    use msi_routes::Strategy;
    use vmeter_model::run::{RunHead, SessionRecord};
    use vmeter_model::SCHEMA;
    use vmeter_render::outputs::OUTPUTS;
    use vmeter_session::failure::class;
    use vmeter_session::{record, RunOptions};

    fn kept() -> SavedConfig {
        let strategies = vec![Strategy::PerVector, Strategy::PerVm];
        let names = strategies.iter().map(|s| (*s).into()).collect();
        let asked = Config::Vm(Options {
            vfs: 2,
            vectors: 20,
            vcpus: 2,
            busy_cpus: 0,
            running_vcpus: 0,
            strategies,
            runs: 3,
            warmup: 1,
            fit: FitRange::Limit,
            no_trace: false,
            vms: Vec::new(),
        });
        let found = Found {
            gsi_limit: 4096,
            free_routes: 4072,
            vfs: 2,
            vectors: 20,
            cpus: vec![1],
            strategies: names,
            left_out: Vec::new(),
        };
        SavedConfig { asked, found }
    }

    /// A commit for each vector costs by the routes that there are; one for all, once.
    fn enabled(strategy: usize, vectors: usize) -> Enabled {
        let n = vectors as i64;
        let total_ns = if strategy == 0 { n * 8000 + n * n * 60 } else { 8000 + n * 585 };
        Enabled {
            vfs_ns: vec![total_ns / 4, total_ns - total_ns / 4],
            total_ns,
            cpu_ns: total_ns / 2,
            commits: if strategy == 0 { vectors } else { 1 },
            stalled: Some(Stalled { stalled_ns: 1, watched_ns: 2 }),
            ..Enabled::default()
        }
    }

    fn data(planned: &IrqPlanned) -> Data {
        match planned.purpose {
            Purpose::Delivery => {
                Data::Delivered(Delivered { raised: 40, arrived: 40, ..Delivered::default() })
            }
            Purpose::Round { .. } => Data::Enabled(enabled(planned.strategy, 40)),
            Purpose::Together { vms } => Data::Together((1..=vms as i64).collect()),
            Purpose::Trace => Data::NotTraced("no tracefs".into()),
            Purpose::Growth { vectors } => Data::Enabled(enabled(planned.strategy, vectors)),
            Purpose::Limit { vectors } => Data::Repeated(vec![enabled(planned.strategy, vectors)]),
        }
    }

    fn commit(session: &Session<IrqPlanned>, index: usize) {
        let planned = &session.record.plan[index];
        let head = RunHead {
            schema: SCHEMA.into(),
            index: index as u32,
            label: session.record.machines[planned.machine].label.clone(),
            warmup: planned.warmup,
            ..RunHead::default()
        };
        session.begin_run(head.index).unwrap();
        session.commit_run(&DataRun { head, data: data(planned) }).unwrap();
    }

    fn begun(folder: &Path, kept: &SavedConfig) -> Session<IrqPlanned> {
        let (machines, plan) = plan(kept, 1, &BTreeMap::new());
        let asked = serde_json::to_value(kept).unwrap();
        let begun = record("irq", &RunOptions::default());
        let record = SessionRecord { machines, plan, asked, ..begun };
        Session::create(Some(folder), record).unwrap()
    }

    fn draw(result: &IrqResult) {
        for output in OUTPUTS {
            // A result without a timeline has nothing for Perfetto.
            let _ = output.write(&IrqReport::new(result), &mut Vec::new());
        }
    }

    /// A session may be killed after any run: what is there is analysed, and what is missing
    /// is said.
    #[test]
    fn every_beginning_of_a_session_has_a_result() {
        let folder = tempfile::tempdir().unwrap();
        let session = begun(folder.path(), &kept());
        assert_eq!(class(&result(&session).unwrap_err()).status(), 2);
        let all = session.record.plan.len();
        for index in 0..all {
            commit(&session, index);
            if index > 12 && index % 16 != 0 && index + 1 < all {
                continue;
            }
            let partly = result(&session).unwrap();
            draw(&partly);
            let said = format!("{} of {all} planned runs", index + 1);
            let is_said = partly.warnings.iter().any(|warning| warning.contains(&said));
            assert_eq!(is_said, index + 1 < all, "{:?}", partly.warnings);
        }
        let whole = result(&session).unwrap();
        assert_eq!((whole.rows.len(), whole.totals.len(), whole.runs.len()), (4, 2, 8));
        assert_eq!(whole.totals[0].delivery.unwrap().arrived, 40);
        assert_eq!(whole.totals[1].ratio_to, Some(IrqStrategy::PerVector));
        let orders: Vec<Order> = whole.fit.iter().map(|fit| fit.time.order).collect();
        assert_eq!(orders, [Order::Quadratic, Order::Linear]);
        let at = whole.fit[1].at_limit.as_ref().unwrap();
        assert_eq!((at.vfs, at.vectors, at.samples_s.len()), (203, 4060, 1));
        let warned = |text: &str| whole.warnings.iter().filter(|w| w.contains(text)).count();
        assert_eq!((warned("no tracefs"), warned("waited for a CPU for 50%")), (1, 1));
    }

    #[test]
    fn a_session_that_was_not_made_by_vmeter_is_refused_or_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut session = begun(folder.path(), &kept());
        // Runs under numbers that the plan has for something else, or for nothing.
        commit(&session, 0);
        session.record.plan.rotate_left(3);
        draw(&result(&session).unwrap());
        session.record.plan.clear();
        draw(&result(&session).unwrap());
        for (name, value) in [("vfs", usize::MAX), ("vectors", usize::MAX)] {
            let mut hostile = serde_json::to_value(kept()).unwrap();
            hostile["found"][name] = value.into();
            session.record.asked = hostile;
            assert_eq!(class(&result(&session).unwrap_err()).status(), 2);
        }
    }
}
