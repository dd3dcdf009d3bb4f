//! What `vmeter doctor` found on a host that lacks something.

use super::envelope;
use vmeter_model::result::*;

pub fn result() -> DoctorResult {
    let check = |name: &str, status, found: &str, mend: &str| Check {
        name: name.into(),
        status,
        found: found.into(),
        mend: mend.into(),
        detail: format!("{name} in detail"),
    };
    DoctorResult {
        envelope: envelope("doctor"),
        checks: vec![
            check("KVM", CheckStatus::Good, "/dev/kvm runs guest code", ""),
            check(
                "CPU clock",
                CheckStatus::Poor,
                "powersave",
                "cpupower frequency-set -g performance",
            ),
            check(
                "tracefs",
                CheckStatus::Missing,
                "not mounted",
                "mount -t tracefs x /sys/kernel/tracing",
            ),
        ],
    }
}
