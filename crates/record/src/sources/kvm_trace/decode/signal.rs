//! How far it is, by its own word: what a guest writes where its VMM listens for that.

use super::super::place::Stamp;

/// Where a guest of Firecracker says that it has booted (`--boot-timer`), by one byte, and which:
/// its boot timer (Firecracker, docs/design.md and src/vmm/src/devices/pseudo/boot_timer.rs).
const BOOT_TIMER: (u64, u64) = (0xc000_0000, 123);
/// The port of POST codes, which other VMMs listen at.
pub(super) const POST: u32 = 0x80;
/// Codes of user space there (cloud-hypervisor's docs/debug-port.md).
const USER_SPACE: std::ops::RangeInclusive<u8> = 0x60..=0x7f;
/// Codes that are kept; a guest that waits by writes to that port makes thousands.
const MAX_CODES: usize = 64;

/// What a guest said.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct GuestSignal {
    /// When it first wrote to the boot timer.
    pub boot_timer: Option<Stamp>,
    /// Codes at the port of POST codes, up to [`MAX_CODES`].
    pub codes: Vec<(Stamp, u8)>,
}

impl GuestSignal {
    /// A write of a word to an address.
    pub fn wrote(&mut self, at: Stamp, address: u64, length: Option<u64>, value: Option<u64>) {
        if (address, length, value.map(|value| value & 0xff))
            == (BOOT_TIMER.0, Some(1), Some(BOOT_TIMER.1))
        {
            self.boot_timer.get_or_insert(at);
        }
    }

    /// When it first said that it has booted: by the timer, or a code of user space.
    pub fn booted(&self) -> Option<Stamp> {
        let code = self.codes.iter().find(|(_, value)| USER_SPACE.contains(value));
        code.map(|(at, _)| *at).into_iter().chain(self.boot_timer).min()
    }

    /// A write to a port.
    pub fn put(&mut self, at: Stamp, port: u32, value: u32) {
        if port == POST && self.codes.len() < MAX_CODES {
            self.codes.push((at, value as u8));
        }
    }
}
