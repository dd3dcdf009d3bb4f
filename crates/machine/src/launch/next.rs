//! The next VMM of the host that somebody else starts: libvirtd, incus, a script of another's.
//!
//! As root the kernel tells of each exec of the VMM's file (fanotify(7), `FAN_OPEN_EXEC`), a tenth of a millisecond
//! after the file is opened for it. It only tells: nothing waits for an answer, so that nobody's
//! VMM is held, even if vmeter is stopped. Without that right /proc is looked through instead, every
//! few milliseconds. The process is never traced.

use super::arguments;
use super::types::now_ns;
use crate::backend;
use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vmeter_base::process::Stat;
use vmeter_model::Ns;

/// Between two looks through /proc.
const LOOK: Duration = Duration::from_millis(2);
/// Between two looks at whether its waiter still wants it.
const WAIT: Duration = Duration::from_millis(50);
/// A process that opened the file runs it within this; else its exec failed.
const RUNS_WITHIN: Duration = Duration::from_secs(1);
/// From the open of the file to the news of it, ns, where its reader gets a CPU at once: 0.05 to 0.3 ms.
const TOLD_NS: Ns = 300_000;

/// A VMM that was seen to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// Its number.
    pub pid: i32,
    /// Its file.
    pub image: PathBuf,
    /// Its argument vector.
    pub argv: Vec<OsString>,
    /// `CLOCK_MONOTONIC` of its exec, ns.
    pub exec_ns: Ns,
    /// By how much earlier that can have been, ns.
    pub error_ns: Ns,
}

/// What is waited for.
#[derive(Debug)]
pub struct Wanted {
    /// Files of VMMs, without symbolic links.
    files: Vec<PathBuf>,
    /// What its arguments must match, joined by spaces.
    pub matching: Option<regex::Regex>,
}

impl Wanted {
    /// These files, or all VMMs of `$PATH`.
    ///
    /// # Errors
    /// A file that is not there; no VMM at all.
    pub fn of(files: &[PathBuf], matching: Option<regex::Regex>) -> Result<Self, String> {
        let whole = |path: &PathBuf| {
            path.canonicalize().map_err(|error| format!("--emulator {}: {error}", path.display()))
        };
        let mut files = match files {
            [] => installed(),
            files => files.iter().map(whole).collect::<Result<_, _>>()?,
        };
        files.sort();
        files.dedup();
        match files.is_empty() {
            true => {
                Err("no VMM that vmeter knows is in $PATH: --emulator FILE says which is meant"
                    .into())
            }
            false => Ok(Wanted { files, matching }),
        }
    }

    /// What was executed, if it is wanted: one that asks a VMM for its version is not.
    fn is(&self, pid: i32) -> Option<(PathBuf, Vec<OsString>)> {
        let image = image(pid).filter(|image| self.files.contains(image))?;
        let argv = argv(pid)?;
        let probe = backend::of_exec(&image, &argv).is_some_and(|dialect| dialect.is_probe(&argv));
        let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
        let fits = self.matching.as_ref().is_none_or(|regex| regex.is_match(&words.join(" ")));
        (!probe && fits).then_some((image, argv))
    }
}

/// The VMMs in the folders of `$PATH`, and where distributions put those that users do not call.
fn installed() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/libexec", "/usr/lib/qemu"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(more);
    let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let known = files.map(|file| file.path()).filter(|path| backend::of_image(path).is_some());
    known.filter_map(|path| path.canonicalize().ok()).collect()
}

