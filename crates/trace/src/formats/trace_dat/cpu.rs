//! One CPU's ring buffer pages, as the kernel wrote them.
//!
//! The page and event layout is that of the kernel's `include/linux/ring_buffer.h`:
//! a page head (time stamp, commit), then events headed by 32 bits, `type_len`
//! in the low 5 and `time_delta` in the upper 27.

use super::parts::{CpuData, PageHead, NO_KIND};
use super::sections::{Packing, Unpacker};
use crate::event::IntField;
use crate::input::RandomAccess;
use std::sync::Arc;

const TYPE_PADDING: u32 = 29;
const TYPE_TIME_EXTEND: u32 = 30;
const TYPE_TIME_STAMP: u32 = 31;

/// Bits of `commit` that are the length of the page's data.
const COMMIT_MASK: u64 = (1 << 27) - 1;
/// Events were lost before this page.
const MISSED_EVENTS: u64 = 1 << 31;
/// How many is stored behind the page's data.
const MISSED_STORED: u64 = 1 << 30;
/// An absolute stamp has 59 bits; the rest come from the stamp before.
const ABSOLUTE_MASK: u64 = (1 << 59) - 1;

/// How pages and the heads of records are laid out in a file.
pub struct Layout {
    /// Head of a page.
    pub page: PageHead,
    /// Type of a record.
    pub common_type: IntField,
    /// Thread of a record.
    pub common_pid: IntField,
    /// Index of a type's description.
    pub by_type: Vec<u32>,
}

/// Stands for a loss of events, nobody knows how many.
pub const LOST: u32 = u32::MAX - 1;
/// Stands for a loss of as many events as `start` (low) and `end` (high) say.
pub const LOST_COUNTED: u32 = u32::MAX - 2;

/// A record, or a loss, in a [`Block`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Time stamp, in ticks of the buffer's clock.
    pub ts: u64,
    /// Where the record starts in the block's data.
    pub start: u32,
    /// Where it ends.
    pub end: u32,
    /// Thread.
    pub tid: i32,
    /// Index of its type, or one of the marks above.
    pub kind: u32,
}

/// Some pages, and what is on them in the order it was written.
#[derive(Debug, Default)]
pub struct Block {
    /// The pages.
    pub data: Vec<u8>,
    /// What is on them.
    pub items: Vec<Item>,
    /// What is damaged, in words.
    pub problems: Vec<String>,
}

/// Most bytes of a block: so that its items stay in the CPU's cache.
const BLOCK: usize = 64 << 10;
/// Problems reported for one CPU, at most.
const MAX_PROBLEMS: usize = 16;

/// Finds the events on the pages of one CPU, block by block.
pub struct CpuPages {
    /// CPU number.
    pub cpu: u32,
    clock: u64,
    page_size: usize,
    pages: Pages,
    layout: Arc<Layout>,
    told: usize,
}

impl CpuPages {
    /// The pages from the first on; `limit` bounds the memory they take, in bytes.
    pub fn new(
        file: &RandomAccess,
        data: CpuData,
        layout: Arc<Layout>,
        page_size: u32,
        limit: usize,
        problems: &mut Vec<String>,
    ) -> CpuPages {
        let pages = Pages::new(file, data, page_size as usize, limit, problems);
        CpuPages {
            cpu: data.cpu,
            clock: 0,
            page_size: page_size as usize,
            pages,
            layout,
            told: problems.len(),
        }
    }

    /// Fills a block with the next pages; false at the end.
    pub fn fill(&mut self, file: &RandomAccess, block: &mut Block) -> bool {
        block.items.clear();
        block.problems.clear();
        let more = self.pages.more(file, self.page_size, &mut block.problems);
        if more {
            self.pages.hand_over(self.page_size, &mut block.data);
            let Block { data, items, problems } = block;
            // The last one may be torn.
            for (index, page) in data.chunks(self.page_size).enumerate() {
                self.page(page, index * self.page_size, items, problems);
            }
        }
        block.problems.truncate(MAX_PROBLEMS.saturating_sub(self.told));
        self.told += block.problems.len();
        more
    }

