//! What KVM counts: exits, page faults (KVM_GET_STATS_FD, Linux 5.14;
//! Documentation/virt/kvm/api.rst, 4.134).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

const KVM_GET_STATS_FD: u64 = 0xaece;
const HEADER: usize = 24;
const DESCRIPTOR: usize = 16;
/// More than any kernel has, so that nonsense is not allocated.
const MOST: usize = 4096;

/// The counters of a VM or a vCPU.
#[derive(Debug)]
pub struct Counters {
    file: File,
    /// Name and place of each.
    fields: Vec<(String, u64)>,
}

/// Values by name.
pub type Counts = BTreeMap<String, u64>;

impl Counters {
    /// Those of a VM's or a vCPU's file; none where KVM has not got them.
    pub fn of(owner: &impl AsRawFd) -> Option<Self> {
        // SAFETY: the request takes no argument and returns a new descriptor or an error;
        // on a file that is not KVM's it returns ENOTTY.
        let fd = unsafe { libc::ioctl(owner.as_raw_fd(), KVM_GET_STATS_FD as _, 0) };
        if fd < 0 {
            return None;
        }
        // SAFETY: just opened, owned by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).ok()?;
        let (name_size, count, at) =
            (number(&header, 4)?, number(&header, 8)?, number(&header, 16)?);
        let (name_size, count) = (name_size as usize, count as usize);
        if name_size > MOST || count > MOST {
            return None;
        }
        let mut descriptors = vec![0; count * (DESCRIPTOR + name_size)];
        file.read_exact_at(&mut descriptors, at.into()).ok()?;
        let data = number(&header, 20)?;
        Some(Self { file, fields: fields(&descriptors, name_size, data) })
    }

    /// Adds what they are now.
    pub fn add_to(&self, counts: &mut Counts) {
        for (name, at) in &self.fields {
            let mut value = [0; 8];
            if self.file.read_exact_at(&mut value, *at).is_ok() {
                *counts.entry(name.clone()).or_default() += u64::from_le_bytes(value);
            }
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The counters proper: cumulative, one value each.
fn fields(descriptors: &[u8], name_size: usize, data: u32) -> Vec<(String, u64)> {
    const TYPE: u32 = 0xf;
    let field = |descriptor: &[u8]| {
        let flags = number(descriptor, 0)?;
        let size = u16::from_le_bytes(descriptor.get(6..8)?.try_into().ok()?);
        let offset = number(descriptor, 8)?;
        let name = descriptor.get(DESCRIPTOR..)?.split(|&byte| byte == 0).next()?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        (flags & TYPE == 0 && size == 1).then(|| (name, u64::from(data) + u64::from(offset)))
    };
    descriptors.chunks_exact(DESCRIPTOR + name_size).filter_map(field).collect()
}

/// What was counted between two readings.
pub fn difference(before: &Counts, after: &Counts) -> Counts {
    let since = |(name, value): (&String, &u64)| {
        let new = value.saturating_sub(before.get(name).copied().unwrap_or(0));
        (new > 0).then(|| (name.clone(), new))
    };
    after.iter().filter_map(since).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn descriptors_are_read_by_their_layout() {
        let mut bytes = Vec::new();
        for (flags, size, offset, name) in [
            (0u32, 1u16, 8u32, b"exits\0\0\0"),
            (1, 1, 16, b"now\0\0\0\0\0"),
            (0, 2, 24, b"hist\0\0\0\0"),
        ] {
            bytes.extend(flags.to_le_bytes());
            bytes.extend([0; 2]);
            bytes.extend(size.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(name);
        }
        assert_eq!(fields(&bytes, 8, 100), [("exits".to_owned(), 108)]);
        assert!(Counters::of(&File::open("/dev/null").unwrap()).is_none());
        let counts = |exits: u64| Counts::from([("exits".to_owned(), exits), ("x".to_owned(), 1)]);
        assert_eq!(difference(&counts(3), &counts(9)), Counts::from([("exits".to_owned(), 6)]));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much(bytes in prop::collection::vec(any::<u8>(), 0..300), size in 0usize..64) {
            let _ = fields(&bytes, size, u32::MAX);
        }
    }
}
