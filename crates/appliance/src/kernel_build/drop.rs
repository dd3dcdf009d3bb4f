//! What a custom kernel leaves out: options whose initcalls took long in a boot that was
//! measured, and that nothing needs.
//!
//! An initcall's function is found in the sources, its file's object in the folder's Makefile,
//! and the object's option there (Linux `Documentation/kbuild/makefiles.rst`). What is found
//! otherwise, or not at all, is left in.

use super::lines::{MINIMAL, NEEDED};
use crate::error::Result;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A measured initcall.
#[derive(Debug, Clone, PartialEq)]
pub struct Initcall {
    /// Its function.
    pub function: String,
    /// How long it took, s.
    pub seconds: f64,
}

/// An initcall that took long, and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The initcall.
    pub initcall: Initcall,
    /// The option that it comes with, without `CONFIG_`.
    pub option: Option<String>,
    /// True if the option is left out.
    pub dropped: bool,
    /// Why, if it is not.
    pub why: String,
}

/// Initcalls shorter than this are not worth a configuration of one's own, s.
const LONG: f64 = 0.001;

/// Folders of the sources that hold what x86 builds in.
const FOLDERS: [&str; 16] = [
    "arch/x86", "block", "certs", "crypto", "drivers", "fs", "init", "io_uring", "ipc", "kernel",
    "lib", "mm", "net", "security", "sound", "virt",
];
/// A larger file is none of C.
const MAX_FILE: u64 = 4 << 20;

/// What is to become of each initcall that took long.
pub(super) fn verdicts(
    source: &Path,
    base: &BTreeMap<&str, &str>,
    initcalls: &[Initcall],
) -> Result<Vec<Verdict>> {
    let mut long: Vec<&Initcall> = initcalls.iter().filter(|i| i.seconds > LONG).collect();
    long.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let wanted: Vec<&str> = long.iter().map(|i| i.function.as_str()).collect();
    let files = files_of(source, &wanted);
    let verdict = |initcall: &&Initcall| {
        let option = files.get(&initcall.function).and_then(|file| option_of(source, file));
        let why = match &option {
            None => "no option of its own was found".to_owned(),
            Some(option) => match needed(option) {
                Some(why) => format!("needed: {why}"),
                None if base.get(option.as_str()) != Some(&"y") => "not built in".to_owned(),
                None => String::new(),
            },
        };
        let initcall = (*initcall).clone();
        Verdict { initcall, dropped: why.is_empty(), option, why }
    };
    Ok(long.iter().map(verdict).collect())
}

/// The options to be left out.
pub(super) fn options(verdicts: &[Verdict]) -> Vec<String> {
    let dropped = verdicts.iter().filter(|verdict| verdict.dropped);
    let mut options: Vec<String> = dropped.filter_map(|verdict| verdict.option.clone()).collect();
    options.sort();
    options.dedup();
    options
}

/// Notes what Kconfig has kept all the same.
pub(super) fn note_kept(verdicts: &mut [Verdict], values: &BTreeMap<&str, &str>) {
    for verdict in verdicts.iter_mut().filter(|verdict| verdict.dropped) {
        let option = verdict.option.as_deref().unwrap_or_default();
        if values.get(option) == Some(&"y") {
            verdict.dropped = false;
            verdict.why =
                "vmeter cannot drop this option: either another option selects it, or Kconfig \
                    has no switch for it"
                    .into();
        }
    }
}

fn needed(option: &str) -> Option<&'static str> {
    let minimal = MINIMAL.iter().find(|line| line.option == option).map(|line| line.why);
    minimal.or_else(|| NEEDED.iter().find(|(name, _)| *name == option).map(|(_, why)| *why))
}

/// The files in which these functions are made initcalls.
fn files_of(source: &Path, functions: &[&str]) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| source.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "c")
                && entry.metadata().is_ok_and(|m| m.len() <= MAX_FILE)
            {
                let text = fs::read(&path).unwrap_or_default();
                for function in made_here(&String::from_utf8_lossy(&text), functions) {
                    found.entry(function.to_owned()).or_insert_with(|| path.clone());
                }
            }
        }
    }
    found
}

/// Which of these functions a file makes initcalls: by `*_initcall(f)`, `module_init(f)`, or a
/// macro of a driver, `module_pci_driver(d)`, whose function is `d_init`.
fn made_here<'f>(text: &str, functions: &[&'f str]) -> Vec<&'f str> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((name, rest)) = line.split_once('(') else { continue };
        let Some(argument) = rest.split([')', ',']).next().map(str::trim) else { continue };
        let plain = name.ends_with("_initcall")
            || name.ends_with("_initcall_sync")
            || ["module_init", "console_initcall", "rootfs_initcall"].contains(&name);
        let driver = ["module_", "builtin_"].iter().any(|begin| name.starts_with(begin))
            && name.contains("driver");
        // Of the kernel's 20 million lines a few thousand.
        if !plain && !driver {
            continue;
        }
        for function in functions {
            let is_it = plain && *function == argument
                || driver && function.strip_suffix("_init") == Some(argument);
            if is_it && !found.contains(function) {
                found.push(function);
            }
        }
    }
    found
}

