//! SYSLINUX and its kin wait at `boot: ` for `TIMEOUT`, which is in tenths of a second (0: for
//! ever), where the configuration says `PROMPT 1`.

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::SYSLINUX_PROMPT,
    remedy: |_| Some("PROMPT 0, or TIMEOUT 1 (tenths of s)"),
    is: |of| (of.kind, of.name) == (Kind::Syslinux, "prompt"),
    ..PLAIN
};
