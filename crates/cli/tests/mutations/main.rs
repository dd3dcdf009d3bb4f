//! Damaged run folders, recordings and traces through what the commands call: no panic, memory
//! and time within bounds.
//!
//! Each test goes on for `VMETER_FUZZ_SECONDS` (default: 3, in the long suite 600), from the
//! seed `VMETER_FUZZ_SEED` (default: 1). What made a test fail is kept, and its folder is named.

mod damage;
#[path = "../../../trace/tests/common/mod.rs"]
mod samples;

use damage::Random;
use peak_alloc::PeakAlloc;
use std::io::Write;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use vmeter_explain::report::ExplainReport;
use vmeter_host_tracing::stat::report::{NamedTrace, TraceStatReport};
use vmeter_host_tracing::stat::{stat, StatOptions};
use vmeter_host_tracing::PerfettoEvents;
use vmeter_lab::diff::report::DiffReport;
use vmeter_lab::kinds;
use vmeter_lab::merge::{merge, MergeOptions};
use vmeter_lab::trend::{self, TrendReport};
use vmeter_render::{Report, OUTPUTS};
use vmeter_session::Views;
use vmeter_trace::write::{copy, Csv, JsonLines, Sink, Text};
use vmeter_trace::Input;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Memory is measured for the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Most memory that one of them may take, bytes.
const MOST_BYTES: usize = 200 << 20;
/// CPU time of one that hangs: what the wall's clock says depends on what else the host does.
const MOST_TIME: Duration = Duration::from_secs(60);

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// CPU time of this process, all its threads together.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn seconds() -> Duration {
    let long = std::env::var_os("VMETER_LONG").is_some_and(|value| value == "1");
    Duration::from_secs(variable("VMETER_FUZZ_SECONDS").unwrap_or(if long { 600 } else { 3 }))
}

/// Damages something in `folder` by `change` and gives it to `run`, again and again; `mend`
/// makes the folder what it was.
fn fuzz(
    what: &str,
    folder: &Path,
    mut change: impl FnMut(&mut Random),
    mut run: impl FnMut(&mut Random),
    mut mend: impl FnMut(),
) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let first = variable("VMETER_FUZZ_SEED").unwrap_or(1);
    let (began, mut executions) = (Instant::now(), 0);
    let (mut most, mut longest) = (0, Duration::ZERO);
    while began.elapsed() < seconds() {
        let seed = first + executions;
        let mut random = Random::new(seed);
        change(&mut random);
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let start = cpu_time();
        let ran = catch_unwind(AssertUnwindSafe(|| run(&mut random)));
        let (took, bytes) = (cpu_time() - start, MEMORY.peak_usage().saturating_sub(before));
        if ran.is_err() || bytes > MOST_BYTES || took > MOST_TIME {
            let kept = std::env::temp_dir().join(format!("vmeter-mutation-{what}-{seed}"));
            let _ = Command::new("cp").arg("-a").arg(folder).arg(&kept).status();
            panic!("{what}, seed {seed}: {bytes} bytes, {took:?}; kept in {}", kept.display());
        }
        (most, longest) = (most.max(bytes), longest.max(took));
        executions += 1;
        mend();
    }
    println!(
        "{what}: {executions} executions in {:.0} s from seed {first}, at most {} MiB and {:.2} s of CPU",
        began.elapsed().as_secs_f64(),
        most >> 20,
        longest.as_secs_f64()
    );
    assert!(executions > 0);
}

/// A report in every output.
fn draw(report: &dyn Report) {
    for output in OUTPUTS {
        // A result that has nothing for an output is an answer.
        let _ = output.write(report, &mut std::io::sink());
    }
}

/// The saved sessions, unpacked.
fn sessions(folder: &Path) -> Vec<PathBuf> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sessions");
    let archive = archive.join("saved.tar.gz");
    let tar = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder).status();
    assert!(tar.expect("tar").success());
    let entries = std::fs::read_dir(folder).expect("sessions").flatten().map(|e| e.path());
    let mut all: Vec<PathBuf> = entries.collect();
    all.sort();
    all
}

/// Files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path(), found),
            _ => found.push(entry.path()),
        }
    }
    found.sort();
}

/// Show, report, diff and merge of a session.
fn read(session: &Path, other: &Path, random: &mut Random, merged: &Path) {
    if let Ok(answer) = kinds::answer(session) {
        let views = Views { long: true, blame: true, critical_chain: true, tree: true };
        draw(answer.report(&views).as_ref());
        draw(answer.report(&Views::default()).as_ref());
    }
    let name = |path: &Path| path.display().to_string();
    if let Ok(result) =
        vmeter_lab::diff::saved::diff(name(session).as_ref(), name(other).as_ref(), Vec::new())
    {
        draw(&DiffReport::new(&result));
    }
    draw(&TrendReport { result: &trend::over(&[session.to_owned()]) });
    if random.below(4) == 0 {
        let dirs = vec![session.to_owned(), other.to_owned()];
        let options = MergeOptions { dirs, save: Some(merged.to_owned()), mixed_hosts: true };
        if let Ok(answer) = merge(&options).and_then(|merged| merged.answer()) {
            draw(answer.report(&Views::default()).as_ref());
        }
        let _ = std::fs::remove_dir_all(merged);
    }
}

fn is_json(file: &Path) -> bool {
    file.extension().is_some_and(|e| e == "json")
}

fn is_recording(file: &Path) -> bool {
    let recorded = ["chunks", "bin", "log", "events", "txt", "jsonl"];
    file.extension().is_some_and(|e| recorded.iter().any(|known| e == *known))
}

