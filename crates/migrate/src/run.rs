//! One migration, from two fresh QEMUs to their end.

use crate::beat::Kind;
use crate::commands::{
    self, Cancel, Migrate, MigrateIncoming, MigrationInfo, Parameters, QueryMigrate,
    QueryParameters, StartPostcopy,
};
use crate::error::MigrateError;
use crate::figures::{self, Pass, Progress};
use crate::guest;
use crate::heart::Heart;
use crate::parameters::Knobs;
use crate::verify::verify;
use crate::vm::{Side, Vm};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::time::Duration;
use vmeter_machine::launch::now_ns;
use vmeter_model::migrate::{MigrateOutcome, MigrateRun, MigrateSample, MigrateWorkload};
use vmeter_model::time::seconds;
use vmeter_model::Ns;

/// Time between samples.
const SAMPLE: Duration = Duration::from_millis(20);
/// How long the guest may take to fill its memory.
const READY: Duration = Duration::from_secs(60);
/// How long it is heard before it is migrated.
const BEFORE: Ns = 400_000_000;
/// How long it is heard after it was migrated.
const AFTER: Ns = 200_000_000;
/// How long what must happen may take: a cancelled migration, a source that goes on.
const SOON: Duration = Duration::from_secs(10);
/// Heartbeats that show that a guest runs.
const ALIVE: usize = 20;
/// Auto-converge needs seconds to take effect, s: QEMU looks once a second.
const THROTTLE_HOLD_S: f64 = 8.0;

/// What a run needs to know.
pub struct Task<'a> {
    /// The source's command line, with `-serial stdio` and a place for firmware.
    pub argv: &'a [OsString],
    /// The settings.
    pub knobs: &'a Knobs,
    /// What the guest does.
    pub workload: MigrateWorkload,
    /// The host's TSC.
    pub tsc_hz: f64,
    /// Give up after this long.
    pub timeout: Duration,
    /// CPUs of both QEMUs; empty for all.
    pub pin: &'a [usize],
    /// A side to kill in the middle.
    pub kill: Option<Side>,
    /// Says that the user interrupted.
    pub interrupted: &'a dyn Fn() -> bool,
}

/// What a run found, with the limits that were in effect.
pub struct Found {
    /// The run; its place in the plan is the caller's to fill in.
    pub run: MigrateRun,
    /// QEMU's parameters as it had them.
    pub limits: Parameters,
}

/// Migrates once.
///
/// # Errors
/// When there was nothing to migrate (a QEMU or a guest that did not start), or the user
/// interrupted. What goes wrong with the migration is an outcome.
pub fn migrate(task: &Task<'_>) -> Result<Found, MigrateError> {
    let mut pair = Pair::start(task)?;
    pair.wait_ready()?;
    let limits = match pair.set_up() {
        Ok(limits) => limits,
        Err(error) => {
            let reason = commands::refusal(&error).ok_or(error)?;
            return Ok(Found {
                run: empty(MigrateOutcome::Failed, reason),
                limits: Parameters::default(),
            });
        }
    };
    pair.begin()?;
    let outcome = pair.follow(&limits)?;
    let run = pair.finish(outcome)?;
    Ok(Found { run, limits })
}

fn empty(outcome: MigrateOutcome, reason: String) -> MigrateRun {
    MigrateRun {
        point: 0,
        block: 0,
        warmup: false,
        outcome,
        reason,
        total_s: 0.0,
        setup_s: 0.0,
        downtime_s: None,
        guest_gap_s: None,
        guest_clock_gap_s: None,
        stopped_s: None,
        longest_gap_before_s: 0.0,
        longest_gap_after_s: 0.0,
        lost_after_s: 0.0,
        rounds: Vec::new(),
        dirty_pages_per_s_before: 0.0,
        dirty_pages_per_s: 0.0,
        transferred_bytes: 0,
        bandwidth_bytes_per_s: 0.0,
        throttle_percent: 0,
        source_runs_on: None,
        destination_ran: false,
        verification: None,
        samples: Vec::new(),
    }
}

