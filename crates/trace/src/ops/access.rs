//! What a guest asks for, of KVM, of Xen or of a device model.

use super::names::NameId;

/// What a guest asks for by leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// A port.
    Port {
        /// Which.
        port: u32,
        /// True for a write.
        write: bool,
    },
    /// A guest-physical address outside of RAM.
    Mmio {
        /// Which.
        address: u64,
        /// True for a write.
        write: bool,
    },
    /// A model-specific register.
    Msr {
        /// Which.
        index: u32,
        /// True for a write.
        write: bool,
    },
    /// A call of the hypervisor.
    Hypercall {
        /// Which.
        name: NameId,
    },
}

impl Access {
    /// True for what KVM knows the value of only after user space gave it.
    pub fn is_read(self) -> bool {
        match self {
            Access::Port { write, .. } | Access::Mmio { write, .. } | Access::Msr { write, .. } => {
                !write
            }
            Access::Hypercall { .. } => false,
        }
    }
}
