//! Boots a kernel in TCG under the plugin, as a run does, and reads its stamps.
//!
//! There is no initial RAM disk: the kernel panics at the end of its own boot,
//! which ends QEMU too. KASLR is left on.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use vmeter_kernel_image::{KernelImage, Symbols};
use vmeter_machine::backends::qemu::Qemu;
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::vmm::Dialect;
use vmeter_model::run::WatchLevel;
use vmeter_model::{Accel, Event, EventKind, MachineSpec, RunRecord};
use vmeter_record::decode::of_source;
use vmeter_record::recorder::{Context, Recorder};
use vmeter_record::sources::tcg_plugin::{initcalls, kaslr_slide, Header, Stamps, TcgPlugin};

const MACHINE: &[&str] = &[
    "qemu-system-x86_64",
    "-accel",
    "tcg",
    "-machine",
    "q35",
    "-m",
    "512",
    "-nodefaults",
    "-display",
    "none",
    "-no-reboot",
    "-serial",
    "stdio",
    "-append",
    "console=ttyS0 panic=-1 no_timer_check cryptomgr.notests",
];

fn kernel() -> Option<PathBuf> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        println!("skipped: qemu-system-x86_64 is not installed");
        return None;
    }
    let named = std::env::var_os("VMETER_TEST_KERNEL").map(PathBuf::from);
    let kernel = named.or_else(|| Some(vmeter_appliance::kernel::default_kernel()?.vmlinuz));
    if kernel.is_none() {
        println!("skipped: no kernel; set VMETER_TEST_KERNEL or run `vmeter kernel fetch`");
    }
    kernel
}

type Console = Box<dyn Iterator<Item = String>>;

fn context<'a>(
    spec: &'a MachineSpec,
    kernel: &'a Path,
    watch: WatchLevel,
    dir: &'a Path,
    accel: Accel,
) -> Context<'a> {
    Context {
        snapshot: None,
        spec,
        watch,
        dir,
        cache: dir,
        kernel: Some(kernel),
        accel: Some(accel),
        vmm: Qemu.abilities(),
        running: false,
        own_init: false,
        memory: false,
        ready: None,
        watches: Vec::new(),
    }
}

