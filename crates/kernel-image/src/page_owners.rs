//! Whose each page of a guest's RAM is, by the kernel's own account of it.
//!
//! The kernel's image lies where its symbols say. Every other page has a `struct page` in the array at
//! `vmemmap_base` (include/linux/mm_types.h): a slab's says so by a flag or its type and names its cache, a page of
//! the page cache points to the file's mapping, an anonymous one to its reverse map, marked by bit 0 of that
//! pointer (include/linux/page-flags.h). What a process maps is in its own page tables. Free pages are those of
//! the buddy allocator. What none of these says for certain has no owner here.

use crate::bytes::{text_until_nul, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::ram::PAGE;
use std::collections::HashMap;

/// Where `struct page`s are if the kernel has no variable for it.
const VMEMMAP: u64 = 0xffff_ea00_0000_0000;
/// The kernel's half of the addresses.
const KERNEL_HALF: u64 = 0xffff_8000_0000_0000;
/// Most page frames that are looked at: 16 GiB.
const MAX_FRAMES: u64 = 1 << 22;
/// Most processes, and pages that are mapped by all of them.
const MAX_TASKS: usize = 32_768;
const MAX_MAPPED: usize = 1 << 22;
/// `page_type` of a page that is free, and of a page table: all ones but for the type's bit (`PG_buddy`,
/// `PG_table` up to Linux 6.10). As a count of mappings, which shares the place, both would be far negative.
const FREE: u32 = 0xffff_ff7f;
const TABLE: u32 = 0xffff_fdff;
/// Largest block of free pages, as a power of two.
const MAX_ORDER: u64 = 10;
/// Most CPUs, and bytes of one CPU's variables (`PCPU_MIN_UNIT_SIZE` is 32 KiB; Debian's kernel has 180).
const MAX_CPUS: u64 = 4096;
const MAX_PER_CPU: u64 = 4 << 20;
/// Longest name.
const MAX_NAME: usize = 128;
const MAX_COMM: usize = 16;
/// Pages of a stack at least (`THREAD_SIZE`, arch/x86/include/asm/page_64_types.h).
const STACK_PAGES: u64 = 4;

/// Whose a page is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The kernel's image: its code, constants, variables.
    Kernel(&'static str),
    /// Page tables.
    PageTables,
    /// The kernel's stack of a thread, by its name.
    Stack(String),
    /// A slab cache, by name.
    Slab(String),
    /// A file's page, with its path or the number of its inode, and its place in the file, pages.
    File {
        /// Path, or inode.
        name: String,
        /// Page of the file.
        page: u64,
    },
    /// Anonymous memory of a process, by its name; of several, or of one that is not known, empty.
    Anonymous(String),
    /// Free.
    Free,
}

/// The kernel's image by symbols: what is between two of them. (Its init sections are freed and used
/// again, so that their addresses say nothing.)
const IMAGE: [(&str, &str, &str); 4] = [
    ("_text", "_etext", "code"),
    ("__start_rodata", "__end_rodata", "constants"),
    ("_sdata", "_edata", "variables"),
    ("__bss_start", "__bss_stop", "variables"),
];

/// The owner of each page frame up to `frames`, where it is known.
///
/// # Errors
/// [`Error::Missing`] when the kernel has no types; [`Error::Ram`] when RAM does not hold its tables.
pub fn page_owners(guest: &Guest<'_>, frames: u64) -> Result<Vec<Option<Owner>>> {
    let frames = frames.min(MAX_FRAMES);
    let layout = Layout::of(guest)?;
    let mut owners: Vec<Option<Owner>> = vec![None; frames as usize];
    let mut names = Names { layout: &layout, slabs: HashMap::new(), files: HashMap::new() };
    let processes = processes(guest, frames).unwrap_or_default();
    let mut free = Vec::new();
    layout.each_page(frames, |frame, page, head| {
        let found = names.owner(frame, page, head, &processes.mapped);
        if let (Some(Owner::Free), Some(order)) = (&found, layout.private(page)) {
            free.push((frame, order));
        }
        owners[frame as usize] = found;
    });
    for (first, order) in free {
        let block = first..(first + (1 << order.min(MAX_ORDER))).min(frames);
        block.for_each(|frame| owners[frame as usize] = Some(Owner::Free));
    }
    for (frame, thread) in processes.stacks.into_iter().filter(|(frame, _)| *frame < frames) {
        owners[frame as usize] = Some(Owner::Stack(thread));
    }
    for at in (0..frames * layout.size).step_by(PAGE as usize) {
        let physical = guest.translate(layout.vmemmap.wrapping_add(at));
        if let Some(frame) = physical.ok().map(|at| at / PAGE).filter(|frame| *frame < frames) {
            owners[frame as usize] = Some(Owner::Kernel("page structures"));
        }
    }
    for (from, to, what) in IMAGE {
        let place = |name: &str| {
            let text = guest.info().symbol("_text").ok()?;
            let offset = guest.info().symbol(name).ok()?.checked_sub(text)?;
            guest.place().physical.checked_add(offset)
        };
        let (Some(from), Some(to)) = (place(from), place(to)) else { continue };
        for frame in from.div_ceil(PAGE)..(to / PAGE).min(frames) {
            owners[frame as usize] = Some(Owner::Kernel(what));
        }
    }
    for frame in per_cpu(guest).unwrap_or_default().into_iter().filter(|frame| *frame < frames) {
        owners[frame as usize].get_or_insert(Owner::Kernel("per-CPU variables"));
    }
    Ok(owners)
}

/// The page frames that hold whole pages of per-CPU variables: a copy for each CPU, at its `__per_cpu_offset`
/// (arch/x86/kernel/setup_percpu.c). What is allocated behind them has no bounds here.
fn per_cpu(guest: &Guest<'_>) -> Result<Vec<u64>> {
    let raw = |name: &str| guest.info().symbol(name);
    let begin = raw("__per_cpu_start")?;
    let length = raw("__per_cpu_end")?.saturating_sub(begin);
    // Addresses of per-CPU variables began at 0 until 6.15, and are in the kernel's image since.
    let base = if begin == 0 { 0 } else { guest.symbol("__per_cpu_start")? };
    let cpus = u32_at(&guest.bytes(guest.symbol("nr_cpu_ids")?, 4)?, 0).unwrap_or(0);
    let offsets = guest.symbol("__per_cpu_offset")?;
    // That of a CPU which is not possible.
    let none = if begin == 0 { guest.symbol("__per_cpu_load").unwrap_or(0) } else { 0 };
    let mut frames = Vec::new();
    for cpu in 0..u64::from(cpus).min(MAX_CPUS) {
        let offset = guest.u64(offsets + cpu * 8)?;
        if offset == none || length > MAX_PER_CPU {
            continue;
        }
        let start = base.wrapping_add(offset);
        let pages = (0..length / PAGE).map(|page| start.wrapping_add(page * PAGE));
        frames.extend(pages.filter_map(|at| Some(guest.translate(at).ok()? / PAGE)));
    }
    Ok(frames)
}

/// What `struct page` looks like.
struct Layout<'a, 'g> {
    guest: &'g Guest<'a>,
    size: u64,
    vmemmap: u64,
    flags: usize,
    mapping: usize,
    index: usize,
    head: usize,
    page_type: usize,
    private: Option<usize>,
    /// Flags.
    slab: Option<u64>,
    swapbacked: u64,
    /// What the highest byte of `page_type` says since 6.11: free, a page table, a slab.
    types: Option<[u32; 3]>,
}

impl<'a, 'g> Layout<'a, 'g> {
    fn of(guest: &'g Guest<'a>) -> Result<Self> {
        let info = guest.info();
        let at = |name: &str| info.field(name).map(|field| field.offset() as usize);
        let missing = |what: &str| Error::Missing {
            what: what.into(),
            why: format!("kernel {} has no BTF that gives this value", info.version),
        };
        let size = info.sizes.get("page").copied().filter(|size| (32..=128).contains(size));
        let value = |name: &str| info.enumerators.get(name).copied();
        // A slab was a flag until 6.9, and is a type of page since.
        let bit = |name: &str| value(name).filter(|bit| *bit < 64).map(|bit| 1u64 << bit);
        let types = || Some([value("PGTY_buddy")?, value("PGTY_table")?, value("PGTY_slab")?]);
        let vmemmap = guest.symbol("vmemmap_base").and_then(|at| guest.u64(at));
        Ok(Layout {
            guest,
            size: size.ok_or_else(|| missing("the size of page"))?,
            vmemmap: vmemmap.unwrap_or(VMEMMAP),
            flags: at("page.flags")?,
            mapping: at("page.mapping")?,
            index: at("page.index")?,
            head: at("page.compound_head")?,
            page_type: at("page.page_type")?,
            private: at("page.private").ok(),
            slab: bit("PG_slab"),
            swapbacked: bit("PG_swapbacked").ok_or_else(|| missing("PG_swapbacked"))?,
            types: types(),
        })
    }

    /// True for a page that is free, and for one that is a page table.
    fn is_free_or_table(&self, page: &[u8]) -> Option<(bool, bool)> {
        let word = u32_at(page, self.page_type)?;
        Some(match self.types {
            Some([free, table, _]) => (word >> 24 == free, word >> 24 == table),
            None => (word == FREE, word == TABLE),
        })
    }

    /// True for a slab's first page.
    fn is_slab(&self, head: &[u8]) -> Option<bool> {
        if let Some([.., slab]) = self.types {
            return Some(u32_at(head, self.page_type)? >> 24 == slab);
        }
        let flags = u64_at(head, self.flags)?;
        Some(self.slab.is_some_and(|slab| flags & slab != 0))
    }

    /// Calls `each` with every page frame whose `struct page` can be read, and that of the compound
    /// page which it is a part of (its own, if of none).
    fn each_page(&self, frames: u64, mut each: impl FnMut(u64, &[u8], &[u8])) {
        let size = self.size as usize;
        let mut head: (u64, Vec<u8>) = (0, Vec::new());
        for frame in 0..frames {
            let Ok(page) = self.page(self.vmemmap.wrapping_add(frame * self.size)) else {
                continue;
            };
            debug_assert_eq!(page.len(), size);
            let of = u64_at(&page, self.head).unwrap_or(0);
            if of & 1 == 0 {
                each(frame, &page, &page);
                continue;
            }
            // A tail of a compound page names its head, which comes before it: by its address, or by what is
            // left of its own address (`compound_info`, 7.0 and later).
            let is_mask = of >> 32 == u64::from(u32::MAX);
            let address = self.vmemmap.wrapping_add(frame * self.size);
            let own = if is_mask { address & of } else { of - 1 };
            if head.0 != own {
                let place = own.checked_sub(self.vmemmap).filter(|at| at % self.size == 0);
                let known = place.is_some_and(|at| at / self.size < frame);
                let Some(page) = known.then(|| self.page(own).ok()).flatten() else { continue };
                head = (own, page);
            }
            each(frame, &page, &head.1);
        }
    }

    fn page(&self, address: u64) -> Result<Vec<u8>> {
        self.guest.bytes(address, self.size as usize)
    }

    fn private(&self, page: &[u8]) -> Option<u64> {
        u64_at(page, self.private?)
    }

    /// True for an address of the kernel's.
    fn is_kernel(address: u64) -> bool {
        address >= KERNEL_HALF
    }
}

/// Names that were read already.
struct Names<'l, 'a, 'g> {
    layout: &'l Layout<'a, 'g>,
    slabs: HashMap<u64, Option<String>>,
    files: HashMap<u64, Option<String>>,
}

