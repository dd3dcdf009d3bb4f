//! Where a guest's RAM is, by KVM's own word: what its VMM asked for by
//! `KVM_SET_USER_MEMORY_REGION`.
//!
//! All of it passes one function of KVM's, which a kprobe sees where the host's kernel has them.
//! The fields are those of `struct kvm_userspace_memory_region` (include/uapi/linux/kvm.h),
//! which later kernels have only added to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use vmeter_base::files;
use vmeter_machine::launch::Tracee;

/// The function, by the names that kernels have had for it.
pub const FUNCTIONS: [&str; 2] = ["__kvm_set_memory_region", "kvm_set_memory_region"];
/// What is kept of a call: its second argument's fields.
pub const ARGUMENTS: &str = "slot=+0(%si):u32 gpa=+8(%si):x64 size=+16(%si):x64 hva=+24(%si):x64";
/// Slots from here on are of another address space: a PC's system management mode.
const OTHER_SPACES: u32 = 1 << 16;
/// Windows of devices may be mapped beyond; RAM is not.
const RAM_END: u64 = 1 << 40;
const FOUR_GIB: u64 = 4 << 30;
/// More than any machine has.
const MOST: usize = 1 << 15;

/// What the probe saw, in the run's folder: a line that says at which stop, then its own.
pub const FILE: &str = "kvm-slots.txt";
const HEAD: &str = "# calls that set KVM's memory slots before vmeter paused the VMM; the VMM's \
    pid, and the time of the pause (CLOCK_MONOTONIC, ns):";
/// More than a probe gives.
const LONGEST: u64 = 8 << 20;

/// A piece of a file: where in the file, where in the process, how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub offset: u64,
    pub address: u64,
    pub length: u64,
}

/// Keeps what the probe saw for all that look into this VMM at this stop; how many pieces
/// of RAM that are.
///
/// # Errors
/// When it can't be written.
pub fn save(dir: &Path, tracee: &Tracee, text: &str) -> io::Result<usize> {
    let pieces = of_text(text).len();
    if pieces > 0 {
        std::fs::write(dir.join(FILE), format!("{}\n{text}", head(tracee)))?;
    }
    Ok(pieces)
}

/// Guest-physical memory of a VMM at this stop; empty if nothing told.
pub(super) fn of(dir: &Path, tracee: &Tracee) -> Vec<Piece> {
    let text = files::read_text_limited(&dir.join(FILE), LONGEST).unwrap_or_default();
    match text.split_once('\n') {
        Some((first, text)) if first == head(tracee) => of_text(text),
        _ => Vec::new(),
    }
}

fn head(tracee: &Tracee) -> String {
    format!("{HEAD} {} {}", tracee.pid, tracee.stopped_ns)
}

/// The slots that are there after all these calls: RAM below 4 GiB, and what begins there and
/// goes on without a gap. What is beyond is devices'.
fn of_text(text: &str) -> Vec<Piece> {
    let mut slots: BTreeMap<u32, Piece> = BTreeMap::new();
    for (slot, piece) in text.lines().filter_map(call) {
        slots.remove(&slot);
        if slot < OTHER_SPACES && piece.length > 0 && slots.len() < MOST {
            slots.insert(slot, piece);
        }
    }
    let mut pieces: Vec<Piece> = slots.into_values().collect();
    pieces.sort_by_key(|piece| piece.offset);
    let mut end = FOUR_GIB;
    pieces.retain(|piece| {
        let after = piece.offset.saturating_add(piece.length);
        let kept = after <= FOUR_GIB || piece.offset <= end && after <= RAM_END;
        if kept {
            end = end.max(after);
        }
        kept
    });
    pieces
}

