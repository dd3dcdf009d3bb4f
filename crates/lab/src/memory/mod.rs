//! `vmeter memory`: what a guest uses inside, and its VMM outside, at the guest's ready point
//! and after it has read a file.
//!
//! Each machine is booted for each moment by itself and stopped there, so that guest and VMM
//! are looked at in the same state. Nothing else watches: a trace buffer would be guest memory,
//! and a plugin the VMM's.

mod config;
mod guest;
mod moments;
pub mod report;
mod result;

pub use guest::GuestMemory;
pub use moments::Stage;
pub use result::{result, MachineMemory, MemoryResult, Moment, PartFigures, Sample, VmmFigures};
pub use vmeter_record::sources::vmm_memory::Part;

use crate::bench::distinct;
use crate::blocks::in_blocks;
use crate::booter::{Ready, Recorder};
use crate::boots::Boots;
use crate::looks::Repeats;
use crate::prepare::{prepare_with, Prepared};
use crate::shown::Shown;
use anyhow::Result;
use config::Config;
use moments::{stages, wishes};
use report::MemoryReport;
use std::path::Path;
use vmeter_model::run::{PlannedRun, SessionRecord, WatchLevel};
use vmeter_model::MachineSpec;
use vmeter_render::quantity::plural;
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::NOT_CUT;
use vmeter_session::{cache_dir, carry_out, Measurement, ResumeOverrides};
use vmeter_session::{Answer, Experiment, RunOptions, Session, Shardable, Views, Watch};

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

/// Boots each machine to each moment, and looks.
///
/// # Errors
/// A machine that is not valid or has no process, a host that can't boot it, an interruption.
pub fn memory(options: &MemoryOptions, watch: &mut Watch<'_>) -> Result<MemoryResult> {
    result(&carry_out(KIND, &options.runs, options, watch)?)
}

impl Measurement for MemoryOptions {
    type Planned = PlannedRun;
    type Config = Config;
    type Runner = Boots<Recorder>;

    fn config(&self) -> Result<Config> {
        Ok(Config {
            read_mib: self.read_mib.unwrap_or(DEFAULT_READ_MIB),
            machines: self.machines.clone(),
            repeats: Repeats {
                warmup: self.runs.warmup.or(Some(0)),
                ..Repeats::of(&self.runs, None)
            },
        })
    }

    fn note_given(&self, begun: &Config, given: &mut ResumeOverrides) {
        given.option("--read", self.read_mib, begun.read_mib);
        given.machines("--root and --vs", &self.machines, &begun.machines);
    }

    fn grow(&self, config: &mut Config) {
        config.repeats.grow(&self.runs);
    }

    fn prepare(
        &self,
        config: &mut Config,
        record: &SessionRecord,
        _: &mut Watch<'_>,
    ) -> Result<Ready> {
        check(config)?;
        Recorder::ready(prepare_all(config)?, record)
    }

    fn plan(&self, config: &Config, _: &Boots<Recorder>, record: &mut SessionRecord) -> Result<()> {
        let amount = (config.repeats.warmups(), config.repeats.planned(DEFAULT_RUNS));
        let machines = record.machines.len();
        record.plan = in_blocks(machines, amount, record.seed, |_| WatchLevel::None);
        Ok(())
    }
}

fn check(config: &Config) -> Result<()> {
    distinct(&config.machines)?;
    if config.read_mib > DEFAULT_READ_MIB {
        return Err(usage(format!(
            "--read {}: the guest cannot read more than {DEFAULT_READ_MIB} MiB, the size of the \
                file on its root",
            config.read_mib
        )));
    }
    Ok(())
}

/// Every machine at every moment.
fn prepare_all(config: &Config) -> Result<Vec<Prepared>> {
    let cache = cache_dir()?;
    let mut all = Vec::new();
    for (label, spec) in &config.machines {
        let wishes = wishes(spec, &cache)?;
        for (stage, spec) in stages(spec, config.read_mib)? {
            let name = stage.label(label, config.read_mib);
            let mut one = prepare_with(&name, &spec, &cache, &wishes)?;
            if one.machine.script.is_some() {
                return Err(usage(format!(
                    "{label}: a mock has no process, hence no memory: use --vmm qemu or another \
                     VMM"
                )));
            }
            one.session.parameters =
                vec![("machine".into(), label.clone()), ("moment".into(), stage.word().into())];
            all.push(one);
        }
    }
    Ok(all)
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
        Err("`vmeter memory` pauses its runs to read memory, so their times cannot be compared; \
            `vmeter show` shows the machines of a session side by side")
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err(NOT_CUT)
    }
}

impl Answer for Shown<MemoryResult> {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(MemoryReport::new(&self.0))
    }

    fn failure(&self) -> Option<String> {
        let moments = self.0.machines.iter().flat_map(|machine| &machine.moments);
        match moments.map(|moment| moment.failures.len()).sum::<usize>() {
            0 => None,
            n => Some(format!(
                "{} failed, so vmeter could not read the memory",
                plural(n as u64, "boot")
            )),
        }
    }
}
