//! The guests' memory: one file a slot, the same for all guests of a session, so that there
//! is room for several guests and they can take turns.

use crate::layout::{Layout, PAGE};
use crate::DirtyError;
use rustix::fs::{fallocate, memfd_create, FallocateFlags, MemfdFlags};
use rustix::mm::{madvise, Advice};
use std::fs::File;
use vmeter_kvm_probe::GuestSlot;

/// Filled at once, bytes: an interrupt is not heard meanwhile.
const CHUNK: u64 = 64 << 20;

/// Files as large as the slots, filled with zeroes: no page is the host's to find later.
/// `go_on` is asked again and again, and ends it by an error.
pub(crate) fn files(
    layout: &Layout,
    go_on: impl Fn() -> Result<(), DirtyError>,
) -> Result<Vec<File>, DirtyError> {
    let failed =
        |step| move |errno: rustix::io::Errno| DirtyError::System { step, source: errno.into() };
    let file = |bytes: u64| {
        let file = memfd_create("slot", MemfdFlags::CLOEXEC).map_err(failed("memfd_create"))?;
        for from in (0..bytes).step_by(CHUNK as usize) {
            go_on()?;
            fallocate(&file, FallocateFlags::empty(), from, CHUNK.min(bytes - from))
                .map_err(failed("fallocate of a memfd"))?;
        }
        Ok(File::from(file))
    };
    layout.slots.iter().map(|slot| file(slot.bytes)).collect()
}

/// Maps every page of a slot, so that no first touch is measured. As [`files`] otherwise.
pub(crate) fn populate(
    slot: &GuestSlot,
    go_on: impl Fn() -> Result<(), DirtyError>,
) -> Result<(), DirtyError> {
    let bytes = slot.bytes() as usize;
    for from in (0..bytes).step_by(CHUNK as usize) {
        go_on()?;
        let length = bytes.min(from + CHUNK as usize) - from;
        let part = slot.host().wrapping_add(from);
        // SAFETY: the part lies in the slot's mapping, and populating changes no byte.
        let populated = unsafe { madvise(part.cast(), length, Advice::LinuxPopulateWrite) };
        if populated.is_ok() {
            continue;
        }
        // Linux before 5.14 can't: each page is read.
        for page in (0..length).step_by(PAGE as usize) {
            // SAFETY: as above.
            unsafe { part.wrapping_add(page).read_volatile() };
        }
    }
    Ok(())
}

/// Memory that may be used: half of what /proc/meminfo says is available, bytes.
pub(crate) fn budget() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    available(&text).unwrap_or(1 << 30) / 2
}

/// `MemAvailable`, bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(available("MemAvailable: x kB"), None);
        assert!(budget() > 0);
    }
}
