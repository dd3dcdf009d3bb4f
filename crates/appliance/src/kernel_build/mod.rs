//! Kernels built from Debian's sources: out of tree, cached by what they are built from, gone
//! on with where a build was cut off.
//!
//! A build has a folder of its own in the cache until it is done, named after the hash of its
//! configuration, source and compiler; make(1) knows what is left in it. What is done is kept
//! beside the fetched kernels' folder, under the kernel's release, without the objects.

mod config;
mod drop;
mod lines;
mod make;
mod source;

pub use drop::{Change, Initcall, Kept, Verdict, LONG_S};
pub use lines::{Config, Line, DEBIAN, MINIMAL};

use crate::cache;
use crate::error::{At, Error, Result};
use crate::kernel::{self, KernelPaths};
use rustix::fs::{flock, FlockOperation};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What to build.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// With what.
    pub config: Config,
    /// The initcalls of a measured boot, for [`Config::Custom`].
    pub initcalls: Vec<Initcall>,
    /// How long an initcall takes at least that a custom kernel is cut by, s.
    pub long_s: f64,
    /// Options that a custom kernel keeps besides its own.
    pub kept: Kept,
    /// Keep the objects, so that the next build of other options compiles what they change only.
    pub keep_objects: bool,
    /// A folder with sources, or an archive of them, instead of Debian's package.
    pub source: Option<PathBuf>,
    /// Compilers at a time.
    pub jobs: usize,
    /// vmeter's cache.
    pub cache: PathBuf,
}

/// A kernel that was built.
#[derive(Debug, Clone)]
pub struct Built {
    /// Where it is.
    pub kernel: KernelPaths,
    /// How.
    pub record: BuildRecord,
    /// What a custom kernel changes.
    pub cut: Cut,
    /// True when it was there already.
    pub cached: bool,
}

/// What lies beside a built kernel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuildRecord {
    /// `debian`, `custom` or `minimal`.
    pub config: String,
    /// Hash of configuration, source and compiler, hexadecimal.
    pub key: String,
    /// Source package and version.
    pub source: String,
    /// The compiler's first line.
    pub compiler: String,
    /// Wall time of all make runs that it took, s.
    pub seconds: f64,
    /// Make runs that it took: 1, or more if it was cut off.
    pub attempts: u32,
    /// Objects that were compiled.
    pub objects: usize,
    /// Options that are built in (`=y`).
    pub options: usize,
    /// Size of the bzImage, bytes.
    pub image_bytes: u64,
}

/// What a custom kernel changes, and why.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cut {
    /// What became of each initcall, the longest first.
    pub verdicts: Vec<Verdict>,
    /// All options that are changed, those above the initcalls' own among them.
    pub changes: Vec<Change>,
}

impl Cut {
    /// Verdicts on initcalls that took at least so many seconds.
    pub fn long(&self, long_s: f64) -> &[Verdict] {
        let end = self.verdicts.partition_point(|verdict| verdict.initcall.seconds >= long_s);
        &self.verdicts[..end]
    }

    /// The changes as a fragment of a `.config`, for `scripts/kconfig/merge_config.sh`.
    pub fn fragment(&self) -> String {
        self.changes.iter().map(Change::line).collect()
    }

    /// Time of all initcalls, and of those that an option was found for, s.
    pub fn seconds(&self) -> (f64, f64) {
        let sum = |wanted: &dyn Fn(&Verdict) -> bool| {
            let these = self.verdicts.iter().filter(|verdict| wanted(verdict));
            these.map(|verdict| verdict.initcall.seconds).sum()
        };
        (sum(&|_| true), sum(&|verdict| verdict.option.is_some()))
    }
}

/// What is said of a build while it goes on.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Something began, in words.
    Begin(String),
    /// What becomes of the initcalls that a custom kernel is cut by.
    Cut(Vec<Verdict>),
    /// Objects that are compiled, of how many as far as is known, and s since make began.
    Objects {
        /// Compiled, those of an earlier attempt among them.
        done: usize,
        /// In all, by make's own word.
        of: Option<usize>,
        /// Compiled by this make.
        now: usize,
        /// Since it began, s.
        seconds: f64,
    },
}

