//! Comparing the folders with the index, and reading what has changed.

use crate::filter::started_s;
use crate::machine::Machine;
use crate::saved::{self, Saved, Stamp};
use crate::IndexError;
use rusqlite::{params, Connection, Transaction, TransactionBehavior};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use vmeter_model::run::{AnyPlanned, Outcome, SessionRecord};
use vmeter_model::time::seconds;

/// Sessions that are read before they are written to the index.
const CHUNK: usize = 500;

/// What comparing the folders with the index found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scan {
    /// Sessions in the folders.
    pub sessions: usize,
    /// Of these, read because they are new or have changed.
    pub read: usize,
    /// Sessions that are no longer there.
    pub gone: usize,
}

/// A session that has to be read.
struct Changed {
    path: PathBuf,
    stamp: Stamp,
}

pub(crate) fn refresh(db: &mut Connection, state: &Path) -> Result<Scan, IndexError> {
    let mut known = known(db)?;
    let (mut scan, mut changed) = (Scan::default(), Vec::new());
    let mut look = |path: PathBuf, stamp: Option<Stamp>| {
        let Some(stamp) = stamp else { return };
        scan.sessions += 1;
        if known.remove(path.as_os_str().as_bytes()).map(|(_, stamp)| stamp) != Some(stamp) {
            changed.push(Changed { path, stamp });
        }
    };
    let runs = state.join("runs");
    let names = saved::names(&runs)?;
    if !names.is_empty() {
        let folder = File::open(&runs).map_err(IndexError::io("cannot read", &runs))?;
        for name in names {
            look(runs.join(&name), Stamp::of(&folder, &name));
        }
    }
    for path in saved::elsewhere(state) {
        let stamp = Stamp::of(rustix::fs::CWD, &path);
        look(path, stamp);
    }
    for chunk in changed.chunks(CHUNK) {
        let found: Vec<(&Changed, Option<Saved>)> =
            chunk.iter().map(|c| (c, saved::read(&c.path, c.stamp))).collect();
        let write = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for (changed, session) in found {
            match session {
                Some(session) => {
                    scan.read += 1;
                    store(&write, &changed.path, &session)?;
                }
                None => {
                    scan.sessions -= 1;
                    forget(&write, &changed.path)?;
                }
            }
        }
        write.commit()?;
    }
    if !known.is_empty() {
        scan.gone = known.len();
        let write = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for path in known.into_keys() {
            forget(&write, Path::new(&std::ffi::OsString::from_vec(path)))?;
        }
        write.commit()?;
    }
    Ok(scan)
}

/// Sessions of the index by path.
fn known(db: &Connection) -> Result<HashMap<Vec<u8>, (i64, Stamp)>, IndexError> {
    let mut query = db.prepare_cached("SELECT path, id, session_ns, runs_ns FROM session")?;
    let mut rows = query.query([])?;
    let mut known = HashMap::new();
    while let Some(row) = rows.next()? {
        let stamp = Stamp { session_ns: row.get(2)?, runs_ns: row.get(3)? };
        known.insert(row.get(0)?, (row.get(1)?, stamp));
    }
    Ok(known)
}

pub(crate) fn forget(db: &Transaction<'_>, path: &Path) -> Result<(), IndexError> {
    let path = path.as_os_str().as_bytes();
    for sql in [
        "DELETE FROM run WHERE session IN (SELECT id FROM session WHERE path = ?1)",
        "DELETE FROM session_machine WHERE session IN (SELECT id FROM session WHERE path = ?1)",
        "DELETE FROM session WHERE path = ?1",
    ] {
        db.prepare_cached(sql)?.execute([path])?;
    }
    Ok(())
}

