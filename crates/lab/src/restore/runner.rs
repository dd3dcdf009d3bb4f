//! Making the snapshots of a session, and carrying out its restores.

use super::config::{Config, Prefetch, PLACE};
use super::image::{placed, resident, Cache};
use super::make::{by_command, by_vmm, Made};
use super::pages;
use super::prefetch::{self, list_of};
use super::proof;
use super::saved_machine::{Making, Saved};
use crate::at_once::at_once;
use crate::booter::Recorder;
use crate::boots::{self, BootRequest, Booter};
use crate::prepare::Prepared;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use vmeter_model::run::{Outcome, PlannedRun, RunRecord, SessionMachine, SessionRecord};
use vmeter_record::recorder::{Loaded, Snapshot};
use vmeter_session::failure::{failure, usage, Class};
use vmeter_session::folder::{note_tree, own_tree, IMAGE};
use vmeter_session::{Runner, Session, Watch};

/// The snapshot of the user's own commands is in a folder of this name.
const GIVEN: &str = "given";

/// What a machine restores, and how.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// None for a machine that boots.
    cache: Option<Cache>,
    /// None for the user's own commands, and for a boot.
    saved: Option<Saved>,
    /// Pages are loaded before the VMM starts.
    pub prefetched: bool,
}

impl Target {
    /// The user's own commands.
    pub fn given(cache: Cache) -> Self {
        Target { cache: Some(cache), ..Target::boot() }
    }

    /// A machine that vmeter saves.
    pub fn saved(saved: Saved, cache: Cache) -> Self {
        Target { cache: Some(cache), saved: Some(saved), ..Target::boot() }
    }

    /// A machine that boots.
    pub fn boot() -> Self {
        Target { cache: None, saved: None, prefetched: false }
    }

    /// The same with pages that are loaded first.
    pub fn prefetched(self) -> Self {
        Target { prefetched: true, ..self }
    }

    /// True where the guest's RAM may be a file that is mapped.
    pub fn may_map(&self) -> bool {
        self.saved.as_ref().is_none_or(Saved::maps)
    }

    /// True where it is known which pages of the RAM's file its guest has.
    fn knows_pages(&self) -> bool {
        self.saved.as_ref().is_none_or(|s| s.maps() || s.served(Path::new("")).is_some())
    }

    /// The name of its snapshot's folder.
    fn folder(&self) -> &'static str {
        self.saved.as_ref().map_or(GIVEN, |saved| saved.method.word())
    }
}

/// Restores, as the runs of a session.
#[derive(Debug)]
pub struct Restores {
    recorder: Recorder,
    /// Machines, in the session's order.
    targets: Vec<Target>,
    /// Their command lines, with the place of the snapshot left open.
    argv: Vec<Vec<OsString>>,
    /// Each machine's snapshot; none for a boot.
    made: Vec<Option<Made>>,
    /// The folder of all snapshots.
    images: PathBuf,
    /// What the session is begun with.
    config: Config,
}

impl Restores {
    pub(super) fn new(recorder: Recorder, targets: Vec<Target>) -> Self {
        let argv = recorder.machines.iter().map(|one| one.machine.argv.clone()).collect();
        let made = vec![None; targets.len()];
        Restores {
            recorder,
            targets,
            argv,
            made,
            images: PathBuf::new(),
            config: Config::default(),
        }
    }

    /// As [`Recorder::widen`].
    pub(super) fn widen(&self, record: &mut SessionRecord) {
        self.recorder.widen(record);
    }

    /// True if a machine goes on from a snapshot.
    pub(super) fn restores(&self, machine: usize) -> bool {
        self.targets.get(machine).is_some_and(|target| target.cache.is_some())
    }

    /// True if all runs are there.
    pub(super) fn is_complete(&self, session: &Session) -> Result<bool> {
        let (finished, _) = session.finished()?;
        let there: BTreeSet<u32> = finished.iter().map(|(_, run)| run.index).collect();
        Ok((0..).zip(&session.record.plan).all(|(index, _)| there.contains(&index)))
    }

