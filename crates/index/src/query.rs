//! Questions.

use crate::filter::literal;
use crate::result::{SavedRun, SavedSession};
use crate::{Filter, Index, IndexError};
use rusqlite::{params, params_from_iter, Row};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use vmeter_model::time::{seconds, Ns};

/// Sessions that a filter matches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// The latest of them, oldest first.
    pub sessions: Vec<SavedSession>,
    /// How many there are.
    pub found: usize,
    /// Their runs, warm-ups and failed ones among them.
    pub runs: usize,
    /// Of their runs' files, bytes.
    pub bytes: u64,
}

/// What a word asks of a machine's text, or of its name.
const WORD: &str =
    "(text LIKE ? ESCAPE '\\' OR text LIKE ? ESCAPE '\\' OR digest LIKE ? ESCAPE '\\')";

/// Of a session's machines, those that are wanted.
const OF_WANTED: &str = "sm.machine IN (SELECT id FROM temp.wanted)";

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
        &self,
        filter: &Filter,
        mut each: impl FnMut(SavedRun) -> Result<(), E>,
    ) -> Result<(), E> {
        // Where machines are named, only their runs are read.
        let joined = if self.wanted(filter)? {
            format!("JOIN session_machine sm ON sm.session = s.id AND {OF_WANTED}")
        } else {
            "LEFT JOIN session_machine sm ON sm.session = s.id".to_owned()
        };
        let sql = format!(
            "SELECT s.name, s.path, s.command, s.started_at, s.cpu_model, r.number,
                    coalesce(sm.label, ''), coalesce(m.digest, ''), coalesce(m.summary, ''),
                    r.warmup, r.outcome, r.started_ns, r.total_ns, r.user_s, r.system_s,
                    r.max_rss_bytes, r.steal_s, r.bytes
             FROM session s {joined}
             JOIN run r ON r.session = s.id AND r.position = coalesce(sm.position, -1)
             LEFT JOIN machine m ON m.id = sm.machine
             WHERE {OWN} ORDER BY s.started_s, s.name, s.id, r.number"
        );
        let own = params![filter.command, filter.since_s, filter.before_s];
        let mut query = self.db.prepare_cached(&sql).map_err(IndexError::Sql)?;
        let mut rows = query.query(own).map_err(IndexError::Sql)?;
        while let Some(row) = rows.next().map_err(IndexError::Sql)? {
            each(run_row(row).map_err(IndexError::Sql)?)?;
        }
        Ok(())
    }

    /// Fills the table of wanted machines; false if any will do.
    fn wanted(&self, filter: &Filter) -> Result<bool, IndexError> {
        self.db.execute_batch(
            "CREATE TEMP TABLE IF NOT EXISTS wanted (id INTEGER); DELETE FROM temp.wanted;",
        )?;
        if filter.machine.is_empty() {
            return Ok(false);
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
        Ok(true)
    }

    fn list(&mut self, filter: &Filter, limit: usize) -> Result<Listing, IndexError> {
        let (own_machines, sessions) = if self.wanted(filter)? {
            (format!("AND {OF_WANTED}"), "AND s.id IN (SELECT session FROM session_machine sm WHERE sm.machine IN (SELECT id FROM temp.wanted))")
        } else {
            (String::new(), "")
        };
        let own = params![filter.command, filter.since_s, filter.before_s];
        let all = format!(
            "SELECT count(*), coalesce(sum(runs), 0), coalesce(sum(bytes), 0) FROM (
                SELECT (SELECT sum(sm.runs + sm.warmups + sm.failed) FROM session_machine sm
                        WHERE sm.session = s.id {own_machines}) AS runs,
                       (SELECT sum(sm.bytes) FROM session_machine sm
                        WHERE sm.session = s.id {own_machines}) AS bytes
                FROM session s WHERE {OWN} {sessions})"
        );
        let mut query = self.db.prepare_cached(&all)?;
        let (found, runs, bytes) =
            query.query_row(own, |row| Ok((size(row, 0)?, size(row, 1)?, bytes(row, 2)?)))?;
        // With min(), SQLite takes the columns beside it from the row that has it.
        let sql = format!(
            "SELECT s.name, s.path, s.command, s.started_at, s.argv, s.cpu_model, s.planned,
                    s.problem, count(sm.position), coalesce(sum(sm.runs), 0),
                    coalesce(sum(sm.warmups), 0), coalesce(sum(sm.failed), 0), sm.mean_s,
                    coalesce(sum(sm.bytes), 0), m.summary, m.digest, s.started_s, min(sm.position)
             FROM (SELECT * FROM session s WHERE {OWN} {sessions}
                   ORDER BY s.started_s DESC, s.name DESC LIMIT ?4) s
             LEFT JOIN session_machine sm ON sm.session = s.id {own_machines}
             LEFT JOIN machine m ON m.id = sm.machine
             GROUP BY s.id"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut query = self.db.prepare_cached(&sql)?;
        let own = params![filter.command, filter.since_s, filter.before_s, limit];
        let rows = query.query_map(own, |row| Ok((row.get::<_, i64>(16)?, session_row(row)?)))?;
        let mut sessions = rows.collect::<Result<Vec<_>, _>>()?;
        sessions.sort_by(|(a, x), (b, y)| (a, &x.id).cmp(&(b, &y.id)));
        let sessions = sessions.into_iter().map(|(_, session)| session).collect();
        Ok(Listing { sessions, found, runs, bytes })
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

fn session_row(row: &Row<'_>) -> rusqlite::Result<SavedSession> {
    let machines = size(row, 8)?;
    let one = machines == 1;
    let argv: String = row.get(4)?;
    Ok(SavedSession {
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

fn run_row(row: &Row<'_>) -> rusqlite::Result<SavedRun> {
    let started: Option<Ns> = row.get(11)?;
    Ok(SavedRun {
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
