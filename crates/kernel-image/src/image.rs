//! A kernel file, opened down to the ELF that the guest runs.
//!
//! A bzImage is a boot sector, a set-up part and a compressed vmlinux whose
//! place the header gives (`payload_offset`, boot protocol 2.08). That vmlinux
//! has no symbol table, but all of the kernel's own: kallsyms and BTF.

use crate::bytes::{u16_at, u32_at};
use crate::decompress::Format;
use crate::error::{Error, Result};
use crate::kallsyms;
use crate::ram::KERNEL_MAP;
use crate::symbols::Symbols;
use object::read::elf::{ElfFile64, FileHeader as _};
use object::{Endianness, Object as _, ObjectSection as _};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vmeter_base::bounds::{Budget, KERNEL};
use vmeter_base::files;

/// The ELF note by which a vmlinux says where PVH enters it (`XEN_ELFNOTE_PHYS32_ENTRY`).
const NOTE_PHYS32_ENTRY: u32 = 18;
/// Longest `linux_banner` accepted, bytes.
const MAX_BANNER: usize = 1024;
/// The GNU build id note.
const NOTE_GNU_BUILD_ID: u32 = 3;
/// The largest kernel accepted, bytes. A distribution's is 40 to 80 MiB unpacked; one with
/// every driver built in and debug information is below 1 GiB.
const MAX_FILE: u64 = 1 << 30;
/// Most segments, sections and notes that are looked at; a kernel has some dozens, one
/// built with a section for each function some tens of thousands.
const MAX_PARTS: usize = 1 << 17;
/// Longest name of a section.
const MAX_SECTION_NAME: usize = 256;

/// A loadable segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Link-time virtual address.
    pub virtual_address: u64,
    /// Offset in the ELF, bytes.
    pub offset: u64,
    /// Bytes in the file; the rest of its memory is zero.
    pub file_size: u64,
    /// Bytes in memory.
    pub memory_size: u64,
}

/// A section with data in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Section {
    name: String,
    address: u64,
    offset: u64,
    size: u64,
}

/// A kernel, unpacked.
#[derive(Debug)]
pub struct KernelImage {
    path: PathBuf,
    elf: Vec<u8>,
    container: String,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    banner: String,
    build_id: Option<String>,
    pvh_entry: Option<u64>,
}

