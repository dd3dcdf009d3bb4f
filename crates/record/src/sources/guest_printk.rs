//! The guest kernel's log, read out of its RAM when it is over.
//!
//! Every boot has one, quiet or not, whatever its console shows. Its stamps are
//! of the kernel's local clock, which starts late, and which jumps when the
//! kernel comes to trust the TSC: one offset for a whole boot is wrong by tens of
//! milliseconds. The trace has the same records as `printk:console` events,
//! stamped with the TSC as they were stored, so that those are taken; what lies
//! between is placed from the record before it, and cannot be off by more than
//! the gap.

use super::{guest_ftrace, read_bounded};
use crate::guest_clock::{self, GuestClock};
use crate::guest_ram::{failed, look_into, GuestKernel};
use crate::source::{Context, Live, Source, SourceError};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use vmeter_kernel_image::ftrace::{FtraceDump, FtraceKind};
use vmeter_kernel_image::printk::{PrintkDump, PrintkRecord};
use vmeter_kernel_image::KernelInfo;
use vmeter_machine::launch::Tracee;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Event, Ns, RunRecord, What};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "guest-printk";

/// The dump in the run's folder.
pub const FILE: &str = "guest-printk.bin";

/// The guest's printk ring.
pub struct GuestPrintk;

impl Source for GuestPrintk {
    fn name(&self) -> &'static str {
        NAME
    }

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        Some(Box::new(Recording {
            kernel: GuestKernel::of(context)?,
            dir: context.dir.to_owned(),
            accel: context.accel.map(str::to_owned),
            info: None,
            tsc_offset: None,
            dump: None,
        }))
    }

    fn decode(
        &self,
        dir: &Path,
        run: &RunRecord,
        source: &SourceRecord,
    ) -> Result<Vec<Event>, SourceError> {
        let dump = PrintkDump::from_bytes(&read_bounded(dir, source, 0)?).map_err(failed)?;
        let records = dump.records();
        let anchors = match run.sources.iter().find(|s| s.name == guest_ftrace::NAME) {
            Some(trace) => console_events(dir, run, trace)?,
            None => Vec::new(),
        };
        let placed = place(&records, anchors, run);
        let events = records.iter().zip(placed).flat_map(|(record, (at, error_ns))| {
            record.text.split('\n').map(move |line| Event {
                at,
                error_ns,
                source: NAME.into(),
                insns: None,
                what: What::KernelLine { text: line.to_owned() },
            })
        });
        Ok(events.collect())
    }
}

/// Texts of `printk:console` events in order, with their time and its error.
fn console_events(
    dir: &Path,
    run: &RunRecord,
    trace: &SourceRecord,
) -> Result<Vec<(String, Ns, Ns)>, SourceError> {
    let dump = FtraceDump::from_bytes(&read_bounded(dir, trace, 0)?).map_err(failed)?;
    let decoded = dump.decode();
    let clock = GuestClock::of(run, trace, decoded.events.last().map_or(0, |e| e.ts))?;
    Ok(decoded
        .events
        .into_iter()
        .filter_map(|event| match event.kind {
            FtraceKind::Console { text } => Some((text, clock.at(event.ts), clock.error_ns)),
            _ => None,
        })
        .collect())
}

/// The run's time of each record, and its error.
fn place(
    records: &[PrintkRecord],
    anchors: Vec<(String, Ns, Ns)>,
    run: &RunRecord,
) -> Vec<(Ns, Ns)> {
    let matched = matches(records, anchors);
    let zero = if run.icount {
        0
    } else {
        run.moments.iter().find(|(_, name)| name == "vm-start").map_or(0, |&(at, _)| at)
    };
    let anchor = |i: usize| matched[i].map(|(at, error)| Anchor { at, error, ts: ts(&records[i]) });
    let mut after: Vec<Option<Anchor>> = (0..records.len()).map(anchor).collect();
    for i in (1..after.len()).rev() {
        after[i - 1] = after[i - 1].or(after[i]);
    }
    let mut before = None;
    let mut placed = Vec::with_capacity(records.len());
    for (i, record) in records.iter().enumerate() {
        before = anchor(i).or(before);
        placed.push(match (before, after[i]) {
            (Some(from), Some(to)) => from.up_to(ts(record), to.at, matched[i].is_some()),
            (Some(from), None) => from.up_to(ts(record), run.total_ns.max(from.at), false),
            (None, Some(to)) => to.back_to(ts(record), zero.min(to.at)),
            (None, None) => unaligned(record, records.last(), run, zero),
        });
    }
    placed
}

