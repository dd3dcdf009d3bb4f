//! From the guest's TSC to the run's clock.
//!
//! The guest's kernel stamps its trace with its own TSC (`trace_clock=x86-tsc`),
//! which differs from the host's by a constant for a whole run:
//!
//! - **TCG**: QEMU gives the guest `host TSC - host TSC when the machine began to
//!   run` (system/cpu-timers.c, `cpu_enable_ticks`), so it is 0 at the moment
//!   `vm-start`, which QEMU's trace has.
//! - **icount**: the guest's TSC is virtual time in ns since that same moment.
//!   It stays virtual: host time plays no part, so that runs are identical.
//! - **KVM**: the constant is in debugfs, where root can read it
//!   (`/sys/kernel/debug/kvm/PID-FD/vcpu0/tsc-offset`).
//! - Otherwise the guest's TSC is taken to have started with its vCPU: after the
//!   VMM's `main`, before `vm-start`, and early enough that the last event is
//!   before the VMM's exit. The middle of that interval is used, and half of it
//!   is the error.

use crate::clock::Conversion;
use crate::source::SourceError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Ns, RunRecord};

/// Parameter: the guest's TSC less the host's, cycles, as KVM keeps it.
pub const TSC_OFFSET: &str = "tsc_offset";
/// Parameter: the accelerator, as in [`crate::source::Context::accel`].
pub const ACCEL: &str = "accel";

/// Between `cpu_enable_ticks` and the stamp of the trace event that follows it,
/// and the stamp's own resolution of 1 us.
const TCG_ERROR_NS: Ns = 50_000;

/// The offset is exact; this is for the pairing of host clocks.
const KVM_ERROR_NS: Ns = 1_000;

/// Of a guest whose TSC can't be tied to the host's: what a VMM usually takes from
/// `main` to its machine's start. Decoding works out the bound of the run at hand.
const UNKNOWN_ERROR_NS: Ns = 50_000_000;

/// The guest's TSC on the run's clock (0 = exec).
#[derive(Debug, Clone, Copy)]
pub struct GuestClock {
    rate: f64,
    /// The run's time when the guest's TSC was 0.
    zero: f64,
    /// Error bound, ns.
    pub error_ns: Ns,
}

impl GuestClock {
    /// Aligns the guest's TSC for a run; `last` is the guest's latest stamp.
    ///
    /// # Errors
    /// When the run has no clock readings.
    pub fn of(run: &RunRecord, source: &SourceRecord, last: u64) -> Result<Self, SourceError> {
        if run.icount {
            return Ok(GuestClock { rate: 1.0, zero: 0.0, error_ns: 0 });
        }
        let host = Conversion::from_tsc(&run.clocks).ok_or_else(|| {
            SourceError::Other(format!(
                "{}: run.json has no two TSC readings, so that guest time can't be aligned",
                source.name
            ))
        })?;
        let clock = |zero: f64, error_ns| GuestClock { rate: host.rate(), zero, error_ns };
        if let Some(offset) = source.parameters.get(TSC_OFFSET).and_then(Value::as_i64) {
            let zero = host.to_monotonic(-(offset as f64)) - run.exec_ns;
            return Ok(clock(zero as f64, host.error_ns));
        }
        let moment =
            |name: &str| run.moments.iter().find(|(_, n)| n == name).map(|&(at, _)| at as f64);
        let start = moment("vm-start");
        let accel = source.parameters.get(ACCEL).and_then(Value::as_str);
        if let (Some("tcg"), Some(zero)) = (accel, start) {
            return Ok(clock(zero, TCG_ERROR_NS));
        }
        let end = moment("vmm-exiting").unwrap_or(run.total_ns as f64);
        let latest = start.unwrap_or(end).min(end - last as f64 * host.rate()).max(0.0);
        let earliest = moment("vmm-main").unwrap_or(0.0).min(latest);
        Ok(clock((earliest + latest) / 2.0, ((latest - earliest) / 2.0).ceil() as Ns))
    }

    /// The run's time of a guest stamp, ns after the exec.
    pub fn at(&self, tsc: u64) -> Ns {
        (self.zero + tsc as f64 * self.rate).round() as Ns
    }
}

/// What KVM adds to the host's TSC in a VMM's first vCPU, if debugfs tells.
pub fn kvm_tsc_offset(pid: i32) -> Option<i64> {
    tsc_offset_in(Path::new("/sys/kernel/debug/kvm"), pid)
}

fn tsc_offset_in(folder: &Path, pid: i32) -> Option<i64> {
    let prefix = format!("{pid}-");
    let machine = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .find(|e| e.file_name().to_string_lossy().starts_with(&prefix))?;
    let text = std::fs::read_to_string(machine.path().join("vcpu0/tsc-offset")).ok()?;
    text.trim().parse().ok()
}

/// The record of a source on this clock.
pub fn record(
    name: &str,
    file: &str,
    accel: Option<&str>,
    tsc_offset: Option<i64>,
) -> SourceRecord {
    let (clock, error_ns) = match (accel, tsc_offset) {
        (Some("icount"), _) => ("virtual time, ns since the machine began to run", 0),
        (_, Some(_)) => ("guest TSC, by KVM's TSC offset", KVM_ERROR_NS),
        (Some("tcg"), None) => ("guest TSC, 0 when the machine began to run", TCG_ERROR_NS),
        _ => ("guest TSC, 0 between the VMM's main and the machine's start", UNKNOWN_ERROR_NS),
    };
    let mut parameters = BTreeMap::new();
    parameters.extend(accel.map(|accel| (ACCEL.to_owned(), Value::from(accel))));
    parameters.extend(tsc_offset.map(|offset| (TSC_OFFSET.to_owned(), Value::from(offset))));
    SourceRecord {
        name: name.into(),
        files: vec![file.into()],
        clock: clock.into(),
        error_ns,
        parameters,
    }
}
