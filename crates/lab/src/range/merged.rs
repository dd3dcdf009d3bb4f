//! Shards of a range put together: what lies beside their runs.

use super::builds::{Build, Builds};
use super::record::{load, RECORD};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_model::range::RangeRecord;
use vmeter_session::failure::usage;
use vmeter_session::folder::own_folder;
use vmeter_session::trust;

/// The range that all shards are of.
///
/// # Errors
/// Class usage: shards of different ranges, or none.
pub(crate) fn common(shards: &[PathBuf]) -> Result<RangeRecord> {
    let mut common: Option<(RangeRecord, &Path)> = None;
    for dir in shards {
        let own = RangeRecord { builds_in: None, ..load(dir)? };
        match &common {
            Some((first, other)) if !same(first, &own) => {
                return Err(usage(format!(
                    "{} and {} are of different ranges: {RECORD} differs",
                    other.display(),
                    dir.display()
                )));
            }
            Some(_) => {}
            None => common = Some((own, dir)),
        }
    }
    common.map(|(record, _)| record).ok_or_else(|| usage("no shards of a range"))
}

/// Brings `range.json` and the records of builds into the merged folder. What the builds made
/// stays with the shards: a merged range that is gone on with builds again what it runs.
///
/// # Errors
/// As [`common`]; any error of the file system.
pub(crate) fn carry(shards: &[PathBuf], to: &Path) -> Result<()> {
    let record = common(shards)?;
    for dir in shards {
        builds(&load(dir)?.builds_in.unwrap_or_else(|| dir.clone()), to)?;
    }
    let ours = shards.iter().all(|dir| trust::is_ours(dir));
    trust::write(to, RECORD, serde_json::to_vec_pretty(&record)?, ours)
}

/// True for one range, wherever each host has the repository.
fn same(a: &RangeRecord, b: &RangeRecord) -> bool {
    let elsewhere = RangeRecord { repo: a.repo.clone(), ..b.clone() };
    *a == elsewhere
}

fn builds(store: &Path, to: &Path) -> Result<()> {
    if store == to {
        return Ok(());
    }
    let (from, to) = (store.join("builds"), own_folder(to, "builds")?);
    let context = || format!("cannot copy {} to {}", from.display(), to.display());
    for entry in fs::read_dir(&from).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !matches!(path.extension().and_then(OsStr::to_str), Some("json" | "log")) {
            continue;
        }
        let target = to.join(entry.file_name());
        if !target.exists() {
            fs::copy(&path, &target).with_context(context)?;
        }
    }
    files::sync_folder(&to).with_context(context)
}

/// Labels of the commits that no host could build.
pub(crate) fn failed_builds(dir: &Path) -> BTreeSet<String> {
    let Ok(record) = load(dir) else { return BTreeSet::new() };
    let builds = Builds::new(&record, dir, Vec::new());
    let all = record
        .commits
        .iter()
        .flat_map(|commit| (1..=record.builds.max(1)).map(move |number| Build { commit, number }));
    let failed = |build: &Build<'_>| builds.done(*build).is_some_and(|b| b.failure.is_some());
    all.filter(failed).map(|build| build.label()).collect()
}
