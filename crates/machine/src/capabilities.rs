//! What a QEMU binary can do, asked once and remembered.
//!
//! Everything comes from one process of it (`-machine none -S`) by QMP, plus two
//! that print and end (`-version`, `-L help`). The answers are kept in the cache
//! folder under the binary's path, size and modification time: a new binary is
//! asked again, and so is one whose cache file cannot be read.

use crate::launch::{self, LaunchError, Mode, NoHooks, Options, Stopper};
use crate::output::{output, version_line};
use crate::plan::LaunchPlan;
use crate::qmp::{self, Qmp, QmpError};
use crate::qmp_commands;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vmeter_base::{files, fnv};

/// How long QEMU may take for an answer, on a loaded host.
const LIMIT: Duration = Duration::from_secs(20);

/// What a QEMU binary can do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// First line of `-version`.
    pub version_line: String,
    /// Major, minor, micro.
    pub version: (u32, u32, u32),
    /// Machine types and their aliases.
    pub machines: Vec<String>,
    /// Accelerators built in: `tcg`, `kvm`, …
    pub accelerators: Vec<String>,
    /// Folders that firmware is loaded from, in order.
    pub firmware_dirs: Vec<PathBuf>,
    /// True if TCG plugins can be loaded.
    pub plugins: bool,
}

impl Capabilities {
    /// True if there is such a machine type or alias.
    pub fn has_machine(&self, name: &str) -> bool {
        self.machines.iter().any(|m| m == name)
    }

    /// The firmware file that QEMU loads for this name: the first in its folders,
    /// or the name itself if it is a path.
    pub fn firmware_file(&self, name: &str) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(PathBuf::from(name));
        }
        self.firmware_dirs.iter().map(|d| d.join(name)).find(|p| p.is_file())
    }
}

/// Where an answer came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The VMM was asked.
    Asked,
    /// It had been asked before; the cache file.
    Remembered(PathBuf),
}

/// Capabilities, and what getting them cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What the VMM can do.
    pub capabilities: Capabilities,
    /// Where that came from.
    pub origin: Origin,
    /// How long this answer took.
    pub took: Duration,
    /// How long asking the VMM took, now or when it was asked.
    pub asking_took: Duration,
}

/// Why a VMM cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum CapabilityError {
    /// It is not there, or cannot be executed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// It does not talk as QEMU does.
    #[error(
        "{program} does not answer as QEMU does: {why}; for a VMM of another kind give its \
         whole command line after --"
    )]
    NotQemu {
        /// The program.
        program: PathBuf,
        /// What happened, with the end of its stderr.
        why: String,
    },
}

/// The cache file's content.
#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    format: u32,
    path: PathBuf,
    size: u64,
    modified: (i64, i64),
    asking_took_s: f64,
    capabilities: Capabilities,
}

const FORMAT: u32 = 1;
/// Largest file of remembered capabilities, bytes.
const MAX_CACHED: u64 = 4 << 20;

/// What `program` can do: remembered in `cache`, or asked now.
///
/// # Errors
/// When it is not there, or is no QEMU. An unusable cache is no error.
pub fn of(program: &Path, cache: &Path) -> Result<Answer, CapabilityError> {
    let started = Instant::now();
    let found = launch::find_program(program.as_os_str())?;
    let canonical = found.canonicalize().unwrap_or_else(|_| found.clone());
    let identity = canonical.metadata().map_err(|error| LaunchError::Prepare { error })?;
    let key = (identity.size(), (identity.mtime(), identity.mtime_nsec()));
    let file = cache_file(cache, &canonical);
    if let Some((capabilities, asking_took)) = recall(&file, &canonical, key) {
        let origin = Origin::Remembered(file);
        return Ok(Answer { capabilities, origin, took: started.elapsed(), asking_took });
    }
    // The name as found: some programs look at what they are called.
    let capabilities = ask(&found)?;
    let asking_took = started.elapsed();
    let content = Remembered {
        format: FORMAT,
        path: canonical,
        size: key.0,
        modified: key.1,
        asking_took_s: asking_took.as_secs_f64(),
        capabilities: capabilities.clone(),
    };
    if let Ok(json) = serde_json::to_vec(&content) {
        // Only a saving: the next launch asks again.
        let _ = files::write_in_new_folder(&file, &json);
    }
    Ok(Answer { capabilities, origin: Origin::Asked, took: started.elapsed(), asking_took })
}

