//! The kernel's log, out of guest RAM.
//!
//! Since 5.10 the log is a lockless ring (`kernel/printk/printk_ringbuffer.h`):
//! descriptors and infos in two arrays indexed by the low bits of a running id,
//! and texts in a ring of their own, addressed by running logical positions.
//! [`PrintkDump::take`] copies what is in use, raw; [`PrintkDump::records`]
//! reads it as a reader in the kernel would, leaving out what was being written.

use crate::btf::Field;
use crate::bytes::u64_at;
use crate::clocks::Clocks;
use crate::error::{Error, Result};
use crate::guest::Guest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What the dump's description says it is.
const KIND: &str = "guest-printk/1";
/// Largest ring: `log_buf_len` is at most 2 GiB, and 2^25 is generous for a boot.
const MAX_TEXT_BITS: u64 = 25;
/// Most descriptors: `PRB_AVGBITS` is 5, so 32 bytes of text each.
const MAX_DESC_BITS: u64 = MAX_TEXT_BITS - 5;
/// The two top bits of a descriptor's state.
const STATE_SHIFT: u32 = 62;
const STATE_COMMITTED: u64 = 1;
const STATE_FINALIZED: u64 = 2;
/// The position of an empty line; other odd positions mean that the text was lost.
const EMPTY_LINE: u64 = 3;

/// Fields of a descriptor and an info that the decoder needs.
const FIELDS: &[&str] = &[
    "prb_desc.state_var",
    "prb_desc.text_blk_lpos.begin",
    "prb_desc.text_blk_lpos.next",
    "printk_info.seq",
    "printk_info.ts_nsec",
    "printk_info.text_len",
    "printk_info.level",
    "printk_info.caller_id",
];

/// Who wrote a record: 0 is the kernel itself, and a program that writes to `/dev/kmsg` can't
/// say that it is (`devkmsg_write` of kernel/printk/printk.c).
const FACILITY: &str = "printk_info.facility";

