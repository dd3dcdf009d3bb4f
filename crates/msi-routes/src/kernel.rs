// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The three ioctls, behind a trait so that tests can make any of them fail.

use crate::foreign::{Errno, EventFd, Routing};
use crate::message::MsiMessage;
use std::sync::Arc;

/// What a [`Router`](crate::Router) needs of a VM. A method may panic: the library does not know
/// then whether it did its work, and puts it right with the next commit. Implemented for kvm-ioctls' `VmFd` with the
/// feature `kvm-ioctls`, so any rust-vmm VMM has one.
pub trait Kernel: Send + Sync {
    /// How many routes the table may hold, and how many GSIs there are
    /// (`KVM_CHECK_EXTENSION(KVM_CAP_IRQ_ROUTING)`).
    fn route_limit(&self) -> usize;

    /// Replaces the whole table (`KVM_SET_GSI_ROUTING`).
    ///
    /// # Errors
    /// What the kernel says; its table is then as it was.
    fn set_routing(&self, routes: &Routing) -> Result<(), Errno>;

    /// From now on a write to the eventfd injects the GSI (`KVM_IRQFD`). A count that the
    /// eventfd has already is injected at once.
    ///
    /// # Errors
    /// What the kernel says; `EBUSY` if the eventfd is attached already.
    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno>;

    /// Undoes [`Self::attach`]; when it returns, nothing written before is under way any
    /// more, and what is written from now on stays in the eventfd. One that is not attached is no
    /// error, as in KVM: after a panic it is detached again.
    ///
    /// # Errors
    /// What the kernel says.
    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno>;

    /// What goes into the table for a message that a device sends: an IOMMU's remapping, a
    /// destination id's upper bits in `address_hi` (KVM_X2APIC_API_USE_32BIT_IDS), a device
    /// id from the PCI segment. Asked at each commit that has the message, also that of a
    /// [`FixedRoute::msi`](crate::FixedRoute::msi), under the table's lock; to have routes
    /// translated anew, stage their messages again.
    ///
    /// # Errors
    /// It can't be: that vector, or fixed route, fails alone.
    fn translate(&self, message: MsiMessage) -> Result<MsiMessage, Errno> {
        Ok(message)
    }

    /// Does it take a device's id with a message (`KVM_CAP_MSI_DEVID`)? An arm64 VM with a GICv3
    /// ITS does, and drops interrupts without one. If not, [`MsiMessage::devid`] is left out of
    /// what it gets: older kernels refuse `KVM_MSI_VALID_DEVID`. Asked about messages that have an id,
    /// until it says yes.
    fn takes_devid(&self) -> bool {
        true
    }

    /// As [`Self::attach`], for a level-triggered pin: at the guest's end of interrupt the
    /// line falls and `resample` is written (`KVM_IRQFD_FLAG_RESAMPLE`).
    ///
    /// # Errors
    /// What the kernel says; `EOPNOTSUPP` where it is not implemented.
    fn attach_resampled(
        &self,
        _eventfd: &EventFd,
        _resample: &EventFd,
        _gsi: u32,
    ) -> Result<(), Errno> {
        Err(Errno::new(libc::EOPNOTSUPP))
    }

    /// Can it inject a message without a route ([`Self::signal`])?
    fn signals(&self) -> bool {
        false
    }

    /// Injects a message without a route (`KVM_SIGNAL_MSI`).
    ///
    /// # Errors
    /// What the kernel says; `EOPNOTSUPP` where it is not implemented.
    fn signal(&self, _message: MsiMessage) -> Result<(), Errno> {
        Err(Errno::new(libc::EOPNOTSUPP))
    }

    /// A new, non-blocking eventfd.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    fn eventfd(&self) -> Result<EventFd, Errno> {
        EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).map_err(Errno::from)
    }
}

#[cfg(feature = "kvm-ioctls")]
mod vm_fd {
    use super::{Errno, EventFd, Kernel, MsiMessage, Routing};
    use kvm_bindings::KVM_MAX_IRQ_ROUTES;
    use kvm_ioctls::{Cap, VmFd};

    impl Kernel for VmFd {
        fn route_limit(&self) -> usize {
            let limit = usize::try_from(self.check_extension_int(Cap::IrqRouting)).unwrap_or(0);
            limit.min(KVM_MAX_IRQ_ROUTES)
        }

        fn set_routing(&self, routes: &Routing) -> Result<(), Errno> {
            Ok(self.set_gsi_routing(routes.as_ref())?)
        }

        fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
            Ok(self.register_irqfd(eventfd.as_ref(), gsi)?)
        }

        fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
            Ok(self.unregister_irqfd(eventfd.as_ref(), gsi)?)
        }

        fn attach_resampled(
            &self,
            eventfd: &EventFd,
            resample: &EventFd,
            gsi: u32,
        ) -> Result<(), Errno> {
            let (eventfd, resample) = (eventfd.as_ref(), resample.as_ref());
            Ok(self.register_irqfd_with_resample(eventfd, resample, gsi)?)
        }

        fn takes_devid(&self) -> bool {
            self.check_extension(Cap::MsiDevid)
        }

        fn signals(&self) -> bool {
            self.check_extension(Cap::SignalMsi)
        }

        fn signal(&self, message: MsiMessage) -> Result<(), Errno> {
            // 0 is a guest that has the interrupt blocked: it gets none from hardware either.
            self.signal_msi(message.to_kvm())?;
            Ok(())
        }
    }
}

impl<K: Kernel + ?Sized> Kernel for Arc<K> {
    fn route_limit(&self) -> usize {
        (**self).route_limit()
    }

    fn set_routing(&self, routes: &Routing) -> Result<(), Errno> {
        (**self).set_routing(routes)
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        (**self).attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        (**self).detach(eventfd, gsi)
    }

    fn translate(&self, message: MsiMessage) -> Result<MsiMessage, Errno> {
        (**self).translate(message)
    }

    fn takes_devid(&self) -> bool {
        (**self).takes_devid()
    }

    fn attach_resampled(
        &self,
        eventfd: &EventFd,
        resample: &EventFd,
        gsi: u32,
    ) -> Result<(), Errno> {
        (**self).attach_resampled(eventfd, resample, gsi)
    }

    fn signals(&self) -> bool {
        (**self).signals()
    }

    fn signal(&self, message: MsiMessage) -> Result<(), Errno> {
        (**self).signal(message)
    }

    fn eventfd(&self) -> Result<EventFd, Errno> {
        (**self).eventfd()
    }
}
