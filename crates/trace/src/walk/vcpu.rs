//! What a walk over a xentrace tells of a vCPU: its runstates, VMEXITs and requests.

use super::interval::{Open, Took};
use crate::ops::Access;

/// A vCPU: domain and number.
pub type VcpuId = (u16, u16);

/// Names of a vCPU's runstates, by number.
pub const RUNSTATES: [&str; 7] =
    ["running", "runnable", "blocked", "offline", "lost", "queued", "init"];

/// Names of the ways to become runnable.
pub const WAYS: [&str; 3] = ["wake", "preempt", "other"];

/// Names of a domain's runstates, from its vCPUs' together.
pub const DOMAIN_RUNSTATES: [&str; 7] = [
    "blocked",
    "partial run",
    "full run",
    "partial contention",
    "concurrency_hazard",
    "full_contention",
    "lost",
];

/// A stretch of one runstate, until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuSpan {
    /// Runstate, as an index of [`RUNSTATES`].
    pub state: u8,
    /// From, ticks; as `end` if it is not known.
    pub start: u64,
    /// To.
    pub end: u64,
    /// How it became runnable, as an index of [`WAYS`].
    pub way: usize,
    /// The runstate that follows.
    pub next: u8,
}

/// A VMEXIT, as xenalyze times it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuExit {
    /// Reason, in the processor's own numbering.
    pub reason: u32,
    /// How long it took.
    pub took: Took,
    /// What its first handler record says that it was for.
    pub access: Option<Access>,
}

/// A request that a vCPU waited for, from VMEXIT to VMENTRY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuRequest {
    /// Its begin.
    pub open: Open,
    /// How long it took.
    pub took: Took,
    /// What was asked for first.
    pub access: Option<Access>,
}
