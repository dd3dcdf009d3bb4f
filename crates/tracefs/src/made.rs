//! The folder of an instance, from its making to its removal.

use crate::kprobe_events;
use crate::reader::Stop;
use crate::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use vmeter_base::owner::Owner;

/// The folder, removed on drop.
#[derive(Debug)]
pub(crate) struct Made {
    pub folder: PathBuf,
    /// True if there is a probe of its name.
    pub probed: bool,
}

impl Made {
    pub fn new(root: &Path) -> Result<Self, Error> {
        let folder = root.join("instances").join(Owner::this().to_string());
        fs::create_dir(&folder).map_err(Error::at(&folder))?;
        Ok(Made { folder, probed: false })
    }

    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn write(&self, file: &str, value: &str) -> Result<(), Error> {
        let path = self.folder.join(file);
        fs::write(&path, value).map_err(Error::at(&path))
    }

    pub fn set_clock(&self, clocks: &[String]) -> Result<String, Error> {
        let mut refused = None;
        for clock in clocks {
            match self.write("trace_clock", clock) {
                Ok(()) => return Ok(clock.clone()),
                Err(error) => refused = Some(error),
            }
        }
        // None asked for: the instance's own default.
        refused.map_or_else(|| Ok("local".into()), Err)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        forget(&self.folder);
        // If it can't be removed now, the next start's sweep does it.
        let _ = fs::remove_dir(&self.folder);
        if self.probed {
            kprobe_events::remove_of(&self.folder);
        }
    }
}

/// Thread ids of this process, as `set_event_pid` takes them.
pub(crate) fn own_threads() -> String {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut ids: Vec<String> =
        tasks.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    if ids.is_empty() {
        ids.push(std::process::id().to_string());
    }
    ids.join(" ")
}

/// Instances that `exit` has to remove: folder, and who has its files open.
static LIVE: Mutex<Vec<(PathBuf, Option<Arc<Stop>>)>> = Mutex::new(Vec::new());

/// To be removed by `exit` too: one with a reader, or one with a probe.
pub(crate) fn register(folder: &Path, stop: Option<&Arc<Stop>>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a plain function without arguments that does not
        // unwind; should it not be accepted, the next start's sweep cleans up.
        unsafe { libc::atexit(remove_all) };
    });
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    live.push((folder.to_owned(), stop.cloned()));
}

fn forget(folder: &Path) {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| known != folder);
}

extern "C" fn remove_all() {
    let live = std::mem::take(&mut *LIVE.lock().unwrap_or_else(PoisonError::into_inner));
    for (folder, stop) in live {
        if let Some(stop) = &stop {
            stop.end();
        }
        let _ = fs::remove_dir(&folder);
        if stop.is_none() {
            kprobe_events::remove_of(&folder);
        }
    }
}
