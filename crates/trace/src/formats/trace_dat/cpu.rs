//! One CPU's ring buffer pages, as the kernel wrote them.
//!
//! The page and event layout is that of the kernel's `include/linux/ring_buffer.h`:
//! a page head (time stamp, commit), then events headed by 32 bits, `type_len`
//! in the low 5 and `time_delta` in the upper 27.

use super::header::{CpuData, PageHead};
use super::sections::{Packing, Unpacker};
use crate::input::RandomAccess;

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

/// What the stream stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// A record: where it is in [`CpuStream::record`]'s buffer.
    Record {
        /// Start.
        start: u32,
        /// End.
        end: u32,
    },
    /// Events are missing here.
    Lost(Option<u64>),
}

/// The events of one CPU in the order they were written.
pub struct CpuStream {
    /// CPU number.
    pub cpu: u32,
    /// Index of the ring buffer it belongs to.
    pub buffer: u32,
    /// Time stamp of the item that the stream stands at; `u64::MAX` at the end.
    pub ts: u64,
    /// What it stands at; none at the end.
    pub item: Option<Item>,
    /// What is damaged, in words.
    pub problems: Vec<String>,
    clock: u64,
    head: PageHead,
    page_size: usize,
    pages: Pages,
    /// Unread part of the page's events, in `pages.block`.
    at: usize,
    end: usize,
}

impl CpuStream {
    /// A stream at its first event; `limit` bounds the memory it takes, in bytes.
    pub fn new(
        file: &RandomAccess,
        data: CpuData,
        buffer: u32,
        head: PageHead,
        page_size: u32,
        limit: usize,
    ) -> CpuStream {
        let mut problems = Vec::new();
        let pages = Pages::new(file, data, page_size as usize, limit, &mut problems);
        let mut stream = CpuStream {
            cpu: data.cpu,
            buffer,
            ts: 0,
            item: None,
            problems,
            clock: 0,
            head,
            page_size: page_size as usize,
            pages,
            at: 0,
            end: 0,
        };
        stream.advance(file);
        stream
    }

    /// The bytes of a record that the stream stands at.
    #[inline]
    pub fn record(&self, start: u32, end: u32) -> &[u8] {
        &self.pages.block[start as usize..end as usize]
    }

    /// Goes on to the next item.
    #[inline]
    pub fn advance(&mut self, file: &RandomAccess) {
        loop {
            while self.at + 4 <= self.end {
                if let Some(item) = self.step() {
                    self.item = Some(item);
                    self.ts = self.clock;
                    return;
                }
            }
            match self.next_page(file) {
                Page::Whole => {}
                Page::AfterLoss(count) => {
                    self.item = Some(Item::Lost(count));
                    self.ts = self.clock;
                    return;
                }
                Page::None => {
                    self.item = None;
                    self.ts = u64::MAX;
                    return;
                }
            }
        }
    }

    /// Reads one event header; none for one that only moves the time or pads.
    #[inline]
    fn step(&mut self) -> Option<Item> {
        let word = self.word(self.at)?;
        let (type_len, delta) = (word & 31, u64::from(word >> 5));
        let (start, len) = match type_len {
            1..=28 => (self.at + 4, type_len as usize * 4),
            0 => {
                let size = self.word(self.at + 4).unwrap_or(0) as usize;
                (self.at + 8, size.saturating_sub(4))
            }
            _ => {
                self.step_time(type_len, delta);
                return None;
            }
        };
        self.clock = self.clock.wrapping_add(delta);
        let end = start + len;
        if end > self.end || len == 0 {
            self.tear("an event reaches over the end of its page");
            return None;
        }
        // An event of odd length is padded to the next word.
        self.at = end.next_multiple_of(4);
        Some(Item::Record { start: start as u32, end: end as u32 })
    }

