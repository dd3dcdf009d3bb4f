//! The kernel measures its delay loop (init/calibrate.c) where no clock tells it.

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::CALIBRATION,
    remedy: |_| Some("lpj=N (kernel)"),
    is: |of| (of.kind, of.name) == (Kind::Kernel, "calibrate_delay"),
    ended_by: Some("lpj="),
    ..PLAIN
};
