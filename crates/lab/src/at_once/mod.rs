//! `--concurrency N[,M…]`: so many VMs at once, started in the same moment.
//!
//! Each number is a machine of its own in the plan, and each VM is a run of its own. The runs of a wave
//! follow one another in the plan; when the first of them is asked for, all are carried out, each by a
//! thread of its own, and what they recorded is kept until they are asked for in their turn.

mod levels;
mod shown;
mod tail;

pub use levels::{levels, Knee, Level, Levels};
pub use shown::Spread;
pub use tail::WaitsFor;

use crate::boots::BootRequest;
use crate::prepare::Prepared;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex, PoisonError};
use vmeter_base::scratch::Scratch;
use vmeter_model::run::{PlannedRun, SessionMachine};
use vmeter_model::RunRecord;
use vmeter_record::sources::wave_trace::FILE;
use vmeter_session::failure::usage;
use vmeter_session::Interrupt;

/// Parameter of a session's machine: how many of it run at once.
pub(crate) const AT_ONCE: &str = "concurrency";
/// … and the label of the machine that it is, whatever their number.
pub(crate) const OF: &str = "machine";
/// More VMs at once are no measurement any more.
const MOST: u32 = 1024;

/// How many of a machine run at once; one, where nothing says so.
pub(crate) fn at_once(machine: &SessionMachine) -> u32 {
    let found = machine.parameters.iter().find(|(name, _)| name == AT_ONCE);
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(1).max(1)
}

/// True for a machine that has a number of VMs at once, be it one.
pub(crate) fn is_spread(machine: &SessionMachine) -> bool {
    machine.parameters.iter().any(|(name, _)| name == AT_ONCE)
}

/// A machine for each number of VMs at once, or the one as it is, if none is given.
pub(crate) fn spread(prepared: Prepared, levels: &[u32]) -> Vec<Prepared> {
    if levels.is_empty() {
        return vec![prepared];
    }
    let at = |level: &u32| {
        let mut one = prepared.clone();
        let shared = std::mem::take(&mut one.session.label);
        one.session.label = format!("{shared}, {level} at once");
        one.session.parameters.push((AT_ONCE.into(), level.to_string()));
        one.session.parameters.push((OF.into(), shared));
        one
    };
    levels.iter().map(at).collect()
}

/// Refuses what no host can run.
///
/// # Errors
/// Class usage.
pub(crate) fn check(levels: &[u32]) -> Result<()> {
    match levels.iter().find(|level| !(1..=MOST).contains(*level)) {
        Some(level) => {
            Err(usage(format!("--concurrency {level}: expected 1 to {MOST} VMs at once")))
        }
        None => Ok(()),
    }
}

/// The plan with each run as often as its machine runs at once.
pub(crate) fn widened(plan: Vec<PlannedRun>, machines: &[SessionMachine]) -> Vec<PlannedRun> {
    let times = |run: &PlannedRun| machines.get(run.machine).map_or(1, at_once) as usize;
    plan.into_iter().flat_map(|run| std::iter::repeat_n(run, times(&run))).collect()
}

/// Number of the first run of each wave of such a plan.
fn begins(plan: &[PlannedRun], machines: &[SessionMachine]) -> Vec<u32> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(run) = plan.get(at) {
        all.push(u32::try_from(at).unwrap_or(u32::MAX));
        at += machines.get(run.machine).map_or(1, at_once) as usize;
    }
    all
}

/// Numbers of the runs in the wave of one of them.
fn wave_of(begins: &[u32], index: u32, at_once: u32) -> std::ops::Range<u32> {
    let after = begins.partition_point(|begin| *begin <= index);
    let first = after.checked_sub(1).map_or(index, |at| begins[at]);
    first..first.saturating_add(at_once)
}

/// Runs that are carried out together.
#[derive(Debug, Default)]
pub(crate) struct Waves {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the first run of each wave.
    begins: Vec<u32>,
    /// What was recorded of a wave, by number, and in which folder.
    kept: BTreeMap<u32, (PathBuf, RunRecord)>,
    scratch: Option<Scratch>,
}

impl Waves {
    /// The plan that says which runs are a wave.
    pub fn follow(&self, plan: &[PlannedRun], machines: &[SessionMachine]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.begins = begins(plan, machines);
    }

    /// One run of a wave; `boot` carries out any of them.
    pub fn run(
        &self,
        request: &BootRequest<'_>,
        boot: impl Fn(&BootRequest<'_>) -> Result<RunRecord> + Sync,
    ) -> Result<RunRecord> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.kept.contains_key(&request.index) {
            state.kept.clear();
            let scratch = Scratch::new().context("cannot make a folder for concurrent runs")?;
            let wave = wave_of(&state.begins, request.index, at_once(request.machine));
            let wave: Vec<u32> = wave.collect();
            state.kept = recorded(&wave, scratch.path(), request, boot)?;
            state.scratch = Some(scratch);
        }
        let kept = state.kept.remove(&request.index);
        let (dir, record) = kept.context("this run is not among the recorded concurrent runs")?;
        moved(&dir, request.dir)
            .context("failed to save one of the runs that ran at the same time")?;
        Ok(record)
    }
}