/// Both QEMUs and what was seen of them.
struct Pair<'a> {
    task: &'a Task<'a>,
    source: Vm,
    destination: Vm,
    heart: Heart,
    folder: tempfile::TempDir,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, ns.
    realtime_offset: Ns,
    start: Ns,
    info: MigrationInfo,
    samples: Vec<MigrateSample>,
    passes: Vec<Pass>,
    stopped: Option<Ns>,
    resumed: Option<Ns>,
    progress: Progress,
    killed: bool,
    postcopy_asked: bool,
}

/// How it ended, and why.
struct Ended {
    outcome: MigrateOutcome,
    reason: String,
    at: Ns,
}

impl<'a> Pair<'a> {
    fn start(task: &'a Task<'a>) -> Result<Self, MigrateError> {
        let io = MigrateError::io;
        let folder = tempfile::Builder::new().prefix("vmeter-migrate-").tempdir();
        let folder = folder.map_err(io("making a temporary folder"))?;
        let image = folder.path().join("guest.bin");
        let bytes = guest::image(&task.workload, task.tsc_hz);
        std::fs::write(&image, bytes).map_err(io("writing the guest"))?;
        let mut argv = task.argv.to_vec();
        argv.extend(["-bios".into(), image.into()]);
        let (source, from) = Vm::start(Side::Source, &argv, task.pin)?;
        argv.extend(["-incoming".into(), "defer".into()]);
        let (destination, to) = Vm::start(Side::Destination, &argv, task.pin)?;
        let clock = vmeter_record::clock::read();
        Ok(Self {
            task,
            source,
            destination,
            heart: Heart::listen(from, to)?,
            folder,
            realtime_offset: clock.realtime_ns - clock.monotonic_ns,
            start: 0,
            info: MigrationInfo::default(),
            samples: Vec::new(),
            passes: Vec::new(),
            stopped: None,
            resumed: None,
            progress: Progress::patient(if task.knobs.auto_converge {
                THROTTLE_HOLD_S
            } else {
                0.0
            }),
            killed: false,
            postcopy_asked: false,
        })
    }

    /// Waits for the guest to have filled its memory, and hears it for a while.
    fn wait_ready(&mut self) -> Result<(), MigrateError> {
        let Self { source, heart, task, .. } = self;
        let mut ended = None;
        let found = heart.wait(
            READY,
            || {
                ended = source.ended();
                ended.is_some() || (task.interrupted)()
            },
            |heard| {
                let beats = heard.of(Side::Source);
                let ready = beats.iter().find(|beat| beat.kind == Kind::Ready)?;
                (beats.last()?.at - ready.at >= BEFORE).then_some(())
            },
        );
        match (found, ended) {
            (Some(()), _) => Ok(()),
            (None, Some(status)) => {
                let stderr = self.source.said();
                Err(MigrateError::Ended { side: Side::Source, status, stderr })
            }
            (None, None) if (self.task.interrupted)() => Err(MigrateError::Interrupted),
            (None, None) => {
                Err(MigrateError::Silent { what: "was not heard", seconds: READY.as_secs() })
            }
        }
    }

    fn set_up(&mut self) -> Result<Parameters, MigrateError> {
        let knobs = self.task.knobs;
        for vm in [&mut self.source, &mut self.destination] {
            commands::set(vm, &knobs.capabilities(), &knobs.parameters())?;
        }
        self.source.execute(&QueryParameters {})
    }

    fn begin(&mut self) -> Result<(), MigrateError> {
        let uri = format!("unix:{}", self.folder.path().join("socket").display());
        self.destination.execute(&MigrateIncoming { uri: uri.clone() })?;
        self.start = now_ns();
        self.source.execute(&Migrate { uri }).map(drop)
    }

    fn is_late(&self) -> bool {
        self.since_start() > self.task.timeout.as_secs_f64()
    }

    fn since_start(&self) -> f64 {
        seconds(now_ns() - self.start)
    }

