//! A kind of experiment, as the commands see it that take any: show, report, merge, diff,
//! runs.

use crate::failure::usage;
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use vmeter_model::run::Outcome;
use vmeter_render::Report;

/// What of a result is shown besides its summary. Kinds without such a view ignore it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Views {
    /// All tables, where a terminal has one screen otherwise.
    pub long: bool,
    /// All activities, longest first.
    pub blame: bool,
    /// The chain of what the end waited for.
    pub critical_chain: bool,
    /// The tree of spans.
    pub tree: bool,
}

/// What a session comes to.
pub trait Answer {
    /// The result for the outputs.
    fn report(&self, views: &Views) -> Box<dyn Report + '_>;

    /// Why the answer is bad, in one line: a guest that never got to its ready point, say.
    /// Commands that measure print it and exit with 1. Nothing if the answer is good.
    fn failure(&self) -> Option<String>;
}

/// How many of these runs failed, and how; nothing if all are done.
pub fn failed_runs<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<String> {
    let all: Vec<&Outcome> = outcomes.collect();
    let failed = all.iter().filter(|outcome| ***outcome != Outcome::Done);
    let words: BTreeSet<&str> = failed.clone().map(|outcome| outcome.word()).collect();
    let words = words.into_iter().collect::<Vec<_>>().join(", ");
    (!words.is_empty())
        .then(|| format!("{} of {} runs failed ({words})", failed.count(), all.len()))
}

/// A kind of experiment. One file each, and a line in the registry.
pub trait Experiment: Sync {
    /// Its name: the command, and [`command`](vmeter_model::run::SessionRecord::command) of
    /// its sessions.
    fn kind(&self) -> &'static str;

    /// The command that makes such sessions.
    fn command(&self) -> &'static str {
        self.kind()
    }

    /// Analyses a saved session of this kind.
    ///
    /// # Errors
    /// Class usage: a folder that cannot be read as one, or that holds no finished run.
    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>>;

    /// As [`Experiment::answer`], with moments to be marked, each `NAME=REGEX`.
    ///
    /// # Errors
    /// As there; class usage: a kind that has no such moments, a mark that is none.
    fn marked(&self, dir: &Path, marks: &[String]) -> Result<Box<dyn Answer>> {
        if marks.is_empty() {
            return self.answer(dir);
        }
        Err(usage(format!("--mark: a session of vmeter {} has no console to mark", self.kind())))
    }

    /// How its sessions are cut into shards and put together again, or why they are not.
    ///
    /// # Errors
    /// The reason, in words that follow "a session of vmeter X:".
    fn cut(&self) -> Result<&dyn Shardable, &'static str>;

    /// Nothing if its runs are boots, which `vmeter diff` compares; or why they are not.
    ///
    /// # Errors
    /// The reason, in words that follow "a session of vmeter X:".
    fn boots(&self) -> Result<(), &'static str>;
}

/// Why most kinds are not cut into shards.
pub const NOT_CUT: &str = "only sessions of vmeter sweep and vmeter range can be split into \
    shards";

/// What a kind adds to the union of run folders that merging is.
pub trait Shardable: Sync {
    /// Refuses folders that are no shards of one session, beyond what all kinds check.
    ///
    /// # Errors
    /// Class usage.
    fn check(&self, shards: &[PathBuf]) -> Result<()> {
        let _ = shards;
        Ok(())
    }

    /// Brings what lies beside the runs into the merged folder.
    ///
    /// # Errors
    /// Any error of the file system.
    fn copy_extra(&self, shards: &[PathBuf], to: &Path) -> Result<()> {
        let _ = (shards, to);
        Ok(())
    }

    /// Labels of machines whose runs are not missed in the merged folder.
    fn ignore_missing(&self, dir: &Path) -> BTreeSet<String> {
        let _ = dir;
        BTreeSet::new()
    }

    /// True if each host makes the files that it boots itself, so that they may differ.
    fn builds(&self) -> bool {
        false
    }
}
