//! One colour a phase, the same in every output.
//!
//! The hue says who was running (VMM, firmware, kernel, …); neighbours of one
//! group differ in shade, so that their border shows.

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
