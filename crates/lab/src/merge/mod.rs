//! `vmeter merge`: one session out of shards.
//!
//! Shards of one plan hold different runs under the numbers of that plan, so merging is a
//! union of run folders: hard links where the file system has them. What comes out is an
//! ordinary session; which host carried out which run is noted in it, and the analysis takes
//! the hosts' factors out.

mod sameness;

use crate::kinds;
use crate::missing::missing_runs;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_model::run::{AnyPlanned, RunHead, SessionRecord};
use vmeter_model::shard::HostShare;
use vmeter_session::failure::usage;
use vmeter_session::folder::{clear_run, own_folder, Folder};
use vmeter_session::{fresh_dir, is_saved, shares, trust, Answer, AnySession, Shardable};

/// What to put together.
#[derive(Debug, Clone, Default)]
pub struct MergeOptions {
    /// Folders of the shards.
    pub dirs: Vec<PathBuf>,
    /// Folder of the result; a fresh one under the state folder if absent.
    pub save: Option<PathBuf>,
    /// Put hosts together that differ in more than their names.
    pub mixed_hosts: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Merged {
    /// The merged session.
    pub session: AnySession,
    /// Runs that are in several shards, hosts that differ; in words.
    pub notes: Vec<String>,
    /// Measured runs of the plan that no shard has, by point.
    pub missing: Vec<String>,
}

impl Merged {
    /// The merged session, as `vmeter show` shows it.
    ///
    /// # Errors
    /// When the folder cannot be read, or holds no run.
    pub fn answer(&self) -> Result<Box<dyn Answer>> {
        kinds::of(&self.session)?.answer(&self.session.dir)
    }
}

/// A shard, read.
struct Part {
    session: AnySession,
    runs: Vec<(PathBuf, RunHead)>,
}

/// Puts shards together into one session.
///
/// # Errors
/// Class usage: a folder that holds no session, shards of different plans, hosts that differ
/// and were not allowed to, a folder to save in that holds a session already. Otherwise any
/// error of the file system.
pub fn merge(options: &MergeOptions) -> Result<Merged> {
    merged(options, |record| {
        let dir = options.save.clone().map_or_else(|| fresh_dir(record), Ok)?;
        Folder::make(&dir)
    })
}

/// As [`merge`], into a folder of vmeter's that the shards are in.
///
/// # Errors
/// As [`merge`].
pub(crate) fn merge_into(folder: Folder, options: &MergeOptions) -> Result<Merged> {
    merged(options, |_| Ok(folder))
}

fn merged(
    options: &MergeOptions,
    folder: impl FnOnce(&SessionRecord<AnyPlanned>) -> Result<Folder>,
) -> Result<Merged> {
    let mut notes = Vec::new();
    let parts = read(&options.dirs, &mut notes)?;
    let first = parts.first().ok_or_else(|| usage("nothing to merge: name the shards' folders"))?;
    let session = &first.session;
    let kind = kinds::of(session)?;
    let cut = kind.cut().map_err(|why| {
        let dir = session.dir.display();
        usage(format!("{dir} is a session of vmeter {}: {why}", kind.kind()))
    })?;
    sameness::check_plans(&parts)?;
    cut.check(&folders(&parts))?;
    let (differences, tolerated) = sameness::differences(&parts, cut.builds());
    notes.extend(tolerated);
    if !differences.is_empty() && !options.mixed_hosts {
        return Err(usage(format!(
            "the shards did not run under equal conditions ({}), so vmeter cannot pool their \
                times. To merge the shards nevertheless, give --mixed-hosts: vmeter then \
                divides each host's times by its host factor (how many times as long a run takes \
                there)",
            differences.join("; ")
        )));
    }
    notes.extend(differences);
    let chosen = choose(&parts, &mut notes);
    let mut record = first.session.record.clone();
    record.shard = None;
    record.notes.clone_from(&notes);
    record.started_at =
        parts.iter().map(|p| p.session.record.started_at.clone()).min().unwrap_or_default();
    (record.host, record.shares) = hosts(&parts, &chosen);
    let folder = folder(&record)?;
    let session = write(record, &parts, &chosen, folder, cut)?;
    let (finished, warnings) = session.finished_as()?;
    notes.extend(warnings);
    let heads = finished
        .iter()
        .map(|(_, run): &(PathBuf, RunHead)| (run.index, run.label.as_str(), &run.outcome));
    let ignore_missing = cut.ignore_missing(&session.dir);
    let mut missing = missing_runs(&session.record, heads);
    missing.retain(|short| !ignore_missing.contains(short.split(' ').next().unwrap_or_default()));
    Ok(Merged { session, notes, missing })
}

fn read(dirs: &[PathBuf], notes: &mut Vec<String>) -> Result<Vec<Part>> {
    let mut seen = BTreeSet::new();
    let mut parts = Vec::new();
    for dir in dirs {
        let same = fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
        if !seen.insert(same) {
            notes.push(format!("{} was named twice", dir.display()));
            continue;
        }
        let session = AnySession::open(dir)?;
        let (runs, warnings) = session.finished_as()?;
        notes.extend(warnings);
        parts.push(Part { session, runs });
    }
    Ok(parts)
}

/// Which part each run is taken from. Of a run that several have, its shard's own is taken,
/// or else the first.
fn choose(parts: &[Part], notes: &mut Vec<String>) -> BTreeMap<u32, usize> {
    let owns = |part: &Part, run: u32| {
        part.session.record.shard.as_ref().is_some_and(|own| own.runs.contains(&run))
    };
    let mut holders: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, part) in parts.iter().enumerate() {
        for (_, run) in &part.runs {
            holders.entry(run.index).or_default().push(at);
        }
    }
    let mut chosen = BTreeMap::new();
    for (run, held_by) in holders {
        let own = held_by.iter().find(|at| parts.get(**at).is_some_and(|p| owns(p, run)));
        let Some(taken) = own.or(held_by.first()).copied() else { continue };
        chosen.insert(run, taken);
        if held_by.len() > 1 {
            let dir = |at: &usize| {
                parts.get(*at).map(|p| p.session.dir.display().to_string()).unwrap_or_default()
            };
            let dirs: Vec<String> = held_by.iter().map(dir).collect();
            let label = parts.get(taken).and_then(|p| label_of(p, run)).unwrap_or_default();
            notes.push(format!(
                "run {run} ({label}) is in {}; vmeter uses the copy in {}",
                dirs.join(" and in "),
                dir(&taken)
            ));
        }
    }
    chosen
}

