//! Time in which vmeter itself did not run: stopped by SIGSTOP or Ctrl-Z, or frozen.
//!
//! A VMM leads a session of its own and goes on meanwhile. It waits where vmeter should have
//! let it go on, and what it prints is stamped when vmeter is back: a run with such a gap
//! has figures that are vmeter's, not the machine's. A thread sleeps in short turns beside
//! each run; a turn that took much longer, and was not spent waiting for a CPU (that time
//! the scheduler accounts for, in `/proc/thread-self/schedstat`), was an absence.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;
use vmeter_base::clock::monotonic;

/// A turn. Waking ten times a second costs a host nothing that could be measured.
const TURN: Duration = Duration::from_millis(100);
/// Absence within one turn that counts. Nobody stops a process for less by hand, and timers
/// of a virtual host are late by less.
const COUNTS_NS: i64 = 200_000_000;

/// Watches over one run.
pub(crate) struct Absence {
    end: Sender<()>,
    thread: Option<JoinHandle<i64>>,
}

impl Absence {
    /// Begins to watch. Without a thread nothing is seen, which is no reason not to measure.
    pub(crate) fn watch() -> Self {
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("absence".into()).spawn(move || {
            let mut absent = 0;
            let mut before = (monotonic(), waited_for_cpu());
            loop {
                let over = ended.recv_timeout(TURN) != Err(RecvTimeoutError::Timeout);
                let now = (monotonic(), waited_for_cpu());
                absent += absence(now.0 - before.0, now.1 - before.1);
                if over {
                    return absent;
                }
                before = now;
            }
        });
        Absence { end, thread: thread.ok() }
    }

    /// Ends the watch: for how long vmeter did not run, ns; 0 if all was well.
    pub(crate) fn end(mut self) -> i64 {
        let _ = self.end.send(());
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(0)
    }
}

/// What of a turn's length, ns, was an absence; `waited` of it was spent waiting for a CPU.
fn absence(took: i64, waited: i64) -> i64 {
    let turn = i64::try_from(TURN.as_nanos()).unwrap_or(i64::MAX);
    let away = took.saturating_sub(turn).saturating_sub(waited.max(0));
    if away >= COUNTS_NS {
        away
    } else {
        0
    }
}

/// How long this thread was ready to run and had no CPU, ns (Documentation/scheduler/
/// sched-stats.rst); 0 where the kernel does not say.
fn waited_for_cpu() -> i64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_turn_counts_unless_it_waited_for_a_cpu() {
        const MS: i64 = 1_000_000;
        assert_eq!(absence(100 * MS, 0), 0);
        assert_eq!(absence(250 * MS, 0), 0, "a timer that is late");
        assert_eq!(absence(4_100 * MS, 10 * MS), 3_990 * MS);
        assert_eq!(absence(4_100 * MS, 3_950 * MS), 0, "a host that is busy");
        assert_eq!(absence(10 * MS, 0), 0, "the last turn is short");
        assert_eq!(Absence::watch().end(), 0);
    }
}
