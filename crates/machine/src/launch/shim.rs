//! The emulator in front of the emulator: a copy of vmeter that becomes the VMM.
//!
//! It lies where libvirt or another looks for the VMM, with a file beside it that says what it stands
//! for. Executed, it starts a watcher, which is no child of the VMM's, and executes the VMM in its own
//! process: number, parent, arguments, environment, descriptors and signals are as its caller made
//! them. Whatever fails on the way, the VMM is executed all the same.

use super::next::{argv, image, Executed};
use super::types::now_ns;
use crate::backend;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::pipe::{pipe_with, PipeFlags};
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_int, CStr, CString, OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use vmeter_base::files;
use vmeter_base::process::Stat;
use vmeter_model::Ns;

/// Of the file beside a shim.
const SCHEMA: &str = "vmeter-shim/1";
/// What that file's name ends in.
const ENDING: &str = ".vmeter.json";
const MAX_CONFIG: u64 = 64 << 10;
/// Executed by this name vmeter is itself, wherever it lies.
const OWN: &CStr = c"/proc/self/exe";
/// Shims in front of shims.
const MOST: usize = 8;
/// For all that the VMM waits for before its exec.
const AT_MOST: Duration = Duration::from_secs(1);
/// Between two looks at whether the process between shim and watcher has ended.
const LOOK: Duration = Duration::from_micros(20);
/// How long a watcher waits for the exec.
const EXEC_WITHIN: Duration = Duration::from_secs(10);

/// What a shim stands for: the file beside it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    schema: String,
    /// The VMM.
    pub real: PathBuf,
    /// Where the records go.
    pub records: PathBuf,
    /// That folder was made for them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub made_records: bool,
    /// Where a boot ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Only VMs whose command line matches are recorded.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<String>,
    /// Size of the shim's file, bytes, by which it is known again.
    pub shim_bytes: u64,
}

impl Config {
    /// Of a shim that is going to be installed.
    pub fn new(real: PathBuf, records: PathBuf) -> Self {
        Config { schema: SCHEMA.into(), real, records, ..Config::default() }
    }

    /// The file beside a shim.
    pub fn beside(shim: &Path) -> PathBuf {
        let mut name = shim.as_os_str().to_owned();
        name.push(ENDING);
        name.into()
    }

    /// What a file stands for; none if it is no shim.
    ///
    /// # Errors
    /// What is beside it can't be read, or is no shim's.
    pub fn of(shim: &Path) -> Result<Option<Self>, String> {
        let file = Self::beside(shim);
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let bytes = match files::read_limited(&file, MAX_CONFIG) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            read => read.map_err(|error| said(&error))?,
        };
        let config: Config = serde_json::from_slice(&bytes).map_err(|error| said(&error))?;
        match config.schema == SCHEMA {
            true => Ok(Some(config)),
            false => Err(said(&format_args!(
                "format {:?}, and this vmeter reads {SCHEMA:?}: install the shim again",
                config.schema
            ))),
        }
    }

    /// The VMM, behind all shims that are in front of it.
    fn last(&self) -> Result<PathBuf, String> {
        let mut real = self.real.clone();
        for _ in 0..MOST {
            let whole = real.canonicalize().unwrap_or_else(|_| real.clone());
            match Config::of(&whole) {
                Ok(Some(next)) => real = next.real,
                _ => return Ok(real),
            }
        }
        Err(format!("{}: expected a VMM, found vmeter shims that start each other", real.display()))
    }

    /// True for a command line that boots a guest, and is to be recorded.
    fn wants(&self, real: &Path, argv: &[OsString]) -> bool {
        let boots_nothing = backend::of_exec(real, argv)
            .is_some_and(|vmm| vmm.is_probe(argv) || vmm.restores(argv).is_some());
        let words = || argv.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let fits =
            |text: &String| regex::Regex::new(text).is_ok_and(|regex| regex.is_match(&words()));
        !boots_nothing && self.matching.as_ref().is_none_or(fits)
    }
}

/// To be called first of all in `main`: does not come back in a shim, which becomes its VMM.
pub fn stand_in() {
    let Some((file, config)) = found() else { return };
    let error = match config.and_then(|config| become_vmm(&file, &config)) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // As a shell says it.
    let text = format!("vmeter: {error}\n");
    let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
    std::process::exit(127);
}

