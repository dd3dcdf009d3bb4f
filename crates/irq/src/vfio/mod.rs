//! Real devices: what enabling their MSI-X vectors costs in VFIO, and with irqfds in a VM.
//!
//! VFIO learns of vectors by `VFIO_DEVICE_SET_IRQS`. All at once it is one pass over the
//! device. Growing one by one, as a VMM does that enables a vector whenever the guest
//! unmasks one, every step switches MSI-X off and on again with one vector more, as kernels
//! before 6.4 need it (`VFIO_IRQ_INFO_NORESIZE`): quadratic as well, and long, because each
//! pass allocates host interrupts and programs the IOMMU's remapping table.
//!
//! Newer kernels add a vector to those enabled; where a device can, that is a row too.

mod device;
mod error;
mod lab;
mod options;
mod sys;
mod sysfs;

pub use error::VfioError;
pub(crate) use lab::Lab;
pub use options::{VfioOptions, VfioStrategy};
pub use sysfs::Address;
