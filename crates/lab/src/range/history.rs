//! The commits of a range, and a checkout of our own to build them in.
//!
//! The user's repository is only read: the checkout is a clone that borrows its objects
//! (`git clone --shared`), so neither its work tree, index, refs nor its list of worktrees
//! change, and a vmeter that is killed leaves nothing behind in it.

use super::git::{ended, output, Git};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_model::range::Commit;
use vmeter_session::failure::usage;
use vmeter_session::folder::{self, Strangers};
use vmeter_session::Interrupt;

/// A range with more commits is a mistake in it.
const MAX_COMMITS: usize = 100_000;

/// The commits of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Oldest first; the first is the one before the range.
    pub commits: Vec<Commit>,
    /// Commits of merged branches, left out.
    pub merged: usize,
    /// True if the last commit names filters for its files, which are not run.
    pub filtered: bool,
}

/// The commits of `A..B` along first parents: A, then each commit up to B.
///
/// # Errors
/// Class usage: no repository, a name that git does not know, A not an ancestor of B.
pub fn history(repo: &Path, range: &str, interrupt: &Interrupt) -> Result<History> {
    let repo = &Repository { git: Git::new()?, path: repo, interrupt };
    let wrong = || usage(format!("{range}: expected A..B, two commits of {}", repo.path.display()));
    let (a, b) = range.split_once("..").ok_or_else(wrong)?;
    if b.starts_with('.') || a.is_empty() || a.starts_with('-') || b.starts_with('-') {
        return Err(wrong());
    }
    let (a, b) = (repo.resolve(a)?, repo.resolve(if b.is_empty() { "HEAD" } else { b })?);
    if !repo.holds(&["merge-base", "--is-ancestor", &a, &b], range)? {
        return Err(usage(format!(
            "{range}: the first commit is no ancestor of the second; `git merge-base` prints their \
                common ancestor"
        )));
    }
    let span = format!("{a}..{b}");
    let list = |more: &[&str]| {
        let log: &[&str] = &["log", "--reverse", "--format=%H %s"];
        repo.said(&[log, more, &[&span, "--"]].concat(), range)
    };
    let mut commits = vec![repo.described(&a)?];
    commits.extend(list(&["--first-parent"])?.lines().map(commit));
    let all = list(&[])?.lines().count();
    if commits.len() < 2 || commits.len() > MAX_COMMITS {
        let n = commits.len() - 1;
        return Err(usage(format!("{range}: {n} commits in it; expected 1 to {MAX_COMMITS}")));
    }
    let merged = (all + 1).saturating_sub(commits.len());
    // grep fails where nothing matches.
    let attributes = ["--", ".gitattributes", "*/.gitattributes"];
    let grep = ["grep", "-q", "-e", "filter=", &b];
    let filtered = repo.holds(&[&grep[..], &attributes].concat(), range)?;
    Ok(History { commits, merged, filtered })
}

struct Repository<'a> {
    git: Git,
    path: &'a Path,
    interrupt: &'a Interrupt,
}

impl Repository<'_> {
    fn said(&self, arguments: &[&str], what: &str) -> Result<String> {
        let mut command = self.git.on(self.path);
        command.args(arguments);
        output(command, what, self.interrupt)
    }

    fn holds(&self, arguments: &[&str], what: &str) -> Result<bool> {
        let mut command = self.git.on(self.path);
        Ok(ended(command.args(arguments), what, self.interrupt)?.status.success())
    }

    fn resolve(&self, name: &str) -> Result<String> {
        let name = format!("{name}^{{commit}}");
        let what = format!("{}: {}", self.path.display(), name.trim_end_matches("^{commit}"));
        let found = self.said(&["rev-parse", "--verify", "--end-of-options", &name], &what)?;
        Ok(found.trim().to_owned())
    }

    fn described(&self, hash: &str) -> Result<Commit> {
        let said = self.said(&["log", "-1", "--format=%H %s", hash, "--"], hash)?;
        Ok(commit(said.lines().next().unwrap_or(hash)))
    }
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
    git: Git,
}