/// The shim that this process is, if it is one.
fn found() -> Option<(PathBuf, Result<Config, String>)> {
    // SAFETY: takes a number; what it gives for this one is 0 or a string that the kernel put on the stack.
    let name = unsafe {
        let name = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        (!name.is_null()).then(|| CStr::from_ptr(name))
    };
    if name == Some(OWN) {
        return None;
    }
    let name =
        name.and_then(|name| Path::new(OsStr::from_bytes(name.to_bytes())).canonicalize().ok());
    let image = fs::read_link(OsStr::from_bytes(OWN.to_bytes())).ok();
    [name, image].into_iter().flatten().find_map(|file| {
        let config = Config::of(&file).transpose()?;
        Some((file, config))
    })
}

enum Never {}

fn become_vmm(file: &Path, config: &Config) -> Result<Never, String> {
    let real = config.last()?;
    let argv: Vec<OsString> = std::env::args_os().collect();
    let watcher = match config.wants(&real, &argv) && has_room() {
        true => start_watcher(file).ok(),
        false => None,
    };
    let failed =
        |error: &dyn std::fmt::Display| format!("cannot execute {}: {error}", real.display());
    let words = strings(argv).map_err(|error| failed(&error))?;
    let program = CString::new(real.as_os_str().as_bytes()).map_err(|error| failed(&error))?;
    let pointers = pointers(&words);
    as_it_was();
    if let Some(watcher) = &watcher {
        // Its reading end is open here as well, so that this neither waits nor fails.
        let _ = rustix::io::write(&watcher.tell, &now_ns().to_ne_bytes());
    }
    // SAFETY: strings that end in 0, and an array of them that ends in a null pointer, all alive.
    unsafe { libc::execv(program.as_ptr(), pointers.as_ptr()) };
    Err(failed(&io::Error::last_os_error()))
}

/// Threads that a VMM may want besides the watcher's own.
const ROOM: u64 = 64;
/// A user who may have so many has some left.
const MANY: u64 = 1024;

/// True if a VMM's threads and the watcher's may be there at once, by the limits of the user and of the cgroup.
fn has_room() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nproc).current;
    let by_user = is_root || limit.is_none_or(|limit| limit >= MANY);
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let folder = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (of, path) = (parts.next()?, parts.next()?.trim_start_matches('/').to_owned());
        match of {
            "" => Some(Path::new("/sys/fs/cgroup").join(path)),
            "pids" => Some(Path::new("/sys/fs/cgroup/pids").join(path)),
            _ => None,
        }
    };
    let number = |file: &Path| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let left = |folder: PathBuf| {
        number(&folder.join("pids.max"))?.checked_sub(number(&folder.join("pids.current"))?)
    };
    by_user && cgroup.lines().filter_map(folder).filter_map(left).all(|left| left >= ROOM)
}

fn strings(words: Vec<OsString>) -> Result<Vec<CString>, std::ffi::NulError> {
    words.into_iter().map(|word| CString::new(word.into_vec())).collect()
}

fn pointers(words: &[CString]) -> Vec<*const c_char> {
    words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
}

/// True if SIGPIPE was ignored, and a bit for each of the first descriptors that was closed, before
/// Rust's runtime began: it ignores the one, and opens the others.
static IGNORED: AtomicBool = AtomicBool::new(false);
static CLOSED: AtomicU8 = AtomicU8::new(0);

#[used]
#[link_section = ".init_array"]
static BEFORE_ALL: extern "C" fn() = note;

extern "C" fn note() {
    // SAFETY: only asks; the structure is plain data, for which zeros are a value.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) == 0 {
            IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
        }
        let closed = (0..3).filter(|fd| libc::fcntl(*fd, libc::F_GETFD) < 0);
        CLOSED.store(closed.fold(0, |bits, fd| bits | 1 << fd), Ordering::Relaxed);
    }
}

