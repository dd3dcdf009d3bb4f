//! Perfetto: a trace that ui.perfetto.dev opens.
//!
//! A run is a group of tracks: the tree of spans as nested slices, a track for
//! each lane of what ran beside it, marks as instants, guest instructions as a
//! counter. Runs begin at the same moment, the exec of the first one's VMM on
//! `CLOCK_MONOTONIC`, so that they can be compared below each other; each run's
//! own exec is an annotation of its outermost slice.
//!
//! The packets are one sequence with interned names, so a name that occurs in
//! thousands of slices is stored once. The clock snapshot makes `CLOCK_MONOTONIC`
//! the clock of the trace: the default, `CLOCK_BOOTTIME`, was not recorded.

#[expect(missing_docs, reason = "Perfetto's documentation explains these names")]
pub mod fields;
pub mod proto;

use crate::text::{neutralise, Safe};
use crate::{Output, Report, ReportError, RunTimeline, Stretch};
use fields::{annotation, clock, event, interned, packet, track};
use proto::Message;
use std::collections::HashMap;
use std::io::{self, Write};
use vmeter_base::Ns;

/// The Perfetto output.
#[derive(Debug)]
pub struct Perfetto;

impl Output for Perfetto {
    fn name(&self) -> &'static str {
        "perfetto"
    }

    fn about(&self) -> &'static str {
        "a Perfetto trace for ui.perfetto.dev, if the result has a timeline"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["pftrace", "perfetto-trace"]
    }

    fn needs_timeline(&self) -> bool {
        true
    }

    fn write(&self, report: &dyn Report, out: &mut dyn Write) -> Result<(), ReportError> {
        let runs = report.timelines();
        if runs.is_empty() {
            let command = report.envelope().command.clone();
            return Err(ReportError::NoTimeline { output: "perfetto", command });
        }
        write_runs(&runs, out).map_err(ReportError::stream("perfetto"))
    }
}

/// The id of the one sequence of packets.
const SEQUENCE: u64 = 1;

fn write_runs(runs: &[RunTimeline], out: &mut dyn Write) -> io::Result<()> {
    // Slices before time 0 would be dropped; a recording without a clock starts at 0.
    let origin = runs[0].start_ns.max(0);
    let mut trace = Trace { out, origin, names: Names::default(), tracks: 0 };
    trace.clock_snapshot(&runs[0])?;
    for (rank, run) in runs.iter().enumerate() {
        trace.run(run, rank as i64)?;
    }
    Ok(())
}

/// Which table of `InternedData` a name is in.
type Table = u32;

/// Names with the numbers they are interned under.
#[derive(Default)]
struct Names {
    known: HashMap<(Table, Safe<'static>), u64>,
    counts: HashMap<Table, u64>,
}

/// What is said of a slice, instant or counter sample.
struct Slice<'a> {
    kind: u64,
    track: u64,
    at: Ns,
    name: Option<&'a str>,
    category: Option<&'a str>,
    annotations: Vec<(&'a str, Annotation<'a>)>,
    counter: Option<i64>,
}

enum Annotation<'a> {
    Unsigned(u64),
    Signed(i64),
    Text(&'a str),
}

struct Trace<'a> {
    out: &'a mut dyn Write,
    origin: Ns,
    names: Names,
    tracks: u64,
}

