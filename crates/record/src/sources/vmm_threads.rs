//! When a VMM's vCPU began to run, and when the VMM read its disks: by what the host's kernel
//! counts for every process, whatever VMM it is. Nothing is added to it and nothing in it is stopped.
//!
//! `/proc/PID/task/TID/schedstat` has how long a thread ran and how long it waited for a CPU
//! (Documentation/scheduler/sched-stats.rst). A vCPU's thread sleeps until its machine is started,
//! and then executes the reset vector: from there on both grow by all the time that passes. What it
//! has by the first look that finds it at work, back from that look, is when it began. `rchar` of
//! `/proc/PID/io` is what the process has read: a VMM whose disk is a file reads what its firmware and
//! boot loader read.
//!
//! Looks come in intervals of a 64th of the time since the exec, from 2 to 50 ms. Once a vCPU is at work
//! only what was read is looked at, and the threads that work, for whether they stand still ([`stood`]).

mod stood;

use super::{kvm_trace, qemu_trace, read_bounded};
use crate::looking::Looking;
use crate::recorder::{self, Context, Live, Recorder, Saved, SourceError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vmeter_base::clock;
use vmeter_machine::backend;
use vmeter_machine::launch::Tracee;
use vmeter_model::run::{Origin, SourceRecord, WatchLevel};
use vmeter_model::{Event, EventKind, Moment, Ns, RunRecord};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "vmm-threads";

/// Looks in the run's folder, a line each: when (`CLOCK_MONOTONIC`, ns), `rchar`, and of each thread
/// `TID:RAN:WAITED` (ns); later `~TID:RAN:WAITED:TIMES:STATE` of those at work. The first line is the process's
/// number.
const FILE: &str = "vmm-threads.txt";

/// Time between two looks: this part of the time since the exec, within these bounds.
const PART: Ns = 64;
const SHORTEST: Ns = 2_000_000;
const LONGEST: Ns = 50_000_000;
/// Threads are looked at until one that is not the main one has run for so long, ns.
const AT_WORK_NS: u64 = 300_000_000;
/// What a thread runs in between two looks once its vCPU is at work, ns: making one takes 0.02 to 0.2 ms.
const AT_WORK_SINCE_NS: u64 = 500_000;
/// A thread that ran nothing for so long waits for its machine's start, ns.
const ASLEEP: Ns = 10_000_000;
/// A VMM whose threads all sleep for so long before its machine's start waits for that, ns.
const WAITED: Ns = 20_000_000;
/// Afterwards only what was read is, and for so long after the exec, ns.
const MOST_NS: Ns = 300_000_000_000;
/// What a VMM reads at once of its disks is no less, bytes; of what wakes it up it is 8.
const SECTOR: u64 = 512;

/// The VMM's threads.
pub struct VmmThreads;

impl Recorder for VmmThreads {
    type Parameters = Began;
    type Raw = Vec<Look>;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let wanted = match context.snapshot {
            Some(snapshot) => snapshot.waits,
            None => context.vmm.restored.is_none(),
        };
        (context.watch != WatchLevel::None && wanted).then(|| {
            Box::new(Recording { path: context.dir.join(FILE), looking: None, text: None }) as _
        })
    }

    fn read(&self, dir: &Path, source: &SourceRecord, _: Began) -> Result<Raw, SourceError> {
        Ok(parse(&String::from_utf8_lossy(&read_bounded(dir, source, 0)?)))
    }

    fn decode(
        &self,
        raw: &Raw,
        _: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let exec_ns = saved.run.exec_ns;
        let event = |(at, error_ns, what): (Ns, Ns, EventKind)| Event {
            at: at.saturating_sub(exec_ns),
            error_ns,
            source: NAME.into(),
            insns: None,
            what,
        };
        let stalls = stood::stalls(raw).into_iter().map(event);
        if saved.run.origin == Origin::Restore {
            // A thread that loads is at work before any vCPU.
            return Ok(stalls.collect());
        }
        let known = saved.run.moment(&Moment::VmStart).map(|at| at + exec_ns);
        let start = known.or_else(|| Some(began(raw, exec_ns)?.0));
        let waits = start
            .filter(|_| may_wait(&saved.run.argv))
            .and_then(|start| waits(raw, start))
            .map(|(at, error)| event((at, error, EventKind::VmmWaits)));
        let lasting = waits.into_iter().chain(stalls);
        // Who is told of the machine's start knows it better, and the disks' reads too.
        let told = |name: &str| saved.run.sources.iter().any(|source| source.name == name);
        if told(qemu_trace::NAME) || told(kvm_trace::NAME) {
            return Ok(lasting.collect());
        }
        let running = began(raw, exec_ns)
            .map(|(at, error)| (at, error, EventKind::RunState { state: "running".into() }));
        let events = running.into_iter().chain(reads(raw)).map(event);
        Ok(lasting.chain(events).collect())
    }
}

