//! The kernel unpacks its initrd on a worker thread (init/initramfs.c), and whoever needs a file of
//! it waits until it is there: the first program that the kernel itself starts, or init.

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::UNPACK_INITRD,
    remedy: |_| Some("a smaller or an uncompressed initrd"),
    is: |of| (of.kind, of.name) == (Kind::Kernel, "unpack-initrd"),
    ..PLAIN
};
