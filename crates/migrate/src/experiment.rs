//! Migrating again and again: every point in turn, each run saved before the next.

use crate::config::{Config, MigrateOptions};
use crate::data::{MigrateOutcome, Migration, SavedMigration};
use crate::error::MigrateError;
use crate::machines::describe;
use crate::parameters::Point;
use crate::plan::{plan, PlannedMigration};
use crate::report::MigrateReport;
use crate::result::MigrateResult;
use crate::run::{self, Task};
use crate::side::Side;
use crate::summary;
use anyhow::Result;
use std::path::Path;
use vmeter_machine::backend::Machine;
use vmeter_model::run::{DataRun, Outcome, RunHead, SessionMachine, SessionRecord};
use vmeter_model::time::ClockReading;
use vmeter_model::{MachineSpec, Ns};
use vmeter_record::clock::{self, Conversion};
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::{cache_dir, carry_out, pinned, Measurement, ResumeOverrides};
use vmeter_session::{Answer, Experiment, RunRequest, Runner, Shardable, Views};
use vmeter_session::{Session, Watch};

/// Its name.
const KIND: &str = "migrate";
/// The host's TSC is measured over at least this.
const TSC_WINDOW_NS: i64 = 50_000_000;

/// Migrates every point as often as asked.
///
/// # Errors
/// A machine that cannot be made or does not start, a folder that cannot be written, an
/// interruption (finished runs are saved).
pub fn migrate(options: &MigrateOptions, watch: &mut Watch<'_>) -> Result<MigrateResult> {
    summary::result(&carry_out(KIND, &options.runs, options, watch)?)
}

impl Measurement for MigrateOptions {
    type Planned = PlannedMigration;
    type Config = Config;
    type Runner = Migrations;

    fn config(&self) -> Result<Config> {
        Ok(Config::of(self))
    }

    fn note_given(&self, begun: &Config, given: &mut ResumeOverrides) {
        begun.note_given(self, given);
    }

    fn grow(&self, asked: &mut Config) {
        asked.runs = self.runs.runs.unwrap_or(asked.runs);
    }

    fn prepare(
        &self,
        asked: &mut Config,
        record: &SessionRecord<PlannedMigration>,
        _: &mut Watch<'_>,
    ) -> Result<(Vec<SessionMachine>, Migrations)> {
        let first = clock::read();
        let points = asked.points()?;
        self.runs.check_size(points.len())?;
        let machines = machines(&points)?;
        let pin = pinned(record.pin.as_deref())?;
        let tsc_hz = tsc_hz(first).map_err(MigrateError::classified)?;
        let saved = std::iter::zip(&points, &machines).map(saved_machine).collect();
        Ok((saved, Migrations { asked: asked.clone(), points, machines, tsc_hz, pin }))
    }

    fn plan(
        &self,
        asked: &Config,
        migrations: &Migrations,
        record: &mut SessionRecord<PlannedMigration>,
    ) -> Result<()> {
        record.plan = plan(asked, migrations.points.len(), record.seed);
        Ok(())
    }
}

/// The machine of each point; those that are alike are described once.
fn machines(points: &[Point]) -> Result<Vec<Machine>> {
    let cache = cache_dir()?;
    let mut known: Vec<(&MachineSpec, Machine)> = Vec::new();
    let mut machines = Vec::new();
    for point in points {
        let spec = &point.knobs.spec;
        let machine = match known.iter().find(|(other, _)| *other == spec) {
            Some((_, machine)) => machine.clone(),
            None => {
                let machine = describe(spec, &cache).map_err(MigrateError::classified)?;
                known.push((spec, machine.clone()));
                machine
            }
        };
        machines.push(machine);
    }
    Ok(machines)
}

fn saved_machine((point, machine): (&Point, &Machine)) -> SessionMachine {
    let mut provenance = machine.provenance.clone();
    let guest = "vmeter's own; QEMU loads it with -bios instead of a firmware";
    provenance.insert("guest".into(), guest.into());
    SessionMachine {
        label: point.label(),
        spec: point.knobs.spec.clone(),
        chosen: machine.chosen.clone(),
        provenance,
        argv: machine.argv_text(),
        parameters: point.parameters.clone(),
    }
}

