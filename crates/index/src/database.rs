//! The file: opening it, replacing it when it is damaged, doing without it.

use crate::scan::Scan;
use crate::IndexError;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use rustix::fs::{flock, FlockOperation, OFlags};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Changes with every change of the tables; another version's file is built anew.
const VERSION: i64 = 1;
/// How often a damaged file is built anew before it is done without.
const ATTEMPTS: u32 = 3;
/// How long another program's transaction is waited for; then the index is held in memory.
const PATIENCE: Duration = Duration::from_secs(10);

const TABLES: &str = "
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    path BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL,
    session_ns INTEGER NOT NULL,
    runs_ns INTEGER NOT NULL,
    command TEXT NOT NULL,
    started_at TEXT NOT NULL,
    started_s INTEGER NOT NULL,
    argv TEXT NOT NULL,
    cpu_model TEXT NOT NULL,
    planned INTEGER NOT NULL,
    problem TEXT
);
CREATE INDEX session_by_start ON session (started_s);
CREATE INDEX session_by_name ON session (name);
CREATE TABLE machine (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    summary TEXT NOT NULL
);
CREATE TABLE session_machine (
    session INTEGER NOT NULL,
    position INTEGER NOT NULL,
    label TEXT NOT NULL,
    machine INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    warmups INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    mean_s REAL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (session, position)
) WITHOUT ROWID;
CREATE INDEX session_machine_by_machine ON session_machine (machine);
CREATE TABLE run (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    position INTEGER NOT NULL,
    warmup INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    started_ns INTEGER,
    total_ns INTEGER NOT NULL,
    user_s REAL NOT NULL,
    system_s REAL NOT NULL,
    max_rss_bytes INTEGER NOT NULL,
    steal_s REAL NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
";

/// The index of the runs below a state folder.
#[derive(Debug)]
pub struct Index {
    pub(crate) db: Connection,
    pub(crate) state: PathBuf,
    /// Held shared while the file is in use; none for an index in memory.
    lock: Option<File>,
    /// What the user should know: the file was damaged, or cannot be written.
    notes: Vec<String>,
    scanned: Scan,
}

impl Index {
    /// Opens the index of `state` (`$XDG_STATE_HOME/vmeter`) and brings it up to date.
    ///
    /// # Errors
    /// When the folders cannot be read.
    pub fn open(state: &Path) -> Result<Self, IndexError> {
        let state = std::path::absolute(state).map_err(IndexError::io("cannot find", state))?;
        let mut index = match Self::on_disk(&state) {
            Ok(index) => index,
            Err(error) if error.is_damage() => Self::replaced(&state, &error.to_string())
                .or_else(|error| Self::in_memory(&state, &error))?,
            Err(error) => Self::in_memory(&state, &error)?,
        };
        index.healing(Index::refresh)?;
        Ok(index)
    }

    /// Deletes the index and builds it anew from the folders.
    ///
    /// # Errors
    /// When the folders cannot be read.
    pub fn rebuild(state: &Path) -> Result<Self, IndexError> {
        let state = std::path::absolute(state).map_err(IndexError::io("cannot find", state))?;
        let made = locked(&state, FlockOperation::LockExclusive)
            .and_then(|lock| Self::replace(&state, lock));
        let mut index = match made {
            Ok(index) => index,
            Err(error) => Self::in_memory(&state, &error)?,
        };
        index.healing(Index::refresh)?;
        Ok(index)
    }

    /// The index's file.
    pub fn path(&self) -> PathBuf {
        file(&self.state)
    }

    /// What the user should know of it, in sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What the comparison with the folders found.
    pub fn scanned(&self) -> &Scan {
        &self.scanned
    }

    /// Compares the folders with the index again.
    ///
    /// # Errors
    /// As [`Index::open`].
    pub fn refresh(&mut self) -> Result<(), IndexError> {
        self.scanned = crate::scan::refresh(&mut self.db, &self.state)?;
        Ok(())
    }

    /// Does `action`; where the file turns out to be damaged or not to be written, does it
    /// again on one that is built anew, or held in memory.
    pub(crate) fn healing<T>(
        &mut self,
        mut action: impl FnMut(&mut Self) -> Result<T, IndexError>,
    ) -> Result<T, IndexError> {
        let mut attempts = 0..ATTEMPTS;
        loop {
            let error = match action(self) {
                Err(error)
                    if self.lock.is_some() && (error.is_damage() || error.is_unwritable()) =>
                {
                    error
                }
                other => return other,
            };
            let state = self.state.clone();
            // Its lock must be gone before the file can be replaced.
            self.lock = None;
            let again = if error.is_damage() && attempts.next().is_some() {
                Self::replaced(&state, &error.to_string())
            } else {
                Self::in_memory(&state, &error)
            };
            *self = again.or_else(|error| Self::in_memory(&state, &error))?;
            match self.refresh() {
                Err(error) if self.lock.is_none() => return Err(error),
                // What is wrong with the file, `action` meets as well.
                _ => {}
            }
        }
    }

    fn on_disk(state: &Path) -> Result<Self, IndexError> {
        let lock = locked(state, FlockOperation::LockShared)?;
        Self::of(connected(state)?, state, Some(lock))
    }

    fn of(db: Connection, state: &Path, lock: Option<File>) -> Result<Self, IndexError> {
        let (state, notes) = (state.to_owned(), Vec::new());
        Ok(Index { db, state, lock, notes, scanned: Scan::default() })
    }

    /// Replaces a damaged file, unless another vmeter just has.
    fn replaced(state: &Path, why: &str) -> Result<Self, IndexError> {
        let lock = locked(state, FlockOperation::LockExclusive)?;
        let whole = connected(state).and_then(|db| {
            let said: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            for table in ["session", "machine", "session_machine", "run"] {
                db.prepare(&format!("SELECT * FROM {table}"))?;
            }
            Ok((said == "ok").then_some(db))
        });
        if let Ok(Some(db)) = whole {
            shared(&lock, state)?;
            return Self::of(db, state, Some(lock));
        }
        let mut index = Self::replace(state, lock)?;
        index.notes.push(format!(
            "{} was damaged ({why}) and has been built anew from the folders; no run is lost",
            file(state).display()
        ));
        Ok(index)
    }

    fn replace(state: &Path, lock: File) -> Result<Self, IndexError> {
        for suffix in ["", "-journal", "-wal", "-shm"] {
            let mut path = file(state).into_os_string();
            path.push(suffix);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(IndexError::io("cannot replace", path)(error));
                }
                _ => {}
            }
        }
        let db = connected(state)?;
        shared(&lock, state)?;
        Self::of(db, state, Some(lock))
    }

    fn in_memory(state: &Path, why: &IndexError) -> Result<Self, IndexError> {
        let db = Connection::open_in_memory()?;
        prepare(&db)?;
        let mut index = Self::of(db, state, None)?;
        index.notes.push(format!("{why}: every folder is read each time instead"));
        Ok(index)
    }
}

