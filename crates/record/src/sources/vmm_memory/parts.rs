//! What the areas of a VMM's memory are for. What no sign tells is `other`.

use super::areas::{Area, Rollup};
use std::collections::BTreeMap;

vmeter_base::words! {
    /// What memory of a VMM is for.
    pub enum Part {
        /// RAM of the guest.
        GuestRam = "guest-ram",
        /// Files that the guest has as memory: a root image by virtio-pmem.
        GuestFiles = "guest-files",
        /// Files that the VMM loads for the guest: kernel, initial RAM disk, firmware.
        BootFiles = "boot-files",
        /// The translator's output (TCG).
        TranslatedCode = "translated-code",
        /// What the VMM has allocated: its heap, other anonymous memory, the ROM and video
        /// memory of its devices.
        Heap = "heap",
        /// Stacks of its threads and coroutines.
        Stacks = "stacks",
        /// The VMM's own image, its variables among it.
        Program = "program",
        /// Shared libraries, their variables among it.
        Libraries = "libraries",
        /// Anything else.
        Other = "other",
    }
}

/// Guest RAM smaller than this can't hold a kernel, bytes.
const SMALLEST_RAM: u64 = 16 << 20;
/// Guards below the stacks of threads and coroutines are a page (glibc, QEMU), two (musl), or
/// at most this, bytes.
const LARGEST_GUARD: u64 = 64 << 10;

/// What is known of a VMM besides its areas.
pub(super) struct Known<'a> {
    /// Stack pointers of its threads.
    pub stacks: &'a [u64],
    /// Its guest's memory, bytes; 0 if that is not known.
    pub memory_bytes: u64,
    /// Path of its image.
    pub image: &'a str,
    /// Its arguments.
    pub arguments: &'a [&'a str],
}

/// Sums by part, largest first.
pub(super) fn parts(areas: &[Area], known: &Known<'_>) -> Vec<(Part, Rollup)> {
    let ram = ram(areas, known.memory_bytes);
    let mut sums: BTreeMap<Part, Rollup> = BTreeMap::new();
    let (mut before, mut part_before) = (None::<&Area>, Part::Other);
    for (at, area) in areas.iter().enumerate() {
        let next_to = before.filter(|before| before.end == area.start);
        let part = match ram.contains(&at) {
            true => Part::GuestRam,
            false => part_of(area, next_to.map(|before| (before, part_before)), known),
        };
        *sums.entry(part).or_default() += area.resident;
        (before, part_before) = (Some(area), part);
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, sum)| *sum != Rollup::default()).collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.rss_bytes));
    sums
}

/// The areas that are the guest's RAM: the largest that can be, as many as its memory takes;
/// where the size is not known, the largest.
fn ram(areas: &[Area], memory_bytes: u64) -> Vec<usize> {
    let mut can_be: Vec<usize> = (0..areas.len())
        .filter(|at| areas[*at].permissions.starts_with("rw-"))
        .filter(|at| areas[*at].bytes() >= SMALLEST_RAM)
        .filter(|at| memory_bytes == 0 || areas[*at].bytes() <= memory_bytes)
        .filter(|at| is_memory(&areas[*at].path))
        .collect();
    can_be.sort_by_key(|at| std::cmp::Reverse(areas[*at].bytes()));
    let mut left = memory_bytes.max(1);
    let fits = |at: &usize| {
        let bytes = areas[*at].bytes();
        let takes = left > 0 && (memory_bytes == 0 || bytes <= left);
        left = if takes { left.saturating_sub(bytes) } else { left };
        takes
    };
    let found: Vec<usize> = can_be.into_iter().filter(fits).collect();
    // Half of a memory is none: then something else was taken for it.
    if left > 0 && memory_bytes > 0 {
        return Vec::new();
    }
    found
}

/// Memory that no file on a disk is behind: anonymous, memfd, shared memory, huge pages.
fn is_memory(path: &str) -> bool {
    let prefixes =
        ["/memfd:", "/dev/zero", "/dev/shm/", "/dev/hugepages", "/anon_hugepage", "/SYSV"];
    path.is_empty() || path.starts_with("[anon") || prefixes.iter().any(|p| path.starts_with(p))
}

