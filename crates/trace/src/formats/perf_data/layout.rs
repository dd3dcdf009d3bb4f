//! What a perf.data file has where, checked before anything is made of it.
//!
//! tools/perf/Documentation/perf.data-file-format.txt of the kernel. The file's head
//! says where the data are; behind these stands a table of the features. Two of them
//! are needed: `EVENT_DESC`, which tells events apart by their ids, and `TRACING_DATA`,
//! the format texts.

use crate::input::RandomAccess;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use vmeter_base::bounds::Budget;

pub const MAGIC: &[u8] = b"PERFILE2";
/// Features by bit number.
const TRACING_DATA: u32 = 1;
const EVENT_DESC: u32 = 12;
const FEATURES: u32 = 256;
const HEAD: u64 = 104;
const PIPE_HEAD: u64 = 16;
/// `perf_event_attr` of the first version; none is larger than a page.
const ATTR: std::ops::RangeInclusive<u64> = 64..=4096;

/// The part of `perf_event_attr` that is read: up to `sig_data` (Linux 5.13).
const KNOWN_ATTR: usize = 128;

/// `PERF_RECORD_FINISHED_ROUND` and `PERF_RECORD_AUXTRACE`.
const FINISHED_ROUND: u32 = 68;
const AUXTRACE: u32 = 71;
const RECORD_HEAD: usize = 8;
/// What a record that is to be sorted takes beside its bytes.
const RECORD: u64 = 256;

/// A part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Offset.
    pub at: u64,
    /// Bytes.
    pub size: u64,
}

/// The parts that are needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The records.
    pub data: Part,
    /// Bytes of `data` that are not there.
    pub missing: u64,
    /// The format texts.
    pub formats: Part,
    /// The events, by [`checked_events`].
    events: Vec<u8>,
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
}

impl Layout {
    /// Finds the parts; `Err` says what was expected and found.
    pub fn read(file: &RandomAccess) -> Result<Layout, String> {
        let bytes = |part: Part| {
            // Several copies of it are made.
            let most = part.size.saturating_mul(4);
            file.budget().keep(most, "description of events").map_err(|e| e.to_string())?;
            file.read_vec(part.at, part.size).map_err(|e| e.to_string())
        };
        let head = bytes(Part { at: 0, size: HEAD })?;
        match number(&head, 8) {
            Some(PIPE_HEAD) => {
                return Err("perf wrote it to a pipe: `perf inject -i FILE -o OTHER` converts it \
                    to a file that vmeter can read"
                    .into())
            }
            Some(size) if size >= HEAD && head.len() as u64 == HEAD => {}
            _ => {
                return Err(format!(
                    "its header is cut off or damaged: {} of {HEAD} bytes are there",
                    head.len()
                ))
            }
        }
        let at = |at: usize| number(&head, at).unwrap_or(0);
        let mut data = Part { at: at(40), size: at(48) };
        let table = data.at.checked_add(data.size).filter(|end| *end <= file.len());
        let Some(table) = table.filter(|_| data.size > 0) else {
            return Err(format!(
                "the recording was cut off: the file ends at byte {} (its data section begins at \
                    byte {}), so it lacks the event formats, which perf writes last",
                file.len(),
                data.at
            ));
        };
        let (formats, events) = features(file, table, &head[72..])?;
        let events = checked_events(&bytes(events)?)?;
        let there = file.len().saturating_sub(data.at).min(data.size);
        let missing = data.size - there;
        data.size = there;
        Ok(Layout { data, missing, formats, events })
    }

    /// The file with nothing but the records and the events, for the crate that reads it:
    /// what that would take on trust is not there.
    pub fn sieve(&self, file: Arc<RandomAccess>) -> Sieve {
        let mut head = MAGIC.to_vec();
        let table = HEAD + self.data.size;
        let features = [0u64, 0, HEAD, self.data.size, 0, 0, 1 << EVENT_DESC, 0, 0, 0];
        // attr_size: of no attributes here.
        for value in [HEAD, *ATTR.start()].into_iter().chain(features) {
            head.extend(value.to_le_bytes());
        }
        let mut tail = (table + 16).to_le_bytes().to_vec();
        tail.extend((self.events.len() as u64).to_le_bytes());
        tail.extend(&self.events);
        Sieve { file, head, data: self.data, tail, at: 0, frame: Frame::default() }
    }
}

/// Where the format texts and the events are.
fn features(file: &RandomAccess, table: u64, bits: &[u8]) -> Result<(Part, Part), String> {
    let (mut formats, mut events) = (None, None);
    let set = |bit: &u32| bits.get(*bit as usize / 8).is_some_and(|b| b >> (bit % 8) & 1 == 1);
    for (index, bit) in (0..FEATURES).filter(set).enumerate() {
        let entry = file.read_vec(table.saturating_add(index as u64 * 16), 16);
        let entry = entry.map_err(|e| e.to_string())?;
        let (Some(at), Some(size)) = (number(&entry, 0), number(&entry, 8)) else {
            return Err(format!("its table of features, at byte {table}, is cut off"));
        };
        let found = match bit {
            TRACING_DATA => &mut formats,
            EVENT_DESC => &mut events,
            _ => continue,
        };
        if at.checked_add(size).is_none_or(|end| end > file.len()) {
            return Err(format!(
                "the file was cut off before the end of the data of its feature {bit}"
            ));
        }
        *found = Some(Part { at, size });
    }
    match (formats, events) {
        (Some(formats), Some(events)) => Ok((formats, events)),
        (None, _) => Err("it has no event formats, because perf recorded no tracepoints; `perf \
            record -e 'kvm:*'` records the tracepoints of KVM"
            .into()),
        (_, None) => Err("it does not say which events it has (EVENT_DESC)".into()),
    }
}

