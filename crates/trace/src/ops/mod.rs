//! What events mean, whatever format they came in.
//!
//! A [`Decoder`] turns an [`Event`] into an [`Op`]: a vCPU left the guest, a port
//! was written, a system call began. How to do it is looked up once per event
//! type; after that an event costs a table look-up and the reading of the few
//! fields that its op has.

mod access;
mod binary;
mod descriptors;
mod meaning;
mod names;
mod op;
mod other;
mod retries;
mod sign;
mod textual;
pub mod xen;

use crate::event::{Body, Event, EventType};
pub use access::Access;
use binary::Fields;
use meaning::{Meaning, MEANINGS};
use names::Resolver;
pub use names::{NameId, Names};
pub use op::{Lock, Op, Sleep, Vector};
pub use retries::BETWEEN_TRIES;
pub use sign::Sign;
pub use xen::XenOp;

/// Interrupts of the x86 `irq_vectors` events.
const VECTORS: &[(&str, Vector)] = &[
    ("local_timer", Vector::Timer),
    ("spurious_apic", Vector::Local),
    ("error_apic", Vector::Local),
    ("x86_platform_ipi", Vector::Ipi),
    ("irq_work", Vector::Ipi),
    ("reschedule", Vector::Ipi),
    ("call_function", Vector::Ipi),
    ("call_function_single", Vector::Ipi),
    ("threshold_apic", Vector::Local),
    ("deferred_error_apic", Vector::Local),
    ("thermal_apic", Vector::Local),
];

/// System calls that return twice.
const FORKS: [&str; 4] = ["clone", "clone3", "fork", "vfork"];

/// How to read one event type.
enum Handler {
    Ignore,
    /// The type alone says it.
    Fixed(Op),
    SyscallEnter(NameId),
    Ioctl(NameId, crate::event::IntField),
    /// Its operation, and the value that it expects.
    Futex(NameId, [crate::event::IntField; 2]),
    /// `forks` for clone and the like, which return in the parent and in the child.
    SyscallExit {
        name: NameId,
        returned: crate::event::IntField,
        forks: bool,
    },
    Known(Meaning, Fields),
    /// strace: the type's name is the call's.
    Call(NameId),
}

/// What an event's op changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touches {
    /// Nothing.
    Nothing,
    /// The thread that it happened in.
    Thread,
    /// The CPU that it happened on.
    Cpu,
    /// The thread that leaves and the one that comes.
    Switch,
    /// The thread that is woken.
    Wake,
}

/// Turns events into ops.
#[derive(Default)]
pub struct Decoder {
    handlers: Vec<Option<Handler>>,
    resolver: Resolver,
    descriptors: descriptors::Descriptors,
    retries: retries::Retries,
}

impl Decoder {
    /// The names that ops refer to.
    pub fn names(&self) -> &Names {
        &self.resolver.names
    }

    /// The number of a name that a reader of the ops has for itself.
    pub fn name(&mut self, text: &str) -> NameId {
        self.resolver.names.id(text)
    }

    /// Replaces addresses by the symbols of the trace, for the final report.
    pub fn resolve(&mut self, symbol: impl Fn(u64) -> Option<String>) {
        self.resolver.resolve(symbol);
    }

    /// What the ops of a type of binary record change.
    pub(crate) fn touches(&mut self, kind: &EventType) -> Touches {
        match self.handler(kind) {
            Handler::Ignore | Handler::Fixed(Op::TimerExit | Op::BlockDone { .. }) => {
                Touches::Nothing
            }
            Handler::Fixed(Op::VectorEntry { .. } | Op::VectorExit { .. }) => Touches::Cpu,
            Handler::Known(meaning, _) => match meaning {
                Meaning::Switch => Touches::Switch,
                Meaning::Wake | Meaning::WakeNew => Touches::Wake,
                Meaning::IrqEntry | Meaning::IrqExit | Meaning::IpiEntry | Meaning::IpiExit => {
                    Touches::Cpu
                }
                Meaning::SoftirqEntry
                | Meaning::SoftirqExit
                | Meaning::PageFault
                | Meaning::CsdQueue
                | Meaning::LockWait
                | Meaning::LockWaited
                | Meaning::CgroupReclaim
                | Meaning::Reclaim
                | Meaning::Dirty
                | Meaning::Delivered
                | Meaning::TcpAgain
                | Meaning::TimerEntry
                | Meaning::Fork => Touches::Nothing,
                _ => Touches::Thread,
            },
            _ => Touches::Thread,
        }
    }

    /// Learns another decoder's names; gives its numbers' own ones, by index.
    pub(crate) fn learn_from(&mut self, other: &Decoder) -> Vec<NameId> {
        self.resolver.learn_from(&other.resolver)
    }

    /// What an event means.
    #[inline]
    pub fn decode(&mut self, event: &Event<'_>) -> Op {
        let mut op = self.meaning(event);
        self.retries.about(event.tid, &mut op, &mut self.resolver.names);
        op
    }

