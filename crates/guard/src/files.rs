//! Files and folders that are named after a vmeter.

use crate::Whose;
use rustix::fs::{flock, FlockOperation};
use std::fs::File;
use std::path::{Path, PathBuf};
use vmeter_base::owner::Owner;

/// Where temporary files are, whoever made them.
const USUAL: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Folders in which things are looked for: those of temporary files, and `more`.
fn places(more: &[PathBuf]) -> Vec<PathBuf> {
    let usual = USUAL.iter().map(PathBuf::from);
    let mut all: Vec<PathBuf> = usual.chain([std::env::temp_dir()]).collect();
    for place in more {
        all.push(place.clone());
        all.extend(entries(place).filter(|path| path.is_dir() && !path.is_symlink()));
    }
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|place| place.canonicalize().is_ok_and(|place| seen.insert(place)));
    all
}

/// Files and folders directly in those places, and one level below `more`.
pub(crate) fn find(whose: Whose, more: &[PathBuf]) -> Vec<PathBuf> {
    let named = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match Owner::within(name) {
            Some(owner) => whose.has(&owner),
            None => matches!(whose, Whose::Nobody) && is_of_before(path, name),
        }
    };
    let all = places(more).into_iter().flat_map(|place| entries(&place).collect::<Vec<_>>());
    // A process that is being killed closes its files one by one, its guard's socket before the
    // lock: a lock says nothing of one that is known to be gone.
    let held = |path: &PathBuf| matches!(whose, Whose::Nobody) && is_held(path);
    all.filter(named).filter(|path| !held(path)).collect()
}

/// Removes it, whatever it is; a link itself, not what it leads to.
/// What can't be removed is found again.
pub(crate) fn remove(path: &Path) {
    let _ = if path.is_dir() && !path.is_symlink() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    };
}

fn entries(place: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// True if a process holds the lock of a temporary folder: one whose number means nothing
/// here, in another namespace.
fn is_held(path: &Path) -> bool {
    if !path.is_dir() || path.is_symlink() {
        return false;
    }
    File::open(path).is_ok_and(|folder| {
        flock(&folder, FlockOperation::NonBlockingLockExclusive)
            == Err(rustix::io::Errno::WOULDBLOCK)
    })
}

/// Folders that vmeter made before it named them after itself; in use as long as a command
/// line has them.
fn is_of_before(path: &Path, name: &str) -> bool {
    let random = name.strip_prefix("vmeter-migrate-").unwrap_or_default();
    let is_one = random.len() == 6 && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_one && path.is_dir() && !path.is_symlink() && !is_mentioned(path)
}

fn is_mentioned(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let wanted = path.as_os_str().as_bytes();
    let lines = entries(Path::new("/proc"))
        .filter_map(|process| std::fs::read(process.join("cmdline")).ok());
    lines.into_iter().any(|line| line.windows(wanted.len()).any(|part| part == wanted))
}
