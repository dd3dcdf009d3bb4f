//! What events mean, whatever format they came in.
//!
//! A [`Decoder`] turns an [`Event`] into an [`Op`]: a vCPU left the guest, a port
//! was written, a system call began. How to do it is looked up once per event
//! type; after that an event costs a table look-up and the reading of the few
//! fields that its op has.

mod binary;
mod names;
mod other;
mod textual;
pub mod xen;

use crate::event::{Body, Event, EventType};
use binary::Fields;
use names::Resolver;
pub use names::{NameId, Names};
pub use xen::XenOp;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Nothing that an op stands for.
    Other,
    /// Events are missing on this CPU.
    Lost,
    /// The thread's vCPU left the guest.
    VmExit {
        /// Why.
        reason: NameId,
    },
    /// The thread's vCPU enters the guest.
    VmEntry,
    /// KVM returns to user space to have something done.
    UserspaceExit {
        /// `KVM_EXIT_…`.
        reason: NameId,
    },
    /// A port was accessed.
    Pio {
        /// Port.
        port: u32,
        /// True for a write.
        write: bool,
    },
    /// A guest-physical address outside of RAM was accessed.
    Mmio {
        /// Address.
        address: u64,
        /// True for a write.
        write: bool,
    },
    /// A model-specific register was accessed.
    Msr {
        /// Register.
        index: u32,
        /// True for a write.
        write: bool,
    },
    /// The guest called its hypervisor.
    Hypercall {
        /// Which call.
        name: NameId,
    },
    /// A system call begins.
    SyscallEnter {
        /// Its name.
        name: NameId,
        /// For ioctl: the request's name.
        request: Option<NameId>,
        /// True for `ioctl(KVM_RUN)`.
        kvm_run: bool,
    },
    /// A system call returns.
    SyscallExit {
        /// Its name.
        name: NameId,
    },
    /// A new thread or process returns out of its parent's clone, whose call it is.
    ThreadStart,
    /// A whole system call (strace).
    Syscall {
        /// Its name.
        name: NameId,
        /// For ioctl: the request's name.
        request: Option<NameId>,
        /// Time inside it, ticks.
        duration: Option<u64>,
    },
    /// An interrupt handler begins on this CPU.
    IrqEntry {
        /// `number name`.
        irq: NameId,
    },
    /// The interrupt handler returns.
    IrqExit,
    /// An interrupt without a number (local timer, IPI) begins on this CPU.
    VectorEntry {
        /// Kind: `reschedule`, `call_function`, `local_timer`, …
        name: NameId,
        /// True for one that CPUs send each other.
        ipi: bool,
    },
    /// It returns.
    VectorExit {
        /// Kind.
        name: NameId,
    },
    /// An inter-processor interrupt is sent.
    IpiSend {
        /// What for.
        name: NameId,
    },
    /// Work was queued.
    WorkQueue {
        /// Address of the work item.
        work: u64,
        /// What it runs.
        function: NameId,
    },
    /// A worker begins to run a work item.
    WorkStart {
        /// Address of the work item.
        work: u64,
        /// What it runs.
        function: NameId,
    },
    /// The work item is done.
    WorkEnd {
        /// Address of the work item.
        work: u64,
    },
    /// The scheduler switches threads on this CPU.
    Switch {
        /// Thread that leaves.
        prev: i32,
        /// True if it could go on running.
        runnable: bool,
        /// Thread that comes.
        next: i32,
    },
    /// A thread was made runnable.
    Wake {
        /// Which.
        tid: i32,
    },
    /// Something in Xen.
    Xen(XenOp),
}

/// Events whose meaning is known, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    KvmExit,
    KvmEntry,
    KvmUserspaceExit,
    KvmPio,
    KvmMmio,
    KvmFastMmio,
    KvmMsr,
    KvmHypercall,
    KvmHvHypercall,
    KvmXenHypercall,
    RawSysEnter,
    RawSysExit,
    IrqEntry,
    IrqExit,
    IpiRaise,
    IpiSend,
    IpiEntry,
    IpiExit,
    WorkQueue,
    WorkStart,
    WorkEnd,
    Switch,
    Wake,
    QemuRead,
    QemuWrite,
    QemuIn,
    QemuOut,
}

