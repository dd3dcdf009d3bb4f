//! What is compared: strategies of routes alone, and of real devices, by the names that options,
//! sessions and exports have.

use crate::vfio::VfioStrategy;
use msi_routes::Strategy;

vmeter_base::words! {
    /// A way to set up vectors.
    pub enum IrqStrategy {
        /// [`Strategy::PerVector`].
        PerVector = "per_vector",
        /// [`Strategy::PerDevice`].
        PerDevice = "per_device",
        /// [`Strategy::PerVm`].
        PerVm = "per_vm",
        /// [`Strategy::Reserved`].
        Reserved = "reserved",
        /// [`Strategy::ReservedPerVm`].
        ReservedPerVm = "reserved_per_vm",
        /// [`VfioStrategy::Growing`].
        Growing = "growing",
        /// [`VfioStrategy::Adding`].
        Adding = "adding",
        /// [`VfioStrategy::AtOnce`].
        AtOnce = "at_once",
        /// [`VfioStrategy::VmPerVector`].
        VmPerVector = "vm_per_vector",
        /// [`VfioStrategy::VmPerDevice`].
        VmPerDevice = "vm_per_device",
        /// [`VfioStrategy::VmPerVm`].
        VmPerVm = "vm_per_vm",
    }
}

impl From<Strategy> for IrqStrategy {
    fn from(strategy: Strategy) -> Self {
        match strategy {
            Strategy::PerVector => Self::PerVector,
            Strategy::PerDevice => Self::PerDevice,
            Strategy::PerVm => Self::PerVm,
            Strategy::Reserved => Self::Reserved,
            Strategy::ReservedPerVm => Self::ReservedPerVm,
        }
    }
}

impl From<VfioStrategy> for IrqStrategy {
    fn from(strategy: VfioStrategy) -> Self {
        match strategy {
            VfioStrategy::Growing => Self::Growing,
            VfioStrategy::Adding => Self::Adding,
            VfioStrategy::AtOnce => Self::AtOnce,
            VfioStrategy::VmPerVector => Self::VmPerVector,
            VfioStrategy::VmPerDevice => Self::VmPerDevice,
            VfioStrategy::VmPerVm => Self::VmPerVm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_the_name_that_is_typed() {
        for strategy in Strategy::ALL {
            assert_eq!(IrqStrategy::from(strategy).word(), strategy.name());
        }
        for strategy in VfioStrategy::ALL {
            assert_eq!(IrqStrategy::from(*strategy).word(), strategy.word());
        }
    }
}