    /// Until it is over, one way or the other.
    fn follow(&mut self, limits: &Parameters) -> Result<Ended, MigrateError> {
        loop {
            if (self.task.interrupted)() {
                return Err(MigrateError::Interrupted);
            }
            self.wait_for_news();
            if !self.look() {
                return Ok(self.source_died());
            }
            if let Some(ended) = self.decide(limits)? {
                return Ok(ended);
            }
        }
    }

    /// Until the next sample is due, a monitor has news, or a process ends.
    fn wait_for_news(&self) {
        let mut polled = vec![
            PollFd::new(&self.source.qmp, PollFlags::IN),
            PollFd::new(self.source.pidfd(), PollFlags::IN),
        ];
        // One that has ended is always ready.
        if !self.killed {
            polled.push(PollFd::new(self.destination.pidfd(), PollFlags::IN));
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(SAMPLE.subsec_nanos()) };
        // An interrupted wait is only a shorter one.
        let _ = poll(&mut polled, Some(&timeout));
    }

    /// Announcements and a sample; false if the source is gone.
    fn look(&mut self) -> bool {
        let Ok(info) = self.source.execute(&QueryMigrate {}) else { return false };
        let news = self.source.qmp.announcements().unwrap_or_default();
        for said in news {
            let at = said.realtime_ns - self.realtime_offset;
            match said.name.as_str() {
                "MIGRATION_PASS" => {
                    let number = said.data.get("pass").and_then(serde_json::Value::as_u64);
                    self.passes.extend(number.map(|number| (number, at)));
                }
                "STOP" => self.stopped = Some(at),
                _ => {}
            }
        }
        self.samples.push(MigrateSample {
            at_s: self.since_start(),
            round: info.ram.dirty_sync_count,
            remaining_bytes: info.ram.remaining,
            transferred_bytes: info.ram.transferred,
            throttle_percent: info.cpu_throttle_percentage,
        });
        self.info = info;
        true
    }

    fn decide(&mut self, limits: &Parameters) -> Result<Option<Ended>, MigrateError> {
        let now = now_ns();
        let ended = |outcome, reason: String| Ok(Some(Ended { outcome, reason, at: now }));
        match self.info.status.as_str() {
            // Its figures follow the word closely.
            "completed" if self.info.total_time > 0 || self.is_late() => {
                return ended(MigrateOutcome::Completed, String::new());
            }
            "completed" => return Ok(None),
            "failed" | "cancelled" | "postcopy-paused" => return Ok(Some(self.failed())),
            _ => {}
        }
        let round = self.info.ram.dirty_sync_count;
        self.kill_in_the_middle();
        if self.task.knobs.postcopy && !self.postcopy_asked && round >= 2 {
            self.postcopy_asked = true;
            self.source.execute(&StartPostcopy {})?;
        }
        let new_round = self.samples.len() < 2
            || self.samples.get(self.samples.len() - 2).is_some_and(|last| last.round != round);
        let at_s = self.since_start();
        let throttle = self.info.cpu_throttle_percentage;
        let hopeless = new_round
            && round > 0
            && !self.task.knobs.postcopy
            && self.progress.round(round, at_s, self.info.ram.remaining, throttle);
        if hopeless {
            let limit = limits.downtime_limit;
            let reason = format!(
                "after {round} rounds no less is left to send than before; the downtime limit is {limit} ms"
            );
            return self.give_up(MigrateOutcome::NotConverged, reason);
        }
        if self.is_late() {
            let seconds = self.task.timeout.as_secs();
            return self.give_up(MigrateOutcome::TimedOut, format!("not done after {seconds} s"));
        }
        Ok(None)
    }

    /// `--kill`: once half of the guest's data is sent, or with post-copy once the guest
    /// runs at the destination.
    fn kill_in_the_middle(&mut self) {
        let Some(side) = self.task.kill.filter(|_| !self.killed) else { return };
        let middle = match self.task.knobs.postcopy {
            true => self.info.status == "postcopy-active",
            false => self.info.ram.transferred >= self.task.workload.resident_bytes / 2,
        };
        if middle {
            self.killed = true;
            match side {
                Side::Source => self.source.kill(),
                Side::Destination => self.destination.kill(),
            }
        }
    }

