//! The VMM's options: accelerator, board, CPU, firmware, devices.

use super::Candidate;
use crate::findings::catalogue::{files, Part, Remedy, UserChange};
use crate::findings::user_machine::OwnMachine;
use vmeter_model::tune::{Allow, Keep};
use vmeter_timeline::registry::{self, Named};

const fn options(cause: Named, changes: &'static [UserChange], remedy: Remedy) -> Candidate {
    Candidate { cause, remedy: Remedy { changes, ..remedy } }
}

/// Why `-nodefaults` would take something away that is used, if so.
fn needs_defaults(machine: &OwnMachine) -> Option<String> {
    if machine.has_option("nodefaults") {
        return Some("its command line says -nodefaults already".into());
    }
    let has_serial = machine.has_option("serial");
    if machine.has_option("nographic") && !has_serial {
        return Some(
            "its serial port comes from -nographic alone, and -nodefaults would remove this port"
                .into(),
        );
    }
    (!has_serial).then(|| "its command line has no -serial for the guest's console".into())
}

/// Why a graphics card may be used, if so.
fn shows_graphics(machine: &OwnMachine) -> Option<String> {
    let shown = |option: &&str| machine.has_option(option);
    if let Some(option) = ["vga", "vnc", "spice", "sdl", "curses"].iter().find(|o| shown(o)) {
        return Some(format!("its command line says -{option}"));
    }
    let cards = ["vga", "gpu", "qxl", "bochs", "VGA"];
    let devices = machine.values("device");
    if devices.iter().any(|device| cards.iter().any(|card| device.contains(card))) {
        return Some("its command line names a graphics card".into());
    }
    let hidden = machine.has_option("nographic") || machine.values("display") == ["none"];
    (!hidden).then(|| {
        "its screen may be in use: its command line has neither -display none nor \
            -nographic"
            .into()
    })
}

fn names_network(machine: &OwnMachine) -> Option<String> {
    let named = ["nic", "net", "netdev"].iter().find(|option| machine.has_option(option));
    named.map(|option| format!("its command line says -{option}"))
}

/// Why a SATA controller and an SMBus may be used, if so.
fn uses_chipset(machine: &OwnMachine) -> Option<String> {
    if machine.board() != Some("q35") {
        return Some("its board is not q35".into());
    }
    if machine.has_value("sata=") || machine.has_value("smbus=") {
        return Some("its command line sets sata= or smbus=".into());
    }
    let disks = ["hda", "hdb", "cdrom"].iter().find(|option| machine.has_option(option));
    if let Some(option) = disks {
        return Some(format!("its disk is on SATA (-{option})"));
    }
    let plain = |drive: &&str| {
        !drive.contains("if=virtio") && !drive.contains("if=none") && !drive.contains("if=pflash")
    };
    if machine.values("drive").iter().any(plain) {
        return Some("a -drive may be on SATA".into());
    }
    let on_it = |device: &&str| {
        device.contains("ide-") || device.contains("smbus") || device.contains("i2c")
    };
    machine.values("device").iter().any(on_it).then(|| "a device is on SATA or on the SMBus".into())
}

fn names_board_part(machine: &OwnMachine, part: &str) -> Option<String> {
    if machine.has_value(part) {
        return Some(format!("its command line says {part}"));
    }
    let board = machine.board().unwrap_or("pc");
    let known = ["q35", "pc"].contains(&board) || board.starts_with("pc-");
    (!known).then(|| format!("a {board} board does not have it"))
}

