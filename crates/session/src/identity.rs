//! What tells the files that a session's runs execute and read from changed ones.
//!
//! A session that is gone on with next week is to be of the machines that it was begun with. So
//! the files that its command lines name are noted when it begins, and looked at again by
//! `--resume`: what is executed (the program, a script that an interpreter is given), and short
//! texts among the arguments (a VMM's configuration). A text that a run itself wrote, as it
//! does a log, is no other machine.

use crate::failure::usage;
use anyhow::Result;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use vmeter_base::{files, shell};
use vmeter_model::run::{SessionMachine, SessionRecord};

/// A larger program is known by its size and time, bytes.
const MAX_HASHED: u64 = 1 << 20;
/// A larger argument is no script and no configuration, bytes.
const MAX_TEXT: u64 = 4 << 20;

/// The clocks of files and of this host may differ by so much.
const CLOCKS: Duration = Duration::from_secs(1);

/// A file that a command line names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    path: PathBuf,
    /// It is run, and not only named.
    executed: bool,
}

/// The files of machines that are run or read, with what tells changed ones.
pub fn of_machines(machines: &[SessionMachine]) -> BTreeMap<String, String> {
    noted(machines.iter().flat_map(named_by))
}

/// The files that command lines name.
pub fn of_command(words: &[String]) -> BTreeMap<String, String> {
    noted(named(words))
}

fn noted(all: impl IntoIterator<Item = Named>) -> BTreeMap<String, String> {
    let one = |named: Named| Some((named.path.display().to_string(), identity(&named.path)?));
    all.into_iter().filter_map(one).collect()
}

fn named_by(machine: &SessionMachine) -> Vec<Named> {
    let mut all = named(&machine.argv);
    // A machine that is described by a file.
    let described = machine.spec.machine.iter().map(PathBuf::from).filter(|path| path.is_file());
    all.extend(described.map(|path| Named { path, executed: true }));
    all
}

/// The files among the words of a command line, of command lines in it (`sh -c`) as well.
fn named(words: &[String]) -> Vec<Named> {
    let mut all = Vec::new();
    let mut after_program = false;
    for (at, word) in words.iter().enumerate() {
        if word.contains(char::is_whitespace) {
            let inner: Vec<String> = word
                .split(|c: char| c.is_whitespace() || ";&|()".contains(c))
                .map(str::to_owned)
                .collect();
            all.extend(named(&inner));
            continue;
        }
        if word.is_empty() || word.starts_with('-') {
            continue;
        }
        let path = match (at, word.contains('/')) {
            (_, true) => Some(PathBuf::from(word)),
            (0, false) => shell::find(word),
            // A name alone is a program of PATH, or a file here.
            (_, false) => {
                Some(PathBuf::from(word)).filter(|p| p.is_file()).or_else(|| shell::find(word))
            }
        };
        let Some(path) = path else { continue };
        match kind(&path) {
            Kind::Program => {
                all.push(Named { path, executed: true });
                after_program = true;
            }
            Kind::Script => {
                all.push(Named { path, executed: true });
                after_program = false;
            }
            Kind::Text => {
                all.push(Named { path, executed: after_program });
                after_program = false;
            }
            Kind::Other => {}
        }
    }
    all
}

enum Kind {
    /// It is executed, and may be given a script.
    Program,
    /// It is executed by another program, which it names or is given to.
    Script,
    Text,
    Other,
}

fn kind(path: &Path) -> Kind {
    let Some(found) = path.metadata().ok().filter(fs::Metadata::is_file) else {
        return Kind::Other;
    };
    let executable = found.permissions().mode() & 0o111 != 0;
    let mut head = Vec::new();
    let read = files::open_regular(path).and_then(|file| file.take(4096).read_to_end(&mut head));
    match read {
        Ok(_) if head.starts_with(b"#!") => Kind::Script,
        Ok(1..) if executable && !head.contains(&0) => Kind::Script,
        _ if executable => Kind::Program,
        Ok(_) if found.len() <= MAX_TEXT && !head.contains(&0) => Kind::Text,
        _ => Kind::Other,
    }
}

/// What tells a file from a changed one; none where it can't be read.
pub(crate) fn identity(path: &Path) -> Option<String> {
    let found = path.metadata().ok()?;
    if found.len() <= MAX_HASHED || found.permissions().mode() & 0o111 == 0 {
        let mut bytes = Vec::new();
        files::open_regular(path).ok()?.take(MAX_TEXT).read_to_end(&mut bytes).ok()?;
        let hex: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        return Some(format!("sha256:{hex}"));
    }
    // Of a file from before 1970 too.
    Some(format!("{} bytes, changed at {}.{:09}", found.len(), found.mtime(), found.mtime_nsec()))
}

/// Texts that machines' command lines name, and that they do not execute.
pub(crate) fn read_by(machines: &[SessionMachine]) -> Vec<PathBuf> {
    let read = machines.iter().flat_map(named_by).filter(|named| !named.executed);
    read.map(|named| named.path).collect()
}

