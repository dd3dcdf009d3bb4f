//! The one lock of a session's folder, held for as long as a vmeter is at work in it.
//!
//! The file `lock` is opened without following a link and is never truncated before it is
//! known to be a lock. It is locked by flock(2): the kernel lets go of it however vmeter ends.
//! What the holder is (host, boot, process) stands in it.
//!
//! What holds where (flock(2), nfs(5), mount.lustre(8)):
//! - file systems of one host: flock alone decides, whatever stands in the file;
//! - NFS (but for `nolock` and `local_lock=flock|all`), Ceph, GFS2, OCFS2, Lustre with `flock`:
//!   flock holds between hosts, and decides;
//! - 9p, SMB, FUSE (sshfs, virtiofs), other mounts of those above: flock may hold on one host
//!   only. A record of another host that was not emptied keeps vmeter out there, since nobody
//!   can tell whether that host still works: after a crash of it, the file must be removed by
//!   hand, which the message says. Two hosts that begin within one instant may both get in;
//! - no locks at all: the record decides on one host as well, by whether its process lives.

use rustix::fs::{flock, fstat, lstat, open, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use vmeter_base::process::Stat;

/// Its name in a session's folder.
pub(super) const NAME: &str = "lock";
/// A record is shorter, bytes.
const MAX_RECORD: u64 = 4096;
/// How often a lock that is removed just now is looked for again.
const ATTEMPTS: u32 = 8;

/// Why a folder's lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// A vmeter is at work in the folder.
    #[error("another vmeter is at work in {}{by}: wait for it, or end it", dir.display())]
    Busy {
        /// The folder.
        dir: PathBuf,
        /// Who, as far as is known.
        by: String,
    },
    /// A vmeter on another host was, and nobody can tell whether it still is.
    #[error(
        "{by} worked in {} and may still run: it left no record of its end, and locks may not \
         work across hosts on this file system. If that vmeter has ended, \
         remove the lock file {}",
        dir.display(), dir.join(NAME).display()
    )]
    Elsewhere {
        /// The folder.
        dir: PathBuf,
        /// Who.
        by: String,
    },
    /// There is something else in the lock's place.
    #[error(
        "{}: expected the lock of a vmeter, found {found}. vmeter needs this path: move \
         away what is there",
        path.display()
    )]
    Foreign {
        /// The lock's path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The file system.
    #[error("cannot lock {}: {source}", dir.display())]
    Io {
        /// The folder.
        dir: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    hostname: String,
    /// Of the kernel that runs there; another one after each boot.
    boot_id: String,
    pid: u32,
    /// The PID namespace in which `pid` is one.
    pid_namespace: String,
    /// When it began, in ticks since boot: a PID comes again.
    began: String,
}

impl Holder {
    fn this() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Holder {
            hostname: text("/proc/sys/kernel/hostname"),
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            pid: std::process::id(),
            pid_namespace: namespace.display().to_string(),
            began: began(Stat::own()),
        }
    }

    /// True unless it is known to have ended: a process of this kernel that is no more.
    fn may_live(&self, this: &Holder) -> bool {
        let known = !this.boot_id.is_empty()
            && self.boot_id == this.boot_id
            && self.pid_namespace == this.pid_namespace;
        !known || began(i32::try_from(self.pid).ok().and_then(Stat::of)) == self.began
    }

    fn words(&self) -> String {
        format!("vmeter {} on {}", self.pid, self.hostname)
    }
}

/// When a process began (`starttime` of proc(5)); empty if there is none.
fn began(process: Option<Stat>) -> String {
    process.map_or_else(String::new, |stat| stat.started.to_string())
}

/// As far as a lock that was had says that nobody else has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// On all hosts that see the file.
    All,
    /// On this host.
    ThisHost,
    /// There are no locks.
    Nowhere,
}

