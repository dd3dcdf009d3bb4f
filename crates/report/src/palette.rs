//! One colour a phase, the same in every output.
//!
//! The hue says who was running (VMM, firmware, kernel, …); neighbours of one
//! group differ in shade, so that their border shows.

use std::collections::HashMap;
use vmeter_model::span::UNATTRIBUTED;

/// Who was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// The VMM before the guest runs, and after.
    Vmm,
    /// SeaBIOS, qboot, option ROMs.
    Firmware,
    /// The kernel before its initcalls.
    Kernel,
    /// The kernel's initcalls.
    Initcalls,
    /// User space.
    Userspace,
    /// From the power-off request on.
    Shutdown,
    /// Something else that has a name.
    Other,
    /// Nothing explains it.
    Unattributed,
}

/// Hue and shade of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour {
    /// Hue.
    pub group: Group,
    /// Which of the group's two shades.
    pub bright: bool,
}

impl Group {
    /// The group that a span's name tells, if it tells one.
    pub fn of(name: &str) -> Group {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
        if name == UNATTRIBUTED {
            Group::Unattributed
        } else if starts(&["vmm:"]) {
            Group::Vmm
        } else if starts(&["bios", "firmware", "qboot"]) {
            Group::Firmware
        } else if starts(&["kernel:initcall", "initcall "]) {
            Group::Initcalls
        } else if starts(&["kernel"]) {
            Group::Kernel
        } else if starts(&["/", "insmod ", "userspace"]) {
            Group::Userspace
        } else if starts(&["shutdown", "poweroff"]) {
            Group::Shutdown
        } else {
            Group::Other
        }
    }

    /// Class name in HTML.
    pub fn class(self) -> &'static str {
        match self {
            Group::Vmm => "vmm",
            Group::Firmware => "firmware",
            Group::Kernel => "kernel",
            Group::Initcalls => "initcalls",
            Group::Userspace => "userspace",
            Group::Shutdown => "shutdown",
            Group::Other => "other",
            Group::Unattributed => "unattributed",
        }
    }
}

/// The colours of a result's phases.
#[derive(Debug, Clone, Default)]
pub struct Palette {
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
            let group = Group::of(name);
            let count = seen.entry(group).or_default();
            palette.phases.insert(name.to_owned(), Colour { group, bright: *count % 2 == 1 });
            *count += 1;
        }
        palette
    }

    /// The colour of a phase, or of a name that is none.
    pub fn colour(&self, name: &str) -> Colour {
        let known = self.phases.get(name).copied();
        known.unwrap_or(Colour { group: Group::of(name), bright: false })
    }
}
