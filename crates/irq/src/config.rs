//! What is asked, and whether this host can do it.

use crate::error::IrqError;
use crate::guest::Guest;
use crate::load::Load;
use crate::strategy::IrqStrategy;
use crate::vfio::{VfioOptions, VfioStrategy};
use msi_routes::Strategy;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use serde::{Deserialize, Serialize};

vmeter_base::words! {
    /// How far the growth with the number of vectors is measured.
    #[derive(Default)]
    pub enum FitRange {
        /// Measure up to --vfs VFs, then once more at this host's limit of routes.
        #[default]
        Limit = "limit",
        /// Up to --vfs.
        Vfs = "vfs",
        /// Not at all.
        None = "none",
    }
}

/// The experiment on a VM without devices. Names on disk are the options'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Virtual functions.
    pub vfs: usize,
    /// MSI-X vectors of each.
    pub vectors: usize,
    /// vCPUs of the VM, over which the vectors are spread.
    pub vcpus: usize,
    /// Threads that keep CPUs busy meanwhile.
    pub busy_cpus: usize,
    /// vCPUs that run guest code meanwhile.
    pub running_vcpus: usize,
    /// Strategies, in the order of the table.
    #[serde(rename = "strategy", with = "names")]
    pub strategies: Vec<Strategy>,
    /// Measured runs of each.
    pub runs: usize,
    /// Runs of each before them.
    pub warmup: usize,
    /// Growth.
    pub fit: FitRange,
    /// No run of each strategy is traced.
    pub no_trace: bool,
    /// Numbers of VMs that are set up at once, beside the one of the table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<usize>,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "on", rename_all = "lowercase")]
pub enum Config {
    /// Of routes alone, on VMs without devices.
    Vm(Options),
    /// Of real devices.
    Vfio(VfioOptions),
}

/// What was found of the host before the first run. The plan was made by it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// `KVM_CAP_IRQ_ROUTING`; 0 where KVM is not used.
    pub(crate) gsi_limit: usize,
    /// Routes of these that are left for MSI.
    pub(crate) free_routes: usize,
    /// Devices.
    pub(crate) vfs: usize,
    /// Vectors of each.
    pub(crate) vectors: usize,
    /// CPUs that the committing thread is allowed.
    pub(crate) cpus: Vec<usize>,
    /// The strategies that are measured, in the order of the table.
    pub(crate) strategies: Vec<IrqStrategy>,
    /// What this host can't do of what was asked, in words.
    pub(crate) left_out: Vec<String>,
}

/// What `session.json` has as `asked`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedConfig {
    #[serde(flatten)]
    pub(crate) asked: Config,
    pub(crate) found: Found,
}

impl SavedConfig {
    /// Refuses what no session of this vmeter has, so that what follows may rely on it.
    ///
    /// # Errors
    /// [`IrqError::Usage`].
    pub(crate) fn check(&self) -> Result<(), IrqError> {
        match &self.asked {
            Config::Vm(options) => options.check_question()?,
            Config::Vfio(options) => options.load().check()?,
        }
        let Found { vfs, vectors, .. } = self.found;
        if vfs > MOST_VFS || vectors > MOST_VECTORS {
            return Err(IrqError::Usage(format!(
                "session.json has {vfs} VFs with {vectors} vectors each; expected at most \
                    {MOST_VFS} VFs with {MOST_VECTORS} vectors"
            )));
        }
        Ok(())
    }
}

impl Config {
    /// Threads that keep CPUs busy.
    pub(crate) fn busy_cpus(&self) -> usize {
        match self {
            Config::Vm(options) => options.busy_cpus,
            Config::Vfio(options) => options.busy_cpus,
        }
    }

    /// Measured runs of each strategy, and runs before them.
    pub(crate) fn rounds(&self) -> (usize, usize) {
        match self {
            Config::Vm(options) => (options.runs, options.warmup),
            Config::Vfio(options) => (options.runs, options.warmup),
        }
    }

