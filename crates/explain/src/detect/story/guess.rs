//! What the end of a way tells of what is not recorded: which call it may be, from who is waited
//! for, what the kernel's workers run and how the sleep looks; and what would tell.

use super::super::levels::{Level, Sum};
use super::super::View;
use super::{Cause, Story};
use crate::evidence::tree::Frame;
use crate::moment::Sym;
use vmeter_render::quantity::brief_percent;

/// Kernel threads by the beginning of their name, and what has threads wait for them.
const THREADS: [(&str, &str); 12] = [
    ("jbd2/", "a journal's commit, as fsync, fdatasync, sync or O_SYNC writes wait for"),
    ("xfsaild/", "the file system's log, as fsync, fdatasync or sync wait for"),
    ("rcu", "an RCU grace period, as membarrier and many configuration calls wait for"),
    ("migration/", "the CPUs' stoppers, as sched_setaffinity, membarrier or hotplug wait for"),
    ("kcompactd", "memory compaction"),
    ("kswapd", "memory reclaim"),
    ("ksoftirqd/", "soft interrupts that are too many"),
    ("iou-", "io_uring's own workers: requests that would block"),
    ("irq/", "an interrupt's thread"),
    ("loop", "a loop device"),
    ("nfs", "NFS"),
    ("vhost-", "vhost's worker: a virtio device in the host's kernel"),
];

/// Work functions, functions run on other CPUs and soft interrupts by the beginning of their
/// names, and what calls for them.
const FUNCTIONS: [(&str, &str); 19] = [
    ("blk_throtl", "a cgroup's I/O limit (blkio.throttle, io.max): requests wait until their turn"),
    ("lru_add_drain", "LRU lists drained on every CPU: move_pages, mbind, compaction (a write to compact_memory), fadvise, formerly mlock"),
    ("refresh_vm_stats", "a write to, or read of, /proc/sys/vm/stat_refresh"),
    ("wait_rcu_exp_gp", "synchronize_rcu_expedited, behind membarrier or move_pages, mbind"),
    ("sync_rcu_exp", "synchronize_rcu_expedited, behind membarrier or move_pages, mbind"),
    ("process_srcu", "synchronize_srcu: in KVM, KVM_SET_USER_MEMORY_REGION, KVM_SET_GSI_ROUTING or KVM_IRQFD"),
    ("srcu_", "synchronize_srcu: in KVM, KVM_SET_USER_MEMORY_REGION, KVM_SET_GSI_ROUTING or KVM_IRQFD"),
    ("irqfd_", "KVM_IRQFD: an irqfd is taken away"),
    ("wb_workfn", "writeback of a file system: sync, syncfs, fsync or msync"),
    ("wq_barrier_func", "flush_work, which waits until a work item is done"),
    ("flush_tlb_func", "TLB entries flushed on other CPUs: munmap, mprotect, madvise or mremap"),
    ("do_flush_tlb_all", "TLB entries flushed on other CPUs: munmap, mprotect or vfree"),
    ("ipi_mb", "membarrier"),
    ("ipi_sync_core", "membarrier"),
    ("compact", "memory compaction (a write to compact_memory, or huge pages)"),
    ("blk_mq_", "requests of a disk: fsync, write or pwrite with O_DIRECT or O_SYNC, or a read"),
    ("xs_", "a network file system's socket"),
    ("flush_to_ldisc", "output to a terminal"),
    ("RCU", "an RCU grace period: membarrier and many configuration calls wait for it"),
];

/// What brings on a function or a soft interrupt of that name.
pub(in crate::detect) fn of_function(name: &str) -> Option<&'static str> {
    FUNCTIONS.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, what)| *what)
}

/// What has threads wait for a kernel thread of that name.
pub(in crate::detect) fn of_thread(name: &str) -> Option<&'static str> {
    THREADS.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, what)| *what)
}

