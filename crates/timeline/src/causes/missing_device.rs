//! systemd waits for a device that never comes: a disk of `/etc/fstab` or `/etc/crypttab` that is
//! gone, a root that the initrd has no driver for.

use super::{registry, Kind, Known, PLAIN};
use crate::rules::SYSTEMD;
use vmeter_model::Identity;

pub(super) const CAUSE: Known = Known {
    cause: registry::MISSING_DEVICE,
    remedy: |timeline| {
        // Only the root's systemd reads the root's fstab.
        let own = timeline.spans.iter().any(|span| span.name == SYSTEMD);
        Some(if own {
            "nofail in fstab, or add the device"
        } else {
            "fix root=, or the initrd's drivers"
        })
    },
    is,
    ..PLAIN
};

/// A device's unit is named by its path, `dev-…`, whose middle systemd may leave out on the
/// console; where it says descriptions alone, that is the path itself.
fn is(of: Identity<'_>) -> bool {
    let unit = of.name;
    let cut = unit.starts_with("dev-") && unit.contains('\u{2026}') && !unit.contains(".swap");
    let device = unit.ends_with(".device") || unit.starts_with("/dev/") || cut;
    of.kind == Kind::Unit && of.timed_out && device
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_never_came_is_missing() {
        let is = |name| is(Identity::of(name));
        assert!(is("unit dev-disk-by\\x2duuid-1.device, timed out"));
        assert!(is("unit dev-disk-by\\x2duuid\u{2026}e - /dev/vdz, timed out"));
        assert!(!is("unit dev-vda1.device"));
        assert!(is("unit /dev/vdz, timed out"));
        assert!(!is("unit dev-vdz.swap, timed out"));
        assert!(!is("unit slow.service, timed out"));
    }
}
