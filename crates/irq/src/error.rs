//! What can go wrong, and what mends it.

use msi_routes::measure::MeasureError;
use msi_routes::{EnableError, RouteError, StateError};
use vmeter_kvm_probe::VmError;
use vmeter_session::failure::{host, usage};

/// The experiment can't be done.
#[derive(Debug, thiserror::Error)]
pub enum IrqError {
    /// The question makes no sense.
    #[error("{0}")]
    Usage(String),
    /// No VM can be made here.
    #[error("cannot make the VM that the measurement needs: {0}")]
    Vm(#[from] VmError),
    /// KVM has no GSI routing or no irqfd.
    #[error(
        "this host's KVM lacks {0}, and vmeter cannot route MSI-X vectors without it (Linux \
            2.6.32 and later have it on x86, with the irqchip in the kernel)"
    )]
    Capability(&'static str),
    /// More vectors than the host has routes.
    #[error(
        "{wanted} vectors ({vfs} VFs x {vectors}) need one route each, but only {free} routes are \
            free (KVM_CAP_IRQ_ROUTING is {limit}, of which the irqchips' pins use {fixed}); use \
            fewer vectors, or at most --vfs {most}"
    )]
    TooMany {
        /// VFs x vectors.
        wanted: usize,
        /// VFs asked for.
        vfs: usize,
        /// Vectors of each.
        vectors: usize,
        /// Routes left for MSI.
        free: usize,
        /// KVM_CAP_IRQ_ROUTING.
        limit: usize,
        /// Fixed routes.
        fixed: usize,
        /// VFs that would fit.
        most: usize,
    },
    /// Not enough file descriptors for the eventfds.
    #[error(
        "each vector needs an eventfd, so this process needs up to {wanted} open files, but its \
            hard limit is {limit}: as root, raise the limit with `ulimit -Hn {wanted}`; in a \
            systemd unit, set LimitNOFILE="
    )]
    Files {
        /// Files that are needed.
        wanted: u64,
        /// RLIMIT_NOFILE, the hard one.
        limit: u64,
    },
    /// A route could not be made.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Devices of that shape can't be.
    #[error(transparent)]
    Shape(#[from] StateError),
    /// Enabling failed.
    #[error("{strategy}: {source}")]
    Enable {
        /// The strategy.
        strategy: String,
        /// Why.
        source: EnableError,
    },
    /// Measuring failed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// A real device.
    #[error(transparent)]
    Vfio(#[from] crate::vfio::VfioError),
}

impl IrqError {
    /// With its class: wrong options (usage), or what this host cannot run (host).
    pub(crate) fn classified(self) -> anyhow::Error {
        match &self {
            IrqError::Usage(_) | IrqError::TooMany { .. } => usage(self),
            IrqError::Vfio(vfio) if vfio.is_usage() => usage(self),
            IrqError::Vm(_)
            | IrqError::Capability(_)
            | IrqError::Files { .. }
            | IrqError::Route(_)
            | IrqError::Shape(_)
            | IrqError::Enable { .. }
            | IrqError::Measure(_)
            | IrqError::Thread(_)
            | IrqError::Vfio(_) => host(self),
        }
    }

    pub(crate) fn enable(strategy: &str) -> impl FnOnce(EnableError) -> Self + '_ {
        move |source| IrqError::Enable { strategy: strategy.to_owned(), source }
    }
}