pub(super) const ALL: &[Candidate] = &[
    options(
        registry::ACCELERATOR,
        &[UserChange::Make("kvm", files::by_kvm)],
        Remedy {
            absent: |machine| {
                let said = machine.has_option("accel")
                    || machine.has_option("enable-kvm")
                    || machine.has_option("icount")
                    || machine.has_value("accel=");
                said.then(|| "its command line names an accelerator".to_owned())
            },
            gives_up: "hosts without KVM",
            predicts: &[
                Part::Span("kernel:*", 0.5, 0.98),
                Part::Span("bios:*", 0.0, 0.9),
                Part::Span("/init:*", 0.0, 0.98),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::BOARD,
        &[UserChange::Make("pc", files::conventional_board)],
        Remedy {
            absent: |machine| {
                let other = machine.board() != Some("q35");
                let pcie = machine.has_value("pcie")
                    || machine.has_value("sata=")
                    || machine.has_value("iommu");
                let why = other.then(|| "its board is not q35".to_owned());
                why.or_else(|| pcie.then(|| "it has PCI Express devices".to_owned()))
            },
            gives_up: "PCI Express, and the addresses of PCI devices",
            breaks: &[Keep::Chipset, Keep::Names, Keep::Hotplug],
            conflicts: &["chipset-parts"],
            predicts: &[
                Part::Span("initcall acpi_init", 0.0, 0.4),
                Part::Span("bios:pci-*", 0.0, 0.5),
                Part::Span("bios:devices", 0.0, 0.5),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::DEFAULT_DEVICES,
        &[UserChange::Arguments(&["-nodefaults"])],
        Remedy {
            absent: needs_defaults,
            gives_up: "QEMU's default graphics card, network card, CD-ROM, floppy and monitor",
            breaks: &[Keep::Display, Keep::Network, Keep::Chipset],
            conflicts: &["display-card", "default-nic"],
            predicts: DEVICES,
            ..Remedy::FREE
        },
    ),
    options(
        registry::DISPLAY_CARD,
        &[UserChange::Arguments(&["-vga", "none"])],
        Remedy {
            absent: |machine| {
                let none = machine.has_option("nodefaults");
                none.then(|| "-nodefaults gives it none".to_owned())
                    .or_else(|| shows_graphics(machine))
            },
            gives_up: "a graphics card",
            breaks: &[Keep::Display],
            predicts: &[
                Part::Span("bios:vga", 0.3, 1.0),
                Part::Span("vmm:init", 0.0, 0.3),
                Part::Span("initcall con_init", 0.0, 0.9),
                Part::Span("initcall vga_arb_device_init", 0.3, 1.0),
                Part::Span("initcall acpi_init", 0.0, 0.2),
                Part::Printing(0.0, 0.9),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::DEFAULT_NIC,
        &[UserChange::Arguments(&["-nic", "none"])],
        Remedy {
            absent: |machine| {
                let none = machine.has_option("nodefaults");
                none.then(|| "-nodefaults gives it none".to_owned())
                    .or_else(|| names_network(machine))
            },
            gives_up: "the network card that QEMU adds by itself",
            breaks: &[Keep::Network],
            predicts: &[
                Part::Span("bios:option-roms", 0.2, 1.0),
                Part::Span("vmm:init", 0.0, 0.25),
                Part::Span("initcall acpi_init", 0.0, 0.2),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::CHIPSET_PARTS,
        &[UserChange::Arguments(&["-nodefaults", "-machine", "sata=off,smbus=off"])],
        Remedy {
            // Without -nodefaults QEMU puts its CD-ROM on SATA.
            absent: |machine| {
                let used = uses_chipset(machine);
                used.or_else(|| {
                    needs_defaults(machine).filter(|_| !machine.has_option("nodefaults"))
                })
            },
            gives_up: "QEMU's default devices, SATA and SMBus",
            breaks: &[Keep::Display, Keep::Network, Keep::Chipset],
            conflicts: &["default-devices", "display-card", "default-nic"],
            predicts: DEVICES_AND_DISKS,
            ..Remedy::FREE
        },
    ),
    options(
        registry::HPET_DEVICE,
        &[UserChange::Arguments(&["-machine", "hpet=off"])],
        Remedy {
            absent: |machine| {
                let off =
                    machine.has_option("no-hpet").then(|| "it has none (-no-hpet)".to_owned());
                off.or_else(|| names_board_part(machine, "hpet="))
            },
            gives_up: "the HPET",
            breaks: &[Keep::Chipset],
            predicts: &[
                Part::Span("initcall hpet_late_init", 0.5, 1.0),
                Part::Span("kernel:apic-and-timer", 0.0, 0.3),
                Part::Span("initcall init_acpi_pm_clocksource", 0.0, 0.5),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::I8042_DEVICE,
        &[UserChange::Arguments(&["-machine", "i8042=off"])],
        Remedy {
            absent: |machine| names_board_part(machine, "i8042="),
            gives_up: "PS/2 keyboard and mouse",
            breaks: &[Keep::Input, Keep::Chipset],
            predicts: &[
                Part::Span("initcall i8042_init", 0.5, 1.0),
                Part::Span("bios:devices", 0.0, 0.8),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::SMM,
        &[UserChange::Arguments(&["-machine", "smm=off"])],
        Remedy {
            absent: |machine| {
                let uefi = machine.has_value("pflash") || machine.has_value("OVMF");
                let why = uefi.then(|| "UEFI's secure boot may need it".to_owned());
                why.or_else(|| names_board_part(machine, "smm="))
            },
            gives_up: "system management mode",
            breaks: &[Keep::Firmware],
            predicts: &[
                Part::Span("bios:cpus-and-tables", 0.0, 0.6),
                Part::Span("bios:platform", 0.0, 0.5),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::ROOT_PORTS,
        &[UserChange::Make("no-root-ports", files::without_root_ports)],
        Remedy {
            absent: |machine| {
                let none = !machine.has_value("pcie-root-port");
                none.then(|| "it has no PCIe root port".to_owned())
            },
            gives_up: "slots for devices that are plugged in later",
            breaks: &[Keep::Hotplug, Keep::Chipset],
            predicts: &[
                Part::Span("initcall pcie_portdrv_init", 0.5, 1.0),
                Part::Span("initcall acpi_init", 0.0, 0.6),
                Part::Span("initcall pcibios_assign_resources", 0.0, 0.8),
                Part::Span("bios:pci-*", 0.0, 0.7),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::CPU_HOST,
        &[UserChange::Arguments(&["-cpu", "host"])],
        Remedy {
            absent: |machine| {
                let named =
                    machine.has_option("cpu").then(|| "its command line names a CPU".to_owned());
                let tcg = machine.accelerator() != "kvm";
                named.or_else(|| tcg.then(|| "it does not use KVM".to_owned()))
            },
            gives_up: "migration to a host with another CPU",
            breaks: &[Keep::Cpu],
            predicts: &[
                Part::Span("kernel:apic-and-timer", 0.0, 1.0),
                Part::Span("initcall crypto_algapi_init", 0.0, 0.5),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::CPU_MODEL,
        &[UserChange::Make("qemu64", files::usual_cpu)],
        Remedy {
            absent: |machine| {
                let kvm = machine.accelerator() == "kvm";
                let cpu = machine.values("cpu").pop().map(str::to_owned);
                match cpu {
                    _ if kvm => Some("it uses KVM".to_owned()),
                    None => Some("it has QEMU's usual CPU".to_owned()),
                    Some(cpu) if cpu.starts_with("qemu64") => {
                        Some("it has QEMU's usual CPU".to_owned())
                    }
                    Some(_) => None,
                }
            },
            gives_up: "features of its CPU",
            breaks: &[Keep::Cpu],
            predicts: &[
                Part::Span("kernel:mitigations-and-alternatives", 0.0, 0.7),
                Part::Span("initcall crypto_algapi_init", 0.0, 0.6),
                Part::Span("kernel:initcalls-before-userspace", 0.0, 0.15),
            ],
            ..Remedy::FREE
        },
    ),
    options(
        registry::NIC_ROMS,
        &[UserChange::Arguments(NO_ROMS)],
        Remedy {
            absent: |machine| {
                let none = machine.has_option("nodefaults") && names_network(machine).is_none();
                let said = machine
                    .has_value("romfile")
                    .then(|| "its command line sets romfile=".to_owned());
                said.or_else(|| none.then(|| "it has no network card".to_owned())).or_else(|| {
                    machine.needs_more_than_a_kernel().filter(|why| why.contains("disk"))
                })
            },
            gives_up: "a boot over the network",
            breaks: &[Keep::Firmware],
            conflicts: &["default-devices", "chipset-parts", "default-nic"],
            predicts: &[Part::Span("bios:option-roms", 0.2, 1.0), Part::Span("vmm:init", 0.0, 0.1)],
            ..Remedy::FREE
        },
    ),
    options(
        registry::FIRMWARE_MENU,
        &[UserChange::Arguments(&["-boot", "menu=off"])],
        Remedy {
            absent: |machine| {
                let on = machine.has_value("menu=on");
                (!on).then(|| "its command line has no -boot menu=on".to_owned())
            },
            gives_up: "the firmware's boot menu",
            breaks: &[Keep::Firmware],
            predicts: &[Part::Span("bios:boot-menu-wait", 0.9, 1.0)],
            ..Remedy::FREE
        },
    ),
    options(
        registry::DISK_CACHE,
        &[UserChange::Make("cache=unsafe", files::never_flush)],
        Remedy {
            absent: |machine| {
                let none = !machine.has_option("drive");
                none.then(|| "it has no -drive".to_owned())
            },
            gives_up: "the last writes, if the host fails",
            needs: Some(Allow::Insecure),
            predicts: &[Part::Span("unit *", 0.0, 0.3), Part::Span("systemd:*", 0.0, 0.2)],
            ..Remedy::FREE
        },
    ),
];

const DEVICES: &[Part] = &[
    Part::Span("bios:vga", 0.3, 1.0),
    Part::Span("bios:option-roms", 0.2, 1.0),
    Part::Span("bios:devices", 0.0, 0.5),
    Part::Span("bios:pci-*", 0.0, 0.5),
    Part::Span("vmm:init", 0.05, 0.5),
    Part::Span("initcall con_init", 0.0, 0.9),
    Part::Span("initcall vga_arb_device_init", 0.3, 1.0),
    Part::Span("initcall acpi_init", 0.0, 0.4),
    Part::Printing(0.0, 0.9),
];

const DEVICES_AND_DISKS: &[Part] = &[
    Part::Span("bios:vga", 0.3, 1.0),
    Part::Span("bios:option-roms", 0.2, 1.0),
    Part::Span("bios:devices", 0.1, 0.9),
    Part::Span("bios:pci-*", 0.0, 0.7),
    Part::Span("vmm:init", 0.05, 0.5),
    Part::Span("initcall con_init", 0.0, 0.9),
    Part::Span("initcall vga_arb_device_init", 0.3, 1.0),
    Part::Span("initcall acpi_init", 0.0, 0.5),
    Part::Span("insmod ahci", 0.5, 1.0),
    Part::Printing(0.0, 0.9),
];

const NO_ROMS: &[&str] = &[
    "-global",
    "virtio-net-pci.romfile=",
    "-global",
    "e1000.romfile=",
    "-global",
    "e1000e.romfile=",
];
