//! Packed blocks, and sequential reading that trusts no size.

use crate::input::RandomAccess;
use std::io::Read;

/// How sections and chunks are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// Not at all.
    #[default]
    None,
    /// Zstandard frames.
    Zstd,
    /// zlib streams.
    Zlib,
}

/// Unpacks blocks, reusing what the decompressor allocates.
#[derive(Default)]
pub struct Unpacker {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Unpacker {
    /// Unpacks one block into `out`; an error if it needs more than `limit` bytes.
    pub fn unpack(
        &mut self,
        packing: Packing,
        packed: &[u8],
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        out.clear();
        let unpacked = match packing {
            Packing::None => {
                out.extend_from_slice(packed);
                Ok(packed.len())
            }
            Packing::Zstd => self.unpack_zstd(packed, limit, out),
            Packing::Zlib => {
                flate2::read::ZlibDecoder::new(packed).take(limit as u64).read_to_end(out)
            }
        };
        unpacked.map(|_| ()).map_err(|e| format!("a block of {} bytes: {e}", packed.len()))
    }

    fn unpack_zstd(
        &mut self,
        packed: &[u8],
        limit: usize,
        out: &mut Vec<u8>,
    ) -> std::io::Result<usize> {
        out.reserve(limit);
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            none => none.insert(zstd::bulk::Decompressor::new()?),
        };
        zstd.decompress_to_buffer(packed, out)
    }
}

/// Sequential reading of a file's sections, bounded by what is there.
pub struct Sections<'a> {
    pub(super) file: &'a RandomAccess,
    at: u64,
    /// Bytes of an unpacked section, while one is read instead of the file.
    section: Option<(Vec<u8>, usize)>,
}

/// What was expected and found, if it can't be had.
pub type Parse<T> = Result<T, String>;

impl<'a> Sections<'a> {
    /// The file from `at` on.
    pub fn new(file: &'a RandomAccess, at: u64) -> Sections<'a> {
        Sections { file, at, section: None }
    }

    /// Bytes in memory, read like a section.
    pub fn of_bytes(file: &'a RandomAccess, bytes: &[u8]) -> Sections<'a> {
        Sections { file, at: 0, section: Some((bytes.to_vec(), 0)) }
    }

    /// Most bytes that anything unpacked from this file may take.
    pub fn budget(file: &RandomAccess) -> u64 {
        file.len().saturating_mul(8).saturating_add(4 << 20)
    }

    /// The next `size` bytes.
    pub fn bytes(&mut self, size: u64) -> Parse<Vec<u8>> {
        if let Some((section, at)) = &mut self.section {
            let end = usize::try_from(size).ok().and_then(|s| at.checked_add(s));
            let part = end.and_then(|end| section.get(*at..end));
            let part = part.ok_or_else(|| format!("a section ends {size} bytes too early"))?;
            *at += part.len();
            return Ok(part.to_vec());
        }
        let bytes = self.file.read_vec(self.at, size).map_err(|e| e.to_string())?;
        if bytes.len() as u64 != size {
            return Err(format!(
                "the file ends at {} bytes, {size} more were expected at {}",
                self.file.len(),
                self.at
            ));
        }
        self.at += size;
        Ok(bytes)
    }

    /// A 16-bit number.
    pub fn u16(&mut self) -> Parse<u16> {
        let b = self.bytes(2)?;
        Ok(u16::from_le_bytes([b[0], b[1]]))
    }

    /// A 32-bit number.
    pub fn u32(&mut self) -> Parse<u32> {
        let b = self.bytes(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// A 64-bit number.
    pub fn u64(&mut self) -> Parse<u64> {
        let low = u64::from(self.u32()?);
        Ok(low | u64::from(self.u32()?) << 32)
    }

    /// Text up to its NUL.
    pub fn string(&mut self) -> Parse<String> {
        let mut text = Vec::new();
        loop {
            match self.bytes(1)?[0] {
                0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
                _ if text.len() >= 4096 => return Err("a name is longer than 4096 bytes".into()),
                byte => text.push(byte),
            }
        }
    }

    /// Offset in the file.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Enters the version 7 section at `at`: (id, size), unpacked if it is packed.
    pub fn enter(&mut self, at: u64, packing: Packing) -> Parse<u16> {
        self.at = at;
        self.section = None;
        let id = self.u16()?;
        let flags = self.u16()?;
        let _description = self.u32()?;
        let size = self.u64()?;
        let packed = flags & 1 != 0;
        let bytes = if packed {
            let (len, unpacked) = (self.u32()?, self.u32()?);
            let limit = u64::from(unpacked).min(Sections::budget(self.file));
            let mut out = Vec::new();
            let block = self.bytes(u64::from(len))?;
            Unpacker::default().unpack(packing, &block, limit as usize, &mut out)?;
            out
        } else {
            self.file.read_vec(self.at, size).map_err(|e| e.to_string())?
        };
        self.section = Some((bytes, 0));
        Ok(id)
    }

    /// Bytes of the section that are left.
    pub fn rest(&self) -> usize {
        self.section.as_ref().map_or(0, |(s, at)| s.len() - at)
    }
}
