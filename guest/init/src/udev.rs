//! The udev flavour: cold plug as a distribution's initramfs does it.

use crate::steps::Steps;
use crate::sys;

/// Starts udevd, replays the kernel's device events and waits until all are handled.
pub fn coldplug(steps: &mut Steps) {
    steps.run(b"udev-start", |_| sys::run(&[c"/usr/lib/systemd/systemd-udevd", c"--daemon"]));
    steps.run(b"udev-trigger", |_| {
        sys::run(&[c"/usr/bin/udevadm", c"trigger", c"--type=subsystems", c"--action=add"])?;
        sys::run(&[c"/usr/bin/udevadm", c"trigger", c"--type=devices", c"--action=add"])
    });
    steps.run(b"udev-settle", |_| sys::run(&[c"/usr/bin/udevadm", c"settle"]));
}
