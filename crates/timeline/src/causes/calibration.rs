//! The kernel measures its delay loop (init/calibrate.c) where no clock tells it.

use super::{registry, Known};

pub(super) const CAUSE: Known = Known {
    cause: registry::CALIBRATION,
    remedy: |_| Some("lpj=N (kernel)"),
    is: |name| name == "kernel:calibrate_delay",
    ended_by: Some("lpj="),
    needed_by: &[],
};
