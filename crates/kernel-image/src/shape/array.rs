//! Arrays whose elements count up by one: descriptors and infos of a log.

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::ram::HostMemory;

/// Bytes of a `struct prb_desc`.
const DESCRIPTOR: usize = 24;
/// Bytes of a `struct printk_info`, with its `struct dev_printk_info`.
const INFO: usize = 88;
/// Bytes of one with the `caller_id2` and the `comm` of `CONFIG_PRINTK_EXECUTION_CTX`, which kernels after 6.18
/// have.
const INFO_WITH_CONTEXT: usize = 112;
/// An id without the state above it (`DESC_ID_MASK`).
pub(super) const ID: u64 = u64::MAX >> 2;
/// What is added to ids: they may begin just below 2^62 and count on from 0 (`DESC0_ID`).
const BIAS: u64 = 1 << 61;
/// Longest text of a record, bytes (`PRINTKRB_RECORD_MAX`, 2 KiB in 6.7 and later).
const MAX_TEXT: u16 = 4096;
/// Most elements: 2^18 is a log of 8 MiB.
const MAX_BITS: u32 = 18;
/// Fewest elements of a ring.
const MIN_BITS: u32 = 4;
/// Elements that must follow one another where an array is first seen.
const IN_A_ROW: usize = 3;
/// Elements that are read at once.
const BLOCK: usize = 64;

/// What an array is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `struct printk_info`: seq, ts_nsec, text_len, facility, flags and level, caller_id, device.
    Info,
    /// The same with `caller_id2` and `comm` before the device.
    InfoWithContext,
    /// `struct prb_desc`: state_var, text_blk_lpos.begin, text_blk_lpos.next.
    Descriptor,
}

impl Kind {
    /// All that hold the numbers and stamps of records.
    pub(super) const INFOS: [Kind; 2] = [Kind::Info, Kind::InfoWithContext];

    pub(super) fn size(self) -> usize {
        match self {
            Kind::Info => INFO,
            Kind::InfoWithContext => INFO_WITH_CONTEXT,
            Kind::Descriptor => DESCRIPTOR,
        }
    }

    /// The number of an element; none if it can't be one.
    pub(super) fn number(self, element: &[u8]) -> Option<u64> {
        let word = u64_at(element, 0)?;
        match self {
            Kind::Info | Kind::InfoWithContext => {
                // Subsystem and device are texts, and mostly empty; so is a thread's name.
                let texts = element.get(if self == Kind::Info { 24 } else { 28 }..self.size())?;
                let stamp = u64_at(element, 8)?;
                let right = word < 1 << 40
                    && stamp < 1 << 62
                    && u16_at(element, 16)? <= MAX_TEXT
                    && (stamp > 0 || u32_at(element, 16)? > 0)
                    && texts.iter().all(|b| matches!(b, 0 | b' '..=b'~'));
                right.then_some(word)
            }
            Kind::Descriptor => {
                let (begin, next) = (u64_at(element, 8)?, u64_at(element, 16)?);
                let data = begin & 7 == 0 && next.wrapping_sub(begin) <= 1 << 16 && next != begin;
                let none = matches!(begin, 1 | 3) && begin == next;
                (word >> 62 != 0 && (data || none)).then_some(word.wrapping_add(BIAS) & ID)
            }
        }
    }
}

/// How much of each page is looked at, bytes: four elements of the longest array.
pub(super) const WINDOW: usize = 512;
/// Words of a window.
const WORDS: usize = WINDOW / 8;

/// Where in a window elements follow one another.
pub(super) fn starts(window: &[u8], kind: Kind) -> Option<usize> {
    let size = kind.size();
    let last = window.len().checked_sub(IN_A_ROW * size)?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(window.chunks_exact(8)) {
        *word = u64_at(bytes, 0)?;
    }
    // The cheap part first: almost all of RAM fails here.
    let counts = match kind {
        Kind::Info => counts::<{ INFO / 8 }>(&words),
        Kind::InfoWithContext => counts::<{ INFO_WITH_CONTEXT / 8 }>(&words),
        Kind::Descriptor => counts::<{ DESCRIPTOR / 8 }>(&words),
    };
    if !counts {
        return None;
    }
    let first = |at: usize| words[at / 8];
    let right = |at: &usize| {
        first(at + size).wrapping_sub(first(*at)) == 1
            && first(at + 2 * size).wrapping_sub(first(*at)) == 2
            && (0..IN_A_ROW).all(|n| kind.number(&window[at + n * size..][..size]).is_some())
    };
    (0..=last.min((WORDS - 1) * 8 - 2 * size)).step_by(8).find(right)
}

/// True if any of these words is one less than the one so many words behind it: without a branch, which takes an
/// eighth of the time.
fn counts<const STEP: usize>(words: &[u64; WORDS]) -> bool {
    let pairs = words.iter().zip(&words[STEP..]);
    pairs.fold(false, |any, (word, next)| any | (next.wrapping_sub(*word) == 1))
}

