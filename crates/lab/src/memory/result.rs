//! What the saved looks come to.

use super::config::Config;
use super::guest::{meminfo, GuestMemory};
use super::moments::Stage;
use crate::phrases::ended_text;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmeter_model::result::{Envelope, FailedRun};
use vmeter_model::run::{Outcome, RunRecord, SessionMachine};
use vmeter_model::EventKind;
use vmeter_record::recorder::Saved;
use vmeter_record::sources::vmm_memory::{Memory, Part, VmmMemory};
use vmeter_session::{envelope, Session};

/// The result of `vmeter memory`.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryResult {
    /// What every export has.
    pub envelope: Envelope,
    /// How much of a file the guests read, MiB.
    pub read_mib: u32,
    /// Machines in the order in which they were named.
    pub machines: Vec<MachineMemory>,
    /// For the user.
    pub warnings: Vec<String>,
    /// What could be done next.
    pub hints: Vec<String>,
    /// The session's folder.
    pub saved_in: String,
}

/// A machine at its moments.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineMemory {
    /// Label.
    pub label: String,
    /// In the order in which they come in a guest's life.
    pub moments: Vec<Moment>,
}

impl MachineMemory {
    /// The last moment with a sample: what INTERFACE's `guest` and `vmm` are of.
    pub fn last(&self) -> Option<&Moment> {
        self.moments.iter().rev().find(|moment| !moment.samples.is_empty())
    }
}

/// A machine at one moment, over its runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Moment {
    /// Which.
    pub stage: Stage,
    /// The machine as it was booted.
    pub machine: SessionMachine,
    /// Every look, in the order of the runs.
    pub samples: Vec<Sample>,
    /// Runs that did not get there.
    pub failures: Vec<FailedRun>,
}

impl Moment {
    /// The look that stands for all: the one in the middle by what was resident (the smaller of
    /// two), so that its figures are of one state and add up.
    pub fn middle(&self) -> Option<&Sample> {
        let mut order: Vec<&Sample> = self.samples.iter().collect();
        order.sort_by_key(|sample| (sample.vmm.as_ref().map(|vmm| vmm.rss_bytes), sample.run));
        order.get(order.len().saturating_sub(1) / 2).copied()
    }
}

/// One look.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Number of the run.
    pub run: u32,
    /// Inside; none if the guest did not print its `/proc/meminfo`.
    pub guest: Option<GuestMemory>,
    /// The guest's `/proc/meminfo`, bytes where it says kB.
    pub meminfo: BTreeMap<String, u64>,
    /// Outside; none if `/proc` could not be read.
    pub vmm: Option<VmmFigures>,
}

/// A VMM's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmmFigures {
    /// The most that was ever resident, bytes.
    pub peak_rss_bytes: u64,
    /// What is resident, bytes.
    pub rss_bytes: u64,
    /// Its share of it: what several processes map is divided among them, bytes.
    pub pss_bytes: u64,
    /// Of what is resident, what no file is behind, bytes.
    pub anonymous_bytes: u64,
    /// Swapped out, bytes.
    pub swap_bytes: u64,
    /// What it consists of, largest first.
    pub parts: Vec<PartFigures>,
}

/// A part of a VMM's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartFigures {
    /// Which.
    pub part: Part,
    /// Resident, bytes.
    pub rss_bytes: u64,
    /// The process's share of it, bytes.
    pub pss_bytes: u64,
}

impl VmmFigures {
    fn of(memory: &Memory) -> Self {
        let part = |(part, sums): &(Part, vmeter_record::sources::vmm_memory::Rollup)| {
            PartFigures { part: *part, rss_bytes: sums.rss_bytes, pss_bytes: sums.pss_bytes }
        };
        VmmFigures {
            peak_rss_bytes: memory.peak_rss_bytes,
            rss_bytes: memory.rollup.rss_bytes,
            pss_bytes: memory.rollup.pss_bytes,
            anonymous_bytes: memory.rollup.anonymous_bytes,
            swap_bytes: memory.rollup.swap_bytes,
            parts: memory.parts.iter().map(part).collect(),
        }
    }

