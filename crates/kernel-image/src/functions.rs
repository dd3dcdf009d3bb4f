//! Functions by address, as one compact file.
//!
//! Little-endian: the magic `vmeterF1`, u64 base address, u32 count, then count
//! u32 addresses less the base, count + 1 u32 offsets of names, and the names.

use crate::bytes::{u32_at, u64_at};
use crate::error::{Error, Result};
use crate::ram::KERNEL_MAP;
use crate::symbols::Symbols;

const MAGIC: &[u8; 8] = b"vmeterF1";
const HEADER: usize = 20;

/// A sorted table of functions.
#[derive(Debug, Clone)]
pub struct FunctionTable {
    data: Vec<u8>,
    base: u64,
    count: usize,
}

impl FunctionTable {
    /// The functions among `symbols` within the kernel's image.
    pub fn of(symbols: &Symbols) -> Self {
        let functions: Vec<_> =
            symbols.iter().filter(|s| s.is_function() && s.address >= KERNEL_MAP).collect();
        let base = functions.first().map_or(0, |f| f.address);
        let functions: Vec<_> = functions
            .into_iter()
            .filter_map(|f| Some((u32::try_from(f.address - base).ok()?, f.name)))
            .collect();
        let mut data = MAGIC.to_vec();
        data.extend(base.to_le_bytes());
        data.extend((functions.len() as u32).to_le_bytes());
        for (offset, _) in &functions {
            data.extend(offset.to_le_bytes());
        }
        let mut end = 0u32;
        data.extend(end.to_le_bytes());
        for (_, name) in &functions {
            end += name.len() as u32;
            data.extend(end.to_le_bytes());
        }
        for (_, name) in &functions {
            data.extend(name.as_bytes());
        }
        FunctionTable { data, base, count: functions.len() }
    }

    /// Reads a table written from [`FunctionTable::bytes`].
    ///
    /// # Errors
    /// [`Error::Malformed`] when it is none.
    pub fn from_bytes(data: Vec<u8>) -> Result<Self> {
        let bad = || {
            let reason = "it is truncated, or another version of vmeter wrote it";
            Error::malformed("function table", reason)
        };
        if !data.starts_with(MAGIC) {
            return Err(bad());
        }
        let base = u64_at(&data, 8).ok_or_else(bad)?;
        let count = u32_at(&data, 16).ok_or_else(bad)? as usize;
        let table = FunctionTable { data, base, count };
        let names = count
            .checked_mul(8)
            .and_then(|n| n.checked_add(HEADER + 4))
            .filter(|&end| end <= table.data.len())
            .ok_or_else(bad)?;
        let last = table.name_end(count).ok_or_else(bad)?;
        if names.checked_add(last).is_none_or(|end| end != table.data.len()) {
            return Err(bad());
        }
        Ok(table)
    }

    /// The table as it is stored.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True without functions.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The function that a link-time address is in, and the offset into it, bytes.
    pub fn lookup(&self, address: u64) -> Option<(&str, u64)> {
        let offset = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            if self.offset(middle)? <= offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut found = low.checked_sub(1)?;
        let start = self.offset(found)?;
        while found > 0 && self.offset(found - 1)? == start {
            found -= 1;
        }
        let names = HEADER + 8 * self.count + 4;
        let name =
            self.data.get(names + self.name_end(found)?..names + self.name_end(found + 1)?)?;
        Some((std::str::from_utf8(name).ok()?, u64::from(offset - start)))
    }

    fn offset(&self, n: usize) -> Option<u32> {
        u32_at(&self.data, HEADER + 4 * n)
    }

    fn name_end(&self, n: usize) -> Option<usize> {
        u32_at(&self.data, HEADER + 4 * self.count + 4 * n).map(|v| v as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table() -> FunctionTable {
        FunctionTable::of(&Symbols::from_text(
            "0000000000000010 t percpu\nffffffff81000000 T _text\nffffffff81000000 T startup_64\n\
             ffffffff81000200 t second\nffffffff81000300 d data\nffffffff81000400 T last\n",
        ))
    }

    #[test]
    fn names_addresses_after_a_round_trip() {
        let table = FunctionTable::from_bytes(table().bytes().to_vec()).unwrap();
        assert_eq!(table.len(), 4);
        assert_eq!(table.lookup(0xffff_ffff_8100_0010), Some(("_text", 0x10)));
        assert_eq!(table.lookup(0xffff_ffff_8100_0301), Some(("second", 0x101)));
        assert_eq!(table.lookup(0xffff_ffff_8100_0400), Some(("last", 0)));
        assert_eq!(table.lookup(0xffff_ffff_80ff_ffff), None);
    }

    proptest! {
        #[test]
        fn damaged_tables_never_panic(at in 0usize..200, value: u8, cut in 8usize..200, offset in 0u64..2000) {
            let mut data = table().bytes().to_vec();
            let length = data.len();
            data[at % length] = value;
            data.truncate(cut);
            if let Ok(table) = FunctionTable::from_bytes(data) {
                let _ = table.lookup(0xffff_ffff_8100_0000 + offset);
            }
        }
    }
}
