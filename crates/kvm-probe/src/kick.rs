//! Making `KVM_RUN` return: a deadline or another thread's wish, without a handler.
//!
//! The kick signal stays blocked in the vCPU's thread and is unblocked only while
//! the vCPU is in `KVM_RUN` (`KVM_SET_SIGNAL_MASK`): a kick that comes a moment
//! early stays pending and makes the next `KVM_RUN` return `EINTR` at once. So
//! there is no window in which it can be lost, no handler to install over the
//! application's, and nothing polls. A deadline is a POSIX timer that signals
//! this one thread.

use crate::error::VmError;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// `_IOW(KVMIO, 0x8b, struct kvm_signal_mask)`, linux/kvm.h.
const KVM_SET_SIGNAL_MASK: libc::c_ulong = 0x4004_ae8b;

/// A real-time signal that neither glibc nor Rust's runtime uses. Only ever sent to a
/// thread that has it blocked.
fn kick_signal() -> libc::c_int {
    libc::SIGRTMIN() + 6
}

#[derive(Debug, Default)]
pub(crate) struct KickState {
    /// Thread now inside `Vcpu::run`. The lock is held while signalling, so that the
    /// thread can't leave (and unblock the signal) in between.
    thread: Mutex<Option<libc::pid_t>>,
    wanted: AtomicBool,
}

impl KickState {
    fn thread(&self) -> MutexGuard<'_, Option<libc::pid_t>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once for each time that a kick was asked for.
    pub(crate) fn take(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }
}

/// Makes a vCPU's [`crate::Vcpu::run`] return [`crate::Stop::Kicked`], from any thread.
#[derive(Debug, Clone)]
pub struct Kicker(pub(crate) Arc<KickState>);

impl Kicker {
    /// Kicks the vCPU: its current run ends, or, if it is not running, its next one.
    pub fn kick(&self) {
        self.0.wanted.store(true, Ordering::Release);
        let thread = self.0.thread();
        if let Some(tid) = *thread {
            // SAFETY: tgkill takes plain numbers; the thread is alive, as it must take the
            // lock to leave, and has the signal blocked.
            unsafe {
                libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, kick_signal());
            }
        }
    }
}

/// The calling thread made ready for kicks; dropping it undoes that.
pub(crate) struct Kickable {
    state: Arc<KickState>,
    timer: Option<libc::timer_t>,
    old_mask: libc::sigset_t,
}

impl Kickable {
    /// Blocks the signal here, unblocks it inside `KVM_RUN` of `vcpu`, arms the timer.
    pub(crate) fn enter(
        state: &Arc<KickState>,
        vcpu: RawFd,
        timeout: Option<Duration>,
    ) -> Result<Self, VmError> {
        let old_mask = block()?;
        // From here on `drop` undoes what was done.
        let mut this = Self { state: state.clone(), timer: None, old_mask };
        set_run_mask(vcpu, &old_mask)?;
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::gettid() };
        *this.state.thread() = Some(tid);
        if let Some(timeout) = timeout {
            this.timer = Some(arm(tid, timeout)?);
        }
        Ok(this)
    }

    /// Takes a pending kick signal away, so that `KVM_RUN` can be entered again.
    pub(crate) fn drain(&self) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let set = only_kick();
        // SAFETY: both pointers are to live locals; a null siginfo is allowed.
        while unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &zero) } > 0 {}
    }
}

impl Drop for Kickable {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            // SAFETY: the timer was made by timer_create and is deleted once.
            unsafe { libc::timer_delete(timer) };
        }
        *self.state.thread() = None;
        self.drain();
        // SAFETY: old_mask was filled by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.old_mask, std::ptr::null_mut()) };
    }
}

fn only_kick() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data and sigemptyset initialises it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, kick_signal());
        set
    }
}

fn block() -> Result<libc::sigset_t, VmError> {
    // SAFETY: both sets are live locals; zero is a valid sigset_t.
    let (rc, old) = unsafe {
        let mut old = std::mem::zeroed();
        (libc::pthread_sigmask(libc::SIG_BLOCK, &only_kick(), &mut old), old)
    };
    match rc {
        0 => Ok(old),
        errno => Err(VmError::System {
            step: "pthread_sigmask".into(),
            source: std::io::Error::from_raw_os_error(errno),
        }),
    }
}

/// `struct kvm_signal_mask` with the kernel's 8-byte sigset.
#[repr(C)]
struct SignalMask {
    len: u32,
    sigset: [u8; 8],
}

fn set_run_mask(vcpu: RawFd, old: &libc::sigset_t) -> Result<(), VmError> {
    let mut unblocked = *old;
    // SAFETY: sigdelset works on a live local; the kernel's set is the first 8 bytes of
    // libc's; the ioctl reads `len` and then 8 bytes, all inside the struct.
    let rc = unsafe {
        libc::sigdelset(&mut unblocked, kick_signal());
        let sigset = *std::ptr::from_ref(&unblocked).cast::<[u8; 8]>();
        let mask = SignalMask { len: 8, sigset };
        libc::ioctl(vcpu, KVM_SET_SIGNAL_MASK as _, &mask)
    };
    if rc < 0 {
        return Err(VmError::last_os("KVM_SET_SIGNAL_MASK"));
    }
    Ok(())
}

fn arm(tid: libc::pid_t, timeout: Duration) -> Result<libc::timer_t, VmError> {
    // SAFETY: all pointers are to live locals; sigevent and itimerspec are plain data for
    // which zero is valid.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = kick_signal();
        event.sigev_notify_thread_id = tid;
        let mut timer: libc::timer_t = std::mem::zeroed();
        if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) < 0 {
            return Err(VmError::last_os("timer_create"));
        }
        let mut when: libc::itimerspec = std::mem::zeroed();
        when.it_value.tv_sec = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        // Zero would disarm it.
        when.it_value.tv_nsec = i64::from(timeout.subsec_nanos().max(1));
        if libc::timer_settime(timer, 0, &when, std::ptr::null_mut()) < 0 {
            let error = VmError::last_os("timer_settime");
            libc::timer_delete(timer);
            return Err(error);
        }
        Ok(timer)
    }
}
