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
use vmeter_base::CpuList;

/// The boot CPU, whose kworker runs the callbacks.
const BOOT_CPU: usize = 0;

/// The calling thread's affinity, put back on drop.
pub(crate) struct Placement {
    before: Option<CpuSet>,
    /// CPUs that the thread may use.
    pub(crate) cpus: CpuList,
}

/// Lets the calling thread run on these CPUs.
pub(crate) fn allow(set: &CpuSet) -> std::io::Result<()> {
    Ok(sched_setaffinity(None, set)?)
}

impl Placement {
    /// Puts the calling thread on `wanted`, or else on all it may use but the boot CPU.
    pub(crate) fn new(wanted: Option<&CpuList>) -> Result<Self, IrqError> {
        // A host that does not say is left as it is.
        let Ok(before) = sched_getaffinity(None) else {
            return Ok(Placement { before: None, cpus: CpuList::default() });
        };
        let allowed = CpuList::from(&before);
        let cpus = match (wanted, allowed.as_slice()) {
            (Some(wanted), _) => wanted.clone(),
            (None, [_]) => allowed,
            (None, all) => all.iter().copied().filter(|cpu| *cpu != BOOT_CPU).collect(),
        };
        let refused = |e: &dyn std::fmt::Display| IrqError::Usage(format!("--pin {cpus}: {e}"));
        cpus.check_runnable().map_err(|e| refused(&e))?;
        allow(&cpus.set()).map_err(|e| refused(&e))?;
        Ok(Placement { before: Some(before), cpus })
    }

    /// The affinity before.
    pub(crate) fn before(&self) -> Option<CpuSet> {
        self.before
    }
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
        let before = CpuList::allowed();
        let placement = Placement::new(None).unwrap();
        assert_eq!(CpuList::allowed(), placement.cpus);
        assert!(before.as_slice().len() == 1 || !placement.cpus.as_slice().contains(&BOOT_CPU));
        drop(placement);
        assert_eq!(CpuList::allowed(), before);
        let beyond = CpuList::from_iter([before.as_slice()[0], 1023]);
        let refused = Placement::new(Some(&beyond)).map(|p| p.cpus.clone()).unwrap_err();
        assert!(refused.to_string().contains("CPU 1023 does not exist"), "{refused}");
    }
}