/// The log as it was in RAM.
#[derive(Debug, Clone)]
pub struct PrintkDump {
    header: Header,
    raw: Vec<u8>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Header {
    kind: String,
    kernel: String,
    fields: BTreeMap<String, Field>,
    desc_size: u64,
    info_size: u64,
    /// Id of the oldest descriptor; the rest follow one by one.
    first_id: u64,
    /// Number of descriptors, and of infos after them.
    count: u64,
    /// Size of the text ring, as a power of two.
    text_bits: u32,
    /// Logical position of the first byte of text, which is after the infos.
    text_start: u64,
    /// Records that were being written, or were overwritten, while they were copied.
    #[serde(default, skip_serializing_if = "is_zero")]
    torn: u64,
    /// The clocks that its records were stamped by, where RAM had them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clocks: Option<Clocks>,
}

pub(crate) fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What a log consists of, each as [`Header`] says.
pub(crate) struct Parts {
    pub desc_size: u64,
    pub info_size: u64,
    pub first_id: u64,
    pub count: u64,
    pub text_bits: u32,
    pub text_start: u64,
    pub raw: Vec<u8>,
}

/// Where the fields are in kernels 5.10 and later, first bit and length in bits.
const LAYOUT: &[(&str, u32, u32)] = &[
    ("prb_desc.state_var", 0, 64),
    ("prb_desc.text_blk_lpos.begin", 64, 64),
    ("prb_desc.text_blk_lpos.next", 128, 64),
    ("printk_info.seq", 0, 64),
    ("printk_info.ts_nsec", 64, 64),
    ("printk_info.text_len", 128, 16),
    (FACILITY, 144, 8),
    ("printk_info.level", 157, 3),
    ("printk_info.caller_id", 160, 32),
];

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrintkRecord {
    /// Running number, counted from the first record of the boot.
    pub seq: u64,
    /// The guest's local clock, ns.
    pub ts_ns: u64,
    /// Level, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// Thread (bit 31 clear) or CPU (bit 31 set) that printed it.
    pub caller_id: u32,
    /// False if a program of the guest wrote it, by `/dev/kmsg`. True where the dump does not say.
    pub by_kernel: bool,
    /// Text, without the newline at its end; a record can have several lines.
    pub text: String,
}

impl PrintkDump {
    /// The least `log_buf_len=`, bytes, with which `records` would have been all, if those that are
    /// lost were of their size; none if none was lost.
    pub fn bytes_wanted(&self, records: &[PrintkRecord]) -> Option<u64> {
        let lost = records.first()?.seq;
        let size = 1u64.checked_shl(self.header.text_bits)?;
        (lost > 0).then(|| wanted(size, lost, records.len() as u64))
    }
}

/// The least power of two, bytes, of a ring that keeps `kept` and `lost` where one of `size` bytes
/// kept `kept`.
pub(crate) fn wanted(size: u64, lost: u64, kept: u64) -> u64 {
    let times = kept.saturating_add(lost).div_ceil(kept.max(1));
    let bytes = size.saturating_mul(times).max(1);
    bytes.checked_next_power_of_two().unwrap_or(1 << 63)
}

/// A ring in RAM: its size is a power of two.
struct Ring {
    address: u64,
    size: u64,
}

impl Ring {
    /// Copies `length` bytes from a running position, around the end.
    fn copy(&self, guest: &Guest<'_>, position: u64, length: u64, out: &mut Vec<u8>) -> Result<()> {
        let mut position = position % self.size;
        let mut left = length.min(self.size);
        while left > 0 {
            let here = left.min(self.size - position);
            let start = out.len();
            out.resize(start + here as usize, 0);
            guest.read(self.address.wrapping_add(position), &mut out[start..])?;
            position = 0;
            left -= here;
        }
        Ok(())
    }
}

impl PrintkDump {
    /// Copies the log out of a guest.
    ///
    /// # Errors
    /// [`Error::Missing`] when the kernel has no `prb` (before 5.10, or without
    /// `CONFIG_PRINTK`) or no types; [`Error::Ram`] when RAM does not hold a log.
    pub fn take(guest: &Guest<'_>) -> Result<Self> {
        let info = guest.info();
        let prb = guest.u64(guest.symbol("prb")?)?;
        let number = |name: &str| guest.field(prb, &format!("printk_ringbuffer.{name}"));
        let desc_bits = number("desc_ring.count_bits")?;
        let text_bits = number("text_data_ring.size_bits")?;
        if !(1..=MAX_DESC_BITS).contains(&desc_bits) || !(4..=MAX_TEXT_BITS).contains(&text_bits) {
            return Err(Error::Ram(format!(
                "the kernel's log has 2^{desc_bits} descriptors and 2^{text_bits} bytes of text; \
                    vmeter reads at most 2^{MAX_DESC_BITS} and 2^{MAX_TEXT_BITS}"
            )));
        }
        let size = |name: &str| {
            info.sizes.get(name).copied().filter(|s| (8..=4096).contains(s)).ok_or_else(|| {
                Error::Missing {
                    what: format!("the size of {name}"),
                    why: "the kernel was built without CONFIG_DEBUG_INFO_BTF".into(),
                }
            })
        };
        let (desc_size, info_size) = (size("prb_desc")?, size("printk_info")?);
        let (first_id, last_id) = (number("desc_ring.tail_id")?, number("desc_ring.head_id")?);
        // Ids are of 62 bits and wrap around.
        let count = (last_id.wrapping_sub(first_id) & (u64::MAX >> 2)) + 1;
        if count > 1 << desc_bits {
            return Err(Error::Ram(format!(
                "the kernel's log gives an invalid number of records: \
                {count}"
            )));
        }
        let mut raw = Vec::new();
        for (array, size) in [("descs", desc_size), ("infos", info_size)] {
            let address = number(&format!("desc_ring.{array}"))?;
            let ring = Ring { address, size: size << desc_bits };
            let first = (first_id & ((1 << desc_bits) - 1)) * size;
            ring.copy(guest, first, count * size, &mut raw)?;
        }
        let text_start = number("text_data_ring.tail_lpos")?;
        let length = number("text_data_ring.head_lpos")?.wrapping_sub(text_start);
        let ring = Ring { address: number("text_data_ring.data")?, size: 1 << text_bits };
        ring.copy(guest, text_start, length, &mut raw)?;
        let mut fields = BTreeMap::new();
        for &name in FIELDS {
            fields.insert(name.to_owned(), info.field(name)?);
        }
        fields.extend(info.field(FACILITY).ok().map(|field| (FACILITY.to_owned(), field)));
        let header = Header {
            kind: KIND.into(),
            kernel: info.version.clone(),
            fields,
            desc_size,
            info_size,
            first_id,
            count,
            text_bits: text_bits as u32,
            text_start,
            torn: 0,
            clocks: None,
        };
        let mut dump = PrintkDump { header, raw };
        let mut again = Vec::new();
        let address = number("desc_ring.descs")?;
        let ring = Ring { address, size: desc_size << desc_bits };
        let first = (first_id & ((1 << desc_bits) - 1)) * desc_size;
        ring.copy(guest, first, count * desc_size, &mut again)?;
        dump.drop_torn(&again);
        Ok(dump)
    }