/// What was known when the run ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    /// When a vCPU began to run, and how much earlier it can have been, ns of `CLOCK_MONOTONIC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vcpu_ns: Option<(Ns, Ns)>,
    /// How long the thread that waited longest for a CPU did, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waited_ns: Option<Ns>,
}

fn known(run: &RunRecord) -> Option<Began> {
    let source = run.sources.iter().find(|source| source.name == NAME)?;
    let map = source.parameters.clone().into_iter().collect();
    serde_json::from_value(Value::Object(map)).ok()
}

/// How long a thread of a run's VMM was ready to run and had no CPU, ns: that of the one that waited
/// longest.
pub fn waited(run: &RunRecord) -> Option<Ns> {
    known(run)?.waited_ns
}

/// From when to when a run's vCPU can have begun to run, ns after the exec.
pub fn vcpu_began(run: &RunRecord) -> Option<(Ns, Ns)> {
    let (at, error) = known(run)?.vcpu_ns?;
    let at = at.checked_sub(run.exec_ns)?;
    Some((at.saturating_sub(error), at))
}

type Raw = Vec<Look>;

/// What was counted at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    at: Ns,
    /// Bytes.
    read: u64,
    /// True if threads were looked at.
    of_threads: bool,
    /// How long each thread but the main one had run, and run or waited, ns.
    threads: BTreeMap<i32, (u64, u64)>,
    /// Those that work, once one does.
    at_work: BTreeMap<i32, stood::Counts>,
    /// How long all of them together had run, ns.
    all: u64,
}

/// False for a VMM that starts its machine by itself.
fn may_wait(argv: &[String]) -> bool {
    let by_itself = argv.iter().map(Path::new).find_map(backend::of_image).is_some_and(|vmm| {
        // QEMU's; others are told by their API.
        vmm.abilities().monitor && !argv.iter().any(|word| ["-S", "--S"].contains(&word.as_str()))
    });
    !by_itself
}

/// Since when all of a VMM's threads slept up to its machine's start, and how much sooner that can have
/// been; none if they did not for [`WAITED`], or if the VMM read anything meanwhile.
fn waits(looks: &[Look], start: Ns) -> Option<(Ns, Ns)> {
    let last = looks.iter().rposition(|look| look.at <= start && look.of_threads)?;
    let slept = |at: &usize| {
        let (before, look) = (&looks[at - 1], &looks[*at]);
        let ran = look.all.checked_sub(before.all).and_then(|ran| Ns::try_from(ran).ok());
        before.of_threads
            && look.read.saturating_sub(before.read) < SECTOR
            && ran.is_some_and(|ran| ran < (look.at - before.at) / 10)
    };
    let first = (1..=last).rev().take_while(slept).last()? - 1;
    let (at, before) = (looks[first].at, first.checked_sub(1).map(|at| looks[at].at));
    (start - at >= WAITED).then(|| (at, before.map_or(SHORTEST, |before| at - before)))
}

