//! Which kernel modules go into a guest, and in which order they load.

use crate::cache;
use crate::command::Tool;
use crate::elf;
use crate::error::{At, Error, Result};
use crate::inputs::Inputs;
use crate::libraries::glob;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Where a kernel's modules are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModulesFrom {
    /// Folder with `kernel/` and `modules.builtin` (and `modules.dep`, if indexed).
    pub folder: PathBuf,
    /// Kernel release: the folder's name in the guest's `/lib/modules`.
    pub version: String,
}

/// Makes the indexes that modules are found by.
pub(crate) const DEPMOD: Tool =
    Tool { program: "depmod", purpose: "indexing kernel modules", package: "kmod" };
const STRIP: Tool =
    Tool { program: "strip", purpose: "stripping kernel modules", package: "binutils" };
/// What kmod and udev's `kmod` built-in read.
const GUEST_INDEXES: [&str; 8] = [
    "modules.dep",
    "modules.dep.bin",
    "modules.alias.bin",
    "modules.builtin.bin",
    "modules.builtin.alias.bin",
    "modules.symbols.bin",
    "modules.softdep",
    "modules.devname",
];
/// Largest module after decompression, bytes: a bound on what a broken file can ask for.
const MAX_MODULE: u64 = 256 << 20;

/// A module to be put into a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    /// Name as the kernel spells it.
    pub name: String,
    /// Path below the modules folder, e.g. `kernel/fs/ext4/ext4.ko.xz`.
    pub path: String,
    /// True when the boot can go on without it (it comes from a soft dependency or an alias).
    pub optional: bool,
}

/// What a kernel has, from `modules.dep`, `modules.softdep`, `modules.alias` and
/// `modules.builtin`.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    folder: PathBuf,
    version: String,
    /// name -> (path, paths it needs)
    known: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
    /// name -> (before, after)
    soft: BTreeMap<String, (Vec<String>, Vec<String>)>,
    /// alias without wildcards -> names
    aliases: BTreeMap<String, Vec<String>>,
}

/// What the selection came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// In load order.
    pub modules: Vec<Module>,
    /// Left out because of the blacklist.
    pub dropped: BTreeSet<String>,
}

impl Modules {
    /// Reads the indexes of a modules folder, having `depmod` make them elsewhere when
    /// the folder has none (an unpacked package).
    pub fn open(inputs: &mut Inputs, folder: &Path, version: &str) -> Result<Self> {
        let mut modules =
            Modules { folder: folder.into(), version: version.into(), ..Modules::default() };
        let made;
        let indexes = if inputs.exists(&folder.join("modules.dep")) {
            folder
        } else {
            inputs.exists(folder);
            made = index(folder, version)?;
            made.path()
        };
        let text = |name| fs::read_to_string(indexes.join(name)).unwrap_or_default();
        modules.read_dep(&text("modules.dep"));
        modules.read_softdep(&text("modules.softdep"));
        modules.read_alias(&text("modules.alias"));
        let builtin = inputs.read_text(&folder.join("modules.builtin"))?.unwrap_or_default();
        modules.builtin.extend(builtin.lines().map(module_name));
        let information = inputs.read_text(&folder.join("modules.builtin.modinfo"))?;
        modules.read_builtin_softdep(&information.unwrap_or_default());
        Ok(modules)
    }

    fn read_dep(&mut self, text: &str) {
        for line in text.lines() {
            if let Some((path, needs)) = line.split_once(':') {
                let needs = needs.split_whitespace().map(str::to_owned).collect();
                self.known.insert(module_name(path), (path.to_owned(), needs));
            }
        }
    }

