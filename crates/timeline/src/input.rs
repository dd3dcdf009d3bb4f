//! Events made safe to reason about: in order, inside the run, on one clock.

use vmeter_model::{Event, Ns, Outcome, RunRecord, What};

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
    pub what: &'a What,
}

/// A run's events, and what was left out of them.
#[derive(Debug, Default)]
pub(crate) struct Input<'a> {
    /// End of the run, ns.
    pub total: Ns,
    /// True if time is the guest's, and 0 is its reset vector.
    pub virtual_time: bool,
    /// Events inside the run, in order of time.
    pub seen: Vec<Seen<'a>>,
    /// What was left out, in words.
    pub warnings: Vec<String>,
}

/// An event this far outside the run, over its own error, is left out as misplaced.
const SLACK_NS: Ns = 1_000_000;

/// Brings events and run onto one clock from 0 to the end of the run. That of an
/// icount run is the guest's, unless nothing is known of it (nobody watched).
pub(crate) fn prepare<'a>(events: &'a [Event], run: &RunRecord) -> Input<'a> {
    if run.icount && events.iter().any(|e| by_guest(&e.what)) {
        return prepare_virtual(events, run.outcome == Outcome::Done);
    }
    let mut input = Input { total: run.total_ns.max(0), ..Input::default() };
    let (mut before, mut after) = (0usize, 0usize);
    for event in events {
        let error = event.error_ns.clamp(0, input.total);
        let slack = error.saturating_add(SLACK_NS);
        if event.at.saturating_add(slack) < 0 {
            before += 1;
        } else if event.at.saturating_sub(slack) > input.total {
            after += 1;
        } else {
            let at = event.at.clamp(0, input.total);
            input.seen.push(seen(event, at, error));
        }
    }
    input.seen.sort_by_key(|s| s.at);
    input.warnings.extend((before > 0).then(|| {
        format!("{before} events are stamped before the exec of the VMM and were left out; a clock is misaligned")
    }));
    // A run that ends at its ready point is followed by events of the same boot.
    let ended_early = events.iter().any(|e| matches!(e.what, What::Ready | What::VmmKilled));
    input.warnings.extend((after > 0 && !ended_early).then(|| {
        format!("{after} events are stamped after the end of the run and were left out; a clock is misaligned")
    }));
    input
}

fn seen(event: &Event, at: Ns, error: Ns) -> Seen<'_> {
    Seen { at, error, source: &event.source, insns: event.insns, what: &event.what }
}

/// An icount run: the guest's virtual time from its reset vector to the last
/// thing it did. Whatever the host stamped is left out, so that identical
/// recordings of the guest make identical timelines. A guest that reached its point
/// (`done`) and was then killed went on until the host got to it: its own word that
/// it is ready is the end.
fn prepare_virtual(events: &[Event], done: bool) -> Input<'_> {
    let guests: std::collections::BTreeSet<&str> =
        events.iter().filter(|e| by_guest(&e.what)).map(|e| e.source.as_str()).collect();
    let of_guest = |e: &&Event| {
        let open = matches!(
            e.what,
            What::Ready | What::ShutdownStart | What::PowerOff | What::Note { .. }
        );
        by_guest(&e.what) || open && guests.contains(e.source.as_str())
    };
    let zero = events
        .iter()
        .filter(|e| matches!(&e.what, What::Reached { symbol } if symbol == RESET_VECTOR))
        .map(|e| e.at)
        .min()
        .unwrap_or(0);
    let ready = |e: &&Event| e.what == What::Ready && guests.contains(e.source.as_str());
    let killed = done && events.iter().any(|e| e.what == What::VmmKilled);
    let ready = events.iter().filter(ready).map(|e| e.at).min().filter(|_| killed);
    let mut input = Input { virtual_time: true, ..Input::default() };
    for event in events.iter().filter(of_guest).filter(|e| ready.is_none_or(|at| e.at <= at)) {
        let at = event.at.saturating_sub(zero).max(0);
        input.total = input.total.max(at);
        input.seen.push(seen(event, at, event.error_ns.max(0)));
    }
    input.seen.sort_by_key(|s| s.at);
    input
}

/// Name of the address where a vCPU starts.
pub(crate) const RESET_VECTOR: &str = "reset-vector";

/// True for what only the guest itself, or a count of its instructions, can stamp.
pub(crate) fn by_guest(what: &What) -> bool {
    matches!(
        what,
        What::KernelLine { .. }
            | What::Reached { .. }
            | What::InitcallStart { .. }
            | What::InitcallEnd { .. }
            | What::InitcallLevel { .. }
            | What::ModuleLoad { .. }
            | What::StepStart { .. }
            | What::StepEnd { .. }
            | What::ProcessExec { .. }
            | What::ProcessExit { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: Ns, source: &str, what: What) -> Event {
        Event { at, error_ns: 10, source: source.into(), insns: None, what }
    }

    #[test]
    fn virtual_time_starts_at_reset_and_ignores_the_host() {
        let reached = |s: &str| What::Reached { symbol: s.into() };
        let events = [
            event(900, "process", What::VmmEntry),
            event(100, "tcg", reached(RESET_VECTOR)),
            event(350, "tcg", reached("start_kernel")),
            event(400, "tcg", What::PowerOff),
            event(990, "console", What::Ready),
        ];
        let input = prepare_virtual(&events, true);
        let stamps: Vec<Ns> = input.seen.iter().map(|s| s.at).collect();
        assert_eq!((stamps, input.total), (vec![0, 250, 300], 300));
    }

    #[test]
    fn a_guest_that_is_killed_at_its_ready_point_ends_there() {
        let reached = |s: &str| What::Reached { symbol: s.into() };
        let events = [
            event(0, "tcg", reached(RESET_VECTOR)),
            event(500, "tcg", What::Ready),
            event(700, "tcg", reached("kernel_power_off")),
            event(9, "process", What::VmmKilled),
        ];
        assert_eq!(prepare_virtual(&events, true).total, 500);
        assert_eq!(prepare_virtual(&events, false).total, 700, "it hung after that");
        assert_eq!(prepare_virtual(&events[..3], true).total, 700, "it ended by itself");
    }
}