impl Story {
    /// What is not recorded, as far as the rest tells; weaker than what is.
    pub(super) fn guess(&self, view: &View<'_>, cause: Cause) -> Option<String> {
        let seen = view.evidence.seen(self.file(view));
        let mut known: Vec<&str> = Vec::new();
        let cause = match cause {
            // Which of the kernel's workers do what is not recorded, and they wait for a disk.
            Cause::Work if !seen.works && self.disk() => Cause::Device,
            cause => cause,
        };
        if let Some((work, _)) = self.work() {
            known.extend(of_function(view.name(work)));
        }
        // Now and then everybody waits for one of these.
        let much = |sum: &Sum| sum.ticks * 10 >= self.last().all.ticks;
        let wakers = self.last().wakers().into_iter().take(1);
        let wakers = wakers.filter(|(_, sum)| much(sum)).map(|(who, _)| who);
        for who in self.levels.iter().filter_map(|level| level.who).chain(wakers) {
            known.extend(of_thread(view.evidence.groups.name(who)));
        }
        for who in self.levels.iter().map(|level| level.who.or(self.subject_group(view))) {
            let of = |(group, _, function): &_| (Some(*group) == who).then_some(*function);
            if seen.syscalls && cause != Cause::Work {
                break;
            }
            let all = view.evidence.ledger.provoked.iter().filter(|(_, p)| p.count >= MANY);
            let others = view.evidence.ledger.on_cpus.iter().filter(|(_, p)| p.count >= MANY);
            let functions = all.chain(others).filter_map(|(key, _)| of(key));
            let mut functions: Vec<_> = functions.collect();
            functions.sort_unstable();
            known.extend(functions.into_iter().filter_map(|f| of_function(view.name(f))));
        }
        known.dedup();
        let by_cause = matches!(cause, Cause::Child | Cause::Timer);
        if let Some(known) = known.first().filter(|_| !by_cause || seen.syscalls) {
            return Some(format!("about: {known}"));
        }
        if seen.syscalls {
            return self.mmap_lock(view);
        }
        let words = match cause {
            Cause::Timer => "such sleeps are those of nanosleep, or of poll, epoll_wait, select or futex with a time-out, or of a timerfd",
            Cause::Lock => "who is let go on without having asked waits for a lock: a futex (a mutex), or one in the kernel such as mmap_lock (mmap, munmap, mprotect) or flock",
            Cause::Device => "a sleep that only a device ends (D): read or pread, write or pwrite with O_DIRECT, fsync, or a page fault on a file",
            Cause::Child => "processes or threads made each time: clone, fork or vfork, execve, and wait4 or a join (futex)",
            Cause::HandOver => "a pipe, a socket, an eventfd or a futex, written and read in turn",
            Cause::Computes if self.unasked(view) => "who is let go on by one that it did not wake waits for a lock that this one holds (a futex, or one of the kernel), or for an answer of one that has more to do and never sleeps",
            Cause::Faults | Cause::NoCpu | Cause::Computes | Cause::Asleep => return None,
            Cause::Work => "a call that has the kernel's workers do something and waits for it",
            Cause::Call | Cause::Stopped | Cause::InCall | Cause::Network | Cause::Held => return None,
        };
        Some(format!("about: {words}"))
    }

    /// Whom it waits for at the end has hardly ever been woken by it.
    fn unasked(&self, view: &View<'_>) -> bool {
        let (Some(via), Some(who)) = (self.levels.iter().rev().nth(1), self.last().who) else {
            return false;
        };
        let wakers = via.wakers();
        let sum = wakers.iter().find(|(waker, _)| *waker == who).map_or(0, |(_, sum)| sum.count);
        let waiting = via.who.or(self.subject_group(view));
        waiting.is_some_and(|waiting| view.evidence.asked(waiting, who) * 2 < sum)
    }

    /// Somebody on the way waits for a disk.
    fn disk(&self) -> bool {
        let deep = |level: &Level| level.ticks(|_, s| matches!(s, Frame::Deep | Frame::Irq(_)));
        self.levels.iter().any(|level| deep(level) * 8 >= level.all.ticks)
    }

    /// Calls that change mappings take mmap_lock: who else does so meanwhile holds it.
    fn mmap_lock(&self, view: &View<'_>) -> Option<String> {
        let (own, call, _) = self.call(view)?;
        let own = own.or(self.subject_group(view));
        let changes = |call: Sym| MAPPINGS.contains(&view.name(call));
        let calls = view.evidence.ledger.calls.iter();
        let others = calls.filter(|((who, call), _)| Some(*who) != own && changes(*call));
        let ((who, what), most) = others.max_by_key(|(key, calls)| (calls.ticks, **key))?;
        let much = view.share(most.ticks) >= 0.2;
        (changes(call) && much).then(|| {
            let (who, what) = (view.threads(*who), view.name(*what));
            format!("about: both need mmap_lock, if they are of one process: {who} is in {what} {} of the time", brief_percent(view.share(most.ticks)))
        })
    }

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

/// Calls that change a process's mappings.
const MAPPINGS: [&str; 6] = ["mmap", "munmap", "mprotect", "madvise", "mremap", "brk"];
/// Functions run that are a pattern.
const MANY: u64 = 8;
