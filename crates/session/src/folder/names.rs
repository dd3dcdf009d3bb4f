//! The names of what vmeter writes into a session's folder. What has another name is somebody
//! else's, whatever folder it lies in: it is never removed.

use super::marker::MARKER;
use std::path::Path;
use vmeter_base::files;

/// The session itself.
pub(crate) const SESSION: &str = "session.json";
/// A run, in its folder.
pub(crate) const RUN: &str = "run.json";
/// The folder of the runs.
pub(crate) const RUNS: &str = "runs";
/// A session whose shards are on a cluster.
pub(super) const CLUSTER: &str = "slurm.json";
/// The snapshots that a session restores.
pub const IMAGE: &str = "image";
/// The checkout that a range builds in.
pub(super) const CHECKOUT: &str = "checkout";
/// … and what is put behind it for each further build.
const CHECKOUT_AGAIN: &str = "-again";
/// A record of a run is not larger, bytes.
const MAX_RUN: u64 = 64 << 20;

/// Files beside the runs.
const FILES: [&str; 11] = [
    SESSION,
    super::lock::NAME,
    MARKER,
    "range.json",
    "checkout.cloned",
    "checkout.files",
    "image.files",
    CLUSTER,
    "job.sh",
    "ended",
    "ended.partial",
];

/// What recordings are called, beside those that a `run.json` names itself.
const RECORDINGS: [&str; 34] = [
    RUN,
    "console.chunks",
    "console.raw",
    "firmware.chunks",
    "firecracker.json",
    "guest-ftrace.bin",
    "guest-pages.txt",
    "guest-printk.bin",
    "guest-printk-names.txt",
    "kvm-trace.dat",
    "log-growth.txt",
    "mock.jsonl",
    "guest-units.json",
    "kvm-slots.txt",
    "monitor.qmp",
    "launcher-pages.txt",
    "launcher-requests.txt",
    "page-faults.txt",
    "qemu-trace.events",
    "qemu-trace.log",
    "snapshot-files.txt",
    "snapshot-pages.txt",
    "tcg-addresses.txt",
    "tcg-stamps.bin",
    "trace.dat",
    "vmm-events.chunks",
    "vmm-threads.txt",
    "vmm-facts.txt",
    "vmm-smaps-rollup.txt",
    "vmm-smaps.txt",
    "vmm-stacks.txt",
    "vmm-status.txt",
    "vmm-stderr.txt",
    "wave-trace.dat",
];

/// What a folder of a session's is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The session's own, or that of a shard.
    Session,
    /// Folders of runs.
    Runs,
    /// One run.
    Run,
    /// How commits were built.
    Builds,
    /// A folder for each commit.
    Kept,
    /// A session for each shard.
    Shards,
    /// What a cluster's tasks printed.
    Log,
    /// All that is in it, whatever its name, as far as a list of it says so
    /// ([`super::tree`]).
    Tree,
}

/// What vmeter has under a name in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    File,
    Folder(Kind),
}

impl Kind {
    /// What vmeter writes as `name` into a folder of this kind; `dir` is the folder.
    pub fn own(self, dir: &Path, name: &str) -> Option<Own> {
        let file = |known: bool| known.then_some(Own::File);
        if is_temporary(name) {
            return Some(Own::File);
        }
        match self {
            Kind::Session => of_session(dir, name),
            Kind::Runs => is_run(name).then_some(Own::Folder(Kind::Run)),
            Kind::Run => file(recorded(dir, name)),
            Kind::Builds => file(name.split_once('.').is_some_and(|(build, of)| {
                is_build(build) && ["json", "log", "lock"].contains(&of)
            })),
            Kind::Kept => {
                let (build, of) = name.split_once('.').unwrap_or((name, ""));
                match of {
                    _ if !is_build(build) => None,
                    "files" => Some(Own::File),
                    "" | "partial" => Some(Own::Folder(Kind::Tree)),
                    _ => None,
                }
            }
            Kind::Shards => is_number(name).then_some(Own::Folder(Kind::Session)),
            Kind::Log => file(name.strip_suffix(".txt").is_some_and(is_number)),
            Kind::Tree => Some(Own::File),
        }
    }
}

