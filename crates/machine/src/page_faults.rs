//! Page faults of a process, each with how long it took, by perf's software events
//! (perf_event_open(2)).
//!
//! The kernel counts `page-faults` when it begins to handle a fault and `major-faults` or `minor-faults`
//! when it is done (`mm_account_fault` in mm/memory.c; Linux 5.9 and later for all ways out of it). A thread has
//! one fault at a time, so the two belong together. Faults that the kernel takes for somebody else, as KVM does
//! for a guest, are no such events: [`taken`] counts them too.

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Bytes of a CPU's buffer. With the page before it, it is what Linux lets every user lock
/// (`perf_event_mlock_kb`).
const RING: usize = 512 << 10;
/// Stamps that are kept, some 100 MB; more are lost.
const MOST: usize = 4 << 20;

/// Kinds of records (linux/perf_event.h).
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
/// An event of the kernel's own, and which: a fault begins, ends without a disk, or with one.
const SOFTWARE: u32 = 1;
const KINDS: [(u64, Kind); 3] = [(2, Kind::Begins), (5, Kind::Minor), (6, Kind::Major)];
/// A sample has the event's number, process and thread, time, and address.
const IDENTIFIER_TID_TIME_ADDR: u64 = 1 << 16 | 1 << 1 | 1 << 2 | 1 << 3;
/// Flags: threads and children too; not in the kernel; wake up by bytes; a clock of one's choice.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const WATERMARK: u64 = 1 << 14;
const USE_CLOCKID: u64 = 1 << 25;
const CLOEXEC: libc::c_ulong = 1 << 3;
/// `_IO('$', 5)` and `_IOR('$', 7, __u64 *)`.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Begins,
    Minor,
    Major,
}

/// A stamp of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    at: u64,
    process: i32,
    thread: i32,
    address: u64,
    kind: Kind,
}

/// A page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When it began, ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// How long it took, ns.
    pub took: u64,
    /// Process and thread.
    pub process: i32,
    /// Thread.
    pub thread: i32,
    /// The address.
    pub address: u64,
    /// True if the thread waited for the page to be read, by itself or by somebody else.
    pub major: bool,
}

/// What was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// In order of their begin.
    pub all: Vec<Fault>,
    /// Stamps for which there was no room.
    pub lost: u64,
}

/// Watches page faults until it is told to end.
pub struct Watching {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<(Vec<Stamp>, u64)>,
}

impl Watching {
    /// Begins with a thread, and what it starts from now on: threads, processes.
    ///
    /// # Errors
    /// A kernel without perf events, or one that does not let this user have them.
    pub fn start(tid: i32) -> io::Result<Self> {
        let rings: io::Result<Vec<Ring>> =
            online()?.into_iter().map(|cpu| Ring::open(tid, cpu)).collect();
        let mut rings = rings?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = stop.clone();
        let take = move || take(&mut rings, &stopped);
        let thread = std::thread::Builder::new().name("page-faults".into()).spawn(take)?;
        Ok(Watching { stop, thread })
    }

    /// Ends it: what it saw, if its thread did not panic.
    pub fn end(self) -> Option<Faults> {
        // The counter of an eventfd does not overflow by one write.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        let (stamps, lost) = self.thread.join().ok()?;
        Some(Faults { all: paired(stamps), lost })
    }
}

/// Major faults that the kernel has counted for a process and its threads, taken by whomever.
///
/// # Errors
/// When the process is gone.
pub fn taken(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may have spaces and brackets; majflt is the tenth after it (proc_pid_stat(5)).
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = rest.split_whitespace().nth(9).and_then(|field| field.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The CPUs that run.
fn online() -> io::Result<Vec<i32>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?)
    };
    Ok(text.trim().split(',').filter_map(range).flatten().collect())
}

/// The stamps of one CPU.
struct Ring {
    /// The events; the first has the buffer.
    events: Vec<OwnedFd>,
    kinds: BTreeMap<u64, Kind>,
    memory: *mut u8,
    size: usize,
}

// SAFETY: the mapping is the ring's own, and only one thread has the ring.
unsafe impl Send for Ring {}

