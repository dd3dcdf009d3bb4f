//! Option ROMs, most of them iPXE of network cards that nothing is booted from; not where the
//! guest was booted by one.

use super::{registry, Kind, Known};

pub(super) const CAUSE: Known = Known {
    cause: registry::OPTION_ROMS,
    remedy: |_| Some("romfile= (empty), or -net none"),
    is: |of| of.kind == Kind::Firmware && matches!(of.name, "option-roms" | "network-boot"),
    ended_by: None,
    needed_by: |of| {
        matches!((of.kind, of.name), (Kind::Ipxe, _) | (Kind::Firmware, "network-load"))
    },
};