impl Checkout {
    /// The checkout at `dir`, a folder that is vmeter's with all that is in it
    /// ([`vmeter_session::folder::own_tree`]); cloned if it is not there or was only begun.
    ///
    /// # Errors
    /// What git says, a full disk among it; an interruption.
    pub fn open(repo: &Path, dir: PathBuf, interrupt: &Interrupt) -> Result<Self> {
        let git = Git::new()?;
        let done = dir.with_extension("cloned");
        if !done.exists() {
            if dir.exists() {
                std::fs::remove_dir_all(&dir)
                    .with_context(|| format!("cannot remove {}", dir.display()))?;
            }
            let mut command = git.on(Path::new("."));
            command.args(["clone", "--quiet", "--shared", "--no-checkout", "--template=", "--"]);
            command.arg(repo.canonicalize().unwrap_or_else(|_| repo.to_owned())).arg(&dir);
            output(command, &format!("cannot clone {}", repo.display()), interrupt)?;
            let checkout = Checkout { dir, git };
            checkout.note()?;
            files::write_atomic(&done, b"")
                .with_context(|| format!("cannot write {}", done.display()))?;
            return Ok(checkout);
        }
        Ok(Checkout { dir, git })
    }

    /// What is in the checkout at `dir` and no build has put there; nothing in one that was
    /// only begun.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn strangers(dir: &Path) -> Result<Strangers> {
        let git_only = || {
            let mut entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.all(|entry| entry.file_name() == ".git")
        };
        if !dir.with_extension("cloned").exists() && git_only() {
            return Ok(Strangers::default());
        }
        folder::strangers(dir).with_context(|| format!("cannot read {}", dir.display()))
    }

    /// Lists what is in it now: a build has put it there.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn note(&self) -> Result<()> {
        folder::note_tree(&self.dir)
            .with_context(|| format!("cannot list what is in {}", self.dir.display()))
    }

    /// Brings the files of `hash` into it. Files that builds have left stay, so that the
    /// next build is incremental, unless `clean`.
    ///
    /// # Errors
    /// What git says; an interruption.
    pub fn switch(&self, hash: &str, clean: bool, interrupt: &Interrupt) -> Result<()> {
        // A vmeter that was killed may have left git's lock.
        let _ = std::fs::remove_file(self.dir.join(".git/index.lock"));
        let mut command = self.git.on(&self.dir);
        command.args(["checkout", "--quiet", "--force", "--detach", hash]);
        output(command, &format!("cannot check out {hash}"), interrupt)?;
        if clean {
            let mut command = self.git.on(&self.dir);
            command.args(["clean", "-xdfq"]);
            output(command, "cannot clean the checkout", interrupt)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(commits: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let git = Git::new().expect("git is there");
        let run = |arguments: &[&str]| {
            let mut command = git.on(folder.path());
            command.args(["-c", "user.name=t", "-c", "user.email=t@example.org"]);
            command.args(arguments);
            output(command, "git", &Interrupt::default()).expect("git works");
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
        let found = history(folder.path(), "HEAD~3..", &Interrupt::default()).expect("a range");
        let subjects: Vec<&str> = found.commits.iter().map(|c| c.subject.as_str()).collect();
        assert_eq!(subjects, ["commit 1", "commit 2", "commit 3", "commit 4"]);
        assert_eq!((found.merged, found.commits[0].short().len()), (0, 12));

        let before = listing(folder.path());
        let own = tempfile::tempdir().expect("a folder");
        let interrupt = Interrupt::default();
        let open = |repo: &Path| Checkout::open(repo, own.path().join("tree"), &interrupt);
        let checkout = open(folder.path()).expect("a clone");
        checkout.switch(&found.commits[1].hash, true, &interrupt).expect("checked out");
        let text = std::fs::read_to_string(checkout.dir.join("n")).expect("its file");
        assert_eq!(text, "2");
        assert_eq!(listing(folder.path()), before);
        // Again, after the lock of a git that was killed.
        std::fs::write(checkout.dir.join(".git/index.lock"), b"").expect("a lock");
        let again = open(folder.path()).expect("the same");
        again.switch(&found.commits[3].hash, false, &interrupt).expect("checked out");
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
            let error =
                history(folder.path(), range, &Interrupt::default()).expect_err(range).to_string();
            assert!(error.contains(what), "{range}: {error}");
        }
        let nothing = tempfile::tempdir().expect("a folder");
        assert!(history(nothing.path(), "A..B", &Interrupt::default()).is_err());
    }
}