fn cache_file(cache: &Path, program: &Path) -> PathBuf {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    // The hash keeps two binaries of one name apart; the full path is in the file.
    let hash = fnv::hash(program.as_os_str().as_bytes());
    cache.join(format!("capabilities-{name}-{hash:016x}.json"))
}

fn recall(
    file: &Path,
    program: &Path,
    (size, modified): (u64, (i64, i64)),
) -> Option<(Capabilities, Duration)> {
    let remembered: Remembered =
        serde_json::from_slice(&files::read_limited(file, MAX_CACHED).ok()?).ok()?;
    let same = remembered.format == FORMAT
        && remembered.path == program
        && remembered.size == size
        && remembered.modified == modified;
    let took = Duration::try_from_secs_f64(remembered.asking_took_s).ok()?;
    same.then_some((remembered.capabilities, took))
}

fn ask(program: &Path) -> Result<Capabilities, CapabilityError> {
    let not_qemu = |why: String| CapabilityError::NotQemu { program: program.to_owned(), why };
    let version_line = version_line(program.as_os_str(), "-version", LIMIT)
        .filter(|line| is_qemu(line))
        .ok_or_else(|| not_qemu("-version does not say \"QEMU emulator version\"".into()))?;
    let argv = vec![program.into(), "-L".into(), "help".into()];
    let (_, folders) = output(argv, LIMIT)?;
    let mut capabilities = by_qmp(program)?.map_err(not_qemu)?;
    capabilities.version_line = version_line;
    capabilities.firmware_dirs = folders.lines().map(normalised).collect();
    Ok(capabilities)
}

/// True for the first line of `qemu-system-* -version`.
pub fn is_qemu(version_line: &str) -> bool {
    version_line.starts_with("QEMU emulator version ")
}

/// QEMU prints its folders relative to its own (`/usr/bin/../share/qemu`).
fn normalised(line: &str) -> PathBuf {
    let path = PathBuf::from(line);
    path.canonicalize().unwrap_or(path)
}

/// Runs QEMU without a machine and asks. The outer error: it cannot be started; the
/// inner one: it did not answer.
fn by_qmp(program: &Path) -> Result<Result<Capabilities, String>, LaunchError> {
    let prepare = |error| LaunchError::Prepare { error };
    let words = "-machine none -nodefaults -no-user-config -display none -S";
    let argv = std::iter::once(program.into()).chain(words.split(' ').map(OsString::from));
    let mut plan = LaunchPlan { argv: argv.collect(), may_inject: true, ..LaunchPlan::default() };
    let socket = qmp::add(&mut plan).map_err(prepare)?.ok_or(LaunchError::Empty)?;
    let asking = std::thread::spawn(move || converse(socket));
    let options = Options {
        mode: Mode::Plain,
        ends_all: true,
        timeout: Some(LIMIT),
        grace: Duration::ZERO,
        ..Options::default()
    };
    let stopper = Stopper::new().map_err(prepare)?;
    let exit = launch::run(plan, &options, &stopper, &mut NoHooks);
    let answer = asking.join().unwrap_or_else(|_| Err(io::Error::other("no answer").into()));
    let exit = exit?;
    Ok(answer.map_err(|e| format!("{e} ({}; {})", exit.status, exit.stderr_tail.trim())))
}

