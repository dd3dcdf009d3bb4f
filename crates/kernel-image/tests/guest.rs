//! Boots a real kernel in QEMU's TCG, with KASLR and without a word of vmeter's
//! in the guest, and reads its log and its trace out of its RAM afterwards.
//!
//! There is no initial RAM disk: the kernel panics at the end of its own boot,
//! which ends QEMU too (`panic=-1 -no-reboot`).

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vmeter_kernel_image::clocks::Clocks;
use vmeter_kernel_image::ftrace::{FtraceDump, FtraceKind};
use vmeter_kernel_image::printk::{PrintkDump, PrintkRecord};
use vmeter_kernel_image::{discover, locate, shape, Candidate, Error, Guest};
use vmeter_kernel_image::{KernelImage, KernelInfo, MappedRam};

const PARAMETERS: &str = "quiet panic=-1 no_timer_check cryptomgr.notests \
    trace_event=initcall:*,sched:sched_process_exit,printk:console trace_clock=x86-tsc \
    trace_buf_size=512K";

/// Seconds: far longer than any of these guests takes.
const LONGEST: &str = "300";

fn kernel() -> Option<PathBuf> {
    let named = std::env::var_os("VMETER_TEST_KERNEL").map(PathBuf::from);
    let kernel = named.or_else(|| Some(vmeter_appliance::kernel::default_kernel()?.vmlinuz));
    if kernel.is_none() {
        println!("skipped: no kernel; set VMETER_TEST_KERNEL or run `vmeter kernel fetch`");
    }
    kernel
}

/// Boots to the end and gives the file that was its RAM; two vCPUs, since their
/// rings are separate. 3 GiB, so that the hole cuts RAM in two.
fn boot(kernel: &Path, folder: &Path) -> Option<File> {
    let ram = folder.join("ram");
    let backend = format!("memory-backend-file,id=ram,size=3G,mem-path={},share=on", ram.display());
    // A guest with two vCPUs that panics does not always end under TCG.
    let status = Command::new("timeout")
        .args([LONGEST, "qemu-system-x86_64"])
        .args(["-accel", "tcg", "-machine", "q35,memory-backend=ram", "-smp", "2", "-m", "3G"])
        .args(["-object", &backend, "-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-append", PARAMETERS, "-kernel"])
        .arg(kernel)
        .stdin(Stdio::null())
        .status();
    match status.ok().and_then(|status| status.code()) {
        Some(0) => {}
        Some(124) => panic!("the guest of {} has not ended in {LONGEST} s", kernel.display()),
        None | Some(127) => {
            println!("skipped: no timeout or no qemu-system-x86_64 in PATH");
            return None;
        }
        Some(code) => panic!("QEMU ended with exit status {code}"),
    }
    Some(File::open(ram).expect("QEMU made the file"))
}

