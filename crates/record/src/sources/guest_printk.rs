//! The guest kernel's log, read out of its RAM when it is over.
//!
//! Every boot has one, quiet or not, whatever its console shows. Its stamps are
//! of the kernel's local clock, which starts late, and which jumps when the
//! kernel comes to trust the TSC: one offset for a whole boot is wrong by tens of
//! milliseconds. The trace has the same records as `printk:console` events,
//! stamped with the TSC as they were stored, so that those are taken; what lies
//! between is placed from the record before it, and cannot be off by more than
//! the gap. Without a trace, the lines that the console showed as they were said do
//! the same, at the time of their arrival. Where there are none (`quiet`), the kernel's clocks are
//! read out of its RAM as well ([`steady`]); where it has none that can be read, the log was watched as it grew
//! ([`super::log_growth`]). A log that nothing ties to the host's clock has no place
//! in the run, and is left out.

mod names;
mod sequence;
mod steady;
mod together;

use super::console::Console;
use super::firmware::ARRIVAL_ERROR_NS;
use super::guest_ftrace::{given, GuestFtrace, GuestTrace};
use super::log_growth::{windows, LogGrowth};
use super::read_bounded;
use crate::end::EndEvidence;
use crate::guest_clock::{self, GuestClock};
use crate::guest_ram::{failed, GuestKernel};
use crate::recorder::{Context, Live, Recorder, Saved, SourceError};
use crate::stamped::Line;
use names::Names;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use steady::AtEnd;
use vmeter_base::files;
use vmeter_kernel_image::clocks::Clocks;
use vmeter_kernel_image::ftrace::FtraceKind;
use vmeter_kernel_image::printk::{PrintkDump, PrintkRecord};
use vmeter_kernel_image::Guest;
use vmeter_machine::launch::Tracee;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::kernel_log::{self, LogMessage};
use vmeter_model::run::SourceRecord;
use vmeter_model::{Accel, Event, EventKind, Moment, Ns, RunRecord};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "guest-printk";

/// The dump in the run's folder.
pub const FILE: &str = "guest-printk.bin";

/// The guest's printk ring.
pub struct GuestPrintk;

