//! The trace's events, reduced to what a commit's dissection needs.

use std::collections::HashMap;
use vmeter_trace::ops::{Decoder, NameId, Op};
use vmeter_trace::{Body, Event, EventReader};

/// Events kept at most: a trace within its limit of bytes has fewer.
const MOST: usize = 4 << 20;

/// Which ioctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Ioctl {
    /// `KVM_SET_GSI_ROUTING`.
    Commit,
    /// `KVM_IRQFD`.
    Irqfd,
    /// Another.
    #[default]
    Other,
}

/// What an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkKind {
    /// An ioctl begins.
    Enter(Ioctl),
    /// It returns.
    Exit,
    /// A thread leaves its CPU, and could go on or waits for something; another gets it.
    Switch { from: i32, runnable: bool, to: i32 },
    /// A thread is woken.
    Waking(i32),
    /// A work item is queued: its address and the number of its function's name.
    Queue(u64, u32),
    /// A kworker begins one.
    Start(u64, u32),
    /// It ends.
    End(u64),
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// When, ns.
    pub(super) at: u64,
    /// Thread it happened in.
    pub(super) tid: i32,
    /// What.
    pub(super) what: MarkKind,
}

/// A trace's events, and the names that they refer to.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// In the order of time. Of work items only SRCU's.
    pub(super) list: Vec<Mark>,
    /// Threads.
    pub(super) names: HashMap<i32, String>,
    /// Functions of work items.
    pub(super) functions: HashMap<u32, String>,
}

impl Marks {
    /// Reads a trace to its end.
    pub(super) fn read(reader: &mut dyn EventReader) -> Self {
        let symbols = reader.symbols();
        let (mut marks, mut decoder) = (Marks::default(), Decoder::default());
        while let Some(event) = reader.next_event() {
            let op = decoder.decode(&event);
            let name = |id: NameId| decoder.names().name(id);
            let Some(what) = what(op, name) else { continue };
            if let MarkKind::Queue(_, function) | MarkKind::Start(_, function) = what {
                let address = name(NameId(function)).strip_prefix("0x");
                let address = address.and_then(|hex| u64::from_str_radix(hex, 16).ok());
                let name = symbols.as_ref().and_then(|s| s.name(address?)).unwrap_or_default();
                if !name.contains("srcu") {
                    continue;
                }
                marks.functions.entry(function).or_insert_with(|| name.to_owned());
            }
            if let MarkKind::Switch { from, to, .. } = what {
                for (tid, field) in [(from, "prev_comm"), (to, "next_comm")] {
                    if let Some(name) = thread_name(&event, field) {
                        marks.names.entry(tid).or_insert_with(|| name.to_owned());
                    }
                }
            }
            marks.list.push(Mark { at: event.ts, tid: event.tid, what });
            if marks.list.len() == MOST {
                break;
            }
        }
        marks
    }
}

fn thread_name<'a>(event: &Event<'a>, field: &str) -> Option<&'a str> {
    let Body::Record(record) = event.body else { return None };
    event.kind.string(field).get(record)
}

/// What of an op the dissection looks at.
fn what<'n>(op: Op, name: impl Fn(NameId) -> &'n str) -> Option<MarkKind> {
    Some(match op {
        Op::SyscallEnter { request, .. } => MarkKind::Enter(match request.map(name) {
            Some("KVM_SET_GSI_ROUTING") => Ioctl::Commit,
            Some("KVM_IRQFD") => Ioctl::Irqfd,
            _ => Ioctl::Other,
        }),
        Op::SyscallExit { .. } => MarkKind::Exit,
        Op::Switch { prev, runnable, next, .. } => {
            MarkKind::Switch { from: prev, runnable, to: next }
        }
        Op::Wake { tid, .. } => MarkKind::Waking(tid),
        Op::WorkQueue { work, function } => MarkKind::Queue(work, function.0),
        Op::WorkStart { work, function } => MarkKind::Start(work, function.0),
        Op::WorkEnd { work } => MarkKind::End(work),
        // None of these is recorded for a commit, or says what it waits for.
        Op::Other | Op::Lost | Op::Xen(_) | Op::ThreadStart | Op::Syscall { .. } => return None,
        Op::VmExit { .. } | Op::VmEntry | Op::UserspaceExit { .. } => return None,
        Op::Access(_)
        | Op::Logged(_)
        | Op::LoggedByDevice(_)
        | Op::IrqEntry { .. }
        | Op::IrqExit => return None,
        Op::VectorEntry { .. } | Op::VectorExit { .. } | Op::IpiSend { .. } => return None,
        Op::TimerEntry { .. }
        | Op::TimerExit
        | Op::BlockDone { .. }
        | Op::PageFault
        | Op::Fork { .. } => return None,
        Op::SoftirqEntry { .. } | Op::SoftirqExit | Op::CallCpu { .. } => return None,
        Op::LockWait { .. } | Op::LockWaited { .. } | Op::Sign(_) => return None,
    })
}
