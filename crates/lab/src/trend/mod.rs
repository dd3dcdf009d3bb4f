//! `vmeter runs trend`: since when is it slower? Changes of level over the saved sessions of each
//! machine.
//!
//! A session is one value, its runs' centre: what another hour or load adds to all of its runs is
//! scatter between sessions. How they scatter is not known: some days are slow, one is noisier than
//! the others. So a change is held against the same sessions in any other order
//! ([`level_changes_in_order`]), by which one odd session is none, and of fewer than ten nothing can
//! be told. Where hours resemble each other, levels come and go by themselves, and random order takes
//! that for a change: one that such a host would show as well is `undecided`. The level of both tests is 1 % for each machine, so that
//! nobody gets used to false alarms.

mod report;

pub use report::TrendReport;

use crate::ends::Ends;
use crate::figures::Figures;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmeter_model::result::Envelope;
use vmeter_model::run::{Outcome, RunRecord, SessionMachine};
use vmeter_model::time::seconds;
use vmeter_model::TrendVerdict;
use vmeter_session::envelope::envelope_now;
use vmeter_session::failure::usage;
use vmeter_session::{state_dir, AnySession, SavedRun, Session};
use vmeter_stats::median;
use vmeter_stats::segments::{detectable_among, level_changes_in_order, OrderedChange, FEWEST};
use vmeter_stats::signed_rank::pseudo_median;

/// Chance of any change being called one over the sessions of a machine that is as it was.
const ALPHA: f64 = 0.01;

/// A change so large is found so often.
const POWER: f64 = 0.8;

/// Command line, host, how it is watched, what its runs are measured to.
type Key = (Vec<String>, String, String, Vec<String>);

/// What the saved sessions say.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrendResult {
    /// Head.
    #[serde(skip)]
    pub envelope: Envelope,
    /// Machines with sessions enough, the one with the most first.
    pub machines: Vec<MachineTrend>,
    /// Machines with too few.
    pub too_few: usize,
    /// Sessions of whose guests nothing says how they ended: a crash is over soon.
    pub ends_not_known: usize,
    /// Copies of sessions that are there already: counted once.
    pub copies: usize,
    /// Sessions that cannot be read, and why.
    pub unread: Vec<String>,
}

/// The sessions of one machine on one host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineTrend {
    /// Its command line.
    pub argv: Vec<String>,
    /// The host's name.
    pub hostname: String,
    /// How it was watched.
    pub watch: String,
    /// What its runs are measured to, where they say so.
    pub measured_to: Vec<String>,
    /// Its sessions, the oldest first.
    pub sessions: Vec<SessionLevel>,
    /// Change, %, that is shown, if maybe as undecided, in four of five cases where a quarter of the sessions
    /// have it, by the upper limit of what sessions scatter about their levels; none of so few that no such
    /// change would be.
    pub detectable_pct: Option<f64>,
    /// Where its level changed.
    pub changes: Vec<TrendChange>,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionLevel {
    /// When it began, RFC 3339.
    pub started_at: String,
    /// Its folder.
    pub path: PathBuf,
    /// Centre of its runs' times, s.
    pub centre_s: f64,
    /// Runs that count.
    pub runs: usize,
    /// When its first run was saved, which tells sessions of one second apart, ns.
    #[serde(skip)]
    first_ns: u128,
    #[serde(skip)]
    provenance: BTreeMap<String, String>,
    /// When each run began and how long it took, ns: the same of a copy.
    #[serde(skip)]
    content: Vec<[i64; 2]>,
}

/// A change of level.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrendChange {
    /// The first session of the new level, and the last of the old one.
    pub since: String,
    /// The last session before it.
    pub before: String,
    /// Folders of both.
    pub paths: [PathBuf; 2],
    /// New level over old.
    pub ratio: f64,
    /// What it is: a change of the machine, or one that the host may have made.
    pub verdict: TrendVerdict,
    /// Of there being any change, if sessions do not resemble the ones before them.
    pub p_value: f64,
    /// Of this one beside the others, if they do (a first-order autoregression, up to 0.5).
    pub p_if_alike: f64,
    /// Set if most sessions of the new level began at an hour of the day at which hardly any of the old one did:
    /// the hours (UTC) of the old ones, first and last, and of the new ones. Then nothing is said of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_hours: Option<[[u32; 2]; 2]>,
    /// Set likewise if most of the new ones began on a weekend and hardly any of the old ones, or the other way round.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub other_days: bool,
    /// What of the machine's provenance changed with it.
    pub changed: Vec<String>,
}

