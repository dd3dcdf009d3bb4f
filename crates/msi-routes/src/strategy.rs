// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Ways to enable the vectors of many devices, to be compared.

use crate::batch::Batch;
use crate::error::RouteError;
use crate::msix::Msix;
use crate::report::{CommitError, Counts, Failure};
use crate::router::Router;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// When the routing table is committed while devices are enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// For every vector, as VMMs do that add routes one by one: quadratic, because each
    /// commit hands over all routes and visits all irqfds.
    PerVector,
    /// Once a device, as QEMU does since its vfio-pci defers the commit.
    PerDevice,
    /// Once for all devices: what a resume after migration can do.
    PerVm,
    /// Routes to nowhere and irqfds are made ahead ([`prepare`]), then edited in place, with
    /// one commit a device.
    Reserved,
    /// The same, with one commit for all devices: what a resume costs at the least, because
    /// with the routes committed at once the irqfds are most of [`Self::PerVm`]'s time.
    ReservedPerVm,
}

impl Strategy {
    /// All of them; each round of [`compare`](crate::measure::compare) may have any of them.
    pub const ALL: [Self; 5] =
        [Self::PerVector, Self::PerDevice, Self::PerVm, Self::Reserved, Self::ReservedPerVm];

    /// Its name: `per_vector`, `per_device`, `per_vm`, `reserved`, `reserved_per_vm`.
    pub fn name(self) -> &'static str {
        match self {
            Self::PerVector => "per_vector",
            Self::PerDevice => "per_device",
            Self::PerVm => "per_vm",
            Self::Reserved => "reserved",
            Self::ReservedPerVm => "reserved_per_vm",
        }
    }
}

impl Strategy {
    /// True if routes and irqfds are made ahead, by [`prepare`].
    pub fn is_ahead(self) -> bool {
        matches!(self, Self::Reserved | Self::ReservedPerVm)
    }

    /// True if all devices share one commit.
    pub fn is_per_vm(self) -> bool {
        matches!(self, Self::PerVm | Self::ReservedPerVm)
    }
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// No strategy has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no strategy is called {0:?}: there are per_vector, per_device, per_vm, \
         reserved, reserved_per_vm"
)]
pub struct UnknownStrategy(pub String);

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        let found = Self::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| UnknownStrategy(name.into()))
    }
}

/// Enabling devices failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnableError {
    /// No route left, or a vector without eventfd.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The kernel refused the table.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A vector's irqfd failed.
    #[error(transparent)]
    Vector(#[from] Failure),
}

/// What enabling one device took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCost {
    /// Which device, from 0 on.
    pub device: usize,
    /// irqfds assigned in the VM once it is enabled.
    pub irqfds: usize,
    /// `KVM_SET_GSI_ROUTING` calls for it.
    pub commits: usize,
    /// Time for it, on CLOCK_MONOTONIC.
    pub time: Duration,
}

/// What enabling all devices took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enabled {
    /// Each device in turn; where all share one commit, the time to stage it.
    pub devices: Vec<DeviceCost>,
    /// What belongs to no device: the one commit that all share, with its irqfds.
    pub shared: Duration,
    /// All `KVM_SET_GSI_ROUTING` calls.
    pub commits: usize,
    /// From the first device's begin to the last one's end.
    pub total: Duration,
}

/// What a strategy does before devices are enabled, when time does not matter yet: nothing,
/// but for those that [are ahead](Strategy::is_ahead).
///
/// # Errors
/// The host's table is too small, or an ioctl fails.
pub fn prepare(
    router: &Router,
    devices: &mut [Msix],
    strategy: Strategy,
) -> Result<Duration, EnableError> {
    if !strategy.is_ahead() {
        return Ok(Duration::ZERO);
    }
    let start = Instant::now();
    let mut batch = router.batch();
    devices.iter_mut().try_for_each(|device| device.reserve(&mut batch))?;
    batch.commit()?.complete()?;
    Ok(start.elapsed())
}

/// Makes the routes of all devices as their registers say (after
/// [`Msix::restore`](Msix::restore), say), and times it.
///
/// # Errors
/// The host's table is too small, or an ioctl fails.
pub fn enable(
    router: &Router,
    devices: &mut [Msix],
    strategy: Strategy,
) -> Result<Enabled, EnableError> {
    let begin = Instant::now();
    let mut enabled = Enabled::default();
    let mut common = router.batch();
    let mut irqfds = 0;
    for (n, device) in devices.iter_mut().enumerate() {
        let start = Instant::now();
        let commits = match strategy {
            Strategy::PerVector => each_vector(router, device)?,
            Strategy::PerDevice | Strategy::Reserved => {
                let mut batch = router.batch();
                device.sync(&mut batch)?;
                finish(batch)?.commits
            }
            Strategy::PerVm | Strategy::ReservedPerVm => {
                device.sync(&mut common)?;
                0
            }
        };
        irqfds += device.vectors();
        enabled.commits += commits;
        let time = start.elapsed();
        enabled.devices.push(DeviceCost { device: n, irqfds, commits, time });
    }
    if !common.is_empty() {
        let start = Instant::now();
        enabled.commits += finish(common)?.commits;
        enabled.shared = start.elapsed();
    }
    enabled.total = begin.elapsed();
    Ok(enabled)
}

fn finish(batch: Batch) -> Result<Counts, EnableError> {
    Ok(batch.commit()?.complete()?)
}

fn each_vector(router: &Router, device: &mut Msix) -> Result<usize, EnableError> {
    let mut commits = 0;
    for vector in 0..device.vectors() {
        let mut batch = router.batch();
        device.sync_vector(vector, &mut batch)?;
        commits += finish(batch)?.commits;
    }
    Ok(commits)
}
