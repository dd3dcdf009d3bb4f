//! `vmeter look`: the boot of a VM that runs already, told from its guest's RAM. Its run is one
//! like a boot's, with the origin `look`, and is analysed and shown by the same path.

use crate::boot;
use crate::shown::Shown;
use anyhow::Result;
use std::path::Path;
use std::time::{Duration, Instant};
use vmeter_model::run::{PlannedRun, SessionMachine, SessionRecord, WatchLevel};
use vmeter_model::MachineSpec;
use vmeter_record::look::follow::{Follower, News, EACH};
use vmeter_record::look::{self, LookError, Request, Vmm};
use vmeter_record::ready::Until;
use vmeter_session::failure::{failure, host, usage, Class};
use vmeter_session::{begin, cache_dir, record, Answer, Experiment, Interrupt, Shardable, NOT_CUT};
use vmeter_session::{RunOptions, Session, Watch};

pub(crate) const KIND: &str = "look";

/// What a VM is called on the command line.
const LIBVIRT: &str = "libvirt:";

/// The VMM that is meant by `PID` or `libvirt:NAME`.
///
/// # Errors
/// Class usage: neither. Class host: no such VMM, or one that this user may not read.
pub fn vmm_of(target: &str) -> Result<Vmm> {
    let pid = match target.strip_prefix(LIBVIRT) {
        Some(name) => look::of_libvirt(name).map_err(host)?,
        None => target.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| {
            usage(format!(
                "look {target}: expected the pid of a VMM, or libvirt:NAME for a libvirt domain"
            ))
        })?,
    };
    Vmm::of(pid).map_err(host)
}

/// Where the boot of a VM that runs can be said to end.
///
/// # Errors
/// Class usage: what only a console, a VMM or the VM's end tells.
pub fn until_of(text: &str) -> Result<Until> {
    match Until::parse(text).map_err(usage)? {
        Until::PowerOff | Until::GuestBooted => Err(usage(format!(
            "--until {text}: vmeter cannot see this event in a running VM: use userspace, \
                systemd-ready or line:REGEX (a line of the guest's log)"
        ))),
        until => Ok(until),
    }
}

/// Looks, saves, analyses.
///
/// # Errors
/// Class host: no kernel in the VM's RAM, or RAM that can't be read; a folder that can't be written.
pub fn look(
    vmm: &Vmm,
    until: Option<&Until>,
    options: &RunOptions,
    watch: &mut Watch<'_>,
) -> Result<Box<dyn Answer>> {
    options.save.as_deref().map_or(Ok(()), vmeter_session::folder::check_new)?;
    if let Some(option) = vmm.restores() {
        return Err(host(format!(
            "the VMM (pid {}) was started with {option}: its guest booted in another process, at \
                an unknown time. `vmeter look --follow {0}` shows the new lines of the guest's \
                log",
            vmm.pid
        )));
    }
    let label = vmm.name().map_or_else(|| format!("pid {}", vmm.pid), str::to_owned);
    let spec = MachineSpec { until: until.map(ToString::to_string), ..MachineSpec::default() };
    let machine =
        SessionMachine { label: label.clone(), spec, argv: vmm.argv.clone(), ..Default::default() };
    let planned = PlannedRun { machine: 0, warmup: false, watch: WatchLevel::Light };
    let record =
        SessionRecord { machines: vec![machine], plan: vec![planned], ..record(KIND, options) };
    let session = begin(record, options, watch)?;
    let dir = session.begin_run(0)?;
    let request = Request { vmm, dir: &dir, cache: &cache_dir()?, label, until: until.cloned() };
    let run = look::look(&request).map_err(|error| {
        session.discard_run(0);
        session.abandon();
        host(error)
    })?;
    session.commit_run(&run)?;
    Kind.answer(&session.dir)
}

/// True if a VM's guest has its kernel already.
///
/// # Errors
/// Class host: a VM that can't be read.
pub fn has_kernel(vmm: &Vmm) -> Result<bool> {
    let cache = cache_dir()?;
    match look::find(vmm, &cache, &cache) {
        Ok(_) => Ok(true),
        Err(LookError::NoKernel(_)) => Ok(false),
        Err(error) => Err(host(error)),
    }
}

