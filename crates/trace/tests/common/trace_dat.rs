//! A writer of small trace.dat files, after trace-cmd.dat.v6(5) and v7(5).

use std::io::Write;

/// How sections and chunks are packed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    None,
    Zstd,
    Zlib,
}

const PAGE: usize = 4096;

const HEADER_PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";

const HEADER_EVENT: &str = "# compressed entry header\n\ttype_len    :    5 bits\n\
    \ttime_delta  :   27 bits\n\tarray       :   32 bits\n\n\tpadding     : type == 29\n\
    \ttime_extend : type == 30\n\ttime_stamp : type == 31\n\tdata max type_len  == 28\n";

fn format(name: &str, id: u16, fields: &[(&str, u32, u32)], print: &str) -> String {
    let mut text = format!("name: {name}\nID: {id}\nformat:\n");
    let common: [(&str, u32, u32); 4] = [
        ("unsigned short common_type", 0, 2),
        ("unsigned char common_flags", 2, 1),
        ("unsigned char common_preempt_count", 3, 1),
        ("int common_pid", 4, 4),
    ];
    for (field, offset, size) in common.iter().chain(fields) {
        let signed = u32::from(field.starts_with("int"));
        text += &format!("\tfield:{field};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n");
    }
    text + "\nprint fmt: " + print + "\n"
}

/// Events by id: `sys_enter_read` 10, `sys_exit_read` 11, `kvm_exit` 12, `kvm_entry`
/// 13, `kvm_pio` 14, `workqueue_execute_start` 15, `workqueue_execute_end` 16.
fn formats() -> Vec<(&'static str, Vec<String>)> {
    let exits = "\"reason %s\", (REC->isa == 1) ? __print_symbolic(REC->exit_reason, \
                 { 30, \"IO_INSTRUCTION\" }) : __print_symbolic(REC->exit_reason, { 0x7b, \"io\" })";
    let exit_fields = [("unsigned int exit_reason", 8, 4), ("u32 isa", 12, 4)];
    let pio = [("unsigned int rw", 8, 4), ("unsigned int port", 12, 4)];
    let work = [("void * work", 8, 8), ("void * function", 16, 8)];
    vec![
        (
            "syscalls",
            vec![
                format("sys_enter_read", 10, &[("int __syscall_nr", 8, 4)], "\"\""),
                format("sys_exit_read", 11, &[("long ret", 16, 8)], "\"0x%lx\", REC->ret"),
            ],
        ),
        (
            "kvm",
            vec![
                format("kvm_exit", 12, &exit_fields, exits),
                format(
                    "kvm_entry",
                    13,
                    &[("unsigned int vcpu_id", 8, 4)],
                    "\"vcpu %u\", REC->vcpu_id",
                ),
                format("kvm_pio", 14, &pio, "\"port %x\", REC->port"),
            ],
        ),
        (
            "workqueue",
            vec![
                format("workqueue_execute_start", 15, &work, "\"%p\", REC->work"),
                format("workqueue_execute_end", 16, &work[..1], "\"%p\", REC->work"),
            ],
        ),
    ]
}

/// A record's bytes: its type, the thread, and 32-bit words.
pub fn record(kind: u16, pid: i32, words: &[u32]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(pid.to_le_bytes());
    bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    bytes
}

/// One ring buffer page in the making.
pub struct Page {
    ts: u64,
    data: Vec<u8>,
    lost: Option<Option<u64>>,
}

impl Page {
    pub fn new(ts: u64) -> Page {
        Page { ts, data: Vec::new(), lost: None }
    }

    /// Events were lost before this page: how many, if that was counted.
    pub fn after_loss(mut self, count: Option<u64>) -> Page {
        self.lost = Some(count);
        self
    }

    fn word(mut self, word: u32) -> Page {
        self.data.extend(word.to_le_bytes());
        self
    }

