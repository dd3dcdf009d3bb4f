//! `vmeter explain FILE…` and `vmeter explain -- COMMAND`.

use crate::commands::trace::{hertz, process, seconds, Process};
use crate::output;
use crate::output::Output;
use crate::status::Status;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use vmeter_explain::report::ExplainReport;
use vmeter_explain::{explain, ExplainError, Options};
use vmeter_host_tracing::explain_live::{self, Live, LiveOptions};
use vmeter_host_tracing::stat::read_map;
use vmeter_session::envelope::envelope_now;
use vmeter_session::failure::usage;
use vmeter_session::Interrupt;

/// `vmeter explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Traces of one machine, to explain together; formats: ftrace, perf, QEMU, xentrace, strace.
    #[arg(value_name = "FILE", required_unless_present = "live", conflicts_with = "live")]
    files: Vec<PathBuf>,
    /// Clock rate of a trace whose time stamps count cycles, e.g. 2.0G (default: vmeter's estimate,
    /// if the trace allows one).
    #[arg(long, value_name = "HZ", value_parser = hertz)]
    cpu_hz: Option<f64>,
    /// Explain the threads with these names: where their time goes, and what they wait for
    /// (default: the threads that serve a guest, or those that wait for each other most). PATTERN
    /// is a whole name, or the beginning of a name if the next character is not a letter: `puma`
    /// also matches `puma srv 1`, but not `pumas`. `*` matches any text, `|` separates names.
    /// vmeter adds the other threads of the same processes, and their child processes.
    #[arg(long, value_name = "PATTERN")]
    comm: Option<String>,
    /// Baseline trace of the same workload. vmeter explains the additional time of the other traces
    /// (default: no baseline).
    #[arg(long, value_name = "FILE")]
    vs: Option<PathBuf>,
    /// Output of QEMU's `info mtree -f`, from which vmeter names the devices at I/O ports and MMIO
    /// addresses (default: none).
    #[arg(long, value_name = "FILE")]
    mtree: Option<PathBuf>,
    /// Record a running VMM and then explain the recording. The recording ends at --duration, at
    /// Ctrl-C or when the VMM ends. `auto` means the only running VMM.
    #[arg(long, value_name = "PID", value_parser = process, group = "live")]
    pid: Option<Process>,
    /// Record at most S seconds (default: no limit).
    #[arg(long, value_name = "S", value_parser = seconds, requires = "live")]
    duration: Option<Duration>,
    /// Stop recording when the trace reaches this many MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2048, requires = "live",
          value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    limit: u64,
    /// Folder for the recording (default: a fresh one under $XDG_STATE_HOME/vmeter).
    #[arg(long, value_name = "DIR", requires = "live")]
    save: Option<PathBuf>,
    /// Command line that vmeter runs, records and explains.
    #[arg(last = true, value_name = "COMMAND", group = "live")]
    command: Vec<String>,
}

/// Explains, shows and exports.
///
/// # Errors
/// Files that are no traces; a host where nothing can be recorded; an export that cannot be
/// written.
pub fn run(arguments: Explain, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "explain")?;
    let devices = arguments.mtree.as_deref().map(read_map).transpose()?;
    let (files, recorded) = if arguments.files.is_empty() {
        let live = record(&arguments, out)?;
        (vec![live.trace], live.recording.threads)
    } else {
        (arguments.files.clone(), Vec::new())
    };
    let Explain { cpu_hz, comm, vs, .. } = &arguments;
    let (comm, vs) = (comm.clone(), vs.clone());
    let options = Options { cpu_hz: *cpu_hz, devices, comm, vs, recorded, ..Options::default() };
    let mut result = explain(&files, &options).map_err(|error| match error {
        ExplainError::Trace(error) => usage(error),
        other => usage(other),
    })?;
    result.envelope = envelope_now("explain");
    let report = ExplainReport::new(&result);
    output::print(&report, out)?;
    output::export(out, &report)?;
    Ok(Status::Good)
}

/// Records the command.
fn record(arguments: &Explain, out: &Output) -> anyhow::Result<Live> {
    let interrupt = Interrupt::install()?;
    let live = explain_live::record(
        &LiveOptions {
            command: arguments.command.clone(),
            pid: arguments.pid.map(Process::id).transpose()?,
            duration: arguments.duration,
            limit: arguments.limit << 20,
            save: arguments.save.clone(),
        },
        &interrupt,
    )?;
    if !out.quiet {
        let path = live.trace.display().to_string();
        let path = vmeter_render::text::neutralise(&path);
        eprintln!("{} events, {} lost, kept in {path}", live.recording.events, live.recording.lost);
        if live.recording.limited {
            eprintln!(
                "warning: the recording stopped at its size limit of {} MiB; raise the \
                limit with --limit MIB",
                arguments.limit
            );
        }
        let recording = &live.recording;
        if recording.status.is_some_and(|status| status != 0) || recording.killed_by.is_some() {
            eprintln!("warning: the command failed; vmeter explains the time until the failure");
        }
    }
    Ok(live)
}
