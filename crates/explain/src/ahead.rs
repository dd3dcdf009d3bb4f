//! A trace that another thread reads and decodes while its events are judged.
//!
//! Half of the time goes into each. What the events say of names travels with them, so that
//! whoever takes an event knows what was known when it happened, and no more.

use crate::evidence::name_traits::Traits;
use crate::log_gaps::LogGaps;
use crate::moment::Moment;
use crate::read::Read;
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::thread::JoinHandle;
use vmeter_timebase::Clocks;
use vmeter_trace::event::StrField;
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::{Decoder, NameId, Op};
use vmeter_trace::{Body, EventReader, TraceInfo, NO_CPU};

/// Threads whose names are kept, per file.
const MAX_NAMES: usize = 1 << 16;
/// Threads started by a recorder that are kept, per file.
const MAX_LAUNCHED: usize = 64;
/// Longest thread name that is kept, bytes.
const MAX_NAME: usize = 64;
/// Events that are handed over at once, and how many such lots wait.
const LOT: usize = 1024;
const LOTS: usize = 4;

/// What became known with an event.
enum Learned {
    /// A thread's name, from an event.
    Name(i32, Box<str>),
    /// A thread's name that the reader knows apart from its events.
    Apart(i32, Box<str>),
    /// A thread that a recorder started to be recorded.
    Launched(i32),
}

/// Events with what became known with them.
#[derive(Default)]
struct Lot {
    moments: Vec<Moment>,
    /// By the place of its event.
    learned: VecDeque<(usize, Learned)>,
    /// Names that their ops refer to, from the last one of the lot before.
    names: Vec<Box<str>>,
}

/// A file being read by a thread of its own.
pub struct Ahead {
    info: TraceInfo,
    lots: Receiver<Lot>,
    reading: JoinHandle<Source>,
    lot: Lot,
    /// Events of the lot that have come, and the last of all.
    come: usize,
    current: Option<Moment>,
    names: Vec<Box<str>>,
    /// What each of these says.
    traits: Vec<Traits>,
    threads: FastMap<i32, Box<str>>,
    apart: FastMap<i32, Box<str>>,
    renamed: u64,
    launched: Vec<i32>,
}