/// All runs of a wave; what the kernel does in a warm-up is traced, and kept with the first of them.
fn recorded(
    wave: &[u32],
    folder: &Path,
    request: &BootRequest<'_>,
    boot: impl Fn(&BootRequest<'_>) -> Result<RunRecord> + Sync,
) -> Result<BTreeMap<u32, (PathBuf, RunRecord)>> {
    if !request.planned.warmup {
        return carry_out(wave, folder, request, boot);
    }
    let (mut found, source) = tail::traced(folder, || carry_out(wave, folder, request, boot))?;
    if let Some((dir, run)) = found.get_mut(&request.index) {
        let trace = folder.join(FILE);
        if trace.is_file() {
            std::fs::rename(&trace, dir.join(FILE))
                .context("cannot save the trace of the concurrent runs")?;
        }
        run.sources.push(source);
    }
    Ok(found)
}

/// All runs of a wave, each by a thread, begun together.
fn carry_out(
    wave: &[u32],
    folder: &Path,
    request: &BootRequest<'_>,
    boot: impl Fn(&BootRequest<'_>) -> Result<RunRecord> + Sync,
) -> Result<BTreeMap<u32, (PathBuf, RunRecord)>> {
    let interrupts: Vec<Interrupt> = wave.iter().map(|_| Interrupt::default()).collect();
    let _during = request.interrupt.during({
        let all = interrupts.clone();
        move || all.iter().for_each(Interrupt::raise)
    });
    let start = Barrier::new(wave.len());
    let mut found = BTreeMap::new();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, interrupt) in wave.iter().zip(&interrupts) {
            let (dir, start, boot) = (folder.join(index.to_string()), &start, &boot);
            let one = move || {
                let made = std::fs::create_dir(&dir);
                start.wait();
                made.with_context(|| format!("cannot make {}", dir.display()))?;
                let own = BootRequest { dir: &dir, index: *index, interrupt, ..*request };
                Ok::<_, anyhow::Error>((*index, (dir.clone(), boot(&own)?)))
            };
            threads.push(scope.spawn(one));
        }
        for thread in threads {
            match thread.join() {
                Ok(run) => drop(run.map(|(index, run)| found.insert(index, run))?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(found)
}

/// Moves what was recorded into a run's own folder.
fn moved(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        // The folder of temporary files may be on another file system.
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    std::fs::remove_dir_all(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use vmeter_model::run::WatchLevel;

    fn machine(level: u32) -> SessionMachine {
        let parameters = vec![(AT_ONCE.to_owned(), level.to_string())];
        SessionMachine { label: format!("m{level}"), parameters, ..SessionMachine::default() }
    }

    fn planned(machine: usize) -> PlannedRun {
        PlannedRun { machine, warmup: false, watch: WatchLevel::None }
    }

    #[test]
    fn the_runs_of_a_wave_are_begun_together_and_saved_one_by_one() {
        let machines = [machine(1), machine(3)];
        let plan = widened([1, 0, 1].map(planned).to_vec(), &machines);
        assert_eq!(plan.iter().map(|run| run.machine).collect::<Vec<_>>(), [1, 1, 1, 0, 1, 1, 1]);
        assert_eq!(begins(&plan, &machines), [0, 3, 4]);
        assert_eq!(wave_of(&begins(&plan, &machines), 5, 3), 4..7);
        let waves = Waves::default();
        waves.follow(&plan, &machines);
        let (running, most) = (AtomicU32::new(0), AtomicU32::new(0));
        let together = Barrier::new(3);
        let boot = |request: &BootRequest<'_>| {
            most.fetch_max(1 + running.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            together.wait();
            running.fetch_sub(1, Ordering::SeqCst);
            std::fs::write(request.dir.join("console.chunks"), request.index.to_string())?;
            Ok(RunRecord { index: request.index, ..RunRecord::default() })
        };
        let folder = tempfile::tempdir().expect("a folder");
        let interrupt = Interrupt::default();
        for index in 0..3 {
            let dir = folder.path().join(index.to_string());
            std::fs::create_dir(&dir).expect("a folder");
            let (machine, planned) = (&machines[1], &plan[0]);
            let request =
                BootRequest { dir: &dir, index, machine, planned, seed: 1, interrupt: &interrupt };
            assert_eq!(waves.run(&request, boot).expect("it runs").index, index);
            let saved = std::fs::read_to_string(dir.join("console.chunks")).expect("a file");
            assert_eq!(saved, index.to_string());
        }
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }
}
