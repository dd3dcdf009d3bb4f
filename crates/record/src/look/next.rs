//! A VM that somebody else starts, followed from its VMM's exec until it is up.
//!
//! As in a look its VMM is neither stopped nor spoken to. What its threads and its guest's pages do is
//! sampled meanwhile, its log is read again and again until the guest says that it is up, and then all that a look
//! reads is read. It runs on afterwards as if nothing had been. Of one that ends before, the log and the trace are those
//! of the last poll.

use super::follow::{Follower, News, EACH};
use super::ticks::{watch, Tied};
use super::{context, find, find_once, place_from_exec, rings, silent_for, tie_by};
use super::{LookError, Looked, Request, Vmm};
use crate::clock;
use crate::ready::Until;
use crate::recorder::{AnyRecorder, Live};
use crate::sources::guest_ftrace::GuestFtrace;
use crate::sources::guest_pages::GuestPages;
use crate::sources::guest_printk::GuestPrintk;
use crate::sources::vmm_threads::{self, VmmThreads};
use regex::Regex;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};
use vmeter_machine::launch::next::{heir, Executed};
use vmeter_machine::launch::Tracee;
use vmeter_model::run::{Origin, Outcome, SourceRecord, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_model::time::ClockReading;
use vmeter_model::{MachineSpec, Moment, Ns, RunRecord, SCHEMA};

/// What is sampled while the VM starts.
const SAMPLED: [&dyn AnyRecorder; 2] = [&VmmThreads, &GuestPages];

/// What is read at each poll that has news, as the VMM may end before the next.
const RINGS: [&dyn AnyRecorder; 2] = [&GuestPrintk, &GuestFtrace];
/// Between two tries to tie the guest's clock, and how many there are: one takes 0.15 s, of a guest that idles 5 s.
const BETWEEN_TIES: Duration = Duration::from_millis(50);
const MOST_TIES: u32 = 20;

/// How a VM is followed.
pub struct Following<'a> {
    /// The VMM.
    pub executed: &'a Executed,
    /// By which door vmeter came to it.
    pub origin: Origin,
    /// The run's folder.
    pub dir: &'a Path,
    /// vmeter's cache folder.
    pub cache: &'a Path,
    /// Label of the machine.
    pub label: String,
    /// Where the boot ends; by the guest's own word, or the silence after it, if absent.
    pub until: Option<Until>,
    /// How long it is waited for.
    pub timeout: Duration,
    /// The user wants it to end.
    pub interrupted: &'a dyn Fn() -> bool,
}

/// How its following ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Up,
    Silent,
    Gone,
    TimedOut,
    Interrupted,
}

/// What was read of a guest while it was followed: all that is left of one whose VMM has ended.
struct GuestReadings {
    rings: Vec<Box<dyn Live>>,
    tied: Option<Tied>,
    /// When its following ended.
    at: ClockReading,
    /// A kernel was seen in its RAM.
    has_kernel: bool,
    /// Another came after it.
    was_restarted: bool,
    /// How long its clock stood still, ns.
    stood: Ns,
}

/// A VM that was followed.
pub struct Followed {
    /// What is saved of it.
    pub run: RunRecord,
    /// A kernel was seen in its RAM.
    pub has_kernel: bool,
}