/// Looks at all sessions of boots under the state folder, and at those in `more`.
///
/// # Errors
/// When there is no state folder. Class usage: no session in one of `more`.
pub fn trend(more: &[PathBuf]) -> Result<TrendResult> {
    let mut folders = vec![state_dir()?.join("runs")];
    if let Some(none) = more.iter().find(|dir| sessions_in(dir).is_empty()) {
        return Err(usage(format!(
            "{}: expected a saved session, or a folder that holds saved sessions",
            none.display()
        )));
    }
    folders.extend(more.iter().cloned());
    Ok(over(&folders))
}

/// As [`trend`], over the sessions in these folders alone, or that they are.
pub fn over(folders: &[PathBuf]) -> TrendResult {
    let mut machines: BTreeMap<Key, Vec<SessionLevel>> = BTreeMap::new();
    let (mut ends_not_known, mut unread) = (0, Vec::new());
    for folder in folders.iter().flat_map(|dir| sessions_in(dir)) {
        match level_of(&folder) {
            Level::Of(key, level) => machines.entry(key).or_default().push(level),
            Level::EndNotKnown => ends_not_known += 1,
            Level::Unread(why) => unread.push(why),
            Level::None => {}
        }
    }
    let copies = machines.values_mut().map(without_copies).sum();
    let all = machines.len();
    let mut machines: Vec<MachineTrend> = machines
        .into_iter()
        .filter(|(_, sessions)| sessions.len() >= FEWEST)
        .map(|(key, sessions)| of_machine(key, sessions))
        .collect();
    machines.sort_by_key(|machine| std::cmp::Reverse(machine.sessions.len()));
    let too_few = all - machines.len();
    let envelope = envelope_now("runs trend");
    TrendResult { envelope, machines, too_few, ends_not_known, copies, unread }
}

/// Sorts the sessions by time and leaves one of each: a backup of a session is no session. How many went.
fn without_copies(sessions: &mut Vec<SessionLevel>) -> usize {
    let all = sessions.len();
    let key = |s: &SessionLevel| (s.started_at.clone(), s.content.clone(), s.path.clone());
    sessions.sort_by_cached_key(key);
    sessions.dedup_by(|a, b| (&a.started_at, &a.content) == (&b.started_at, &b.content));
    all - sessions.len()
}

/// What the sessions of a machine show.
fn of_machine(key: Key, mut sessions: Vec<SessionLevel>) -> MachineTrend {
    let (argv, hostname, watch, measured_to) = key;
    sessions.sort_by_key(|s| (s.started_at.clone(), s.first_ns));
    let logs: Vec<f64> = sessions.iter().map(|s| s.centre_s.ln()).collect();
    let found = level_changes_in_order(&logs, ALPHA, 1);
    let changes = changes(&sessions, &found);
    let cuts: Vec<usize> = found.iter().map(|change| change.at).collect();
    let step = detectable_among(&logs, &cuts, ALPHA, POWER);
    let detectable_pct = step.map(|step| 100.0 * step.exp_m1());
    MachineTrend { argv, hostname, watch, measured_to, sessions, detectable_pct, changes }
}

/// The sessions in a folder, or the one that it is.
fn sessions_in(dir: &Path) -> Vec<PathBuf> {
    if vmeter_session::is_saved(dir) {
        return vec![dir.to_owned()];
    }
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| vmeter_session::is_saved(path)).collect()
}

/// What a session says of its machine's level.
enum Level {
    /// Its runs are boots that reached their end.
    Of(Key, SessionLevel),
    /// Nothing says how its guests ended.
    EndNotKnown,
    /// It cannot be read.
    Unread(String),
    /// No boots.
    None,
}

fn level_of(folder: &Path) -> Level {
    match AnySession::open(folder) {
        Ok(any) => measured(folder, &any).unwrap_or(Level::None),
        Err(error) => Level::Unread(format!("{error:#}")),
    }
}

fn measured(folder: &Path, any: &AnySession) -> Option<Level> {
    if !["boot", "bench"].contains(&any.record.command.as_str()) {
        return None;
    }
    let session = Session::open(folder).ok()?;
    let machine: &SessionMachine = session.record.machines.first()?;
    let (finished, _) = session.finished().ok()?;
    let own = |(_, run): &&SavedRun| {
        !run.warmup && run.outcome == Outcome::Done && run.label == machine.label
    };
    let runs: Vec<&SavedRun> = finished.iter().filter(own).collect();
    let watch = runs.first()?.1.watch;
    let alike = || runs.iter().filter(|(_, run)| run.watch == watch);
    let ends = Ends::of_records(alike().map(|(_, run)| run));
    if ends.is_unknown() {
        return Some(Level::EndNotKnown);
    }
    let measured_to = ends.to().iter().cloned().collect();
    let logs: Vec<f64> = alike().map(|(dir, run)| total_s(dir, run).ln()).collect();
    let host = session.record.host.get("hostname").and_then(|name| name.as_str());
    let hostname = host.unwrap_or_default().to_owned();
    let content = alike().map(|(_, run)| [run.exec_ns, run.total_ns]).collect();
    let level = SessionLevel {
        content,
        started_at: session.record.started_at.clone(),
        path: folder.to_owned(),
        centre_s: pseudo_median(&logs).exp(),
        runs: logs.len(),
        first_ns: finished.iter().filter_map(written_ns).min().unwrap_or(0),
        provenance: machine.provenance.clone(),
    };
    let key = (machine.argv.clone(), hostname, watch.to_string(), measured_to);
    level.centre_s.is_finite().then_some(Level::Of(key, level))
}

