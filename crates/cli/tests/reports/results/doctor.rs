//! What `vmeter doctor` found on a host that lacks something.

use super::envelope;
use vmeter_model::result::*;

pub fn result() -> DoctorResult {
    let check = |name: CheckName, status, found: &str, mend: &str| Check {
        name,
        status,
        found: found.into(),
        mend: mend.into(),
        detail: format!("{name} in detail"),
    };
    DoctorResult {
        envelope: envelope("doctor"),
        checks: vec![
            check(CheckName::Kvm, CheckStatus::Good, "/dev/kvm runs guest code", ""),
            check(
                CheckName::Clock,
                CheckStatus::Poor,
                "powersave",
                "cpupower frequency-set -g performance",
            ),
            check(
                CheckName::Tracefs,
                CheckStatus::Missing,
                "not mounted",
                "mount -t tracefs x /sys/kernel/tracing",
            ),
        ],
    }
}
