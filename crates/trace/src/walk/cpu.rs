//! What CPUs are in, and where events are missing.
//!
//! Lost events are marked where they are missing. Overwritten ones are missing at the trace's
//! beginning, of each CPU until its own first event: a thread that went to such a CPU and came
//! back leaves no trace but a begin and an end of two intervals that look like those of one.

use super::interval::{At, Open, Took};
use crate::event::{self, NO_CPU};
use crate::ops::NameId;

const MAX_CPUS: usize = 1 << 14;
/// Interrupts nest at most this deep in what is timed.
const MAX_NESTED: usize = 4;

/// What came to a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// A device's, by number and name.
    Irq(NameId),
    /// Another CPU's.
    Ipi(NameId),
    /// The local timer's.
    Timer(NameId),
    /// Another of the CPU's own.
    Local(NameId),
}

impl Interrupt {
    /// Its name.
    pub fn name(self) -> NameId {
        match self {
            Interrupt::Irq(name)
            | Interrupt::Ipi(name)
            | Interrupt::Timer(name)
            | Interrupt::Local(name) => name,
        }
    }
}

/// Who makes a thread runnable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waker {
    /// Not known.
    #[default]
    Unknown,
    /// A thread, by its id.
    Thread(i32),
    /// A timer's handler.
    Timer,
    /// A timer that calls this function.
    Expired(NameId),
    /// A device's interrupt, or the soft interrupt that goes on with its work.
    Irq(NameId),
    /// An interrupt; which one is not recorded.
    Interrupt,
}

/// What a CPU is in, as far as that tells who wakes and queues.
#[derive(Debug, Clone, Copy, Default)]
struct Context {
    timer: bool,
    /// What the timer calls.
    function: Option<NameId>,
    /// A request of the block layer is done, and nothing but wake-ups came since.
    block: Option<NameId>,
    irq: Option<NameId>,
    softirq: Option<NameId>,
    /// When that began.
    since: u64,
    ipi: bool,
    /// A timer's soft interrupt has run, and nothing but soft interrupts since.
    after_timer: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    interrupts: [Option<(Interrupt, u64)>; MAX_NESTED],
    depth: usize,
    context: Context,
    /// Events were lost here last at this stamp.
    lost_at: Option<u64>,
    /// First event.
    first: Option<u64>,
}

/// The CPUs of a trace.
#[derive(Debug, Default)]
pub(super) struct Cpus {
    list: Vec<Cpu>,
    /// Events of a CPU that is not known were lost last at this stamp.
    lost_somewhere: Option<u64>,
    /// The trace's oldest events were overwritten.
    pub(super) overwritten: bool,
    /// Events are missing: overwritten, or lost until now.
    pub(super) gaps: bool,
}

impl Cpus {
    fn get(&mut self, cpu: u32) -> Option<&mut Cpu> {
        let cpu = cpu as usize;
        if cpu >= MAX_CPUS {
            return None;
        }
        if self.list.len() <= cpu {
            self.list.resize(cpu + 1, Cpu::default());
        }
        Some(&mut self.list[cpu])
    }

    /// Notes a CPU's first event.
    pub(super) fn begins(&mut self, at: &At) {
        self.gaps = true;
        if let Some(cpu) = self.get(at.cpu) {
            cpu.first.get_or_insert(at.ts);
        }
    }

    /// From when on all CPUs are recorded.
    pub(super) fn complete(&self) -> u64 {
        self.list.iter().filter_map(|cpu| cpu.first).max().unwrap_or(0)
    }

    /// Events are lost; gives the interrupts that the CPU was in.
    pub(super) fn loses(&mut self, at: &At) -> impl Iterator<Item = Interrupt> {
        self.gaps = true;
        if at.cpu == NO_CPU {
            self.lost_somewhere = Some(at.ts);
        }
        let before = self.get(at.cpu).map(|cpu| {
            let fresh = Cpu { lost_at: Some(at.ts), first: cpu.first, ..Cpu::default() };
            std::mem::replace(cpu, fresh)
        });
        let Cpu { interrupts, depth, .. } = before.unwrap_or_default();
        interrupts.into_iter().take(depth).flatten().map(|(interrupt, _)| interrupt)
    }

    /// Events of a CPU are missing since a moment.
    pub(super) fn missing(&self, since: u64, cpu: u32) -> bool {
        let cpu = self.list.get(cpu as usize).copied().unwrap_or_default();
        let lost = |at: Option<u64>| at.is_some_and(|at| at >= since);
        lost(cpu.lost_at)
            || lost(self.lost_somewhere)
            || cpu.first.is_some_and(|first| first > since)
    }

    /// Time from an interval's begin until now.
    #[inline]
    pub(super) fn since(&self, open: Open, at: &At) -> Took {
        let Some(ticks) = at.ts.checked_sub(open.start) else { return Took::Unknown };
        if !self.gaps {
            return Took::Ticks(ticks);
        }
        if self.missing(open.start, open.cpu) || self.missing(open.start, at.cpu) {
            Took::Cut
        } else if self.overwritten {
            Took::Doubtful { ticks, start: open.start, tid: at.tid }
        } else {
            Took::Ticks(ticks)
        }
    }

