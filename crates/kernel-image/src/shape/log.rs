//! A log out of the arrays that were seen: descriptors and infos of the same places belong
//! together, and their texts must be where the descriptors say.

use super::array::Array;
use super::text::{Block, Blocks, Texts};
use super::{each_page, outermost};
use crate::bytes::u64_at;
use crate::locate::Candidate;
use crate::printk::{Parts, PrintkDump, PrintkRecord};
use crate::ram::{HostMemory, PAGE};

/// Fewest records of a log that is told from chance.
const FEWEST: usize = 8;

/// All logs that are made of these arrays, each once: a log that a larger one begins with is the
/// one that the kernel began with, and copied (`setup_log_buf`).
pub(super) fn dumps<H: HostMemory + ?Sized>(
    infos: &[Array],
    descriptors: &[Array],
    candidates: &[Candidate],
    host: &H,
) -> Vec<PrintkDump> {
    let mut found: Vec<(Vec<PrintkRecord>, PrintkDump)> = Vec::new();
    for descriptors in descriptors {
        let Some(texts) = texts(descriptors, candidates, host) else { continue };
        for infos in infos {
            let Some(dump) = assemble(infos, descriptors, texts, host) else { continue };
            let records = dump.records();
            if !is_log(&records, descriptors.readable().len()) {
                continue;
            }
            if found.iter().any(|(other, _)| holds(other, &records)) {
                continue;
            }
            found.retain(|(other, _)| !holds(&records, other));
            found.push((records, dump));
        }
    }
    found.into_iter().map(|(_, dump)| dump).collect()
}

/// True if what was read is a log and no mixture of two: all is there, and time goes on but for
/// the few times that a kernel exchanges its clock.
fn is_log(records: &[PrintkRecord], readable: usize) -> bool {
    let back = records.windows(2).filter(|pair| pair[1].ts_ns < pair[0].ts_ns).count();
    records.len() >= FEWEST && records.len() * 10 >= readable * 9 && back * 20 <= records.len()
}

/// True if a log has all of another's records.
fn holds(log: &[PrintkRecord], other: &[PrintkRecord]) -> bool {
    let first = other.first().map(|record| record.seq);
    let from = log.iter().position(|record| Some(record.seq) == first);
    from.and_then(|from| log.get(from..from + other.len())) == Some(other)
}

/// The texts of these descriptors.
fn texts<H: HostMemory + ?Sized>(
    descriptors: &Array,
    candidates: &[Candidate],
    host: &H,
) -> Option<Texts> {
    let block = |place| {
        let (begin, next) = edges(descriptors, place)?;
        Some(Block { id: Array::id(descriptors.numbers[place]), begin, next })
    };
    let blocks: Vec<Block> = descriptors.readable().into_iter().filter_map(block).collect();
    if blocks.len() < FEWEST {
        return None;
    }
    let blocks = Blocks::of(&blocks);
    let mut found = None;
    let all = outermost(candidates);
    for block in all.iter().filter_map(|block| near(*block, descriptors.address)).chain(all.clone())
    {
        each_page(block, host, |at, window| {
            found = blocks.ring_at(host, at, window);
            found.is_none()
        });
        if found.is_some() {
            break;
        }
    }
    found
}

/// How far from its descriptors a log's texts are looked for first, bytes.
const NEAR: u64 = 32 << 20;

/// The part of a block that is near an address of it: a kernel allocates the parts of its log one after another, and
/// the first one's are variables of its image.
fn near(block: Candidate, address: u64) -> Option<Candidate> {
    let end = block.address.saturating_add(block.length);
    (block.address..end).contains(&address).then_some(())?;
    // Pages are those of the block.
    let before = (address - block.address).saturating_sub(NEAR) / PAGE * PAGE;
    let from = block.address + before;
    Some(Candidate { address: from, length: end.min(address.saturating_add(NEAR)) - from })
}

/// Where a descriptor's text begins and ends; none if it has none.
fn edges(descriptors: &Array, place: usize) -> Option<(u64, u64)> {
    let element = descriptors.element(place);
    let edges = (u64_at(element, 8)?, u64_at(element, 16)?);
    (edges.0 & 1 == 0).then_some(edges)
}

/// What [`PrintkDump::take`] would have copied.
fn assemble<H: HostMemory + ?Sized>(
    infos: &Array,
    descriptors: &Array,
    texts: Texts,
    host: &H,
) -> Option<PrintkDump> {
    if infos.bits.is_some() && descriptors.bits.is_some() && infos.bits != descriptors.bits {
        return None;
    }
    // Elements of one record have the same place in both; what is not in both is not used yet.
    let mut places = descriptors.readable();
    places.retain(|place| *place < infos.numbers.len());
    let (first, last) = (*places.first()?, *places.last()?);
    // From the oldest to the newest, with those in between that can't be read.
    let number = |place: usize| descriptors.numbers[place];
    places = descriptors.in_order();
    places.retain(|place| (number(first)..=number(last)).contains(&number(*place)));
    places.retain(|place| *place < infos.numbers.len());
    let (desc_size, info_size) = (descriptors.kind.size(), infos.kind.size());
    let mut raw: Vec<u8> = Vec::with_capacity(places.len() * (desc_size + info_size));
    places.iter().for_each(|place| raw.extend(descriptors.element(*place)));
    places.iter().for_each(|place| raw.extend(infos.element(*place)));
    let texts_at: Vec<(u64, u64)> =
        places.iter().filter_map(|place| edges(descriptors, *place)).collect();
    let (text_start, text_end) = (texts_at.first()?.0, texts_at.last()?.1);
    let size = 1u64 << texts.bits;
    let length = text_end.wrapping_sub(text_start).min(size);
    let from = text_start & (size - 1);
    for (at, length) in [(from, length.min(size - from)), (0, length.saturating_sub(size - from))] {
        let begin = raw.len();
        raw.resize(begin + length as usize, 0);
        host.read(texts.address.wrapping_add(at), &mut raw[begin..]).ok()?;
    }
    Some(PrintkDump::of_parts(Parts {
        desc_size: desc_size as u64,
        info_size: info_size as u64,
        first_id: Array::id(number(first)),
        count: places.len() as u64,
        text_bits: texts.bits,
        text_start,
        raw,
    }))
}
