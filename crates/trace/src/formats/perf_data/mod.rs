//! `perf.data` with tracepoints: what `perf record -e 'kvm:*' -e 'sched:*'` writes.
//!
//! A tracepoint's sample carries the same binary record that ftrace's ring buffer
//! does, and the file carries the same format texts, so both mean the same from here
//! on. Finding records, telling events apart and sorting by time is done by the crate
//! `linux-perf-data`; since it believes every length that a file states, it gets to see
//! the file through a [`layout::Sieve`]. What is behind a record's raw data is of no
//! interest, so samples are taken apart here, as far as these.

mod layout;

use super::trace_dat::header::{tracing_data, Header};
use super::trace_dat::parts::NO_KIND;
use crate::event::{Body, Context, Event, EventType, IntField, NO_CPU};
use crate::format::{EventReader, Losses, Order, Tick, TraceFormat, TraceInfo};
use crate::hash::FastMap;
use crate::input::{Input, RandomAccess};
use crate::symbols::Symbols;
use crate::Error;
use layout::{Layout, Part, Sieve, MAGIC};
use linux_perf_data::linux_perf_event_reader::constants::{
    PERF_RECORD_COMM, PERF_RECORD_LOST, PERF_RECORD_LOST_SAMPLES, PERF_RECORD_SAMPLE,
};
use linux_perf_data::linux_perf_event_reader::{
    PerfClock, RawEventRecord, ReadFormat, SampleFormat,
};
use linux_perf_data::{PerfFile, PerfFileReader, PerfFileRecord, PerfRecordIter, UserRecordType};
use std::io::BufReader;
use std::sync::Arc;
use vmeter_base::bounds::Budget;

/// The format.
pub struct PerfData;

impl TraceFormat for PerfData {
    fn name(&self) -> &'static str {
        "perf.data"
    }

    fn probe(&self, head: &[u8]) -> bool {
        head.starts_with(MAGIC)
    }

    fn open(&self, input: Input) -> Result<Box<dyn EventReader>, Error> {
        let name = input.name().to_string();
        let file = Arc::new(input.into_random()?);
        let reader = read(&file);
        if let Some(exceeded) = file.budget().exceeded() {
            return Err(Error::TooMuch { name, exceeded });
        }
        let reader =
            reader.map_err(|problem| Error::Header { name, format: "perf.data", problem })?;
        Ok(Box::new(reader))
    }
}

/// Reads what there is before the first record.
fn read(file: &Arc<RandomAccess>) -> Result<Reader, String> {
    let layout = Layout::read(file)?;
    let header = tracing_data(file, layout.formats.at, layout.formats.size)?;
    let sieve = BufReader::with_capacity(256 << 10, layout.sieve(file.clone()));
    let parsed = PerfFileReader::parse_file(sieve).map_err(|e| e.to_string())?;
    let mut reader = Reader::new(parsed, header, file.budget().clone());
    reader.names = first_names(file, layout.data);
    reader.losses.missing.extend(file.problem().map(str::to_string));
    if layout.missing > 0 {
        let missing = format!("the last {} bytes of its data are missing", layout.missing);
        reader.losses.missing.push(missing);
    }
    Ok(reader)
}

struct Reader {
    file: PerfFile,
    records: PerfRecordIter<BufReader<Sieve>>,
    info: TraceInfo,
    losses: Losses,
    header: Header,
    /// Names by `PERF_RECORD_COMM`.
    names: FastMap<i32, String>,
    common_type: IntField,
    common_pid: IntField,
    /// The record of the event that was handed out last.
    record: Vec<u8>,
    /// Time of the event handed out last.
    last: u64,
    order: Order,
    special: [EventType; 2],
    ended: bool,
    budget: Arc<Budget>,
}

/// Indices into `Reader::special`.
const LOST: usize = 0;
const UNKNOWN: usize = 1;
/// More names than this are a damaged file's.
const MAX_NAMES: usize = 1 << 16;
/// The kernel's have 15 bytes.
const MAX_NAME: usize = 64;
/// Bytes of records that may come before the first sample and are looked at for names.
const MAX_BEGINNING: u64 = 4 << 20;

/// What a record turned out to be.
enum Found {
    Sample { ts: Option<u64>, tid: i32, cpu: u32 },
    Lost(u64),
    Nothing,
}

