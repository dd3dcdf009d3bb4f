//! Lists of CPUs, as the kernel writes and reads them: `0,2-3`.

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use std::fmt;
use std::str::FromStr;

/// CPUs by number: sorted, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// A text is no list of CPUs, or a CPU of the list is not there to run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuListError {
    /// Not a list, or one with a number beyond [`CpuList::LIMIT`].
    NoList,
    /// Nothing of this process can run on these.
    NotThere {
        /// Those of the list that do not exist, are offline or forbidden (cpuset).
        missing: CpuList,
        /// What this process may use.
        allowed: CpuList,
    },
}

impl fmt::Display for CpuListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuListError::NoList => {
                write!(f, "expected CPU numbers below {}, e.g. 1 or 0,2-3", CpuList::LIMIT)
            }
            CpuListError::NotThere { missing, allowed } => write!(
                f,
                "CPU {missing} does not exist, is offline, or is not allowed for this process; \
                    allowed CPUs: {allowed}"
            ),
        }
    }
}

impl std::error::Error for CpuListError {}

impl CpuList {
    /// Numbers are below this: the most that Linux can be built for on x86
    /// (arch/x86/Kconfig, `NR_CPUS`).
    pub const LIMIT: usize = 8192;

    /// The CPUs, in ascending order.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// The CPUs that the calling thread may use; none if the kernel does not say.
    pub fn allowed() -> Self {
        sched_getaffinity(None).as_ref().map(CpuList::from).unwrap_or_default()
    }

    /// Checks that a thread of this process can be told to run on each of these CPUs.
    ///
    /// The kernel ignores those of a mask that do not exist as long as one does
    /// (sched_setaffinity(2)), so it is tried, in a thread made for that, and read back.
    ///
    /// # Errors
    /// [`CpuListError::NotThere`] with those that were left out.
    pub fn check_runnable(&self) -> Result<(), CpuListError> {
        let (set, allowed) = (self.set(), CpuList::allowed());
        let granted = std::thread::scope(|scope| {
            let tried = scope.spawn(|| sched_setaffinity(None, &set).map(|()| CpuList::allowed()));
            tried.join().unwrap_or(Ok(CpuList::default())).unwrap_or_default()
        });
        let missing: CpuList = self.0.iter().copied().filter(|c| !granted.0.contains(c)).collect();
        if missing.0.is_empty() {
            return Ok(());
        }
        Err(CpuListError::NotThere { missing, allowed })
    }

    /// The mask for an affinity, without those beyond its size ([`CpuSet::MAX_CPU`]).
    pub fn set(&self) -> CpuSet {
        let mut set = CpuSet::new();
        for &cpu in self.0.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
            set.set(cpu);
        }
        set
    }
}

impl FromIterator<usize> for CpuList {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut cpus: Vec<usize> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        CpuList(cpus)
    }
}

impl From<&CpuSet> for CpuList {
    fn from(set: &CpuSet) -> Self {
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let number = |t: &str| t.trim().parse().ok().filter(|n: &usize| *n < Self::LIMIT);
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            number(first).zip(number(last)).filter(|(first, last)| first <= last)
        };
        let ranges: Option<Vec<(usize, usize)>> = text.split(',').map(range).collect();
        let ranges = ranges.ok_or(CpuListError::NoList)?;
        Ok((0..Self::LIMIT)
            .filter(|cpu| ranges.iter().any(|(first, last)| (first..=last).contains(&cpu)))
            .collect())
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.chunk_by(|a, b| a + 1 == *b);
        for (place, range) in ranges.enumerate() {
            let comma = if place == 0 { "" } else { "," };
            match range {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [only] => write!(f, "{comma}{only}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        let list: CpuList = "5, 0,2-3,3".parse().expect("a list");
        assert_eq!(list.as_slice(), [0, 2, 3, 5]);
        assert_eq!(list.to_string(), "0,2-3,5");
        for wrong in ["", "a", "3-1", "1,,2", "0-99999", "8192", "-1", "0-"] {
            let error = wrong.parse::<CpuList>().expect_err(wrong);
            assert!(error.to_string().contains("e.g. 1 or 0,2-3"), "{error}");
        }
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused_beside_one_that_is() {
        let allowed = CpuList::allowed();
        allowed.check_runnable().expect("its own CPUs");
        let before = allowed.clone();
        let one = allowed.as_slice()[0];
        for beyond in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, CpuList::LIMIT - 1] {
            let error = CpuList::from_iter([one, beyond]).check_runnable().expect_err("refused");
            let text = error.to_string();
            assert!(text.starts_with(&format!("CPU {beyond} does not exist")), "{text}");
        }
        assert_eq!(CpuList::allowed(), before, "the calling thread stays where it was");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(cpus in prop::collection::vec(0..CpuList::LIMIT, 1..40)) {
            let list = CpuList::from_iter(cpus);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }

        #[test]
        fn no_text_panics(text in "[0-9,\\- ]{0,20}|\\PC*") {
            let _ = text.parse::<CpuList>();
        }
    }
}
