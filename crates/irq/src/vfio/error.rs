//! What is in the way of using a device, with the commands that mend it.

use std::io;
use std::path::PathBuf;

/// A device can't be measured.
#[derive(Debug, thiserror::Error)]
pub enum VfioError {
    /// Not a PCI address.
    #[error("{0:?} is no PCI address: expected DOMAIN:BUS:DEVICE.FUNCTION, e.g. 0000:01:00.1")]
    Address(String),
    /// The same device twice.
    #[error("{0} is named twice: name each device once")]
    Twice(String),
    /// No such device.
    #[error("there is no PCI device {address}: `lspci -D` lists the host's PCI devices{hint}")]
    NoDevice {
        /// Its address.
        address: String,
        /// What would make it appear, if that is known.
        hint: String,
    },
    /// The IOMMU does not know it.
    #[error(
        "{address} is not in an IOMMU group, but VFIO requires one. Enable VT-d or AMD-Vi in \
         the firmware, and on Intel boot this host with intel_iommu=on. If this host is a VM, \
         it needs a virtual IOMMU (QEMU: -device intel-iommu,intremap=on, with -machine \
         q35,kernel-irqchip=split)"
    )]
    NoGroup {
        /// Its address.
        address: String,
    },
    /// Another driver has it.
    #[error("{address} is bound to {}, not to vfio-pci: bind it with `{commands}`", driver.as_deref().unwrap_or("no driver"))]
    NotBound {
        /// Its address.
        address: String,
        /// The driver that has it.
        driver: Option<String>,
        /// The commands.
        commands: String,
    },
    /// Others of its group are not VFIO's.
    #[error(
        "cannot use IOMMU group {group} of {address}, because other drivers than vfio-pci have \
            these devices of the group: {}. Bind these devices to vfio-pci with `{commands}`",
        others.join(", ")
    )]
    NotViable {
        /// The group.
        group: u32,
        /// A device of it.
        address: String,
        /// Devices with other drivers.
        others: Vec<String>,
        /// The commands.
        commands: String,
    },
    /// No node to open.
    #[error("{path} does not exist: load the driver with `sudo modprobe vfio-pci`")]
    NoNode {
        /// The node.
        path: PathBuf,
    },
    /// This user may not open it.
    #[error(
        "no permission to open {path}: make this user its owner with `sudo chown $USER {path}`, \
            or run vmeter as root. A user also needs an `ulimit -l` large enough to lock the \
            guest's memory"
    )]
    NoPermission {
        /// The node.
        path: PathBuf,
    },
    /// Somebody else has it open.
    #[error(
        "{path} is in use: another process has opened the IOMMU group; `sudo fuser -v {path}` \
        shows that process"
    )]
    InUse {
        /// The node.
        path: PathBuf,
    },
    /// The kernel's VFIO is not the one known here.
    #[error("/dev/vfio/vfio speaks VFIO API version {0}, expected 0")]
    ApiVersion(i32),
    /// No IOMMU driver.
    #[error("VFIO has no IOMMU driver here: `sudo modprobe vfio_iommu_type1`")]
    NoIommu,
    /// Interrupts could be forged.
    #[error(
        "VFIO refuses the IOMMU ({0}): without interrupt remapping, a device could raise any \
            interrupt. Enable interrupt remapping in the firmware (QEMU: \
            intel-iommu,intremap=on), or accept the risk with `echo 1 | sudo tee /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts`"
    )]
    Unsafe(#[source] io::Error),
    /// Nothing to measure.
    #[error(
        "{address} has only {found} MSI-X vectors, but --vectors requests {wanted}: lower \
        --vectors"
    )]
    Vectors {
        /// Its address.
        address: String,
        /// Vectors it has.
        found: usize,
        /// Vectors asked for.
        wanted: usize,
    },
    /// An ioctl failed.
    #[error("{step} of {what} failed: {source}{}", hint(source))]
    Ioctl {
        /// The ioctl.
        step: &'static str,
        /// Device or group.
        what: String,
        /// Its errno.
        source: io::Error,
    },
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOSPC) => {
            "; this host has no free interrupt vectors: use fewer devices, or a host with more \
                CPUs"
        }
        Some(libc::EMFILE) => {
            "; each vector needs a file descriptor, and `ulimit -n` limits \
            their number"
        }
        _ => "",
    }
}

impl VfioError {
    pub(super) fn ioctl(step: &'static str, what: &str) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_owned();
        move |source| VfioError::Ioctl { step, what, source }
    }

    /// True if the question was wrong, not the host.
    pub fn is_usage(&self) -> bool {
        matches!(self, VfioError::Address(_) | VfioError::Twice(_) | VfioError::Vectors { .. })
    }
}
