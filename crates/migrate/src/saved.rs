//! Finished runs in a folder, so that an interrupted measurement can be gone on with.

use crate::error::MigrateError;
use crate::experiment::Options;
use crate::summary::Limits;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use vmeter_model::files::{read_limited, write_atomic};
use vmeter_model::migrate::MigrateRun;
use vmeter_stats::Slot;

/// Largest run that is read back, bytes.
const LIMIT: u64 = 64 << 20;

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
    kill: Option<crate::vm::Side>,
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
        let file = folder.join("migrate.json");
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
            fs::create_dir_all(folder)
                .and_then(|()| write_atomic(&file, &bytes?))
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
