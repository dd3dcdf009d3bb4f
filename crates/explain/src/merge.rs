//! The events of several traces in one order of time.
//!
//! Each source decodes one event ahead; the earliest on the common time base comes
//! next. A [`Moment`] is plain data, so nothing borrows from the readers.

use crate::log_gaps::LogGaps;
use crate::moment::{Moment, Sym, Tid};
use crate::read::Read;
use crate::spool::Spool;
use crate::ExplainError;
use vmeter_timebase::Clocks;
use vmeter_trace::event::StrField;
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::{Decoder, Op};
use vmeter_trace::{open, Body, EventReader, Input, TraceInfo, NO_CPU};

/// Threads whose names are kept, per file.
const MAX_NAMES: usize = 1 << 16;
/// Threads started by a recorder that are kept, per file.
const MAX_LAUNCHED: usize = 64;
/// Longest thread name that is kept, bytes.
const MAX_NAME: usize = 64;

/// A file being read.
struct Source {
    reader: Box<dyn EventReader>,
    decoder: Decoder,
    names: FastMap<i32, Box<str>>,
    /// How often a thread got another name.
    renamed: u64,
    /// The name that the last event had that gave one.
    comm: String,
    /// The thread that was named last, so that a run of events costs one comparison.
    named: i32,
    /// Where a switch in binary has the names of its two threads.
    comms: Option<[StrField; 2]>,
    /// Threads that a recorder started to be recorded.
    launched: Vec<i32>,
    events: u64,
    next: Option<Moment>,
    /// Between which events time goes by, in a device model's log.
    stands: Option<LogGaps>,
}

/// Files on their way.
pub struct Merge {
    files: Vec<String>,
    sources: Vec<Source>,
    clocks: Clocks,
}

impl Merge {
    /// Opens the files.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(spool: &Spool, clocks: &Clocks) -> Result<Merge, ExplainError> {
        let mut merge = Merge { files: Vec::new(), sources: Vec::new(), clocks: clocks.clone() };
        for (number, path) in spool.files.iter().enumerate() {
            let mut reader = open(Input::open(path)?)?;
            // Unpacking ahead only saves time; the events are the same without it.
            let _ = reader.read_ahead(1);
            let mut source = Source {
                reader,
                decoder: Decoder::default(),
                names: FastMap::default(),
                renamed: 0,
                comm: String::new(),
                named: 0,
                comms: None,
                launched: Vec::new(),
                events: 0,
                next: None,
                stands: None,
            };
            let is_log = source.reader.info().format.starts_with("QEMU");
            source.stands = is_log.then(LogGaps::default);
            source.advance(number as u16, &merge.clocks);
            merge.files.push(spool.name(path));
            merge.sources.push(source);
        }
        Ok(merge)
    }

    /// The earliest event that has not come yet.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Moment> {
        let due = |source: &Source| source.next.map(|moment| moment.ts);
        let (_, number) = self
            .sources
            .iter()
            .enumerate()
            .filter_map(|(number, source)| Some((due(source)?, number)))
            .min()?;
        let source = self.sources.get_mut(number)?;
        let moment = source.next;
        source.advance(number as u16, &self.clocks);
        moment
    }

    /// What the files say of themselves.
    pub fn infos(&self) -> impl Iterator<Item = &TraceInfo> {
        self.sources.iter().map(|source| source.reader.info())
    }

    /// A stamp of a file on the common time base.
    pub fn common(&self, file: u16, stamp: u64) -> u64 {
        self.clocks.common(file, stamp)
    }

    /// The name behind a number.
    pub fn name(&self, sym: Sym) -> &str {
        let source = self.sources.get(sym.file as usize);
        source.map_or("other", |source| source.decoder.names().name(sym.id))
    }

    /// A thread's name as far as it is known now.
    pub fn thread_name(&self, thread: Tid) -> &str {
        let source = self.sources.get(thread.file as usize);
        source
            .and_then(|s| {
                let own = s.names.get(&thread.tid).map(|name| &**name);
                own.or_else(|| s.reader.thread_name(thread.tid))
            })
            .unwrap_or("")
    }

    /// How often threads of a file got another name until now.
    pub fn renamed(&self, file: u16) -> u64 {
        self.sources.get(file as usize).map_or(0, |source| source.renamed)
    }

    /// True for a thread that a recorder started to be recorded.
    pub fn is_launched(&self, thread: Tid) -> bool {
        let source = self.sources.get(thread.file as usize);
        source.is_some_and(|source| source.launched.contains(&thread.tid))
    }

    /// Threads of the program that the first file was recorded of.
    pub fn recorded(&mut self, threads: &[i32]) {
        if let Some(first) = self.sources.first_mut() {
            first.launched.extend_from_slice(threads);
        }
    }

    /// All of them.
    pub fn launched(&self) -> impl Iterator<Item = Tid> + '_ {
        let all = (0_u16..).zip(&self.sources);
        all.flat_map(|(file, source)| {
            source.launched.iter().map(move |tid| Tid { file, tid: *tid })
        })
    }

    /// What is left when all events have come.
    pub fn finish(self) -> Vec<Read> {
        let mut all = Vec::new();
        for (file, mut source) in self.files.into_iter().zip(self.sources) {
            let reader = &source.reader;
            source.decoder.resolve(|address| reader.symbol(address).map(str::to_string));
            let info = source.reader.info();
            all.push(Read {
                file,
                format: info.format,
                clock: info.clock.name.clone(),
                events: source.events,
                losses: source.reader.losses().clone(),
                decoder: source.decoder,
                names: source.names,
                reader: source.reader,
                stands: source.stands,
            });
        }
        all
    }
}