    /// What of a part is resident, bytes.
    pub fn part(&self, part: Part) -> u64 {
        self.parts.iter().find(|p| p.part == part).map_or(0, |p| p.rss_bytes)
    }
}

/// The result of a saved session.
///
/// # Errors
/// When the session's folder cannot be read, or holds no finished run.
pub fn result(session: &Session) -> Result<MemoryResult> {
    let config: Config = session.asked()?;
    let (finished, mut warnings) = session.finished()?;
    if finished.is_empty() {
        return Err(session.no_runs(&warnings));
    }
    warnings.extend(crate::missing::warning(session, &finished));
    let mut machines: Vec<MachineMemory> = Vec::new();
    for described in &session.record.machines {
        let parameter = |name: &str| {
            let found = described.parameters.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.as_str())
        };
        let label = parameter("machine").unwrap_or(&described.label);
        let stage = parameter("moment").and_then(|word| word.parse().ok()).unwrap_or(Stage::End);
        let moment = moment(described, stage, &finished, &mut warnings);
        match machines.iter_mut().find(|machine| machine.label == label) {
            Some(machine) => machine.moments.push(moment),
            None => machines.push(MachineMemory { label: label.into(), moments: vec![moment] }),
        }
    }
    let hints = hints(&machines);
    Ok(MemoryResult {
        envelope: envelope::envelope(&session.record),
        read_mib: config.read_mib,
        machines,
        warnings,
        hints,
        saved_in: session.dir.display().to_string(),
    })
}

fn moment(
    machine: &SessionMachine,
    stage: Stage,
    finished: &[(PathBuf, RunRecord)],
    warnings: &mut Vec<String>,
) -> Moment {
    let own = finished.iter().filter(|(_, run)| run.label == machine.label && run.is_told());
    let (mut samples, mut failures) = (Vec::new(), Vec::new());
    for (dir, run) in own {
        for warning in &run.warnings {
            let said = format!("{}: {warning}", machine.label);
            if !warnings.contains(&said) {
                warnings.push(said);
            }
        }
        if run.outcome == Outcome::Done {
            samples.push(sample(dir, run, warnings));
        } else {
            let (outcome, end) = (run.outcome.clone(), run.end.clone());
            if let Some(why) = ended_text(&outcome, end.as_ref()) {
                warnings.push(format!("{}, run {}: {why}", machine.label, run.index));
            }
            failures.push(FailedRun { run: run.index, outcome, end });
        }
    }
    Moment { stage, machine: machine.clone(), samples, failures }
}

fn sample(dir: &Path, run: &RunRecord, warnings: &mut Vec<String>) -> Sample {
    let (events, _) = vmeter_record::decode::events(dir, run);
    let lines = events.iter().filter_map(|event| match &event.what {
        EventKind::ConsoleLine { text, .. } => Some(text.as_str()),
        _ => None,
    });
    let meminfo = meminfo(lines);
    let vmm = match Saved::new(dir, run).raw(&VmmMemory) {
        Ok(memory) => memory.map(|memory| VmmFigures::of(&memory)),
        Err(error) => {
            warnings.push(format!("run {}: {error}", run.index));
            None
        }
    };
    Sample { run: run.index, guest: GuestMemory::of(&meminfo), meminfo, vmm }
}

fn hints(machines: &[MachineMemory]) -> Vec<String> {
    let silent = |machine: &&MachineMemory| {
        let samples = machine.moments.iter().flat_map(|moment| &moment.samples);
        let mut samples = samples.filter(|sample| sample.guest.is_none()).peekable();
        samples.peek().is_some()
    };
    let silent = machines.iter().find(silent).map(|machine| {
        format!(
            "{}: the guest printed no /proc/meminfo, so vmeter reports only the VMM's memory. \
                Make the guest run `cat /proc/meminfo` on its console, and end the run after \
                that output with --until 'line:REGEX'",
            machine.label
        )
    });
    silent.into_iter().collect()
}
