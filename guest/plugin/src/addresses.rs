//! The list of addresses to stamp.
//!
//! One a line, `ADDRESS ID FLAGS LENGTH NAME`, numbers but the id in hex. The
//! name is for whoever reads the list beside the stamps. The flags:
//!
//! | flag | meaning |
//! |---|---|
//! | `-` | none: stamp every execution |
//! | `o` | stamp only the first execution |
//! | `l` | last: `mode=early` ends here |
//! | `m` | anywhere above 16 MiB at this address modulo 2 MiB (KASLR moved it) |
//! | `h` | the first address at or above `KERNEL_BASE`, whichever it is |
//! | `k` | anchor: the first kernel address equal to it modulo 2 MiB tells the slide of KASLR |
//! | `i` | function of an initcall: for the reader |
//! | `c` | the function of LENGTH bytes that calls the initcalls; also stamps the return from them |
//! | `t` | not stamped: a range of LENGTH bytes of retpoline thunks |

/// Where the kernel's image is mapped at the lowest: `__START_KERNEL_map` of x86-64.
pub const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// KASLR moves the kernel by multiples of this (`CONFIG_PHYSICAL_ALIGN`).
pub const PHYSICAL_ALIGN: u64 = 2 << 20;
/// The lowest physical address that a 64-bit kernel runs at (`LOAD_PHYSICAL_ADDR`).
const LOWEST_KERNEL: u64 = 16 << 20;

/// One address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Guest linear address, as in the kernel image.
    pub address: u64,
    /// What the stamp says.
    pub id: u32,
    /// Only its first execution is stamped.
    pub once: bool,
    /// `mode=early` ends here.
    pub last: bool,
}

/// The list, ready for a look-up at every translation.
#[derive(Debug, Default)]
pub struct Addresses {
    /// What can be stamped.
    pub entries: Vec<Entry>,
    /// The address that tells the slide of KASLR.
    pub anchor: Option<u64>,
    /// Id of the function that calls the initcalls.
    pub caller_id: u32,
    caller: (u64, u64),
    thunks: (u64, u64),
    modulo: Option<usize>,
    high: Option<usize>,
    /// Open addressing: index + 1 of an entry, 0 for an empty slot.
    table: Vec<u32>,
}

/// Most addresses in a list.
const MAX_ENTRIES: usize = 1 << 16;

impl Addresses {
    /// Reads a list.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut list = Self::default();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            list.line(line).ok_or_else(|| {
                format!(
                    "line {}: expected ADDRESS ID FLAGS LENGTH NAME, found {line:?}",
                    number + 1
                )
            })?;
        }
        if list.entries.len() > MAX_ENTRIES {
            return Err(format!(
                "expected at most {MAX_ENTRIES} addresses, found {}",
                list.entries.len()
            ));
        }
        list.index();
        Ok(list)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let id = words.next()?.parse().ok()?;
        let flags = words.next()?;
        let length = u64::from_str_radix(words.next()?, 16).ok()?;
        let has = |flag: char| flags.contains(flag);
        if !flags.chars().all(|flag| "-olmhkict".contains(flag)) {
            return None;
        }
        if has('t') {
            self.thunks = (address, length);
            return Some(());
        }
        if has('k') {
            self.anchor = Some(address);
        }
        if has('c') {
            self.caller = (address, length);
            self.caller_id = id;
        }
        if has('h') {
            self.high = Some(self.entries.len());
        }
        if has('m') {
            self.modulo = Some(self.entries.len());
        }
        self.entries.push(Entry { address, id, once: has('o'), last: has('l') });
        Some(())
    }

    fn index(&mut self) {
        let slots = (self.entries.len() * 4).next_power_of_two().max(16);
        self.table = vec![0; slots];
        for at in 0..self.entries.len() {
            let mut slot = self.slot(self.entries[at].address);
            while self.table[slot] != 0 {
                slot = (slot + 1) % slots;
            }
            self.table[slot] = at as u32 + 1;
        }
    }

    fn slot(&self, address: u64) -> usize {
        let bits = self.table.len().trailing_zeros();
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }

    /// Index of the entry with this address; the first of several.
    pub fn find(&self, address: u64) -> Option<usize> {
        let mut slot = self.slot(address);
        loop {
            let index = self.table[slot].checked_sub(1)? as usize;
            if self.entries[index].address == address {
                return Some(index);
            }
            slot = (slot + 1) % self.table.len();
        }
    }

    /// Index of the entry flagged `m`, if the address can be it.
    pub fn find_modulo(&self, address: u64) -> Option<usize> {
        let index = self.modulo?;
        let entry = self.entries.get(index)?;
        let here = (LOWEST_KERNEL..KERNEL_BASE).contains(&address)
            && (address ^ entry.address) % PHYSICAL_ALIGN == 0;
        here.then_some(index)
    }

    /// Index of the entry flagged `h`, if the address is in the kernel's half.
    pub fn find_high(&self, address: u64) -> Option<usize> {
        self.high.filter(|_| address >= KERNEL_BASE)
    }

    /// True inside the function that calls the initcalls.
    pub fn calls_initcalls(&self, address: u64) -> bool {
        address.wrapping_sub(self.caller.0) < self.caller.1
    }

    /// True inside the retpoline thunks.
    pub fn is_thunk(&self, address: u64) -> bool {
        address.wrapping_sub(self.thunks.0) < self.thunks.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
fffffff0 0 o 0 reset-vector
1000000 1 om 0 startup_64
ffffffff8304e59c 2 ok 0 x86_64_start_kernel
ffffffff81002460 3 cl 2a0 do_one_initcall
ffffffff82000000 0 t 800 thunks
ffffffff83061000 4 i 0 initcall a
";

    #[test]
    fn finds_what_is_listed() {
        let list = Addresses::parse(LIST).unwrap();
        assert_eq!(list.entries.len(), 5);
        for (index, entry) in list.entries.iter().enumerate() {
            assert_eq!(list.find(entry.address), Some(index));
            assert_eq!(list.find(entry.address + 1), None);
        }
        assert_eq!(list.anchor, Some(0xffff_ffff_8304_e59c));
        assert!(list.entries[3].last && !list.entries[3].once && list.caller_id == 3);
        assert!(list.calls_initcalls(0xffff_ffff_8100_26ff));
        assert!(!list.calls_initcalls(0xffff_ffff_8100_2700));
        assert_eq!(list.find_modulo(0x2b20_0000), Some(1));
        assert_eq!(list.find_modulo(0x20_0000), None, "below the kernel");
    }

    #[test]
    fn the_kernels_half_is_one_entry() {
        let list = Addresses::parse("1000000 0 m 0 image-entry\nffffffff80000000 1 ohl 0 mapped\n");
        let list = list.unwrap();
        assert_eq!(list.find_high(0xffff_ffff_a123_4567), Some(1));
        assert_eq!(list.find_high(0x7f00_0000_0000), None);
        assert!(list.entries[1].last);
        assert_eq!(Addresses::parse(LIST).unwrap().find_high(u64::MAX), None);
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for bad in ["x 0 o 0 n", "1 x o 0 n", "1 0 z 0 n", "1 0 o", "1 0 o g n"] {
            assert!(Addresses::parse(bad).unwrap_err().contains("line 1"), "{bad}");
        }
        assert!(Addresses::parse("").unwrap().find(1).is_none());
    }

    #[test]
    fn the_first_of_equal_addresses_counts() {
        let list = Addresses::parse("10 1 - 0 a\n10 2 - 0 b\n").unwrap();
        assert_eq!(list.find(16), Some(0));
    }
}
