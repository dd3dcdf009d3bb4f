//! Guest memory: one host mapping a slot.

use crate::error::VmError;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;

/// Where a slot's pages come from.
#[derive(Debug, Default)]
pub enum Backing {
    /// Private anonymous memory.
    #[default]
    Anonymous,
    /// A shared mapping of a file from its start, e.g. a memfd that others map too.
    File(File),
}

/// A memory slot to be made.
#[derive(Debug)]
pub struct SlotSpec {
    pub(crate) gpa: u64,
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
    pub(crate) backing: Backing,
    pub(crate) populate: bool,
}

impl SlotSpec {
    /// `bytes` of anonymous memory at guest-physical address `gpa`, both page-aligned.
    pub fn new(gpa: u64, bytes: u64) -> Self {
        Self { gpa, bytes, flags: 0, backing: Backing::Anonymous, populate: false }
    }

    /// `KVM_MEM_LOG_DIRTY_PAGES` from the start.
    pub fn log_dirty(self) -> Self {
        self.flags(kvm_bindings::KVM_MEM_LOG_DIRTY_PAGES)
    }

    /// `KVM_MEM_*` flags, added to those set already.
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    /// Where the pages come from.
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// Touch every host page before the guest runs, so that it meets no first-touch faults
    /// of the host's.
    pub fn populate(mut self) -> Self {
        self.populate = true;
        self
    }

    pub(crate) fn end(&self) -> Option<u64> {
        self.gpa.checked_add(self.bytes)
    }
}

/// A memory slot of a VM.
#[derive(Debug)]
pub struct GuestSlot {
    id: u32,
    gpa: u64,
    map: MmapRaw,
}

impl GuestSlot {
    pub(crate) fn map(id: u32, spec: &SlotSpec) -> Result<Self, VmError> {
        let bytes = usize::try_from(spec.bytes)
            .map_err(|_| VmError::Layout(format!("slot of {:#x} bytes", spec.bytes)))?;
        let mut options = MmapOptions::new();
        options.len(bytes);
        if spec.populate {
            options.populate();
        }
        let map = match &spec.backing {
            Backing::Anonymous => options.map_anon().map(MmapRaw::from),
            Backing::File(file) => options.map_raw(file),
        };
        let map = map.map_err(|source| VmError::System {
            step: format!("mmap of {bytes} bytes of guest memory"),
            source,
        })?;
        Ok(Self { id, gpa: spec.gpa, map })
    }

    /// Slot number, as `KVM_GET_DIRTY_LOG` wants it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Guest-physical address of its first byte.
    pub fn gpa(&self) -> u64 {
        self.gpa
    }

    /// Size, bytes.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// First byte in the host's address space. The guest may write behind it at any time.
    pub fn host(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Copies `data` into the slot.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), VmError> {
        let at = self.checked(offset, data.len())?;
        // SAFETY: `checked` keeps the range inside the mapping, which lives as long as self;
        // `data` is no part of guest memory as safe code has no references to that.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.host().add(at), data.len()) };
        Ok(())
    }

    /// Copies bytes out of the slot.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), VmError> {
        let at = self.checked(offset, into.len())?;
        // SAFETY: as in `write`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.host().add(at), into.as_mut_ptr(), into.len())
        };
        Ok(())
    }

    fn checked(&self, offset: u64, len: usize) -> Result<usize, VmError> {
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes());
        if inside {
            Ok(offset as usize)
        } else {
            Err(VmError::OutOfSlot { offset, len, slot_bytes: self.bytes() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn accesses_stay_inside(offset in any::<u64>(), len in 0usize..10_000) {
            let slot = GuestSlot::map(1, &SlotSpec::new(0, 8192)).unwrap();
            let fits = offset.checked_add(len as u64).is_some_and(|e| e <= 8192);
            prop_assert_eq!(slot.write(offset, &vec![7; len]).is_ok(), fits);
            let mut back = vec![0; len];
            prop_assert_eq!(slot.read(offset, &mut back).is_ok(), fits);
            if fits {
                prop_assert!(back.iter().all(|&b| b == 7));
            }
        }
    }

    #[test]
    fn a_file_backs_a_slot() {
        // SAFETY: memfd_create takes a NUL-terminated name; the fd is owned from here on.
        let file = unsafe {
            let fd = libc::memfd_create(c"slot".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
        };
        file.set_len(4096).unwrap();
        let spec = SlotSpec::new(0, 4096).backing(Backing::File(file.try_clone().unwrap()));
        let slot = GuestSlot::map(1, &spec).unwrap();
        slot.write(5, b"guest").unwrap();
        let mut back = [0; 5];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, 5).unwrap();
        assert_eq!(&back, b"guest");
    }
}
