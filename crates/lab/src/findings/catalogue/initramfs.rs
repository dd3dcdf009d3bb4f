//! What is in the initramfs, and how it is packed.

use super::{files, Finding, Pair, Part, Remedy, UserChange, UserRemedy};
use crate::findings::change::Change::{Init, Kernel, Make};
use crate::findings::machine_builder::MachineBuilder;
use vmeter_appliance::{ApplianceSpec, Compression};
use vmeter_model::findings::Price;
use vmeter_model::tune::Keep;
use vmeter_model::MachineSpec;
use vmeter_timeline::registry;

const OWN_GUEST: &str = "vmeter does not change the files in the guest of this machine";

/// The udev appliance without a blacklist of modules.
fn all_modules(builder: &MachineBuilder<'_>, spec: &mut MachineSpec) -> Result<(), String> {
    if builder.is_mock() {
        return Ok(());
    }
    let usual = ApplianceSpec::udev(builder.kernel()?.modules());
    let all = ApplianceSpec { blacklist: Vec::new(), ..usual.clone() };
    let cache = builder.cache.join("appliances");
    let build = |spec| vmeter_appliance::build_in(&cache, spec).map_err(|e| e.to_string());
    if build(&usual)?.sha256 == build(&all)?.sha256 {
        return Err("the blacklist has no effect: this kernel's virtio modules need none of the \
            blacklisted modules (the kernel has no drm and no sound)"
            .into());
    }
    builder.initramfs(spec, &all)
}

pub(super) const MODULES: Finding = Finding {
    cause: registry::INITRAMFS_MODULES,
    what: "virtio_gpu brings drm, and all that drm needs, into the initramfs",
    published: "a smaller initramfs",
    stand_in: "",
    expected: &["initcall populate_rootfs", "/init:udev-overhead"],
    contrasts: &[Pair::of(&[Init("udev"), Make(all_modules)], &[Init("udev")])],
    price: Price::GuestFiles,
    remedy: "a blacklist of modules when the initramfs is made",
    user_remedy: UserRemedy::Never(OWN_GUEST),
};

fn with_true(builder: &MachineBuilder<'_>, spec: &mut MachineSpec) -> Result<(), String> {
    let programs = vec!["/usr/bin/true".into()];
    builder.initramfs(spec, &ApplianceSpec { programs, ..ApplianceSpec::minimal() })
}

pub(super) const LIBC: Finding = Finding {
    cause: registry::INITRAMFS_LIBC,
    what: "the guest unpacks glibc and the dynamic linker only because a program of a few lines \
        is dynamically linked",
    published: "2.6 → 1.8 MB of initramfs (dietlibc)",
    stand_in: "vmeter's init uses no C library; in one of the two machines that vmeter compares, \
        this init also runs a program that is dynamically linked with glibc",
    expected: &["/init:run /usr/bin/true", "initcall populate_rootfs"],
    contrasts: &[Pair::of(&[Make(with_true), Kernel("vmeter.run=/usr/bin/true")], &[])],
    price: Price::GuestFiles,
    remedy: "an init that is linked statically, or without a C library",
    user_remedy: UserRemedy::Never(OWN_GUEST),
};

fn packed(
    builder: &MachineBuilder<'_>,
    spec: &mut MachineSpec,
    how: Compression,
) -> Result<(), String> {
    if builder.is_mock() {
        return Ok(());
    }
    let usual = ApplianceSpec::udev(builder.kernel()?.modules());
    builder.initramfs(spec, &ApplianceSpec { compression: how, ..usual })
}

pub(super) const UNCOMPRESSED: Finding = Finding {
    cause: registry::UNPACK_INITRD,
    what: "the guest spends boot time on unpacking compressed files",
    published: "plain .ko files instead of .ko.xz save a little",
    stand_in:
        "Debian's modules are not compressed: to show this cause, vmeter compresses the whole \
        initramfs instead (gzip, zstd)",
    expected: &["initcall populate_rootfs", "kernel:wait_for_initramfs"],
    contrasts: &[
        Pair::of(
            &[Make(|builder, spec| packed(builder, spec, Compression::Gzip))],
            &[Make(|builder, spec| packed(builder, spec, Compression::None))],
        )
        .named("gzip"),
        Pair::of(
            &[Make(|builder, spec| packed(builder, spec, Compression::Zstd))],
            &[Make(|builder, spec| packed(builder, spec, Compression::None))],
        )
        .named("zstd"),
    ],
    price: Price::GuestFiles,
    remedy: "an uncompressed initramfs that holds uncompressed modules",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| machine.has_no_packed_initrd(),
        changes: &[UserChange::Make("unpacked-initrd", files::unpack_initrd)],
        gives_up: "disk space: vmeter's copy of the initrd is not compressed",
        breaks: &[Keep::Initrd],
        predicts: &[
            Part::Span("kernel:unpack-initrd", 0.3, 0.95),
            Part::Span("initcall populate_rootfs", 0.3, 0.95),
        ],
        ..Remedy::FREE
    }),
};

fn with_debug_info(builder: &MachineBuilder<'_>, _: &mut MachineSpec) -> Result<(), String> {
    if builder.is_mock() {
        return Ok(());
    }
    let folder = builder.kernel()?.modules().folder;
    let (all, debugged) = vmeter_appliance::debugged_modules(&folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    Err(format!(
        "{debugged} of this kernel's {all} modules hold debugging sections; when vmeter builds \
         an appliance, it strips these sections"
    ))
}

pub(super) const STRIP: Finding = Finding {
    cause: registry::INITRAMFS_STRIP,
    what: "the guest unpacks and reads debugging sections that it does not need; `strip -g` \
        removes them",
    published: "126 KB of modules (minimal kernel), 347 KB of modules (distribution's kernel)",
    stand_in: "",
    expected: &["initcall populate_rootfs"],
    contrasts: &[Pair::of(&[Make(with_debug_info)], &[])],
    price: Price::GuestFiles,
    remedy: "strip -g",
    user_remedy: UserRemedy::Never(OWN_GUEST),
};
