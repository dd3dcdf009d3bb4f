//! `vmeter trace record`: tracepoints of a VMM, of a command, or of the whole host.
//!
//! Recording is an instance of tracefs of one's own (`vmeter-tracefs`), so nothing
//! that others trace is disturbed. A command is held at its exec until recording has
//! begun, and nothing but it and what it starts is recorded. It ends when the command or the VMM ends, when the
//! time is over, or by a signal; in each case what was recorded is saved.

use crate::followed::{numbers, Followed, INTERVAL};
use anyhow::{Context, Result};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::process::{kill_process, pidfd_open, Pid, PidfdFlags, Signal};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use vmeter_base::marked;
use vmeter_base::owner::Owner;
use vmeter_base::process::Stat;
use vmeter_machine::launch::Held;
use vmeter_session::failure::{host, usage};
use vmeter_session::Interrupt;
use vmeter_trace::select::glob;
use vmeter_trace::Input;
use vmeter_tracefs::{Instance, Plan, Tracefs};

/// How long a command may take to end once it is asked to.
const GRACE: Duration = Duration::from_millis(300);

/// A set of events for one kind of question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Name.
    pub name: &'static str,
    /// Patterns for `system:name`; what the kernel lacks is passed over.
    pub events: &'static [&'static str],
}

/// Exits, and what user space was asked to do.
const KVM: &[&str] = &[
    "kvm:kvm_exit",
    "kvm:kvm_entry",
    "kvm:kvm_userspace_exit",
    "kvm:kvm_pio",
    "kvm:kvm_mmio",
    "kvm:kvm_fast_mmio",
    "kvm:kvm_msr",
    "kvm:kvm_hypercall",
];

/// The presets; each has [`KVM`]'s events as well.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "boot",
        events: &[
            "kvm:kvm_write_tsc_offset",
            "kvm:kvm_cpuid",
            "sched:sched_switch",
            "sched:sched_waking",
            "sched:sched_process_*",
        ],
    },
    Preset {
        name: "io",
        events: &[
            "raw_syscalls:*",
            "sched:sched_switch",
            "sched:sched_waking",
            "workqueue:workqueue_*",
            "ipi:*",
        ],
    },
    Preset {
        name: "irq",
        events: &[
            "irq:irq_handler_*",
            "irq_vectors:*",
            "ipi:*",
            "kvm:kvm_set_irq",
            "kvm:kvm_msi_set_irq",
            "kvm:kvm_inj_virq",
            "kvm:kvm_apic_accept_irq",
            "kvm:kvm_eoi",
            "workqueue:workqueue_*",
        ],
    },
    Preset {
        name: "dirty",
        events: &[
            "kvm:kvm_page_fault",
            "kvm:kvm_unmap_hva_range",
            "kvm:kvm_dirty_ring_*",
            "kvmmmu:*",
            "raw_syscalls:*",
            "exceptions:page_fault_*",
        ],
    },
    Preset {
        name: "sched",
        events: &[
            "sched:sched_switch",
            "sched:sched_waking",
            "sched:sched_wakeup*",
            "sched:sched_migrate_task",
            "sched:sched_process_*",
            "workqueue:workqueue_*",
            "ipi:*",
            "irq_vectors:reschedule_*",
            "irq_vectors:call_function*",
        ],
    },
    EXPLAIN,
];

/// What `vmeter explain` needs to join causes into chains.
pub const EXPLAIN: Preset = Preset {
    name: "explain",
    events: &[
        "kvm:kvm_set_irq",
        "kvm:kvm_msi_set_irq",
        "kvm:kvm_vcpu_wakeup",
        "kvm:kvm_halt_poll_ns",
        "raw_syscalls:*",
        "sched:sched_switch",
        "sched:sched_waking",
        "sched:sched_process_*",
        "workqueue:workqueue_*",
        "ipi:*",
        "irq:irq_handler_*",
        "irq:softirq_*",
        "irq_vectors:call_function*",
        "irq_vectors:reschedule_*",
        "irq_vectors:local_timer_*",
        "timer:hrtimer_start",
        "timer:hrtimer_expire_*",
        "lock:contention_*",
    ],
};

/// What to record.
#[derive(Debug, Clone, Default)]
pub struct RecordOptions {
    /// Presets.
    pub presets: Vec<Preset>,
    /// Further events, by patterns for `system:name`.
    pub events: Vec<String>,
    /// A process, with its threads and vhost workers; none: the command, or everything.
    pub pid: Option<i32>,
    /// With the kernel's own threads and the idle tasks, which work for the process too.
    pub kernel: bool,
    /// Command to run.
    pub command: Vec<String>,
    /// What the command prints goes to standard error.
    pub aside: bool,
    /// At most this long.
    pub duration: Option<Duration>,
    /// Bytes after which recording stops.
    pub limit: u64,
    /// Ring buffer of each CPU, KiB.
    pub buffer_kib: u64,
    /// Trace clocks, the first that the kernel has.
    pub clocks: Vec<String>,
    /// File to write.
    pub output: PathBuf,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// Events in the file.
    pub events: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Bytes of ring buffer pages.
    pub bytes: u64,
    /// True if the bound was reached.
    pub limited: bool,
    /// Trace clock.
    pub clock: String,
    /// The threads that were recorded from the beginning, but for the kernel's.
    pub threads: Vec<i32>,
    /// Exit status of the command, where there was one that exited.
    pub status: Option<i32>,
    /// Signal that killed the command, unless recording ended it.
    pub killed_by: Option<i32>,
}

