//! An instance from its making to its removal.

use crate::made::{own_threads, register, Made};
use crate::reader::Reader;
use crate::trace_dat::{Head, Recorded};
use crate::{Error, Tracefs};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What is recorded, and how much of it at most.
#[derive(Debug, Clone)]
pub struct Plan {
    events: Vec<String>,
    clocks: Vec<String>,
    filters: Vec<(String, String)>,
    own_children: bool,
    threads: Vec<i32>,
    pub(crate) symbols: Option<String>,
    buffer_kib: u64,
    limit: u64,
    spool: PathBuf,
}

/// All ring buffers together, KiB: a host may have hundreds of CPUs.
const BUFFERS_KIB: u64 = 64 << 10;
/// What a buffer is filled to when its reader is woken, percent.
const WAKE_AT: &str = "25";

impl Plan {
    /// Events by `system:name`; those that the kernel does not have are passed over.
    pub fn new(events: &[&str]) -> Self {
        let own = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect();
        Plan {
            events: own(events),
            clocks: own(&["mono", "x86-tsc"]),
            filters: Vec::new(),
            own_children: false,
            threads: Vec::new(),
            symbols: None,
            buffer_kib: 1024,
            limit: 192 << 20,
            spool: std::env::temp_dir(),
        }
    }

    /// The trace clock: the first of these that the kernel has. By default `mono`,
    /// which is `CLOCK_MONOTONIC` in ns (`mono_raw` is not: it is not slewed by
    /// NTP), and `x86-tsc` where there is no `mono` (before Linux 4.2).
    pub fn clocks(mut self, clocks: &[&str]) -> Self {
        self.clocks = clocks.iter().map(|&s| s.to_owned()).collect();
        self
    }

    /// Of an event (`system:name`) only those for which an expression holds, e.g.
    /// `common_pid == 42` (Documentation/trace/events.rst, "Event filtering").
    pub fn filter(mut self, event: &str, expression: &str) -> Self {
        self.filters.push((event.to_owned(), expression.to_owned()));
        self
    }

    /// Only threads and processes that this process starts from now on, and theirs.
    /// The kernel follows the forks, so nothing has to be done when one starts.
    pub fn of_own_children(mut self) -> Self {
        self.own_children = true;
        self
    }

    /// Only these threads, and what they start from now on.
    pub fn of_threads(mut self, tids: &[i32]) -> Self {
        self.threads = tids.to_vec();
        self
    }

    /// True if processes are chosen by their numbers.
    pub(crate) fn names_processes(&self) -> bool {
        self.own_children || !self.threads.is_empty() || !self.filters.is_empty()
    }

    /// With the kernel's symbols (some megabytes): functions then have names.
    pub fn with_symbols(self) -> Self {
        self.with_symbols_of("")
    }

    /// With those of the kernel's symbols that have `part` in their names: other functions
    /// have no names then, or wrong ones.
    pub fn with_symbols_of(mut self, part: &str) -> Self {
        self.symbols = Some(part.to_owned());
        self
    }

    /// Ring buffer of each CPU, KiB; less where there are many CPUs.
    pub fn buffer_kib(mut self, kib: u64) -> Self {
        self.buffer_kib = kib;
        self
    }

    /// Bytes after which recording is switched off; 192 MiB by default.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Folder for the unnamed files that pages are kept in; best where the trace
    /// will be saved.
    pub fn spool(mut self, folder: &Path) -> Self {
        self.spool = folder.to_owned();
        self
    }
}

/// A recording instance. Dropping it ends the recording and removes it; so does the
/// end of the process by `exit`, whichever thread calls that.
#[derive(Debug)]
pub struct Instance {
    made: Option<Made>,
    reader: Option<Reader>,
    head: Head,
}

