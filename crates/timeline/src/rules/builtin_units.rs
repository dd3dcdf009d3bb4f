//! Which of systemd's own units come after which: `After=` of the units that systemd 250-257
//! and Debian 12-13 ship, as far as they take time in a boot, and what `PrivateTmp=` and
//! mounts imply. The order on the console does not tell two apart that ended at one moment.

/// A unit (up to its `@`, where it is an instance), and those that it comes after.
const AFTER: &[(&str, &[&str])] = &[
    ("systemd-remount-fs.service", &["systemd-fsck-root.service"]),
    ("systemd-sysctl.service", &["systemd-modules-load.service"]),
    ("sys-fs-fuse-connections.mount", &["modprobe@fuse.service", "systemd-modules-load.service"]),
    ("sys-kernel-config.mount", &["modprobe@configfs.service", "systemd-modules-load.service"]),
    ("systemd-random-seed.service", &["systemd-remount-fs.service"]),
    ("systemd-pstore.service", &["modprobe@efi_pstore.service", "systemd-remount-fs.service"]),
    ("systemd-journal-flush.service", &["systemd-remount-fs.service", "systemd-journald.service"]),
    ("systemd-hwdb-update.service", &["systemd-remount-fs.service"]),
    ("systemd-firstboot.service", &["systemd-remount-fs.service"]),
    ("systemd-machine-id-commit.service", &["local-fs.target"]),
    ("systemd-sysusers.service", &["systemd-remount-fs.service"]),
    (
        "systemd-tmpfiles-setup-dev.service",
        &["systemd-sysusers.service", "kmod-static-nodes.service"],
    ),
    (
        "systemd-udevd.service",
        &[
            "systemd-sysusers.service",
            "systemd-tmpfiles-setup-dev.service",
            "systemd-hwdb-update.service",
        ],
    ),
    ("systemd-udev-settle.service", &["systemd-udev-trigger.service"]),
    ("ifupdown-pre.service", &["systemd-udev-trigger.service"]),
    (
        "networking.service",
        &[
            "ifupdown-pre.service",
            "local-fs.target",
            "systemd-sysctl.service",
            "network-pre.target",
        ],
    ),
    ("local-fs-pre.target", &["systemd-tmpfiles-setup-dev.service", "systemd-remount-fs.service"]),
    (
        "systemd-tmpfiles-setup.service",
        &["local-fs.target", "systemd-sysusers.service", "systemd-journal-flush.service"],
    ),
    ("systemd-timesyncd.service", &["systemd-tmpfiles-setup.service"]),
    ("systemd-resolved.service", &["systemd-tmpfiles-setup.service", "systemd-sysctl.service"]),
    (
        "systemd-update-utmp.service",
        &["systemd-tmpfiles-setup.service", "systemd-remount-fs.service"],
    ),
    (
        "systemd-networkd.service",
        &["systemd-udevd.service", "systemd-sysusers.service", "systemd-sysctl.service"],
    ),
    ("systemd-networkd-wait-online.service", &["systemd-networkd.service"]),
    (
        "systemd-user-sessions.service",
        &["network.target", "remote-fs.target", "nss-user-lookup.target"],
    ),
    ("systemd-update-utmp-runlevel.service", &["multi-user.target", "systemd-update-utmp.service"]),
];

/// True if `before` is known to come before `unit`; none if nothing is known of `unit`.
pub(super) fn comes_after(unit: &str, before: &str) -> Option<bool> {
    let kind = unit.split_once('@').map_or(unit, |(kind, _)| kind);
    let (_, after) = AFTER.iter().find(|(name, _)| *name == kind)?;
    Some(after.contains(&before))
}
