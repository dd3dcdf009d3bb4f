//! `vmeter runs`: saved sessions and runs, as the index has them.

use std::path::PathBuf;
use vmeter_base::Envelope;

/// A session, or as much of it as the machines asked for have run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SavedSession {
    /// Its name: that of its folder.
    pub id: String,
    /// Its folder.
    pub path: PathBuf,
    /// Command that made it.
    pub command: String,
    /// When it began, RFC 3339 in UTC.
    pub started_at: String,
    /// vmeter's argument vector.
    pub argv: Vec<String>,
    /// CPU model of its host.
    pub cpu_model: String,
    /// How many of its machines were asked for.
    pub machines: usize,
    /// The first of them, in a few words.
    pub machine: String,
    /// Names the machine, if it is one: the same settings, versions and digests have the
    /// same name in every session.
    pub machine_id: Option<String>,
    /// Measured runs that reached their end.
    pub runs: usize,
    /// Warm-ups.
    pub warmups: usize,
    /// Measured runs that did not reach their end.
    pub failed: usize,
    /// Runs planned for the whole session, warm-ups among them.
    pub planned: usize,
    /// Mean of the runs, if they are of one machine, s.
    pub mean_s: Option<f64>,
    /// Size of the runs' files, bytes.
    pub bytes: u64,
    /// What cannot be read of it.
    pub problem: Option<String>,
}

/// A saved run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SavedRun {
    /// Name of its session.
    pub session: String,
    /// Folder of its session.
    pub path: PathBuf,
    /// The session's command.
    pub command: String,
    /// When the session began, RFC 3339 in UTC.
    pub session_started_at: String,
    /// CPU model of the host.
    pub cpu_model: String,
    /// Number of the run in the session.
    pub run: u32,
    /// Label of its machine.
    pub label: String,
    /// Names the machine: the same in every session.
    pub machine_id: String,
    /// The machine in a few words.
    pub machine: String,
    /// True for a warm-up.
    pub warmup: bool,
    /// `done`, `panicked`, `not-ready`, `vmm-failed` or `timed-out`.
    pub outcome: String,
    /// When its VMM was executed, s since the epoch.
    pub started_s: Option<f64>,
    /// How long it took, s.
    pub total_s: f64,
    /// User CPU time of the VMM, s.
    pub user_s: f64,
    /// System CPU time of the VMM, s.
    pub system_s: f64,
    /// The VMM's peak resident set, bytes.
    pub max_rss_bytes: u64,
    /// CPU time stolen from the host meanwhile, s.
    pub steal_s: f64,
    /// Size of its files, bytes.
    pub bytes: u64,
}

/// Result of `vmeter runs list`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunsResult {
    /// Head; the host is the one that asks.
    pub envelope: Envelope,
    /// What was done with them: `saved` (nothing), `removed`, or `to be removed`.
    pub action: String,
    /// The latest sessions that were asked for, oldest first.
    pub sessions: Vec<SavedSession>,
    /// How many there are.
    pub found: usize,
    /// Their runs, warm-ups and failed ones among them.
    pub runs: usize,
    /// Size of their runs' files, bytes.
    pub bytes: u64,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
}
