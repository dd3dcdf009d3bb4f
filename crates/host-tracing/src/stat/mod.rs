//! `vmeter trace stat`: statistics of traces, devices by name, two traces compared.

mod repeated;
pub mod report;
mod versus;

use anyhow::Result;
use std::path::{Path, PathBuf};
use vmeter_model::result::Envelope;
use vmeter_session::failure::{host, usage};
use vmeter_trace::names::DeviceMap;
use vmeter_trace::stat::versus::{Per, Versus};
use vmeter_trace::stat::{self, Report};
use vmeter_trace::{Error, Input};

/// What to count, and against what.
#[derive(Debug, Clone, Default)]
pub struct StatOptions {
    /// Traces of any format.
    pub files: Vec<PathBuf>,
    /// Cycles a second, for traces that count cycles.
    pub cpu_hz: Option<f64>,
    /// Traces that `files` are compared with: one with one, or several with several.
    pub vs: Vec<PathBuf>,
    /// How counts are compared.
    pub per: Per,
    /// File with the output of QEMU's `info mtree -f`.
    pub mtree: Option<PathBuf>,
    /// Threads to read each trace with.
    pub threads: usize,
    /// vmeter's own argument vector.
    pub argv: Vec<String>,
}

/// A trace and its statistics.
#[derive(Debug)]
pub struct Counted {
    /// The file as it was named.
    pub file: String,
    /// Its statistics.
    pub report: Report,
}

/// Result of `vmeter trace stat`.
#[derive(Debug)]
pub struct TraceStats {
    /// Head.
    pub envelope: Envelope,
    /// The traces in the order they were named, without those compared with.
    pub traces: Vec<Counted>,
    /// The comparison.
    pub versus: Option<Versus>,
    /// Warnings in words.
    pub warnings: Vec<String>,
}

/// Reads the traces to their ends.
///
/// # Errors
/// A file that is no trace or no memory map; `--vs` with one trace and several others.
pub fn stat(options: &StatOptions) -> Result<TraceStats> {
    let (ours, theirs) = (options.files.len(), options.vs.len());
    if theirs > 0 && (ours == 1) != (theirs == 1) {
        return Err(usage(format!(
            "found {ours} traces before --vs and {theirs} after --vs. To compare two \
                recordings, give one trace before --vs and one after it. To compare two machines, \
                give at least two traces of each (FILE FILE --vs OTHER --vs OTHER)"
        )));
    }
    let devices = options.mtree.as_deref().map(read_map).transpose()?;
    let mut traces = read_all(options)?;
    if let Some(devices) = &devices {
        traces.iter_mut().for_each(|trace| trace.report.name_devices(devices));
    }
    let others = traces.split_off(ours.min(traces.len()));
    let versus = (!others.is_empty()).then(|| versus::compare(&traces, &others, options.per));
    let warnings = traces.iter().chain(&others).flat_map(warnings).collect();
    let envelope = Envelope {
        schema: vmeter_model::SCHEMA.into(),
        command: "trace stat".into(),
        argv: options.argv.clone(),
        started_at: vmeter_session::host::now(),
        host: vmeter_session::host::describe(),
        provenance: [("vmeter".to_owned(), vmeter_session::envelope::version())].into(),
    };
    Ok(TraceStats { envelope, traces, versus, warnings })
}

/// Every trace, those to compare with last; as many at once as there are threads.
fn read_all(options: &StatOptions) -> Result<Vec<Counted>> {
    let paths: Vec<&PathBuf> = options.files.iter().chain(&options.vs).collect();
    let at_once = options.threads.clamp(1, paths.len().max(1));
    let threads = (options.threads / at_once).max(1);
    let mut all = Vec::new();
    for some in paths.chunks(at_once) {
        let read = |path: &Path| count(path, options.cpu_hz, threads);
        let reports: Vec<Result<Report>> = match some {
            [path] => vec![read(path)],
            _ => std::thread::scope(|scope| {
                let started: Vec<_> = some.iter().map(|path| scope.spawn(|| read(path))).collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Report>>| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                started.into_iter().map(join).collect()
            }),
        };
        for (path, report) in some.iter().zip(reports) {
            all.push(Counted { file: path.display().to_string(), report: report? });
        }
    }
    Ok(all)
}

fn count(path: &Path, cpu_hz: Option<f64>, threads: usize) -> Result<Report> {
    let opened = Input::open(path).and_then(vmeter_trace::open);
    let reader = opened.map_err(trace_error)?;
    let report = stat::read_with(reader, cpu_hz, threads).map_err(host)?;
    report.losses.check_read(&path.display().to_string(), report.events).map_err(trace_error)?;
    Ok(report)
}

/// What can't be opened or read is the user's to mend.
pub fn trace_error(error: Error) -> anyhow::Error {
    usage(error)
}

/// Reads the file that `--mtree` names.
///
/// # Errors
/// Class usage: it can't be read, or is none.
pub fn read_map(path: &Path) -> Result<DeviceMap> {
    DeviceMap::open(path).map_err(|why| usage(format!("--mtree {}: {why}", path.display())))
}

/// What the figures of a trace can't be trusted for.
fn warnings(trace: &Counted) -> Vec<String> {
    let (file, report) = (&trace.file, &trace.report);
    let losses = &report.losses;
    let mut all = Vec::new();
    let mut say = |count: u64, what: &str| {
        if count > 0 {
            all.push(format!("{file}: {count} {what}"));
        }
    };
    say(
        losses.lost_events,
        "events were lost during recording: the true counts may be larger than those shown",
    );
    say(
        losses.overwritten,
        "events were overwritten in the recorder's ring buffers: each CPU's part of the trace lacks its \
         beginning",
    );
    say(
        report.tables().iter().flat_map(|(_, rows)| rows.iter()).map(|row| row.cut).sum(),
        "durations lack their beginning or end, because the recorder lost events; vmeter counts \
            these durations, but does not time them. Their number is the sum of the columns \"cut\" of \
            all tables: an exit that is in several tables counts once in each",
    );
    say(losses.uncounted_gaps, "gaps in which an unknown number of events were lost");
    say(losses.unreadable, "lines or records could not be understood");
    all.extend(losses.missing.iter().map(|what| format!("{file}: {what}")));
    let cycles =
        report.tables().iter().any(|(_, rows)| rows.iter().any(|r| r.mean_cycles.is_some()));
    if cycles && report.tick_s.is_none() {
        all.push(format!(
            "{file}: the clock {} of this trace counts cycles; give the clock rate with --cpu-hz \
                HZ to get seconds",
            report.clock
        ));
    }
    all
}
