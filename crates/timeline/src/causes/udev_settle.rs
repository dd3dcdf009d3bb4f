//! Somebody waits until udev has dealt with every device that there is: initramfs-tools'
//! `init-top/udev`, systemd's `systemd-udev-settle.service`, a program's `udevadm settle`.

use super::{is_unit, registry, smaller_initrd, Known};

pub(super) const CAUSE: Known = Known {
    cause: registry::UDEV_SETTLE,
    remedy: smaller_initrd,
    is: |name| {
        let program = name.strip_prefix("exec ").is_some_and(|command| {
            command.contains("udevadm settle") || command.contains("udevadm wait")
        });
        program
            || matches!(name, "initrd:udev" | "/init:udev-settle")
            || is_unit(name, "systemd-udev-settle.service")
    },
    ended_by: None,
    needed_by: &[],
};