impl Reader {
    fn new(
        parsed: PerfFileReader<BufReader<Sieve>>,
        header: Header,
        budget: Arc<Budget>,
    ) -> Reader {
        let PerfFileReader { perf_file: file, record_iter: records } = parsed;
        let clock = file.event_attributes().first().map(|event| event.attr.clock);
        let clock = match clock {
            Some(PerfClock::ClockId(id)) => match id as u32 {
                0 => "realtime",
                1 => "mono",
                4 => "mono_raw",
                7 => "boot",
                11 => "tai",
                _ => "unknown",
            },
            // local_clock(), as ftrace's clock of that name.
            _ => "local",
        };
        let first = header.kinds.first().cloned().unwrap_or_default();
        let n = header.kinds.len() as u32;
        let special = |id, name: &str| EventType { id, name: name.into(), ..EventType::default() };
        Reader {
            info: TraceInfo::new("perf.data", clock, Tick::Nanosecond),
            losses: Losses { missing: header.missing.clone(), ..Losses::default() },
            common_type: first.int("common_type"),
            common_pid: first.int("common_pid"),
            special: [special(n, "lost_events"), special(n + 1, "unknown")],
            names: FastMap::default(),
            record: Vec::new(),
            last: 0,
            order: Order::default(),
            ended: false,
            budget,
            file,
            records,
            header,
        }
    }

    /// Takes the next record apart; none at the end.
    fn next_record(&mut self) -> Option<Found> {
        let Reader { file, records, losses, names, record, .. } = self;
        match records.next_record(file) {
            Ok(Some(PerfFileRecord::EventRecord { record: raw, .. })) => {
                Some(take(&raw, record, names).unwrap_or_else(|| {
                    losses.unreadable += 1;
                    Found::Nothing
                }))
            }
            Ok(Some(PerfFileRecord::UserRecord(user))) => {
                if user.record_type == UserRecordType::PERF_COMPRESSED {
                    losses.unreadable += 1;
                }
                Some(Found::Nothing)
            }
            Ok(None) => None,
            Err(e) => {
                losses.missing.push(format!("vmeter stopped reading at a damaged record: {e}"));
                None
            }
        }
    }

    fn event(&self, found: &Found) -> Event<'_> {
        let mut event = Event {
            kind: &self.special[LOST],
            ts: self.last,
            cpu: NO_CPU,
            tid: -1,
            buffer: 0,
            comm: None,
            column: Context::Unknown,
            body: Body::Lost(None),
        };
        match *found {
            Found::Sample { cpu, tid, .. } => {
                let id = self.common_type.get(&self.record).unwrap_or(u64::MAX);
                let index = self.header.by_type.get(id as usize).copied().unwrap_or(NO_KIND);
                event.kind =
                    self.header.kinds.get(index as usize).unwrap_or(&self.special[UNKNOWN]);
                event.cpu = cpu;
                let pid = self.common_pid.get(&self.record);
                event.tid = pid.map_or(tid, |pid| pid as i32);
                event.body = Body::Record(&self.record);
            }
            Found::Lost(count) => event.body = Body::Lost(Some(count)),
            Found::Nothing => {}
        }
        event
    }
}

impl EventReader for Reader {
    fn info(&self) -> &TraceInfo {
        &self.info
    }

    fn next_event(&mut self) -> Option<Event<'_>> {
        if self.ended {
            return None;
        }
        loop {
            let Some(found) = self.next_record() else {
                self.ended = true;
                self.losses.exceeded = self.budget.exceeded();
                self.losses.missing.extend(self.order.said(&self.info.clock));
                return None;
            };
            match found {
                Found::Nothing => continue,
                Found::Lost(count) => {
                    self.losses.lost_events = self.losses.lost_events.saturating_add(count);
                }
                Found::Sample { ts, .. } => {
                    self.last = ts.unwrap_or(self.last);
                    self.order.see(self.last);
                    let id = self.common_type.get(&self.record).unwrap_or(u64::MAX);
                    let index = self.header.by_type.get(id as usize).copied();
                    self.losses.unreadable += u64::from(index.is_none_or(|k| k == NO_KIND));
                }
            }
            return Some(self.event(&found));
        }
    }

    fn losses(&self) -> &Losses {
        &self.losses
    }

    fn symbols(&self) -> Option<Arc<Symbols>> {
        Some(self.header.symbols.clone())
    }

    fn threads(&self) -> Vec<(i32, String)> {
        self.names.iter().map(|(tid, name)| (*tid, name.clone())).collect()
    }

    fn kinds(&self) -> &[EventType] {
        &self.header.kinds
    }

    fn symbol(&self, address: u64) -> Option<&str> {
        self.header.symbols.name(address)
    }

    fn thread_name(&self, tid: i32) -> Option<&str> {
        self.names.get(&tid).map(String::as_str)
    }
}

