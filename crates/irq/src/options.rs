//! What is asked, and whether this host can do it.

use crate::error::IrqError;
use crate::guest::Guest;
use msi_routes::Strategy;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use vmeter_base::CpuList;

/// How far the growth with the number of vectors is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FitRange {
    /// Up to the VFs asked for, and what the fit says of the host's limit is checked there.
    #[default]
    Limit,
    /// Up to the VFs asked for.
    Vfs,
    /// Not at all.
    None,
}

/// The experiment.
#[derive(Debug, Clone, PartialEq)]
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
    pub strategies: Vec<Strategy>,
    /// Measured runs of each.
    pub runs: usize,
    /// Runs of each before them.
    pub warmup: usize,
    /// Seed of the order.
    pub seed: u64,
    /// Growth.
    pub fit: FitRange,
    /// Whether one run of each strategy is traced.
    pub trace: bool,
    /// CPUs of the committing thread; all but the boot CPU if absent.
    pub pin: Option<CpuList>,
}

/// Vectors that a device may have (PCI Local Bus 3.0, 6.8.2.3).
const MOST_VECTORS: usize = msi_routes::MAX_VECTORS;
/// vCPUs with an APIC id of 8 bits, the broadcast id left out.
const MOST_VCPUS: usize = 255;

/// What this host has for routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    /// KVM_CAP_IRQ_ROUTING.
    pub(crate) gsis: usize,
    /// Routes left for MSI.
    pub(crate) free: usize,
}

impl Options {
    /// The strategy that others are compared with: `per_vector`, else the first.
    pub fn baseline(&self) -> Option<Strategy> {
        let first = self.strategies.first().copied();
        self.strategies.iter().copied().find(|s| *s == Strategy::PerVector).or(first)
    }

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
        allow_files(most as u64 + 4 * self.vcpus as u64 + 64)?;
        Ok(Limit { gsis: limit, free })
    }

    fn check_question(&self) -> Result<(), IrqError> {
        let wrong = |text: String| Err(IrqError::Usage(text));
        if self.vfs == 0 || !(1..=MOST_VECTORS).contains(&self.vectors) {
            return wrong(format!(
                "--vfs {} --vectors {}: expected at least one VF with 1 to {MOST_VECTORS} vectors",
                self.vfs, self.vectors
            ));
        }
        if !(1..=MOST_VCPUS).contains(&self.vcpus) {
            return wrong(format!("--vcpus {}: expected 1 to {MOST_VCPUS}", self.vcpus));
        }
        if self.running_vcpus > self.vcpus {
            return wrong(format!(
                "--running-vcpus {}: the VM has {} (--vcpus)",
                self.running_vcpus, self.vcpus
            ));
        }
        if self.strategies.is_empty() || self.runs == 0 {
            return wrong("nothing to measure: --runs and --strategy want at least one".into());
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