    /// The strategy that one is compared with, if any.
    pub(crate) fn baseline(&self, found: &Found, strategy: IrqStrategy) -> Option<IrqStrategy> {
        let there = |wanted: IrqStrategy| found.strategies.contains(&wanted).then_some(wanted);
        let baseline = match self {
            Config::Vm(_) => there(IrqStrategy::PerVector).or(found.strategies.first().copied()),
            Config::Vfio(_) => {
                let strategy: VfioStrategy = strategy.word().parse().ok()?;
                there(strategy.slowest().into())
            }
        };
        baseline.filter(|baseline| *baseline != strategy)
    }
}

/// Strategies by their names.
mod names {
    use super::Strategy;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(all: &[Strategy], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(|strategy| strategy.name()))
    }

    pub(super) fn deserialize<'de, D>(from: D) -> Result<Vec<Strategy>, D::Error>
    where
        D: Deserializer<'de>,
    {
        let names = Vec::<String>::deserialize(from)?;
        names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
    }
}

/// Vectors that a device may have (PCI Local Bus 3.0, 6.8.2.3).
const MOST_VECTORS: usize = msi_routes::MAX_VECTORS;
/// Functions below a PCI segment's root (PCI Express Base 6.0, 2.2.4.2: a requester ID).
const MOST_VFS: usize = 1 << 16;
/// VMs at once.
const MOST_VMS: usize = 1024;

/// What this host has for routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    /// KVM_CAP_IRQ_ROUTING.
    pub(crate) gsis: usize,
    /// Routes left for MSI.
    pub(crate) free: usize,
}

impl Options {
    /// Checks the question, then the host.
    pub(crate) fn check(&self) -> Result<Limit, IrqError> {
        self.check_question()?;
        let guest = Guest::new(1, 0, None)?;
        let limit = guest.router.kernel().route_limit();
        let fixed = guest.router.entries().len();
        let free = guest.router.free();
        drop(guest);
        if limit == 0 {
            return Err(IrqError::Capability("KVM_CAP_IRQ_ROUTING"));
        }
        let wanted = self.vfs * self.vectors;
        if wanted > free {
            return Err(IrqError::TooMany {
                wanted,
                vfs: self.vfs,
                vectors: self.vectors,
                free,
                limit,
                fixed,
                most: free / self.vectors,
            });
        }
        let most = match self.fit {
            FitRange::Limit => free,
            _ => wanted,
        };
        let per_vm = 4 * self.vcpus as u64 + 64;
        let vms = self.vms.iter().copied().max().unwrap_or(1) as u64;
        allow_files((most as u64 + per_vm).max(vms * (wanted as u64 + per_vm)))?;
        Ok(Limit { gsis: limit, free })
    }

    pub(crate) fn check_question(&self) -> Result<(), IrqError> {
        let wrong = |text: String| Err(IrqError::Usage(text));
        if !(1..=MOST_VFS).contains(&self.vfs) || !(1..=MOST_VECTORS).contains(&self.vectors) {
            return wrong(format!(
                "--vfs {} --vectors {}: expected 1 to {MOST_VFS} VFs with 1 to {MOST_VECTORS} \
                 vectors",
                self.vfs, self.vectors
            ));
        }
        let Options { vcpus, busy_cpus, running_vcpus, .. } = *self;
        Load { vcpus, busy_cpus, running_vcpus }.check()?;
        if let Some(vms) = self.vms.iter().find(|vms| !(1..=MOST_VMS).contains(*vms)) {
            return wrong(format!("--vms {vms}: expected 1 to {MOST_VMS}"));
        }
        if self.strategies.is_empty() || self.runs == 0 {
            return wrong(
                "nothing to measure: give --runs 1 or more, and at least one --strategy".into(),
            );
        }
        Ok(())
    }
}

/// Raises RLIMIT_NOFILE as far as needed: its usual soft limit of 1024 is less than the
/// eventfds of 16 VFs.
pub(crate) fn allow_files(wanted: u64) -> Result<(), IrqError> {
    let now = getrlimit(Resource::Nofile);
    // None is no limit.
    if now.current.is_none_or(|limit| limit >= wanted) {
        return Ok(());
    }
    let maximum = now.maximum.map(|limit| limit.max(wanted));
    let raised = Rlimit { current: Some(wanted), maximum };
    setrlimit(Resource::Nofile, raised)
        .map_err(|_| IrqError::Files { wanted, limit: now.maximum.unwrap_or(u64::MAX) })
}
