//! What is new in a guest's log and trace, poll by poll.

use super::{find_once, LookError, Looked, Vmm};
use crate::clock;
use std::path::Path;
use std::time::Duration;
use vmeter_kernel_image::clocks::Clocks;
use vmeter_kernel_image::ftrace::{FtraceDump, FtraceKind};
use vmeter_kernel_image::printk::{PrintkDump, PrintkRecord};
use vmeter_kernel_image::{Guest, Result};
use vmeter_machine::launch::Tracee;

/// Between two polls.
pub const EACH: Duration = Duration::from_millis(100);

/// Something new; stamps are of the guest's log, ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A line of its log.
    Line {
        /// When it was said.
        ts_ns: u64,
        /// The line.
        text: String,
    },
    /// A process executed a file; only a guest that traces tells.
    Exec {
        /// When.
        ts_ns: u64,
        /// The process.
        pid: i32,
        /// The file.
        file: String,
    },
    /// So many records were overwritten, or being written, before they were read.
    Lost(u64),
    /// Another kernel runs: the guest was restarted.
    Restarted,
}

impl News {
    fn ts_ns(&self) -> Option<u64> {
        match self {
            News::Line { ts_ns, .. } | News::Exec { ts_ns, .. } => Some(*ts_ns),
            News::Lost(_) | News::Restarted => None,
        }
    }
}

/// Follows a guest.
#[derive(Debug)]
pub struct Follower<'a> {
    vmm: &'a Vmm,
    cache: &'a Path,
    looked: Option<Looked>,
    /// The record that comes next, and the last that was read and held back: a program may add to it.
    next: u64,
    held: Option<PrintkRecord>,
    /// What is later than the one that is held back.
    later: Vec<News>,
    /// The last stamp of the trace; none where nothing is traced.
    traced: Option<u64>,
    /// Where the kernel's image is, physically: another one's is elsewhere, and the first one's log stays in RAM.
    place: Option<u64>,
    /// Polls without news, and after how many the kernel is looked for anew.
    quiet: u32,
    patience: u32,
}

/// Polls without news after which a kernel is looked for anew at first, and at most.
const QUIET: u32 = 10;
const MOST_QUIET: u32 = 100;

impl<'a> Follower<'a> {
    /// Follows from what is said from now on, or `all` that the guest's log has.
    ///
    /// # Errors
    /// As [`super::find`], but for a guest that has no kernel yet: that is waited for.
    pub fn new(vmm: &'a Vmm, cache: &'a Path, all: bool) -> std::result::Result<Self, LookError> {
        let mut follower = Follower::unread(vmm, cache);
        follower.poll()?;
        if all {
            (follower.next, follower.held) = (0, None);
        }
        Ok(follower)
    }

    fn unread(vmm: &'a Vmm, cache: &'a Path) -> Self {
        let later = Vec::new();
        Follower {
            vmm,
            cache,
            looked: None,
            next: 0,
            held: None,
            later,
            traced: None,
            place: None,
            quiet: 0,
            patience: QUIET,
        }
    }

    /// The VMM, once the guest's kernel was found in it.
    pub fn tracee(&self) -> Option<&Tracee> {
        self.looked.as_ref().map(|looked| &looked.tracee)
    }

    /// What is new since the last poll, in order of time.
    ///
    /// # Errors
    /// When the VMM is gone or not to be read any more.
    pub fn poll(&mut self) -> std::result::Result<Vec<News>, LookError> {
        if self.vmm.is_gone() {
            return Err(LookError::Gone(self.vmm.pid));
        }
        if self.quiet >= self.patience {
            // A guest that was reset leaves its first kernel's log as it was.
            self.looked = None;
            (self.quiet, self.patience) = (0, (self.patience * 2).min(MOST_QUIET));
        }
        if self.looked.is_none() {
            match find_once(self.vmm, self.cache, self.cache) {
                Ok(looked) => self.looked = Some(looked),
                Err(LookError::NoKernel(_)) => return Ok(Vec::new()),
                Err(error) => return Err(error),
            }
        }
        let Some(Looked { tracee, kernel }) = &mut self.looked else { return Ok(Vec::new()) };
        let both = |guest: &Guest<'_>| Ok((read(guest)?, guest.place().physical));
        let Ok(((log, trace), place)) = kernel.look_into(tracee, both) else {
            // A guest that was restarted has its kernel elsewhere; its page tables may be in passing.
            self.looked = None;
            return Ok(Vec::new());
        };
        let restarted = self.place.replace(place).is_some_and(|before| before != place);
        let mut news: Vec<News> = restarted.then(|| self.restarted()).into_iter().collect();
        news.extend(self.lines(log.records()));
        let execs = trace.map(|trace| self.execs(trace)).unwrap_or_default();
        let news = self.in_order(news, execs);
        self.quiet = if news.is_empty() { self.quiet + 1 } else { 0 };
        self.patience = if news.is_empty() { self.patience } else { QUIET };
        Ok(news)
    }