/// Boots under the plugin; `end` waits for the end that the test wants.
fn boot(
    kernel: &Path,
    watch: WatchLevel,
    smp: &str,
    dir: &Path,
    end: impl FnOnce(&mut Child, Console),
) -> Vec<Event> {
    let spec = MachineSpec::default();
    let mut live =
        TcgPlugin.live(&context(&spec, kernel, watch, dir, Accel::Tcg)).expect("it applies to TCG");
    let mut plan = LaunchPlan { may_inject: true, dialect: Some(&Qemu), ..LaunchPlan::default() };
    plan.argv = MACHINE.iter().chain(&["-smp", smp, "-kernel"]).map(Into::into).collect();
    plan.argv.push(kernel.into());
    live.prepare(&mut plan).unwrap();
    let mut qemu = Command::new(&plan.argv[0])
        .args(&plan.argv[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let console = BufReader::new(qemu.stdout.take().unwrap()).lines().map_while(Result::ok);
    end(&mut qemu, Box::new(console));
    let source = live.finish(0).unwrap().expect("stamps were saved");
    let mut run = record(watch);
    run.sources.push(source);
    let (events, warnings) = of_source(dir, &run, TcgPlugin::NAME);
    assert!(warnings.is_empty(), "{warnings:?}");
    events
}

fn kill_at(line: &str) -> impl FnOnce(&mut Child, Console) + '_ {
    move |qemu, mut console| {
        assert!(console.any(|found| found.contains(line)), "no {line:?} on the console");
        qemu.kill().unwrap();
        qemu.wait().unwrap();
    }
}

fn record(watch: WatchLevel) -> RunRecord {
    RunRecord { watch, ..RunRecord::default() }
}

fn header(dir: &Path) -> Header {
    Stamps::parse(&std::fs::read(dir.join("tcg-stamps.bin")).unwrap()).unwrap().header
}

fn position(events: &[Event], symbol: &str) -> usize {
    let reached = |e: &Event| matches!(&e.what, EventKind::Reached { symbol: s } if s == symbol);
    events.iter().position(reached).unwrap_or_else(|| panic!("{symbol} was not reached"))
}

#[test]
fn full_counts_and_stamps_the_whole_boot() {
    let Some(kernel) = kernel() else { return };
    let dir = tempfile::tempdir().unwrap();
    let events = boot(&kernel, WatchLevel::Full, "1", dir.path(), |qemu, console| {
        assert_eq!(console.filter(|line| line.contains("Kernel panic - not syncing")).count(), 1);
        assert!(qemu.wait().unwrap().success());
    });
    let path = "reset-vector bzimage-setup bzimage-startup_32 startup_64 x86_64_start_kernel \
        start_kernel setup_arch rest_init kernel_init prepare_namespace panic";
    let places: Vec<usize> = path.split(' ').map(|symbol| position(&events, symbol)).collect();
    assert_eq!(places[0], 0);
    assert!(places.is_sorted(), "{path:?} at {places:?}");
    let begun: Vec<(usize, &String)> = events
        .iter()
        .enumerate()
        .filter_map(|(i, e)| match &e.what {
            EventKind::InitcallStart { function, .. } => Some((i, function)),
            _ => None,
        })
        .collect();
    let distinct: BTreeSet<&String> = begun.iter().map(|(_, f)| *f).collect();
    assert!(distinct.len() >= 500, "{} initcalls", distinct.len());
    assert!(begun[0].0 > position(&events, "start_kernel"));
    let ended = events.iter().filter(|e| matches!(e.what, EventKind::InitcallEnd { .. })).count();
    assert_eq!(begun.len(), ended);
    let counts: Vec<u64> = events.iter().map(|e| e.insns.unwrap()).collect();
    assert!(counts.is_sorted() && counts[0] == 0 && counts[counts.len() - 1] > 100_000_000);
    let last = &events.last().unwrap().what;
    assert!(matches!(last, EventKind::Count { name, .. } if name == "guest_insns"), "{last:?}");
    let slide = kaslr_slide(dir.path()).expect("the kernel's C code ran");
    assert_eq!(slide % (2 << 20), 0);
}

/// `CONFIG_KALLSYMS` without `CONFIG_KALLSYMS_ALL`: functions only.
#[test]
fn the_table_of_initcalls_is_found_without_its_symbols() {
    let Some(kernel) = kernel() else { return };
    let image = KernelImage::open(&kernel).expect("a kernel");
    let symbols = image.symbols().expect("symbols");
    let functions: String = symbols
        .iter()
        .filter(|symbol| symbol.is_function())
        .map(|symbol| format!("{:x} {} {}\n", symbol.address, symbol.kind, symbol.name))
        .collect();
    let functions = Symbols::from_text(&functions);
    assert!(functions.address("__initcall_start").is_none());
    let of = |symbols: &Symbols| {
        let all = initcalls(&image, symbols).into_iter();
        all.filter(|a| a.flags == "i").map(|a| a.address).collect::<BTreeSet<u64>>()
    };
    let (told, found) = (of(&symbols), of(&functions));
    assert!(told.len() > 300, "{}", told.len());
    // The consoles' own follow (`__con_initcall_start`).
    assert!(found.difference(&told).count() < 8, "nothing else");
    assert!(10 * found.len() >= 9 * told.len(), "{} of {}", found.len(), told.len());
}

#[test]
fn light_ends_at_start_kernel_and_survives_a_kill() {
    let Some(kernel) = kernel() else { return };
    let dir = tempfile::tempdir().unwrap();
    let events = boot(&kernel, WatchLevel::Light, "1", dir.path(), kill_at("Linux version"));
    assert_eq!(position(&events, "reset-vector"), 0);
    assert_eq!(position(&events, "start_kernel"), events.len() - 1);
    assert!(events.iter().all(|e| e.insns.is_none()), "counting slows the decompressor");
    let header = header(dir.path());
    assert!(header.ended_ns.is_none(), "it was killed");
    assert!(header.unhooked_ns.is_some() && header.blocks < 12_000, "{header:?}");
}

#[test]
fn counters_of_two_vcpus_add_up() {
    let Some(kernel) = kernel() else { return };
    let dir = tempfile::tempdir().unwrap();
    let events = boot(&kernel, WatchLevel::Full, "2", dir.path(), kill_at("smp: Brought up"));
    let each = header(dir.path()).instructions;
    assert!(each.len() == 2 && each.iter().all(|n| *n > 1000), "{each:?}");
    let EventKind::Count { value, .. } = events.last().unwrap().what else {
        panic!("no count at the end")
    };
    assert_eq!(value, each.iter().sum::<u64>());
}

#[test]
fn virtual_time_is_counted_whole_however_it_is_watched() {
    let Some(kernel) = kernel() else { return };
    let dir = tempfile::tempdir().unwrap();
    let spec = MachineSpec::default();
    let live = |watch| TcgPlugin.live(&context(&spec, &kernel, watch, dir.path(), Accel::Icount));
    assert!(live(WatchLevel::None).is_none());
    let mut plan = LaunchPlan { may_inject: true, dialect: Some(&Qemu), ..LaunchPlan::default() };
    plan.argv.push(MACHINE[0].into());
    live(WatchLevel::Light).expect("it applies to icount").prepare(&mut plan).unwrap();
    let argument = plan.argv.last().unwrap().to_string_lossy();
    assert!(argument.contains("mode=full") && argument.contains("count=on"), "{argument}");
    let list = std::fs::read_to_string(dir.path().join("tcg-addresses.txt")).unwrap();
    for name in ["trace_event_raw_event_initcall_start", "tracing_mark_write", "acpi_init"] {
        assert!(list.lines().any(|line| line.ends_with(name)), "{name} is not stamped");
    }
}
