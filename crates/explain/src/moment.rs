//! An event of one of several files, on their common time base.

use vmeter_trace::ops::{NameId, Op};
use vmeter_trace::Context;

/// A name in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sym {
    /// Number of the file.
    pub file: u16,
    /// Its number there.
    pub id: NameId,
}

/// A thread of a kernel: of which file, and its id there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tid {
    /// Number of the file.
    pub file: u16,
    /// Thread id; 0 for the idle thread.
    pub tid: i32,
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
    pub fn sym(&self, id: NameId) -> Sym {
        Sym { file: self.file, id }
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
