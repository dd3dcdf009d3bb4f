//! Statistics of a trace: counts and times per port, exit, system call, interrupt.
//!
//! [`Stats`] takes events one by one and keeps rows in bounded memory; at the end
//! [`Stats::finish`] makes a [`Report`] of them. What each time means:
//! - a VMEXIT: from `kvm_exit` to the next `kvm_entry` of the thread (Xen: see [`crate::walk::xen`]);
//! - a port, MMIO, MSR access or a hypercall: the VMEXIT around it, shared equally
//!   if it was for several. Where the host records no `kvm_exit` (software KVM):
//!   from `kvm_userspace_exit` to the next `KVM_RUN`;
//! - a system call, an interrupt, a work item: from its entry to its exit event.
//!
//! An interval during which events were lost on its CPU, or which began before the oldest
//! event kept of a CPU that it came to, is counted as cut, not timed. Where the oldest events
//! were overwritten, so is one that began when not all CPUs' events are there yet, if it is
//! a hundred medians long: the thread may have been on such a CPU meanwhile.

pub mod hist;
pub mod kernel;
mod parallel;
pub mod report;
pub mod slices;
pub mod table;
pub mod versus;

use crate::event::{Body, Event};
use crate::format::{EventReader, TraceInfo};
use crate::ops::xen::{CPU_END, LOST_RECORDS, LOST_RECORDS_END};
use crate::ops::Decoder;
use crate::walk::{Part, Walk};
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
    /// By event type: its name and how many.
    kinds: Vec<(String, u64)>,
    events: u64,
    first: Option<u64>,
    last: u64,
    slicer: slices::Slicer,
}

impl Stats {
    /// Empty statistics.
    pub fn new(info: &TraceInfo) -> Stats {
        let mut stats = Stats::empty();
        stats.kernel.walk = Walk::new(info);
        stats
    }

    fn empty() -> Stats {
        Stats {
            decoder: Decoder::default(),
            kernel: kernel::Kernel::default(),
            kinds: Vec::new(),
            events: 0,
            first: None,
            last: 0,
            slicer: slices::Slicer::default(),
        }
    }

    /// Those of some threads and CPUs only.
    fn of_part(part: Part) -> Stats {
        let mut stats = Stats::empty();
        stats.kernel.walk = Walk::of_part(part);
        stats
    }

    /// Takes one event.
    #[inline]
    pub fn add(&mut self, event: &Event<'_>) {
        if is_event(&event.body) {
            self.count(event);
        }
        self.take(event);
    }

    /// Keeps the books of an event, without counting it as one.
    #[inline]
    fn take(&mut self, event: &Event<'_>) {
        let op = self.decoder.decode(event);
        let slice = self.slicer.at(event.ts);
        self.kernel.add(event, op, slice);
    }

    /// Counts an event whose books others keep.
    #[inline]
    fn note(&mut self, event: &Event<'_>) {
        if is_event(&event.body) {
            self.count(event);
        }
        self.slicer.at(event.ts);
    }

    /// First stamp of all.
    fn origin(&self) -> u64 {
        self.slicer.origin().unwrap_or(0)
    }

    /// Says when the trace began, before any event is taken.
    fn begin(&mut self, origin: u64) {
        self.slicer.begin(origin);
    }

    /// Adds the books that another kept of the same trace.
    fn absorb(&mut self, mut part: Stats) {
        let at = self.slicer.at(self.last);
        part.kernel.close(self.last, at);
        let names = self.decoder.learn_from(&part.decoder);
        self.kernel.absorb(part.kernel, |id| names.get(id as usize).map_or(0, |id| id.0).into());
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
        let at = self.slicer.at(self.last);
        self.kernel.close(self.last, at);
        self.decoder.resolve(|address| reader.symbol(address).map(str::to_string));
        report::build(&self, reader, cpu_hz)
    }
}

/// Reads a trace to its end, on up to `threads` CPUs where its format allows; the report is
/// the same with any number. `cpu_hz` as for [`Stats::finish`].
///
/// # Errors
/// When threads can't be started.
pub fn read_with(
    mut reader: Box<dyn EventReader>,
    cpu_hz: Option<f64>,
    threads: usize,
) -> std::io::Result<Report> {
    if threads > 1 {
        // Unpacking and keeping the books cost about the same; merging the streams, which
        // this thread does, costs less than a CPU.
        let ahead = threads / 2;
        let read = reader.read_ahead(ahead)?;
        let keepers = if read { (threads - ahead - 1).max(1) } else { threads - 1 };
        if !reader.kinds().is_empty() {
            return parallel::read(reader, cpu_hz, keepers);
        }
    }
    let mut stats = Stats::new(reader.info());
    while let Some(event) = reader.next_event() {
        stats.add(&event);
    }
    Ok(stats.finish(reader.as_ref(), cpu_hz))
}