fn of_session(dir: &Path, name: &str) -> Option<Own> {
    if FILES.contains(&name) || is_of_checkout(name) {
        return Some(Own::File);
    }
    let kind = match name {
        RUNS => Kind::Runs,
        "builds" => Kind::Builds,
        "kept" => Kind::Kept,
        "shards" => Kind::Shards,
        "log" => Kind::Log,
        _ if may_be_tree(name) && super::marker::is_tree(dir, name) => Kind::Tree,
        _ => return None,
    };
    Some(Own::Folder(kind))
}

/// True for the name of a folder of which all can be vmeter's.
fn may_be_tree(name: &str) -> bool {
    name == IMAGE || name.starts_with(CHECKOUT)
}

/// What a crash leaves of a file that is written whole ([`vmeter_base::files`]).
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with(".vmeter-") && name.ends_with(".partial")
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `0007`, or one that is unfinished, damaged, or held something of somebody else's.
fn is_run(name: &str) -> bool {
    let (number, state) = name.split_once('.').unwrap_or((name, "partial"));
    let state = state.split_once('-').map_or(state, |(state, _)| state);
    number.len() >= 4 && is_number(number) && ["partial", "damaged", "kept"].contains(&state)
}

/// The folder in which the nth build of each commit is made; each has a name of another length,
/// which moves what a build puts its paths beside.
pub fn checkout_of(build: u32) -> String {
    format!("{CHECKOUT}{}", CHECKOUT_AGAIN.repeat(build.saturating_sub(1) as usize))
}

/// True for the name of a commit, in SHA-1 or SHA-256.
pub fn is_hash(text: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    [40, 64].contains(&text.len()) && text.bytes().all(hex)
}

/// True for a commit's build: its name, and a number from the second one on.
fn is_build(text: &str) -> bool {
    match text.split_once('-') {
        None => is_hash(text),
        Some((hash, number)) => is_hash(hash) && is_number(number) && !number.starts_with('0'),
    }
}

/// What lies beside the checkout of a further build: `checkout-again.cloned`.
fn is_of_checkout(name: &str) -> bool {
    let Some((stem, "cloned" | "files")) = name.split_once('.') else { return false };
    let times = stem.strip_prefix(CHECKOUT).map(|rest| rest.len() / CHECKOUT_AGAIN.len());
    times.is_some_and(|n| stem == format!("{CHECKOUT}{}", CHECKOUT_AGAIN.repeat(n)))
}

/// True for what a run's recorders wrote: what its record names, and what has the name of a
/// recording and was there when the record was written, last of all.
fn recorded(dir: &Path, name: &str) -> bool {
    let changed = |name: &str| dir.join(name).symlink_metadata()?.modified();
    let later = match (changed(name), changed(RUN)) {
        (Ok(file), Ok(run)) => file > run,
        _ => false,
    };
    let by_name = RECORDINGS.contains(&name) && (!later || !is_json(&dir.join(RUN)));
    by_name || named_by_run(dir, name)
}

fn is_json(path: &Path) -> bool {
    let bytes = files::read_limited(path, MAX_RUN).unwrap_or_default();
    serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok()
}

/// True for a recording that the run's own record names.
fn named_by_run(dir: &Path, name: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Sources {
        #[serde(default)]
        sources: Vec<Source>,
    }
    #[derive(serde::Deserialize)]
    struct Source {
        files: Vec<String>,
    }
    let bytes = files::read_limited(&dir.join(RUN), MAX_RUN).unwrap_or_default();
    let Ok(run) = serde_json::from_slice::<Sources>(&bytes) else { return false };
    run.sources.iter().any(|source| source.files.iter().any(|file| file == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_runs_and_commits() {
        let runs = ["0000", "12345", "0001.partial", "0001.damaged", "0001.damaged-2", "0002.kept"];
        assert!(runs.iter().all(|name| is_run(name)));
        for name in ["", "1", "exp1", "0001.txt", "000x", "0001.", "runs"] {
            assert!(!is_run(name), "{name}");
        }
        assert!(is_hash(&"0a".repeat(20)) && is_hash(&"ff".repeat(32)));
        let hash = "0a".repeat(20);
        assert!(is_build(&hash) && is_build(&format!("{hash}-2")));
        assert!(!is_build(&format!("{hash}-02")) && !is_build(&format!("{hash}-x")));
        assert!(is_of_checkout("checkout-again-again.files") && is_of_checkout("checkout.cloned"));
        assert!(!is_of_checkout("checkout-mine.files") && !is_of_checkout("checkout-again.c"));
        assert!(!is_hash("mine") && !is_hash(&"0A".repeat(20)) && !is_hash("../../etc"));
    }
}
