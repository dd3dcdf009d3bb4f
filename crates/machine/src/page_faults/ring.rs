//! perf's events of a thread on one CPU, and the buffer into which the kernel writes their records.

use super::files::Files;
use super::pairs::{Kind, Mapped, Stamp};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a CPU's buffer. With the page before it, it is what Linux lets every user lock
/// (`perf_event_mlock_kb`).
const RING: usize = 512 << 10;
/// Records that are kept, 256 MB at most; more are lost.
const MOST: usize = 4 << 20;

/// Kinds of records (linux/perf_event.h).
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const SWITCH: u32 = 14;
/// Bits of a switch's header: off the CPU; and the thread could have gone on.
const OUT: u16 = 1 << 13;
const PREEMPTED: u16 = 1 << 14;
/// An event of the kernel's own, and which.
const SOFTWARE: u32 = 1;
const PAGE_FAULTS: u64 = 2;
const MINOR_FAULTS: u64 = 5;
const MAJOR_FAULTS: u64 = 6;
/// A sample has the event's number, process and thread, time, and address. Of a record of another kind the
/// last 24 bytes are process and thread, time, and number.
const IDENTIFIER_TID_TIME_ADDR: u64 = 1 << 16 | 1 << 1 | 1 << 2 | 1 << 3;
const TIME_FROM_END: usize = 16;
/// Flags: off at first; threads and children too; not in the kernel; wake up by bytes; a clock of one's choice.
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const WATERMARK: u64 = 1 << 14;
const USE_CLOCKID: u64 = 1 << 25;
/// Flags: records of mappings, of data too, with the file's number, and with the time.
const MAPPINGS: u64 = 1 << 17 | 1 << 23 | ALL_IDENTIFIED;
/// Flag: records of switches.
const SWITCHES: u64 = 1 << 26;
/// Flag: records of another kind than samples have the fields of [`IDENTIFIER_TID_TIME_ADDR`] too.
const ALL_IDENTIFIED: u64 = 1 << 18;
const CLOEXEC: libc::c_ulong = 1 << 3;
/// `_IO('$', 0)`, `_IO('$', 5)` and `_IOR('$', 7, __u64 *)`.
const ENABLE: libc::c_ulong = 0x2400;
const SET_OUTPUT: libc::c_ulong = 0x2405;
const ID: libc::c_ulong = 0x8008_2407;
/// Where the buffer's first page has what was written and what was read.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// `struct perf_event_attr`, as far as Linux 4.1 has it.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    config_more: [u64; 4],
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

/// What the kernel has written.
#[derive(Default)]
pub(super) struct Seen {
    pub stamps: Vec<Stamp>,
    pub mapped: Vec<Mapped>,
    pub lost: u64,
}

/// The events of one CPU.
pub(super) struct Ring {
    /// The ends of major faults, and mappings. This event has the buffer.
    major: OwnedFd,
    /// The begins of all faults; the ends of minor ones, and switches.
    later: [OwnedFd; 2],
    /// The numbers of the ends: major, minor.
    ends: [u64; 2],
    memory: *mut u8,
    size: usize,
}

// SAFETY: the mapping is the ring's own, and only one thread has the ring.
unsafe impl Send for Ring {}

impl Ring {
    /// Stamps mappings and the ends of major faults from now on.
    pub fn open(tid: i32, cpu: i32) -> io::Result<Self> {
        let major = event(tid, cpu, MAJOR_FAULTS, MAPPINGS)?;
        let begins = event(tid, cpu, PAGE_FAULTS, DISABLED)?;
        let minor = event(tid, cpu, MINOR_FAULTS, DISABLED | SWITCHES | ALL_IDENTIFIED)?;
        let ends = [number(&major)?, number(&minor)?];
        let (page, rights) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
        let size = page + RING;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let memory =
            unsafe { mmap(std::ptr::null_mut(), size, rights, MapFlags::SHARED, &major, 0)? };
        let ring = Ring { memory: memory.cast(), size, major, later: [begins, minor], ends };
        for event in &ring.later {
            // SAFETY: the ioctl takes a descriptor and touches no memory of this process.
            let done =
                unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT, ring.major.as_raw_fd()) };
            checked(done)?;
        }
        Ok(ring)
    }

    /// Stamps begins, ends of minor faults and switches too, of threads and children that are there already as
    /// well.
    pub fn enable(&self) -> io::Result<()> {
        self.later.iter().try_for_each(|event| {
            // SAFETY: the ioctl takes a number and touches no memory of this process.
            checked(unsafe { libc::ioctl(event.as_raw_fd(), ENABLE, 0) })
        })
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is the offset of an aligned u64 in the mapping's first page, which the kernel
        // too reads and writes as one word.
        unsafe { &*self.memory.add(at).cast::<AtomicU64>() }
    }

    /// Takes what was written since the last time.
    pub fn drain(&self, files: &Files, seen: &mut Seen) {
        let (head, tail) = (
            self.position(HEAD).load(Ordering::Acquire),
            self.position(TAIL).load(Ordering::Relaxed),
        );
        let (from, length) = (tail as usize % RING, (head.wrapping_sub(tail) as usize).min(RING));
        let mut bytes = vec![0u8; length];
        let (first, second) = bytes.split_at_mut(length.min(RING - from));
        // SAFETY: the buffer follows the first page; both parts are inside of it, and the kernel writes
        // nothing between tail and head.
        unsafe {
            let buffer = self.memory.add(rustix::param::page_size());
            buffer.add(from).copy_to_nonoverlapping(first.as_mut_ptr(), first.len());
            buffer.copy_to_nonoverlapping(second.as_mut_ptr(), second.len());
        }
        self.position(TAIL).store(head, Ordering::Release);
        let mut rest = &bytes[..];
        while let Some(length) = rest.get(6..8) {
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
            let Some((record, after)) = rest.split_at_checked(length).filter(|_| length >= 8)
            else {
                break;
            };
            note(record, self.ends, files, seen);
            rest = after;
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.major.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this mapping, whole, which nothing else knows of.
        let _ = unsafe { munmap(self.memory.cast(), self.size) };
    }
}

