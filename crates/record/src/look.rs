//! A VM that runs already, looked into while it runs.
//!
//! Its VMM is not stopped and not spoken to, nothing is written into it, and only pages that it has
//! already are read ([`crate::guest_ram`]). What the guest writes meanwhile is told by ids and stamps
//! that changed, and left out. The guest's clock is tied to the host's by its reads of it ([`ticks`]).

pub mod follow;
pub mod next;
mod ticks;
mod vmm;

use crate::clock;
use crate::guest_clock::{self, TscOffset};
use crate::guest_ram::GuestKernel;
use crate::ready::Until;
use crate::recorder::{AnyRecorder, Context};
use crate::sources::guest_ftrace::GuestFtrace;
use crate::sources::guest_printk::{self, GuestPrintk};
use crate::sources::guest_units::GuestUnits;
use crate::{decode, sources};
use regex::Regex;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;
use vmeter_machine::launch::Tracee;
use vmeter_machine::vmm::Abilities;
use vmeter_model::kernel_log::LOST;
use vmeter_model::run::{Origin, Outcome, SourceRecord, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_model::{Event, EventKind, MachineSpec, Moment, Ns, RunRecord, SCHEMA};

pub use vmm::{name_in, of_libvirt, Vmm};

/// What is in a guest's RAM, and asks nothing of its VMM. The rings first: they are written on.
const IN_RAM: [&dyn AnyRecorder; 3] = [&GuestPrintk, &GuestFtrace, &GuestUnits];

/// A kernel may change its page tables while they are walked: how often it is looked for, and how
/// long apart.
const TRIES: u32 = 3;
const APART: Duration = Duration::from_millis(30);

/// Of a guest that does not say when it is up: its boot ends with the last line or event before so
/// much silence, ns.
const SILENCE: Ns = 10_000_000_000;

/// Why a VM can't be looked into: what was found, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// Nothing to look into.
    #[error("{0}")]
    NoVm(String),
    /// A VMM whose guest has no kernel yet.
    #[error("{0}")]
    NoKernel(String),
    /// This user may not read it, or nobody can.
    #[error("{0}")]
    Refused(String),
    /// It ended meanwhile.
    #[error("the VMM (pid {0}) ended while vmeter was reading its guest's RAM, which is now gone")]
    Gone(i32),
}

/// What to look into.
#[derive(Debug)]
pub struct Request<'a> {
    /// The VMM.
    pub vmm: &'a Vmm,
    /// The run's folder.
    pub dir: &'a Path,
    /// vmeter's cache folder.
    pub cache: &'a Path,
    /// Label of the machine.
    pub label: String,
    /// Where the boot ends; by the guest's own word, or the silence after it, if absent.
    pub until: Option<Until>,
}

/// A VMM that can be read, with the kernel that runs in it.
#[derive(Debug)]
pub struct Looked {
    /// The VMM.
    pub tracee: Tracee,
    /// The guest's kernel.
    pub kernel: GuestKernel,
}

/// Finds the kernel in a VMM that runs.
///
/// # Errors
/// When the VMM is gone or is not to be read, or no kernel is in it.
pub fn find(vmm: &Vmm, dir: &Path, cache: &Path) -> Result<Looked, LookError> {
    for _ in 1..TRIES {
        if let Ok(looked) = find_once(vmm, dir, cache) {
            return Ok(looked);
        }
        std::thread::sleep(APART);
    }
    find_once(vmm, dir, cache)
}

fn find_once(vmm: &Vmm, dir: &Path, cache: &Path) -> Result<Looked, LookError> {
    let spec = MachineSpec::default();
    let context = context(&spec, vmm, dir, cache);
    let nothing = || LookError::NoVm(format!("pid {}: there is no guest to look into", vmm.pid));
    let mut kernel = GuestKernel::of(&context).ok_or_else(nothing)?;
    let tracee = Tracee { pid: vmm.pid, stopped_ns: clock::monotonic() };
    match kernel.look_into(&tracee, |guest| guest.symbol("_text")) {
        Ok(_) => Ok(Looked { tracee, kernel }),
        Err(error) => Err(vmm.why_not(&error.to_string())),
    }
}