    /// Cancels. It may complete all the same, at the last moment.
    fn give_up(
        &mut self,
        outcome: MigrateOutcome,
        reason: String,
    ) -> Result<Option<Ended>, MigrateError> {
        let at = now_ns();
        self.source.execute(&Cancel {})?;
        let deadline = now_ns() + SOON.as_nanos() as Ns;
        while now_ns() < deadline {
            self.wait_for_news();
            if !self.look() {
                return Ok(Some(self.source_died()));
            }
            if self.info.is_over() {
                break;
            }
        }
        Ok(Some(match self.info.status.as_str() {
            "completed" => Ended { outcome: MigrateOutcome::Completed, reason: String::new(), at },
            _ => Ended { outcome, reason, at },
        }))
    }

    fn failed(&mut self) -> Ended {
        let at = now_ns();
        let words = self.info.error_desc.clone().unwrap_or_default();
        let words = if words.is_empty() { String::new() } else { format!("; QEMU: {words}") };
        // Its end follows that of its socket closely.
        let _ = wait_for_end(&self.destination);
        let (outcome, reason) = match self.destination.ended() {
            Some(status) if self.destination.was_killed() => {
                let reason = format!("the destination's QEMU ended ({status}){words}");
                (MigrateOutcome::DestinationDied, reason)
            }
            Some(status) => {
                let said = self.destination.said();
                let reason = format!("the destination's QEMU gave up ({status}){said}{words}");
                (MigrateOutcome::Failed, reason)
            }
            None => {
                let status = &self.info.status;
                (MigrateOutcome::Failed, format!("QEMU's status is {status}{words}"))
            }
        };
        Ended { outcome, reason, at }
    }

    fn source_died(&mut self) -> Ended {
        let at = now_ns();
        let _ = wait_for_end(&self.source);
        let status = self.source.ended().unwrap_or_else(|| "it does not answer".into());
        let said = self.source.said();
        // Left alone it ends by itself, or stays paused: it never has the whole guest.
        let _ = wait_for_end(&self.destination);
        let left = match self.destination.ended() {
            Some(status) => format!("the destination gave up ({status})"),
            None => "the destination waits for the rest".into(),
        };
        Ended {
            outcome: MigrateOutcome::SourceDied,
            reason: format!("the source's QEMU ended ({status}){said}; {left}"),
            at,
        }
    }

    /// Hears the guest on, makes figures, compares memories.
    fn finish(mut self, mut ended: Ended) -> Result<MigrateRun, MigrateError> {
        if ended.outcome == MigrateOutcome::Completed
            && !self.goes_on(Side::Destination, self.start)
        {
            ended.outcome = MigrateOutcome::Failed;
            ended.reason = self.not_heard();
        }
        if (self.task.interrupted)() {
            return Err(MigrateError::Interrupted);
        }
        let completed = ended.outcome == MigrateOutcome::Completed;
        let source_runs_on = (!completed).then(|| {
            let running = self.source.qmp.status().is_ok_and(|status| status == "running");
            running && self.goes_on(Side::Source, ended.at)
        });
        if completed {
            self.take_resume();
        }
        let mut run = self.figures(&ended);
        run.source_runs_on = source_runs_on;
        if completed {
            let Self { source, destination, heart, task, .. } = &mut self;
            match verify(source, destination, heart, || (task.interrupted)()) {
                Ok(verification) => run.verification = Some(verification),
                Err(_) if (task.interrupted)() => return Err(MigrateError::Interrupted),
                Err(error) => run.reason = format!("the memories were not compared: {error}"),
            }
        }
        Ok(run)
    }

