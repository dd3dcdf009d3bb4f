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
//!   (`/sys/kernel/debug/kvm/TID-FD/vcpu0/tsc-offset`), and in the event
//!   `kvm_write_tsc_offset` ([`crate::sources::kvm_trace`]).
//! - Otherwise the guest's TSC is taken to have started with its vCPU: after the
//!   VMM's `main`, before `vm-start`, and early enough that the last event is
//!   before the VMM's exit, and under TCG when a vCPU's thread was first at work
//!   ([`crate::sources::vmm_threads`]). The middle of that interval is used, and half
//!   of it is the error.

use crate::clock::Conversion;
use crate::recorder::{self, Recorder, SourceError};
use crate::sources::vmm_threads::vcpu_began;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use vmeter_machine::launch::kvm;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Accel, Moment, Ns, RunRecord};

/// What is known of the guest's clock besides the stamps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// The accelerator, as in [`crate::recorder::Context::accel`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<Accel>,
    /// The guest's TSC less the host's.
    #[serde(flatten)]
    pub offset: TscOffset,
}

/// The guest's TSC less the host's, as KVM keeps it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TscOffset {
    /// Cycles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc_offset: Option<i64>,
    /// How far it was from that while the guest ran, cycles. A host whose own TSC is not
    /// stable moves it whenever a vCPU has been off its CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc_offset_spread: Option<u64>,
}

/// Between `cpu_enable_ticks` and the stamp of the trace event that follows it.
/// Measured by the TCG plugin, which enters each initcall after the trace says that
/// it starts and leaves it before the trace says that it ended: over 565 initcalls
/// of each of several boots the tightest of these were 4.2 and 0.6 us apart, so the
/// offset was right to 5 us. A host that preempts QEMU just there adds to that.
const TCG_ERROR_NS: Ns = 20_000;

/// Between `cpu_enable_ticks` and the earliest that the vCPU's thread can have gone on: at most so long
/// in 24 boots on a busy host.
const BEFORE_VCPU_NS: Ns = 1_000_000;

/// The offset is exact; this is for the pairing of host clocks.
const KVM_ERROR_NS: Ns = 1_000;
const BY_KVM_OFFSET: &str = "guest TSC, aligned by KVM's TSC offset";

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
    pub fn of(run: &RunRecord, known: &Parameters, last: u64) -> Result<Self, SourceError> {
        let end = run.moment(&Moment::VmmExiting).unwrap_or(run.total_ns);
        Self::read_at(run, known, last, end)
    }

    /// As [`GuestClock::of`], with a stamp that was there at `end`, ns after the exec.
    ///
    /// # Errors
    /// When the run has no clock readings.
    pub fn read_at(
        run: &RunRecord,
        known: &Parameters,
        last: u64,
        end: Ns,
    ) -> Result<Self, SourceError> {
        if run.icount {
            return Ok(GuestClock { rate: 1.0, zero: 0.0, error_ns: 0 });
        }
        let host = Conversion::from_tsc(&run.clocks).ok_or_else(|| {
            SourceError::Other(
                "vmeter needs two TSC readings to align guest time, but run.json has fewer".into(),
            )
        })?;
        let clock = |zero: f64, error_ns| GuestClock { rate: host.rate(), zero, error_ns };
        if let Some(offset) = known.offset.tsc_offset {
            let zero = host.to_monotonic(-(offset as f64)).saturating_sub(run.exec_ns);
            let spread = known.offset.tsc_offset_spread.unwrap_or(0);
            let spread_ns = (spread as f64 * host.rate()).ceil() as Ns;
            return Ok(clock(zero as f64, host.error_ns.saturating_add(spread_ns)));
        }
        let moment = |moment| run.moment(&moment).map(|at| at as f64);
        let start = moment(Moment::VmStart);
        if let (Some(Accel::Tcg), Some(zero)) = (known.accel, start) {
            return Ok(clock(zero, TCG_ERROR_NS));
        }
        let end = end as f64;
        let latest = start.unwrap_or(end).min(end - last as f64 * host.rate()).max(0.0);
        let earliest = moment(Moment::VmmMain).unwrap_or(0.0).min(latest);
        // Ticks are enabled before the vCPU goes on, by a thread that may lose its CPU in between.
        let began = vcpu_began(run).filter(|_| known.accel == Some(Accel::Tcg));
        let (earliest, latest) = began.map_or((earliest, latest), |(from, to)| {
            let from = earliest.max(from as f64 - BEFORE_VCPU_NS as f64).min(latest);
            (from, latest.min(to as f64).max(from))
        });
        Ok(clock((earliest + latest) / 2.0, ((latest - earliest) / 2.0).ceil() as Ns))
    }

    /// ns of a cycle of the guest's TSC.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The run's time of a guest stamp, ns after the exec.
    pub fn at(&self, tsc: u64) -> Ns {
        (self.zero + tsc as f64 * self.rate).round() as Ns
    }
}