/// Follows a VM from its VMM's exec, and records it into the run's folder.
///
/// # Errors
/// When the VMM may not be read.
pub fn follow_from_exec(following: &Following<'_>) -> Result<Followed, LookError> {
    let executed = following.executed;
    let first = clock::read();
    let mut vmm = Vmm::of(executed.pid)?;
    let mut sampled = begin(following, &vmm);
    let (mut ended, mut kept) = wait(following, &vmm);
    if let (Ended::Gone, Some(pid)) = (ended, heir(executed, &executed.image)) {
        // It has put itself into the background. What its first process did is short, and has its own threads.
        vmm = Vmm::of(pid)?;
        sampled = begin(following, &vmm);
        (ended, kept) = wait(following, &vmm);
    }
    let GuestReadings { rings: kept, tied, at, has_kernel, was_restarted, stood } = kept;
    let (mut run, mut warnings) = begun(following, &vmm, (first, outcome(following, ended)));
    if was_restarted {
        warnings.push(RESTARTED.into());
    }
    if stood > 0 {
        warnings.push(format!(
            "{PAUSED} for about {:.1} s while vmeter followed the VM: the VM was paused. For \
                guest events before the pause, the times that vmeter shows are too late by the \
                length of the pause. So the span that ends at the guest's first event is too \
                long by the same length",
            seconds(stood)
        ));
    }
    // By now it is known whether it uses KVM.
    let there = ended != Ended::Gone;
    let vmm = Vmm::of(vmm.pid).ok().filter(|_| there).unwrap_or(vmm);
    let tracee = Tracee { pid: vmm.pid, stopped_ns: clock::monotonic() };
    let request = Request {
        vmm: &vmm,
        dir: following.dir,
        cache: following.cache,
        label: following.label.clone(),
        until: following.until.clone(),
    };
    run.sources = match there {
        true => rings(&request, &tracee, &mut warnings),
        false => finished(kept, executed.exec_ns, &mut warnings),
    };
    run.sources.extend(end(sampled, &tracee, there, executed.exec_ns, &mut warnings));
    // A moment that may be as early as the exec is none.
    if has_kernel && vmm_threads::vcpu_began(&run).is_none_or(|(from, _)| from <= 0) {
        warnings.push(began_unseen(first.monotonic_ns.saturating_sub(executed.exec_ns)));
    }
    let ticks = match tied {
        Some(tied) => Ok(Some(tied)),
        None if there => ticks(&request, &tracee),
        None => Ok(None),
    };
    run.clocks.push(if there { clock::read() } else { at });
    tie_by(&mut run, ticks, &mut warnings);
    run.total_ns = run.looked_at().unwrap_or(0).max(1);
    let is_done = run.outcome == Outcome::Done;
    warnings.extend(place_from_exec(&mut run, &request));
    if ended == Ended::Up && is_done && run.outcome != Outcome::Done {
        warnings.push(ends_by_poll(&mut run, at));
    }
    run.warnings = warnings;
    Ok(Followed { run, has_kernel })
}

/// A run as it is known before its guest is read, and how it was seen to begin.
fn begun(
    following: &Following<'_>,
    vmm: &Vmm,
    (first, outcome): (ClockReading, Outcome),
) -> (RunRecord, Vec<String>) {
    let executed = following.executed;
    let run = RunRecord {
        schema: SCHEMA.into(),
        label: following.label.clone(),
        watch: WatchLevel::Light,
        origin: following.origin,
        argv: vmm.argv.clone(),
        exec_ns: executed.exec_ns,
        clocks: vec![first],
        outcome,
        ..RunRecord::default()
    };
    let error = match executed.error_ns {
        0 => String::new(),
        ns => format!(", which vmeter saw at most {:.1} ms late", ns as f64 / 1e6),
    };
    let seen = format!(
        "{SEEN}: {}. Time 0 is the exec{error}. vmeter added nothing to the VMM's \
         command line and never stopped the VMM",
        executed.how
    );
    (run, vec![seen])
}

/// Ends a run at the poll that read what it ends with: the guest's log stamps nothing until its clock begins.
fn ends_by_poll(run: &mut RunRecord, at: ClockReading) -> String {
    run.outcome = Outcome::Done;
    run.total_ns = at.monotonic_ns.saturating_sub(run.exec_ns).max(1);
    run.moments.push((run.total_ns, Moment::Ready));
    format!(
        "the line that ends the run has no time: the guest logged it before the guest's clock \
         began. For vmeter, the run ends at the moment when vmeter read the line. This \
         moment is at most {} ms after the guest logged the line",
        2 * EACH.as_millis()
    )
}

/// Why nothing before the kernel has a name. `late`: from the exec to the first look, ns.
fn began_unseen(late: Ns) -> String {
    format!(
        "{BEGAN_UNSEEN}: vmeter first looked at the VMM {:.0} ms after the exec. A busy host may \
            have delayed the later looks. So vmeter does not name what came before the first \
            event of the guest's kernel",
        late as f64 / 1e6
    )
}

/// Of a VMM whose vCPU began to run at no known time.
pub const BEGAN_UNSEEN: &str = "the time at which the vCPU began to run is not known";

fn ticks(request: &Request<'_>, tracee: &Tracee) -> Result<Option<Tied>, String> {
    let looked = find(request.vmm, request.dir, request.cache);
    let mut looked = looked.map_err(|error| error.to_string())?;
    looked.kernel.look_into(tracee, watch).map_err(|error| error.to_string())
}

/// Of a VM that was reset, or whose kernel started another.
pub const RESTARTED: &str =
    "the guest restarted while vmeter followed it: the report shows only the log of the newest \
        kernel. The time of the earlier kernels is part of the spans before this kernel";

/// How it is said that the VM was paused.
pub const PAUSED: &str = "the guest's clock stood still";

/// How it is said that the VMM was seen to begin.
pub const SEEN: &str = "the VMM was seen at its exec";

fn outcome(following: &Following<'_>, ended: Ended) -> Outcome {
    let until = following.until.as_ref().map_or("it was up".to_owned(), ToString::to_string);
    match ended {
        Ended::Up | Ended::Silent => Outcome::Done,
        Ended::Gone => Outcome::UnexpectedEnd { how: format!("the VMM ended before {until}") },
        Ended::TimedOut => Outcome::TimedOut { last: "the VM runs on".into() },
        Ended::Interrupted => Outcome::Interrupted,
    }
}

