//! Why it is slow: from the events of traces to a chain of causes.
//!
//! One pass over all files, merged by time ([`merge`]), keeps for every request that a
//! vCPU makes of its device model (a port, an address) what its time went into
//! ([`evidence`]): the critical path through threads that waited for each other, down to
//! the system call, the work item or the timer. Detectors ([`detect`]) look at that
//! evidence, each for one kind of cause; [`rank`] joins what they say about one subject
//! into one finding. Memory is bounded by the number of subjects, not of events.

mod ahead;
mod confirm;
pub mod contrast;
pub mod detect;
pub mod diagnose;
pub mod evidence;
pub mod kind;
mod log_gaps;
pub mod merge;
pub mod moment;
pub mod rank;
pub mod read;
pub mod report;
pub mod result;
pub mod say;
mod spool;
pub mod versus;

use crate::result::{ExplainResult, Finding};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use vmeter_trace::ops::Op;

/// What to explain.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Cycles a second, for traces that count cycles.
    pub cpu_hz: Option<f64>,
    /// Device names by QEMU's `info mtree -f`, if given.
    pub devices: Option<vmeter_trace::names::DeviceMap>,
    /// Names of the programs whose time is to be explained, with `|` between them and `*` for any text;
    /// else chosen.
    pub comm: Option<String>,
    /// Trace of the same without the fault.
    pub vs: Option<PathBuf>,
    /// Threads of the program that the recording was made of, where that is known.
    pub recorded: Vec<i32>,
    /// Threads of who made the recording, which are passed over. What they start is theirs, but for those that
    /// were recorded.
    pub makers: Vec<i32>,
    /// Events that are passed over, as if they had not been recorded.
    pub ignore: Option<fn(&vmeter_trace::ops::Op) -> bool>,
}

/// A trace that can't be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// It can't be read.
    #[error(transparent)]
    Trace(#[from] vmeter_trace::Error),
    /// Nothing was named.
    #[error("expected at least one trace file to explain, found none; name one, or record with `vmeter explain -- COMMAND`")]
    NoFile,
    /// No line or record of them was an event.
    #[error("expected events of ftrace, perf, QEMU, xentrace or strace in {files}, found none ({why}); `vmeter trace stat` shows what a file holds")]
    NoEvents {
        /// They.
        files: String,
        /// What is missing, or how much could not be understood.
        why: String,
    },
    /// A name that no thread has.
    #[error(
        "--comm {comm}: expected the name of a thread in the trace; names in the trace: \
        {names}"
    )]
    NoThread {
        /// As it was given.
        comm: String,
        /// Those with most of the time.
        names: String,
    },
    /// It would be compared with itself.
    #[error("--vs {}: expected a different trace, of the same workload without the fault; found \
        the same file", file.display())]
    Itself {
        /// As it was named.
        file: PathBuf,
    },
    /// More than fit.
    #[error("expected at most {most} trace files, found {found}")]
    TooMany {
        /// Given.
        found: usize,
        /// Allowed.
        most: usize,
    },
}

/// Most files that are merged.
const MAX_FILES: usize = 64;

/// Traces read to their ends.
struct Known {
    evidence: evidence::Evidence,
    sources: Vec<read::Read>,
    clocks: vmeter_timebase::Clocks,
}

fn read(files: &[PathBuf], options: &Options) -> Result<Known, ExplainError> {
    match files.len() {
        0 => return Err(ExplainError::NoFile),
        found if found > MAX_FILES => return Err(ExplainError::TooMany { found, most: MAX_FILES }),
        _ => {}
    }
    let spool = spool::Spool::of(files)?;
    let mut merged = merge::Merge::open(&spool, options.cpu_hz)?;
    merged.recorded(&options.recorded);
    let mut gather = evidence::Gather::new(&merged);
    let mut makers: BTreeSet<i32> = options.makers.iter().copied().collect();
    while merged.advance() {
        let Some(moment) = merged.current() else { break };
        if makers.contains(&moment.tid) {
            if let Op::Fork { child } = moment.op {
                makers.extend((!options.recorded.contains(&child)).then_some(child));
            }
            continue;
        }
        if options.ignore.is_some_and(|ignore| ignore(&moment.op)) {
            continue;
        }
        gather.add(moment, &merged);
    }
    let evidence = gather.finish(&merged);
    let (sources, clocks) = merged.finish();
    for source in &sources {
        source.losses.check(&source.file)?;
    }
    if sources.iter().all(|source| source.events == 0) {
        let files: Vec<&str> = sources.iter().map(|source| source.file.as_str()).collect();
        let unreadable: u64 = sources.iter().map(|source| source.losses.unreadable).sum();
        let missing = sources.iter().find_map(|source| source.losses.missing.first());
        let lines = || format!("{unreadable} lines or records were not understood");
        let why = missing.cloned().unwrap_or_else(lines);
        return Err(ExplainError::NoEvents { files: files.join(", "), why });
    }
    Ok(Known { evidence, sources, clocks })
}

