//! One CPU's events one by one, found when they are needed or by another thread before.

use super::ahead::Ahead;
use super::cpu::{Block, CpuPages, Item};
use crate::input::RandomAccess;

/// Where blocks come from.
pub enum Source {
    /// Filled when the one before is used up.
    Here(CpuPages),
    /// Filled by another thread meanwhile.
    Ahead(Ahead),
}

/// The events of one CPU in the order they were written.
pub struct CpuStream {
    /// CPU number.
    pub cpu: u32,
    /// Index of the ring buffer it belongs to.
    pub buffer: u32,
    /// Time stamp of the item that the stream stands at; `u64::MAX` at the end.
    pub ts: u64,
    /// What is damaged, in words.
    pub problems: Vec<String>,
    block: Block,
    /// Index of the item that it stands at.
    at: usize,
    source: Source,
}

impl CpuStream {
    /// A stream before its first event.
    pub fn new(pages: CpuPages, buffer: u32, problems: Vec<String>) -> CpuStream {
        CpuStream {
            cpu: pages.cpu,
            buffer,
            ts: 0,
            problems,
            block: Block::default(),
            at: 0,
            source: Source::Here(pages),
        }
    }

    /// Goes to the first event.
    pub fn begin(&mut self, file: &RandomAccess) {
        if self.block.items.is_empty() {
            self.refill(file)
        } else {
            self.show()
        }
    }

    /// What it stands at; none at the end.
    #[inline]
    pub fn item(&self) -> Option<Item> {
        self.block.items.get(self.at).copied()
    }

    /// The bytes of a record that the stream stands at.
    #[inline]
    pub fn record(&self, item: &Item) -> &[u8] {
        &self.block.data[item.start as usize..item.end as usize]
    }

    /// Goes on to the next item.
    #[inline]
    pub fn advance(&mut self, file: &RandomAccess) {
        self.at += 1;
        match self.block.items.get(self.at) {
            Some(item) => self.ts = item.ts,
            None => self.refill(file),
        }
    }

    fn show(&mut self) {
        self.ts = self.item().map_or(u64::MAX, |item| item.ts);
    }

    #[cold]
    fn refill(&mut self, file: &RandomAccess) {
        self.at = 0;
        loop {
            let more = match &mut self.source {
                Source::Here(pages) => pages.fill(file, &mut self.block),
                Source::Ahead(ahead) => ahead.next(&mut self.block),
            };
            self.problems.append(&mut self.block.problems);
            if !more {
                self.block.items.clear();
                break;
            }
            if !self.block.items.is_empty() {
                break;
            }
        }
        self.show();
    }

    /// Takes the pages away, to be filled elsewhere, if that is not done already.
    pub fn hand_over(&mut self, ahead: impl FnOnce(CpuPages) -> Ahead) {
        let nobody = Source::Ahead(Ahead::ended());
        self.source = match std::mem::replace(&mut self.source, nobody) {
            Source::Here(pages) => Source::Ahead(ahead(pages)),
            already => already,
        };
    }
}
