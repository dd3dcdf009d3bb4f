//! Events made safe to reason about: in order, inside the run, on one clock.

use crate::console::split_stamp;
use vmeter_model::{Event, EventKind, Moment, Ns, Outcome, RunRecord};

/// One event as the rules see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    /// ns after exec, inside the run.
    pub at: Ns,
    /// How far off `at` can be, ns; never negative.
    pub error: Ns,
    /// Who saw it.
    pub source: &'a str,
    /// Guest instructions executed by then, where counted.
    pub insns: Option<u64>,
    /// What it was.
    pub what: &'a EventKind,
}

/// A run's events, and what was left out of them.
#[derive(Debug, Default)]
pub(crate) struct Input<'a> {
    /// End of the run, ns.
    pub total: Ns,
    /// True if time is the guest's, and 0 is its reset vector.
    pub virtual_time: bool,
    /// Where a run in virtual time was cut, in the host's time, ns after exec: what the
    /// host stamped later is no part of it.
    pub host_end: Option<Ns>,
    /// Events inside the run, in order of time.
    pub seen: Vec<Seen<'a>>,
    /// What was left out, in words.
    pub warnings: Vec<String>,
}

/// An event this far outside the run, over its own error, is left out as misplaced.
const SLACK_NS: Ns = 1_000_000;
/// Times and errors are cut here, at 73 years: a sum of two, and of three, is a time.
const LONGEST_NS: Ns = 1 << 61;

/// Brings events and run onto one clock from 0 to the end of the run. That of an
/// icount run is the guest's, unless nothing is known of it (nobody watched).
pub(crate) fn prepare<'a>(events: &'a [Event], run: &RunRecord) -> Input<'a> {
    if run.icount && events.iter().any(|e| by_guest(&e.what)) {
        let end = End::of(events, run);
        let host_end = run.moment(&Moment::Ready).filter(|_| end.is_cut());
        return Input { host_end, ..prepare_virtual(events, end) };
    }
    let mut input = Input { total: run.total_ns.clamp(0, LONGEST_NS), ..Input::default() };
    let (mut before, mut after) = (0usize, 0usize);
    for event in events {
        let error = event.error_ns.clamp(0, input.total);
        let slack = error.saturating_add(SLACK_NS);
        // What arrived while vmeter looked into the VMM was said before.
        let latest = input.total.saturating_add(run.looked_ns.max(0));
        if event.at.saturating_add(slack) < 0 {
            before += 1;
        } else if event.at.saturating_sub(slack) > latest && event.what != EventKind::VmmKilled {
            after += 1;
        } else {
            // The signal that ends a run at its ready point is a little later than that.
            let at = event.at.clamp(0, input.total);
            input.seen.push(seen(event, at, error));
        }
    }
    input.seen.sort_by_key(|s| s.at);
    input.warnings.extend((before > 0).then(|| {
        format!(
            "vmeter left out {before} events that have times before the exec of the VMM; the \
            clock of a source is misaligned"
        )
    }));
    // A run that ends at its ready point is followed by events of the same boot.
    let is = |moment: Moment| run.moment(&moment).is_some();
    // A VMM that was let go of goes on, and so does its log.
    let ran_on = run.runs_on
        || is(Moment::VmmExec) && !is(Moment::VmmExiting) && !is(Moment::WrapperResumed);
    let ended_early = ran_on
        || run.looked_at().is_some()
        || events.iter().any(|e| matches!(e.what, EventKind::Ready | EventKind::VmmKilled));
    input.warnings.extend((after > 0 && !ended_early).then(|| {
        format!(
            "vmeter left out {after} events that have times after the end of the run; the clock \
            of a source is misaligned"
        )
    }));
    input
}

fn seen(event: &Event, at: Ns, error: Ns) -> Seen<'_> {
    Seen { at, error, source: &event.source, insns: event.insns, what: &event.what }
}