fn begin(following: &Following<'_>, vmm: &Vmm) -> Vec<Box<dyn Live>> {
    let spec = MachineSpec::default();
    let context = context(&spec, vmm, following.dir, following.cache);
    let tracee = Tracee { pid: vmm.pid, stopped_ns: clock::monotonic() };
    let mut all: Vec<Box<dyn Live>> = SAMPLED.iter().filter_map(|r| r.live(&context)).collect();
    // What can't be sampled tells nothing.
    all.retain_mut(|live| live.exec(&tracee).is_ok());
    all
}

fn end(
    mut sampled: Vec<Box<dyn Live>>,
    tracee: &Tracee,
    there: bool,
    exec_ns: i64,
    warnings: &mut Vec<String>,
) -> Vec<SourceRecord> {
    if there {
        sampled.retain_mut(|live| match live.exiting(tracee) {
            Ok(()) => true,
            Err(error) => {
                warnings.push(error.to_string());
                false
            }
        });
    }
    finished(sampled, exec_ns, warnings)
}

fn finished(
    all: Vec<Box<dyn Live>>,
    exec_ns: i64,
    warnings: &mut Vec<String>,
) -> Vec<SourceRecord> {
    let ended = all.into_iter().filter_map(|live| {
        live.finish(exec_ns).unwrap_or_else(|error| {
            warnings.push(error.to_string());
            None
        })
    });
    ended.collect()
}

/// Reads the guest's log until it is up; its clock is tied to the host's beside it, as soon as it has one.
fn wait(following: &Following<'_>, vmm: &Vmm) -> (Ended, GuestReadings) {
    let (stage, folders) = (Stage::default(), (following.dir, following.cache));
    std::thread::scope(|scope| {
        let tied = scope.spawn(|| tie_early(folders, vmm, &stage));
        let spec = MachineSpec::default();
        let context = context(&spec, vmm, following.dir, following.cache);
        let mut rings: Vec<_> = RINGS.iter().filter_map(|ring| ring.live(&context)).collect();
        let ended = wait_until(following, vmm, (&mut rings, &stage));
        let at = clock::read();
        stage.is_over.store(true, Ordering::Relaxed);
        let has_kernel = ended == Ended::Up || stage.has_kernel.load(Ordering::Relaxed);
        let was_restarted = stage.was_restarted.load(Ordering::Relaxed);
        let tied = tied.join().unwrap_or(None);
        let stood = stage.stood.load(Ordering::Relaxed);
        // What ties the clock is of before, or after, nobody knows.
        let tied = tied.filter(|_| stood == 0);
        (ended, GuestReadings { rings, tied, at, has_kernel, was_restarted, stood })
    })
}

/// How far a VM is that two threads read.
#[derive(Default)]
struct Stage {
    has_kernel: AtomicBool,
    /// Another kernel came after the first.
    was_restarted: AtomicBool,
    /// How long its clock stood still, ns.
    stood: AtomicI64,
    is_over: AtomicBool,
}

/// The tie of the guest's clock, once it counts the TSC; none of a guest that is not up to it before all is over.
fn tie_early((dir, cache): (&Path, &Path), vmm: &Vmm, stage: &Stage) -> Option<Tied> {
    let mut tries = 0;
    while !stage.is_over.load(Ordering::Relaxed) && !vmm.is_gone() && tries < MOST_TIES {
        std::thread::sleep(BETWEEN_TIES);
        if !stage.has_kernel.load(Ordering::Relaxed) {
            continue;
        }
        tries += 1;
        let Ok(mut looked) = find_once(vmm, dir, cache) else { continue };
        let Looked { tracee, kernel } = &mut looked;
        let tied = kernel.look_into(tracee, watch).ok().flatten();
        if let Some(tied) = tied.filter(|tied| tied.late.is_some()) {
            return Some(tied);
        }
    }
    None
}

