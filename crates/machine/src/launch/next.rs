//! The next VMM of the host that somebody else starts: libvirtd, incus, a script of another's.
//!
//! As root the kernel tells of it: of each exec of the VMM's file a tenth of a millisecond after the file is opened
//! for it ([`fanotify`]), and of each exec of the host, so of those in a container's file system too, when it is
//! through ([`connector`]). It only tells: nobody's VMM is held. Without that right /proc is looked through
//! instead, every few milliseconds. The process is never traced.

mod connector;
mod fanotify;

use super::arguments;
use super::types::now_ns;
use crate::backend;
use rustix::event::{PollFd, PollFlags};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vmeter_base::process::Stat;
use vmeter_model::Ns;

/// Between two looks through /proc.
const LOOK: Duration = Duration::from_millis(2);
/// Between two looks at whether its waiter still wants it.
const WAIT: Duration = Duration::from_millis(50);
/// What is shown of the command line of a VMM that does not match, characters.
const PASSED_SHOWN: usize = 120;
/// A process that opened the file runs it within this; else its exec failed.
const RUNS_WITHIN: Duration = Duration::from_secs(1);

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
    /// How it was seen, in words.
    pub how: &'static str,
}

/// What is waited for.
#[derive(Debug)]
pub struct Wanted {
    /// Files of VMMs, without symbolic links.
    files: Vec<PathBuf>,
    /// True if no other file will do; else one that is called as a VMM is.
    named: bool,
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
        let named = !files.is_empty();
        let mut files = match files {
            [] => installed(),
            files => files.iter().map(whole).collect::<Result<_, _>>()?,
        };
        files.sort();
        files.dedup();
        Ok(Wanted { files, named, matching })
    }

    fn is_file(&self, image: &Path) -> bool {
        match self.named {
            true => self.files.iter().any(|file| file == image),
            false => backend::of_image(image).is_some(),
        }
    }

    /// What was executed, if it is wanted: one that asks a VMM for its version is not. One that does not match is
    /// noted in `passed`.
    fn is(&self, pid: i32, passed: &mut Option<String>) -> Option<(PathBuf, Vec<OsString>)> {
        let image = image(pid).filter(|image| self.is_file(image))?;
        let argv = argv(pid)?;
        let probe = backend::of_exec(&image, &argv).is_some_and(|dialect| dialect.is_probe(&argv));
        let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
        let words = words.join(" ");
        let fits = self.matching.as_ref().is_none_or(|regex| regex.is_match(&words));
        if !probe && !fits {
            let shown: String = words.chars().take(PASSED_SHOWN).collect();
            *passed = Some(format!("pid {pid}: {shown}"));
        }
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
    /// The last that came, with its start: the same exec may be told of twice.
    last: Option<(i32, u64)>,
    /// The last VMM that did not match.
    passed: Option<String>,
}

#[derive(Debug)]
enum How {
    /// The kernel tells; when its news were last read.
    ParsedCommandLine(Vec<Box<dyn Source>>, Ns),
    /// /proc is looked through: each process with its start and the image that it had.
    Looked(HashMap<i32, (u64, bool)>),
}

/// How the kernel tells of an exec.
trait Source: std::fmt::Debug + Send {
    /// What is to be read when there are news.
    fn fd(&self) -> BorrowedFd<'_>;
    /// The news that are there.
    fn read(&mut self, reading: Reading) -> io::Result<Vec<Heard>>;
}

/// A look at whether there are news.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// When, ns.
    now_ns: Ns,
    /// By how much later than they came, at most, ns.
    late_ns: Ns,
}

/// An exec that the kernel told of, as in [`Executed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heard {
    pid: i32,
    exec_ns: Ns,
    error_ns: Ns,
    how: &'static str,
    /// True if the process runs its new image by now.
    is_through: bool,
}

impl Door {
    /// Waits from now on.
    pub fn open(wanted: Wanted) -> Door {
        // The first has the begin of an execve, so it is asked first; the second knows files that nobody named.
        let marked = (!wanted.files.is_empty()).then(|| fanotify::Marked::of(&wanted.files));
        let marked = marked.and_then(Result::ok).map(|news| Box::new(news) as Box<_>);
        let execs = connector::Execs::listen().ok().map(|news| Box::new(news) as Box<_>);
        let sources: Vec<Box<dyn Source>> = [marked, execs].into_iter().flatten().collect();
        match sources.is_empty() {
            false => Door::told(wanted, sources),
            true => Door::looking(wanted),
        }
    }