/// How the command ended.
#[derive(Default)]
struct Ended {
    status: Option<i32>,
    killed_by: Option<i32>,
}

/// Why recording ends.
enum End {
    Signal,
    Gone,
}

/// Records until the end of what is recorded, or a signal; `begun` is called once either ends
/// it and is saved.
///
/// # Errors
/// A host whose tracefs can't be used; events or a process that do not exist; a command
/// that can't be started; a file that can't be written.
pub fn record(
    options: &RecordOptions,
    interrupt: &Interrupt,
    begun: impl FnOnce(),
) -> Result<Recording> {
    let tracefs = Tracefs::find().map_err(host)?;
    let events = expand(&tracefs, options)?;
    let names: Vec<&str> = events.iter().map(String::as_str).collect();
    let clocks: Vec<&str> = options.clocks.iter().map(String::as_str).collect();
    let folder = options.output.parent().filter(|p| !p.as_os_str().is_empty());
    let mut plan = Plan::new(&names)
        .clocks(&clocks)
        .buffer_kib(options.buffer_kib)
        .limit(options.limit)
        .spool(folder.unwrap_or(Path::new(".")))
        .with_symbols();
    let held = match options.command.as_slice() {
        [] => None,
        command => Some(Held::start(command, options.aside).map_err(usage)?),
    };
    let mut tids = match (&held, options.pid) {
        (Some(held), _) => vec![held.pid()],
        (None, Some(pid)) => threads(pid)?,
        (None, None) => Vec::new(),
    };
    let of_program = tids.clone();
    if options.kernel && !tids.is_empty() {
        tids.extend(kernel_threads());
    }
    plan = plan.of_threads(&tids);
    let instance = tracefs.record(&plan).map_err(host)?;
    let pid = held.as_ref().map(Held::pid).or(options.pid);
    let mut followed = pid.map(|pid| Followed::new(pid, &tids));
    let owner = held.as_ref().map(Held::owner);
    let (end, ended) = channel();
    // Until it is saved: a signal that comes meanwhile loses nothing, a second one does.
    let _during = interrupt.during({
        let end = end.clone();
        // Nobody listens any more: it has ended already.
        move || drop(end.send(End::Signal))
    });
    let child = held.map(Held::release).transpose()?.zip(owner);
    begun();
    let ended = wait(child, options, (end, ended), || {
        // A thread that is gone again can't be followed, nor need it be.
        let fresh = followed.as_mut().map(Followed::fresh).unwrap_or_default();
        let _ = instance.follow(&fresh);
    })?;
    let recorded = instance.stop().map_err(host)?;
    let (bytes, limited, clock) =
        (recorded.bytes(), recorded.is_limited(), recorded.clock().to_owned());
    recorded.save(&options.output).map_err(host)?;
    let (events, lost) = count(&options.output)?;
    let Ended { status, killed_by } = ended;
    Ok(Recording { events, lost, bytes, limited, clock, threads: of_program, status, killed_by })
}

/// Begins to record what the preset `explain` has of the processes that this one starts from now on, and of the
/// kernel's threads; the pages are kept in `folder`.
///
/// # Errors
/// A host whose tracefs can't be used.
pub fn of_children(folder: &Path) -> Result<Instance> {
    let tracefs = Tracefs::find().map_err(host)?;
    let events =
        expand(&tracefs, &RecordOptions { presets: vec![EXPLAIN], ..RecordOptions::default() })?;
    let names: Vec<&str> = events.iter().map(String::as_str).collect();
    let plan = Plan::new(&names).of_own_children().spool(folder).with_symbols();
    let instance = tracefs.record(&plan).map_err(host)?;
    instance.follow(&kernel_threads()).map_err(host)?;
    Ok(instance)
}

/// The threads of this process.
pub fn own_threads() -> Vec<i32> {
    numbers("/proc/self/task")
}

/// The processes that executed a program while a trace was recorded.
///
/// # Errors
/// A file that is no trace.
pub fn executed(path: &Path) -> Result<Vec<i32>> {
    let mut reader = Input::open(path).and_then(vmeter_trace::open).map_err(host)?;
    let mut all = Vec::new();
    while let Some(event) = reader.next_event() {
        if event.kind.name == "sched_process_exec" && !all.contains(&event.tid) {
            all.push(event.tid);
        }
    }
    Ok(all)
}

