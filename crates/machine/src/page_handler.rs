//! Reads the pages of a VMM's guest RAM from a snapshot's file when the guest touches them (userfaultfd(2)), as
//! Firecracker has it (its `docs/snapshotting/handling-page-faults-on-snapshot-resume.md`): the VMM connects to a
//! socket, and sends the descriptor and where its RAM is.
//!
//! Under KVM nothing else says which page a vCPU waited for. A fault is stamped when the handler has read of it,
//! and when the page is there; how long it took to wake the handler is in neither.

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{getpid, kill_process, Signal};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use vmeter_base::clock;
use vmeter_model::Ns;

/// `struct uffd_msg` (include/uapi/linux/userfaultfd.h): its size, and its events.
const MESSAGE: usize = 32;
const PAGEFAULT: u8 = 0x12;
const REMOVE: u8 = 0x15;
/// `UFFD_PAGEFAULT_FLAG_WRITE`.
const WRITE: u64 = 1;
/// `UFFDIO_COPY`, `UFFDIO_ZEROPAGE` and `UFFDIO_WAKE`: `_IOWR(0xaa, 3, 40)`, `_IOWR(0xaa, 4, 32)`, `_IOR(0xaa, 2, 16)`.
const COPY: libc::c_ulong = 0xc028_aa03;
const ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const WAKE: libc::c_ulong = 0x8010_aa02;
/// Between two tries of what can't be served yet, ms.
const RETRY_MS: i64 = 1;
/// Messages that are read at once.
const BATCH: usize = 16;
/// What a VMM says of its RAM is no longer, bytes.
const MAX_SAID: usize = 64 << 10;
/// Largest page of a VMM's RAM, bytes.
const LARGEST: u64 = 1 << 30;
/// Faults that are kept: those of 16 GiB.
const MOST: usize = 1 << 22;

/// A page that was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// When the handler read of the fault, ns of `CLOCK_MONOTONIC`.
    pub at: Ns,
    /// How long it took until the page was there, ns.
    pub took: Ns,
    /// Where the page is in the RAM's file, bytes.
    pub offset: u64,
    /// Its size, bytes.
    pub bytes: u64,
    /// The first access to it was a write.
    pub written: bool,
}

/// What a handler did, and why it could do no more.
pub type Done = (Vec<Served>, Option<String>);

/// A thread that serves one VMM.
pub struct Handler {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<Done>,
}

impl Handler {
    /// Listens at `socket` for a VMM whose RAM is in the file `ram`.
    ///
    /// # Errors
    /// When the socket cannot be made, or the file not opened.
    pub fn start(socket: &Path, ram: &Path) -> io::Result<Self> {
        let (listener, ram) = (UnixListener::bind(socket)?, File::open(ram)?);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let ended = stop.clone();
        let serve = move || {
            let mut served = Vec::new();
            let result = serve(&listener, &ram, &ended, &mut served);
            (served, result.err().map(|error| error.to_string()))
        };
        let thread = std::thread::Builder::new().name("page-handler".into()).spawn(serve)?;
        Ok(Handler { stop, thread })
    }

    /// Ends it: what it did, if its thread did not panic. A VMM that still runs would wait for ever.
    pub fn end(self) -> Option<Done> {
        // The counter of an eventfd does not overflow by one write.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        self.thread.join().ok()
    }
}

/// A piece of the guest's RAM, in the VMM's words.
#[derive(Debug, Clone, Deserialize)]
struct Region {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    /// Bytes. Firecracker before 1.12 has it under the other name only, in bytes as well, or not at all.
    page_size: Option<u64>,
    page_size_kib: Option<u64>,
}

impl Region {
    fn page_size(&self) -> u64 {
        self.page_size.or(self.page_size_kib).unwrap_or(4096)
    }

    fn is_valid(&self) -> bool {
        self.page_size().is_power_of_two()
            && (4096..=LARGEST).contains(&self.page_size())
            && self.base_host_virt_addr.checked_add(self.size).is_some()
            && self.offset.checked_add(self.size).is_some()
    }

    /// The page that an address is in: its address, and where it is in the file.
    fn page(&self, address: u64) -> Option<(u64, u64)> {
        let into =
            address.checked_sub(self.base_host_virt_addr).filter(|into| *into < self.size)?;
        let into = into & !(self.page_size() - 1);
        Some((self.base_host_virt_addr + into, self.offset + into))
    }
}

/// Waits until `fd` is readable, for so many ms at most if that is given; false if the handler is to end.
fn wait(fd: impl AsFd, stop: &OwnedFd, most_ms: Option<i64>) -> io::Result<bool> {
    let mut polled = [PollFd::new(stop, PollFlags::IN), PollFd::new(&fd, PollFlags::IN)];
    let timeout = most_ms.map(|ms| Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 });
    loop {
        match poll(&mut polled, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(polled[0].revents().is_empty()),
        }
    }
}