    fn told(wanted: Wanted, sources: Vec<Box<dyn Source>>) -> Door {
        Door { wanted, how: How::ParsedCommandLine(sources, now_ns()), last: None, passed: None }
    }

    fn looking(wanted: Wanted) -> Door {
        let mut known = HashMap::new();
        look(&wanted, &mut known, &mut None);
        Door { wanted, how: How::Looked(known), last: None, passed: None }
    }

    /// The last VMM that was seen to start and does not match: its pid, and how its command line begins.
    pub fn passed(&self) -> Option<&str> {
        self.passed.as_deref()
    }

    /// True if it sees the VMMs of all users.
    pub fn sees_all(&self) -> bool {
        matches!(self.how, How::ParsedCommandLine(..))
    }

    /// The next VMM, unless `stop` says that it is not waited for any longer.
    ///
    /// # Errors
    /// When the news can't be read.
    pub fn next(&mut self, mut stop: impl FnMut() -> bool) -> io::Result<Option<Executed>> {
        let _first = self.sees_all().then(Urgent::begin);
        while !stop() {
            let found = match &mut self.how {
                How::ParsedCommandLine(sources, read) => {
                    let heard = news(sources, read)?;
                    self.wanted.first(heard, &mut self.last, &mut self.passed)
                }
                How::Looked(known) => {
                    std::thread::sleep(LOOK);
                    look(&self.wanted, known, &mut self.passed)
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
    fn first(
        &self,
        heard: Vec<Heard>,
        last: &mut Option<(i32, u64)>,
        passed: &mut Option<String>,
    ) -> Option<Executed> {
        heard.into_iter().find_map(|Heard { pid, exec_ns, error_ns, how, is_through }| {
            let begun = Instant::now();
            // It has the image of who calls it until the exec is under way, and no arguments until it is through.
            let runs_it = |image: &Path| self.is_file(image) && argv(pid).is_some();
            while !is_through && image(pid).is_some_and(|image| !runs_it(&image)) {
                if begun.elapsed() > RUNS_WITHIN {
                    return None;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            let (image, argv) = self.is(pid, passed)?;
            let this = Some((pid, Stat::of(pid)?.started));
            let is_new = std::mem::replace(last, this) != this;
            is_new.then_some(Executed { pid, image, argv, exec_ns, error_ns, how })
        })
    }
}

/// What the kernel tells of; waits a while for the first.
fn news(sources: &mut [Box<dyn Source>], last: &mut Ns) -> io::Result<Vec<Heard>> {
    let before = std::mem::replace(last, now_ns());
    let waiting = waited_for_cpu();
    // What is there already came since the last read. Of what wakes this thread it is known how long it then waited
    // for a CPU.
    let is_there = are_ready(sources, Duration::ZERO)?;
    if !is_there && !are_ready(sources, WAIT)? {
        *last = now_ns();
        return Ok(Vec::new());
    }
    let now_ns = now_ns();
    let late = waited_for_cpu().zip(waiting).map(|(after, before)| after.saturating_sub(before));
    let since = if is_there { before } else { *last };
    let late_ns = late.filter(|_| !is_there).unwrap_or(now_ns - since);
    *last = now_ns;
    let mut heard = Vec::new();
    for source in sources {
        heard.extend(source.read(Reading { now_ns, late_ns })?);
    }
    Ok(heard)
}

/// True if there are news within so long.
fn are_ready(sources: &[Box<dyn Source>], within: Duration) -> io::Result<bool> {
    let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
    let ready = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut all: Vec<_> = sources.iter().map(|source| ready(source.fd())).collect();
    match rustix::event::poll(&mut all, Some(&wait)) {
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

/// A thread that gets a CPU before all others as soon as it has something to do, while this lives: it sleeps but for
/// the moment of an exec, and reads the clock then. Without the right it stays as it was.
struct Urgent(bool);

impl Urgent {
    fn begin() -> Self {
        // SAFETY: a number goes in and one comes back; 0 is the calling thread.
        let is_usual = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
        Urgent(is_usual && set_policy(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1))
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if self.0 {
            set_policy(libc::SCHED_OTHER, 0);
        }
    }
}

/// True if the kernel allows it.
fn set_policy(policy: i32, sched_priority: i32) -> bool {
    let param = libc::sched_param { sched_priority };
    // SAFETY: the parameter lives until the call returns; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &param) == 0 }
}

/// Looks through /proc: a VMM that was not there, or was something else, at the last look.
fn look(
    wanted: &Wanted,
    known: &mut HashMap<i32, (u64, bool)>,
    passed: &mut Option<String>,
) -> Option<Executed> {
    let at = now_ns();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut seen = HashMap::with_capacity(known.len());
    let mut found = None;
    for pid in pids {
        let image = image(pid);
        let is = image.as_ref().is_some_and(|image| wanted.is_file(image));
        let started = if is { Stat::of(pid).map_or(0, |stat| stat.started) } else { 0 };
        let before = known.get(&pid).copied();
        seen.insert(pid, (started, is));
        if is && before.is_none_or(|before| before != (started, true)) && found.is_none() {
            let error_ns = LOOK.as_nanos() as Ns * 2;
            let how = "vmeter searched /proc for the VMM every 2 ms; if vmeter runs as root, the \
                kernel tells vmeter when the VMM starts";
            let executed =
                |(image, argv)| Executed { pid, image, argv, exec_ns: at, error_ns, how };
            found = wanted.is(pid, passed).map(executed);
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

    /// By each way of the kernel's that this user may have.
    fn told(file: &Path) -> Vec<Box<dyn Source>> {
        let marked = fanotify::Marked::of(&[file.to_owned()]).map(|news| Box::new(news) as Box<_>);
        let execs = connector::Execs::listen().map(|news| Box::new(news) as Box<_>);
        let not = |error: &io::Error| eprintln!("skipped: {error}");
        [marked, execs].into_iter().filter_map(|source| source.inspect_err(not).ok()).collect()
    }

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
        let begun = Instant::now();
        let found = door.next(|| begun.elapsed() > Duration::from_secs(10)).expect("news");
        // A parent that used vfork goes on before the kernel tells of the exec's end.
        let after = now_ns();
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
        finds_the_next(Door::looking(wanted()), &file);
        for source in told(&file) {
            finds_the_next(Door::told(wanted(), vec![source]), &file);
        }
    }

    /// As in a container's file system: nobody could have named it.
    #[test]
    fn one_of_which_nobody_knew_the_file_is_found_once() {
        let Ok(execs) = connector::Execs::listen() else {
            return eprintln!("skipped: the proc connector is not for this user");
        };
        let folder = tempfile::tempdir().expect("a folder");
        let mark = format!("5.{}", std::process::id());
        let matching = regex::Regex::new(&format!(r" {mark}$")).ok();
        let wanted = Wanted::of(&[], matching).expect("any");
        let mut door = Door::told(wanted, vec![Box::new(execs)]);
        let file = vmm(folder.path());
        let mut child = started(&file, &[&mark]);
        let begun = Instant::now();
        let found = door.next(|| begun.elapsed() > Duration::from_secs(10)).expect("news");
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert_eq!(found.map(|found| found.pid), Some(child.id() as i32));
    }

    #[test]
    fn what_two_ways_tell_of_is_one_vmm() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = vmm(folder.path());
        let sources = told(&file);
        if sources.len() < 2 {
            return eprintln!("skipped: the kernel tells this user of no exec");
        }
        let wanted = Wanted::of(std::slice::from_ref(&file), None).expect("it is there");
        let mut door = Door::told(wanted, sources);
        let mut child = started(&file, &["5.5"]);
        let begun = Instant::now();
        let late = || begun.elapsed() > Duration::from_secs(10);
        let found = door.next(late).expect("news");
        let begun = Instant::now();
        let again = door.next(|| begun.elapsed() > Duration::from_millis(300)).expect("no news");
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert_eq!(found.map(|found| found.pid), Some(child.id() as i32));
        assert_eq!(again, None);
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
    fn what_is_not_there_is_refused() {
        let error = Wanted::of(&["/nonexistent/qemu".into()], None).expect_err("no file");
        assert!(error.contains("--emulator /nonexistent/qemu"), "{error}");
    }
}
