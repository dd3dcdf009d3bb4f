//! On which CPUs the committing thread runs.
//!
//! Small SRCU domains, as a VM's routes have, run their callbacks on the boot CPU's kworker
//! (kernel/rcu/srcutree.c, `srcu_gp_end` before `SRCU_SIZE_WAIT_BARRIER`), while the thread
//! that asked sleeps. If that thread ran on the boot CPU, its own sleep gives the kworker the
//! CPU; elsewhere the kworker has to get one from whoever is busy there. Left to the
//! scheduler a busy host's figures would therefore have two peaks. Most CPUs are not the
//! boot CPU, so the thread is kept off it unless the user says otherwise.

use crate::error::IrqError;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// The boot CPU, whose kworker runs the callbacks.
const BOOT_CPU: usize = 0;

/// The calling thread's affinity, put back on drop.
pub(crate) struct Placement {
    before: Option<CpuSet>,
    /// CPUs that the thread may use.
    pub(crate) cpus: Vec<usize>,
}

fn listed(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Lets the calling thread run on these CPUs.
pub(crate) fn allow(set: &CpuSet) -> std::io::Result<()> {
    Ok(sched_setaffinity(None, set)?)
}

impl Placement {
    /// Puts the calling thread on `wanted`, or else on all it may use but the boot CPU.
    pub(crate) fn new(wanted: Option<&[usize]>) -> Result<Self, IrqError> {
        // A host that does not say is left as it is.
        let Ok(before) = sched_getaffinity(None) else {
            return Ok(Placement { before: None, cpus: Vec::new() });
        };
        let allowed = listed(&before);
        let cpus: Vec<usize> = match wanted {
            Some(wanted) => wanted.to_vec(),
            None if allowed.len() > 1 => {
                allowed.iter().copied().filter(|cpu| *cpu != BOOT_CPU).collect()
            }
            None => allowed.clone(),
        };
        let mut set = CpuSet::new();
        cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        allow(&set).map_err(|e| {
            IrqError::Usage(format!(
                "--pin {}: {e}; this process may use CPUs {}",
                spelled(&cpus),
                spelled(&allowed)
            ))
        })?;
        Ok(Placement { before: Some(before), cpus })
    }

    /// The affinity before.
    pub(crate) fn before(&self) -> Option<CpuSet> {
        self.before
    }
}

fn spelled(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

impl Drop for Placement {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // It was the affinity before; if a CPU is gone since, the kernel has chosen.
            let _ = allow(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_affinity_is_put_back_and_impossible_cpus_are_refused() {
        let affinity = || sched_getaffinity(None).map(|set| listed(&set)).unwrap();
        let before = affinity();
        let placement = Placement::new(None).unwrap();
        assert_eq!(affinity(), placement.cpus);
        assert!(before.len() == 1 || !placement.cpus.contains(&BOOT_CPU));
        drop(placement);
        assert_eq!(affinity(), before);
        let refused = Placement::new(Some(&[1023])).map(|p| p.cpus.clone()).unwrap_err();
        assert!(refused.to_string().contains("--pin 1023"), "{refused}");
    }
}
