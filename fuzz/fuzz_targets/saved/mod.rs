//! A saved session one of whose files is the input, through what show, report and diff call.
//!
//! An input's first byte chooses the session, its second the file; what follows is what the
//! file holds.

use crate::common::MEMORY;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use vmeter_lab::diff::report::DiffReport;
use vmeter_lab::kinds;
use vmeter_render::{Report, OUTPUTS};
use vmeter_session::Views;

/// Most memory that one input may take, bytes.
const MOST: usize = 200 << 20;

/// A session, and those of its files that may be replaced.
struct Saved {
    dir: PathBuf,
    files: Vec<PathBuf>,
}

thread_local! {
    static SESSIONS: OnceCell<(tempfile::TempDir, Vec<Saved>)> = const { OnceCell::new() };
}

/// Files below a folder for which `of` holds, sorted.
fn files(folder: &Path, of: fn(&Path) -> bool, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => files(&path, of, found),
            false if of(&path) => found.push(path),
            false => {}
        }
    }
    found.sort();
}

/// The saved sessions, unpacked; as the test `mutations` has them for the seeds.
fn unpacked(of: fn(&Path) -> bool) -> (tempfile::TempDir, Vec<Saved>) {
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/sessions/saved.tar.gz");
    let folder = tempfile::tempdir().expect("scratch space");
    let tar = Command::new("tar").args(["-xzf", archive, "-C"]).arg(folder.path()).status();
    assert!(tar.expect("tar").success());
    let entries = std::fs::read_dir(folder.path()).expect("sessions").flatten();
    let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    dirs.sort();
    let saved = dirs.into_iter().map(|dir| {
        let mut found = Vec::new();
        files(&dir, of, &mut found);
        Saved { dir, files: found }
    });
    let saved = saved.filter(|saved| !saved.files.is_empty()).collect();
    (folder, saved)
}

fn draw(report: &dyn Report) {
    for output in OUTPUTS {
        // A result that has nothing for an output is an answer.
        let _ = output.write(report, &mut std::io::sink());
    }
}

fn read(dir: &Path) {
    if let Ok(answer) = kinds::answer(dir) {
        let views = Views { long: true, blame: true, critical_chain: true, tree: true };
        draw(answer.report(&views).as_ref());
    }
    let name = dir.display().to_string();
    if let Ok(result) = vmeter_lab::diff::saved::diff(&name, &name, Vec::new()) {
        draw(&DiffReport::new(&result));
    }
}

/// Replaces a file for which `of` holds, and reads the session.
pub fn damaged(input: &[u8], of: fn(&Path) -> bool) {
    let [session, file, bytes @ ..] = input else { return };
    SESSIONS.with(|sessions| {
        let (_, all) = sessions.get_or_init(|| unpacked(of));
        let saved = &all[usize::from(*session) % all.len()];
        let file = &saved.files[usize::from(*file) % saved.files.len()];
        let whole = std::fs::read(file).expect("unpacked");
        std::fs::write(file, bytes).expect("scratch space");
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        read(&saved.dir);
        let used = MEMORY.peak_usage().saturating_sub(before);
        assert!(used <= MOST, "{used} bytes were taken for an input of {}", bytes.len());
        std::fs::write(file, whole).expect("scratch space");
    });
}
