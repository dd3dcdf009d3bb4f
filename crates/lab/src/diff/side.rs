//! One side of a comparison: the runs of a machine, out of a saved session.

use crate::diff::lines::{self, LineCounts};
use crate::diff::listed;
use crate::figures::{analysed, Figures};
use crate::kinds;
use anyhow::Result;
use std::path::{Path, PathBuf};
use vmeter_base::shell;
use vmeter_model::result::Envelope;
use vmeter_model::run::{RunRecord, SessionMachine};
use vmeter_session::failure::usage;
use vmeter_session::{envelope, read_run, AnySession, Session};

/// The runs that are compared.
#[derive(Debug, Clone)]
pub struct Side {
    /// As the user named it.
    pub name: String,
    /// The machine.
    pub machine: SessionMachine,
    /// Head of its session.
    pub envelope: Envelope,
    /// Its measured runs; those that reached their end, if any did.
    pub runs: Vec<Figures>,
    /// What each of these runs printed.
    pub lines: Vec<LineCounts>,
    /// Runs that are left out because they failed.
    pub failed: usize,
}

/// A session whose runs are boots, or why they are not.
fn boots(folder: &Path) -> Result<Session> {
    let session = AnySession::open(folder)?;
    let kind = kinds::of(&session)?;
    kind.boots().map_err(|why| {
        let dir = session.dir.display();
        usage(format!("{dir} is a session of vmeter {}: {why}", kind.kind()))
    })?;
    Session::open(folder)
}

impl Side {
    /// Finds what `text` names: a session's folder, `FOLDER#LABEL` for one machine of a
    /// sweep or bench, or the folder of a single run in it.
    ///
    /// # Errors
    /// Class usage, with the labels that there are.
    pub fn open(text: &str) -> Result<Side> {
        let path = Path::new(text);
        if path.join("run.json").is_file() {
            return Side::of_run(text, path);
        }
        let (folder, label) = match text.rsplit_once('#') {
            Some((folder, label)) if !path.exists() => (Path::new(folder), Some(label)),
            _ => (path, None),
        };
        let session = boots(folder).map_err(|e| usage(format!("{e:#}")))?;
        let labels: Vec<&str> = session.record.machines.iter().map(|m| m.label.as_str()).collect();
        let label = match (label, labels.as_slice()) {
            (Some(label), _) if labels.contains(&label) => label.to_owned(),
            (None, [only]) => (*only).to_owned(),
            (Some(label), _) => {
                return Err(usage(format!(
                    "{}: there is no {label:?} in it, only {}",
                    folder.display(),
                    listed(labels.into_iter())
                )))
            }
            (None, _) => {
                return Err(usage(format!(
                    "{}: it has {} machines: say which, as in {}; there are {}",
                    folder.display(),
                    labels.len(),
                    shell::quote(&format!("{text}#{}", labels.first().unwrap_or(&"LABEL"))),
                    listed(labels.iter().copied())
                )))
            }
        };
        let (finished, _) = session.finished().map_err(|e| usage(format!("{e:#}")))?;
        let side = Side { name: text.to_owned(), ..Side::of_machine(&session, &finished, &label) };
        if side.runs.is_empty() {
            return Err(usage(format!("{text}: no run was finished")));
        }
        Ok(side)
    }

    /// A single run, by its folder.
    fn of_run(text: &str, dir: &Path) -> Result<Side> {
        let wrong = |e: anyhow::Error| usage(format!("{e:#}"));
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let folder = dir.parent().and_then(Path::parent).unwrap_or(&dir);
        let session = boots(folder).map_err(wrong)?;
        let record = read_run(&dir).map_err(wrong)?;
        // The one run that is asked for counts, whatever it was made for.
        let measured = RunRecord { warmup: false, ..record };
        let label = measured.label.clone();
        let side = Side::of_machine(&session, &[(dir, measured)], &label);
        Ok(Side { name: text.to_owned(), ..side })
    }

    /// The runs of one machine of a session.
    pub fn of_machine(session: &Session, finished: &[(PathBuf, RunRecord)], label: &str) -> Side {
        let machine = session.record.machines.iter().find(|m| m.label == label);
        let all: Vec<Figures> = analysed(finished, label).iter().map(Figures::of).collect();
        let failed = all.iter().filter(|f| !f.is_done()).count();
        let only_failed = failed == all.len();
        let runs: Vec<Figures> = all.into_iter().filter(|f| only_failed || f.is_done()).collect();
        let lines = runs.iter().filter_map(|f| {
            let own = |(_, r): &&(PathBuf, RunRecord)| r.index == f.run.index && r.label == label;
            finished.iter().find(own).map(|(dir, record)| lines::of_run(dir, record))
        });
        let lines = lines.collect();
        Side {
            name: label.to_owned(),
            machine: machine.cloned().unwrap_or_default(),
            envelope: envelope::envelope(&session.record),
            failed: if only_failed { 0 } else { failed },
            runs,
            lines,
        }
    }

    /// True if all of its runs are in virtual time.
    pub fn is_exact(&self) -> bool {
        !self.runs.is_empty() && self.runs.iter().all(|f| f.icount)
    }

    /// Totals of its runs, s.
    pub fn totals(&self) -> Vec<f64> {
        self.runs.iter().map(|f| f.run.total_s).collect()
    }
}
