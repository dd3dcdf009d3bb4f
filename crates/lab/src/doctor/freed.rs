//! Where memory goes that a boot frees: a host that is a guest itself may have to give it back.
//!
//! Free page reporting (a feature of virtio's balloon) gives pages that were free for 2 s to the
//! hypervisor. What boots next has to fault them in anew, and what boots right after that has not: boots
//! alternate.

use super::check;
use std::fs;
use std::path::Path;
use vmeter_model::result::{Check, CheckName as Name, CheckStatus as Status};

/// The balloon's device number, as virtio's bus spells it.
const BALLOON: &str = "0x0005";
/// `VIRTIO_BALLOON_F_REPORTING`; the bus has a character for each bit.
const REPORTING: usize = 5;

pub(super) fn freed() -> Check {
    if !reports(Path::new("/sys/bus/virtio/devices")) {
        return check(Name::Freed, Status::Good, "this host's kernel keeps it", "");
    }
    check(
        Name::Freed,
        Status::Poor,
        "this host returns freed memory to its hypervisor within 2 s (free page reporting)",
        "slow and fast boots can alternate: a boot is slow if this host must first get \
            memory back from the hypervisor, and fast if the boot gets memory that the previous \
            boot has just freed; compare machines with vmeter bench, which boots them in random \
            order",
    )
}

/// True where a balloon among these devices reports free pages.
fn reports(devices: &Path) -> bool {
    let of = |device: &Path, file: &str| fs::read_to_string(device.join(file)).unwrap_or_default();
    let own = fs::read_dir(devices).into_iter().flatten().flatten().map(|entry| entry.path());
    own.filter(|device| of(device, "device").trim() == BALLOON)
        .any(|balloon| of(&balloon, "features").as_bytes().get(REPORTING) == Some(&b'1'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balloon_that_reports_is_told() {
        let bus = tempfile::tempdir().expect("a folder");
        assert!(!reports(bus.path()) && !reports(&bus.path().join("none")));
        let put = |name: &str, device: &str, features: &str| {
            let dir = bus.path().join(name);
            fs::create_dir_all(&dir).expect("a folder");
            fs::write(dir.join("device"), format!("{device}\n")).expect("a file");
            fs::write(dir.join("features"), format!("{features}\n")).expect("a file");
        };
        put("virtio0", "0x0002", "0110010100");
        put("virtio1", "0x0005", "0110000100");
        assert!(!reports(bus.path()), "a disk, and a balloon that only inflates");
        put("virtio1", "0x0005", "0110010100");
        assert!(reports(bus.path()));
    }
}
