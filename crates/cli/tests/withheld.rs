//! What a kernel offers, kept from the reader: one boot of Debian's kernel, read with all of it, and again
//! without its trace, without its types and its variables' names, and without any of its symbols.
//!
//! The guest's RAM is a file that outlives its VMM, so that all readings are of the same boot: whatever the
//! full reading names, the poorer one has to name too, border by border.

use crate::common;

use common::{kernel, text, Lab};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmeter_base::clock;
use vmeter_kernel_image::locate::Candidate;
use vmeter_kernel_image::printk::PrintkDump;
use vmeter_kernel_image::shape::{self, growth::Growth};
use vmeter_kernel_image::HostMemory;

const LOG: &str = "guest-printk.bin";
const GROWTH: &str = "log-growth.txt";
/// Of what the full reading names, a poorer one names so much.
const NAMED: f64 = 0.95;
/// Off by so much, s, or by this part of the span's length, a border is as good as exact. How many are the test
/// prints: a host that is busy looks at the log less often.
const OFF_S: f64 = 0.001;
const OFF_PART: f64 = 0.02;
/// Whatever it is off by has to be said, but for so much: the writing of a record is in an initcall's time by
/// the log, and not by the trace.
const UNSAID_S: f64 = 0.0005;
/// Initcalls of which that need not be so, of all: one in so many. A busy host takes its CPU away between a
/// call and the record of it.
const ONE_IN: usize = 50;

/// The guest's RAM: a file, of which only what is there is read.
struct Ram(File);

impl HostMemory for Ram {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read(address, buffer)
    }

    fn next_there(&self, address: u64, end: u64) -> Range<u64> {
        let next = |from| rustix::fs::seek(&self.0, from).unwrap_or(end).min(end);
        let start = next(rustix::fs::SeekFrom::Data(address));
        start..next(rustix::fs::SeekFrom::Hole(start)).max(start)
    }
}

impl Ram {
    fn open(lab: &Lab) -> Option<(Self, [Candidate; 1])> {
        let file = File::open(lab.path("ram")).ok()?;
        let length = file.metadata().ok().map(|file| file.len()).filter(|length| *length > 0)?;
        Some((Ram(file), [Candidate { address: 0, length }]))
    }
}

/// Follows the log in the guest's RAM as vmeter does of a kernel without symbols; what it notes of it.
fn follow(lab: &Lab, done: &AtomicBool) -> String {
    let (mut growth, mut text) = (Growth::default(), String::new());
    let (mut search, mut pause) = (Instant::now(), Duration::ZERO);
    let mut last = clock::monotonic();
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
        let Some((ram, all)) = Ram::open(lab) else { continue };
        let begun = clock::monotonic();
        let came = growth.look(&ram);
        if came.is_empty() && search.elapsed() > pause {
            search = Instant::now();
            growth.search(&all, &ram, |_| ());
            (search, pause) = (Instant::now(), search.elapsed() * 8);
        }
        if !came.is_empty() {
            let _ = write!(text, "{} {last}", clock::monotonic());
            came.iter().for_each(|came| {
                let _ = write!(text, " {}:{}", came.seq, came.ts_ns);
            });
            text.push('\n');
        }
        last = begun;
    }
    text
}

/// A quiet boot of a kernel that traces its initcalls and logs them as well, and how its log grew. Its RAM
/// stays behind.
fn boot(lab: &Lab, kernel: &Path) -> (Value, String) {
    let (save, ram) = (lab.path("full"), lab.path("ram"));
    let line = "console=ttyS0 quiet initcall_debug log_buf_len=512K panic=-1 no_timer_check \
                cryptomgr.notests";
    let object = format!("memory-backend-file,id=ram,size=256M,share=on,mem-path={}", text(&ram));
    let once = ["boot", "--warmup", "0", "--runs", "1", "--until", "line:Kernel panic", "--save"];
    let vmm = "qemu-system-x86_64 -accel tcg -machine q35,memory-backend=ram -m 256 -nodefaults \
               -nographic -serial stdio -no-reboot";
    let given = ["-object", &object, "-kernel", text(kernel), "-append", line];
    let vmm: Vec<&str> = vmm.split_ascii_whitespace().chain(given).collect();
    let arguments = [&once[..], &[text(&save), "--"], &vmm].concat();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let grew = scope.spawn(|| follow(lab, &done));
        let ran = lab.run(&arguments);
        done.store(true, Ordering::Relaxed);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let full = lab.json(&["show", text(&save)])["runs"][0].clone();
        (full, grew.join().expect("followed"))
    })
}

/// The same session without some of its sources, its log exchanged for another reading of it, and how it grew.
fn without(
    lab: &Lab,
    name: &str,
    sources: &[&str],
    (log, grew): (Option<&PrintkDump>, &str),
) -> Value {
    let (full, poor) = (lab.path("full"), lab.path(name));
    let copied = std::process::Command::new("cp").args(["-r", text(&full), text(&poor)]).status();
    assert!(copied.expect("cp").success());
    let folder = poor.join("runs/0000");
    let record = folder.join("run.json");
    let mut run: Value =
        serde_json::from_slice(&std::fs::read(&record).expect("a record")).expect("JSON");
    let kept = run["sources"].as_array_mut().expect("sources");
    let before = kept.len();
    kept.retain(|source| !sources.iter().any(|name| source["name"] == *name));
    assert!(kept.len() < before, "{sources:?}");
    kept.push(json!({
        "name": "log-growth", "files": [GROWTH], "clock": "", "error_ns": 4_000_000, "parameters": {}
    }));
    std::fs::write(folder.join(GROWTH), grew).expect("written");
    std::fs::write(&record, run.to_string()).expect("written");
    if let Some(log) = log {
        log.write(&folder.join(LOG)).expect("written");
    }
    lab.json(&["show", text(&poor)])["runs"][0].clone()
}

