//! e2fsprogs' unit that removes what scrubs of LVM volumes have left, on machines without any.

use super::{is_unit, registry, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::E2SCRUB,
    remedy: |_| Some("systemctl disable e2scrub_reap"),
    is: |of| is_unit(of, "e2scrub_reap.service"),
    ..PLAIN
};
