//! The folder of a shim's records: so many are kept, each a session's folder.

use super::Shim;
use anyhow::{Context, Result};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_session::failure::host;
use vmeter_session::folder::{Folder, Removal};
use vmeter_session::is_saved;

/// Records that are kept of a shim, of each user's VMMs.
const KEPT: usize = 64;
/// A user's folder of what is known of kernels.
const CACHE: &str = "cache-";
/// Why a user's last VM was not recorded.
const WHY: &str = "not-recorded-";
const MAX_WHY: u64 = 64 << 10;

/// The records of a shim, the oldest first.
pub(super) fn of(shim: &Shim) -> Vec<PathBuf> {
    let name = shim.name();
    // As `path` makes it.
    let is_its = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let between = file.split_once('-').and_then(|(_, rest)| rest.rsplit_once('-'));
        between.is_some_and(|(between, _)| between == name)
    };
    let entries = fs::read_dir(&shim.config.records).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.map(|entry| entry.path()).filter(is_its).collect();
    all.sort();
    all
}

fn path(shim: &Shim, started_at: &str, pid: i32) -> PathBuf {
    let stamp: String = started_at.chars().filter(char::is_ascii_alphanumeric).collect();
    shim.config.records.join(format!("{stamp}-{}-{pid}", shim.name()))
}

/// A folder for a record, and room for it: the oldest of this user's go.
pub(super) fn begin(shim: &Shim, started_at: &str, pid: i32) -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let is_own = |path: &PathBuf| {
        path.symlink_metadata().is_ok_and(|there| there.is_dir() && there.uid() == user)
    };
    let all: Vec<PathBuf> = of(shim).into_iter().filter(is_own).collect();
    for old in all.iter().take((all.len() + 1).saturating_sub(KEPT)) {
        // One in which a vmeter is at work stays.
        if let Ok(folder) = Folder::take(old) {
            let _ = Removal::of(&folder).map(|removal| removal.carry_out(&folder));
        }
    }
    let path = path(shim, started_at, pid);
    private(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// A folder that nobody else made, in one in which everybody may.
fn private(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// This user's folder of what is known of kernels.
pub(super) fn cache(shim: &Shim) -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let path = shim.config.records.join(format!("{CACHE}{user}"));
    let _ = private(&path);
    let there =
        path.symlink_metadata().with_context(|| format!("cannot make {}", path.display()))?;
    match there.is_dir() && there.uid() == user {
        true => Ok(path),
        false => Err(host(format!("{}: expected a folder that this user owns", path.display()))),
    }
}

fn why(shim: &Shim) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    shim.config.records.join(format!("{WHY}{user}-{}", shim.name()))
}

/// Writes down why a VM was not recorded, or that the last one was.
pub(super) fn note(shim: &Shim, failed: Option<&str>) {
    // There is nobody to tell that nobody can be told.
    let _ = match failed {
        Some(text) => files::write_atomic(&why(shim), text.as_bytes()),
        None => fs::remove_file(why(shim)),
    };
}

/// Removes what a folder of records has beside records, if it has none.
pub(super) fn remove_if_empty(records: &Path) {
    let paths = || fs::read_dir(records).into_iter().flatten().flatten().map(|entry| entry.path());
    let after =
        |path: &Path, with: &str| path.file_name()?.to_str()?.strip_prefix(with).map(str::to_owned);
    let is_number = |text: String| text.parse::<u32>().is_ok();
    let is_cache = |path: &Path| after(path, CACHE).is_some_and(is_number);
    let is_why = |path: &Path| after(path, WHY).is_some();
    if paths().all(|path| is_cache(&path) || is_why(&path)) {
        for path in paths() {
            let _ = if is_cache(&path) { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        let _ = fs::remove_dir(records);
    }
}

/// How a shim stands.
#[derive(Debug)]
pub struct Standing {
    /// The shim.
    pub shim: Shim,
    /// The VMM that it stands for can be executed.
    pub has_real: bool,
    /// That VMM is newer than the shim: libvirt keeps what it asked an older one.
    pub real_is_newer: bool,
    /// This user's VMs can be recorded.
    pub can_record: bool,
    /// How many records there are.
    pub records: usize,
    /// The newest.
    pub newest: Option<Newest>,
    /// Why this user's last VM was not recorded, if it was not.
    pub why: Option<String>,
}

/// The newest record.
#[derive(Debug)]
pub struct Newest {
    /// Its folder.
    pub dir: PathBuf,
    /// This user may read it.
    pub is_readable: bool,
}

/// How the shim in `file` stands, or the one that is installed where nobody says.
///
/// # Errors
/// Class usage: there is none.
pub fn status(file: Option<&Path>) -> Result<Standing> {
    let shim = Shim::of(file)?;
    let may = |path: &Path, what| rustix::fs::access(path, what).is_ok();
    let is_readable = |dir: &Path| fs::read_dir(dir).is_ok();
    // One that can't be read is taken for whole.
    let is_whole =
        |dir: &PathBuf| !is_readable(dir) || is_saved(dir) && dir.join("runs/0000").is_dir();
    let all: Vec<PathBuf> = of(&shim).into_iter().filter(is_whole).collect();
    let newest = all.last().map(|dir| Newest { dir: dir.clone(), is_readable: is_readable(dir) });
    Ok(Standing {
        has_real: shim.config.real.is_file() && may(&shim.config.real, rustix::fs::Access::EXEC_OK),
        real_is_newer: changed(&shim.config.real) > changed(&shim.file),
        can_record: may(&shim.config.records, rustix::fs::Access::WRITE_OK),
        records: all.len(),
        newest,
        why: files::read_limited(&why(&shim), MAX_WHY)
            .ok()
            .map(|text| String::from_utf8_lossy(&text).into_owned()),
        shim,
    })
}

/// When a file was last changed, s and ns.
fn changed(path: &Path) -> Option<(i64, i64)> {
    fs::metadata(path).ok().map(|file| (file.ctime(), file.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_machine::launch::shim::Config;

    #[test]
    fn the_oldest_go_and_what_is_not_of_this_shim_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::new("/q".into(), folder.path().to_owned());
        let shim = Shim { file: "/bin/vmeter-qemu".into(), config };
        let other = folder.path().join("20260101T000000Z-vmeter-qemu-2-7");
        fs::create_dir(&other).expect("a folder");
        let stamp = |n: i32| format!("2026-01-01T00:{:02}:{:02}Z", n / 60, n % 60);
        let count = KEPT as i32 + 6;
        for n in 0..count {
            let dir = begin(&shim, &stamp(n), n).expect("a folder");
            drop(Folder::make(&dir).expect("a session's folder"));
        }
        let all = of(&shim);
        assert_eq!(all.len(), KEPT);
        let pids =
            |path: &PathBuf| path.to_string_lossy().rsplit_once('-').map(|(_, pid)| pid.parse());
        assert_eq!(pids(&all[0]), Some(Ok(6)));
        assert_eq!(pids(&all[KEPT - 1]), Some(Ok(count - 1)));
        assert!(other.is_dir());
        assert!(private(&all[0]).is_err(), "what is there is nobody's place");
        assert_eq!(cache(&shim).expect("a folder"), cache(&shim).expect("it is there"));
        remove_if_empty(folder.path());
        assert_eq!(of(&shim).len(), KEPT);
    }
}