const MEANINGS: &[(&str, Meaning)] = &[
    ("kvm_exit", Meaning::KvmExit),
    ("kvm_entry", Meaning::KvmEntry),
    ("kvm_userspace_exit", Meaning::KvmUserspaceExit),
    ("kvm_pio", Meaning::KvmPio),
    ("kvm_mmio", Meaning::KvmMmio),
    ("kvm_fast_mmio", Meaning::KvmFastMmio),
    ("kvm_msr", Meaning::KvmMsr),
    ("kvm_hypercall", Meaning::KvmHypercall),
    ("kvm_hv_hypercall", Meaning::KvmHvHypercall),
    ("kvm_xen_hypercall", Meaning::KvmXenHypercall),
    ("sys_enter", Meaning::RawSysEnter),
    ("sys_exit", Meaning::RawSysExit),
    ("irq_handler_entry", Meaning::IrqEntry),
    ("irq_handler_exit", Meaning::IrqExit),
    ("ipi_raise", Meaning::IpiRaise),
    ("ipi_send_cpu", Meaning::IpiSend),
    ("ipi_send_cpumask", Meaning::IpiSend),
    ("ipi_entry", Meaning::IpiEntry),
    ("ipi_exit", Meaning::IpiExit),
    ("workqueue_queue_work", Meaning::WorkQueue),
    ("workqueue_execute_start", Meaning::WorkStart),
    ("workqueue_execute_end", Meaning::WorkEnd),
    ("sched_switch", Meaning::Switch),
    ("sched_waking", Meaning::Wake),
    ("sched_wakeup", Meaning::Wake),
    ("sched_wakeup_new", Meaning::Wake),
    ("memory_region_ops_read", Meaning::QemuRead),
    ("memory_region_ops_write", Meaning::QemuWrite),
    ("cpu_in", Meaning::QemuIn),
    ("cpu_out", Meaning::QemuOut),
];

/// Interrupts of the x86 `irq_vectors` events: (name, sent by CPUs to each other).
const VECTORS: &[(&str, bool)] = &[
    ("local_timer", false),
    ("spurious_apic", false),
    ("error_apic", false),
    ("x86_platform_ipi", true),
    ("irq_work", true),
    ("reschedule", true),
    ("call_function", true),
    ("call_function_single", true),
    ("threshold_apic", false),
    ("deferred_error_apic", false),
    ("thermal_apic", false),
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
    /// The return of clone and the like, in the parent and in the child.
    Forked(NameId, crate::event::IntField),
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
}

impl Decoder {
    /// The names that ops refer to.
    pub fn names(&self) -> &Names {
        &self.resolver.names
    }

    /// Replaces addresses by the symbols of the trace, for the final report.
    pub fn resolve(&mut self, symbol: impl Fn(u64) -> Option<String>) {
        self.resolver.resolve(symbol);
    }

    /// What the ops of a type of binary record change.
    pub(crate) fn touches(&mut self, kind: &EventType) -> Touches {
        match self.handler(kind) {
            Handler::Ignore => Touches::Nothing,
            Handler::Fixed(Op::VectorEntry { .. } | Op::VectorExit { .. }) => Touches::Cpu,
            Handler::Known(meaning, _) => match meaning {
                Meaning::Switch => Touches::Switch,
                Meaning::Wake => Touches::Wake,
                Meaning::IrqEntry | Meaning::IrqExit | Meaning::IpiEntry | Meaning::IpiExit => {
                    Touches::Cpu
                }
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
        if let Body::Words { event, words } = event.body {
            return xen::decode(event, words, &mut self.resolver);
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
                self.resolver.ioctl(*name, request)
            }
            (Handler::Ioctl(name, _), Body::Text(text)) => {
                textual::ioctl(*name, text, &mut self.resolver)
            }
            (Handler::Forked(name, result), body) => {
                let in_child = match body {
                    Body::Record(record) => result.get(record) == Some(0),
                    Body::Text(text) => textual::returned_0(text),
                    _ => false,
                };
                if in_child {
                    Op::ThreadStart
                } else {
                    Op::SyscallExit { name: *name }
                }
            }
            (Handler::Known(meaning, fields), Body::Record(record)) => {
                binary::decode(*meaning, fields, record, &mut self.resolver)
            }
            (Handler::Known(meaning, _), Body::Text(text)) => {
                textual::decode(*meaning, text, &mut self.resolver)
            }
            (Handler::Call(name), Body::Call { arguments, duration, .. }) => {
                other::call(*name, arguments, duration, &mut self.resolver)
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
        if let Some(call) = name.strip_prefix("sys_enter_") {
            return Handler::SyscallEnter(names.id(kernel_call(call)));
        }
        if let Some(call) = name.strip_prefix("sys_exit_") {
            if FORKS.contains(&call) {
                return Handler::Forked(names.id(call), kind.int("ret"));
            }
            return Handler::Fixed(Op::SyscallExit { name: names.id(kernel_call(call)) });
        }
        for (vector, ipi) in VECTORS {
            if name.strip_prefix(vector) == Some("_entry") {
                let name = names.id(vector);
                return Handler::Fixed(Op::VectorEntry { name, ipi: *ipi });
            }
            if name.strip_prefix(vector) == Some("_exit") {
                return Handler::Fixed(Op::VectorExit { name: names.id(vector) });
            }
        }
        Handler::Ignore
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
