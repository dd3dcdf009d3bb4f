//! What a custom kernel changes: options whose initcalls took long in a boot that was
//! measured, and that nothing needs.
//!
//! An initcall's function is found in the sources, its file's object in the folder's Makefile,
//! and the object's option there (Linux `Documentation/kbuild/makefiles.rst`). What is found
//! otherwise, or not at all, is left in. Kconfig keeps an option that another one selects: those
//! that select it go as well, unless the guest needs one of them.

use super::lines::{setting, INSTEAD, MINIMAL, NEEDED};
use std::collections::{BTreeMap, BTreeSet};
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
    /// True if the option is left out, or set as [`INSTEAD`] has it.
    pub dropped: bool,
    /// Why, if it is not.
    pub why: String,
}

/// An option with a value of its own in a custom kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Without `CONFIG_`.
    pub option: String,
    /// `y` or `n`.
    pub value: &'static str,
}

impl Change {
    /// As a line of a `.config`.
    pub fn line(&self) -> String {
        setting(&self.option, self.value)
    }

    fn off(option: &str) -> Self {
        Change { option: option.into(), value: "n" }
    }
}

/// Options that stay, each with its reason.
pub type Kept = BTreeMap<String, String>;

/// Initcalls shorter than this are not worth a configuration of one's own, s.
pub const LONG_S: f64 = 0.001;

/// Folders of the sources that hold what x86 builds in.
const FOLDERS: [&str; 16] = [
    "arch/x86", "block", "certs", "crypto", "drivers", "fs", "init", "io_uring", "ipc", "kernel",
    "lib", "mm", "net", "security", "sound", "virt",
];
/// A larger file is neither C nor Kconfig.
const MAX_FILE: u64 = 4 << 20;

/// What is to become of each initcall, the longest first. One of less than `long_s` stays.
pub(super) fn verdicts(
    source: &Path,
    base: &BTreeMap<&str, &str>,
    (initcalls, long_s): (&[Initcall], f64),
    kept: &Kept,
) -> Vec<Verdict> {
    let mut all: Vec<&Initcall> = initcalls.iter().collect();
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let wanted: Vec<&str> = all.iter().map(|i| i.function.as_str()).collect();
    let files = files_of(source, &wanted);
    let verdict = |initcall: &&Initcall| {
        let instead = INSTEAD.iter().find(|(function, _)| *function == initcall.function);
        let option = match instead {
            Some((_, line)) => Some(line.option.to_owned()),
            None => files.get(&initcall.function).and_then(|file| option_of(source, file)),
        };
        let why = match &option {
            _ if initcall.seconds < long_s => SHORT.to_owned(),
            None => "vmeter found no option for it".to_owned(),
            Some(option) => match (needed(option, kept), instead) {
                (Some(why), _) => format!("needed: {why}"),
                (None, None) if base.get(option.as_str()) != Some(&"y") => "not built in".into(),
                (None, _) => String::new(),
            },
        };
        let initcall = (*initcall).clone();
        Verdict { initcall, dropped: why.is_empty(), option, why }
    };
    all.iter().map(verdict).collect()
}

/// Why most initcalls stay.
const SHORT: &str = "short";

/// What is left out of a kernel, as far as Kconfig is known to take it.
#[derive(Debug)]
pub(super) struct Plan {
    pub verdicts: Vec<Verdict>,
    /// What has to go as well, by the option that it selects.
    above: BTreeMap<String, Vec<String>>,
}

impl Plan {
    pub(super) fn new(verdicts: Vec<Verdict>) -> Self {
        Plan { verdicts, above: BTreeMap::new() }
    }

    /// All options that are changed.
    pub(super) fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for verdict in self.verdicts.iter().filter(|verdict| verdict.dropped) {
            let Some(option) = &verdict.option else { continue };
            changes.push(Change { option: option.clone(), value: wanted(option) });
            changes.extend(self.above.get(option).into_iter().flatten().map(|o| Change::off(o)));
        }
        changes.sort();
        changes.dedup();
        changes
    }

    /// Notes which changes Kconfig did not take; true if there is something else to try for one.
    pub(super) fn widen(
        &mut self,
        values: &BTreeMap<&str, &str>,
        selectors: &Selectors,
        kept: &Kept,
    ) -> bool {
        let mut tries = false;
        for verdict in self.verdicts.iter_mut().filter(|verdict| verdict.dropped) {
            let Some(option) = verdict.option.clone() else { continue };
            let is_on = values.get(option.as_str()) == Some(&"y");
            if is_on == (wanted(&option) == "y") {
                continue;
            }
            let above = match wanted(&option) {
                "n" => selectors.above(&option, values, kept),
                _ => Ok(Vec::new()),
            };
            let known = self.above.entry(option).or_default();
            match above {
                Ok(above) if above.iter().any(|option| !known.contains(option)) => {
                    known.extend(above);
                    tries = true;
                    continue;
                }
                Ok(_) => verdict.why = "Kconfig has no switch for it".into(),
                Err(why) => verdict.why = why,
            }
            verdict.dropped = false;
        }
        tries
    }
}

