//! GRUB draws its menu and counts its time-out down; without one it does neither.

use super::{registry, Known};

pub(super) const CAUSE: Known = Known {
    cause: registry::GRUB_MENU,
    remedy: |_| Some("GRUB_TIMEOUT=0, update-grub"),
    is: |name| matches!(name, "grub:menu" | "grub:timeout"),
    ended_by: None,
    needed_by: &[],
};
