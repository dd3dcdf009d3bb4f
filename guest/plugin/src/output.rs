//! The file of stamps: preallocated and mapped shared, so that what was written
//! is there however QEMU ends, and never longer than it was made.
//!
//! Its layout is in [`crate::format`].

use crate::format::*;
use std::ffi::{c_int, c_long, c_void};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};

#[repr(C)]
struct Timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

extern "C" {
    fn posix_fallocate(fd: c_int, offset: i64, length: i64) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn mmap(
        address: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
}

/// `CLOCK_MONOTONIC`, ns; read from the vDSO without a system call.
fn now() -> u64 {
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the structure is the C library's timespec of a 64-bit Linux.
    unsafe { clock_gettime(MONOTONIC as c_int, &mut time) };
    (time.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(time.nanoseconds as u64)
}

/// The mapped file.
pub struct Output {
    base: *mut u8,
    records_at: usize,
    vcpus: u32,
}

// SAFETY: all shared fields are accessed as atomics; each record and each
// counter has one writer at a time.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// Makes the file, sized for `vcpus` counters.
    ///
    /// # Errors
    /// Those of open, posix_fallocate and mmap.
    pub fn create(path: &str, vcpus: u32, counts: bool) -> io::Result<Self> {
        const PROT_READ_WRITE: c_int = 3;
        const MAP_SHARED: c_int = 1;
        let records_at = HEADER + vcpus as usize * LINE;
        let size = records_at + CAPACITY * RECORD;
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        // Room now, or a full disk would be a SIGBUS in QEMU later.
        // SAFETY: no pointers.
        match unsafe { posix_fallocate(file.as_raw_fd(), 0, size as i64) } {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), size, PROT_READ_WRITE, MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        let output = Self { base: base.cast(), records_at, vcpus };
        output.u32(FLAGS).store(u32::from(counts), Relaxed);
        output.u32(CLOCK).store(MONOTONIC, Relaxed);
        output.u32(COUNTERS).store(vcpus, Relaxed);
        output.u64(TICKS).store(1_000_000_000, Relaxed);
        output.u64(RECORDS_AT).store(records_at as u64, Relaxed);
        output.u64(ROOM).store(CAPACITY as u64, Relaxed);
        output.u64(INSTALLED).store(now(), Relaxed);
        output.u32(8).store(VERSION, Relaxed);
        output.u64(0).store(u64::from_ne_bytes(MAGIC), Release);
        Ok(output)
    }

    fn u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: every caller's offset is a multiple of 8 inside the mapping,
        // which is page aligned and never removed.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above, for multiples of 4.
        unsafe { &*self.base.add(offset).cast::<AtomicU32>() }
    }

    /// Number of counters.
    pub fn vcpus(&self) -> u32 {
        self.vcpus
    }

    fn counter_of(&self, vcpu: u32) -> &AtomicU64 {
        self.u64(HEADER + vcpu.min(self.vcpus - 1) as usize * LINE)
    }

    /// The counter itself, for QEMU to add to.
    pub fn counter(&self, vcpu: u32) -> *mut u64 {
        self.counter_of(vcpu).as_ptr()
    }

    /// Adds to a vCPU's counter, from that vCPU's thread only.
    pub fn add(&self, vcpu: u32, instructions: u64) {
        let counter = self.counter_of(vcpu);
        counter.store(counter.load(Relaxed).wrapping_add(instructions), Relaxed);
    }

    /// Sets a vCPU's counter.
    pub fn set(&self, vcpu: u32, instructions: u64) {
        self.counter_of(vcpu).store(instructions, Relaxed);
    }

    /// Sum of the counters.
    pub fn sum(&self) -> u64 {
        (0..self.vcpus).fold(0, |sum, vcpu| sum.wrapping_add(self.counter_of(vcpu).load(Relaxed)))
    }

    /// Writes a record, if there is room.
    pub fn stamp(&self, id: u32, vcpu: u32, instructions: u64) {
        let number = self.u64(WANTED).fetch_add(1, Relaxed);
        if number >= CAPACITY as u64 {
            return;
        }
        let at = self.records_at + number as usize * RECORD;
        self.u64(at + 8).store(instructions, Relaxed);
        self.u32(at + 16).store(id, Relaxed);
        self.u32(at + 20).store(vcpu, Relaxed);
        self.u64(at).store(now(), Release);
    }

    /// Notes a translated block.
    pub fn translated(&self) {
        self.u64(TRANSLATED).fetch_add(1, Relaxed);
    }

    /// Notes that the translation hook is gone.
    pub fn unhooked(&self) {
        self.u64(UNHOOKED).store(now(), Relaxed);
    }

    /// Notes how far KASLR moved the kernel.
    pub fn slide(&self, slide: u64) {
        self.u64(SLIDE).store(slide, Relaxed);
        self.u64(SLIDE_KNOWN).store(1, Relaxed);
    }

    /// Notes that QEMU exits.
    pub fn ended(&self) {
        self.u64(ENDED).store(now(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_bounded_and_counts_what_was_lost() {
        let path = std::env::temp_dir().join(format!("vmeter-stamps-{}", std::process::id()));
        let output = Output::create(path.to_str().unwrap(), 3, true).unwrap();
        output.add(0, 5);
        output.add(2, 7);
        assert_eq!(output.sum(), 12);
        let extra = 3;
        for _ in 0..CAPACITY + extra {
            output.stamp(1, 0, output.sum());
        }
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes.len(), HEADER + 3 * LINE + CAPACITY * RECORD);
        assert_eq!(bytes[..8], MAGIC);
        let wanted = u64::from_ne_bytes(bytes[WANTED..WANTED + 8].try_into().unwrap());
        assert_eq!(wanted, (CAPACITY + extra) as u64);
        assert!(bytes[bytes.len() - RECORD..bytes.len() - RECORD + 8] != [0; 8]);
    }

    #[test]
    fn says_that_it_cannot_be_made() {
        assert!(Output::create("/nonexistent/folder/stamps", 1, false).is_err());
    }
}
