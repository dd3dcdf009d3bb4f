//! Traces that claim or hold more than there is.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: usize = 1 << 20;

/// A trace that is all `head` and then `body` again and again.
pub struct Bomb {
    pub name: &'static str,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
    /// A word of the message that refuses it when it is packed.
    pub says: &'static str,
}

/// How far a trace.dat of version 6 is written.
fn trace_dat(sections: &[&[u8]]) -> Vec<u8> {
    let mut out = b"\x17\x08\x44tracing6\0\x00\x08\x00\x10\x00\x00".to_vec();
    out.extend(b"header_page\0");
    sections.iter().for_each(|section| out.extend(*section));
    out
}

fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// No page header, no event header.
const NO_HEADERS: &[u8] = b"\0\0\0\0\0\0\0\0header_event\0\0\0\0\0\0\0\0\0";

/// Beginnings of trace.dat whose next length or count is what follows.
pub fn claims() -> Vec<(&'static str, Vec<u8>)> {
    let eight_gb = (8u64 << 30).to_le_bytes();
    let four_gb = u32::MAX.to_le_bytes();
    let zero = [0; 4];
    // No formats, no systems, no symbols, no printk formats, no names.
    let nothing = [&zero[..], &zero, &zero, &zero, &zero, &zero].concat();
    vec![
        ("header_page of 8 GB", trace_dat(&[&eight_gb])),
        ("4e9 empty format texts", trace_dat(&[NO_HEADERS, &four_gb])),
        ("4e9 systems", trace_dat(&[NO_HEADERS, &zero, &four_gb])),
        ("4 GB of symbols", trace_dat(&[NO_HEADERS, &zero, &zero, &four_gb])),
        ("names of 8 GB", trace_dat(&[NO_HEADERS, &zero, &zero, &zero, &zero, &eight_gb])),
        ("4e9 CPUs", trace_dat(&[NO_HEADERS, &nothing, &four_gb, b"flyrecord\0"])),
        ("options without end", trace_dat(&[NO_HEADERS, &nothing, &zero, b"options  \0"])),
    ]
}

/// Bombs of every format.
pub fn bombs() -> Vec<Bomb> {
    let mut all: Vec<Bomb> = claims()
        .into_iter()
        .map(|(name, head)| {
            // Options of no bytes, each with a number, as zero ends them.
            let body = match name {
                "options without end" => [1, 0, 0, 0, 0, 0].repeat(MIB / 6 * 4),
                _ => vec![0; 4 * MIB],
            };
            Bomb { name, head, body, says: "" }
        })
        .collect();
    // Long lines, so that they pack far better than the bounds ask for.
    let repeated = |line: &str| {
        let line = format!("{}{}\n", line.trim_end(), " x=1".repeat(400));
        line.repeat(4 * MIB / line.len()).into_bytes()
    };
    let mut add = |name, head: &[u8], body, says| {
        all.push(Bomb { name, head: head.to_vec(), body, says });
    };
    add("trace.dat of zeros", b"\x17\x08\x44tracing", vec![0; 4 * MIB], "unpacks to more than");
    add("perf.data of zeros", b"PERFILE2", vec![0; 4 * MIB], "unpacks to more than");
    let window = u32s(&[2 << 28 | 0x1f003, 7, 0]);
    add("xentrace of empty windows", &window, window.repeat(MIB / 3), "unpacks to more than");
    let ftrace = "   a-1  [000] d..1.    69.243562: kvm_entry: vcpu 0, rip 0xf\n";
    add("ftrace text", ftrace.as_bytes(), repeated(ftrace), "unpacks to more than");
    let nuls = ftrace.as_bytes();
    add("ftrace text and a line of NULs", nuls, vec![0; 4 * MIB], "unpacks to more than");
    let perf = "a  18/19 [000]  1124.438057:  sched:sched_switch: prev_comm=a prev_pid=18\n";
    add("perf script", perf.as_bytes(), repeated(perf), "unpacks to more than");
    let qemu = "11252@1795225741.517363:pci_cfg_read i440FX 00:00.0 @0x0 -> 0x8086\n";
    add("QEMU's log", qemu.as_bytes(), repeated(qemu), "unpacks to more than");
    let strace = "[pid 7] 1795225753.6 read(3, \"\", 1) = 0 <0.000003>\n";
    add("strace", strace.as_bytes(), repeated(strace), "unpacks to more than");
    all
}

/// Writes a beginning and then nothing but a hole.
pub fn sparse(path: &Path, head: &[u8], length: u64) {
    let file = File::create(path).expect("scratch space");
    file.write_all_at(head, 0).expect("scratch space");
    file.set_len(length).expect("sparse files");
}

/// A trace.dat of version 7 whose one CPU has `chunks` chunks, each of which unpacks to
/// `unpacked` zeros.
pub fn chunks(chunks: u32, unpacked: usize) -> Vec<u8> {
    let mut out = b"\x17\x08\x44tracing7\0\x00\x08\x00\x10\x00\x00zstd\x001.5.4\0".to_vec();
    let slot = out.len();
    out.extend([0; 8]);
    let put_section = |out: &mut Vec<u8>, id: u16, body: &[u8]| -> u64 {
        let at = out.len() as u64;
        out.extend(id.to_le_bytes());
        out.extend([0; 6]);
        out.extend((body.len() as u64).to_le_bytes());
        out.extend(body);
        at
    };
    let header = [b"header_page\0", NO_HEADERS].concat();
    let at = put_section(&mut out, 16, &header);
    let mut options = u32s(&[16 | 8 << 16, 0])[..6].to_vec();
    options.extend(at.to_le_bytes());
    // The buffer: its section's flags say that it is packed.
    let buffer = out.len() as u64;
    out.extend([3, 0, 1, 0]);
    out.extend([0; 12]);
    let data = out.len() as u64;
    out.extend(chunks.to_le_bytes());
    let packed = zstd::bulk::compress(&vec![0; unpacked], 19).expect("packed");
    let mut chunk = u32s(&[packed.len() as u32, unpacked as u32]);
    chunk.extend(packed);
    (0..chunks).for_each(|_| out.extend(&chunk));
    let size = out.len() as u64 - data - 4;
    let mut body = buffer.to_le_bytes().to_vec();
    body.extend(b"\0local\0");
    body.extend(u32s(&[4096, 1, 0]));
    body.extend(data.to_le_bytes());
    body.extend(size.to_le_bytes());
    options.extend(3u16.to_le_bytes());
    options.extend((body.len() as u32).to_le_bytes());
    options.extend(body);
    options.extend([0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let at = put_section(&mut out, 0, &options);
    out[slot..slot + 8].copy_from_slice(&at.to_le_bytes());
    out
}

/// A trace.dat whose CPUs all have the same pages.
pub fn overlapping(cpus: u32, bytes: usize) -> Vec<u8> {
    let zero = [0; 4];
    let nothing = [&zero[..], &zero, &zero, &zero, &zero, &zero].concat();
    let mut out = trace_dat(&[NO_HEADERS, &nothing, &cpus.to_le_bytes(), b"flyrecord\0"]);
    let data = (out.len() + cpus as usize * 16).next_multiple_of(4096) as u64;
    for _ in 0..cpus {
        out.extend(data.to_le_bytes());
        out.extend((bytes as u64).to_le_bytes());
    }
    out.resize(data as usize, 0);
    // A page full of time extensions, which are no events.
    let mut page = u32s(&[1, 0, 4080, 0]);
    page.extend(u32s(&[30, 0]).repeat(510));
    out.extend(page.repeat(bytes / 4096));
    out
}
