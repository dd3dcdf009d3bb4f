//! `vmeter runs`.

use crate::output;
use crate::output::Output;
use crate::status::Status;
use clap::{Args, Subcommand};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use vmeter_index::result::{RunsResult, SavedRun};
use vmeter_index::{ago_or_date, Filter, Index, IndexError, RunSource, RunsExport, RunsReport};
use vmeter_session::envelope::envelope_now;
use vmeter_session::failure::{host, usage};
use vmeter_session::folder::LockError;
use vmeter_session::{state_dir, AnySession};

/// Sessions shown, unless more are asked for.
const SHOWN: usize = 20;

/// `vmeter runs`.
#[derive(Debug, Subcommand)]
pub enum Runs {
    /// List saved sessions, each with its date, machine, number of runs and mean time.
    List(List),
    /// Show when each machine became slower or faster over its saved sessions.
    Trend(Trend),
    /// Remove saved sessions with all their runs.
    Rm(Remove),
    /// Export one row for each saved run (--export-csv, --export-json).
    Export(Export),
    /// Add sessions from other folders to the list, e.g. sessions of another host.
    Add(Add),
}

/// Which sessions and runs are meant.
#[derive(Debug, Clone, Default, Args)]
pub struct Which {
    /// Only machines that have WORD in a setting, version, digest or argument. With NAME=VALUE:
    /// only machines whose setting NAME is VALUE. If the option is
    /// repeated, a machine must match each WORD and each NAME=VALUE (default: all machines).
    #[arg(long, value_name = "WORD|NAME=VALUE")]
    pub machine: Vec<String>,
    /// Only sessions of this vmeter command, e.g. boot (default: all commands).
    #[arg(long, value_name = "NAME")]
    pub command: Option<String>,
    /// Only sessions that began since a date (2026-05-01, UTC), or in the last days or hours (30d,
    /// 12h) (default: all).
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
}

/// `vmeter runs list`.
#[derive(Debug, Args)]
pub struct List {
    /// Which.
    #[command(flatten)]
    pub which: Which,
    /// Show at most the N latest sessions (default: 20; exports have all).
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Rebuild the index from all session folders.
    #[arg(long)]
    pub rebuild: bool,
}

/// `vmeter runs trend`.
#[derive(Debug, Args)]
pub struct Trend {
    /// Sessions, or folders of sessions, to read in addition to $XDG_STATE_HOME/vmeter/runs.
    #[arg(value_name = "DIR")]
    pub folders: Vec<PathBuf>,
}

/// `vmeter runs rm`.
#[derive(Debug, Args)]
pub struct Remove {
    /// Sessions to remove: names, unambiguous beginnings of names, or folders.
    #[arg(value_name = "SESSION", required_unless_present = "older_than")]
    pub sessions: Vec<String>,
    /// Remove the sessions begun before WHEN: a date (2026-05-01, UTC) or a time before now (90d).
    #[arg(long, value_name = "WHEN", conflicts_with = "sessions")]
    pub older_than: Option<String>,
    /// With --older-than: remove only sessions that `runs list` shows with the same --machine.
    #[arg(long, value_name = "WORD|NAME=VALUE", requires = "older_than")]
    pub machine: Vec<String>,
    /// With --older-than: remove only sessions of this vmeter command.
    #[arg(long, value_name = "NAME", requires = "older_than")]
    pub command: Option<String>,
    /// Remove a `vmeter range` session even if its checkouts contain files, edits or branches that
    /// vmeter and its builds did not make.
    #[arg(long)]
    pub force: bool,
    /// Print which sessions would be removed, and remove none.
    #[arg(long)]
    pub dry_run: bool,
}

/// `vmeter runs export`.
#[derive(Debug, Args)]
pub struct Export {
    /// Which.
    #[command(flatten)]
    pub which: Which,
}

/// `vmeter runs add`.
#[derive(Debug, Args)]
pub struct Add {
    /// Each DIR is one session's own folder, or a folder that contains such folders.
    #[arg(value_name = "DIR", required = true)]
    pub folders: Vec<PathBuf>,
}