impl Ring {
    fn open(tid: i32, cpu: i32) -> io::Result<Self> {
        let mut events: Vec<OwnedFd> = Vec::new();
        let mut kinds = BTreeMap::new();
        for (config, kind) in KINDS {
            let event = event(tid, cpu, config)?;
            let mut id = 0u64;
            // SAFETY: the ioctl writes one u64, which is there.
            if unsafe { libc::ioctl(event.as_raw_fd(), ID, &mut id) } != 0 {
                return Err(io::Error::last_os_error());
            }
            kinds.insert(id, kind);
            events.push(event);
        }
        let (page, rights) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
        let (size, first) = (page + RING, &events[0]);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let memory =
            unsafe { mmap(std::ptr::null_mut(), size, rights, MapFlags::SHARED, first, 0)? };
        let ring = Ring { memory: memory.cast(), size, kinds, events };
        for other in &ring.events[1..] {
            // SAFETY: the ioctl takes a descriptor and touches no memory of this process.
            let done =
                unsafe { libc::ioctl(other.as_raw_fd(), SET_OUTPUT, ring.events[0].as_raw_fd()) };
            if done != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(ring)
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is the offset of an aligned u64 in the mapping's first page, which the kernel
        // too reads and writes as one word.
        unsafe { &*self.memory.add(at).cast::<AtomicU64>() }
    }

    /// Takes what was written since the last time.
    fn drain(&mut self, stamps: &mut Vec<Stamp>) -> u64 {
        let page = rustix::param::page_size();
        let (head, mut tail) = (
            self.position(HEAD).load(Ordering::Acquire),
            self.position(TAIL).load(Ordering::Relaxed),
        );
        let mut lost = 0;
        let mut record = [0u8; 256];
        while tail < head {
            let copy = |bytes: &mut [u8], from: u64| {
                for (n, byte) in (0u64..).zip(bytes) {
                    let at = (from + n) as usize % RING;
                    // SAFETY: `at` is inside the buffer, which follows the first page; the kernel
                    // writes nothing between tail and head.
                    *byte = unsafe { self.memory.add(page + at).read() };
                }
            };
            copy(&mut record[..8], tail);
            let length = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if length < 8 {
                tail = head;
                break;
            }
            let known = length.min(record.len());
            copy(&mut record[..known], tail);
            lost += self.note(&record[..known], stamps);
            tail += length as u64;
        }
        self.position(TAIL).store(tail, Ordering::Release);
        lost
    }

    /// Keeps a record's stamp; how many were lost by it.
    fn note(&self, record: &[u8], stamps: &mut Vec<Stamp>) -> u64 {
        let word = |at: usize| {
            let bytes = record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_ne_bytes(bytes.unwrap_or_default())
        };
        let half = |at: usize| (word(at & !7) >> (8 * (at & 7))) as i32;
        match half(0) as u32 {
            LOST => word(16),
            SAMPLE if stamps.len() >= MOST => 1,
            SAMPLE => {
                if let Some(kind) = self.kinds.get(&word(8)) {
                    let (process, thread) = (half(16), half(20));
                    let (at, address) = (word(24), word(32));
                    stamps.push(Stamp { at, process, thread, address, kind: *kind });
                }
                0
            }
            _ => 0,
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this mapping, whole, which nothing else knows of.
        let _ = unsafe { munmap(self.memory.cast(), self.size) };
    }
}

/// Opens one event; without the faults in the kernel, where this user may not see them.
fn event(tid: i32, cpu: i32, config: u64) -> io::Result<OwnedFd> {
    let open = |more: u64| {
        let attributes = Attributes {
            kind: SOFTWARE,
            size: std::mem::size_of::<Attributes>() as u32,
            config,
            sample_period: 1,
            sample_type: IDENTIFIER_TID_TIME_ADDR,
            flags: INHERIT | EXCLUDE_HV | WATERMARK | USE_CLOCKID | more,
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

/// Takes stamps until it is told to stop, and how many were lost.
fn take(rings: &mut [Ring], stop: &OwnedFd) -> (Vec<Stamp>, u64) {
    let (mut stamps, mut lost) = (Vec::new(), 0);
    loop {
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        polled.extend(rings.iter().map(|ring| PollFd::new(&ring.events[0], PollFlags::IN)));
        let stopped = match poll(&mut polled, None) {
            Err(Errno::INTR) => continue,
            Err(_) => true,
            // A process that ended hangs up, for good.
            Ok(_) => {
                !polled[0].revents().is_empty()
                    || polled.iter().any(|one| one.revents().intersects(PollFlags::HUP))
            }
        };
        drop(polled);
        for ring in rings.iter_mut() {
            lost += ring.drain(&mut stamps);
        }
        if stopped {
            return (stamps, lost);
        }
    }
}

/// The faults of which begin and end were seen.
fn paired(mut stamps: Vec<Stamp>) -> Vec<Fault> {
    const PAGE: u64 = 4096;
    // CPUs have buffers of their own; of two stamps of one moment a fault's begin is the first.
    stamps.sort_by_key(|stamp| (stamp.at, stamp.kind != Kind::Begins));
    let mut begun: BTreeMap<i32, Stamp> = BTreeMap::new();
    let mut all = Vec::new();
    for stamp in stamps {
        if stamp.kind == Kind::Begins {
            begun.insert(stamp.thread, stamp);
            continue;
        }
        let Some(begin) = begun.remove(&stamp.thread) else { continue };
        if begin.address / PAGE == stamp.address / PAGE {
            all.push(Fault {
                at: begin.at,
                took: stamp.at - begin.at,
                process: stamp.process,
                thread: stamp.thread,
                address: begin.address,
                major: stamp.kind == Kind::Major,
            });
        }
    }
    all.sort_by_key(|fault| fault.at);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_from_its_begin_to_its_end_on_one_thread() {
        let stamp = |at, thread, address, kind| Stamp { at, process: 1, thread, address, kind };
        let stamps = vec![
            stamp(30, 1, 0x1010, Kind::Major),
            stamp(10, 1, 0x1010, Kind::Begins),
            stamp(12, 2, 0x5000, Kind::Begins),
            stamp(14, 2, 0x5000, Kind::Minor),
            // One that failed, one whose begin was lost, one of a moment.
            stamp(40, 1, 0x9000, Kind::Begins),
            stamp(50, 1, 0x2000, Kind::Begins),
            stamp(50, 1, 0x2000, Kind::Minor),
            stamp(60, 3, 0x2000, Kind::Minor),
        ];
        let found = paired(stamps);
        let found: Vec<_> =
            found.iter().map(|f| (f.at, f.took, f.thread, f.address, f.major)).collect();
        let expected =
            [(10, 20, 1, 0x1010, true), (12, 2, 2, 0x5000, false), (50, 0, 1, 0x2000, false)];
        assert_eq!(found, expected);
    }

    /// A mapped file that was dropped from the page cache has its first page read by a major fault.
    #[test]
    fn the_pages_that_a_process_touches_are_seen() {
        const PAGE: usize = 4096;
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7u8; 256 * PAGE]).expect("written");
        crate::page_cache::drop_file(&path).expect("dropped");
        let cold = crate::page_cache::resident(&path).expect("read") == 0;
        let file = std::fs::File::open(&path).expect("opened");
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let memory =
            unsafe { mmap(none, 256 * PAGE, rights, MapFlags::PRIVATE, &file, 0) }.expect("mapped");
        let own = std::process::id() as i32;
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let watching = match Watching::start(thread) {
            Ok(watching) => watching,
            Err(error) => return eprintln!("skipped: no perf events: {error}"),
        };
        let address = memory as usize;
        let touch = |page: usize| {
            // SAFETY: inside the mapping, which nobody else has.
            unsafe { (address as *mut u8).add(page * PAGE).write_volatile(1) };
        };
        let before = taken(own).expect("counted");
        std::thread::scope(|scope| drop(scope.spawn(|| [3, 200].map(touch))));
        let counted = taken(own).expect("counted") - before;
        let found = watching.end().expect("it ends");
        assert_eq!(found.lost, 0);
        let of = |page: usize| {
            let at = memory as u64 + (page * PAGE) as u64;
            found.all.iter().find(move |fault| (at..at + PAGE as u64).contains(&fault.address))
        };
        for page in [3, 200] {
            let fault = of(page).unwrap_or_else(|| panic!("no fault of page {page}: {found:?}"));
            assert_eq!(fault.process, own);
            assert_ne!(fault.thread, thread, "the thread that touched it");
        }
        assert!(of(4).is_none());
        // The second may have been read ahead by then.
        if cold {
            assert!(of(3).expect("a fault").major && counted >= 1, "{counted}");
        }
        // SAFETY: this mapping, whole, which is not used any more.
        unsafe { munmap(memory, 256 * PAGE) }.expect("unmapped");
    }
}
