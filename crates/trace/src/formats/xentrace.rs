//! Binary traces of `xentrace -D`: HVM (VMX, SVM) and PV guests, runstates.
//!
//! The layout is `struct t_rec` of Xen's `xen/include/public/trace.h`: a header
//! word (event id in bits 0-27, extra words in 28-30, bit 31: a 64-bit TSC
//! follows), the TSC, the extra words. A record without TSC happened at the
//! record before it. The file is a sequence of windows, each headed by a
//! `cpu_change` record that names the CPU and the window's size.
//!
//! A `lost_records` record stands where recording went on, and says when the first
//! lost one happened: it gives two events, one at either time, so that whoever
//! follows the runstates knows in between that this CPU is not seen.

use crate::event::{Body, Context, Event, EventType};
use crate::format::{EventReader, Losses, Order, Tick, TraceFormat, TraceInfo};
use crate::input::{Input, RandomAccess};
use crate::ops::xen::{
    event_name, CPU_CHANGE, CPU_END, LOST_RECORDS, LOST_RECORDS_END, WRAP_BUFFER,
};
use crate::Error;
use std::collections::BTreeMap;

/// The header word of `cpu_change`: two extra words, no TSC.
const CPU_CHANGE_HEADER: u32 = 2 << 28 | CPU_CHANGE;

const HEAD: u64 = 12;
const BLOCK: usize = 64 << 10;

/// A header word, a TSC and seven extra words.
const MAX_RECORD: usize = 4 + 8 + 28;

/// Most bytes of all CPUs' blocks.
const BLOCKS: usize = 32 << 20;
/// What a window is taken for, and a CPU's stream, bytes.
const WINDOW: u64 = 32;
const STREAM: u64 = 512;

/// Event types that are told apart.
const MAX_TYPES: usize = 4096;

/// The format.
pub struct Xentrace;

impl TraceFormat for Xentrace {
    fn name(&self) -> &'static str {
        "xentrace"
    }

    fn probe(&self, head: &[u8]) -> bool {
        head.starts_with(&CPU_CHANGE_HEADER.to_le_bytes())
    }

    fn open(&self, input: Input) -> Result<Box<dyn EventReader>, Error> {
        let name = input.name().to_string();
        let file = input.into_random()?;
        let budget = file.budget().clone();
        let reader = Reader::new(file);
        if let Some(exceeded) = budget.exceeded() {
            return Err(Error::TooMuch { name, exceeded });
        }
        Ok(Box::new(reader.map_err(|source| Error::Read { name, source })?))
    }
}

/// The records of one CPU.
struct Stream {
    cpu: u32,
    /// Windows not yet begun, last first: (offset, bytes).
    windows: Vec<(u64, u32)>,
    block: Vec<u8>,
    at: usize,
    /// Bytes of the current window behind the block.
    offset: u64,
    left: u64,
    /// Most bytes read in one go.
    most: usize,
    event: u32,
    words: [u32; 7],
    count: usize,
    /// Stamp of the last record that had one.
    tsc: u64,
    /// Stamp that puts the record in order.
    order: u64,
    /// The second event of a `lost_records` record, to come next.
    lost_end: Option<u64>,
    state: State,
    incomplete: u64,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum State {
    Reading,
    AtEnd,
    Done,
}

impl Stream {
    fn advance(&mut self, file: &RandomAccess) {
        if let Some(tsc) = self.lost_end.take() {
            self.event = LOST_RECORDS_END;
            self.order = self.order.max(tsc);
            return;
        }
        while self.state == State::Reading {
            if !self.fill(file) {
                self.state = State::AtEnd;
                self.event = CPU_END;
                self.count = 0;
                return;
            }
            if self.parse() {
                return;
            }
        }
        self.state = State::Done;
    }

