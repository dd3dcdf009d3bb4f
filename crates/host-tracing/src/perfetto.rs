//! A trace for ui.perfetto.dev: system calls and work as slices of their threads, VMEXITs
//! of their vCPUs, interrupts of their CPUs, the scheduler's events as such.
//!
//! Everything is stamped with the trace's own clock, which Perfetto takes for the
//! boot clock: the events carry no other. A trace that counts cycles is scaled.

use std::collections::HashMap;
use std::io::{self, Write};
use vmeter_render::outputs::perfetto::fields::{
    annotation, event as fields, ftrace, interned, packet, thread, track, TRACE_PACKET,
};
use vmeter_render::outputs::perfetto::proto::Message;
use vmeter_render::text::{neutralise, Safe};
use vmeter_trace::ops::{Decoder, NameId};
use vmeter_trace::print::Printer;
use vmeter_trace::walk::{At, Ends, Slice, Visitor, Walk};
use vmeter_trace::write::Sink;
use vmeter_trace::{Body, Event, Tick, TraceInfo, NO_CPU};

const SEQUENCE: u64 = 1;
/// Most names that are stored once; further ones are all called `other`.
const MAX_NAMES: usize = 1 << 16;
/// Most tracks of threads and CPUs.
const MAX_TRACKS: usize = 1 << 17;
/// Slices that may be open on one track.
const MAX_OPEN: u8 = 8;

/// What a track is of; also its uuid's upper half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    Thread = 1,
    /// The exits of a thread that runs a vCPU.
    Exits = 2,
    Cpu = 3,
}

type Track = (Of, u32);

/// The Perfetto format, event by event.
#[derive(Default)]
pub struct PerfettoEvents {
    /// Nanoseconds a tick.
    scale: f64,
    cpu_hz: Option<f64>,
    begun: bool,
    /// The name of annotations is defined.
    noted: bool,
    decoder: Decoder,
    walk: Walk,
    names: HashMap<Safe<'static>, u64>,
    /// Open slices by track.
    tracks: HashMap<Track, u8>,
}

impl PerfettoEvents {
    /// A writer; `cpu_hz` is the rate of a clock that counts cycles (1 GHz if unknown).
    pub fn new(cpu_hz: Option<f64>) -> PerfettoEvents {
        PerfettoEvents { cpu_hz, scale: 1.0, ..PerfettoEvents::default() }
    }

    fn packet(&mut self, mut body: Message, out: &mut dyn Write) -> io::Result<()> {
        body.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        let flags = if self.begun { packet::NEEDS_STATE } else { packet::STATE_CLEARED };
        self.begun = true;
        body.varint(packet::SEQUENCE_FLAGS, flags);
        let mut framed = Message::default();
        framed.message(TRACE_PACKET, &body);
        out.write_all(framed.bytes())
    }

    fn now(&self, event: &Event<'_>) -> u64 {
        match self.scale {
            1.0 => event.ts,
            scale => (event.ts as f64 * scale) as u64,
        }
    }

    /// Describes a track at its first event.
    fn describe(&mut self, of: Track, name: &str, out: &mut dyn Write) -> io::Result<bool> {
        if self.tracks.contains_key(&of) {
            return Ok(true);
        }
        if self.tracks.len() >= MAX_TRACKS {
            return Ok(false);
        }
        self.tracks.insert(of, 0);
        let mut descriptor = Message::default();
        descriptor.varint(track::UUID, uuid(of));
        match of {
            (Of::Thread, tid) => {
                let mut of_thread = Message::default();
                of_thread.varint(thread::PID, u64::from(tid)).varint(thread::TID, u64::from(tid));
                of_thread.string(thread::NAME, &neutralise(name));
                descriptor.message(track::THREAD, &of_thread);
            }
            (Of::Exits, tid) => {
                descriptor
                    .string(track::NAME, &Safe::own("vCPU"))
                    .varint(track::PARENT_UUID, uuid((Of::Thread, tid)));
            }
            (Of::Cpu, cpu) => {
                descriptor.string(track::NAME, &neutralise(&format!("CPU {cpu} interrupts")));
            }
        }
        let mut body = Message::default();
        body.message(packet::TRACK_DESCRIPTOR, &descriptor);
        self.packet(body, out)?;
        Ok(true)
    }

