//! Building commits, once each, and keeping what the runs need of them.

use crate::range::history::Checkout;
use crate::range::lock;
use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use vmeter_base::files;
use vmeter_model::range::{BuildRecord, Commit, RangeRecord};
use vmeter_model::SCHEMA;
use vmeter_session::failure::{failure, Class};
use vmeter_session::folder::{checkout_of, note_tree, own_folder, own_tree, set_checkout_aside};
use vmeter_session::{subcommand, Interrupt, Watch};

/// A build's record is small; a larger file is none.
const MAX_JSON: u64 = 1 << 20;
/// How much of a build's output an error repeats, bytes.
const LOG_TAIL: usize = 2000;

/// The builds of one session: `builds/HASH.json`, `builds/HASH.log`, `kept/HASH/…`.
#[derive(Debug)]
pub struct Builds<'a> {
    record: &'a RangeRecord,
    /// The session's folder.
    dir: PathBuf,
    /// Folder of the builds: the session's, or one that it shares with other shards.
    store: PathBuf,
    /// Paths below the checkout that the machine names.
    references: Vec<String>,
}

/// A build of a commit: which of its builds.
#[derive(Debug, Clone, Copy)]
pub struct Build<'c> {
    /// The commit.
    pub commit: &'c Commit,
    /// From 1.
    pub number: u32,
}

impl Build<'_> {
    /// What its files are called by.
    fn name(&self) -> String {
        match self.number {
            0 | 1 => self.commit.hash.clone(),
            n => format!("{}-{n}", self.commit.hash),
        }
    }

    /// The label of its machine.
    pub fn label(&self) -> String {
        RangeRecord::label(self.commit, self.number)
    }
}

impl<'a> Builds<'a> {
    /// Of the session in `dir`.
    pub fn new(record: &'a RangeRecord, dir: &Path, references: Vec<String>) -> Self {
        let store = record.builds_in.clone().unwrap_or_else(|| dir.to_owned());
        Builds { record, dir: dir.to_owned(), store, references }
    }

    /// Where what is kept of a build is, in the place of the checkout.
    pub fn kept(&self, build: Build<'_>) -> PathBuf {
        self.store.join("kept").join(build.name())
    }

    /// The log of a build.
    pub fn log(&self, build: Build<'_>) -> PathBuf {
        self.store.join("builds").join(format!("{}.log", build.name()))
    }

    fn file(&self, build: Build<'_>) -> PathBuf {
        self.store.join("builds").join(format!("{}.json", build.name()))
    }

    /// How a build ended, if it did.
    pub fn done(&self, build: Build<'_>) -> Option<BuildRecord> {
        let bytes = files::read_limited(&self.file(build), MAX_JSON).ok()?;
        let own = |b: &BuildRecord| (&b.hash, b.build) == (&build.commit.hash, build.number);
        serde_json::from_slice(&bytes).ok().filter(own)
    }

    /// How a build ended, if nothing is left to do: a merged session has the
    /// records of builds, and not what they made.
    fn ready(&self, build: Build<'_>) -> Option<BuildRecord> {
        self.done(build).filter(|b| b.failure.is_some() || self.kept(build).exists())
    }

    /// Builds a commit, or takes it as it was built before.
    ///
    /// # Errors
    /// An interruption, a checkout that fails, a disk that is full; a build that fails is a
    /// record, not an error.
    pub fn build(&self, build: Build<'_>, watch: &mut Watch<'_>) -> Result<BuildRecord> {
        match self.build_unless_busy(build, watch)? {
            Some(record) => Ok(record),
            None => {
                let held = self.lock_file(build)?;
                lock::wait(&held, watch.interrupt).ok_or_else(|| {
                    let what = build.label();
                    failure(
                        Class::Interrupted,
                        format!("interrupted while another shard builds {what}"),
                    )
                })?;
                self.build_alone(build, watch)
            }
        }
    }

