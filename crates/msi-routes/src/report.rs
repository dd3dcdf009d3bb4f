// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a commit did, vector by vector.

use crate::foreign::Errno;
use crate::message::MsiMessage;
use crate::route::Route;

/// What was tried for a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Its message: KVM refuses a table with it ([`Kernel::translate`](crate::Kernel::translate)
    /// refused it, or KVM did).
    Message(MsiMessage),
    /// A fixed route that is no message: KVM refuses a table with it.
    Entry,
    /// Attaching its irqfd.
    Attach,
    /// Detaching its irqfd.
    Detach,
    /// Finding it: its route was removed by another batch, or is staged in another one that
    /// is not committed yet.
    Find,
}

/// One vector, or one change of a GSI's fixed routes, that a commit left as it was before; the
/// others stand. (Should KVM also refuse the table without it, an existing vector has the
/// batch's message: [`Route::message`] tells.)
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub struct Failure {
    /// Its GSI.
    pub gsi: u32,
    /// The vector's route; none for a [`FixedRoute`](crate::FixedRoute).
    pub route: Option<Route>,
    /// What failed.
    pub step: Step,
    /// The kernel's reason; none for [`Step::Find`].
    pub source: Option<Errno>,
}

impl Failure {
    pub(crate) fn of(route: Route, step: Step, source: Option<Errno>) -> Self {
        Self { gsi: route.gsi(), route: Some(route), step, source }
    }

    pub(crate) fn of_fixed(gsi: u32, step: Step, source: Errno) -> Self {
        Self { gsi, route: None, step, source: Some(source) }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gsi = self.gsi;
        let errno = self.source.map_or(0, |e| e.errno());
        let hint = match errno {
            libc::EBUSY => "; its eventfd is attached already, perhaps to another GSI",
            libc::EINVAL => "; irqfds need an in-kernel irqchip (a split irqchip is enough)",
            libc::ENOENT => "; it was not attached",
            _ => "",
        };
        match (self.step, &self.source) {
            (Step::Message(message), Some(e)) => {
                let MsiMessage { address, data, .. } = message;
                let hint = if message.is_suspect() {
                    "; with KVM_CAP_X2APIC_API, bits 32 to 39 of the address must be 0"
                } else {
                    ""
                };
                let what = format!("address {address:#x}, data {data:#x}");
                write!(f, "the message of GSI {gsi} ({what}) is refused: {e}{hint}")
            }
            (Step::Entry, Some(e)) => write!(
                f,
                "KVM refused the fixed route of GSI {gsi}: {e}; check that this irqchip, pin, \
                    port or vCPU exists"
            ),
            (Step::Attach, Some(e)) => {
                write!(f, "cannot attach the irqfd of GSI {gsi}: {e}{hint}")
            }
            (Step::Detach, Some(e)) => {
                write!(f, "cannot detach the irqfd of GSI {gsi}: {e}{hint}")
            }
            _ => write!(
                f,
                "the route of GSI {gsi} is not in the table when this batch is committed: if \
                    another batch adds the route, commit that batch before this batch; if another \
                    batch removes the route, commit that batch after this batch"
            ),
        }
    }
}

/// How much a commit did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Routes in the table now.
    pub routes: usize,
    /// `KVM_SET_GSI_ROUTING` calls: 0 if no route changed, 2 if a failed vector's route had
    /// to be taken out again, more where KVM refused a message and it was to be found.
    pub commits: usize,
    /// irqfds attached.
    pub attached: usize,
    /// irqfds detached.
    pub detached: usize,
}

/// What a commit did. Vectors not named in `failures` are as the batch said.
#[derive(Debug, Default)]
#[must_use = "it names the vectors that failed"]
#[non_exhaustive]
pub struct Report {
    /// What was done.
    pub counts: Counts,
    /// Vectors, and fixed routes, that are as they were before the batch.
    pub failures: Vec<Failure>,
}

impl Report {
    /// An error if any vector failed.
    ///
    /// # Errors
    /// The first failure.
    pub fn complete(mut self) -> Result<Counts, Failure> {
        if self.failures.is_empty() {
            Ok(self.counts)
        } else {
            Err(self.failures.swap_remove(0))
        }
    }
}

/// `KVM_SET_GSI_ROUTING` was refused: the batch had no effect.
#[derive(Debug, thiserror::Error)]
#[error(
    "KVM_SET_GSI_ROUTING with {routes} routes was refused: {source}; the batch was undone{}",
    lost(not_restored)
)]
#[non_exhaustive]
pub struct CommitError {
    /// Routes in the table that was refused.
    pub routes: usize,
    /// The kernel's reason.
    #[source]
    pub source: Errno,
    /// Vectors that the batch had masked and that could not be unmasked again: their
    /// interrupts stay pending.
    pub not_restored: Vec<Failure>,
}

fn lost(not_restored: &[Failure]) -> String {
    match not_restored.len() {
        0 => String::new(),
        n => format!(", but some vectors stay masked ({n}; the first error: {})", not_restored[0]),
    }
}
