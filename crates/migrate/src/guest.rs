//! The guest that is migrated: a few hundred bytes in the place of the firmware.
//!
//! A kernel would dirty pages of its own, at times of its own. This guest does two
//! things: it writes pages of its working set in turn at the rate asked for, and it says
//! over the first serial port, every millisecond, that it lives, with its own clock and
//! the number of pages written so far. It needs nothing but RAM, a local APIC, a TSC and
//! a 16550, so it starts at once on every machine type that QEMU has for a PC.
//!
//! Its memory is a function of the number of pages written alone. So source and
//! destination, each told to stop at the same number, must end with the same memory,
//! byte for byte, wherever in between the one became the other.

use crate::result::MigrateWorkload;

std::arch::global_asm!(include_str!("guest.s"));

extern "C" {
    static vmeter_migrate_guest: u8;
    static vmeter_migrate_parameters: u8;
    static vmeter_migrate_guest_end: u8;
}

/// Bytes of the image: QEMU takes firmware in multiples of this.
const IMAGE: usize = 64 << 10;
/// Where the CPU begins, from the image's start: 16 bytes below 4 GiB (SDM vol. 3, 10.1.4).
const RESET: usize = IMAGE - 16;
/// Where the memory that the guest fills begins; below are its page tables and stack.
pub const BUFFER: u64 = 2 << 20;
/// A page, the unit in which QEMU migrates.
pub const PAGE: u64 = 4096;
/// The local APIC's timer counts ns in QEMU (apic.c) and in KVM (APIC_BUS_CYCLE_NS).
const TICK_NS: u64 = 1_000_000;
/// A guest that could not write for longer than this does not catch up, ms.
const BACKLOG_MS: u64 = 50;

/// Cycles of the time stamp counter in so many milliseconds.
fn ticks(tsc_hz: f64, ms: u64) -> u64 {
    (tsc_hz * ms as f64 / 1e3) as u64
}

/// The firmware image of a guest that does this, on a host whose TSC runs at `tsc_hz`.
pub fn image(workload: &MigrateWorkload, tsc_hz: f64) -> Vec<u8> {
    let (code, at) = program();
    let mut image = vec![0xff; IMAGE];
    image[..code.len()].copy_from_slice(code);
    let page_bytes = workload.written_bytes.clamp(8, PAGE);
    let per_page = match workload.dirty_bytes_per_s {
        rate if rate > 0.0 => (tsc_hz * PAGE as f64 / rate).max(1.0) as u64,
        _ => 0,
    };
    let parameters = [
        BUFFER,
        workload.resident_bytes / 8,
        BUFFER + workload.working_set_bytes,
        per_page,
        page_bytes / 8,
        ticks(tsc_hz, 1),
        ticks(tsc_hz, BACKLOG_MS),
        TICK_NS,
    ];
    for (n, value) in parameters.iter().enumerate() {
        let at = at + 8 * n;
        image[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    // jmp near to the image's first byte: IP wraps at 64 KiB.
    let back = (IMAGE - RESET - 3) as u16;
    image[RESET] = 0xe9;
    image[RESET + 1..RESET + 3].copy_from_slice(&back.wrapping_sub(0).to_le_bytes());
    image
}

/// The code, and where in it the parameters are.
fn program() -> (&'static [u8], usize) {
    let start = &raw const vmeter_migrate_guest;
    let length = |end: *const u8| end as usize - start as usize;
    let code = length(&raw const vmeter_migrate_guest_end);
    // SAFETY: the three symbols are in one read-only section, in this order (guest.s).
    let bytes = unsafe { std::slice::from_raw_parts(start, code) };
    (bytes, length(&raw const vmeter_migrate_parameters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_starts_with_its_code_and_ends_with_the_jump_to_it() {
        let workload = MigrateWorkload {
            dirty_bytes_per_s: 4096e3,
            working_set_bytes: 1 << 20,
            resident_bytes: 2 << 20,
            written_bytes: 4096,
        };
        let image = image(&workload, 2e9);
        let (code, at) = program();
        assert_eq!(image.len(), IMAGE);
        assert!(code.len() < RESET && at + 64 == code.len());
        // cli; lgdt cs:[..]
        assert_eq!(image[..4], [0xfa, 0x2e, 0x66, 0x0f]);
        assert_eq!(image[RESET..RESET + 3], [0xe9, 0x0d, 0x00]);
        assert_eq!(image[at + 24..at + 32], 2_000_000u64.to_le_bytes());
    }

    /// Memories are compared as soon as a guest is heard to have halted.
    #[test]
    fn nothing_is_written_after_the_word_that_it_halted() {
        let (code, _) = program();
        let find = |bytes: &[u8]| code.windows(bytes.len()).position(|window| window == bytes);
        // rep stosq over the stack's page; mov eax, 0xb6.
        let (clear, stores) = (&[0xbf, 0x00, 0x70, 0, 0], &[0xf3, 0x48, 0xab]);
        let cleared = find(clear).expect("it clears its stack");
        let said = find(&[0xb8, 0xb6, 0, 0, 0]).expect("it says that it halts");
        let halts = said + code[said..].iter().position(|byte| *byte == 0xf4).expect("hlt");
        assert!(cleared < said);
        assert!(!code[said..halts].windows(3).any(|window| window == stores));
    }
}
