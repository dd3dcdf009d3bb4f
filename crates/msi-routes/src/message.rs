// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Routes as the kernel's entries.

use crate::foreign::Errno;
use crate::shared::Shared;
use kvm_bindings::{
    kvm_irq_routing_entry, kvm_irq_routing_hv_sint, kvm_irq_routing_irqchip, kvm_irq_routing_msi,
    kvm_irq_routing_msi__bindgen_ty_1, kvm_irq_routing_xen_evtchn, KVM_IRQ_ROUTING_HV_SINT,
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQ_ROUTING_XEN_EVTCHN, KVM_MSI_VALID_DEVID,
};

/// What a device writes to raise an interrupt (PCI Local Bus 3.0, 6.8; on x86 Intel SDM
/// vol. 3, 11.11).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MsiMessage {
    /// Where to: on x86 `0xfee…`, with the destination.
    pub address: u64,
    /// What: on x86 the vector and delivery mode.
    pub data: u32,
    /// The device's id (on PCI its requester id, as the ITS' `msi-map` has it), which an arm64
    /// GICv3 ITS wants beside the message. KVM gets it where it
    /// [takes one](crate::Kernel::takes_devid).
    pub devid: Option<u32>,
}

impl MsiMessage {
    /// The message to a local APIC: fixed delivery, edge, physical destination.
    pub fn x86(apic_id: u8, vector: u8) -> Self {
        Self {
            address: 0xfee0_0000 | u64::from(apic_id) << 12,
            data: u32::from(vector),
            devid: None,
        }
    }

    /// KVM may refuse it (Linux, arch/x86/kvm/irq.c, `kvm_msi_route_invalid`).
    pub(crate) fn is_suspect(&self) -> bool {
        cfg!(target_arch = "x86_64") && self.address >> 32 & 0xff != 0
    }

    /// What an entry of an MSI route says.
    fn of(entry: &kvm_irq_routing_entry) -> Self {
        // SAFETY: every variant of the union is plain data, so reading it as a message is
        // sound; only entries of MSI routes are asked about.
        let msi = unsafe { entry.u.msi };
        // SAFETY: both variants of this union are the same u32.
        let devid = unsafe { msi.__bindgen_anon_1.devid };
        let has_devid = entry.flags & KVM_MSI_VALID_DEVID != 0;
        Self {
            address: u64::from(msi.address_hi) << 32 | u64::from(msi.address_lo),
            data: msi.data,
            devid: has_devid.then_some(devid),
        }
    }

    /// True if an entry of an MSI route says the same.
    pub(crate) fn is_in(&self, entry: &kvm_irq_routing_entry) -> bool {
        Self::of(entry) == *self
    }

    /// As `KVM_SIGNAL_MSI` takes it.
    #[cfg(feature = "kvm-ioctls")]
    pub(crate) fn to_kvm(self) -> kvm_bindings::kvm_msi {
        kvm_bindings::kvm_msi {
            address_lo: self.address as u32,
            address_hi: (self.address >> 32) as u32,
            data: self.data,
            flags: if self.devid.is_some() { KVM_MSI_VALID_DEVID } else { 0 },
            devid: self.devid.unwrap_or(0),
            ..Default::default()
        }
    }

    pub(crate) fn entry(&self, gsi: u32) -> kvm_irq_routing_entry {
        let mut entry = kvm_irq_routing_entry {
            gsi,
            type_: KVM_IRQ_ROUTING_MSI,
            flags: if self.devid.is_some() { KVM_MSI_VALID_DEVID } else { 0 },
            ..Default::default()
        };
        entry.u.msi = kvm_irq_routing_msi {
            address_lo: self.address as u32,
            address_hi: (self.address >> 32) as u32,
            data: self.data,
            __bindgen_anon_1: kvm_irq_routing_msi__bindgen_ty_1 { devid: self.devid.unwrap_or(0) },
        };
        entry
    }
}

/// A route with a GSI of the VMM's choice: an irqchip pin, a Xen event channel, a Hyper-V
/// SynIC line. MSI routes of the library never touch these.
#[derive(Clone, Copy)]
pub struct FixedRoute {
    entry: kvm_irq_routing_entry,
    /// It is a message that the kernel's side is to translate.
    translate: bool,
}