/// Names of the threads that there were when recording began: perf writes them before
/// the first sample.
fn first_names(file: &RandomAccess, data: Part) -> FastMap<i32, String> {
    let mut names = FastMap::default();
    let bytes = file.read_vec(data.at, data.size.min(MAX_BEGINNING)).unwrap_or_default();
    let mut rest = bytes.as_slice();
    while let Some((head, _)) = rest.split_first_chunk::<8>() {
        let kind = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let size = usize::from(u16::from_le_bytes([head[6], head[7]]));
        let Some(body) = rest.get(8..size).filter(|_| kind != PERF_RECORD_SAMPLE) else { break };
        if kind == PERF_RECORD_COMM {
            // A damaged record is reported when it is read in its turn.
            let _ = comm(&mut Fields { bytes: body }, &mut names);
        }
        rest = &rest[size..];
    }
    names
}

fn comm(fields: &mut Fields<'_>, names: &mut FastMap<i32, String>) -> Option<()> {
    let (_pid, tid) = (fields.word()?, fields.word()? as i32);
    let end = memchr::memchr(0, fields.bytes)?;
    let name = String::from_utf8_lossy(&fields.bytes[..end.min(MAX_NAME)]).into_owned();
    if names.len() < MAX_NAMES || names.contains_key(&tid) {
        names.insert(tid, name);
    }
    Some(())
}

/// Takes a record of the kernel's apart; none if it is damaged.
fn take(
    raw: &RawEventRecord<'_>,
    record: &mut Vec<u8>,
    names: &mut FastMap<i32, String>,
) -> Option<Found> {
    let data = raw.data.as_slice();
    let mut fields = Fields { bytes: &data };
    match raw.record_type.0 {
        PERF_RECORD_SAMPLE => {
            let (format, read) = (raw.parse_info.sample_format, raw.parse_info.read_format);
            sample(&mut fields, format, read, record)
        }
        PERF_RECORD_COMM => {
            comm(&mut fields, names)?;
            Some(Found::Nothing)
        }
        PERF_RECORD_LOST => {
            fields.number()?;
            Some(Found::Lost(fields.number()?))
        }
        PERF_RECORD_LOST_SAMPLES => Some(Found::Lost(fields.number()?)),
        _ => Some(Found::Nothing),
    }
}

/// A sample up to its raw data, which go to `record` (perf_event_open(2), `mmap layout`).
fn sample(
    fields: &mut Fields<'_>,
    format: SampleFormat,
    read: ReadFormat,
    record: &mut Vec<u8>,
) -> Option<Found> {
    let has = |part| format.contains(part);
    let skip = |fields: &mut Fields<'_>, part| {
        if has(part) {
            fields.number().map(drop)
        } else {
            Some(())
        }
    };
    skip(fields, SampleFormat::IDENTIFIER)?;
    skip(fields, SampleFormat::IP)?;
    let mut tid = -1;
    if has(SampleFormat::TID) {
        let _pid = fields.word()?;
        tid = fields.word()? as i32;
    }
    let ts = if has(SampleFormat::TIME) { Some(fields.number()?) } else { None };
    skip(fields, SampleFormat::ADDR)?;
    skip(fields, SampleFormat::ID)?;
    skip(fields, SampleFormat::STREAM_ID)?;
    let mut cpu = NO_CPU;
    if has(SampleFormat::CPU) {
        cpu = fields.word()?;
        fields.word()?;
    }
    skip(fields, SampleFormat::PERIOD)?;
    if has(SampleFormat::READ) {
        counters(fields, read)?;
    }
    if has(SampleFormat::CALLCHAIN) {
        let count = fields.number()?;
        fields.skip(count.checked_mul(8)?)?;
    }
    if !has(SampleFormat::RAW) {
        // Not of a tracepoint.
        return Some(Found::Nothing);
    }
    let size = fields.word()? as usize;
    record.clear();
    record.extend_from_slice(fields.bytes.get(..size)?);
    Some(Found::Sample { ts, tid, cpu })
}

/// Passes over the values of counters.
fn counters(fields: &mut Fields<'_>, read: ReadFormat) -> Option<()> {
    let times = [ReadFormat::TOTAL_TIME_ENABLED, ReadFormat::TOTAL_TIME_RUNNING];
    let times = times.iter().filter(|time| read.contains(**time)).count() as u64;
    let each = 1 + u64::from(read.contains(ReadFormat::ID));
    let count = if read.contains(ReadFormat::GROUP) { fields.number()? } else { 1 };
    fields.skip(count.checked_mul(each)?.checked_add(times)?.checked_mul(8)?)
}

/// Bytes that are taken from the front.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl Fields<'_> {
    fn skip(&mut self, count: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u64::from_le_bytes(*number))
    }
}