/// Prints what is new in a guest's log, line by line, until `until` is reached, the VM ends or the user
/// ends it; all of the log, where `until` is waited for. What that cost, in words.
///
/// # Errors
/// Class answer: the VM ended, or class interrupted: the user ended it, before `until`.
pub fn follow(
    vmm: &Vmm,
    until: Option<&Until>,
    interrupt: &Interrupt,
    print: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<String> {
    let cache = cache_dir()?;
    let pattern = until.and_then(Until::pattern);
    let mut follower = Follower::new(vmm, &cache, until.is_some()).map_err(host)?;
    let (begun, cpu, mut polls) = (Instant::now(), cpu_time(), 0u32);
    // Ctrl-C is how this ends: the next poll sees it.
    let _during = interrupt.during(|| {});
    let before =
        |how: &str| format!("{how} before {}", until.map_or(String::new(), |u| u.to_string()));
    loop {
        let news = match follower.poll() {
            _ if interrupt.is_raised() && until.is_none() => break,
            _ if interrupt.is_raised() => {
                return Err(failure(Class::Interrupted, before("interrupted")));
            }
            Ok(news) => news,
            Err(LookError::Gone(_)) if until.is_none() => break,
            Err(LookError::Gone(_)) => return Err(failure(Class::Answer, before("the VM ended"))),
            Err(error) => return Err(host(error)),
        };
        polls += 1;
        for news in &news {
            print(&shown(news))?;
            if matches!((&pattern, news), (Some(p), News::Line { text, .. }) if p.is_match(text)) {
                return Ok(cost(begun.elapsed(), cpu_time().saturating_sub(cpu), polls));
            }
        }
        std::thread::sleep(EACH);
    }
    Ok(cost(begun.elapsed(), cpu_time().saturating_sub(cpu), polls))
}

fn cost(length: Duration, cpu: Duration, polls: u32) -> String {
    let (length, cpu) = (length.as_secs_f64(), cpu.as_secs_f64());
    let share = 100.0 * cpu / length.max(1e-3);
    format!("followed for {length:.1} s: vmeter's {polls} polls took {share:.1} % of a CPU")
}

/// A line as dmesg has it; a guest's words are neutralised.
fn shown(news: &News) -> String {
    let stamp = |ts_ns: u64| {
        let micros = ts_ns / 1_000;
        format!("[{:5}.{:06}]", micros / 1_000_000, micros % 1_000_000)
    };
    let text = match news {
        News::Line { ts_ns, text } => format!("{} {text}", stamp(*ts_ns)),
        News::Exec { ts_ns, pid, file } => format!("{} + {file} (pid {pid})", stamp(*ts_ns)),
        News::Lost(count) => {
            format!("({count} log records were overwritten before vmeter read them)")
        }
        News::Restarted => "(the guest was restarted: another kernel runs)".into(),
    };
    vmeter_render::text::neutralise(&text).to_string()
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
}

/// What a session of a VM that somebody else started comes to. How its runs begin, in a warning that
/// starts with `begins`, is no fault of theirs: it is said once, on the screen as well.
pub(crate) fn of_others(dir: &Path, marks: &[String], begins: &str) -> Result<Box<dyn Answer>> {
    let mut result = boot::marked(&Session::open(dir)?, marks)?;
    let begins = |text: &String| text.starts_with(begins);
    for run in &mut result.runs {
        let said = run.record.warnings.iter().find(|text| begins(text)).cloned();
        result.said.extend(said.filter(|text| !result.said.contains(text)));
        run.record.warnings.retain(|text| !begins(text));
        run.timeline.warnings.retain(|text| !begins(text));
    }
    // vmeter can't boot it again.
    result.hints.retain(|hint| hint.starts_with("vmeter show"));
    Ok(Box::new(Shown(result)))
}

/// The kind `look`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        self.marked(dir, &[])
    }

    fn marked(&self, dir: &Path, marks: &[String]) -> Result<Box<dyn Answer>> {
        of_others(dir, marks, look::BEGINS)
    }

    fn boots(&self) -> Result<(), &'static str> {
        Err("`look` records a VM that another program started, so the session's times start at \
            the kernel; vmeter boot measures from the VMM's exec")
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err(NOT_CUT)
    }
}
