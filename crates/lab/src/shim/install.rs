//! Putting a shim in its place, and taking it away.

use super::{check, is_own, place, records, Shim, VMM};
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use vmeter_machine::launch::find_program;
use vmeter_machine::launch::shim::Config;
use vmeter_session::failure::usage;
use vmeter_session::state_dir;

/// The program that runs.
const PROGRAM: &str = "/proc/self/exe";
/// Where root's shims put their records.
const RECORDS: &str = "/var/lib/vmeter";
/// Everybody's VMM may add a record, and nobody may remove another's. It can be listed, since a shim
/// that keeps so many records has to find its oldest.
const EVERYBODY: u32 = 0o1777;

/// What is installed.
#[derive(Debug, Default)]
pub struct InstallOptions {
    /// The VMM; QEMU of `$PATH` if absent.
    pub real: Option<PathBuf>,
    /// Where the shim is put.
    pub file: Option<PathBuf>,
    /// Where the records go.
    pub records: Option<PathBuf>,
    /// Where a boot ends.
    pub until: Option<String>,
    /// Only VMs whose command line matches.
    pub matching: Option<String>,
}

/// Installs a shim, or installs one of its own anew.
///
/// # Errors
/// Class usage: no such VMM, a place where something else is. Any error of the file system.
pub fn install(options: &InstallOptions) -> Result<Shim> {
    check(options.until.as_deref(), options.matching.as_deref())?;
    let asked = options.real.as_deref().map_or(OsStr::new(VMM), Path::as_os_str);
    let real = find_program(asked).map_err(|error| usage(format!("--real: {error}")))?;
    let real = std::path::absolute(real)?;
    let file = place(options.file.as_deref(), &real)?;
    check_place(&file, &real)?;
    let records = match &options.records {
        Some(records) => std::path::absolute(records)?,
        None if rustix::process::geteuid().is_root() => RECORDS.into(),
        None => state_dir()?.join("shim"),
    };
    let mut config = Config::new(real, records);
    config.until = options.until.clone();
    config.matching = options.matching.clone();
    config.shim_bytes = fs::metadata(PROGRAM)?.len();
    let before = Config::of(&file).ok().flatten();
    let made = make_records(&config.records)?;
    config.made_records = made
        || before.is_some_and(|before| before.made_records && before.records == config.records);
    let mut text = serde_json::to_vec_pretty(&config).map_err(|_| {
        usage("the path of --real or of --records is not UTF-8, so vmeter cannot store it")
    })?;
    text.push(b'\n');
    let cannot =
        || format!("cannot install {}: choose another place with --as FILE", file.display());
    let folder = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).with_context(cannot)?;
    put(&Config::beside(&file), 0o644, |path| fs::write(path, &text)).with_context(cannot)?;
    put(&file, 0o755, |path| fs::copy(PROGRAM, path).map(drop)).with_context(cannot)?;
    Ok(Shim { file, config })
}

fn check_place(file: &Path, real: &Path) -> Result<()> {
    let id = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let shown = file.display();
    if id(file).is_some() && id(file) == id(real) {
        return Err(usage(format!(
            "{shown} is the VMM itself: give another path for its shim with --as FILE"
        )));
    }
    let whole = real.canonicalize().unwrap_or_else(|_| real.to_owned());
    if !matches!(Config::of(&whole), Ok(None)) {
        return Err(usage(format!(
            "{} is itself a shim: give the path of the real VMM with --real",
            real.display()
        )));
    }
    let own = Config::of(file).ok().flatten();
    let taken = match (file.symlink_metadata(), own) {
        (Err(_), Some(_)) => None,
        (Err(_), None) => {
            Some(Config::beside(file)).filter(|beside| beside.symlink_metadata().is_ok())
        }
        (Ok(_), Some(config)) if is_own(file, &config) => None,
        (Ok(_), _) => Some(file.to_owned()),
    };
    match taken {
        Some(taken) => Err(usage(format!(
            "{} exists, and vmeter did not put it there: choose another place with --as FILE",
            taken.display()
        ))),
        None => Ok(()),
    }
}

/// True if the folder is new.
fn make_records(records: &Path) -> Result<bool> {
    let cannot = |what: &str| {
        format!("cannot {what} {}: choose another folder with --records DIR", records.display())
    };
    if records.is_dir() {
        let probe = tempfile_in(records).with_context(|| cannot("write in"))?;
        let _ = fs::remove_file(probe);
        return Ok(false);
    }
    let made =
        fs::create_dir_all(records).and_then(|()| match rustix::process::geteuid().is_root() {
            true => fs::set_permissions(records, Permissions::from_mode(EVERYBODY)),
            false => Ok(()),
        });
    made.with_context(|| cannot("make")).map(|()| true)
}

/// A file that was made in a folder, to see whether that can be.
fn tempfile_in(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join(format!(".vmeter-{}", std::process::id()));
    fs::File::create_new(&path).map(|_| path)
}

/// Puts a file in its place whole: VMs start by it meanwhile.
fn put(path: &Path, mode: u32, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!(".{name}.new"));
    let done = write(&fresh)
        .and_then(|()| fs::set_permissions(&fresh, Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&fresh, path));
    done.inspect_err(|_| drop(fs::remove_file(&fresh)))
}

/// A shim that was taken away.
#[derive(Debug)]
pub struct Removed {
    /// Its file.
    pub file: PathBuf,
    /// Where its records stay.
    pub records: PathBuf,
    /// How many there are.
    pub kept: usize,
}

/// Removes what was installed. Its records stay.
///
/// # Errors
/// Class usage: no shim is there. Any error of the file system.
pub fn remove(file: Option<&Path>) -> Result<Removed> {
    let shim = Shim::of(file)?;
    for path in [shim.file.clone(), Config::beside(&shim.file)] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    let kept = records::of(&shim).len();
    if shim.config.made_records {
        records::remove_if_empty(&shim.config.records);
    }
    Ok(Removed { file: shim.file, records: shim.config.records, kept })
}
