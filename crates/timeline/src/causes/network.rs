//! The boot waits for the network, which the guest may not need to be ready.

use super::{is_unit, registry, Known, PLAIN};

/// Units that end when a network is there.
const UNITS: &[&str] = &[
    "networking.service",
    "systemd-networkd-wait-online.service",
    "NetworkManager-wait-online.service",
    "ifupdown-wait-online.service",
];

pub(super) const CAUSE: Known = Known {
    cause: registry::NETWORK,
    remedy: |_| Some("allow-hotplug in interfaces(5)"),
    is: |of| {
        UNITS.iter().any(|unit| is_unit(of, unit))
            || matches!(of.file(), Some("dhclient" | "dhcpcd" | "udhcpc" | "ipconfig"))
    },
    ..PLAIN
};
