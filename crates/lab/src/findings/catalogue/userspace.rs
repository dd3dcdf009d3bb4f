//! User space: the root, udev, and what init scripts run.

use super::{Finding, Pair, UserRemedy};
use crate::findings::change::Change::{Init, Kernel, Make, Root};
use crate::findings::machine_builder::MachineBuilder;
use std::path::Path;
use vmeter_appliance::ApplianceSpec;
use vmeter_model::findings::Price;
use vmeter_model::MachineSpec;
use vmeter_timeline::registry;

const OWN_GUEST: &str = "vmeter does not change the files in the guest of this machine";

pub(super) const DAX: Finding = Finding {
    cause: registry::DAX,
    what: "pages are copied from a virtual disk into the guest's cache",
    published: "20-30 ms less with a virtual NVDIMM",
    stand_in: "virtio-pmem in place of a virtual NVDIMM",
    expected: &["/init:mount root", "/init:read root"],
    contrasts: &[Pair::of(&[Root("virtio-blk")], &[Root("dax")]).timed_only()],
    price: Price::OtherMachine,
    remedy: "--root dax; `vmeter memory` shows how much memory it saves",
    user_remedy: UserRemedy::Never(
        "a machine with its root on a different disk is a different machine",
    ),
};

pub(super) const UDEV: Finding = Finding {
    cause: registry::UDEV_SETTLE,
    what: "the guest replays all device events and waits until all are handled",
    published: "130 ms",
    stand_in: "",
    expected: &["/init:udev-overhead", "/init:udev-settle", "/init:udev-trigger"],
    contrasts: &[Pair::of(&[Init("udev")], &[])],
    price: Price::GuestFiles,
    remedy: "an init that loads, by name, the modules that it needs",
    user_remedy: UserRemedy::Never(OWN_GUEST),
};

/// Programs of the host that the guest has in both machines.
fn programs(
    builder: &MachineBuilder<'_>,
    spec: &mut MachineSpec,
    paths: &[&str],
) -> Result<(), String> {
    let absent = paths.iter().find(|path| !builder.is_mock() && !Path::new(path).is_file());
    if let Some(path) = absent {
        return Err(format!(
            "{path} is not installed on this host, so vmeter cannot copy it into the guest"
        ));
    }
    let programs = paths.iter().map(Into::into).collect();
    builder.initramfs(spec, &ApplianceSpec { programs, ..ApplianceSpec::minimal() })
}

fn with_hwclock(builder: &MachineBuilder<'_>, spec: &mut MachineSpec) -> Result<(), String> {
    programs(builder, spec, &["/usr/sbin/hwclock"])
}

pub(super) const HWCLOCK: Finding = Finding {
    cause: registry::HWCLOCK,
    what: "hwclock waits for the next full second of the hardware clock",
    published: "300 → 0 ms",
    stand_in: "",
    expected: &["/init:run /usr/sbin/hwclock"],
    contrasts: &[Pair::of(
        &[Make(with_hwclock), Kernel("vmeter.run=/usr/sbin/hwclock,--hctosys,--utc")],
        &[Make(with_hwclock)],
    )],
    price: Price::GuestFiles,
    remedy: "no hwclock: the kernel sets the clock (CONFIG_RTC_HCTOSYS)",
    user_remedy: UserRemedy::Never(OWN_GUEST),
};

/// Programs with some forty libraries between them.
fn with_libraries(builder: &MachineBuilder<'_>, spec: &mut MachineSpec) -> Result<(), String> {
    let all = ["/usr/bin/udevadm", "/usr/bin/qemu-img", "/usr/bin/bash", "/sbin/ldconfig"];
    programs(builder, spec, &all)
}

pub(super) const LDCONFIG: Finding = Finding {
    cause: registry::LDCONFIG,
    what: "each boot runs ldconfig, although the image could contain a finished /etc/ld.so.cache",
    published: "100 → 0 ms",
    stand_in: "",
    expected: &["/init:run /sbin/ldconfig"],
    contrasts: &[Pair::of(
        &[Make(with_libraries), Kernel("vmeter.run=/sbin/ldconfig")],
        &[Make(with_libraries)],
    )],
    price: Price::GuestFiles,
    remedy: "a ready /etc/ld.so.cache",
    user_remedy: UserRemedy::Never(OWN_GUEST),
};
