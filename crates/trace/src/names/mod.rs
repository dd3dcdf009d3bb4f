//! Names of what a trace gives only numbers for.

mod exits;
mod ioctls;
mod mtree;
mod ports;
mod syscalls;

pub use exits::{svm_exception, svm_exit, vmx_exit, xen_hypercall};
pub use ioctls::{ioctl, KVM_RUN};
pub use mtree::DeviceMap;
pub use ports::port;
pub use syscalls::syscall;
