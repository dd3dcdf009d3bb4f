//! The few VFIO ioctls that are needed, with their structures, from the kernel's
//! include/uapi/linux/vfio.h.

use libc::{c_int, c_ulong};
use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const fn io(nr: c_ulong) -> c_ulong {
    // _IO(VFIO_TYPE, VFIO_BASE + nr)
    0x3b << 8 | (100 + nr)
}

const GET_API_VERSION: c_ulong = io(0);
const CHECK_EXTENSION: c_ulong = io(1);
const SET_IOMMU: c_ulong = io(2);
const GROUP_GET_STATUS: c_ulong = io(3);
const GROUP_SET_CONTAINER: c_ulong = io(4);
const GROUP_GET_DEVICE_FD: c_ulong = io(6);
const DEVICE_GET_IRQ_INFO: c_ulong = io(9);
const DEVICE_SET_IRQS: c_ulong = io(10);

/// `VFIO_API_VERSION`.
pub(super) const API_VERSION: c_int = 0;
/// `VFIO_TYPE1v2_IOMMU`, `VFIO_TYPE1_IOMMU`, `VFIO_NOIOMMU_IOMMU`, in order of preference.
pub(super) const IOMMU_TYPES: [c_int; 3] = [3, 1, 8];
/// All devices of the group are bound to VFIO.
const GROUP_VIABLE: u32 = 1;
const MSIX_INDEX: u32 = 2;
/// `VFIO_IRQ_INFO_NORESIZE`: vectors can't be added while others are enabled.
const IRQ_NORESIZE: u32 = 1 << 3;
const DATA_NONE: u32 = 1;
const DATA_EVENTFD: u32 = 1 << 2;
const ACTION_TRIGGER: u32 = 1 << 5;

#[repr(C)]
struct GroupStatus {
    argsz: u32,
    flags: u32,
}

#[repr(C)]
struct IrqInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    count: u32,
}

/// `struct vfio_irq_set` before its data: argsz, flags, index, start, count.
const IRQ_SET_WORDS: usize = 5;

/// A device's MSI-X interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Msix {
    /// Vectors.
    pub(super) count: usize,
    /// Vectors may be added to those that are enabled (Linux 6.4 and later).
    pub(super) grows: bool,
}

fn result(value: c_int) -> io::Result<c_int> {
    match value {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// An ioctl whose argument is a number, or none.
fn number(fd: BorrowedFd<'_>, request: c_ulong, argument: c_ulong) -> io::Result<c_int> {
    // SAFETY: the requests passed here take a plain number.
    result(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) })
}

pub(super) fn api_version(container: BorrowedFd<'_>) -> io::Result<c_int> {
    number(container, GET_API_VERSION, 0)
}

pub(super) fn has_extension(container: BorrowedFd<'_>, kind: c_int) -> bool {
    number(container, CHECK_EXTENSION, kind as c_ulong).is_ok_and(|answer| answer > 0)
}

pub(super) fn set_iommu(container: BorrowedFd<'_>, kind: c_int) -> io::Result<()> {
    number(container, SET_IOMMU, kind as c_ulong).map(drop)
}

pub(super) fn is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = GroupStatus { argsz: size_of::<GroupStatus>() as u32, flags: 0 };
    // SAFETY: the structure is as long as argsz says and lives across the call.
    result(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_STATUS, &mut status) })?;
    Ok(status.flags & GROUP_VIABLE != 0)
}

pub(super) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let fd: c_int = container.as_raw_fd();
    // SAFETY: the request reads one int through the pointer.
    result(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &fd) }).map(drop)
}

pub(super) fn device(group: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the request reads a string that ends in NUL.
    let fd = result(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) })?;
    // SAFETY: the kernel has just made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn msix(device: BorrowedFd<'_>) -> io::Result<Msix> {
    let argsz = size_of::<IrqInfo>() as u32;
    let mut info = IrqInfo { argsz, flags: 0, index: MSIX_INDEX, count: 0 };
    // SAFETY: the structure is as long as argsz says and lives across the call.
    result(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_GET_IRQ_INFO, &mut info) })?;
    Ok(Msix { count: info.count as usize, grows: info.flags & IRQ_NORESIZE == 0 })
}

/// `VFIO_DEVICE_SET_IRQS` with a whole `struct vfio_irq_set`.
fn set_irqs(
    device: BorrowedFd<'_>,
    flags: u32,
    vectors: Range<usize>,
    fds: &[c_int],
) -> io::Result<()> {
    let argsz = (IRQ_SET_WORDS + fds.len()) * size_of::<u32>();
    let head = [argsz, flags as usize, MSIX_INDEX as usize, vectors.start, vectors.len()];
    let words = head.into_iter().map(|word| word as u32);
    let set: Vec<u32> = words.chain(fds.iter().map(|fd| *fd as u32)).collect();
    // SAFETY: the words are a vfio_irq_set, argsz is its length, and its data are as many
    // descriptors as `count` says, or none with DATA_NONE.
    result(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_SET_IRQS, set.as_ptr()) }).map(drop)
}

/// Vectors from `start` on write to these eventfds.
pub(super) fn enable(device: BorrowedFd<'_>, start: usize, fds: &[c_int]) -> io::Result<()> {
    set_irqs(device, DATA_EVENTFD | ACTION_TRIGGER, start..start + fds.len(), fds)
}

/// Switches MSI-X off.
pub(super) fn disable(device: BorrowedFd<'_>) -> io::Result<()> {
    set_irqs(device, DATA_NONE | ACTION_TRIGGER, 0..0, &[])
}

/// Raises one vector, as the device would (the header's "loopback").
pub(super) fn raise(device: BorrowedFd<'_>, vector: usize) -> io::Result<()> {
    set_irqs(device, DATA_NONE | ACTION_TRIGGER, vector..vector + 1, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn numbers_are_the_headers() {
        assert_eq!((GET_API_VERSION, SET_IOMMU, DEVICE_SET_IRQS), (0x3b64, 0x3b66, 0x3b6e));
        assert_eq!((size_of::<GroupStatus>(), size_of::<IrqInfo>()), (8, 16));
    }

    #[test]
    fn a_file_that_is_no_device_says_so() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let refused =
            |result: io::Result<()>| result.is_err_and(|e| e.raw_os_error() == Some(libc::ENOTTY));
        assert!(refused(enable(null.as_fd(), 0, &[3, 4])));
        assert!(refused(disable(null.as_fd())));
        assert!(refused(msix(null.as_fd()).map(drop)));
    }
}
