//! Option ROMs, most of them iPXE of network cards that nothing is booted from; not where the
//! guest was booted by one.

use super::{registry, Known};

pub(super) const CAUSE: Known = Known {
    cause: registry::OPTION_ROMS,
    remedy: |_| Some("romfile= (empty), or -net none"),
    is: |name| matches!(name, "bios:option-roms" | "bios:network-boot"),
    ended_by: None,
    needed_by: &["ipxe:", "bios:network-load"],
};