/// Events of the kernel that match.
fn expand(tracefs: &Tracefs, options: &RecordOptions) -> Result<Vec<String>> {
    let of_presets = options.presets.iter().flat_map(|p| KVM.iter().chain(p.events));
    let patterns: Vec<&str> =
        of_presets.copied().chain(options.events.iter().map(String::as_str)).collect();
    let folders = |path: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let names = entries.filter_map(|e| e.file_name().into_string().ok());
        names.filter(|name| path.join(name).is_dir()).collect()
    };
    let root = tracefs.root().join("events");
    let mut all = Vec::new();
    for system in folders(&root) {
        for name in folders(&root.join(&system)) {
            let full = format!("{system}:{name}");
            if patterns.iter().any(|p| glob(p.as_bytes(), full.as_bytes())) {
                all.push(full);
            }
        }
    }
    all.sort();
    for pattern in &options.events {
        if !all.iter().any(|event| glob(pattern.as_bytes(), event.as_bytes())) {
            return Err(usage(format!(
                "--event {pattern}: this kernel has no such event; expected system:name, e.g. \
                    kvm:kvm_exit ({}/available_events lists all events)",
                tracefs.root().display()
            )));
        }
    }
    Ok(all)
}

/// A process's threads, and the kernel threads that serve its vhost devices.
fn threads(pid: i32) -> Result<Vec<i32>> {
    let mut all = numbers(&format!("/proc/{pid}/task"));
    if all.is_empty() {
        return Err(usage(format!("--pid {pid}: there is no such process")));
    }
    // Named after their owner by drivers/vhost/vhost.c; the name is cut at 15 bytes.
    let vhost = format!("vhost-{pid}");
    let serves = |tid: &i32| {
        let comm = std::fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
        comm.trim_end() == vhost
    };
    all.extend(numbers("/proc").into_iter().filter(serves));
    Ok(all)
}

/// The idle tasks, all called 0, and the kernel's threads: kthreadd and its children.
fn kernel_threads() -> Vec<i32> {
    const KTHREADD: i32 = 2;
    let parent = |tid: i32| Stat::of(tid).map(|stat| stat.parent);
    let of_kernel = |tid: &i32| *tid == KTHREADD || parent(*tid) == Some(KTHREADD);
    std::iter::once(0).chain(numbers("/proc").into_iter().filter(of_kernel)).collect()
}

/// Waits for the command, which has begun, or for the process, and takes a look at times;
/// gives how the command ended.
fn wait(
    child: Option<(Child, Owner)>,
    options: &RecordOptions,
    (end, ended): (Sender<End>, Receiver<End>),
    mut look: impl FnMut(),
) -> Result<Ended> {
    let watched = child.as_ref().map(|(child, _)| i32::try_from(child.id())).transpose()?;
    if let Some(pid) = watched.or(options.pid) {
        watch(pid, end)?;
    }
    let until = options.duration.map(|limit| Instant::now() + limit);
    let why = loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match ended.recv_timeout(left.unwrap_or(INTERVAL).min(INTERVAL)) {
            Err(RecvTimeoutError::Timeout) if left.is_none_or(|left| left > INTERVAL) => look(),
            why => break why,
        }
    };
    let Some((mut child, owner)) = child else { return Ok(Ended::default()) };
    let by_itself = matches!(why, Ok(End::Gone));
    if !by_itself {
        end_command(&mut child, &owner, &ended);
    }
    let status = child.wait().context("cannot wait for the command")?;
    Ok(Ended { status: status.code(), killed_by: status.signal().filter(|_| by_itself) })
}

/// A polite request; whoever ignores it, or is stopped and can't hear it, is killed with all
/// that it started.
fn end_command(child: &mut Child, owner: &Owner, ended: &Receiver<End>) {
    let pid = Pid::from_child(child);
    for signal in [Signal::TERM, Signal::CONT] {
        let _ = kill_process(pid, signal);
    }
    let until = Instant::now() + GRACE;
    loop {
        match ended.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(End::Gone) => return,
            // A second one ends vmeter at once.
            Ok(End::Signal) => {}
            Err(_) => break,
        }
    }
    marked::kill(owner, GRACE);
    // It may have another environment by now.
    let _ = child.kill();
}

/// Tells when a process is gone.
fn watch(pid: i32, end: Sender<End>) -> Result<()> {
    let process = Pid::from_raw(pid).filter(|_| pid > 0);
    let process = process.ok_or_else(|| usage(format!("--pid {pid}: no process has this id")))?;
    let fd = pidfd_open(process, PidfdFlags::empty())
        .map_err(|error| usage(format!("--pid {pid}: {error}")))?;
    std::thread::Builder::new().name("watch".into()).spawn(move || {
        while let Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)
        {
        }
        // Nobody listens any more: a signal came first.
        let _ = end.send(End::Gone);
    })?;
    Ok(())
}

/// Events in a trace, and how many were lost.
fn count(path: &Path) -> Result<(u64, u64)> {
    let mut reader = Input::open(path).and_then(vmeter_trace::open).map_err(host)?;
    let mut events = 0;
    while let Some(event) = reader.next_event() {
        events += u64::from(!matches!(event.body, vmeter_trace::Body::Lost(_)));
    }
    Ok((events, reader.losses().lost_events))
}