    /// Makes the block hold a whole record, if there is one; false at the end.
    fn fill(&mut self, file: &RandomAccess) -> bool {
        loop {
            let there = self.block.len() - self.at;
            if there >= MAX_RECORD || (there > 0 && self.left == 0) {
                return true;
            }
            if there == 0 && self.left == 0 {
                let Some((offset, size)) = self.windows.pop() else { return false };
                (self.offset, self.left) = (offset, u64::from(size));
                continue;
            }
            self.block.drain(..self.at);
            self.at = 0;
            let more = self.left.min(self.most as u64) as usize;
            self.block.resize(there + more, 0);
            let got = file.read_at(self.offset, &mut self.block[there..]).unwrap_or(0);
            self.block.truncate(there + got);
            self.offset += got as u64;
            self.left = if got < more { 0 } else { self.left - got as u64 };
            if got < more {
                self.windows.clear();
            }
        }
    }

    /// Reads one record; false if the window's rest is torn.
    fn parse(&mut self) -> bool {
        let bytes = &self.block[self.at..];
        let word = |index: usize| -> Option<u32> {
            let bytes = bytes.get(index * 4..index * 4 + 4)?;
            Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let header = word(0);
        let (extra, has_tsc) =
            header.map_or((0, false), |h| ((h >> 28 & 7) as usize, h >> 31 != 0));
        let first = if has_tsc { 3 } else { 1 };
        let (Some(header), true) = (header, bytes.len() >= (first + extra) * 4) else {
            self.incomplete += 1;
            self.at = self.block.len();
            return false;
        };
        self.event = header & 0x0fff_ffff;
        self.count = extra;
        for (at, slot) in self.words.iter_mut().take(extra).enumerate() {
            *slot = word(first + at).unwrap_or(0);
        }
        if let (true, Some(low), Some(high)) = (has_tsc, word(1), word(2)) {
            self.tsc = u64::from(high) << 32 | u64::from(low);
            self.order = self.tsc;
        }
        self.at += (first + extra) * 4;
        if self.event == LOST_RECORDS && extra == 4 {
            self.lost_end = Some(self.tsc);
            self.order = u64::from(self.words[3]) << 32 | u64::from(self.words[2]);
        }
        true
    }
}

struct Reader {
    file: RandomAccess,
    info: TraceInfo,
    losses: Losses,
    streams: Vec<Stream>,
    current: usize,
    started: bool,
    limit: u64,
    types: Vec<EventType>,
    by_event: BTreeMap<u32, u32>,
    /// Of the stamps as handed out: a CPU's own that go back are merged as they come.
    seen: Order,
}

impl Reader {
    fn new(file: RandomAccess) -> std::io::Result<Reader> {
        let mut losses = Losses::default();
        losses.missing.extend(file.problem().map(str::to_string));
        let windows = windows(&file, &mut losses)?;
        let most = (BLOCKS / windows.len().max(1)).clamp(MAX_RECORD, BLOCK);
        let streams = windows.into_iter().map(|(cpu, mut windows)| {
            windows.reverse();
            Stream {
                cpu,
                windows,
                block: Vec::new(),
                at: 0,
                offset: 0,
                left: 0,
                most,
                event: 0,
                words: [0; 7],
                count: 0,
                tsc: 0,
                order: 0,
                lost_end: None,
                state: State::Reading,
                incomplete: 0,
            }
        });
        let mut reader = Reader {
            info: TraceInfo::new("xentrace", "tsc", Tick::Cycle),
            losses,
            streams: streams.collect(),
            file,
            current: 0,
            started: false,
            limit: 0,
            types: Vec::new(),
            by_event: BTreeMap::new(),
            seen: Order::default(),
        };
        reader.info.cpus = reader.streams.len() as u32;
        for stream in &mut reader.streams {
            stream.advance(&reader.file);
        }
        Ok(reader)
    }

    fn choose(&mut self) {
        let (mut best, mut next) = (None, u64::MAX);
        for (index, stream) in self.streams.iter().enumerate() {
            if stream.state == State::Done {
                continue;
            }
            match best {
                Some((_, order)) if stream.order >= order => next = next.min(stream.order),
                _ => {
                    next = best.map_or(next, |(_, order): (usize, u64)| next.min(order));
                    best = Some((index, stream.order));
                }
            }
        }
        if let Some((index, _)) = best {
            self.current = index;
        }
        self.limit = next;
    }

