//! The newc cpio format that the kernel unpacks as its initramfs.
//!
//! Written here rather than by a tool so that the same guest is the same bytes:
//! sorted entries, no owners, no times, inodes counted from 1. Format:
//! the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`.

use crate::error::{Error, Result};

/// File type bits of `st_mode`.
pub(crate) const S_IFDIR: u32 = 0o040000;
pub(crate) const S_IFREG: u32 = 0o100000;
pub(crate) const S_IFLNK: u32 = 0o120000;
pub(crate) const S_IFCHR: u32 = 0o020000;

/// Appends entries to an archive in memory.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    inode: u32,
}

impl Writer {
    /// Appends one entry: path without leading slash, type and permission bits,
    /// device number (major, minor) and content.
    pub fn entry(
        &mut self,
        path: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> Result<()> {
        self.inode += 1;
        self.raw(path, mode, device, content)
    }

    fn raw(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        let size = u32::try_from(content.len())
            .map_err(|_| Error::TooLarge { path: path.into(), bytes: content.len() as u64 })?;
        let name_size = path.len() as u32 + 1;
        let links = if mode & S_IFDIR == S_IFDIR { 2 } else { 1 };
        let fields =
            [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    /// Ends the archive.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        self.inode = 0;
        self.raw("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.bytes)
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// (path, mode, inode, content) of every entry before the trailer.
    pub(crate) fn read(mut bytes: &[u8]) -> Vec<(String, u32, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |i: usize| {
                let text = std::str::from_utf8(&bytes[6 + i * 8..14 + i * 8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (inode, mode, size, name) = (field(0), field(1), field(6) as usize, field(11));
            assert_eq!(field(5), 0, "no times");
            let name_end = 110 + name as usize;
            let path = String::from_utf8(bytes[110..name_end - 1].to_vec()).unwrap();
            if path == "TRAILER!!!" {
                return entries;
            }
            let start = name_end.next_multiple_of(4);
            entries.push((path, mode, inode, bytes[start..start + size].to_vec()));
            bytes = &bytes[(start + size).next_multiple_of(4)..];
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            files in prop::collection::vec(("[a-z/]{1,40}", prop::collection::vec(any::<u8>(), 0..50)), 0..8)
        ) {
            let mut writer = Writer::default();
            for (path, content) in &files {
                writer.entry(path, S_IFREG | 0o644, (0, 0), content).unwrap();
            }
            let bytes = writer.finish().unwrap();
            prop_assert_eq!(bytes.len() % 4, 0);
            let back: Vec<_> = read(&bytes).into_iter().map(|(path, _, _, content)| (path, content)).collect();
            prop_assert_eq!(back, files);
        }
    }
}