impl Names<'_, '_, '_> {
    fn owner(
        &mut self,
        frame: u64,
        page: &[u8],
        head: &[u8],
        processes: &HashMap<u64, String>,
    ) -> Option<Owner> {
        let layout = self.layout;
        match layout.is_free_or_table(page)? {
            (true, _) => return Some(Owner::Free),
            (_, true) => return Some(Owner::PageTables),
            _ => {}
        }
        let flags = u64_at(head, layout.flags)?;
        if layout.is_slab(head)? {
            let place = layout.guest.info().field("slab.slab_cache").ok()?.offset() as usize;
            return self.slab(u64_at(head, place)?).map(Owner::Slab);
        }
        let mapping = u64_at(head, layout.mapping)?;
        if mapping == 0 || !Layout::is_kernel(mapping) {
            return None;
        }
        match mapping & 3 {
            1 if flags & layout.swapbacked != 0 => {
                Some(Owner::Anonymous(processes.get(&frame).cloned().unwrap_or_default()))
            }
            // The tails of a large page are in the order of the file.
            0 if std::ptr::eq(page, head) => {
                let name = self.file(mapping)?;
                Some(Owner::File { name, page: u64_at(page, layout.index)? })
            }
            _ => None,
        }
    }

    fn slab(&mut self, cache: u64) -> Option<String> {
        let guest = self.layout.guest;
        let known = self.slabs.entry(cache).or_insert_with(|| {
            let name = guest.field(cache, "kmem_cache.name").ok()?;
            printable(guest.text(name, MAX_NAME).ok()?)
        });
        known.clone()
    }

    /// The file of a mapping: one that is its inode's own.
    fn file(&mut self, mapping: u64) -> Option<String> {
        let guest = self.layout.guest;
        let known = self.files.entry(mapping).or_insert_with(|| {
            let inode = guest.field(mapping, "address_space.host").ok()?;
            let own = guest.field(inode, "inode.i_mapping").ok()?;
            if own != mapping || !Layout::is_kernel(inode) {
                return None;
            }
            let path = crate::cached_files::path_of(guest, inode).and_then(printable);
            Some(path.unwrap_or_else(|| format!("a file without a name (inode {inode:#x})")))
        });
        known.clone()
    }
}