/// When a vCPU began to run, and how far off that is. The vCPUs are those threads of the last look
/// that ran for at least half as long as the one that ran longest. None where the looks were so far apart,
/// on a host without a CPU for them, that it is not known to [`LONGEST`].
fn began(looks: &[Look], exec_ns: Ns) -> Option<(Ns, Ns)> {
    let last = looks.iter().rfind(|look| !look.threads.is_empty())?;
    let most = last.threads.values().map(|(ran, _)| *ran).max()?;
    let vcpus = last.threads.iter().filter(|(_, (ran, _))| ran.saturating_mul(2) >= most);
    let first = vcpus.filter_map(|(tid, _)| began_one(looks, *tid, exec_ns)).min();
    first.filter(|(_, error)| *error <= LONGEST)
}

/// When one thread began to be at work: what it takes to come into being is less. It may have been
/// since the last look before which it had slept for [`ASLEEP`], as a thread that waits for its machine's
/// start does, or before which it was not there; that is the error. There is none before the exec.
fn began_one(looks: &[Look], tid: i32, exec_ns: Ns) -> Option<(Ns, Ns)> {
    let exec = Look { at: exec_ns, ..Look::default() };
    let known: Vec<&Look> =
        std::iter::once(&exec).chain(looks.iter().filter(|look| look.of_threads)).collect();
    let of = |at: usize| known[at].threads.get(&tid).copied().unwrap_or_default();
    let ran = |at: usize| of(at).0;
    let works = |at: &usize| ran(*at).saturating_sub(ran(at - 1)) >= AT_WORK_SINCE_NS;
    let (found, first) =
        ((1..known.len()).find(works)?, known.iter().position(|l| l.threads.contains_key(&tid))?);
    let grown = of(found).1.saturating_sub(of(found - 1).1);
    let grown = Ns::try_from(grown).unwrap_or(Ns::MAX);
    // A wait is counted when it is over, so that it may have begun before the look before.
    let at = known[found].at.saturating_sub(grown).max(exec_ns);
    let mut asleep = found - 1;
    while asleep >= first {
        let since = (first..=asleep).find(|at| ran(*at) == ran(asleep)).unwrap_or(asleep);
        if known[asleep].at - known[since].at >= ASLEEP {
            break;
        }
        asleep = since - 1;
    }
    Some((at, (at - known[asleep].at).max(0)))
}

/// Each look that found that the VMM had read of its disks since the one before.
fn reads(looks: &[Look]) -> impl Iterator<Item = (Ns, Ns, EventKind)> + '_ {
    looks.windows(2).filter_map(|pair| {
        let bytes = pair[1].read.saturating_sub(pair[0].read);
        (bytes >= SECTOR)
            .then(|| (pair[1].at, pair[1].at - pair[0].at, EventKind::VmmRead { bytes }))
    })
}

