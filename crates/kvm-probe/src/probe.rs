//! Does `/dev/kvm` run guest code, and at what speed, decided within a budget.

use crate::capabilities::{self, Capability};
use crate::code;
use crate::cpu::Ring;
use crate::error::{ProbeError, VmError};
use crate::open;
use crate::vcpu::{Stop, Vcpu};
use crate::vm::{Irqchip, Vm};
use kvm_bindings::kvm_regs;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// From this rate on guest code counts as run by the CPU itself, instructions per second.
///
/// Hardware does 2,000 M and more, KVM's instruction emulator about 1 M: anything between
/// tells them apart, also on a host that is busy.
pub const NATIVE_INSNS_PER_S: f64 = 1e8;

/// Port the guest reports on; no in-kernel device has it.
const DONE_PORT: u8 = 0xf4;
/// Loop iterations of the first round: 2,000 x 2 instructions, 4 ms if interpreted.
const FIRST_ITERATIONS: u64 = 2_000;
/// A round this long makes the cost of the exit (20 us and less) too small to matter.
const LONG_ENOUGH: Duration = Duration::from_millis(5);
/// What the helper thread may need beyond the budget before it is given up on.
const GRACE: Duration = Duration::from_millis(500);

/// How guest code of one ring is run.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "kind", rename_all = "kebab-case"))]
pub enum Quality {
    /// By the CPU: [`NATIVE_INSNS_PER_S`] or faster.
    Native {
        /// Measured rate, instructions per second.
        insns_per_s: f64,
    },
    /// By software, one instruction after the other.
    Interpreted {
        /// Measured rate, instructions per second.
        insns_per_s: f64,
    },
    /// Not at all.
    Absent {
        /// Why: what KVM answered, or that the budget ran out.
        reason: String,
    },
}

impl Quality {
    fn of_rate(insns_per_s: f64) -> Self {
        if insns_per_s >= NATIVE_INSNS_PER_S {
            Quality::Native { insns_per_s }
        } else {
            Quality::Interpreted { insns_per_s }
        }
    }

    /// True if the CPU runs it.
    pub fn is_native(&self) -> bool {
        matches!(self, Quality::Native { .. })
    }
}

impl std::fmt::Display for Quality {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Quality::Native { insns_per_s } => {
                write!(f, "native, {:.1} G instructions/s", insns_per_s / 1e9)
            }
            Quality::Interpreted { insns_per_s } => {
                write!(f, "interpreted, {:.2} M instructions/s", insns_per_s / 1e6)
            }
            Quality::Absent { reason } => write!(f, "absent: {reason}"),
        }
    }
}

/// What a KVM node was found to be.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Probe {
    /// `KVM_GET_API_VERSION`: 12.
    pub api_version: i32,
    /// Kernel-mode guest code: what a guest kernel needs.
    pub ring0: Quality,
    /// User-mode guest code: what the dirty-page and I/O experiments need.
    pub ring3: Quality,
    /// Capabilities that the experiments use, absent ones with 0.
    pub capabilities: Vec<Capability>,
    /// The module behind the node, e.g. `kvm_intel`; none if /sys does not say.
    pub module: Option<String>,
}

impl Probe {
    /// True if a guest with a kernel is worth booting in it.
    pub fn boots_kernels(&self) -> bool {
        self.ring0.is_native()
    }

    /// A capability's value, 0 where absent or not listed.
    pub fn capability(&self, name: &str) -> i32 {
        self.capabilities.iter().find(|c| c.name == name).map_or(0, |c| c.value)
    }

    /// The finding in one sentence, with what to do.
    pub fn summary(&self) -> String {
        let module = self.module.as_deref().unwrap_or("module unknown");
        match &self.ring0 {
            Quality::Native { .. } => {
                format!("how KVM ({module}) runs a guest's kernel mode: {}", self.ring0)
            }
            Quality::Interpreted { .. } => format!(
                "KVM ({module}) emulates each instruction that the guest runs in kernel mode, and \
                    this is too slow to boot a kernel (kernel mode: {}; user mode: {})",
                self.ring0, self.ring3
            ),
            Quality::Absent { reason } => {
                format!("KVM ({module}) cannot run guest code in kernel mode: {reason}")
            }
        }
    }
}

