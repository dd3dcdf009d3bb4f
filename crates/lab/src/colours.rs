//! Which colour a phase has: its name tells who was running.

use std::collections::HashMap;
use vmeter_model::{Identity, Kind};
use vmeter_render::palette::{Colour, Group};

/// The group that a span's name tells, if it tells one; of several phases the first's.
pub(crate) fn group_of(name: &str) -> Group {
    Identity::of(name).phases().next().map_or(Group::Other, group)
}

pub(crate) fn group(of: Identity<'_>) -> Group {
    use Kind::*;
    match of.kind {
        Unattributed => Group::Unattributed,
        Vmm => Group::Vmm,
        Firmware | Loader | Grub | Syslinux | SystemdBoot | Ipxe | EfiStub | Hypervisor => {
            Group::Firmware
        }
        Initcall => Group::Initcalls,
        Kernel if matches!(of.name, "initcalls" | "initcalls-before-userspace") => Group::Initcalls,
        Kexec | Reboot if of.name == "userspace" => Group::Userspace,
        Reboot if of.name.is_empty() => Group::Other,
        Kernel | Kexec | Reboot => Group::Kernel,
        Init | Module | Userspace | Guest | Initrd | SwitchRoot | Systemd | Unit => {
            Group::Userspace
        }
        Shutdown => Group::Shutdown,
        _ => Group::Other,
    }
}

/// The colours of a result's phases.
#[derive(Debug, Clone, Default)]
pub(crate) struct Palette {
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
