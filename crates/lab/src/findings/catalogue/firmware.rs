//! The firmware.

use super::{Finding, Pair, Part, Remedy, UserChange, UserRemedy};
use crate::findings::change::Change::{Firmware, Machine, Vmm};
use vmeter_model::findings::Price;
use vmeter_model::tune::Keep;
use vmeter_timeline::registry;

pub(super) const QBOOT: Finding = Finding {
    cause: registry::SMALL_FIRMWARE,
    what: "a firmware that only loads a kernel has nothing else to set up",
    published: "63 → 19 ms (SeaBIOS built without unused features)",
    stand_in: "qboot, another small firmware",
    expected: &["bios:overhead"],
    contrasts: &[
        Pair::of(&[], &[Firmware("qboot")]).named("qboot"),
        Pair::of(&[], &[Machine("pvh"), Firmware("qboot")]).named("qboot and PVH"),
    ],
    price: Price::Firmware,
    remedy: "-bios qboot.rom",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| machine.needs_more_than_a_kernel(),
        changes: &[UserChange::Arguments(&["-bios", "qboot.rom"])],
        gives_up: "option ROMs, boot from a disk, BIOS services",
        breaks: &[Keep::Firmware],
        predicts: &[Part::Span("bios:overhead", 0.3, 1.0), Part::Span("kernel:setup", 0.0, 0.9)],
        ..Remedy::FREE
    }),
};

pub(super) const BIOS_FAST: Finding = Finding {
    cause: registry::BIOS_FAST,
    what: "the firmware looks for disks, keyboards and option ROMs before it loads the kernel",
    published: "63 → 19 ms",
    stand_in: "an unchanged SeaBIOS, on a machine without SATA, SMBus, SMM and keyboard \
        controller",
    expected: &["bios:overhead"],
    contrasts: &[Pair::of(
        &[],
        &[Vmm(&[
            "-machine",
            "sata=off,smbus=off,smm=off,i8042=off,vmport=off",
            "-boot",
            "menu=off,strict=on",
        ])],
    )],
    price: Price::OtherMachine,
    remedy: "a SeaBIOS built without them",
    user_remedy: UserRemedy::Never(
        "a machine without SATA, SMBus, SMM and keyboard controller is a different machine",
    ),
};

/// Four disks that answer at once and hold nothing.
const DISKS: &[&str] = &[
    "-drive",
    "if=none,id=none1,driver=null-co,size=64M,read-zeroes=on",
    "-device",
    "virtio-blk-pci,drive=none1",
    "-drive",
    "if=none,id=none2,driver=null-co,size=64M,read-zeroes=on",
    "-device",
    "virtio-blk-pci,drive=none2",
    "-drive",
    "if=none,id=none3,driver=null-co,size=64M,read-zeroes=on",
    "-device",
    "virtio-blk-pci,drive=none3",
    "-drive",
    "if=none,id=none4,driver=null-co,size=64M,read-zeroes=on",
    "-device",
    "virtio-blk-pci,drive=none4",
];

pub(super) const DISK_PROBE: Finding = Finding {
    cause: registry::FIRMWARE_PCI_PROBE,
    what: "SeaBIOS initialises every disk, though the kernel comes from -kernel",
    published: "named, without a figure",
    stand_in: "",
    expected: &["bios:overhead"],
    contrasts: &[
        Pair::of(&[Vmm(DISKS)], &[Vmm(DISKS), Vmm(&["-boot", "strict=on"])]).per(4.0, "disk")
    ],
    price: Price::VmmOption,
    remedy: "-boot strict=on; disks without bootindex",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| machine.has_no_spare_disks(),
        changes: &[UserChange::Arguments(&["-boot", "strict=on"])],
        gives_up: "boot from a disk",
        breaks: &[Keep::Firmware],
        predicts: &[
            Part::Span("bios:devices", 0.1, 1.0),
            Part::Span("bios:prepare-boot", 0.0, 0.5),
        ],
        ..Remedy::FREE
    }),
};
