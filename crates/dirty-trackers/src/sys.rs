// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The kernel's structures and numbers, from include/uapi/linux/{kvm,userfaultfd,fs}.h.

use crate::{TrackError, TrackedSlot, KVM_MEM_LOG_DIRTY_PAGES};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

pub(crate) const KVM_CHECK_EXTENSION: u64 = 0xae03;
const KVM_GET_DIRTY_LOG: u64 = 0x4010_ae42;
pub(crate) const KVM_SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;
pub(crate) const KVM_ENABLE_CAP: u64 = 0x4068_aea3;
pub(crate) const KVM_CLEAR_DIRTY_LOG: u64 = 0xc018_aec0;
pub(crate) const KVM_RESET_DIRTY_RINGS: u64 = 0xaec7;
pub(crate) const KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2: u32 = 168;
pub(crate) const KVM_CAP_DIRTY_LOG_RING: u32 = 192;
pub(crate) const KVM_CAP_DIRTY_LOG_RING_ACQ_REL: u32 = 223;
pub(crate) const KVM_CAP_DIRTY_LOG_RING_WITH_BITMAP: u32 = 225;

/// `struct kvm_dirty_log`.
#[repr(C)]
struct DirtyLog {
    slot: u32,
    padding: u32,
    bitmap: u64,
}

/// `struct kvm_clear_dirty_log`.
#[repr(C)]
pub(crate) struct ClearDirtyLog {
    pub(crate) slot: u32,
    pub(crate) num_pages: u32,
    pub(crate) first_page: u64,
    pub(crate) bitmap: u64,
}

/// `struct kvm_userspace_memory_region`.
#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_phys_addr: u64,
    memory_size: u64,
    userspace_addr: u64,
}

/// `struct kvm_enable_cap`.
#[repr(C)]
struct EnableCap {
    cap: u32,
    flags: u32,
    args: [u64; 4],
    padding: [u8; 64],
}

/// `struct kvm_dirty_gfn`.
#[repr(C)]
pub(crate) struct DirtyGfn {
    pub(crate) flags: u32,
    pub(crate) slot: u32,
    pub(crate) offset: u64,
}

/// An ioctl with a pointer to `argument`.
///
/// # Safety
/// `request` is one whose argument is a `T`, and what addresses it holds are valid for
/// what the request does with them.
pub(crate) unsafe fn ioctl<T>(
    fd: RawFd,
    request: u64,
    argument: &mut T,
    step: &'static str,
) -> Result<usize, TrackError> {
    // SAFETY: the caller's promise; the kernel writes to `argument` at most.
    let result = unsafe { libc::ioctl(fd, request as _, std::ptr::from_mut(argument)) };
    usize::try_from(result).map_err(|_| TrackError::last(step))
}

/// An ioctl with a number.
pub(crate) fn ioctl_number(
    fd: BorrowedFd<'_>,
    request: u64,
    argument: u64,
    step: &'static str,
) -> Result<usize, TrackError> {
    // SAFETY: called with KVM_CHECK_EXTENSION and KVM_RESET_DIRTY_RINGS only, which take
    // numbers and touch no memory of this process.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) };
    usize::try_from(result).map_err(|_| TrackError::last(step))
}

/// Asks a VM for a capability's value; 0 if it has not got it.
pub(crate) fn capability(vm: BorrowedFd<'_>, cap: u32) -> usize {
    ioctl_number(vm, KVM_CHECK_EXTENSION, cap.into(), "KVM_CHECK_EXTENSION").unwrap_or(0)
}

pub(crate) fn enable_cap(
    vm: BorrowedFd<'_>,
    cap: u32,
    argument: u64,
    step: &'static str,
) -> Result<(), TrackError> {
    let mut cap = EnableCap { cap, flags: 0, args: [argument, 0, 0, 0], padding: [0; 64] };
    // SAFETY: KVM_ENABLE_CAP takes this structure; the capabilities enabled here take a
    // number and no address.
    unsafe { ioctl(vm.as_raw_fd(), KVM_ENABLE_CAP, &mut cap, step) }.map(drop)
}

/// Switches a slot's logging on or off.
///
/// # Safety
/// `slot` is as the VM has it already, and its mapping outlives the VM.
pub(crate) unsafe fn set_logging(
    vm: BorrowedFd<'_>,
    slot: &TrackedSlot,
    on: bool,
) -> Result<(), TrackError> {
    let mut region = MemoryRegion {
        slot: slot.id,
        flags: match on {
            true => slot.flags | KVM_MEM_LOG_DIRTY_PAGES,
            false => slot.flags & !KVM_MEM_LOG_DIRTY_PAGES,
        },
        guest_phys_addr: slot.gpa,
        memory_size: slot.bytes as u64,
        userspace_addr: slot.host.addr() as u64,
    };
    let step = "KVM_SET_USER_MEMORY_REGION";
    // SAFETY: KVM_SET_USER_MEMORY_REGION takes this structure; the rest is the caller's
    // promise.
    unsafe { ioctl(vm.as_raw_fd(), KVM_SET_USER_MEMORY_REGION, &mut region, step) }.map(drop)
}

/// Reads a slot's dirty bitmap, which KVM clears unless the VM protects by hand.
///
/// # Safety
/// `vm` is a KVM VM.
pub(crate) unsafe fn get_dirty_log(
    vm: BorrowedFd<'_>,
    slot: &TrackedSlot,
    words: &mut [u64],
) -> Result<(), TrackError> {
    assert_eq!(words.len(), slot.pages().div_ceil(64), "a bit for each page");
    let bitmap = words.as_mut_ptr().expose_provenance() as u64;
    let mut log = DirtyLog { slot: slot.id, padding: 0, bitmap };
    let step = "KVM_GET_DIRTY_LOG";
    // SAFETY: the request takes this structure, and writes a bit for each of the slot's pages
    // (the host's), in whole u64s, to `bitmap`, which is large enough.
    unsafe { ioctl(vm.as_raw_fd(), KVM_GET_DIRTY_LOG, &mut log, step) }.map(drop)
}

/// No signal comes to this thread while it lives.
pub(crate) struct Unsignalled(libc::sigset_t);

impl Unsignalled {
    pub(crate) fn new() -> Self {
        // SAFETY: signal sets are plain data, made and written by these calls.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Self(before)
        }
    }
}

impl Drop for Unsignalled {
    fn drop(&mut self) {
        // SAFETY: the set that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