#[test]
fn log_and_trace_are_read_out_of_a_guest_with_kaslr() {
    let Some(kernel) = kernel() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = boot(&kernel, folder.path()) else { return };
    let info = KernelInfo::open(folder.path(), &kernel).unwrap();
    let candidate = Candidate { address: 0, length: file.metadata().unwrap().len() };
    let located = locate(&[candidate], &file, &info).unwrap();
    let regions: Vec<_> = located.regions.iter().map(|r| (r.gpa, r.length)).collect();
    assert_eq!(regions, [(0, 2 << 30), (4 << 30, 1 << 30)]);
    // The same is found by what RAM says of itself, the second time from the cache.
    for _ in 0..2 {
        let found = discover(&[candidate], &file, folder.path()).unwrap();
        assert_eq!(found.located, located);
        assert_eq!((&found.info.banner, &found.info.version), (&info.banner, &info.version));
        assert_eq!((&found.info.fields, &found.info.sizes), (&info.fields, &info.sizes));
        assert_eq!(found.info.symbols, info.symbols);
        assert_eq!(found.functions.bytes(), info.functions(&kernel).unwrap().bytes());
    }
    let ram = MappedRam::new(located.regions.clone(), &file);
    let guest = Guest::new(&ram, &info, located.place).unwrap();

    let log = PrintkDump::take(&guest).unwrap();
    let path = folder.path().join("log");
    log.write(&path).unwrap();
    let records = PrintkDump::read(&path).unwrap().records();
    assert!(records[0].text.starts_with(&info.banner), "{:?}", records[0]);
    assert!(records.iter().any(|r| r.text.starts_with("Kernel panic - not syncing")));
    assert!(records.windows(2).all(|w| w[0].seq + 1 == w[1].seq));
    let clocks = Clocks::take(&guest, 7).unwrap();
    as_without_symbols(&file, candidate, &records, &clocks);

    // Its clock was at the last line, or a tick later.
    let clocks = Clocks::take(&guest, 0).unwrap();
    let last = records.last().unwrap().ts_ns;
    let stable = records.iter().any(|r| r.text.starts_with("sched_clock: Marking stable"));
    if clocks.counts_tsc() {
        let (log, raw) = (clocks.log_ns(stable), clocks.raw_ns());
        assert!(log + 1_000_000_000 > last && log < last + 60_000_000_000, "{clocks:?}, {last}");
        assert!(raw >= log, "{clocks:?}");
    }

    let mut trace = FtraceDump::take(&guest).unwrap();
    trace.name_functions(&info.functions(&kernel).unwrap());
    let path = folder.path().join("trace");
    trace.write(&path).unwrap();
    let trace = FtraceDump::read(&path).unwrap();
    assert_eq!(trace.clock(), "x86-tsc");
    let decoded = trace.decode();
    assert_eq!((decoded.lost, decoded.damaged_pages, decoded.others), (0, 0, 0));
    check_initcalls(&decoded.events);
    let traced = decoded.events.iter().filter_map(|e| match &e.kind {
        FtraceKind::Console { text } => Some(text),
        _ => None,
    });
    // Linux 5.10 traces what it prints, with its time stamp; others trace what they log.
    if info.version.starts_with("5.10.") {
        let printed: Vec<_> = traced.collect();
        let logged =
            |text: &&&String| records.iter().any(|r| !r.text.is_empty() && text.ends_with(&r.text));
        assert!(!printed.is_empty() && printed.iter().all(|t| logged(&t)), "{printed:?}");
    } else {
        let logged = traced.filter(|text| records.iter().any(|r| r.text == **text)).count();
        assert!(logged * 2 > records.len(), "{logged} of {} are in the trace", records.len());
    }
}