/// Lists, removes or exports saved runs.
///
/// # Errors
/// A name that no session has, an invalid date, folders that vmeter cannot read or remove.
pub fn run(arguments: Runs, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "runs")?;
    match arguments {
        Runs::List(arguments) => list(&arguments, out)?,
        Runs::Rm(arguments) => remove(&arguments, out)?,
        Runs::Trend(arguments) => {
            let result = vmeter_lab::trend::trend(&arguments.folders)?;
            let report = vmeter_lab::trend::TrendReport { result: &result };
            output::print(&report, out)?;
            output::export(out, &report)?;
        }
        Runs::Export(arguments) => export(&arguments, out)?,
        Runs::Add(arguments) => add(&arguments, out)?,
    }
    Ok(Status::Good)
}

/// Outputs that hold every row.
const FOR_TOOLS: &[&str] = &["json", "csv"];

fn list(arguments: &List, out: &Output) -> anyhow::Result<()> {
    let filter = filter(&arguments.which)?;
    let open = if arguments.rebuild { Index::rebuild } else { Index::open };
    let index = open(&state_dir()?).map_err(failed)?;
    let exported = out.exports.any_of(FOR_TOOLS);
    let limit = arguments.limit.unwrap_or(if exported { usize::MAX } else { SHOWN });
    let mut result = listed(&index, &filter, limit, "saved");
    result.envelope = envelope_now("runs list");
    if result.found == 0 && filter == Filter::default() {
        result.hints.push("vmeter boot  # make some".into());
    }
    if let Some(last) = result.sessions.last() {
        let path = last.path.to_string_lossy();
        result.hints.push(format!("vmeter show {}", vmeter_base::shell::quote(&path)));
    }
    let mut report = RunsReport::new(&result);
    report.glance = arguments.limit.unwrap_or(SHOWN);
    output::print(&report, out)?;
    output::export(out, &report)
}

fn remove(arguments: &Remove, out: &Output) -> anyhow::Result<()> {
    let mut index = Index::open(&state_dir()?).map_err(failed)?;
    let action = if arguments.dry_run { "to be removed" } else { "removed" };
    let filter = Filter {
        machine: arguments.machine.clone(),
        command: arguments.command.clone(),
        before_s: arguments.older_than.as_deref().map(when).transpose()?,
        since_s: None,
    };
    let mut result = listed(&index, &filter, usize::MAX, action);
    if arguments.older_than.is_none() {
        let paths = arguments.sessions.iter().map(|name| index.find(name));
        let paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(failed)?;
        result.sessions.retain(|session| paths.contains(&session.path));
        for path in paths {
            if !result.sessions.iter().any(|session| session.path == path) {
                let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                result.sessions.push(vmeter_index::result::SavedSession {
                    id,
                    path,
                    ..Default::default()
                });
            }
        }
    }
    if !arguments.dry_run {
        let many = arguments.older_than.is_some();
        remove_each(&mut index, &mut result, many, arguments.force)?;
    }
    result.found = result.sessions.len();
    result.runs = result.sessions.iter().map(|s| s.runs + s.warmups + s.failed).sum();
    result.bytes = result.sessions.iter().map(|s| s.bytes).sum();
    result.envelope = envelope_now("runs rm");
    let report = RunsReport::new(&result);
    output::print(&report, out)?;
    output::export(out, &report)
}