    /// `softdep NAME pre: A B post: C`
    fn read_softdep(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if let (Some("softdep"), Some(name)) = (words.next(), words.next()) {
                self.add_soft(name, words);
            }
        }
    }

    /// `NAME.softdep=pre: A post: B`, separated by NUL.
    fn read_builtin_softdep(&mut self, text: &str) {
        for entry in text.split('\0') {
            if let Some((name, list)) = entry.split_once(".softdep=") {
                self.add_soft(name, list.split_whitespace());
            }
        }
    }

    fn add_soft<'a>(&mut self, name: &str, words: impl Iterator<Item = &'a str>) {
        let entry = self.soft.entry(normal(name)).or_default();
        let mut after = false;
        for word in words {
            match word {
                "pre:" => after = false,
                "post:" => after = true,
                name if after => entry.1.push(name.to_owned()),
                name => entry.0.push(name.to_owned()),
            }
        }
    }

    /// `alias ALIAS NAME`; patterns are for devices and are left to kmod.
    fn read_alias(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if let (Some("alias"), Some(alias), Some(name)) =
                (words.next(), words.next(), words.next())
            {
                if !alias.contains(['*', '?', '[']) {
                    self.aliases.entry(normal(alias)).or_default().push(normal(name));
                }
            }
        }
    }

    /// True when the kernel has it, loadable or built in.
    pub fn has(&self, name: &str) -> bool {
        let name = normal(name);
        self.known.contains_key(&name) || self.builtin.contains(&name)
    }

    /// Chooses modules by name or pattern, with what they need, in load order. A name
    /// must exist; a pattern may match nothing.
    pub fn select(&self, wanted: &[String], blacklist: &[String]) -> Result<Selection> {
        let mut walk =
            Walk { modules: self, blacklist, chosen: Selection::default(), seen: BTreeMap::new() };
        for wanted in wanted {
            let wanted = normal(wanted);
            if wanted.contains('*') {
                for name in self.known.keys().filter(|name| glob(&wanted, name)) {
                    let _ = walk.visit(name, true);
                }
                continue;
            }
            if !self.has(&wanted) && !self.aliases.contains_key(&wanted) {
                return Err(Error::UnknownModule { module: wanted, version: self.version.clone() });
            }
            if let Err(blacklisted) = walk.visit_any(&wanted, false) {
                return Err(Error::Blacklisted { module: wanted, blacklisted });
            }
        }
        Ok(walk.chosen)
    }

    /// Path in the guest, below the modules folder: what is compressed here is not there.
    pub fn plain_path(module: &Module) -> &str {
        let path = &module.path;
        [".xz", ".zst", ".gz"].iter().find_map(|s| path.strip_suffix(s)).unwrap_or(path)
    }

    /// Content of a module, decompressed and without debug information.
    pub fn content(&self, inputs: &mut Inputs, module: &Module) -> Result<Vec<u8>> {
        let path = self.folder.join(&module.path);
        let (_, bytes) = inputs.read(&path)?;
        let bytes = decompress(&path, bytes)?;
        // A module without debug information stays as it is: strip would take the
        // kernel's signature off with it.
        if elf::has_debug_info(&bytes) {
            strip(&bytes)
        } else {
            Ok(bytes)
        }
    }
}

/// Depth-first walk along hard and soft dependencies.
struct Walk<'a> {
    modules: &'a Modules,
    blacklist: &'a [String],
    chosen: Selection,
    /// Visited: usable or not, with the blacklisted module to blame.
    seen: BTreeMap<String, std::result::Result<(), String>>,
}

impl Walk<'_> {
    /// Visits a module or everything behind an alias.
    fn visit_any(&mut self, name: &str, optional: bool) -> std::result::Result<(), String> {
        let name = normal(name);
        if self.modules.has(&name) {
            return self.visit(&name, optional);
        }
        for name in self.modules.aliases.get(&name).cloned().unwrap_or_default() {
            let _ = self.visit(&name, true);
        }
        Ok(())
    }

    fn visit(&mut self, name: &str, optional: bool) -> std::result::Result<(), String> {
        if let Some(result) = self.seen.get(name) {
            let result = result.clone();
            if !optional && result.is_ok() {
                let modules = &mut self.chosen.modules;
                modules.iter_mut().filter(|m| m.name == name).for_each(|m| m.optional = false);
            }
            return result;
        }
        // Against cycles: a module on the path counts as visited.
        self.seen.insert(name.to_owned(), Ok(()));
        let result = self.visit_new(name, optional);
        if result.is_err() {
            self.chosen.dropped.insert(name.to_owned());
        }
        self.seen.insert(name.to_owned(), result.clone());
        result
    }

    fn visit_new(&mut self, name: &str, optional: bool) -> std::result::Result<(), String> {
        if self.blacklist.iter().any(|pattern| glob(&normal(pattern), name)) {
            return Err(name.to_owned());
        }
        let (before, after) = self.modules.soft.get(name).cloned().unwrap_or_default();
        for name in before {
            let _ = self.visit_any(&name, true);
        }
        if let Some((path, needs)) = self.modules.known.get(name) {
            // modules.dep lists what is nearest first: the farthest loads first.
            for needed in needs.iter().rev() {
                self.visit(&module_name(needed), optional)?;
            }
            let (name, path) = (name.to_owned(), path.clone());
            self.chosen.modules.push(Module { name, path, optional });
        }
        for name in after {
            let _ = self.visit_any(&name, true);
        }
        Ok(())
    }
}