impl Recorder for GuestPrintk {
    type Parameters = guest_clock::Parameters;
    type Raw = Log;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        Some(Box::new(Recording {
            kernel: GuestKernel::of(context)?,
            dir: context.dir.to_owned(),
            symbols: context.spec.symbols.clone(),
            image: context.kernel.map(Path::to_owned),
            names: None,
            accel: context.accel,
            tsc_offset: None,
            lacks: None,
            unopened: None,
            dump: None,
        }))
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        parameters: guest_clock::Parameters,
    ) -> Result<Log, SourceError> {
        let dump = PrintkDump::from_bytes(&read_bounded(dir, source, 0)?).map_err(failed)?;
        let records = dump.records();
        let wanted = dump.bytes_wanted(&records).unwrap_or(0);
        let (clocks, torn) = (dump.clocks().cloned(), dump.torn());
        let names = match source.files.len() {
            ..2 => Names::default(),
            _ => names::parse(&String::from_utf8_lossy(&read_bounded(dir, source, 1)?)),
        };
        Ok(Log { records, clocks, wanted, torn, names, parameters })
    }

    fn decode(
        &self,
        log: &Log,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let anchors = match saved.raw(&GuestFtrace)? {
            Some(trace) => console_events(&trace, saved.run)?,
            None => Vec::new(),
        };
        let (records, window) = (log.records.as_slice(), Window::of(saved.run));
        let matched = if saved.run.icount {
            matches(records, anchors)
        } else {
            let lines = saved.raw(&Console)?;
            let lines = lines.as_ref().map_or(&[][..], |raw| raw.lines());
            let shown = printed(records, lines, saved.run.exec_ns);
            match anchors.is_empty() {
                true => shown,
                false => in_order(matches(records, anchors), &shown),
            }
        };
        let came = came(saved, records)?;
        let matched: Vec<_> = matched.into_iter().zip(&came).map(|(own, c)| own.or(*c)).collect();
        // Virtual time loses nothing.
        let loses = if saved.run.icount { records.len() } else { steady::loses(records) };
        let mut placed = place_matched(records, &matched, window, loses);
        if !saved.run.icount {
            let by_clock = steady::by_clock(records, &matched, log.at_end(saved.run), window);
            for ((placed, by_clock), came) in placed.iter_mut().zip(by_clock).zip(&came) {
                let better = |(at, error): &(Ns, Ns)| {
                    // A clock that stood still contradicts the looks.
                    let may_be = |seen: &(Ns, Ns)| {
                        at.saturating_sub(seen.0).saturating_abs() <= seen.1.saturating_add(*error)
                    };
                    placed.is_none_or(|placed| *error < placed.1)
                        && came.as_ref().is_none_or(may_be)
                };
                *placed = by_clock.filter(better).or(*placed);
            }
            sequence::in_sequence(&mut placed);
        }
        let unplaced = placed.iter().filter(|at| at.is_none()).count() as u64;
        let placed = records.iter().zip(placed).filter_map(|(record, at)| Some((record, at?)));
        let events = placed.flat_map(|(record, (at, error_ns))| {
            record.text.split('\n').map(move |line| Event {
                at,
                error_ns,
                source: NAME.into(),
                insns: None,
                what: EventKind::KernelLine {
                    text: line.to_owned(),
                    by_program: !record.by_kernel,
                },
            })
        });
        let mut events: Vec<Event> = events.collect();
        // Its first records may have been overwritten.
        let lost = records.first().map_or(0, |record| record.seq);
        let at = events.last().map_or(0, |event| event.at.min(saved.run.total_ns));
        let counts = [
            (kernel_log::LOST, lost),
            (kernel_log::WANTED[0], log.wanted),
            (kernel_log::UNPLACED, unplaced),
            (kernel_log::TORN[0], log.torn),
        ];
        let lacks =
            kernel_log::LACKS.map(|name| (name, source.parameters.contains_key(name).into()));
        let counts = counts.into_iter().chain(lacks);
        events.extend(counts.filter(|(_, value)| *value > 0).map(|(name, value)| {
            let what = EventKind::Count { name: name.into(), value };
            Event { at, error_ns: 0, source: NAME.into(), insns: None, what }
        }));
        Ok(events)
    }

    fn refine_events(&self, saved: &Saved<'_>, events: &mut [Event]) {
        if let Ok(Some(log)) = saved.raw(self) {
            names::put(&log.names, events);
        }
    }

    fn clues(&self, log: &Log, clues: &mut EndEvidence) {
        let lines = log.records.iter().filter(|record| record.by_kernel);
        let lines = lines.flat_map(|record| record.text.split('\n').map(str::to_owned));
        clues.kernel_log.get_or_insert_default().extend(lines);
    }
}

/// The log, read.
#[derive(Debug)]
pub struct Log {
    /// Its records, oldest first.
    records: Vec<PrintkRecord>,
    /// The clocks that stamped them, at the end.
    clocks: Option<Clocks>,
    /// Bytes of a log that would have kept all; 0 if it did.
    wanted: u64,
    /// Records that were left out, for the guest wrote while they were copied.
    torn: u64,
    /// Names of functions that it says by their address.
    names: Names,
    parameters: guest_clock::Parameters,
}

impl Log {
    /// The kernel's clocks with the host's, where both count the TSC.
    fn at_end(&self, run: &RunRecord) -> Option<AtEnd<'_>> {
        let clocks = self.clocks.as_ref().filter(|clocks| clocks.counts_tsc())?;
        // The guest stood still while its kernel was looked for, which takes a while.
        let stopped = run.moment(&Moment::VmmExiting).unwrap_or(Ns::MAX);
        let read = clocks.read_ns.saturating_sub(run.exec_ns).min(stopped);
        let tsc = clocks.tsc_last();
        let host = GuestClock::read_at(run, &self.parameters, tsc, read).ok()?;
        let (at, rate) = (host.at(tsc), host.rate());
        Some(AtEnd { clocks, at, error: host.error_ns, rate })
    }
}

