//! One finished boot on disk: `run.json` and the raw recordings beside it.
//!
//! A session folder holds `session.json` ([`SessionRecord`]) and one folder a
//! run, `runs/0000/`, each with `run.json` ([`RunRecord`], written last: a
//! folder without it is an unfinished run) and the files its sources wrote.
//! Analysis reads nothing else, so a saved run takes the path of a live one.

use crate::end::End;
use crate::machine::{MachineSpec, ResolvedOption};
use crate::moment::Moment;
use crate::time::{ClockReading, Ns};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

vmeter_base::words! {
    /// How a run is watched.
    #[derive(Default)]
    pub enum WatchLevel {
        /// Attach nothing: only start the VMM, wait for it, and read its rusage.
        None = "none",
        /// The whole timeline with every initcall, at a cost too small to matter.
        #[default]
        Light = "light",
        /// The same as `light`, and instruction counts from the TCG plugin.
        Full = "full",
    }
}

vmeter_base::words! {
    /// How vmeter came to a run's VMM.
    #[derive(Default)]
    pub enum Origin {
        /// vmeter started it.
        #[default]
        Boot = "boot",
        /// It ran already, and was looked into while it ran: time 0 is when the guest kernel's
        /// clock began.
        Look = "look",
        /// Somebody else started it while vmeter waited for it; it was neither stopped nor changed.
        Next = "next",
        /// Somebody else started it by a shim of vmeter's, which became the VMM; nothing else was done to it.
        Shim = "shim",
        /// vmeter started it, to go on with a guest from a snapshot.
        Restore = "restore",
    }
}

impl Origin {
    /// True where vmeter itself started the VMM.
    pub fn is_ours(self) -> bool {
        matches!(self, Origin::Boot | Origin::Restore)
    }
}

/// How a run ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Outcome {
    /// The `--until` point was reached (for `poweroff`: the guest powered off).
    #[default]
    Done,
    /// The guest's kernel panicked; the line that says so.
    Panicked {
        /// The panic line.
        line: String,
    },
    /// The VMM ended before the `--until` point.
    NotReady,
    /// The VMM failed: exit status or signal in words, and what it printed.
    VmmFailed {
        /// Status or signal, in words.
        status: String,
        /// Tail of its standard error, terminal escapes neutralised.
        stderr: String,
    },
    /// The timeout passed; the last thing seen.
    TimedOut {
        /// Last line or event seen, in words.
        last: String,
    },
    /// The guest or its VMM ended in another way than the run is measured to.
    UnexpectedEnd {
        /// What happened, in words.
        how: String,
    },
    /// The user interrupted it.
    Interrupted,
}

impl Outcome {
    /// As files, exports and tables have it.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Panicked { .. } => "panicked",
            Outcome::NotReady => "not-ready",
            Outcome::VmmFailed { .. } => "vmm-failed",
            Outcome::TimedOut { .. } => "timed-out",
            Outcome::UnexpectedEnd { .. } => "unexpected-end",
            Outcome::Interrupted => "interrupted",
        }
    }
}

/// Whose failure it is that a run did not reach its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The guest's: it panicked, hung, or ended before its ready point.
    Guest,
    /// The VMM's.
    Vmm,
    /// This host's or vmeter's own: a full disk, say. Such runs are not saved.
    Host,
}

impl Fault {
    /// In JSON.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Guest => "guest",
            Fault::Vmm => "vmm",
            Fault::Host => "host",
        }
    }
}

impl Outcome {
    /// Whose failure it is, if it is one.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Outcome::Done | Outcome::Interrupted => None,
            Outcome::Panicked { .. }
            | Outcome::NotReady
            | Outcome::TimedOut { .. }
            | Outcome::UnexpectedEnd { .. } => Some(Fault::Guest),
            Outcome::VmmFailed { stderr, .. } if is_hosts(stderr) => Some(Fault::Host),
            Outcome::VmmFailed { .. } => Some(Fault::Vmm),
        }
    }
}

/// True for what a VMM says when the host had no room, or vmeter's own plugin did not load.
fn is_hosts(stderr: &str) -> bool {
    let plugin = |line: &str| line.contains("tcg-plugin-") && line.contains("ould not load plugin");
    let full = |line: &str| line.contains("No space left on device");
    stderr.lines().any(|line| plugin(line) || full(line))
}

/// Where a source's raw recording is and how its stamps reach `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// Source name, e.g. `serial`, `qemu-trace`, `guest-ftrace`; picks the decoder.
    pub name: String,
    /// File names inside the run's folder, in the order the decoder expects.
    pub files: Vec<String>,
    /// How its clock was aligned, in words for the report.
    pub clock: String,
    /// The alignment's error bound, ns.
    pub error_ns: Ns,
    /// What the decoder needs to know besides the files, e.g. TSC offsets.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_json::Value>,
}

