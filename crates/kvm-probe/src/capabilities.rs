//! What this KVM can do, of what the experiments use.

use kvm_bindings as b;
use std::ffi::c_ulong;

/// One capability and what `KVM_CHECK_EXTENSION` says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Capability {
    /// The kernel's name for it without `KVM_CAP_`, in lower case.
    pub name: String,
    /// 0: absent. Else 1, or the limit or set of flags that the capability reports.
    pub value: i32,
}

/// Names as in Documentation/virt/kvm/api.rst.
const LISTED: &[(&str, u32)] = &[
    ("irqchip", b::KVM_CAP_IRQCHIP),
    ("split_irqchip", b::KVM_CAP_SPLIT_IRQCHIP),
    ("irqfd", b::KVM_CAP_IRQFD),
    ("irqfd_resample", b::KVM_CAP_IRQFD_RESAMPLE),
    ("ioeventfd", b::KVM_CAP_IOEVENTFD),
    // Its value is the most GSI routes that a VM may have.
    ("irq_routing", b::KVM_CAP_IRQ_ROUTING),
    ("signal_msi", b::KVM_CAP_SIGNAL_MSI),
    // Flags: 1 manual protect, 2 bits initially set.
    ("manual_dirty_log_protect2", b::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2),
    // Its value is the largest ring in bytes.
    ("dirty_log_ring", b::KVM_CAP_DIRTY_LOG_RING),
    ("dirty_log_ring_acq_rel", b::KVM_CAP_DIRTY_LOG_RING_ACQ_REL),
    ("nr_memslots", b::KVM_CAP_NR_MEMSLOTS),
    ("max_vcpus", b::KVM_CAP_MAX_VCPUS),
    ("nr_vcpus", b::KVM_CAP_NR_VCPUS),
    ("sync_mmu", b::KVM_CAP_SYNC_MMU),
    ("readonly_mem", b::KVM_CAP_READONLY_MEM),
    ("coalesced_mmio", b::KVM_CAP_COALESCED_MMIO),
    ("coalesced_pio", b::KVM_CAP_COALESCED_PIO),
    ("immediate_exit", b::KVM_CAP_IMMEDIATE_EXIT),
    ("binary_stats_fd", b::KVM_CAP_BINARY_STATS_FD),
    ("nested_state", b::KVM_CAP_NESTED_STATE),
    ("pmu_capability", b::KVM_CAP_PMU_CAPABILITY),
    ("tsc_control", b::KVM_CAP_TSC_CONTROL),
    ("get_tsc_khz", b::KVM_CAP_GET_TSC_KHZ),
    ("guest_memfd", b::KVM_CAP_GUEST_MEMFD),
];

/// Asks `check` (the system's or a VM's `KVM_CHECK_EXTENSION`) for every listed one.
pub(crate) fn list(check: impl Fn(c_ulong) -> i32) -> Vec<Capability> {
    LISTED
        .iter()
        .map(|&(name, number)| Capability {
            name: name.to_owned(),
            value: check(c_ulong::from(number)).max(0),
        })
        .collect()
}

/// Which module drives the node: `kvm_intel`, `kvm_amd`, `kvm_pvm`, …
///
/// Built-in modules with parameters are listed in /sys/module too.
pub(crate) fn module() -> Option<String> {
    let mut names: Vec<String> = std::fs::read_dir("/sys/module")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("kvm_"))
        .collect();
    names.sort();
    (!names.is_empty()).then(|| names.join(", "))
}
