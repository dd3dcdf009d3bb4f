//! The Perfetto trace, read back by a decoder of its own that knows the wire
//! format and what the UI insists on.

use crate::reports::{rendered, results};
use std::collections::{HashMap, HashSet};
use vmeter_lab::boot::report::BootReport;
use vmeter_model::time::ClockReading;

#[derive(Debug, Clone, PartialEq)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a varint's next byte");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a varint of more than ten bytes");
}

/// The fields of a message, in order.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (inside, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(inside)
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, value));
    }
    fields
}

fn number(message: &[u8], field: u64) -> Option<u64> {
    fields(message).into_iter().find_map(|(number, value)| match value {
        Value::Number(value) if number == field => Some(value),
        _ => None,
    })
}

fn all<'a>(message: &'a [u8], field: u64) -> Vec<&'a [u8]> {
    let wanted = |(number, value): (u64, Value<'a>)| match value {
        Value::Bytes(bytes) if number == field => Some(bytes),
        _ => None,
    };
    fields(message).into_iter().filter_map(wanted).collect()
}

fn one(message: &[u8], field: u64) -> Option<&[u8]> {
    all(message, field).first().copied()
}

#[derive(Default)]
struct Read {
    tracks: HashMap<u64, (String, Option<u64>)>,
    names: HashMap<u64, String>,
    /// (track, name, begin, end), in order of end.
    slices: Vec<(u64, String, u64, u64)>,
    open: HashMap<u64, Vec<(String, u64)>>,
    last: HashMap<u64, u64>,
    instants: Vec<String>,
    counters: Vec<u64>,
}

fn read(trace: &[u8]) -> Read {
    let mut read = Read::default();
    let packets = all(trace, 1);
    assert_eq!(packets.len(), fields(trace).len(), "a trace holds packets only");
    for (at, packet) in packets.iter().enumerate() {
        assert_eq!(number(packet, 10), Some(1), "one sequence");
        let flags = if at == 0 { 1 } else { 2 };
        assert_eq!(number(packet, 13), Some(flags), "state cleared once, needed after");
        if let Some(interned) = one(packet, 12) {
            for entry in all(interned, 2) {
                let name = one(entry, 2).expect("a name");
                let name = String::from_utf8(name.to_vec()).expect("UTF-8");
                let known = read.names.insert(number(entry, 1).expect("an iid"), name);
                assert_eq!(known, None, "an iid is defined once");
            }
        }
        if let Some(track) = one(packet, 60) {
            read.track(track);
        }
        if let Some(event) = one(packet, 11) {
            assert_eq!(number(packet, 58), Some(3), "CLOCK_MONOTONIC");
            read.event(number(packet, 8).expect("a timestamp"), event);
        }
    }
    assert!(read.open.values().all(Vec::is_empty), "every slice is closed");
    read
}

impl Read {
    fn track(&mut self, track: &[u8]) {
        let uuid = number(track, 1).expect("a uuid");
        let parent = number(track, 5);
        assert!(parent.is_none_or(|parent| self.tracks.contains_key(&parent)));
        let name = String::from_utf8(one(track, 2).expect("a name").to_vec()).expect("UTF-8");
        assert!(self.tracks.insert(uuid, (name, parent)).is_none(), "a uuid is used once");
    }

    fn event(&mut self, at: u64, event: &[u8]) {
        let track = number(event, 11).expect("a track");
        assert!(self.tracks.contains_key(&track), "tracks are described first");
        let last = self.last.insert(track, at).unwrap_or(0);
        assert!(at >= last, "a track's events are in order");
        let name = number(event, 10).map(|iid| self.names[&iid].clone());
        match number(event, 9) {
            Some(1) => {
                let name = name.expect("slices have names");
                self.open.entry(track).or_default().push((name, at));
            }
            Some(2) => {
                let open = self.open.entry(track).or_default().pop();
                let (name, begin) = open.expect("an end has a begin");
                self.slices.push((track, name, begin, at));
            }
            Some(3) => self.instants.push(name.expect("instants have names")),
            Some(4) => self.counters.push(number(event, 30).expect("a value")),
            other => panic!("event type {other:?}"),
        }
    }

    /// Slices of tracks with this name.
    fn slices_on(&self, track: &str) -> usize {
        self.slices.iter().filter(|(uuid, ..)| self.tracks[uuid].0.starts_with(track)).count()
    }
}

#[test]
fn every_span_becomes_a_slice_of_its_length() {
    let result = results::boot::boot(3, true);
    let read = read(&rendered("perfetto", &BootReport::new(&result)));
    let origin = result.runs[0].record.exec_ns as u64;
    let expected: usize = result.runs.iter().map(|run| run.timeline.spans.len()).sum();
    assert_eq!(read.slices_on("boot"), expected);
    let beside: usize = result.runs.iter().map(|run| run.timeline.overlapping.len()).sum();
    assert_eq!(read.slices_on("beside it"), beside);
    let slices: HashSet<(&str, u64, u64)> =
        read.slices.iter().map(|(_, name, begin, end)| (name.as_str(), *begin, *end)).collect();
    for span in result.runs.iter().flat_map(|run| &run.timeline.spans).filter(|s| s.id > 0) {
        let wanted = (span.name.as_str(), origin + span.start as u64, origin + span.end as u64);
        assert!(slices.contains(&wanted), "{wanted:?}");
    }
    assert_eq!(read.instants.len(), 3);
    let groups = read.tracks.values().filter(|(_, parent)| parent.is_none()).count();
    assert_eq!(groups, 3, "a group a run");
    assert!(!read.counters.is_empty());
}

#[test]
fn the_clock_of_the_trace_is_monotonic() {
    let result = results::boot::boot(1, false);
    let trace = rendered("perfetto", &BootReport::new(&result));
    let snapshot = one(all(&trace, 1)[0], 6).expect("a clock snapshot first");
    assert_eq!(number(snapshot, 2), Some(3));
    let clocks: HashMap<u64, u64> = all(snapshot, 1)
        .into_iter()
        .map(|clock| (number(clock, 1).expect("an id"), number(clock, 2).expect("a time")))
        .collect();
    let record = &result.runs[0].record;
    let ClockReading { monotonic_ns, realtime_ns, .. } = record.clocks[0];
    assert_eq!(clocks[&3], record.exec_ns as u64);
    assert_eq!(clocks[&1], (realtime_ns + record.exec_ns - monotonic_ns) as u64);
}

#[test]
fn crooked_timelines_still_make_a_readable_trace() {
    let mut result = results::boot::boot(1, false);
    let spans = &mut result.runs[0].timeline.spans;
    spans[2].parent = Some(99);
    spans[4].end = spans[4].start;
    result.runs[0].record.clocks.clear();
    let trace = rendered("perfetto", &BootReport::new(&result));
    assert!(fields(&trace).len() > 10);
}