/// The option that a file is compiled by: its object's in the Makefile beside it, or that of
/// the folder in the one above.
fn option_of(source: &Path, file: &Path) -> Option<String> {
    let mut folder = file.parent()?;
    let mut part = format!("{}.o", file.file_stem()?.to_str()?);
    while folder.starts_with(source) && folder != source {
        let text = fs::read_to_string(folder.join("Makefile"))
            .or_else(|_| fs::read_to_string(folder.join("Kbuild")))
            .unwrap_or_default();
        match listed(&text, &part, 0) {
            Some(Listed::By(option)) => return Some(option),
            // Always, if its folder is.
            Some(Listed::Always) | None => {}
        }
        part = format!("{}/", folder.file_name()?.to_str()?);
        folder = folder.parent()?;
    }
    None
}

#[derive(Debug, PartialEq, Eq)]
enum Listed {
    Always,
    By(String),
}

/// How deep an object may be a part of others.
const DEEPEST: u32 = 4;

/// How a Makefile lists an object or folder.
fn listed(text: &str, part: &str, depth: u32) -> Option<Listed> {
    let joined = text.replace("\\\n", " ");
    let mut always = None;
    for line in joined.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let Some((left, right)) = line.split_once('=') else { continue };
        if !right.split_whitespace().any(|word| word == part) {
            continue;
        }
        let left = left.trim_end_matches([' ', '\t', '+', ':', '?']).trim();
        let (name, by) = left.rsplit_once('-').unwrap_or((left, ""));
        let option = by.strip_prefix("$(CONFIG_").and_then(|by| by.strip_suffix(')'));
        match (name, option) {
            (_, Some(option)) => return Some(Listed::By(option.to_owned())),
            ("obj" | "lib", None) => always = Some(Listed::Always),
            // A part of another object.
            (whole, None) if matches!(by, "y" | "objs") && depth < DEEPEST => {
                let whole = format!("{whole}.o");
                if whole != part {
                    return listed(text, &whole, depth + 1).or(always);
                }
            }
            _ => {}
        }
    }
    always
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAKEFILE: &str = "\
obj-y += core.o \\
\tsched/
obj-$(CONFIG_HUGETLBFS)\t+= hugetlb.o # large pages
audit-y := main.o filter.o
obj-$(CONFIG_AUDIT) += audit.o
usbcore-$(CONFIG_OF) += of.o
obj-$(CONFIG_USB) += usb/
";

    #[test]
    fn an_object_is_traced_to_its_option() {
        let by = |part: &str| match listed(MAKEFILE, part, 0) {
            Some(Listed::By(option)) => option,
            Some(Listed::Always) => "always".into(),
            None => "nowhere".into(),
        };
        assert_eq!(by("hugetlb.o"), "HUGETLBFS");
        assert_eq!(by("filter.o"), "AUDIT");
        assert_eq!(by("sched/"), "always");
        assert_eq!(by("usb/"), "USB");
        assert_eq!(by("of.o"), "OF");
        assert_eq!(by("none.o"), "nowhere");
    }

    #[test]
    fn initcalls_are_found_by_their_macros() {
        let text = "subsys_initcall(a_init);\nmodule_pci_driver(b_driver);\n\
                    static int c_init(void)\nmodule_init(d_init)\nfs_initcall_sync(e);\n";
        let all = ["a_init", "b_driver_init", "c_init", "d_init", "e", "x"];
        assert_eq!(made_here(text, &all), ["a_init", "b_driver_init", "d_init", "e"]);
    }

    #[test]
    fn what_is_needed_or_selected_stays() {
        let source = tempfile::tempdir().expect("a folder");
        let folder = source.path().join("drivers/x");
        fs::create_dir_all(&folder).expect("folders");
        fs::write(folder.join("Makefile"), "obj-$(CONFIG_X) += x.o\nobj-$(CONFIG_ACPI) += y.o\n")
            .expect("a file");
        fs::write(folder.join("x.c"), "module_init(x_init);\n").expect("a file");
        fs::write(folder.join("y.c"), "subsys_initcall(y_init);\n").expect("a file");
        let initcall = |function: &str, seconds| Initcall { function: function.into(), seconds };
        let measured =
            [initcall("x_init", 0.004), initcall("y_init", 0.2), initcall("short", 0.0009)];
        let base = BTreeMap::from([("X", "y"), ("ACPI", "y")]);
        let mut verdicts = verdicts(source.path(), &base, &measured).expect("verdicts");
        assert_eq!(options(&verdicts), ["X"]);
        assert_eq!((verdicts.len(), verdicts[0].dropped), (2, false));
        assert!(verdicts[0].why.starts_with("needed:"), "{verdicts:?}");
        note_kept(&mut verdicts, &BTreeMap::from([("X", "y")]));
        assert!(options(&verdicts).is_empty() && verdicts[1].why.contains("selects"));
    }

    proptest! {
        #[test]
        fn no_makefile_panics(text in "((obj|a)-(y|\\$\\(CONFIG_[A-Z]{0,3}\\)?|objs)? ?[+:]?= ?([ab]\\.o|[ -~])* ?\\\\?\n){0,8}") {
            let _ = listed(&text, "a.o", 0);
        }
    }
}
