//! Ops from the texts that the kernel's `print fmt` or QEMU's trace backend makes.
//!
//! The same event reads differently in tracefs, in `trace-cmd report` (whose
//! plugins rewrite some) and in `perf script`; all spellings are tried here.

use super::access::Access;
use super::binary::hypercall;
use super::meaning::Meaning;
use super::names::{NameId, Number, Resolver};
use super::op::{Lock, Op, Sleep, Vector};
use super::sign::Sign;
use crate::text::{after, hex, number, number_after, split, split_after};

pub(crate) fn decode(meaning: Meaning, text: &str, names: &mut Resolver) -> Op {
    known(meaning, text, names).unwrap_or(Op::Other)
}

fn known(meaning: Meaning, text: &str, names: &mut Resolver) -> Option<Op> {
    Some(match meaning {
        Meaning::KvmExit => Op::VmExit { reason: exit_reason(text, names) },
        Meaning::KvmEntry => Op::VmEntry,
        Meaning::KvmUserspaceExit => {
            Op::UserspaceExit { reason: names.names.id(after(text, "reason ")?) }
        }
        Meaning::KvmPio => Op::Access(Access::Port {
            port: pio_port(text)? as u32 & 0xffff,
            write: text.starts_with("pio_write"),
        }),
        Meaning::KvmMmio => Op::Access(Access::Mmio {
            address: hex(after(text, "gpa ")?)?,
            write: text.starts_with("mmio write"),
        }),
        Meaning::KvmFastMmio => Op::Access(Access::Mmio {
            address: hex(after(text, "at gpa ").or(after(text, "gpa "))?)?,
            write: true,
        }),
        Meaning::KvmMsr => {
            let write = text.starts_with("msr_write");
            let index = after(text, "msr_write ").or_else(|| after(text, "msr_read "))?;
            Op::Access(Access::Msr { index: hex(index)? as u32, write })
        }
        Meaning::KvmHypercall => {
            hypercall(names.number(Number::Hypercall, hex(after(text, "nr ")?)?))
        }
        Meaning::KvmHvHypercall => {
            hypercall(names.number(Number::HvHypercall, hex(after(text, "code ")?)?))
        }
        Meaning::KvmXenHypercall => {
            hypercall(names.number(Number::XenHypercall, hex(after(text, "nr ")?)?))
        }
        Meaning::RawSysEnter => raw_enter(text, names)?,
        Meaning::RawSysExit => {
            let none = || text.starts_with("NR -1").then_some(u64::MAX);
            let number = number_after(text, "NR ").or_else(none)?;
            super::binary::exit(number, returned(text), names)
        }
        Meaning::IrqEntry => {
            Op::IrqEntry { irq: names.irq(number_after(text, "irq=")?, after(text, "name=")) }
        }
        Meaning::IrqExit => Op::IrqExit,
        Meaning::SoftirqEntry => super::binary::softirq(number_after(text, "vec=")?, names),
        Meaning::SoftirqExit => Op::SoftirqExit,
        Meaning::PageFault => Op::PageFault,
        Meaning::Fork => Op::Fork { child: number_after(text, "child_pid=")? as i32 },
        Meaning::LockWait => Op::LockWait { lock: lock(text)?, kind: lock_kind(text) },
        Meaning::LockWaited => Op::LockWaited { lock: lock(text)? },
        Meaning::IpiRaise | Meaning::IpiSend => Op::IpiSend { name: ipi(text, names) },
        Meaning::CsdQueue => {
            let function = after(text, "func=")?;
            let function = function.split(['+', ',']).next().unwrap_or(function);
            Op::CallCpu { name: names.names.id(function) }
        }
        Meaning::TimerEntry => {
            let function = after(text, "function=").map(|function| names.names.id(function));
            Op::TimerEntry { function }
        }
        Meaning::IpiEntry => Op::VectorEntry { name: ipi(text, names), vector: Vector::Ipi },
        Meaning::IpiExit => Op::VectorExit { name: ipi(text, names) },
        Meaning::WorkQueue | Meaning::WorkStart | Meaning::WorkEnd => work(meaning, text, names)?,
        Meaning::Switch => switch(text)?,
        Meaning::Wake => Op::Wake { tid: wake(text)?, new: false },
        Meaning::WakeNew => Op::Wake { tid: wake(text)?, new: true },
        Meaning::QemuRead => region(text, false)?,
        Meaning::QemuWrite => region(text, true)?,
        Meaning::QemuIn | Meaning::QemuOut => Op::Logged(Access::Port {
            port: hex(after(text, "addr ")?.split('(').next()?)? as u32 & 0xffff,
            write: meaning == Meaning::QemuOut,
        }),
        Meaning::CgroupReclaim => Op::Sign(Sign::CgroupReclaim),
        Meaning::Reclaim => Op::Sign(Sign::Reclaim),
        Meaning::Dirty => Op::Sign(Sign::Dirty),
        Meaning::Delivered => Op::Sign(Sign::Delivered),
        Meaning::TcpAgain => {
            let state = after(text, "state=").unwrap_or_default();
            Op::Sign(Sign::again_by_name(state, number_after(text, "dport=").unwrap_or(0)))
        }
        Meaning::QemuDeviceRead | Meaning::QemuDeviceWrite => {
            let port = hex(after(text, "@ ")?)? as u32 & 0xffff;
            let write = meaning == Meaning::QemuDeviceWrite;
            Op::LoggedByDevice(Access::Port { port, write })
        }
    })
}