/// Reads the traces to their ends and explains them together. The envelope is left empty.
///
/// # Errors
/// No file, too many, or one that is no trace.
pub fn explain(files: &[PathBuf], options: &Options) -> Result<ExplainResult, ExplainError> {
    if let Some(twin) = options.vs.as_ref().filter(|twin| files.iter().any(|f| same(f, twin))) {
        return Err(ExplainError::Itself { file: twin.clone() });
    }
    let known = read(files, options)?;
    let view = known.view(options);
    if let Some((comm, names)) = detect::nobody(&view) {
        return Err(ExplainError::NoThread { comm, names });
    }
    let (findings, idles) = diagnose::diagnosed(&view);
    let mut result = match options.comm.as_deref().filter(|_| idles) {
        Some(comm) => beyond_comm(&known, options, comm, findings),
        None => told(&known, &view, findings),
    };
    if let Some(twin) = &options.vs {
        let alone = Options { vs: None, ..options.clone() };
        let known = read(std::slice::from_ref(twin), &alone)?;
        let before = known.view(&alone);
        let alone = std::mem::take(&mut result.findings);
        result.findings = versus::findings(view, &before, alone);
        contrast::contrast(&mut result, &told(&known, &before, diagnose::findings(&before)));
    }
    Ok(result)
}

impl Known {
    fn view<'a>(&'a self, options: &'a Options) -> detect::View<'a> {
        detect::View::new(&self.evidence, &self.sources, options, &self.clocks)
    }
}

/// A main thread that naps while its workers, whom nothing ties to it, wait: what all threads do is the
/// answer, and then what that one does.
fn beyond_comm(known: &Known, options: &Options, comm: &str, own: Vec<Finding>) -> ExplainResult {
    let all = Options { comm: None, ..options.clone() };
    let view = known.view(&all);
    let mut result = told(known, &view, diagnose::findings(&view));
    result.warnings.push(format!(
        "--comm {comm}: these threads wait for no others in the trace; the findings are about all threads"
    ));
    result.findings.extend(own);
    result.findings.truncate(diagnose::MOST);
    result
}

fn told(known: &Known, view: &detect::View<'_>, findings: Vec<Finding>) -> ExplainResult {
    let Known { evidence, sources, clocks } = known;
    let mut result = ExplainResult {
        files: described(sources, clocks),
        duration_s: view.seconds(evidence.span()),
        followed: detect::followed(view),
        vcpus: view.vcpus(),
        findings,
        warnings: Vec::new(),
        ..ExplainResult::default()
    };
    (result.trees, result.waits) = detect::pictures(view, &result.findings);
    result.warnings = say::warnings(&result, sources, clocks);
    result.warnings.extend(detect::partial(view));
    result.warnings.extend(detect::not_recorded(view));
    result.warnings.extend(detect::busy_host(view));
    result
}

/// Where the time of threads and requests went, as text: for those who build detectors.
///
/// # Errors
/// As [`explain`].
pub fn outline(files: &[PathBuf], options: &Options) -> Result<String, ExplainError> {
    let known = read(files, options)?;
    let view = known.view(options);
    let mut roots: Vec<_> = view.tree().roots().map(|(_, node)| *node).collect();
    roots.sort_by_key(|node| std::cmp::Reverse(node.ticks));
    Ok(roots.iter().map(|root| detect::outline::outline(&view, root.frame)).collect())
}

/// Ticks in all; stamps of damaged traces can be anything.
fn sum(ticks: impl Iterator<Item = u64>) -> u64 {
    ticks.fold(0, u64::saturating_add)
}

/// True for two names of one file.
fn same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(one).is_some_and(|one| real(other) == Some(one))
}

/// A file's name as it is shown.
/// The files, with how the clock of each was brought to that of the first.
fn described(
    sources: &[read::Read],
    clocks: &vmeter_timebase::Clocks,
) -> Vec<result::ExplainedFile> {
    let files = sources.iter().zip(clocks.alignments());
    files
        .map(|(source, alignment)| result::ExplainedFile {
            file: source.file.clone(),
            format: source.format.to_string(),
            clock: source.clock.clone(),
            events: source.events,
            lost_events: source.lost(),
            alignment: alignment.clone(),
        })
        .collect()
}