/// For each record when it came, where the log was watched as it grew, and half of the time between two looks.
fn came(saved: &Saved<'_>, records: &[PrintkRecord]) -> Result<Vec<Option<(Ns, Ns)>>, SourceError> {
    match saved.raw(&LogGrowth)? {
        Some(looks) if !saved.run.icount => {
            Ok(together::apart(records, windows(&looks, records, saved.run.exec_ns)))
        }
        _ => Ok(vec![None; records.len()]),
    }
}

/// Texts of `printk:console` events in order, with their time and its error.
fn console_events(
    trace: &GuestTrace,
    run: &RunRecord,
) -> Result<Vec<(String, Ns, Ns)>, SourceError> {
    let clock = trace.align(run)?;
    let texts = trace.decoded.events.iter().filter_map(|event| match &event.kind {
        FtraceKind::Console { text } => Some((text.clone(), clock.at(event.ts), clock.error_ns)),
        _ => None,
    });
    Ok(texts.collect())
}

/// When the guest can have said anything, in the run's time.
#[derive(Debug, Clone, Copy)]
struct Window {
    start: Ns,
    end: Ns,
}

impl Window {
    fn of(run: &RunRecord) -> Self {
        let started = run.moment(&Moment::VmStart).unwrap_or(0);
        let start = if run.icount { 0 } else { started };
        Window { start, end: run.looked_at().unwrap_or(run.total_ns) }
    }
}

/// The run's time of each record, and its error.
#[cfg(test)]
fn place(
    records: &[PrintkRecord],
    anchors: Vec<(String, Ns, Ns)>,
    window: Window,
) -> Vec<Option<(Ns, Ns)>> {
    place_matched(records, &matches(records, anchors), window, records.len())
}