/// The folder of built kernels.
fn folder(cache: &Path) -> PathBuf {
    cache.join("kernels-built")
}

/// Built kernels, by release.
pub fn list_in(cache: &Path) -> Vec<(KernelPaths, BuildRecord)> {
    let entries = fs::read_dir(folder(cache)).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .filter_map(|entry| {
            let record = fs::read(entry.path().join("build.json")).ok()?;
            Some((KernelPaths::read(&entry.path())?, serde_json::from_slice(&record).ok()?))
        })
        .collect();
    all.sort_by(|(a, _), (b, _)| a.version.cmp(&b.version));
    all
}

/// What a custom kernel would change, without building it.
///
/// # Errors
/// As [`build`], but for make's.
pub fn plan(options: &BuildOptions, progress: &mut dyn FnMut(Step)) -> Result<Cut> {
    make::check_tools()?;
    let source = source::of(options.source.as_deref(), &options.cache, progress)?;
    Ok(configured(options, &source, progress)?.cut)
}

/// A configuration in a folder of its own.
struct Configured {
    builds: PathBuf,
    work: tempfile::TempDir,
    text: String,
    cut: Cut,
}

fn configured(
    options: &BuildOptions,
    source: &source::Source,
    progress: &mut dyn FnMut(Step),
) -> Result<Configured> {
    let builds = options.cache.join("kernel-builds");
    fs::create_dir_all(&builds).at(&builds)?;
    progress(Step::Begin(format!("configuring {} ({})", source.name, options.config)));
    let work =
        tempfile::Builder::new().prefix(&cache::own(".new-")).tempdir_in(&builds).at(&builds)?;
    let (text, cut) = config::make(options, &source.folder, work.path())?;
    Ok(Configured { builds, work, text, cut })
}

/// Builds a kernel, or takes it from the cache; goes on with a build that was cut off.
///
/// # Errors
/// What is missing on this host; a configuration that the sources do not take; a make that fails.
pub fn build(options: &BuildOptions, progress: &mut dyn FnMut(Step)) -> Result<Built> {
    let compiler = make::check_tools()?;
    let source = source::of(options.source.as_deref(), &options.cache, progress)?;
    let Configured { builds, work, text, cut } = configured(options, &source, progress)?;
    if !cut.verdicts.is_empty() {
        progress(Step::Cut(cut.long(options.long_s).to_vec()));
    }
    let key = key(&text, &source.name, &compiler);
    if let Some((kernel, record)) =
        list_in(&options.cache).into_iter().find(|(_, record)| record.key == key)
    {
        return Ok(Built { kernel, record, cut, cached: true });
    }
    let shared = self::key("", &source.name, &compiler);
    let name = if options.keep_objects { &shared[..SHORT] } else { &key[..SHORT] };
    let out = builds.join(format!("{}-{name}", options.config));
    let text = config::with_release(&text, options.config, &key[..SHORT]);
    let file = out.join(".config");
    // A build that was cut off goes on as it is: with its own time stamps.
    if !file.is_file() {
        let file = work.path().join(".config");
        fs::write(&file, &text).at(&file)?;
        cache::publish(work, &out)?;
    }
    let lock = fs::File::create(out.join("vmeter.lock")).at(&out)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Error::Busy { path: out });
    }
    if options.keep_objects && fs::read_to_string(&file).at(&file)? != text {
        fs::write(&file, &text).at(&file)?;
    }
    let known = BuildRecord {
        config: options.config.word().into(),
        key,
        source: source.name.clone(),
        compiler,
        options: text.lines().filter(|line| line.ends_with("=y")).count(),
        ..BuildRecord::default()
    };
    let record = compile(options, &source.folder, &out, known, progress)?;
    let kernel = keep(options, &out, &record)?;
    drop(lock);
    if !options.keep_objects {
        let _ = fs::remove_dir_all(&out);
    }
    Ok(Built { kernel, record, cut, cached: false })
}

