//! An event of one of several files, on their common time base.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use vmeter_trace::ops::{NameId, Op};
use vmeter_trace::Context;

/// A name in a file, as one number: an `Option` of it is no larger, and compares as fast.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sym(NonZeroU64);

impl Sym {
    /// Of a file's number, and the name's number there.
    #[inline]
    pub fn new(file: u16, id: NameId) -> Sym {
        let number = u64::from(file) << 32 | u64::from(id.0);
        Sym(NonZeroU64::MIN.saturating_add(number))
    }

    /// Number of the file.
    #[inline]
    pub fn file(self) -> u16 {
        ((self.0.get() - 1) >> 32) as u16
    }

    /// Its number there.
    #[inline]
    pub fn id(self) -> NameId {
        NameId((self.0.get() - 1) as u32)
    }
}

impl std::fmt::Debug for Sym {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sym({}, {})", self.file(), self.id().0)
    }
}

/// A thread of a kernel: of which file, and its id there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Tid {
    /// Number of the file.
    pub file: u16,
    /// Thread id; 0 for the idle thread.
    pub tid: i32,
}

impl Hash for Tid {
    /// In one step: threads are looked up several times an event.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.file) << 32 | u64::from(self.tid as u32));
    }
}

/// An event on the common time base.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// When, ticks of the common base.
    pub ts: u64,
    /// The stamp in the file.
    pub stamp: u64,
    /// Number of the file.
    pub file: u16,
    /// CPU, or [`NO_CPU`].
    pub cpu: u32,
    /// Thread it happened in.
    pub tid: i32,
    /// What the CPU did, as far as the event says.
    pub context: Context,
    /// What it means.
    pub op: Op,
}

impl Moment {
    /// A name of its op.
    #[inline]
    pub fn sym(&self, id: NameId) -> Sym {
        Sym::new(self.file, id)
    }

    /// Where it is, as an event of that name.
    pub fn place(&self, event: &'static str) -> Place {
        let Moment { file, stamp, cpu, tid, .. } = *self;
        Place { file, stamp, cpu, tid, event }
    }
}

/// Where an event is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Number of the file.
    pub file: u16,
    /// Stamp in that file.
    pub stamp: u64,
    /// CPU.
    pub cpu: u32,
    /// Thread.
    pub tid: i32,
    /// Name of the event.
    pub event: &'static str,
}