/// What a call returned: `NR 56 = 0`, `sys_clone -> 0x0`, `__syscall_nr=56 ret=0x0`.
pub(super) fn returned(text: &str) -> Option<i64> {
    let text = text.trim_ascii_end();
    let begin = memchr::memrchr3(b' ', b'=', b'>', text.as_bytes()).map_or(0, |at| at + 1);
    number(&text[begin..]).map(|value| value as i64)
}

fn exit_reason(text: &str, names: &mut Resolver) -> NameId {
    match after(text, "reason ") {
        Some(reason) => names.names.id(reason),
        // arm64: `TRAP: HSR_EC: 0x0024 (DABT_LOW), PC: 0x…` or `IRQ: …`.
        None => {
            let class = text.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
            names.names.id(class.map_or("unknown", |(class, _)| class))
        }
    }
}

/// `pio_write at 0x3f8 size 1`; older kernels print the same in decimal.
fn pio_port(text: &str) -> Option<u64> {
    number(after(text, "at ")?)
}

fn raw_enter(text: &str, names: &mut Resolver) -> Option<Op> {
    let number = number_after(text, "NR ")?;
    let name = names.number(Number::Syscall, number);
    if names.names.name(name) == "ioctl" {
        let (_, arguments) = text.split_once('(')?;
        let request = arguments.split([',', ')']).nth(1).and_then(|a| hex(a.trim()))?;
        return Some(super::binary::ioctl(name, request as u32, names));
    }
    if names.names.name(name) == "futex" {
        let arguments = text.split_once('(').map_or("", |(_, arguments)| arguments);
        let mut words = arguments.split([',', ')']).skip(1).map(|word| hex(word.trim()));
        if let (Some(Some(operation)), Some(Some(value))) = (words.next(), words.next()) {
            return Some(super::binary::futex(name, operation as u32, value as u32, names));
        }
    }
    Some(Op::SyscallEnter { name, request: None, kvm_run: false })
}

/// `fd: 0x0d, cmd: 0xae80`, `fd: d, cmd: ae80` or `fd=0x0d cmd=0xae80`.
pub(crate) fn ioctl(name: NameId, text: &str, names: &mut Resolver) -> Op {
    let request = after(text, "cmd:").or_else(|| after(text, "cmd=")).and_then(hex);
    match request {
        Some(request) => super::binary::ioctl(name, request as u32, names),
        None => Op::SyscallEnter { name, request: None, kvm_run: false },
    }
}

/// `op: 0x81, val: 1` or `op=0x81 val=1`.
pub(crate) fn futex(name: NameId, text: &str, names: &mut Resolver) -> Op {
    let word = |names: [&str; 2]| names.iter().find_map(|name| after(text, name)).and_then(hex);
    match (word(["op:", "op="]), word(["val:", "val="])) {
        (Some(operation), Some(value)) => {
            super::binary::futex(name, operation as u32, value as u32, names)
        }
        _ => Op::SyscallEnter { name, request: None, kvm_run: false },
    }
}

/// `target_mask=… (reason)`, `(reason)`, or `cpu=1 callsite=a callback=b`.
fn ipi(text: &str, names: &mut Resolver) -> NameId {
    if let Some(callback) = after(text, "callback=") {
        let callback = callback.split('+').next().unwrap_or(callback);
        return match callback {
            "0x0" | "" => names.names.id("send reschedule"),
            callback => names.names.id(callback),
        };
    }
    let inside = text.rsplit_once('(').map_or(text, |(_, rest)| rest);
    names.names.id(inside.trim_end().trim_end_matches(')'))
}