/// Looks into a VM and records what its RAM tells into the request's folder.
///
/// # Errors
/// As [`find`].
pub fn look(request: &Request<'_>) -> Result<RunRecord, LookError> {
    let vmm = request.vmm;
    let first = clock::read();
    let mut looked = find(vmm, request.dir, request.cache)?;
    let mut warnings = Vec::new();
    let sources = rings(request, &looked.tracee, &mut warnings);
    let ticks = looked.kernel.look_into(&looked.tracee, ticks::watch);
    let last = clock::read();
    if vmm.is_gone() {
        return Err(LookError::Gone(vmm.pid));
    }
    let mut run = RunRecord {
        schema: SCHEMA.into(),
        label: request.label.clone(),
        watch: WatchLevel::Light,
        origin: Origin::Look,
        argv: vmm.argv.clone(),
        exec_ns: vmm.started_ns,
        clocks: vec![first, last],
        outcome: Outcome::Done,
        sources,
        ..RunRecord::default()
    };
    tie_by(&mut run, ticks, &mut warnings);
    run.total_ns = run.looked_at().unwrap_or(0).max(1);
    warnings.extend(place(&mut run, request));
    run.warnings = warnings;
    Ok(run)
}

/// How it is said what a look's time is counted from.
pub const BEGINS: &str = "time 0 is";

/// That it is the begin of the kernel's clock: lines before it have no time.
pub const CLOCK_BEGAN: &str = "the clock of the guest's kernel began";

/// Of a guest that was not silent for long enough.
pub const STILL: &str =
    "the guest printed a line in the last 10 s, so its boot may not have ended: use --follow \
        --until line:REGEX to wait for the end of the boot";

/// Of a guest whose clock can't be tied to the host's.
const NO_TICKS: &str =
    "the guest did not read its clock during the look, or its clock is not based on the TSC. \
        vmeter aligned the guest's times only with the VMM's start. These times may be late, and \
        the error shown is the largest delay. Look again when the guest is busy";

fn context<'a>(spec: &'a MachineSpec, vmm: &Vmm, dir: &'a Path, cache: &'a Path) -> Context<'a> {
    Context {
        snapshot: None,
        spec,
        watch: WatchLevel::Light,
        dir,
        cache,
        kernel: None,
        accel: vmm.accel,
        vmm: Abilities::default(),
        running: true,
        own_init: false,
        memory: false,
        ready: None,
        watches: Vec::new(),
    }
}

/// Ties the guest's clock to the host's by its ticks, or says why not.
fn tie_by(
    run: &mut RunRecord,
    ticks: Result<Option<ticks::Tied>, impl Display>,
    warnings: &mut Vec<String>,
) {
    let ticks = ticks.unwrap_or_else(|error| {
        warnings.push(format!("the guest's clock could not be read: {error}"));
        None
    });
    if tie(run, ticks) {
        warnings.push(NO_TICKS.into());
    }
}

/// How long a guest has to be silent to be up.
fn silent_for() -> Duration {
    Duration::from_nanos(SILENCE.unsigned_abs())
}

/// Copies what is in the guest's RAM.
fn rings(request: &Request<'_>, tracee: &Tracee, warnings: &mut Vec<String>) -> Vec<SourceRecord> {
    let spec = MachineSpec::default();
    let context = context(&spec, request.vmm, request.dir, request.cache);
    let mut sources = Vec::new();
    for recorder in IN_RAM {
        let Some(mut live) = recorder.live(&context) else { continue };
        match live.exiting(tracee).and_then(|()| live.finish(0)) {
            Ok(source) => sources.extend(source),
            Err(error) => warnings.push(error.to_string()),
        }
    }
    sources
}

