//! More vCPUs than one.

use super::{Finding, Pair, Part, Remedy, UserChange, UserRemedy};
use crate::findings::change::Change::{Kernel, Smp};
use vmeter_model::findings::Price;
use vmeter_timeline::registry;

pub(super) const VCPUS: Finding = Finding {
    cause: registry::VCPUS,
    what: "after the first vCPU, the kernel starts the others one by one: it checks each, and \
        creates threads for it",
    published: "a boot with 4 vCPUs takes 200 ms longer than a boot with 1 vCPU; \
        of this, check_tsc_sync_target takes about 25 ms for each added vCPU",
    stand_in: "",
    expected: &["kernel:initcalls-before-userspace", "kernel:smp_init"],
    contrasts: &[
        Pair::of(&[Smp(4)], &[]).named("1 instead of 4").per(3.0, "added vCPU"),
        Pair::of(&[Smp(2)], &[]).named("1 instead of 2").per(1.0, "added vCPU"),
        Pair::of(&[Smp(3)], &[Smp(2)]).named("2 instead of 3").per(1.0, "added vCPU"),
    ],
    price: Price::OtherMachine,
    remedy: "-smp 1",
    user_remedy: UserRemedy::Never("a machine with fewer vCPUs is a different machine"),
};

pub(super) const TSC_RELIABLE: Finding = Finding {
    cause: registry::TSC_RELIABLE,
    what: "check_tsc_sync_target runs at the start of each vCPU",
    published: "25 → 0 ms for each",
    stand_in: "",
    expected: &["kernel:initcalls-before-userspace", "kernel:smp_init"],
    contrasts: &[Pair::of(&[Smp(4)], &[Smp(4), Kernel("tsc=reliable")]).per(3.0, "added vCPU")],
    price: Price::KernelParameter,
    remedy: "tsc=reliable",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| {
            let one = machine.smp() < 2;
            let why = one.then(|| "it has one vCPU".to_owned());
            why.or_else(|| machine.says("tsc"))
        },
        changes: &[UserChange::Kernel("tsc=reliable")],
        gives_up: "detection of an unstable TSC",
        predicts: &[Part::Span("kernel:smp_init", 0.0, 0.9)],
        ..Remedy::FREE
    }),
};