/// The lock of a folder, until it is dropped.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Takes the lock of `dir`, without waiting.
    pub fn take(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join(NAME);
        let failed = |source: io::Error| LockError::Io { dir: dir.to_owned(), source };
        for _ in 0..ATTEMPTS {
            let file = opened(&path).map_err(|error| match error {
                Unopened::Found(found) => LockError::Foreign { path: path.clone(), found },
                Unopened::Io(error) => failed(error),
            })?;
            let reach = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => reach(&file).map_err(failed)?,
                Err(Errno::WOULDBLOCK) => {
                    let by = held_by(&file).map(|by| format!(" ({})", by.words()));
                    return Err(LockError::Busy {
                        dir: dir.to_owned(),
                        by: by.unwrap_or_default(),
                    });
                }
                Err(Errno::INTR) => continue,
                Err(_) => Reach::Nowhere,
            };
            // Who had it before may have removed it, and another made it anew.
            if !is_at(&file, &path) {
                continue;
            }
            check(&file, &path)?;
            let this = Holder::this();
            if let Some(other) = held_by(&file).filter(|other| keeps_out(other, &this, reach)) {
                return Err(LockError::Elsewhere { dir: dir.to_owned(), by: other.words() });
            }
            // A disk may be full, and flock holds without a record.
            match write(&file, &this) {
                Err(error) if reach != Reach::All => return Err(failed(error)),
                _ => return Ok(Lock(file)),
            }
        }
        Err(LockError::Busy { dir: dir.to_owned(), by: String::new() })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // It holds this vmeter's record or nothing. What cannot be emptied is found to be a
        // dead process's.
        let _ = self.0.set_len(0);
    }
}

/// True if a record that was not emptied keeps others out.
fn keeps_out(other: &Holder, this: &Holder, reach: Reach) -> bool {
    let here = !this.boot_id.is_empty() && other.boot_id == this.boot_id;
    match reach {
        Reach::All => false,
        Reach::ThisHost => !here,
        Reach::Nowhere => other != this && other.may_live(this),
    }
}

enum Unopened {
    Found(&'static str),
    Io(io::Error),
}

fn opened(path: &Path) -> Result<File, Unopened> {
    let flags =
        OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mode = Mode::from_raw_mode(0o600);
    match open(path, flags, mode) {
        Ok(fd) => Ok(fd.into()),
        Err(Errno::LOOP) => Err(Unopened::Found("a symbolic link")),
        Err(Errno::ISDIR) => Err(Unopened::Found("a folder")),
        Err(error) => Err(Unopened::Io(error.into())),
    }
}

/// Refuses a file that no vmeter wrote.
fn check(file: &File, path: &Path) -> Result<(), LockError> {
    let foreign = |found| Err(LockError::Foreign { path: path.to_owned(), found });
    let Ok(stat) = fstat(file) else { return foreign("a file that cannot be examined") };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return foreign("no regular file");
    }
    if stat.st_nlink > 1 {
        return foreign("a file with another hard link");
    }
    if stat.st_size > 0 && held_by(file).is_none() {
        return foreign("a file with something else in it");
    }
    Ok(())
}

