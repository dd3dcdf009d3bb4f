//! What `/proc/meminfo` says, in `free`'s words.

use std::collections::BTreeMap;

/// A meminfo has some 50 lines; more than these are no guest's.
const MOST_LINES: usize = 200;

/// What `free` of procps 4 makes of `/proc/meminfo` (free(1)), bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestMemory {
    /// `MemTotal`.
    pub total_bytes: u64,
    /// Total without what is available. (Up to procps 3: total without free and buff/cache.)
    pub used_bytes: u64,
    /// `MemFree`.
    pub free_bytes: u64,
    /// `Shmem`: tmpfs mostly.
    pub shared_bytes: u64,
    /// `Buffers`, `Cached` and `SReclaimable`.
    pub buff_cache_bytes: u64,
    /// `MemAvailable`: what new programs could have without swapping.
    pub available_bytes: u64,
}

impl GuestMemory {
    /// The figures of a meminfo's lines; none if one of those that must be there is not.
    pub fn of(meminfo: &BTreeMap<String, u64>) -> Option<Self> {
        let known = |name: &str| meminfo.get(name).copied();
        let or_0 = |name: &str| known(name).unwrap_or(0);
        let (total, free) = (known("MemTotal")?, known("MemFree")?);
        let available = known("MemAvailable")?;
        let caches = [or_0("Buffers"), or_0("Cached"), or_0("SReclaimable")];
        let buff_cache_bytes = caches.iter().try_fold(0u64, |sum, n| sum.checked_add(*n))?;
        // As procps does where a container is told nonsense.
        let used = total.checked_sub(available).or_else(|| total.checked_sub(free))?;
        Some(GuestMemory {
            total_bytes: total,
            used_bytes: used,
            free_bytes: free,
            shared_bytes: or_0("Shmem"),
            buff_cache_bytes,
            available_bytes: available,
        })
    }
}

/// The last meminfo that a console printed: its lines by name, bytes where they are in kB.
pub(super) fn meminfo<'t>(lines: impl Iterator<Item = &'t str>) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for (name, value) in lines.filter_map(line) {
        if name == "MemTotal" {
            found.clear();
        }
        if found.len() < MOST_LINES && (name == "MemTotal" || !found.is_empty()) {
            found.insert(name.to_owned(), value);
        }
    }
    found
}

/// `Name:   N kB`, or `Name:   N`.
fn line(text: &str) -> Option<(&str, u64)> {
    let (name, value) = text.trim().split_once(':')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_()".contains(c);
    if !name.starts_with(|c: char| c.is_ascii_uppercase()) || !name.chars().all(is_name) {
        return None;
    }
    match value.trim().strip_suffix("kB") {
        Some(kib) => Some((name, kib.trim().parse::<u64>().ok()?.checked_mul(1024)?)),
        None => Some((name, value.trim().parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_of_several_is_read() {
        let text = "\
MemTotal:          1 kB
hello: 5
vmeter: meminfo
MemTotal:         1000 kB
MemFree:           300 kB
MemAvailable:      700 kB
Buffers:            10 kB
Cached:            200 kB
Shmem:               5 kB
[    1.0] noise: 7 kB
SReclaimable:       30 kB
HugePages_Total:       2
vmeter: end of meminfo";
        let found = meminfo(text.lines());
        assert_eq!((found["MemTotal"], found["HugePages_Total"]), (1000 * 1024, 2));
        let memory = GuestMemory::of(&found).expect("whole");
        let kib = |bytes: u64| bytes / 1024;
        assert_eq!(kib(memory.used_bytes), 300);
        assert_eq!((kib(memory.buff_cache_bytes), kib(memory.shared_bytes)), (240, 5));
        assert_eq!(GuestMemory::of(&BTreeMap::new()), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "((Mem(Total|Free|Available)|Cached): *[0-9]{0,22}( kB)?\n|[ -~]{0,20}\n){0,12}") {
            let _ = GuestMemory::of(&meminfo(text.lines()));
        }
    }
}