fn printable(text: String) -> Option<String> {
    let fits = !text.is_empty() && text.chars().all(|c| !c.is_control() && c != '\u{fffd}');
    fits.then_some(text)
}

/// What processes and threads say of page frames.
#[derive(Default)]
struct Processes {
    /// Who maps a frame, by the page tables; an empty name for several.
    mapped: HashMap<u64, String>,
    /// Frames of the kernel's stacks.
    stacks: Vec<(u64, String)>,
}

/// All of them, from the first task on.
fn processes(guest: &Guest<'_>, frames: u64) -> Result<Processes> {
    let first = guest.symbol("init_task")?;
    let link = guest.info().field("task_struct.tasks.next")?.offset();
    let comm_at = guest.info().field("task_struct.comm")?.offset();
    let levels = if guest.place().five_levels { 5 } else { 4 };
    let mut found = Processes::default();
    let mut seen = std::collections::HashSet::new();
    let mut task = first;
    for _ in 0..MAX_TASKS {
        let comm = text_until_nul(&guest.bytes(task.wrapping_add(comm_at), MAX_COMM)?);
        let comm = printable(comm).unwrap_or_default();
        let stack = guest.field(task, "task_struct.stack")?;
        let pages =
            (0..STACK_PAGES).filter_map(|n| guest.translate(stack.wrapping_add(n * PAGE)).ok());
        if Layout::is_kernel(stack) && !comm.is_empty() {
            found.stacks.extend(pages.map(|at| (at / PAGE, comm.clone())));
        }
        let mm = guest.field(task, "task_struct.mm")?;
        if mm != 0 && seen.insert(mm) {
            let table = guest.translate(guest.field(mm, "mm_struct.pgd")?)?;
            let mut walk = Walk { guest, frames, comm, found: &mut found.mapped };
            walk.table(table, levels - 1, 256)?;
        }
        task = guest.u64(task.wrapping_add(link))?.wrapping_sub(link);
        if task == first {
            break;
        }
    }
    Ok(found)
}

