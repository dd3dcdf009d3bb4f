//! What a trace does not hold, and the events that would tell.

use super::View;
use crate::evidence::tree::Frame;
use vmeter_render::quantity::brief_percent;
use vmeter_trace::walk::Seen;

/// What is missing in each file of a kernel's events, or of strace's, in words.
pub fn not_recorded(view: &View<'_>) -> Vec<String> {
    let files = view.evidence.seen.iter();
    files.filter_map(|(file, seen)| Some(format!("{}: {}", view.file(*file), of(*seen)?))).collect()
}

/// Most names that are told where the one asked about is not there.
const NAMES: usize = 12;

/// The name that was asked about, if no thread has it, and names that are there instead.
pub fn nobody(view: &View<'_>) -> Option<(String, String)> {
    let comm = view.comm().filter(|_| view.own().is_none())?;
    let groups = &view.evidence.groups;
    let mut all: Vec<(u64, &str)> = Vec::new();
    for (_, node) in view.tree().roots() {
        let Frame::Life(group) = node.frame else { continue };
        if !groups.is_kernel(group) {
            all.push((node.ticks, groups.common(group)));
        }
    }
    all.sort_by(|a, b| b.cmp(a));
    let mut names: Vec<&str> = Vec::new();
    for (_, name) in all {
        if names.len() < NAMES && !names.contains(&name) {
            names.push(name);
        }
    }
    Some((comm.to_string(), names.join(", ")))
}

/// Files that hold some threads only, by what is missing between the switches of a CPU.
pub fn partial(view: &View<'_>) -> Vec<String> {
    let files = view.evidence.seen.keys();
    let gaps = files.filter_map(|file| Some((*file, view.evidence.ends.gaps(*file)?)));
    gaps.map(|(file, part)| {
        format!(
            "{}: the trace has only some threads (set_event_pid, perf without -a), so vmeter does \
                not know which other threads had a CPU or woke a waiting thread. In {} of the \
                switches, the thread that leaves the CPU is not the thread that got this CPU in \
                the previous recorded switch of this CPU",
            view.file(file),
            brief_percent(part)
        )
    })
    .collect()
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
