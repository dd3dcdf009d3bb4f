// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The two halves of an asymmetric fence: free for writers, a system call for harvests.
//!
//! A writer publishes which bitmap it is about to touch and then looks whether that is
//! still the current one; a harvest replaces the current bitmap and then looks who has
//! published the old one. Each stores and then loads, so each needs a full fence in
//! between, or both may miss the other (the store-buffer litmus test). Writers do this
//! for every mark, harvests a few times a second: so the writer's fence only stops the
//! compiler, and the harvest makes the kernel run a full barrier on every CPU that runs
//! a thread of this process (membarrier(2), `MEMBARRIER_CMD_PRIVATE_EXPEDITED`,
//! Linux 4.14). Where that is not to be had, both sides pay for a real fence.
//!
//! The same barrier makes it right that a mark which finds its bit set writes nothing:
//! what that thread wrote to guest memory before is visible to whoever harvests the bit.

use std::sync::atomic::{compiler_fence, fence, AtomicU8, Ordering};
use std::sync::Once;

/// How writers and harvests are ordered in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fences {
    /// Writers pay nothing, each harvest that finds dirty pages one membarrier(2).
    Membarrier,
    /// A full fence in each mark and in each harvest; no system call.
    Full,
}

/// Fences can be chosen before the first bitmap only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the first bitmap has been made with {now:?} fences: choose fences before it")]
#[non_exhaustive]
pub struct FencesInUse {
    /// What is in use.
    pub now: Fences,
}

const FULL: u8 = 0;
const MEMBARRIER: u8 = 1;

static MODE: AtomicU8 = AtomicU8::new(FULL);
static CHOICE: Once = Once::new();

/// Makes every mark carry a full fence and no harvest call membarrier(2), for processes
/// whose seccomp filter is going to refuse it. A filter that traps or kills
/// (`SECCOMP_RET_TRAP`, `SECCOMP_RET_KILL_PROCESS`: what VMMs use) ends the process at the
/// first harvest that another thread's mark made necessary, which may be late: such a process
/// allows membarrier(2), or calls this first.
///
/// # Errors
/// A bitmap exists already and relies on membarrier(2).
pub fn use_full_fences() -> Result<(), FencesInUse> {
    CHOICE.call_once(|| {});
    match fences() {
        Fences::Full => Ok(()),
        now => Err(FencesInUse { now }),
    }
}

/// What this process uses; decided when the first bitmap is made.
pub fn fences() -> Fences {
    if MODE.load(Ordering::Relaxed) == MEMBARRIER {
        Fences::Membarrier
    } else {
        Fences::Full
    }
}

/// Decides once. To be called before a bitmap can be shared between threads, so that
/// whoever has one agrees on the mode.
pub(crate) fn init() {
    CHOICE.call_once(|| {
        if membarrier::register() {
            MODE.store(MEMBARRIER, Ordering::Relaxed);
        }
    });
}

/// Whether writers need a real fence, for the switch to keep where they look anyway.
pub(crate) type WritersFence = bool;

/// What holds for this process from [`init`] on.
pub(crate) fn writers_fence() -> WritersFence {
    fences() == Fences::Full
}

/// The writer's half.
#[inline(always)]
pub(crate) fn light(needed: WritersFence) {
    if needed {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// A full fence whatever the mode, for paths where speed does not matter.
pub(crate) fn full() {
    fence(Ordering::SeqCst);
}

/// The harvest's half.
///
/// # Panics
/// The kernel refuses a membarrier(2) that it granted at the start: a seccomp filter
/// installed since. Going on would lose marks; what the harvest would have had is in the next
/// one that a thread without that filter makes.
pub(crate) fn heavy() {
    if MODE.load(Ordering::Relaxed) == MEMBARRIER {
        if let Err(error) = membarrier::barrier() {
            panic!(
                "membarrier(PRIVATE_EXPEDITED) worked when the first dirty bitmap was made and \
                 now fails: {error}. Allow membarrier in the seccomp filter, or call \
                 vmeter_dirty_switch::use_full_fences() before the first bitmap"
            );
        }
    } else {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod membarrier {
    use std::io::{Error, Result};

    // include/uapi/linux/membarrier.h
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    fn call(command: libc::c_int) -> Result<()> {
        // SAFETY: membarrier takes three integers and touches no memory of ours.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        if result == 0 {
            Ok(())
        } else {
            Err(Error::last_os_error())
        }
    }

    pub(super) fn register() -> bool {
        call(REGISTER_PRIVATE_EXPEDITED).is_ok() && barrier().is_ok()
    }

    pub(super) fn barrier() -> Result<()> {
        call(PRIVATE_EXPEDITED)
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
mod membarrier {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn barrier() -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}