fn as_it_was() {
    let action = if IGNORED.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
    let closed = CLOSED.load(Ordering::Relaxed);
    // SAFETY: no handler of anybody's is lost, and nobody here uses a descriptor that was closed.
    unsafe {
        libc::signal(libc::SIGPIPE, action);
        for fd in (0..3).filter(|fd| closed >> fd & 1 == 1) {
            libc::close(fd);
        }
    }
}

/// Two ends of a pipe that the exec closes: the watcher reads when the exec was, and at the end of the
/// file that it is through.
struct Watcher {
    tell: OwnedFd,
    _hear: OwnedFd,
}

/// Starts `vmeter shim watch` in a session of its own, with nothing of the caller's.
fn start_watcher(file: &Path) -> io::Result<Watcher> {
    let refused = || io::Error::from(ErrorKind::Unsupported);
    let pid = std::process::id();
    // It would become a child of the VMM's.
    if pid == 1 || rustix::process::child_subreaper().is_ok_and(|of| of.is_some()) {
        return Err(refused());
    }
    let started = Stat::own().ok_or_else(refused)?.started;
    let own: [OsString; 3] = ["vmeter", "shim", "watch"].map(Into::into);
    let about = [file.into(), pid.to_string().into(), started.to_string().into()];
    let words = strings(own.into_iter().chain(about).collect())?;
    let (words, environment) = (pointers(&words), pointers(&[]));
    let (hear, tell) = pipe_with(PipeFlags::CLOEXEC)?;
    let (number, numbered) = pipe_with(PipeFlags::CLOEXEC)?;
    let deadline = Instant::now() + AT_MOST;
    // SAFETY: a copy of this process, which has one thread; it calls what a handler of signals may, and
    // ends or executes. No signal tells of its end, so that the VMM never hears of it.
    let between = unsafe {
        let between = clone(0);
        if between == 0 {
            let watcher = clone(libc::SIGCHLD);
            if watcher == 0 {
                watch(hear.as_raw_fd(), &words, &environment);
            }
            libc::write(numbered.as_raw_fd(), (&raw const watcher).cast(), size_of::<c_int>());
            libc::_exit(0);
        }
        between
    };
    if between < 0 {
        return Err(io::Error::last_os_error());
    }
    drop(numbered);
    let watcher = read_number(number.as_fd(), deadline);
    reap(between, deadline);
    if let Some(watcher) = watcher.filter(|number| *number > 0) {
        // SAFETY: numbers only. Where no Yama is there is nothing to be allowed.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, watcher as libc::c_ulong, 0, 0, 0) };
    }
    Ok(Watcher { tell, _hear: hear })
}

/// fork(2) without what the C library does beside it.
///
/// # Safety
/// As of fork(2).
unsafe fn clone(signal: c_int) -> c_int {
    // SAFETY: with no flag and no stack it is fork(2), whatever the order of its arguments.
    unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(signal), 0, 0, 0, 0) as c_int }
}

/// Becomes the watcher.
///
/// # Safety
/// In a copy of a process of one thread; `words` and `environment` are arrays of strings that end in a null pointer.
unsafe fn watch(hear: c_int, words: &[*const c_char], environment: &[*const c_char]) -> ! {
    // SAFETY: only calls that a handler of signals may make, with memory that is there.
    unsafe {
        libc::setsid();
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        let theirs = [(hear, 0), (nothing, 1), (nothing, 2)];
        if libc::chdir(c"/".as_ptr()) != 0 || theirs.iter().any(|(fd, to)| libc::dup2(*fd, *to) < 0)
        {
            libc::_exit(127);
        }
        if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) != 0 {
            // Kernels before 5.9.
            for fd in 3..1 << 16 {
                libc::close(fd);
            }
        }
        libc::execve(OWN.as_ptr(), words.as_ptr(), environment.as_ptr());
        libc::_exit(127)
    }
}

