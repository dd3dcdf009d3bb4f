//! PAGEMAP_SCAN over memory that userfaultfd write-protects asynchronously (Linux 6.7):
//! the page tables themselves say what was written, by whomever.
//! Documentation/admin-guide/mm/pagemap.rst and userfaultfd.rst.

use super::sys::ioctl;
use super::{check_sets, TrackError, TrackedSlot, Tracker, PAGE_SIZE};
use crate::page_set::PageSet;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
const PAGEMAP_SCAN: u64 = 0xc060_6610;

const UFFD_API: u64 = 0xaa;
/// WP_HUGETLBFS_SHMEM, WP_UNPOPULATED, WP_ASYNC.
const UFFD_FEATURES: u64 = 1 << 12 | 1 << 13 | 1 << 15;
const MODE_WP: u64 = 2;
const WRITEPROTECT_WP: u64 = 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
/// PM_SCAN_WP_MATCHING and PM_SCAN_CHECK_WPASYNC.
const SCAN_FLAGS: u64 = 1 | 2;

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
        // SAFETY: userfaultfd takes flags and returns a new descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        let Some(fd) = i32::try_from(fd).ok().filter(|&fd| fd >= 0) else {
            let hint = "; needs CAP_SYS_PTRACE or sysctl vm.unprivileged_userfaultfd=1";
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

    /// Adds what was written in a slot to its set, and protects it again.
    fn scan(&mut self, slot: &TrackedSlot, set: &mut PageSet) -> Result<usize, TrackError> {
        let Range { mut start, len } = Self::range(slot);
        let (base, end) = (start, start + len);
        let mut found = 0;
        while start < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: SCAN_FLAGS,
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
                let page = |at: u64| (at.clamp(base, end) - base) as usize / PAGE_SIZE;
                for page in page(region.start)..page(region.end) {
                    set.insert(page);
                    found += 1;
                }
            }
            if scan.walk_end <= start {
                break;
            }
            start = scan.walk_end;
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
        let slots = self.slots.clone();
        slots.iter().zip(sets).map(|(slot, set)| self.scan(slot, set)).sum()
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
