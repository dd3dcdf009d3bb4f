//! The trait that every format implements, and their list.
//!
//! A format is one file under `formats/` and one line in [`FORMATS`]. It is
//! recognised by content, never by the file's name.

use crate::event::{Event, EventType};
use crate::formats;
use crate::hash::Recent;
use crate::symbols::Symbols;
use crate::{Error, Input};
use std::collections::HashMap;
use std::sync::Arc;
use vmeter_base::bounds::Exceeded;

/// A trace format.
pub trait TraceFormat: Sync {
    /// Name for messages and reports.
    fn name(&self) -> &'static str;

    /// True if a trace that begins with `head` is of this format.
    fn probe(&self, head: &[u8]) -> bool;

    /// Reads the header and gets ready for the first event.
    ///
    /// # Errors
    /// [`Error::Header`] if the header can't be used, [`Error::Read`] on I/O errors.
    fn open(&self, input: Input) -> Result<Box<dyn EventReader>, Error>;
}

/// The formats, in the order in which they are tried: strict ones first.
pub static FORMATS: &[&dyn TraceFormat] = &[
    &formats::trace_dat::TraceDat,
    &formats::perf_data::PerfData,
    &formats::xentrace::Xentrace,
    &formats::strace::Strace,
    &formats::perf_script::PerfScript,
    &formats::ftrace_text::FtraceText,
    &formats::qemu_log::QemuLog,
];

/// Events of an opened trace, in order of time as far as the format allows.
///
/// Streams of several CPUs are merged by time stamp; events of one CPU keep
/// their order. Memory stays bounded however long the trace is.
pub trait EventReader: Send {
    /// What the header says.
    fn info(&self) -> &TraceInfo;

    /// The next event; none at the end. The end may come early: see [`EventReader::losses`].
    fn next_event(&mut self) -> Option<Event<'_>>;

    /// Has up to `threads` other threads read and unpack ahead, where the format allows;
    /// to be called before the first event. True if they do.
    ///
    /// # Errors
    /// When threads can't be started; the reader is then of no use any more.
    fn read_ahead(&mut self, _threads: usize) -> std::io::Result<bool> {
        Ok(false)
    }

    /// What is known to be missing, complete once the end was reached.
    fn losses(&self) -> &Losses;

    /// The types of all events that can come, by id, if they are known beforehand and every
    /// event is a [`crate::Body::Record`] (or a mark of lost ones).
    fn kinds(&self) -> &[EventType] {
        &[]
    }

    /// Name of the kernel symbol at or below `address`, if the trace carries symbols.
    fn symbol(&self, _address: u64) -> Option<&str> {
        None
    }

    /// The kernel's symbols, if the trace carries them.
    fn symbols(&self) -> Option<Arc<Symbols>> {
        None
    }

    /// Names of threads that the trace knows apart from its events.
    fn threads(&self) -> Vec<(i32, String)> {
        Vec::new()
    }

    /// Name of a thread that the trace knows apart from its events.
    fn thread_name(&self, _tid: i32) -> Option<&str> {
        None
    }
}

/// Unit of a trace's time stamps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tick {
    /// Nanoseconds.
    Nanosecond,
    /// Cycles of a counter whose rate the trace does not give.
    Cycle,
    /// Numbers that order events but measure no time (clock `counter`, or no stamps).
    Order,
}

/// What a trace's time stamps mean.
#[derive(Debug, Clone, PartialEq)]
pub struct Clock {
    /// Name as the trace gives it (`local`, `x86-tsc`, `mono`), or what is known.
    pub name: String,
    /// Unit.
    pub tick: Tick,
}

/// What a trace's header says.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceInfo {
    /// Name of the format.
    pub format: &'static str,
    /// Clock of the time stamps.
    pub clock: Clock,
    /// Names of the ring buffers (trace instances); the top one is empty.
    pub buffers: Vec<String>,
    /// CPUs with a stream of their own; 0 where the format does not say.
    pub cpus: u32,
    /// Guests recorded in the same session: (name, vCPU, host thread).
    pub guests: Vec<(String, u32, i32)>,
    /// Events kept and events written, where the header says that the oldest were overwritten:
    /// CPUs' events begin at different times then.
    pub overwritten: Option<(u64, u64)>,
}

impl TraceInfo {
    pub(crate) fn new(format: &'static str, clock: &str, tick: Tick) -> TraceInfo {
        TraceInfo {
            format,
            clock: Clock { name: clock.to_string(), tick },
            buffers: vec![String::new()],
            cpus: 0,
            guests: Vec::new(),
            overwritten: None,
        }
    }
}

