//! The guests' memory: one file a slot, the same for all guests of a session, so that there
//! is room for several guests and they can take turns.

use crate::layout::Layout;
use crate::DirtyError;
use rustix::fs::{fallocate, memfd_create, FallocateFlags, MemfdFlags};
use std::fs::File;

/// Filled at once, bytes: an interrupt is not heard meanwhile.
const CHUNK: u64 = 256 << 20;

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
