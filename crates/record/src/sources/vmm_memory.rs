//! What the VMM's process consists of at the end of a run: `/proc/PID/smaps` and its like,
//! copied while the process is stopped.

mod areas;
mod parts;

pub use areas::{Area, Rollup};
pub use parts::Part;

use super::{path_of, MAX_FILE};
use crate::recorder::{self, Context, Live, NoParameters, Recorder, Saved, SourceError};
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_machine::argv;
use vmeter_machine::launch::Tracee;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::SourceRecord;
use vmeter_model::{Event, Ns};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "vmm-memory";

/// Files in the run's folder, in the order of [`SourceRecord::files`]: of the process's folder
/// in `/proc` the three that say how much memory it has, as the kernel wrote them; stack
/// pointers of its threads, hexadecimal, one a line; and a line with the size of its guest's
/// memory, MiB (0 if the command line does not say), one with the path of its image, and one
/// with each of its arguments.
const FILES: [&str; 5] =
    ["vmm-smaps.txt", "vmm-smaps-rollup.txt", "vmm-status.txt", "vmm-stacks.txt", "vmm-facts.txt"];

/// The memory of the VMM's process.
pub struct VmmMemory;

impl Recorder for VmmMemory {
    type Parameters = NoParameters;
    type Raw = Memory;
    const NAME: &'static str = NAME;

    /// Only where memory is what is measured: the look takes the kernel some ms.
    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        context.memory.then(|| {
            Box::new(Recording {
                dir: context.dir.to_owned(),
                memory_mib: 0,
                arguments: Vec::new(),
                looked: false,
            }) as Box<dyn Live>
        })
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        _: NoParameters,
    ) -> Result<Memory, SourceError> {
        let text = |index| {
            let path = path_of(dir, source, index)?;
            let bytes = files::read_limited(&path, MAX_FILE)
                .map_err(|error| SourceError::Io { path, error })?;
            Ok::<_, SourceError>(String::from_utf8_lossy(&bytes).into_owned())
        };
        let facts = text(4)?;
        let mut facts = facts.lines();
        let memory_mib: u64 = facts.next().and_then(|line| line.parse().ok()).unwrap_or(0);
        let stacks: Vec<u64> =
            text(3)?.lines().filter_map(|line| u64::from_str_radix(line, 16).ok()).collect();
        let areas = areas::areas(&text(0)?);
        let known = parts::Known {
            stacks: &stacks,
            memory_bytes: memory_mib.saturating_mul(1 << 20),
            image: facts.next().unwrap_or_default(),
            arguments: &facts.collect::<Vec<_>>(),
        };
        let missing =
            |what: &str| SourceError::Other(format!("{NAME}: /proc has no {what} of the VMM"));
        Ok(Memory {
            parts: parts::parts(&areas, &known),
            areas: areas.len(),
            rollup: Rollup::parse(&text(1)?).ok_or_else(|| missing("Rss and Pss"))?,
            peak_rss_bytes: areas::kib(&text(2)?, "VmHWM")
                .and_then(|kib| kib.checked_mul(1024))
                .ok_or_else(|| missing("VmHWM"))?,
        })
    }

    /// It happens at the end, and is no event.
    fn decode(
        &self,
        _: &Memory,
        _: &SourceRecord,
        _: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        Ok(Vec::new())
    }
}

/// What a VMM's process had at the end of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// The most that was ever resident, bytes (`VmHWM`).
    pub peak_rss_bytes: u64,
    /// What is resident, as the kernel adds it up (`smaps_rollup`).
    pub rollup: Rollup,
    /// What it consists of: each part with the sums of its areas, largest first.
    pub parts: Vec<(Part, Rollup)>,
    /// How many areas of memory it had.
    pub areas: usize,
}

struct Recording {
    dir: PathBuf,
    memory_mib: u64,
    arguments: Vec<String>,
    looked: bool,
}

impl Recording {
    fn write(&self, index: usize, bytes: &[u8]) -> Result<(), SourceError> {
        let path = self.dir.join(FILES[index]);
        std::fs::write(&path, bytes).map_err(|error| SourceError::Io { path, error })
    }
}

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        self.memory_mib = argv::memory_mib(&plan.argv).unwrap_or(0);
        self.arguments = plan.argv.iter().map(|a| a.to_string_lossy().into_owned()).collect();
        Ok(())
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        let process = PathBuf::from(format!("/proc/{}", tracee.pid));
        for (index, name) in ["smaps", "smaps_rollup", "status"].into_iter().enumerate() {
            let path = process.join(name);
            let text = std::fs::read(&path).map_err(|error| SourceError::Io { path, error })?;
            self.write(index, &text)?;
        }
        let stacks: String =
            stack_pointers(&process).iter().map(|at| format!("{at:x}\n")).collect();
        self.write(3, stacks.as_bytes())?;
        let image = std::fs::read_link(process.join("exe")).unwrap_or_default();
        let arguments = self.arguments.join("\n");
        let facts = format!("{}\n{}\n{arguments}\n", self.memory_mib, image.display());
        self.write(4, facts.as_bytes())?;
        self.looked = true;
        Ok(())
    }

    fn finish(self: Box<Self>, _: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let clock = "no clock: vmeter read the values at the end of the run";
        Ok(self
            .looked
            .then(|| recorder::record::<VmmMemory>(&FILES, clock, 0, &NoParameters::default())))
    }
}

/// Where the stacks of a process's threads are: `/proc/PID/task/TID/syscall` ends in stack
/// pointer and program counter while a thread does not run (proc(5)).
fn stack_pointers(process: &Path) -> Vec<u64> {
    let tasks = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let pointer = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("syscall")).ok()?;
        let mut words = text.split_whitespace().rev().skip(1);
        u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()
    };
    tasks.filter_map(pointer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_looked_at_adds_up() {
        let dir = tempfile::tempdir().expect("a folder");
        let me = Tracee { pid: std::process::id() as i32, stopped_ns: 0 };
        let mut recording = Recording {
            dir: dir.path().into(),
            memory_mib: 0,
            arguments: Vec::new(),
            looked: false,
        };
        recording.exiting(&me).expect("own /proc is readable");
        let record = Box::new(recording).finish(0).expect("kept").expect("looked");
        let memory = Recorder::read(&VmmMemory, dir.path(), &record, NoParameters::default())
            .expect("what was written is read");
        assert!(memory.areas > 10 && memory.rollup.rss_bytes > 0, "{memory:?}");
        assert!(memory.peak_rss_bytes >= memory.rollup.rss_bytes / 2, "{memory:?}");
        let sum: u64 = memory.parts.iter().map(|(_, sums)| sums.rss_bytes).sum();
        // The test's other threads go on between the two reads.
        let (low, high) = (sum.min(memory.rollup.rss_bytes), sum.max(memory.rollup.rss_bytes));
        assert!(high - low < 8 << 20, "{memory:?}");
        assert!(memory.parts.iter().any(|(part, _)| *part == Part::Program), "{memory:?}");
    }
}
