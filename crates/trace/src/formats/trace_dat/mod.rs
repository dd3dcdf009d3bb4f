//! `trace.dat`, versions 6 and 7: what trace-cmd and KernelShark write and read.
//!
//! Each CPU's pages are a stream; the streams are merged by time stamp. As long
//! as one stream's stamps stay at or below those of all others it is followed
//! without looking at them, so that the merge costs one comparison an event.

mod ahead;
mod cpu;
mod fields;
pub(super) mod header;
pub(super) mod parts;
mod recover;
mod sections;
mod stream;

use crate::event::{Body, Context, Event, EventType};
use crate::format::{EventReader, Losses, Order, Tick, TraceFormat, TraceInfo};
use crate::input::{Input, RandomAccess};
use crate::symbols::Symbols;
use crate::Error;
use ahead::{Crew, Hand};
use cpu::{CpuPages, Item, Layout};
use header::Header;
use parts::MAGIC;
use std::sync::Arc;
use stream::CpuStream;

/// The format.
pub struct TraceDat;

impl TraceFormat for TraceDat {
    fn name(&self) -> &'static str {
        "trace.dat"
    }

    fn probe(&self, head: &[u8]) -> bool {
        head.starts_with(MAGIC)
    }

    fn open(&self, input: Input) -> Result<Box<dyn EventReader>, Error> {
        let name = input.name().to_string();
        let file = input.into_random()?;
        let header = header::read(&file);
        if let Some(exceeded) = file.budget().exceeded() {
            return Err(Error::TooMuch { name, exceeded });
        }
        let reader = header.and_then(|header| Reader::new(file, header));
        let reader =
            reader.map_err(|problem| Error::Header { name, format: "trace.dat", problem })?;
        Ok(Box::new(reader))
    }
}

struct Reader {
    file: Arc<RandomAccess>,
    header: Header,
    info: TraceInfo,
    losses: Losses,
    streams: Vec<CpuStream>,
    /// The stream that the last event came from; it moves on at the next call.
    current: usize,
    started: bool,
    order: Order,
    /// Up to this stamp the current stream comes first.
    limit: u64,
    special: [EventType; 2],
    crew: Crew,
}

/// Of what may be kept, the part that all streams together take for pages or unpacked chunks.
/// What is found on them takes several times that.
const PAGES: u64 = 2;
/// Most CPUs whose pages are read ahead: each has several blocks on their way.
const MAX_AHEAD: usize = 128;
/// Most bytes of a chunk.
const CHUNK: u64 = 16 << 20;
/// How often each byte of a file may be some CPU's data: a damaged table makes a few overlap.
const OVERLAP: u64 = 4;

/// Indices into `Reader::special`.
const LOST: usize = 0;
const UNKNOWN: usize = 1;

impl Reader {
    fn new(file: RandomAccess, mut header: Header) -> Result<Reader, String> {
        let count = header.buffers.iter().map(|b| b.cpus.len()).sum::<usize>();
        let most = file.budget().most_kept() / PAGES;
        let limit = (most / count.max(1) as u64).min(CHUNK) as usize;
        drop_overlaps(&mut header, file.len());
        let first = header.kinds.first().cloned().unwrap_or_default();
        let layout = Arc::new(Layout {
            page: header.page,
            common_type: first.int("common_type"),
            common_pid: first.int("common_pid"),
            by_type: std::mem::take(&mut header.by_type),
        });
        let mut streams = Vec::with_capacity(count);
        for (index, buffer) in header.buffers.iter().enumerate() {
            let page = buffer.page_size as usize;
            if page < 64 || page > limit {
                return Err(format!(
                    "its page size of {page} bytes is impossible for the data of {count} CPUs in \
                     a file of {} bytes",
                    file.len()
                ));
            }
            for &cpu in &buffer.cpus {
                let mut problems = Vec::new();
                let (layout, size) = (layout.clone(), buffer.page_size);
                let pages = CpuPages::new(&file, cpu, layout, size, limit, &mut problems);
                streams.push(CpuStream::new(pages, index as u32, problems));
            }
        }
        let n = header.kinds.len() as u32;
        let special = |id, name: &str| EventType { id, name: name.into(), ..EventType::default() };
        let mut reader = Reader {
            info: info(&header),
            losses: Losses { missing: header.missing.clone(), ..Losses::default() },
            crew: Crew::default(),
            special: [special(n, "lost_events"), special(n + 1, "unknown")],
            current: 0,
            started: false,
            order: Order::default(),
            limit: 0,
            streams,
            header,
            file: Arc::new(file),
        };
        reader.losses.missing.extend(reader.file.problem().map(str::to_string));
        Ok(reader)
    }

    /// Finds the stream whose item comes first, and how far it may be followed.
    fn choose(&mut self) {
        let (mut best, mut next) = (u64::MAX, u64::MAX);
        for (index, stream) in self.streams.iter().enumerate() {
            if stream.ts < best {
                next = best;
                best = stream.ts;
                self.current = index;
            } else if stream.ts < next {
                next = stream.ts;
            }
        }
        self.limit = next;
    }

