//! Which threads have ended, and which switches of a CPU do not follow upon each other.

use super::groups::Groups;
use super::name_traits::Traits;
use crate::merge::Merge;
use crate::moment::{Moment, Tid};
use std::collections::BTreeMap;
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::{Op, Sleep};

/// Most CPUs.
const MAX_CPUS: usize = 1 << 14;
/// Switches from which their order says something, and the part of them whose predecessor is not
/// there, from which only some threads are recorded.
const LEAST: u64 = 50;
const PARTIAL: f64 = 0.2;

/// Ends of threads, and gaps between switches.
#[derive(Debug, Default)]
pub struct Ends {
    /// By file and CPU, who was switched to last.
    cpus: FastMap<(u16, u32), i32>,
    /// By file, switches that have one before them, not to the idle thread, and those of them that
    /// do not go on from it.
    files: BTreeMap<u16, (u64, u64)>,
}

impl Ends {
    /// An event comes.
    #[inline]
    pub fn takes(&mut self, moment: &Moment, merge: &Merge, groups: &mut Groups) {
        let tid = |tid| Tid { file: moment.file, tid };
        match moment.op {
            Op::Switch { prev, runnable, sleep, next, .. } => {
                self.switched((moment.file, moment.cpu), prev, next);
                if !runnable && sleep == Sleep::Dead {
                    groups.ends(tid(prev));
                }
            }
            Op::SyscallEnter { name, .. } if merge.traits(moment.sym(name)).has(Traits::EXITS) => {
                groups.ends(tid(moment.tid));
            }
            Op::Lost => {
                self.cpus.remove(&(moment.file, moment.cpu));
            }
            _ => {}
        }
    }

    fn switched(&mut self, cpu: (u16, u32), prev: i32, next: i32) {
        if self.cpus.len() >= MAX_CPUS && !self.cpus.contains_key(&cpu) {
            return;
        }
        if let Some(last) = self.cpus.insert(cpu, next) {
            // Some kernels leave switches from the idle thread out.
            if last != 0 {
                let (all, gaps) = self.files.entry(cpu.0).or_default();
                *all += 1;
                *gaps += u64::from(last != prev);
            }
        }
    }

    /// True if only some threads of a file are recorded.
    pub fn any_gaps(&self) -> bool {
        self.files.keys().any(|file| self.gaps(*file).is_some())
    }

    /// The part of a file's switches whose predecessor is not there, if that is so many that only
    /// some threads are recorded.
    pub fn gaps(&self, file: u16) -> Option<f64> {
        let (all, gaps) = self.files.get(&file).copied().unwrap_or_default();
        let part = gaps as f64 / all.max(1) as f64;
        (all >= LEAST && part >= PARTIAL).then_some(part)
    }
}
