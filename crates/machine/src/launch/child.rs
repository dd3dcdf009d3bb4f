//! Making the child process that becomes the VMM.
//!
//! The child shares the launcher's memory until its `execve` (`CLONE_VM` and
//! `CLONE_VFORK`, as posix_spawn does), so neither page tables nor memory are
//! copied: the exec that is measured does not depend on how much memory the
//! launcher uses. The thread that clones is suspended until then; it is a thread
//! of its own ([`super::reaper`]), so that another one can attach meanwhile.

use super::own::Own;
use super::types::LaunchError;
use crate::plan::LaunchPlan;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ffi::{c_char, c_int, c_void, CString, OsStr};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

/// What the child reports by the memory that it shares.
#[derive(Debug, Default)]
pub struct Report {
    /// `CLOCK_MONOTONIC` immediately before the `execve`, ns.
    pub exec_ns: AtomicI64,
    /// errno of what failed, or 0.
    pub errno: AtomicI32,
    /// What failed: an index into [`STAGES`].
    pub stage: AtomicI32,
}

/// Steps of the child that can fail, in order.
pub const STAGES: [&str; 6] = [
    "setsid",
    "prctl(PR_SET_PDEATHSIG)",
    "sched_setaffinity (is every CPU of --pin online and allowed?)",
    "dup2",
    "waiting for the launcher",
    "execve",
];

/// As [`Own::entry`] has them.
const SESSION_DIGITS: usize = 10;

/// Everything the child needs, made before it: it must not allocate.
pub struct Prepared {
    /// The program that will be executed.
    pub program: PathBuf,
    path: CString,
    argv: Vec<CString>,
    environment: Vec<CString>,
    /// The launch's mark, whose last ten digits the child overwrites with its session.
    mark: Vec<u8>,
    /// (number in the child, our descriptor): all of ours are above all of theirs.
    descriptors: Vec<(c_int, OwnedFd)>,
    affinity: Option<libc::cpu_set_t>,
    hello: OwnedFd,
    go: OwnedFd,
    /// Number of the launcher's end of `go`, which the child must not keep open.
    go_launcher: c_int,
}

/// The launcher's ends of the two pipes.
pub struct Handshake {
    /// The child writes its process id here, then waits.
    pub hello: OwnedFd,
    /// One byte here lets it go on to its `execve`.
    pub go: OwnedFd,
}

impl Prepared {
    /// Takes the plan's descriptors; `stderr` is the write end of the caller's pipe.
    pub fn new(
        plan: LaunchPlan,
        stderr: OwnedFd,
        pin: &[usize],
        own: &Own,
    ) -> Result<(Self, Handshake), LaunchError> {
        let io = |error| LaunchError::Prepare { error };
        let name = plan.argv.first().ok_or(LaunchError::Empty)?;
        let program = find_program(name)?;
        let path = c_string(program.as_os_str())?;
        let argv = plan.argv.iter().map(|a| c_string(a)).collect::<Result<_, _>>()?;
        let null = std::fs::File::options().read(true).write(true).open("/dev/null");
        let null = OwnedFd::from(null.map_err(io)?);
        let stdout = match plan.stdout {
            Some(fd) => fd,
            None => null.try_clone().map_err(io)?,
        };
        let mut wanted = vec![(0, null), (1, stdout), (2, stderr)];
        wanted.extend(plan.fds);
        let above = wanted.iter().map(|(n, _)| n + 1).max().unwrap_or(3);
        let lift = |fd: OwnedFd| lift(fd.as_fd(), above).map_err(io);
        let descriptors = wanted
            .into_iter()
            .map(|(n, fd)| Ok((n, lift(fd)?)))
            .collect::<Result<_, LaunchError>>()?;
        let (hello, hello_child) = pipe().map_err(io)?;
        let (go_child, go) = pipe().map_err(io)?;
        let prepared = Self {
            program,
            path,
            argv,
            environment: environment()?,
            mark: CString::new(own.entry()).unwrap_or_default().into_bytes_with_nul(),
            descriptors,
            affinity: affinity(pin)?,
            hello: lift(hello_child)?,
            go: lift(go_child)?,
            go_launcher: go.as_raw_fd(),
        };
        Ok((prepared, Handshake { hello, go }))
    }

    /// The file that its standard output is, as links in `/proc/PID/fd` name it.
    pub fn stdout(&self) -> Option<PathBuf> {
        let (_, fd) = self.descriptors.iter().find(|(number, _)| *number == 1)?;
        std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()
    }

    /// Clones the child and returns once it has executed the program, or failed.
    /// Consumes the descriptors, so that only the VMM has them afterwards.
    pub fn spawn(mut self, report: &Report) -> io::Result<libc::pid_t> {
        let argv = pointers(&self.argv);
        let mut environment = pointers(&self.environment);
        let mark = self.mark.as_mut_ptr();
        environment.insert(0, mark.cast_const().cast());
        // Its digits, and the zero after them.
        let session = mark.wrapping_add(self.mark.len() - 1 - SESSION_DIGITS);
        let descriptors: Vec<(c_int, c_int)> =
            self.descriptors.iter().map(|(n, fd)| (*n, fd.as_raw_fd())).collect();
        let mut arguments = Arguments {
            path: self.path.as_ptr(),
            argv: argv.as_ptr(),
            environment: environment.as_ptr(),
            session,
            descriptors: &descriptors,
            affinity: self.affinity.as_ref(),
            hello: self.hello.as_raw_fd(),
            go: self.go.as_raw_fd(),
            go_launcher: self.go_launcher,
            parent: std::process::id() as libc::pid_t,
            report,
        };
        // 16-byte alignment of the top is the psABI's, and enough of the stack for
        // a debug build.
        let mut stack = vec![0u128; 8192];
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let blocked = SignalsBlocked::new();
        // SAFETY: `child` only makes async-signal-safe calls on memory prepared above,
        // runs on its own stack, and this thread sleeps until it executed or ended
        // (CLONE_VFORK), so everything that it borrows outlives its use. Signals are
        // blocked, so no handler of ours runs in it on shared memory.
        let pid = unsafe {
            let top = stack.as_mut_ptr().add(stack.len());
            libc::clone(child, top.cast(), flags, (&raw mut arguments).cast())
        };
        let result = if pid == -1 { Err(io::Error::last_os_error()) } else { Ok(pid) };
        drop(blocked);
        result
    }
}

