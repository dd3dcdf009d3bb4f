//! When each record of a guest's log came, seen from outside while the guest runs.
//!
//! A kernel without symbols may stamp its log by a clock that counts nothing yet, or that nobody can tie to the
//! host's, and a quiet one shows no line. Its log is found by its shape all the same
//! ([`vmeter_kernel_image::shape::growth`]), and looked at every ms as long as it goes on: each
//! record came between two looks. Of the records that a search finds nothing is noted: they may have come long before. A search
//! reads what is new in the guest's RAM, or at longer intervals all that is there of it, and has no more than an eighth of a
//! CPU; a 64th once the log is where it stays.

use super::read_bounded;
use crate::guest_ram::GuestKernel;
use crate::looking::Looking;
use crate::recorder::{self, Context, Live, NoParameters, Recorder, Saved, SourceError};
use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use vmeter_base::clock;
use vmeter_kernel_image::clocks::Clocks;
use vmeter_kernel_image::printk::PrintkRecord;
use vmeter_kernel_image::shape::growth::{Came, Growth};
use vmeter_kernel_image::HostMemory;
use vmeter_machine::launch::Tracee;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Event, Ns};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "log-growth";

/// A line for each look that found something: when it ended and when the one before began
/// (`CLOCK_MONOTONIC`, ns), and the records, `NUMBER:STAMP`.
const FILE: &str = "log-growth.txt";

/// Between two looks at a log that goes on, and at one that has not for a while.
const EACH: Ns = 1_000_000;
const SELDOM: Ns = 4_000_000;
const A_WHILE: Ns = 100_000_000;
/// Between two searches of what is new in RAM.
const SOON: Ns = 10_000_000;
/// Between two searches of all of it, for a log that does not go on: at first, and at most.
const FIRST: Ns = 20_000_000;
const LATER: Ns = 1_000_000_000;
/// So many times longer after each that found nothing.
const SLOWER: Ns = 2;
/// A search has this part of a CPU at most, and this much once the log is settled.
const SHARE: Ns = 8;
const SHARE_SETTLED: Ns = 64;
/// A kernel that moves its log does so before it says as much, right after its command line (`setup_log_buf`): one
/// that grows beyond it stays where it is, and what else is searched for is another kernel.
const SETTLED: u64 = 200;
/// Most bytes that are noted of a guest: a log of 100,000 records that is moved twice has some 8 MB.
const MOST_BYTES: usize = 32 << 20;
/// So long after the exec, ns.
const MOST_NS: Ns = 120_000_000_000;

/// When a log grew.
pub struct LogGrowth;

/// Records that came between two moments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    since: Ns,
    at: Ns,
    came: Vec<Came>,
}

impl Recorder for LogGrowth {
    type Parameters = NoParameters;
    type Raw = Vec<Look>;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let kernel = GuestKernel::of(context)?;
        let path = context.dir.join(FILE);
        Some(Box::new(Recording { kernel, wanted: false, path, looking: None, text: None }) as _)
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        _: NoParameters,
    ) -> Result<Self::Raw, SourceError> {
        Ok(parse(&String::from_utf8_lossy(&read_bounded(dir, source, 0)?)))
    }

    fn decode(
        &self,
        _: &Self::Raw,
        _: &SourceRecord,
        _: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        // It places the records of the log, and says nothing itself.
        Ok(Vec::new())
    }
}

/// For each record of a log the middle of the time in which it came, and half of that, in the run's time.
pub(super) fn windows(
    looks: &[Look],
    records: &[PrintkRecord],
    exec_ns: Ns,
) -> Vec<Option<(Ns, Ns)>> {
    let mut came: HashMap<(u64, u64), (Ns, Ns)> = HashMap::new();
    for look in looks {
        let half = look.at.saturating_sub(look.since).max(0) / 2;
        let middle = look.since.saturating_add(half).saturating_sub(exec_ns);
        for record in &look.came {
            came.entry((record.seq, record.ts_ns)).or_insert((middle, half + 1));
        }
    }
    records.iter().map(|record| came.get(&(record.seq, record.ts_ns)).copied()).collect()
}

fn parse(text: &str) -> Vec<Look> {
    let look = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let mut time = || words.next()?.parse().ok();
        let (at, since) = (time()?, time()?);
        let record = |word: &str| {
            let (seq, ts) = word.split_once(':')?;
            Some(Came { seq: seq.parse().ok()?, ts_ns: ts.parse().ok()? })
        };
        Some(Look { since, at, came: words.filter_map(record).collect() })
    };
    text.lines().filter_map(look).collect()
}

struct Recording {
    kernel: GuestKernel,
    /// Nothing else tells when its log was written.
    wanted: bool,
    path: PathBuf,
    looking: Option<Looking>,
    text: Option<String>,
}

impl Recording {
    fn end(&mut self) -> Option<String> {
        self.looking.take()?.end()
    }
}

impl Live for Recording {
    fn prepare(&mut self, _: &mut LaunchPlan) -> Result<(), SourceError> {
        let opened = self.kernel.open();
        let can_read = self.kernel.info().is_none_or(Clocks::have_places);
        // What is not traced its log tells, whose clock loses ticks until it is steady.
        self.wanted = opened.is_err() || !can_read || !self.kernel.traces_initcalls();
        Ok(())
    }

    fn exec(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        self.end();
        if !self.wanted {
            return Ok(());
        }
        let mut looks = Looks::of(tracee.clone(), self.kernel.clone());
        let look = move |text: &mut String, since: Ns| {
            looks.look(text)?;
            (since < MOST_NS && text.len() < MOST_BYTES).then_some(looks.pause_ns())
        };
        let looking = Looking::start(NAME, String::new(), look);
        self.looking =
            Some(looking.map_err(|error| SourceError::Io { path: self.path.clone(), error })?);
        Ok(())
    }