/// The accelerator of a VMM that was looked into, and KVM's offset: one that holds a VM, and of
/// which nothing was known, uses KVM.
pub fn by_kvm(accel: Option<Accel>, pid: i32) -> (Option<Accel>, Option<i64>) {
    match accel {
        None if kvm::machines(pid) > 0 => by_kvm(Some(Accel::Kvm), pid),
        Some(Accel::Kvm) => (accel, kvm_tsc_offset(pid)),
        other => (other, None),
    }
}

/// What KVM adds to the host's TSC in a VMM's first vCPU, if debugfs tells.
pub fn kvm_tsc_offset(pid: i32) -> Option<i64> {
    kvm::folders(pid).first().and_then(|machine| tsc_offset_in(machine))
}

fn tsc_offset_in(machine: &Path) -> Option<i64> {
    let number = |name: &str| -> Option<i64> {
        let text = std::fs::read_to_string(machine.join("vcpu0").join(name)).ok()?;
        text.trim().parse().ok()
    };
    // A TSC of another frequency than the host's is not only offset.
    if let (Some(ratio), Some(bits)) =
        (number("tsc-scaling-ratio"), number("tsc-scaling-ratio-frac-bits"))
    {
        if !(0..63).contains(&bits) || ratio != 1 << bits {
            return None;
        }
    }
    number("tsc-offset")
}

/// Gives the sources on the guest's TSC the offset that KVM's trace saw: where
/// debugfs did not have it, and where it moved, since debugfs keeps only the latest value.
pub fn share_offset(sources: &mut [SourceRecord], seen: TscOffset) {
    for source in sources.iter_mut() {
        // Only those on the guest's clock name the accelerator.
        let map = source.parameters.clone().into_iter().collect();
        let known = serde_json::from_value::<Parameters>(Value::Object(map)).unwrap_or_default();
        let moved = seen.tsc_offset_spread.is_some();
        if known.accel != Some(Accel::Kvm) || (!moved && known.offset.tsc_offset.is_some()) {
            continue;
        }
        let known = Parameters { offset: seen, ..known };
        if let Ok(Value::Object(map)) = serde_json::to_value(known) {
            source.parameters.extend(map);
        }
        (source.clock, source.error_ns) = (BY_KVM_OFFSET.into(), KVM_ERROR_NS);
        if let Some(spread) = seen.tsc_offset_spread {
            source.clock =
                format!("{BY_KVM_OFFSET}, an offset that KVM changed by up to {spread} cycles");
        }
    }
}

/// Ties the sources on the guest's TSC to the host's, those of which nothing better is known: true if
/// there was one.
pub fn tie(sources: &mut [SourceRecord], offset: TscOffset, clock: &str, error_ns: Ns) -> bool {
    // Only those on the guest's clock have these parameters.
    let on_it = |source: &SourceRecord| source.clock.starts_with("guest TSC");
    let known = |source: &SourceRecord| source.parameters.contains_key("tsc_offset");
    let mut tied = false;
    for source in sources.iter_mut().filter(|source| on_it(source) && !known(source)) {
        if let Ok(Value::Object(map)) = serde_json::to_value(offset) {
            source.parameters.extend(map);
        }
        (source.clock, source.error_ns) = (clock.to_owned(), error_ns);
        tied = true;
    }
    tied
}

