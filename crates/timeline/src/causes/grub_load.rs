//! GRUB reads kernel and initrd through the firmware's disk services, slowly.

use super::Known;

pub(super) const CAUSE: Known = Known {
    id: "grub-load",
    what: "GRUB reads kernel and initrd by the firmware's disk calls",
    remedy: "MODULES=dep, or QEMU's -kernel",
    is: |name| matches!(name, "grub:load-kernel" | "grub:load-initrd"),
    ended_by: None,
    needed_by: &[],
};