/// The record in the file; none if it is empty or not one.
fn held_by(file: &File) -> Option<Holder> {
    let length = file.metadata().ok()?.len();
    if length == 0 || length > MAX_RECORD {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, 0).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn write(file: &File, holder: &Holder) -> io::Result<()> {
    let bytes = serde_json::to_vec(holder)?;
    file.set_len(0)?;
    file.write_all_at(&bytes, 0)
}

fn is_at(file: &File, path: &Path) -> bool {
    match (fstat(file), lstat(path)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}

/// Magic numbers of statfs(2), as linux/magic.h and the file systems' own headers have them.
mod magic {
    pub const NFS: u64 = 0x6969;
    pub const SMB: u64 = 0x517b;
    pub const CIFS: u64 = 0xff53_4d42;
    pub const SMB2: u64 = 0xfe53_4d42;
    pub const V9FS: u64 = 0x0102_1997;
    pub const FUSE: u64 = 0x6573_5546;
    pub const AFS: u64 = 0x5346_414f;
    pub const CODA: u64 = 0x7375_7245;
    pub const VBOXSF: u64 = 0x786f_4256;
    pub const GPFS: u64 = 0x4750_4653;
    pub const LUSTRE: u64 = 0x0bd0_0bd0;
}

/// How far a lock on this file reaches, by its file system.
fn reach(file: &File) -> io::Result<Reach> {
    let kind = rustix::fs::fstatfs(file)?.f_type as u64 & 0xffff_ffff;
    let options = || mount_options(file).unwrap_or_default();
    Ok(reach_of(kind, options))
}

fn reach_of(kind: u64, options: impl Fn() -> Vec<String>) -> Reach {
    let has = |wanted: &[&str]| options().iter().any(|option| wanted.contains(&option.as_str()));
    let local = match kind {
        magic::NFS => has(&["nolock", "local_lock=flock", "local_lock=all"]),
        magic::LUSTRE => !has(&["flock"]),
        magic::SMB
        | magic::CIFS
        | magic::SMB2
        | magic::V9FS
        | magic::FUSE
        | magic::AFS
        | magic::CODA
        | magic::VBOXSF
        | magic::GPFS => true,
        // Of one host, or of a cluster whose flock is the cluster's.
        _ => false,
    };
    if local {
        Reach::ThisHost
    } else {
        Reach::All
    }
}

/// The options of the mount that a file is on, its file system's own among them
/// (`/proc/self/mountinfo`, proc(5)).
fn mount_options(file: &File) -> Option<Vec<String>> {
    let device = fstat(file).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = format!("{major}:{minor}");
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&own))?;
    let (mount, of_fs) = (line.split(' ').nth(5)?, line.rsplit(' ').next()?);
    Some(mount.split(',').chain(of_fs.split(',')).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn other_host() -> Holder {
        let boot_id = "another boot".to_owned();
        Holder { hostname: "far".into(), boot_id, pid: 7, ..Holder::this() }
    }

    #[test]
    fn one_holds_it_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path()).unwrap();
        let said = Lock::take(folder.path()).unwrap_err().to_string();
        assert!(said.contains(&format!("vmeter {}", std::process::id())), "{said}");
        drop(first);
        assert_eq!(fs::metadata(folder.path().join(NAME)).unwrap().len(), 0);
    }

    #[test]
    fn what_is_no_lock_is_neither_followed_nor_written() {
        let folder = tempfile::tempdir().unwrap();
        let (lock, victim) = (folder.path().join(NAME), folder.path().join("victim"));
        fs::write(&victim, "dear").unwrap();
        let refused = |found: &str| {
            let said = Lock::take(folder.path()).unwrap_err().to_string();
            assert!(said.contains(found), "{said}");
            assert_eq!(fs::read(&victim).unwrap(), b"dear");
            if lock.is_dir() {
                fs::remove_dir(&lock).unwrap();
            } else {
                fs::remove_file(&lock).unwrap();
            }
        };
        symlink(&victim, &lock).unwrap();
        refused("a symbolic link");
        fs::hard_link(&victim, &lock).unwrap();
        refused("another hard link");
        fs::create_dir(&lock).unwrap();
        refused("a folder");
        fs::write(&lock, "a note").unwrap();
        refused("something else");
        let mode = Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &lock, FileType::Fifo, mode, 0).unwrap();
        refused("no regular file");
    }

    #[test]
    fn a_record_counts_where_a_lock_does_not_reach() {
        let this = Holder::this();
        let dead = Holder { began: "1".into(), ..this.clone() };
        for (other, reach, kept_out) in [
            (other_host(), Reach::All, false),
            (other_host(), Reach::ThisHost, true),
            (other_host(), Reach::Nowhere, true),
            (dead.clone(), Reach::ThisHost, false),
            (dead, Reach::Nowhere, false),
            (Holder { pid: 1, began: began(Stat::of(1)), ..this.clone() }, Reach::Nowhere, true),
        ] {
            assert_eq!(keeps_out(&other, &this, reach), kept_out, "{other:?} {reach:?}");
        }
    }

    #[test]
    fn a_lock_reaches_as_far_as_its_file_system_says() {
        let reach = |kind, options: &[&str]| {
            let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
            reach_of(kind, || options.clone())
        };
        assert_eq!(reach(magic::NFS, &["rw", "local_lock=none"]), Reach::All);
        assert_eq!(reach(magic::NFS, &["rw", "local_lock=all"]), Reach::ThisHost);
        assert_eq!(reach(magic::LUSTRE, &["rw", "localflock"]), Reach::ThisHost);
        assert_eq!(reach(magic::LUSTRE, &["rw", "flock"]), Reach::All);
        assert_eq!(reach(magic::V9FS, &[]), Reach::ThisHost);
        assert_eq!(reach(0xef53, &[]), Reach::All);
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("x")).unwrap();
        assert!(!mount_options(&file).unwrap_or_default().is_empty());
    }

    #[test]
    fn the_record_of_a_process_that_was_killed_is_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let dead = Holder { began: "1".into(), ..other_host() };
        fs::write(folder.path().join(NAME), serde_json::to_vec(&dead).unwrap()).unwrap();
        // On a file system of one host, flock alone decides.
        Lock::take(folder.path()).unwrap();
    }
}