/// `crc32c_intel` for `kernel/arch/x86/crypto/crc32c-intel.ko.xz`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    normal(file.split(".ko").next().unwrap_or(file))
}

/// The kernel takes `-` and `_` in module names for the same.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// Runs `depmod` on a modules folder, leaving it untouched; the indexes are in the result.
fn index(folder: &Path, version: &str) -> Result<tempfile::TempDir> {
    let base = cache::scratch()?;
    let own = depmod_folder(base.path(), version)?;
    fs::create_dir(&own).at(&own)?;
    let folder = fs::canonicalize(folder).at(folder)?;
    for entry in fs::read_dir(&folder).at(&folder)? {
        let entry = entry.at(&folder)?;
        let link = own.join(entry.file_name());
        std::os::unix::fs::symlink(entry.path(), &link).at(&link)?;
    }
    run_depmod(base.path(), version)?;
    let result = cache::scratch()?;
    for name in ["modules.dep", "modules.softdep", "modules.alias"] {
        let (from, to) = (own.join(name), result.path().join(name));
        fs::copy(&from, &to).at(&from)?;
    }
    Ok(result)
}

/// The indexes that kmod reads in the guest, for just these modules (path, content).
pub(crate) fn guest_indexes(
    inputs: &mut Inputs,
    from: &ModulesFrom,
    modules: &[(String, Vec<u8>)],
) -> Result<Vec<(String, Vec<u8>)>> {
    let base = cache::scratch()?;
    let folder = depmod_folder(base.path(), &from.version)?;
    for (path, bytes) in modules {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(&folder);
        fs::create_dir_all(parent).at(parent)?;
        fs::write(&path, bytes).at(&path)?;
    }
    fs::create_dir_all(&folder).at(&folder)?;
    let own = ["modules.builtin", "modules.builtin.modinfo", "modules.order"];
    for name in own {
        if let Some(text) = inputs.read_text(&from.folder.join(name))? {
            let path = folder.join(name);
            fs::write(&path, text).at(&path)?;
        }
    }
    run_depmod(base.path(), &from.version)?;
    let mut indexes = Vec::new();
    for name in GUEST_INDEXES {
        let path = folder.join(name);
        if path.exists() {
            indexes.push((name.to_owned(), fs::read(&path).at(&path)?));
        }
    }
    Ok(indexes)
}

/// Where modules have to be for `depmod -b BASE`, with all above it made. Which of
/// `/lib` and `/usr/lib` that is was fixed when kmod was built, so they are the same.
pub(crate) fn depmod_folder(base: &Path, version: &str) -> Result<PathBuf> {
    let folder = base.join("usr/lib/modules");
    fs::create_dir_all(&folder).at(&folder)?;
    let link = base.join("lib");
    std::os::unix::fs::symlink("usr/lib", &link).at(&link)?;
    Ok(folder.join(version))
}

/// Indexes what lies at [`depmod_folder`], in place.
pub(crate) fn run_depmod(base: &Path, version: &str) -> Result<()> {
    DEPMOD.run([std::ffi::OsStr::new("-b"), base.as_os_str(), version.as_ref()]).map(drop)
}

fn decompress(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let reader: Box<dyn Read + '_> = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => Box::new(liblzma::read::XzDecoder::new(&bytes[..])),
        Some("zst") => Box::new(zstd::Decoder::new(&bytes[..]).at(path)?),
        Some("gz") => Box::new(flate2::read::GzDecoder::new(&bytes[..])),
        _ => return Ok(bytes),
    };
    let mut plain = Vec::new();
    reader.take(MAX_MODULE + 1).read_to_end(&mut plain).at(path)?;
    if plain.len() as u64 > MAX_MODULE {
        let problem = format!("more than {MAX_MODULE} bytes after decompression");
        return Err(Error::Malformed { path: path.into(), problem });
    }
    Ok(plain)
}