    /// Begins anew with another kernel's log.
    fn restarted(&mut self) -> News {
        (self.next, self.held) = (0, None);
        self.traced = self.traced.map(|_| 0);
        News::Restarted
    }

    /// In order of time, as far as that is known by now.
    fn in_order(&mut self, lines: Vec<News>, execs: Vec<News>) -> Vec<News> {
        let mut news = std::mem::take(&mut self.later);
        news.extend(lines.into_iter().chain(execs));
        news.sort_by_key(News::ts_ns);
        if let Some(held) = self.held.as_ref().filter(|held| held.seq >= self.next) {
            let is_before = |news: &News| news.ts_ns().is_none_or(|ts| ts < held.ts_ns);
            self.later = news.split_off(news.partition_point(is_before));
        }
        news
    }

    fn lines(&mut self, mut records: Vec<PrintkRecord>) -> Vec<News> {
        let mut news = Vec::new();
        let Some(last) = records.last().map(|record| record.seq) else { return news };
        if last.saturating_add(1) < self.next {
            news.push(self.restarted());
        }
        if records.last() != self.held.as_ref() {
            self.held = records.pop();
        }
        let next = self.next;
        for record in records.into_iter().filter(|record| record.seq >= next) {
            let lost = record.seq - self.next;
            if self.next > 0 && lost > 0 {
                news.push(News::Lost(lost));
            }
            self.next = record.seq + 1;
            let lines = record.text.split('\n').map(str::to_owned);
            news.extend(lines.map(|text| News::Line { ts_ns: record.ts_ns, text }));
        }
        news
    }

    /// Files that were executed since the last poll; nothing of the first.
    fn execs(&mut self, (trace, clocks): (FtraceDump, Clocks)) -> Vec<News> {
        let events = trace.decode().events;
        let last = events.last().map_or(0, |event| event.ts);
        let since = self.traced.replace(last).unwrap_or(last);
        let new = events.into_iter().filter(|event| event.ts > since);
        let execs = new.filter_map(|event| match event.kind {
            FtraceKind::ProcessExec { pid, file } => {
                Some(News::Exec { ts_ns: clocks.log_at(event.ts), pid, file })
            }
            _ => None,
        });
        execs.collect()
    }
}

type Both = (PrintkDump, Option<(FtraceDump, Clocks)>);

/// The log, and the trace where there is one on a clock that can be told.
fn read(guest: &Guest<'_>) -> Result<Both> {
    let log = PrintkDump::take(guest)?;
    let traced = || {
        let trace = FtraceDump::take(guest).ok().filter(|trace| trace.clock() == "x86-tsc")?;
        let clocks = Clocks::take_whole(guest, clock::monotonic()).ok()?;
        clocks.counts_tsc().then_some((trace, clocks))
    };
    let trace = traced();
    Ok((log, trace))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: u64, text: &str) -> PrintkRecord {
        let text = text.to_owned();
        PrintkRecord { seq, ts_ns: seq * 10, level: 6, caller_id: 0, by_kernel: true, text }
    }

    #[test]
    fn each_line_is_new_once_and_what_was_lost_is_counted() {
        let vmm = Vmm::of(std::process::id() as i32).expect("this process");
        let cache = Path::new("/nonexistent");
        let mut follower = Follower::unread(&vmm, cache);
        let said = |news: Vec<News>| -> Vec<String> {
            let text = |news: News| match news {
                News::Line { text, .. } => text,
                other => format!("{other:?}"),
            };
            news.into_iter().map(text).collect()
        };
        assert_eq!(said(follower.lines(vec![record(0, "a"), record(1, "b")])), ["a"]);
        // The last line was not finished when it was first read.
        let more = vec![record(0, "a"), record(1, "b and more")];
        assert!(said(follower.lines(more.clone())).is_empty());
        assert_eq!(said(follower.lines(more)), ["b and more"]);
        let lost = vec![record(5, "f\ng"), record(6, "h")];
        assert_eq!(said(follower.lines(lost)), ["Lost(3)", "f", "g"]);
        assert_eq!(said(follower.lines(vec![record(0, "x"), record(1, "y")])), ["Restarted", "x"]);
        // What came after a line that is held back waits for it.
        let exec = |ts_ns| News::Exec { ts_ns, pid: 1, file: "/init".into() };
        let first = follower.in_order(Vec::new(), vec![exec(11), exec(9)]);
        assert_eq!(first, [exec(9)]);
        let lines = follower.lines(vec![record(0, "x"), record(1, "y")]);
        let line = News::Line { ts_ns: 10, text: "y".into() };
        assert_eq!(follower.in_order(lines, Vec::new()), [line, exec(11)]);
    }
}
