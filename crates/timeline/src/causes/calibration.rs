//! The kernel measures its delay loop (init/calibrate.c) where no clock tells it.

use super::Known;

pub(super) const CAUSE: Known = Known {
    id: "calibration",
    what: "the kernel calibrates its delay loop",
    remedy: |_| Some("lpj=N (kernel)"),
    is: |name| name == "kernel:calibrate_delay",
    ended_by: Some("lpj="),
    needed_by: &[],
};