/// The events' description, all of whose counts and lengths are of things that are in it,
/// and all of whose attributes have the same size ([`KNOWN_ATTR`]) and say so.
fn checked_events(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let wrong = || "the description of its events is damaged".to_string();
    let (count, attr) = (word(bytes, 0).ok_or_else(wrong)?, word(bytes, 4).ok_or_else(wrong)?);
    if count == 0 || count > bytes.len() as u64 / ATTR.start() || !ATTR.contains(&attr) {
        return Err(wrong());
    }
    let mut out = (count as u32).to_le_bytes().to_vec();
    out.extend((KNOWN_ATTR as u32).to_le_bytes());
    let mut at = 8;
    for _ in 0..count {
        let behind = at + attr as usize;
        let ids = word(bytes, behind).ok_or_else(wrong)? as usize;
        let name = word(bytes, behind + 4).ok_or_else(wrong)? as usize;
        let next = behind + 8 + name + ids * 8;
        let rest = bytes.get(behind..next).ok_or_else(wrong)?;
        let mut known = bytes[at..behind].to_vec();
        known.resize(KNOWN_ATTR, 0);
        known[4..8].copy_from_slice(&(KNOWN_ATTR as u32).to_le_bytes());
        out.extend(known);
        out.extend(rest);
        at = next;
    }
    Ok(out)
}

/// A file of head, records and events, which ends where a record is not to be trusted.
pub struct Sieve {
    file: Arc<RandomAccess>,
    head: Vec<u8>,
    data: Part,
    tail: Vec<u8>,
    at: u64,
    frame: Frame,
}

/// Follows the records as they are read.
#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    /// First bytes of the record: its head, and the word behind it.
    first: [u8; RECORD_HEAD + 8],
    /// How many bytes of the record were seen, and how many it has.
    seen: usize,
    /// Memory for the records since the last round ended, and for the round before.
    round: u64,
    before: u64,
}

impl Frame {
    /// Takes bytes in their order.
    fn take(&mut self, mut bytes: &[u8], left: u64, budget: &Budget) -> io::Result<()> {
        while !bytes.is_empty() {
            let wanted = match self.seen {
                0..RECORD_HEAD => RECORD_HEAD - self.seen,
                _ => self.size().saturating_sub(self.seen),
            };
            let (now, rest) = bytes.split_at(wanted.min(bytes.len()));
            for (slot, byte) in self.first.iter_mut().skip(self.seen).zip(now) {
                *slot = *byte;
            }
            self.seen += now.len();
            bytes = rest;
            if self.seen < RECORD_HEAD {
                continue;
            }
            self.check(left)?;
            if self.seen >= self.size() {
                self.count(budget)?;
                self.seen = 0;
            }
        }
        Ok(())
    }

    /// Takes account of a whole record: it is kept until the round after its own has ended.
    fn count(&mut self, budget: &Budget) -> io::Result<()> {
        if self.kind() == FINISHED_ROUND {
            budget.give_back(self.before);
            (self.before, self.round) = (self.round, 0);
            return Ok(());
        }
        let data = match self.kind() {
            AUXTRACE => number(&self.first, RECORD_HEAD).unwrap_or(0),
            _ => 0,
        };
        let size = (self.seen as u64 + RECORD).saturating_add(data);
        budget.keep(size, "records of a round")?;
        self.round = self.round.saturating_add(size);
        Ok(())
    }

    fn check(&self, left: u64) -> io::Result<()> {
        let invalid = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if self.size() < RECORD_HEAD {
            return invalid("a record is shorter than its header");
        }
        let more = number(&self.first, RECORD_HEAD).unwrap_or(0);
        if self.kind() == AUXTRACE && self.seen >= self.first.len() && more > left {
            return invalid("the data of a record extend past the end of the data section");
        }
        Ok(())
    }

    fn kind(&self) -> u32 {
        word(&self.first, 0).unwrap_or(0) as u32
    }

    fn size(&self) -> usize {
        usize::from(u16::from_le_bytes([self.first[6], self.first[7]]))
    }
}

impl Read for Sieve {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let data = HEAD..HEAD + self.data.size;
        let copy = |from: &[u8], at: u64, out: &mut [u8]| {
            let rest = usize::try_from(at).ok().and_then(|at| from.get(at..)).unwrap_or_default();
            let n = rest.len().min(out.len());
            out[..n].copy_from_slice(&rest[..n]);
            n
        };
        let n = if self.at < data.start {
            copy(&self.head, self.at, out)
        } else if data.contains(&self.at) {
            let left = data.end - self.at;
            let n = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
            let n = self.file.read_at(self.data.at + (self.at - HEAD), &mut out[..n])?;
            self.frame.take(&out[..n], left, self.file.budget())?;
            n
        } else {
            copy(&self.tail, self.at - data.end, out)
        };
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for Sieve {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => {
                (HEAD + self.data.size + self.tail.len() as u64).checked_add_signed(by)
            }
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        self.frame = Frame::default();
        Ok(self.at)
    }
}
