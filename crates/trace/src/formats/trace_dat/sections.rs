//! Packed blocks, and sequential reading that trusts no size.

use crate::input::RandomAccess;
use std::io::Read;
use vmeter_base::bounds::Budget;

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
    /// Unpacks one block into `out`; an error if it needs more than `limit` bytes, or all
    /// blocks together more than the file may have.
    pub fn unpack(
        &mut self,
        packing: Packing,
        packed: &[u8],
        limit: usize,
        out: &mut Vec<u8>,
        budget: &Budget,
    ) -> Result<(), String> {
        out.clear();
        if let Some(exceeded) = budget.exceeded() {
            return Err(exceeded.to_string());
        }
        let unpacked = match packing {
            Packing::None => {
                out.extend_from_slice(packed);
                return Ok(());
            }
            Packing::Zstd => self.unpack_zstd(packed, limit, out),
            Packing::Zlib => {
                flate2::read::ZlibDecoder::new(packed).take(limit as u64).read_to_end(out)
            }
        };
        budget.unpack(out.len() as u64).map_err(|e| e.to_string())?;
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

/// Sequential reading of a file's sections. No size is trusted, and what is handed out to be
/// kept is taken account of.
pub struct Sections<'a> {
    pub(super) file: &'a RandomAccess,
    at: u64,
    /// Bytes of the file that were read in one go, and where they are in it.
    window: Vec<u8>,
    window_at: u64,
    /// Bytes of an unpacked section, while one is read instead of the file.
    section: Option<(Vec<u8>, usize)>,
}

/// What was expected and found, if it can't be had.
pub type Parse<T> = Result<T, String>;

/// Bytes of the file that are read in one go.
const WINDOW: u64 = 4096;

/// What an item of a list is taken for beside its own bytes.
const ITEM: u64 = 64;

impl<'a> Sections<'a> {
    /// The file from `at` on.
    pub fn new(file: &'a RandomAccess, at: u64) -> Sections<'a> {
        Sections { file, at, window: Vec::new(), window_at: 0, section: None }
    }

    /// A part of the file, read like a section.
    pub fn of_part(file: &'a RandomAccess, at: u64, size: u64) -> Parse<Sections<'a>> {
        let mut sections = Sections::new(file, at);
        sections.hold(size.min(file.len()))?;
        let bytes = file.read_vec(at, size).map_err(|e| e.to_string())?;
        sections.section = Some((bytes, 0));
        Ok(sections)
    }

    /// Bytes in memory, read like a section.
    pub fn of_bytes(file: &'a RandomAccess, bytes: Vec<u8>) -> Parse<Sections<'a>> {
        let mut sections = Sections::new(file, 0);
        sections.hold(bytes.len() as u64)?;
        sections.section = Some((bytes, 0));
        Ok(sections)
    }

    /// Takes account of an item of a list, so that no count makes a list without end.
    pub fn item(&self, bytes: u64, what: &'static str) -> Parse<()> {
        self.file.budget().keep(bytes.saturating_add(ITEM), what).map_err(|e| e.to_string())
    }

    fn hold(&self, bytes: u64) -> Parse<()> {
        self.file.budget().keep(bytes, "sections").map_err(|e| e.to_string())
    }

    /// The next `size` bytes, to be kept.
    pub fn bytes(&mut self, size: u64, what: &'static str) -> Parse<Vec<u8>> {
        let there = match &self.section {
            Some((section, at)) => (section.len() - at) as u64,
            None => self.file.len().saturating_sub(self.at),
        };
        if size > there {
            return Err(match self.section {
                Some(_) => format!("a section ends {} bytes too early", size - there),
                None => format!(
                    "the file ends at byte {}, but needs {size} bytes from byte {} on",
                    self.file.len(),
                    self.at
                ),
            });
        }
        self.item(size, what)?;
        let mut bytes = vec![0; usize::try_from(size).map_err(|e| e.to_string())?];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Passes over the next `size` bytes.
    pub fn skip(&mut self, size: u64) -> Parse<()> {
        match &mut self.section {
            Some((section, at)) => {
                let next = usize::try_from(size).ok().and_then(|size| at.checked_add(size));
                let next = next.filter(|next| *next <= section.len());
                *at = next.ok_or_else(|| {
                    format!("a section ends too early: expected {size} more bytes")
                })?;
            }
            None => {
                let next = self.at.checked_add(size).filter(|next| *next <= self.file.len());
                self.at = next.ok_or_else(|| {
                    format!(
                        "the file ends at byte {}, inside a part of {size} bytes that begins at \
                        byte {}",
                        self.file.len(),
                        self.at
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Fills all of `out` with the next bytes.
    fn fill(&mut self, out: &mut [u8]) -> Parse<()> {
        if let Some((section, at)) = &mut self.section {
            let part = section.get(*at..*at + out.len());
            out.copy_from_slice(part.ok_or_else(|| "a section ends too early".to_string())?);
            *at += out.len();
            return Ok(());
        }
        let size = out.len() as u64;
        let within = |at: u64, window_at: u64, window: &[u8]| {
            let start = usize::try_from(at.checked_sub(window_at)?).ok()?;
            (start.checked_add(out.len())? <= window.len()).then_some(start)
        };
        if within(self.at, self.window_at, &self.window).is_none() && size <= WINDOW {
            self.window = self.file.read_vec(self.at, WINDOW).map_err(|e| e.to_string())?;
            self.window_at = self.at;
        }
        let got = match within(self.at, self.window_at, &self.window) {
            Some(start) => {
                out.copy_from_slice(&self.window[start..start + out.len()]);
                out.len()
            }
            None if size <= WINDOW => self.window.len(),
            None => self.file.read_at(self.at, out).map_err(|e| e.to_string())?,
        };
        if got < out.len() {
            return Err(format!(
                "the file ends at byte {}, but needs {size} bytes from byte {} on",
                self.file.len(),
                self.at
            ));
        }
        self.at += size;
        Ok(())
    }

    /// So many bytes.
    pub fn array<const N: usize>(&mut self) -> Parse<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// A byte.
    pub fn u8(&mut self) -> Parse<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// A 16-bit number.
    pub fn u16(&mut self) -> Parse<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A 32-bit number.
    pub fn u32(&mut self) -> Parse<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A 64-bit number.
    pub fn u64(&mut self) -> Parse<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Text up to its NUL.
    pub fn string(&mut self) -> Parse<String> {
        let mut text = Vec::new();
        loop {
            match self.u8()? {
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
        self.leave();
        let id = self.u16()?;
        let flags = self.u16()?;
        let _description = self.u32()?;
        let size = self.u64()?;
        let packed = flags & 1 != 0;
        let bytes = if packed {
            let (len, unpacked) = (self.u32()?, self.u32()?);
            let block = self.bytes(u64::from(len), "packed sections")?;
            self.hold(u64::from(unpacked))?;
            let mut out = Vec::new();
            let budget = self.file.budget();
            Unpacker::default().unpack(packing, &block, unpacked as usize, &mut out, budget)?;
            out
        } else {
            self.hold(size.min(self.file.len()))?;
            self.file.read_vec(self.at, size).map_err(|e| e.to_string())?
        };
        self.section = Some((bytes, 0));
        Ok(id)
    }

    /// Bytes of the section that are left.
    pub fn rest(&self) -> usize {
        self.section.as_ref().map_or(0, |(s, at)| s.len() - at)
    }

    fn leave(&mut self) {
        if let Some((section, _)) = self.section.take() {
            self.file.budget().give_back(section.len() as u64);
        }
    }
}

impl Drop for Sections<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
