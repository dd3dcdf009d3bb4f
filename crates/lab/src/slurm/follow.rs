//! Following a job array.
//!
//! There is nothing to wait on: tasks run on other hosts, and a shared file system tells
//! nobody of changes. So the folders are looked at and squeue is asked in intervals that
//! begin at half a second and grow with the time it takes, up to 15 s, so that a controller
//! that serves thousands of users hardly notices; Ctrl-C ends the wait at once.

use super::job::{self, shard_dir, ENDED, SCRIPT};
use super::{client, interrupted, lost, save, JobRecord};
use crate::boots::summary_of;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vmeter_session::failure::usage;
use vmeter_session::Interrupt;
use vmeter_session::{read_run, Progress, Session, Watch};

/// Submissions of one shard, the first one included.
const ATTEMPTS: u32 = 4;
/// Looks at which Slurm has no task of a shard whose task says that it ended badly, before it
/// counts as lost.
const LOOKS: u32 = 2;
/// How long a shard is waited for that Slurm has no task of and that says nothing, the first time,
/// s; each further time it is twice as long. A client of NFS may know a folder as it was a minute
/// ago (nfs(5), `acdirmax`), and a controller that has just started knows no tasks.
const PATIENCE_S: f64 = 60.0;
/// … and at most, s.
const MOST_PATIENCE_S: f64 = 300.0;
/// Sets [`PATIENCE_S`].
const PATIENCE_VARIABLE: &str = "VMETER_SLURM_PATIENCE";

/// A shard on its way.
struct Part {
    session: Session,
    /// Runs that have been announced.
    told: BTreeSet<u32>,
    attempts: u32,
    looks: u32,
    /// Slurm has had no task of it since then.
    gone: Option<Instant>,
}

/// Where a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Done,
    Underway,
    /// Its task is gone.
    Gone,
    /// Its task came to an end and says that trying again is no use (exit status 2).
    Refused,
}

/// The shards of an array.
pub(super) struct Follow<'a> {
    dir: &'a Path,
    job: JobRecord,
    parts: Vec<(u32, Part)>,
    patience: Duration,
}

impl<'a> Follow<'a> {
    /// Takes up what is on disk.
    pub fn open(dir: &'a Path, job: JobRecord) -> Result<Self> {
        let part = |index: u32| -> Result<(u32, Part)> {
            let session = Session::open(&shard_dir(dir, index))?;
            // Whoever follows again has mended what was wrong.
            if !matches!(ended(&session.dir), Some(0 | 1)) {
                let _ = std::fs::remove_file(session.dir.join(ENDED));
            }
            let told = BTreeSet::new();
            Ok((index, Part { session, told, attempts: 1, looks: 0, gone: None }))
        };
        let parts: Result<Vec<(u32, Part)>> = (1..=job.shards).map(part).collect();
        Ok(Follow { dir, job, parts: parts?, patience: patience()? })
    }

    /// Until every shard is done.
    pub fn run(mut self, watch: &mut Watch<'_>) -> Result<()> {
        let all: usize = self.parts.iter().map(|(_, part)| own_runs(&part.session).len()).sum();
        let there: usize = self.parts.iter_mut().map(|(_, part)| part.news().len()).sum();
        watch.progress.begin(&format!("{} on Slurm", self.job.command), all, there);
        let (begun, mut unheard) = (Instant::now(), false);
        loop {
            // The queue first: what a task does before it leaves it is then on disk.
            let queued = client::queue(&self.job.jobs);
            self.tell(watch.progress);
            if queued.is_none() && !unheard {
                watch.progress.warn("squeue does not answer: waiting for it");
            }
            unheard = queued.is_none();
            if let Some(queued) = queued {
                watch.progress.note(&summary(&queued));
                if self.step(&queued, watch.progress)? {
                    return Ok(());
                }
            }
            let interval =
                (begun.elapsed() / 20).clamp(Duration::from_millis(500), Duration::from_secs(15));
            if wait(interval, watch.interrupt) {
                return Err(interrupted(self.dir, &self.job));
            }
        }
    }

    fn tell(&mut self, progress: &mut dyn Progress) {
        for (_, part) in &mut self.parts {
            for dir in part.news() {
                let Ok(run) = read_run(&dir) else { continue };
                progress.run(&run.label, &summary_of(&run));
            }
        }
    }

