//! `vmeter trace record`.

use crate::output::{self, Output};
use crate::status::Status;
use clap::builder::PossibleValuesParser;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use vmeter_host_tracing::find_vmm::find_vmm;
use vmeter_host_tracing::record::{record, Preset, RecordOptions, EXPLAIN, PRESETS};
use vmeter_render::Target;
use vmeter_session::Interrupt;

/// `vmeter trace record`.
#[derive(Debug, Args)]
pub struct Record {
    /// Sets of events to record, separated by commas (default: io, or none if --event is given).
    #[arg(long, value_name = "NAME", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(PRESETS.iter().map(|p| p.name)))]
    preset: Vec<String>,
    /// Additional events to record; * and ? are wildcards, e.g. 'kvm:kvm_msi*'; may be repeated
    /// (default: none).
    #[arg(long, value_name = "SYSTEM:NAME", value_delimiter = ',')]
    event: Vec<String>,
    /// Pid of the running VMM to record, with its threads and vhost workers, or `auto` for the only
    /// running VMM. The recording ends when the VMM ends.
    #[arg(long, value_name = "PID", value_parser = process, conflicts_with = "command")]
    pid: Option<Process>,
    /// Also record kernel threads and the CPUs' idle tasks, in which a part of the VMM's work runs.
    /// With --preset explain, vmeter always records these threads and tasks.
    #[arg(long)]
    kernel_threads: bool,
    /// Stop recording after S seconds (default: at Ctrl-C).
    #[arg(long, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// Stop recording when the trace reaches this size.
    #[arg(long, value_name = "MIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    limit: u64,
    /// Size of the kernel's ring buffer for each CPU.
    #[arg(long, value_name = "KIB", default_value_t = 8192,
          value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    buffer: u64,
    /// The kernel's trace clock. Use x86-tsc to combine the trace with a guest's or Xen's trace.
    #[arg(long, value_name = "CLOCK", default_value = "mono")]
    clock: String,
    /// File to write.
    #[arg(short, long, value_name = "FILE", default_value = "trace.dat")]
    output_file: PathBuf,
    /// Command line to run and record, with all processes that the command starts.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A process to be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// By its id.
    Id(i32),
    /// The only VMM there is.
    OnlyVmm,
}

impl Process {
    /// Its id.
    ///
    /// # Errors
    /// As [`find_vmm`].
    pub fn id(self) -> anyhow::Result<i32> {
        match self {
            Process::Id(pid) => Ok(pid),
            Process::OnlyVmm => find_vmm(),
        }
    }
}

/// Parses a process id or `auto`.
///
/// # Errors
/// A message for the user, if `text` is neither a process id nor `auto`.
pub fn process(text: &str) -> Result<Process, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Process::OnlyVmm),
        (_, Ok(pid @ 1..)) => Ok(Process::Id(pid)),
        _ => Err(format!("{text}: expected a process id, or auto")),
    }
}

/// Parses a time.
///
/// # Errors
/// A message for the user, if `text` is not a number above 0.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<f64>().ok().filter(|s| *s > 0.0);
    let found = parsed.and_then(|s| Duration::try_from_secs_f64(s).ok());
    found.ok_or_else(|| format!("{text}: expected seconds above 0, e.g. 2.5"))
}

/// Records, saves, and says how much was recorded and lost.
///
/// # Errors
/// As [`vmeter_host_tracing::record::record`].
pub fn run(arguments: Record, out: &Output) -> anyhow::Result<Status> {
    output::check_target(&Target::File(arguments.output_file.clone()))?;
    let named = |preset: &&Preset| arguments.preset.iter().any(|name| name == preset.name);
    let mut presets: Vec<Preset> = PRESETS.iter().filter(named).copied().collect();
    if presets.is_empty() && arguments.event.is_empty() {
        presets = PRESETS.iter().filter(|p| p.name == "io").copied().collect();
    }
    let kernel = arguments.kernel_threads || presets.contains(&EXPLAIN);
    let options = RecordOptions {
        presets,
        kernel,
        events: arguments.event,
        pid: arguments.pid.map(Process::id).transpose()?,
        command: arguments.command,
        aside: false,
        duration: arguments.duration,
        limit: arguments.limit << 20,
        buffer_kib: arguments.buffer,
        clocks: vec![arguments.clock],
        output: arguments.output_file,
    };
    let interrupt = Interrupt::install()?;
    let recording = record(&options, &interrupt, || {
        if options.command.is_empty() && options.duration.is_none() && !out.quiet {
            eprintln!("recording; Ctrl-C ends it");
        }
    })?;
    let path = options.output.display().to_string();
    let path = vmeter_render::text::neutralise(&path);
    output::line(&format!(
        "{} events, {} lost, clock {}, in {path}",
        recording.events, recording.lost, recording.clock
    ))?;
    if !out.quiet {
        if recording.limited {
            eprintln!(
                "warning: the recording stopped at its size limit of {} MiB; raise the \
                limit with --limit MIB",
                arguments.limit
            );
        }
        if recording.lost > 0 {
            eprintln!(
                "warning: {} events were lost; use a larger --buffer KIB, or record fewer kinds \
                    of event",
                recording.lost
            );
        }
        if let Some(signal) = recording.killed_by {
            eprintln!("warning: the command was killed by signal {signal}");
        }
        let path = vmeter_base::shell::path(&options.output);
        eprintln!("next: vmeter trace stat {}", vmeter_render::text::neutralise(&path));
    }
    let failed = recording.status.is_some_and(|status| status != 0);
    Ok(match failed || recording.killed_by.is_some() {
        true if !interrupt.is_raised() => Status::Bad,
        _ => Status::Good,
    })
}
