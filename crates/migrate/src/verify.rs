//! Whether the guest's memory is the same on both sides.
//!
//! The destination ran on before anyone could look, so the memories of the two moments
//! differ, and rightly. But the guest is deterministic in the number of pages written: so
//! both are stopped at the same number, the source being let run on from where it was
//! stopped, and then every byte must be equal: all that was sent, and all that the guest
//! did on the strength of it.

use crate::commands::{self, Cont, MemorySize};
use crate::data::MigrateVerification;
use crate::error::MigrateError;
use crate::heart::Heart;
use crate::side::Side;
use crate::vm::Vm;
use sha2::{Digest, Sha256};
use std::io;
use std::time::Duration;

/// Compared at a time, bytes.
const CHUNK: usize = 4 << 20;
/// How long a guest may take to stop, or to reach the other's number.
const LIMIT: Duration = Duration::from_secs(30);
const PAGE: usize = 4096;

/// Stops both guests at the same point of their lives and compares their RAM.
///
/// # Errors
/// When one of them is gone or does not answer, or RAM cannot be read.
pub fn verify(
    source: &mut Vm,
    destination: &mut Vm,
    heart: &mut Heart,
    mut interrupted: impl FnMut() -> bool,
) -> Result<MigrateVerification, MigrateError> {
    let mut stop = |heart: &mut Heart, side, pages| {
        heart.stop_guest(side, pages)?;
        let halted = heart.wait(LIMIT, &mut interrupted, |heard| heard.halted(side));
        let what = "did not obey vmeter's stop command";
        let silent = MigrateError::Silent { what, seconds: LIMIT.as_secs() };
        halted.ok_or(silent)
    };
    // 0 pages are written already: it stops at once, wherever it is.
    let pages = stop(heart, Side::Destination, 0)?.pages;
    source.execute(&Cont {})?;
    stop(heart, Side::Source, pages)?;
    let mut result = compare(source, destination)?;
    result.written_pages = pages;
    Ok(result)
}

fn compare(source: &mut Vm, destination: &mut Vm) -> Result<MigrateVerification, MigrateError> {
    let bytes = source.execute(&MemorySize {})?.base_memory;
    let at = [commands::ram_address(source)?, commands::ram_address(destination)?];
    let mut result = MigrateVerification { bytes, ..MigrateVerification::default() };
    let mut digests = [Sha256::new(), Sha256::new()];
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    let mut done = 0;
    while done < bytes {
        let length = usize::try_from(bytes - done).unwrap_or(CHUNK).min(CHUNK);
        for (n, vm) in [&*source, &*destination].into_iter().enumerate() {
            let read = read(vm.process.pid(), at[n].wrapping_add(done), &mut buffers[n][..length]);
            read.map_err(MigrateError::io(
                "reading the guest's RAM out of QEMU's memory (may this user ptrace it? \
                 /proc/sys/kernel/yama/ptrace_scope must be 0 or 1)",
            ))?;
            digests[n].update(&buffers[n][..length]);
        }
        let [a, b] = &buffers;
        if a[..length] != b[..length] {
            let pages = a[..length].chunks(PAGE).zip(b[..length].chunks(PAGE));
            for (n, _) in pages.enumerate().filter(|(_, (a, b))| a != b) {
                result.differing_pages += 1;
                result.first_difference.get_or_insert(done + (n * PAGE) as u64);
            }
        }
        done += length as u64;
    }
    let [source, destination] = digests.map(|digest| hex(&digest.finalize()));
    result.equal = source == destination && result.differing_pages == 0 && bytes > 0;
    (result.source_sha256, result.destination_sha256) = (source, destination);
    Ok(result)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads another process's memory (process_vm_readv(2)).
fn read(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let local = libc::iovec {
            iov_base: buffer[done..].as_mut_ptr().cast(),
            iov_len: buffer.len() - done,
        };
        let from = address.checked_add(done as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(from as usize),
            iov_len: buffer.len() - done,
        };
        // SAFETY: `local` is the rest of `buffer`; the remote address is only a number here,
        // which the kernel checks against the other process.
        let read = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match usize::try_from(read) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}