/// Ties the guest's clock to the host's where nothing better did (KVM's own offset, as root). True if that is
/// by the VMM's start alone: the guest's TSC began with it, or after.
fn tie(run: &mut RunRecord, ticks: Option<ticks::Tied>) -> bool {
    let [first, .., last] = run.clocks.as_slice() else { return true };
    let cycles = last.tsc.saturating_sub(first.tsc).max(1) as f64;
    let passed = last.monotonic_ns.saturating_sub(first.monotonic_ns).max(1) as f64;
    let age = first.monotonic_ns.saturating_sub(run.exec_ns).max(0) as f64;
    // Going back, what the two readings of the host's clocks are off by grows.
    let early = first.width_ns.saturating_add(last.width_ns) as f64 / passed * age;
    let now = i64::try_from(first.tsc).unwrap_or(i64::MAX);
    let offset = ticks.map_or(now.saturating_neg(), |ticks| ticks.offset);
    let known = ticks.and_then(|ticks| ticks.late);
    let since_start = || {
        let started = now.saturating_sub((age * cycles / passed) as i64);
        u64::try_from(offset.saturating_neg().saturating_sub(started)).unwrap_or(0)
    };
    let late = known.unwrap_or_else(since_start) as f64 * passed / cycles + early;
    let by = match (ticks, known) {
        (Some(ticks), Some(_)) => format!(
            "{} samples of the time at which the guest last read \
            its clock",
            ticks.reads
        ),
        _ => "the VMM's start".to_owned(),
    };
    let words = format!(
        "guest TSC, aligned by means of {by}: the times are at most {:.3} ms late and {:.3} ms \
            early",
        late / 1e6,
        early / 1e6
    );
    let spread = (late * cycles / passed).ceil() as u64;
    let offset = TscOffset { tsc_offset: Some(offset), tsc_offset_spread: Some(spread) };
    guest_clock::tie(&mut run.sources, offset, &words, late.ceil() as Ns) && known.is_none()
}

/// Puts the run's begin to when the guest kernel's clock began, and its end to where the boot ends.
/// What is to be said of both comes back.
fn place(run: &mut RunRecord, request: &Request<'_>) -> Vec<String> {
    let (events, _) = decode::events(request.dir, run);
    let mut said = Vec::new();
    let lines = || events.iter().filter(|event| event.source == guest_printk::NAME);
    let is_lost =
        |event: &Event| matches!(&event.what, EventKind::Count { name, .. } if name == LOST);
    let line = |event: &&Event| matches!(event.what, EventKind::KernelLine { .. });
    let Some(begin) = lines().find(line).map(|event| event.at) else {
        return vec!["no line of the guest's log has a known time, so the run lasts from the \
            VMM's start until vmeter looked"
            .into()];
    };
    let from = match lines().any(is_lost) {
        false => CLOCK_BEGAN,
        true => "the guest logged the line that is now the oldest in its log",
    };
    let is_tied = |source: &&SourceRecord| source.parameters.contains_key("tsc_offset");
    let (about, late) = match run.sources.iter().find(is_tied) {
        Some(source) => (
            "",
            format!(
                ". vmeter knows the VMM's start to \u{b1}0.01 s, and the guest's times \
                 are at most {:.3} ms late",
                source.error_ns as f64 / 1e6
            ),
        ),
        None => (" or so", String::new()),
    };
    said.push(format!(
        "{BEGINS} when {from}: {:.2} s{about} after the start of the VMM's process, not counting \
         the time for which the VM was paused{late}. vmeter cannot get earlier times, or the \
         console, from a running VM",
        seconds(begin)
    ));
    run.exec_ns = run.exec_ns.saturating_add(begin);
    said.extend(end_at(run, request, &events, begin));
    said
}

/// As [`place`], of a run that counts from its VMM's exec.
fn place_from_exec(run: &mut RunRecord, request: &Request<'_>) -> Vec<String> {
    let (events, _) = decode::events(request.dir, run);
    end_at(run, request, &events, 0)
}

