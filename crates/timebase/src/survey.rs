//! What a trace holds that relates its clock to another's.

use crate::rate::Ticks;
use std::collections::HashMap;
use std::path::Path;
use vmeter_trace::ops::{Access as Asked, Decoder};
use vmeter_trace::walk::{At, Thread, Visitor, Walk};
use vmeter_trace::{open, Body, Clock, Error, Event, Input, Tick, TraceInfo};

/// Most port accesses that are kept for matching.
const MAX_ACCESSES: usize = 1 << 15;
/// Most offsets that are kept.
const MAX_OFFSETS: usize = 1 << 14;

/// A port access: what, and between which stamps it was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// Port and direction.
    pub key: u64,
    /// Stamp: KVM's is before it is served.
    pub at: u64,
    /// Stamp after it was served.
    pub until: Option<u64>,
}

/// A thread's exit: since when, and the write in it that is not served yet.
#[derive(Debug, Clone, Copy, Default)]
struct Exit {
    since: Option<u64>,
    write: Option<usize>,
}

/// What a first reading of a trace gives.
#[derive(Debug)]
pub(crate) struct Survey {
    pub clock: Clock,
    pub first: u64,
    pub last: u64,
    /// Guest TSC less host TSC, as KVM set it: the middle and half the spread.
    pub tsc_offset: Option<(i64, u64)>,
    pub accesses: Vec<Access>,
    /// True for a trace of the device model itself.
    pub of_model: bool,
    /// Cycles from one tick of the kernel to the next.
    pub tick: Option<u64>,
}

impl Survey {
    /// What a trace says of itself, where nothing has to be matched.
    pub fn of(info: &TraceInfo) -> Survey {
        Survey {
            clock: info.clock.clone(),
            first: 0,
            last: 0,
            tsc_offset: None,
            accesses: Vec::new(),
            of_model: info.format.starts_with("QEMU"),
            tick: None,
        }
    }

    /// Reads a trace to its end.
    pub fn read(path: &Path) -> Result<Survey, Error> {
        let mut reader = open(Input::open(path)?)?;
        let info = reader.info();
        let mut survey = Survey::of(info);
        let mut decoder = Decoder::default();
        let mut walk = Walk::new(info);
        let mut served = Served { of_model: survey.of_model, ..Served::default() };
        let mut offsets = Vec::new();
        let mut first = None;
        let (mut ticks, cycles) = (Ticks::default(), survey.clock.tick == Tick::Cycle);
        while let Some(event) = reader.next_event() {
            first.get_or_insert(event.ts);
            survey.last = survey.last.max(event.ts);
            if event.kind.name == "kvm_write_tsc_offset" && offsets.len() < MAX_OFFSETS {
                offsets.extend(next_offset(&event));
            }
            let at = At::of(&event);
            let op = decoder.decode(&event);
            if cycles {
                ticks.add(at.cpu, at.ts, op, &decoder);
            }
            walk.add(&at, op, &mut served);
        }
        survey.tick = ticks.usual();
        reader.losses().check(&path.display().to_string())?;
        survey.accesses = served.accesses;
        survey.first = first.unwrap_or(0);
        survey.tsc_offset = middle(offsets);
        Ok(survey)
    }
}

/// Collects port accesses, each with the stamps that it was served between.
#[derive(Default)]
struct Served {
    of_model: bool,
    accesses: Vec<Access>,
    /// By thread.
    exits: HashMap<i32, Exit>,
}

impl Served {
    fn exit(&mut self, tid: i32) -> Option<&mut Exit> {
        if self.exits.len() >= MAX_OFFSETS && !self.exits.contains_key(&tid) {
            return None;
        }
        Some(self.exits.entry(tid).or_default())
    }

    fn asked(&mut self, at: &At, port: u32, write: bool, answered: bool) {
        let next = self.accesses.len();
        let Some(exit) = self.exit(at.tid).filter(|_| next < MAX_ACCESSES) else { return };
        let mut access =
            Access { key: u64::from(port) << 1 | u64::from(write), at: at.ts, until: None };
        if answered {
            (access.at, access.until) = (exit.since.unwrap_or(0), Some(at.ts));
        } else {
            exit.write = Some(next);
        }
        if access.at > 0 {
            self.accesses.push(access);
        }
    }

    fn goes_on(&mut self, at: &At) {
        let write = self.exit(at.tid).and_then(|exit| exit.write.take());
        if let Some(access) = write.and_then(|index| self.accesses.get_mut(index)) {
            access.until = Some(at.ts);
        }
    }
}

impl Visitor for Served {
    fn left(&mut self, at: &At, thread: &Thread) {
        if let Some(exit) = self.exit(thread.tid) {
            exit.since = Some(at.ts);
        }
    }

    fn reported(&mut self, at: &At, thread: Option<&Thread>, access: Asked) {
        if let Asked::Port { port, write } = access {
            // KVM, whose events are threads', tells of a read once it has been answered.
            self.asked(at, port, write, !write && !self.of_model && thread.is_some());
        }
    }

    fn vcpu_resumed(&mut self, at: &At) {
        self.goes_on(at);
    }

    fn resumed(&mut self, at: &At, _thread: &Thread) {
        self.goes_on(at);
    }
}

/// The offset that `kvm_write_tsc_offset` sets.
fn next_offset(event: &Event<'_>) -> Option<i64> {
    match event.body {
        Body::Record(record) => {
            event.kind.int("next_tsc_offset").get(record).map(|offset| offset as i64)
        }
        Body::Text(text) => {
            let number = text.split("next=").nth(1)?.split_whitespace().next()?;
            number.parse::<u64>().ok().map(|offset| offset as i64)
        }
        _ => None,
    }
}

fn middle(mut offsets: Vec<i64>) -> Option<(i64, u64)> {
    offsets.sort_unstable();
    let (least, most) = (*offsets.first()?, *offsets.last()?);
    Some((offsets[offsets.len() / 2], most.abs_diff(least) / 2))
}
