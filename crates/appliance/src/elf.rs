//! What an ELF file says it needs at run time.
//!
//! Read from the file itself: running `ldd` would execute the program's own
//! interpreter, and its output is for people.

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::Endianness;

/// systemd's note for libraries that a program opens by name:
/// <https://uapi-group.org/specifications/specs/elf_dlopen_metadata/>.
const NT_DLOPEN: u32 = 0x407c_0c0a;

/// Names in a program or library.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// `PT_INTERP`.
    pub interpreter: Option<String>,
    /// `DT_NEEDED`.
    pub libraries: Vec<String>,
    /// Libraries it opens by name at run time, each with its alternatives; may be missing.
    pub opened: Vec<Vec<String>>,
    /// `DT_RUNPATH` or `DT_RPATH`, split, with `$ORIGIN` still in it.
    pub search: Vec<String>,
}

/// Reads what a 64-bit little-endian ELF file needs; `None` when it is no such file
/// or is broken.
pub(crate) fn needs(bytes: &[u8]) -> Option<Needs> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let mut needs = Needs::default();
    for segment in header.program_headers(endian, bytes).ok()? {
        if let Some(path) = segment.interpreter(endian, bytes).ok()? {
            needs.interpreter = Some(String::from_utf8(path.to_vec()).ok()?);
        }
    }
    let sections = header.sections(endian, bytes).ok()?;
    if let Some((entries, strings)) = sections.dynamic(endian, bytes).ok()? {
        let strings = sections.strings(endian, bytes, strings).ok()?;
        let string = |entry: &elf::Dyn64<Endianness>| -> Option<String> {
            let bytes = entry.string(endian, strings).ok()?;
            Some(String::from_utf8_lossy(bytes).into_owned())
        };
        for entry in entries {
            match entry.tag32(endian)? {
                elf::DT_NULL => break,
                elf::DT_NEEDED => needs.libraries.push(string(entry)?),
                elf::DT_RUNPATH | elf::DT_RPATH => {
                    needs.search.extend(string(entry)?.split(':').map(str::to_owned));
                }
                _ => {}
            }
        }
    }
    for section in sections.iter() {
        let Ok(Some(mut notes)) = section.notes(endian, bytes) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"FDO" && note.n_type(endian) == NT_DLOPEN {
                needs.opened.extend(dlopen_note(note.desc()));
            }
        }
    }
    Some(needs)
}

/// True when a section's name begins with `.debug_`.
pub(crate) fn has_debug_info(bytes: &[u8]) -> bool {
    let sections = || {
        let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, bytes).ok()?;
        Some(sections.iter().any(|section| {
            let name = sections.section_name(endian, section).unwrap_or_default();
            name.starts_with(b".debug_")
        }))
    };
    sections().unwrap_or(false)
}

/// How many of a kernel's plain modules there are, and how many of these hold debugging sections.
///
/// # Errors
/// A folder or a module that cannot be read.
pub fn debugged_modules(folder: &std::path::Path) -> std::io::Result<(usize, usize)> {
    let (mut all, mut debugged) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|e| e == "ko") {
                all += 1;
                debugged += usize::from(has_debug_info(&std::fs::read(&path)?));
            }
        }
    }
    Ok((all, debugged))
}

/// The libraries of one note: a JSON list of objects with a list `soname` each.
fn dlopen_note(text: &[u8]) -> Vec<Vec<String>> {
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    let Ok(serde_json::Value::Array(features)) = serde_json::from_slice(&text[..end]) else {
        return Vec::new();
    };
    let names = |feature: &serde_json::Value| -> Vec<String> {
        let list = feature.get("soname").and_then(|v| v.as_array()).into_iter().flatten();
        list.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    features.iter().map(names).filter(|names| !names.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_program_needs_the_c_library() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needs = needs(&bytes).unwrap();
        assert!(needs.libraries.iter().any(|l| l.starts_with("libc.so")), "{needs:?}");
        assert!(needs.interpreter.unwrap().contains("ld-linux"));
        assert!(has_debug_info(&bytes));
    }

    #[test]
    fn the_guests_init_needs_nothing() {
        assert_eq!(needs(crate::INIT), Some(Needs::default()));
        assert!(!has_debug_info(crate::INIT));
    }

    #[test]
    fn dlopen_notes_are_understood() {
        let note = br#"[{"feature":"kmod","soname":["libkmod.so.2"],"priority":"recommended"}]"#;
        assert_eq!(dlopen_note(note), [["libkmod.so.2"]]);
        assert!(dlopen_note(b"{").is_empty());
    }

    proptest! {
        #[test]
        fn broken_files_do_not_panic(
            at in 0..crate::INIT.len(), byte in any::<u8>(), end in 0..crate::INIT.len()
        ) {
            let mut bytes = crate::INIT.to_vec();
            bytes[at] = byte;
            // The head decides most of what is read: change that too.
            bytes[at % 64] = byte;
            bytes.truncate(end.max(64));
            let _ = (needs(&bytes), has_debug_info(&bytes));
        }

        #[test]
        fn noise_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = (needs(&bytes), has_debug_info(&bytes), dlopen_note(&bytes));
        }
    }
}
