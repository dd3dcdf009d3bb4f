//! One side of a comparison: the runs of a machine, out of a saved session.

use crate::blocks::{blocks, ByBlock};
use crate::diff::lines::{self, LineCounts};
use crate::ends::Ends;
use crate::figures::Figures;
use crate::measured::analysed;
use std::path::PathBuf;
use vmeter_model::result::Envelope;
use vmeter_model::run::{RunRecord, SessionMachine};
use vmeter_session::{envelope, Session};

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
    /// How all of its measured runs ended.
    pub ends: Ends,
    /// Its session's folder.
    pub folder: PathBuf,
    /// Totals of its runs, s, by the block of its session's plan.
    pub by_block: ByBlock,
}

impl Side {
    /// The runs of one machine of a session.
    pub fn of_machine(session: &Session, finished: &[(PathBuf, RunRecord)], label: &str) -> Side {
        let machine = session.record.machines.iter().find(|m| m.label == label);
        let all: Vec<Figures> = analysed(finished, label).iter().map(Figures::of).collect();
        let ends = Ends::of_swept(all.iter().map(|f| &f.run));
        let failed = all.iter().filter(|f| !f.is_done()).count();
        let only_failed = failed == all.len();
        let runs: Vec<Figures> = all.into_iter().filter(|f| only_failed || f.is_done()).collect();
        let lines = runs.iter().filter_map(|f| {
            let own = |(_, r): &&(PathBuf, RunRecord)| r.index == f.run.index && r.label == label;
            finished.iter().find(own).map(|(dir, record)| lines::of_run(dir, record))
        });
        let lines = lines.collect();
        let blocks = blocks(&session.record.plan);
        let by_block =
            runs.iter().filter_map(|f| Some((*blocks.get(&f.run.index)?, f.run.total_s))).collect();
        Side {
            name: label.to_owned(),
            machine: machine.cloned().unwrap_or_default(),
            envelope: envelope::envelope(&session.record),
            failed: if only_failed { 0 } else { failed },
            runs,
            lines,
            ends,
            folder: session.dir.clone(),
            by_block,
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
