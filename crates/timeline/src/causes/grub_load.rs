//! GRUB reads kernel and initrd through the firmware's disk services, slowly.

use super::{registry, smaller_initrd, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::GRUB_LOAD,
    remedy: |timeline| match smaller_initrd(timeline) {
        Some(remedy) if remedy.ends_with("MODULES=dep") => Some("MODULES=dep, or QEMU's -kernel"),
        Some(remedy) if remedy.ends_with("hostonly=yes") => Some("hostonly=yes, or QEMU's -kernel"),
        Some(_) => Some("a smaller initrd, or -kernel"),
        None => Some("QEMU's -kernel"),
    },
    is: |of| of.kind == Kind::Grub && matches!(of.name, "load-kernel" | "load-initrd"),
    ..PLAIN
};
