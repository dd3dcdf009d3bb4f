//! Somebody waits until udev has dealt with every device that there is: initramfs-tools'
//! `init-top/udev`, systemd's `systemd-udev-settle.service`, a program's `udevadm settle`.

use super::{is_unit, registry, smaller_initrd, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::UDEV_SETTLE,
    remedy: smaller_initrd,
    is: |of| match of.kind {
        Kind::Program => ["udevadm settle", "udevadm wait"].iter().any(|c| of.name.contains(c)),
        Kind::Initrd => of.name == "udev",
        Kind::Init => of.name == "udev-settle",
        _ => is_unit(of, "systemd-udev-settle.service"),
    },
    ..PLAIN
};
