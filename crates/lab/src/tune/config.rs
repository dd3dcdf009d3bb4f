//! What a tuning keeps with its session: what was asked, which machines there are, and the stages that
//! its runs belong to. All that is decided follows from it and from the runs on disk, so that a session
//! that was killed goes on as if it had not been.

use super::candidates::{self, Candidate};
use crate::findings::user_machine::{changed, changed_played, OwnMachine};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_machine::backend::Machine;
use vmeter_model::tune::{Allow, Keep};
use vmeter_model::MachineSpec;

/// Label of the machine that was asked about.
pub(crate) const ORIGINAL: &str = "original";

/// What is asked, and how far it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    /// The machine as it was given.
    pub given: MachineSpec,
    /// The machine that is tuned: a command line, or one that is played.
    pub base: MachineSpec,
    /// `--budget`, s.
    pub budget_s: f64,
    /// `--worth`, a share.
    pub worth: f64,
    /// `--keep`.
    pub keep: Vec<Keep>,
    /// `--allow`.
    pub allow: Vec<Allow>,
    /// Measured boots of each machine in the last measurement, if `--runs` says so.
    #[serde(default)]
    pub runs: Option<u32>,
    /// What may be tried.
    pub candidates: Vec<Planned>,
    /// Ids of the candidates that each machine has, by its label.
    pub sets: BTreeMap<String, Vec<String>>,
    /// What was done so far, in order.
    pub stages: Vec<Stage>,
}

/// A candidate, before anything was booted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// Its id.
    pub id: String,
    /// Why it is not tried, if so.
    pub barred: Option<String>,
}

/// Runs that belong together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stage {
    /// What they are for.
    pub kind: Kind,
    /// The first run.
    pub from: u32,
    /// The one after the last.
    pub to: u32,
    /// Label of the first of its machines.
    #[serde(default)]
    pub base: String,
    /// How often that boots in each block.
    #[serde(default)]
    pub replicas: usize,
}

/// What runs are for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The machine as it is, watched.
    Look,
    /// Each candidate alone, watched.
    Alone {
        /// Ids.
        ids: Vec<String>,
    },
    /// Candidates together, watched: does it boot, and is it the same?
    Together {
        /// Ids.
        ids: Vec<String>,
        /// The one that is added to a machine that works; none if all are tried at once.
        added: Option<String>,
    },
    /// The original and all candidates together, in turn.
    Gate {
        /// Label of the machine with all.
        all: String,
    },
    /// All candidates, and all but some, in turn.
    Round {
        /// Number of the round.
        number: usize,
        /// Label of the machine with all.
        all: String,
        /// What is left out.
        groups: Vec<Group>,
    },
    /// The tuned machine, watched.
    Check {
        /// Its label.
        tuned: String,
    },
    /// The original and the tuned machine afresh, in turn, and the tuned one without each step.
    Fresh {
        /// Label of the tuned machine.
        tuned: String,
        /// What is left out.
        without: Vec<Group>,
    },
    /// Both, watched.
    Phases {
        /// Label of the tuned machine.
        tuned: String,
    },
}

/// Candidates that are left out of a machine together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    /// Ids.
    pub ids: Vec<String>,
    /// Label of the machine without them.
    pub label: String,
}

impl Config {
    /// The label of the machine with these candidates, if there is one.
    pub fn label_of(&self, ids: &[String]) -> Option<&str> {
        self.sets.iter().find(|(_, set)| *set == ids).map(|(label, _)| label.as_str())
    }
}

/// Ids in the order in which their changes are made.
pub(crate) fn in_order(ids: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut ids: Vec<String> = ids.into_iter().collect();
    let all = candidates::all();
    ids.sort_by_key(|id| all.iter().position(|c| c.id() == id));
    ids.dedup();
    ids
}

/// The candidate with this id.
pub(crate) fn candidate(id: &str) -> Option<Candidate> {
    candidates::all().into_iter().find(|c| c.id() == id)
}

/// What says which causes a machine has.
pub(crate) fn own_machine(base: &MachineSpec, machine: &Machine) -> OwnMachine {
    match machine.script {
        Some(_) => OwnMachine::played(base),
        None => OwnMachine::of(machine),
    }
}

/// The machine with these candidates' changes.
///
/// # Errors
/// Why one of them can't be made here, in words.
pub(crate) fn with(
    base: &MachineSpec,
    machine: &Machine,
    ids: &[String],
    cache: &Path,
) -> Result<MachineSpec, String> {
    let changes: Vec<_> = ids
        .iter()
        .filter_map(|id| candidate(id))
        .flat_map(|c| c.remedy.changes.iter().copied())
        .collect();
    match machine.script {
        Some(_) => Ok(changed_played(base, &changes)),
        None => changed(base, machine, &changes, cache),
    }
}
