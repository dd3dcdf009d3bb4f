//! The commits of a range, and a checkout of our own to build them in.
//!
//! The user's repository is only read: the checkout is a clone that borrows its objects
//! (`git clone --shared`), so neither its work tree, index, refs nor its list of worktrees
//! change, and a vmeter that is killed leaves nothing behind in it.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vmeter_model::range::Commit;
use vmeter_session::failure::usage;

/// A range with more commits is a mistake in it.
const MAX_COMMITS: usize = 100_000;

/// The commits of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Oldest first; the first is the one before the range.
    pub commits: Vec<Commit>,
    /// Commits of merged branches, left out.
    pub merged: usize,
}

/// A git command on `repo` that asks nothing and is not led astray by a surrounding git.
fn git(repo: &Path) -> Command {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    command.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
    command.arg("-C").arg(repo).stdin(Stdio::null());
    command
}

fn output(mut command: Command, what: &str) -> Result<String> {
    let output =
        command.output().context("cannot run git: install it (on Debian: apt-get install git)")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(usage(format!("{what}: {}", said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The commits of `A..B` along first parents: A, then each commit up to B.
///
/// # Errors
/// Class usage: no repository, a name that git does not know, A not an ancestor of B.
pub fn history(repo: &Path, range: &str) -> Result<History> {
    let wrong = || usage(format!("{range}: expected A..B, two commits of {}", repo.display()));
    let (a, b) = range.split_once("..").ok_or_else(wrong)?;
    if b.starts_with('.') || a.is_empty() || a.starts_with('-') || b.starts_with('-') {
        return Err(wrong());
    }
    let (a, b) = (resolve(repo, a)?, resolve(repo, if b.is_empty() { "HEAD" } else { b })?);
    let mut ancestor = git(repo);
    ancestor.args(["merge-base", "--is-ancestor", &a, &b]);
    if !ancestor.status().context("cannot run git")?.success() {
        return Err(usage(format!(
            "{range}: the first commit is no ancestor of the second; `git merge-base` finds one that is"
        )));
    }
    let list = |more: &[&str]| {
        let mut command = git(repo);
        command.args(["log", "--reverse", "--format=%H %s"]).args(more);
        command.arg(format!("{a}..{b}")).arg("--");
        output(command, range)
    };
    let mut commits = vec![described(repo, &a)?];
    commits.extend(list(&["--first-parent"])?.lines().map(commit));
    let all = list(&[])?.lines().count();
    if commits.len() < 2 || commits.len() > MAX_COMMITS {
        let n = commits.len() - 1;
        return Err(usage(format!("{range}: {n} commits in it; expected 1 to {MAX_COMMITS}")));
    }
    let merged = (all + 1).saturating_sub(commits.len());
    Ok(History { commits, merged })
}

fn resolve(repo: &Path, name: &str) -> Result<String> {
    let mut command = git(repo);
    command.args(["rev-parse", "--verify", "--end-of-options", &format!("{name}^{{commit}}")]);
    Ok(output(command, &format!("{}: {name}", repo.display()))?.trim().to_owned())
}

fn described(repo: &Path, hash: &str) -> Result<Commit> {
    let mut command = git(repo);
    command.args(["log", "-1", "--format=%H %s", hash, "--"]);
    Ok(commit(output(command, hash)?.lines().next().unwrap_or(hash)))
}

fn commit(line: &str) -> Commit {
    let (hash, subject) = line.split_once(' ').unwrap_or((line, ""));
    Commit { hash: hash.to_owned(), subject: subject.to_owned() }
}

/// The checkout in which commits are built, one after another.
#[derive(Debug)]
pub struct Checkout {
    /// Its folder.
    pub dir: PathBuf,
}

impl Checkout {
    /// The checkout at `dir`, cloned if it is not there or was only begun.
    ///
    /// # Errors
    /// What git says, a full disk among it.
    pub fn open(repo: &Path, dir: PathBuf) -> Result<Self> {
        let done = dir.with_extension("cloned");
        if !done.exists() {
            let _ = std::fs::remove_dir_all(&dir);
            let mut command = git(Path::new("."));
            command.args(["clone", "--quiet", "--shared", "--no-checkout", "--"]);
            command.arg(repo.canonicalize().unwrap_or_else(|_| repo.to_owned())).arg(&dir);
            output(command, &format!("cannot clone {}", repo.display()))?;
            std::fs::write(&done, b"")
                .with_context(|| format!("cannot write {}", done.display()))?;
        }
        Ok(Checkout { dir })
    }

    /// Brings the files of `hash` into it. Files that builds have left stay, so that the
    /// next build is incremental, unless `clean`.
    ///
    /// # Errors
    /// What git says.
    pub fn switch(&self, hash: &str, clean: bool) -> Result<()> {
        // A vmeter that was killed may have left git's lock.
        let _ = std::fs::remove_file(self.dir.join(".git/index.lock"));
        let mut command = git(&self.dir);
        command.args(["checkout", "--quiet", "--force", "--detach", hash]);
        output(command, &format!("cannot check out {hash}"))?;
        if clean {
            let mut command = git(&self.dir);
            command.args(["clean", "-xdfq"]);
            output(command, "cannot clean the checkout")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(commits: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let run = |arguments: &[&str]| {
            let mut command = git(folder.path());
            command.args(["-c", "user.name=t", "-c", "user.email=t@example.org"]);
            command.args(arguments);
            output(command, "git").expect("git works");
        };
        run(&["init", "--quiet"]);
        for i in 0..commits {
            std::fs::write(folder.path().join("n"), i.to_string()).expect("a file");
            run(&["add", "n"]);
            run(&["commit", "--quiet", "-m", &format!("commit {i}")]);
        }
        folder
    }

    #[test]
    fn commits_oldest_first_and_the_users_checkout_untouched() {
        let folder = repository(5);
        let found = history(folder.path(), "HEAD~3..").expect("a range");
        let subjects: Vec<&str> = found.commits.iter().map(|c| c.subject.as_str()).collect();
        assert_eq!(subjects, ["commit 1", "commit 2", "commit 3", "commit 4"]);
        assert_eq!((found.merged, found.commits[0].short().len()), (0, 12));

        let before = listing(folder.path());
        let own = tempfile::tempdir().expect("a folder");
        let checkout = Checkout::open(folder.path(), own.path().join("tree")).expect("a clone");
        checkout.switch(&found.commits[1].hash, true).expect("checked out");
        let text = std::fs::read_to_string(checkout.dir.join("n")).expect("its file");
        assert_eq!(text, "2");
        assert_eq!(listing(folder.path()), before);
        // Again, after the lock of a git that was killed.
        std::fs::write(checkout.dir.join(".git/index.lock"), b"").expect("a lock");
        let again = Checkout::open(folder.path(), own.path().join("tree")).expect("the same");
        again.switch(&found.commits[3].hash, false).expect("checked out");
    }

    fn listing(dir: &Path) -> Vec<(PathBuf, u64)> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
            if entry.path().is_dir() {
                all.extend(listing(&entry.path()));
            } else {
                all.push((entry.path(), entry.metadata().expect("a file").len()));
            }
        }
        all.sort();
        all
    }

    #[test]
    fn wrong_ranges_are_explained() {
        let folder = repository(2);
        for (range, what) in [
            ("HEAD", "expected A..B"),
            ("HEAD...HEAD~1", "expected A..B"),
            ("--output=x..HEAD", "expected A..B"),
            ("nowhere..HEAD", "nowhere"),
            ("HEAD..HEAD~1", "no ancestor"),
            ("HEAD..HEAD", "0 commits"),
        ] {
            let error = history(folder.path(), range).expect_err(range).to_string();
            assert!(error.contains(what), "{range}: {error}");
        }
        let nothing = tempfile::tempdir().expect("a folder");
        assert!(history(nothing.path(), "A..B").is_err());
    }
}
