//! PCI: probing what is there, and what is not.

use super::{Finding, Pair, Part, Remedy, UserChange, UserRemedy};
use crate::findings::change::Change::{Kernel, Make, RootPorts, Smp, Vmm};
use vmeter_appliance::ApplianceSpec;
use vmeter_model::findings::Price;
use vmeter_model::tune::Keep;
use vmeter_timeline::registry;

const EIGHT_DEVICES: &[&str] = &[
    "-device",
    "pci-testdev",
    "-device",
    "pci-testdev",
    "-device",
    "pci-testdev",
    "-device",
    "pci-testdev",
    "-device",
    "pci-testdev",
    "-device",
    "pci-testdev",
    "-device",
    "pci-testdev",
    "-device",
    "pci-testdev",
];

/// Conventional bridges: behind each there are 32 slots, where a root port has one.
const EIGHT_BRIDGES: &[&str] = &[
    "-device",
    "pci-bridge,chassis_nr=101",
    "-device",
    "pci-bridge,chassis_nr=102",
    "-device",
    "pci-bridge,chassis_nr=103",
    "-device",
    "pci-bridge,chassis_nr=104",
    "-device",
    "pci-bridge,chassis_nr=105",
    "-device",
    "pci-bridge,chassis_nr=106",
    "-device",
    "pci-bridge,chassis_nr=107",
    "-device",
    "pci-bridge,chassis_nr=108",
];

pub(super) const PROBE: Finding = Finding {
    cause: registry::PCI_PROBE,
    what: "the guest reads and writes configuration space word by word, and each word costs an \
        exit",
    published: "95 ms (pci_subsys_init); each device that is present costs time, an empty slot \
        costs none",
    stand_in: "",
    expected: &[
        "initcall acpi_init",
        "initcall pci_subsys_init",
        "initcall pcibios_assign_resources",
        "initcall pcie_portdrv_init",
        "bios:overhead",
    ],
    contrasts: &[
        Pair::of(&[Vmm(EIGHT_DEVICES)], &[]).named("devices").per(8.0, "device"),
        Pair::of(&[RootPorts(8)], &[]).named("root ports").per(8.0, "root port"),
        Pair::of(&[Vmm(EIGHT_BRIDGES)], &[RootPorts(8)])
            .named("ports instead of bridges")
            .per(8.0 * 31.0, "empty slot"),
    ],
    price: Price::OtherMachine,
    remedy: "unused devices and ports left out",
    user_remedy: UserRemedy::Never("a machine with fewer devices is a different machine"),
};

/// An initramfs whose init loads these modules.
fn loading(names: &[&str]) -> ApplianceSpec {
    let load = names.iter().map(|name| (*name).to_owned()).collect();
    ApplianceSpec { load, ..ApplianceSpec::minimal() }
}

pub(super) const VIRTIO_PCI: Finding = Finding {
    cause: registry::VIRTIO_PCI,
    what: "the driver is a module, which user space loads: the kernel reads and links it, then \
        probes its devices",
    published: "51 ms (22 ms in initcall virtio_pci_driver)",
    stand_in: "",
    expected: &["insmod virtio_pci"],
    contrasts: &[Pair::of(
        &[
            Vmm(&["-device", "virtio-rng-pci"]),
            Make(|builder, spec| {
                let from = Some(builder.kernel()?.modules());
                let wanted = ApplianceSpec { modules_from: from, ..loading(&["virtio_pci"]) };
                builder.initramfs(spec, &wanted)
            }),
        ],
        &[Vmm(&["-device", "virtio-rng-pci"])],
    )],
    price: Price::Kernel,
    remedy: "virtio_pci built into the kernel (vmeter kernel build)",
    user_remedy: UserRemedy::Never("the remedy needs another kernel"),
};

pub(super) const PARALLEL: Finding = Finding {
    cause: registry::PARALLEL_PCI_PROBE,
    what: "with several vCPUs, the kernel could probe drivers in parallel",
    published: "66 → 39 ms with 4 vCPUs",
    stand_in:
        "driver_async_probe=*, in place of the patches for parallel bus scans, which the kernel \
        never merged",
    expected: &["kernel:initcalls-before-userspace"],
    contrasts: &[
        Pair::of(&[Smp(4), RootPorts(8)], &[Smp(4), RootPorts(8), Kernel("driver_async_probe=*")])
            .named("4 vCPUs"),
        Pair::of(&[RootPorts(8)], &[RootPorts(8), Kernel("driver_async_probe=*")]).named("1 vCPU"),
    ],
    price: Price::KernelParameter,
    remedy: "driver_async_probe=*",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| {
            let one = machine.smp() < 2;
            let why = one.then(|| "it has one vCPU".to_owned());
            why.or_else(|| machine.says("driver_async_probe"))
        },
        changes: &[UserChange::Kernel("driver_async_probe=*")],
        gives_up: "device names that are the same at every boot",
        breaks: &[Keep::Names],
        predicts: &[
            Part::Span("initcalls:device", 0.0, 0.5),
            Part::Span("initcalls:subsys", 0.0, 0.2),
        ],
        ..Remedy::FREE
    }),
};
