#![no_main]
//! Whatever a guest writes into its RAM while its log is followed there, each look has an end, and
//! tells no record twice but of another array.

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::io;
use vmeter_kernel_image::shape::growth::Growth;
use vmeter_kernel_image::{locate::Candidate, HostMemory};

const RAM: usize = 1 << 18;
/// Bytes of an info, and how many the ring of the guest's own log has.
const INFO: usize = 88;
const RING: u64 = 64;
const LOG: usize = 0x8000;
/// No look reads more: eight arrays, 4096 records of each.
const MOST: usize = 8 * 4096;

struct Ram(RefCell<Vec<u8>>);

impl HostMemory for Ram {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.borrow()[..].read(address, buffer)
    }
}

impl Ram {
    fn put(&self, at: usize, bytes: &[u8]) {
        let mut ram = self.0.borrow_mut();
        let at = at % (RAM - bytes.len());
        ram[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A record, in the guest's own log or where it was moved to.
    fn says(&self, log: usize, seq: u64) {
        let at = LOG + log * 0x1_0000 + (seq % RING) as usize * INFO;
        let words = [seq, seq * 1_000, 20];
        words.iter().enumerate().for_each(|(n, word)| self.put(at + 8 * n, &word.to_le_bytes()));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let ram = Ram(RefCell::new(vec![0; RAM]));
    let all = [Candidate { address: 0, length: RAM as u64 }];
    let mut growth = Growth::default();
    let (mut seq, mut log) = (0, 0);
    for piece in bytes.chunks(8) {
        let [what, a, b, data @ ..] = piece else { continue };
        let place = (usize::from(*a) << 8 | usize::from(*b)) * 4;
        match what % 8 {
            0 | 1 => (0..u64::from(*a % 32)).for_each(|n| ram.says(log, seq + n)),
            2 => log = usize::from(*a) % 3,
            3 => seq = u64::from_le_bytes([*a, *b, 0, 0, 0, 0, 0, 0]),
            4 => assert!(growth.search(&all, &ram, |_| ()).len() <= 8 * RAM / INFO),
            5 => assert!(growth.look(&ram).len() <= MOST),
            _ => ram.put(place, data),
        }
        if what % 8 < 2 {
            seq += u64::from(*a % 32);
        }
    }
});
