//! `range.json`: what a saved range is about.

use anyhow::Result;
use std::path::Path;
use vmeter_base::files;
use vmeter_model::range::RangeRecord;
use vmeter_model::SCHEMA;
use vmeter_session::failure::usage;
use vmeter_session::{folder, Session};

pub(crate) const RECORD: &str = "range.json";
const MAX_JSON: u64 = 64 << 20;

/// Writes `range.json`.
///
/// # Errors
/// Any error of the file system.
pub(crate) fn save(session: &Session, record: &RangeRecord) -> Result<()> {
    session.write(RECORD, serde_json::to_vec_pretty(record)?)
}

/// What a saved range is about.
///
/// # Errors
/// Class usage: a file that is missing or not of this version.
pub(crate) fn load(dir: &Path) -> Result<RangeRecord> {
    let path = dir.join(RECORD);
    let wrong = |e: &dyn std::fmt::Display| usage(format!("{}: {e}", path.display()));
    let bytes = files::read_limited(&path, MAX_JSON).map_err(|e| wrong(&e))?;
    let record: RangeRecord = serde_json::from_slice(&bytes).map_err(|e| wrong(&e))?;
    if record.schema != SCHEMA {
        let found = &record.schema;
        return Err(wrong(&format!("format {found:?}, and this vmeter reads {SCHEMA:?}")));
    }
    // Files are called by them, and folders are removed that are.
    if let Some(odd) = record.commits.iter().find(|commit| !folder::is_hash(&commit.hash)) {
        return Err(wrong(&format!("{:?} is no commit's hash", odd.hash)));
    }
    Ok(record)
}
