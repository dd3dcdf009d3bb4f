//! A kprobe of one's own, seen by an instance of one's own alone, as text.

use crate::kprobe_events::{append, group, EVENT, LIST};
use crate::made::{own_threads, register, Made};
use crate::{Error, Tracefs};
use std::fs;
use std::io::Read;

/// The ring buffer of each CPU, KiB: a probe is for what happens seldom.
const BUFFER_KIB: &str = "64";
/// More than such a buffer holds as text on any host that has few CPUs.
const MOST: u64 = 4 << 20;

/// A probe; dropping it removes it.
#[derive(Debug)]
pub struct Probe {
    made: Made,
}

impl Probe {
    /// Probes the first of these functions that the kernel has, in threads that this process
    /// starts from now on. `arguments` is what is kept, as the kernel takes it
    /// (`slot=+0(%si):u32`).
    ///
    /// # Errors
    /// A kernel without kprobes, or one that takes none of these; a user who may not.
    pub fn start(tracefs: &Tracefs, functions: &[&str], arguments: &str) -> Result<Self, Error> {
        let list = tracefs.root().join(LIST);
        let mut made = Made::new(tracefs.root())?;
        let group = group(&made.name());
        made.probed = true;
        register(&made.folder, None);
        let mut refused = None;
        for function in functions {
            match append(&list, &format!("p:{group}/{EVENT} {function} {arguments}")) {
                Ok(()) => {
                    refused = None;
                    break;
                }
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
        made.write("buffer_size_kb", BUFFER_KIB)?;
        made.write("options/event-fork", "1")?;
        made.write("set_event_pid", &own_threads())?;
        made.write(&format!("events/{group}/{EVENT}/enable"), "1")?;
        made.write("tracing_on", "1")?;
        Ok(Probe { made })
    }

    /// What it saw, a line each, as the instance's file `trace` has it; nothing is consumed.
    ///
    /// # Errors
    /// When that can't be read.
    pub fn text(&self) -> Result<String, Error> {
        let path = self.made.folder.join("trace");
        let mut text = Vec::new();
        let read = fs::File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut text));
        read.map_err(Error::at(&path))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