    fn exiting(&mut self, _: &Tracee) -> Result<(), SourceError> {
        self.text = self.end().or(self.text.take());
        Ok(())
    }

    fn finish(mut self: Box<Self>, _: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let text = self.end().or(self.text.take()).unwrap_or_default();
        if text.is_empty() {
            return Ok(None);
        }
        let io = |error| SourceError::Io { path: self.path.clone(), error };
        std::fs::write(&self.path, text).map_err(io)?;
        let clock = "CLOCK_MONOTONIC at each look";
        Ok(Some(recorder::record::<LogGrowth>(&[FILE], clock, EACH, &NoParameters {})))
    }
}

/// The looks at one process.
struct Looks {
    tracee: Tracee,
    kernel: GuestKernel,
    growth: Growth,
    noted: Noted,
    /// When the next search of what is new is due, and when that of everything.
    search: Ns,
    search_all: Ns,
    /// How long after that of everything the one after it.
    pause: Ns,
}

/// What the looks found so far.
struct Noted {
    /// When the last look began, and the last that found something.
    last: Ns,
    came: Ns,
    /// The log that grows is where it stays.
    settled: bool,
}

impl Noted {
    /// Looks at what is known, and adds a line for what is new; true if anything is.
    fn look(&mut self, growth: &mut Growth, tracee: &Tracee, text: &mut String) -> bool {
        let begun = clock::monotonic();
        let came = growth.look(&Direct(tracee));
        if !came.is_empty() {
            self.settled |= came.iter().any(|came| came.seq >= SETTLED);
            let _ = write!(text, "{} {}", clock::monotonic(), self.last);
            for came in &came {
                let _ = write!(text, " {}:{}", came.seq, came.ts_ns);
            }
            text.push('\n');
            self.came = begun;
        }
        self.last = begun;
        !came.is_empty()
    }
}

impl Looks {
    fn of(tracee: Tracee, kernel: GuestKernel) -> Self {
        let now = clock::monotonic();
        let noted = Noted { last: now, came: 0, settled: false };
        let growth = Growth::default();
        let pause = FIRST / SLOWER;
        Looks { tracee, kernel, growth, noted, search: now, search_all: now, pause }
    }

    /// How long until the next look.
    fn pause_ns(&self) -> Ns {
        let silent = self.noted.last.saturating_sub(self.noted.came);
        if silent < A_WHILE {
            EACH
        } else {
            SELDOM
        }
    }

    /// Looks once, and searches if the log does not go on; none if the process is gone.
    fn look(&mut self, text: &mut String) -> Option<()> {
        let begun = clock::monotonic();
        if self.noted.look(&mut self.growth, &self.tracee, text) {
            self.search = self.search.max(begun + SOON);
            self.search_all = self.search_all.max(begun + self.pause);
        } else if begun >= self.search.min(self.search_all) {
            self.search(begun >= self.search_all, text)?;
        }
        Some(())
    }

    /// Searches for a log, in all of RAM or in what is new. When the records came that a search finds, it does not
    /// show.
    fn search(&mut self, all: bool, text: &mut String) -> Option<()> {
        let memory = self.kernel.memory_that_runs(&self.tracee).ok()?;
        let before = cpu_time();
        if all {
            self.growth.search_all();
        }
        let (noted, tracee) = (&mut self.noted, &self.tracee);
        let found = self.growth.search(&memory.mapped(), &memory, |growth| {
            if clock::monotonic() - noted.last >= EACH {
                noted.look(growth, tracee, text);
            }
        });
        let (took, now) = (cpu_time() - before, clock::monotonic());
        // A kernel that moves its log does so right after its first lines.
        if !found.is_empty() {
            self.noted.settled = false;
            self.noted.came = now;
            self.pause = FIRST;
        }
        let (share, soon) = if self.noted.settled { (SHARE_SETTLED, LATER) } else { (SHARE, SOON) };
        if all {
            self.pause = match (found.is_empty(), self.noted.settled) {
                (false, _) => FIRST,
                (true, true) => LATER,
                (true, false) => (self.pause * SLOWER).min(LATER),
            };
            self.search_all = now + self.pause.max(took * share);
            self.search = now + soon;
        } else {
            self.search = now + soon.max(took * share);
        }
        Some(())
    }
}

/// CPU time of this thread, ns.
fn cpu_time() -> Ns {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec * 1_000_000_000 + used.tv_nsec
}

/// The process's own addresses: what was found there is there.
struct Direct<'a>(&'a Tracee);

impl HostMemory for Direct<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read(address, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_came_between_the_look_that_has_it_and_the_one_before() {
        let looks = parse("1200 1000 0:0 1:5\n1300 1200 2:9\ngarbage\n1400 1300 1:5 x:1 3:9 4\n");
        assert_eq!(looks.len(), 3);
        let record = |seq, ts_ns| PrintkRecord {
            seq,
            ts_ns,
            level: 6,
            caller_id: 0,
            by_kernel: true,
            text: String::new(),
        };
        // Another stamp is of another log, or of one that was not written whole.
        let records = [record(0, 0), record(1, 5), record(2, 8), record(3, 9)];
        let expected = [Some((100, 101)), Some((100, 101)), None, Some((350, 51))];
        assert_eq!(windows(&looks, &records, 1000), expected);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[0-9: \n-]{0,200}", exec: Ns) {
            windows(&parse(&text), &[], exec);
        }
    }
}