/// What the kernel accounted to the VMM's process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// User CPU time, s.
    pub user_s: f64,
    /// System CPU time, s.
    pub system_s: f64,
    /// Peak resident set, bytes.
    pub max_rss_bytes: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Minor page faults.
    pub minor_faults: u64,
    /// Major page faults.
    pub major_faults: u64,
}

impl Usage {
    /// User and system CPU time, s.
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }
}

/// One run, as saved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`crate::SCHEMA`].
    pub schema: String,
    /// Number of the run in its session.
    pub index: u32,
    /// Label of the machine it booted, as in [`SessionRecord::machines`].
    pub label: String,
    /// True for a warm-up, which no estimate includes.
    pub warmup: bool,
    /// How it was watched.
    pub watch: WatchLevel,
    /// How vmeter came to its VMM.
    #[serde(default, skip_serializing_if = "is_boot")]
    pub origin: Origin,
    /// The VMM's argument vector as executed.
    pub argv: Vec<String>,
    /// Arguments that vmeter added for watching.
    pub injected: Vec<String>,
    /// How many VMMs were started only to be asked something (`-version`, `-machine none`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub probes: u32,
    /// What was launched ended well, and its VMM or another process of it was still there.
    #[serde(skip)]
    pub outlived: bool,
    /// Its VMM went on after the run, and vmeter let go of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs_on: bool,
    /// `CLOCK_MONOTONIC` immediately before the VMM's `execve`, ns: time 0 of the run.
    pub exec_ns: Ns,
    /// End of the run after exec, ns: the VMM reaped, or the ready point.
    pub total_ns: Ns,
    /// How long vmeter held the VMM to look into it once its guest was done, ns: no part of
    /// [`RunRecord::total_ns`], nor of a moment after it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub looked_ns: Ns,
    /// Clock readings, at least one before the exec and one after the exit.
    pub clocks: Vec<ClockReading>,
    /// How it ended.
    pub outcome: Outcome,
    /// What ended it, by evidence, if it is known.
    #[serde(default, deserialize_with = "End::lenient", skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Resources of the VMM's process.
    pub usage: Usage,
    /// Host CPU time stolen while it ran (from /proc/stat), s.
    pub steal_s: f64,
    /// Time in which a task of the host waited for a CPU while it ran (`some` of
    /// /proc/pressure/cpu), s; none where the host does not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pressure_s: Option<f64>,
    /// What a fixed piece of work took on the host right before it, s of wall time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_s: Option<f64>,
    /// Moments of the VMM's process, ns after exec.
    pub moments: Vec<(Ns, Moment)>,
    /// What was recorded.
    pub sources: Vec<SourceRecord>,
    /// True when the accelerator counts instructions: guest time is virtual time.
    pub icount: bool,
    /// What could not be recorded and why, in words for the user.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Moments to be marked, each `NAME=REGEX` of a line of the console.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<String>,
}

fn is_boot(origin: &Origin) -> bool {
    *origin == Origin::Boot
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

impl RunRecord {
    /// A result tells of it: a measured run, or a warm-up that failed. A failed run is one whether
    /// it was to warm up or not: its machine may have no other.
    pub fn is_told(&self) -> bool {
        !self.warmup || self.outcome != Outcome::Done
    }

    /// When a moment was, ns after exec; the first of several.
    pub fn moment(&self, moment: &Moment) -> Option<Ns> {
        self.moments.iter().find(|(_, m)| m == moment).map(|(at, _)| *at)
    }

    /// When it was looked into, ns after its begin, if its VMM was not started by vmeter: its
    /// recordings may go on after its end.
    pub fn looked_at(&self) -> Option<Ns> {
        let last = self.clocks.last().filter(|_| !self.origin.is_ours())?;
        Some(last.monotonic_ns.saturating_sub(self.exec_ns))
    }

    /// Brings a time after exec, by a clock that went on while vmeter looked into the VMM
    /// ([`RunRecord::looked_ns`]), to this run's, which stood still: the look is the one time
    /// that the VMM was held without any length.
    pub fn on_clock(&self) -> impl Fn(Ns) -> Ns {
        let of = |kind: Moment| self.moments.iter().filter(move |(_, m)| *m == kind);
        let mut looks = of(Moment::VmeterHold)
            .map(|(begin, _)| *begin)
            .filter(|begin| of(Moment::VmeterRelease).any(|(end, _)| end == begin));
        let (begin, length) = (looks.next_back().unwrap_or(Ns::MAX), self.looked_ns.max(0));
        move |at| if at > begin { begin.max(at.saturating_sub(length)) } else { at }
    }
}

/// A machine of a session: what was asked, and what was chosen for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionMachine {
    /// Unique label.
    pub label: String,
    /// What the user asked for.
    pub spec: MachineSpec,
    /// What was chosen for it.
    pub chosen: Vec<ResolvedOption>,
    /// Versions and digests: `vmm`, `kernel`, `firmware`, `initrd`.
    pub provenance: BTreeMap<String, String>,
    /// argv without anything added for watching.
    pub argv: Vec<String>,
    /// What tells it from the session's other machines, e.g. a sweep's parameters.
    #[serde(default)]
    pub parameters: Vec<(String, String)>,
}