impl KernelImage {
    /// Opens a bzImage, a vmlinux, or a compressed vmlinux, for x86-64.
    ///
    /// # Errors
    /// [`Error::NotAKernel`] says what the file is instead, [`Error::Payload`]
    /// that its payload does not unpack, [`Error::TooMuch`] that it unpacks to more than a
    /// kernel does, [`Error::Io`] that it can't be read.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Err(not_a_kernel(path, "it is a directory; give the vmlinuz file inside it"));
        }
        let file = files::open_regular(path).map_err(|e| Error::io(path, e))?;
        let metadata = file.metadata().map_err(|e| Error::io(path, e))?;
        if metadata.len() > MAX_FILE {
            return Err(not_a_kernel(
                path,
                format!(
                    "the file has {} bytes; a kernel may have at most {MAX_FILE}",
                    metadata.len()
                ),
            ));
        }
        let budget = Budget::of(KERNEL, &metadata);
        // Its own bytes are what is stored, unless it is sparse.
        budget
            .keep(metadata.len(), "contents")
            .map_err(|exceeded| Error::TooMuch { path: path.to_owned(), exceeded })?;
        let mut data = Vec::with_capacity(metadata.len() as usize);
        file.take(MAX_FILE).read_to_end(&mut data).map_err(|e| Error::io(path, e))?;
        Self::within(path, data, &budget)
    }

    /// As [`KernelImage::open`], from bytes; `path` is for messages.
    ///
    /// # Errors
    /// As [`KernelImage::open`], without [`Error::Io`].
    pub fn from_bytes(path: &Path, data: Vec<u8>) -> Result<Self> {
        let budget = Budget::new(KERNEL, data.len() as u64);
        Self::within(path, data, &budget)
    }

    fn within(path: &Path, data: Vec<u8>, budget: &Arc<Budget>) -> Result<Self> {
        let unpacked = unpack(path, data, budget);
        if let Some(exceeded) = budget.exceeded() {
            return Err(Error::TooMuch { path: path.to_owned(), exceeded });
        }
        let (elf, container) = unpacked?;
        // e_ident[EI_CLASS]
        if elf.get(4) == Some(&object::elf::ELFCLASS32) {
            let reason = "found a 32-bit kernel; vmeter supports only x86-64";
            return Err(not_a_kernel(path, reason));
        }
        let parsed = ElfFile64::<Endianness>::parse(&*elf)
            .map_err(|e| not_a_kernel(path, format!("its ELF is damaged: {e}")))?;
        let machine = parsed.elf_header().e_machine(parsed.endian());
        if machine != object::elf::EM_X86_64 {
            return Err(not_a_kernel(
                path,
                format!(
                    "found an ELF file for machine {machine}; vmeter supports only x86-64 \
                    (62)"
                ),
            ));
        }
        let segments = parsed.segments().take(MAX_PARTS).map(segment).collect();
        let segments = in_the_kernels_half(segments);
        let sections = parsed
            .sections()
            .take(MAX_PARTS)
            .filter_map(|s| {
                let (offset, size) = s.file_range()?;
                Some(Section {
                    name: s.name().ok().filter(|name| name.len() <= MAX_SECTION_NAME)?.to_owned(),
                    address: s.address(),
                    offset,
                    size,
                })
            })
            .collect();
        let build_id = note(&parsed, b"GNU", NOTE_GNU_BUILD_ID)
            .map(|id| id.iter().map(|b| format!("{b:02x}")).collect());
        let pvh_entry = note(&parsed, b"Xen", NOTE_PHYS32_ENTRY).and_then(|entry| {
            crate::bytes::u64_at(entry, 0).or_else(|| crate::bytes::u32_at(entry, 0).map(u64::from))
        });
        let banner = find_banner(&elf).ok_or_else(|| {
            not_a_kernel(
                path,
                "found an ELF file without a \"Linux version …\" banner, so it is a program or \
                    the kernel of another system; give a vmlinux, or a distribution's \
                    /boot/vmlinuz-*",
            )
        })?;
        Ok(KernelImage {
            path: path.to_owned(),
            container,
            segments,
            sections,
            banner,
            build_id,
            pvh_entry,
            elf,
        })
    }

    /// The file it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file is, in words, e.g. `bzImage (lz4)`.
    pub fn container(&self) -> &str {
        &self.container
    }

    /// The kernel's banner, `Linux version 6.1.0 (…) … #1 SMP …`, without the newline.
    pub fn banner(&self) -> &str {
        &self.banner
    }

    /// The release, as `uname -r` says it.
    pub fn version(&self) -> &str {
        self.banner.split(' ').nth(2).unwrap_or("")
    }

    /// The GNU build id in hexadecimal, if it was built with one.
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// The physical address where PVH enters it; `None` if it can't be booted by PVH.
    pub fn pvh_entry(&self) -> Option<u64> {
        self.pvh_entry
    }

    /// The ELF.
    pub fn vmlinux(&self) -> &[u8] {
        &self.elf
    }

    /// Writes the ELF to `path` through a temporary file beside it, so that
    /// `path` is either absent or whole.
    ///
    /// # Errors
    /// [`Error::Io`] with the path.
    pub fn write_vmlinux(&self, path: &Path) -> Result<()> {
        write_whole(path, &self.elf)
    }

    /// The symbols: the image's own kallsyms, else its ELF symbol table.
    ///
    /// # Errors
    /// [`Error::Missing`] when it has neither.
    pub fn symbols(&self) -> Result<Symbols> {
        let kallsyms = self
            .text_address()
            .ok_or_else(|| {
                Error::malformed("vmlinux", "no segment in the kernel's half of the address space")
            })
            .and_then(|text| kallsyms::parse(&self.elf, text));
        kallsyms.or_else(|error| Symbols::from_symbol_table(&self.elf).ok_or(error))
    }

    /// True if it has the event `initcall:initcall_finish`, which a kernel without `CONFIG_TRACEPOINTS` lacks.
    pub fn traces_initcalls(&self) -> bool {
        memchr::memmem::find(&self.elf, b"initcall_finish\0").is_some()
    }

    /// Loadable segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Link-time virtual address of the kernel's text (`_text`), the start of its
    /// lowest segment in the upper half.
    pub fn text_address(&self) -> Option<u64> {
        self.segments.iter().map(|s| s.virtual_address).filter(|&a| a >= KERNEL_MAP).min()
    }

    /// A section by name: its address and contents.
    pub fn section(&self, name: &str) -> Option<(u64, &[u8])> {
        let section = self.sections.iter().find(|s| s.name == name)?;
        Some((section.address, self.slice(section.offset, section.size)?))
    }

    /// `length` bytes at a link-time virtual address, where the file has them.
    pub fn read(&self, address: u64, length: u64) -> Option<&[u8]> {
        let segment = self.segments.iter().find(|s| {
            address
                .checked_sub(s.virtual_address)
                .and_then(|o| o.checked_add(length))
                .is_some_and(|end| end <= s.file_size)
        })?;
        let offset = segment.offset.checked_add(address - segment.virtual_address)?;
        self.slice(offset, length)
    }

    fn slice(&self, offset: u64, length: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        self.elf.get(start..start.checked_add(usize::try_from(length).ok()?)?)
    }
}