    fn write(
        &mut self,
        (of, kind, name): (Track, u64, Option<&str>),
        event: &Event<'_>,
        text: Option<&str>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut data = Message::default();
        let mut body = Message::default();
        body.varint(fields::TYPE, kind).varint(fields::TRACK_UUID, uuid(of));
        if let Some(name) = name {
            let iid = self.intern(name, &mut data);
            body.varint(fields::NAME_IID, iid);
        }
        if let Some(text) = text.filter(|t| !t.is_empty()) {
            let iid = self.intern_note(&mut data);
            let mut note = Message::default();
            note.varint(annotation::NAME_IID, iid)
                .string(annotation::STRING_VALUE, &neutralise(text));
            body.message(fields::DEBUG_ANNOTATIONS, &note);
        }
        let mut whole = Message::default();
        whole.varint(packet::TIMESTAMP, self.now(event));
        if !data.bytes().is_empty() {
            whole.message(packet::INTERNED_DATA, &data);
        }
        whole.message(packet::TRACK_EVENT, &body);
        self.packet(whole, out)
    }

    fn intern(&mut self, name: &str, data: &mut Message) -> u64 {
        let name = if self.names.len() < MAX_NAMES { neutralise(name) } else { Safe::own("other") };
        if let Some(iid) = self.names.get(&name) {
            return *iid;
        }
        let iid = self.names.len() as u64 + 1;
        let mut entry = Message::default();
        entry.varint(interned::IID, iid).string(interned::NAME, &name);
        data.message(interned::EVENT_NAMES, &entry);
        self.names.insert(name.into_owned(), iid);
        iid
    }

    /// The one name of annotations.
    fn intern_note(&mut self, data: &mut Message) -> u64 {
        if !std::mem::replace(&mut self.noted, true) {
            let mut entry = Message::default();
            entry.varint(interned::IID, 1).string(interned::NAME, &Safe::own("text"));
            data.message(interned::DEBUG_ANNOTATION_NAMES, &entry);
        }
        1
    }

    /// Begins a slice.
    fn begin_slice(
        &mut self,
        of: Track,
        name: &str,
        event: &Event<'_>,
        text: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let open = self.tracks.entry(of).or_default();
        if *open >= MAX_OPEN {
            return Ok(());
        }
        *open += 1;
        self.write((of, fields::SLICE_BEGIN, Some(name)), event, Some(text), out)
    }

    /// Ends the innermost slice, if there is one: the trace may begin in the middle.
    fn end_slice(&mut self, of: Track, event: &Event<'_>, out: &mut dyn Write) -> io::Result<()> {
        match self.tracks.get_mut(&of) {
            Some(open) if *open > 0 => *open -= 1,
            _ => return Ok(()),
        }
        self.write((of, fields::SLICE_END, None), event, None, out)
    }

    /// Ends what is open on a track where slices do not nest.
    fn end_all(&mut self, of: Track, event: &Event<'_>, out: &mut dyn Write) -> io::Result<()> {
        while self.tracks.get(&of).is_some_and(|open| *open > 0) {
            self.end_slice(of, event, out)?;
        }
        Ok(())
    }

    fn name(&self, id: NameId, printer: &Printer) -> String {
        let name = self.decoder.names().name(id);
        let address = name.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        address.and_then(|a| printer.symbol(a)).unwrap_or(name).to_string()
    }
}

fn uuid((of, number): Track) -> u64 {
    (of as u64) << 32 | u64::from(number)
}

/// What an event does to which track.
#[derive(Default)]
enum Act {
    /// A slice on a track where they do not nest.
    Begin(Track, NameId),
    /// A slice inside others.
    Nest(Track, NameId),
    End(Track),
    EndAll(Track),
    #[default]
    Instant,
}

impl Visitor for Act {
    fn begins(&mut self, at: &At, slice: Slice) {
        *self = match slice {
            Slice::Call(name) | Slice::Work(name) => Act::Begin((Of::Thread, at.tid as u32), name),
            Slice::Exit(name) => Act::Begin((Of::Exits, at.tid as u32), name),
            Slice::Interrupt(name) => Act::Nest((Of::Cpu, at.cpu), name),
        };
    }

