//! GRUB draws its menu and counts its time-out down; without one it does neither.

use super::{registry, Known};
use vmeter_model::identity::Kind;

pub(super) const CAUSE: Known = Known {
    cause: registry::GRUB_MENU,
    remedy: |_| Some("GRUB_TIMEOUT=0, update-grub"),
    is: |of| of.kind == Kind::Grub && matches!(of.name, "menu" | "timeout"),
    ended_by: None,
    needed_by: |_| false,
};
