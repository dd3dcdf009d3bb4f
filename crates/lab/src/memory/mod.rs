//! `vmeter memory`: what a guest uses inside, and its VMM outside, at the guest's ready point
//! and after it has read a file.
//!
//! Each machine is booted for each moment by itself and stopped there, so that guest and VMM
//! are looked at in the same state. Nothing else watches: a trace buffer would be guest memory,
//! and a plugin the VMM's.

mod guest;
mod moments;
pub mod report;
mod result;

pub use guest::GuestMemory;
pub use moments::Stage;
pub use result::{result, MachineMemory, MemoryResult, Moment, PartFigures, Sample, VmmFigures};
pub use vmeter_record::sources::vmm_memory::Part;

use crate::booter::Recorder;
use crate::boots::Boots;
use crate::prepare::{check_same, prepare_with, Prepared};
use crate::shown::Shown;
use anyhow::Result;
use moments::{stages, wishes};
use report::MemoryReport;
use serde::{Deserialize, Serialize};
use std::path::Path;
use vmeter_model::run::{PlannedRun, SessionRecord, WatchLevel};
use vmeter_model::MachineSpec;
use vmeter_render::quantity::plural;
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::{begin, cache_dir, execute, record, resumed, RunOptions, Session, Watch};
use vmeter_session::{Answer, Experiment, Views};

const KIND: &str = "memory";

/// Measured boots of each machine and moment, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 3;

/// What the guest reads, MiB, unless `--read` says otherwise: the whole file on its root.
pub const DEFAULT_READ_MIB: u32 = 64;

/// What to look into.
#[derive(Debug, Clone)]
pub struct MemoryOptions {
    /// Machines with their labels.
    pub machines: Vec<(String, MachineSpec)>,
    /// How much of a file the guest reads, MiB, at most [`DEFAULT_READ_MIB`]; 0 to look at the
    /// ready point alone.
    pub read_mib: Option<u32>,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// What a session keeps besides its machines and its plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Asked {
    read_mib: u32,
    machines: Vec<(String, MachineSpec)>,
}

/// Boots each machine to each moment, and looks.
///
/// # Errors
/// A machine that is not valid or has no process, a host that can't boot it, an interruption.
pub fn memory(options: &MemoryOptions, watch: &mut Watch<'_>) -> Result<MemoryResult> {
    let saved = resumed(KIND, &options.runs, watch, |session: &Session, given| {
        let begun: Asked = session.asked()?;
        given.option("--read", options.read_mib, begun.read_mib);
        if let ([(_, asked), ..], [(_, first), ..]) = (&*options.machines, &*begun.machines) {
            given.fields(asked, first);
        }
        if options.machines.len() > 1 {
            let labels = |of: &[(String, MachineSpec)]| -> Vec<String> {
                of.iter().map(|(label, _)| label.clone()).collect()
            };
            given.option("--root", Some(labels(&options.machines)), labels(&begun.machines));
        }
        Ok(())
    })?;
    let asked = match &saved {
        Some(session) => session.asked()?,
        None => Asked {
            read_mib: options.read_mib.unwrap_or(DEFAULT_READ_MIB),
            machines: options.machines.clone(),
        },
    };
    check(&asked)?;
    let prepared = prepare_all(&asked)?;
    saved.as_ref().map_or(Ok(()), |session| check_same(session, &prepared))?;
    let described: Vec<_> = prepared.iter().map(|p| p.session.clone()).collect();
    let mut session = match saved {
        Some(session) => session,
        None => {
            let (machines, asked) = (described.clone(), serde_json::to_value(&asked)?);
            let record = record(KIND, &options.runs);
            let record = SessionRecord { machines, asked, ..record };
            // Saved with its plan, or not at all.
            let plan = lengthened(&record, Path::new(""), &options.runs)?;
            begin(SessionRecord { plan, ..record }, &options.runs, watch)?
        }
    };
    session.record.machines = described;
    session.record.plan = lengthened(&session.record, &session.dir, &options.runs)?;
    session.save()?;
    let pin = session.record.pin.as_deref().or(options.runs.pin.as_deref());
    let recorder = Recorder::of(prepared, pin)?;
    execute(&session, &mut Boots(&recorder), session.record.prepare.as_deref(), watch)?;
    result(&session)
}

fn check(asked: &Asked) -> Result<()> {
    for (i, (label, _)) in asked.machines.iter().enumerate() {
        if asked.machines.iter().take(i).any(|(other, _)| other == label) {
            return Err(usage(format!("the machine {label:?} is named twice")));
        }
    }
    if asked.read_mib > DEFAULT_READ_MIB {
        return Err(usage(format!(
            "--read {}: the file on the guest's root has {DEFAULT_READ_MIB} MiB; read at most that",
            asked.read_mib
        )));
    }
    Ok(())
}

/// Every machine at every moment.
fn prepare_all(asked: &Asked) -> Result<Vec<Prepared>> {
    let cache = cache_dir()?;
    let mut all = Vec::new();
    for (label, spec) in &asked.machines {
        let wishes = wishes(spec, &cache)?;
        for (stage, spec) in stages(spec, asked.read_mib)? {
            let name = stage.label(label, asked.read_mib);
            let mut one = prepare_with(&name, &spec, &cache, &wishes)?;
            if one.machine.script.is_some() {
                return Err(usage(format!(
                    "{label}: a mock has no process, hence no memory: --vmm qemu or another VMM"
                )));
            }
            one.session.parameters =
                vec![("machine".into(), label.clone()), ("moment".into(), stage.word().into())];
            all.push(one);
        }
    }
    Ok(all)
}

/// The session's plan, or a longer one if more runs are asked for than it has.
fn lengthened(record: &SessionRecord, dir: &Path, options: &RunOptions) -> Result<Vec<PlannedRun>> {
    let begun = &record.plan;
    let each =
        |warmup: bool| begun.iter().filter(|p| p.machine == 0 && p.warmup == warmup).count() as u32;
    let defaults = if begun.is_empty() { (0, DEFAULT_RUNS) } else { (each(true), each(false)) };
    let slots = vmeter_stats::plan(
        record.machines.len(),
        options.warmup.unwrap_or(defaults.0) as usize,
        options.runs.unwrap_or(defaults.1) as usize,
        record.seed,
    );
    let watch = WatchLevel::None;
    let planned =
        |slot: vmeter_stats::Slot| PlannedRun { machine: slot.machine, warmup: slot.warmup, watch };
    let wanted: Vec<PlannedRun> = slots.into_iter().map(planned).collect();
    if wanted.starts_with(begun) {
        return Ok(wanted);
    }
    Err(usage(format!(
        "{} was begun with {} and {} of each machine: resume it with more --runs, or without --runs and --warmup",
        dir.display(),
        plural(defaults.1.into(), "run"),
        plural(defaults.0.into(), "warm-up")
    )))
}

/// The kind `memory`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(Shown(result(&Session::open(dir)?)?)))
    }

    fn boots(&self) -> Result<(), &'static str> {
        Err("its runs are stopped to look at memory, so their times are not compared; vmeter show has both machines side by side")
    }
}

impl Answer for Shown<MemoryResult> {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(MemoryReport::new(&self.0))
    }

    fn is_bad(&self) -> bool {
        self.0.is_bad()
    }
}
