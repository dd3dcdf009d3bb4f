//! Units that print nothing on a console: what a service prints goes to the journal, unless its
//! file says otherwise, and of those that systemd and Debian ship none does (a getty does, which
//! asks for a login). A line that a boot ends at is of one that somebody wrote for it.

/// What their names begin with.
const SHIPPED: &[&str] = &[
    "ModemManager",
    "NetworkManager",
    "anacron",
    "apparmor",
    "apt-daily",
    "avahi-",
    "blk-availability",
    "chrony",
    "console-setup",
    "cron.",
    "dbus",
    "dm-event",
    "dpkg-",
    "dracut-",
    "e2scrub_",
    "exim",
    "fstrim",
    "getty",
    "ifup",
    "initrd-",
    "keyboard-setup",
    "kmod-",
    "ldconfig",
    "logrotate",
    "lvm",
    "man-db",
    "modprobe@",
    "networking",
    "nfs-",
    "nss-",
    "open-vm-tools",
    "plymouth",
    "polkit",
    "qemu-guest-agent",
    "rpcbind",
    "rsyslog",
    "snapd",
    "ssh",
    "sysstat",
    "systemd-",
    "udisks",
    "unattended-upgrades",
    "user@",
    "user-runtime-dir@",
    "wpa_supplicant",
];

/// True for a service that may have printed a line.
pub(super) fn may_print(unit: &str) -> bool {
    unit.ends_with(".service") && !SHIPPED.iter().any(|begin| unit.starts_with(begin))
        || !unit.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_a_service_of_their_own_may_print() {
        assert!(may_print("appliance.service") && may_print("Appliance data plane"));
        assert!(!may_print("e2scrub_reap.service") && !may_print("multi-user.target"));
        assert!(!may_print("systemd-logind.service") && !may_print("dev-vda2.device"));
    }
}
