//! Two sessions of one machine: another hour, another load of the host. What their runs differ
//! by among themselves says nothing of that, so a difference between sessions is judged by how
//! much sessions of one machine have differed here before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use vmeter_model::result::Envelope;
use vmeter_model::run::{Outcome, RunRecord, SessionMachine};
use vmeter_model::time::seconds;
use vmeter_session::{state_dir, AnySession, Session};
use vmeter_stats::dist::t_quantile;
use vmeter_stats::{mean, ratio_of_means};

/// Sessions of one machine without which their scatter is not known.
const FEWEST: usize = 4;
/// Saved sessions that are looked at, the newest.
const MOST: usize = 400;

/// How much the means of sessions of one machine scatter on this host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Between {
    /// Standard deviation of a session's mean logarithm, its runs' own noise included.
    sd: f64,
    /// Sessions that it was taken from.
    sessions: usize,
}

/// The runs of two sessions.
pub(crate) struct Sides<'a> {
    /// Totals of the older one, s.
    pub a: &'a [f64],
    /// Totals of the newer one, s.
    pub b: &'a [f64],
    /// True in virtual time, which no host disturbs.
    pub exact: bool,
}

/// What two sessions say of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    /// b over a.
    pub ratio: f64,
    /// Its 95 % interval, sessions' own differences included.
    pub ci95: [f64; 2],
    /// The ratio of the means of these runs, with the interval of their own scatter, slow ones included.
    pub mean: Option<(f64, [f64; 2])>,
    /// Sessions that say how much these differ.
    pub sessions: usize,
}

impl Found {
    /// In words.
    pub fn words(&self) -> String {
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        let [low, high] = self.ci95;
        let from = match self.sessions {
            0 => "in virtual time".to_owned(),
            n => format!("interval from {n} sessions of this machine on this host"),
        };
        format!(
            "{:+.1} % [{:+.1}, {:+.1}] ({from})",
            percent(self.ratio),
            percent(low),
            percent(high)
        )
    }
}

/// Compares two sessions.
///
/// # Errors
/// Why nothing can be said, in words.
pub(crate) fn compare(sides: &Sides<'_>, between: Option<Between>) -> Result<Found, String> {
    let none = "one of the two sessions has no run that vmeter can use";
    let ratio = ratio_of_means(sides.a, sides.b).ok_or(none)?;
    if sides.exact {
        return Ok(Found { ratio: ratio.mean, ci95: [ratio.mean; 2], mean: None, sessions: 0 });
    }
    let logs = |side: &[f64]| mean(&side.iter().map(|s| s.ln()).collect::<Vec<_>>());
    let log = logs(sides.b) - logs(sides.a);
    let Some(Between { sd, sessions }) = between else {
        return Err(format!(
            "vmeter does not know how much two sessions of this machine differ on this host: \
                fewer than {FEWEST} sessions of it are saved. The baseline's boots and this machine's \
                boots did not alternate. The difference was {:+.1} %",
            100.0 * log.exp_m1()
        ));
    };
    let half = t_quantile(0.975, sessions as f64 - 1.0) * sd * 2f64.sqrt();
    Ok(Found {
        ratio: log.exp(),
        ci95: [log - half, log + half].map(f64::exp),
        mean: Some((ratio.mean, ratio.ci95)),
        sessions,
    })
}

/// How sessions of this one's machine have scattered on its host, from those that are saved
/// under the state folder and beside it, but for the one that is held against it: if that is
/// slower, it is no scatter.
pub(crate) fn between(session: &Session, held_against: &Path) -> Option<Between> {
    let machine = session.record.machines.first()?;
    let mut folders: BTreeSet<PathBuf> = BTreeSet::new();
    let state = state_dir().ok().map(|dir| dir.join("runs"));
    let beside = session.dir.canonicalize().ok();
    let beside = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    for dir in state.into_iter().chain(beside) {
        folders.extend(folders_in(&dir).filter_map(|folder| folder.canonicalize().ok()));
    }
    if let Ok(held_against) = held_against.canonicalize() {
        folders.remove(&held_against);
    }
    let mut means = Vec::new();
    for folder in folders.iter().rev().take(MOST) {
        means.extend(mean_of(folder, session, machine));
    }
    (means.len() >= FEWEST)
        .then(|| Between { sd: vmeter_stats::sample::sd(&means), sessions: means.len() })
}

fn folders_in(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| vmeter_session::is_saved(path)).take(4 * MOST)
}

/// Mean logarithm of a session's runs, if it is one of the same machine on the same host.
fn mean_of(folder: &Path, like: &Session, machine: &SessionMachine) -> Option<f64> {
    let any = AnySession::open(folder).ok()?;
    let own = any.record.machines.first()?;
    let same = any.record.command == like.record.command
        && own.argv == machine.argv
        && own.provenance == machine.provenance
        && same_host(&any.record.host, &like.record.host);
    if !same {
        return None;
    }
    let (finished, _) = Session::open(folder).ok()?.finished().ok()?;
    let watch = like.record.plan.iter().find(|p| !p.warmup).map(|p| p.watch);
    let counts = |run: &RunRecord| {
        !run.warmup
            && run.outcome == Outcome::Done
            && run.label == own.label
            && Some(run.watch) == watch
    };
    let done = finished.iter().filter(|(_, run)| counts(run));
    let logs: Vec<f64> = done.map(|(_, run)| seconds(run.total_ns).ln()).collect();
    (!logs.is_empty()).then(|| mean(&logs))
}

type Host = std::collections::BTreeMap<String, serde_json::Value>;

/// What makes one host's times another's.
const HOST: [&str; 4] = ["hostname", "cpu_model", "cpus", "kernel"];

fn same_host(a: &Host, b: &Host) -> bool {
    HOST.iter().all(|field| a.get(*field) == b.get(*field))
}

/// In what host, VMM, accelerator or kernel two sessions differ, in words that follow "was
/// measured"; nothing if they agree.
pub(crate) fn provenance(
    before: &Envelope,
    was: &SessionMachine,
    now: &Envelope,
    is: &SessionMachine,
) -> Option<String> {
    let (old, new) = (&before.host, &now.host);
    if let Some(field) = HOST.iter().find(|field| old.get(**field) != new.get(**field)) {
        let word = |host: &Host| host.get(*field).map_or_else(String::new, ToString::to_string);
        return Some(format!(
            "on a host with a different {field} ({} then, {} now)",
            word(old),
            word(new)
        ));
    }
    let chosen = |machine: &SessionMachine| {
        machine.chosen.iter().find(|c| c.what == "accel").map(|c| c.value.clone())
    };
    if chosen(was) != chosen(is) {
        return Some("with another accelerator".into());
    }
    let version = |machine: &SessionMachine| {
        machine.provenance.get("vmm").map(|v| vmeter_session::identity::version(v))
    };
    (version(was) != version(is)).then(|| "with another version of the VMM".into())
}
