//! One migration, from two fresh QEMUs to their end.

use crate::beat::Kind;
use crate::commands::{
    self, Cancel, Migrate, MigrateIncoming, MigrationInfo, Parameters, QueryMigrate,
    QueryParameters, StartPostcopy,
};
use crate::data::{Limits, Measured, MigrateOutcome, MigrateSample, Migration};
use crate::error::MigrateError;
use crate::figures::{Pass, Progress};
use crate::guest;
use crate::heart::Heart;
use crate::parameters::Knobs;
use crate::result::MigrateWorkload;
use crate::side::Side;
use crate::vm::Vm;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::time::Duration;
use vmeter_base::scratch::Scratch;
use vmeter_machine::launch::now_ns;
use vmeter_model::time::seconds;
use vmeter_model::Ns;

/// Time between samples.
const SAMPLE: Duration = Duration::from_millis(20);
/// How long the guest may take to fill its memory.
const READY: Duration = Duration::from_secs(60);
/// How long it is heard before it is migrated.
pub(crate) const BEFORE: Ns = 400_000_000;
/// How long what must happen may take: a cancelled migration, a source that goes on.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// Auto-converge needs seconds to take effect, s: QEMU looks once a second.
const THROTTLE_HOLD_S: f64 = 8.0;

/// Name of the socket by which they talk.
const SOCKET: &str = "socket";
/// `sockaddr_un.sun_path` less its NUL (unix(7)), bytes.
const SOCKET_PATH: usize = 107;

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

/// What a run found.
pub struct Found {
    /// When the migration was asked for, ns of `CLOCK_MONOTONIC`.
    pub at: Ns,
    /// What is saved of it.
    pub measured: Measured,
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
            let migration = Migration::empty(MigrateOutcome::Failed, reason);
            let measured = Measured { migration, limits: Limits::default() };
            return Ok(Found { at: now_ns(), measured });
        }
    };
    pair.begin()?;
    let at = pair.start;
    let ended = pair.follow(&limits)?;
    let migration = pair.finish(ended)?;
    Ok(Found { at, measured: Measured { migration, limits: Limits::of(&limits) } })
}

/// Both QEMUs and what was seen of them.
pub(crate) struct Pair<'a> {
    pub(crate) task: &'a Task<'a>,
    pub(crate) source: Vm,
    pub(crate) destination: Vm,
    pub(crate) heart: Heart,
    pub(crate) folder: Scratch,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`, ns.
    pub(crate) realtime_offset: Ns,
    pub(crate) start: Ns,
    pub(crate) info: MigrationInfo,
    pub(crate) samples: Vec<MigrateSample>,
    pub(crate) passes: Vec<Pass>,
    pub(crate) stopped: Option<Ns>,
    pub(crate) resumed: Option<Ns>,
    pub(crate) progress: Progress,
    pub(crate) killed: bool,
    pub(crate) postcopy_asked: bool,
}

/// How it ended, and why.
pub(crate) struct Ended {
    pub(crate) outcome: MigrateOutcome,
    pub(crate) reason: String,
    pub(crate) at: Ns,
}

impl<'a> Pair<'a> {
    fn start(task: &'a Task<'a>) -> Result<Self, MigrateError> {
        let io = MigrateError::io;
        let folder = Scratch::new().map_err(io("making a temporary folder"))?;
        let socket = folder.path().join(SOCKET);
        if socket.as_os_str().len() > SOCKET_PATH {
            return Err(MigrateError::Usage(format!(
                "{}: the path of a UNIX socket can have at most {SOCKET_PATH} bytes, and this \
                    one is longer: set TMPDIR to a shorter path, e.g. TMPDIR=/tmp",
                socket.display()
            )));
        }
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
                ended = source.process.ended();
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
                let stderr = self.source.process.said();
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
        let uri = format!("unix:{}", self.folder.path().join(SOCKET).display());
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
        // One that has ended is always ready.
        let other = (!self.killed).then(|| self.destination.process.pidfd());
        self.source.wait_for_news(other.as_slice(), SAMPLE);
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
        let fatal_reason = new_round
            && round > 0
            && !self.task.knobs.postcopy
            && self.progress.round(round, at_s, self.info.ram.remaining, throttle);
        if fatal_reason {
            let limit = limits.downtime_limit;
            let reason = format!(
                "after {round} rounds, the data left to send has stopped shrinking; the downtime \
                 limit is {limit} ms"
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
        let middle = if self.task.knobs.postcopy {
            self.info.status == "postcopy-active"
        } else {
            self.info.ram.transferred >= self.task.workload.resident_bytes / 2
        };
        if middle {
            self.killed = true;
            match side {
                Side::Source => self.source.process.kill(),
                Side::Destination => self.destination.process.kill(),
            };
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
        let (outcome, reason) = match self.destination.process.ended() {
            Some(status) if self.destination.process.was_killed() => {
                let reason = format!("the destination's QEMU ended ({status}){words}");
                (MigrateOutcome::DestinationDied, reason)
            }
            Some(status) => {
                let said = self.destination.process.said();
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
        let status = self.source.process.ended().unwrap_or_else(|| "it does not answer".into());
        let said = self.source.process.said();
        // Left alone it ends by itself, or stays paused: it never has the whole guest.
        let _ = wait_for_end(&self.destination);
        let left = match self.destination.process.ended() {
            Some(status) => format!("the destination gave up ({status})"),
            None => "the destination waits for the rest".into(),
        };
        Ended {
            outcome: MigrateOutcome::SourceDied,
            reason: format!("the source's QEMU ended ({status}){said}; {left}"),
            at,
        }
    }
}

/// Waits a little for a process that is about to end.
fn wait_for_end(vm: &Vm) -> rustix::io::Result<usize> {
    let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(&vm.process.pidfd().as_fd(), PollFlags::IN)], Some(&timeout))
}