/// `00000000c0ffee00 (flags=SPIN|WRITE)`, or of perf's own printing `lock_addr=0x… flags=…`.
fn lock(text: &str) -> Option<u64> {
    let address = after(text, "lock_addr=").or_else(|| text.split_whitespace().next())?;
    hex(address)
}

fn lock_kind(text: &str) -> Lock {
    let flags = after(text, "flags=").unwrap_or("").trim_end_matches([')', ',']);
    match number(flags) {
        Some(flags) => Lock::of_flags(flags),
        None => Lock::of_words(flags),
    }
}

fn work(meaning: Meaning, text: &str, names: &mut Resolver) -> Option<Op> {
    let item = after(text, "work struct=").or_else(|| after(text, "work struct "));
    let item = item.or_else(|| after(text, "work="))?;
    let work = hex(item.trim_end_matches(':'))?;
    if meaning == Meaning::WorkEnd {
        return Some(Op::WorkEnd { work });
    }
    let function = after(text, "function=").or_else(|| after(text, "function "))?;
    let function = names.names.id(function);
    Some(match meaning {
        Meaning::WorkQueue => Op::WorkQueue { work, function },
        _ => Op::WorkStart { work, function },
    })
}

/// tracefs: `prev_pid=1 … prev_state=R+ ==> … next_pid=2`;
/// trace-cmd: `comm:1 [120] R ==> comm:2 [120]`.
fn switch(text: &str) -> Option<Op> {
    let (from, to) = split(text, "==>").unwrap_or((text, text));
    if let Some((prev, rest)) = split_after(from, "prev_pid=") {
        let prev = number(prev)?;
        let prio = split_after(rest, "prev_prio=");
        let (prio, rest) = prio.map_or((None, rest), |(prio, rest)| (number(prio), rest));
        let state = after(rest, "prev_state=")?;
        let runnable = match number(state) {
            Some(bits) => bits & 0xff == 0,
            None => state.starts_with('R'),
        };
        let next = number_after(to, "next_pid=")?;
        let sleep = number(state).map_or(asleep(state), super::binary::asleep);
        let prio = prio.map(|prio| prio as i16);
        return Some(Op::Switch { prev: prev as i32, runnable, sleep, prio, next: next as i32 });
    }
    let tid = |side: &str| -> Option<i32> {
        let (head, _) = side.rsplit_once('[')?;
        head.trim_end().rsplit_once(':')?.1.parse().ok()
    };
    let state = from.rsplit_once(']')?.1.trim();
    let (runnable, sleep) = (state.starts_with('R'), asleep(state));
    let prio = from.rsplit_once('[').and_then(|(_, rest)| rest.split_once(']')?.0.parse().ok());
    Some(Op::Switch { prev: tid(from)?, runnable, sleep, prio, next: tid(to)? })
}

/// How a thread sleeps, by the letter of `prev_state`.
fn asleep(state: &str) -> Sleep {
    match state.as_bytes().first() {
        Some(b'D') => Sleep::Deep,
        Some(b'T' | b't') => Sleep::Stopped,
        Some(b'Z' | b'X' | b'x') => Sleep::Dead,
        _ => Sleep::Light,
    }
}

/// `comm=x pid=15 …` or trace-cmd's `comm:15 [120] CPU:001`.
fn wake(text: &str) -> Option<i32> {
    if let Some(pid) = number_after(text, "pid=") {
        return Some(pid as i32);
    }
    let (head, _) = text.split_once(" [")?;
    head.rsplit_once(':')?.1.trim().parse().ok()
}

