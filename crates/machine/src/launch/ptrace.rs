//! The few ptrace requests that are needed, each as a function.
//!
//! ptrace binds the tracee to the *thread* that attached: every function here
//! must be called from the thread that called [`seize`].

use rustix::process::Pid;
use std::io;

/// `PTRACE_EVENT_*` of a wait status, or 0 (ptrace(2)).
pub fn event(status: i32) -> i32 {
    status >> 16
}

fn request(request: libc::c_uint, pid: Pid, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: none of the requests used with this function writes to our memory;
    // address and data are plain numbers for all of them.
    let r = unsafe { libc::ptrace(request, pid.as_raw_nonzero().get(), address, data) };
    if r == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Attaches without stopping; the tracee dies with the tracer (`EXITKILL`).
pub fn seize(pid: Pid) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, pid, 0, options as usize)
}

/// Attaches to a further thread of the tracee, for a moment.
pub fn seize_thread(tid: Pid) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, 0)
}

/// From here on the main thread's exit is a stop as well, if `exit` says so; with `forks` its
/// children are traced too, each from its first instruction (which is a stop), and with `threads`
/// its threads.
pub fn watch(pid: Pid, exit: bool, forks: bool, threads: bool) -> io::Result<()> {
    let mut options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
    if exit {
        options |= libc::PTRACE_O_TRACEEXIT;
    }
    if forks {
        options |= libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
    }
    if threads {
        options |= libc::PTRACE_O_TRACECLONE;
    }
    request(libc::PTRACE_SETOPTIONS, pid, 0, options as usize)
}

/// The process or thread that a tracee has just started, at the stop that says so.
pub fn started(pid: Pid) -> Option<Pid> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long to the pointer given.
    let r = unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG,
            pid.as_raw_nonzero().get(),
            0usize,
            std::ptr::from_mut(&mut message),
        )
    };
    Pid::from_raw(i32::try_from(message).ok().filter(|_| r == 0)?)
}

/// The process that sent a tracee the signal that it is stopped for; none if the kernel did.
pub fn sender(pid: Pid) -> Option<i32> {
    let mut about = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel writes one siginfo_t to the pointer given.
    let r = unsafe {
        libc::ptrace(
            libc::PTRACE_GETSIGINFO,
            pid.as_raw_nonzero().get(),
            0usize,
            about.as_mut_ptr(),
        )
    };
    if r == -1 {
        return None;
    }
    // SAFETY: all-zero is a valid siginfo_t, and the kernel filled it; of a signal that a process
    // sent (si_code at most 0) the field that is read is set.
    unsafe {
        let about = about.assume_init();
        [libc::SI_USER, libc::SI_TKILL, libc::SI_QUEUE]
            .contains(&about.si_code)
            .then(|| about.si_pid())
    }
}

/// A stopped tracee outlives vmeter from here on.
pub fn spare(pid: Pid) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACEEXIT;
    request(libc::PTRACE_SETOPTIONS, pid, 0, options as usize)
}

/// Asks for a stop; it arrives as `PTRACE_EVENT_STOP`.
pub fn interrupt(pid: Pid) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, pid, 0, 0)
}

/// Resumes, delivering `signal` (0 for none).
pub fn resume(pid: Pid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, pid, 0, signal as usize)
}

/// Leaves a group-stopped tracee stopped, and reports what it does next.
pub fn listen(pid: Pid) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, pid, 0, 0)
}

/// Lets go of a stopped tracee, delivering `signal` (0 for none).
pub fn detach(pid: Pid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, pid, 0, signal as usize)
}

/// Address of the next instruction of a stopped tracee.
#[cfg(target_arch = "x86_64")]
pub fn instruction_pointer(pid: Pid) -> io::Result<u64> {
    Ok(registers(pid)?.rip)
}

/// Moves a stopped tracee to `address`.
#[cfg(target_arch = "x86_64")]
pub fn set_instruction_pointer(pid: Pid, address: u64) -> io::Result<()> {
    set_registers(pid, libc::user_regs_struct { rip: address, ..registers(pid)? })
}

/// Top of the stack of a stopped tracee.
#[cfg(target_arch = "x86_64")]
pub fn stack_pointer(pid: Pid) -> io::Result<u64> {
    Ok(registers(pid)?.rsp)
}

/// Moves the stack of a stopped tracee.
#[cfg(target_arch = "x86_64")]
pub fn set_stack_pointer(pid: Pid, address: u64) -> io::Result<()> {
    set_registers(pid, libc::user_regs_struct { rsp: address, ..registers(pid)? })
}

#[cfg(target_arch = "x86_64")]
fn set_registers(pid: Pid, registers: libc::user_regs_struct) -> io::Result<()> {
    // SAFETY: the kernel reads one user_regs_struct, which `registers` is.
    let r = unsafe {
        libc::ptrace(
            libc::PTRACE_SETREGS,
            pid.as_raw_nonzero().get(),
            0usize,
            std::ptr::from_ref(&registers),
        )
    };
    if r == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
fn registers(pid: Pid) -> io::Result<libc::user_regs_struct> {
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: the kernel writes one user_regs_struct to the pointer given.
    let r = unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGS,
            pid.as_raw_nonzero().get(),
            0usize,
            registers.as_mut_ptr(),
        )
    };
    if r == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero is a valid user_regs_struct, and the kernel filled it.
    Ok(unsafe { registers.assume_init() })
}