/// Keeps what a record says.
fn note(record: &[u8], [major, minor]: [u64; 2], files: &Files, seen: &mut Seen) {
    let word = |at: usize| {
        let bytes = record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_ne_bytes(bytes.unwrap_or_default())
    };
    let half = |at: usize| {
        let bytes = record.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(bytes.unwrap_or_default())
    };
    match half(0) {
        LOST => seen.lost += word(16),
        SAMPLE | MMAP2 | SWITCH if seen.stamps.len() + seen.mapped.len() >= MOST => seen.lost += 1,
        SAMPLE => {
            let kind = match word(8) {
                id if id == major => Kind::Major,
                id if id == minor => Kind::Minor,
                _ => Kind::Begins,
            };
            let (process, thread) = (half(16) as i32, half(20) as i32);
            seen.stamps.push(Stamp { at: word(24), process, thread, address: word(32), kind });
        }
        SWITCH => {
            let misc = half(4) as u16;
            let kind = match misc & OUT != 0 {
                true if misc & PREEMPTED == 0 => Kind::Sleeps,
                true => Kind::Preempted,
                false => Kind::Runs,
            };
            let (process, thread) = (half(8) as i32, half(12) as i32);
            seen.stamps.push(Stamp { at: word(16), process, thread, address: 0, kind });
        }
        MMAP2 => {
            let name = record.get(72..).unwrap_or_default().split(|byte| *byte == 0).next();
            let device = libc::makedev(half(40), half(44));
            seen.mapped.push(Mapped {
                at: word(record.len().saturating_sub(TIME_FROM_END)),
                process: half(8) as i32,
                range: word(16)..word(16).saturating_add(word(24)),
                offset: word(32),
                file: files.number((device, word(48)), name.unwrap_or_default()),
            });
        }
        _ => {}
    }
}

/// The number by which records name an event.
fn number(event: &OwnedFd) -> io::Result<u64> {
    let mut number = 0u64;
    // SAFETY: the ioctl writes one u64, which is there.
    checked(unsafe { libc::ioctl(event.as_raw_fd(), ID, &mut number) })?;
    Ok(number)
}

fn checked(done: libc::c_int) -> io::Result<()> {
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Opens one event; without the faults in the kernel, where this user may not see them.
fn event(tid: i32, cpu: i32, config: u64, flags: u64) -> io::Result<OwnedFd> {
    let open = |more: u64| {
        let attributes = Attributes {
            kind: SOFTWARE,
            size: std::mem::size_of::<Attributes>() as u32,
            config,
            sample_period: 1,
            sample_type: IDENTIFIER_TID_TIME_ADDR,
            flags: INHERIT | EXCLUDE_HV | WATERMARK | USE_CLOCKID | flags | more,
            wakeup: RING as u32 / 4,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attributes::default()
        };
        // SAFETY: the attributes are a live structure of the size that they say; the kernel reads them.
        let fd =
            unsafe { libc::syscall(libc::SYS_perf_event_open, &attributes, tid, cpu, -1, CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    };
    open(0).or_else(|error| match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => open(EXCLUDE_KERNEL),
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_of_a_mapping_names_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ram");
        std::fs::write(&path, "memory").expect("written");
        let files = Files::new(std::slice::from_ref(&path));
        let record = |name: &[u8]| {
            let mut record = [[10, 0].as_slice(), &[0; 6]].concat();
            record.extend([7u32, 8].map(u32::to_ne_bytes).concat());
            record.extend([0x4000u64, 0x2000, 0x1000, 0, 1, 0, 3].map(u64::to_ne_bytes).concat());
            record.extend(name);
            record.resize(record.len().next_multiple_of(8) + 8, 0);
            record.extend([0u64, 99, 5].map(u64::to_ne_bytes).concat());
            record
        };
        let mut seen = Seen::default();
        note(&record(path.to_str().expect("text").as_bytes()), [1, 2], &files, &mut seen);
        note(&record(b"//anon"), [1, 2], &files, &mut seen);
        let found =
            |file| Mapped { at: 99, process: 7, range: 0x4000..0x6000, offset: 0x1000, file };
        assert_eq!(seen.mapped, [found(Some(0)), found(None)]);
    }

    proptest! {
        #[test]
        fn any_record(kind in 0u8..16, record in prop::collection::vec(any::<u8>(), 0..120)) {
            let record = [&[kind, 0, 0, 0][..], &record].concat();
            note(&record, [1, 2], &Files::new(&[]), &mut Seen::default());
        }
    }
}