/// Of what was noted, the texts that were written since: by a run that began then, as its log.
pub(crate) fn written_since<P>(record: &SessionRecord<P>, begin: SystemTime) -> Vec<String> {
    let later = |path: &PathBuf| {
        path.metadata().and_then(|found| found.modified()).is_ok_and(|at| at >= begin - CLOCKS)
    };
    let all = read_by(&record.machines).into_iter().filter(later);
    let noted = all.map(|path| path.display().to_string());
    noted.filter(|path| record.programs.contains_key(path)).collect()
}

/// Refuses a session of which something is another by now.
///
/// # Errors
/// Class usage, if `others` has anything.
pub fn same(dir: &Path, others: &[String]) -> Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    Err(usage(format!(
        "inputs of the session in {} have changed since the session began: {}. Its runs would \
         measure two different machines: restore these inputs, or start again without --resume",
        dir.display(),
        others.join(", ")
    )))
}

/// What of one machine's provenance is another by now, in words: the digest of a kernel, the
/// version of a VMM, wherever they lie.
pub fn provenance(
    label: &str,
    was: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Vec<String> {
    let other = |(what, was): (&String, &String)| {
        let is = now.get(what).filter(|is| version(is) != version(was))?;
        Some(format!("{what} of {label} ({was}; now {is})"))
    };
    was.iter().filter_map(other).collect()
}

/// Refuses to go on where machines' provenance is another by now.
///
/// # Errors
/// Class usage: what differs.
pub fn check_provenance<P>(
    dir: &Path,
    begun: &SessionRecord<P>,
    now: &[SessionMachine],
) -> Result<()> {
    let pairs = std::iter::zip(&begun.machines, now);
    let mut others: Vec<String> = pairs
        .flat_map(|(was, now)| provenance(&was.label, &was.provenance, &now.provenance))
        .collect();
    others.dedup();
    same(dir, &others)
}

/// A file is what its digest says and a program what its version says, wherever they lie:
/// `/boot/vmlinuz sha256:…`, `QEMU emulator version 7.2.22 (/usr/bin/qemu-system-x86_64)`.
pub fn version(value: &str) -> String {
    let path = |rest: &str| rest.strip_suffix(')').is_some_and(|path| path.contains('/'));
    let placed = value.rsplit_once(" (").filter(|(_, rest)| path(rest));
    match (value.split_once(" sha256:"), placed) {
        (Some((_, digest)), _) => format!("sha256:{digest}"),
        (None, Some((version, _))) => version.to_owned(),
        (None, None) => value.to_owned(),
    }
}

#[cfg(test)]
mod of_versions {
    #[test]
    fn a_version_is_the_same_wherever_its_program_lies() {
        let at = |path: &str| super::version(&format!("QEMU 7.2.22 (Debian 1:7.2+b3) ({path})"));
        assert_eq!(at("/usr/bin/qemu"), "QEMU 7.2.22 (Debian 1:7.2+b3)");
        assert_eq!(at("./wrapper"), at("/usr/bin/qemu"));
        assert_eq!(super::version("QEMU 7.2.22 (Debian)"), "QEMU 7.2.22 (Debian)");
        assert_eq!(super::version("/boot/vmlinuz sha256:ab"), "sha256:ab");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<String> {
        line.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn scripts_and_texts_are_found_wherever_they_stand() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).expect("written");
            path.display().to_string()
        };
        let script = file("m.sh", b"echo a\n");
        let text = file("vm.json", b"{}");
        let disk = file("disk", b"\0\0\0");
        let found = |line: &[&str]| -> Vec<(String, bool)> {
            let all = named(&words(line)).into_iter();
            let own = all.filter(|n| n.path.starts_with(folder.path()));
            own.map(|n| (n.path.display().to_string(), n.executed)).collect()
        };
        let both = vec![(script.clone(), true), (text.clone(), false)];
        assert_eq!(found(&["sh", "-e", &script, &disk, &text]), both);
        assert_eq!(found(&["env", "A=1", "sh", &script, &text]), both);
        let wrapper = file("wrapper", b"#!/bin/sh\nexec \"$@\" >log\n");
        let own = vec![(wrapper.clone(), true), (text.clone(), false)];
        assert_eq!(found(&[&wrapper, &text]), own);
        assert_eq!(found(&["sh", &wrapper, &text]), own);
        assert_eq!(found(&["sh", "-c", &format!("sh {script}; cat {text}")])[0], both[0]);
        assert_eq!(found(&["qemu", "-drive", &disk, "/nonexistent/x"]), []);
        let before = of_command(&words(&["sh", &script]));
        assert!(before.contains_key(&script) && before.len() == 2, "{before:?}");
        fs::write(&script, "echo b\n").expect("written");
        assert_ne!(of_command(&words(&["sh", &script])), before);
    }
}