/// Writes a file whole or not at all.
pub(crate) fn write_whole(path: &Path, data: &[u8]) -> Result<()> {
    vmeter_base::files::write_atomic(path, data).map_err(|e| Error::io(path, e))
}

fn not_a_kernel(path: &Path, reason: impl Into<String>) -> Error {
    Error::NotAKernel { path: path.to_owned(), reason: reason.into() }
}

fn segment<'a>(s: impl object::ObjectSegment<'a>) -> Segment {
    let (offset, file_size) = s.file_range();
    Segment { virtual_address: s.address(), offset, file_size, memory_size: s.size() }
}

/// The segments where the kernel maps them: an ELF that is made for PVH alone may have their physical addresses.
fn in_the_kernels_half(mut segments: Vec<Segment>) -> Vec<Segment> {
    if segments.iter().all(|s| s.virtual_address < KERNEL_MAP) {
        for segment in &mut segments {
            segment.virtual_address = segment.virtual_address.saturating_add(KERNEL_MAP);
        }
    }
    segments
}

/// The ELF inside `data`, and what it was packed in.
fn unpack(path: &Path, data: Vec<u8>, budget: &Arc<Budget>) -> Result<(Vec<u8>, String)> {
    if data.starts_with(&object::elf::ELFMAG) {
        return Ok((data, "vmlinux".into()));
    }
    if data.get(0x202..0x206) == Some(b"HdrS") {
        return unpack_bzimage(path, &data, budget);
    }
    if let Some(format) = Format::detect(&data) {
        let inner = format.decompress(&data, budget).map_err(|e| {
            not_a_kernel(path, format!("found {} data that cannot be unpacked: {e}", format.name()))
        })?;
        if inner.starts_with(&object::elf::ELFMAG) {
            return Ok((inner, format!("vmlinux ({})", format.name())));
        }
        return Err(not_a_kernel(
            path,
            format!("it is {} data holding {}", format.name(), describe(&inner)),
        ));
    }
    Err(not_a_kernel(path, format!("it is {}", describe(&data))))
}

/// Says so, if `path` is a bzImage that ends before its payload does; none for any other file,
/// and for one that can't be read. Only its header is read.
pub fn cut_short(path: &Path) -> Option<String> {
    let file = files::open_regular(path).ok()?;
    let length = file.metadata().ok()?.len();
    let mut head = Vec::new();
    file.take(0x250).read_to_end(&mut head).ok()?;
    if head.get(0x202..0x206) != Some(b"HdrS") || u16_at(&head, 0x206)? < 0x208 {
        return None;
    }
    let sectors = match head[0x1f1] {
        0 => 4,
        n => u64::from(n),
    };
    let payload = u64::from(u32_at(&head, 0x248)?) + u64::from(u32_at(&head, 0x24c)?);
    let needed = (sectors + 1) * 512 + payload;
    (length < needed)
        .then(|| format!("{} has {length} bytes, but its header requires {needed}", path.display()))
}