/// As [`place`], by what is known of each record. The log's clock may have lost time from the
/// record `loses` on. None of a log of which nothing is known.
fn place_matched(
    records: &[PrintkRecord],
    matched: &[Option<(Ns, Ns)>],
    window: Window,
    loses: usize,
) -> Vec<Option<(Ns, Ns)>> {
    let anchor = |i: usize| matched[i].map(|(at, error)| Anchor { at, error, ts: ts(&records[i]) });
    let mut after: Vec<Option<Anchor>> = (0..records.len()).map(anchor).collect();
    for i in (1..after.len()).rev() {
        after[i - 1] = after[i - 1].or(after[i]);
    }
    let early = matched.iter().position(Option::is_some).is_some_and(|first| first <= loses);
    let mut before = None;
    let mut placed = Vec::with_capacity(records.len());
    for (i, record) in records.iter().enumerate() {
        before = anchor(i).or(before);
        placed.push(match (before, after[i]) {
            (Some(from), Some(to)) => Some(from.up_to(ts(record), to.at, matched[i].is_some())),
            (Some(from), None) => Some(from.up_to(ts(record), window.end, false)),
            (None, Some(to)) => Some(to.back_to(ts(record), window.start, early)),
            (None, None) => None,
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

    /// A record before this one, not earlier than `start`. Local stamps are 0 until the kernel
    /// knows its TSC, and less than the time that passed once it counts ticks: such records are
    /// earlier by an unknown time. Only if this one is `early` there were no ticks in between.
    fn back_to(self, ts: Ns, start: Ns, early: bool) -> (Ns, Ns) {
        let start = start.min(self.at);
        let at = self.at.saturating_sub(self.ts.saturating_sub(ts)).clamp(start, self.at);
        let earlier = at.saturating_sub(start);
        let unknown = if ts == 0 || !early { earlier } else { EARLY_ERROR_NS };
        (at, self.error.saturating_add(unknown))
    }
}

/// How far the local clock and the TSC drift apart between the clock's start and
/// that of tracing: 0.5 ms over the first anchors of a Debian guest. (Later, until
/// the kernel trusts its TSC, it is 100 ms and more.)
const EARLY_ERROR_NS: Ns = 2_000_000;

/// For each record the event that is its own: same text, and both counted from
/// the end, since tracing begins later than the log. A record that was printed in
/// pieces has an event for each; the first of them is taken.
fn matches(records: &[PrintkRecord], anchors: Vec<(String, Ns, Ns)>) -> Vec<Option<(Ns, Ns)>> {
    let mut by_text: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, (text, ..)) in anchors.iter().enumerate() {
        by_text.entry(text).or_default().push(i);
    }
    let mut own: Vec<Option<usize>> = records
        .iter()
        .rev()
        .map(|record| by_text.get_mut(record.text.as_str()).and_then(Vec::pop))
        .collect();
    own.reverse();
    let used: HashSet<usize> = own.iter().flatten().copied().collect();
    let mut next = 0;
    for (i, record) in records.iter().enumerate() {
        if let Some(event) = own[i] {
            next = event + 1;
        } else if next > 0 {
            let pieces = (next..anchors.len()).take_while(|event| !used.contains(event));
            let first = pieces.take(MAX_PIECES).find(|&event| {
                let text = anchors[event].0.as_str();
                !text.is_empty() && record.text.starts_with(text)
            });
            own[i] = first;
            next = first.map_or(next, |event| event + 1);
        }
    }
    own.into_iter().map(|event| event.map(|e| (anchors[e].1, anchors[e].2))).collect()
}

/// A line of the console.
struct Shown<'a> {
    text: &'a str,
    at: Ns,
    clock: usize,
}

/// Lines of the console whose stamps advance. A stamp of 0 is any kernel's, and a second kernel says
/// at first what the first did: whose these are the others tell.
#[derive(Default)]
struct Clock {
    /// Lines with a stamp above 0, and those among them that the log has.
    stamped: usize,
    matched: usize,
}

impl Clock {
    fn is_of_log(&self) -> bool {
        self.matched.saturating_mul(4) >= self.stamped
    }
}

/// For each record when the console showed it, if that was as it was said: the console is
/// written to before the kernel goes on. Its stamp and its text say which line it is.
fn printed(records: &[PrintkRecord], lines: &[Line], exec_ns: Ns) -> Vec<Option<(Ns, Ns)>> {
    let arrivals: Vec<(Ns, &str)> =
        lines.iter().map(|line| (line.start, line.text.as_str())).collect();
    let live =
        lines.iter().zip(kernel_log::said(&arrivals)).filter(|(_, said)| *said == LogMessage::Live);
    let mut by_stamp: HashMap<Ns, Vec<Shown<'_>>> = HashMap::new();
    let mut clocks: Vec<Clock> = Vec::new();
    let mut last = Ns::MAX;
    for (line, _) in live {
        let (Some(stamp), text) = kernel_log::split_stamp(&line.text) else { continue };
        if stamp.saturating_add(kernel_log::SLACK) < last {
            clocks.push(Clock::default());
        }
        last = stamp;
        let clock = clocks.len() - 1;
        clocks[clock].stamped += usize::from(stamp > 0);
        let at = line.start.saturating_sub(exec_ns);
        by_stamp.entry(stamp).or_default().push(Shown { text, at, clock });
    }
    let shown = |record: &PrintkRecord| {
        let first = record.text.split('\n').next()?.trim();
        let same = by_stamp.get(&(ts(record) / 1_000 * 1_000))?.iter();
        same.filter(|shown| shown.text.trim() == first).min_by_key(|shown| Reverse(shown.clock))
    };
    for record in records.iter().filter(|record| ts(record) >= 1_000) {
        if let Some(shown) = shown(record) {
            clocks[shown.clock].matched += 1;
        }
    }
    let of_log = |shown: &&Shown<'_>| clocks[shown.clock].is_of_log();
    let known = |record| shown(record).filter(of_log).map(|shown| (shown.at, ARRIVAL_ERROR_NS));
    records.iter().map(known).collect()
}

/// A log is in the order in which its records were said. One that its stamp in the trace puts
/// before another that the console had shown by then was said when the console showed it, or as
/// long after the other as the log's own clock says.
fn in_order(
    mut matched: Vec<Option<(Ns, Ns)>>,
    shown: &[Option<(Ns, Ns)>],
) -> Vec<Option<(Ns, Ns)>> {
    let mut latest = Ns::MIN;
    for (own, shown) in matched.iter_mut().zip(shown) {
        let Some((at, error)) = *own else { continue };
        let late = at.saturating_add(error).saturating_add(OUT_OF_ORDER_NS);
        if late < latest {
            *own = shown.filter(|(shown, _)| *shown >= latest);
        }
        // Nothing is shown before it was said.
        let by = own.zip(*shown).map(|((at, _), (shown, off))| at.min(shown.saturating_add(off)));
        latest = latest.max(by.unwrap_or(Ns::MIN));
    }
    matched
}

/// By so much the CPUs of a guest may store what they say in another order than they stamp it, ns.
const OUT_OF_ORDER_NS: Ns = 1_000_000_000;

/// Most pieces of other records between two that are known.
const MAX_PIECES: usize = 64;

struct Recording {
    kernel: GuestKernel,
    dir: PathBuf,
    /// Symbols of the kernel's build that the user gave, and the kernel's file.
    symbols: Option<PathBuf>,
    image: Option<PathBuf>,
    names: Option<Names>,
    accel: Option<Accel>,
    tsc_offset: Option<i64>,
    /// What its kernel lacks, of [`kernel_log::LACKS`].
    lacks: Option<[bool; 3]>,
    /// Why the kernel's file says nothing of it.
    unopened: Option<SourceError>,
    dump: Option<PrintkDump>,
}

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        // A kernel whose file has no symbols has a log all the same.
        self.unopened = self.kernel.open().err();
        if !self.kernel.traces_initcalls() {
            log_initcalls(plan);
        }
        Ok(())
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        (self.accel, self.tsc_offset) = guest_clock::by_kvm(self.accel, tracee.pid);
        let by_symbols = match self.unopened.take() {
            Some(error) => Err(error),
            None => self.kernel.look_into(tracee, take),
        };
        self.lacks = self.kernel.lacks();
        let found = by_symbols.or_else(|error| self.kernel.log_by_shape(tracee).map_err(|_| error));
        match found {
            Ok(dump) => {
                let records = dump.records();
                self.dump = Some(dump);
                self.names = names::of(self, &records)?;
            }
            // Whether there is a kernel at all was not known.
            Err(_) if self.kernel.may_be_none(tracee) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn has_seen_guest(&self) -> bool {
        self.dump.is_some()
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let Some(dump) = self.dump else { return Ok(None) };
        dump.write(&self.dir.join(FILE)).map_err(failed)?;
        let mut record = guest_clock::record::<GuestPrintk>(FILE, self.accel, self.tsc_offset);
        let lacks = self.lacks.unwrap_or_default();
        let lacks = kernel_log::LACKS.iter().zip(lacks).filter(|(_, lacks)| *lacks);
        record.parameters.extend(lacks.map(|(name, _)| ((*name).to_owned(), true.into())));
        if let Some(names) = &self.names {
            let path = self.dir.join(names::FILE);
            files::write_in_new_folder(&path, names::to_text(names).as_bytes())
                .map_err(|error| SourceError::Io { path, error })?;
            record.files.push(names::FILE.into());
        }
        Ok(Some(record))
    }
}

/// Has a kernel that cannot trace them write its initcalls into its log, where its console is quiet: it would
/// print a part of what `initcall_debug` adds (PCI fixups, devices that it shuts down).
fn log_initcalls(plan: &mut LaunchPlan) {
    let Some(line) = plan.kernel_line() else { return };
    let mut words = line.split_ascii_whitespace();
    if !kernel_log::is_quiet(&line) || words.any(|word| word == INITCALL_DEBUG) {
        return;
    }
    let mut added = vec![INITCALL_DEBUG];
    if given(plan, "log_buf_len=").is_none() {
        added.push(LOG_SIZE);
    }
    plan.inject_kernel_parameters(&added);
}

/// Each initcall is two records at the level `debug` (`do_one_initcall` of init/main.c).
const INITCALL_DEBUG: &str = "initcall_debug";
/// Holds some 7,000 such records; with what the kernel keeps beside each it takes 2.3 MiB.
const LOG_SIZE: &str = "log_buf_len=512K";

/// The log and, where the kernel says how, its clocks.
fn take(guest: &Guest<'_>) -> vmeter_kernel_image::Result<PrintkDump> {
    let clocks = Clocks::take_whole(guest, vmeter_base::clock::monotonic());
    let mut dump = PrintkDump::take(guest)?;
    dump.set_clocks(clocks.ok());
    Ok(dump)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(ts_ns: u64, text: &str) -> PrintkRecord {
        PrintkRecord { seq: 0, ts_ns, level: 6, caller_id: 0, by_kernel: true, text: text.into() }
    }

    fn window(total: Ns) -> Window {
        Window { start: 100, end: total }
    }

    fn anchors(events: &[(&str, Ns)]) -> Vec<(String, Ns, Ns)> {
        events.iter().map(|&(text, at)| (text.to_owned(), at, 5)).collect()
    }

    #[test]
    fn records_take_the_stamps_of_their_events() {
        let records = [
            record(0, "Linux version"),
            record(900_000, "same"),
            record(1_000_000, "same"),
            record(1_100_000, "pieces: one, two"),
            record(1_200_000, "between"),
            record(9_000_000, "last"),
            record(9_500_000, "after"),
        ];
        let events = [
            ("same", 3_000_000),
            ("pieces: ", 3_200_000),
            ("one, ", 3_210_000),
            ("two", 3_220_000),
            ("last", 4_000_000),
        ];
        let placed = place(&records, anchors(&events), window(5_000_000));
        let expected = [
            // Nobody knows how long before the clock began it was.
            (2_000_000, 5 + 1_999_900),
            // The first of two alike was before tracing began.
            (2_900_000, 5 + EARLY_ERROR_NS),
            (3_000_000, 5),
            (3_200_000, 5),
            (3_300_000, 5 + 800_000),
            (4_000_000, 5),
            (4_500_000, 5 + 1_000_000),
        ];
        assert_eq!(placed, expected.map(Some));
    }

    #[test]
    fn a_clock_that_counted_ticks_up_to_the_first_line_that_is_known_places_none_before_it() {
        let texts = ["Linux version", "tsc: Detected", "Calibrating delay loop (skipped)", "smp"];
        let stamps = (0..).map(|n: u64| n * 1_000_000);
        let mut records: Vec<_> = stamps.zip(texts).map(|(ts, text)| record(ts, text)).collect();
        records.push(record(4_000_000, "shown"));
        let loses = steady::loses(&records);
        assert_eq!(loses, 2);
        let known = |index: usize| {
            let mut matched = vec![None; records.len()];
            matched[index] = Some((900_000_000, 5));
            place_matched(&records, &matched, window(1_000_000_000), loses)[1]
        };
        assert_eq!(known(2), Some((899_000_000, 5 + EARLY_ERROR_NS)));
        assert_eq!(known(4), Some((897_000_000, 5 + 896_999_900)), "anything since the start");
        let nothing = vec![None; records.len()];
        let placed = place_matched(&records, &nothing, window(1_000_000_000), loses);
        assert!(placed.iter().all(Option::is_none), "{placed:?}");
    }

    #[test]
    fn a_stamp_that_contradicts_the_logs_order_is_none() {
        let s = 1_000_000_000;
        let known = |at: &[Ns]| at.iter().map(|at| Some((*at * s, 5))).collect::<Vec<_>>();
        let matched = known(&[240, 253, 288, 253, 253, 254]);
        let mut shown = known(&[240, 254, 289, 314, 314, 315]);
        let mut expected = known(&[240, 253, 288, 314, 314, 315]);
        assert_eq!(in_order(matched.clone(), &shown), expected);
        (shown[4], expected[4]) = (None, None);
        assert_eq!(in_order(matched.clone(), &shown), expected, "its own clock places it");
        // Which of two is wrong nobody says where neither was shown.
        assert_eq!(in_order(matched.clone(), &[None; 6]), matched);
        // One that is too late is shown before it was said: it puts no other out of order.
        let late = known(&[240, 900, 288]);
        assert_eq!(in_order(late.clone(), &known(&[240, 254, 289])), late);
    }

    #[test]
    fn what_the_console_showed_places_the_rest() {
        let records = [
            record(0, "Linux version"),
            record(700_000_500, "printk: console [ttyS0] enabled"),
            record(900_000_000, "a quiet record"),
            record(1_000_000_000, "shown"),
        ];
        let line = |start: Ns, text: &str| Line {
            start,
            end: start,
            text: text.into(),
            ..Line::default()
        };
        let lines = [
            line(1_000_000_000, "[    0.000000] Linux version"),
            line(1_001_000_000, "[    0.700000] printk: console [ttyS0] enabled"),
            line(1_501_000_000, "[    1.000000] shown"),
            // dmesg
            line(3_000_000_000, "[    0.000000] Linux version"),
            line(3_000_000_000, "[    0.700000] printk: console [ttyS0] enabled"),
            line(3_000_000_000, "[    1.000000] shown"),
        ];
        let matched = printed(&records, &lines, 1_000_000);
        assert_eq!(matched[0], None);
        let placed = place_matched(&records, &matched, window(4_000_000_000), 1);
        let at = |n: usize| placed[n].expect("it is placed");
        assert_eq!(at(1), (1_000_000_000, ARRIVAL_ERROR_NS));
        assert_eq!(at(2).0, 1_199_999_500);
        assert_eq!(at(3), (1_500_000_000, ARRIVAL_ERROR_NS));
        assert!(at(0).0 < 400_000_000, "{placed:?}");
        // The log of a kernel that came after the one whose lines these are begins as that did.
        let later = ["Linux version", "printk: console [hvc0] enabled"];
        let later: Vec<_> = [0, 900_000_000].into_iter().zip(later).collect();
        let later: Vec<_> = later.into_iter().map(|(ts, text)| record(ts, text)).collect();
        let first = [
            line(1_000_000_000, "[    0.600000] printk: console [ttyS0] enabled"),
            line(1_000_100_000, "[    0.000000] Linux version"),
            line(1_501_000_000, "[    1.000000] shown"),
        ];
        assert_eq!(printed(&later, &first, 1_000_000), [None, None]);
    }

    proptest! {
        #[test]
        fn any_log_is_placed(
            stamps in proptest::collection::vec((any::<u64>(), "[ab]{0,3}"), 0..40),
            events in proptest::collection::vec(("[ab]{0,3}", any::<Ns>(), 0..Ns::MAX), 0..40),
            start: Ns,
            end: Ns,
        ) {
            let records: Vec<_> = stamps.iter().map(|(ts, text)| record(*ts, text)).collect();
            let placed = place(&records, events, Window { start, end });
            prop_assert_eq!(placed.len(), records.len());
            prop_assert!(placed.iter().flatten().all(|(_, error)| *error >= 0));
        }
    }
}
