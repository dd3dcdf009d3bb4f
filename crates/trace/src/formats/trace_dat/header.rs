//! The head of a trace.dat: versions 6 and 7, as trace-cmd.dat.v6(5) and
//! trace-cmd.dat.v7(5) describe them.
//!
//! Every size in the file is untrusted: reads are clipped to the file, and
//! unpacked sections to [`Sections::budget`].

use super::fields::{parse_field, parse_format};
use super::symbols::Symbols;
use crate::event::EventType;
use crate::input::RandomAccess;
use std::collections::HashMap;
use std::io::Read;

/// `common_type` has 16 bits.
const TYPES: usize = 1 << 16;

/// No event type has this index.
pub const NO_KIND: u32 = u32::MAX;

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

/// Where one CPU's pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuData {
    /// CPU number.
    pub cpu: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub size: u64,
    /// How its chunks are packed.
    pub packing: Packing,
}

/// One ring buffer (trace instance).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Name; empty for the top instance.
    pub name: String,
    /// Clock, if the buffer says.
    pub clock: String,
    /// Bytes of a page.
    pub page_size: u32,
    /// CPUs.
    pub cpus: Vec<CpuData>,
}

/// Layout of a ring buffer page's head, from `events/header_page`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHead {
    /// Offset of the `commit` word.
    pub commit: u32,
    /// Its size: the kernel's `long`.
    pub commit_size: u32,
    /// Offset of the first event.
    pub data: u32,
}

impl Default for PageHead {
    fn default() -> PageHead {
        PageHead { commit: 8, commit_size: 8, data: 16 }
    }
}

/// Everything before the pages.
#[derive(Default)]
pub struct Header {
    pub(super) page: PageHead,
    pub(super) kinds: Vec<EventType>,
    /// Index into `kinds` by `common_type`.
    pub(super) by_type: Vec<u32>,
    pub(super) symbols: Symbols,
    pub(super) threads: HashMap<i32, String>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) clock: String,
    /// Multiplier and shift that turn TSC stamps into ns.
    pub(super) tsc_to_ns: Option<(u32, u32)>,
    /// Added to every stamp.
    pub(super) offset: i64,
    pub(super) guests: Vec<(String, u32, i32)>,
    pub(super) missing: Vec<String>,
}

impl Header {
    fn add_format(&mut self, system: &str, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        let Some((id, mut kind)) = parse_format(system, &text) else {
            self.missing.push(format!("a format text of the events in {system} is not one"));
            return;
        };
        kind.id = self.kinds.len() as u32;
        self.by_type[id as usize] = kind.id;
        self.kinds.push(kind);
    }

    fn set_page_head(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        for field in
            text.lines().filter_map(|l| parse_field(l.trim_start().strip_prefix("field:")?))
        {
            match field.name.as_str() {
                "commit" if matches!(field.size, 4 | 8) => {
                    self.page.commit = field.offset;
                    self.page.commit_size = field.size;
                }
                "data" => self.page.data = field.offset,
                _ => {}
            }
        }
    }

    fn set_threads(&mut self, text: &[u8]) {
        for line in String::from_utf8_lossy(text).lines() {
            if let Some((tid, name)) = line.trim_start().split_once(' ') {
                if let Ok(tid) = tid.parse() {
                    self.threads.insert(tid, name.to_string());
                }
            }
        }
    }
}

/// Sequential reading of a file's sections, bounded by what is there.
pub struct Sections<'a> {
    file: &'a RandomAccess,
    at: u64,
    /// Bytes of an unpacked section, while one is read instead of the file.
    section: Option<(Vec<u8>, usize)>,
}

type Parse<T> = Result<T, String>;

