//! `vmeter boot --next`: boots of a VM that a daemon starts. Its runs are like a boot's, with the origin
//! `next`, and are analysed and shown by the same path.

use crate::boots::{BootRequest, Booter, Boots};
use crate::look::{of_others, until_of};
use anyhow::Result;
use regex::Regex;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vmeter_machine::backend;
use vmeter_machine::launch::next::{Door, Executed, Wanted};
use vmeter_model::run::{Origin, PlannedRun, SessionMachine, SessionRecord, WatchLevel};
use vmeter_model::{MachineSpec, RunRecord};
use vmeter_record::look::next::{follow_from_exec, Following, SEEN};
use vmeter_record::ready::Until;
use vmeter_session::failure::{failure, host, usage, Class};
use vmeter_session::{begin, cache_dir, execute, record, Answer, Experiment, Shardable, NOT_CUT};
use vmeter_session::{RunOptions, Watch};

pub(crate) const KIND: &str = "next";

/// How long after the end of what starts a VM it is waited for the VMM, where nobody says.
const AFTER: Duration = Duration::from_secs(30);

/// How long a VM may take until it is up, s, where nobody says.
pub const TIMEOUT_S: u32 = 300;

/// What is waited for, and how.
#[derive(Debug, Clone, Default)]
pub struct NextOptions {
    /// The VMM's files; those of `$PATH` if none is given.
    pub emulators: Vec<PathBuf>,
    /// What its arguments match.
    pub matching: Option<String>,
    /// How long it is waited for the VMM's exec, s.
    pub within_s: Option<f64>,
    /// What starts the VM, once a run; somebody else does if it is empty.
    pub command: Vec<String>,
    /// Where the boot ends.
    pub until: Option<String>,
    /// How long until then, s.
    pub timeout_s: Option<u32>,
    /// How often.
    pub runs: RunOptions,
}

/// Waits for VMs, follows them, saves, analyses.
///
/// # Errors
/// Class usage: no such file, an expression that is none. Class answer: no VMM came. Class host: one that
/// this user may not read.
pub fn next(options: &NextOptions, watch: &mut Watch<'_>) -> Result<Box<dyn Answer>> {
    let until = options.until.as_deref().map(until_of).transpose()?;
    let matching = options.matching.as_deref().map(Regex::new).transpose();
    let matching = matching.map_err(|error| usage(format!("--match: {error}")))?;
    let door = Door::open(Wanted::of(&options.emulators, matching).map_err(usage)?);
    options.runs.save.as_deref().map_or(Ok(()), vmeter_session::folder::check_new)?;
    let label = KIND.to_owned();
    let spec = MachineSpec { until: options.until.clone(), ..MachineSpec::default() };
    let machine =
        SessionMachine { label, spec, argv: options.command.clone(), ..Default::default() };
    let planned = |warmup| PlannedRun { machine: 0, warmup, watch: WatchLevel::Light };
    let warmups = std::iter::repeat_n(planned(true), options.runs.warmup.unwrap_or(0) as usize);
    let runs = std::iter::repeat_n(planned(false), options.runs.runs.unwrap_or(1).max(1) as usize);
    let record = SessionRecord {
        machines: vec![machine],
        plan: warmups.chain(runs).collect(),
        ..record(KIND, &options.runs)
    };
    let session = begin(record, &options.runs, watch)?;
    let waits = Waits { options, until, door: RefCell::new(door), cache: cache_dir()? };
    // What found nothing leaves nothing.
    execute(&session, &mut Boots(&waits), watch).inspect_err(|_| session.abandon())?;
    Kind.answer(&session.dir)
}

/// Refuses a VMM that goes on with a VM which was booted before.
fn is_no_boot(executed: &Executed) -> Result<()> {
    match backend::restores(&executed.image, &executed.argv) {
        None => Ok(()),
        Some(option) => Err(failure(
            Class::Answer,
            format!(
                "the VMM (pid {}) was started with {option}: it continues a VM that was booted \
                    before, so there is no boot to record. `vmeter look --follow {0}` shows the \
                    new lines of its guest's log",
                executed.pid
            ),
        )),
    }
}

struct Waits<'a> {
    options: &'a NextOptions,
    until: Option<Until>,
    door: RefCell<Door>,
    cache: PathBuf,
}