/// Takes debug information off; where `strip` is not installed the module stays whole.
fn strip(bytes: &[u8]) -> Result<Vec<u8>> {
    let folder = cache::scratch()?;
    let file = folder.path().join("module.ko");
    fs::write(&file, bytes).at(&file)?;
    match STRIP.run([std::ffi::OsStr::new("--strip-debug"), file.as_os_str()]) {
        Ok(_) => fs::read(&file).at(&file),
        Err(Error::Missing { .. }) => Ok(bytes.to_vec()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Modules {
        let mut modules = Modules { version: "1".into(), ..Modules::default() };
        modules.read_dep(
            "kernel/a.ko: kernel/b-x.ko kernel/c.ko\nkernel/b-x.ko: kernel/c.ko\n\
             kernel/c.ko:\nkernel/gpu.ko: kernel/drm.ko\nkernel/drm.ko:\nkernel/soft.ko.xz:\n",
        );
        modules.read_softdep("softdep a pre: crypto-soft\n# x\n");
        modules.read_builtin_softdep("root.license=GPL\0root.softdep=pre: c\0");
        modules.read_alias("alias crypto-soft soft\nalias pci:v* a\n");
        modules.builtin.insert("root".into());
        modules
    }

    fn names(selection: &Selection) -> Vec<&str> {
        selection.modules.iter().map(|m| m.name.as_str()).collect()
    }

    #[test]
    fn dependencies_load_first() {
        let selection = sample().select(&["a".into()], &[]).unwrap();
        assert_eq!(names(&selection), ["soft", "c", "b_x", "a"]);
        assert_eq!(
            selection.modules.iter().map(|m| m.optional).collect::<Vec<_>>(),
            [true, false, false, false]
        );
        assert_eq!(Modules::plain_path(&selection.modules[0]), "kernel/soft.ko");
    }

    #[test]
    fn a_builtin_brings_its_soft_dependencies_only() {
        assert_eq!(names(&sample().select(&["root".into()], &[]).unwrap()), ["c"]);
    }

    #[test]
    fn the_blacklist_drops_what_needs_it() {
        let modules = sample();
        let selection = modules.select(&["*".into()], &["drm".into()]).unwrap();
        assert!(!names(&selection).contains(&"gpu"));
        assert_eq!(selection.dropped.iter().collect::<Vec<_>>(), ["drm", "gpu"]);
        let error = modules.select(&["gpu".into()], &["dr*".into()]).unwrap_err().to_string();
        assert!(error.contains("gpu needs drm"), "{error}");
        assert!(matches!(modules.select(&["no".into()], &[]), Err(Error::UnknownModule { .. })));
    }

    #[test]
    fn compressed_modules_are_unpacked() {
        use std::io::Write;
        let text = b"module".repeat(100);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&text).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(&text).unwrap();
        for (name, bytes) in [
            ("a.ko", text.clone()),
            ("a.ko.gz", gz.finish().unwrap()),
            ("a.ko.xz", xz.finish().unwrap()),
            ("a.ko.zst", zstd::encode_all(&text[..], 1).unwrap()),
        ] {
            assert_eq!(decompress(Path::new(name), bytes).unwrap(), text, "{name}");
        }
        assert!(decompress(Path::new("a.ko.xz"), b"no".to_vec()).is_err());
    }

    proptest! {
        #[test]
        fn any_index_is_survived(dep in "[a-c.ko/: \n-]{0,80}", soft in "(softdep|alias| |[a-c]|pre:|post:|\n){0,20}") {
            let mut modules = Modules::default();
            modules.read_dep(&dep);
            modules.read_softdep(&soft);
            modules.read_alias(&soft);
            modules.read_builtin_softdep(&soft);
            let selection = modules.select(&["*".into()], &["b*".into()]).unwrap();
            prop_assert!(selection.modules.len() <= modules.known.len());
        }
    }
}