/// True if there is something to read, or nobody left to write, before the deadline.
fn is_heard(from: BorrowedFd<'_>, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let wait = rustix::event::Timespec::try_from(left).ok();
    let mut ready = [rustix::event::PollFd::from_borrowed_fd(from, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ready, wait.as_ref()).is_ok_and(|count| count > 0)
}

fn read_number(from: BorrowedFd<'_>, deadline: Instant) -> Option<c_int> {
    let mut bytes = [0; size_of::<c_int>()];
    let whole = is_heard(from, deadline) && rustix::io::read(from, &mut bytes) == Ok(bytes.len());
    whole.then_some(c_int::from_ne_bytes(bytes))
}

fn reap(child: c_int, deadline: Instant) {
    // SAFETY: asks about a child, and takes no status.
    let is_there =
        || unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) } == 0;
    while is_there() && Instant::now() < deadline {
        std::thread::sleep(LOOK);
    }
}

/// In a watcher: the VMM that the shim has become. None if it became none.
pub fn executed(pid: i32, started: u64) -> Option<Executed> {
    let exec_ns = told(rustix::stdio::stdin())?;
    let deadline = Instant::now() + AT_MOST;
    while Instant::now() < deadline {
        Stat::of(pid).filter(|stat| !stat.is_gone() && stat.started == started)?;
        // The kernel closes what is to be closed before it puts the arguments in their place.
        if let (Some(image), Some(argv)) = (image(pid), argv(pid)) {
            let how = "the shim of `vmeter shim` reported the time at which it executed the VMM";
            return Some(Executed { pid, image, argv, exec_ns, error_ns: 0, how });
        }
        std::thread::sleep(LOOK);
    }
    None
}

/// When the exec was, once it is through.
fn told(from: BorrowedFd<'_>) -> Option<Ns> {
    let deadline = Instant::now() + EXEC_WITHIN;
    let mut said = Vec::new();
    while is_heard(from, deadline) {
        let mut bytes = [0; 16];
        match rustix::io::read(from, &mut bytes).ok()? {
            0 => return said.try_into().ok().map(Ns::from_ne_bytes),
            length => said.extend_from_slice(&bytes[..length]),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &Path, shim: &str, real: &Path) -> Config {
        let config = Config::new(real.to_owned(), folder.to_owned());
        let text = serde_json::to_vec(&config).expect("JSON");
        fs::write(Config::beside(&folder.join(shim)), text).expect("written");
        config
    }

    #[test]
    fn a_shim_in_front_of_shims_leads_to_the_vmm_and_a_circle_to_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().canonicalize().expect("a folder");
        let vmm = dir.join("qemu-system-x86_64");
        config(&dir, "b", &vmm);
        let first = config(&dir, "a", &dir.join("b"));
        assert_eq!(first.last(), Ok(vmm));
        config(&dir, "b", &dir.join("a"));
        assert!(first.last().expect_err("a circle").contains("start each other"));
    }

    #[test]
    fn what_is_beside_a_file_is_a_shims_or_said_to_be_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("x");
        assert_eq!(Config::of(&file), Ok(None));
        fs::write(Config::beside(&file), "{").expect("written");
        assert!(Config::of(&file).expect_err("no JSON").contains("x.vmeter.json"));
        let config = config(folder.path(), "x", Path::new("/q"));
        assert_eq!(Config::of(&file), Ok(Some(config)));
    }

    #[test]
    fn what_asks_restores_or_does_not_match_is_passed_on() {
        let wants = |matching: Option<&str>, line: &str| {
            let argv: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let matching = matching.map(str::to_owned);
            Config { matching, ..Config::default() }
                .wants(Path::new("/usr/bin/qemu-system-x86_64"), &argv)
        };
        assert!(wants(None, "shim -m 512") && wants(Some("guest=web"), "shim -name guest=web"));
        for line in [
            "shim -version",
            "shim -machine none -qmp stdio",
            "shim -cpu help",
            "shim -incoming defer",
        ] {
            assert!(!wants(None, line), "{line}");
        }
        assert!(!wants(Some("guest=web"), "shim -m 1") && !wants(Some("["), "shim -m 1"));
    }

    #[test]
    fn the_time_of_an_exec_is_told_whole_or_not() {
        let said = |bytes: &[u8]| {
            let (hear, tell) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
            rustix::io::write(&tell, bytes).expect("written");
            drop(tell);
            told(hear.as_fd())
        };
        assert_eq!(said(&7i64.to_ne_bytes()), Some(7));
        assert_eq!((said(&[1, 2, 3]), said(&[])), (None, None));
    }
}