fn folders(parts: &[Part]) -> Vec<PathBuf> {
    parts.iter().map(|part| part.session.dir.clone()).collect()
}

fn label_of(part: &Part, run: u32) -> Option<String> {
    part.runs.iter().find(|(_, r)| r.index == run).map(|(_, r)| r.label.clone())
}

/// The first host, and what the others carried out of the runs taken.
fn hosts(parts: &[Part], chosen: &BTreeMap<u32, usize>) -> (shares::Host, Vec<HostShare>) {
    let mut found: Vec<(shares::Host, BTreeSet<u32>)> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let own: BTreeSet<u32> = part.runs.iter().map(|(_, run)| run.index).collect();
        for (host, runs) in shares::hosts(&part.session.record, &own) {
            let runs = runs.into_iter().filter(|run| chosen.get(run) == Some(&at));
            let runs: BTreeSet<u32> = runs.collect();
            match found.iter_mut().find(|(known, _)| shares::is_same(known, &host)) {
                Some((_, all)) => all.extend(runs),
                None => found.push((host, runs)),
            }
        }
    }
    found.retain(|(_, runs)| !runs.is_empty());
    let mut found = found.into_iter();
    let first = found.next().map(|(host, _)| host);
    let first = first.or_else(|| parts.first().map(|p| p.session.record.host.clone()));
    let share = |(host, runs): (shares::Host, BTreeSet<u32>)| HostShare {
        host,
        runs: runs.into_iter().collect(),
    };
    (first.unwrap_or_default(), found.map(share).collect())
}

/// Runs first, `session.json` last: a folder with one is whole.
fn write(
    record: SessionRecord<AnyPlanned>,
    parts: &[Part],
    chosen: &BTreeMap<u32, usize>,
    folder: Folder,
    cut: &dyn Shardable,
) -> Result<AnySession> {
    let runs = own_folder(folder.dir(), "runs")?;
    let mut session = AnySession::of(folder, record);
    // Others' commands do not become this user's own by being merged.
    if parts.iter().all(|part| trust::is_ours(&part.session.dir)) {
        session.is_ours();
    }
    for (run, at) in chosen {
        let Some(part) = parts.get(*at) else { continue };
        let from = part.session.run_dir(*run);
        copy(&from, &session, *run)
            .with_context(|| format!("cannot put {} into {}", from.display(), runs.display()))?;
    }
    files::sync_folder(&runs).with_context(|| format!("cannot write {}", runs.display()))?;
    cut.copy_extra(&folders(parts), &session.dir)?;
    if let Some(gone) = parts.iter().find(|part| !is_saved(&part.session.dir)) {
        let dir = gone.session.dir.display();
        return Err(usage(format!("{dir} was removed while vmeter read it: nothing was merged")));
    }
    session.save()?;
    Ok(session)
}

/// Makes `run` of the session hold what `from` does, whole or not at all. Runs never change
/// once they are finished, so that a hard link is as good as a copy.
fn copy(from: &Path, session: &AnySession, run: u32) -> Result<()> {
    let partial = session.begin_run(run)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let target = partial.join(entry.file_name());
        if fs::hard_link(entry.path(), &target).is_err() {
            fs::copy(entry.path(), &target)?;
            fs::File::open(&target)?.sync_all()?;
        }
    }
    files::sync_folder(&partial)?;
    // Of a merge that was killed.
    clear_run(&session.run_dir(run))?;
    fs::rename(&partial, session.run_dir(run))?;
    Ok(())
}
