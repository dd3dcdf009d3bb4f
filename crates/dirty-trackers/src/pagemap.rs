// SPDX-License-Identifier: Apache-2.0 OR MIT

//! PAGEMAP_SCAN over memory that userfaultfd write-protects asynchronously (Linux 6.7):
//! the page tables themselves say what was written, by whomever.
//! Documentation/admin-guide/mm/pagemap.rst and userfaultfd.rst.

use crate::sys::ioctl;
use crate::{check_sets, page_size, TrackError, TrackedSlot, Tracker};
use dirty_log::PageSet;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
const PAGEMAP_SCAN: u64 = 0xc060_6610;

const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xaa;
/// WP_HUGETLBFS_SHMEM, WP_UNPOPULATED, WP_ASYNC.
const UFFD_FEATURES: u64 = 1 << 12 | 1 << 13 | 1 << 15;
const MODE_WP: u64 = 2;
const WRITEPROTECT_WP: u64 = 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PM_SCAN_WP_MATCHING: u64 = 1;
const PM_SCAN_CHECK_WPASYNC: u64 = 2;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// What the page tables say was written. Sees the guest's writes and this process's own.
#[derive(Debug)]
pub struct PagemapScan {
    faults: OwnedFd,
    pagemap: File,
    slots: Vec<TrackedSlot>,
    regions: Vec<Region>,
}

impl PagemapScan {
    /// For mappings of this process; no KVM is needed.
    ///
    /// # Errors
    /// The kernel is older than 6.7, or does not allow userfaultfd; a slot is not made of
    /// whole pages.
    pub fn new(slots: Vec<TrackedSlot>) -> Result<Self, TrackError> {
        slots.iter().try_for_each(TrackedSlot::check)?;
        // No fault is ever handed to user space, so faults in the kernel (KVM's among them)
        // are resolved as well, and no privilege is needed.
        let flags = libc::O_CLOEXEC | UFFD_USER_MODE_ONLY;
        // SAFETY: userfaultfd takes flags and returns a new descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let Some(fd) = i32::try_from(fd).ok().filter(|&fd| fd >= 0) else {
            let hint = "; it needs CONFIG_USERFAULTFD; if there is a seccomp filter, the filter \
                must allow userfaultfd(2)";
            return Err(TrackError::hinted("userfaultfd", hint));
        };
        // SAFETY: just opened, owned by nobody else.
        let faults = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut api = Api { api: UFFD_API, features: UFFD_FEATURES, ioctls: 0 };
        // SAFETY: UFFDIO_API takes this structure.
        unsafe { ioctl(fd, UFFDIO_API, &mut api, "UFFDIO_API(WP_ASYNC), Linux 6.7,") }?;
        let open = |source| TrackError::System { step: "/proc/self/pagemap", source, hint: "" };
        let pagemap = File::open("/proc/self/pagemap").map_err(open)?;
        Ok(Self { faults, pagemap, slots, regions: vec![Region::default(); 1024] })
    }

    fn range(slot: &TrackedSlot) -> Range {
        Range { start: slot.host.addr() as u64, len: slot.bytes as u64 }
    }

    /// Tells `found` each run of pages of a slot that was written in a part of it; with
    /// `protect`, protects them again.
    fn scan(
        &mut self,
        slot: &TrackedSlot,
        part: std::ops::Range<usize>,
        protect: bool,
        mut see: impl FnMut(std::ops::Range<usize>),
    ) -> Result<usize, TrackError> {
        let page_size = page_size();
        let base = Self::range(slot).start;
        let at = |page: usize| base + (page.min(slot.pages()) * page_size) as u64;
        let (mut start, end) = (at(part.start), at(part.end));
        let protect = if protect { PM_SCAN_WP_MATCHING } else { 0 };
        let mut found = 0;
        while start < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: PM_SCAN_CHECK_WPASYNC | protect,
                start,
                end,
                vec: self.regions.as_mut_ptr().expose_provenance() as u64,
                vec_len: self.regions.len() as u64,
                category_mask: PAGE_IS_WRITTEN,
                return_mask: PAGE_IS_WRITTEN,
                ..Scan::default()
            };
            let fd = self.pagemap.as_raw_fd();
            // SAFETY: PAGEMAP_SCAN takes this structure and writes at most `vec_len`
            // regions to `vec`.
            let count = unsafe { ioctl(fd, PAGEMAP_SCAN, &mut scan, "PAGEMAP_SCAN") }?;
            for region in self.regions.iter().take(count) {
                let page = |at: u64| (at.clamp(base, end) - base) as usize / page_size;
                let run = page(region.start)..page(region.end);
                found += run.len();
                see(run);
            }
            if scan.walk_end <= start {
                break;
            }
            start = scan.walk_end;
        }
        Ok(found)
    }
}

impl PagemapScan {
    fn look(&mut self, sets: &mut [PageSet], protect: bool) -> Result<usize, TrackError> {
        let mut found = 0;
        for (slot, set) in self.slots.clone().iter().zip(sets) {
            found += self.scan(slot, 0..slot.pages(), protect, |run| set.extend(run))?;
        }
        Ok(found)
    }
}

impl Tracker for PagemapScan {
    fn name(&self) -> &'static str {
        "pagemap-scan"
    }

    fn sees_host_writes(&self) -> bool {
        true
    }

    fn start(&mut self) -> Result<(), TrackError> {
        let fd = self.faults.as_raw_fd();
        for slot in &self.slots {
            let mut register = Register { range: Self::range(slot), mode: MODE_WP, ioctls: 0 };
            // SAFETY: UFFDIO_REGISTER takes this structure; asynchronous write protection
            // changes no content and stops no thread.
            unsafe { ioctl(fd, UFFDIO_REGISTER, &mut register, "UFFDIO_REGISTER(WP)") }?;
            let mut protect = WriteProtect { range: Self::range(slot), mode: WRITEPROTECT_WP };
            // SAFETY: as above.
            unsafe { ioctl(fd, UFFDIO_WRITEPROTECT, &mut protect, "UFFDIO_WRITEPROTECT") }?;
        }
        Ok(())
    }

    fn collect(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        check_sets(&self.slots, sets)?;
        self.look(sets, true)
    }

    fn is_apart(&self) -> bool {
        true
    }

    fn report(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        check_sets(&self.slots, sets)?;
        self.look(sets, false)
    }

    fn protect(&mut self, slot: usize, pages: std::ops::Range<usize>) -> Result<usize, TrackError> {
        let Some(slot) = self.slots.get(slot).copied() else { return Ok(0) };
        self.scan(&slot, pages, true, drop)
    }

    fn stop(&mut self) -> Result<(), TrackError> {
        let fd = self.faults.as_raw_fd();
        for slot in &self.slots {
            let mut range = Self::range(slot);
            // SAFETY: UFFDIO_UNREGISTER takes this structure.
            unsafe { ioctl(fd, UFFDIO_UNREGISTER, &mut range, "UFFDIO_UNREGISTER") }?;
        }
        Ok(())
    }
}
