//! Ops from the kernel's binary records.

use super::access::Access;
use super::meaning::Meaning;
use super::names::{NameId, Number, Resolver};
use super::op::{Lock, Op, Sleep, Vector};
use super::sign::Sign;
use crate::event::{EventType, IntField, StrField};
use crate::names::KVM_RUN;

/// The fields an op needs, resolved once: integers in the order of [`names_of`].
pub(crate) struct Fields {
    ints: [IntField; 4],
    text: StrField,
}

/// Integer fields by meaning, and the text field if there is one.
fn names_of(meaning: Meaning) -> (&'static [&'static str], &'static str) {
    match meaning {
        Meaning::KvmExit => (&["exit_reason", "isa", "esr_ec"], ""),
        Meaning::KvmUserspaceExit => (&["reason", "errno"], ""),
        Meaning::KvmPio => (&["port", "rw"], ""),
        Meaning::KvmMmio => (&["gpa", "type"], ""),
        Meaning::KvmFastMmio => (&["gpa"], ""),
        Meaning::KvmMsr => (&["ecx", "write"], ""),
        Meaning::KvmHypercall | Meaning::KvmXenHypercall => (&["nr"], ""),
        Meaning::KvmHvHypercall => (&["code"], ""),
        Meaning::RawSysEnter => (&["id", "args"], ""),
        Meaning::RawSysExit => (&["id", "ret"], ""),
        Meaning::IrqEntry => (&["irq"], "name"),
        Meaning::SoftirqEntry => (&["vec"], ""),
        Meaning::Fork => (&["child_pid"], ""),
        Meaning::SoftirqExit | Meaning::PageFault => (&[], ""),
        Meaning::LockWait => (&["lock_addr", "flags"], ""),
        Meaning::LockWaited => (&["lock_addr"], ""),
        Meaning::IpiRaise | Meaning::IpiEntry | Meaning::IpiExit => (&["reason"], ""),
        Meaning::IpiSend => (&["callback"], ""),
        Meaning::WorkQueue | Meaning::WorkStart => (&["work", "function"], ""),
        Meaning::WorkEnd => (&["work"], ""),
        Meaning::Switch => (&["prev_pid", "prev_state", "next_pid", "prev_prio"], ""),
        Meaning::CsdQueue => (&["func"], ""),
        Meaning::TimerEntry => (&["function"], ""),
        Meaning::Wake | Meaning::WakeNew => (&["pid"], ""),
        Meaning::KvmEntry | Meaning::IrqExit => (&[], ""),
        Meaning::CgroupReclaim | Meaning::Reclaim => (&[], ""),
        Meaning::Dirty | Meaning::Delivered => (&[], ""),
        Meaning::TcpAgain => (&["state", "dport"], ""),
        Meaning::QemuRead
        | Meaning::QemuWrite
        | Meaning::QemuIn
        | Meaning::QemuOut
        | Meaning::QemuDeviceRead
        | Meaning::QemuDeviceWrite => (&[], ""),
    }
}

impl Fields {
    pub(crate) fn of(meaning: Meaning, kind: &EventType) -> Fields {
        let (names, text) = names_of(meaning);
        let mut ints = [IntField::ABSENT; 4];
        for (slot, name) in ints.iter_mut().zip(names) {
            *slot = kind.int(name);
        }
        // `args` is an array of longs; its first words are read one by one.
        if meaning == Meaning::RawSysEnter {
            let args = kind.field("args");
            let argument = |at: u32| match args {
                Some(args) => IntField::at(args.offset.saturating_add(8 * at), 4, false),
                None => IntField::ABSENT,
            };
            (ints[1], ints[2]) = (argument(1), argument(2));
        }
        Fields { ints, text: kind.string(text) }
    }
}

/// Number of `ioctl` on x86-64, for the raw events.
const NR_IOCTL: u64 = 16;

/// The same of `futex`.
const NR_FUTEX: u64 = 202;

/// `clone`, `fork`, `vfork` and `clone3` on x86-64: they return 0 in the child.
const NR_FORKS: [u64; 4] = [56, 57, 58, 435];

/// `rt_sigreturn` on x86-64: the kernel has forgotten that number (-1) when it returns.
const NR_SIGRETURN: u64 = 15;