fn file(state: &Path) -> PathBuf {
    state.join("index.sqlite")
}

fn locked(state: &Path, operation: FlockOperation) -> Result<File, IndexError> {
    vmeter_base::files::private_folder(state).map_err(IndexError::io("cannot make", state))?;
    let path = state.join("index.lock");
    let lock = File::options()
        .append(true)
        .create(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(&path)
        .map_err(IndexError::io("cannot write", &path))?;
    flock(&lock, operation).map_err(|e| IndexError::io("cannot lock", &path)(e.into()))?;
    Ok(lock)
}

fn shared(lock: &File, state: &Path) -> Result<(), IndexError> {
    flock(lock, FlockOperation::LockShared)
        .map_err(|e| IndexError::io("cannot lock", state.join("index.lock"))(e.into()))
}

fn connected(state: &Path) -> Result<Connection, IndexError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(file(state), flags)?;
    db.busy_timeout(PATIENCE)?;
    prepare(&db)?;
    Ok(db)
}

/// Makes the tables of a fresh file; another version's is as good as damaged.
fn prepare(db: &Connection) -> Result<(), IndexError> {
    // What is lost with the power is built anew.
    db.pragma_update(None, "synchronous", "NORMAL")?;
    db.pragma_update(None, "cell_size_check", true)?;
    db.set_prepared_statement_cache_capacity(32);
    if version(db)? == VERSION {
        return refuse_foreign(db);
    }
    db.execute_batch("BEGIN IMMEDIATE")?;
    // Another vmeter may have been quicker.
    let made = version(db).and_then(|found| match found {
        0 => Ok(db
            .execute_batch(TABLES)
            .and_then(|()| db.pragma_update(None, "user_version", VERSION))?),
        VERSION => Ok(()),
        _ => Err(other_version()),
    });
    db.execute_batch(if made.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    made
}

/// A trigger or a view changes what vmeter's own statements do, and vmeter makes none.
fn refuse_foreign(db: &Connection) -> Result<(), IndexError> {
    let sql = "SELECT name FROM sqlite_schema WHERE type IN ('trigger', 'view')";
    let found: Option<String> = db.query_row(sql, [], |row| row.get(0)).optional()?;
    match found {
        Some(name) => Err(damaged(&format!("with {name:?} in it, which vmeter did not make"))),
        None => Ok(()),
    }
}

fn version(db: &Connection) -> Result<i64, IndexError> {
    Ok(db.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

fn other_version() -> IndexError {
    damaged("of another version of vmeter")
}

fn damaged(words: &str) -> IndexError {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB);
    IndexError::Sql(rusqlite::Error::SqliteFailure(code, Some(words.to_owned())))
}
