//! Git on a repository that may be anyone's.
//!
//! A repository's own configuration names programs that git runs: hooks, a watcher of files,
//! what checks signatures, pagers, filters; the user's may as well, on what a stranger has
//! committed. None of them runs here. What a filter would make of a file (Git LFS) is not
//! made, which is said to the user.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::NamedTempFile;
use vmeter_base::owner::Owner;
use vmeter_session::failure::{failure, Class};
use vmeter_session::{subcommand, Interrupt};

/// What is not read from the user's configuration or the system's, should an older git read
/// them all the same, nor from the repository's, which is always read.
const SETTINGS: [&str; 12] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "core.askPass=true",
    "core.sshCommand=false",
    "credential.helper=",
    "diff.external=",
    "gc.auto=0",
    "gpg.program=false",
    "i18n.logOutputEncoding=UTF-8",
    "log.showSignature=false",
    "submodule.recurse=false",
];

/// How git is called.
#[derive(Debug)]
pub(super) struct Git {
    /// The folders whose owner the user trusts, of their configuration; none if there are none.
    config: Option<NamedTempFile>,
}

impl Git {
    /// With what the user's configuration says of repositories that belong to others: git
    /// itself refuses these otherwise.
    ///
    /// # Errors
    /// There is no git; a temporary file cannot be made.
    pub fn new() -> Result<Self> {
        let mut own = clean();
        own.args(["config", "--get-all", "safe.directory"]).current_dir("/").stdin(Stdio::null());
        let said = own.output().context(MISSING)?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        if said.trim().is_empty() {
            return Ok(Git { config: None });
        }
        let mut file = tempfile::Builder::new()
            .prefix(&format!("{}-", Owner::this()))
            .suffix(".gitconfig")
            .tempfile()
            .context("cannot make a temporary file for git")?;
        let quoted = |folder: &str| folder.replace('\\', "\\\\").replace('"', "\\\"");
        let lines = said.lines().map(|folder| format!("\tdirectory = \"{}\"\n", quoted(folder)));
        write!(file, "[safe]\n{}", lines.collect::<String>())
            .context("cannot write a temporary file for git")?;
        Ok(Git { config: Some(file) })
    }

    /// A command on `repo`.
    pub fn on(&self, repo: &Path) -> Command {
        let mut command = clean();
        let config = self.config.as_ref().map_or(Path::new("/dev/null"), NamedTempFile::path);
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", config);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        command.arg("--no-pager").arg("-C").arg(repo).stdin(Stdio::null());
        command
    }
}

/// Asks nothing, fetches nothing, and is not led astray by a surrounding git.
fn clean() -> Command {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    command.env_remove("SSH_ASKPASS").env("LC_ALL", "C");
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ALLOW_PROTOCOL", "file");
    // A partial clone's missing objects (git 2.45 and later).
    command.env("GIT_NO_LAZY_FETCH", "1");
    command
}

/// What git says of a disk that is full. It has a way for each place that writes, often
/// without the reason.
const FULL: [&str; 8] = [
    "No space left on device",
    "Disk quota exceeded",
    "Out of diskspace",
    "unable to write",
    "failed to write",
    "couldn't write",
    "could not write",
    "cannot write",
];
const MISSING: &str = "cannot run git: install it (on Debian: apt-get install git)";

/// What a command has printed.
///
/// # Errors
/// Class usage: what git says, but class host for a full disk. An interruption.
pub(super) fn output(mut command: Command, what: &str, interrupt: &Interrupt) -> Result<String> {
    let Output { status, stdout, stderr } = ended(&mut command, what, interrupt)?;
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr);
        let is_full = FULL.iter().any(|words| said.contains(words));
        let class = if is_full { Class::Host } else { Class::Usage };
        let said = said.trim();
        let why = if said.is_empty() { format!("git: {status}") } else { said.to_owned() };
        return Err(failure(class, format!("{what}: {why}")));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// How a command ended.
///
/// # Errors
/// There is no git; an interruption.
pub(super) fn ended(command: &mut Command, what: &str, interrupt: &Interrupt) -> Result<Output> {
    let ended = subcommand::output(command, interrupt).context(MISSING)?;
    ended.ok_or_else(|| failure(Class::Interrupted, format!("interrupted: {what}")))
}
