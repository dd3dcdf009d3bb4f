//! `/proc/PID/smaps` and `smaps_rollup`: areas of a process's memory, and how much of each is
//! resident (proc(5); Linux `Documentation/filesystems/proc.rst`).

use std::ops::AddAssign;

/// A process with more areas is not read further: the kernel's own limit is 65530
/// (vm.max_map_count), which can be raised.
const MOST_AREAS: usize = 1 << 20;

/// How much of some memory is resident.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rollup {
    /// In RAM, bytes.
    pub rss_bytes: u64,
    /// Of that, each page divided by the number of processes that map it, bytes.
    pub pss_bytes: u64,
    /// Of what is resident, what belongs to no file, bytes.
    pub anonymous_bytes: u64,
    /// Swapped out, bytes.
    pub swap_bytes: u64,
}

impl Rollup {
    /// The sums of a `smaps_rollup`; none if it has no `Rss` or no `Pss`.
    pub fn parse(text: &str) -> Option<Self> {
        kib(text, "Rss")?;
        kib(text, "Pss")?;
        let mut sums = Rollup::default();
        text.lines().for_each(|line| sums.take(line));
        Some(sums)
    }

    /// Takes a line's figure, if it is one of those.
    fn take(&mut self, line: &str) {
        let Some((key, value)) = line.split_once(':') else { return };
        let field = match key {
            "Rss" => &mut self.rss_bytes,
            "Pss" => &mut self.pss_bytes,
            "Anonymous" => &mut self.anonymous_bytes,
            "Swap" => &mut self.swap_bytes,
            _ => return,
        };
        if let Some(bytes) = bytes(value) {
            *field = bytes;
        }
    }
}

impl AddAssign for Rollup {
    fn add_assign(&mut self, other: Self) {
        self.rss_bytes = self.rss_bytes.saturating_add(other.rss_bytes);
        self.pss_bytes = self.pss_bytes.saturating_add(other.pss_bytes);
        self.anonymous_bytes = self.anonymous_bytes.saturating_add(other.anonymous_bytes);
        self.swap_bytes = self.swap_bytes.saturating_add(other.swap_bytes);
    }
}

/// An area of a process's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
    /// Permissions, e.g. `rw-p`.
    pub permissions: String,
    /// Path or pseudo-name, empty for anonymous memory.
    pub path: String,
    /// What of it is resident.
    pub resident: Rollup,
}

impl Area {
    /// Its size, bytes.
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// `start-end perms offset dev inode path`, as `/proc/PID/maps` has it.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let permissions = fields.next()?.to_owned();
        let path = fields.nth(3).unwrap_or("").trim().to_owned();
        let resident = Rollup::default();
        (start <= end).then_some(Area { start, end, permissions, path, resident })
    }
}

/// The areas of an `smaps`, in order of their addresses.
pub(super) fn areas(text: &str) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for line in text.lines() {
        // A key never begins with a digit or a small letter.
        if line.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_lowercase()) {
            if areas.len() == MOST_AREAS {
                break;
            }
            areas.extend(Area::parse(line));
        } else if let Some(area) = areas.last_mut() {
            area.resident.take(line);
        }
    }
    areas
}

/// The figure of `KEY:   N kB`, KiB.
pub(super) fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn bytes(value: &str) -> Option<u64> {
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
7f00-9f00 rw-s 00000000 00:01 1234   /memfd:pc.ram (deleted)
Size:                  8 kB
Rss:                   4 kB
Pss:                   2 kB
Pss_Dirty:             1 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd wr sh mr mw me ms sd
a000-b000 rw-p 00000000 00:00 0
Rss:                   4 kB
Pss:                   4 kB
Anonymous:             4 kB
";

    #[test]
    fn areas_with_what_is_resident() {
        let areas = areas(TEXT);
        assert_eq!(areas.len(), 2);
        assert_eq!((areas[0].bytes(), &*areas[0].path), (0x2000, "/memfd:pc.ram (deleted)"));
        assert_eq!((areas[0].resident.rss_bytes, areas[0].resident.pss_bytes), (4096, 2048));
        assert_eq!((areas[1].resident.anonymous_bytes, &*areas[1].path), (4096, ""));
        assert_eq!(kib(TEXT, "Pss"), Some(2));
        assert_eq!(Rollup::parse(TEXT).map(|sums| sums.pss_bytes), Some(4096));
        assert_eq!(Rollup::parse("Rss: 4 kB"), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "([0-9a-f]{0,17}-?[0-9a-f]{0,17}[ -~]{0,30}\n|(Rss|Pss): *[0-9]{0,22} kB\n){0,20}") {
            let _ = (areas(&text), Rollup::parse(&text), kib(&text, "Rss"));
        }
    }
}
