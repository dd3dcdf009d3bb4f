//! Other kernels.

use super::{Finding, Pair, UserRemedy};
use crate::findings::change::Change::{Kernel, Make};
use vmeter_model::findings::Price;
use vmeter_timeline::registry;

/// Initcalls of Debian's cloud kernel that the guest does without and that take long: a kernel
/// parameter leaves them out, where a build would.
const LEFT_OUT: &str = "initcall_blacklist=crypto_kdf108_init,jent_mod_init,calibrate_xor_blocks,\
raid6_select_algo,init_kprobe_trace,hugetlb_init,audit_init,cmos_init,i8042_init,psmouse_init,\
serio_init,evdev_init,netlbl_init,big_key_init,iommu_init,intel_pstate_init";

pub(super) const CUSTOM: Finding = Finding {
    cause: registry::CUSTOM_KERNEL,
    what: "kernel parts that an appliance does not use, each with an initcall that takes longer \
        than 1 ms",
    published: "697 → 567 ms before user space",
    stand_in: "if no such kernel is built: Debian's kernel with initcall_blacklist= to skip these \
        initcalls",
    expected: &["kernel:initcalls-before-userspace"],
    contrasts: &[
        Pair::of(&[], &[Make(|builder, spec| builder.built(spec, "custom"))])
            .named("vmeter kernel build --config custom"),
        Pair::of(&[], &[Kernel(LEFT_OUT)]).named("stand-in: initcalls left out"),
    ],
    price: Price::Kernel,
    remedy: "vmeter kernel build --config custom",
    user_remedy: UserRemedy::Never("the remedy needs another kernel"),
};

pub(super) const MINIMAL: Finding = Finding {
    cause: registry::MINIMAL_KERNEL,
    what: "allnoconfig plus the options that the guest needs; the kernel has no modules",
    published: "697 → 288 ms before user space",
    stand_in: "",
    expected: &["kernel:initcalls-before-userspace"],
    contrasts: &[Pair::of(&[], &[Make(|builder, spec| builder.built(spec, "minimal"))])],
    price: Price::Kernel,
    remedy: "vmeter kernel build --config minimal",
    user_remedy: UserRemedy::Never("the remedy needs another kernel"),
};