/// Damages files of sessions for which `of` holds.
fn damage_sessions(what: &str, of: impl Fn(&Path) -> bool) {
    let scratch = tempfile::tempdir().expect("scratch space");
    let folder = scratch.path().join("sessions");
    std::fs::create_dir(&folder).expect("scratch space");
    let sessions: Vec<(PathBuf, Vec<PathBuf>)> = sessions(&folder)
        .into_iter()
        .filter_map(|session| {
            let mut all = Vec::new();
            files(&session, &mut all);
            all.retain(|file| of(file));
            (!all.is_empty()).then_some((session, all))
        })
        .collect();
    let merged = scratch.path().join("merged");
    let chosen = std::cell::Cell::new(0);
    let changed = std::cell::RefCell::new(Vec::new());
    fuzz(
        what,
        &folder,
        |random| {
            chosen.set(random.below(sessions.len()));
            let (_, files) = &sessions[chosen.get()];
            for _ in 0..=random.below(3) {
                let file = random.pick(files);
                let Ok(whole) = std::fs::read(file) else { continue };
                let mut bytes = whole.clone();
                match file.extension().is_some_and(|e| e == "json") {
                    true => damage::json(random, &mut bytes),
                    false => damage::bytes(random, &mut bytes),
                }
                std::fs::write(file, bytes).expect("scratch space");
                changed.borrow_mut().push((file.clone(), whole));
            }
        },
        |random| {
            let (session, _) = &sessions[chosen.get()];
            let (other, _) = random.pick(&sessions);
            read(session, other, random, &merged);
        },
        || {
            // The first that was kept of a file is what it was.
            for (file, whole) in changed.borrow_mut().drain(..).rev() {
                std::fs::write(file, whole).expect("scratch space");
            }
        },
    );
}

#[test]
fn damaged_run_folders_are_read_within_bounds() {
    damage_sessions("run-folders", is_json);
}

#[test]
fn damaged_recordings_are_read_within_bounds() {
    damage_sessions("recordings", is_recording);
}

/// Bytes as they may come: plain or packed.
fn packed(random: &mut Random, bytes: Vec<u8>) -> Vec<u8> {
    match random.below(6) {
        0 => zstd::bulk::compress(&bytes, 1).expect("packed"),
        1 => {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            out.write_all(&bytes).expect("packed");
            out.finish().expect("packed")
        }
        2 => {
            let mut out = liblzma::write::XzEncoder::new(Vec::new(), 0);
            out.write_all(&bytes).expect("packed");
            out.finish().expect("packed")
        }
        _ => bytes,
    }
}

/// Stat, explain, report and convert of a trace.
fn read_trace(path: &Path, random: &mut Random) {
    let options = StatOptions {
        files: vec![path.to_owned()],
        cpu_hz: (random.below(2) == 0).then_some(2e9),
        threads: 1 + random.below(3),
        ..StatOptions::default()
    };
    if let Ok(stats) = stat(&options) {
        let traces = stats.traces.iter();
        draw(&TraceStatReport {
            envelope: &stats.envelope,
            traces: traces.map(|t| NamedTrace { file: &t.file, report: &t.report }).collect(),
            versus: stats.versus.as_ref(),
            warnings: &stats.warnings,
            top: 0,
        });
    }
    let options = vmeter_explain::Options::default();
    if let Ok(explained) = vmeter_explain::explain(&[path.to_owned()], &options) {
        draw(&ExplainReport::new(&explained));
    }
    let sinks: [Box<dyn Sink>; 4] = [
        Box::new(Text::headed()),
        Box::new(Csv::default()),
        Box::new(JsonLines::default()),
        Box::new(PerfettoEvents::new(Some(1e9))),
    ];
    for mut sink in sinks {
        let Ok(mut reader) = Input::open(path).and_then(vmeter_trace::open) else { return };
        let _ = copy(reader.as_mut(), |_| true, sink.as_mut(), &mut std::io::sink());
    }
}

#[test]
fn damaged_traces_are_read_within_bounds() {
    let scratch = tempfile::tempdir().expect("scratch space");
    let path = scratch.path().join("trace");
    let samples = samples::samples();
    fuzz(
        "traces",
        scratch.path(),
        |random| {
            let (_, sample) = random.pick(&samples);
            let mut bytes = sample.clone();
            // Long texts say nothing that short ones do not.
            bytes.truncate(256 << 10);
            damage::bytes(random, &mut bytes);
            let mut bytes = packed(random, bytes);
            if random.below(4) == 0 {
                damage::bytes(random, &mut bytes);
            }
            std::fs::write(&path, bytes).expect("scratch space");
        },
        |random| read_trace(&path, random),
        || {},
    );
}

/// Seeds for the fuzz targets of saved sessions, which read them so (fuzz/fuzz_targets/saved).
#[test]
fn sessions_can_seed() {
    let scratch = tempfile::tempdir().expect("scratch space");
    let sessions = sessions(scratch.path());
    let mut seeds = 0;
    for (target, of) in [("run_folder", is_json as fn(&Path) -> bool), ("recording", is_recording)]
    {
        let mut index = 0u8;
        for session in &sessions {
            let mut all = Vec::new();
            files(session, &mut all);
            all.retain(|file| of(file));
            for (number, file) in (0u8..).zip(&all) {
                let seed = [vec![index, number], std::fs::read(file).expect("a file")].concat();
                seeds += 1;
                let Some(folder) = std::env::var_os("VMETER_FUZZ_SEEDS") else { continue };
                let folder = Path::new(&folder).join(target);
                std::fs::create_dir_all(&folder).expect("a folder for the seeds");
                std::fs::write(folder.join(format!("{index}-{number}")), seed).expect("a seed");
            }
            index += u8::from(!all.is_empty());
        }
    }
    assert!(seeds > 50, "{seeds}");
}