impl Ahead {
    /// Begins to read.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn begin(number: u16, reader: Box<dyn EventReader>, clocks: &Clocks) -> io::Result<Ahead> {
        let mut source = Source::new(number, reader, clocks.clone());
        let mut lot = Lot::default();
        // A text tells with its first event what it is.
        source.read(&mut lot, 1);
        let info = source.reader.info().clone();
        let apart = source.apart.iter().map(|(tid, name)| (*tid, name.clone())).collect();
        let (sender, lots) = sync_channel(LOTS);
        let reading = std::thread::Builder::new()
            .name(format!("read-{number}"))
            .spawn(move || source.run(&sender))?;
        let mut ahead = Ahead {
            info,
            lots,
            reading,
            lot: Lot::default(),
            come: 0,
            current: None,
            names: Vec::new(),
            traits: Vec::new(),
            threads: FastMap::default(),
            apart,
            renamed: 0,
            launched: Vec::new(),
        };
        ahead.take(lot);
        ahead.learn();
        Ok(ahead)
    }

    /// What the file says of itself.
    pub fn info(&self) -> &TraceInfo {
        &self.info
    }

    /// When the next event is; none at the end.
    pub fn due(&self) -> Option<u64> {
        self.lot.moments.get(self.come).map(|moment| moment.ts)
    }

    /// Takes the next event; false at the end. A name holds from before the event that tells it:
    /// that is where it was given.
    pub fn advance(&mut self) -> bool {
        let Some(moment) = self.lot.moments.get(self.come) else { return false };
        self.current = Some(*moment);
        self.come += 1;
        if self.come == self.lot.moments.len() {
            if let Ok(lot) = self.lots.recv() {
                self.take(lot);
            }
        }
        self.learn();
        true
    }

    /// The event that was taken last.
    pub fn current(&self) -> Option<&Moment> {
        self.current.as_ref()
    }

    fn take(&mut self, mut lot: Lot) {
        self.traits.extend(lot.names.iter().map(|name| Traits::of(name)));
        self.names.append(&mut lot.names);
        self.lot = lot;
        self.come = 0;
    }

    #[inline]
    fn learn(&mut self) {
        while self.lot.learned.front().is_some_and(|(at, _)| *at <= self.come) {
            match self.lot.learned.pop_front() {
                Some((_, Learned::Name(tid, name))) => {
                    self.renamed += 1;
                    self.threads.insert(tid, name);
                }
                Some((_, Learned::Apart(tid, name))) => {
                    self.apart.insert(tid, name);
                }
                Some((_, Learned::Launched(tid))) => self.launched.push(tid),
                None => {}
            }
        }
    }

    /// The name behind a number.
    pub fn name(&self, id: NameId) -> &str {
        self.names.get(id.0 as usize).map_or("other", |name| name)
    }

    /// What that name says.
    #[inline]
    pub fn traits(&self, id: NameId) -> Traits {
        self.traits.get(id.0 as usize).copied().unwrap_or_default()
    }

    /// A thread's name as far as it is known now.
    pub fn thread_name(&self, tid: i32) -> &str {
        let name = self.threads.get(&tid).or_else(|| self.apart.get(&tid));
        name.map_or("", |name| name)
    }

    /// How often a thread got another name until now.
    pub fn renamed(&self) -> u64 {
        self.renamed
    }

    /// Threads that a recorder started to be recorded.
    pub fn launched(&self) -> &[i32] {
        &self.launched
    }

    /// Adds threads of the program that was recorded.
    pub fn recorded(&mut self, threads: &[i32]) {
        self.launched.extend_from_slice(threads);
    }

    /// What is left when all events have come.
    pub fn finish(self, file: String) -> Read {
        drop(self.lots);
        let mut source = match self.reading.join() {
            Ok(source) => source,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let reader = &source.reader;
        source.decoder.resolve(|address| reader.symbol(address).map(str::to_string));
        let info = reader.info();
        Read {
            file,
            format: info.format,
            clock: info.clock.name.clone(),
            events: source.events,
            losses: reader.losses().clone(),
            decoder: source.decoder,
            names: source.names,
            reader: source.reader,
            stands: source.stands,
        }
    }
}

/// What the reading thread keeps.
struct Source {
    number: u16,
    clocks: Clocks,
    reader: Box<dyn EventReader>,
    decoder: Decoder,
    names: FastMap<i32, Box<str>>,
    /// The name that the last event had that gave one.
    comm: String,
    /// The thread that was named last, so that a run of events costs one comparison.
    named: i32,
    /// Names that the reader knows apart from its events, as they were handed over.
    apart: FastMap<i32, Box<str>>,
    /// Where a switch in binary has the names of its two threads.
    comms: Option<[StrField; 2]>,
    launched: Vec<i32>,
    /// Names of ops that were handed over.
    handed: usize,
    events: u64,
    /// Between which events time goes by, in a device model's log.
    stands: Option<LogGaps>,
}

impl Source {
    fn new(number: u16, reader: Box<dyn EventReader>, clocks: Clocks) -> Source {
        let is_log = reader.info().format.starts_with("QEMU");
        let apart = reader.threads().into_iter().map(|(tid, name)| (tid, name.into())).collect();
        Source {
            number,
            clocks,
            reader,
            decoder: Decoder::default(),
            names: FastMap::default(),
            comm: String::new(),
            named: 0,
            apart,
            comms: None,
            launched: Vec::new(),
            handed: 0,
            events: 0,
            stands: is_log.then(LogGaps::default),
        }
    }

    fn run(mut self, sender: &SyncSender<Lot>) -> Source {
        loop {
            let mut lot = Lot { moments: Vec::with_capacity(LOT), ..Lot::default() };
            self.read(&mut lot, LOT);
            // At the end, and when nobody takes any more.
            if lot.moments.is_empty() || sender.send(lot).is_err() {
                return self;
            }
        }
    }