/// When the record of a run was written, ns since the epoch.
fn written_ns((dir, _): &SavedRun) -> Option<u128> {
    let file = std::fs::metadata(dir.join("run.json")).ok()?;
    Some(file.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos())
}

fn total_s(dir: &Path, run: &RunRecord) -> f64 {
    if run.icount {
        return Figures::of(&crate::analysis::analyse_run(dir, run.clone())).run.total_s;
    }
    seconds(run.total_ns)
}

fn changes(sessions: &[SessionLevel], found: &[OrderedChange]) -> Vec<TrendChange> {
    let logs: Vec<f64> = sessions.iter().map(|s| s.centre_s.ln()).collect();
    let mut bounds: Vec<usize> = vec![0];
    bounds.extend(found.iter().map(|change| change.at));
    bounds.push(sessions.len());
    let levels = bounds.windows(3).zip(found);
    levels
        .filter_map(|(w, change)| {
            let (old, new) = (logs.get(w[0]..w[1])?, logs.get(w[1]..w[2])?);
            let (before, since) = (sessions.get(w[1].checked_sub(1)?)?, sessions.get(w[1])?);
            let step = median(new) - median(old);
            let sides = [sessions.get(w[0]..w[1])?, sessions.get(w[1]..w[2])?];
            let other_hours = other_hours(sides);
            let other_days = sides.map(|of| of.iter().map(is_weekend).collect::<Option<Vec<_>>>());
            let other_days = matches!(other_days, [Some(old), Some(new)]
                if !are_comparable(&old, &new, |a, b| a == b));
            Some(TrendChange {
                other_hours,
                other_days,
                since: since.started_at.clone(),
                before: before.started_at.clone(),
                paths: [before.path.clone(), since.path.clone()],
                ratio: step.exp(),
                verdict: match change.p_remembering <= ALPHA && other_hours.is_none() && !other_days
                {
                    true if step > 0.0 => TrendVerdict::Slower,
                    true => TrendVerdict::Faster,
                    false => TrendVerdict::Undecided,
                },
                p_value: change.p_value,
                p_if_alike: change.p_remembering,
                changed: differing(&before.provenance, &since.provenance),
            })
        })
        .collect()
}

/// Sessions whose hours of the day are no farther apart are of the same hour.
const SAME_HOUR: u32 = 2;

/// The hours of the old sessions and of the new ones, if these began at another hour of the day. A host may be quicker
/// at night.
fn other_hours([old, new]: [&[SessionLevel]; 2]) -> Option<[[u32; 2]; 2]> {
    let hours = |of: &[SessionLevel]| of.iter().map(hour).collect::<Option<Vec<u32>>>();
    let (old, new) = (hours(old)?, hours(new)?);
    let is_same = |a: &u32, b: &u32| {
        let apart = a.abs_diff(*b);
        apart.min(24 - apart) <= SAME_HOUR
    };
    let ends = |of: &[u32]| Some([*of.iter().min()?, *of.iter().max()?]);
    (!are_comparable(&old, &new, is_same)).then_some([ends(&old)?, ends(&new)?])
}

/// True if half of the new sessions or more began when two of the old ones did.
fn are_comparable<T>(old: &[T], new: &[T], is_same: impl Fn(&T, &T) -> bool) -> bool {
    let has_old = |at: &&T| old.iter().filter(|other| is_same(other, at)).count() >= 2;
    2 * new.iter().filter(has_old).count() >= new.len()
}

/// The hour of the day (UTC) at which it began.
fn hour(session: &SessionLevel) -> Option<u32> {
    session.started_at.get(11..13)?.parse().ok().filter(|hour| *hour < 24)
}

/// True if it began on a Saturday or Sunday (UTC): Sakamoto's formula for the day of the week.
fn is_weekend(session: &SessionLevel) -> Option<bool> {
    const MONTHS: [u32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
    let part = |from: usize, to: usize| session.started_at.get(from..to)?.parse::<u32>().ok();
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let year = if month < 3 { year.checked_sub(1)? } else { year };
    let shift = MONTHS.get(month.checked_sub(1)? as usize)?;
    Some(matches!((year + year / 4 - year / 100 + year / 400 + shift + day) % 7, 0 | 6))
}

fn differing(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names.into_iter().filter(|name| a.get(*name) != b.get(*name)).cloned().collect()
}