impl Instance {
    fn start(tracefs: &Tracefs, plan: &Plan) -> Result<Self, Error> {
        let formats: Vec<(String, String)> = plan
            .events
            .iter()
            .filter_map(|event| Some((event.clone(), tracefs.format(event)?)))
            .collect();
        if formats.is_empty() {
            return Err(no_events(plan));
        }
        let made = Made::new(tracefs.root())?;
        made.write("tracing_on", "0")?;
        made.write("buffer_size_kb", &buffer_kib(&made.folder, plan).to_string())?;
        // Kernels before 5.0 have no such file; they wake the reader more often.
        let _ = made.write("buffer_percent", WAKE_AT);
        let clock = made.set_clock(&plan.clocks)?;
        if plan.own_children {
            made.write("options/event-fork", "1")?;
            let own = own_threads();
            made.write("set_event_pid", &own)?;
        } else if !plan.threads.is_empty() {
            made.write("options/event-fork", "1")?;
            let ids: Vec<String> = plan.threads.iter().map(i32::to_string).collect();
            made.write("set_event_pid", &ids.join(" "))?;
        }
        for (event, _) in &formats {
            let folder = format!("events/{}", event.replacen(':', "/", 1));
            for (_, expression) in plan.filters.iter().filter(|(name, _)| name == event) {
                made.write(&format!("{folder}/filter"), expression)?;
            }
            made.write(&format!("{folder}/enable"), "1")?;
        }
        let mut head = Head::new(tracefs.root(), &made.folder, clock, formats)?;
        if let Some(part) = &plan.symbols {
            head.note_symbols(part);
        }
        let reader = Reader::start(&made.folder, &plan.spool, plan.limit, head.page_size)?;
        register(&made.folder, Some(&reader.stop));
        made.write("tracing_on", "1")?;
        Ok(Instance { made: Some(made), reader: Some(reader), head })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.made.as_ref().map_or(Path::new(""), |made| &made.folder)
    }

    /// The trace clock in use, e.g. `mono`.
    pub fn clock(&self) -> &str {
        &self.head.clock
    }

    /// Records these threads as well, if the recording is one of certain threads.
    ///
    /// # Errors
    /// Numbers that no thread can have.
    pub fn follow(&self, tids: &[i32]) -> Result<(), Error> {
        if tids.is_empty() {
            return Ok(());
        }
        let path = self.folder().join("set_event_pid");
        let ids: Vec<String> = tids.iter().map(i32::to_string).collect();
        // Not truncated: what is followed already stays so.
        let file = fs::OpenOptions::new().write(true).open(&path).map_err(Error::at(&path))?;
        (&file).write_all(ids.join(" ").as_bytes()).map_err(Error::at(&path))
    }

    /// Ends the recording, removes the instance and gives what was recorded.
    ///
    /// # Errors
    /// [`Error::Thread`] if pages could not be read. The instance is gone even then.
    pub fn stop(mut self) -> Result<Recorded, Error> {
        if let Some(made) = &self.made {
            made.write("tracing_on", "0")?;
        }
        let pages = match self.reader.take() {
            Some(reader) => reader.finish()?,
            None => return Err(Error::Thread("had ended before".into())),
        };
        self.head.note_threads();
        // All its files are closed now.
        self.made = None;
        let head = std::mem::take(&mut self.head);
        Ok(Recorded::new(head, pages))
    }
}

impl Tracefs {
    /// Makes an instance and begins to record. Stale ones are removed before.
    ///
    /// # Errors
    /// [`Error::NoEvents`], [`Error::NotPermitted`], [`Error::OtherProcesses`], [`Error::Io`].
    /// Nothing is left behind then.
    pub fn record(&self, plan: &Plan) -> Result<Instance, Error> {
        if plan.names_processes() && !Self::same_processes() {
            return Err(Error::OtherProcesses);
        }
        self.sweep();
        Instance::start(self, plan)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Files of the instance must be closed before it can be removed.
        self.reader = None;
        self.made = None;
    }
}

fn no_events(plan: &Plan) -> Error {
    let of_kvm = plan.events.iter().any(|e| e.starts_with("kvm:"));
    Error::NoEvents {
        events: plan.events.join(", "),
        hint: if of_kvm {
            "to get these events, load KVM's module: `sudo modprobe kvm_intel` or `kvm_amd`"
        } else {
            "see /sys/kernel/tracing/available_events"
        },
    }
}

/// KiB of ring buffer for each CPU, so that all of them stay within bounds.
fn buffer_kib(folder: &Path, plan: &Plan) -> u64 {
    let cpus = fs::read_dir(folder.join("per_cpu")).map_or(1, |d| d.count().max(1) as u64);
    plan.buffer_kib.min((BUFFERS_KIB / cpus).max(64))
}