/// `TASK_REPORT`: the bits of `prev_state` that say a thread sleeps.
const ASLEEP: u64 = 0xff;

/// `TASK_UNINTERRUPTIBLE`, unless it is a kernel thread that idles: `TASK_NOLOAD`, or
/// `TASK_REPORT_IDLE`.
const DEEP: u64 = 0x02;
const IDLE: u64 = 0x480;

/// `__TASK_STOPPED` and `__TASK_TRACED`.
const STOPPED: u64 = 0x0c;

/// `EXIT_DEAD` and `EXIT_ZOMBIE`.
const DEAD: u64 = 0x30;

/// How a thread sleeps, by the bits of `prev_state`.
pub(super) fn asleep(state: u64) -> Sleep {
    match state {
        state if state & STOPPED != 0 => Sleep::Stopped,
        state if state & DEAD != 0 => Sleep::Dead,
        state if state & DEEP != 0 && state & IDLE == 0 => Sleep::Deep,
        _ => Sleep::Light,
    }
}

/// As the event's own `print fmt` has it: `-EINTR` is a restart.
fn userspace_exit(reason: u64, errno: i32, names: &mut Resolver) -> NameId {
    match errno {
        -4 => names.names.id("restart"),
        errno if errno < 0 => names.names.id("error"),
        _ => names.number(Number::UserspaceExit, reason),
    }
}

/// The op of the return of a system call by its number.
pub(super) fn exit(number: u64, returned: Option<i64>, names: &mut Resolver) -> Op {
    if returned == Some(0) && NR_FORKS.contains(&number) {
        return Op::ThreadStart;
    }
    let number = if number == u64::MAX { NR_SIGRETURN } else { number };
    Op::SyscallExit { name: names.number(Number::Syscall, number), returned }
}

/// The op of an ioctl by its request number.
pub(super) fn ioctl(name: NameId, request: u32, names: &mut Resolver) -> Op {
    let id = names.number(Number::Ioctl, u64::from(request));
    Op::SyscallEnter { name, request: Some(id), kvm_run: request == KVM_RUN }
}

/// The op of a futex call by its operation and value: which of them waits for a lock.
pub(super) fn futex(name: NameId, operation: u32, value: u32, names: &mut Resolver) -> Op {
    let request = futex_waits(operation, value).map(|what| names.names.id(what));
    Op::SyscallEnter { name, request, kvm_run: false }
}

/// A mutex of glibc, musl or Rust has the value 2 while others wait for it; `FUTEX_LOCK_PI` is a lock by
/// itself (kernel: include/uapi/linux/futex.h). A condition or a semaphore waits by a bit set or for 0,
/// an event of QEMU's for -1. Of other values (parking_lot's 1) what the threads do tells.
pub(crate) fn futex_waits(operation: u32, value: u32) -> Option<&'static str> {
    match (operation & 0x7f, value) {
        (6 | 13, _) | (0 | 9, 2) => Some("futex(lock)"),
        (9, _) | (0, 0 | u32::MAX) => Some("futex(wait)"),
        // musl keeps the owner's number, with the highest bit.
        (0, value) if value >> 31 == 1 => Some("futex(lock)"),
        _ => None,
    }
}

/// The op of a soft interrupt by its number; 1 and 8 are those of timers.
pub(super) fn softirq(number: u64, names: &mut Resolver) -> Op {
    let timer = matches!(number, 1 | 8);
    Op::SoftirqEntry { action: names.number(Number::Softirq, number), timer }
}

pub(super) fn hypercall(name: NameId) -> Op {
    Op::Access(Access::Hypercall { name })
}

