//! A kernel's log and clock, found in guest RAM by their shape.
//!
//! Kernels of microVMs have neither kallsyms with data symbols nor types, and some no kallsyms
//! at all. What they leave behind is there all the same, and looks like nothing else: since 5.10
//! the log is two arrays whose elements count up by one (`kernel/printk/printk_ringbuffer.h`),
//! and a ring of texts that begin with these numbers ([`log`]); the page that programs read the
//! time from has a layout of its own ([`time`]).
//!
//! A page of guest RAM is looked at by its first bytes. What looks right there is followed from
//! element to element and must agree in all parts; what fits in two ways is refused.

mod array;
pub mod growth;
mod log;
mod searched;
mod text;
mod time;

use crate::clocks::Clocks;
use crate::error::{Error, Result};
use crate::locate::Candidate;
use crate::printk::PrintkDump;
use crate::ram::{HostMemory, PAGE};
use array::{Array, Kind, WINDOW};

/// Of how much the heads are read at once, bytes.
const CHUNK: u64 = 2 << 20;
const ZEROS: [u8; 64] = [0; 64];
/// Most pages of a block that are looked at, of those that hold anything: 16 GiB of them, which
/// takes some seconds.
const MAX_PAGES: usize = 4 << 20;
/// How much of a block is looked through, bytes, holes included: 64 GiB.
const LONGEST: u64 = 64 << 30;
/// Most arrays that are followed; a guest has one or two logs.
const MAX_FOUND: usize = 8;

/// The log that is in a guest's RAM, and the clock that it was stamped by, without a symbol of
/// its kernel; `read_ns` is the host's `CLOCK_MONOTONIC`.
///
/// # Errors
/// [`Error::Ram`] when RAM holds no log of this shape, or two that differ.
pub fn find<H: HostMemory + ?Sized>(
    candidates: &[Candidate],
    host: &H,
    read_ns: i64,
) -> Result<PrintkDump> {
    let mut seen = Seen::default();
    for block in outermost(candidates) {
        each_page(block, host, |at, window| {
            seen.look(host, at, window);
            true
        });
    }
    // Which of them were not followed, nobody knows: the kernel's own log may be one.
    if seen.infos.len().max(seen.descriptors.len()) >= MAX_FOUND {
        return Err(Error::Ram(format!(
            "the guest's RAM contains {MAX_FOUND} or more arrays that look like parts of kernel \
                logs, and vmeter cannot tell which belong to the running kernel"
        )));
    }
    let mut dumps = log::dumps(&seen.infos, &seen.descriptors, candidates, host);
    let Some(mut dump) = dumps.pop() else {
        return Err(Error::Ram(
            "the guest's RAM contains no log of a Linux kernel (5.10 or later)".into(),
        ));
    };
    if !dumps.is_empty() {
        return Err(Error::Ram(format!(
            "the guest's RAM contains {} kernel logs, and vmeter cannot tell which belongs to the \
                running kernel",
            dumps.len() + 1
        )));
    }
    let clocks = time::clocks(&seen.times, &dump.records());
    dump.set_clocks(clocks.map(|clocks| Clocks { read_ns, ..clocks }));
    Ok(dump)
}

/// Blocks that lie in no other.
fn outermost(candidates: &[Candidate]) -> Vec<Candidate> {
    let end = |c: &Candidate| c.address.saturating_add(c.length);
    let holds = |a: &Candidate, b: &Candidate| a.address <= b.address && end(b) <= end(a);
    let mut kept: Vec<Candidate> = Vec::new();
    for block in candidates {
        if !kept.iter().any(|other| holds(other, block)) {
            kept.retain(|other| !holds(block, other));
            kept.push(*block);
        }
    }
    kept
}

/// Calls `look` with the address and the first bytes of each page that can be read and is not
/// empty, as long as it answers true.
fn each_page<H: HostMemory + ?Sized>(
    block: Candidate,
    host: &H,
    mut look: impl FnMut(u64, &[u8]) -> bool,
) {
    let mut buffer = vec![0; (CHUNK / PAGE) as usize * WINDOW];
    let end = block.address.saturating_add(block.length.min(LONGEST));
    let (mut at, mut pages) = (block.address, 0);
    loop {
        let there = host.next_there(at, end);
        at = there.start;
        if there.is_empty() || pages >= MAX_PAGES {
            return;
        }
        // What ends in the middle of a page ends there for its last head as well.
        let length = CHUNK.min(there.end - at);
        let whole = (length / PAGE) as usize * WINDOW;
        let rest = ((length % PAGE) as usize).min(WINDOW);
        let heads = &mut buffer[..if whole > 0 { whole } else { rest }];
        let read = host.read_heads(at, WINDOW, heads);
        for (page, window) in heads.chunks(WINDOW).enumerate().filter(|_| read.is_ok()) {
            if window.chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()]) {
                continue;
            }
            pages += 1;
            if !look(at + page as u64 * PAGE, window) {
                return;
            }
        }
        at += if whole > 0 { length / PAGE * PAGE } else { length };
    }
}

/// What was seen in RAM so far.
#[derive(Default)]
struct Seen {
    infos: Vec<Array>,
    descriptors: Vec<Array>,
    times: Vec<time::Time>,
}

impl Seen {
    fn look<H: HostMemory + ?Sized>(&mut self, host: &H, at: u64, window: &[u8]) {
        for kind in Kind::INFOS.into_iter().chain([Kind::Descriptor]) {
            let found = match kind {
                Kind::Descriptor => &mut self.descriptors,
                _ => &mut self.infos,
            };
            let Some(offset) = array::starts(window, kind) else { continue };
            let address = at + offset as u64;
            let known = found.iter().any(|array| array.contains(address));
            if !known && found.len() < MAX_FOUND {
                found.extend(Array::around(host, address, kind));
            }
        }
        if self.times.len() < MAX_FOUND {
            self.times.extend(time::Time::at(window));
        }
    }
}

#[cfg(test)]
mod tests;
