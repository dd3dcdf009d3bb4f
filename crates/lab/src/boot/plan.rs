//! Which boots of a machine there are, and how each is watched.

use crate::booter::Recorder;
use crate::prepare::Prepared;
use anyhow::Result;
use vmeter_model::run::{PlannedRun, WatchLevel};
use vmeter_render::quantity::plural;
use vmeter_session::failure::usage;
use vmeter_session::{RunOptions, Session};

/// Measured boots of a machine, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 5;
/// … and of each of two machines, where a baseline takes turns with it.
const DEFAULT_PAIRS: u32 = 10;

/// How the boots that are timed, and those that count instructions, are watched. They
/// are the same where counting costs nothing: not by the plugin, or in virtual time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Levels {
    pub asked: WatchLevel,
    pub timed: WatchLevel,
}

impl Levels {
    pub fn of(watch: WatchLevel, recorder: &Recorder) -> Self {
        let by_plugin = recorder.machines.iter().any(Prepared::is_slowed_by_counting);
        let timed = match watch {
            WatchLevel::Full if by_plugin => WatchLevel::Light,
            other => other,
        };
        Levels { asked: watch, timed }
    }

    pub fn counts_apart(self) -> bool {
        self.asked != self.timed
    }
}

/// Warm-ups, then measured boots, of machines in turn. Counting boots double as warm-ups.
pub(super) fn plan(
    options: &RunOptions,
    levels: Levels,
    machines: usize,
    seed: u64,
) -> Vec<PlannedRun> {
    let default = if machines > 1 { DEFAULT_PAIRS } else { DEFAULT_RUNS };
    let measured = options.runs.unwrap_or(default);
    let warmups = options.warmups().max(u32::from(levels.counts_apart()));
    let slots = vmeter_stats::plan(machines, warmups as usize, measured as usize, seed);
    let planned = slots.into_iter().map(|slot| PlannedRun {
        machine: slot.machine,
        warmup: slot.warmup,
        watch: if slot.warmup { levels.asked } else { levels.timed },
    });
    planned.collect()
}

/// The session's plan, or a longer one if more runs are asked for than it has.
///
/// # Errors
/// Class usage: what is asked for is not the plan that was begun, or a longer one.
pub(super) fn lengthened(
    session: &Session,
    options: &RunOptions,
    levels: Levels,
) -> Result<Vec<PlannedRun>> {
    let begun = &session.record.plan;
    if begun.is_empty() {
        return Err(usage(format!(
            "{}: session.json has no plan, so nothing says which runs it was begun for: begin anew without --resume",
            session.dir.display()
        )));
    }
    if options.runs.is_none() && options.warmup.is_none() {
        return Ok(begun.clone());
    }
    let machines = session.record.machines.len().max(1);
    let warmups = (begun.iter().filter(|planned| planned.warmup).count() / machines) as u32;
    let measured = (begun.len() / machines) as u32 - warmups;
    let runs = Some(options.runs.unwrap_or(measured));
    let warmup = Some(options.warmup.unwrap_or(warmups));
    let options = RunOptions { runs, warmup, ..RunOptions::default() };
    let wanted = plan(&options, levels, machines, session.record.seed);
    if wanted.starts_with(begun) {
        return Ok(wanted);
    }
    Err(usage(format!(
        "{} was begun with {} and {}: resume it with more --runs, or without --runs and --warmup",
        session.dir.display(),
        plural(measured.into(), "run"),
        plural(warmups.into(), "warm-up")
    )))
}