#[inline]
pub(crate) fn decode(meaning: Meaning, fields: &Fields, record: &[u8], names: &mut Resolver) -> Op {
    let int = |index: usize| fields.ints[index].get(record).unwrap_or(0);
    match meaning {
        Meaning::Switch => {
            let state = int(1);
            let sleep = asleep(state);
            let (prev, next) = (int(0) as i32, int(2) as i32);
            let prio = fields.ints[3].get(record).map(|prio| prio as i16);
            Op::Switch { prev, runnable: state & ASLEEP == 0, sleep, prio, next }
        }
        Meaning::Wake => Op::Wake { tid: int(0) as i32, new: false },
        Meaning::WakeNew => Op::Wake { tid: int(0) as i32, new: true },
        Meaning::KvmExit => {
            let isa = if fields.ints[1].is_present() { int(1) as u32 } else { 2 };
            Op::VmExit { reason: names.number(Number::Exit { isa }, int(0)) }
        }
        Meaning::KvmEntry => Op::VmEntry,
        Meaning::KvmUserspaceExit => {
            Op::UserspaceExit { reason: userspace_exit(int(0), int(1) as i32, names) }
        }
        Meaning::KvmPio => {
            Op::Access(Access::Port { port: int(0) as u32 & 0xffff, write: int(1) != 0 })
        }
        Meaning::KvmMmio => Op::Access(Access::Mmio { address: int(0), write: int(1) == 2 }),
        Meaning::KvmFastMmio => Op::Access(Access::Mmio { address: int(0), write: true }),
        Meaning::KvmMsr => Op::Access(Access::Msr { index: int(0) as u32, write: int(1) != 0 }),
        Meaning::KvmHypercall => hypercall(names.number(Number::Hypercall, int(0))),
        Meaning::KvmHvHypercall => hypercall(names.number(Number::HvHypercall, int(0))),
        Meaning::KvmXenHypercall => hypercall(names.number(Number::XenHypercall, int(0))),
        Meaning::RawSysEnter => {
            let name = names.number(Number::Syscall, int(0));
            if int(0) == NR_IOCTL {
                return ioctl(name, int(1) as u32, names);
            }
            if int(0) == NR_FUTEX && fields.ints[2].is_present() {
                return futex(name, int(1) as u32, int(2) as u32, names);
            }
            Op::SyscallEnter { name, request: None, kvm_run: false }
        }
        Meaning::RawSysExit => {
            let returned = fields.ints[1].get(record).map(|value| value as i64);
            exit(int(0), returned, names)
        }
        Meaning::IrqEntry => Op::IrqEntry { irq: names.irq(int(0), fields.text.get(record)) },
        Meaning::IrqExit => Op::IrqExit,
        Meaning::SoftirqEntry => softirq(int(0), names),
        Meaning::SoftirqExit => Op::SoftirqExit,
        Meaning::PageFault => Op::PageFault,
        Meaning::Fork => Op::Fork { child: int(0) as i32 },
        Meaning::LockWait => Op::LockWait { lock: int(0), kind: Lock::of_flags(int(1)) },
        Meaning::LockWaited => Op::LockWaited { lock: int(0) },
        // The reschedule interrupt has no callback.
        Meaning::IpiSend if int(0) == 0 => Op::IpiSend { name: names.names.id("send reschedule") },
        Meaning::IpiSend => Op::IpiSend { name: names.number(Number::Address, int(0)) },
        Meaning::TimerEntry => {
            let function = (int(0) != 0).then(|| names.number(Number::Address, int(0)));
            Op::TimerEntry { function }
        }
        Meaning::CsdQueue => Op::CallCpu { name: names.number(Number::Address, int(0)) },
        Meaning::IpiRaise => Op::IpiSend { name: names.number(Number::IpiReason, int(0)) },
        Meaning::IpiEntry => {
            Op::VectorEntry { name: names.number(Number::IpiReason, int(0)), vector: Vector::Ipi }
        }
        Meaning::IpiExit => Op::VectorExit { name: names.number(Number::IpiReason, int(0)) },
        Meaning::WorkQueue => {
            Op::WorkQueue { work: int(0), function: names.number(Number::Address, int(1)) }
        }
        Meaning::WorkStart => {
            Op::WorkStart { work: int(0), function: names.number(Number::Address, int(1)) }
        }
        Meaning::WorkEnd => Op::WorkEnd { work: int(0) },
        Meaning::CgroupReclaim => Op::Sign(Sign::CgroupReclaim),
        Meaning::Reclaim => Op::Sign(Sign::Reclaim),
        Meaning::Dirty => Op::Sign(Sign::Dirty),
        Meaning::Delivered => Op::Sign(Sign::Delivered),
        Meaning::TcpAgain => Op::Sign(Sign::again(int(0), int(1))),
        Meaning::QemuRead
        | Meaning::QemuWrite
        | Meaning::QemuIn
        | Meaning::QemuOut
        | Meaning::QemuDeviceRead
        | Meaning::QemuDeviceWrite => Op::Other,
    }
}