    /// Submits what was lost; true once all is done.
    fn step(
        &mut self,
        queued: &BTreeMap<u32, client::Queued>,
        progress: &mut dyn Progress,
    ) -> Result<bool> {
        let mut again = Vec::new();
        let mut fatal_reason = Vec::new();
        let mut underway = false;
        for (index, part) in &mut self.parts {
            match part.stage(queued.contains_key(index)) {
                Stage::Done => {}
                Stage::Underway => {
                    underway = true;
                    part.found();
                }
                Stage::Refused => fatal_reason.push(*index),
                Stage::Gone => {
                    let patience = self.patience * (1 << (part.attempts - 1).min(8));
                    let patience = patience.min(Duration::from_secs_f64(MOST_PATIENCE_S));
                    if part.looks == 0 && ended(&part.session.dir).is_none() {
                        progress.note(&format!(
                            "Slurm has no task of shard {index}: vmeter waits {:.0} s for the \
                            shard's files",
                            patience.as_secs_f64()
                        ));
                    }
                    match (part.is_lost(patience), part.attempts < ATTEMPTS) {
                        (false, _) => underway = true,
                        (true, true) => again.push(*index),
                        (true, false) => fatal_reason.push(*index),
                    }
                }
            }
        }
        if !again.is_empty() {
            self.submit(&again, progress)?;
            return Ok(false);
        }
        match (underway, fatal_reason.is_empty()) {
            (true, _) => Ok(false),
            (false, true) => Ok(true),
            (false, false) => Err(lost(self.dir, &self.job.command, &fatal_reason, ATTEMPTS)),
        }
    }

    fn submit(&mut self, again: &[u32], progress: &mut dyn Progress) -> Result<()> {
        let number = client::submit(&self.dir.join(SCRIPT), again)?;
        for (index, part) in &mut self.parts {
            if again.contains(index) {
                progress.warn(&format!(
                    "shard {index}/{} was lost after {} of its {} runs (see {}): submitted again as job {number}",
                    self.job.shards,
                    part.told.len(),
                    own_runs(&part.session).len(),
                    job::log(self.dir, *index).display()
                ));
                part.attempts += 1;
                part.found();
            }
        }
        self.job.jobs.push(number);
        save(self.dir, &self.job)
    }
}

/// How long the first wait for a shard is.
fn patience() -> Result<Duration> {
    let Ok(text) = std::env::var(PATIENCE_VARIABLE) else {
        return Ok(Duration::from_secs_f64(PATIENCE_S));
    };
    let seconds = text.trim().parse().ok().filter(|s| (0.0..=MOST_PATIENCE_S).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        usage(format!("{PATIENCE_VARIABLE}={text}: expected seconds, 0 to {MOST_PATIENCE_S}"))
    })
}

impl Part {
    /// Slurm has a task of it.
    fn found(&mut self) {
        (self.looks, self.gone) = (0, None);
    }

    /// Slurm has no task of it. True if that was so for long enough: a task that says how it ended
    /// writes nothing more.
    fn is_lost(&mut self, patience: Duration) -> bool {
        self.looks += 1;
        let since = self.gone.get_or_insert_with(Instant::now);
        self.looks >= LOOKS && (ended(&self.session.dir).is_some() || since.elapsed() >= patience)
    }

    /// Folders of the runs that were finished since the last look.
    fn news(&mut self) -> Vec<PathBuf> {
        let new: Vec<u32> = own_runs(&self.session)
            .iter()
            .filter(|run| !self.told.contains(run) && self.session.has_run(**run))
            .copied()
            .collect();
        self.told.extend(&new);
        new.into_iter().map(|run| self.session.run_dir(run)).collect()
    }

    fn stage(&self, queued: bool) -> Stage {
        if self.told.len() == own_runs(&self.session).len() {
            return Stage::Done;
        }
        if queued {
            return Stage::Underway;
        }
        // 0 and 1: it did what could be done; a point that failed is not run again.
        match ended(&self.session.dir) {
            Some(0 | 1) => Stage::Done,
            Some(2) => Stage::Refused,
            _ => Stage::Gone,
        }
    }
}

fn own_runs(session: &Session) -> &[u32] {
    session.record.shard.as_ref().map_or(&[], |own| &own.runs)
}

/// The exit status that a task left.
fn ended(dir: &Path) -> Option<u8> {
    let bytes = vmeter_base::files::read_limited(&dir.join(ENDED), 16).ok()?;
    std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
}

fn summary(queued: &BTreeMap<u32, client::Queued>) -> String {
    let running = queued.values().filter(|q| q.state == "R").count();
    let pending: Vec<&client::Queued> = queued.values().filter(|q| q.state == "PD").collect();
    match pending.first() {
        Some(first) => {
            format!("{running} tasks running, {} waiting ({})", pending.len(), first.reason)
        }
        None => format!("{running} tasks running"),
    }
}

/// True if it was interrupted.
fn wait(interval: Duration, interrupt: &Interrupt) -> bool {
    let (sender, receiver) = mpsc::channel();
    let _during = interrupt.during(move || {
        let _ = sender.send(());
    });
    let _ = receiver.recv_timeout(interval);
    interrupt.is_raised()
}
