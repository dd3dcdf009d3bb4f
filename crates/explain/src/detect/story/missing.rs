//! What would have to be recorded to know more of a way.

use super::super::View;
use super::{Cause, Story};
use crate::evidence::tree::Frame;

impl Story {
    /// The last wait on the way is in a call that waits for locks of user space, or for files'.
    fn by_futex(&self, view: &View<'_>) -> bool {
        let via = self.levels.iter().rev().nth(1).unwrap_or(self.last());
        let call = via.most_in(|s| matches!(s, Frame::Waker(_) | Frame::Asleep));
        let call = call.and_then(|(call, _)| call).map_or("", |call| view.frame_name(call));
        ["futex", "sem", "flock", "fcntl"].iter().any(|begin| call.starts_with(begin))
    }

    /// What would have to be recorded to know more.
    pub(super) fn unknown(&self, view: &View<'_>, cause: Cause) -> Vec<String> {
        let seen = view.evidence.seen(self.file(view));
        let groups = &view.evidence.groups;
        let kernel = self.levels.iter().any(|l| l.who.is_some_and(|who| groups.is_kernel(who)));
        let mut all = Vec::new();
        let mut say = |unknown: bool, what: &str, event: &str| {
            if unknown {
                all.push(format!("{what} (record {event})"));
            }
        };
        say(!seen.syscalls, "which call", "raw_syscalls:*");
        say(!seen.wakes && seen.switches, "who ends the sleeps", "sched:sched_waking");
        say(!seen.switches, "who was waited for", "sched:sched_switch, sched:sched_waking");
        let kernel_lock = cause == Cause::Lock && !seen.locks && !self.by_futex(view);
        say(kernel_lock, "which lock", "lock:contention_begin, lock:contention_end");
        let works = kernel || cause == Cause::Work;
        say(works && !seen.works, "what the kernel's workers run", "workqueue:*");
        let queues = works && seen.works && !seen.queues;
        say(queues, "who queued it, but for wake-ups", "workqueue:workqueue_queue_work");
        let sleeps =
            self.last().ticks(|_, s| matches!(s, Frame::Interrupt | Frame::Deep | Frame::Asleep));
        let sleeps = sleeps * 4 >= self.last().all.ticks;
        say(sleeps && !seen.interrupts, "which device or timer", "irq:*, timer:*");
        all
    }
}