    fn step_time(&mut self, type_len: u32, delta: u64) {
        let second = self.word(self.at + 4);
        match (type_len, second) {
            (TYPE_TIME_EXTEND, Some(high)) => {
                self.clock = self.clock.wrapping_add((u64::from(high) << 27) + delta);
                self.at += 8;
            }
            (TYPE_TIME_STAMP, Some(high)) => {
                let absolute = (u64::from(high) << 27) + delta;
                let mut clock = self.clock & !ABSOLUTE_MASK | absolute & ABSOLUTE_MASK;
                if clock < self.clock && self.clock - clock > 1 << 58 {
                    clock = clock.wrapping_add(1 << 59);
                }
                self.clock = clock;
                self.at += 8;
            }
            // A discarded event says its length; without a delta it fills the page.
            (TYPE_PADDING, Some(len)) if delta != 0 => {
                self.clock = self.clock.wrapping_add(delta);
                self.at = self.at.saturating_add(4).saturating_add(len as usize);
            }
            (TYPE_PADDING, _) => self.at = self.end,
            _ => self.tear("a time stamp reaches over the end of its page"),
        }
    }

    #[inline]
    fn word(&self, at: usize) -> Option<u32> {
        if at + 4 > self.end {
            return None;
        }
        let bytes = self.pages.block.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn tear(&mut self, what: &str) {
        self.at = self.end;
        if self.problems.len() < 8 {
            self.problems
                .push(format!("CPU {}: {what}; the rest of the page is skipped", self.cpu));
        }
    }

    fn next_page(&mut self, file: &RandomAccess) -> Page {
        let Some((start, len)) = self.pages.next(file, self.page_size, &mut self.problems) else {
            return Page::None;
        };
        let head = self.head;
        let page = &self.pages.block[start..start + len];
        let long = |at: usize, size: u32| -> Option<u64> {
            let mut bytes = [0; 8];
            bytes[..size as usize].copy_from_slice(page.get(at..at + size as usize)?);
            Some(u64::from_le_bytes(bytes))
        };
        let (Some(ts), Some(commit)) = (long(0, 8), long(head.commit as usize, head.commit_size))
        else {
            self.problems.push(format!("CPU {}: a page of {len} bytes has no head", self.cpu));
            return self.skip_page();
        };
        self.clock = ts;
        let data = head.data as usize;
        let committed = (commit & COMMIT_MASK) as usize;
        let end = data + committed;
        let lost = (commit & MISSED_EVENTS != 0)
            .then(|| (commit & MISSED_STORED != 0).then(|| long(end, head.commit_size)).flatten());
        if end > len {
            let what = if len < self.page_size { "truncated" } else { "damaged" };
            self.problems.push(format!(
                "CPU {}: its {what} page has {} of {committed} bytes",
                self.cpu,
                len.saturating_sub(data)
            ));
            self.problems.truncate(16);
        }
        (self.at, self.end) = (start + data.min(len), start + end.min(len));
        match lost {
            Some(count) => Page::AfterLoss(count),
            None => Page::Whole,
        }
    }

    fn skip_page(&mut self) -> Page {
        self.at = self.end;
        Page::Whole
    }
}

enum Page {
    Whole,
    AfterLoss(Option<u64>),
    None,
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
                "CPU {}: {} of its {} bytes are past the end of the file",
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

    /// Place of the next page in the block: (start, length), shorter if truncated.
    fn next(
        &mut self,
        file: &RandomAccess,
        page_size: usize,
        problems: &mut Vec<String>,
    ) -> Option<(usize, usize)> {
        while self.used >= self.block.len() {
            let more = match self.packing {
                Packing::None => self.read(file, page_size, problems),
                _ => self.unpack(file, problems),
            };
            if !more {
                return None;
            }
        }
        let start = self.used;
        let len = page_size.min(self.block.len() - start);
        self.used += len;
        Some((start, len))
    }

    fn read(&mut self, file: &RandomAccess, page_size: usize, problems: &mut Vec<String>) -> bool {
        let wanted = (self.limit.min(64 << 10) / page_size).max(1) * page_size;
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
            return stop(format!("{there} of {packed} bytes of the next one are there"));
        }
        self.packed.resize(packed as usize, 0);
        let got = file.read_at(self.at, &mut self.packed).unwrap_or(0);
        self.at += u64::from(packed);
        if got < packed as usize || unpacked as usize > self.limit {
            self.chunks = 0;
            return stop(format!("a chunk of {packed} bytes claims to unpack to {unpacked}"));
        }
        let limit = unpacked as usize;
        let Pages { unpacker, packing, packed, block, .. } = self;
        if let Err(e) = unpacker.unpack(*packing, packed, limit, block) {
            self.block.clear();
            problems.push(format!("CPU {cpu}: a chunk is skipped: {e}"));
            problems.truncate(16);
        }
        true
    }
}