/// A record's local clock, ns.
fn ts(record: &PrintkRecord) -> Ns {
    Ns::try_from(record.ts_ns).unwrap_or(Ns::MAX)
}

/// A record that is known in both clocks.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    at: Ns,
    error: Ns,
    /// Its local clock, ns.
    ts: Ns,
}

impl Anchor {
    /// A record after this one, not later than `end`; `own` if it is this one.
    fn up_to(self, ts: Ns, end: Ns, own: bool) -> (Ns, Ns) {
        if own {
            return (self.at, self.error);
        }
        let end = end.max(self.at);
        let at = self.at.saturating_add(ts.saturating_sub(self.ts)).clamp(self.at, end);
        (at, self.error.saturating_add(end.saturating_sub(self.at)))
    }

    /// A record before this one, not earlier than `start`. Local stamps are 0
    /// until the kernel knows its TSC: those records are earlier, nobody knows how much.
    fn back_to(self, ts: Ns, start: Ns) -> (Ns, Ns) {
        let at = self.at.saturating_sub(self.ts.saturating_sub(ts)).clamp(start, self.at);
        let unknown = if ts == 0 { at.saturating_sub(start) } else { EARLY_ERROR_NS };
        (at, self.error.saturating_add(unknown))
    }
}

/// How far the local clock and the TSC drift apart from when the clock starts to
/// when tracing does, some 100 ms.
const EARLY_ERROR_NS: Ns = 1_000_000;

/// Without anchors: the last record is taken to be at the end of the run.
fn unaligned(
    record: &PrintkRecord,
    last: Option<&PrintkRecord>,
    run: &RunRecord,
    zero: Ns,
) -> (Ns, Ns) {
    let last = last.map_or(0, ts);
    let shift = run.total_ns.saturating_sub(last).max(zero);
    (shift.saturating_add(ts(record)), shift.saturating_sub(zero))
}

/// For each record the event that is its own: same text, and both counted from
/// the end, since tracing begins later than the log.
fn matches(records: &[PrintkRecord], anchors: Vec<(String, Ns, Ns)>) -> Vec<Option<(Ns, Ns)>> {
    let mut by_text: HashMap<String, Vec<(Ns, Ns)>> = HashMap::new();
    for (text, at, error) in anchors {
        by_text.entry(text).or_default().push((at, error));
    }
    let mut matched: Vec<_> = records
        .iter()
        .rev()
        .map(|record| by_text.get_mut(&record.text).and_then(Vec::pop))
        .collect();
    matched.reverse();
    matched
}

struct Recording {
    kernel: GuestKernel,
    dir: PathBuf,
    accel: Option<String>,
    info: Option<KernelInfo>,
    tsc_offset: Option<i64>,
    dump: Option<PrintkDump>,
}

impl Live for Recording {
    fn prepare(&mut self, _plan: &mut LaunchPlan) -> Result<(), SourceError> {
        self.info = Some(self.kernel.info()?);
        Ok(())
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        let Some(info) = &self.info else { return Ok(()) };
        if self.accel.as_deref() == Some("kvm") {
            self.tsc_offset = guest_clock::kvm_tsc_offset(tracee.pid);
        }
        self.dump = Some(look_into(tracee, info, PrintkDump::take)?);
        Ok(())
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let Some(dump) = self.dump else { return Ok(None) };
        dump.write(&self.dir.join(FILE)).map_err(failed)?;
        Ok(Some(guest_clock::record(NAME, FILE, self.accel.as_deref(), self.tsc_offset)))
    }
}
