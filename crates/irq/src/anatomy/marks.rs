//! The trace's events, reduced to what a commit's dissection needs.

use std::collections::HashMap;
use vmeter_trace::{Body, Event, EventReader};

/// `KVM_SET_GSI_ROUTING`, linux/kvm.h.
pub(super) const SET_GSI_ROUTING: u64 = 0x4008_ae6a;
/// `KVM_IRQFD`, linux/kvm.h.
pub(super) const IRQFD: u64 = 0x4020_ae76;
/// The state that `sched_switch` gives a thread that could go on (0, or with a preemption
/// mark above the states proper).
const STATES: u64 = 0xff;
/// Events kept at most: a trace within its limit of bytes has fewer.
const MOST: usize = 4 << 20;

/// What an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// An ioctl begins.
    Enter(u64),
    /// It returns.
    Exit,
    /// A thread leaves its CPU, and could go on or waits for something; another gets it.
    Switch { from: i32, runnable: bool, to: i32 },
    /// A thread is woken.
    Waking(i32),
    /// A work item is queued: its address and function.
    Queue(u64, u64),
    /// A kworker begins one.
    Start(u64, u64),
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
    pub(super) what: What,
}

/// A trace's events, and the names that they refer to.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// In the order of time. Of work items only SRCU's.
    pub(super) list: Vec<Mark>,
    /// Threads.
    pub(super) names: HashMap<i32, String>,
    /// Functions of work items.
    pub(super) functions: HashMap<u64, String>,
}

impl Marks {
    /// Reads a trace to its end.
    pub(super) fn read(reader: &mut dyn EventReader) -> Self {
        let symbols = reader.symbols();
        let mut marks = Marks::default();
        while let Some(event) = reader.next_event() {
            let Some((what, named)) = what(&event) else { continue };
            if let What::Queue(_, function) | What::Start(_, function) = what {
                let name = symbols.as_ref().and_then(|s| s.name(function)).unwrap_or_default();
                if !name.contains("srcu") {
                    continue;
                }
                marks.functions.entry(function).or_insert_with(|| name.to_owned());
            }
            for (tid, name) in named.into_iter().flatten() {
                marks.names.entry(tid).or_insert_with(|| name.to_owned());
            }
            marks.list.push(Mark { at: event.ts, tid: event.tid, what });
            if marks.list.len() == MOST {
                break;
            }
        }
        marks
    }
}

type Named<'a> = [Option<(i32, &'a str)>; 2];

fn what<'a>(event: &Event<'a>) -> Option<(What, Named<'a>)> {
    let Body::Record(record) = event.body else { return None };
    let kind = event.kind;
    let int = |name: &str| kind.int(name).get(record);
    let tid = |name: &str| int(name).map(|value| value as i32);
    let mut named: Named<'a> = [None; 2];
    let what = match kind.name.as_str() {
        "sys_enter_ioctl" => What::Enter(int("cmd")? & 0xffff_ffff),
        "sys_exit_ioctl" => What::Exit,
        "sched_switch" => {
            let (from, to) = (tid("prev_pid")?, tid("next_pid")?);
            let name = |field: &str| kind.string(field).get(record);
            named = [
                name("prev_comm").map(|name| (from, name)),
                name("next_comm").map(|name| (to, name)),
            ];
            What::Switch { from, runnable: int("prev_state")? & STATES == 0, to }
        }
        "sched_waking" => What::Waking(tid("pid")?),
        "workqueue_queue_work" => What::Queue(int("work")?, int("function")?),
        "workqueue_execute_start" => What::Start(int("work")?, int("function")?),
        "workqueue_execute_end" => What::End(int("work")?),
        _ => return None,
    };
    Some((what, named))
}