/// Digits of a key that names have.
const SHORT: usize = 8;

fn key(config: &str, source: &str, compiler: &str) -> String {
    cache::sha256(format!("{source}\n{compiler}\n{config}").as_bytes())
}

/// Runs make to its end; the time of attempts before this one is added.
fn compile(
    options: &BuildOptions,
    source: &Path,
    out: &Path,
    known: BuildRecord,
    progress: &mut dyn FnMut(Step),
) -> Result<BuildRecord> {
    let file = out.join("vmeter-build.json");
    let before: BuildRecord = fs::read(&file)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .filter(|before: &BuildRecord| before.key == known.key)
        .unwrap_or_default();
    let begun = make::objects(out);
    let attempts = before.attempts + 1;
    progress(Step::Begin(match begun {
        0 => format!("compiling in {}", out.display()),
        begun => {
            format!("resuming the build in {}: {begun} objects are already compiled", out.display())
        }
    }));
    let start = Instant::now();
    let spent = || before.seconds + start.elapsed().as_secs_f64();
    let note = |seconds| {
        let record = BuildRecord { seconds, attempts, ..known.clone() };
        fs::write(&file, serde_json::to_vec(&record).unwrap_or_default()).at(&file)
    };
    note(spent())?;
    let mut noted = Instant::now();
    make::run(source, out, ("prepare", options.jobs), &mut |_| ())?;
    let (begun, left) = (make::objects(out), make::left(source, out));
    let of = left.map(|left| begun + left);
    make::run(source, out, ("bzImage", options.jobs), &mut |now| {
        let seconds = start.elapsed().as_secs_f64();
        progress(Step::Objects { done: begun + now, of, now, seconds });
        if noted.elapsed().as_secs() >= 5 {
            noted = Instant::now();
            // What a killed vmeter has spent is known to these 5 s.
            let _ = note(spent());
        }
    })?;
    let image = out.join(make::IMAGE);
    let image_bytes = fs::metadata(&image).at(&image)?.len();
    let objects = make::objects(out);
    Ok(BuildRecord { seconds: spent(), attempts, objects, image_bytes, ..known })
}

/// Moves what is booted to its place among the built kernels.
fn keep(options: &BuildOptions, out: &Path, record: &BuildRecord) -> Result<KernelPaths> {
    let kernels = folder(&options.cache);
    fs::create_dir_all(&kernels).at(&kernels)?;
    let release = out.join("include/config/kernel.release");
    let release = fs::read_to_string(&release).at(&release)?.trim().to_owned();
    let fresh =
        tempfile::Builder::new().prefix(&cache::own(".new-")).tempdir_in(&kernels).at(&kernels)?;
    let modules = fresh.path().join("modules");
    fs::create_dir(&modules).at(&modules)?;
    let copy = |from: &str, to: &Path| {
        let from = out.join(from);
        fs::copy(&from, to).at(&from).map(drop)
    };
    copy(make::IMAGE, &fresh.path().join("vmlinuz"))?;
    copy(".config", &fresh.path().join("config"))?;
    copy("System.map", &fresh.path().join("System.map"))?;
    // What is built in needs no module; there are none.
    for name in ["modules.builtin", "modules.builtin.modinfo"] {
        copy(name, &modules.join(name))?;
    }
    let empty = modules.join("modules.dep");
    fs::write(&empty, "").at(&empty)?;
    let file = fresh.path().join("build.json");
    fs::write(&file, serde_json::to_vec_pretty(record).unwrap_or_default()).at(&file)?;
    let provenance = kernel::Provenance {
        package: format!("built by vmeter ({})", record.config),
        package_version: record.source.clone(),
        sha256: record.key.clone(),
    };
    let file = fresh.path().join("provenance.json");
    fs::write(&file, serde_json::to_vec_pretty(&provenance).unwrap_or_default()).at(&file)?;
    let place = kernels.join(&release);
    cache::publish(fresh, &place)?;
    KernelPaths::read(&place)
        .ok_or(Error::NoKernel { package: place, expected: "a readable vmlinuz".into() })
}