/// What a session was asked to be held to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AskedGate {
    /// `--fail-if-slower`, %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_if_slower: Option<f64>,
    /// `--inconclusive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inconclusive: Option<String>,
    /// `--baseline`, in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<std::path::PathBuf>,
}

/// A session: one experiment, its machines and its plan; the runs are beside it.
///
/// `P` is what the plan says of each run: a boot's [`PlannedRun`], or what another kind of
/// experiment needs to know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionRecord<P = PlannedRun> {
    /// [`crate::SCHEMA`].
    pub schema: String,
    /// Kind of the experiment, which is also the command that made it, e.g. `boot`.
    pub command: String,
    /// vmeter's own argument vector.
    pub argv: Vec<String>,
    /// When, RFC 3339 in UTC.
    pub started_at: String,
    /// The host: CPU model, cores, memory, kernel, accelerator quality.
    pub host: BTreeMap<String, serde_json::Value>,
    /// Machines, by label.
    pub machines: Vec<SessionMachine>,
    /// Order of the runs, decided by the seed at the start.
    pub plan: Vec<P>,
    /// Seed of the order.
    pub seed: u64,
    /// `--prepare`: the command before every run, with the placeholders it was given with.
    #[serde(default)]
    pub prepare: Option<String>,
    /// `--pin`: the CPU list as it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    /// What it is held to; sessions of before this was have it in their argv alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<AskedGate>,
    /// What was asked beyond machines and plan, in the kind's own words; null for kinds whose
    /// machines and plan say all.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub asked: serde_json::Value,
    /// The part of the plan that this session carries out; the whole if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<crate::shard::ShardPlan>,
    /// What was found when shards were put together into it, in words for the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What other hosts than `host` carried out of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<crate::shard::HostShare>,
    /// The folder that it was begun in, from which relative paths lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<std::path::PathBuf>,
    /// Programs and scripts that are run, by their paths, with what tells one that was changed:
    /// its digest, or its size and time where it is large.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, String>,
}

/// What the plan of any kind of experiment says of a run.
pub trait Planned: Clone + PartialEq + Serialize + serde::de::DeserializeOwned {
    /// Index into [`SessionRecord::machines`].
    fn machine(&self) -> usize;
    /// True for a warm-up.
    fn warmup(&self) -> bool;
}

impl Planned for PlannedRun {
    fn machine(&self) -> usize {
        self.machine
    }

    fn warmup(&self) -> bool {
        self.warmup
    }
}

/// A planned run of any kind, as far as all kinds agree.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AnyPlanned {
    /// Index into [`SessionRecord::machines`].
    pub machine: usize,
    /// True for a warm-up.
    pub warmup: bool,
    /// What the kind itself knows more.
    #[serde(flatten)]
    pub more: BTreeMap<String, serde_json::Value>,
}

impl Planned for AnyPlanned {
    fn machine(&self) -> usize {
        self.machine
    }

    fn warmup(&self) -> bool {
        self.warmup
    }
}

/// What `run.json` of any kind of experiment says of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    /// [`crate::SCHEMA`].
    pub schema: String,
    /// Number of the run in its session.
    pub index: u32,
    /// Label of its machine, as in [`SessionRecord::machines`].
    pub label: String,
    /// True for a warm-up, which no estimate includes.
    pub warmup: bool,
    /// `CLOCK_MONOTONIC` when it began, ns; of a boot, when its VMM was executed.
    pub exec_ns: Ns,
    /// Its length, ns.
    pub total_ns: Ns,
    /// Clock readings, the first one from its beginning.
    #[serde(default)]
    pub clocks: Vec<ClockReading>,
    /// How it ended.
    pub outcome: Outcome,
}

/// One run of an experiment that boots no machine of the user's: `run.json`, whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataRun<T> {
    /// What all kinds say.
    #[serde(flatten)]
    pub head: RunHead,
    /// What was measured.
    pub data: T,
}

/// One entry of a session's plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRun {
    /// Index into [`SessionRecord::machines`].
    pub machine: usize,
    /// True for a warm-up.
    pub warmup: bool,
    /// How it is watched.
    pub watch: WatchLevel,
}