fn store(db: &Transaction<'_>, path: &Path, saved: &Saved) -> Result<(), IndexError> {
    forget(db, path)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let unread = SessionRecord { command: "?".into(), ..SessionRecord::default() };
    let record = saved.record.as_ref().unwrap_or(&unread);
    let argv = serde_json::to_string(&record.argv).unwrap_or_default();
    let cpu_model = record.host.get("cpu_model").and_then(|v| v.as_str()).unwrap_or_default();
    let started = match saved.record {
        Some(_) => started_s(&record.started_at),
        // So that it can be removed by age.
        None => saved.stamp.session_ns.max(0) / 1_000_000_000,
    };
    db.prepare_cached(
        "INSERT INTO session (path, name, session_ns, runs_ns, command, started_at, started_s,
         argv, cpu_model, planned, problem) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)",
    )?
    .execute(params![
        path.as_os_str().as_bytes(),
        name,
        saved.stamp.session_ns,
        saved.stamp.runs_ns,
        record.command,
        record.started_at,
        started,
        argv,
        cpu_model,
        number(record.plan.len()),
        saved.problem,
    ])?;
    let session = db.last_insert_rowid();
    let position = positions(record);
    for (at, machine) in record.machines.iter().enumerate() {
        let own = saved.runs.iter().filter(|run| position.get(run.label.as_str()) == Some(&at));
        let mut totals = Totals::default();
        own.for_each(|run| totals.add(run));
        let machine_id = intern(db, &Machine::of(machine))?;
        totals.store(db, session, number(at), &machine.label, machine_id)?;
    }
    store_runs(db, session, &position, &saved.runs)
}

/// Where each label is in the session; a sweep can have thousands.
fn positions(record: &SessionRecord<AnyPlanned>) -> HashMap<&str, usize> {
    record.machines.iter().enumerate().map(|(at, m)| (m.label.as_str(), at)).collect()
}

fn store_runs(
    db: &Transaction<'_>,
    session: i64,
    position: &HashMap<&str, usize>,
    runs: &[saved::Run],
) -> Result<(), IndexError> {
    let mut insert = db.prepare_cached(
        "INSERT INTO run (session, number, position, warmup, outcome, started_ns, total_ns,
         user_s, system_s, max_rss_bytes, steal_s, bytes)
         VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12)",
    )?;
    for run in runs {
        insert.execute(params![
            session,
            run.index,
            position.get(run.label.as_str()).map_or(-1, |at| number(*at)),
            run.warmup,
            run.outcome.word(),
            run.started_ns(),
            run.total_ns,
            run.usage.user_s,
            run.usage.system_s,
            i64::try_from(run.usage.max_rss_bytes).unwrap_or(i64::MAX),
            run.steal_s,
            i64::try_from(run.bytes).unwrap_or(i64::MAX),
        ])?;
    }
    Ok(())
}

fn intern(db: &Transaction<'_>, machine: &Machine) -> Result<i64, IndexError> {
    db.prepare_cached(
        "INSERT INTO machine (digest, text, summary) VALUES (?1, ?2, ?3)
         ON CONFLICT (digest) DO NOTHING",
    )?
    .execute([&machine.id, &machine.text, &machine.summary])?;
    let mut found = db.prepare_cached("SELECT id FROM machine WHERE digest = ?1")?;
    Ok(found.query_row([&machine.id], |row| row.get(0))?)
}

/// The runs of one machine in one session.
#[derive(Default)]
struct Totals {
    runs: i64,
    warmups: i64,
    failed: i64,
    sum_s: f64,
    bytes: u64,
}

impl Totals {
    fn add(&mut self, run: &saved::Run) {
        self.bytes = self.bytes.saturating_add(run.bytes);
        match (run.warmup, &run.outcome) {
            (true, _) => self.warmups += 1,
            (false, Outcome::Done) => {
                self.runs += 1;
                self.sum_s += seconds(run.total_ns);
            }
            (false, _) => self.failed += 1,
        }
    }

    fn store(
        &self,
        db: &Transaction<'_>,
        session: i64,
        position: i64,
        label: &str,
        machine: i64,
    ) -> Result<(), IndexError> {
        let mean = (self.runs > 0).then(|| self.sum_s / self.runs as f64);
        let bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        db.prepare_cached(
            "INSERT INTO session_machine (session, position, label, machine, runs, warmups,
             failed, mean_s, bytes) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9)",
        )?
        .execute(params![
            session,
            position,
            label,
            machine,
            self.runs,
            self.warmups,
            self.failed,
            mean,
            bytes
        ])?;
        Ok(())
    }
}

fn number(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
