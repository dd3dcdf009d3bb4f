//! What a trace does not hold, and the events that would tell.

use super::View;
use vmeter_trace::walk::Seen;

/// What is missing in each file of a kernel's events, or of strace's, in words.
pub fn not_recorded(view: &View<'_>) -> Vec<String> {
    let files = view.evidence.seen.iter();
    files.filter_map(|(file, seen)| Some(format!("{}: {}", view.file(*file), of(*seen)?))).collect()
}

fn of(seen: Seen) -> Option<String> {
    let kernel = seen.switches || seen.wakes;
    if !kernel && !seen.syscalls {
        return None;
    }
    let classes = [
        (seen.syscalls, "system calls (raw_syscalls:*)"),
        (seen.switches, "switches (sched:sched_switch)"),
        (seen.wakes, "wake-ups (sched:sched_waking)"),
        (seen.works, "work items (workqueue:*)"),
        (seen.queues || !seen.works, "who queues work (workqueue:workqueue_queue_work)"),
        (seen.interrupts, "interrupts and timers (irq:*, timer:*)"),
    ];
    let missing: Vec<&str> = classes.iter().filter(|(is, _)| !is).map(|(_, what)| *what).collect();
    (!missing.is_empty()).then(|| format!("not in the trace: {}", missing.join(", ")))
}