    /// Makes the snapshots that are not there: those that were made.
    pub(super) fn make(
        &mut self,
        config: &Config,
        session: &Session,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<Made>> {
        let place = std::path::absolute(own_tree(&session.dir, IMAGE)?)?;
        self.images = place;
        self.config = config.clone();
        let mut new = Vec::new();
        for at in 0..self.targets.len() {
            let target = self.targets[at].clone();
            let Some(prepared) = self.recorder.machines.get(at) else { continue };
            if target.cache.is_none() {
                continue;
            }
            let image = self.images.join(target.folder());
            let made = match Made::in_folder(&image) {
                Some(made) => made,
                None => {
                    empty_folder(&image)?;
                    watch.progress.note(&format!("making a snapshot ({})", target.folder()));
                    let made = self.make_one(&target, prepared, config, &image, watch);
                    let mut made = made.inspect_err(|_| drop(note_tree(&self.images)))?;
                    if target.knows_pages() {
                        let kernel = prepared.machine.kernel.as_deref();
                        let cache = &self.recorder.cache;
                        made.unnamed = pages::note(&made.files, kernel, cache, &image);
                    }
                    made.note(&image)?;
                    note_tree(&self.images)?;
                    new.push(made.clone());
                    made
                }
            };
            self.made[at] = Some(made);
        }
        Ok(new)
    }

    fn make_one(
        &self,
        target: &Target,
        prepared: &Prepared,
        config: &Config,
        image: &Path,
        watch: &Watch<'_>,
    ) -> Result<Made> {
        let until = prepared.until.pattern();
        let filled = |text: &str| text.replace(PLACE, &image.display().to_string());
        if let Some(saved) = &target.saved {
            let missing = "--ready: expected line:REGEX, a line of the guest's console";
            let until = until.as_ref().ok_or_else(|| usage(missing))?;
            let (timeout, pin) = (prepared.timeout, &self.recorder.pin[..]);
            return by_vmm(&Making { saved, until, timeout, pin }, image, watch);
        }
        let create = filled(config.create.as_deref().unwrap_or_default());
        let restore: Vec<String> =
            prepared.session.spec.command.iter().map(|word| filled(word)).collect();
        let own: Vec<PathBuf> =
            config.images.iter().map(|file| filled(&file.display().to_string()).into()).collect();
        by_command((&create, &restore), &own, until.as_ref(), image, watch.interrupt)
    }

    /// Fills in the place of a machine's snapshot, and sees to the page cache.
    fn ready(&mut self, at: usize, warmup: bool) -> Result<()> {
        let target = &self.targets[at];
        let (Some(cache), Some(made)) = (target.cache, &self.made[at]) else { return Ok(()) };
        let image = self.images.join(target.folder());
        let shown = image.display().to_string();
        let prepared = &mut self.recorder.machines[at];
        let (mut commands, mut requests, mut served) = (Vec::new(), Vec::new(), None);
        match &target.saved {
            Some(saved) => {
                prepared.machine = saved.restored(&image);
                (commands, requests) = (saved.commands(&image), saved.requests(&image));
                served = saved.served(&image);
            }
            None => {
                let words = self.argv[at].iter().map(|word| fill(word, &shown));
                prepared.machine.argv = words.collect();
            }
        }
        let waits = at_once(&prepared.session) > 1;
        let mut files = placed(&made.files, cache)?;
        let loaded = if target.prefetched { self.load(&made.files, &image, warmup)? } else { None };
        if loaded.is_some() {
            files = resident(&made.files)?;
        }
        let mapped = target.may_map() && !waits;
        let prepared = &mut self.recorder.machines[at];
        let owners = Some(image.join(pages::OWNERS)).filter(|path| path.is_file());
        prepared.snapshot =
            Some(Snapshot { files, commands, requests, served, owners, waits, mapped, loaded });
        Ok(())
    }

    /// Loads the pages that are to be there before the VMM starts. A warm-up may come before those that say
    /// which.
    fn load(&self, files: &[PathBuf], image: &Path, warmup: bool) -> Result<Option<Loaded>> {
        match list_of(&self.config, image)? {
            Some(list) => list.load(files).map(Some),
            None if warmup => Ok(None),
            None => Err(failure(
                Class::Answer,
                "`--prefetch first` has no pages to load, because the VMM mapped no file of the \
                    snapshot in any warm-up",
            )),
        }
    }

    /// Notes the pages of a warm-up, if later restores are to have them loaded first.
    fn note_pages(
        &self,
        target: &Target,
        request: &BootRequest<'_>,
        run: &RunRecord,
    ) -> Result<()> {
        let first = self.config.prefetch == Some(Prefetch::First);
        if first && request.planned.warmup && target.may_map() && !target.prefetched {
            let image = self.images.join(target.folder());
            prefetch::narrow(&image, &(request.dir.to_owned(), run.clone()))?;
        }
        Ok(())
    }
}

fn fill(word: &OsString, place: &str) -> OsString {
    match word.to_str() {
        Some(text) => text.replace(PLACE, place).into(),
        None => word.clone(),
    }
}

fn empty_folder(image: &Path) -> Result<()> {
    let made = std::fs::remove_dir_all(image).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    });
    made.and_then(|()| std::fs::create_dir_all(image))
        .with_context(|| format!("cannot make {}", image.display()))
}

/// Removes the snapshots of a session that is done.
pub(super) fn remove(session: &Session) -> Result<()> {
    let images = own_tree(&session.dir, IMAGE)?;
    for gone in
        [std::fs::remove_dir_all(&images), std::fs::remove_file(images.with_extension("files"))]
    {
        match gone {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", images.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

impl Runner<PlannedRun> for Restores {
    type Run = RunRecord;

    fn run(&mut self, request: &BootRequest<'_>) -> Result<RunRecord> {
        let at = request.planned.machine;
        if at >= self.targets.len() {
            return Err(usage(format!("session.json: run {} names no machine", request.index)));
        }
        self.ready(at, request.planned.warmup)?;
        let mut run = self.recorder.boot(request)?;
        if let Some(made) = &self.made[at] {
            let until = self.recorder.machines[at].until.pattern();
            let drawn: Vec<String> = made.nonce.iter().cloned().collect();
            let judged = proof::judge(request.dir, &run, until.as_ref(), &drawn);
            if let (Err(why), true) = (judged, run.outcome != Outcome::Interrupted) {
                let how = format!("the guest was booted, not restored: {why}");
                run.outcome = Outcome::UnexpectedEnd { how };
            }
            self.note_pages(&self.targets[at], request, &run)?;
            // QEMU writes to a qcow2 file that it only reads from.
            note_tree(&self.images)?;
        }
        Ok(run)
    }

    fn prepare_command(&self, command: &str, _: &SessionMachine) -> String {
        command.to_owned()
    }

    fn summary(&self, run: &RunRecord) -> String {
        boots::summary_of(run)
    }

    fn fatal_reason(&self, run: &RunRecord) -> Option<String> {
        boots::fatal_reason(run)
    }

    fn add_note(&self, run: &mut RunRecord, remark: &str) {
        run.warnings.push(remark.to_owned());
    }

    fn was_interrupted(&self, run: &RunRecord) -> bool {
        run.outcome == Outcome::Interrupted
    }
}