fn parse(text: &str) -> Vec<Look> {
    let mut lines = text.lines();
    let main = lines.next().and_then(|line| line.parse::<i32>().ok());
    let look = |line: &str| {
        let mut words = line.split(' ');
        let (at, read) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let rest: Vec<&str> = words.collect();
        let at_work = rest.iter().filter_map(|word| stood::parse(word)).collect();
        let mut words = rest.into_iter().filter(|word| !word.starts_with(stood::MARK)).peekable();
        let of_threads = words.peek().is_some();
        let mut all = 0u64;
        let threads = words.filter_map(|word| {
            let mut numbers = word.split(':');
            let tid = numbers.next()?.parse().ok()?;
            let (ran, waited): (u64, u64) =
                (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
            all = all.saturating_add(ran).saturating_add(waited);
            (Some(tid) != main).then_some((tid, (ran, ran.saturating_add(waited))))
        });
        let threads = threads.collect();
        Some(Look { at, read, of_threads, threads, at_work, all })
    };
    lines.filter_map(look).collect()
}

/// The longest wait of a thread for a CPU, ns, by what each had waited when it was last looked at.
fn most_waited(text: &str) -> Option<Ns> {
    let words = text.lines().skip(1).flat_map(|line| line.split(' ').skip(2));
    let waited = |word: &str| word.split(':').nth(2)?.parse::<Ns>().ok();
    words.filter_map(waited).max()
}

struct Recording {
    path: PathBuf,
    looking: Option<Looking>,
    text: Option<String>,
}

impl Recording {
    /// Ends the looks at the process before this one, of which nothing is kept.
    fn end(&mut self) -> Option<String> {
        self.looking.take()?.end()
    }
}

impl Live for Recording {
    fn exec(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        self.end();
        let pid = tracee.pid;
        let mut followed = None;
        let look = move |text: &mut String, since: Ns| {
            let at_work = look(pid, followed.as_deref(), text)?;
            followed = followed.take().or((!at_work.is_empty()).then_some(at_work));
            (since <= MOST_NS).then(|| (since / PART).clamp(SHORTEST, LONGEST))
        };
        let looking = Looking::start(NAME, format!("{pid}\n"), look);
        self.looking =
            Some(looking.map_err(|error| SourceError::Io { path: self.path.clone(), error })?);
        Ok(())
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        self.text = self.end();
        if let Some(text) = &mut self.text {
            look(tracee.pid, None, text);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let ended = self.end();
        let Some(text) = self.text.take().or(ended) else { return Ok(None) };
        let known = Began { vcpu_ns: began(&parse(&text), exec_ns), waited_ns: most_waited(&text) };
        let io = |error| SourceError::Io { path: self.path.clone(), error };
        std::fs::write(&self.path, text).map_err(io)?;
        let clock = "CLOCK_MONOTONIC at each look";
        Ok(Some(recorder::record::<VmmThreads>(&[FILE], clock, SHORTEST, &known)))
    }
}

/// Adds a line: what the process had read, and what all its threads had run, or those that are
/// `followed`. The threads that are at work, once one has run for long; none if the process is gone.
fn look(pid: i32, followed: Option<&[String]>, text: &mut String) -> Option<Vec<String>> {
    let at = clock::monotonic();
    let proc = Path::new("/proc").join(pid.to_string());
    let io = std::fs::read_to_string(proc.join("io")).ok()?;
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: "))?;
    let mut line = format!("{at} {read}");
    let tasks = proc.join("task");
    if let Some(followed) = followed {
        for tid in followed {
            let _ = write!(line, "{}", stood::noted(&tasks, tid).unwrap_or_default());
        }
        let _ = writeln!(text, "{line}");
        return Some(Vec::new());
    }
    let mut all: Vec<(u64, String)> = Vec::new();
    for task in std::fs::read_dir(&tasks).ok().into_iter().flatten().flatten() {
        let Ok(counts) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
        let mut counts = counts.split_whitespace();
        let (Some(ran), Some(waited)) = (counts.next(), counts.next()) else { continue };
        let tid = task.file_name().to_string_lossy().into_owned();
        let _ = write!(line, " {tid}:{ran}:{waited}");
        if tid.parse() != Ok(pid) {
            all.push((ran.parse().unwrap_or(0), tid));
        }
    }
    let _ = writeln!(text, "{line}");
    let most = all.iter().map(|(ran, _)| *ran).max().filter(|most| *most > AT_WORK_NS);
    let works = |ran: u64| most.is_some_and(|most| ran.saturating_mul(2) >= most);
    all.retain(|(ran, _)| works(*ran));
    Some(all.into_iter().map(|(_, tid)| tid).take(stood::MOST).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    fn looks(text: &str) -> Vec<Look> {
        parse(text)
    }

    #[test]
    fn who_waited_longest_for_a_cpu() {
        let text = "7\n10 1 7:5:6000 8:9:70\n20 2 ~8:9:8000:3:R\n30 3 7:5:7000\n";
        assert_eq!(most_waited(text), Some(8_000));
        // One that only slept waited for none.
        assert_eq!(most_waited("7\n10 1 7:5:0\n"), Some(0));
        assert_eq!(most_waited("7\n"), None);
    }

    #[test]
    fn a_vcpu_began_as_long_before_it_was_seen_as_it_had_run_and_waited() {
        // 7 is the main thread; 8 prepares memory and ends; 9 sleeps, begins 1.1 ms before the look at
        // 40 ms (of which it waited 0.5 ms), waits for a disk, and runs on.
        let text = "7\n\
            10000000 100 7:9000000:0\n\
            20000000 100 7:19000000:0 8:9000000:0 9:20000:0\n\
            38000000 100 7:37000000:0 8:27000000:0 9:20000:0\n\
            40000000 612 7:39000000:0 9:620000:500000\n\
            52000000 620 7:39100000:0 9:640000:500000\n\
            99000000 9000 7:39100000:0 9:44500000:500000\n";
        let looks = looks(text);
        assert_eq!(began(&looks, 5 * MS), Some((38_900_000, 900_000)));
        // It may have begun when it ran a little before.
        let little = parse(&text.replace("27000000:0 9:20000:0", "27000000:0 9:30000:0"));
        assert_eq!(began(&little, 5 * MS), Some((38_910_000, 28_910_000)));
        let reads: Vec<_> = reads(&looks).map(|(at, error, _)| (at / MS, error / MS)).collect();
        assert_eq!(reads, [(40, 2), (99, 47)]);
    }

    #[test]
    fn a_vcpu_that_was_at_work_at_the_first_look_began_before_it() {
        let looks = |at: Ns| {
            let rest =
                "7:9000000:0 9:30000000:5000000\n70000000 1 7:9000000:0 9:60000000:5000000\n";
            parse(&format!("7\n{at} 1 {rest}"))
        };
        assert_eq!(began(&looks(40 * MS), MS), Some((5 * MS, 4 * MS)));
        // The looks had no CPU for so long that it may have waited for anything meanwhile.
        assert_eq!(began(&looks(140 * MS), MS), None);
    }

    #[test]
    fn a_vmm_that_waits_to_be_started_sleeps() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(may_wait(&words("firecracker --api-sock s")));
        assert!(may_wait(&words("/usr/bin/qemu-system-x86_64 -m 1G -S")));
        assert!(!may_wait(&words("qemu-system-x86_64 -m 1G")));
        // It initialises until 20 ms, answers its monitor for 0.1 ms, and is started at 95 ms.
        let text = "7\n\
            10000000 100 7:9000000:0\n\
            20000000 100 7:18000000:0 9:20000:0\n\
            50000000 108 7:18010000:0 9:20000:0\n\
            90000000 116 7:18110000:0 9:20000:0\n\
            99000000 900 7:18110000:0 9:4000000:0\n";
        assert_eq!(waits(&looks(text), 95 * MS), Some((20 * MS, 10 * MS)));
        // It read its kernel, or was at work.
        assert_eq!(
            waits(&looks(&text.replace("108 7", "9000000 7")), 95 * MS),
            Some((50 * MS, 30 * MS))
        );
        assert_eq!(waits(&looks(&text.replace("18110000", "28110000")), 95 * MS), None);
        assert_eq!(waits(&looks(text), 15 * MS), None);
    }

    #[test]
    fn what_never_was_at_work_began_nowhere() {
        let text = "7\n10000000 1 7:9:0 9:5:0\n50000000 1 7:19:0 9:6:0\nx y\n90000000 2 9:7:0\n";
        assert_eq!(began(&looks(text), MS), None);
        assert_eq!(looks("").len(), 0);
    }
}
