//! The states that a committing thread goes through, and what it waits for in each.

use super::marks::{Ioctl, Mark, MarkKind, Marks};
use std::collections::HashMap;
use std::ops::Range;

/// What a moment of a commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// On CPU: the table's copy, the irqfds' update.
    Work,
    /// Asleep; SRCU's work item is queued and no kworker has begun it.
    KworkerQueued,
    /// Asleep; a kworker has begun it and has no CPU.
    KworkerRunnable,
    /// Asleep; the kworker is at work.
    KworkerRuns,
    /// Asleep; nothing is queued: a timer, or readers.
    GracePeriod,
    /// Woken, not yet on a CPU.
    Woken,
    /// Woken on an idle CPU, up to its next sign of life: not every kernel records the switch
    /// from the idle thread, so waking up and going on can't be told apart.
    Resumed,
    /// It could go on, and another thread has its CPU.
    Preempted,
}

/// All of them.
pub(super) const PARTS: [Part; 8] = [
    Part::Work,
    Part::KworkerQueued,
    Part::KworkerRunnable,
    Part::KworkerRuns,
    Part::GracePeriod,
    Part::Woken,
    Part::Resumed,
    Part::Preempted,
];

impl Part {
    /// Its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Part::Work => "table copy and irqfds, on CPU",
            Part::KworkerQueued => "SRCU: waiting for a kworker",
            Part::KworkerRunnable => "SRCU: its kworker has no CPU",
            Part::KworkerRuns => "SRCU: the kworker at work",
            Part::GracePeriod => "SRCU: readers or a timer",
            Part::Woken => "woken, waiting for a CPU",
            Part::Resumed => "woken, starts on an idle CPU",
            Part::Preempted => "preempted",
        }
    }
}

/// What happened in a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The ioctl began.
    Enter,
    /// A thread queued a work item's function.
    Queue(i32, u32),
    /// The caller went to sleep.
    Sleep,
    /// The caller lost its CPU to another thread.
    Preempted(i32),
    /// A kworker began a function; the thread that its CPU ran before, if it just got there.
    Start(i32, u32, Option<i32>),
    /// A thread woke the caller.
    Wake(i32),
    /// The caller runs again; the thread that its CPU ran before.
    Run(i32),
    /// The ioctl returned.
    Exit,
}

impl Step {
    /// In words.
    pub(super) fn describe(self, marks: &Marks) -> String {
        let thread = |tid: i32| match (tid, marks.names.get(&tid)) {
            (0, _) => "an idle CPU".to_owned(),
            (_, Some(name)) => format!("{name} ({tid})"),
            (_, None) => format!("thread {tid}"),
        };
        let function = |name: u32| marks.functions.get(&name).map_or("a work item", String::as_str);
        match self {
            Step::Enter => "ioctl(KVM_SET_GSI_ROUTING) begins".into(),
            Step::Queue(by, f) => format!("{} queues {}", thread(by), function(f)),
            Step::Sleep => "committer sleeps until the grace period ends".into(),
            Step::Preempted(by) => format!("committer is preempted by {}", thread(by)),
            Step::Start(by, f, None | Some(0)) => {
                format!("{} begins {}", thread(by), function(f))
            }
            Step::Start(by, f, Some(before)) => {
                let (by, function, before) = (thread(by), function(f), thread(before));
                format!("{by} begins {function} (until then: {before})")
            }
            Step::Wake(by) => format!("{} wakes committer", thread(by)),
            Step::Run(0) => "committer runs".into(),
            Step::Run(before) => {
                format!("committer runs (until then: {})", thread(before))
            }
            Step::Exit => "ioctl returns".into(),
        }
    }
}

/// One ioctl, taken apart.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    command: Ioctl,
    /// When it began, ns.
    pub(super) from: u64,
    to: u64,
    parts: [u64; PARTS.len()],
    /// What happened, with the time, ns.
    pub(super) steps: Vec<(u64, Step)>,
    /// Who had the CPU before the kworker that this commit waited for (not the idle thread).
    pub(super) kworker_followed: Option<i32>,
    /// Who had the caller's CPU before it ran again, once it had slept.
    pub(super) caller_followed: Option<i32>,
    /// Who took the caller's CPU last while it could have gone on.
    pub(super) preempted_by: Option<i32>,
}

impl Call {
    /// True for `KVM_SET_GSI_ROUTING`.
    pub(super) fn is_commit(&self) -> bool {
        self.command == Ioctl::Commit
    }

    /// True for `KVM_IRQFD`.
    pub(super) fn is_irqfd(&self) -> bool {
        self.command == Ioctl::Irqfd
    }

    /// How long it took, ns.
    pub(super) fn length(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// How much of it a part is, ns.
    pub(super) fn part(&self, part: Part) -> u64 {
        self.parts[part as usize]
    }
}

/// Where the caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Running,
    Preempted,
    Asleep,
    Woken,
}

/// A work item of SRCU's that the commit may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Queued,
    /// By this kworker.
    Begun(i32),
}

/// Where a kworker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worker {
    Runs,
    Runnable,
    Sleeps,
}

/// Steps kept of a call: one that is preempted all the time has no end of them.
const STEPS: usize = 256;

struct Dissector {
    tid: i32,
    caller: Caller,
    call: Option<Call>,
    since: u64,
    /// When the caller was woken last.
    woken: u64,
    items: HashMap<u64, Item>,
    workers: HashMap<i32, Worker>,
    /// What a kworker's CPU ran before it.
    followed: HashMap<i32, i32>,
}

