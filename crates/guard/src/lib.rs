//! What a vmeter that was killed leaves behind.
//!
//! SIGKILL lets nobody clean up, and `PR_SET_PDEATHSIG` reaches a direct child only, not the
//! VMM in a wrapper. So a vmeter that starts or makes something first starts a [`guard`]: a
//! process that does nothing but hold one end of a socket, and clears all that is named after
//! that vmeter once the other end is closed. What it clears is found by names alone
//! ([`vmeter_base::owner`]), so whoever comes later can do the same where the guard was killed
//! as well: [`Leavings`] of every vmeter that is gone, for `vmeter doctor`.

mod files;
pub mod guard;
mod leftovers;
mod processes;

pub use leftovers::{Leaving, Leavings};

use vmeter_base::owner::Owner;

/// Whose things are looked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whose {
    /// Of this process, which is gone.
    Of(Owner),
    /// Of every process that is gone.
    Nobody,
}

impl Whose {
    fn has(self, owner: &Owner) -> bool {
        match self {
            Whose::Of(gone) => gone.is_same_process(owner),
            Whose::Nobody => !owner.is_alive(),
        }
    }
}
