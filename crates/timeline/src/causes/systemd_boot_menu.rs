//! systemd-boot shows its menu for `timeout` seconds; with 0 it shows none.

use super::{registry, Known};

pub(super) const CAUSE: Known = Known {
    cause: registry::SYSTEMD_BOOT_MENU,
    remedy: |_| Some("timeout 0 in loader/loader.conf"),
    is: |name| name == "systemd-boot:menu",
    ended_by: None,
    needed_by: &[],
};