/// What is missing from a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    /// Events that the recorder counted as lost.
    pub lost_events: u64,
    /// Places where events were lost and nobody counted how many.
    pub uncounted_gaps: u64,
    /// Events overwritten before the trace was read (ring buffer full).
    pub overwritten: u64,
    /// Lines or records that could not be understood.
    pub unreadable: u64,
    /// What is torn, truncated or damaged, in words.
    pub missing: Vec<String>,
    /// Why reading was given up: what was read until then stands for nothing.
    pub exceeded: Option<Exceeded>,
}

impl Losses {
    /// True if nothing is known to be missing.
    pub fn is_empty(&self) -> bool {
        *self == Losses::default()
    }

    /// An error for a trace that was given up; to be asked once its last event was read.
    ///
    /// # Errors
    /// [`Error::TooMuch`].
    pub fn check(&self, name: &str) -> Result<(), Error> {
        match self.exceeded {
            Some(exceeded) => Err(Error::TooMuch { name: name.to_string(), exceeded }),
            None => Ok(()),
        }
    }

    /// As [`Self::check`], with the number of events that were read: a file that begins as a trace
    /// and of which no line was understood is none.
    ///
    /// # Errors
    /// [`Error::TooMuch`], [`Error::Nothing`].
    pub fn check_read(&self, name: &str, events: u64) -> Result<(), Error> {
        self.check(name)?;
        if events == 0 && self.unreadable > 0 {
            return Err(Error::Nothing { name: name.to_string(), unreadable: self.unreadable });
        }
        Ok(())
    }
}

/// Stamps that are less apart are in order: threads that write one file take turns.
const TOLERATED: u64 = 1_000_000;

/// Watches over the order of a trace's stamps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Order {
    last: u64,
    backward: u64,
    furthest: u64,
}

impl Order {
    /// Takes the next event's stamp.
    #[inline]
    pub(crate) fn see(&mut self, ts: u64) {
        if ts >= self.last {
            self.last = ts;
        } else if self.last - ts > TOLERATED {
            self.backward += 1;
            self.furthest = self.furthest.max(self.last - ts);
        }
    }

    /// What is to be said of it, in words for [`Losses::missing`].
    pub(crate) fn said(&self, clock: &Clock) -> Option<String> {
        let furthest = match clock.tick {
            Tick::Nanosecond => format!("{:.3} s", self.furthest as f64 / 1e9),
            Tick::Cycle => format!("{} cycles", self.furthest),
            // Numbers without a measure: their order is the file's.
            Tick::Order => return None,
        };
        (self.backward > 0).then(|| {
            format!(
                "time stamps go backwards at {} events, by up to {furthest}: durations across \
                    these events are wrong",
                self.backward
            )
        })
    }
}

/// Opens a trace of any format.
///
/// # Errors
/// [`Error::Unknown`] if no format recognises it, else what the format says.
pub fn open(input: Input) -> Result<Box<dyn EventReader>, Error> {
    match FORMATS.iter().find(|f| f.probe(input.head())) {
        Some(format) => format.open(input),
        None => Err(Error::Unknown {
            found: printable(input.head()),
            expected: FORMATS.iter().map(|f| f.name()).collect::<Vec<_>>().join(", "),
            name: input.name().to_string(),
        }),
    }
}

fn printable(head: &[u8]) -> String {
    if head.is_empty() {
        return "nothing (it is empty)".to_string();
    }
    let start = &head[..head.len().min(24)];
    format!("\"{}\"", start.escape_ascii())
}

/// Types of a text trace, found by name as its lines come in.
///
/// Garbage can hold any number of names: beyond [`MAX_KINDS`] all are `other`.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    by_name: HashMap<Box<str>, u32>,
    kinds: Vec<EventType>,
    joined: String,
    recent: Recent,
}

const MAX_KINDS: usize = 16 * 1024;
const MAX_NAME: usize = 128;

impl Kinds {
    pub(crate) fn id(&mut self, system: &str, name: &str) -> u32 {
        let guess = self.recent.guess(name);
        if self.kinds.get(guess as usize).is_some_and(|kind| kind.name == name) {
            return guess;
        }
        if let Some(&id) = self.by_name.get(name) {
            self.recent.note(name, id);
            return id;
        }
        let (system, name) = if self.kinds.len() < MAX_KINDS && name.len() <= MAX_NAME {
            (system, name)
        } else {
            ("", "other")
        };
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let id = self.kinds.len() as u32;
        self.by_name.insert(name.into(), id);
        self.kinds.push(EventType {
            id,
            system: system.to_string(),
            name: name.to_string(),
            ..EventType::default()
        });
        id
    }

    /// The id of `prefix_name`.
    pub(crate) fn id_joined(&mut self, system: &str, prefix: &str, name: &str) -> u32 {
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        joined.extend([prefix, "_", name]);
        let id = self.id(system, &joined);
        self.joined = joined;
        id
    }

    pub(crate) fn get(&self, id: u32) -> &EventType {
        &self.kinds[id as usize]
    }
}