impl FixedRoute {
    /// A pin of an in-kernel irqchip (`KVM_IRQCHIP_*`).
    pub fn irqchip(gsi: u32, irqchip: u32, pin: u32) -> Self {
        let mut entry =
            kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_IRQCHIP, ..Default::default() };
        entry.u.irqchip = kvm_irq_routing_irqchip { irqchip, pin };
        Self::as_is(entry)
    }

    /// A Xen event channel; `priority` is `KVM_IRQ_ROUTING_XEN_EVTCHN_PRIO_2LEVEL`.
    pub fn xen_evtchn(gsi: u32, port: u32, vcpu: u32, priority: u32) -> Self {
        let mut entry =
            kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_XEN_EVTCHN, ..Default::default() };
        entry.u.xen_evtchn = kvm_irq_routing_xen_evtchn { port, vcpu, priority };
        Self::as_is(entry)
    }

    /// A synthetic interrupt source of a vCPU's Hyper-V SynIC.
    pub fn hv_sint(gsi: u32, vcpu: u32, sint: u32) -> Self {
        let mut entry =
            kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_HV_SINT, ..Default::default() };
        entry.u.hv_sint = kvm_irq_routing_hv_sint { vcpu, sint };
        Self::as_is(entry)
    }

    /// A message on a GSI of the VMM's choice: a pin of an IO-APIC in user space (a split
    /// irqchip), whose redirection entry says where to. Change it by
    /// [`Batch::set_fixed`](crate::Batch::set_fixed). A commit has it
    /// [translated](crate::Kernel::translate) as any message; [`Router::new`](crate::Router::new)
    /// has not, which is told what the kernel has.
    pub fn msi(gsi: u32, message: MsiMessage) -> Self {
        Self { entry: message.entry(gsi), translate: true }
    }

    /// Any entry as it is, for kinds that have no constructor here. A message among them is
    /// not translated.
    #[cfg(feature = "kvm-ioctls")]
    pub fn raw(entry: kvm_irq_routing_entry) -> Self {
        Self::as_is(entry)
    }

    fn as_is(entry: kvm_irq_routing_entry) -> Self {
        Self { entry, translate: false }
    }

    /// Its GSI.
    pub fn gsi(&self) -> u32 {
        self.entry.gsi
    }

    /// Its message, if it is one.
    pub fn message(&self) -> Option<MsiMessage> {
        (self.entry.type_ == KVM_IRQ_ROUTING_MSI).then(|| MsiMessage::of(&self.entry))
    }

    /// As the kernel takes it.
    pub(crate) fn entry(&self) -> &kvm_irq_routing_entry {
        &self.entry
    }

    /// As the table gets it.
    pub(crate) fn translated(&self, shared: &Shared) -> Result<Self, Errno> {
        match self.message().filter(|_| self.translate) {
            Some(message) => Ok(Self::as_is(shared.translate(message)?.entry(self.gsi()))),
            None => Ok(*self),
        }
    }

    /// The irqchip, if it is a pin of one: only such routes may share a GSI.
    pub(crate) fn chip(&self) -> Option<u32> {
        // SAFETY: all members of the union are plain data, and it was made from zeroes.
        let chip = unsafe { self.entry.u.irqchip.irqchip };
        (self.entry.type_ == KVM_IRQ_ROUTING_IRQCHIP).then_some(chip)
    }

    /// What a KVM with a virtual GIC routes by itself: each of `spis` shared peripheral
    /// interrupts, GSI n to pin n (Linux, arch/arm64/kvm/vgic/vgic-irqfd.c,
    /// `kvm_vgic_setup_default_irq_routing`). The first table that is committed replaces
    /// these, so a VM that uses irqfds for SPIs lists them.
    pub fn gic_defaults(spis: u32) -> Vec<Self> {
        (0..spis).map(|n| Self::irqchip(n, 0, n)).collect()
    }

    /// What `KVM_CREATE_IRQCHIP` puts into the table on x86 (nothing with a split irqchip, for
    /// which the table is empty at first): both PICs on GSIs 0 to 15, the
    /// IO-APIC on 0 to 23 (Linux, arch/x86/kvm/irq.c).
    #[cfg(target_arch = "x86_64")]
    pub fn pc_defaults() -> Vec<Self> {
        use kvm_bindings::{KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE};
        let io_apic = (0..24).map(|pin| Self::irqchip(pin, KVM_IRQCHIP_IOAPIC, pin));
        let pics = (0..16).map(|gsi| {
            let chip = if gsi < 8 { KVM_IRQCHIP_PIC_MASTER } else { KVM_IRQCHIP_PIC_SLAVE };
            Self::irqchip(gsi, chip, gsi % 8)
        });
        io_apic.chain(pics).collect()
    }
}

impl std::fmt::Debug for FixedRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FixedRoute(GSI {}, type {})", self.entry.gsi, self.entry.type_)
    }
}
