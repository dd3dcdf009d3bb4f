//! A writer of small perf.data files, after the kernel's
//! tools/perf/Documentation/perf.data-file-format.txt.

use super::trace_dat::{record, tracing_data};

const IDENTIFIER: u64 = 1 << 16;
const IP: u64 = 1;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const CALLCHAIN: u64 = 1 << 5;
const RAW: u64 = 1 << 10;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const ATTR_BYTES: u32 = 112;

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn head(kind: u32, body: Vec<u8>) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend((body.len() as u16 + 8).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A sample; `calls` is true for an event recorded with call chains.
fn sample(id: u64, ts: u64, cpu: u32, tid: u32, calls: bool, raw: &[u8]) -> Vec<u8> {
    let mut body = words(&[id, 0xffff_8000_0000_1000, pair(7, tid), ts, pair(cpu, 0), 1]);
    if calls {
        body.extend(words(&[2, 0xffff_8000_0000_1000, 0xffff_8000_0000_2000]));
    }
    let padded = (4 + raw.len()).next_multiple_of(8) - 4;
    body.extend((padded as u32).to_le_bytes());
    body.extend(raw);
    body.resize(body.len() + padded - raw.len(), 0);
    head(9, body)
}

/// `perf_event_attr`, its name and the ids of its CPUs' counters.
fn event(config: u64, calls: bool, name: &str, ids: &[u64]) -> Vec<u8> {
    let chain = if calls { CALLCHAIN } else { 0 };
    let format = IDENTIFIER | IP | TID | TIME | CPU | PERIOD | RAW | chain;
    let mut bytes = words(&[pair(2, ATTR_BYTES), config, 1, format, 4, SAMPLE_ID_ALL]);
    bytes.resize(ATTR_BYTES as usize, 0);
    bytes.extend((ids.len() as u32).to_le_bytes());
    let length = (name.len() + 1).next_multiple_of(64);
    bytes.extend((length as u32).to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes.resize(bytes.len() + length - name.len(), 0);
    bytes.extend(words(ids));
    bytes
}

/// Two CPUs, a read by the thread `reader`, a loss, and a VMEXIT, twice: eight events,
/// out of order within a round.
pub fn file() -> Vec<u8> {
    const READ: u64 = 101;
    const READ_END: u64 = 103;
    const EXIT: u64 = 105;
    const ENTRY: u64 = 107;
    let exit = record(12, 8, &[30, 1]);
    let mut comm = words(&[pair(7, 9)]);
    comm.extend(b"reader\0\0");
    comm.extend(words(&[pair(7, 9), 0, pair(0, 0), READ]));
    let mut lost = words(&[READ, 5, pair(7, 9), 1500, pair(0, 0), READ]);
    let mut data = head(3, comm);
    for round in 0..2u64 {
        let at = 1000 + round * 1000;
        data.extend(sample(EXIT, at + 60, 1, 8, true, &exit));
        data.extend(sample(ENTRY, at + 90, 1, 8, false, &record(13, 8, &[0])));
        data.extend(sample(READ, at, 0, 9, false, &record(10, 9, &[0, 0])));
        data.extend(sample(READ_END, at + 200, 0, 9, false, &record(11, 9, &[0, 0, 1, 0])));
        if round == 0 {
            data.extend(head(2, std::mem::take(&mut lost)));
        }
        data.extend(head(68, Vec::new()));
    }
    let mut events = words(&[pair(4, ATTR_BYTES)]);
    events.extend(event(10, false, "syscalls:sys_enter_read", &[READ, READ + 1]));
    events.extend(event(11, false, "syscalls:sys_exit_read", &[READ_END, READ_END + 1]));
    events.extend(event(12, true, "kvm:kvm_exit", &[EXIT, EXIT + 1]));
    events.extend(event(13, false, "kvm:kvm_entry", &[ENTRY, ENTRY + 1]));
    let formats = tracing_data();
    let features = (1u64 << 1) | (1 << 12);
    let table = 104 + data.len() as u64;
    let mut bytes = b"PERFILE2".to_vec();
    bytes.extend(words(&[104, u64::from(ATTR_BYTES) + 16, 104, 0, 104, data.len() as u64]));
    bytes.extend(words(&[0, 0, features, 0, 0, 0]));
    bytes.extend(data);
    let first = table + 32;
    bytes.extend(words(&[first, formats.len() as u64]));
    bytes.extend(words(&[first + formats.len() as u64, events.len() as u64]));
    bytes.extend(formats);
    bytes.extend(events);
    bytes
}