/// Over the user's half of a process's page tables.
struct Walk<'w, 'a> {
    guest: &'w Guest<'a>,
    frames: u64,
    comm: String,
    found: &'w mut HashMap<u64, String>,
}

impl Walk<'_, '_> {
    fn table(&mut self, table: u64, level: u32, entries: usize) -> Result<()> {
        const PRESENT: u64 = 1;
        const LARGE: u64 = 1 << 7;
        const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
        let bytes = self.guest.physical(table, PAGE as usize)?;
        for n in 0..entries {
            let entry = u64_at(&bytes, 8 * n).unwrap_or(0);
            if entry & PRESENT == 0 {
                continue;
            }
            let (frame, large) = ((entry & ADDRESS) / PAGE, level > 0 && entry & LARGE != 0);
            if level > 0 && !large {
                // A table outside of RAM is none.
                let _ = self.table(entry & ADDRESS, level - 1, 512);
                continue;
            }
            let count = if large { 1u64 << (9 * level) } else { 1 };
            for frame in frame..frame.saturating_add(count).min(self.frames) {
                if self.found.len() >= MAX_MAPPED {
                    return Ok(());
                }
                let known = self.found.entry(frame).or_insert_with(|| self.comm.clone());
                if *known != self.comm {
                    known.clear();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::Field;
    use crate::fake;

    /// Where the array of `struct page`s is, and a page for what they point to.
    const ARRAY: usize = 0x10_0000;
    const OTHERS: usize = 0x8000;

    #[test]
    fn a_page_is_its_owners_only_if_the_kernel_says_so() {
        // Up to 6.9 a slab is a flag and types are bits; since 6.11 types are numbers.
        let (none, slab) = (u64::from(u32::MAX), 1 << 9);
        owners_are_found(&[], slab, [none, u64::from(FREE), u64::from(TABLE)]);
        let types = [("PGTY_buddy", 0xf0), ("PGTY_table", 0xf2), ("PGTY_slab", 0xf5)];
        owners_are_found(&types, 0, [0xf5 << 24, 0xf0 << 24, 0xf2 << 24]);
    }

    /// With the flags of a slab, and the `page_type` of a slab, of a free page and of a page table.
    fn owners_are_found(types: &[(&str, u32)], flags: u64, [slab, free, table]: [u64; 3]) {
        let mut info = fake::info(|_| fake::BASE);
        info.enumerators.extend(types.iter().map(|(name, value)| ((*name).to_owned(), *value)));
        info.symbols.insert("vmemmap_base".into(), fake::BASE + OTHERS as u64);
        for (name, value) in [
            ("__per_cpu_start", 0),
            ("__per_cpu_end", 0x1800),
            ("__per_cpu_load", 77),
            ("nr_cpu_ids", fake::BASE + OTHERS as u64 + 0x600),
            ("__per_cpu_offset", fake::BASE + OTHERS as u64 + 0x608),
        ] {
            info.symbols.insert(name.into(), value);
        }
        info.fields.insert("slab.slab_cache".into(), Field { bit: 8 * 48, bits: 64 });
        let mut ram = vec![0u8; fake::RAM];
        fake::map(&mut ram);
        let mut put = |at: usize, value: u64| ram[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let virt = |at: usize| fake::BASE + at as u64;
        let page = |frame: usize, field: usize| ARRAY + 64 * frame + 8 * field;
        // vmemmap_base; a slab cache and its name; a mapping, its inode, which has no dentry.
        put(OTHERS, virt(ARRAY));
        put(OTHERS + 0x100, virt(OTHERS + 0x200));
        put(OTHERS + 0x200, u64::from_le_bytes(*b"dentry\0\0"));
        put(OTHERS + 0x300, virt(OTHERS + 0x400));
        put(OTHERS + 0x400 + 32, virt(OTHERS + 0x300));
        for frame in [3, 4, 6, 7, 8, 9, 10] {
            put(page(frame, 4), u64::from(u32::MAX));
        }
        for frame in [3, 18] {
            put(page(frame, 0), flags);
            put(page(frame, 4), slab);
            put(page(frame, 6), virt(OTHERS + 0x100));
        }
        put(page(4, 4), free);
        put(page(4, 5), 1);
        put(page(6, 0), 1 << 19);
        put(page(6, 1), virt(0x4000) | 1);
        put(page(7, 1), virt(OTHERS + 0x300));
        put(page(7, 2), 12);
        put(page(8, 4), table);
        // An anonymous page without its flag, a mapping that is none's, a tail of the slab's.
        put(page(9, 1), virt(0x4000) | 1);
        put(page(10, 1), virt(OTHERS + 0x500));
        put(page(11, 3), virt(page(3, 0)) | 1);
        put(page(11, 4), u64::from(u32::MAX));
        // A tail that says how many bits of its own address are not its head's.
        put(page(19, 3), !127 | 1);
        put(page(19, 4), u64::from(u32::MAX));
        // Two CPUs, of which the second is not possible.
        put(OTHERS + 0x600, 2);
        put(OTHERS + 0x608, virt(13 * PAGE as usize));
        put(OTHERS + 0x610, 77);
        let owners = fake::with(&ram, &info, |guest| page_owners(guest, 20)).expect("owners");
        assert_eq!(owners[13], Some(Owner::Kernel("per-CPU variables")));
        assert_eq!(owners[14], None, "not a whole page");
        let slab = Some(Owner::Slab("dentry".into()));
        assert_eq!((&owners[3], &owners[11]), (&slab, &slab));
        assert_eq!((&owners[18], &owners[19]), (&slab, &slab));
        assert_eq!((&owners[4], &owners[5]), (&Some(Owner::Free), &Some(Owner::Free)));
        assert_eq!(owners[6], Some(Owner::Anonymous(String::new())));
        assert!(matches!(&owners[7], Some(Owner::File { page: 12, .. })), "{:?}", owners[7]);
        assert_eq!(owners[8], Some(Owner::PageTables));
        assert_eq!((&owners[9], &owners[10], &owners[12]), (&None, &None, &None));
    }
}