fn wanted(option: &str) -> &'static str {
    INSTEAD.iter().find(|(_, line)| line.option == option).map_or("n", |(_, line)| line.value)
}

/// The options that select each option, from all Kconfig files of the sources.
#[derive(Debug, Default)]
pub(super) struct Selectors(BTreeMap<String, BTreeSet<String>>);

impl Selectors {
    pub(super) fn of(source: &Path) -> Self {
        let mut found = Selectors::default();
        let here = |folder: &Path| {
            let of_arch = folder.parent().is_some_and(|above| above.ends_with("arch"));
            !of_arch || folder.ends_with("x86")
        };
        let is_one = |name: &str| name.starts_with("Kconfig");
        each_text(vec![source.to_owned()], here, is_one, |_, text| found.read(text));
        found
    }

    /// Reads a Kconfig file (Linux `Documentation/kbuild/kconfig-language.rst`).
    fn read(&mut self, text: &str) {
        let mut current = "";
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("config" | "menuconfig"), Some(name)) => current = name,
                (Some("select"), Some(selected)) if !current.is_empty() => {
                    self.0.entry(selected.into()).or_default().insert(current.into());
                }
                _ => {}
            }
        }
    }

    /// What has to go so that an option can; none if something needed keeps it, with the reason.
    fn above(
        &self,
        option: &str,
        values: &BTreeMap<&str, &str>,
        kept: &Kept,
    ) -> Result<Vec<String>, String> {
        let (mut all, mut left) = (Vec::new(), vec![option.to_owned()]);
        while let Some(option) = left.pop() {
            for selector in self.0.get(&option).into_iter().flatten() {
                let is_on = values.get(selector.as_str()).is_some_and(|value| *value == "y");
                if !is_on || all.contains(selector) {
                    continue;
                }
                if let Some(why) = needed(selector, kept) {
                    return Err(format!("{selector} selects it and is needed: {why}"));
                }
                if all.len() >= MOST_ABOVE {
                    return Err(format!("more than {MOST_ABOVE} options select it"));
                }
                all.push(selector.clone());
                left.push(selector.clone());
            }
        }
        Ok(all)
    }
}

/// An option that so many others select is a library of the kernel.
const MOST_ABOVE: usize = 12;

fn needed<'k>(option: &str, kept: &'k Kept) -> Option<&'k str> {
    let minimal = MINIMAL.iter().find(|line| line.option == option).map(|line| line.why);
    let fixed = || NEEDED.iter().find(|(name, _)| *name == option).map(|(_, why)| *why);
    kept.get(option).map(String::as_str).or(minimal).or_else(fixed)
}

/// The files in which these functions are made initcalls.
fn files_of(source: &Path, functions: &[&str]) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let folders = FOLDERS.iter().map(|folder| source.join(folder)).collect();
    each_text(
        folders,
        |_| true,
        |name| name.ends_with(".c"),
        |path, text| {
            for function in made_here(text, functions) {
                found.entry(function.to_owned()).or_insert_with(|| path.to_owned());
            }
        },
    );
    found
}