fn tsc_hz(first: ClockReading) -> Result<f64, MigrateError> {
    use rustix::event::{poll, Timespec};
    let mut last = clock::read();
    while last.monotonic_ns - first.monotonic_ns < TSC_WINDOW_NS {
        let left = TSC_WINDOW_NS - (last.monotonic_ns - first.monotonic_ns);
        // An interrupted wait is only a shorter one.
        let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: left }));
        last = clock::read();
    }
    let conversion = Conversion::from_tsc(&[first, last]);
    conversion.map(|conversion| 1e9 / conversion.rate()).ok_or_else(|| {
        MigrateError::Host(
            "this host's time stamp counter does not advance, but the guest needs \
            it"
            .into(),
        )
    })
}

/// What a session's runs are made with.
#[derive(Debug)]
pub struct Migrations {
    asked: Config,
    points: Vec<Point>,
    machines: Vec<Machine>,
    tsc_hz: f64,
    pin: Vec<usize>,
}

impl Runner<PlannedMigration> for Migrations {
    type Run = SavedMigration;

    fn run(&mut self, request: &RunRequest<'_, PlannedMigration>) -> Result<SavedMigration> {
        let at = request.planned.machine;
        let (Some(point), Some(machine)) = (self.points.get(at), self.machines.get(at)) else {
            return Err(usage(format!(
                "session.json: run {} is of setting {at}, which is not in the file",
                request.index
            )));
        };
        let begin = clock::read();
        let task = Task {
            argv: &machine.plan().argv,
            knobs: &point.knobs,
            workload: point.knobs.workload().map_err(MigrateError::classified)?,
            tsc_hz: self.tsc_hz,
            timeout: self.asked.timeout(),
            pin: &self.pin,
            kill: self.asked.kill,
            interrupted: &|| request.interrupt.is_raised(),
        };
        let found = run::migrate(&task).map_err(MigrateError::classified)?;
        let migration = &found.measured.migration;
        let head = RunHead {
            exec_ns: found.at,
            outcome: outcome(migration, self.asked.kill),
            ..request.head(begin, (migration.total_s * 1e9) as Ns)
        };
        Ok(DataRun { head, data: found.measured })
    }

    fn summary(&self, run: &SavedMigration) -> String {
        format!("{:.1} s", run.data.migration.total_s)
    }

    fn fatal_reason(&self, run: &SavedMigration) -> Option<String> {
        let migration = &run.data.migration;
        migration.was_refused().then(|| {
            let (index, label) = (run.head.index, &run.head.label);
            format!(
                "run {index} of {label:?}: {}; vmeter skips the remaining runs with this label",
                migration.reason
            )
        })
    }
}

/// How it ended, in the words of all kinds.
fn outcome(migration: &Migration, kill: Option<Side>) -> Outcome {
    let failed = |status: &str| Outcome::VmmFailed {
        status: status.into(),
        stderr: migration.reason.clone(),
    };
    match migration.outcome {
        _ if migration.is_as_it_should(kill) => Outcome::Done,
        MigrateOutcome::Completed => Outcome::Done,
        MigrateOutcome::NotConverged => Outcome::NotReady,
        MigrateOutcome::TimedOut => Outcome::TimedOut { last: migration.reason.clone() },
        MigrateOutcome::Failed => failed("the migration failed"),
        MigrateOutcome::DestinationDied => failed("the destination died"),
        MigrateOutcome::SourceDied => failed("the source died"),
    }
}

/// The kind `migrate`.
pub struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(summary::result(&Session::open(dir)?)?))
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err("the time of a migration depends on the whole host, so vmeter cannot combine runs of \
            several hosts; only sessions of vmeter sweep and vmeter range can be split into \
            shards")
    }

    fn boots(&self) -> Result<(), &'static str> {
        Err("its runs are migrations, not boots; to compare settings in one session, use -L \
            NAME=A,B")
    }
}

impl Answer for MigrateResult {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(MigrateReport::new(self))
    }

    /// A migration that did not arrive, or arrived with other memory. Where a side was killed:
    /// a guest that is not where it should be.
    fn failure(&self) -> Option<String> {
        let of = self.runs.len();
        let count = |bad: &dyn Fn(&Migration) -> bool| {
            self.runs.iter().filter(|run| bad(&run.seen)).count()
        };
        let differ = |run: &Migration| run.verification.as_ref().is_some_and(|v| !v.equal);
        let missed = |run: &Migration| !run.is_as_it_should(self.setup.killed);
        let wanted = match self.setup.killed {
            None => "completed",
            Some(_) => "left the guest where it should be",
        };
        match (count(&differ), count(&missed)) {
            (0, 0) => None,
            (0, n) => Some(format!("{} of {of} migrations {wanted} (warm-ups included)", of - n)),
            (n, _) => Some(format!("the guest's memory differed after {n} of {of} migrations")),
        }
    }
}