    fn ends(&mut self, at: &At, ends: Ends) {
        *self = match ends {
            Ends::Call | Ends::Work => Act::EndAll((Of::Thread, at.tid as u32)),
            Ends::Exit => Act::EndAll((Of::Exits, at.tid as u32)),
            Ends::Interrupt => Act::End((Of::Cpu, at.cpu)),
            Ends::VcpuExit => Act::EndAll((Of::Cpu, at.cpu)),
        };
    }
}

impl Sink for PerfettoEvents {
    fn begin(&mut self, info: &TraceInfo, _out: &mut dyn Write) -> io::Result<()> {
        if info.clock.tick == Tick::Cycle {
            self.scale = self.cpu_hz.map_or(1.0, |hz| 1e9 / hz);
        }
        Ok(())
    }

    fn event(
        &mut self,
        event: &Event<'_>,
        printer: &mut Printer,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if let Some(native) = scheduler(event, self.now(event)) {
            let mut body = Message::default();
            body.message(packet::FTRACE_EVENTS, &native);
            return self.packet(body, out);
        }
        let mut act = Act::default();
        self.walk.add(&At::of(event), self.decoder.decode(event), &mut act);
        let mut text = String::new();
        printer.text(event, &mut text);
        let thread = printer.thread(event).unwrap_or_default().to_owned();
        let place = match (event.tid, event.cpu) {
            (tid @ 1.., _) => (Of::Thread, tid as u32),
            (_, NO_CPU) => (Of::Cpu, 0),
            (_, cpu) => (Of::Cpu, cpu),
        };
        let of = match act {
            Act::Begin(of, _) | Act::Nest(of, _) | Act::End(of) | Act::EndAll(of) => of,
            Act::Instant => place,
        };
        if !self.describe(place, &thread, out)? || !self.describe(of, &thread, out)? {
            return Ok(());
        }
        match act {
            Act::Begin(of, name) => {
                self.end_all(of, event, out)?;
                let name = self.name(name, printer);
                self.begin_slice(of, &name, event, &text, out)
            }
            Act::Nest(of, name) => {
                let name = self.name(name, printer);
                self.begin_slice(of, &name, event, &text, out)
            }
            Act::End(of) => self.end_slice(of, event, out),
            Act::EndAll(of) => self.end_all(of, event, out),
            Act::Instant => {
                let name = event.kind.name.as_str();
                self.write((of, fields::INSTANT, Some(name)), event, Some(&text), out)
            }
        }
    }
}

/// The scheduler's events as Perfetto has them: it draws CPUs and threads by these.
fn scheduler(event: &Event<'_>, now: u64) -> Option<Message> {
    let Body::Record(record) = event.body else { return None };
    let number = |name: &str| event.kind.int(name).get(record).unwrap_or(0);
    let text = |name: &str| neutralise(event.kind.string(name).get(record).unwrap_or_default());
    let mut inner = Message::default();
    let field = match event.kind.name.as_str() {
        "sched_switch" => {
            inner.string(ftrace::PREV_COMM, &text("prev_comm"));
            inner.int(ftrace::PREV_PID, number("prev_pid") as i64);
            inner.int(ftrace::PREV_PRIO, number("prev_prio") as i64);
            inner.int(ftrace::PREV_STATE, number("prev_state") as i64);
            inner.string(ftrace::NEXT_COMM, &text("next_comm"));
            inner.int(ftrace::NEXT_PID, number("next_pid") as i64);
            inner.int(ftrace::NEXT_PRIO, number("next_prio") as i64);
            ftrace::SCHED_SWITCH
        }
        name @ ("sched_waking" | "sched_wakeup") => {
            inner.string(ftrace::COMM, &text("comm"));
            inner.int(ftrace::WOKEN, number("pid") as i64);
            inner.int(ftrace::PRIO, number("prio") as i64);
            inner.int(ftrace::TARGET_CPU, number("target_cpu") as i64);
            if name == "sched_waking" {
                ftrace::SCHED_WAKING
            } else {
                ftrace::SCHED_WAKEUP
            }
        }
        _ => return None,
    };
    let mut one = Message::default();
    one.varint(ftrace::TIMESTAMP, now);
    one.varint(ftrace::PID, event.tid.max(0) as u64);
    one.message(field, &inner);
    let mut bundle = Message::default();
    bundle.varint(ftrace::CPU, u64::from(event.cpu)).message(ftrace::EVENT, &one);
    Some(bundle)
}
