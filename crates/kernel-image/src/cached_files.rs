//! Small files as a guest's page cache has them, with their names as far as these are known.
//!
//! Each file system (`super_blocks`, fs/super.c) lists its inodes (`s_inodes`); what was read of
//! a file is in its mapping: `i_pages` is an xarray (include/linux/xarray.h) whose entries are
//! pages; a node has bit 1 set, what was evicted bit 0. A `struct page` is at its page frame's
//! number in `vmemmap_base`. Names are the dentries' (`i_dentry`), which a remount drops
//! (`reconfigure_super`: `shrink_dcache_sb`), while inodes and pages stay.

use crate::bytes::{text_until_nul, u64_at};
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::ram::PAGE;

/// Most file systems, and inodes of all of them, that are looked at.
const MAX_FILE_SYSTEMS: usize = 256;
const MAX_INODES: usize = 200_000;
/// Kinds of file system that have no files of anybody's.
const NO_FILES: &[&str] = &[
    "autofs",
    "bdev",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "dax",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nsfs",
    "pipefs",
    "proc",
    "pstore",
    "securityfs",
    "selinuxfs",
    "sockfs",
    "sysfs",
    "tracefs",
];
/// Longest name, bytes (`NAME_MAX`).
const MAX_NAME: usize = 255;
/// Deepest path.
const MAX_DEPTH: usize = 24;
/// Largest file, pages; an xarray's node has 64 of them.
const MAX_PAGES: u64 = 16;
/// Most files that are given.
const MAX_FILES: usize = 4096;
/// Where `struct page`s are if the kernel has no variable for it
/// (Documentation/arch/x86/x86_64/mm.rst).
const VMEMMAP: u64 = 0xffff_ea00_0000_0000;
/// Entries of an xarray: a pointer to a node, of which small values are others' siblings.
const NODE: u64 = 2;
const LARGEST_SIBLING: u64 = 4096;
/// Kinds of inode (include/uapi/linux/stat.h).
const KIND: u64 = 0o170_000;
const REGULAR: u64 = 0o100_000;
const LINK: u64 = 0o120_000;

/// A file of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedFile {
    /// Its path in its file system; none where its name is not known any more.
    pub path: Option<String>,
    /// What is in it; none of a link.
    pub content: Option<Vec<u8>>,
}

/// The regular files that hold `text`, and the links of which `wanted` accepts the folder's
/// name and their own.
///
/// # Errors
/// [`Error::Missing`] when the kernel has no such symbols or types; [`Error::Ram`] when RAM
/// does not hold them.
pub fn cached_files(
    guest: &Guest<'_>,
    text: &[u8],
    wanted: impl Fn(&str, &str) -> bool,
) -> Result<Vec<CachedFile>> {
    let layout = Layout::of(guest)?;
    let holds = memchr::memmem::Finder::new(text);
    let mut files = Vec::new();
    let mut left = MAX_INODES;
    for file_system in layout.file_systems()? {
        let head = file_system.wrapping_add(layout.inodes);
        let mut link = guest.u64(head)?;
        while link != head && link != 0 && left > 0 && files.len() < MAX_FILES {
            left -= 1;
            // A list that was being changed ends here.
            let Ok(inode) = layout.inode(link) else { break };
            link = inode.next;
            match inode.mode & KIND {
                REGULAR if inode.size <= MAX_PAGES * PAGE => {
                    let content = layout.content(&inode).ok();
                    let content = content.filter(|content| holds.find(content).is_some());
                    if content.is_some() {
                        files.push(CachedFile { path: layout.path(&inode, |_, _| true), content });
                    }
                }
                LINK => {
                    let path = layout.path(&inode, &wanted);
                    files.extend(path.map(|path| CachedFile { path: Some(path), content: None }));
                }
                _ => {}
            }
        }
    }
    files.sort_by(|a, b| (&a.path, &a.content).cmp(&(&b.path, &b.content)));
    files.dedup();
    Ok(files)
}

/// The path of an inode in its file system, if it has a name.
pub(crate) fn path_of(guest: &Guest<'_>, inode: u64) -> Option<String> {
    let layout = Layout::of(guest).ok()?;
    layout.path(&Inode { own: inode, next: 0, mode: 0, size: 0 }, |_, _| true)
}

/// What the structures look like.
struct Layout<'a, 'g> {
    guest: &'g Guest<'a>,
    /// Size of a dentry, and of a `struct page`.
    dentry: usize,
    page: u64,
    vmemmap: u64,
    /// Offsets.
    inodes: u64,
    in_list: u64,
    alias: u64,
    parent: u64,
    name: u64,
}

struct Inode {
    own: u64,
    next: u64,
    mode: u64,
    size: u64,
}

struct Dentry {
    own: u64,
    parent: u64,
    name: String,
}