/// The record of what a recorder saved on this clock.
pub fn record<R: Recorder<Parameters = Parameters>>(
    file: &str,
    accel: Option<Accel>,
    tsc_offset: Option<i64>,
) -> SourceRecord {
    let (clock, error_ns) = match (accel, tsc_offset) {
        (Some(Accel::Icount), _) => ("virtual time, ns since the machine began to run", 0),
        (_, Some(_)) => (BY_KVM_OFFSET, KVM_ERROR_NS),
        (Some(Accel::Tcg), None) => ("guest TSC, 0 when the machine began to run", TCG_ERROR_NS),
        _ => (
            "guest TSC, which was 0 at a moment between the start of the VMM's program and the \
                start of the machine",
            UNKNOWN_ERROR_NS,
        ),
    };
    let offset = TscOffset { tsc_offset, tsc_offset_spread: None };
    recorder::record::<R>(&[file], clock, error_ns, &Parameters { accel, offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::time::ClockReading;

    /// A run at 1 s of the host, whose TSC ticks twice a ns.
    fn run(moments: &[(Ns, &str)]) -> RunRecord {
        let reading = |monotonic_ns: Ns| ClockReading {
            monotonic_ns,
            realtime_ns: 0,
            tsc: 2 * monotonic_ns as u64 + 500,
            width_ns: 40,
        };
        RunRecord {
            exec_ns: 1_000_000_000,
            total_ns: 4_000_000_000,
            clocks: vec![reading(900_000_000), reading(5_100_000_000)],
            moments: moments.iter().map(|&(at, name)| (at, name.into())).collect(),
            ..RunRecord::default()
        }
    }

    fn known(accel: Accel, tsc_offset: Option<i64>) -> Parameters {
        let offset = TscOffset { tsc_offset, tsc_offset_spread: None };
        Parameters { accel: Some(accel), offset }
    }

    #[test]
    fn an_offset_that_the_trace_saw_is_shared_with_those_on_the_guests_clock() {
        let source = |accel| record::<crate::sources::guest_ftrace::GuestFtrace>("f", accel, None);
        let mut sources = [source(Some(Accel::Kvm)), source(Some(Accel::Tcg)), source(None)];
        assert_eq!(serde_json::to_string(&sources[0].parameters).unwrap(), r#"{"accel":"kvm"}"#);
        let seen = TscOffset { tsc_offset: Some(-7), tsc_offset_spread: Some(3) };
        share_offset(&mut sources, seen);
        let said = serde_json::to_string(&sources[0].parameters).unwrap();
        assert_eq!(said, r#"{"accel":"kvm","tsc_offset":-7,"tsc_offset_spread":3}"#);
        assert!(sources[0].clock.contains("by up to 3 cycles"));
        assert!(sources[1..].iter().all(|s| !s.parameters.contains_key("tsc_offset")));
    }

    const MOMENTS: &[(Ns, &str)] =
        &[(20_000_000, "vmm-main"), (80_000_000, "vm-start"), (3_990_000_000, "vmm-exiting")];

    #[test]
    fn tcg_starts_at_vm_start() {
        let source = known(Accel::Tcg, None);
        let clock = GuestClock::of(&run(MOMENTS), &source, 0).unwrap();
        assert_eq!(clock.at(0), 80_000_000);
        assert_eq!(clock.at(2_000_000_000), 1_080_000_000);
        assert_eq!(clock.error_ns, TCG_ERROR_NS);
    }

    #[test]
    fn kvm_is_exact_where_debugfs_tells() {
        // The guest's TSC was 0 at 1.05 s of the host, 50 ms after the exec.
        let offset = -(2 * 1_050_000_000 + 500);
        let source = known(Accel::Kvm, Some(offset));
        let clock = GuestClock::of(&run(MOMENTS), &source, 0).unwrap();
        assert!((clock.at(2_000_000) - 51_000_000).abs() <= 1, "{}", clock.at(2_000_000));
        assert!(clock.error_ns < 1_000);
    }

    #[test]
    fn otherwise_the_bound_is_what_the_moments_allow() {
        let source = known(Accel::Kvm, None);
        let clock = GuestClock::of(&run(MOMENTS), &source, 0).unwrap();
        assert_eq!((clock.at(0), clock.error_ns), (50_000_000, 30_000_000));
        // The last event is 3.96 s after the start, and the VMM's exit at 3.99.
        let clock = GuestClock::of(&run(MOMENTS), &source, 7_920_000_000).unwrap();
        assert_eq!((clock.at(0), clock.error_ns), (25_000_000, 5_000_000));
        let clock = GuestClock::of(&run(&[]), &source, u64::MAX).unwrap();
        assert_eq!(clock.error_ns, 0);
    }

    #[test]
    fn virtual_time_takes_no_part_of_the_host() {
        let source = known(Accel::Icount, None);
        let mut run = run(MOMENTS);
        run.icount = true;
        run.clocks.clear();
        assert_eq!(GuestClock::of(&run, &source, 0).unwrap().at(1234), 1234);
        run.icount = false;
        assert!(GuestClock::of(&run, &source, 0).is_err());
    }

    #[test]
    fn the_offset_of_the_first_vcpu_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let vcpu = folder.path().join("vcpu0");
        std::fs::create_dir_all(&vcpu).unwrap();
        std::fs::write(vcpu.join("tsc-offset"), "-987654321\n").unwrap();
        assert_eq!(tsc_offset_in(folder.path()), Some(-987_654_321));
        assert_eq!(tsc_offset_in(&vcpu), None);
        for (ratio, offset) in [("256", Some(-987_654_321)), ("300", None)] {
            std::fs::write(vcpu.join("tsc-scaling-ratio"), ratio).unwrap();
            std::fs::write(vcpu.join("tsc-scaling-ratio-frac-bits"), "8").unwrap();
            assert_eq!(tsc_offset_in(folder.path()), offset);
        }
    }
}
