//! A session's boots by machine and block.

use super::gate::Boot;
use crate::analysis::analyse_run;
use crate::figures::Figures;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use vmeter_model::run::{Outcome, RunRecord};
use vmeter_model::span::OBSERVE;
use vmeter_session::Session;

/// One analysed boot of the plan.
#[derive(Debug)]
pub(crate) struct Booted {
    /// Label of its machine.
    pub label: String,
    /// Block that it belongs to; those in virtual time have none.
    pub block: Option<u32>,
    /// Its figures.
    pub figures: Figures,
    /// What the gate looks at.
    pub boot: Boot,
    /// From the begin of the boot to its end, ns of the host's monotonic clock.
    pub span_ns: (i64, i64),
}

/// All measured boots of a session, and warm-ups that failed, in their order. `timed` machines take turns in blocks.
///
/// # Errors
/// When the session's folder cannot be read.
pub(crate) fn of(session: &Session, timed: u32) -> Result<(Vec<Booted>, Vec<String>)> {
    let (finished, warnings) = session.finished()?;
    let measured: Vec<(PathBuf, RunRecord)> =
        finished.into_iter().filter(|(_, record)| record.is_told()).collect();
    let blocks = blocked(session, timed);
    let block = |record: &RunRecord| (record.index < blocks).then(|| record.index / timed.max(1));
    let all = in_parallel(&measured, |(dir, record)| {
        let analysed = analyse_run(dir, record.clone());
        let figures = Figures::of(&analysed);
        let end = record.exec_ns.saturating_add(record.total_ns);
        Booted {
            label: record.label.clone(),
            block: block(record),
            boot: boot(&figures),
            span_ns: (record.exec_ns, end),
            figures,
        }
    });
    Ok((all, warnings))
}

/// How many runs of the plan are in blocks.
fn blocked(session: &Session, timed: u32) -> u32 {
    let machines = timed as usize;
    let runs = session.record.plan.iter().filter(|planned| planned.machine < machines);
    u32::try_from(runs.count()).unwrap_or(u32::MAX)
}

/// `each` of `all`, in their order, on as many CPUs as there are.
fn in_parallel<T: Sync, R: Send>(all: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let size = all.len().div_ceil(cpus).max(1);
    let each = &each;
    std::thread::scope(|scope| {
        let begin = |part: &'_ [T]| -> Vec<R> { part.iter().map(each).collect() };
        let parts: Vec<_> = all.chunks(size).map(|part| scope.spawn(move || begin(part))).collect();
        let join = |part: std::thread::ScopedJoinHandle<'_, Vec<R>>| match part.join() {
            Ok(found) => found,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        parts.into_iter().flat_map(join).collect()
    })
}

/// Phases, and activities over all the phases that they are in.
fn boot(figures: &Figures) -> Boot {
    // What vmeter held the VMM for is nothing that a machine gives back.
    let its_own = |name: &str| name == OBSERVE;
    let names = figures.phase_names().filter(|name| !its_own(name));
    let phases: BTreeSet<String> = names.map(str::to_owned).collect();
    let mut parts: BTreeMap<String, f64> = BTreeMap::new();
    let mut within = BTreeMap::new();
    for ((phase, name), (s, _)) in figures.activities.iter().filter(|((_, n), _)| !its_own(n)) {
        *parts.entry(name.clone()).or_default() += s;
        // What is called as a phase is meant as the phase.
        if !phases.contains(name) {
            within.insert(name.clone(), phase.clone());
        }
    }
    for name in &phases {
        parts.insert(name.clone(), figures.phase(name));
    }
    let (total, cpu) = (figures.run.total_s, figures.run.cpu_s);
    Boot { total, cpu, parts, phases, within }
}

impl Booted {
    /// True for a boot that reached its end.
    pub fn is_done(&self) -> bool {
        self.figures.run.outcome == Outcome::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::result::AnalysedRun;

    #[test]
    fn what_vmeter_held_the_vmm_for_is_no_part_that_a_change_saves() {
        let phases = ["vmm:init", OBSERVE].map(|name| (name.to_owned(), 1_000_000_000)).into();
        let timeline = vmeter_model::Timeline { phases, ..Default::default() };
        let record = RunRecord::default();
        let mut figures = Figures::of(&AnalysedRun { record, timeline });
        for name in ["vmm:init", OBSERVE] {
            figures.activities.insert((name.into(), name.into()), (0.5, None));
        }
        let boot = boot(&figures);
        assert_eq!(boot.parts.keys().collect::<Vec<_>>(), ["vmm:init"]);
        assert!(!boot.phases.contains(OBSERVE) && !boot.within.contains_key(OBSERVE));
    }
}
