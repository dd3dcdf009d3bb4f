//! What the VM has, and what goes on meanwhile.

use crate::error::IrqError;

/// vCPUs with an APIC id of 8 bits, the broadcast id left out.
const MOST_VCPUS: usize = 255;
/// Threads that keep CPUs busy.
const MOST_BUSY: usize = 1024;

/// What the VM has, and what goes on meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) vcpus: usize,
    pub(crate) busy_cpus: usize,
    pub(crate) running_vcpus: usize,
}

impl Load {
    /// # Errors
    /// [`IrqError::Usage`].
    pub(crate) fn check(self) -> Result<(), IrqError> {
        let Load { vcpus, busy_cpus, running_vcpus } = self;
        let wrong = |text: String| Err(IrqError::Usage(text));
        if !(1..=MOST_VCPUS).contains(&vcpus) {
            return wrong(format!("--vcpus {vcpus}: expected 1 to {MOST_VCPUS}"));
        }
        if running_vcpus > vcpus {
            return wrong(format!("--running-vcpus {running_vcpus}: the VM has {vcpus} (--vcpus)"));
        }
        if busy_cpus > MOST_BUSY {
            return wrong(format!("--busy-cpus {busy_cpus}: expected at most {MOST_BUSY}"));
        }
        Ok(())
    }
}