/// Probes `/dev/kvm`. Returns within `budget` and half a second, whatever the host does.
///
/// # Errors
/// The node is not there, may not be opened, or is none; see [`ProbeError`]. A node that
/// opens but can't run guests is no error: [`Quality::Absent`] says why.
pub fn probe(budget: Duration) -> Result<Probe, ProbeError> {
    probe_node(Path::new("/dev/kvm"), budget)
}

/// As [`probe`], for another node.
pub fn probe_node(node: &Path, budget: Duration) -> Result<Probe, ProbeError> {
    let started = Instant::now();
    let kvm = open::open(node)?;
    let absent = || Quality::Absent {
        reason: format!("a call to KVM did not return within {} ms", (budget + GRACE).as_millis()),
    };
    let mut found = Probe {
        api_version: kvm.get_api_version(),
        ring0: absent(),
        ring3: absent(),
        capabilities: capabilities::list(|c| kvm.check_extension_raw(c)),
        module: capabilities::module(),
    };
    drop(kvm);
    let (sender, results) = mpsc::channel();
    let node = node.to_path_buf();
    // Not joined: an ioctl that ignores signals must not hold the caller.
    std::thread::Builder::new()
        .name("kvm-probe".into())
        .spawn(move || {
            for (ring, share) in [(Ring::Three, budget / 2), (Ring::Zero, budget)] {
                let quality = measure(&node, ring, started + share);
                if sender.send((ring, quality)).is_err() {
                    return;
                }
            }
        })
        .map_err(ProbeError::Thread)?;
    let give_up = started + budget + GRACE;
    while let Ok((ring, quality)) =
        results.recv_timeout(give_up.saturating_duration_since(Instant::now()))
    {
        match ring {
            Ring::Three => found.ring3 = quality,
            Ring::Zero => found.ring0 = quality,
        }
    }
    Ok(found)
}

fn measure(node: &Path, ring: Ring, deadline: Instant) -> Quality {
    // Some KVMs lack an in-kernel irqchip; the probe's guest needs none.
    let vcpu = guest(node, Irqchip::Full).or_else(|_| guest(node, Irqchip::None));
    match vcpu.and_then(|mut vcpu| rate(&mut vcpu, ring, deadline)) {
        Ok(Some(insns_per_s)) => Quality::of_rate(insns_per_s),
        Ok(None) => Quality::Absent {
            reason: format!(
                "{} guest instructions did not finish within the time allowed",
                2 * FIRST_ITERATIONS
            ),
        },
        Err(e) => Quality::Absent { reason: e.to_string() },
    }
}

fn guest(node: &Path, irqchip: Irqchip) -> Result<Vcpu, VmError> {
    let builder = Vm::builder().node(node).irqchip(irqchip);
    builder.code(code::count_down(DONE_PORT)).build()?.vcpu(0)
}

/// The best rate over growing rounds, so that a moment off the CPU does not decide; none
/// if not even the first round ended in time.
fn rate(vcpu: &mut Vcpu, ring: Ring, deadline: Instant) -> Result<Option<f64>, VmError> {
    let mut iterations = FIRST_ITERATIONS;
    let mut best = None;
    let mut long_rounds = 0;
    while long_rounds < 3 {
        vcpu.enter(ring, kvm_regs { rcx: iterations, ..Default::default() })?;
        let start = Instant::now();
        if vcpu.run_to_out(u16::from(DONE_PORT), Some(deadline))? != Stop::Done(()) {
            break;
        }
        let took = start.elapsed().max(Duration::from_nanos(1));
        let per_s = 2.0 * iterations as f64 / took.as_secs_f64();
        best = Some(best.map_or(per_s, |b: f64| b.max(per_s)));
        if took >= LONG_ENOUGH {
            long_rounds += 1;
        } else {
            let factor = LONG_ENOUGH.as_secs_f64() * 1.5 / took.as_secs_f64();
            iterations = (iterations as f64 * factor.clamp(2.0, 32.0)) as u64;
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Ok(best)
}
