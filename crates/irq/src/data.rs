//! What a run leaves on disk: what was measured, and nothing that follows from it.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use vmeter_model::Ns;

/// What was measured in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Data {
    /// Vectors were enabled, then raised.
    Delivered(Delivered),
    /// Vectors were enabled.
    Enabled(Enabled),
    /// Vectors were enabled on several VMs, one after another.
    Repeated(Vec<Enabled>),
    /// Vectors were enabled on several VMs at once: each one's time, ns.
    Together(Vec<Ns>),
    /// Vectors were enabled, and traced meanwhile.
    Traced(Traced),
    /// The same, but for the trace: why there is none, in words.
    NotTraced(String),
}

/// Interrupts raised once everything was enabled, and seen to arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// Vectors raised, each once.
    pub(crate) raised: usize,
    /// Of these, arrived where its route leads.
    pub(crate) arrived: usize,
    /// Arrived where nothing was sent.
    pub(crate) stray: usize,
    /// Interrupts of the host that the devices held meanwhile, by /proc/interrupts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<usize>,
}

/// What enabling took, ns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enabled {
    /// What was done before time mattered.
    pub(crate) prepared_ns: Ns,
    /// Each VF in turn.
    pub(crate) vfs_ns: Vec<Ns>,
    /// The one commit that all VFs share; 0 where each has its own.
    pub(crate) shared_ns: Ns,
    /// From the first VF's begin to the last one's end.
    pub(crate) total_ns: Ns,
    /// CPU time of the committing thread in that time.
    pub(crate) cpu_ns: Ns,
    /// `KVM_SET_GSI_ROUTING` calls.
    pub(crate) commits: usize,
    /// `VFIO_DEVICE_SET_IRQS` calls, where there are real devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) set_irqs: Option<usize>,
    /// How long some thread waited for a CPU, where the kernel says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stalled: Option<Stalled>,
}

/// How long some thread of the host could run and had no CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stalled {
    /// So long, ns.
    pub(crate) stalled_ns: Ns,
    /// In so long, ns.
    pub(crate) watched_ns: Ns,
}

/// When the traced run was, and who made it. The trace is a file beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// The committing thread.
    pub(crate) tid: i32,
    /// `CLOCK_MONOTONIC` when enabling began, ns.
    pub(crate) from_ns: u64,
    /// And when it was over.
    pub(crate) to_ns: u64,
}

/// A duration as it is kept.
pub(crate) fn ns(duration: Duration) -> Ns {
    Ns::try_from(duration.as_nanos()).unwrap_or(Ns::MAX)
}