/// Removes the sessions of the result. Some sessions must stay, e.g. one that a vmeter is using.
/// With `many` (sessions chosen by age), such a session leaves the result with a warning. Without
/// `many` (sessions that the user named), such a session is an error.
fn remove_each(
    index: &mut Index,
    result: &mut RunsResult,
    many: bool,
    force: bool,
) -> anyhow::Result<()> {
    let mut removed = Vec::new();
    for mut session in std::mem::take(&mut result.sessions) {
        if session.problem.is_some() {
            // The index could not read it; what goes is there all the same.
            (session.runs, session.bytes) = on_disk(&session.path);
        }
        match index.remove(&session.path, force) {
            Ok(done) if done.left.is_empty() => removed.push(session),
            Ok(done) => {
                let (left, path) = (done.left.join(", "), session.path.display());
                result.warnings.push(format!(
                    "the folder {path} stays: it contains {left}, which vmeter did not make"
                ));
                removed.push(session);
            }
            Err(error @ (IndexError::Busy(_) | IndexError::Link(..) | IndexError::Doubt(..)))
                if many =>
            {
                result.warnings.push(format!("{} stays: {error}", session.id));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    result.sessions = removed;
    Ok(())
}

/// Finished runs in a session's folder, and the bytes of their files.
fn on_disk(dir: &Path) -> (usize, u64) {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let runs = entries(&dir.join("runs")).map(|run| run.path());
    let runs: Vec<PathBuf> = runs.filter(|run| run.join("run.json").is_file()).collect();
    let sizes = runs.iter().flat_map(|run| entries(run)).filter_map(|file| file.metadata().ok());
    (runs.len(), sizes.map(|file| file.len()).sum())
}

fn export(arguments: &Export, out: &Output) -> anyhow::Result<()> {
    if !out.exports.any_of(FOR_TOOLS) {
        return Err(usage(
            "runs export needs an output: add --export-csv FILE or --export-json \
            FILE",
        ));
    }
    let filter = filter(&arguments.which)?;
    let index = Index::open(&state_dir()?).map_err(failed)?;
    warn(&index, out);
    let envelope = envelope_now("runs export");
    let source = Indexed { index: &index, filter: &filter };
    output::export(out, &RunsExport { envelope: &envelope, source: &source })
}

fn add(arguments: &Add, out: &Output) -> anyhow::Result<()> {
    let mut added = 0;
    for folder in &arguments.folders {
        let within = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        let mut here = 0;
        for path in std::iter::once(folder.clone()).chain(within) {
            if path.join("session.json").is_file() {
                AnySession::open(&path).map_err(|error| usage(format!("{error:#}")))?;
                let state = state_dir()?;
                vmeter_index::remember(&state, &path).map_err(|error| {
                    host(format!("cannot write into {}: {error}", state.display()))
                })?;
                here += 1;
            }
        }
        if here == 0 {
            return Err(usage(format!(
                "{}: expected a session (a folder with session.json) or a folder that contains \
                    sessions",
                folder.display()
            )));
        }
        added += here;
    }
    if !out.quiet {
        eprintln!("{added} sessions: `vmeter runs list` has them");
    }
    Ok(())
}

/// Runs of an index, one by one.
struct Indexed<'a> {
    index: &'a Index,
    filter: &'a Filter,
}

impl RunSource for Indexed<'_> {
    fn for_each(&self, each: &mut dyn FnMut(SavedRun) -> io::Result<()>) -> io::Result<()> {
        self.index.runs(self.filter, each)
    }
}

fn listed(index: &Index, filter: &Filter, limit: usize, action: &str) -> RunsResult {
    let listing = index.sessions(filter, limit);
    let problem = |session: &vmeter_index::result::SavedSession| {
        session.problem.as_ref().map(|problem| format!("{}: {problem}", session.id))
    };
    let problems = listing.sessions.iter().filter_map(problem);
    RunsResult {
        warnings: index.notes().iter().cloned().chain(problems).collect(),
        action: action.into(),
        sessions: listing.sessions,
        found: listing.found,
        runs: listing.runs,
        bytes: listing.bytes,
        ..RunsResult::default()
    }
}

fn warn(index: &Index, out: &Output) {
    if !out.quiet {
        for note in index.notes() {
            eprintln!("vmeter: {}", vmeter_render::text::neutralise(note));
        }
    }
}

fn filter(which: &Which) -> anyhow::Result<Filter> {
    Ok(Filter {
        machine: which.machine.clone(),
        command: which.command.clone(),
        since_s: which.since.as_deref().map(when).transpose()?,
        before_s: None,
    })
}

fn when(text: &str) -> anyhow::Result<i64> {
    ago_or_date(text, SystemTime::now()).map_err(failed)
}

fn failed(error: IndexError) -> anyhow::Error {
    match error {
        IndexError::Busy(LockError::Foreign { .. })
        | IndexError::Unknown(_)
        | IndexError::Ambiguous { .. }
        | IndexError::NoSession(_)
        | IndexError::Link(..)
        | IndexError::Doubt(..)
        | IndexError::Time(_) => usage(error),
        other => host(other),
    }
}

/// A session given to a command: its folder, or its name in `vmeter runs list`.
pub fn folder_of(given: &Path) -> PathBuf {
    if given.exists() {
        return given.to_owned();
    }
    let named =
        given.to_str().and_then(|name| Index::open(&state_dir().ok()?).ok()?.find(name).ok());
    named.unwrap_or_else(|| given.to_owned())
}