impl Source {
    fn advance(&mut self, file: u16, clocks: &Clocks) {
        let Some(event) = self.reader.next_event() else {
            self.next = None;
            return;
        };
        if !matches!(event.body, Body::Lost(_)) {
            self.events += 1;
        }
        // strace tells who a thread is from its own calls on.
        let renamed = event.comm.is_some_and(|comm| *comm != *self.comm);
        if event.tid != self.named || renamed || matches!(event.body, Body::Call { .. }) {
            self.named = event.tid;
            if renamed {
                self.comm.clear();
                self.comm.push_str(event.comm.unwrap_or_default());
            }
            if let Some(comm) = event.comm {
                let renamed = learn(&mut self.names, &mut self.launched, (event.tid, comm));
                self.renamed += u64::from(renamed);
            }
        }
        let mut moment = Moment {
            ts: clocks.common(file, event.ts),
            stamp: event.ts,
            file,
            cpu: event.cpu,
            tid: event.tid,
            context: event.context(),
            op: self.decoder.decode(&event),
        };
        if let (Op::Switch { prev, next, .. }, Body::Record(record)) = (moment.op, &event.body) {
            // The names that a recording has of its threads are those of its end, and of a few.
            let comms = self.comms.get_or_insert_with(|| {
                ["prev_comm", "next_comm"].map(|field| event.kind.string(field))
            });
            for (tid, comm) in [prev, next].into_iter().zip(comms) {
                let Some(comm) = comm.get(record).filter(|_| tid > 0) else { continue };
                let renamed = learn(&mut self.names, &mut self.launched, (tid, comm));
                self.renamed += u64::from(renamed);
            }
        }
        if let Some(stands) = &mut self.stands {
            let name = self.decoder.name(&event.kind.name);
            stands.add(name, event.ts, event.tid);
        }
        if moment.cpu != NO_CPU {
            moment.cpu = moment.cpu.min(1 << 14);
        }
        self.next = Some(moment);
    }
}

/// Keeps the name that an event gives its thread; the last one holds, as programs rename
/// their threads once they know what they are for.
/// True if that is another than before.
fn learn(
    names: &mut FastMap<i32, Box<str>>,
    launched: &mut Vec<i32>,
    (tid, comm): (i32, &str),
) -> bool {
    let known = names.get(&tid);
    let fresh = known.is_none_or(|name| **name != *comm) && comm.len() <= MAX_NAME;
    let learns = fresh && (known.is_some() || names.len() < MAX_NAMES);
    if learns {
        let before = names.insert(tid, comm.into());
        // What perf or trace-cmd runs has their own name until it is executed.
        let execs = comm == "perf-exec" || before.is_some_and(|name| *name == *"trace-cmd");
        if execs && launched.len() < MAX_LAUNCHED && !launched.contains(&tid) {
            launched.push(tid);
        }
    }
    learns
}