    /// Drops the records whose descriptors, read `again` after all else, are not what they were: as
    /// a reader in the kernel does (`prb_read` of kernel/printk/printk_ringbuffer.c).
    fn drop_torn(&mut self, again: &[u8]) {
        let size = self.header.desc_size as usize;
        let state = self.header.fields.get("prb_desc.state_var").copied();
        let descs = self.raw.chunks_exact_mut(size).zip(again.chunks_exact(size));
        for (desc, _) in descs.filter(|(desc, again)| *desc != *again) {
            let was = state.and_then(|state| state.get(desc)).unwrap_or(0) >> STATE_SHIFT;
            // One that nobody had written yet is none that is lost.
            self.header.torn += u64::from(matches!(was, STATE_COMMITTED | STATE_FINALIZED));
            desc.fill(0);
        }
    }

    /// How many records were dropped because the guest wrote while they were copied.
    pub fn torn(&self) -> u64 {
        self.header.torn
    }

    /// A log whose parts were found without symbols: as [`PrintkDump::take`] would have copied it.
    pub(crate) fn of_parts(parts: Parts) -> Self {
        let places = LAYOUT
            .iter()
            .map(|(name, bit, bits)| ((*name).to_owned(), Field { bit: *bit, bits: *bits }));
        let header = Header {
            kind: KIND.into(),
            kernel: String::new(),
            fields: places.collect(),
            desc_size: parts.desc_size,
            info_size: parts.info_size,
            first_id: parts.first_id,
            count: parts.count,
            text_bits: parts.text_bits,
            text_start: parts.text_start,
            torn: 0,
            clocks: None,
        };
        let mut dump = PrintkDump { header, raw: parts.raw };
        let version = dump.records().into_iter().find_map(|record| {
            record.text.strip_prefix("Linux version ")?.split(' ').next().map(str::to_owned)
        });
        dump.header.kernel = version.unwrap_or_default();
        dump
    }

    /// Adds the clocks that its records were stamped by.
    pub fn set_clocks(&mut self, clocks: Option<Clocks>) {
        self.header.clocks = clocks;
    }

    /// The clocks that its records were stamped by, if they are known.
    pub fn clocks(&self) -> Option<&Clocks> {
        self.header.clocks.as_ref()
    }

    /// Saves it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        crate::dump::write(path, &self.header, &self.raw)
    }

    /// Reads a saved one.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] when the file is no dump of this kind.
    pub fn read(path: &Path) -> Result<Self> {
        Self::checked(crate::dump::read(path)?)
    }