/// Every initcall that starts ends, on the same thread and after its start; the
/// levels come in order; and no function is without a name.
fn check_initcalls(events: &[vmeter_kernel_image::ftrace::FtraceEvent]) {
    let mut open: BTreeMap<(i32, u64), u64> = BTreeMap::new();
    let mut names = Vec::new();
    let mut levels = Vec::new();
    for event in events {
        match &event.kind {
            FtraceKind::InitcallStart { address, function, .. } => {
                assert!(open.insert((event.pid, *address), event.ts).is_none());
                names.push(function.as_str());
            }
            FtraceKind::InitcallFinish { address, .. } => {
                let start = open.remove(&(event.pid, *address)).expect("it had started");
                assert!(start < event.ts);
            }
            FtraceKind::InitcallLevel { level } => levels.push(level.as_str()),
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(names.len() > 300, "{} initcalls", names.len());
    // Linux 7.3 really has a function `init_module_sysctl`.
    let unnamed = |name: &&&str| {
        name.starts_with("0x") || name.starts_with("init_module") && **name != "init_module_sysctl"
    };
    assert_eq!(names.iter().filter(unnamed).collect::<Vec<_>>(), Vec::<&&str>::new());
    assert!(names.contains(&"acpi_init") || names.contains(&"pci_subsys_init"), "{names:?}");
    let known = ["early", "core", "postcore", "arch", "subsys", "fs", "device", "late"];
    levels.retain(|level| known.contains(level));
    assert_eq!(levels, known);
}

#[test]
fn symbols_and_types_are_read_and_cached() {
    let Some(kernel) = kernel() else { return };
    let image = KernelImage::open(&kernel).unwrap();
    assert!(image.banner().starts_with(&format!("Linux version {} ", image.version())));
    let symbols = image.symbols().unwrap();
    assert!(symbols.len() > 50_000, "{}", symbols.len());
    assert_eq!(symbols.address("_text"), image.text_address());
    let start_kernel = symbols.address("start_kernel").unwrap();
    let (symbol, offset) = symbols.lookup(start_kernel + 5).unwrap();
    assert_eq!((symbol.name, offset), ("start_kernel", 5));

    let cache = tempfile::tempdir().unwrap();
    let first = KernelInfo::open(cache.path(), &kernel).unwrap();
    let again = KernelInfo::open(cache.path(), &kernel).unwrap();
    assert_eq!(first, again);
    let functions = again.functions(&kernel).unwrap();
    assert_eq!(functions.lookup(start_kernel), Some(("start_kernel", 0)));
    first.field("trace_array.array_buffer.buffer").unwrap();

    let vmlinux = cache.path().join("vmlinux");
    image.write_vmlinux(&vmlinux).unwrap();
    let elf = KernelImage::open(&vmlinux).unwrap();
    assert_eq!((elf.container(), elf.build_id()), ("vmlinux", image.build_id()));
    assert_eq!(elf.pvh_entry(), image.pvh_entry());
}

/// As one that is made of a raw image, to be entered by PVH.
#[test]
fn an_elf_with_physical_addresses_is_read_alike() {
    let Some(kernel) = kernel() else { return };
    let image = KernelImage::open(&kernel).unwrap();
    assert!(image.traces_initcalls());
    let mut elf = image.vmlinux().to_vec();
    let word = |elf: &[u8], at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap());
    let count = usize::from(u16::from_le_bytes([elf[0x38], elf[0x39]]));
    let table = word(&elf, 0x20) as usize;
    for header in (0..count).map(|i| table + 56 * i) {
        let physical = word(&elf, header + 0x18);
        elf[header + 0x10..header + 0x18].copy_from_slice(&physical.to_le_bytes());
    }
    let other = KernelImage::from_bytes(&kernel, elf).unwrap();
    let text = image.text_address();
    assert!(text.is_some() && other.text_address() == text);
    let address = |image: &KernelImage| image.symbols().unwrap().address("start_kernel");
    assert_eq!(address(&other), address(&image));
}

#[test]
fn what_is_no_kernel_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let open = |bytes: &[u8]| {
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        match KernelImage::open(&path) {
            Err(error @ Error::NotAKernel { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let mut short = vec![0; 0x400];
    short[0x202..0x206].copy_from_slice(b"HdrS");
    short[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
    short[0x24c..0x250].copy_from_slice(&1000u32.to_le_bytes());
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for (bytes, says) in [
        (&b""[..], "an empty file"),
        (b"070701 and so on", "--initrd"),
        (b"QFI\xfb....", "qcow2"),
        (b"#!/bin/sh\n", "a script"),
        (b"just words", "text"),
        (&[0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5], "de ad be ef"),
        (&short, "truncated"),
        (&program, "without a \"Linux version"),
    ] {
        let message = open(bytes);
        assert!(message.contains(says), "{says:?} is not in {message:?}");
    }
    assert!(KernelImage::open(folder.path()).unwrap_err().to_string().contains("directory"));
    assert!(matches!(KernelImage::open(&folder.path().join("none")), Err(Error::Io { .. })));
}

/// What RAM says by its shape alone is what its symbols say.
fn as_without_symbols(file: &File, ram: Candidate, records: &[PrintkRecord], clocks: &Clocks) {
    let begin = std::time::Instant::now();
    let found = shape::find(&[ram], file, 7).unwrap();
    println!("{} MiB were searched in {:?}", ram.length >> 20, begin.elapsed());
    assert_eq!(found.records(), records);
    println!("{clocks:?}\n{:?}", found.clocks());
}
