//! Which of a session's files have changed since it was begun.

use crate::identity::{identity, read_by, same};
use crate::store::Session;
use anyhow::Result;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vmeter_model::run::{Planned, RunHead};

/// Refuses to go on with a session of which a file is another by now: its runs would be of two
/// machines. Gives what is to be noted anew: of a session without a finished run, the texts that
/// one that was cut off may have written.
///
/// # Errors
/// Class usage: what differs.
pub fn check<P: Planned>(session: &Session<P>) -> Result<BTreeMap<String, String>> {
    let Changes { anew, others } = changes(session)?;
    same(session.dir.as_path(), &others)?;
    Ok(anew)
}

/// What became of a session's files since it was begun.
pub struct Changes {
    /// To be noted anew: texts that a run which was cut off may have written.
    pub anew: BTreeMap<String, String>,
    /// Others by now, in words.
    pub others: Vec<String>,
}

/// Looks at a session's files.
///
/// # Errors
/// When its runs cannot be read.
pub fn changes<P: Planned>(session: &Session<P>) -> Result<Changes> {
    let mut anew = BTreeMap::new();
    let programs = &session.record.programs;
    let read = read_by(&session.record.machines);
    let mut windows = None;
    let mut others = Vec::new();
    for (path, was) in programs {
        let file = Path::new(path);
        let is = identity(file);
        if is.as_ref() == Some(was) {
            continue;
        }
        let windows = windows.get_or_insert_with(|| runs_of(session));
        let named = read.iter().any(|read| read == file);
        if named && windows.is_empty() {
            anew.extend(is.map(|is| (path.clone(), is)));
        } else if !(named && written_within(file, windows)) {
            others.push(format!("{path} ({was}; now {})", is.as_deref().unwrap_or("gone")));
        }
    }
    Ok(Changes { anew, others })
}

/// From when to when runs were under way, by the clock that files have, s.
fn runs_of<P: Planned>(session: &Session<P>) -> Vec<(i64, i64)> {
    let (runs, _) = session.finished_as::<RunHead>().unwrap_or_default();
    let window = |head: &RunHead| {
        let first = head.clocks.first()?.realtime_ns / 1_000_000_000;
        // A VMM is held for a while after its guest's end, which is no part of a total.
        let last = head.clocks.last()?.realtime_ns / 1_000_000_000;
        let over = last.max(first + head.total_ns.max(0) / 1_000_000_000);
        Some((first - 1, over + 2))
    };
    runs.iter().filter_map(|(_, head)| window(head)).collect()
}

fn written_within(path: &Path, windows: &[(i64, i64)]) -> bool {
    let changed = path.metadata().map(|found| found.mtime());
    changed.is_ok_and(|at| windows.iter().any(|(from, to)| (*from..=*to).contains(&at)))
}