    /// As [`PrintkDump::read`], from bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn from_bytes(data: &[u8]) -> Result<Self> {
        Self::checked(crate::dump::from_bytes(data)?)
    }

    fn checked((header, raw): (Header, Vec<u8>)) -> Result<Self> {
        let bad = |reason: &str| Error::malformed("printk dump", reason);
        if header.kind != KIND {
            return Err(bad(&format!("it is of kind {:?}", header.kind)));
        }
        if !(1..=MAX_TEXT_BITS as u32).contains(&header.text_bits) {
            return Err(bad("its text ring has an impossible size"));
        }
        let arrays = header
            .desc_size
            .checked_add(header.info_size)
            .and_then(|s| s.checked_mul(header.count));
        if arrays.is_none_or(|a| a > raw.len() as u64) {
            return Err(bad("it is cut short"));
        }
        Ok(PrintkDump { header, raw })
    }

    /// The records in order, oldest first. Those that were being written, or
    /// whose text was already overwritten, are left out.
    pub fn records(&self) -> Vec<PrintkRecord> {
        (0..self.header.count).filter_map(|n| self.record(n)).collect()
    }

    fn record(&self, n: u64) -> Option<PrintkRecord> {
        let h = &self.header;
        let part = |start: u64, size: u64| {
            let at = usize::try_from(start.checked_add(n.checked_mul(size)?)?).ok()?;
            self.raw.get(at..at.checked_add(usize::try_from(size).ok()?)?)
        };
        let desc = part(0, h.desc_size)?;
        let info = part(h.count.checked_mul(h.desc_size)?, h.info_size)?;
        let get = |from: &[u8], name: &str| h.fields.get(name)?.get(from);
        let id = h.first_id.wrapping_add(n) & (u64::MAX >> 2);
        let state = get(desc, "prb_desc.state_var")?;
        if state & (u64::MAX >> 2) != id
            || !matches!(state >> STATE_SHIFT, STATE_COMMITTED | STATE_FINALIZED)
        {
            return None;
        }
        let begin = get(desc, "prb_desc.text_blk_lpos.begin")?;
        let next = get(desc, "prb_desc.text_blk_lpos.next")?;
        let length = get(info, "printk_info.text_len")?;
        let text = if begin & 1 != 0 && next & 1 != 0 {
            (begin == EMPTY_LINE && next == EMPTY_LINE).then_some(&[][..])?
        } else {
            self.text(id, begin, next, length)?
        };
        Some(PrintkRecord {
            seq: get(info, "printk_info.seq")?,
            ts_ns: get(info, "printk_info.ts_nsec")?,
            level: get(info, "printk_info.level")? as u8,
            caller_id: get(info, "printk_info.caller_id")? as u32,
            by_kernel: get(info, FACILITY).unwrap_or(0) == 0,
            text: String::from_utf8_lossy(text).trim_end_matches('\n').to_owned(),
        })
    }

    /// The text of a data block: an id, which must be the record's, then the
    /// text. A block that does not fit before the ring's end is at its start.
    fn text(&self, id: u64, begin: u64, next: u64, length: u64) -> Option<&[u8]> {
        let bits = self.header.text_bits;
        let mask = (1u64 << bits) - 1;
        // Positions begin at -2^bits and wrap to 0 (`BLK0_LPOS`, `get_data`).
        let (start, end) = if begin >> bits == next.wrapping_sub(1) >> bits {
            (begin, next)
        } else if begin.wrapping_add(mask + 1) >> bits == next >> bits {
            (next & !mask, next)
        } else {
            return None;
        };
        let offset = start.wrapping_sub(self.header.text_start);
        let size = Some(end.wrapping_sub(start)).filter(|s| (8..=mask + 1).contains(s))?;
        let texts = self
            .header
            .count
            .checked_mul(self.header.desc_size.checked_add(self.header.info_size)?)?;
        let at = usize::try_from(texts.checked_add(offset)?).ok()?;
        let block = self.raw.get(at..at.checked_add(size as usize)?)?;
        let block_id = u64_at(block, 0)? & (u64::MAX >> 2);
        let text = &block[8..];
        (block_id == id).then(|| &text[..text.len().min(length as usize)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{self, BASE, RAM};
    use proptest::prelude::*;

    const PRB: u64 = 0x2000;
    const DESCS: u64 = 0x3000;
    const INFOS: u64 = 0x4000;
    const TEXT: u64 = 0x8000;
    const COMMITTED: u64 = STATE_COMMITTED << STATE_SHIFT;
    const FINALIZED: u64 = STATE_FINALIZED << STATE_SHIFT;

    /// Ids 6 to 10 of a ring of 8, texts in a ring of 64 bytes: 6 is whole, 7
    /// wraps around, 8 is empty, 9 is reserved, 10 was reused by another id.
    fn ram() -> Vec<u8> {
        let mut ram = vec![0; RAM];
        fake::map(&mut ram);
        fake::put(&mut ram, 0x1000, &[BASE + PRB]);
        // count_bits, descs, infos, head_id, tail_id, size_bits, data, head_lpos, tail_lpos
        let ring = [3, BASE + DESCS, BASE + INFOS, 10, 6, 6, BASE + TEXT, 88, 32];
        fake::put(&mut ram, PRB, &ring);
        let records: [(u64, u64, u64, u64, u64); 5] = [
            (6, FINALIZED | 6, 32, 48, 5),
            (7, COMMITTED | 7, 48, 88, 9),
            (8, FINALIZED | 8, EMPTY_LINE, EMPTY_LINE, 0),
            (9, 9, 88, 88, 0),
            (10, FINALIZED | 18, 88, 88, 0),
        ];
        for (id, state, begin, next, length) in records {
            let slot = (id % 8) * 64;
            fake::put(&mut ram, DESCS + slot, &[state, begin, next]);
            // seq, ts_nsec, text_len, facility, level, caller_id
            fake::put(&mut ram, INFOS + slot, &[100 + id, id * 1000, length, 0, 4, 1]);
        }
        let mut text = |at: u64, id: u64, text: &[u8]| {
            fake::put(&mut ram, TEXT + at, &[id]);
            let at = (TEXT + at + 8) as usize;
            ram[at..at + text.len()].copy_from_slice(text);
        };
        text(32, 6, b"hello");
        // Position 48 to 88 wraps: the block is at the ring's start.
        text(0, 7, b"wrapped\nx, tail");
        ram
    }

    fn dump() -> PrintkDump {
        dump_of(&ram())
    }

    fn dump_of(ram: &[u8]) -> PrintkDump {
        let n = crate::info::SYMBOLS.iter().position(|s| *s == "prb").unwrap();
        let info = fake::info(|i| if i == n { BASE + 0x1000 } else { BASE + 0x10_0000 });
        fake::with(ram, &info, |guest| PrintkDump::take(guest).unwrap())
    }

    /// Texts of a ring of 64 bytes whose blocks, with ids from 1 on, lie between these positions.
    fn texts(edges: &[i64]) -> Vec<String> {
        let mut ram = vec![0; RAM];
        fake::map(&mut ram);
        fake::put(&mut ram, 0x1000, &[BASE + PRB]);
        let edges: Vec<u64> = edges.iter().map(|edge| *edge as u64).collect();
        let (tail, head, last) = (edges[0], edges[edges.len() - 1], edges.len() as u64 - 1);
        let ring = [3, BASE + DESCS, BASE + INFOS, last, 1, 6, BASE + TEXT, head, tail];
        fake::put(&mut ram, PRB, &ring);
        for (id, block) in (1u64..).zip(edges.windows(2)) {
            let slot = id * 64;
            fake::put(&mut ram, DESCS + slot, &[FINALIZED | id, block[0], block[1]]);
            fake::put(&mut ram, INFOS + slot, &[id, id, 1, 0, 4, 1]);
            // What does not fit before the ring's end is at its start.
            let wraps = block[0] / 64 != block[1].wrapping_sub(1) / 64;
            let at = TEXT + if wraps { 0 } else { block[0] % 64 };
            fake::put(&mut ram, at, &[id, u64::from(b'a') + id - 1]);
        }
        dump_of(&ram).records().into_iter().map(|record| record.text).collect()
    }

    #[test]
    fn a_ring_that_keeps_all() {
        assert_eq!(wanted(1 << 18, 700, 300), 1 << 20);
        assert_eq!(wanted(1 << 18, 1, 300), 1 << 19);
        assert_eq!(wanted(0, 5, 0), 1);
        assert_eq!(wanted(u64::MAX, 5, 1), 1 << 63);
    }

    #[test]
    fn the_record_that_straddles_the_first_wrap_is_read() {
        // Positions begin at -64.
        assert_eq!(texts(&[-40, -8, 24]), ["a", "b"], "it does not fit");
        assert_eq!(texts(&[-24, 0, 16]), ["a", "b"], "it ends where the ring does");
        assert_eq!(texts(&[40, 56, 88]), ["a", "b"], "a later wrap");
        assert_eq!(texts(&[-40, -8, 88]), ["a"], "no block is longer than the ring");
    }

    #[test]
    fn records_whole_wrapped_and_empty_are_read_and_torn_ones_left_out() {
        let bytes = crate::dump::to_bytes(&dump().header, &dump().raw).unwrap();
        let records = PrintkDump::from_bytes(&bytes).unwrap().records();
        let read: Vec<_> = records.iter().map(|r| (r.seq, r.ts_ns, r.text.as_str())).collect();
        assert_eq!(read, [(106, 6000, "hello"), (107, 7000, "wrapped\nx"), (108, 8000, "")]);
        assert_eq!(records[0].level, 4);
    }

    #[test]
    fn a_record_that_changed_while_it_was_copied_is_dropped_and_counted() {
        let mut dump = dump();
        let (size, count) = (dump.header.desc_size as usize, dump.header.count as usize);
        let mut again = dump.raw[..size * count].to_vec();
        dump.drop_torn(&again.clone());
        assert_eq!((dump.records().len(), dump.torn()), (3, 0));
        // The first has another id by now, the reserved one is written, and the rest is as it was.
        again[..8].copy_from_slice(&(FINALIZED | 14).to_le_bytes());
        again[3 * size..3 * size + 8].copy_from_slice(&(FINALIZED | 9).to_le_bytes());
        dump.drop_torn(&again);
        let kept: Vec<u64> = dump.records().iter().map(|record| record.seq).collect();
        assert_eq!((kept, dump.torn()), (vec![107, 108], 1));
    }

    proptest! {
        #[test]
        fn damaged_dumps_never_panic(at in 0usize..6000, value: u8, cut in 0usize..6000) {
            let mut bytes = crate::dump::to_bytes(&dump().header, &dump().raw).unwrap();
            let length = bytes.len();
            bytes[at % length] = value;
            bytes.truncate(cut.max(12));
            if let Ok(dump) = PrintkDump::from_bytes(&bytes) {
                let _ = dump.records();
            }
        }
    }
}
