//! GRUB reports an error and waits ten seconds for a key (`grub_wait_after_message`).

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::GRUB_KEY,
    remedy: |_| Some("fix the error that GRUB printed"),
    is: |of| (of.kind, of.name) == (Kind::Grub, "wait-for-a-key"),
    ..PLAIN
};