    /// A record, `delta` ticks after what came before.
    pub fn event(self, delta: u32, record: &[u8]) -> Page {
        let words = record.len().div_ceil(4);
        let mut page = match words {
            1..=28 => self.word(delta << 5 | words as u32),
            _ => self.word(delta << 5).word(record.len() as u32 + 4),
        };
        page.data.extend(record);
        page.data.resize(page.data.len().next_multiple_of(4), 0);
        page
    }

    /// A time extension.
    pub fn extend(self, delta: u64) -> Page {
        self.word((delta as u32 & 0x7ff_ffff) << 5 | 30).word((delta >> 27) as u32)
    }

    /// An absolute time stamp.
    pub fn absolute(self, ts: u64) -> Page {
        self.word((ts as u32 & 0x7ff_ffff) << 5 | 31).word((ts >> 27) as u32)
    }

    /// A discarded event of one word behind its length.
    pub fn discarded(self, delta: u32) -> Page {
        self.word(delta << 5 | 29).word(4)
    }

    /// Its 4 KiB.
    pub fn bytes(self) -> Vec<u8> {
        let mut commit = self.data.len() as u64;
        let mut data = self.data;
        if let Some(count) = self.lost {
            commit |= 1 << 31;
            if let Some(count) = count {
                commit |= 1 << 30;
                data.extend(count.to_le_bytes());
            }
        }
        let mut bytes = self.ts.to_le_bytes().to_vec();
        bytes.extend(commit.to_le_bytes());
        bytes.extend(data);
        assert!(bytes.len() <= PAGE, "a page holds {PAGE} bytes");
        bytes.resize(PAGE, 0);
        bytes
    }
}

/// A ring buffer: its name, and pages by CPU.
pub type Buffer = (&'static str, Vec<Vec<Page>>);

fn pack(packing: Packing, bytes: &[u8]) -> Vec<u8> {
    match packing {
        Packing::None => bytes.to_vec(),
        Packing::Zstd => zstd::bulk::compress(bytes, 3).expect("zstd"),
        Packing::Zlib => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
            encoder.write_all(bytes).expect("zlib");
            encoder.finish().expect("zlib")
        }
    }
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend(*part));
}

fn header_info() -> Vec<u8> {
    let mut out = Vec::new();
    for (name, text) in [("header_page\0", HEADER_PAGE), ("header_event\0", HEADER_EVENT)] {
        put(&mut out, &[name.as_bytes(), &(text.len() as u64).to_le_bytes(), text.as_bytes()]);
    }
    out
}

fn event_formats() -> Vec<u8> {
    let formats = formats();
    let mut out = (formats.len() as u32).to_le_bytes().to_vec();
    for (system, texts) in formats {
        put(&mut out, &[system.as_bytes(), &[0], &(texts.len() as u32).to_le_bytes()]);
        for text in texts {
            put(&mut out, &[&(text.len() as u64).to_le_bytes(), text.as_bytes()]);
        }
    }
    out
}

const KALLSYMS: &str = "ffffffff81000000 T _stext\nffffffff81000400 t process_srcu\n";
const CMDLINES: &str = "7 reader\n8 CPU 0/KVM\n";

/// The format texts as perf stores them.
pub fn tracing_data() -> Vec<u8> {
    let mut out = b"\x17\x08\x44tracing0.6\0\0\x08".to_vec();
    put(&mut out, &[&(PAGE as u32).to_le_bytes(), &header_info()]);
    // No formats of ftrace's own.
    put(&mut out, &[&0u32.to_le_bytes(), &event_formats()]);
    // No symbols, no printk formats, no names.
    out.extend([0; 16]);
    out
}

