//! What is asked of real devices.

use super::sysfs::Address;
use crate::load::Load;
use serde::{Deserialize, Serialize};

vmeter_base::words! {
    /// How vectors of real devices are enabled; the slowest first.
    pub enum VfioStrategy {
        /// `VFIO_DEVICE_SET_IRQS` for 1, 2, … vectors, off in between. No VM.
        Growing = "growing",
        /// One vector added at a time, the others staying enabled (Linux 6.4 and later). No VM.
        Adding = "adding",
        /// All of a device at once. No VM.
        AtOnce = "at_once",
        /// The whole enable as VMMs did it: growing, and for each vector a commit and an irqfd.
        VmPerVector = "vm_per_vector",
        /// The whole enable as QEMU does it now: at once, one commit a device, then irqfds.
        VmPerDevice = "vm_per_device",
        /// The whole enable of all devices: at once each, and one commit for all.
        VmPerVm = "vm_per_vm",
    }
}

impl VfioStrategy {
    /// What it is compared with: the slowest way to the same end.
    pub(crate) fn slowest(self) -> Self {
        if self.needs_vm() {
            Self::VmPerVector
        } else {
            Self::Growing
        }
    }

    pub(super) fn needs_vm(self) -> bool {
        matches!(self, Self::VmPerVector | Self::VmPerDevice | Self::VmPerVm)
    }
}

/// The experiment with real devices. Names on disk are the options'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VfioOptions {
    /// The devices.
    #[serde(rename = "vfio")]
    pub devices: Vec<Address>,
    /// Vectors of each to enable; all that the smallest has, if absent.
    pub vectors: Option<usize>,
    /// vCPUs of the VM.
    pub vcpus: usize,
    /// Threads that keep CPUs busy.
    pub busy_cpus: usize,
    /// vCPUs that run.
    pub running_vcpus: usize,
    /// Strategies; what this host can do, if empty.
    #[serde(rename = "strategy")]
    pub strategies: Vec<VfioStrategy>,
    /// Measured runs.
    pub runs: usize,
    /// Runs before them.
    pub warmup: usize,
}

impl VfioOptions {
    pub(crate) fn load(&self) -> Load {
        let VfioOptions { vcpus, busy_cpus, running_vcpus, .. } = *self;
        Load { vcpus, busy_cpus, running_vcpus }
    }
}
