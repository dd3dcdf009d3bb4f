//! Page faults of a process, and how long it waited for pages to be read, by perf's software events
//! (perf_event_open(2)).
//!
//! The kernel counts `page-faults` when it begins to handle a fault, and `major-faults` or `minor-faults` when it is
//! done with one (`mm_account_fault` in mm/memory.c; Linux 5.9 and later for all ways out of it). A
//! thread has one fault at a time, so the two belong together. A fault whose page another one is reading already can
//! be minor for the kernel, and sleeps all the same: the records of switches say for how long. Faults that the kernel
//! takes for somebody else, as KVM does for a guest, are no such events: [`taken`] counts them too.
//!
//! A stamp costs the process up to a microsecond, and half of its faults come before it maps the files that matter.
//! So the begins of faults are stamped only once it opens one of these. inotify(7) says when, because a thread that
//! every mapping wakes would cost more than the stamps. When the files were mapped the kernel writes down anyway.

mod files;
mod pairs;
mod ring;

use files::Files;
pub use pairs::{Fault, Faults};
use ring::{Ring, Seen};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use vmeter_base::clock;

/// Watches page faults until it is told to end.
pub struct Watching {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<Faults>,
}

impl Watching {
    /// Begins with a thread, and what it starts from now on: threads, processes. Faults are stamped once one of
    /// the files is opened, or from now on if the thread's process has one open.
    ///
    /// # Errors
    /// A kernel without perf events, or one that does not let this user have them.
    pub fn start(tid: i32, files: &[PathBuf]) -> io::Result<Self> {
        let rings: io::Result<Vec<Ring>> =
            online()?.into_iter().map(|cpu| Ring::open(tid, cpu)).collect();
        let (rings, files) = (rings?, Files::new(files));
        let opened = files.listen(tid);
        let begun = if opened.is_none() { Some(enable(&rings)?) } else { None };
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let taking = Taking { rings, files, stop: stop.clone(), opened, begun };
        let take = move || taking.take();
        let thread = std::thread::Builder::new().name("page-faults".into()).spawn(take)?;
        Ok(Watching { stop, thread })
    }

    /// Ends it: what it saw, if its thread did not panic.
    pub fn end(self) -> Option<Faults> {
        // The counter of an eventfd does not overflow by one write.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        self.thread.join().ok()
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

/// Has the begins of faults stamped, and says from when on.
fn enable(rings: &[Ring]) -> io::Result<u64> {
    rings.iter().try_for_each(Ring::enable)?;
    Ok(clock::monotonic().unsigned_abs())
}

struct Taking {
    rings: Vec<Ring>,
    files: Files,
    stop: Arc<OwnedFd>,
    /// Hears when a file is opened, until it has.
    opened: Option<OwnedFd>,
    begun: Option<u64>,
}

impl Taking {
    /// Takes records until it is told to stop.
    fn take(mut self) -> Faults {
        let mut seen = Seen::default();
        loop {
            let mut polled = vec![PollFd::new(&*self.stop, PollFlags::IN)];
            polled.extend(self.rings.iter().map(|ring| PollFd::new(ring, PollFlags::IN)));
            polled.extend(self.opened.iter().map(|opened| PollFd::new(opened, PollFlags::IN)));
            let stopped = match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                Err(_) => true,
                // A process that ended hangs up, for good.
                Ok(_) => {
                    !polled[0].revents().is_empty()
                        || polled.iter().any(|one| one.revents().intersects(PollFlags::HUP))
                }
            };
            let opened =
                polled.get(self.rings.len() + 1).is_some_and(|one| !one.revents().is_empty());
            drop(polled);
            if opened {
                self.opened = None;
                self.begun = enable(&self.rings).ok();
            }
            self.rings.iter().for_each(|ring| ring.drain(&self.files, &mut seen));
            if stopped {
                return Faults::new(seen.stamps, seen.mapped, self.begun, seen.lost);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};
    use std::path::Path;
    use std::time::Duration;

    const PAGE: usize = 4096;
    /// The file that [`maps_late`] maps, in a process of its own.
    const MAPS: &str = "VMETER_TEST_MAPS";

    /// Writes to pages of a new private mapping, of a file or of none, with a rest after each.
    fn write(file: Option<&Path>, pages: usize, rest: Duration) {
        let (none, rights) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let file = file.map(|path| std::fs::File::open(path).expect("opened"));
        // SAFETY: new mappings, at addresses of the kernel's choice.
        let memory = unsafe {
            match &file {
                Some(file) => mmap(none, pages * PAGE, rights, MapFlags::PRIVATE, file, 0),
                None => mmap_anonymous(none, pages * PAGE, rights, MapFlags::PRIVATE),
            }
        };
        let memory = memory.expect("mapped").cast::<u8>();
        for page in 0..pages {
            // SAFETY: inside the mapping, which nobody else has.
            unsafe { memory.add(page * PAGE).write_volatile(1) };
            std::thread::sleep(rest);
        }
    }

    /// No test of its own: what [`faults_are_stamped_once_a_file_is_opened`] watches.
    #[test]
    fn maps_late() {
        let Some(path) = std::env::var_os(MAPS) else { return };
        write(None, 2000, Duration::ZERO);
        write(Some(Path::new(&path)), 200, Duration::from_millis(5));
    }

    #[test]
    fn faults_are_stamped_once_a_file_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7u8; 200 * PAGE]).expect("written");
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let watching = match Watching::start(thread, std::slice::from_ref(&path)) {
            Ok(watching) => watching,
            Err(error) => return eprintln!("skipped: no perf events: {error}"),
        };
        let mut child = std::process::Command::new(std::env::current_exe().expect("its path"))
            .args(["--exact", "page_faults::tests::maps_late", "--quiet"])
            .env(MAPS, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("it runs");
        let process = child.id() as i32;
        assert!(child.wait().expect("it ends").success());
        let found = watching.end().expect("it ends");
        assert_eq!(found.lost, 0);
        let (begun, mapped) = (found.begun.expect("opened"), found.first_mapped(process));
        let mapped = mapped.expect("it has mapped the file");
        assert!(begun < mapped + 5_000_000_000, "{begun} {mapped}");
        let own: Vec<_> = found.all.iter().filter(|fault| fault.process == process).collect();
        // Of the 2000 before there is none.
        assert!(own.len() < 1000, "{} faults", own.len());
        let page = |fault: &&Fault| found.page(fault.at, fault.process, fault.address);
        let mut pages: Vec<_> = own.iter().filter_map(page).collect();
        pages.sort_unstable();
        pages.dedup();
        // On a busy host the first may be missed.
        let late: Vec<_> = (100..200).map(|page| (0, page)).collect();
        assert!(pages.ends_with(&late), "{pages:?}");
    }

    /// A mapped file that was dropped from the page cache has its first page read by a major fault.
    #[test]
    fn the_pages_that_a_process_touches_are_seen() {
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
        let watching = match Watching::start(thread, std::slice::from_ref(&path)) {
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
            assert!(of(3).expect("a fault").waited.is_some() && counted >= 1, "{counted}");
        }
        // SAFETY: this mapping, whole, which is not used any more.
        unsafe { munmap(memory, 256 * PAGE) }.expect("unmapped");
    }
}
