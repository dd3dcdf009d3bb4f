//! The ring of texts, by the numbers that its blocks begin with.
//!
//! A block is the id of its descriptor, then the text (`struct prb_data_block`); a descriptor says
//! at which running position its block begins. So one place where three ids follow one another
//! at their descriptors' distances gives the ring's address, up to its size.

use crate::bytes::u64_at;
use crate::ram::HostMemory;
use std::collections::HashMap;

/// Sizes of a ring that are tried, as powers of two (`CONFIG_LOG_BUF_SHIFT` is from 12 to 25).
const BITS: std::ops::RangeInclusive<u32> = 12..=25;
/// Blocks that must follow one another.
const IN_A_ROW: usize = 3;
/// Of all blocks, the share that must be where their descriptors say: one part in so many may be
/// overwritten.
const DAMAGED: usize = 10;

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub id: u64,
    pub begin: u64,
    pub next: u64,
}

/// The ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Texts {
    pub address: u64,
    pub bits: u32,
}

/// Descriptors with data, by id.
pub(super) struct Blocks<'a> {
    all: &'a [Block],
    by_id: HashMap<u64, usize>,
    /// The least and the greatest id: almost no other word of RAM is in between.
    ids: (u64, u64),
}

impl<'a> Blocks<'a> {
    pub(super) fn of(all: &'a [Block]) -> Self {
        let ids = all.iter().map(|block| block.id);
        let ids = (ids.clone().min().unwrap_or(0), ids.max().unwrap_or(0));
        Blocks { all, by_id: all.iter().enumerate().map(|(n, block)| (block.id, n)).collect(), ids }
    }

    /// The ring, if a window of RAM at `at` is within it.
    pub(super) fn ring_at<H: HostMemory + ?Sized>(
        &self,
        host: &H,
        at: u64,
        window: &[u8],
    ) -> Option<Texts> {
        (0..window.len().saturating_sub(7)).step_by(8).find_map(|offset| {
            let id = u64_at(window, offset).filter(|id| (self.ids.0..=self.ids.1).contains(id))?;
            let block = *self.by_id.get(&id)?;
            self.ring_of(host, at + offset as u64, block)
        })
    }

    fn ring_of<H: HostMemory + ?Sized>(&self, host: &H, at: u64, n: usize) -> Option<Texts> {
        let id_at = |address: u64| {
            let mut id = [0; 8];
            host.read(address, &mut id).ok().map(|()| u64::from_le_bytes(id))
        };
        let row = self.all.get(n..n + IN_A_ROW)?;
        let first = row.first()?.begin;
        let follow = |block: &Block| {
            id_at(at.wrapping_add(block.begin.wrapping_sub(first))) == Some(block.id)
        };
        if !row.iter().all(follow) {
            return None;
        }
        let found = |bits: u32| {
            let mask = (1u64 << bits) - 1;
            let address = at.wrapping_sub(first & mask);
            let right =
                |block: &&Block| id_at(address.wrapping_add(start(block, bits))) == Some(block.id);
            (self.all.iter().filter(right).count(), Texts { address, bits })
        };
        // The smallest of those in which most are right: a larger one is read the same.
        let best = BITS.map(found).rev().max_by_key(|(right, _)| *right)?;
        let enough = self.all.len() - self.all.len() / DAMAGED;
        (best.0 >= enough).then_some(best.1)
    }
}

/// Where in its ring a block begins: one that does not fit before the end is at the start.
fn start(block: &Block, bits: u32) -> u64 {
    let mask = (1u64 << bits) - 1;
    let whole = block.begin >> bits == block.next.wrapping_sub(1) >> bits;
    if whole {
        block.begin & mask
    } else {
        0
    }
}