impl<'a, 'g> Layout<'a, 'g> {
    fn of(guest: &'g Guest<'a>) -> Result<Self> {
        let info = guest.info();
        let at = |name: &str| info.field(name).map(|field| field.offset());
        let size = |name: &str| {
            let known = info.sizes.get(name).copied().filter(|size| (8..4096).contains(size));
            known.ok_or_else(|| Error::Missing {
                what: format!("the size of {name}"),
                why: format!("kernel {} has no BTF that gives this value", info.version),
            })
        };
        let vmemmap = guest.symbol("vmemmap_base").and_then(|at| guest.u64(at));
        Ok(Layout {
            guest,
            dentry: size("dentry")? as usize,
            page: size("page")?,
            vmemmap: vmemmap.unwrap_or(VMEMMAP),
            inodes: at("super_block.s_inodes.next")?,
            in_list: at("inode.i_sb_list.next")?,
            alias: at("dentry.d_u.d_alias.next")?,
            parent: at("dentry.d_parent")?,
            name: at("dentry.d_name.name")?,
        })
    }

    /// Those that can have files.
    fn file_systems(&self) -> Result<Vec<u64>> {
        let guest = self.guest;
        let head = guest.symbol("super_blocks")?;
        let in_list = guest.info().field("super_block.s_list.next")?.offset();
        let mut found = Vec::new();
        let mut link = guest.u64(head)?;
        for _ in 0..MAX_FILE_SYSTEMS {
            if link == head || link == 0 {
                break;
            }
            let own = link.wrapping_sub(in_list);
            let kind = guest.field(own, "super_block.s_type")?;
            let name = guest.text(guest.field(kind, "file_system_type.name")?, MAX_NAME)?;
            found.extend((!NO_FILES.contains(&name.as_str())).then_some(own));
            link = guest.u64(link)?;
        }
        Ok(found)
    }

    /// An inode by its link in its file system's list.
    fn inode(&self, link: u64) -> Result<Inode> {
        let (guest, own) = (self.guest, link.wrapping_sub(self.in_list));
        let (next, mode) = (guest.u64(link)?, guest.field(own, "inode.i_mode")?);
        Ok(Inode { own, next, mode, size: guest.field(own, "inode.i_size")? })
    }

    fn dentry(&self, own: u64) -> Result<Dentry> {
        let bytes = self.guest.bytes(own, self.dentry)?;
        let word = |offset: u64| {
            let word = usize::try_from(offset).ok().and_then(|offset| u64_at(&bytes, offset));
            word.ok_or_else(|| Error::malformed("dentry", "a field is outside of the dentry"))
        };
        let name = word(self.name)?;
        // Short names are in the dentry itself.
        let inside = name.wrapping_sub(own);
        let name = match usize::try_from(inside).ok().and_then(|at| bytes.get(at..)) {
            Some(rest) => text_until_nul(rest),
            None => self.guest.text(name, MAX_NAME)?,
        };
        Ok(Dentry { own, parent: word(self.parent)?, name })
    }

    /// The path of an inode, if it has a name, and that is wanted.
    fn path(&self, inode: &Inode, wanted: impl Fn(&str, &str) -> bool) -> Option<String> {
        let alias = self.guest.field(inode.own, "inode.i_dentry.first").ok()?;
        let dentry = self.dentry(alias.checked_sub(self.alias)?).ok()?;
        let mut above = self.dentry(dentry.parent).ok()?;
        if !wanted(&above.name, &dentry.name) {
            return None;
        }
        let mut names = vec![dentry.name];
        while above.parent != above.own && names.len() < MAX_DEPTH {
            let next = self.dentry(above.parent).ok()?;
            names.push(std::mem::replace(&mut above, next).name);
        }
        names.reverse();
        Some(format!("/{}", names.join("/")))
    }

    /// What the page cache has of an inode, if that is all of it.
    fn content(&self, inode: &Inode) -> Result<Vec<u8>> {
        let gone = || Error::Ram("a file is not in the page cache".into());
        let guest = self.guest;
        let pages = inode.size.div_ceil(PAGE);
        let mapping = guest.field(inode.own, "inode.i_mapping")?;
        let head = guest.field(mapping, "address_space.i_pages.xa_head")?;
        if pages == 0 || pages > MAX_PAGES || head == 0 {
            return Err(gone());
        }
        let mut content = Vec::with_capacity((pages * PAGE) as usize);
        for index in 0..pages {
            let page = self.page_of(head, index)?.ok_or_else(gone)?;
            content.extend(guest.physical(page, PAGE as usize)?);
        }
        content.truncate(usize::try_from(inode.size).map_err(|_| gone())?);
        Ok(content)
    }

    /// The physical address of a file's page; none where it is not there.
    fn page_of(&self, head: u64, index: u64) -> Result<Option<u64>> {
        let guest = self.guest;
        let mut entry = head;
        let mut offset = 0;
        if head & 3 == NODE {
            let node = head - NODE;
            if guest.field(node, "xa_node.shift")? != 0 {
                return Ok(None);
            }
            let slots = node.wrapping_add(guest.info().field("xa_node.slots")?.offset());
            entry = guest.u64(slots.wrapping_add(index * 8))?;
            if entry & 3 == NODE && entry < LARGEST_SIBLING {
                let first = entry >> 2;
                offset = index.saturating_sub(first);
                entry = guest.u64(slots.wrapping_add(first.min(63) * 8))?;
            }
        } else if index > 0 {
            return Ok(None);
        }
        let number = entry.checked_sub(self.vmemmap).filter(|_| entry != 0 && entry & 3 == 0);
        Ok(number.map(|at| (at / self.page).wrapping_add(offset).wrapping_mul(PAGE)))
    }
}