    /// What is known of an interval whose end has not come until now.
    pub(super) fn unended(&self, open: Open, at: &At) -> Took {
        match self.since(open, at) {
            Took::Cut => Took::Cut,
            Took::Ticks(_) | Took::Doubtful { .. } | Took::Unknown => Took::Unknown,
        }
    }

    /// The CPU does a thread's work.
    pub(super) fn task(&mut self, cpu: u32) {
        if let Some(cpu) = self.list.get_mut(cpu as usize) {
            cpu.context = Context::default();
        }
    }

    fn context(&self, cpu: u32) -> Context {
        self.list.get(cpu as usize).map_or(Context::default(), |cpu| cpu.context)
    }

    pub(super) fn in_interrupt(&self, at: &At) -> bool {
        match at.context {
            event::Context::Task => false,
            event::Context::Softirq | event::Context::Hardirq => true,
            event::Context::Unknown => {
                let Context { timer, irq, softirq, ipi, .. } = self.context(at.cpu);
                timer || ipi || irq.is_some() || softirq.is_some()
            }
        }
    }

    /// Who wakes a thread now. What the event itself says goes before what the interrupts'
    /// own events say, whose ends need not be recorded.
    pub(super) fn waker(&self, at: &At) -> Waker {
        let thread = if at.tid > 0 { Waker::Thread(at.tid) } else { Waker::Unknown };
        let context = self.context(at.cpu);
        let interrupt = match context {
            Context { block: Some(action), .. } => Some(Waker::Irq(action)),
            Context { timer: true, function: Some(function), .. } => Some(Waker::Expired(function)),
            Context { timer: true, .. } => Some(Waker::Timer),
            Context { softirq: Some(_), after_timer: true, .. } => Some(Waker::Timer),
            Context { softirq: Some(action), .. } if at.context != event::Context::Hardirq => {
                Some(Waker::Irq(action))
            }
            Context { irq: Some(irq), .. } => Some(Waker::Irq(irq)),
            Context { ipi: true, .. } => Some(Waker::Unknown),
            Context { .. } => None,
        };
        match at.context {
            event::Context::Task if at.tid > 0 => thread,
            event::Context::Task | event::Context::Unknown => interrupt.unwrap_or(thread),
            event::Context::Softirq | event::Context::Hardirq => {
                interrupt.unwrap_or(Waker::Interrupt)
            }
        }
    }

    /// A soft interrupt's handler begins or returns; `timer` says that it is the timers'. Gives the
    /// one that returns, and when it began.
    pub(super) fn softirq(
        &mut self,
        at: &At,
        action: Option<NameId>,
        timer: bool,
    ) -> Option<(NameId, u64)> {
        let context = &mut self.get(at.cpu)?.context;
        context.after_timer |= timer;
        let before = std::mem::replace(&mut context.softirq, action);
        let since = std::mem::replace(&mut context.since, at.ts);
        before.filter(|_| action.is_none()).map(|before| (before, since))
    }

    /// A CPU gets an interrupt.
    pub(super) fn interrupt(&mut self, at: &At, interrupt: Interrupt) {
        let Some(cpu) = self.get(at.cpu) else { return };
        let open = Some((interrupt, at.ts));
        if let Some(slot) = cpu.interrupts.get_mut(cpu.depth) {
            *slot = open;
            cpu.depth += 1;
        } else {
            // Exits are not recorded: keep the newest only.
            cpu.interrupts = [open, None, None, None];
            cpu.depth = 1;
        }
        cpu.context.after_timer = false;
        match interrupt {
            Interrupt::Irq(irq) => cpu.context.irq = Some(irq),
            Interrupt::Ipi(_) => cpu.context.ipi = true,
            Interrupt::Timer(_) => cpu.context.timer = true,
            Interrupt::Local(_) => {}
        }
    }

    /// A handler returns: a device's, or the named one. Gives the interrupt and its time, if
    /// it is the one that the CPU was in.
    pub(super) fn returns(&mut self, at: &At, name: Option<NameId>) -> Option<(Interrupt, u64)> {
        let cpu = self.get(at.cpu)?;
        match name {
            None => cpu.context.irq = None,
            Some(_) => (cpu.context.ipi, cpu.context.timer) = (false, false),
        }
        let top = cpu.depth.checked_sub(1)?;
        let (interrupt, start) = cpu.interrupts[top].take()?;
        cpu.depth = top;
        let same = match (interrupt, name) {
            (Interrupt::Irq(_), None) => true,
            (Interrupt::Irq(_), Some(_)) => false,
            (other, name) => name == Some(other.name()),
        };
        Some((interrupt, at.ts.checked_sub(start).filter(|_| same)?))
    }

    /// The handler of a timer begins or returns.
    pub(super) fn timer(&mut self, cpu: u32, fires: bool, function: Option<NameId>) {
        if let Some(cpu) = self.get(cpu) {
            (cpu.context.timer, cpu.context.function) = (fires, function);
        }
    }

    /// A request of the block layer is done, or has woken who waited for it.
    pub(super) fn block_done(&mut self, cpu: u32, action: Option<NameId>) {
        if let Some(cpu) = self.get(cpu) {
            cpu.context.block = action;
        }
    }
}
