//! The host's udev in a guest: daemon, rules, and the programs that the rules call.
//!
//! Everything that a distribution's own initramfs would bring for cold plug, and
//! nothing for what such a guest cannot have: a rules file that calls a program of
//! another package (`dmsetup`, `loginctl`, a shell script) is left out and named.

use crate::error::{Error, Result};
use crate::inputs::Inputs;
use crate::libraries::Linker;
use crate::tree::Tree;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Rules of the host, in falling precedence.
const RULES: [&str; 3] =
    ["/etc/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d"];
/// Where rules find helpers that they name without a path.
const HELPERS: &str = "/usr/lib/udev";
/// Names of interfaces, which the `net_setup_link` built-in reads.
const LINKS: &str = "/usr/lib/systemd/network";
/// Users and groups below this belong to the system.
const FIRST_OWN_ID: u32 = 1000;

/// Puts the host's udev and kmod into the guest; notes what was left out.
pub(crate) fn add(tree: &mut Tree, inputs: &mut Inputs, notes: &mut Vec<String>) -> Result<()> {
    let mut linker = Linker::new(inputs)?;
    for (program, package) in [
        ("/usr/lib/systemd/systemd-udevd", "udev"),
        ("/usr/bin/udevadm", "udev"),
        ("/usr/bin/kmod", "kmod"),
    ] {
        let path = installed(inputs, program).ok_or_else(|| Error::Missing {
            program: program.into(),
            purpose: "the udev appliance",
            package,
        })?;
        linker.add(tree, inputs, &path, "udev and kmod")?;
    }
    // The kernel runs this one for what it misses (CONFIG_MODPROBE_PATH).
    tree.link("/usr/sbin/modprobe", "/usr/bin/kmod", "udev and kmod")?;
    add_rules(tree, inputs, &mut linker, notes)?;
    for path in inputs.list(Path::new(LINKS))? {
        if path.extension().is_some_and(|e| e == "link") {
            tree.host_file(inputs, &path, "udev rules")?;
        }
    }
    tree.folder("/run")?;
    tree.folder("/tmp")?;
    tree.file("/etc/nsswitch.conf", 0o644, b"passwd: files\ngroup: files\n".into(), "udev rules")?;
    for (file, fields) in [("/etc/passwd", 7), ("/etc/group", 4)] {
        let text = inputs.read_text(Path::new(file))?.unwrap_or_default();
        tree.file(file, 0o644, system_entries(&text, fields).into_bytes(), "udev rules")?;
    }
    Ok(())
}

/// The path where a program really is: `/usr` may not be merged.
fn installed(inputs: &mut Inputs, program: &str) -> Option<PathBuf> {
    let merged = program.strip_prefix("/usr").unwrap_or(program);
    [program, merged].into_iter().map(PathBuf::from).find(|path| inputs.exists(path))
}

fn add_rules(
    tree: &mut Tree,
    inputs: &mut Inputs,
    linker: &mut Linker,
    notes: &mut Vec<String>,
) -> Result<()> {
    let mut files = BTreeMap::new();
    for folder in RULES {
        for path in inputs.list(Path::new(folder))? {
            if path.extension().is_some_and(|e| e == "rules") {
                files.entry(path.file_name().unwrap_or_default().to_owned()).or_insert(path);
            }
        }
    }
    for (name, path) in files {
        // A link to /dev/null is how an administrator masks a rules file.
        if !inputs.real_path(&path)?.is_file() {
            continue;
        }
        let text = inputs.read_text(&path)?.unwrap_or_default();
        match helpers(inputs, &text) {
            Ok(helpers) => {
                for helper in helpers {
                    linker.add(tree, inputs, &helper, "udev helpers")?;
                }
                let guest = format!("{}/{}", RULES[2], name.to_string_lossy());
                tree.file(&guest, 0o644, text.into_bytes(), "udev rules")?;
            }
            Err(program) => notes.push(format!(
                "{} left out: this udev rule calls {program}, which is not one of udev's own \
                    helpers",
                name.to_string_lossy()
            )),
        }
    }
    Ok(())
}

