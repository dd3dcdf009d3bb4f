//! Where a program's own code begins: its ELF entry and its `main`.

use super::tracee::Tracee;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Object, ObjectSymbol, ReadCache};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use vmeter_model::Moment;

/// Virtual addresses as the file has them, before the load bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Image {
    entry: u64,
    main: Option<u64>,
    /// True if the kernel enters a dynamic linker first (`PT_INTERP`).
    linked: bool,
}

/// Device, inode, size, mtime: the symbol table of a large VMM is read once a session.
type Identity = (u64, u64, u64, i64, i64);

static KNOWN: Mutex<Option<HashMap<Identity, Option<Image>>>> = Mutex::new(None);

fn image(path: &Path) -> Option<Image> {
    let file = File::open(path).ok()?;
    let m = file.metadata().ok()?;
    let identity = (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    *known.entry(identity).or_insert_with(|| parse(file))
}

fn parse(file: File) -> Option<Image> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<object::Endianness, _>::parse(&cache).ok()?;
    let entry = elf.elf_header().e_entry(elf.endian());
    let main = elf
        .dynamic_symbols()
        .chain(elf.symbols())
        .find(|s| s.is_definition() && s.name_bytes() == Ok(b"main"))
        .map(|s| s.address());
    let segments = elf.elf_program_headers();
    let linked = segments.iter().any(|s| s.p_type(elf.endian()) == object::elf::PT_INTERP);
    Some(Image { entry, main, linked })
}

/// Reads the image's symbols before the launch, so that the exec stop is short.
pub fn prepare(program: &Path) {
    image(program);
}

/// A place where the VMM is stopped once.
#[derive(Debug)]
pub struct Breakpoint {
    /// Where.
    pub address: u64,
    /// The moment that it marks.
    pub moment: Moment,
    original: u8,
}

const AT_ENTRY: u64 = 9;
#[cfg(target_arch = "x86_64")]
const INT3: u8 = 0xcc;

/// Sets breakpoints at the entry and at `main` of an image stopped after its exec.
/// What cannot be set is left out: the moment is then missing, nothing else.
#[cfg(target_arch = "x86_64")]
pub fn set_breakpoints(tracee: &Tracee) -> Vec<Breakpoint> {
    let Ok(Some(entry)) = tracee.auxv(AT_ENTRY) else { return Vec::new() };
    let image = image(Path::new(&format!("/proc/{}/exe", tracee.pid)));
    let main = image.and_then(|i| {
        let bias = entry.wrapping_sub(i.entry);
        i.main.map(|m| m.wrapping_add(bias)).filter(|&m| m != entry)
    });
    // Without a linker its entry is where its exec ends, and nothing lies between.
    let tells = main.is_none() || image.is_none_or(|image| image.linked);
    let wanted = [(Some(entry).filter(|_| tells), Moment::VmmEntry), (main, Moment::VmmMain)];
    let Ok(memory) = memory(tracee) else { return Vec::new() };
    let set = |(address, moment): (Option<u64>, Moment)| {
        let address = address?;
        let mut original = [0u8];
        memory.read_exact_at(&mut original, address).ok()?;
        memory.write_all_at(&[INT3], address).ok()?;
        Some(Breakpoint { address, moment, original: original[0] })
    };
    wanted.into_iter().filter_map(set).collect()
}

/// Restores the instruction under a breakpoint.
#[cfg(target_arch = "x86_64")]
pub fn clear_breakpoint(tracee: &Tracee, breakpoint: &Breakpoint) -> std::io::Result<()> {
    memory(tracee)?.write_all_at(&[breakpoint.original], breakpoint.address)
}

/// `/proc/PID/mem` may write to read-only text of a tracee; the page is copied.
#[cfg(target_arch = "x86_64")]
fn memory(tracee: &Tracee) -> std::io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{}/mem", tracee.pid))
}

/// Breakpoints are only known for x86-64; elsewhere the two moments are missing.
#[cfg(not(target_arch = "x86_64"))]
pub fn set_breakpoints(_: &Tracee) -> Vec<Breakpoint> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_and_main_of_this_test() {
        let me = std::env::current_exe().expect("own path");
        let image = image(&me).expect("an ELF file");
        assert_ne!(image.entry, 0);
        assert!(image.main.is_some_and(|m| m != image.entry));
    }

    #[test]
    fn only_what_is_linked_dynamically_has_a_linker() {
        let linked = |path: &Path| image(path).map(|image| image.linked);
        assert_eq!(linked(&std::env::current_exe().expect("own path")), Some(true));
        let (folder, source) =
            (tempfile::tempdir().expect("a folder"), b"int main() { return 0; }");
        let (code, program) = (folder.path().join("main.c"), folder.path().join("static"));
        std::fs::write(&code, source).expect("written");
        let mut cc = std::process::Command::new("cc");
        cc.arg("-static-pie").arg("-o").args([&program, &code]);
        match cc.status() {
            Ok(status) if status.success() => assert_eq!(linked(&program), Some(false)),
            other => println!("skipped: cc -static-pie: {other:?}"),
        }
    }

    #[test]
    fn not_an_elf_file() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), "#!/bin/sh\n").expect("written");
        assert_eq!(image(file.path()), None);
        assert_eq!(image(Path::new("/nonexistent")), None);
    }
}
