//! trace.dat files made for the purpose: versions, packings, stamps, losses.

use crate::common;

use common::trace_dat::{sample, Packing};
use vmeter_trace::{open, Body, Input};

const KINDS: [(u32, Packing); 4] =
    [(6, Packing::None), (7, Packing::None), (7, Packing::Zstd), (7, Packing::Zlib)];

#[test]
fn both_versions_and_every_packing_give_the_same_events_in_order_of_time() {
    let mut all = Vec::new();
    for (version, packing) in KINDS {
        let input = Input::from_bytes("sample", sample(version, packing)).expect("bytes");
        let mut reader = open(input).expect("a trace.dat");
        assert_eq!(reader.info().buffers, ["", "guest"]);
        assert_eq!((reader.info().cpus, reader.info().clock.name.as_str()), (2, "local"));
        let mut events = Vec::new();
        while let Some(e) = reader.next_event() {
            let lost = match e.body {
                Body::Lost(count) => Some(count),
                _ => None,
            };
            events.push((e.ts, e.kind.name.clone(), e.cpu, e.tid, e.buffer, lost));
        }
        assert!(events.windows(2).all(|w| w[0].0 <= w[1].0), "{events:?}");
        assert_eq!(reader.losses().lost_events, 5);
        assert_eq!(reader.losses().uncounted_gaps, 1);
        assert!(reader.losses().missing.is_empty(), "{:?}", reader.losses());
        assert_eq!(reader.symbol(0xffff_ffff_8100_0404), Some("process_srcu"));
        assert_eq!(reader.thread_name(8), Some("CPU 0/KVM"));
        all.push(events);
    }
    let stamps: Vec<u64> = all[0].iter().map(|e| e.0).collect();
    let far = 1 << 40;
    let third = 1100 + (1 << 30) + 5;
    let want = [
        1000,
        1050,
        1060,
        1090,
        1095,
        1100,
        1100,
        2000,
        third,
        far,
        far + 10,
        far + 100,
        far + 101,
    ];
    assert_eq!(stamps, want);
    assert_eq!(all[0].len(), 13);
    assert!(all.iter().all(|events| *events == all[0]));
}

#[test]
fn the_statistics_rest_on_the_files_own_formats_and_symbols() {
    for (version, packing) in KINDS {
        let report = common::report_of_bytes(sample(version, packing));
        assert_eq!((report.events, report.lost_events), (11, 5));
        let read = report.syscalls.iter().find(|r| r.name == "read").expect("read");
        assert_eq!((read.count, read.timed), (2, 2));
        assert_eq!(read.total_s, Some((100.0 + (1u64 << 30) as f64 + 5.0) * 1e-9));
        let exit = &report.exits[0];
        assert_eq!(
            (exit.name.as_str(), exit.count, exit.total_s),
            ("IO_INSTRUCTION", 1, Some(40e-9))
        );
        let serial = report.ports.iter().find(|r| r.port == Some(0x3f8)).expect("port 3f8");
        assert_eq!((serial.count, serial.direction), (1, Some("write")));
        assert_eq!(serial.total_s, Some(40e-9));
        // Its end stands behind a loss: counted, not timed.
        assert_eq!((report.works[0].name.as_str(), report.works[0].count), ("process_srcu", 1));
        assert_eq!((report.works[0].timed, report.works[0].cut), (0, 1));
    }
}

#[test]
fn a_compressed_file_reads_like_the_plain_one() {
    use std::io::Write;
    let plain = sample(7, Packing::Zstd);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    gz.write_all(&plain).expect("gz");
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(&plain).expect("xz");
    let zst = zstd::encode_all(plain.as_slice(), 1).expect("zst");
    let want = common::report_of_bytes(plain);
    for packed in [gz.finish().expect("gz"), xz.finish().expect("xz"), zst] {
        assert_eq!(common::report_of_bytes(packed), want);
    }
}

/// Set to a big recording to check it against trace-cmd's counts beside it.
#[test]
fn a_big_recording_counts_as_trace_cmd_counts() {
    let Some(path) = std::env::var_os("VMETER_TRACE_DATA") else {
        println!("skipped: VMETER_TRACE_DATA names no host-busy.trace.dat");
        return;
    };
    let reader = open(Input::open(path.as_ref()).expect("the file")).expect("a trace.dat");
    let report = common::report_of(reader, None);
    let counts = std::fs::read_to_string(common::fixture("host-busy.counts.txt")).expect("counts");
    let mut names = 0;
    for line in counts.lines() {
        let (count, name) = line.trim().split_once(' ').expect("count name");
        assert_eq!(report.counts.get(name).copied(), count.parse().ok(), "{name}");
        names += 1;
    }
    assert_eq!((names, report.counts.len()), (246, 246));
    assert!(report.losses.is_empty());
}

#[test]
fn offsets_and_sizes_at_the_end_of_the_numbers_are_no_trouble() {
    for byte in [0x7f, 0xff] {
        for (version, packing) in KINDS {
            let whole = sample(version, packing);
            for at in (16..whole.len().min(600)).chain(whole.len() - 200..whole.len() - 8) {
                let mut bytes = whole.clone();
                bytes[at..at + 8].fill(byte);
                let format = vmeter_trace::FORMATS[0];
                common::try_format(format, &bytes);
            }
        }
    }
}