    /// Adds up to so many events.
    fn read(&mut self, lot: &mut Lot, most: usize) {
        while lot.moments.len() < most && self.advance(lot) {}
        let new = self.decoder.names().since(self.handed);
        self.handed += new.len();
        lot.names.extend_from_slice(new);
    }

    fn advance(&mut self, lot: &mut Lot) -> bool {
        let at = lot.moments.len();
        let mut learned = |what| lot.learned.push_back((at, what));
        // By reference: an event is large, and is not copied on its way.
        let Some(event) = &self.reader.next_event() else { return false };
        let op = self.decoder.decode(event);
        if !matches!(event.body, Body::Lost(_)) {
            self.events += 1;
        }
        // strace tells who a thread is from its own calls on.
        let renamed = event.comm.is_some_and(|comm| *comm != *self.comm);
        let other = event.tid != self.named;
        if other || renamed || matches!(event.body, Body::Call { .. }) {
            self.named = event.tid;
            if renamed {
                self.comm.clear();
                self.comm.push_str(event.comm.unwrap_or_default());
            }
            if let Some(comm) = event.comm {
                learn(&mut self.names, &mut self.launched, (event.tid, comm), &mut learned);
            }
        }
        if let (Op::Switch { prev, next, .. }, Body::Record(record)) = (op, &event.body) {
            // The names that a recording has of its threads are those of its end, and of a few.
            let comms = self.comms.get_or_insert_with(|| {
                ["prev_comm", "next_comm"].map(|field| event.kind.string(field))
            });
            for (tid, comm) in [prev, next].into_iter().zip(comms) {
                let Some(comm) = comm.get(record).filter(|_| tid > 0) else { continue };
                learn(&mut self.names, &mut self.launched, (tid, comm), &mut learned);
            }
        }
        if let Some(stands) = &mut self.stands {
            let name = self.decoder.name(&event.kind.name);
            stands.add(name, event.ts, event.tid);
        }
        let tid = event.tid;
        lot.moments.push(Moment {
            ts: self.clocks.common(self.number, event.ts),
            stamp: event.ts,
            file: self.number,
            cpu: if event.cpu == NO_CPU { NO_CPU } else { event.cpu.min(1 << 14) },
            tid,
            context: event.context(),
            op,
        });
        if !self.apart.is_empty() {
            let (one, two) = match op {
                Op::Switch { prev, next, .. } => (prev, next),
                Op::Wake { tid, .. } => (tid, tid),
                _ => (tid, tid),
            };
            for tid in [tid, one, two].into_iter().filter(|_| other || one != tid || two != one) {
                apart(&mut self.apart, &*self.reader, tid, &mut learned);
            }
        }
        true
    }
}

/// Hands over a name that the reader knows apart from its events, if it is another than before.
fn apart(
    known: &mut FastMap<i32, Box<str>>,
    reader: &dyn EventReader,
    tid: i32,
    learned: &mut impl FnMut(Learned),
) {
    let Some(name) = reader.thread_name(tid) else { return };
    let before = known.get(&tid);
    if before.is_some_and(|before| **before == *name) {
        return;
    }
    if before.is_some() || known.len() < MAX_NAMES {
        known.insert(tid, name.into());
        learned(Learned::Apart(tid, name.into()));
    }
}

/// Keeps the name that an event gives its thread; the last one holds, as programs rename
/// their threads once they know what they are for.
fn learn(
    names: &mut FastMap<i32, Box<str>>,
    launched: &mut Vec<i32>,
    (tid, comm): (i32, &str),
    learned: &mut impl FnMut(Learned),
) {
    let known = names.get(&tid);
    let fresh = known.is_none_or(|name| **name != *comm) && comm.len() <= MAX_NAME;
    if !fresh || known.is_none() && names.len() >= MAX_NAMES {
        return;
    }
    let before = names.insert(tid, comm.into());
    learned(Learned::Name(tid, comm.into()));
    // What perf or trace-cmd runs has their own name until it is executed.
    let execs = comm == "perf-exec" || before.is_some_and(|name| *name == *"trace-cmd");
    if execs && launched.len() < MAX_LAUNCHED && !launched.contains(&tid) {
        launched.push(tid);
        learned(Learned::Launched(tid));
    }
}