    /// Finds what is on a page that stands at `base` in its block.
    fn page(
        &mut self,
        page: &[u8],
        base: usize,
        items: &mut Vec<Item>,
        problems: &mut Vec<String>,
    ) {
        let head = self.layout.page;
        let long = |at: usize, size: u32| -> Option<u64> {
            let mut bytes = [0; 8];
            bytes[..size as usize].copy_from_slice(page.get(at..at + size as usize)?);
            Some(u64::from_le_bytes(bytes))
        };
        let (Some(ts), Some(commit)) = (long(0, 8), long(head.commit as usize, head.commit_size))
        else {
            problems.push(format!(
                "CPU {}: a page of {} bytes is too short for its header",
                self.cpu,
                page.len()
            ));
            return;
        };
        self.clock = ts;
        let data = head.data as usize;
        let committed = (commit & COMMIT_MASK) as usize;
        let end = data + committed;
        if commit & MISSED_EVENTS != 0 {
            let stored = commit & MISSED_STORED != 0;
            let count = if stored { long(end, head.commit_size) } else { None };
            items.push(lost(ts, count));
        }
        if end > page.len() {
            let what = if page.len() < self.page_size { "truncated" } else { "damaged" };
            problems.push(format!(
                "CPU {}: a page is {what}: {} of {committed} bytes are there",
                self.cpu,
                page.len().saturating_sub(data)
            ));
        }
        let page = &page[..end.min(page.len())];
        if let Err(what) = self.events(page, data, base, items) {
            problems.push(format!("CPU {}: {what}; vmeter skips the rest of the page", self.cpu));
        }
    }

    /// Finds the events of a page that is cut to what was committed to it.
    #[inline]
    fn events(
        &mut self,
        page: &[u8],
        mut at: usize,
        base: usize,
        items: &mut Vec<Item>,
    ) -> Result<(), &'static str> {
        while let Some(head) = word(page, at) {
            let (type_len, delta) = (head & 31, u64::from(head >> 5));
            let (start, len) = match type_len {
                1..=28 => (at + 4, type_len as usize * 4),
                0 => {
                    let size = word(page, at + 4).unwrap_or(0) as usize;
                    (at + 8, size.saturating_sub(4))
                }
                _ => {
                    at = self.time(page, at, type_len, delta)?;
                    continue;
                }
            };
            self.clock = self.clock.wrapping_add(delta);
            let record = page.get(start..start + len).filter(|record| !record.is_empty());
            let Some(record) = record else {
                return Err("an event extends past the end of its page");
            };
            let Layout { common_type, common_pid, by_type, .. } = &*self.layout;
            let id = common_type.get(record).unwrap_or(u64::MAX) as usize;
            items.push(Item {
                ts: self.clock,
                start: (base + start) as u32,
                end: (base + start + len) as u32,
                tid: common_pid.get(record).map_or(-1, |pid| pid as i32),
                kind: by_type.get(id).copied().unwrap_or(NO_KIND),
            });
            // An event of odd length is padded to the next word.
            at = (start + len).next_multiple_of(4);
        }
        Ok(())
    }

    /// Takes a head that only moves the time or pads; gives where the next one is.
    fn time(
        &mut self,
        page: &[u8],
        at: usize,
        type_len: u32,
        delta: u64,
    ) -> Result<usize, &'static str> {
        match (type_len, word(page, at + 4)) {
            (TYPE_TIME_EXTEND, Some(high)) => {
                self.clock = self.clock.wrapping_add((u64::from(high) << 27) + delta);
                Ok(at + 8)
            }
            (TYPE_TIME_STAMP, Some(high)) => {
                let absolute = (u64::from(high) << 27) + delta;
                let mut clock = self.clock & !ABSOLUTE_MASK | absolute & ABSOLUTE_MASK;
                if clock < self.clock && self.clock - clock > 1 << 58 {
                    clock = clock.wrapping_add(1 << 59);
                }
                self.clock = clock;
                Ok(at + 8)
            }
            // A discarded event says its length; without a delta it fills the page.
            (TYPE_PADDING, Some(len)) if delta != 0 => {
                self.clock = self.clock.wrapping_add(delta);
                Ok(at.saturating_add(4).saturating_add(len as usize))
            }
            (TYPE_PADDING, _) => Ok(page.len()),
            _ => Err("a time stamp extends past the end of its page"),
        }
    }
}

fn lost(ts: u64, count: Option<u64>) -> Item {
    let (low, high) = count.map_or((0, 0), |count| (count as u32, (count >> 32) as u32));
    let kind = if count.is_some() { LOST_COUNTED } else { LOST };
    Item { ts, start: low, end: high, tid: -1, kind }
}