fn serve(
    listener: &UnixListener,
    ram: &File,
    stop: &OwnedFd,
    served: &mut Vec<Served>,
) -> io::Result<()> {
    if !wait(listener, stop, None)? {
        return Ok(());
    }
    let (socket, _) = listener.accept()?;
    if !wait(&socket, stop, None)? {
        return Ok(());
    }
    let done = handed_over(&socket).and_then(|(faults, regions)| {
        rustix::io::ioctl_fionbio(&faults, true)?;
        let serving = Serving { faults, regions, ram, page: Vec::new(), removed: Vec::new() };
        serve_faults(serving, stop, served)
    });
    let peer = socket_peercred(&socket).ok().filter(|vmm| vmm.pid != getpid());
    if let (Err(_), Some(vmm)) = (&done, peer) {
        // A vCPU that misses a page which nobody serves waits for ever.
        let _ = kill_process(vmm.pid, Signal::KILL);
    }
    done
}

fn serve_faults(
    mut handler: Serving<'_>,
    stop: &OwnedFd,
    served: &mut Vec<Served>,
) -> io::Result<()> {
    // Faults that could not be served while the VMM changed its mappings.
    let mut later: Vec<Missed> = Vec::new();
    loop {
        if !wait(&handler.faults, stop, (!later.is_empty()).then_some(RETRY_MS))? {
            return Ok(());
        }
        let at = clock::monotonic();
        let mut missed = std::mem::take(&mut later);
        missed.extend(handler.take(at)?);
        for one in missed {
            match handler.fill(one)? {
                Filled::There(done) if served.len() < MOST => served.push(done),
                Filled::There(_) | Filled::Nothing => {}
                Filled::Later => later.push(one),
            }
        }
    }
}

/// The descriptor that a VMM sends, and where its RAM is.
fn handed_over(socket: &UnixStream) -> io::Result<(OwnedFd, Vec<Region>)> {
    let mut text = vec![0; MAX_SAID];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    let received = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut all) => all.next(),
        _ => None,
    });
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let descriptor = descriptor.ok_or_else(|| bad("the VMM sent no descriptor (userfaultfd)"))?;
    let regions: Vec<Region> = serde_json::from_slice(&text[..received.bytes])?;
    if regions.is_empty() || !regions.iter().all(Region::is_valid) {
        return Err(bad("the VMM sent no valid list of its RAM's mappings"));
    }
    Ok((descriptor, regions))
}

struct Serving<'a> {
    faults: OwnedFd,
    regions: Vec<Region>,
    ram: &'a File,
    page: Vec<u8>,
    /// Addresses of what the VMM gave back to the host: zeros from then on.
    removed: Vec<(u64, u64)>,
}

/// A fault.
#[derive(Debug, Clone, Copy)]
struct Missed {
    at: Ns,
    address: u64,
    written: bool,
}

/// What became of a page.
enum Placed {
    There,
    Gone,
    Later,
}

/// What became of a fault.
enum Filled {
    There(Served),
    /// Zeros, or a page of a VMM that ends.
    Nothing,
    Later,
}

