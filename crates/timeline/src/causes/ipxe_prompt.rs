//! iPXE waits two seconds for Ctrl-B before it boots by itself (src/usr/prompt.c), as long as the
//! build's `BANNER_TIMEOUT` (src/config/general.h, tenths of a second) says.

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::IPXE_PROMPT,
    remedy: |_| Some("an iPXE with BANNER_TIMEOUT 0"),
    is: |of| (of.kind, of.name) == (Kind::Ipxe, "prompt"),
    ..PLAIN
};
