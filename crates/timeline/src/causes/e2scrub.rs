//! e2fsprogs' unit that removes what scrubs of LVM volumes have left, on machines without any.

use super::{is_unit, Known};

pub(super) const CAUSE: Known = Known {
    id: "e2scrub",
    what: "e2scrub_reap clears up after scrubs of LVM volumes",
    remedy: |_| Some("systemctl disable e2scrub_reap"),
    is: |name| is_unit(name, "e2scrub_reap.service"),
    ended_by: None,
    needed_by: &[],
};