/// A file of version 6, unpacked.
pub fn v6(buffers: Vec<Buffer>) -> Vec<u8> {
    let mut out = b"\x17\x08\x44tracing6\0\x00\x08".to_vec();
    out.extend((PAGE as u32).to_le_bytes());
    out.extend(header_info());
    out.extend(0u32.to_le_bytes());
    out.extend(event_formats());
    put(&mut out, &[&(KALLSYMS.len() as u32).to_le_bytes(), KALLSYMS.as_bytes()]);
    out.extend(0u32.to_le_bytes());
    put(&mut out, &[&(CMDLINES.len() as u64).to_le_bytes(), CMDLINES.as_bytes()]);
    let cpus = buffers[0].1.len();
    out.extend((cpus as u32).to_le_bytes());
    out.extend(b"options  \0");
    put(&mut out, &[&8u16.to_le_bytes(), &4u32.to_le_bytes(), &(cpus as u32).to_le_bytes()]);
    put(&mut out, &[&4u16.to_le_bytes(), &14u32.to_le_bytes(), b"[local] global"]);
    // Other buffers first, so that their places are known: each entry has a fixed size.
    let mut slots = Vec::new();
    for (name, _) in &buffers[1..] {
        put(&mut out, &[&3u16.to_le_bytes(), &(name.len() as u32 + 9).to_le_bytes()]);
        slots.push(out.len());
        put(&mut out, &[&[0; 8], name.as_bytes(), &[0]]);
    }
    out.extend(0u16.to_le_bytes());
    for (index, (_, cpus)) in buffers.into_iter().enumerate() {
        if index > 0 {
            let here = out.len() as u64;
            out[slots[index - 1]..slots[index - 1] + 8].copy_from_slice(&here.to_le_bytes());
        }
        out.extend(b"flyrecord\0");
        let mut data = (out.len() + cpus.len() * 16).next_multiple_of(PAGE);
        let start = data;
        let cpus: Vec<Vec<u8>> =
            cpus.into_iter().map(|p| p.into_iter().flat_map(Page::bytes).collect()).collect();
        for cpu in &cpus {
            put(&mut out, &[&(data as u64).to_le_bytes(), &(cpu.len() as u64).to_le_bytes()]);
            data += cpu.len();
        }
        out.resize(start, 0);
        out.extend(cpus.concat());
    }
    out
}

fn section(out: &mut Vec<u8>, id: u16, body: &[u8], packing: Packing) -> u64 {
    let at = out.len() as u64;
    let mut packed = Vec::new();
    if packing == Packing::None {
        packed.extend(body);
    } else {
        let block = pack(packing, body);
        put(
            &mut packed,
            &[&(block.len() as u32).to_le_bytes(), &(body.len() as u32).to_le_bytes()],
        );
        packed.extend(block);
    }
    let flags = u16::from(packing != Packing::None);
    put(
        out,
        &[&id.to_le_bytes(), &flags.to_le_bytes(), &[0; 4], &(packed.len() as u64).to_le_bytes()],
    );
    out.extend(packed);
    at
}

fn option(out: &mut Vec<u8>, id: u16, body: &[u8]) {
    put(out, &[&id.to_le_bytes(), &(body.len() as u32).to_le_bytes(), body]);
}

/// A file of version 7.
pub fn v7(buffers: Vec<Buffer>, packing: Packing) -> Vec<u8> {
    let name: &[u8] = match packing {
        Packing::None => b"none\0\0",
        Packing::Zstd => b"zstd\x001.5.4\0",
        Packing::Zlib => b"zlib\x001.2.13\0",
    };
    let mut out = b"\x17\x08\x44tracing7\0\x00\x08".to_vec();
    put(&mut out, &[&(PAGE as u32).to_le_bytes(), name]);
    let slot = out.len();
    out.extend([0; 8]);
    let mut options = Vec::new();
    let text = |text: &str, wide: bool| {
        let len = text.len() as u64;
        let size =
            if wide { len.to_le_bytes().to_vec() } else { (len as u32).to_le_bytes().to_vec() };
        [size, text.as_bytes().to_vec()].concat()
    };
    let none = 0u32.to_le_bytes().to_vec();
    let sections = [
        (16, header_info()),
        (17, none),
        (18, event_formats()),
        (19, text(KALLSYMS, false)),
        (21, text(CMDLINES, true)),
    ];
    for (id, body) in sections {
        let at = section(&mut out, id, &body, packing);
        option(&mut options, id, &at.to_le_bytes());
    }
    option(&mut options, 8, &(buffers[0].1.len() as u32).to_le_bytes());
    for (name, cpus) in buffers {
        let body = buffer(&mut out, name, cpus, packing);
        option(&mut options, 3, &body);
    }
    option(&mut options, 0, &[0; 8]);
    let at = section(&mut out, 0, &options, packing);
    out[slot..slot + 8].copy_from_slice(&at.to_le_bytes());
    out
}