    #[inline]
    fn meaning(&mut self, event: &Event<'_>) -> Op {
        if let Body::Words { event, words } = event.body {
            return Op::Xen(xen::decode(event, words, &mut self.resolver));
        }
        if let Body::Lost(_) = event.body {
            return Op::Lost;
        }
        let id = event.kind.id as usize;
        if self.handlers.get(id).is_none_or(Option::is_none) {
            self.prepare(event);
        }
        let Some(Some(handler)) = self.handlers.get(id) else { return Op::Other };
        match (handler, event.body) {
            (Handler::Ignore, _) => Op::Other,
            (Handler::Fixed(op), _) => *op,
            (Handler::SyscallEnter(name), _) => {
                Op::SyscallEnter { name: *name, request: None, kvm_run: false }
            }
            (Handler::Ioctl(name, request), Body::Record(record)) => {
                let request = request.get(record).unwrap_or(0) as u32;
                binary::ioctl(*name, request, &mut self.resolver)
            }
            (Handler::Ioctl(name, _), Body::Text(text)) => {
                textual::ioctl(*name, text, &mut self.resolver)
            }
            (Handler::Futex(name, [operation, value]), Body::Record(record)) => {
                let [operation, value] = [operation, value].map(|field| field.get(record));
                let (operation, value) = (operation.unwrap_or(0), value.unwrap_or(0));
                binary::futex(*name, operation as u32, value as u32, &mut self.resolver)
            }
            (Handler::Futex(name, _), Body::Text(text)) => {
                textual::futex(*name, text, &mut self.resolver)
            }
            (Handler::SyscallExit { name, returned, forks }, body) => {
                let returned = match body {
                    Body::Record(record) => returned.get(record).map(|value| value as i64),
                    Body::Text(text) => textual::returned(text),
                    _ => None,
                };
                if *forks && returned == Some(0) {
                    Op::ThreadStart
                } else {
                    Op::SyscallExit { name: *name, returned }
                }
            }
            (Handler::Known(meaning, fields), Body::Record(record)) => {
                binary::decode(*meaning, fields, record, &mut self.resolver)
            }
            (Handler::Known(meaning, _), Body::Text(text)) => {
                textual::decode(*meaning, text, &mut self.resolver)
            }
            (Handler::Call(name), Body::Call { arguments, duration, result }) => {
                let Decoder { descriptors, resolver, .. } = self;
                let call = (event.tid, *name);
                other::call(call, arguments, (duration, result), descriptors, resolver)
            }
            _ => Op::Other,
        }
    }

    #[cold]
    fn prepare(&mut self, event: &Event<'_>) {
        let id = event.kind.id as usize;
        if id >= 1 << 17 {
            return;
        }
        let handler = match event.body {
            Body::Call { .. } => Handler::Call(self.resolver.names.id(&event.kind.name)),
            _ => self.handler(event.kind),
        };
        if self.handlers.len() <= id {
            self.handlers.resize_with(id + 1, || None);
        }
        self.handlers[id] = Some(handler);
    }

    fn handler(&mut self, kind: &EventType) -> Handler {
        let name = kind.name.as_str();
        if let Some((_, meaning)) = MEANINGS.iter().find(|(n, _)| *n == name) {
            self.resolver.learn(kind);
            return Handler::Known(*meaning, Fields::of(*meaning, kind));
        }
        let names = &mut self.resolver.names;
        if name == "sys_enter_ioctl" {
            return Handler::Ioctl(names.id("ioctl"), kind.int("cmd"));
        }
        if name == "sys_enter_futex" {
            let fields = ["op", "val"].map(|field| kind.int(field));
            return Handler::Futex(names.id("futex"), fields);
        }
        if let Some(call) = name.strip_prefix("sys_enter_") {
            return Handler::SyscallEnter(names.id(kernel_call(call)));
        }
        if let Some(call) = name.strip_prefix("sys_exit_") {
            return Handler::SyscallExit {
                name: names.id(kernel_call(call)),
                returned: kind.int("ret"),
                forks: FORKS.contains(&call),
            };
        }
        for (word, vector) in VECTORS {
            if name.strip_prefix(word) == Some("_entry") {
                let name = names.id(word);
                return Handler::Fixed(Op::VectorEntry { name, vector: *vector });
            }
            if name.strip_prefix(word) == Some("_exit") {
                return Handler::Fixed(Op::VectorExit { name: names.id(word) });
            }
        }
        match name {
            "block_rq_complete" => Handler::Fixed(Op::BlockDone { action: names.id("BLOCK") }),
            "hrtimer_expire_exit" | "timer_expire_exit" => Handler::Fixed(Op::TimerExit),
            _ => Handler::Ignore,
        }
    }
}

/// The name users know, where the kernel's function has another.
fn kernel_call(name: &str) -> &str {
    match name {
        "newstat" => "stat",
        "newfstat" => "fstat",
        "newlstat" => "lstat",
        "newuname" => "uname",
        "sendfile64" => "sendfile",
        other => other,
    }
}