fn wait_until(
    following: &Following<'_>,
    vmm: &Vmm,
    (rings, stage): (&mut [Box<dyn Live>], &Stage),
) -> Ended {
    let begun = Instant::now();
    let says = following.until.clone().unwrap_or(Until::SystemdReady).pattern();
    let (mut follower, mut last): (Option<Follower<'_>>, Instant) = (None, begun);
    let mut clock = Clock::default();
    loop {
        if (following.interrupted)() {
            return Ended::Interrupted;
        }
        if begun.elapsed() >= following.timeout {
            return Ended::TimedOut;
        }
        if vmm.is_gone() {
            return Ended::Gone;
        }
        let polled = clock::monotonic();
        let news = poll(&mut follower, vmm, following.cache);
        let stood = news.as_ref().map_or(0, |news| clock.stood_still(news, polled));
        stage.stood.fetch_add(stood, Ordering::Relaxed);
        let is_restart = |news: &Vec<News>| news.contains(&News::Restarted);
        stage.was_restarted.fetch_or(news.as_ref().is_ok_and(is_restart), Ordering::Relaxed);
        match news {
            Ok(news) if news.iter().any(|news| is_up(news, says.as_ref())) => return Ended::Up,
            Ok(news) if !news.is_empty() => {
                last = Instant::now();
                if let Some(tracee) = follower.as_ref().and_then(Follower::tracee) {
                    // What was read before stays where this fails.
                    rings.iter_mut().for_each(|ring| drop(ring.exiting(tracee)));
                }
            }
            Err(LookError::Gone(_)) => return Ended::Gone,
            // It is read by others' rights then, or is not there yet.
            _ => {}
        }
        let is_there = follower.as_ref().is_some_and(|follower| follower.tracee().is_some());
        stage.has_kernel.fetch_or(is_there, Ordering::Relaxed);
        if following.until.is_none() && is_there && last.elapsed() >= silent_for() {
            return Ended::Silent;
        }
        std::thread::sleep(EACH);
    }
}

/// The guest's clock against the host's, by when its lines were first seen.
#[derive(Debug, Default)]
struct Clock {
    /// The least by which the host's clock was ahead of a line's stamp when that was there, ns.
    ahead: Option<Ns>,
    /// When the poll before began, and the one before that.
    before: [Ns; 2],
}

impl Clock {
    /// How long it stood still before what is new at a poll was said; 0 if it went on. All of that was said after the
    /// last poll but one (a line is held back for one): if the clock had gone on, its stamps were later than that.
    fn stood_still(&mut self, news: &[News], polled: Ns) -> Ns {
        let [last, before] = self.before;
        self.before = [polled, last];
        if news.contains(&News::Restarted) {
            self.ahead = None;
        }
        let stamps = news.iter().filter_map(|news| match news {
            News::Line { ts_ns, .. } => Ns::try_from(*ts_ns).ok().filter(|ts| *ts > 0),
            _ => None,
        });
        let Some(newest) = stamps.max() else { return 0 };
        // A guest stamps as it likes.
        let past = |at: Ns| at.saturating_sub(newest);
        let stood = self.ahead.map_or(0, |ahead| past(before).saturating_sub(ahead));
        let ahead = past(polled);
        if stood > STOOD {
            self.ahead = Some(ahead);
            return stood;
        }
        self.ahead = Some(self.ahead.map_or(ahead, |known| known.min(ahead)));
        0
    }
}

/// A guest's clock that counts ticks loses some tenths of a second on a busy host; a pause is longer.
const STOOD: Ns = 1_000_000_000;

fn poll<'a>(
    follower: &mut Option<Follower<'a>>,
    vmm: &'a Vmm,
    cache: &'a Path,
) -> Result<Vec<News>, LookError> {
    match follower {
        Some(follower) => follower.poll(),
        None => {
            *follower = Some(Follower::new(vmm, cache, true)?);
            Ok(Vec::new())
        }
    }
}

fn is_up(news: &News, pattern: Option<&Regex>) -> bool {
    match news {
        News::Line { text, .. } => pattern.is_some_and(|pattern| pattern.is_match(text)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stood_still_is_told_from_a_guest_that_was_silent_and_a_reader_that_was_late() {
        let s = 1_000_000_000;
        let line = |ts_ns: u64| vec![News::Line { ts_ns, text: String::new() }];
        let mut clock = Clock::default();
        // Lines of before its clock began say nothing.
        assert_eq!(clock.stood_still(&line(0), 100 * s), 0);
        assert_eq!(clock.stood_still(&line(1_000_000_000), 101 * s), 0);
        assert_eq!(clock.stood_still(&[], 105 * s), 0);
        assert_eq!(clock.stood_still(&line(5_900_000_000), 106 * s), 0, "it was silent");
        assert_eq!(clock.stood_still(&line(6_000_000_000), 110 * s), 0, "the reader was late");
        assert_eq!(clock.stood_still(&[], 114 * s), 0);
        assert_eq!(clock.stood_still(&[], 115 * s), 0);
        // Said after 114 s, and stamped as at 111 s.
        assert_eq!(clock.stood_still(&line(11_000_000_000), 116 * s), 3 * s);
        assert_eq!(clock.stood_still(&line(13_000_000_000), 118 * s), 0, "from then on it goes on");
        clock.stood_still(&line(i64::MAX as u64), 119 * s);
        clock.stood_still(&line(1), 120 * s);
    }
}
