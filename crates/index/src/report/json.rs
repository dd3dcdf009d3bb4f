//! The JSON bodies of `vmeter runs`. Field names are fixed by schema `vmeter/1`.

use crate::result::{RunsResult, SavedRun, SavedSession};
use std::borrow::Cow;
use vmeter_render::exported;

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of RunsResult {
        action: &'a str,
        found: usize,
        runs: usize,
        bytes: u64,
        sessions: Vec<Session<'a>>,
        warnings: &'a [String],
        hints: &'a [String],
    }

    struct Session<'a> of SavedSession {
        id: &'a str,
        path: Cow<'a, str>,
        command: &'a str,
        started_at: &'a str,
        argv: &'a [String],
        cpu_model: &'a str,
        machines: usize,
        machine: &'a str,
        machine_id: Option<&'a str>,
        runs: usize,
        warmups: usize,
        failed: usize,
        planned: usize,
        mean_s: Option<f64>,
        bytes: u64,
        problem: Option<&'a str>,
    }

    /// A run of `vmeter runs export`.
    pub(super) struct Run<'a> of SavedRun {
        session: &'a str,
        path: Cow<'a, str>,
        command: &'a str,
        session_started_at: &'a str,
        cpu_model: &'a str,
        run: u32,
        label: &'a str,
        machine_id: &'a str,
        machine: &'a str,
        warmup: bool,
        outcome: &'a str,
        started_s: Option<f64>,
        total_s: f64,
        user_s: f64,
        system_s: f64,
        max_rss_bytes: u64,
        steal_s: f64,
        bytes: u64,
    }
}