    fn finish(&mut self) {
        self.losses.exceeded = self.file.budget().exceeded();
        for stream in &mut self.streams {
            self.losses.missing.append(&mut stream.problems);
        }
        self.losses.missing.extend(self.order.said(&self.info.clock));
    }

    /// A stamp in the clock that [`TraceInfo`] states.
    #[inline]
    fn time(&self, ts: u64) -> u64 {
        let ns = match self.header.tsc_to_ns {
            Some((mult, shift)) => ((u128::from(ts) * u128::from(mult)) >> shift) as u64,
            None => ts,
        };
        ns.wrapping_add_signed(self.header.offset)
    }
}

/// Leaves out the data of CPUs once the tables name more than there can be: the same pages for
/// any number of CPUs would take any time to read.
fn drop_overlaps(header: &mut Header, length: u64) {
    let mut left = length.saturating_mul(OVERLAP);
    let mut dropped = 0u64;
    for cpu in header.buffers.iter_mut().flat_map(|buffer| &mut buffer.cpus) {
        let there = length.saturating_sub(cpu.offset).min(cpu.size);
        match left.checked_sub(there) {
            Some(rest) => left = rest,
            None => {
                cpu.size = 0;
                dropped += 1;
            }
        }
    }
    if dropped > 0 {
        header.miss(format!(
            "vmeter left out the data of {dropped} CPUs, because their part of the \
            file overlaps the parts of other CPUs"
        ));
    }
}

fn info(header: &Header) -> TraceInfo {
    let of_buffer = header.buffers.first().map(|b| b.clock.as_str()).unwrap_or_default();
    let clock = if of_buffer.is_empty() { header.clock.as_str() } else { of_buffer };
    let tick = match clock {
        _ if header.tsc_to_ns.is_some() => Tick::Nanosecond,
        "x86-tsc" | "ppc-tb" | "tsc2nsec" => Tick::Cycle,
        "counter" | "uptime" => Tick::Order,
        _ => Tick::Nanosecond,
    };
    TraceInfo {
        buffers: header.buffers.iter().map(|b| b.name.clone()).collect(),
        cpus: header.buffers.iter().map(|b| b.cpus.len()).max().unwrap_or(0) as u32,
        guests: header.guests.clone(),
        ..TraceInfo::new("trace.dat", if clock.is_empty() { "local" } else { clock }, tick)
    }
}

impl EventReader for Reader {
    fn info(&self) -> &TraceInfo {
        &self.info
    }

    fn next_event(&mut self) -> Option<Event<'_>> {
        if self.streams.is_empty() {
            return None;
        }
        if self.started {
            self.streams[self.current].advance(&self.file);
        } else {
            self.streams.iter_mut().for_each(|stream| stream.begin(&self.file));
        }
        if !self.started || self.streams[self.current].ts > self.limit {
            self.choose();
            self.started = true;
        }
        let Some(item) = self.streams[self.current].item() else {
            self.finish();
            return None;
        };
        Some(self.event(item))
    }

    fn read_ahead(&mut self, threads: usize) -> std::io::Result<bool> {
        let count = threads.min(self.streams.len());
        if count == 0 || self.started || self.streams.len() > MAX_AHEAD {
            return Ok(false);
        }
        let mut hands: Vec<Hand> = (0..count).map(|_| Hand::new(self.streams.len())).collect();
        for (index, stream) in self.streams.iter_mut().enumerate() {
            stream.hand_over(|pages| hands[index % count].take(pages));
        }
        self.crew.start(hands, &self.file)?;
        Ok(true)
    }

    fn losses(&self) -> &Losses {
        &self.losses
    }

    fn symbols(&self) -> Option<Arc<Symbols>> {
        Some(self.header.symbols.clone())
    }

    fn threads(&self) -> Vec<(i32, String)> {
        self.header.threads.iter().map(|(tid, name)| (*tid, name.clone())).collect()
    }

    fn kinds(&self) -> &[EventType] {
        &self.header.kinds
    }

    fn symbol(&self, address: u64) -> Option<&str> {
        self.header.symbols.name(address)
    }

    fn thread_name(&self, tid: i32) -> Option<&str> {
        self.header.threads.get(&tid).map(String::as_str)
    }
}

impl Reader {
    #[inline]
    fn event(&mut self, item: Item) -> Event<'_> {
        let ts = self.time(item.ts);
        self.order.see(ts);
        let stream = &self.streams[self.current];
        let mut event = Event {
            kind: &self.special[LOST],
            ts,
            cpu: stream.cpu,
            tid: item.tid,
            buffer: stream.buffer,
            comm: None,
            column: Context::Unknown,
            body: Body::Lost(None),
        };
        match item.kind {
            cpu::LOST => self.losses.uncounted_gaps += 1,
            cpu::LOST_COUNTED => {
                let count = u64::from(item.end) << 32 | u64::from(item.start);
                self.losses.lost_events = self.losses.lost_events.saturating_add(count);
                event.body = Body::Lost(Some(count));
            }
            kind => {
                let kind = self.header.kinds.get(kind as usize);
                self.losses.unreadable += u64::from(kind.is_none());
                event.kind = kind.unwrap_or(&self.special[UNKNOWN]);
                event.body = Body::Record(stream.record(&item));
            }
        }
        event
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.streams.clear();
        self.crew.join();
    }
}