/// Puts a run's end to where the boot ends. What is to be said of that comes back.
fn end_at(run: &mut RunRecord, request: &Request<'_>, events: &[Event], begin: Ns) -> Vec<String> {
    let mut said = Vec::new();
    let now = run.looked_at().unwrap_or(0).max(1);
    run.total_ns = now;
    let of_guest: Vec<Event> = events
        .iter()
        .filter(|event| IN_RAM.iter().any(|recorder| recorder.name() == event.source))
        .cloned()
        .collect();
    let up = match &request.until {
        Some(until) => reached(&of_guest, until.pattern().as_ref()),
        None => up(&of_guest),
    };
    let has_ended = matches!(run.outcome, Outcome::UnexpectedEnd { .. });
    if let Some(at) = up.filter(|at| *at > begin) {
        run.total_ns = at.saturating_sub(begin).clamp(1, now);
        run.moments.push((run.total_ns, Moment::Ready));
        if has_ended {
            run.outcome = Outcome::Done;
        }
    } else if let Some(until) = request.until.as_ref().filter(|_| run.outcome == Outcome::Done) {
        let how = match up {
            Some(_) => {
                format!(
                    "{until}: the guest logged this event before its clock began, so the \
                    event has no time"
                )
            }
            None => format!(
                "so far, nothing in the guest's log or trace shows that the guest reached {until}"
            ),
        };
        run.outcome = Outcome::UnexpectedEnd { how };
    } else if has_ended && request.until.is_none() && !of_guest.is_empty() {
        run.outcome = Outcome::Done;
        if !of_guest.iter().any(powers_off) {
            said.push(
                "the VMM ended before its guest said that it was up, so the run ends with the \
                 VMM; --until line:REGEX sets another end"
                    .into(),
            );
        }
    } else if let Some(at) = silent(&of_guest).filter(|_| run.outcome == Outcome::Done) {
        run.total_ns = at.saturating_sub(begin).clamp(1, now);
        said.push(format!(
            "the guest does not say when it was up: the run ends at the last log line before a \
                silence of {} s or, if there is no such silence, at the last line before vmeter \
                looked. To choose another end, use --until line:REGEX",
            SILENCE / 1_000_000_000
        ));
        if now.saturating_sub(run.total_ns) < SILENCE && run.origin == Origin::Look {
            said.push(STILL.into());
        }
    }
    said.extend(untraced(run, events));
    said
}

/// True for what a kernel says last: it powers off, halts or restarts its machine (kernel/reboot.c).
fn powers_off(event: &Event) -> bool {
    matches!(&event.what, EventKind::KernelLine { text, by_program: false } if text.starts_with("reboot: "))
}

/// When an event or a line says that the guest is where the run is measured to.
fn reached(events: &[Event], pattern: Option<&Regex>) -> Option<Ns> {
    let says = |event: &&Event| match &event.what {
        EventKind::KernelLine { text, .. } => pattern.is_some_and(|pattern| pattern.is_match(text)),
        _ => false,
    };
    events.iter().find(says).map(|event| event.at)
}

/// When the guest itself says that it is up.
fn up(events: &[Event]) -> Option<Ns> {
    let ready = events.iter().find(|event| event.what == EventKind::Ready).map(|event| event.at);
    ready.or_else(|| reached(events, Until::SystemdReady.pattern().as_ref()))
}

/// When a guest began to be silent.
fn silent(events: &[Event]) -> Option<Ns> {
    // Files and counts have no time of their own.
    let timed = |event: &&Event| {
        !matches!(event.what, EventKind::Count { .. } | EventKind::UnitFile { .. })
    };
    let times: Vec<Ns> = events.iter().filter(timed).map(|event| event.at).collect();
    let pair = times.windows(2).find(|pair| pair[1].saturating_sub(pair[0]) >= SILENCE);
    pair.map(|pair| pair[0]).or(times.last().copied())
}

/// How the next boot of this guest tells more, where nothing was traced.
fn untraced(run: &RunRecord, events: &[Event]) -> Option<String> {
    let traced = run.sources.iter().any(|source| source.name == sources::guest_ftrace::NAME);
    let calls = events.iter().any(|event| matches!(&event.what, EventKind::KernelLine { text, .. } if text.starts_with("calling ")));
    (!traced && !calls).then(|| {
        format!(
            "the guest does not trace its boot: add `{}` to its kernel's command line, and after \
                the next boot vmeter also shows initcalls and processes",
            sources::guest_ftrace::words().join(" ")
        )
    })
}