impl Waits<'_> {
    /// Starts what starts the VM.
    fn start(&self) -> Result<Option<Child>> {
        let Some((program, arguments)) = self.options.command.split_first() else {
            return Ok(None);
        };
        // Standard output is for results.
        let (nothing, errors) = (Stdio::null(), Stdio::from(std::io::stderr()));
        let child = Command::new(program).args(arguments).stdin(nothing).stdout(errors).spawn();
        child.map(Some).map_err(|error| usage(format!("cannot start {program}: {error}")))
    }

    /// The VMM that comes next.
    fn comes(&self, launcher: &mut Option<Child>, stop: &dyn Fn() -> bool) -> Result<Executed> {
        let (begun, within) = (Instant::now(), self.options.within_s.map(Duration::from_secs_f64));
        let (mut failed, mut ended_at) = (None, None);
        let news = self.door.borrow_mut().next(|| {
            let ended = launcher.as_mut().and_then(|child| child.try_wait().ok().flatten());
            failed = failed.or(ended.filter(|status| !status.success()));
            ended_at = ended_at.or(ended.map(|_| Instant::now()));
            let late = match (within, ended_at) {
                (Some(within), _) => begun.elapsed() >= within,
                (None, Some(ended)) => ended.elapsed() >= AFTER,
                (None, None) => false,
            };
            stop() || late || failed.is_some()
        });
        let news = news.map_err(|error| host(format!("cannot wait for a VMM: {error}")))?;
        if let Some(executed) = news {
            return Ok(executed);
        }
        Err(match failed {
            _ if stop() => failure(Class::Interrupted, "interrupted before a VMM was started"),
            Some(status) => failure(
                Class::Answer,
                format!("{}: {status}, and no VMM was started", self.options.command.join(" ")),
            ),
            None => failure(Class::Answer, self.none_came(begun.elapsed(), ended_at.is_some())),
        })
    }

    /// That no VMM came, and what did.
    fn none_came(&self, waited: Duration, launched: bool) -> String {
        let door = self.door.borrow();
        let waited = waited.as_secs_f64();
        let seen = match launched && self.options.within_s.is_none() {
            true => format!(
                "{} ended, and vmeter saw no VMM start within {} s after that (--within S waits \
                    longer)",
                self.options.command.join(" "),
                AFTER.as_secs()
            ),
            false => format!("vmeter saw no VMM start within {waited:.0} s (--within)"),
        };
        let next = match door.passed() {
            Some(passed) => format!(
                "A VMM started, but --match does not match the command line of this VMM: \
                {passed}"
            ),
            None => "If the VMM is not in $PATH, name it with --emulator FILE".to_owned(),
        };
        let more = match door.sees_all() {
            true => "",
            false => ". Only root sees the VMMs of other users: use sudo",
        };
        format!("{seen}. {next}{more}")
    }
}

impl Booter for Waits<'_> {
    fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord> {
        let stop = || request.interrupt.is_raised();
        let mut launcher = self.start()?;
        let came = self.comes(&mut launcher, &stop);
        let following = came.and_then(|executed| {
            is_no_boot(&executed)?;
            let timeout = self.options.timeout_s.unwrap_or(TIMEOUT_S);
            let run = follow_from_exec(&Following {
                executed: &executed,
                origin: Origin::Next,
                dir: request.dir,
                cache: &self.cache,
                label: request.machine.label.clone(),
                until: self.until.clone(),
                timeout: Duration::from_secs(timeout.into()),
                interrupted: &stop,
            });
            run.map(|followed| followed.run).map_err(host)
        });
        // What starts a VM and stays is the VM's own affair.
        if let Some(mut child) = launcher {
            let _ = child.try_wait();
        }
        let run = following?;
        Ok(RunRecord { index: request.index, warmup: request.planned.warmup, ..run })
    }

    fn can_repeat(&self) -> bool {
        false
    }
}

/// The kind `next`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn command(&self) -> &'static str {
        "boot --next"
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        self.marked(dir, &[])
    }

    fn marked(&self, dir: &Path, marks: &[String]) -> Result<Box<dyn Answer>> {
        of_others(dir, marks, SEEN)
    }

    fn boots(&self) -> Result<(), &'static str> {
        Err("another program starts the VM of this machine, so vmeter cannot boot and watch that \
            VM itself; compare two sessions of `vmeter boot --next`")
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err(NOT_CUT)
    }
}
