//! Looking into a process that is stopped.

use std::io::{self, BufRead, BufReader};
use vmeter_model::Ns;

/// One mapping of a process, from `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
    /// Permissions, e.g. `rw-s`.
    pub permissions: String,
    /// Where in its file it begins, bytes.
    pub offset: u64,
    /// Device and inode of its file (a memfd's and shared memory's as well), if it has one.
    pub file: Option<(String, u64)>,
    /// Path or pseudo-name, empty for anonymous memory.
    pub path: String,
}

impl Mapping {
    /// One line of `/proc/PID/maps` (proc(5)): `start-end perms offset dev inode path`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let permissions = fields.next()?.to_owned();
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let (device, inode) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?);
        let file = (inode != 0).then_some((device, inode));
        let path = fields.next().unwrap_or("").trim().to_owned();
        (start <= end).then_some(Self { start, end, permissions, offset, file, path })
    }
}

/// A VMM that is stopped: its memory can be read.
#[derive(Debug, Clone)]
pub struct Tracee {
    /// Process id.
    pub pid: i32,
    /// `CLOCK_MONOTONIC` of the stop, ns.
    pub stopped_ns: Ns,
}

/// Bytes of a word, and most parts of a `process_vm_readv` (`UIO_MAXIOV`).
const WORD: usize = 8;
const MOST_PARTS: usize = 1024;

impl Tracee {
    /// Reads the process's memory at `address` with `process_vm_readv`.
    ///
    /// # Errors
    /// Any error of the system call; a short read is an `UnexpectedEof`.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0usize;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let from = address
                .checked_add(done as u64)
                .and_then(|a| usize::try_from(a).ok())
                .ok_or(io::ErrorKind::InvalidInput)?;
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: rest.len() };
            // SAFETY: `local` is `rest`, exclusively borrowed and of that length; the
            // remote address is only interpreted by the kernel in the other process.
            let n = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
            match n {
                -1 => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::Interrupted => continue,
                    _ if done > 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    e => return Err(e),
                },
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n as usize,
            }
        }
        Ok(())
    }

    /// Reads 8 bytes at each of some addresses: those up to the first that can't be read.
    pub fn read_words(&self, addresses: &[u64]) -> Vec<u64> {
        let mut bytes = vec![0; addresses.len() * WORD];
        let read = self.read_parts(addresses.iter().copied(), WORD, &mut bytes);
        let words = bytes.chunks_exact(WORD).take(read);
        words.map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect()
    }

    /// Reads parts of `length` bytes, one at each of some addresses, into `buffer`: how many, up to the first that
    /// can't be read or has no room.
    pub fn read_parts(
        &self,
        addresses: impl Iterator<Item = u64>,
        length: usize,
        buffer: &mut [u8],
    ) -> usize {
        let part =
            |at: u64| libc::iovec { iov_base: at as usize as *mut libc::c_void, iov_len: length };
        let room = buffer.len() / length;
        let parts: Vec<libc::iovec> = addresses.map(part).take(room).collect();
        let mut done = 0;
        for some in parts.chunks(MOST_PARTS) {
            let rest = &mut buffer[done * length..(done + some.len()) * length];
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let count = some.len() as libc::c_ulong;
            // SAFETY: `local` is `rest`, exclusively borrowed and of that length; the remote
            // addresses are only interpreted by the kernel in the other process.
            let n = unsafe { libc::process_vm_readv(self.pid, &local, 1, some.as_ptr(), count, 0) };
            let whole = usize::try_from(n).unwrap_or(0) / length;
            done += whole;
            if whole < some.len() {
                break;
            }
        }
        done
    }

    /// The process's mappings.
    ///
    /// # Errors
    /// When `/proc/PID/maps` cannot be read.
    pub fn mappings(&self) -> io::Result<Vec<Mapping>> {
        let file = std::fs::File::open(format!("/proc/{}/maps", self.pid))?;
        let mut mappings = Vec::new();
        for line in BufReader::new(file).split(b'\n') {
            mappings.extend(Mapping::parse(&String::from_utf8_lossy(&line?)));
        }
        Ok(mappings)
    }

    /// Peak resident set of the image that runs now, bytes (`VmHWM`).
    ///
    /// Unlike `ru_maxrss` it leaves out the launcher's own memory, which a child
    /// shares until its `execve`.
    pub fn peak_rss_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Entry of the auxiliary vector, e.g. `AT_ENTRY` (9).
    pub(super) fn auxv(&self, key: u64) -> io::Result<Option<u64>> {
        let bytes = std::fs::read(format!("/proc/{}/auxv", self.pid))?;
        let mut words =
            bytes.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap_or_default()));
        while let (Some(k), Some(value)) = (words.next(), words.next()) {
            if k == key {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn maps_lines() {
        let m = Mapping::parse("7f00-7fff rw-s 00000000 00:01 1234   /memfd:pc.ram (deleted)");
        let m = m.expect("a valid line");
        assert_eq!((m.start, m.end, &*m.permissions), (0x7f00, 0x7fff, "rw-s"));
        assert_eq!(m.path, "/memfd:pc.ram (deleted)");
        assert_eq!((m.offset, m.file), (0, Some(("00:01".into(), 1234))));
        let m = Mapping::parse("7f00-7fff rw-p 000a0000 00:00 0 ").expect("anonymous");
        assert_eq!((&*m.path, m.offset, m.file), ("", 0xa_0000, None));
        assert!(Mapping::parse("7fff-7f00 rw-p 0 0 0 x").is_none());
        assert!(Mapping::parse("").is_none());
    }

    proptest! {
        #[test]
        fn maps_never_panic(line in "[0-9a-f]{0,20}-?[0-9a-f]{0,20}[ -~]{0,40}") {
            let _ = Mapping::parse(&line);
        }
    }

    #[test]
    fn reads_itself() {
        let pattern = *b"what the guest left behind";
        let me = Tracee { pid: std::process::id() as i32, stopped_ns: 0 };
        let mut copy = [0u8; 26];
        me.read(pattern.as_ptr() as u64, &mut copy).expect("own memory is readable");
        assert_eq!(copy, pattern);
        let at = pattern.as_ptr() as u64;
        let maps = me.mappings().expect("own maps");
        assert!(maps.iter().any(|m| m.start <= at && at < m.end));
        assert!(me.read(8, &mut copy).is_err());
        assert!(me.read(u64::MAX - 3, &mut copy).is_err());
        assert!(me.peak_rss_bytes().is_some_and(|b| b > 4096));
    }
}
