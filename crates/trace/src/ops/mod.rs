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

/// What a guest asks for by leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// A port.
    Port {
        /// Which.
        port: u32,
        /// True for a write.
        write: bool,
    },
    /// A guest-physical address outside of RAM.
    Mmio {
        /// Which.
        address: u64,
        /// True for a write.
        write: bool,
    },
    /// A model-specific register.
    Msr {
        /// Which.
        index: u32,
        /// True for a write.
        write: bool,
    },
    /// A call of the hypervisor.
    Hypercall {
        /// Which.
        name: NameId,
    },
}

impl Access {
    /// True for what KVM knows the value of only after user space gave it.
    pub fn is_read(self) -> bool {
        match self {
            Access::Port { write, .. } | Access::Mmio { write, .. } | Access::Msr { write, .. } => {
                !write
            }
            Access::Hypercall { .. } => false,
        }
    }
}

/// What sends an interrupt without a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vector {
    /// Another CPU.
    Ipi,
    /// This CPU's timer.
    Timer,
    /// Something else on this CPU.
    Local,
}

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
    /// KVM reports what the guest asks for.
    Access(Access),
    /// The device model's own log reports what the guest asked for: a write before it is
    /// served, a read after it. Nothing says when the guest goes on.
    Logged(Access),
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
        /// What it returned.
        returned: Option<i64>,
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
        /// What it returned.
        returned: Option<i64>,
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
        /// What sends it.
        vector: Vector,
    },
    /// It returns.
    VectorExit {
        /// Kind.
        name: NameId,
    },
    /// The handler of a timer begins on this CPU.
    TimerEntry,
    /// It returns.
    TimerExit,
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
            Handler::Ignore | Handler::Fixed(Op::TimerEntry | Op::TimerExit) => Touches::Nothing,
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
                other::call(*name, arguments, (duration, result), &mut self.resolver)
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
            "hrtimer_expire_entry" | "timer_expire_entry" => Handler::Fixed(Op::TimerEntry),
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