// Answers are taken as they are: any version of QEMU may be asked.
qmp_commands! {
    QueryVersion = "query-version" -> Value {}
    QueryMachines = "query-machines" -> Value {}
    ListTypes = "qom-list-types" -> Value { implements: &'static str, #[serde(rename = "abstract")] is_abstract: bool }
    CommandLineOptions = "query-command-line-options" -> Value { option: &'static str }
}

fn converse(socket: std::os::unix::net::UnixStream) -> Result<Capabilities, QmpError> {
    let mut qmp = Qmp::greet(socket, LIMIT)?;
    let version = qmp.execute(&QueryVersion {})?;
    let number = |field: &str| {
        let n = version.pointer(&format!("/qemu/{field}")).and_then(Value::as_u64);
        n.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
    };
    let machines = qmp.execute(&QueryMachines {})?;
    let mut all_machines = strings(&machines, "name");
    all_machines.extend(strings(&machines, "alias"));
    let accelerators = qmp.execute(&ListTypes { implements: "accel", is_abstract: false })?;
    let plugin = CommandLineOptions { option: "plugin" };
    let capabilities = Capabilities {
        version_line: String::new(),
        version: (number("major"), number("minor"), number("micro")),
        machines: all_machines,
        accelerators: strings(&accelerators, "name")
            .iter()
            .filter_map(|n| n.strip_suffix("-accel").map(str::to_owned))
            .collect(),
        firmware_dirs: Vec::new(),
        plugins: qmp.execute(&plugin).is_ok(),
    };
    qmp.quit()?;
    Ok(capabilities)
}

/// The string `field` of every object of a list, sorted.
fn strings(list: &Value, field: &str) -> Vec<String> {
    let each = list.as_array().into_iter().flatten();
    let mut found: Vec<String> =
        each.filter_map(|o| o.get(field)?.as_str().map(str::to_owned)).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qemu() -> Option<PathBuf> {
        let found = launch::find_program("qemu-system-x86_64".as_ref()).ok();
        if found.is_none() {
            println!("skipped: qemu-system-x86_64 is not installed");
        }
        found
    }

    #[test]
    fn asked_once_and_remembered() {
        let Some(qemu) = qemu() else { return };
        let cache = tempfile::tempdir().expect("a folder");
        let first = of(&qemu, cache.path()).expect("QEMU answers");
        assert_eq!(first.origin, Origin::Asked);
        let c = &first.capabilities;
        assert!(c.version.0 >= 4 && is_qemu(&c.version_line), "{:?}", c.version);
        assert!(c.has_machine("q35") && c.has_machine("pc"));
        assert!(c.accelerators.iter().any(|a| a == "tcg"));
        assert!(c.firmware_file("bios-256k.bin").is_some_and(|f| f.is_absolute()));
        let second = of(&qemu, cache.path()).expect("remembered");
        assert!(matches!(second.origin, Origin::Remembered(_)));
        assert_eq!(second.capabilities, first.capabilities);
        assert!(second.took < second.asking_took);
    }

    #[test]
    fn a_corrupt_cache_is_asked_again() {
        let Some(qemu) = qemu() else { return };
        let cache = tempfile::tempdir().expect("a folder");
        let file = cache_file(cache.path(), &qemu.canonicalize().expect("a path"));
        for corrupt in ["", "{", "{\"format\": 1}", "[]"] {
            std::fs::write(&file, corrupt).expect("written");
            let answer = of(&qemu, cache.path()).expect("QEMU answers");
            assert_eq!(answer.origin, Origin::Asked);
        }
        let again = of(&qemu, cache.path()).expect("remembered");
        assert!(matches!(again.origin, Origin::Remembered(_)));
    }

    #[test]
    fn another_program_is_not_qemu() {
        let cache = tempfile::tempdir().expect("a folder");
        let error = of(Path::new("true"), cache.path()).expect_err("not QEMU");
        assert!(error.to_string().contains("QEMU emulator version"), "{error}");
    }
}
