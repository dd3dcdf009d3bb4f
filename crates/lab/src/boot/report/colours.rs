//! Which colour a phase has: its name tells who was running.

use std::collections::HashMap;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_render::palette::{Colour, Group};

/// The group that a span's name tells, if it tells one.
pub(super) fn group_of(name: &str) -> Group {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
    if name == UNATTRIBUTED {
        Group::Unattributed
    } else if starts(&["vmm:"]) {
        Group::Vmm
    } else if starts(&["bios", "firmware", "qboot", "boot-loader", "grub:", "hypervisor"]) {
        Group::Firmware
    } else if starts(&["kernel:initcall", "initcall "]) {
        Group::Initcalls
    } else if starts(&["kexec:userspace", "reboot:userspace"]) {
        Group::Userspace
    } else if starts(&["kernel", "kexec", "reboot:kernel"]) {
        Group::Kernel
    } else if starts(&[
        "/",
        "insmod ",
        "userspace",
        "guest",
        "initrd",
        "switch-root",
        "systemd",
        "unit ",
    ]) {
        Group::Userspace
    } else if starts(&["shutdown", "poweroff"]) {
        Group::Shutdown
    } else {
        Group::Other
    }
}

/// The colours of a result's phases.
#[derive(Debug, Clone, Default)]
pub(super) struct Palette {
    phases: HashMap<String, Colour>,
}

impl Palette {
    /// Gives each phase a colour, in order of time.
    pub fn new<'a>(phases: impl IntoIterator<Item = &'a str>) -> Self {
        let mut seen: HashMap<Group, usize> = HashMap::new();
        let mut palette = Palette::default();
        for name in phases {
            if palette.phases.contains_key(name) {
                continue;
            }
            let group = group_of(name);
            let count = seen.entry(group).or_default();
            palette.phases.insert(name.to_owned(), Colour { group, bright: *count % 2 == 1 });
            *count += 1;
        }
        palette
    }

    /// The colour of a phase, or of a name that is none.
    pub fn colour(&self, name: &str) -> Colour {
        let known = self.phases.get(name).copied();
        known.unwrap_or(Colour { group: group_of(name), bright: false })
    }
}
