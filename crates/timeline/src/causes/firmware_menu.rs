//! SeaBIOS waits for the key of its boot menu (src/boot.c, `interactive_bootmenu`), for as long
//! as QEMU's `-boot splash-time` says, and so does OVMF.

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::FIRMWARE_MENU,
    remedy: |_| Some("-boot menu=off"),
    is: |of| (of.kind, of.name) == (Kind::Firmware, "boot-menu-wait"),
    ..PLAIN
};
