//! Locks between shards that share a folder of builds.
//!
//! A lock lives as long as its file is open, so that a task that is killed leaves none. Where
//! the file system has no locks nobody waits: two shards then build one commit, and the last
//! to finish counts.

use rustix::fs::{flock, FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc;
use vmeter_session::Interrupt;

/// The file that is locked: never a link that is followed, never one that is truncated.
pub(super) fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    File::options().append(true).create(true).custom_flags(flags).open(path)
}

/// Takes the lock if nobody has it.
pub(super) fn attempt(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
}

/// Waits for the lock; none if interrupted.
pub(super) fn wait(file: &File, interrupt: &Interrupt) -> Option<()> {
    let (sender, receiver) = mpsc::channel();
    let _during = interrupt.during({
        let sender = sender.clone();
        move || {
            let _ = sender.send(());
        }
    });
    // A duplicate shares the lock; the thread ends with it, or with the process.
    let waits = file.try_clone().ok()?;
    std::thread::spawn(move || {
        let _ = flock(&waits, FlockOperation::LockExclusive);
        drop(waits);
        let _ = sender.send(());
    });
    let _ = receiver.recv();
    (!interrupt.is_raised()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_waits_for_the_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.lock");
        let open = || open(&path).expect("a file");
        let first = open();
        assert!(attempt(&first));
        let second = open();
        assert!(!attempt(&second));
        let waits = std::thread::spawn(move || wait(&second, &Interrupt::default()));
        drop(first);
        assert_eq!(waits.join().expect("it ends"), Some(()));
        let interrupt = Interrupt::default();
        let held = open();
        // A test beside this one that starts a program holds what was open, until its exec.
        assert_eq!(wait(&held, &interrupt), Some(()));
        interrupt.raise();
        assert_eq!(wait(&open(), &interrupt), None);
    }
}