/// The thread's ioctls inside the window, taken apart.
pub(super) fn dissect(marks: &[Mark], tid: i32, window: Range<u64>) -> Vec<Call> {
    let mut dissector = Dissector {
        tid,
        caller: Caller::Running,
        call: None,
        since: 0,
        woken: 0,
        items: HashMap::new(),
        workers: HashMap::new(),
        followed: HashMap::new(),
    };
    let inside = |mark: &&Mark| window.contains(&mark.at);
    marks.iter().filter(inside).filter_map(|mark| dissector.mark(mark)).collect()
}

impl Dissector {
    /// Takes an event; gives the call that it ends.
    fn mark(&mut self, mark: &Mark) -> Option<Call> {
        self.account(mark.at);
        if mark.tid == self.tid {
            self.lives(mark.at);
        }
        match mark.what {
            MarkKind::Enter(command) if mark.tid == self.tid => {
                self.caller = Caller::Running;
                let call = Call { command, from: mark.at, to: mark.at, ..Call::default() };
                self.call = Some(call);
                self.step(mark.at, Step::Enter);
            }
            MarkKind::Exit if mark.tid == self.tid => {
                self.step(mark.at, Step::Exit);
                let mut call = self.call.take()?;
                call.to = mark.at;
                return Some(call);
            }
            MarkKind::Enter(_) | MarkKind::Exit => {}
            MarkKind::Switch { from, runnable, to } => self.switch(mark.at, from, runnable, to),
            MarkKind::Waking(tid) if tid == self.tid && self.caller == Caller::Asleep => {
                self.caller = Caller::Woken;
                self.woken = mark.at;
                self.step(mark.at, Step::Wake(mark.tid));
            }
            MarkKind::Waking(tid) => {
                if let Some(worker @ Worker::Sleeps) = self.workers.get_mut(&tid) {
                    *worker = Worker::Runnable;
                }
            }
            MarkKind::Queue(work, function) => {
                self.items.insert(work, Item::Queued);
                self.step(mark.at, Step::Queue(mark.tid, function));
            }
            MarkKind::Start(work, function) => {
                self.items.insert(work, Item::Begun(mark.tid));
                self.workers.insert(mark.tid, Worker::Runs);
                let before = self.followed.remove(&mark.tid);
                // What the caller left to sleep is not in the kworker's way.
                let other = before.filter(|tid| *tid != 0 && *tid != self.tid);
                if let (Some(call), Some(tid)) = (&mut self.call, other) {
                    call.kworker_followed = Some(tid);
                }
                self.step(mark.at, Step::Start(mark.tid, function, before));
            }
            // One that was queued again meanwhile is to begin again.
            MarkKind::End(work) => {
                if self.items.get(&work) == Some(&Item::Begun(mark.tid)) {
                    self.items.remove(&work);
                }
            }
        }
        None
    }

    /// The caller does something, so it runs, whether its switch was recorded or not.
    fn lives(&mut self, at: u64) {
        if let (Some(call), Caller::Woken) = (&mut self.call, self.caller) {
            let unseen = at.saturating_sub(self.woken.max(call.from));
            let woken = &mut call.parts[Part::Woken as usize];
            let moved = unseen.min(*woken);
            *woken -= moved;
            call.parts[Part::Resumed as usize] += moved;
        }
        self.caller = Caller::Running;
    }

    fn switch(&mut self, at: u64, from: i32, runnable: bool, to: i32) {
        if from == self.tid {
            self.caller = if runnable { Caller::Preempted } else { Caller::Asleep };
            if let (Some(call), true) = (&mut self.call, runnable) {
                call.preempted_by = Some(to);
            }
            self.step(at, if runnable { Step::Preempted(to) } else { Step::Sleep });
        } else if to == self.tid {
            if let (Some(call), Caller::Woken) = (&mut self.call, self.caller) {
                call.caller_followed = Some(from);
            }
            self.caller = Caller::Running;
            self.step(at, Step::Run(from));
        }
        if let Some(worker) = self.workers.get_mut(&from) {
            *worker = if runnable { Worker::Runnable } else { Worker::Sleeps };
        }
        if to != self.tid && to != 0 {
            self.followed.insert(to, from);
            if let Some(worker) = self.workers.get_mut(&to) {
                *worker = Worker::Runs;
            }
        }
    }

    fn step(&mut self, at: u64, step: Step) {
        if let Some(call) = self.call.as_mut().filter(|call| call.steps.len() < STEPS) {
            call.steps.push((at, step));
        }
    }

    /// Books the time since the last event.
    fn account(&mut self, at: u64) {
        let part = self.part();
        if let Some(call) = &mut self.call {
            call.parts[part as usize] += at.saturating_sub(self.since.max(call.from));
        }
        self.since = at;
    }

    fn part(&self) -> Part {
        match self.caller {
            Caller::Running => Part::Work,
            Caller::Preempted => Part::Preempted,
            Caller::Woken => Part::Woken,
            Caller::Asleep => self.awaited(),
        }
    }

    /// What is in the way of a caller that sleeps: what is under way counts before what waits.
    fn awaited(&self) -> Part {
        let state = |item: &Item| match item {
            Item::Queued => Part::KworkerQueued,
            Item::Begun(tid) => match self.workers.get(tid) {
                Some(Worker::Runs) => Part::KworkerRuns,
                Some(Worker::Runnable) => Part::KworkerRunnable,
                Some(Worker::Sleeps) | None => Part::GracePeriod,
            },
        };
        let states: Vec<Part> = self.items.values().map(state).collect();
        let order = [Part::KworkerRuns, Part::KworkerRunnable, Part::KworkerQueued];
        order.into_iter().find(|part| states.contains(part)).unwrap_or(Part::GracePeriod)
    }
}
