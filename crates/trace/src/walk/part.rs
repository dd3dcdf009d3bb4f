//! A walk of some threads and CPUs only: what lets a trace be walked by several at once.

/// Whose events are walked: those of every `of`-th thread and CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) index: usize,
    pub(crate) of: usize,
}

impl Default for Part {
    fn default() -> Part {
        Part { index: 0, of: 1 }
    }
}

impl Part {
    /// The part that a thread belongs to.
    #[inline]
    pub(crate) fn of_thread(tid: i32, of: usize) -> usize {
        // Neighbours are often alike: threads of one VMM, workers of one CPU.
        (((tid as u32).wrapping_mul(0x9e37_79b9) >> 16) as usize) % of
    }

    /// The part that a CPU belongs to.
    #[inline]
    pub(crate) fn of_cpu(cpu: u32, of: usize) -> usize {
        cpu as usize % of
    }

    /// The thread, if it is of this part.
    #[inline]
    pub(super) fn mine(self, tid: i32) -> Option<i32> {
        (self.of == 1 || Part::of_thread(tid, self.of) == self.index).then_some(tid)
    }
}