/// Where an icount run ends in the guest's own time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End<'a> {
    /// With the last thing that the guest did.
    Last,
    /// Where the guest itself says that it is ready.
    Ready,
    /// Where the guest's kernel logged the line that the host waited for.
    KernelLine(&'a str),
    /// At a line on the console that only the host stamped.
    HostsLine(&'a str),
}

/// What vmeter's own init prints as it writes its marker into the guest's trace.
const OWN_READY_LINE: &str = "vmeter: ready";

impl<'a> End<'a> {
    /// A guest that reached its point went on until the host got to end it. That is no
    /// part of the run, and not the same in every run.
    fn of(events: &'a [Event], run: &RunRecord) -> Self {
        let at_ready = run.moment(&Moment::Ready).filter(|at| *at == run.total_ns);
        // A played run has its ready point from the script alone.
        let killed = events.iter().any(|e| e.what == EventKind::VmmKilled);
        if run.outcome != Outcome::Done || (at_ready.is_none() && !killed) {
            return End::Last;
        }
        let line = events.iter().find_map(|e| match &e.what {
            EventKind::ReadyLine { text } => Some(split_stamp(text).1),
            _ => None,
        });
        match line {
            Some(line) if events.iter().any(|e| is_logged(&e.what, line)) => End::KernelLine(line),
            Some(line) if !line.contains(OWN_READY_LINE) => End::HostsLine(line),
            _ => End::Ready,
        }
    }

    /// True where the guest went on after it.
    fn is_cut(self) -> bool {
        matches!(self, End::Ready | End::KernelLine(_))
    }

    /// True for what only the end of the run can be.
    fn is(self, event: &Event, of_guest: bool) -> bool {
        match self {
            End::Last | End::HostsLine(_) => false,
            End::Ready => of_guest && event.what == EventKind::Ready,
            End::KernelLine(line) => is_logged(&event.what, line),
        }
    }
}

/// True for the record of the kernel's log that a line of the console shows, perhaps
/// without its last words.
fn is_logged(what: &EventKind, line: &str) -> bool {
    matches!(what, EventKind::KernelLine { text, .. } if !line.is_empty() && text.starts_with(line))
}

/// An icount run: the guest's virtual time from its reset vector to its end. Whatever
/// the host stamped is left out, so that identical recordings of the guest make
/// identical timelines.
fn prepare_virtual<'a>(events: &'a [Event], end: End<'_>) -> Input<'a> {
    let guests: std::collections::BTreeSet<&str> =
        events.iter().filter(|e| by_guest(&e.what)).map(|e| e.source.as_str()).collect();
    let of_guest = |e: &&Event| {
        by_guest(&e.what) || said_by_guest(&e.what) && guests.contains(e.source.as_str())
    };
    let zero = events
        .iter()
        .filter(|e| matches!(&e.what, EventKind::Reached { symbol } if symbol == RESET_VECTOR))
        .map(|e| e.at)
        .min()
        .unwrap_or(0);
    let is_end = |e: &&Event| end.is(e, guests.contains(e.source.as_str()));
    let ready = events.iter().filter(is_end).map(|e| e.at).min();
    let mut input = Input { virtual_time: true, ..Input::default() };
    for event in events.iter().filter(of_guest).filter(|e| ready.is_none_or(|at| e.at <= at)) {
        let at = event.at.saturating_sub(zero).clamp(0, LONGEST_NS);
        input.total = input.total.max(at);
        input.seen.push(seen(event, at, event.error_ns.clamp(0, LONGEST_NS)));
    }
    input.seen.sort_by_key(|s| s.at);
    if let End::HostsLine(line) = end {
        input.warnings.push(format!(
            "the run ended at the line {line:?}, which has only a time stamp of the host. In the \
             guest's virtual time the run therefore lasts until the last event that vmeter saw. \
             As the ready point, use a line of the kernel's log (echo … > /dev/kmsg): such a \
             line has a virtual time stamp"
        ));
    }
    input
}

/// Name of the address where a vCPU starts.
pub(crate) const RESET_VECTOR: &str = "reset-vector";

/// True for what only the guest itself, or a count of its instructions, can stamp.
pub(crate) fn by_guest(what: &EventKind) -> bool {
    match what {
        EventKind::KernelLine { .. }
        | EventKind::Reached { .. }
        | EventKind::InitcallStart { .. }
        | EventKind::InitcallEnd { .. }
        | EventKind::InitcallLevel { .. }
        | EventKind::ModuleLoad { .. }
        | EventKind::StepStart { .. }
        | EventKind::StepEnd { .. }
        | EventKind::ProcessExec { .. }
        | EventKind::ProcessExit { .. }
        | EventKind::ProcessFork { .. }
        | EventKind::ProcessArguments { .. }
        | EventKind::ProcessWait { .. }
        | EventKind::ProcessReap { .. }
        | EventKind::ProcessGroup { .. }
        | EventKind::UnitFile { .. } => true,
        EventKind::VmmExec
        | EventKind::WrapperExec
        | EventKind::VmmEntry
        | EventKind::VmmMain
        | EventKind::VmmWaits
        | EventKind::SnapshotPart { .. }
        | EventKind::Launched { .. }
        | EventKind::RunState { .. }
        | EventKind::VmmExiting
        | EventKind::WrapperResumed
        | EventKind::VmmExit
        | EventKind::VmmKilled
        | EventKind::FirmwareLine { .. }
        | EventKind::ConsoleLine { .. }
        | EventKind::ReadyLine { .. }
        | EventKind::Ready
        | EventKind::ShutdownStart
        | EventKind::PowerOff
        | EventKind::PciConfig { .. }
        | EventKind::FwCfg { .. }
        | EventKind::DiskRead { .. }
        | EventKind::VmmRead { .. }
        | EventKind::MachineReset
        | EventKind::VirtioReset
        | EventKind::Stalled { .. }
        | EventKind::ScreenCleared
        | EventKind::Note { .. }
        | EventKind::Count { .. } => false,
    }
}

/// True for what guest and host can say: it depends on the source whose word it is.
fn said_by_guest(what: &EventKind) -> bool {
    matches!(
        what,
        EventKind::Ready | EventKind::ShutdownStart | EventKind::PowerOff | EventKind::Note { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: Ns, source: &str, what: EventKind) -> Event {
        Event { at, error_ns: 10, source: source.into(), insns: None, what }
    }

    #[test]
    fn virtual_time_starts_at_reset_and_ignores_the_host() {
        let reached = |s: &str| EventKind::Reached { symbol: s.into() };
        let events = [
            event(900, "process", EventKind::VmmEntry),
            event(100, "tcg", reached(RESET_VECTOR)),
            event(350, "tcg", reached("start_kernel")),
            event(400, "tcg", EventKind::PowerOff),
            event(990, "console", EventKind::Ready),
        ];
        let input = prepare_virtual(&events, End::Last);
        let stamps: Vec<Ns> = input.seen.iter().map(|s| s.at).collect();
        assert_eq!((stamps, input.total), (vec![0, 250, 300], 300));
    }

    #[test]
    fn what_arrives_while_the_vmm_is_looked_into_was_said_before() {
        let line = |text: &str| EventKind::FirmwareLine { text: text.into() };
        let events = [event(5, "c", line("on time")), event(2_000_000_900, "c", line("late"))];
        let run = RunRecord { total_ns: 100, looked_ns: 2_000_000_000, ..RunRecord::default() };
        let input = prepare(&events, &run);
        let stamps: Vec<Ns> = input.seen.iter().map(|s| s.at).collect();
        assert_eq!((stamps, input.warnings.len()), (vec![5, 100], 0));
        let unseen = RunRecord { looked_ns: 0, ..run };
        assert_eq!(prepare(&events, &unseen).seen.len(), 1);
    }

    fn run(outcome: Outcome, total_ns: Ns, ready: Option<Ns>) -> RunRecord {
        RunRecord {
            total_ns,
            outcome,
            moments: ready.map(|at| (at, Moment::Ready)).into_iter().collect(),
            icount: true,
            ..RunRecord::default()
        }
    }

    #[test]
    fn a_run_that_ends_at_its_ready_point_ends_there_in_virtual_time() {
        let reached = |s: &str| EventKind::Reached { symbol: s.into() };
        let line = |text: &str| EventKind::ReadyLine { text: text.into() };
        let mut events = vec![
            event(0, "tcg", reached(RESET_VECTOR)),
            event(
                300,
                "printk",
                EventKind::KernelLine {
                    text: "Run /init as init process".into(),
                    by_program: false,
                },
            ),
            event(500, "tcg", EventKind::Ready),
            event(700, "tcg", reached("kernel_power_off")),
            event(90, "console", line("vmeter: ready")),
        ];
        let total = |events: &[Event], run: &RunRecord| {
            let input = prepare(events, run);
            (input.total, input.warnings.len())
        };
        let at_ready = run(Outcome::Done, 90, Some(90));
        assert_eq!(total(&events, &at_ready), (500, 0), "its own word");
        let hung = Outcome::TimedOut { last: String::new() };
        assert_eq!(total(&events, &run(hung, 95, Some(90))), (700, 0), "it hung after that");
        let by_itself = run(Outcome::Done, 99, None);
        assert_eq!(total(&events, &by_itself), (700, 0), "it ended by itself");
        events[4].what = line("[    0.000000] Run /init as init");
        assert_eq!(total(&events, &at_ready), (300, 0), "the kernel's line");
        events[4].what = line("host login: ");
        assert_eq!(total(&events, &at_ready), (700, 1), "nobody knows when, and it says so");
        events[4] = event(9, "process", EventKind::VmmKilled);
        assert_eq!(total(&events, &by_itself), (500, 0), "played from a script");
    }
}
