//! Words of the kernel's command line.

use super::Candidate;
use crate::findings::catalogue::{Part, Remedy, UserChange};
use crate::findings::user_machine::OwnMachine;
use vmeter_model::tune::{Allow, Keep};
use vmeter_timeline::registry::{self, Named};

/// Words at the end, unless the command line sets the same parameter.
pub(super) const fn words(
    cause: Named,
    changes: &'static [UserChange],
    remedy: Remedy,
) -> Candidate {
    Candidate { cause, remedy: Remedy { changes, ..remedy } }
}

/// The same where what it is for can't be there with one vCPU.
fn with_one_vcpu(machine: &OwnMachine, word: &str) -> Option<String> {
    let one = (machine.smp() < 2).then(|| "it has one vCPU".to_owned());
    one.or_else(|| machine.says(word))
}

fn has_usb(machine: &OwnMachine) -> bool {
    let devices = machine.values("device");
    machine.has_option("usb")
        || machine.has_value("usb=on")
        || devices.iter().any(|d| d.contains("usb"))
}

pub(super) const ALL: &[Candidate] = &[
    words(
        registry::TIMER_CHECK,
        &[UserChange::Kernel("no_timer_check")],
        Remedy {
            absent: |machine| machine.says("no_timer_check"),
            gives_up: "detection of a timer that is wired wrong",
            predicts: &[Part::Span("kernel:apic-and-timer", 0.3, 1.0)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::PEER_BUSES,
        &[UserChange::Kernel("pci=lastbus=0")],
        Remedy {
            absent: |machine| {
                let has = machine.has_value("pxb");
                has.then(|| "it has a further root bus (pxb)".to_owned())
                    .or_else(|| machine.says("pci"))
            },
            gives_up: "root buses that ACPI does not name",
            predicts: &[Part::Span("initcall pci_subsys_init", 0.0, 0.9)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::EARLY_QUIRKS,
        &[UserChange::Kernel("pci=noearly")],
        Remedy {
            absent: |machine| machine.says("pci"),
            gives_up: "work-arounds for chipsets that no VM has",
            predicts: &[Part::Span("kernel:start_kernel", 0.0, 0.02)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::PORT_SERVICES,
        &[UserChange::Kernel("pcie_ports=compat")],
        Remedy {
            absent: |machine| machine.says("pcie_ports"),
            gives_up: "native PCIe hotplug and error reports",
            breaks: &[Keep::Hotplug],
            predicts: &[Part::Span("initcall pcie_portdrv_init", 0.3, 1.0)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::IOMMU_PROBE,
        &[UserChange::Kernel("iommu=off intel_iommu=off")],
        Remedy {
            absent: |machine| {
                let has = machine.has_value("iommu").then(|| "it has an IOMMU".to_owned());
                has.or_else(|| machine.says("iommu"))
            },
            gives_up: "an IOMMU",
            predicts: &[Part::Span("initcall pci_iommu_init", 0.0, 1.0)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::BOUNCE_BUFFERS,
        &[UserChange::Kernel("swiotlb=noforce")],
        Remedy {
            absent: |machine| {
                let small = machine.memory_mib() <= 3072;
                let why = small.then(|| {
                    "all of its RAM lies below the 4 GiB address, so the kernel reserves no \
                     bounce buffers"
                        .to_owned()
                });
                why.or_else(|| machine.says("swiotlb"))
            },
            gives_up: "devices whose DMA reaches only 4 GiB",
            breaks: &[Keep::Hotplug],
            predicts: &[Part::Span("kernel:start_kernel", 0.0, 0.05)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::I8042_PROBE,
        &[UserChange::Kernel("i8042.noaux i8042.nokbd")],
        Remedy {
            absent: |machine| machine.says("i8042.nokbd"),
            gives_up: "a PS/2 keyboard and mouse",
            breaks: &[Keep::Input],
            conflicts: &["i8042-device"],
            predicts: &[Part::Span("initcall i8042_init", 0.3, 1.0)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::USB_CORE,
        &[UserChange::Kernel("usbcore.nousb")],
        Remedy {
            absent: |machine| {
                let used = has_usb(machine).then(|| "it has USB".to_owned());
                used.or_else(|| machine.says("usbcore.nousb"))
            },
            gives_up: "USB",
            breaks: &[Keep::Usb],
            predicts: &[
                Part::Span("initcall usb_init", 0.5, 1.0),
                Part::Span("insmod usbcore", 0.3, 1.0),
            ],
            ..Remedy::FREE
        },
    ),
    words(
        registry::RAID_AUTODETECT,
        &[UserChange::Kernel("raid=noautodetect")],
        Remedy {
            absent: |machine| machine.says("raid"),
            gives_up: "RAID arrays with 0.90 metadata",
            predicts: &[Part::Span("kernel:md_*", 0.3, 1.0), Part::Span("initcall md_*", 0.0, 0.8)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::HIBERNATION_IMAGE,
        &[UserChange::Kernel("noresume")],
        Remedy {
            absent: |machine| {
                let asked =
                    machine.kernel_value("resume").map(|_| "it may resume (resume=)".to_owned());
                asked.or_else(|| machine.says("noresume"))
            },
            gives_up: "a resume from disk",
            breaks: &[Keep::Suspend],
            predicts: &[Part::Span("initcall software_resume*", 0.3, 1.0)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::ROOT_DELAY,
        &[UserChange::KernelWithout("rootdelay"), UserChange::Kernel("rootwait")],
        Remedy {
            absent: |machine| {
                let waits = machine.kernel_value("rootdelay").is_some();
                (!waits).then(|| "its kernel's command line has no rootdelay=".to_owned())
            },
            gives_up: "a fixed wait: with rootwait, the kernel waits only until the root device \
                exists",
            predicts: &[Part::Word("rootdelay")],
            ..Remedy::FREE
        },
    ),
    words(
        registry::EARLY_CONSOLE,
        &[UserChange::KernelWithout("earlyprintk"), UserChange::KernelWithout("earlycon")],
        Remedy {
            absent: |machine| {
                let is = |w: &str| w.starts_with("earlyprintk") || w.starts_with("earlycon");
                let found = machine.kernel_words().any(is);
                (!found).then(|| "it has no early console".to_owned())
            },
            gives_up: "messages of the kernel before its console works",
            breaks: &[Keep::Log],
            predicts: &[Part::Printing(0.0, 0.6), Part::Span("kernel:entry", 0.0, 0.5)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::LOCKUP_DETECTOR,
        &[UserChange::Kernel("nowatchdog nmi_watchdog=0")],
        Remedy {
            absent: |machine| machine.says("nowatchdog"),
            gives_up: "reports of hangs of the guest's kernel",
            breaks: &[Keep::Debug],
            predicts: &[
                Part::Span("kernel:lockup_detector_init", 0.5, 1.0),
                Part::Span("initcall hung_task_init", 0.0, 0.5),
            ],
            ..Remedy::FREE
        },
    ),
    words(
        registry::PRESSURE,
        &[UserChange::Kernel("psi=0")],
        Remedy {
            absent: |machine| machine.says("psi"),
            gives_up: "/proc/pressure",
            breaks: &[Keep::Debug],
            predicts: &[Part::Span("initcall psi_*", 0.5, 1.0)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::DEFERRED_PROBE,
        &[UserChange::Kernel("deferred_probe_timeout=0")],
        Remedy {
            absent: |machine| machine.says("deferred_probe_timeout"),
            gives_up: "devices that wait for a late driver",
            predicts: &[Part::Span("initcall deferred_probe_initcall", 0.3, 1.0)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::IPV6,
        &[UserChange::Kernel("ipv6.disable=1")],
        Remedy {
            absent: |machine| machine.says("ipv6.disable"),
            gives_up: "IPv6",
            breaks: &[Keep::Network],
            predicts: &[
                Part::Span("initcall inet6_init", 0.5, 1.0),
                Part::Span("insmod ipv6", 0.3, 1.0),
            ],
            ..Remedy::FREE
        },
    ),
    words(
        registry::EDD,
        &[UserChange::Kernel("edd=off")],
        Remedy {
            absent: |machine| machine.has_no_packed_kernel().or_else(|| machine.says("edd")),
            gives_up: "the BIOS's disk numbers (EDD)",
            predicts: &[Part::Span("kernel:setup", 0.0, 0.6)],
            ..Remedy::FREE
        },
    ),
    // Before user space every grace period is expedited by itself: rcu_expedited_nesting begins at 1
    // (kernel/rcu/update.c, rcu_end_inkernel_boot).
    words(
        registry::GRACE_PERIODS,
        &[UserChange::Kernel("rcupdate.rcu_expedited=1")],
        Remedy {
            absent: |machine| machine.says("rcupdate.rcu_expedited"),
            gives_up:
                "undisturbed work on isolated CPUs: expedited grace periods interrupt the CPUs",
            predicts: &[Part::Span("initrd:*", 0.0, 0.1), Part::Span("systemd:*", 0.0, 0.1)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::MODULE_PROBES,
        &[UserChange::Kernel("module.async_probe=1")],
        Remedy {
            absent: |machine| with_one_vcpu(machine, "module.async_probe"),
            gives_up: "device names that are the same at every boot",
            breaks: &[Keep::Names],
            predicts: &[Part::Span("insmod *", 0.0, 0.5)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::FSCK,
        &[UserChange::Kernel("fsck.mode=skip")],
        Remedy {
            absent: |machine| machine.says("fsck.mode"),
            gives_up: "checks of file systems after a crash",
            needs: Some(Allow::Insecure),
            predicts: &[Part::Span("unit systemd-fsck*", 0.7, 1.0)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::AUDIT,
        &[UserChange::Kernel("audit=0")],
        Remedy {
            absent: |machine| machine.says("audit"),
            gives_up: "the audit log",
            needs: Some(Allow::Insecure),
            predicts: &[Part::Span("initcall audit_*", 0.3, 1.0)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::SECURITY_MODULES,
        &[UserChange::Kernel("apparmor=0 selinux=0")],
        Remedy {
            absent: |machine| machine.says("apparmor").or_else(|| machine.says("selinux")),
            gives_up: "AppArmor and SELinux",
            needs: Some(Allow::Insecure),
            predicts: &[
                Part::Span("initcall aa_*", 0.5, 1.0),
                Part::Span("initcall apparmor_*", 0.5, 1.0),
                Part::Span("initcall selnl_init", 0.3, 1.0),
                Part::Span("unit apparmor*", 0.5, 1.0),
            ],
            ..Remedy::FREE
        },
    ),
    words(
        registry::ZEROING,
        &[UserChange::Kernel("init_on_alloc=0 init_on_free=0")],
        Remedy {
            absent: |machine| machine.says("init_on_alloc"),
            gives_up: "memory that is zeroed before it is used",
            needs: Some(Allow::Insecure),
            predicts: &[
                Part::Span("kernel:initcalls-before-userspace", 0.0, 0.06),
                Part::Span("kernel:entry", 0.0, 0.03),
            ],
            ..Remedy::FREE
        },
    ),
    words(
        registry::MITIGATIONS,
        &[UserChange::Kernel("mitigations=off")],
        Remedy {
            absent: |machine| machine.says("mitigations"),
            gives_up: "protection against speculative attacks inside the guest",
            needs: Some(Allow::Insecure),
            predicts: &[
                Part::Span("kernel:mitigations-and-alternatives", 0.1, 0.8),
                Part::Span("kernel:initcalls-before-userspace", 0.0, 0.1),
            ],
            ..Remedy::FREE
        },
    ),
    words(
        registry::KASLR,
        &[UserChange::Kernel("nokaslr")],
        Remedy {
            absent: |machine| machine.says("nokaslr"),
            gives_up: "KASLR",
            needs: Some(Allow::Insecure),
            predicts: &[Part::Span("kernel:decompress", 0.0, 0.3)],
            ..Remedy::FREE
        },
    ),
    words(
        registry::RANDOM_SEED,
        &[UserChange::Kernel("random.trust_cpu=on random.trust_bootloader=on")],
        Remedy {
            absent: |machine| machine.says("random.trust_cpu"),
            gives_up: "the kernel's distrust of RDRAND and of the VMM's random seed",
            needs: Some(Allow::Insecure),
            predicts: &[Part::Span("unit systemd-random-seed*", 0.0, 1.0)],
            ..Remedy::FREE
        },
    ),
];
