//! systemd-boot shows its menu for `timeout` seconds; with 0 it shows none.

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::SYSTEMD_BOOT_MENU,
    remedy: |_| Some("timeout 0 in loader/loader.conf"),
    is: |of| (of.kind, of.name) == (Kind::SystemdBoot, "menu"),
    ..PLAIN
};
