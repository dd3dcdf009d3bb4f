//! `vmeter irq --vfio` on real devices, wherever this runs.
//!
//! QEMU has an NVMe controller with SR-IOV and an Intel IOMMU with interrupt remapping. In
//! its interpreter a Debian kernel makes eight virtual functions of 65 MSI-X vectors each,
//! every one in an IOMMU group of its own, and binds them to vfio-pci; `-cpu max` has SVM,
//! so there is a KVM for their irqfds as well. All 520 vectors are held at once, raised by
//! VFIO, and seen to arrive.
//!
//! It takes minutes, so it is asked for: `VMETER_NESTED=1 cargo test -p vmeter --test
//! nested_vfio -- --nocapture`. docs/IRQ.md has the same by hand.

use crate::common;

use common::{l1::L1, Lab};
use serde_json::Value;
use vmeter_appliance::kernel;

const ASKED: &str = "VMETER_NESTED";

/// What L1 does.
const SCRIPT: &str = "#!/bin/sh
export PATH=/usr/bin:/bin HOME=/root XDG_STATE_HOME=/tmp/state XDG_CACHE_HOME=/tmp/cache
for tty in 1 2; do stty raw </dev/ttyS$tty; done
pf=0000:01:00.0
vmeter irq --vfio 0000:01:00.1
echo \"L1: no such function: $?\"
take() { NVME=/dev/nvme0 CONTROLLER=$1 ACTION=$2 VECTORS=$3 nvme-vectors --exact nested_vfio::assign_vectors; }
take 0 1 0
echo 1 >/sys/bus/pci/devices/$pf/reset
echo 0 >/sys/bus/pci/devices/$pf/sriov_drivers_autoprobe
echo 8 >/sys/bus/pci/devices/$pf/sriov_numvfs
for controller in 1 2 3 4 5 6 7 8; do take $controller 8 65; done
vfs=
for vf in /sys/bus/pci/devices/$pf/virtfn*; do
    vf=$(cd -P $vf && echo ${PWD##*/})
    echo 1 >/sys/bus/pci/devices/$vf/reset
    vfs=\"$vfs $vf\"
done
vmeter irq --vfio 0000:01:00.1
echo \"L1: not bound: $?\"
vmeter irq --vfio $pf
echo \"L1: another driver's: $?\"
for vf in $vfs; do
    echo vfio-pci >/sys/bus/pci/devices/$vf/driver_override
    echo $vf >/sys/bus/pci/drivers_probe
done
vmeter irq --vfio $vfs --runs 3 --warmup 0 --color never --export-json /tmp/vfio.json
echo \"L1: vfio: $?\"
cat /tmp/vfio.json >/dev/ttyS1
mount -t tracefs tracefs /sys/kernel/tracing
vmeter irq --vfs 2 --runs 2 --warmup 0 --fit none --color never --export-json /tmp/irq.json
echo \"L1: irq: $?\"
cat /tmp/irq.json >/dev/ttyS2
";

const QEMU: &[&str] = &[
    "-machine",
    "q35",
    "-cpu",
    "max",
    "-smp",
    // 520 interrupts are more than three CPUs have vectors for.
    "4",
    "-m",
    "2048",
    "-device",
    "intel-iommu,intremap=on,caching-mode=on",
    "-device",
    "pcie-root-port,id=root0,chassis=1",
    "-device",
    "nvme-subsys,id=subsystem",
    "-device",
    "nvme,serial=vmeter,subsys=subsystem,bus=root0,sriov_max_vfs=8,\
     sriov_vq_flexible=16,sriov_vi_flexible=520,max_ioqpairs=18,msix_qsize=521",
];

/// NVM Express Base Specification 1.4, 5.22 and linux/nvme_ioctl.h.
mod nvme {
    use std::os::fd::AsRawFd;

    #[repr(C)]
    #[derive(Default)]
    struct AdminCommand {
        opcode: u8,
        flags: u8,
        reserved: u16,
        namespace: u32,
        words_2_3: [u32; 2],
        metadata: u64,
        data: u64,
        metadata_bytes: u32,
        data_bytes: u32,
        words_10_15: [u32; 6],
        timeout_ms: u32,
        result: u32,
    }

    /// `_IOWR('N', 0x41, struct nvme_admin_cmd)`
    const ADMIN_COMMAND: libc::c_ulong = 0xc048_4e41;
    const VIRTUALIZATION_MANAGEMENT: u8 = 0x1c;
    /// Interrupts, not queues.
    const INTERRUPTS: u32 = 1 << 8;

    /// Gives a controller so many interrupts: action 1 of the primary one, 8 of a secondary.
    pub fn give(node: &str, controller: u32, action: u32, count: u32) {
        let file = std::fs::File::open(node).expect("an NVMe controller");
        let mut command = AdminCommand {
            opcode: VIRTUALIZATION_MANAGEMENT,
            words_10_15: [controller << 16 | INTERRUPTS | action, count, 0, 0, 0, 0],
            ..AdminCommand::default()
        };
        // SAFETY: the command has the header's layout, asks for no data, and outlives the call.
        let status = unsafe { libc::ioctl(file.as_raw_fd(), ADMIN_COMMAND, &mut command) };
        assert_eq!(status, 0, "controller {controller}: {}", std::io::Error::last_os_error());
    }
}

/// No test of its own: what L1 runs, which has no nvme-cli, to give each virtual function
/// its vectors.
#[test]
fn assign_vectors() {
    let Ok(node) = std::env::var("NVME") else { return };
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let [controller, action, count] =
        ["CONTROLLER", "ACTION", "VECTORS"].map(|name| number(name).expect("a number"));
    nvme::give(&node, controller, action, count);
}

#[test]
fn all_vectors_of_eight_virtual_functions_are_held_at_once() {
    if std::env::var_os(ASKED).is_none() {
        println!("skipped: takes minutes; {ASKED}=1 runs it");
        return;
    }
    let Some(kernel) = kernel::default_kernel() else {
        println!("skipped: no kernel; `vmeter kernel fetch`");
        return;
    };
    let lab = Lab::new();
    let own = std::env::current_exe().expect("this test");
    let l1 = L1 {
        programs: &[(&own, "/usr/bin/nvme-vectors")],
        modules: &["vfio_pci", "vfio_iommu_type1", "kvm_amd"],
        script: SCRIPT,
        qemu: QEMU,
        append: "intel_iommu=on",
        patience: 2400,
    };
    let lines = l1.run(&lab, &kernel, &["vfio.json", "irq.json"]);
    let console = &lines[0];
    for (outcome, said) in [
        ("L1: no such function: 3", "sriov_numvfs"),
        ("L1: not bound: 3", "driver_override"),
        ("L1: another driver's: 3", "bound to nvme"),
        ("L1: vfio: 0", "vm_per_vm"),
        ("L1: irq: 0", "per_vm"),
    ] {
        assert!(console.contains(outcome) && console.contains(said), "{outcome}: {said}");
    }
    let json = |text: &str| -> Value { serde_json::from_str(text).expect("JSON") };
    let vfio = json(&lines[1]);
    everything_is_held_and_delivered(&vfio);
    at_once_is_faster(&vfio);
    // Counts of a KVM on SVM, with a kernel of 2022.
    let irq = json(&lines[2]);
    let anatomy = irq["anatomy"].as_array().expect("anatomy");
    let commits: Vec<_> = anatomy.iter().map(|a| a["commits"].as_u64()).collect();
    assert_eq!(commits, [130, 2, 1, 2].map(Some));
}

fn everything_is_held_and_delivered(vfio: &Value) {
    let setup = &vfio["setup"];
    assert_eq!((setup["vfs"].as_u64(), setup["vectors"].as_u64()), (Some(8), Some(65)));
    let totals = vfio["totals"].as_array().expect("totals");
    assert_eq!(totals.len(), 5, "no vector can be added alone before Linux 6.4");
    for total in totals {
        let delivery = &total["delivery"];
        assert_eq!(delivery["held"], 520, "{total}");
        assert_eq!((&delivery["raised"], &delivery["arrived"]), (&520.into(), &520.into()));
        assert_eq!(delivery["stray"], 0, "{total}");
    }
    let rows = vfio["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5 * 8);
    let last = rows.last().expect("rows");
    assert_eq!((&last["vf"], &last["irqfds_assigned"]), (&8.into(), &520.into()));
}

fn at_once_is_faster(vfio: &Value) {
    let totals = vfio["totals"].as_array().expect("totals");
    let of = |name: &str, field: &str| {
        let total = totals.iter().find(|total| total["strategy"] == name).expect(name);
        total[field].clone()
    };
    for fast in ["at_once", "vm_per_device", "vm_per_vm"] {
        let ratio = of(fast, "ratio")["mean"].as_f64().expect("a ratio");
        assert!(ratio > 5.0, "{fast}: {ratio}");
    }
    // Off and on again for each vector but the first, against one call a device.
    assert_eq!((of("growing", "set_irqs"), of("at_once", "set_irqs")), (1032.into(), 8.into()));
    assert_eq!(of("vm_per_vector", "commits"), 520);
    assert_eq!((of("vm_per_device", "commits"), of("vm_per_vm", "commits")), (8.into(), 1.into()));
}