fn part_of(area: &Area, next_to: Option<(&Area, Part)>, known: &Known<'_>) -> Part {
    let (path, permissions) = (&*area.path, &*area.permissions);
    let is_stack = known.stacks.iter().any(|at| (area.start..area.end).contains(at));
    if path == "[stack]" || is_stack {
        return Part::Stacks;
    }
    if path.contains("tcg-jit") || permissions.starts_with("rwx") && is_memory(path) {
        return Part::TranslatedCode;
    }
    if path == "[heap]" {
        return Part::Heap;
    }
    if path.starts_with('[') && !path.starts_with("[anon") {
        return Part::Other;
    }
    if !is_memory(path) {
        return of_file(area, known);
    }
    match next_to {
        _ if permissions.starts_with("---") => Part::Other,
        // Variables that begin as zeros follow the file's own.
        Some((before, part @ (Part::Program | Part::Libraries)))
            if path.is_empty() && !is_memory(&before.path) =>
        {
            part
        }
        Some((guard, _))
            if guard.permissions.starts_with("---")
                && is_memory(&guard.path)
                && guard.bytes() <= LARGEST_GUARD =>
        {
            Part::Stacks
        }
        _ if permissions.starts_with('r') => Part::Heap,
        _ => Part::Other,
    }
}

fn of_file(area: &Area, known: &Known<'_>) -> Part {
    let path = area.path.trim_end_matches(" (deleted)");
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_named = known.arguments.iter().any(|argument| argument.contains(path));
    if path == known.image.trim_end_matches(" (deleted)") {
        Part::Program
    } else if name.contains(".so.") || name.ends_with(".so") {
        Part::Libraries
    } else if is_named && area.permissions.ends_with('s') {
        Part::GuestFiles
    } else if is_named {
        Part::BootFiles
    } else {
        Part::Other
    }
}

#[cfg(test)]
mod tests {
    use super::super::areas::areas;
    use super::*;

    fn line(start: u64, bytes: u64, rest: &str, rss_kib: u64) -> String {
        format!(
            "{start:x}-{:x} {rest}\nRss: {rss_kib} kB\nPss: {rss_kib} kB\nVmFlags: rd\n",
            start + bytes
        )
    }

    #[test]
    fn each_part_by_its_sign() {
        let mib = 1 << 20;
        let text = [
            line(0x1000, 0x1000, "r-xp 0 08:01 5 /usr/bin/qemu-system-x86_64", 4),
            line(0x2000, 0x1000, "rw-p 0 00:00 0 ", 1),
            line(0x10_0000, 0x1000, "rw-p 0 00:00 0 [heap]", 8),
            line(0x1_0000_0000, 512 * mib, "rw-p 0 00:00 0 ", 100),
            line(0x2_0000_0000, 64 * mib, "rwxp 0 00:00 0 ", 16),
            line(0x3_0000_0000, 64 * mib, "rw-s 0 08:01 6 /cache/root.img", 32),
            line(0x4_0000_0000, 0x1000, "---p 0 00:00 0 ", 0),
            line(0x4_0000_1000, 8 * mib, "rw-p 0 00:00 0 ", 2),
            line(0x5_0000_0000, 8 * mib, "rw-p 0 00:00 0 ", 64),
            line(0x3_1000_0000, 64 * mib, "rw-p 0 08:01 6 /cache/vmlinux", 45),
            line(0x6_0000_0000, 0x1000, "r--p 0 08:01 7 /usr/lib/libc.so.6", 3),
            line(0x6_0000_1000, 0x1000, "r--p 0 08:01 8 /usr/lib/locale/locale-archive", 7),
        ];
        let areas = areas(&text.concat());
        let image = "/usr/bin/qemu-system-x86_64";
        let arguments = &["-kernel", "/cache/vmlinux", "mem-path=/cache/root.img,size=1"];
        let stacks = &[0x5_0000_0100];
        let known = Known { stacks, memory_bytes: 512 * mib, image, arguments };
        let found: BTreeMap<Part, u64> = parts(&areas, &known)
            .into_iter()
            .map(|(part, sum)| (part, sum.rss_bytes / 1024))
            .collect();
        let expected = [
            (Part::GuestRam, 100),
            (Part::GuestFiles, 32),
            (Part::BootFiles, 45),
            (Part::TranslatedCode, 16),
            (Part::Heap, 8),
            (Part::Stacks, 66),
            (Part::Program, 5),
            (Part::Libraries, 3),
            (Part::Other, 7),
        ];
        assert_eq!(found, BTreeMap::from(expected));
        // A memory that no area has is not named after another one.
        let other = Known { memory_bytes: 700 * mib, ..known };
        assert!(parts(&areas, &other).iter().all(|(part, _)| *part != Part::GuestRam));
        let unknown = Known { memory_bytes: 0, ..other };
        assert!(parts(&areas, &unknown).iter().any(|(part, _)| *part == Part::GuestRam));
    }
}
