//! Devices of the host, opened through VFIO: container, groups, devices.

use super::error::VfioError;
use super::sys::{self, Msix};
use super::sysfs::{Address, Sysfs};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// Devices with all that keeps them open. Dropping it gives them back.
#[derive(Debug)]
pub(super) struct Opened {
    // In the order in which they have to be closed.
    pub(super) devices: Vec<Device>,
    _groups: BTreeMap<u32, OwnedFd>,
    _container: OwnedFd,
}

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) address: Address,
    pub(super) msix: Msix,
    fd: OwnedFd,
}

fn open(path: &Path) -> Result<OwnedFd, VfioError> {
    let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|errno| refused(path, errno.into()))
}

fn refused(path: &Path, error: io::Error) -> VfioError {
    let path = path.to_owned();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV) => VfioError::NoNode { path },
        Some(libc::EACCES | libc::EPERM) => VfioError::NoPermission { path },
        Some(libc::EBUSY) => VfioError::InUse { path },
        _ => VfioError::Ioctl { step: "open", what: path.display().to_string(), source: error },
    }
}

impl Opened {
    /// Opens them, in the order given.
    ///
    /// # Errors
    /// Whatever is in the way, with what mends it.
    pub(super) fn new(addresses: &[Address]) -> Result<Self, VfioError> {
        let sysfs = Sysfs::default();
        let numbers = addresses.iter().map(|address| sysfs.group(address));
        let numbers = numbers.collect::<Result<Vec<u32>, _>>()?;
        let node = Path::new("/dev/vfio/vfio");
        let container = open(node)?;
        match sys::api_version(container.as_fd()) {
            Ok(sys::API_VERSION) => {}
            Ok(other) => return Err(VfioError::ApiVersion(other)),
            Err(error) => {
                return Err(VfioError::ioctl("VFIO_GET_API_VERSION", "/dev/vfio/vfio")(error))
            }
        }
        let mut groups = BTreeMap::new();
        for (address, number) in addresses.iter().zip(&numbers) {
            if !groups.contains_key(number) {
                groups.insert(*number, open_group(&sysfs, address, *number, container.as_fd())?);
            }
        }
        set_iommu(container.as_fd())?;
        let mut devices = Vec::new();
        for (address, number) in addresses.iter().zip(&numbers) {
            devices.push(Device::open(address, &groups[number])?);
        }
        Ok(Opened { devices, _groups: groups, _container: container })
    }
}

fn open_group(
    sysfs: &Sysfs,
    address: &Address,
    number: u32,
    container: BorrowedFd<'_>,
) -> Result<OwnedFd, VfioError> {
    let path = PathBuf::from(format!("/dev/vfio/{number}"));
    let group = open(&path)?;
    let name = format!("group {number}");
    let viable = sys::is_viable(group.as_fd());
    if !viable.map_err(VfioError::ioctl("VFIO_GROUP_GET_STATUS", &name))? {
        let (others, commands) = sysfs.obstacles(address);
        let address = address.to_string();
        return Err(VfioError::NotViable { group: number, address, others, commands });
    }
    sys::set_container(group.as_fd(), container)
        .map_err(VfioError::ioctl("VFIO_GROUP_SET_CONTAINER", &name))?;
    Ok(group)
}

fn set_iommu(container: BorrowedFd<'_>) -> Result<(), VfioError> {
    let kind = sys::IOMMU_TYPES.into_iter().find(|kind| sys::has_extension(container, *kind));
    let kind = kind.ok_or(VfioError::NoIommu)?;
    sys::set_iommu(container, kind).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => VfioError::Unsafe(error),
        _ => VfioError::ioctl("VFIO_SET_IOMMU", "/dev/vfio/vfio")(error),
    })
}

impl Device {
    fn open(address: &Address, group: &OwnedFd) -> Result<Self, VfioError> {
        let name = address.as_str();
        let c_name = CString::new(name).map_err(|_| VfioError::Address(name.into()))?;
        let fd = sys::device(group.as_fd(), &c_name)
            .map_err(VfioError::ioctl("VFIO_GROUP_GET_DEVICE_FD", name))?;
        let msix = sys::msix(fd.as_fd());
        let msix = msix.map_err(VfioError::ioctl("VFIO_DEVICE_GET_IRQ_INFO", name))?;
        Ok(Device { address: address.clone(), msix, fd })
    }

    /// Vectors from `start` on write to these eventfds; `VFIO_DEVICE_SET_IRQS`.
    pub(super) fn enable(&self, start: usize, eventfds: &[RawFd]) -> Result<(), VfioError> {
        let enabled = sys::enable(self.fd.as_fd(), start, eventfds);
        enabled.map_err(VfioError::ioctl("VFIO_DEVICE_SET_IRQS", self.address.as_str()))
    }

    /// Switches MSI-X off.
    pub(super) fn disable(&self) -> Result<(), VfioError> {
        let disabled = sys::disable(self.fd.as_fd());
        disabled.map_err(VfioError::ioctl("VFIO_DEVICE_SET_IRQS (off)", self.address.as_str()))
    }

    /// Raises a vector.
    pub(super) fn raise(&self, vector: usize) -> Result<(), VfioError> {
        let raised = sys::raise(self.fd.as_fd(), vector);
        raised.map_err(VfioError::ioctl("VFIO_DEVICE_SET_IRQS (trigger)", self.address.as_str()))
    }
}