/// Accesses below 64 KiB are ports: a PC has RAM at those physical addresses.
fn region(text: &str, write: bool) -> Option<Op> {
    let address = hex(after(text, "addr ")?)?;
    Some(Op::Logged(match u32::try_from(address) {
        Ok(port @ 0..=0xffff) => Access::Port { port, write },
        _ => Access::Mmio { address, write },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(meaning: Meaning, text: &str) -> Op {
        decode(meaning, text, &mut Resolver::default())
    }

    #[test]
    fn a_clone_returns_in_the_parent_and_in_the_child() {
        assert_eq!(op(Meaning::RawSysExit, "NR 56 = 0"), Op::ThreadStart);
        assert!(matches!(op(Meaning::RawSysExit, "NR 56 = 510"), Op::SyscallExit { .. }));
        assert!(matches!(op(Meaning::RawSysExit, "NR 0 = 0"), Op::SyscallExit { .. }));
        let handler = op(Meaning::RawSysExit, "NR 15 = -4");
        assert_eq!(op(Meaning::RawSysExit, "NR -1 = -4"), handler, "rt_sigreturn");
        assert_eq!(returned("sys_clone -> 0x0"), Some(0));
        assert_eq!(returned("__syscall_nr=435 ret=0x0 "), Some(0));
        assert_eq!(returned("sys_clone -> 0x1766"), Some(0x1766));
        assert_eq!((returned("NR 1 = -4"), returned("")), (Some(-4), None));
    }

    #[test]
    fn every_spelling_of_a_switch_is_read() {
        let switch =
            |prio| Op::Switch { prev: 131, runnable: true, sleep: Sleep::Light, prio, next: 2 };
        let want = switch(Some(120));
        let tracefs = "prev_comm=q x prev_pid=131 prev_prio=120 prev_state=R+ ==> next_comm=a:b [c next_pid=2 next_prio=0";
        assert_eq!(op(Meaning::Switch, tracefs), want);
        assert_eq!(op(Meaning::Switch, "q:w:131 [120] R ==> a:2 [120]"), want);
        assert_eq!(op(Meaning::Switch, "prev_pid=131 prev_state=0 next_pid=2"), switch(None));
        assert_eq!(op(Meaning::Switch, "nonsense"), Op::Other);
    }

    #[test]
    fn locks_are_read_in_every_spelling() {
        let lock = 0xffff_8881_0000_1234;
        let wait = |kind| Op::LockWait { lock, kind };
        for (text, kind) in [
            ("0xffff888100001234 (flags=SPIN)", Lock::Spinlock),
            ("ffff888100001234 (flags=SPIN|WRITE)", Lock::Rwlock),
            ("0xffff888100001234 (flags=WRITE)", Lock::Rwsem),
            ("0xffff888100001234 (flags=SPIN|MUTEX)", Lock::Mutex),
            ("0xffff888100001234 (flags=)", Lock::Semaphore),
            ("lock_addr=0xffff888100001234 flags=0x10", Lock::PercpuRwsem),
        ] {
            assert_eq!(op(Meaning::LockWait, text), wait(kind), "{text}");
        }
        let ended = op(Meaning::LockWaited, "0xffff888100001234 (ret=0)");
        assert_eq!(ended, Op::LockWaited { lock });
        assert_eq!(op(Meaning::LockWait, ""), Op::Other);
    }

    #[test]
    fn accesses_are_read() {
        let pio = "pio_write at 0x3f8 size 1 count 1 val 0x35 ";
        assert_eq!(op(Meaning::KvmPio, pio), Op::Access(Access::Port { port: 0x3f8, write: true }));
        let mmio = "mmio read len 4 gpa 0xfee00020 val 0x0";
        assert_eq!(
            op(Meaning::KvmMmio, mmio),
            Op::Access(Access::Mmio { address: 0xfee00020, write: false })
        );
        let msr = "msr_read c0000080 = 0x0";
        assert_eq!(
            op(Meaning::KvmMsr, msr),
            Op::Access(Access::Msr { index: 0xc0000080, write: false })
        );
        let region = "cpu 0 mr 0x55a3bbc47fe0 addr 0x70 value 0x8f size 1 name 'rtc-index'";
        assert_eq!(
            op(Meaning::QemuWrite, region),
            Op::Logged(Access::Port { port: 0x70, write: true })
        );
        let ide = "IDE PIO rd @ 0x1f0 (Data: Word); val 0x6788; bus 0x55e618 IDEState 0x55e61";
        assert_eq!(
            op(Meaning::QemuDeviceRead, ide),
            Op::LoggedByDevice(Access::Port { port: 0x1f0, write: false })
        );
        let region = "cpu -1 mr 0x1 addr 0xfee00000 value 0x0 size 4 name 'apic-msi'";
        assert_eq!(
            op(Meaning::QemuRead, region),
            Op::Logged(Access::Mmio { address: 0xfee00000, write: false })
        );
    }

    #[test]
    fn requests_of_ioctl_are_named_in_every_spelling() {
        for text in [
            "fd: 0x0000000d, cmd: 0x0000ae80, arg: 0",
            "fd: d, cmd: ae80, arg: 0",
            "fd=0xd cmd=0xae80",
        ] {
            let mut names = Resolver::default();
            let name = names.names.id("ioctl");
            let Op::SyscallEnter { request: Some(request), kvm_run: true, .. } =
                ioctl(name, text, &mut names)
            else {
                panic!("no KVM_RUN in {text}");
            };
            assert_eq!(names.names.name(request), "KVM_RUN");
        }
    }
}