/// Boot protocol fields: the kernel's Documentation/arch/x86/boot.rst.
fn unpack_bzimage(path: &Path, data: &[u8], budget: &Arc<Budget>) -> Result<(Vec<u8>, String)> {
    let protocol = u16_at(data, 0x206).unwrap_or(0);
    if protocol < 0x208 {
        return Err(not_a_kernel(
            path,
            format!(
                "found a bzImage of boot protocol {}.{:02}; expected 2.08 (Linux 2.6.26) or \
                    later, since earlier protocols do not give the payload's offset",
                protocol >> 8,
                protocol & 0xff
            ),
        ));
    }
    let sectors = match data[0x1f1] {
        0 => 4,
        n => usize::from(n),
    };
    let offset = u32_at(data, 0x248).unwrap_or(0) as usize;
    let length = u32_at(data, 0x24c).unwrap_or(0) as usize;
    let start = (sectors + 1) * 512 + offset;
    let payload = start
        .checked_add(length)
        .and_then(|end| data.get(start..end))
        .filter(|p| !p.is_empty())
        .ok_or_else(|| {
            not_a_kernel(
                path,
                format!(
                    "found a truncated or damaged bzImage: its header places a payload of \
                        {length} bytes at byte {start}, but the file has {} bytes",
                    data.len()
                ),
            )
        })?;
    if payload.starts_with(&object::elf::ELFMAG) {
        return Ok((payload.to_vec(), "bzImage (uncompressed)".into()));
    }
    let format = Format::detect(payload).ok_or_else(|| {
        not_a_kernel(path, format!("found a bzImage whose payload is {}", describe(payload)))
    })?;
    let elf = format.decompress(payload, budget)?;
    if !elf.starts_with(&object::elf::ELFMAG) {
        return Err(not_a_kernel(
            path,
            format!("its {} payload is not an ELF file: it is {}", format.name(), describe(&elf)),
        ));
    }
    Ok((elf, format!("bzImage ({})", format.name())))
}

/// What a file that is no kernel seems to be, in words, with what to do.
fn describe(data: &[u8]) -> String {
    const KINDS: &[(usize, &[u8], &str)] = &[
        (0, b"070701", "a cpio archive: an initramfs, which --initrd takes"),
        (0, b"070702", "a cpio archive: an initramfs, which --initrd takes"),
        (0, b"QFI\xfb", "a qcow2 disk image; the kernel is a file inside it, under /boot"),
        (0, b"!<arch>\n", "an ar archive (a .deb?); unpack it with `dpkg -x`"),
        (0, b"\xed\xab\xee\xdb", "an RPM package; unpack it with rpm2cpio"),
        (0, b"#!", "a script"),
        (0, b"hsqs", "a squashfs image"),
        (56, b"ARMd", "an arm64 kernel; only x86-64 is supported"),
        (0x8001, b"CD001", "an ISO image; the kernel is a file inside it"),
    ];
    if data.is_empty() {
        return "an empty file".into();
    }
    for &(at, magic, what) in KINDS {
        if data.get(at..).is_some_and(|d| d.starts_with(magic)) {
            return what.into();
        }
    }
    if data.starts_with(b"MZ") {
        return "an EFI program without a Linux boot header (a unified kernel image? extract its \
                .linux section with `objcopy -O binary --only-section=.linux`)"
            .into();
    }
    let head = &data[..data.len().min(64)];
    if head.iter().all(|&b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        return "text; give a bzImage (/boot/vmlinuz-*) or a vmlinux".into();
    }
    let bytes: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!(
        "of an unknown kind (it begins with {}); give a bzImage (/boot/vmlinuz-*) or a vmlinux",
        bytes.join(" ")
    )
}

/// The descriptor of a note, by owner and type, from any note segment.
fn note<'a>(elf: &ElfFile64<'a, Endianness>, owner: &[u8], kind: u32) -> Option<&'a [u8]> {
    use object::read::elf::ProgramHeader as _;
    let endian = elf.endian();
    let mut looks = 0;
    for header in elf.elf_program_headers().iter().take(MAX_PARTS) {
        let Ok(Some(mut notes)) = header.notes(endian, elf.data()) else { continue };
        while let Ok(Some(note)) = notes.next() {
            looks += 1;
            if looks > MAX_PARTS {
                return None;
            }
            if note.name() == owner && note.n_type(endian) == kind {
                return Some(note.desc());
            }
        }
    }
    None
}

/// `linux_banner` (`init/version.c`): a text `Linux version ` that goes on with a
/// digit (format strings go on with `%s`). An image can hold two: the weak one,
/// without a build number after `#`, which the linker left in, and the real one.
fn find_banner(elf: &[u8]) -> Option<String> {
    const START: &[u8] = b"Linux version ";
    let mut found = None;
    for at in memchr::memmem::find_iter(elf, START) {
        let rest = &elf[at..elf.len().min(at + MAX_BANNER)];
        if !rest.get(START.len()).is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let Some(end) = memchr::memchr2(b'\n', 0, rest) else { continue };
        let Ok(text) = std::str::from_utf8(&rest[..end]) else { continue };
        let numbered =
            text.split(" #").skip(1).any(|t| t.starts_with(|c: char| c.is_ascii_digit()));
        if numbered {
            return Some(text.to_owned());
        }
        found.get_or_insert_with(|| text.to_owned());
    }
    found
}
