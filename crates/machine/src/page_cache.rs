//! What of a file is in the host's page cache, by mincore(2), and how it gets there or is dropped.

use rustix::fs::{fadvise, fsync, Advice};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Mapped at a time, bytes.
const WINDOW: u64 = 1 << 30;
/// Read at a time, bytes.
const CHUNK: usize = 1 << 20;

/// How much of a file is in the page cache, bytes. (Linux tells only those who may write it.)
///
/// # Errors
/// When it cannot be read or mapped.
pub fn resident(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut resident = 0;
    let mut at = 0;
    while at < length {
        let window = WINDOW.min(length - at);
        resident += resident_pages(&file, at, window)?;
        at += window;
    }
    Ok(resident.min(length))
}

fn resident_pages(file: &File, at: u64, length: u64) -> io::Result<u64> {
    let page = rustix::param::page_size();
    let size = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (rights, flags) = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: a new mapping, at an address of the kernel's choice, which nobody reads through.
    let address = unsafe { mmap(std::ptr::null_mut(), size, rights, flags, file, at)? };
    let mut pages = vec![0u8; size.div_ceil(page)];
    // SAFETY: the mapping is there, and there is a byte for each of its pages.
    let told = unsafe { libc::mincore(address, size, pages.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: this mapping, whole, which nothing else knows of.
    unsafe { munmap(address, size)? };
    if told != 0 {
        return Err(error);
    }
    Ok(pages.iter().filter(|state| **state & 1 != 0).count() as u64 * page as u64)
}

/// Drops a file from the page cache, once it is on disk.
///
/// # Errors
/// When it cannot be opened or written to disk.
pub fn drop_file(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    fsync(&file)?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Reads a file to its end, so that it is in the page cache as far as there is room.
///
/// # Errors
/// When it cannot be read.
pub fn read_through(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut chunk = vec![0; CHUNK];
    while file.read(&mut chunk)? > 0 {}
    Ok(())
}

/// Reads ranges of a file (offset and length, bytes) into the page cache, and nothing around them.
///
/// # Errors
/// When it cannot be read, or ends before one of them does.
pub fn load(path: &Path, ranges: &[(u64, u64)]) -> io::Result<()> {
    let file = File::open(path)?;
    fadvise(&file, 0, None, Advice::Random)?;
    // The disk has all of them to do before any is waited for.
    for (offset, length) in ranges {
        fadvise(&file, *offset, std::num::NonZeroU64::new(*length), Advice::WillNeed)?;
    }
    let mut chunk = vec![0; CHUNK];
    for (offset, length) in ranges {
        let mut at = 0;
        while at < *length {
            let some = usize::try_from(length - at).map_or(CHUNK, |left| left.min(CHUNK));
            file.read_exact_at(&mut chunk[..some], offset + at)?;
            at += some as u64;
        }
    }
    Ok(())
}

/// What a file takes on its disk, bytes: what was never written of it takes nothing.
///
/// # Errors
/// When it is not there.
pub fn stored(path: &Path) -> io::Result<u64> {
    let found = path.metadata()?;
    Ok(found.len().min(found.blocks().saturating_mul(512)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_there_and_what_was_dropped_is_not() {
        // The page cache of a tmpfs is the file.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7u8; 3 << 20]).expect("written");
        assert_eq!(resident(&path).expect("read"), 3 << 20);
        drop_file(&path).expect("dropped");
        let left = resident(&path).expect("read");
        if left > 0 {
            eprintln!("skipped: this file system keeps {left} bytes of a file that was dropped");
            return;
        }
        load(&path, &[(4096, 8192), (1 << 20, 4096)]).expect("read");
        assert_eq!(resident(&path).expect("read"), 12288);
        assert!(load(&path, &[(3 << 20, 1)]).is_err(), "there is no more");
        read_through(&path).expect("read");
        assert_eq!(resident(&path).expect("read"), 3 << 20);
        assert!(stored(&path).expect("there") <= 3 << 20);
    }
}
