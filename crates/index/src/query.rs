//! Questions.

use crate::filter::literal;
use crate::{Filter, Index, IndexError};
use rusqlite::{params, params_from_iter, Row};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use vmeter_model::time::{seconds, Ns};

/// A session, or as much of it as the filter's machines have run.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// Its name: that of its folder.
    pub id: String,
    /// Its folder.
    pub path: PathBuf,
    /// Command.
    pub command: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// vmeter's argument vector.
    pub argv: Vec<String>,
    /// CPU model of its host.
    pub cpu_model: String,
    /// Machines that the filter matches.
    pub machines: usize,
    /// The first of them in a few words.
    pub machine: String,
    /// Names the machine, if it is one: the same in every session.
    pub machine_id: Option<String>,
    /// Measured runs that reached their end.
    pub runs: usize,
    /// Warm-ups.
    pub warmups: usize,
    /// Measured runs that did not.
    pub failed: usize,
    /// Runs planned for the whole session, warm-ups among them.
    pub planned: usize,
    /// Mean of the runs, if they are of one machine, s.
    pub mean_s: Option<f64>,
    /// Of the runs' files, bytes.
    pub bytes: u64,
    /// What cannot be read of it.
    pub problem: Option<String>,
}

/// Sessions that a filter matches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// The latest of them, oldest first.
    pub sessions: Vec<SessionRow>,
    /// How many there are.
    pub found: usize,
    /// Their runs, warm-ups and failed ones among them.
    pub runs: usize,
    /// Of their runs' files, bytes.
    pub bytes: u64,
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// Name of its session.
    pub session: String,
    /// Folder of its session.
    pub path: PathBuf,
    /// The session's command.
    pub command: String,
    /// When the session began, RFC 3339, UTC.
    pub session_started_at: String,
    /// CPU model of the host.
    pub cpu_model: String,
    /// Its number in the session.
    pub run: u32,
    /// Label of its machine.
    pub label: String,
    /// Names the machine: the same in every session.
    pub machine_id: String,
    /// The machine in a few words.
    pub machine: String,
    /// True for a warm-up.
    pub warmup: bool,
    /// `done`, `panicked`, …
    pub outcome: String,
    /// When its VMM was executed, s since the epoch.
    pub started_s: Option<f64>,
    /// How long it took, s.
    pub total_s: f64,
    /// User CPU time of the VMM, s.
    pub user_s: f64,
    /// System CPU time of the VMM, s.
    pub system_s: f64,
    /// Its peak resident set, bytes.
    pub max_rss_bytes: u64,
    /// CPU time stolen from the host meanwhile, s.
    pub steal_s: f64,
    /// Of its files, bytes.
    pub bytes: u64,
}

/// What a word asks of a machine's text, or of its name.
const WORD: &str =
    "(text LIKE ? ESCAPE '\\' OR text LIKE ? ESCAPE '\\' OR digest LIKE ? ESCAPE '\\')";

/// Sessions' own conditions; ?1 command, ?2 not before, ?3 before.
const OWN: &str = "(?1 IS NULL OR s.command = ?1) AND (?2 IS NULL OR s.started_s >= ?2)
     AND (?3 IS NULL OR s.started_s < ?3)";

impl Index {
    /// Sessions that `filter` matches, at most `limit` of them, the latest.
    ///
    /// # Errors
    /// SQLite's own; a damaged file is built anew.
    pub fn sessions(&mut self, filter: &Filter, limit: usize) -> Result<Listing, IndexError> {
        self.healing(|index| index.list(filter, limit))
    }

    /// Gives every run that `filter` matches to `each`, session by session, oldest first.
    ///
    /// # Errors
    /// SQLite's own, and `each`'s.
    pub fn runs<E: From<IndexError>>(
        &mut self,
        filter: &Filter,
        mut each: impl FnMut(RunRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let joined = self.wanted(filter)?;
        let sql = format!(
            "SELECT s.name, s.path, s.command, s.started_at, s.cpu_model, r.number,
                    coalesce(sm.label, ''), coalesce(m.digest, ''), coalesce(m.summary, ''),
                    r.warmup, r.outcome, r.started_ns, r.total_ns, r.user_s, r.system_s,
                    r.max_rss_bytes, r.steal_s, r.bytes
             FROM session s CROSS JOIN run r ON r.session = s.id
             LEFT JOIN session_machine sm ON sm.session = s.id AND sm.position = r.position
             LEFT JOIN machine m ON m.id = sm.machine
             WHERE {OWN}{joined} ORDER BY s.started_s, s.id, r.number"
        );
        let own = params![filter.command, filter.since_s, filter.before_s];
        let mut query = self.db.prepare_cached(&sql).map_err(IndexError::Sql)?;
        let mut rows = query.query(own).map_err(IndexError::Sql)?;
        while let Some(row) = rows.next().map_err(IndexError::Sql)? {
            each(run_row(row).map_err(IndexError::Sql)?)?;
        }
        Ok(())
    }

    /// Fills the table of wanted machines, and gives the condition that uses it.
    fn wanted(&self, filter: &Filter) -> Result<&'static str, IndexError> {
        self.db.execute_batch(
            "CREATE TEMP TABLE IF NOT EXISTS wanted (id INTEGER); DELETE FROM temp.wanted;",
        )?;
        if filter.machine.is_empty() {
            return Ok("");
        }
        let patterns = filter.machine.iter().flat_map(|word| {
            let text = literal(word);
            match word.contains('=') {
                // A value is whole, but for its unit.
                true => [format!("%\n{text}\n%"), format!("%\n{text} %"), String::new()],
                false => [format!("%{text}%"), String::new(), format!("{text}%")],
            }
        });
        let words = vec![WORD; filter.machine.len()].join(" AND ");
        let sql = format!("INSERT INTO temp.wanted SELECT id FROM machine WHERE {words}");
        self.db.prepare(&sql)?.execute(params_from_iter(patterns))?;
        Ok(" AND sm.machine IN (SELECT id FROM temp.wanted)")
    }