impl Trace<'_> {
    fn packet(&mut self, mut body: Message, flags: u64) -> io::Result<()> {
        body.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        body.varint(packet::SEQUENCE_FLAGS, flags);
        let mut framed = Message::default();
        framed.message(fields::TRACE_PACKET, &body);
        self.out.write_all(framed.bytes())
    }

    fn clock_snapshot(&mut self, first: &RunTimeline) -> io::Result<()> {
        let reading = |id: u64, at: Ns| {
            let mut reading = Message::default();
            reading.varint(clock::CLOCK_ID, id).varint(clock::TIMESTAMP, at.max(0) as u64);
            reading
        };
        let mut snapshot = Message::default();
        snapshot.message(clock::CLOCKS, &reading(clock::MONOTONIC, self.origin));
        if let Some(realtime) = first.start_realtime_ns {
            snapshot.message(clock::CLOCKS, &reading(clock::REALTIME, realtime));
        }
        snapshot.varint(clock::PRIMARY_TRACE_CLOCK, clock::MONOTONIC);
        let mut body = Message::default();
        body.message(packet::CLOCK_SNAPSHOT, &snapshot);
        self.packet(body, packet::STATE_CLEARED)
    }

    /// Describes a track and returns its uuid.
    fn track(&mut self, name: &str, parent: Option<u64>, rank: i64) -> io::Result<u64> {
        self.described_track(name, parent, rank, None)
    }

    fn described_track(
        &mut self,
        name: &str,
        parent: Option<u64>,
        rank: i64,
        counter: Option<&Message>,
    ) -> io::Result<u64> {
        self.tracks += 1;
        let uuid = self.tracks;
        let mut descriptor = Message::default();
        descriptor.varint(track::UUID, uuid).string(track::NAME, &neutralise(name));
        if let Some(parent) = parent {
            descriptor.varint(track::PARENT_UUID, parent);
        }
        if let Some(counter) = counter {
            descriptor.message(track::COUNTER, counter);
        }
        descriptor.varint(track::CHILD_ORDERING, track::EXPLICIT);
        descriptor.int(track::SIBLING_ORDER_RANK, rank);
        let mut body = Message::default();
        body.message(packet::TRACK_DESCRIPTOR, &descriptor);
        self.packet(body, packet::NEEDS_STATE)?;
        Ok(uuid)
    }

    fn run(&mut self, run: &RunTimeline, rank: i64) -> io::Result<()> {
        let group = self.track(&run.label, None, rank)?;
        let boot = self.track("boot", Some(group), 0)?;
        let outermost = Slice {
            kind: event::SLICE_BEGIN,
            track: boot,
            at: 0,
            name: Some(&run.label),
            category: Some("run"),
            annotations: vec![("exec, CLOCK_MONOTONIC ns", Annotation::Signed(run.start_ns))],
            counter: None,
        };
        self.event(outermost)?;
        self.nested(run, boot)?;
        self.end(boot, run.total)?;
        self.beside(run, group)?;
        self.marks(run, group)?;
        self.instructions(run, group)
    }

    /// Nested slices: begins before those of what is inside, ends after them.
    fn nested(&mut self, run: &RunTimeline, boot: u64) -> io::Result<()> {
        let mut open: Vec<Ns> = Vec::new();
        for stretch in &run.nested {
            for end in open.drain(stretch.depth.min(open.len())..).rev() {
                self.end(boot, end)?;
            }
            self.begin(boot, stretch)?;
            open.push(stretch.end);
        }
        for end in open.into_iter().rev() {
            self.end(boot, end)?;
        }
        Ok(())
    }

    fn begin(&mut self, track: u64, span: &Stretch) -> io::Result<()> {
        let mut annotations = vec![
            ("error_ns", Annotation::Signed(span.error_ns)),
            ("source", Annotation::Text(span.source)),
        ];
        if let Some(insns) = span.insns {
            annotations.push(("guest instructions", Annotation::Unsigned(insns)));
        }
        self.event(Slice {
            kind: event::SLICE_BEGIN,
            track,
            at: span.start,
            name: Some(span.name),
            category: Some(span.source),
            annotations,
            counter: None,
        })
    }

    fn end(&mut self, track: u64, at: Ns) -> io::Result<()> {
        self.event(Slice {
            kind: event::SLICE_END,
            track,
            at,
            name: None,
            category: None,
            annotations: Vec::new(),
            counter: None,
        })
    }

    /// What ran beside the tree: slices of one track must nest, so each source's
    /// spans are spread over as many tracks as keep them apart.
    fn beside(&mut self, run: &RunTimeline, group: u64) -> io::Result<()> {
        let mut spans: Vec<&Stretch> = run.beside.iter().collect();
        spans.sort_by(|a, b| (a.source, a.start, b.end).cmp(&(b.source, b.start, a.end)));
        let mut lanes: Vec<(&str, Ns, u64)> = Vec::new();
        for span in spans {
            let free = lanes
                .iter_mut()
                .find(|(source, end, _)| *source == span.source && *end <= span.start);
            let uuid = match free {
                Some((_, end, uuid)) => {
                    *end = span.end;
                    *uuid
                }
                None => {
                    let name = format!("beside it {} ({})", lanes.len() + 1, span.source);
                    let uuid = self.track(&name, Some(group), 1 + lanes.len() as i64)?;
                    lanes.push((span.source, span.end, uuid));
                    uuid
                }
            };
            self.begin(uuid, span)?;
            self.end(uuid, span.end.max(span.start))?;
        }
        Ok(())
    }

    fn marks(&mut self, run: &RunTimeline, group: u64) -> io::Result<()> {
        if run.marks.is_empty() {
            return Ok(());
        }
        let uuid = self.track("marks", Some(group), i64::from(i32::MAX) - 1)?;
        for (at, text) in run.marks {
            self.event(Slice {
                kind: event::INSTANT,
                track: uuid,
                at: *at,
                name: Some(text),
                category: Some("mark"),
                annotations: Vec::new(),
                counter: None,
            })?;
        }
        Ok(())
    }

    /// Guest instructions executed so far, at the end of each leaf.
    fn instructions(&mut self, run: &RunTimeline, group: u64) -> io::Result<()> {
        let mut leaves: Vec<&Stretch> = Vec::new();
        for (at, stretch) in run.nested.iter().enumerate() {
            if run.nested.get(at + 1).is_none_or(|next| next.depth <= stretch.depth) {
                leaves.push(stretch);
            }
        }
        leaves.sort_by_key(|leaf| (leaf.start, leaf.end));
        if leaves.iter().all(|span| span.insns.is_none()) {
            return Ok(());
        }
        let mut unit = Message::default();
        unit.varint(track::COUNTER_UNIT, track::UNIT_COUNT);
        let rank = i64::from(i32::MAX);
        let uuid = self.described_track("guest instructions", Some(group), rank, Some(&unit))?;
        let mut executed: i64 = 0;
        for span in leaves {
            let counted = i64::try_from(span.insns.unwrap_or(0)).unwrap_or(i64::MAX);
            executed = executed.saturating_add(counted);
            self.event(Slice {
                kind: event::COUNTER,
                track: uuid,
                at: span.end,
                name: None,
                category: None,
                annotations: Vec::new(),
                counter: Some(executed),
            })?;
        }
        Ok(())
    }

    /// The number of a name, which is defined in `data` if it is new.
    fn intern(&mut self, table: Table, name: &str, data: &mut Message) -> u64 {
        let key = (table, neutralise(name).into_owned());
        if let Some(iid) = self.names.known.get(&key) {
            return *iid;
        }
        let count = self.names.counts.entry(table).or_default();
        *count += 1;
        let mut entry = Message::default();
        entry.varint(interned::IID, *count).string(interned::NAME, &key.1);
        data.message(table, &entry);
        let iid = *count;
        self.names.known.insert(key, iid);
        iid
    }

    fn event(&mut self, slice: Slice) -> io::Result<()> {
        let mut data = Message::default();
        let mut body = Message::default();
        body.varint(event::TYPE, slice.kind).varint(event::TRACK_UUID, slice.track);
        if let Some(category) = slice.category {
            let iid = self.intern(interned::EVENT_CATEGORIES, category, &mut data);
            body.varint(event::CATEGORY_IIDS, iid);
        }
        if let Some(name) = slice.name {
            let iid = self.intern(interned::EVENT_NAMES, name, &mut data);
            body.varint(event::NAME_IID, iid);
        }
        for (name, value) in &slice.annotations {
            let iid = self.intern(interned::DEBUG_ANNOTATION_NAMES, name, &mut data);
            let mut note = Message::default();
            note.varint(annotation::NAME_IID, iid);
            match value {
                Annotation::Unsigned(value) => note.varint(annotation::UINT_VALUE, *value),
                Annotation::Signed(value) => note.int(annotation::INT_VALUE, *value),
                Annotation::Text(text) => note.string(annotation::STRING_VALUE, &neutralise(text)),
            };
            body.message(event::DEBUG_ANNOTATIONS, &note);
        }
        if let Some(value) = slice.counter {
            body.int(event::COUNTER_VALUE, value);
        }
        let at = self.origin.saturating_add(slice.at).max(0) as u64;
        let mut whole = Message::default();
        whole.varint(packet::TIMESTAMP, at);
        whole.varint(packet::TIMESTAMP_CLOCK_ID, clock::MONOTONIC);
        if !data.bytes().is_empty() {
            whole.message(packet::INTERNED_DATA, &data);
        }
        whole.message(packet::TRACK_EVENT, &body);
        self.packet(whole, packet::NEEDS_STATE)
    }
}
