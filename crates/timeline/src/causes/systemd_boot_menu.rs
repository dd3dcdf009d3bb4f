//! systemd-boot shows its menu for `timeout` seconds; with 0 it shows none.

use super::Known;

pub(super) const CAUSE: Known = Known {
    id: "systemd-boot-menu",
    what: "systemd-boot's menu waits for its time-out",
    remedy: |_| Some("timeout 0 in loader/loader.conf"),
    is: |name| name == "systemd-boot:menu",
    ended_by: None,
    needed_by: &[],
};
