//! Ops from xentrace records.
//!
//! Event ids and layouts are those of Xen's `xen/include/public/trace.h`.

use super::access::Access;
use super::names::{NameId, Number, Resolver};

/// Runstates as records encode them (`xen/include/public/vcpu.h`).
pub const RUNNING: u8 = 0;
/// Could run, no CPU does.
pub const RUNNABLE: u8 = 1;
/// Waits.
pub const BLOCKED: u8 = 2;
/// Neither runnable nor blocked: paused or offline.
pub const OFFLINE: u8 = 3;

/// Events were lost; first seen at the moment the first one was.
pub const LOST_RECORDS: u32 = 0x1f001;
/// The buffer wrapped to its start: no meaning for the reader.
pub const WRAP_BUFFER: u32 = 0x1f002;
/// Heads a CPU's window: CPU, bytes.
pub const CPU_CHANGE: u32 = 0x1f003;
/// Not in the file: recording goes on after lost records.
pub const LOST_RECORDS_END: u32 = 0x1f032;
/// Not in the file: this CPU has no more records.
pub const CPU_END: u32 = 0x1f0ff;

/// Marks the 64-bit form of a record.
const FLAG_64: u32 = 0x100;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XenOp {
    /// The CPU's current vCPU left the guest.
    VmExit {
        /// Reason: VMX's or SVM's numbering, which older records don't tell apart.
        reason: u32,
        /// True if the record says that the numbering is SVM's.
        svm: bool,
    },
    /// The current vCPU enters the guest.
    VmEntry,
    /// What the current VMEXIT is for; a hypercall by VMCALL or VMMCALL.
    Access(Access),
    /// A control register was written in the current VMEXIT.
    CrWrite,
    /// A hypercall of a PV guest; no record says when it ends.
    PvHypercall {
        /// Which.
        name: NameId,
    },
    /// A vCPU's runstate changed on this CPU.
    Runstate {
        /// Domain.
        domain: u16,
        /// vCPU.
        vcpu: u16,
        /// State before.
        old: u8,
        /// State after.
        new: u8,
        /// True if it just goes on running.
        continues: bool,
    },
    /// Records are missing from here on this CPU.
    LostBegin,
    /// Recording goes on.
    LostEnd {
        /// Domain that runs now.
        domain: u16,
        /// vCPU that runs now.
        vcpu: u16,
    },
    /// The CPU's stream ends.
    CpuEnd,
    /// Anything else.
    Other,
}

/// What a record's words mean.
pub(crate) fn decode(event: u32, words: &[u32], names: &mut Resolver) -> XenOp {
    op(event, words, names).unwrap_or(XenOp::Other)
}

fn op(event: u32, words: &[u32], names: &mut Resolver) -> Option<XenOp> {
    let first = words.first().copied();
    Some(match event {
        LOST_RECORDS => XenOp::LostBegin,
        LOST_RECORDS_END => {
            let word = words.get(1).copied()?;
            XenOp::LostEnd { domain: word as u16, vcpu: (word >> 16) as u16 }
        }
        CPU_END => XenOp::CpuEnd,
        0x81001 | 0x81401 => XenOp::VmEntry,
        0x81002 | 0x81102 | 0x81003 | 0x81103 => {
            let whole = if event & FLAG_64 == 0 { 2 } else { 3 };
            if words.len() < whole {
                return None;
            }
            XenOp::VmExit { reason: first?, svm: event & !FLAG_64 == 0x81003 }
        }
        0x82016 => XenOp::Access(Access::Port { port: first?, write: false }),
        0x82216 => XenOp::Access(Access::Port { port: first?, write: true }),
        0x82017 | 0x82217 => mmio(u64::from(first?), event),
        0x82117 | 0x82317 => mmio(u64::from(first?) | u64::from(*words.get(1)?) << 32, event),
        0x82009 | 0x82109 => XenOp::CrWrite,
        0x8200c => XenOp::Access(Access::Msr { index: first?, write: false }),
        0x8200d => XenOp::Access(Access::Msr { index: first?, write: true }),
        0x82012 => {
            let name = names.number(Number::XenHypercall, u64::from(first?));
            XenOp::Access(Access::Hypercall { name })
        }
        0x20100d | 0x20200e => {
            let number = u64::from(first? & 0xf_ffff);
            XenOp::PvHypercall { name: names.number(Number::XenHypercall, number) }
        }
        0x201001 | 0x201101 => {
            let number = u64::from(*words.last()?);
            XenOp::PvHypercall { name: names.number(Number::XenHypercall, number) }
        }
        0x21002 => runstate(RUNNING, RUNNING, true, words)?,
        _ if event & 0xf_f00f == 0x2_1001 => {
            runstate((event >> 8 & 0xf) as u8, (event >> 4 & 0xf) as u8, false, words)?
        }
        _ => return None,
    })
}

fn mmio(address: u64, event: u32) -> XenOp {
    XenOp::Access(Access::Mmio { address, write: event & 0x200 != 0 })
}

fn runstate(old: u8, new: u8, continues: bool, words: &[u32]) -> Option<XenOp> {
    let word = *words.first()?;
    if old > OFFLINE || new > OFFLINE {
        return None;
    }
    let (vcpu, domain) = (word as u16, (word >> 16) as u16);
    Some(XenOp::Runstate { domain, vcpu, old, new, continues })
}

/// Name of an event, from Xen's header.
pub fn event_name(event: u32) -> String {
    const NAMES: &[(u32, &str)] = &[
        (LOST_RECORDS, "lost_records"),
        (WRAP_BUFFER, "wrap_buffer"),
        (CPU_CHANGE, "cpu_change"),
        (0x21002, "continue_running"),
        (0x81001, "VMENTRY"),
        (0x81002, "VMEXIT"),
        (0x81102, "VMEXIT64"),
        (0x81003, "SVM_EXIT"),
        (0x81103, "SVM_EXIT64"),
        (0x82004, "INJ_VIRQ"),
        (0x82008, "CR_READ"),
        (0x82108, "CR_READ64"),
        (0x82009, "CR_WRITE"),
        (0x82109, "CR_WRITE64"),
        (0x8200c, "MSR_READ"),
        (0x8200d, "MSR_WRITE"),
        (0x8200e, "CPUID"),
        (0x8200f, "INTR"),
        (0x82012, "VMMCALL"),
        (0x82013, "HLT"),
        (0x82016, "IOPORT_READ"),
        (0x82216, "IOPORT_WRITE"),
        (0x82017, "IOMEM_READ"),
        (0x82217, "IOMEM_WRITE"),
        (0x82117, "IOMEM_READ64"),
        (0x82317, "IOMEM_WRITE64"),
        (0x82020, "INTR_WINDOW"),
        (0x82021, "NPF"),
        (0x20100d, "PV_HYPERCALL_V2"),
        (0x20200e, "PV_HYPERCALL_SUBCALL"),
    ];
    match NAMES.iter().find(|(id, _)| *id == event) {
        Some((_, name)) => name.to_string(),
        None if event & 0xf_f00f == 0x2_1001 => "runstate_change".to_string(),
        None => format!("{event:#x}"),
    }
}