/// The helpers that a rules file calls, or the first program that cannot come along.
fn helpers(inputs: &mut Inputs, rules: &str) -> std::result::Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for program in programs(rules) {
        // What a substitution names is not known before the event.
        if program.contains(['$', '%']) || program.ends_with("/udevadm") {
            continue;
        }
        let relative =
            ["/usr/lib/udev/", "/lib/udev/"].iter().find_map(|p| program.strip_prefix(p));
        let name = relative.unwrap_or(&program);
        let path = installed(inputs, &format!("{HELPERS}/{name}"));
        let is_elf = |path: &PathBuf, inputs: &mut Inputs| {
            inputs.read(path).is_ok_and(|(_, bytes)| bytes.starts_with(b"\x7fELF"))
        };
        match path {
            Some(path) if !name.contains('/') && is_elf(&path, inputs) => found.push(path),
            _ => return Err(program),
        }
    }
    Ok(found)
}

/// First words of what `PROGRAM`, `IMPORT{program}` and `RUN` execute.
fn programs(rules: &str) -> Vec<String> {
    let rules = rules.replace("\\\n", " ");
    let mut found = Vec::new();
    for line in rules.lines().filter(|line| !line.trim_start().starts_with('#')) {
        for (key, value) in assignments(line) {
            let runs = matches!(key, "PROGRAM" | "IMPORT{program}" | "RUN" | "RUN{program}");
            let word = value.split_whitespace().next().unwrap_or_default();
            if runs && !word.is_empty() {
                found.push(word.trim_matches('\'').to_owned());
            }
        }
    }
    found
}

/// (KEY, VALUE) of every `KEY OP "VALUE"` in a line.
fn assignments(line: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('"') {
        let Some((value, next)) = after.split_once('"') else { break };
        let key = before.trim_end_matches(|c: char| "=!+-:e".contains(c) || c.is_whitespace());
        let key = key.rsplit([',', ' ', '\t']).next().unwrap_or_default();
        found.push((key, value));
        rest = next;
    }
    found
}

/// The system's own users or groups, without passwords, members and shells.
fn system_entries(text: &str, fields: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let parts: Vec<_> = line.split(':').collect();
        let id = parts.get(2).and_then(|id| id.parse::<u32>().ok());
        if parts.len() != fields || id.is_none_or(|id| id >= FIRST_OWN_ID) {
            continue;
        }
        match fields {
            4 => out += &format!("{}:x:{}:\n", parts[0], parts[2]),
            _ => out += &format!("{}:x:{}:{}::/:/bin/false\n", parts[0], parts[2], parts[3]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn programs_of_rules_are_found() {
        let rules = "# PROGRAM=\"/bin/comment\"\n\
            KERNEL==\"sd*\", ENV{A}!=\"?*\", IMPORT{program}=\"ata_id --export $devnode\"\n\
            X==\"1\", \\\n  RUN+=\"/bin/udevadm trigger\", RUN{builtin}+=\"kmod load\"\n\
            PROGRAM==\"/bin/sh -c 'x'\", ENV{PROGRAM}=\"no\"\n";
        assert_eq!(programs(rules), ["ata_id", "/bin/udevadm", "/bin/sh"]);
    }

    #[test]
    fn foreign_programs_are_named() {
        let mut inputs = Inputs::default();
        assert_eq!(helpers(&mut inputs, "RUN+=\"/sbin/dmsetup x\""), Err("/sbin/dmsetup".into()));
        assert_eq!(helpers(&mut inputs, "RUN+=\"../../bin/sh\""), Err("../../bin/sh".into()));
        assert_eq!(helpers(&mut inputs, "RUN+=\"$env{X}\""), Ok(vec![]));
    }

    #[test]
    fn only_system_groups_come_along() {
        let text = "root:x:0:\ndisk:x:6:alice\nalice:x:1000:\nbroken\n";
        assert_eq!(system_entries(text, 4), "root:x:0:\ndisk:x:6:\n");
        let text = "root:secret:0:0:root:/root:/bin/bash\n";
        assert_eq!(system_entries(text, 7), "root:x:0:0::/:/bin/false\n");
    }

    proptest! {
        #[test]
        fn any_rules_are_survived(text in "(RUN|PROGRAM|=|\"|,| |\\\\\n|'|a|:|9){0,40}") {
            let _ = programs(&text);
            let _ = system_entries(&text, 4);
        }
    }
}
