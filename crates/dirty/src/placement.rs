//! Harvester and vCPU on CPUs of their own.
//!
//! A harvest that has to interrupt a vCPU waits for another CPU. If the scheduler put both
//! threads on one, the guest would not run while its pages are harvested, and the wait
//! would be left out of what is measured.

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use vmeter_base::CpuList;

/// Keeps the calling thread on one CPU; dropping it undoes that.
#[derive(Debug)]
pub(crate) struct Placement {
    /// The CPUs that there are.
    pub(crate) before: CpuSet,
    /// The other CPUs.
    pub(crate) others: CpuSet,
}

impl Placement {
    /// The calling thread on the CPUs of `pin`, or on the first that there is. None where no
    /// CPU is left for others, or where the kernel does not say.
    pub(crate) fn apart(pin: &[usize]) -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)).collect();
        let own = if pin.is_empty() { &all[..all.len().min(1)] } else { pin };
        let set: CpuList = own.iter().copied().collect();
        let others: CpuList = all.iter().copied().filter(|cpu| !own.contains(cpu)).collect();
        sched_setaffinity(None, &set.set()).ok()?;
        if others.as_slice().is_empty() {
            return None;
        }
        Some(Self { before, others: others.set() })
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        // A CPU that went away meanwhile: the thread stays where it is.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Puts the calling thread on some of these CPUs.
pub(crate) fn stay_on(cpus: Option<CpuSet>) {
    if let Some(cpus) = cpus {
        // As above: then the scheduler decides.
        let _ = sched_setaffinity(None, &cpus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_are_put_apart_and_set_free_again() {
        let before = sched_getaffinity(None).unwrap();
        let Some(placement) = Placement::apart(&[]) else {
            return println!("skipped: one CPU");
        };
        let now = sched_getaffinity(None).unwrap();
        assert_eq!(now.count(), 1);
        let both = |cpu| now.is_set(cpu) && placement.others.is_set(cpu);
        assert!(!(0..CpuSet::MAX_CPU).any(both));
        assert_eq!(now.count() + placement.others.count(), before.count());
        drop(placement);
        assert!(sched_getaffinity(None).unwrap() == before);
    }
}