struct Arguments<'a> {
    path: *const c_char,
    argv: *const *const c_char,
    environment: *const *const c_char,
    session: *mut u8,
    descriptors: &'a [(c_int, c_int)],
    affinity: Option<&'a libc::cpu_set_t>,
    hello: c_int,
    go: c_int,
    go_launcher: c_int,
    parent: libc::pid_t,
    report: &'a Report,
}

/// Blocks every signal of this thread until dropped.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: sigset_t is plain data; the calls fill and read valid pointers.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut old = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
            Self(old)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the mask was filled by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

extern "C" fn child(arguments: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to its `Arguments` and sleeps meanwhile.
    let arguments = unsafe { &*arguments.cast::<Arguments<'_>>() };
    let stage = become_vmm(arguments);
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    arguments.report.stage.store(stage, Ordering::Relaxed);
    arguments.report.errno.store(errno, Ordering::Release);
    // SAFETY: ends this process only, running no handlers of the shared image.
    unsafe { libc::_exit(127) }
}

/// Only returns on failure: the index of the stage; errno is set.
fn become_vmm(a: &Arguments<'_>) -> c_int {
    // SAFETY: async-signal-safe calls with pointers that `Prepared::spawn` keeps alive.
    unsafe {
        if libc::setsid() == -1 {
            return 0;
        }
        // The session's number is this process's.
        let mut rest = libc::getpid();
        for digit in (0..SESSION_DIGITS).rev() {
            *a.session.add(digit) = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        // The parent could have died before the request took effect.
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == -1 || libc::getppid() != a.parent {
            return 1;
        }
        if let Some(set) = a.affinity {
            if libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) == -1 {
                return 2;
            }
        }
        libc::close(a.go_launcher);
        // Nothing of ours leaks into the VMM; too old a kernel only loses that.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        for &(number, fd) in a.descriptors {
            if libc::dup2(fd, number) == -1 {
                return 3;
            }
        }
        default_signals();
        let pid = libc::getpid().to_ne_bytes();
        let mut byte = 0u8;
        if libc::write(a.hello, pid.as_ptr().cast(), pid.len()) != pid.len() as isize
            || libc::read(a.go, (&raw mut byte).cast(), 1) != 1
        {
            return 4;
        }
        a.report.exec_ns.store(super::types::now_ns(), Ordering::Release);
        libc::execve(a.path, a.argv, a.environment);
        5
    }
}

/// The VMM begins with no handlers, the default SIGPIPE (Rust ignores it) and
/// nothing blocked.
///
/// # Safety
/// Only in the child, which has a table of handlers of its own.
unsafe fn default_signals() {
    // SAFETY: sigaction and sigset_t are plain data; the pointers are to locals.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        for signal in 1..=libc::SIGRTMAX() {
            if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 {
                continue;
            }
            if action.sa_sigaction != libc::SIG_IGN || signal == libc::SIGPIPE {
                action = std::mem::zeroed();
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// A copy of `fd` with a number that no descriptor of the child's will get.
fn lift(fd: BorrowedFd<'_>, above: c_int) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, above)?)
}

fn c_string(s: &OsStr) -> Result<CString, LaunchError> {
    CString::new(s.as_bytes())
        .map_err(|_| LaunchError::Nul { argument: s.to_string_lossy().into_owned() })
}

/// Ours, without a mark that we carry ourselves.
fn environment() -> Result<Vec<CString>, LaunchError> {
    let join = |(k, v): (std::ffi::OsString, std::ffi::OsString)| {
        let mut entry = k;
        entry.push("=");
        entry.push(v);
        c_string(&entry)
    };
    let ours = std::env::vars_os().filter(|(name, _)| name != vmeter_base::owner::VARIABLE);
    ours.map(join).collect()
}

fn affinity(pin: &[usize]) -> Result<Option<libc::cpu_set_t>, LaunchError> {
    if pin.is_empty() {
        return Ok(None);
    }
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in pin {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(LaunchError::Cpu { cpu });
        }
        // SAFETY: the index is within the set, as checked above.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    Ok(Some(set))
}

/// The file that `name` means: itself with a slash in it, else from `PATH`.
///
/// # Errors
/// Not found, or found only files that cannot be executed.
pub fn find_program(name: &OsStr) -> Result<PathBuf, LaunchError> {
    let executable =
        |p: &Path| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let shown = || name.to_string_lossy().into_owned();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match path.metadata() {
            Ok(_) if executable(&path) => Ok(path),
            Ok(_) => Err(LaunchError::NotExecutable { program: shown() }),
            Err(error) => Err(LaunchError::NotFound { program: shown(), error }),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| executable(p)).ok_or_else(
        || LaunchError::NotInPath { program: shown(), mend: "install it, or give its path" },
    )
}