    /// Why a guest that has arrived is not heard.
    fn not_heard(&mut self) -> String {
        let what = "QEMU says completed, but the guest is not heard at the destination";
        match self.destination.ended() {
            Some(status) => {
                format!("{what}: its QEMU ended ({status}){}", self.destination.said())
            }
            None => format!("{what} within {} s", SOON.as_secs()),
        }
    }

    /// Whether the guest is heard at a side for a while after `from`.
    fn goes_on(&mut self, side: Side, from: Ns) -> bool {
        let Self { source, destination, heart, task, .. } = self;
        let vm = if side == Side::Source { source } else { destination };
        let gone = || vm.ended().is_some() || (task.interrupted)();
        let heard = heart.wait(SOON, gone, |heard| {
            let beats = figures::between(heard.of(side), from, Ns::MAX);
            let length = beats.last()?.at - beats.first()?.at;
            (beats.len() >= ALIVE && length >= AFTER).then_some(())
        });
        heard.is_some()
    }

    fn take_resume(&mut self) {
        let said = self.destination.qmp.announcements().unwrap_or_default();
        let resume = said.iter().find(|said| said.name == "RESUME");
        self.resumed = resume.map(|said| said.realtime_ns - self.realtime_offset);
    }

    fn figures(&mut self, ended: &Ended) -> MigrateRun {
        let start = self.start;
        let completed = ended.outcome == MigrateOutcome::Completed;
        let ms = |ms: u64| ms as f64 / 1e3;
        let total_s = match completed {
            true => ms(self.info.total_time),
            false => seconds(ended.at - start),
        };
        let end = start + (total_s * 1e9) as Ns;
        let mut run = empty(ended.outcome, ended.reason.clone());
        let tsc_hz = self.task.tsc_hz;
        self.heart.look(|heard| {
            let (source, destination) = (heard.of(Side::Source), heard.of(Side::Destination));
            let before = figures::between(source, start - BEFORE, start);
            let during = figures::between(source, start, end);
            run.dirty_pages_per_s_before = figures::dirty_rate(before).unwrap_or(0.0);
            run.dirty_pages_per_s = figures::dirty_rate(during).unwrap_or(0.0);
            run.longest_gap_before_s = figures::stalls(during).0;
            run.destination_ran = !destination.is_empty();
            if completed {
                let gap = figures::gap(source, destination, tsc_hz);
                run.guest_gap_s = gap.map(|gap| gap.host_s);
                run.guest_clock_gap_s = gap.map(|gap| gap.guest_s);
                (run.longest_gap_after_s, run.lost_after_s) = figures::stalls(destination);
            }
            let last = self.info.ram.downtime_bytes;
            let span = (start, end);
            run.rounds = figures::rounds(&self.passes, &self.samples, source, span, last);
        });
        run.total_s = total_s;
        run.setup_s = ms(self.info.setup_time);
        run.downtime_s = completed.then(|| ms(self.info.downtime));
        run.stopped_s = self.stopped.zip(self.resumed).map(|(stop, resume)| seconds(resume - stop));
        // A migration that was given up has no figures any more.
        let sent = self.samples.iter().map(|sample| sample.transferred_bytes);
        run.transferred_bytes = sent.max().unwrap_or(0).max(self.info.ram.transferred);
        // While the guest stands still the limit is lifted.
        let sending = total_s - run.setup_s - run.downtime_s.unwrap_or(0.0);
        let sent = run.transferred_bytes.saturating_sub(self.info.ram.downtime_bytes);
        if sending > 0.0 {
            run.bandwidth_bytes_per_s = sent as f64 / sending;
        }
        let throttles = self.samples.iter().map(|sample| sample.throttle_percent);
        run.throttle_percent = throttles.max().unwrap_or(0);
        run.samples = figures::thinned(std::mem::take(&mut self.samples));
        run
    }
}

/// Waits a little for a process that is about to end.
fn wait_for_end(vm: &Vm) -> rustix::io::Result<usize> {
    let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(&vm.pidfd().as_fd(), PollFlags::IN)], Some(&timeout))
}
