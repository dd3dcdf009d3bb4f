//! What can go wrong, and what the user can do about it.

use dirty_trackers::TrackError;
use vmeter_kvm_probe::{ProbeError, VmError};
use vmeter_session::failure::{failure, host, usage, Class};

/// `vmeter dirty` could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum DirtyError {
    /// A layout that can't be.
    #[error("{file}: {what}")]
    Layout {
        /// Where it is from.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// Options that do not go together, or are out of range.
    #[error("{0}")]
    Options(String),
    /// The slots don't fit this host.
    #[error(
        "the slots need {needed} bytes, but vmeter may use only {most} bytes. This limit is \
            --memory (default: half of MemAvailable); with --vms, the limit is half of \
            --memory. Define smaller slots with --slots FILE"
    )]
    TooLittleMemory {
        /// Bytes of the layout.
        needed: u64,
        /// Bytes to be had.
        most: u64,
    },
    /// The slots of each of several VMs don't fit into its share.
    #[error(
        "{vms} VMs do not fit: each needs at least {least} bytes for its slots, but gets only \
         {most} bytes. All VMs together get half of --memory, whose default is half of \
         MemAvailable. Measure fewer VMs with --vms, or define smaller slots with --slots FILE"
    )]
    TooManyVms {
        /// VMs at once.
        vms: u64,
        /// Bytes that each needs.
        least: u64,
        /// Bytes that each can have.
        most: u64,
    },
    /// /dev/kvm is missing or may not be used.
    #[error(transparent)]
    Node(#[from] ProbeError),
    /// /dev/kvm runs no guest code of this kind by itself.
    #[error(
        "/dev/kvm does not run guest code of privilege ring {ring} natively ({found}): \
        {hint}"
    )]
    NotNative {
        /// Privilege level.
        ring: u8,
        /// What it does.
        found: String,
        /// What would mend it.
        hint: &'static str,
    },
    /// None of the trackers asked for is to be had.
    #[error("no tracker to measure: {0}")]
    NoTracker(String),
    /// Building or running the guest failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// A tracker failed.
    #[error("tracker {tracker}: {source}")]
    Track {
        /// Which.
        tracker: &'static str,
        /// Why.
        source: TrackError,
    },
    /// The guest left in a way that its code never should.
    #[error("the guest died ({exit}), so vmeter could not finish this measurement")]
    Died {
        /// The exit.
        exit: String,
    },
    /// A system call failed.
    #[error("{step} failed: {source}")]
    System {
        /// The call.
        step: &'static str,
        /// Its errno.
        source: std::io::Error,
    },
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
    /// The vCPU's thread is gone.
    #[error("the vCPU's thread ended unexpectedly")]
    ThreadGone,
}

impl DirtyError {
    /// With its class: what was asked can't be, this host can't do it, or the user ended it.
    pub fn classified(self) -> anyhow::Error {
        match self {
            Self::Layout { .. } | Self::Options(_) => usage(self),
            Self::Interrupted => failure(Class::Interrupted, self),
            Self::TooLittleMemory { .. }
            | Self::TooManyVms { .. }
            | Self::Node(_)
            | Self::NotNative { .. }
            | Self::NoTracker(_)
            | Self::Vm(_)
            | Self::Track { .. }
            | Self::Died { .. }
            | Self::System { .. }
            | Self::ThreadGone => host(self),
        }
    }
}
