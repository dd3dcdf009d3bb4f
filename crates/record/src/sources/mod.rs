//! The sources, one file each, registered here.

pub mod console;
pub mod firmware;
pub mod guest_ftrace;
pub mod guest_printk;
pub mod kvm_trace;
pub mod mock;
pub mod qemu_trace;
pub mod tcg_plugin;

use crate::recorder::{AnyRecorder, SourceError};
use std::io::Read;
use std::path::{Path, PathBuf};
use vmeter_model::run::SourceRecord;

/// Every recorder, in the order they are attached. A new one is a file and a line here.
pub fn all() -> &'static [&'static dyn AnyRecorder] {
    &[
        &console::Console,
        &firmware::Firmware,
        &qemu_trace::QemuTrace,
        &tcg_plugin::TcgPlugin,
        &kvm_trace::KvmTrace,
        &guest_ftrace::GuestFtrace,
        &guest_printk::GuestPrintk,
        &mock::Mock,
    ]
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
            "{}: file name {name:?} leaves the run's folder; run.json was not written by vmeter",
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
    let mut bytes = Vec::new();
    std::fs::File::open(&path)
        .and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes))
        .map_err(|error| SourceError::Io { path, error })?;
    Ok(bytes)
}