    /// As [`Builds::build`]; none where another shard is building this very commit now.
    ///
    /// # Errors
    /// As [`Builds::build`].
    pub fn build_unless_busy(
        &self,
        build: Build<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Option<BuildRecord>> {
        if let Some(done) = self.ready(build) {
            return Ok(Some(done));
        }
        // Only shards that share a folder can be in each other's way.
        if self.record.builds_in.is_none() {
            return self.build_alone(build, watch).map(Some);
        }
        let file = self.lock_file(build)?;
        if lock::attempt(&file) {
            self.build_alone(build, watch).map(Some)
        } else {
            Ok(None)
        }
    }

    fn folder(&self) -> Result<PathBuf> {
        own_folder(&self.store, "builds")
    }

    fn lock_file(&self, build: Build<'_>) -> Result<std::fs::File> {
        let path = self.folder()?.join(format!("{}.lock", build.name()));
        lock::open(&path).with_context(|| format!("cannot write {}", path.display()))
    }

    fn build_alone(&self, build: Build<'_>, watch: &mut Watch<'_>) -> Result<BuildRecord> {
        if let Some(done) = self.ready(build) {
            return Ok(done);
        }
        self.folder()?;
        let interrupt = watch.interrupt;
        let checkout = self.checkout(build.number, watch)?;
        let built = self.built(build, &checkout, interrupt);
        checkout.note()?;
        let (mut failure, build_s) = built?;
        if failure.is_none() {
            failure = self.keep(build, &checkout.dir, interrupt)?;
        }
        let repeats = failure.is_none() && self.repeats(build);
        let record = BuildRecord {
            repeats,
            schema: SCHEMA.into(),
            hash: build.commit.hash.clone(),
            build: build.number,
            kept: if failure.is_none() { self.references.clone() } else { Vec::new() },
            failure,
            build_s,
        };
        let path = self.file(build);
        files::write_atomic(&path, &serde_json::to_vec_pretty(&record)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(record)
    }

    /// True if what is kept of a further build is what is kept of the first; folders are not
    /// looked into.
    fn repeats(&self, build: Build<'_>) -> bool {
        let first = Build { number: 1, ..build };
        let same = |reference: &String| {
            let read = |build| std::fs::read(self.kept(build).join(reference)).ok();
            read(build).is_some_and(|bytes| read(first).as_ref() == Some(&bytes))
        };
        build.number > 1 && self.references.iter().all(same)
    }

    /// The checkout. One with something in it that no build made (the user's, or of a vmeter that
    /// was killed) stays, under another name, and there is a new one.
    fn checkout(&self, number: u32, watch: &mut Watch<'_>) -> Result<Checkout> {
        let own = own_tree(&self.dir, &checkout_of(number))?;
        let found = Checkout::strangers(&own)?;
        if !found.is_empty() {
            let aside = set_checkout_aside(&self.dir, &checkout_of(number))
                .with_context(|| format!("cannot rename {}", own.display()))?;
            watch.progress.warn(&format!(
                "{} contains files that vmeter and its builds did not make ({}): vmeter moved it \
                    to {}, and builds again in a new folder",
                own.display(),
                found.words(),
                aside.display()
            ));
        }
        Checkout::open(Path::new(&self.record.repo), own, watch.interrupt)
    }

    /// Why a commit could not be built, if so, and how long that took, seconds.
    fn built(
        &self,
        build: Build<'_>,
        checkout: &Checkout,
        interrupt: &Interrupt,
    ) -> Result<(Option<String>, f64)> {
        checkout.switch(&build.commit.hash, self.record.clean, interrupt)?;
        let begin = Instant::now();
        let failure = match &self.record.build {
            Some(line) => self.run(line, build, &checkout.dir, interrupt)?,
            None => None,
        };
        Ok((failure, begin.elapsed().as_secs_f64()))
    }

    /// The user's own command line, so the user's own shell. Why it failed, if it did.
    fn run(
        &self,
        line: &str,
        build: Build<'_>,
        dir: &Path,
        interrupt: &Interrupt,
    ) -> Result<Option<String>> {
        let log = self.log(build);
        // Another one, so that a link is not followed.
        let _ = std::fs::remove_file(&log);
        let file = std::fs::File::create_new(&log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let mut sh = Command::new("sh");
        sh.args(["-c", line])
            .current_dir(dir)
            .env("VMETER_COMMIT", &build.commit.hash)
            .env("VMETER_BUILD", build.number.to_string())
            .env("VMETER_WORKTREE", dir)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0);
        let status = subcommand::run(&mut sh, interrupt).context("cannot run sh for --build")?;
        let status = status.ok_or_else(|| self.interrupted("the build of", build))?;
        Ok((!status.success()).then(|| format!("--build ended with {status}{}", tail(&log))))
    }

    fn interrupted(&self, what: &str, build: Build<'_>) -> anyhow::Error {
        let (dir, commit) = (vmeter_base::shell::path(&self.dir), build.label());
        failure(
            Class::Interrupted,
            format!("interrupted in {what} {commit}; continue with --resume {dir}"),
        )
    }

    /// Copies what the machine names, by reference where the file system can. What is
    /// missing is a failure of the build.
    fn keep(
        &self,
        build: Build<'_>,
        checkout: &Path,
        interrupt: &Interrupt,
    ) -> Result<Option<String>> {
        let kept = self.kept(build);
        let partial = kept.with_extension("partial");
        own_folder(&self.store, "kept")?;
        for old in [&partial, &kept].into_iter().filter(|old| old.symlink_metadata().is_ok()) {
            std::fs::remove_dir_all(old)
                .with_context(|| format!("cannot remove {}", old.display()))?;
        }
        for reference in &self.references {
            let from = checkout.join(reference);
            if !from.exists() {
                return Ok(Some(format!("--build did not make {reference}")));
            }
            let to = partial.join(reference);
            let above = if reference == "." { Some(partial.as_path()) } else { to.parent() };
            let above = above.unwrap_or(&partial);
            std::fs::create_dir_all(above)
                .with_context(|| format!("cannot make {}", above.display()))?;
            let mut copy = Command::new("cp");
            copy.args(["-a", "--reflink=auto", "-T", "--"]).arg(&from).arg(&to);
            copy.stdin(Stdio::null());
            let output = subcommand::output(&mut copy, interrupt).context("cannot run cp")?;
            let output = output.ok_or_else(|| self.interrupted("keeping", build))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                anyhow::bail!("cannot keep {reference} of {}: {said}", build.label());
            }
        }
        // The record that says they are there must not survive a crash that they don't.
        let folder = std::fs::File::open(&partial)
            .context("cannot open the folder of the copied build products")?;
        rustix::fs::syncfs(&folder).context("cannot sync the copied build products to disk")?;
        // What is measured must not take itself for the checkout.
        let _ = std::fs::remove_dir_all(partial.join(".git"));
        std::fs::rename(&partial, &kept)
            .with_context(|| format!("cannot make {}", kept.display()))?;
        note_tree(&kept).with_context(|| format!("cannot list {}", kept.display()))?;
        Ok(None)
    }
}

/// The last of a log, on lines of its own; nothing if there is nothing.
fn tail(log: &Path) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = Vec::new();
    let read = std::fs::File::open(log).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL as u64)))?;
        file.take(LOG_TAIL as u64).read_to_end(&mut bytes)
    });
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    match (read, lines.is_empty()) {
        (Ok(_), false) => {
            let last: Vec<&str> = lines.into_iter().rev().collect();
            format!(": {}", last.join(" | "))
        }
        _ => String::new(),
    }
}