    fn type_of(&mut self, event: u32) -> usize {
        if let Some(&index) = self.by_event.get(&event) {
            return index as usize;
        }
        let (event, name) = if self.types.len() < MAX_TYPES {
            (event, event_name(event))
        } else {
            (u32::MAX, "other".to_string())
        };
        if let Some(&index) = self.by_event.get(&event) {
            return index as usize;
        }
        let id = self.types.len() as u32;
        self.by_event.insert(event, id);
        self.types.push(EventType { id, system: "xen".into(), name, ..EventType::default() });
        id as usize
    }

    fn note_losses(&mut self) {
        let stream = &self.streams[self.current];
        match stream.event {
            LOST_RECORDS if stream.count == 4 => {
                self.losses.lost_events += u64::from(stream.words[0]);
            }
            LOST_RECORDS => self.losses.uncounted_gaps += 1,
            CPU_END if stream.incomplete > 0 => self.losses.missing.push(format!(
                "CPU {}: {} of the file's parts for this CPU end in the middle of a record",
                stream.cpu, stream.incomplete
            )),
            _ => {}
        }
    }
}

/// Windows by CPU, in the order of the file.
fn windows(
    file: &RandomAccess,
    losses: &mut Losses,
) -> std::io::Result<BTreeMap<u32, Vec<(u64, u32)>>> {
    let mut windows: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
    let mut at = 0;
    while at < file.len() {
        let mut head = [0; HEAD as usize];
        let got = file.read_at(at, &mut head)?;
        let word = |i: usize| {
            u32::from_le_bytes([head[i * 4], head[i * 4 + 1], head[i * 4 + 2], head[i * 4 + 3]])
        };
        let (header, cpu, size) = (word(0), word(1), word(2));
        if got < HEAD as usize || header != CPU_CHANGE_HEADER || cpu >= 1 << 16 {
            losses.missing.push(format!(
                "vmeter did not read the last {} bytes: expected a CPU-change record at byte {at}, \
                found {header:#x}",
                file.len() - at
            ));
            break;
        }
        at += HEAD;
        let there = (file.len() - at).min(u64::from(size)) as u32;
        if there < size {
            losses.missing.push(format!(
                "the last window, of CPU {cpu}, is truncated: {there} of {size} bytes are there"
            ));
        }
        let of_cpu = windows.entry(cpu).or_default();
        file.budget().keep(if of_cpu.is_empty() { WINDOW + STREAM } else { WINDOW }, "windows")?;
        of_cpu.push((at, there));
        at += u64::from(there);
    }
    Ok(windows)
}

impl EventReader for Reader {
    fn info(&self) -> &TraceInfo {
        &self.info
    }

    fn next_event(&mut self) -> Option<Event<'_>> {
        loop {
            if self.started {
                self.streams.get_mut(self.current)?.advance(&self.file);
            }
            let stream = self.streams.get(self.current)?;
            if !self.started || stream.order > self.limit || stream.state == State::Done {
                self.choose();
                self.started = true;
            }
            let stream = &self.streams[self.current];
            if stream.state == State::Done {
                let seen = std::mem::take(&mut self.seen);
                self.losses.missing.extend(seen.said(&self.info.clock));
                return None;
            }
            // Neither is an event of the machine.
            if stream.event == WRAP_BUFFER || stream.event == CPU_CHANGE {
                continue;
            }
            break;
        }
        self.note_losses();
        self.seen.see(self.streams[self.current].order);
        let index = self.type_of(self.streams[self.current].event);
        let stream = &self.streams[self.current];
        Some(Event {
            kind: &self.types[index],
            ts: stream.order,
            cpu: stream.cpu,
            tid: -1,
            buffer: 0,
            comm: None,
            column: Context::Unknown,
            body: Body::Words { event: stream.event, words: &stream.words[..stream.count] },
        })
    }

    fn losses(&self) -> &Losses {
        &self.losses
    }
}
