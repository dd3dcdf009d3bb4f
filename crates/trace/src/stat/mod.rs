//! Statistics of a trace: counts and times per port, exit, system call, interrupt.
//!
//! [`Stats`] takes events one by one and keeps rows in bounded memory; at the end
//! [`Stats::finish`] makes a [`Report`] of them. What each time means:
//! - a VMEXIT: from `kvm_exit` to the next `kvm_entry` of the thread (Xen: see [`xen`]);
//! - a port, MMIO, MSR access or a hypercall: the VMEXIT around it, shared equally
//!   if it was for several. Where the host records no `kvm_exit` (software KVM):
//!   from `kvm_userspace_exit` to the next `KVM_RUN`;
//! - a system call, an interrupt, a work item: from its entry to its exit event.
//!
//! An interval during which events were lost on its CPU is counted, not timed.

pub mod hist;
pub mod kernel;
pub mod report;
pub mod table;
pub mod threads;
pub mod xen;

use crate::event::{Body, Event};
use crate::format::{EventReader, TraceInfo};
use crate::ops::xen::{CPU_END, LOST_RECORDS, LOST_RECORDS_END};
use crate::ops::{Decoder, Op};
pub use report::{Report, Row};

/// False for what a reader adds: marks of lost events and of a stream's end.
fn is_event(body: &Body<'_>) -> bool {
    match body {
        Body::Lost(_) => false,
        Body::Words { event, .. } => !matches!(*event, LOST_RECORDS | LOST_RECORDS_END | CPU_END),
        _ => true,
    }
}

/// Accumulates the statistics of one trace.
pub struct Stats {
    decoder: Decoder,
    kernel: kernel::Kernel,
    xen: xen::Xen,
    /// By event type: its name and how many.
    kinds: Vec<(String, u64)>,
    events: u64,
    first: Option<u64>,
    last: u64,
}

impl Stats {
    /// Empty statistics.
    pub fn new(_info: &TraceInfo) -> Stats {
        Stats {
            decoder: Decoder::default(),
            kernel: kernel::Kernel::default(),
            xen: xen::Xen::default(),
            kinds: Vec::new(),
            events: 0,
            first: None,
            last: 0,
        }
    }

    /// Takes one event.
    #[inline]
    pub fn add(&mut self, event: &Event<'_>) {
        let op = self.decoder.decode(event);
        if is_event(&event.body) {
            self.count(event);
        }
        match op {
            Op::Xen(op) => self.xen.add(event, op),
            op => self.kernel.add(event, op),
        }
    }

    #[inline]
    fn count(&mut self, event: &Event<'_>) {
        self.events += 1;
        self.first = Some(self.first.map_or(event.ts, |first| first.min(event.ts)));
        self.last = self.last.max(event.ts);
        match self.kinds.get_mut(event.kind.id as usize) {
            Some((name, count)) if *count > 0 || !name.is_empty() => *count += 1,
            _ => self.count_new(event),
        }
    }

    #[cold]
    fn count_new(&mut self, event: &Event<'_>) {
        let id = event.kind.id as usize;
        if id >= 1 << 17 {
            return;
        }
        if self.kinds.len() <= id {
            self.kinds.resize(id + 1, (String::new(), 0));
        }
        self.kinds[id] = (event.kind.name.clone(), 1);
    }

    /// First to last stamp, ticks.
    fn span(&self) -> f64 {
        self.last.saturating_sub(self.first.unwrap_or(self.last)) as f64
    }

    /// The report. `cpu_hz` turns cycles into seconds where the trace counts cycles.
    pub fn finish(mut self, reader: &dyn EventReader, cpu_hz: Option<f64>) -> Report {
        self.kernel.close(self.last);
        self.decoder.resolve(|address| reader.symbol(address).map(str::to_string));
        report::build(&self, reader, cpu_hz)
    }
}
