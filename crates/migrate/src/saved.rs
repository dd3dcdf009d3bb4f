//! Finished runs in a folder, so that an interrupted measurement can be gone on with.

use crate::error::MigrateError;
use crate::experiment::Options;
use crate::summary::Limits;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use vmeter_base::files::{read_limited, write_atomic, write_in_new_folder};
use vmeter_model::migrate::{MigrateResult, MigrateRun};
use vmeter_stats::Slot;

/// Largest run that is read back, bytes.
const LIMIT: u64 = 64 << 20;

/// What was measured, beside the runs.
const PLAN: &str = "migrate.json";
/// What came of it.
const RESULT: &str = "result.json";

/// A folder of runs, or none.
pub struct Saved {
    folder: Option<PathBuf>,
    resume: bool,
}

/// A run on disk.
#[derive(Serialize, Deserialize)]
struct Kept {
    schema: String,
    limits: Limits,
    run: MigrateRun,
}

/// What must be the same for runs to be of one measurement.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct Plan {
    schema: String,
    points: Vec<String>,
    seed: u64,
    warmup: usize,
    kill: Option<crate::side::Side>,
}

impl Saved {
    /// Makes the folder, or finds it to be of this measurement.
    ///
    /// # Errors
    /// A folder that is not empty, or not of this measurement, or cannot be written.
    pub fn open(
        folder: Option<&Path>,
        resume: bool,
        options: &Options,
    ) -> Result<Self, MigrateError> {
        let Some(folder) = folder else { return Ok(Self { folder: None, resume }) };
        let plan = Plan {
            schema: vmeter_model::SCHEMA.into(),
            points: options
                .points
                .iter()
                .map(|point| format!("{} {:?}", point.label(), point.knobs))
                .collect(),
            seed: options.seed,
            warmup: options.warmup,
            kill: options.kill,
        };
        let file = folder.join(PLAN);
        let usage = |what: &str| MigrateError::Usage(format!("{}: {what}", folder.display()));
        if resume {
            let bytes = read_limited(&file, LIMIT).map_err(|e| usage(&e.to_string()))?;
            let found: Plan = serde_json::from_slice(&bytes)
                .map_err(|e| usage(&format!("not a measurement of vmeter migrate: {e}")))?;
            if found != plan {
                return Err(usage(
                    "a measurement of other points, or of another --seed or --warmup; give the \
                     options that it was begun with",
                ));
            }
        } else {
            if file.exists() {
                return Err(usage(
                    "has runs already; go on with them by --resume, or name another",
                ));
            }
            let bytes = serde_json::to_vec_pretty(&plan).map_err(std::io::Error::from);
            bytes
                .and_then(|bytes| write_in_new_folder(&file, &bytes))
                .map_err(|e| usage(&format!("cannot be written: {e}")))?;
        }
        Ok(Self { folder: Some(folder.to_owned()), resume })
    }

    fn file(&self, index: usize) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{index:04}.json")))
    }

    /// A run that was finished before.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn take(
        &self,
        index: usize,
        slot: &Slot,
    ) -> Result<Option<(MigrateRun, Limits)>, MigrateError> {
        let file = self.file(index).filter(|file| self.resume && file.exists());
        let Some(file) = file else { return Ok(None) };
        let wrong = |e: String| {
            MigrateError::Usage(format!("{}: {e}; remove it to run it again", file.display()))
        };
        let bytes = read_limited(&file, LIMIT).map_err(|e| wrong(e.to_string()))?;
        let kept: Kept = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
        if kept.run.point != slot.machine {
            return Err(wrong("a run of another point".into()));
        }
        Ok(Some((kept.run, kept.limits)))
    }

    /// Keeps what came of it, for [`result`].
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(&self, result: &MigrateResult) -> Result<(), MigrateError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let bytes = serde_json::to_vec(result).map_err(std::io::Error::from);
        bytes
            .and_then(|bytes| write_atomic(&folder.join(RESULT), &bytes))
            .map_err(MigrateError::io("saving the result"))
    }

    /// Keeps a finished run.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(
        &self,
        index: usize,
        run: &MigrateRun,
        limits: &Limits,
    ) -> Result<(), MigrateError> {
        let Some(file) = self.file(index) else { return Ok(()) };
        let kept = Kept { schema: vmeter_model::SCHEMA.into(), limits: *limits, run: run.clone() };
        let bytes = serde_json::to_vec(&kept).map_err(std::io::Error::from);
        bytes
            .and_then(|bytes| write_atomic(&file, &bytes))
            .map_err(MigrateError::io("saving a run"))
    }
}

/// Whether a measurement was begun in this folder.
pub fn is_saved(folder: &Path) -> bool {
    folder.join(PLAN).exists()
}

/// The result that a measurement with `--save` left in this folder.
///
/// # Errors
/// When the measurement was killed before it had one, or it cannot be read.
pub fn result(folder: &Path) -> Result<MigrateResult, MigrateError> {
    let file = folder.join(RESULT);
    let usage = |what: String| MigrateError::Usage(format!("{}: {what}", folder.display()));
    let next = "vmeter migrate --resume DIR, with the options that it was begun with, measures \
                what is left and shows all of it";
    if !file.exists() {
        return Err(usage(format!("a measurement of vmeter migrate without a result; {next}")));
    }
    let read = read_limited(&file, LIMIT).map_err(|e| e.to_string());
    let parsed = read.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|e| e.to_string()));
    let found: MigrateResult = parsed.map_err(|e| usage(format!("{RESULT}: {e}; {next}")))?;
    if found.envelope.schema != vmeter_model::SCHEMA {
        let (is, want) = (&found.envelope.schema, vmeter_model::SCHEMA);
        return Err(usage(format!("{RESULT} is of schema {is:?}, expected {want:?}; {next}")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_without_a_result_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_saved(folder.path()));
        fs::write(folder.path().join(PLAN), "{}").unwrap();
        assert!(is_saved(folder.path()));
        let said = || result(folder.path()).unwrap_err().to_string();
        assert!(said().contains("--resume DIR"), "{}", said());
        fs::write(folder.path().join(RESULT), "{\"runs\": 3}").unwrap();
        assert!(said().contains("result.json") && said().contains("--resume"), "{}", said());
    }
}
