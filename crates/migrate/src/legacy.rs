//! Measurements that vmeter saved before they were sessions: a folder with `migrate.json`
//! (what was measured), a file for each run, and `result.json` (what it came to). The
//! settings were kept as text for people, so only the result can be read again.

use crate::result::MigrateResult;
use anyhow::Result;
use std::path::Path;
use vmeter_base::files::read_limited;
use vmeter_model::SCHEMA;
use vmeter_session::failure::usage;

/// What was measured.
const PLAN: &str = "migrate.json";
/// What came of it.
const RESULT: &str = "result.json";
/// Largest result that is read, bytes.
const LIMIT: u64 = 64 << 20;
/// What to do with one that cannot be read.
const NEXT: &str =
    "measure anew, or go on with the vmeter that began it: this one shows its finished measurements";

/// Refuses to go on with such a folder.
///
/// # Errors
/// Class usage.
pub fn check_resumed(dir: &Path) -> Result<()> {
    if !dir.join(PLAN).exists() {
        return Ok(());
    }
    let dir = dir.display();
    Err(usage(format!("{dir} was begun by an older vmeter: {NEXT}")))
}

/// The result in such a folder; nothing if it is none.
pub fn result(dir: &Path) -> Option<Result<MigrateResult>> {
    dir.join(PLAN).exists().then(|| read(dir))
}

fn read(dir: &Path) -> Result<MigrateResult> {
    let file = dir.join(RESULT);
    let wrong = |what: String| usage(format!("{}: {what}; {NEXT}", file.display()));
    if !file.exists() {
        return Err(wrong("missing, so the measurement was not finished".into()));
    }
    let bytes = read_limited(&file, LIMIT).map_err(|error| wrong(error.to_string()))?;
    let mut found: MigrateResult =
        serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    if found.envelope.schema != SCHEMA {
        let is = &found.envelope.schema;
        return Err(wrong(format!("schema {is:?}, expected {SCHEMA:?}")));
    }
    found.saved_in = dir.display().to_string();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_without_a_result_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        assert!(result(folder.path()).is_none());
        assert!(check_resumed(folder.path()).is_ok());
        fs::write(folder.path().join(PLAN), "{}").unwrap();
        let said = || result(folder.path()).unwrap().unwrap_err().to_string();
        assert!(said().contains("was not finished; measure anew"), "{}", said());
        fs::write(folder.path().join(RESULT), "{\"runs\": 3}").unwrap();
        assert!(said().contains("result.json: invalid type"), "{}", said());
        let refused = check_resumed(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("an older vmeter"), "{refused}");
    }
}