pub(super) fn image(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// What it was executed with; none while its exec is under way.
pub(super) fn argv(pid: i32) -> Option<Vec<OsString>> {
    let argv = arguments::of(pid);
    (argv != [""]).then_some(argv)
}

/// Waits for a VMM's begin.
#[derive(Debug)]
pub struct Door {
    wanted: Wanted,
    how: How,
}

#[derive(Debug)]
enum How {
    /// The kernel tells; when its news were last read.
    Told(File, Ns),
    /// /proc is looked through: each process with its start and the image that it had.
    Looked(HashMap<i32, (u64, bool)>),
}

impl Door {
    /// Waits from now on.
    pub fn open(wanted: Wanted) -> Door {
        let how = match told(&wanted.files) {
            Ok(news) => How::Told(news, now_ns()),
            Err(_) => {
                let mut known = HashMap::new();
                look(&wanted, &mut known);
                How::Looked(known)
            }
        };
        Door { wanted, how }
    }

    /// How it hears of an exec, in words.
    pub fn how(&self) -> &'static str {
        match self.how {
            How::Told(..) => "the kernel told of its exec (fanotify)",
            How::Looked(_) => {
                "/proc was looked through for it every 2 ms: root has the kernel tell of it"
            }
        }
    }

    /// True if it sees the VMMs of all users.
    pub fn sees_all(&self) -> bool {
        matches!(self.how, How::Told(..))
    }

    /// The next VMM, unless `stop` says that it is not waited for any longer.
    ///
    /// # Errors
    /// When the news can't be read.
    pub fn next(&mut self, mut stop: impl FnMut() -> bool) -> io::Result<Option<Executed>> {
        while !stop() {
            let found = match &mut self.how {
                How::Told(news, last) => self.wanted.first(read_news(news, last)?),
                How::Looked(known) => {
                    std::thread::sleep(LOOK);
                    look(&self.wanted, known)
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

impl Wanted {
    fn first(&self, opened: Vec<(i32, [Ns; 2])>) -> Option<Executed> {
        opened.into_iter().find_map(|(pid, [exec_ns, error_ns])| {
            let begun = Instant::now();
            // It has the image of who calls it until the exec is under way, and no arguments until it is through.
            let is_through = |image: PathBuf| self.files.contains(&image) && argv(pid).is_some();
            while image(pid).is_some_and(|image| !is_through(image)) {
                if begun.elapsed() > RUNS_WITHIN {
                    return None;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            let (image, argv) = self.is(pid)?;
            Some(Executed { pid, image, argv, exec_ns, error_ns })
        })
    }
}

/// Has the kernel tell of each exec of these files.
fn told(files: &[PathBuf]) -> io::Result<File> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    let for_events = (libc::O_RDONLY | libc::O_CLOEXEC) as libc::c_uint;
    // SAFETY: two numbers go in, a descriptor or -1 comes back.
    let fd = unsafe { libc::fanotify_init(flags, for_events) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let news = unsafe { OwnedFd::from_raw_fd(fd) };
    for file in files {
        let path = CString::new(file.as_os_str().as_bytes())?;
        let (add, mask) = (libc::FAN_MARK_ADD, libc::FAN_OPEN_EXEC);
        // SAFETY: the path is a string that ends in 0 and lives until the call returns.
        let done = unsafe { libc::fanotify_mark(fd, add, mask, libc::AT_FDCWD, path.as_ptr()) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(File::from(news))
}

/// Whose execs are told of, when, and by how much earlier that can have been, ns; waits a while for the first.
fn read_news(file: &mut File, last: &mut Ns) -> io::Result<Vec<(i32, [Ns; 2])>> {
    let before = std::mem::replace(last, now_ns());
    let waiting = waited_for_cpu();
    // What is there already came since the last read. Of what wakes this thread it is known how long it then waited
    // for a CPU.
    let is_there = is_ready(file, Duration::ZERO)?;
    if !is_there && !is_ready(file, WAIT)? {
        *last = now_ns();
        return Ok(Vec::new());
    }
    let now = now_ns();
    let late = waited_for_cpu().zip(waiting).map(|(after, before)| after.saturating_sub(before));
    let since = if is_there { before } else { *last };
    let error = match late.filter(|_| !is_there) {
        Some(late) => late + TOLD_NS,
        None => now - since + TOLD_NS,
    };
    *last = now;
    let mut bytes = [0; 4096];
    let length = match file.read(&mut bytes) {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    Ok(events(&bytes[..length]).into_iter().map(|pid| (pid, [now, error])).collect())
}

/// True if there are news within so long.
fn is_ready(file: &File, within: Duration) -> io::Result<bool> {
    let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
    let ready = rustix::event::PollFd::new(file, rustix::event::PollFlags::IN);
    match rustix::event::poll(&mut [ready], Some(&wait)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// How long this thread was ready to run and had no CPU, ns (Documentation/scheduler/sched-stats.rst).
fn waited_for_cpu() -> Option<Ns> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The processes of events (`struct fanotify_event_metadata`), whose descriptors are closed.
fn events(mut bytes: &[u8]) -> Vec<i32> {
    const FD: usize = 16;
    const PID: usize = 20;
    let number = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(i32::from_ne_bytes)
    };
    let mut pids = Vec::new();
    while let (Some(length), Some(fd), Some(pid)) =
        (number(bytes, 0), number(bytes, FD), number(bytes, PID))
    {
        if fd >= 0 {
            // SAFETY: the kernel opened it for this event, and nobody else knows it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        pids.push(pid);
        let length = usize::try_from(length).unwrap_or(0);
        bytes = bytes.get(length.max(PID + 4)..).unwrap_or(&[]);
    }
    pids
}

/// Looks through /proc: a VMM that was not there, or was something else, at the last look.
fn look(wanted: &Wanted, known: &mut HashMap<i32, (u64, bool)>) -> Option<Executed> {
    let at = now_ns();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut seen = HashMap::with_capacity(known.len());
    let mut found = None;
    for pid in pids {
        let image = image(pid);
        let is = image.as_ref().is_some_and(|image| wanted.files.contains(image));
        let started = if is { Stat::of(pid).map_or(0, |stat| stat.started) } else { 0 };
        let before = known.get(&pid).copied();
        seen.insert(pid, (started, is));
        if is && before.is_none_or(|before| before != (started, true)) && found.is_none() {
            let error_ns = LOOK.as_nanos() as Ns * 2;
            let executed = |(image, argv)| Executed { pid, image, argv, exec_ns: at, error_ns };
            found = wanted.is(pid).map(executed);
        }
    }
    *known = seen;
    found
}

/// The process that goes on as a VMM that has ended: of the same image with the same arguments, begun
/// after it (`-daemonize`).
pub fn heir(of: &Executed, file: &Path) -> Option<i32> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is = |pid: &i32| {
        *pid > of.pid
            && image(*pid).is_some_and(|image| image == file)
            && arguments::of(*pid) == of.argv
    };
    pids.filter(is).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// A program that is called as a VMM is, and sleeps.
    fn vmm(folder: &Path) -> PathBuf {
        let file = folder.canonicalize().expect("a folder").join("qemu-system-x86_64");
        fs::copy("/bin/sleep", &file).expect("a copy");
        file
    }

    fn started(file: &Path, arguments: &[&str]) -> std::process::Child {
        Command::new(file).args(arguments).stderr(Stdio::null()).spawn().expect("it starts")
    }

    fn finds_the_next(mut door: Door, file: &Path) {
        let mut other = started(file, &["--version"]);
        let before = now_ns();
        let mut child = started(file, &["5.5"]);
        let after = now_ns();
        let begun = Instant::now();
        let found = door.next(|| begun.elapsed() > Duration::from_secs(10)).expect("news");
        child.kill().and_then(|()| child.wait()).expect("ended");
        other.wait().expect("ended");
        let found = found.expect("it was seen");
        assert_eq!((found.pid, &found.argv[1]), (child.id() as i32, &"5.5".into()));
        assert!(found.exec_ns >= before, "{found:?}, {before}");
        assert!(found.exec_ns - found.error_ns <= after, "{found:?}, {after}");
    }

    #[test]
    fn the_next_vmm_is_found_and_one_that_is_asked_for_its_version_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = vmm(folder.path());
        let wanted = || Wanted::of(std::slice::from_ref(&file), None).expect("it is there");
        let mut known = HashMap::new();
        look(&wanted(), &mut known);
        finds_the_next(Door { wanted: wanted(), how: How::Looked(known) }, &file);
        match told(&wanted().files) {
            Ok(news) => {
                let how = How::Told(news, now_ns());
                finds_the_next(Door { wanted: wanted(), how }, &file);
            }
            Err(error) => eprintln!("skipped: fanotify: {error}"),
        }
    }

    #[test]
    fn one_that_does_not_match_is_passed_by() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = vmm(folder.path());
        let matching = regex::Regex::new(r"^\S+ 7\.5$").ok();
        let mut door =
            Door::open(Wanted::of(std::slice::from_ref(&file), matching).expect("it is there"));
        let mut children = ["6.5", "7.5"].map(|seconds| started(&file, &[seconds]));
        let begun = Instant::now();
        let found = door.next(|| begun.elapsed() > Duration::from_secs(10)).expect("news");
        children.iter_mut().for_each(|child| child.kill().expect("killed"));
        children.iter_mut().for_each(|child| drop(child.wait()));
        assert_eq!(found.map(|found| found.pid), Some(children[1].id() as i32));
        assert!(door.next(|| true).expect("no news").is_none());
    }

    #[test]
    fn events_are_read_one_after_the_other_and_a_torn_one_is_none() {
        let event = |pid: i32| {
            let mut bytes = vec![0; 24];
            bytes[..4].copy_from_slice(&24i32.to_ne_bytes());
            bytes[16..20].copy_from_slice(&(-1i32).to_ne_bytes());
            bytes[20..].copy_from_slice(&pid.to_ne_bytes());
            bytes
        };
        let mut bytes = event(7);
        bytes.extend(event(8));
        assert_eq!(events(&bytes), [7, 8]);
        assert_eq!(events(&bytes[..40]), [7]);
        bytes[..4].fill(0);
        assert_eq!(
            events(&bytes),
            [7, 8],
            "an event that has no length ends where the next begins"
        );
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let error = Wanted::of(&["/nonexistent/qemu".into()], None).expect_err("no file");
        assert!(error.contains("--emulator /nonexistent/qemu"), "{error}");
    }
}
