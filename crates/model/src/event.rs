//! What a recording says happened, on one clock.
//!
//! Sources decode their raw files into these; the timeline makes spans of them
//! and knows nothing of where they came from.

use crate::time::Ns;
use serde::{Deserialize, Serialize};

vmeter_base::words! {
    /// What let a machine stand still.
    pub enum Stall {
        /// A signal stopped the VMM (SIGSTOP, a terminal's Ctrl-Z).
        Stopped = "host:vmm-stopped",
        /// The host gave the vCPU no CPU, though it was ready to run.
        NoCpu = "host:no-cpu",
    }
}

/// One thing that happened, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When: ns after the exec of the VMM (0 is the exec itself).
    pub at: Ns,
    /// How far off `at` can be, ns: the error of the clock alignment.
    pub error_ns: Ns,
    /// Name of the source that saw it, as in [`crate::run::SourceRecord::name`].
    pub source: String,
    /// Instructions the guest had executed by then, where the source counts them.
    pub insns: Option<u64>,
    /// What it was.
    pub what: EventKind,
}

/// The kinds of event that the timeline understands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EventKind {
    /// The VMM's `execve` returned in the new image (end of the kernel's exec work).
    VmmExec,
    /// The `execve` of a wrapper (a script, `taskset`) that will execute the VMM in its turn.
    WrapperExec,
    /// The VMM's own entry point (`AT_ENTRY`): the dynamic linker is done.
    VmmEntry,
    /// The VMM's `main`.
    VmmMain,
    /// All of the VMM's threads sleep from here on, until its machine is started.
    VmmWaits,
    /// The VMM goes on to another part of the snapshot that it restores.
    SnapshotPart {
        /// What it loads from here on.
        part: SnapshotPart,
    },
    /// The launcher is done with something that it does for the VMM: a request to its API, serving its
    /// page faults.
    Launched {
        /// What, e.g. `PUT /snapshot/load`.
        what: String,
        /// How long it took, ns.
        ns: Ns,
    },
    /// The VMM changed its run state (QEMU's `runstate_set`), e.g. `running`, `shutdown`.
    RunState {
        /// State entered, as the VMM spells it.
        state: String,
    },
    /// The VMM began to exit (`exit_group`).
    VmmExiting,
    /// The VMM is gone, and the wrapper that started it as a child goes on.
    WrapperResumed,
    /// The VMM is gone: the end of the run.
    VmmExit,
    /// The VMM was killed by vmeter because the ready point or the timeout was reached.
    VmmKilled,
    /// A line of the firmware's debug log (port 0x402), stamped on arrival.
    FirmwareLine {
        /// The line, without its end.
        text: String,
    },
    /// A line on the serial console, stamped when its first byte arrived.
    ConsoleLine {
        /// The line, without its end.
        text: String,
        /// When the line's last byte arrived, ns after exec.
        end: Ns,
        /// From which byte of the text on it arrived later than what is before, and when, ns
        /// after exec; in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        later: Vec<(u32, Ns)>,
    },
    /// A record of the guest kernel's log buffer, stamped by the guest.
    KernelLine {
        /// The record's text.
        text: String,
        /// True if a program wrote it to `/dev/kmsg`: what it says of the kernel is hearsay.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_program: bool,
    },
    /// A vCPU executed the first instruction of a listed address.
    Reached {
        /// Name of the address, e.g. `start_kernel`, `reset-vector`.
        symbol: String,
    },
    /// A kernel initcall began (`initcall:initcall_start`, or `do_one_initcall` reached).
    InitcallStart {
        /// Function, without offset.
        function: String,
        /// Module it belongs to, if any.
        module: Option<String>,
        /// Thread that runs it, where known (async initcalls and udev workers overlap).
        pid: Option<i32>,
    },
    /// A kernel initcall returned.
    InitcallEnd {
        /// Function, without offset.
        function: String,
        /// Thread that ran it, where known.
        pid: Option<i32>,
        /// Its return value, where known.
        ret: Option<i64>,
    },
    /// The kernel enters an initcall level (`early`, `core`, … `late`).
    InitcallLevel {
        /// Level name.
        level: String,
    },
    /// A module's code is loaded and about to be initialised (`module:module_load`).
    ModuleLoad {
        /// Module name.
        module: String,
        /// Thread that loads it.
        pid: Option<i32>,
    },
    /// A step of user space begins, said by the init itself (trace marker or console).
    StepStart {
        /// Step name, e.g. `mount`, `insmod virtio_pci`, `udev-settle`.
        step: String,
    },
    /// A step of user space ended.
    StepEnd {
        /// Step name.
        step: String,
    },
    /// A process replaced its image (`sched:sched_process_exec`).
    ProcessExec {
        /// Process id in the guest.
        pid: i32,
        /// File executed.
        file: String,
    },
    /// A process ended (`sched:sched_process_exit`).
    ProcessExit {
        /// Process id in the guest.
        pid: i32,
        /// Its command name.
        comm: String,
    },
    /// A thread began another (`task:task_newtask`).
    ProcessFork {
        /// The new thread.
        pid: i32,
        /// The one that began it.
        parent: i32,
        /// True if it is one more thread of the same process.
        thread: bool,
    },
    /// What a new image was executed with, just before its `ProcessExec`.
    ProcessArguments {
        /// Process id in the guest.
        pid: i32,
        /// Its arguments from the first (`argv[0]`), as far as they were kept.
        arguments: Vec<String>,
    },
    /// A thread waits for the end of a child, or asks for it
    /// (`sched:sched_process_wait`).
    ProcessWait {
        /// Who waits.
        pid: i32,
        /// For whom; none for any child.
        child: Option<i32>,
    },
    /// An ended process was taken away by who had waited for it.
    ProcessReap {
        /// The process that is no more.
        pid: i32,
        /// Who took it away; itself, if nobody waited.
        by: i32,
        /// How it ended, as wait(2) says it, where known.
        status: Option<i32>,
        /// CPU time that it had had, ns.
        cpu_ns: u64,
        /// Last name of its control group's path; empty if it was in the root.
        group: String,
    },
    /// A process was put into a control group (`cgroup:cgroup_attach_task`).
    ProcessGroup {
        /// Process id in the guest.
        pid: i32,
        /// Path of the group, e.g. `/system.slice/ssh.service`.
        path: String,
    },
    /// What a file of the guest's systemd says of a unit. It has no time.
    UnitFile {
        /// What it says.
        file: UnitFile,
    },
    /// The guest said that it is ready (the `--until` point of docs/INTERFACE.md was reached).
    Ready,
    /// What the console had said of a line when the ready point was seen in it.
    ReadyLine {
        /// The line, without a line end, and perhaps without its last words.
        text: String,
    },
    /// The guest's init asked the kernel to power off, or its shutdown was seen to begin.
    ShutdownStart,
    /// The machine was told to power off by the guest (ACPI, debug exit, reset).
    PowerOff,
    /// A PCI configuration space access.
    PciConfig {
        /// True for a write.
        write: bool,
        /// Device as QEMU names it, e.g. `virtio-blk-pci 00:03.0`.
        device: String,
        /// Register offset, bytes.
        register: u32,
    },
    /// A fw_cfg selector was chosen, or data read: `item` is the selector key.
    FwCfg {
        /// Selector key.
        item: u32,
        /// Bytes transferred by it, if known.
        bytes: u64,
    },
    /// The guest read from a disk.
    DiskRead {
        /// Which: a number that is the same throughout a run.
        disk: u64,
        /// Where, bytes from the disk's start.
        offset: u64,
        /// How much.
        bytes: u64,
    },
    /// The VMM has read so much since it was looked at before: of its disks, as far as these are
    /// files.
    VmmRead {
        /// How much.
        bytes: u64,
    },
    /// The machine stood still, up to now.
    Stalled {
        /// For so long, ns.
        ns: Ns,
        /// By what.
        by: Stall,
    },
    /// The guest had the whole machine reset, which went on.
    MachineReset,
    /// A driver in the guest reset a virtio device (it wrote 0 to its status).
    VirtioReset,
    /// The console was told to clear its screen (`ESC [ 2 J`).
    ScreenCleared,
    /// Something worth showing on the timeline that needs no span of its own.
    Note {
        /// What.
        text: String,
    },
    /// A counter's final value, e.g. `guest_insns`, `exits`, `console_bytes`.
    Count {
        /// Counter name, as in the JSON `counts`.
        name: String,
        /// Value.
        value: u64,
    },
}

/// What a VMM is at that restores a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "kebab-case")]
pub enum SnapshotPart {
    /// The guest's RAM.
    Ram,
    /// The state of a device, or of the machine.
    State {
        /// Which, as the VMM or its file is called; empty if nothing says so.
        device: String,
    },
    /// A file that holds both.
    Both,
    /// Something else, of which nothing is known.
    Other,
    /// Everything is loaded.
    Loaded,
}

/// A unit of systemd, as far as its files say what it waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFile {
    /// Its name; of a template the one with nothing after its `@`; empty where only its
    /// description is known.
    pub name: String,
    /// Its description.
    pub description: String,
    /// Units that it starts after.
    pub after: Vec<String>,
    /// Units that start after it.
    pub before: Vec<String>,
    /// Units that it wants or requires.
    pub pulls: Vec<String>,
    /// Units that want or require it, once it is enabled.
    pub pulled_by: Vec<String>,
    /// True if systemd adds the dependencies of its kind of unit.
    pub default: bool,
}