    fn list(&mut self, filter: &Filter, limit: usize) -> Result<Listing, IndexError> {
        let joined = self.wanted(filter)?;
        let own = params![filter.command, filter.since_s, filter.before_s];
        let from = format!(
            "FROM session s LEFT JOIN session_machine sm ON sm.session = s.id WHERE {OWN}{joined}"
        );
        let all = format!(
            "SELECT count(DISTINCT s.id), coalesce(sum(sm.runs + sm.warmups + sm.failed), 0),
                    coalesce(sum(sm.bytes), 0) {from}"
        );
        let (found, runs, bytes) = self
            .db
            .prepare_cached(&all)?
            .query_row(own, |row| Ok((size(row, 0)?, size(row, 1)?, size(row, 2)?)))?;
        // The summary is that of the first machine: with min(), SQLite takes the other
        // columns from the row that has it.
        let sql = format!(
            "SELECT s.name, s.path, s.command, s.started_at, s.argv, s.cpu_model, s.planned,
                    s.problem, n, runs, warmups, failed, mean_s, bytes, m.summary, m.digest
             FROM (SELECT s.id AS session, min(sm.position), sm.machine AS machine, count(sm.position) AS n,
                          coalesce(sum(sm.runs), 0) AS runs, coalesce(sum(sm.warmups), 0) AS warmups,
                          coalesce(sum(sm.failed), 0) AS failed, sm.mean_s AS mean_s,
                          coalesce(sum(sm.bytes), 0) AS bytes
                   {from} GROUP BY s.started_s, s.id ORDER BY s.started_s DESC, s.id DESC LIMIT ?4)
             JOIN session s ON s.id = session LEFT JOIN machine m ON m.id = machine
             ORDER BY s.started_s DESC, s.id DESC"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut query = self.db.prepare_cached(&sql)?;
        let rows = query.query_map(
            params![filter.command, filter.since_s, filter.before_s, limit],
            session_row,
        )?;
        let mut sessions = rows.collect::<Result<Vec<_>, _>>()?;
        sessions.reverse();
        Ok(Listing { sessions, found, runs, bytes: bytes as u64 })
    }
}

fn size(row: &Row<'_>, column: usize) -> rusqlite::Result<usize> {
    Ok(usize::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}

fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}

fn path(row: &Row<'_>, column: usize) -> rusqlite::Result<PathBuf> {
    Ok(std::ffi::OsString::from_vec(row.get(column)?).into())
}

fn session_row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    let machines = size(row, 8)?;
    let one = machines == 1;
    let argv: String = row.get(4)?;
    Ok(SessionRow {
        id: row.get(0)?,
        path: path(row, 1)?,
        command: row.get(2)?,
        started_at: row.get(3)?,
        argv: serde_json::from_str(&argv).unwrap_or_default(),
        cpu_model: row.get(5)?,
        machines,
        machine: row.get::<_, Option<String>>(14)?.unwrap_or_default(),
        machine_id: row.get::<_, Option<String>>(15)?.filter(|_| one),
        runs: size(row, 9)?,
        warmups: size(row, 10)?,
        failed: size(row, 11)?,
        planned: size(row, 6)?,
        mean_s: row.get::<_, Option<f64>>(12)?.filter(|_| one),
        bytes: bytes(row, 13)?,
        problem: row.get(7)?,
    })
}

fn run_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    let started: Option<Ns> = row.get(11)?;
    Ok(RunRow {
        session: row.get(0)?,
        path: path(row, 1)?,
        command: row.get(2)?,
        session_started_at: row.get(3)?,
        cpu_model: row.get(4)?,
        run: row.get(5)?,
        label: row.get(6)?,
        machine_id: row.get(7)?,
        machine: row.get(8)?,
        warmup: row.get(9)?,
        outcome: row.get(10)?,
        started_s: started.map(seconds),
        total_s: seconds(row.get(12)?),
        user_s: row.get(13)?,
        system_s: row.get(14)?,
        max_rss_bytes: bytes(row, 15)?,
        steal_s: row.get(16)?,
        bytes: bytes(row, 17)?,
    })
}
