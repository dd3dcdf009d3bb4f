//! One trace on several CPUs, with the result of one.
//!
//! The thread that reads merges the streams, which costs little, while others unpack and
//! walk the pages ([`EventReader::read_ahead`]); what costs is to decode records and to
//! keep the books, and those are kept by thread. So each worker keeps the books of some threads, and of the interrupts of
//! some CPUs, gets just the records that concern these, in the trace's order, and
//! comes to the same numbers. A switch or a wake-up concerns two threads; a loss of
//! events concerns everybody.

use super::{Report, Stats};
use crate::event::{Body, Context, Event, EventType, IntField};
use crate::format::EventReader;
use crate::ops::{Decoder, Touches};
use crate::walk::Part;
use std::io;
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender};
use std::sync::Arc;

/// Events of a batch.
const BATCH: usize = 4096;
/// Batches that wait for a worker: the most it may fall behind.
const WAITING: usize = 8;
/// More workers than this wait for the reader.
const MAX_WORKERS: usize = 16;
/// Length of an event that stands for a loss.
const LOSS: u32 = u32::MAX;

/// A record, its bytes elsewhere.
#[derive(Clone, Copy)]
struct Head {
    ts: u64,
    kind: u32,
    cpu: u32,
    tid: i32,
    len: u32,
}

#[derive(Default)]
struct Batch {
    /// First stamp of the trace.
    origin: u64,
    heads: Vec<Head>,
    /// The records, one after the other.
    bytes: Vec<u8>,
}

/// How the reader finds the thread that a kind of event concerns.
#[derive(Clone, Copy)]
enum Route {
    Nobody,
    Thread,
    Cpu,
    /// The threads in these fields.
    Fields([IntField; 2]),
}

fn route(decoder: &mut Decoder, kind: &EventType) -> Route {
    match decoder.touches(kind) {
        Touches::Nothing => Route::Nobody,
        Touches::Thread => Route::Thread,
        Touches::Cpu => Route::Cpu,
        Touches::Switch => Route::Fields([kind.int("prev_pid"), kind.int("next_pid")]),
        Touches::Wake => Route::Fields([kind.int("pid"), kind.int("pid")]),
    }
}

/// The way to one worker and back.
struct Worker {
    full: SyncSender<Batch>,
    empty: Receiver<Batch>,
    batch: Batch,
}

impl Worker {
    fn push(&mut self, head: Head, record: &[u8]) {
        self.batch.heads.push(head);
        self.batch.bytes.extend_from_slice(record);
        if self.batch.heads.len() >= BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.batch.heads.is_empty() {
            return;
        }
        let next = self.empty.try_recv().unwrap_or_default();
        let batch = std::mem::replace(&mut self.batch, next);
        self.batch.origin = batch.origin;
        // A worker that is gone has panicked, which joining it will tell.
        let _ = self.full.send(batch);
    }
}

/// The report of a trace whose events are binary records; `workers` keep the books.
pub(super) fn read(
    mut reader: Box<dyn EventReader>,
    cpu_hz: Option<f64>,
    workers: usize,
) -> io::Result<Report> {
    let workers = workers.clamp(1, MAX_WORKERS);
    let kinds: Arc<[EventType]> = reader.kinds().into();
    let mut whole = Stats::new(reader.info());
    let mut decoder = Decoder::default();
    let routes: Vec<Route> = kinds.iter().map(|kind| route(&mut decoder, kind)).collect();
    let parts = std::thread::scope(|scope| -> io::Result<Vec<Stats>> {
        let (mut ways, mut threads) = (Vec::new(), Vec::new());
        for index in 0..workers {
            let (full, batches) = sync_channel(WAITING);
            let (back, empty) = channel();
            ways.push(Worker { full, empty, batch: Batch::default() });
            let (kinds, stats) = (kinds.clone(), Stats::of_part(Part { index, of: workers }));
            let work = move || keep(stats, &kinds, &batches, &back);
            let name = format!("trace-stat {index}");
            threads.push(std::thread::Builder::new().name(name).spawn_scoped(scope, work)?);
        }
        while let Some(event) = reader.next_event() {
            whole.note(&event);
            dispatch(&event, &routes, &mut ways, whole.origin());
        }
        ways.iter_mut().for_each(Worker::flush);
        drop(ways);
        let join = |thread: std::thread::ScopedJoinHandle<'_, Stats>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        Ok(threads.into_iter().map(join).collect())
    })?;
    for part in parts {
        whole.absorb(part);
    }
    Ok(whole.finish(reader.as_ref(), cpu_hz))
}

#[inline]
fn dispatch(event: &Event<'_>, routes: &[Route], ways: &mut [Worker], origin: u64) {
    let of = ways.len();
    let head = Head { ts: event.ts, kind: event.kind.id, cpu: event.cpu, tid: event.tid, len: 0 };
    let record = match event.body {
        Body::Record(record) => record,
        Body::Lost(_) => {
            ways.iter_mut().for_each(|way| {
                way.batch.origin = origin;
                way.push(Head { len: LOSS, ..head }, &[]);
            });
            return;
        }
        _ => return,
    };
    let head = Head { len: record.len() as u32, ..head };
    let mut send = |to: usize| {
        ways[to].batch.origin = origin;
        ways[to].push(head, record);
    };
    match routes.get(event.kind.id as usize) {
        Some(Route::Thread) => send(Part::of_thread(event.tid, of)),
        Some(Route::Cpu) => send(Part::of_cpu(event.cpu, of)),
        Some(Route::Fields(fields)) => {
            let [one, other] =
                fields.map(|f| Part::of_thread(f.get(record).unwrap_or(0) as i32, of));
            send(one);
            if other != one {
                send(other);
            }
        }
        Some(Route::Nobody) | None => {}
    }
}

/// A worker: keeps the books until the batches end.
fn keep(
    mut stats: Stats,
    kinds: &[EventType],
    batches: &Receiver<Batch>,
    back: &Sender<Batch>,
) -> Stats {
    let lost = EventType { id: u32::MAX, name: "lost_events".into(), ..EventType::default() };
    while let Ok(mut batch) = batches.recv() {
        stats.begin(batch.origin);
        let mut at = 0;
        for head in &batch.heads {
            let loss = head.len == LOSS;
            let end = if loss { at } else { at + head.len as usize };
            let kind = if loss { Some(&lost) } else { kinds.get(head.kind as usize) };
            if let (Some(kind), Some(record)) = (kind, batch.bytes.get(at..end)) {
                stats.take(&Event {
                    kind,
                    ts: head.ts,
                    cpu: head.cpu,
                    tid: head.tid,
                    buffer: 0,
                    comm: None,
                    column: Context::Unknown,
                    body: if loss { Body::Lost(None) } else { Body::Record(record) },
                });
            }
            at = end;
        }
        batch.heads.clear();
        batch.bytes.clear();
        // The reader is done with batches when it no longer listens.
        let _ = back.send(batch);
    }
    stats
}
