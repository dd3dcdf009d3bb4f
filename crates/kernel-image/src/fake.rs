//! A guest made up for tests: 2 MiB of RAM, into which every address of the
//! kernel's half is mapped.

use crate::btf::Field;
use crate::guest::{Guest, KernelPlace};
use crate::info::{KernelInfo, FIELDS, SIZES, SYMBOLS};
use crate::ram::{MappedRam, Region};

/// Bytes of RAM.
pub(crate) const RAM: usize = 2 << 20;
/// Kernel addresses are this plus an offset into RAM.
pub(crate) const BASE: u64 = 0xffff_ffff_8100_0000;
/// The page tables are in the last three pages.
const TABLES: usize = RAM - 3 * 4096;

/// A kernel whose symbols are at `symbol(n)`, and whose fields are words, one
/// after the other in each structure, in the order in which they are listed.
pub(crate) fn info(symbol: impl Fn(usize) -> u64) -> KernelInfo {
    let mut info = KernelInfo {
        version: "6.1.0-fake".into(),
        banner: "Linux version 6.1.0-fake (test) #1".into(),
        build_id: None,
        container: "test".into(),
        pvh_entry: None,
        symbol_count: SYMBOLS.len() as u64,
        symbols: SYMBOLS.iter().enumerate().map(|(n, s)| ((*s).to_owned(), symbol(n))).collect(),
        fields: Default::default(),
        sizes: SIZES.iter().map(|s| ((*s).to_owned(), 64)).collect(),
        traces_initcalls: true,
        trace_print: Some(5),
        enumerators: [("PG_slab".to_owned(), 9), ("PG_swapbacked".to_owned(), 19)].into(),
        functions: None,
    };
    info.symbols.insert("_text".into(), BASE);
    info.symbols.insert("init_top_pgt".into(), BASE + TABLES as u64);
    let mut last = ("", 0);
    for names in FIELDS {
        let (structure, path) = names[0];
        last = if last.0 == structure { (structure, last.1 + 64) } else { (structure, 0) };
        info.fields.insert(format!("{structure}.{path}"), Field { bit: last.1, bits: 64 });
    }
    info
}

/// Puts page tables into RAM.
pub(crate) fn map(ram: &mut [u8]) {
    let tables = TABLES as u64;
    let mut set = |table: usize, n: usize, entry: u64| {
        let at = TABLES + table * 4096 + n * 8;
        ram[at..at + 8].copy_from_slice(&entry.to_le_bytes());
    };
    for n in 0..512 {
        set(0, n, (tables + 4096) | 1);
        set(1, n, (tables + 8192) | 1);
        // A 2 MiB page at physical address 0.
        set(2, n, 0x81);
    }
}

/// Calls `look` with the guest.
pub(crate) fn with<T>(ram: &[u8], info: &KernelInfo, look: impl FnOnce(&Guest<'_>) -> T) -> T {
    let regions = vec![Region { gpa: 0, length: ram.len() as u64, host: 0 }];
    let ram = MappedRam::new(regions, ram);
    let place = KernelPlace { physical: 0, kaslr_offset: 0, five_levels: false };
    look(&Guest::new(&ram, info, place).expect("the fake kernel has the symbols"))
}

/// Writes words from an offset on.
pub(crate) fn put(ram: &mut [u8], at: u64, words: &[u64]) {
    for (n, word) in words.iter().enumerate() {
        let at = at as usize + 8 * n;
        ram[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

mod tests {
    use super::*;
    use crate::ftrace::FtraceDump;
    use crate::printk::PrintkDump;
    use proptest::prelude::*;
    use std::path::Path;

    /// Words that lead somewhere: pointers into RAM, small numbers, anything.
    fn word() -> impl Strategy<Value = u64> {
        prop_oneof![
            3 => (0..RAM as u64 / 8).prop_map(|n| BASE + 8 * n),
            2 => 0u64..40,
            1 => any::<u64>(),
        ]
    }

    #[test]
    fn a_kernel_that_is_not_there_comes_with_the_reason() {
        let info = info(|n| BASE + 512 * n as u64);
        let mut ram = vec![0; 16 << 20];
        let whole = crate::Candidate { address: 0, length: ram.len() as u64 };
        let why = |candidates: &[crate::Candidate], ram: &[u8]| {
            crate::locate(candidates, ram, &info).expect_err("no kernel").to_string()
        };
        assert!(why(&[], &ram).contains("has already unmapped its guest's RAM"));
        let early = why(&[whole], &ram);
        assert!(early.contains("ended before its kernel was loaded"), "{early}");
        let banner = b"Linux version 5.4.0-other (x@y) (gcc) #1 SMP Mon\n\0";
        ram[4 << 20..(4 << 20) + banner.len()].copy_from_slice(banner);
        let other = why(&[whole], &ram);
        assert!(other.contains("kernel 5.4.0-other; expected 6.1.0-fake"), "{other}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn no_ram_makes_the_readers_panic(pattern in proptest::collection::vec(word(), 61), shift in 0u64..4096) {
            let mut ram = vec![0; RAM];
            for (n, chunk) in ram.chunks_exact_mut(8).enumerate() {
                chunk.copy_from_slice(&pattern[n % pattern.len()].to_le_bytes());
            }
            map(&mut ram);
            let info = info(|n| BASE + shift * 8 + 512 * n as u64);
            with(&ram, &info, |guest| {
                if let Ok(dump) = PrintkDump::take(guest) {
                    let _ = dump.records();
                }
                let _ = crate::clocks::Clocks::take(guest, 0).map(|c| (c.raw_ns(), c.log_ns(false)));
                if let Ok(dump) = FtraceDump::take(guest) {
                    let _ = dump.decode();
                }
            });
            let candidate = crate::Candidate { address: 0, length: RAM as u64 };
            prop_assert!(crate::locate(&[candidate], &ram[..], &info).is_err());
            let banner = b"Linux version 6.1.0 (x) #1\n\x000\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
            ram[128..128 + banner.len()].copy_from_slice(banner);
            prop_assert!(crate::discover(&[candidate], &ram[..], Path::new("/nowhere")).is_err());
        }
    }
}