/// Writes a buffer's section and data; gives its option's body.
fn buffer(out: &mut Vec<u8>, name: &str, cpus: Vec<Vec<Page>>, packing: Packing) -> Vec<u8> {
    let at = out.len();
    let flags = u16::from(packing != Packing::None);
    put(out, &[&3u16.to_le_bytes(), &flags.to_le_bytes(), &[0; 12]]);
    let mut body = (at as u64).to_le_bytes().to_vec();
    put(&mut body, &[name.as_bytes(), b"\0local\0", &(PAGE as u32).to_le_bytes()]);
    body.extend((cpus.len() as u32).to_le_bytes());
    for (cpu, pages) in cpus.into_iter().enumerate() {
        out.resize(out.len().next_multiple_of(PAGE), 0);
        let offset = out.len() as u64;
        let pages: Vec<Vec<u8>> = pages.into_iter().map(Page::bytes).collect();
        if packing == Packing::None {
            out.extend(pages.concat());
        } else {
            out.extend((pages.len() as u32).to_le_bytes());
            for page in &pages {
                let block = pack(packing, page);
                put(
                    out,
                    &[&(block.len() as u32).to_le_bytes(), &(PAGE as u32).to_le_bytes(), &block],
                );
            }
        }
        // trace-cmd leaves the word that counts the chunks out of the size.
        let counted = if packing == Packing::None { 0 } else { 4 };
        let size = out.len() as u64 - offset - counted;
        put(&mut body, &[&(cpu as u32).to_le_bytes(), &offset.to_le_bytes(), &size.to_le_bytes()]);
    }
    let size = (out.len() - at - 16) as u64;
    out[at + 8..at + 16].copy_from_slice(&size.to_le_bytes());
    body
}

/// Two CPUs and a second buffer, with every kind of time stamp and of loss.
pub fn buffers() -> Vec<Buffer> {
    let enter = record(10, 7, &[0, 0]);
    let exit = record(11, 7, &[0, 0, 3, 0]);
    let start = record(15, 9, &[0x10, 0, 0x8100_0404, 0xffff_ffff]);
    let first = vec![
        // read: 100 ticks, then 2^30 + 5 over a time extension.
        Page::new(1000)
            .event(0, &enter)
            .event(100, &exit)
            .event(0, &enter)
            .extend(1 << 30)
            .discarded(1)
            .event(4, &exit),
        // What was lost before this page was counted; before the next one it was not.
        Page::new(1 << 40).after_loss(Some(5)).absolute((1 << 40) + 7).event(3, &start),
        Page::new((1 << 40) + 100).after_loss(None).event(1, &record(16, 9, &[0x10, 0])),
    ];
    let second = vec![Page::new(1050)
        .event(0, &record(12, 8, &[30, 1]))
        .event(10, &record(14, 8, &[1, 0x3f8]))
        .event(30, &record(13, 8, &[0]))
        .event(5, &[record(14, 8, &[0, 0x60]), vec![0; 160]].concat())];
    let other = vec![vec![Page::new(2000).event(0, &record(13, 8, &[0]))], Vec::new()];
    vec![("", vec![first, second]), ("guest", other)]
}

/// A small file with all of it.
pub fn sample(version: u32, packing: Packing) -> Vec<u8> {
    match version {
        6 => v6(buffers()),
        _ => v7(buffers(), packing),
    }
}