/// One call, of a line such as `vmm-7 [000] ..... 9.1: seen: (f+0x0/0x8) slot=0 gpa=0x0 …`.
fn call(line: &str) -> Option<(u32, Piece)> {
    let (_, fields) = line.split_once(": (")?;
    let number = |name: &str| {
        let value = fields.split(' ').find_map(|f| f.strip_prefix(name)?.strip_prefix('='))?;
        match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        }
    };
    let slot = u32::try_from(number("slot")?).ok()?;
    let piece = Piece { offset: number("gpa")?, length: number("size")?, address: number("hva")? };
    Some((slot, piece))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// As Linux 6.1 writes it, of Firecracker with 3600 MiB.
    const FIRECRACKER: &str = "\
# tracer: nop
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
     firecracker-212     [001] .....    61.702561: seen: (__kvm_set_memory_region+0x0/0x8a0 [kvm]) slot=0 gpa=0x0 size=0xc0000000 hva=0x7f2c11200000
     firecracker-212     [001] .....    61.702701: seen: (__kvm_set_memory_region+0x0/0x8a0 [kvm]) slot=1 gpa=0x100000000 size=0x21000000 hva=0x7f2bf0200000
";

    fn piece(offset: u64, length: u64, address: u64) -> Piece {
        Piece { offset, address, length }
    }

    #[test]
    fn slots_as_firecracker_sets_them() {
        let low = piece(0, 3072 * MIB, 0x7f2c_1120_0000);
        let high = piece(FOUR_GIB, 528 * MIB, 0x7f2b_f020_0000);
        assert_eq!(of_text(FIRECRACKER), [low, high]);
        assert_eq!(of_text(""), []);
    }

    #[test]
    fn what_is_taken_away_or_is_no_ram_is_not_there() {
        let line = |slot: u32, gpa: u64, size: u64, hva: u64| {
            format!("v-1 [0] .. 1.0: seen: (f+0x0/0x1) slot={slot} gpa={gpa:#x} size={size:#x} hva={hva:#x}\n")
        };
        let text = [
            line(0, 0, 640 << 10, 0x1000_0000),
            line(1, MIB, 99 * MIB, 0x2000_0000),
            line(2, 0xfd00_0000, 16 * MIB, 0x3000_0000),
            line(3, 0, 0, 0),
            // Moved, as a BAR is, and taken away.
            line(2, 0, 0, 0),
            line(2, 0xfe00_0000, 16 * MIB, 0x3000_0000),
            line(4, FOUR_GIB, 8 * MIB, 0x5000_0000),
            line(5, FOUR_GIB + 8 * MIB, 8 * MIB, 0x6000_0000),
            // A window of 64 bits, and system management mode.
            line(6, 0x80_0000_0000, 16 * MIB, 0x7000_0000),
            line(65536, 0, 100 * MIB, 0x2000_0000),
            "v-1 [0] .. 1.0: seen: (f+0x0/0x1) slot=x gpa=(fault) size=0x1 hva=0x1\n".into(),
        ];
        assert_eq!(
            of_text(&text.concat()),
            [
                piece(0, 640 << 10, 0x1000_0000),
                piece(MIB, 99 * MIB, 0x2000_0000),
                piece(0xfe00_0000, 16 * MIB, 0x3000_0000),
                piece(FOUR_GIB, 8 * MIB, 0x5000_0000),
                piece(FOUR_GIB + 8 * MIB, 8 * MIB, 0x6000_0000),
            ]
        );
    }

    #[test]
    fn it_is_in_the_runs_folder_and_of_one_stop() {
        let dir = tempfile::tempdir().expect("a folder");
        let other = tempfile::tempdir().expect("a folder");
        let tracee = Tracee { pid: 1, stopped_ns: 5 };
        assert_eq!(of(dir.path(), &tracee), []);
        assert_eq!(save(dir.path(), &tracee, FIRECRACKER).expect("written"), 2);
        assert_eq!(of(dir.path(), &tracee), of_text(FIRECRACKER));
        assert_eq!(of(dir.path(), &Tracee { pid: 1, stopped_ns: 6 }), []);
        assert_eq!(of(other.path(), &tracee), [], "another run, at the same time");
        std::fs::write(dir.path().join(FILE), [0xff, 0, b'\n']).expect("written");
        assert_eq!(of(dir.path(), &tracee), []);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,200}", slot in any::<u32>(), n in any::<[u64; 3]>()) {
            of_text(&text);
            let [gpa, size, hva] = n;
            of_text(&format!("x: (f) slot={slot} gpa={gpa:#x} size={size} hva={hva:#x}"));
        }
    }
}
