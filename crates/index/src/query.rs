//! Questions.

use crate::cache::{Entry, Share};
use crate::result::{SavedRun, SavedSession};
use crate::saved::{self, Run};
use crate::{Filter, Index, IndexError};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use vmeter_model::time::seconds;

/// Sessions that a filter matches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// The latest of them, oldest first.
    pub sessions: Vec<SavedSession>,
    /// How many there are.
    pub found: usize,
    /// Their runs, warm-ups and failed ones among them.
    pub runs: usize,
    /// Of their runs' files, bytes.
    pub bytes: u64,
}

/// A session of the index, and its machines that a filter matches.
struct Match<'a> {
    path: &'a Path,
    entry: &'a Entry,
    shares: Vec<&'a Share>,
}

impl Index {
    /// Sessions that `filter` matches, at most `limit` of them, the latest.
    pub fn sessions(&self, filter: &Filter, limit: usize) -> Listing {
        let matched = self.matching(filter);
        let shares = || matched.iter().flat_map(|found| &found.shares);
        let latest = matched.iter().skip(matched.len().saturating_sub(limit));
        Listing {
            found: matched.len(),
            runs: shares().map(|share| share.runs + share.warmups + share.failed).sum(),
            bytes: shares().map(|share| share.bytes).sum(),
            sessions: latest.map(|found| self.session(found)).collect(),
        }
    }

    /// Reads every run that `filter` matches and gives it to `each`, session by session, oldest
    /// first.
    ///
    /// # Errors
    /// `each`'s.
    pub fn runs<E>(
        &self,
        filter: &Filter,
        mut each: impl FnMut(SavedRun) -> Result<(), E>,
    ) -> Result<(), E> {
        for found in self.matching(filter) {
            let runs = saved::read(found.path).map(|saved| saved.runs).unwrap_or_default();
            let labels =
                found.shares.iter().map(|share| (share.label.as_str(), share.machine.as_str()));
            let labels: HashMap<&str, &str> = labels.collect();
            for run in runs {
                match labels.get(run.label.as_str()) {
                    Some(machine) => each(self.run(&found, machine, run))?,
                    // Of a machine that its session does not name.
                    None if filter.machine.is_empty() => each(self.run(&found, "", run))?,
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Sessions that `filter` matches, oldest first.
    fn matching(&self, filter: &Filter) -> Vec<Match<'_>> {
        let any = filter.machine.is_empty();
        let machines = self.machines.iter().filter(|(_, machine)| !any && filter.wants(machine));
        let wanted: HashSet<&str> = machines.map(|(id, _)| id.as_str()).collect();
        let mut found: Vec<Match<'_>> = Vec::new();
        for (path, entry) in self.sessions.iter().filter(|(_, entry)| filter.takes(entry)) {
            let shares = entry.machines.iter();
            let shares: Vec<_> =
                shares.filter(|share| any || wanted.contains(share.machine.as_str())).collect();
            if any || !shares.is_empty() {
                found.push(Match { path, entry, shares });
            }
        }
        found.sort_by_key(|found| (found.entry.started_s, found.path.file_name(), found.path));
        found
    }

    fn summary(&self, machine: &str) -> String {
        self.machines.get(machine).map(|machine| machine.summary.clone()).unwrap_or_default()
    }

    fn session(&self, found: &Match<'_>) -> SavedSession {
        let Match { path, entry, shares } = found;
        let sum = |of: fn(&Share) -> usize| shares.iter().map(|share| of(share)).sum();
        let one = match shares.as_slice() {
            [one] => Some(one),
            _ => None,
        };
        SavedSession {
            id: name(path),
            path: path.to_path_buf(),
            command: entry.command.clone(),
            started_at: entry.started_at.clone(),
            argv: entry.argv.clone(),
            cpu_model: entry.cpu_model.clone(),
            machines: shares.len(),
            machine: shares.first().map(|first| self.summary(&first.machine)).unwrap_or_default(),
            machine_id: one.map(|one| one.machine.clone()),
            runs: sum(|share| share.runs),
            warmups: sum(|share| share.warmups),
            failed: sum(|share| share.failed),
            planned: entry.planned,
            mean_s: one.filter(|one| one.runs > 0).map(|one| one.sum_s / one.runs as f64),
            bytes: shares.iter().map(|share| share.bytes).sum(),
            problem: entry.problem.clone(),
        }
    }

    fn run(&self, of: &Match<'_>, machine: &str, run: Run) -> SavedRun {
        SavedRun {
            session: name(of.path),
            path: of.path.to_owned(),
            command: of.entry.command.clone(),
            session_started_at: of.entry.started_at.clone(),
            cpu_model: of.entry.cpu_model.clone(),
            run: run.index,
            machine_id: machine.to_owned(),
            machine: self.summary(machine),
            warmup: run.warmup,
            outcome: run.outcome.word().into(),
            started_s: run.started_ns().map(seconds),
            total_s: seconds(run.total_ns),
            user_s: run.usage.user_s,
            system_s: run.usage.system_s,
            max_rss_bytes: run.usage.max_rss_bytes,
            steal_s: run.steal_s,
            bytes: run.bytes,
            label: run.label,
        }
    }

    /// The folder of the session called `given`: a name, the beginning of one, or a path.
    ///
    /// # Errors
    /// [`IndexError::Unknown`], [`IndexError::Ambiguous`].
    pub fn find(&self, given: &str) -> Result<PathBuf, IndexError> {
        let text = given.trim_end_matches('/');
        let mut found = self.named(|name| name == text);
        let path = std::path::absolute(text).unwrap_or_else(|_| text.into());
        if found.is_empty() && vmeter_session::folder::is_session(&path) {
            return Ok(path);
        }
        if found.is_empty() && !text.is_empty() {
            found = self.named(|name| name.starts_with(text));
        }
        match found.as_slice() {
            [] => Err(IndexError::Unknown(given.to_owned())),
            [one] => Ok(one.to_path_buf()),
            [first, ..] => Err(IndexError::Ambiguous {
                given: given.to_owned(),
                count: found.len(),
                first: first.display().to_string(),
            }),
        }
    }

    /// Sessions by name, in the order of their paths.
    fn named(&self, is: impl Fn(&str) -> bool) -> Vec<&Path> {
        let paths = self.sessions.keys().map(PathBuf::as_path);
        let mut found: Vec<&Path> = paths.filter(|path| is(&name(path))).collect();
        found.sort();
        found
    }
}

/// A session's name: that of its folder.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