/// An array in RAM, from its first element on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Array {
    /// What it is of.
    pub kind: Kind,
    /// Its address in the host.
    pub address: u64,
    /// Numbers of its elements, in the order in which they lie.
    pub numbers: Vec<u64>,
    /// The elements themselves.
    pub raw: Vec<u8>,
    /// How many there are in the whole ring, as a power of two; none of one that is not full.
    pub bits: Option<u32>,
}

impl Array {
    /// All that counts up by one before and after an address, and may begin anew once.
    pub(super) fn around<H: HostMemory + ?Sized>(host: &H, at: u64, kind: Kind) -> Option<Array> {
        let size = kind.size();
        let mut element = vec![0; size];
        host.read(at, &mut element).ok()?;
        let mut walk = Walk { bits: None, newest: 0 };
        let number = kind.number(&element)?;
        let (mut raw, mut numbers, mut address) = (element, vec![number], at);
        let mut earlier = Vec::new();
        let mut next = number;
        loop {
            let block = block_before(host, address, size)?;
            let found = block.rchunks_exact(size).map_while(|element| {
                let number = kind.number(element)?;
                let follows = walk.follows(number, next);
                next = if follows { number } else { next };
                follows.then_some((number, element.to_vec()))
            });
            let found: Vec<_> = found.collect();
            address -= (found.len() * size) as u64;
            let done = found.len() < BLOCK;
            earlier.extend(found);
            if done || earlier.len() > 1 << MAX_BITS {
                break;
            }
        }
        earlier.reverse();
        let mut before: Vec<u8> = Vec::with_capacity(earlier.len() * size);
        earlier.iter().for_each(|(_, element)| before.extend(element));
        let mut all: Vec<u64> = earlier.iter().map(|(number, _)| *number).collect();
        all.append(&mut numbers);
        before.append(&mut raw);
        let (mut numbers, mut raw) = (all, before);
        'after: loop {
            let end = address + raw.len() as u64;
            let mut block = vec![0; BLOCK * size];
            if host.read(end, &mut block).is_err() {
                block.truncate(size);
                if host.read(end, &mut block).is_err() {
                    break;
                }
            }
            for element in block.chunks_exact(size) {
                let last = *numbers.last()?;
                match kind.number(element).filter(|number| walk.follows(last, *number)) {
                    Some(number) if numbers.len() < 1 << MAX_BITS => {
                        numbers.push(number);
                        raw.extend(element);
                    }
                    _ => break 'after,
                }
            }
        }
        Some(Array { kind, address, numbers, raw, bits: walk.bits })
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        (self.address..self.address + self.raw.len() as u64).contains(&address)
    }

    /// Elements from the oldest on, as their places in the array.
    pub(super) fn in_order(&self) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.numbers.len()).collect();
        places.sort_by_key(|place| self.numbers[*place]);
        places
    }

    /// The id that a descriptor's number is of.
    pub(super) fn id(number: u64) -> u64 {
        number.wrapping_sub(BIAS) & ID
    }

    /// Places of the descriptors whose records can be read, the oldest first: others were taken
    /// back, and their texts may be overwritten.
    pub(super) fn readable(&self) -> Vec<usize> {
        let state = |place: &usize| u64_at(self.element(*place), 0);
        let mut places = self.in_order();
        places.retain(|place| state(place).is_some_and(|word| matches!(word >> 62, 1 | 2)));
        places
    }

    pub(super) fn element(&self, place: usize) -> &[u8] {
        let size = self.kind.size();
        self.raw.get(place * size..(place + 1) * size).unwrap_or(&[])
    }
}

/// The elements that end at an address, as many as can be read.
fn block_before<H: HostMemory + ?Sized>(host: &H, at: u64, size: usize) -> Option<Vec<u8>> {
    for count in [BLOCK, 1] {
        let from = at.checked_sub((count * size) as u64)?;
        let mut block = vec![0; count * size];
        if host.read(from, &mut block).is_ok() {
            return Some(block);
        }
    }
    Some(Vec::new())
}

/// What the numbers of neighbours may be.
struct Walk {
    bits: Option<u32>,
    /// The newest, before which the ring begins anew.
    newest: u64,
}

impl Walk {
    /// True if `next` can lie behind `number`: it counts on, or it is the oldest and the ring is
    /// full.
    fn follows(&mut self, number: u64, next: u64) -> bool {
        if next == number.wrapping_add(1) {
            return true;
        }
        let Some(size) = number.checked_sub(next).and_then(|less| less.checked_add(1)) else {
            return false;
        };
        let right = size.is_power_of_two() && (MIN_BITS..=MAX_BITS).contains(&size.ilog2());
        let anew = right && self.bits.is_none();
        if anew {
            self.bits = Some(size.ilog2());
            self.newest = number;
        }
        anew || right && self.newest == number && self.bits == Some(size.ilog2())
    }
}