impl<'a> Sections<'a> {
    pub fn new(file: &'a RandomAccess, at: u64) -> Sections<'a> {
        Sections { file, at, section: None }
    }

    /// Most bytes that anything unpacked from this file may take.
    pub fn budget(file: &RandomAccess) -> u64 {
        file.len().saturating_mul(8).saturating_add(4 << 20)
    }

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

    pub fn u16(&mut self) -> Parse<u16> {
        let b = self.bytes(2)?;
        Ok(u16::from_le_bytes([b[0], b[1]]))
    }

    pub fn u32(&mut self) -> Parse<u32> {
        let b = self.bytes(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    pub fn u64(&mut self) -> Parse<u64> {
        let low = u64::from(self.u32()?);
        Ok(low | u64::from(self.u32()?) << 32)
    }

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

    fn rest(&self) -> usize {
        self.section.as_ref().map_or(0, |(s, at)| s.len() - at)
    }
}

/// Reads the head after the magic; `Err` says what was expected and found.
pub fn read(file: &RandomAccess) -> Parse<Header> {
    let mut header = Header { by_type: vec![NO_KIND; TYPES], ..Header::default() };
    let mut s = Sections::new(file, 10);
    let version = s.string()?;
    let endian = s.bytes(1)?[0];
    if endian != 0 {
        return Err(
            "it was recorded on a big-endian machine, and vmeter reads little-endian ones \
                    only; `trace-cmd report -R` makes a text that it reads"
                .into(),
        );
    }
    let _long_size = s.bytes(1)?;
    let page_size = s.u32()?;
    match version.as_str() {
        "6" => read_v6(&mut s, &mut header, page_size)?,
        "7" => read_v7(&mut s, &mut header, page_size)?,
        other => {
            return Err(format!(
                "its version is {other:?} and vmeter reads 6 and 7; try `trace-cmd convert \
                 --file-version 7`"
            ))
        }
    }
    Ok(header)
}

fn read_v6(s: &mut Sections<'_>, header: &mut Header, page_size: u32) -> Parse<()> {
    read_header_info(s, header)?;
    read_ftrace_formats(s, header)?;
    read_event_formats(s, header)?;
    let size = s.u32()?;
    header.symbols = Symbols::parse(s.bytes(u64::from(size))?);
    let size = s.u32()?;
    s.bytes(u64::from(size))?;
    let size = s.u64()?;
    let threads = s.bytes(size)?;
    header.set_threads(&threads);
    let mut cpus = s.u32()?;
    let mut others = Vec::new();
    let mut kind = s.bytes(10)?;
    if kind == b"options  \0" {
        loop {
            let id = s.u16()?;
            if id == 0 {
                break;
            }
            let size = s.u32()?;
            let data = s.bytes(u64::from(size))?;
            match (id, data.as_slice()) {
                (3, [offset @ .., _]) if offset.len() >= 8 => {
                    let at = u64::from_le_bytes(data[..8].try_into().unwrap_or_default());
                    others.push((at, c_string(&data[8..])));
                }
                (8, &[a, b, c, d]) => cpus = u32::from_le_bytes([a, b, c, d]),
                _ => read_option(header, id, &data),
            }
        }
        kind = s.bytes(10)?;
    }
    let mut places = vec![(s.position(), kind, String::new())];
    for (at, name) in others {
        let mut there = Sections::new(s.file, at);
        match there.bytes(10) {
            Ok(kind) => places.push((there.position(), kind, name)),
            Err(e) => header.missing.push(format!("buffer {name:?}: {e}")),
        }
    }
    for (at, kind, name) in places {
        if kind != b"flyrecord\0" {
            header.missing.push(format!(
                "buffer {name:?} holds no flight recorder data but {:?}",
                String::from_utf8_lossy(&kind)
            ));
            continue;
        }
        let mut table = Sections::new(s.file, at);
        let mut buffer = Buffer { name, page_size, ..Buffer::default() };
        for cpu in 0..cpus {
            match (table.u64(), table.u64()) {
                (Ok(offset), Ok(size)) => {
                    let packing = Packing::None;
                    buffer.cpus.push(CpuData { cpu, offset, size, packing });
                }
                _ => {
                    header.missing.push(format!("the data of CPU {cpu} and up: no table entry"));
                    break;
                }
            }
        }
        header.buffers.push(buffer);
    }
    Ok(())
}

fn read_v7(s: &mut Sections<'_>, header: &mut Header, page_size: u32) -> Parse<()> {
    let name = s.string()?;
    let _version = s.string()?;
    let packing = match name.as_str() {
        "none" => Packing::None,
        "zstd" => Packing::Zstd,
        "zlib" => Packing::Zlib,
        other => return Err(format!("it is packed with {other:?}; vmeter unpacks zstd and zlib")),
    };
    let mut next = s.u64()?;
    let mut seen = Vec::new();
    while next != 0 && seen.len() < 64 && !seen.contains(&next) {
        seen.push(next);
        match read_options(s.file, next, packing, page_size, header) {
            Ok(offset) => next = offset,
            Err(e) => {
                header.missing.push(format!("options at {next}: {e}"));
                break;
            }
        }
    }
    if header.buffers.is_empty() && header.kinds.is_empty() {
        return Err(format!("nothing in it can be read: {}", header.missing.join("; ")));
    }
    Ok(())
}

/// Reads one options section and what it points to; gives the next one's offset.
fn read_options(
    file: &RandomAccess,
    at: u64,
    packing: Packing,
    page_size: u32,
    header: &mut Header,
) -> Parse<u64> {
    let mut s = Sections::new(file, at);
    s.enter(at, packing)?;
    while s.rest() >= 6 {
        let id = s.u16()?;
        let size = s.u32()?;
        let data = s.bytes(u64::from(size))?;
        let number = data.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        match (id, number) {
            (0, next) => return Ok(next.unwrap_or(0)),
            (3, Some(_)) => match read_buffer(file, &data, packing, page_size) {
                Ok(buffer) => header.buffers.push(buffer),
                Err(e) => header.missing.push(format!("a buffer: {e}")),
            },
            (16..=21, Some(section)) => {
                if let Err(e) = read_section(file, id, section, packing, header) {
                    header.missing.push(format!("the section of option {id}: {e}"));
                }
            }
            _ => read_option(header, id, &data),
        }
    }
    Ok(0)
}

fn read_section(
    file: &RandomAccess,
    id: u16,
    at: u64,
    packing: Packing,
    header: &mut Header,
) -> Parse<()> {
    let mut s = Sections::new(file, at);
    s.enter(at, packing)?;
    match id {
        16 => read_header_info(&mut s, header),
        17 => read_ftrace_formats(&mut s, header),
        18 => read_event_formats(&mut s, header),
        19 => {
            let size = s.u32()?;
            header.symbols = Symbols::parse(s.bytes(u64::from(size))?);
            Ok(())
        }
        21 => {
            let size = s.u64()?;
            let text = s.bytes(size)?;
            header.set_threads(&text);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn read_header_info(s: &mut Sections<'_>, header: &mut Header) -> Parse<()> {
    if s.string()? != "header_page" {
        return Err("no header_page was found where it belongs".into());
    }
    let size = s.u64()?;
    let text = s.bytes(size)?;
    header.set_page_head(&text);
    if s.string()? != "header_event" {
        return Err("no header_event was found where it belongs".into());
    }
    let size = s.u64()?;
    s.bytes(size)?;
    Ok(())
}

fn read_ftrace_formats(s: &mut Sections<'_>, header: &mut Header) -> Parse<()> {
    for _ in 0..s.u32()? {
        let size = s.u64()?;
        let text = s.bytes(size)?;
        header.add_format("ftrace", &text);
    }
    Ok(())
}

fn read_event_formats(s: &mut Sections<'_>, header: &mut Header) -> Parse<()> {
    for _ in 0..s.u32()? {
        let system = s.string()?;
        for _ in 0..s.u32()? {
            let size = s.u64()?;
            let text = s.bytes(size)?;
            header.add_format(&system, &text);
        }
    }
    Ok(())
}

fn read_buffer(
    file: &RandomAccess,
    data: &[u8],
    packing: Packing,
    page_size: u32,
) -> Parse<Buffer> {
    let mut s = Sections::new(file, 0);
    s.section = Some((data.to_vec(), 0));
    let section = s.u64()?;
    let mut buffer = Buffer { name: s.string()?, clock: s.string()?, page_size, cpus: Vec::new() };
    buffer.page_size = s.u32()?;
    let flags = file.read_vec(section + 2, 2).map_err(|e| e.to_string())?;
    let packing = match flags.as_slice() {
        [low, _] if low & 1 != 0 => packing,
        [_, _] => Packing::None,
        _ => return Err(format!("its section at {section} is past the end of the file")),
    };
    for _ in 0..s.u32()? {
        let (cpu, offset, size) = (s.u32()?, s.u64()?, s.u64()?);
        buffer.cpus.push(CpuData { cpu, offset, size, packing });
    }
    Ok(buffer)
}

/// Options that mean the same in both versions.
fn read_option(header: &mut Header, id: u16, data: &[u8]) {
    let word = |at: usize| {
        let bytes = data.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    match id {
        4 => header.clock = selected_clock(&c_string(data)),
        7 => header.offset = c_string(data).trim().parse().unwrap_or(0),
        13 => read_guest(header, data),
        14 => {
            if let (Some(mult), Some(shift @ 0..=63)) = (word(0), word(4)) {
                header.tsc_to_ns = (mult != 0).then_some((mult, shift));
            }
        }
        _ => {}
    }
}

fn read_guest(header: &mut Header, data: &[u8]) {
    let name = c_string(data);
    let Some(rest) = data.get(name.len() + 1 + 8 + 4..) else { return };
    for pair in rest.chunks_exact(8) {
        let number =
            |at: usize| u32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
        header.guests.push((name.clone(), number(0), number(4) as i32));
    }
}

/// `local global [x86-tsc]` names the clock in brackets; a bare name is itself.
fn selected_clock(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text.trim(), |(name, _)| name).to_string()
}

fn c_string(data: &[u8]) -> String {
    let end = memchr::memchr(0, data).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}