impl Serving<'_> {
    /// The faults that are there; notes what the VMM gave back.
    fn take(&mut self, at: Ns) -> io::Result<Vec<Missed>> {
        let mut messages = [0u8; MESSAGE * BATCH];
        let count = match rustix::io::read(&self.faults, &mut messages) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut missed = Vec::new();
        for message in messages[..count].chunks_exact(MESSAGE) {
            let number = |at: usize| message[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
            let (first, second) = (number(8), number(16));
            match message[0] {
                REMOVE => self.removed.push((first, second)),
                PAGEFAULT => {
                    let written = first & WRITE != 0;
                    missed.push(Missed { at, address: second, written });
                }
                _ => {}
            }
        }
        Ok(missed)
    }

    fn fill(&mut self, missed: Missed) -> io::Result<Filled> {
        let Missed { at, address, written } = missed;
        let found = self.regions.iter().find_map(|r| Some((r.page(address)?, r.page_size())));
        let Some(((start, offset), bytes)) = found else {
            let what = format!("a page fault outside of the guest's RAM, at {address:#x}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        };
        if self.removed.iter().any(|(from, to)| (*from..*to).contains(&start)) {
            return Ok(match self.place(ZEROPAGE, &mut [start, bytes, 0, 0])? {
                Placed::Later => Filled::Later,
                _ => Filled::Nothing,
            });
        }
        self.page.resize(usize::try_from(bytes).unwrap_or(0), 0);
        self.ram.read_exact_at(&mut self.page, offset)?;
        let source = self.page.as_ptr() as u64;
        match self.place(COPY, &mut [start, source, bytes, 0, 0])? {
            Placed::There => {}
            Placed::Gone => return Ok(Filled::Nothing),
            Placed::Later => return Ok(Filled::Later),
        }
        let took = clock::monotonic() - at;
        Ok(Filled::There(Served { at, took, offset, bytes, written }))
    }

    /// Puts a page where it is missed. `argument` begins with the address; the kernel writes back its last number.
    fn place(&self, request: libc::c_ulong, argument: &mut [u64]) -> io::Result<Placed> {
        // SAFETY: `argument` is the structure of `request`, and its source is the page that this keeps. The kernel
        // writes into another process's memory, and only where that was registered.
        let result =
            unsafe { libc::ioctl(self.faults.as_raw_fd(), request as _, argument.as_mut_ptr()) };
        if result == 0 {
            return Ok(Placed::There);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // The mappings change: an event of that is on its way.
            Some(libc::EAGAIN) => Ok(Placed::Later),
            // Another thread missed the same page.
            Some(libc::EEXIST) => self.wake(argument[0]).map(|()| Placed::There),
            // The VMM ends.
            Some(libc::ESRCH | libc::ENOENT) => Ok(Placed::Gone),
            _ => Err(error),
        }
    }

    fn wake(&self, start: u64) -> io::Result<()> {
        let mut range = [start, 4096];
        // SAFETY: a `struct uffdio_range` (start, length).
        match unsafe { libc::ioctl(self.faults.as_raw_fd(), WAKE as _, range.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{mmap_anonymous, userfaultfd, MapFlags, ProtFlags, UserfaultfdFlags};
    use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::io::IoSlice;

    const PAGES: usize = 64;
    /// `UFFDIO_API` and `UFFDIO_REGISTER`: `_IOWR(0xaa, 0x3f, 24)`, `_IOWR(0xaa, 0, 32)`.
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;

    fn ioctl(fd: &OwnedFd, request: libc::c_ulong, argument: &mut [u64]) {
        // SAFETY: `argument` is the structure of `request`.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    fn send(socket: &UnixStream, text: &str, fd: &OwnedFd) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let parts = [IoSlice::new(text.as_bytes())];
        sendmsg(socket, &parts, &mut ancillary, SendFlags::empty()).expect("sent");
    }

    #[test]
    fn pages_come_from_the_file_when_they_are_touched() {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: what it makes is used on the mapping of below alone.
        let Ok(faults) = (unsafe { userfaultfd(flags) }) else {
            println!("skipped: no userfaultfd for this user");
            return;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, ram) = (folder.path().join("s"), folder.path().join("ram"));
        let text: Vec<u8> = (0..PAGES).flat_map(|page| vec![page as u8 + 1; 4096]).collect();
        std::fs::write(&ram, text).expect("written");
        let handler = Handler::start(&socket, &ram).expect("it listens");
        ioctl(&faults, API, &mut [0xaa, 0, 0]);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let length = PAGES * 4096;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length, rights, MapFlags::PRIVATE).expect("mapped")
        };
        ioctl(&faults, REGISTER, &mut [at as u64, length as u64, 1, 0]);
        let vmm = UnixStream::connect(&socket).expect("connected");
        // The second half of the RAM comes first in the file.
        let half = length / 2;
        let region = |from: usize, offset: usize| {
            serde_json::json!({ "base_host_virt_addr": at as u64 + from as u64, "size": half, "offset": offset,
                "page_size": 4096, "page_size_kib": 4096 })
        };
        send(&vmm, &serde_json::json!([region(0, half), region(half, 0)]).to_string(), &faults);
        let touch = |page: usize| {
            // SAFETY: inside of the mapping, which nothing else uses.
            unsafe { at.cast::<u8>().add(page * 4096 + 7).read_volatile() }
        };
        assert_eq!([touch(0), touch(PAGES - 1), touch(3)], [33, 32, 36]);
        assert_eq!(touch(0), 33, "it stays");
        let (served, failed) = handler.end().expect("no panic");
        let pages: Vec<u64> = served.iter().map(|one| one.offset / 4096).collect();
        assert_eq!((pages, failed), (vec![32, 31, 35], None));
        assert!(served.iter().all(|one| one.took > 0 && one.bytes == 4096));
        // SAFETY: the mapping of above; nothing points into it any more.
        unsafe { rustix::mm::munmap(at, length) }.expect("unmapped");
    }

    #[test]
    fn what_is_no_vmm_is_refused_in_words() {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, ram) = (folder.path().join("s"), folder.path().join("ram"));
        std::fs::write(&ram, [0]).expect("written");
        let said = |text: &str, with: bool| {
            let _ = std::fs::remove_file(&socket);
            let handler = Handler::start(&socket, &ram).expect("it listens");
            let vmm = UnixStream::connect(&socket).expect("connected");
            let fd = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
            match with {
                true => send(&vmm, text, &fd),
                false => drop((&vmm).write_all(text.as_bytes())),
            }
            // It has heard when it hangs up.
            assert_eq!((&vmm).read(&mut [0; 1]).ok(), Some(0));
            handler.end().expect("no panic").1.expect("refused")
        };
        use std::io::{Read, Write};
        assert!(said("[]", false).contains("no descriptor"));
        assert!(said("[]", true).contains("no valid list"));
        let huge = r#"[{"base_host_virt_addr":1,"size":18446744073709551615,"offset":0,"page_size":4096}]"#;
        assert!(said(huge, true).contains("no valid list"));
        assert!(!said("{", true).is_empty());
        // One that nobody connects to ends when it is told to.
        let _ = std::fs::remove_file(&socket);
        let alone = Handler::start(&socket, &ram).expect("it listens");
        assert_eq!(alone.end(), Some((Vec::new(), None)));
    }
}