#[inline]
fn word(page: &[u8], at: usize) -> Option<u32> {
    let bytes = page.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Pages of one CPU, read or unpacked a block at a time.
struct Pages {
    block: Vec<u8>,
    packed: Vec<u8>,
    used: usize,
    at: u64,
    end: u64,
    chunks: u32,
    packing: Packing,
    unpacker: Unpacker,
    limit: usize,
    cpu: u32,
}

impl Pages {
    fn new(
        file: &RandomAccess,
        data: CpuData,
        page_size: usize,
        limit: usize,
        problems: &mut Vec<String>,
    ) -> Pages {
        // trace-cmd does not count the word that says how many chunks there are.
        let head = if data.packing == Packing::None { 0 } else { 4 };
        let end = data.offset.saturating_add(data.size).saturating_add(head);
        if end > file.len() && data.size > 0 {
            problems.push(format!(
                "CPU {}: the last {} of its {} bytes of data are missing, because the file ends \
                too early",
                data.cpu,
                end - file.len().max(data.offset),
                data.size
            ));
        }
        let mut pages = Pages {
            block: Vec::new(),
            packed: Vec::new(),
            used: 0,
            at: data.offset,
            end: end.min(file.len()),
            chunks: 0,
            packing: data.packing,
            unpacker: Unpacker::default(),
            limit: limit.max(page_size),
            cpu: data.cpu,
        };
        if data.packing != Packing::None && data.size > 0 {
            pages.chunks = pages.number(file).unwrap_or(0);
        }
        pages
    }

    fn number(&mut self, file: &RandomAccess) -> Option<u32> {
        let mut bytes = [0; 4];
        let got = file.read_at(self.at, &mut bytes).unwrap_or(0);
        self.at = self.at.saturating_add(4);
        (got == 4 && self.at <= self.end).then(|| u32::from_le_bytes(bytes))
    }

    /// Sees to it that there is a page that was not handed over; false at the end.
    fn more(&mut self, file: &RandomAccess, page_size: usize, problems: &mut Vec<String>) -> bool {
        while self.used >= self.block.len() {
            let more = match self.packing {
                Packing::None => self.read(file, page_size, problems),
                _ => self.unpack(file, problems),
            };
            if !more {
                return false;
            }
        }
        true
    }

    /// Hands the next pages over: all of the block unless it is a large one.
    fn hand_over(&mut self, page_size: usize, out: &mut Vec<u8>) {
        if self.used == 0 && self.block.len() <= BLOCK.max(page_size) {
            std::mem::swap(&mut self.block, out);
            self.used = self.block.len();
            return;
        }
        let most = (BLOCK / page_size).max(1) * page_size;
        let part = &self.block[self.used..];
        let part = &part[..most.min(part.len())];
        out.clear();
        out.extend_from_slice(part);
        self.used += part.len();
    }

    fn read(&mut self, file: &RandomAccess, page_size: usize, problems: &mut Vec<String>) -> bool {
        let wanted = (self.limit.min(BLOCK) / page_size).max(1) * page_size;
        let size = (wanted as u64).min(self.end.saturating_sub(self.at)) as usize;
        self.block.resize(size, 0);
        self.used = 0;
        match file.read_at(self.at, &mut self.block) {
            Ok(got) => self.block.truncate(got),
            Err(e) => {
                problems.push(format!("CPU {}: reading at {}: {e}", self.cpu, self.at));
                self.block.clear();
            }
        }
        self.at += self.block.len() as u64;
        !self.block.is_empty()
    }

    fn unpack(&mut self, file: &RandomAccess, problems: &mut Vec<String>) -> bool {
        self.block.clear();
        self.used = 0;
        if self.chunks == 0 {
            return false;
        }
        let left = self.chunks;
        self.chunks -= 1;
        let cpu = self.cpu;
        let mut stop = |what: String| {
            problems.push(format!("CPU {cpu}: its last {left} chunks are missing: {what}"));
            false
        };
        let (Some(packed), Some(unpacked)) = (self.number(file), self.number(file)) else {
            self.chunks = 0;
            return stop("the data ends".into());
        };
        let there = self.end.saturating_sub(self.at);
        if u64::from(packed) > there {
            self.chunks = 0;
            return stop(format!("only {there} of the {packed} bytes of the next chunk are there"));
        }
        self.packed.resize(packed as usize, 0);
        let got = file.read_at(self.at, &mut self.packed).unwrap_or(0);
        self.at += u64::from(packed);
        if got < packed as usize || unpacked as usize > self.limit {
            self.chunks = 0;
            return stop(format!("a chunk of {packed} bytes claims to unpack to {unpacked} bytes"));
        }
        let limit = unpacked as usize;
        let Pages { unpacker, packing, packed, block, .. } = self;
        let budget = file.budget();
        if let Err(e) = unpacker.unpack(*packing, packed, limit, block, budget) {
            self.block.clear();
            if budget.exceeded().is_some() {
                self.chunks = 0;
                return false;
            }
            if problems.len() < MAX_PROBLEMS {
                problems.push(format!("CPU {cpu}: a chunk is skipped: {e}"));
            }
        }
        true
    }
}
