//! Programs with every shared library they need, found as ld.so finds them.

use crate::elf::{self, Needs};
use crate::error::{Error, Result};
use crate::inputs::Inputs;
use crate::tree::Tree;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where ld.so looks without configuration; a distribution has some of them.
const DEFAULT_FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
/// Files that `ld.so.conf` may include, one in another.
const MAX_INCLUDED: usize = 64;

/// Puts programs and their libraries into a guest.
pub(crate) struct Linker {
    folders: Vec<PathBuf>,
    done: BTreeSet<PathBuf>,
}

impl Linker {
    /// Reads the host's ld.so configuration.
    pub fn new(inputs: &mut Inputs) -> Result<Self> {
        let mut folders = Vec::new();
        let mut left = MAX_INCLUDED;
        read_configuration(inputs, Path::new("/etc/ld.so.conf"), &mut folders, &mut left)?;
        folders.extend(DEFAULT_FOLDERS.iter().map(PathBuf::from));
        Ok(Linker { folders, done: BTreeSet::new() })
    }

    /// Adds an ELF program (or library) of the host with its interpreter and libraries.
    pub fn add(
        &mut self,
        tree: &mut Tree,
        inputs: &mut Inputs,
        path: &Path,
        part: &'static str,
    ) -> Result<()> {
        tree.host_file(inputs, path, part)?;
        let mut queue = vec![path.to_owned()];
        while let Some(path) = queue.pop() {
            let real = inputs.real_path(&path)?;
            if !self.done.insert(real.clone()) {
                continue;
            }
            let (_, bytes) = inputs.read(&real)?;
            let Some(needs) = elf::needs(&bytes) else { continue };
            for found in self.find_all(inputs, &real, &needs)? {
                tree.host_file(inputs, &found, "libraries")?;
                queue.push(found);
            }
        }
        Ok(())
    }

    fn find_all(&self, inputs: &mut Inputs, file: &Path, needs: &Needs) -> Result<Vec<PathBuf>> {
        let mut found: Vec<_> = needs.interpreter.iter().map(PathBuf::from).collect();
        for library in &needs.libraries {
            let path = self.find(inputs, file, needs, library).ok_or_else(|| {
                let searched: Vec<_> =
                    self.folders.iter().map(|f| f.display().to_string()).collect();
                Error::MissingLibrary {
                    library: library.clone(),
                    needed_by: file.to_owned(),
                    searched: searched.join(", "),
                }
            })?;
            found.push(path);
        }
        for alternatives in &needs.opened {
            let mut all = alternatives.iter();
            found.extend(all.find_map(|library| self.find(inputs, file, needs, library)));
        }
        Ok(found)
    }

    fn find(
        &self,
        inputs: &mut Inputs,
        file: &Path,
        needs: &Needs,
        library: &str,
    ) -> Option<PathBuf> {
        let origin = file.parent().unwrap_or(Path::new("/")).to_string_lossy();
        let own = needs.search.iter().map(|folder| {
            PathBuf::from(folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))
        });
        let mut folders = own.chain(self.folders.iter().cloned());
        folders.find_map(|folder| {
            let path = folder.join(library);
            inputs.exists(&path).then_some(path)
        })
    }
}

/// Collects the folders of an `ld.so.conf`, following `include PATTERN`.
fn read_configuration(
    inputs: &mut Inputs,
    file: &Path,
    folders: &mut Vec<PathBuf>,
    left: &mut usize,
) -> Result<()> {
    if *left == 0 {
        return Ok(());
    }
    *left -= 1;
    let text = inputs.read_text(file)?.unwrap_or_default();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(pattern) = line.strip_prefix("include").filter(|p| p.starts_with([' ', '\t']))
        else {
            if line.starts_with('/') {
                folders.push(line.into());
            }
            continue;
        };
        let pattern = file.parent().unwrap_or(Path::new("/")).join(pattern.trim());
        let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name()) else { continue };
        let name = name.to_string_lossy();
        for path in inputs.list(folder)? {
            let matches = path.file_name().is_some_and(|f| glob(&name, &f.to_string_lossy()));
            if matches {
                read_configuration(inputs, &path, folders, left)?;
            }
        }
    }
    Ok(())
}

/// True when the whole text matches a pattern in which `*` stands for anything.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.con", false),
            ("virtio*", "virtio", true),
            ("virtio*", "virtio_blk", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxc", false),
            ("ab*b", "ab", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_configuration_that_includes_itself_ends() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ld.so.conf");
        std::fs::write(&file, "# x\ninclude *.conf\n/opt/one\n").unwrap();
        let mut folders = Vec::new();
        let mut left = 3;
        read_configuration(&mut Inputs::default(), &file, &mut folders, &mut left).unwrap();
        assert_eq!(folders, [Path::new("/opt/one"); 3]);
    }

    #[test]
    fn a_program_brings_its_libraries() {
        let (mut tree, mut inputs) = (Tree::default(), Inputs::default());
        let program = std::env::current_exe().unwrap();
        let mut linker = Linker::new(&mut inputs).unwrap();
        linker.add(&mut tree, &mut inputs, &program, "programs").unwrap();
        assert!(tree.contains("/lib64/ld-linux-x86-64.so.2"));
        let (_, sizes) = tree.archive().unwrap();
        assert!(sizes.parts.iter().any(|(name, bytes)| name == "libraries" && *bytes > 1_000_000));
    }

    proptest! {
        #[test]
        fn a_text_matches_itself_and_a_star(text in "[a-z*]{0,12}") {
            prop_assert!(glob("*", &text));
            prop_assert!(glob(&text, &text));
        }
    }
}
