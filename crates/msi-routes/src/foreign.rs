// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The kernel's and other crates' types behind our own: a new 0.x of theirs is no break of ours.
//! The feature `kvm-ioctls` leads to them and back.

use kvm_bindings::{kvm_irq_routing_entry, KvmIrqRouting};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use vmm_sys_util::eventfd;

/// What a system call failed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// By its number, as `libc::EINVAL`.
    pub fn new(errno: i32) -> Self {
        Self(errno)
    }

    /// That of this thread's last system call.
    pub fn last() -> Self {
        Self::from(io::Error::last_os_error())
    }

    /// Its number.
    pub fn errno(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<io::Error> for Errno {
    /// `EIO` for one that no system call made.
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

/// An eventfd(2).
#[derive(Debug)]
pub struct EventFd(eventfd::EventFd);

impl EventFd {
    /// Empty; `flags` as `libc::EFD_NONBLOCK`.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new(flags: i32) -> io::Result<Self> {
        eventfd::EventFd::new(flags).map(Self)
    }

    /// Adds to its count.
    ///
    /// # Errors
    /// `EAGAIN` at the end of the count.
    pub fn write(&self, count: u64) -> io::Result<()> {
        self.0.write(count)
    }

    /// Takes its count.
    ///
    /// # Errors
    /// `EAGAIN` if that is 0.
    pub fn read(&self) -> io::Result<u64> {
        self.0.read()
    }

    /// Another descriptor of the same eventfd.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl From<OwnedFd> for EventFd {
    fn from(fd: OwnedFd) -> Self {
        // SAFETY: it is ours now, and nobody else's.
        Self(unsafe { eventfd::EventFd::from_raw_fd(fd.into_raw_fd()) })
    }
}

impl From<EventFd> for OwnedFd {
    fn from(eventfd: EventFd) -> Self {
        // SAFETY: as above.
        unsafe { Self::from_raw_fd(eventfd.0.into_raw_fd()) }
    }
}

/// A table as `KVM_SET_GSI_ROUTING` takes it.
pub struct Routing(pub(crate) KvmIrqRouting);

impl Routing {
    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// It has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `struct kvm_irq_routing` (linux/kvm.h) that the ioctl wants, valid as long as this.
    pub fn as_ptr(&self) -> *const std::ffi::c_void {
        self.0.as_fam_struct_ptr().cast()
    }

    pub(crate) fn entries(&self) -> &[kvm_irq_routing_entry] {
        self.0.as_slice()
    }
}

impl fmt::Debug for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Routing({} entries)", self.len())
    }
}

#[cfg(feature = "kvm-ioctls")]
mod kvm_ioctls {
    use super::{eventfd, Errno, EventFd, KvmIrqRouting, Routing};

    impl From<kvm_ioctls::Error> for Errno {
        fn from(error: kvm_ioctls::Error) -> Self {
            Self(error.errno())
        }
    }

    impl From<eventfd::EventFd> for EventFd {
        fn from(eventfd: eventfd::EventFd) -> Self {
            Self(eventfd)
        }
    }

    impl From<EventFd> for eventfd::EventFd {
        fn from(eventfd: EventFd) -> Self {
            eventfd.0
        }
    }

    impl AsRef<eventfd::EventFd> for EventFd {
        fn as_ref(&self) -> &eventfd::EventFd {
            &self.0
        }
    }

    impl AsRef<KvmIrqRouting> for Routing {
        fn as_ref(&self) -> &KvmIrqRouting {
            &self.0
        }
    }
}
