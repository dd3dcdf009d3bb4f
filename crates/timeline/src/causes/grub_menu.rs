//! GRUB draws its menu and counts its time-out down; without one it does neither.

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::GRUB_MENU,
    remedy: |_| Some("GRUB_TIMEOUT=0, update-grub"),
    is: |of| of.kind == Kind::Grub && matches!(of.name, "menu" | "timeout"),
    ..PLAIN
};
