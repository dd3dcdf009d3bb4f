//! `vmeter explain -- COMMAND`: the recording that is then explained like any file.
//!
//! What the preset `explain` records of a VMM and of the kernel's threads is saved as
//! a `trace.dat`, and its path goes where a file named by the user would have gone.

use crate::record::{record as record_trace, RecordOptions, Recording, EXPLAIN};
use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;
use vmeter_session::failure::{host, usage};
use vmeter_session::state_dir;
use vmeter_session::Interrupt;

/// Name of the recording in its folder.
const TRACE: &str = "trace.dat";
/// Of each CPU: a burst of a million events a second for half a second and more.
const BUFFER_KIB: u64 = 32 << 10;

/// What to record, and where to keep it.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// The VMM's command line; empty if it runs already.
    pub command: Vec<String>,
    /// A running VMM.
    pub pid: Option<i32>,
    /// At most this long; without it until the VMM's end or a signal.
    pub duration: Option<Duration>,
    /// Bytes after which recording stops.
    pub limit: u64,
    /// Folder for the trace; a fresh one under the state folder by default.
    pub save: Option<PathBuf>,
}

/// A finished recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// The trace.
    pub trace: PathBuf,
    /// What came of it.
    pub recording: Recording,
}

/// Records a VMM until its end, the end of the time, or a signal.
///
/// # Errors
/// As [`record_trace`]; a folder that can't be made.
pub fn record(options: &LiveOptions, interrupt: &Interrupt) -> Result<Live> {
    let folder = options.save.clone().map_or_else(fresh_folder, Ok)?;
    if folder.join(TRACE).symlink_metadata().is_ok() {
        return Err(usage(format!(
            "{} already exists: choose another folder with --save DIR",
            folder.join(TRACE).display()
        )));
    }
    vmeter_base::files::private_folder(&folder).map_err(|error| {
        host(format!(
            "cannot make the folder {} for the trace: {error}; choose another with --save DIR",
            folder.display()
        ))
    })?;
    let trace = folder.join(TRACE);
    let recording = record_trace(
        &RecordOptions {
            presets: vec![EXPLAIN],
            pid: options.pid,
            kernel: true,
            command: options.command.clone(),
            aside: true,
            duration: options.duration,
            limit: options.limit,
            buffer_kib: BUFFER_KIB,
            clocks: vec!["mono".into(), "x86-tsc".into()],
            output: trace.clone(),
            ..RecordOptions::default()
        },
        interrupt,
        || {},
    );
    if recording.is_err() {
        // Only if nothing is in it: it may be the user's own.
        let _ = std::fs::remove_dir(&folder);
    }
    Ok(Live { trace, recording: recording? })
}

fn fresh_folder() -> Result<PathBuf> {
    let now = vmeter_session::host::now();
    let stamp: String = now.chars().filter(char::is_ascii_alphanumeric).collect();
    Ok(state_dir()?.join("runs").join(format!("{stamp}-explain-{}", std::process::id())))
}
