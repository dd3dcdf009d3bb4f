//! GRUB shows its menu and counts its time-out down.

use super::Known;

pub(super) const CAUSE: Known = Known {
    id: "grub-menu",
    what: "GRUB's menu waits for its time-out",
    remedy: "GRUB_TIMEOUT=0, update-grub",
    is: |name| name == "grub:menu",
    ended_by: None,
};
