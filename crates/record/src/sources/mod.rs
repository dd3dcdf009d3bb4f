//! The sources, one file each, registered here.

pub mod console;
pub mod firmware;
pub mod guest_ftrace;
pub mod guest_pages;
pub mod guest_printk;
pub mod guest_units;
pub mod kvm_trace;
pub mod launcher;
pub mod log_growth;
pub mod mock;
pub mod monitor;
pub mod page_faults;
pub mod qemu_trace;
pub mod snapshot_files;
pub mod snapshot_pages;
pub mod tcg_plugin;
pub mod vmm_events;
pub mod vmm_memory;
pub mod vmm_threads;
pub mod wave_trace;

use crate::recorder::{AnyRecorder, SourceError};
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_model::run::SourceRecord;

/// Every recorder, in the order they are attached. A new one is a file and a line here.
pub fn all() -> &'static [&'static dyn AnyRecorder] {
    &[
        &console::Console,
        &firmware::Firmware,
        &monitor::Monitor,
        &launcher::Launcher,
        &vmm_events::VmmEvents,
        &vmm_threads::VmmThreads,
        &qemu_trace::QemuTrace,
        &snapshot_files::SnapshotFiles,
        &snapshot_pages::SnapshotPages,
        &page_faults::PageFaults,
        &tcg_plugin::TcgPlugin,
        &kvm_trace::KvmTrace,
        &vmm_memory::VmmMemory,
        &guest_ftrace::GuestFtrace,
        &guest_pages::GuestPages,
        &log_growth::LogGrowth,
        &guest_printk::GuestPrintk,
        &guest_units::GuestUnits,
        &mock::Mock,
        &wave_trace::WaveTrace,
    ]
}

/// The line of a VMM's error output that says that something called like this could not be
/// had. A wrapper that prints its commands names them as well, and says nothing of the kind.
fn blamed_line(stderr: &str, names: &[&str]) -> Option<String> {
    const WORDS: [&str; 5] = ["could not", "cannot", "can't", "failed", "no space"];
    let says = |line: &&str| {
        let lower = line.to_lowercase();
        names.iter().any(|name| line.contains(name)) && WORDS.iter().any(|w| lower.contains(w))
    };
    stderr.lines().find(says).map(|line| line.trim().to_owned())
}

/// A recording is read whole; a larger one than this is not vmeter's.
const MAX_FILE: u64 = 256 << 20;

/// The path of a source's `index`th file inside the run's folder.
///
/// # Errors
/// When the record names no such file, or one outside its folder.
pub fn path_of(dir: &Path, source: &SourceRecord, index: usize) -> Result<PathBuf, SourceError> {
    let name = source.files.get(index).ok_or_else(|| {
        SourceError::Other(format!("{}: run.json names no file {index}", source.name))
    })?;
    if name.contains('/') || name == ".." {
        return Err(SourceError::Other(format!(
            "{}: file name {name:?} points outside the run's folder, so this run.json does not \
             come from vmeter",
            source.name
        )));
    }
    Ok(dir.join(name))
}

/// The bytes of a source's `index`th file inside the run's folder.
///
/// # Errors
/// As [`path_of`], or when it cannot be read.
pub fn read_bounded(
    dir: &Path,
    source: &SourceRecord,
    index: usize,
) -> Result<Vec<u8>, SourceError> {
    let path = path_of(dir, source, index)?;
    files::read_limited(&path, MAX_FILE).map_err(|error| SourceError::Io { path, error })
}