/// Reads each file of these folders and those in them, as far as they are entered, that has a
/// wanted name.
fn each_text(
    mut folders: Vec<PathBuf>,
    is_entered: impl Fn(&Path) -> bool,
    is_wanted: impl Fn(&str) -> bool,
    mut read: impl FnMut(&Path, &str),
) {
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() {
                folders.extend(Some(path).filter(|path| is_entered(path)));
            } else if kind.is_file()
                && is_wanted(&entry.file_name().to_string_lossy())
                && entry.metadata().is_ok_and(|file| file.len() <= MAX_FILE)
            {
                read(&path, &String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()));
            }
        }
    }
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

    fn sources(files: &[(&str, &str)]) -> tempfile::TempDir {
        let source = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = source.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("a file");
        }
        source
    }

    fn measured(all: &[(&str, f64)]) -> Vec<Initcall> {
        let initcall = |(function, seconds): &(&str, f64)| Initcall {
            function: (*function).into(),
            seconds: *seconds,
        };
        all.iter().map(initcall).collect()
    }

    #[test]
    fn what_is_needed_stays() {
        let source = sources(&[
            ("drivers/x/Makefile", "obj-$(CONFIG_X) += x.o\nobj-$(CONFIG_ACPI) += y.o\n"),
            ("drivers/x/x.c", "module_init(x_init);\n"),
            ("drivers/x/y.c", "subsys_initcall(y_init);\n"),
        ]);
        let measured = measured(&[
            ("x_init", 0.004),
            ("y_init", 0.2),
            ("crypto_algapi_init", 0.1),
            ("short", 0.0009),
        ]);
        let base = BTreeMap::from([("X", "y"), ("ACPI", "y")]);
        let kept = Kept::new();
        let plan = || Plan::new(verdicts(source.path(), &base, (&measured, LONG_S), &kept));
        let found = plan().verdicts;
        let self_tests = Change { option: "CRYPTO_MANAGER_DISABLE_TESTS".into(), value: "y" };
        assert_eq!(plan().changes(), [self_tests.clone(), Change::off("X")]);
        assert_eq!((found.len(), found[0].dropped), (4, false));
        assert!(found[0].why.starts_with("needed:"), "{found:?}");
        assert_eq!((found[3].why.as_str(), &found[3].option), (SHORT, &None));
        let kept = Kept::from([("X".to_owned(), "the guest did not boot without".to_owned())]);
        let plan = Plan::new(verdicts(source.path(), &base, (&measured, LONG_S), &kept));
        assert_eq!(plan.changes(), [self_tests]);
    }

    #[test]
    fn what_selects_an_option_goes_with_it_unless_it_is_needed() {
        let kconfig = "config TOP\n\tbool \"t\"\n\tselect MIDDLE if X86\n\
                       config MIDDLE\n\tselect LOW\n\
                       menuconfig ACPI\n\tselect OTHER\n";
        let source = sources(&[
            ("Kconfig", kconfig),
            ("arch/mips/Kconfig", "config MIPS\n\tselect LOW\n"),
            ("lib/Makefile", "obj-$(CONFIG_LOW) += low.o\nobj-$(CONFIG_OTHER) += other.o\n"),
            ("lib/low.c", "core_initcall(low_init);\n"),
            ("lib/other.c", "core_initcall(other_init);\n"),
        ]);
        let all = ["TOP", "MIDDLE", "LOW", "ACPI", "OTHER", "MIPS"];
        let base: BTreeMap<&str, &str> = all.iter().map(|option| (*option, "y")).collect();
        let measured = measured(&[("low_init", 0.01), ("other_init", 0.02)]);
        let kept = Kept::new();
        let found = verdicts(source.path(), &base, (&measured, LONG_S), &kept);
        let mut plan = Plan::new(found);
        assert_eq!(plan.changes(), [Change::off("LOW"), Change::off("OTHER")]);
        let selectors = Selectors::of(source.path());
        assert!(plan.widen(&base, &selectors, &kept));
        let with_those_above = ["LOW", "MIDDLE", "TOP"].map(Change::off);
        assert_eq!(plan.changes(), with_those_above);
        assert!(plan.verdicts[0].why.contains("ACPI selects it"), "{plan:?}");
        let taken = BTreeMap::from([("ACPI", "y"), ("OTHER", "y")]);
        assert!(!plan.widen(&taken, &selectors, &kept));
        assert_eq!(plan.changes(), with_those_above);
        // Kconfig keeps it whatever else is off: then nothing else has to go.
        assert!(!plan.widen(&base, &selectors, &kept));
        assert_eq!(plan.changes(), []);
    }

    proptest! {
        #[test]
        fn no_makefile_panics(text in "((obj|a)-(y|\\$\\(CONFIG_[A-Z]{0,3}\\)?|objs)? ?[+:]?= ?([ab]\\.o|[ -~])* ?\\\\?\n){0,8}") {
            let _ = listed(&text, "a.o", 0);
        }
    }
}