/// The share of a run that has a name.
fn named(run: &Value) -> f64 {
    run["coverage"].as_f64().expect("a share")
}

/// Begin, end and error, s, of each initcall; the last, of those that ran twice.
fn initcalls(run: &Value) -> BTreeMap<String, (f64, f64, f64)> {
    let spans = run["spans"].as_array().expect("spans").iter();
    let calls = spans.filter_map(|span| {
        let at = |field: &str| span[field].as_f64().expect("s");
        let name = span["name"].as_str().filter(|name| name.starts_with("initcall "))?;
        Some((name.to_owned(), (at("start_s"), at("end_s"), at("error_s"))))
    });
    calls.collect()
}

/// Checks a poorer reading against the full one. Says what it found.
fn compare(what: &str, full: &Value, poor: &Value) {
    let (all, found) = (initcalls(full), initcalls(poor));
    let time = |calls: &BTreeMap<String, (f64, f64, f64)>| -> f64 {
        calls.values().map(|(start, end, _)| end - start).sum()
    };
    let strangers: Vec<&String> = found.keys().filter(|name| !all.contains_key(*name)).collect();
    let (mut off, mut rough, mut unsaid): (Vec<f64>, usize, Vec<String>) = Default::default();
    for (name, (start, end, _)) in &all {
        let Some((from, to, error)) = found.get(name) else { continue };
        let by = (from - start).abs().max((to - end).abs());
        off.push(by);
        rough += usize::from(by > OFF_S.max(OFF_PART * (end - start)));
        if by > error + UNSAID_S {
            unsaid.push(format!("{name}: {start:.6} {end:.6}, {from:.6} {to:.6} ±{error:.6}"));
        }
    }
    off.sort_by(f64::total_cmp);
    let share = time(&found) / time(&all);
    println!(
        "{what}: named {:.2} % (full {:.2} %), {} of {} initcalls, {:.2} % of their time; off by {:.3} ms, 95 of \
         100 by {:.3}, at most {:.3}; {rough} beyond 1 ms and 2 %, {} beyond what is said",
        named(poor) * 100.0,
        named(full) * 100.0,
        off.len(),
        all.len(),
        share * 100.0,
        off[off.len() / 2] * 1e3,
        off[off.len() * 95 / 100] * 1e3,
        off[off.len() - 1] * 1e3,
        unsaid.len()
    );
    assert_eq!(strangers, Vec::<&String>::new(), "{what}: names that the full reading has not");
    assert!(off.len() as f64 >= NAMED * all.len() as f64, "{what}: {} of {}", off.len(), all.len());
    assert!(share >= NAMED, "{what}: {share}");
    assert!(named(poor) >= NAMED * named(full), "{what}: {} {}", named(poor), named(full));
    assert!(unsaid.len() * ONE_IN <= all.len(), "{what}: {}", unsaid.join("\n"));
}

#[test]
fn what_a_kernel_offers_is_not_needed_to_name_what_it_does() {
    let Some((_, kernel)) = kernel() else { return };
    let lab = Lab::alone();
    let (full, grew) = boot(&lab, &kernel);
    let log = PrintkDump::read(&lab.path("full/runs/0000").join(LOG)).expect("its log");
    let (ram, all) = Ram::open(&lab).expect("its RAM");
    let read_ns = log.clocks().expect("its clocks").read_ns;
    let begun = Instant::now();
    let shaped = shape::find(&all, &ram, read_ns).expect("a log of this shape");
    println!("found by its shape in {} MiB in {:?}", all[0].length >> 20, begun.elapsed());
    // The RAM is a file that the guest wrote to until QEMU ended, a moment after vmeter read its log.
    let (shapes, logs) = (shaped.records(), log.records());
    assert_eq!(shapes.get(..logs.len()), Some(&logs[..]), "the same log, with and without symbols");
    compare("no trace", &full, &without(&lab, "trace", &["guest-ftrace"], (None, &grew)));
    let poor = without(&lab, "types", &["guest-ftrace"], (Some(&shaped), &grew));
    compare("no trace, types, variables", &full, &poor);
    let poor = without(&lab, "symbols", &["guest-ftrace", "tcg-plugin"], (Some(&shaped), &grew));
    compare("no trace, types, symbols", &full, &poor);
}

#[test]
fn what_is_no_kernels_symbols_is_refused_before_anything_boots() {
    let lab = Lab::new();
    let boot = |name: &str, content: &str| {
        let file = lab.path(name);
        std::fs::write(&file, content).expect("scratch space");
        lab.run(&[
            "boot",
            "--vmm",
            "mock",
            "--warmup",
            "0",
            "--runs",
            "1",
            "--symbols",
            text(&file),
        ])
    };
    let map = "ffffffff81000000 T _text\nffffffff82000010 t a_init\n";
    assert_eq!(boot("System.map", map).status, 0);
    for content in ["", "hello\n", "ffffffff81000000 D only_data\n", "\x7fELF and no more"] {
        let ran = boot("other", content);
        assert_eq!(ran.status, 2, "{content}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("--symbols ") && ran.stderr.contains("kernel"),
            "{}",
            ran.stderr
        );
    }
}
