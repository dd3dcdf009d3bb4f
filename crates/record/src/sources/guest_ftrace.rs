//! The guest kernel's own trace, read out of its RAM when it is over.
//!
//! Kernel parameters switch it on before the first initcall; the ring buffer is
//! copied out of the VMM at its exit. The guest's console, files and programs
//! have no part in it. In instructions of a Debian 6.1 guest it costs 0.6 %.

use super::console;
use super::read_bounded;
use crate::guest_clock::{self, GuestClock};
use crate::guest_ram::{failed, GuestKernel};
use crate::loader_file;
use crate::recorder::{Context, Live, Recorder, Saved, SourceError};
use std::path::{Path, PathBuf};
use vmeter_kernel_image::ftrace::{boot_probes, Decoded, FtraceDump, FtraceKind};
use vmeter_machine::launch::Tracee;
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::SourceRecord;
use vmeter_model::{kernel_log, Accel, Event, EventKind, Ns, RunRecord};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "guest-ftrace";

/// The dump in the run's folder.
pub const FILE: &str = "guest-ftrace.bin";

/// `printk:console` stamps each log record, which aligns the log ([`super::guest_printk`]).
const EVENTS: &str = "initcall:*,module:module_load,sched:sched_process_exec,\
                      sched:sched_process_exit,sched:sched_process_wait,task:task_newtask,\
                      cgroup:cgroup_attach_task,printk:console";
/// The only trace clock that is the same before and after the kernel trusts the TSC.
const CLOCK: &str = "x86-tsc";
/// The parent of the kernel's own threads.
const KTHREADD: i32 = 2;
/// Of the ring of each CPU: a Debian boot fills 46 KiB of it, with udev 47 KiB, and
/// some 12,000 initcalls, module loads or processes more would fit.
const BUFFER: &str = "512K";
/// The same with user space of somebody's own: some 700 processes of a Debian boot, with
/// their arguments, fill 0.4 MiB of it.
const BUFFER_OF_GUESTS: &str = "2M";
/// systemd says all that it does into the kernel's log, where each line has a stamp and no
/// line is cut at the console's width; and on the console, though `quiet` was given.
const SYSTEMD: &[&str] = &["systemd.log_target=kmsg", "systemd.show_status=1", "printk.devkmsg=on"];

/// The guest's ftrace ring.
pub struct GuestFtrace;

impl Recorder for GuestFtrace {
    type Parameters = guest_clock::Parameters;
    type Raw = GuestTrace;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        Some(Box::new(Recording {
            kernel: GuestKernel::of(context)?,
            dir: context.dir.to_owned(),
            accel: context.accel,
            injected: false,
            advice: None,
            tsc_offset: None,
            dump: None,
            own_init: context.own_init,
        }))
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        parameters: guest_clock::Parameters,
    ) -> Result<GuestTrace, SourceError> {
        let dump = FtraceDump::from_bytes(&read_bounded(dir, source, 0)?).map_err(failed)?;
        let (clock, decoded) = (dump.clock().to_owned(), dump.decode());
        let (wanted, torn) = (dump.bytes_wanted().unwrap_or(0), dump.torn());
        Ok(GuestTrace { clock, decoded, wanted, torn, parameters })
    }

    fn decode(
        &self,
        trace: &GuestTrace,
        _: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        if trace.clock != CLOCK {
            return Err(SourceError::Other(format!(
                "the guest's trace is on the clock {:?}, which can't be aligned with the host's; \
                 boot the guest with trace_clock={CLOCK}",
                trace.clock
            )));
        }
        let (run, decoded) = (saved.run, &trace.decoded);
        let clock = trace.align(run)?;
        let event = |at, what| Event {
            at,
            error_ns: clock.error_ns,
            source: NAME.into(),
            insns: None,
            what,
        };
        let mut events: Vec<Event> = decoded
            .events
            .iter()
            .filter_map(|e| Some(event(clock.at(e.ts), meaning(e.pid, &e.kind)?)))
            .collect();
        // What is after the run's end is no part of it, but this is.
        let at = events.last().map_or(run.total_ns, |e| e.at.min(run.total_ns));
        for (name, value) in [
            ("guest_trace_lost", decoded.lost),
            (kernel_log::WANTED[1], trace.wanted),
            ("guest_trace_damaged", decoded.damaged_pages),
            (kernel_log::TORN[1], trace.torn),
        ] {
            if value > 0 {
                events.push(event(at, EventKind::Count { name: name.into(), value }));
            }
        }
        Ok(events)
    }
}

/// The guest's trace, read.
#[derive(Debug)]
pub struct GuestTrace {
    /// Its records.
    pub decoded: Decoded,
    /// Bytes of a CPU's ring that would have kept all; 0 if it did.
    wanted: u64,
    /// Pages that were left out, for the guest wrote while they were copied.
    torn: u64,
    clock: String,
    parameters: guest_clock::Parameters,
}

impl GuestTrace {
    /// The clock of its stamps.
    ///
    /// # Errors
    /// When the run has no clock readings.
    pub fn align(&self, run: &RunRecord) -> Result<GuestClock, SourceError> {
        let last = self.decoded.events.last().map_or(0, |e| e.ts);
        GuestClock::of(run, &self.parameters, last)
    }
}

/// What a record of the trace is to the timeline.
fn meaning(thread: i32, kind: &FtraceKind) -> Option<EventKind> {
    Some(match kind.clone() {
        FtraceKind::InitcallStart { function, module, .. } => {
            EventKind::InitcallStart { function, module, pid: Some(thread) }
        }
        FtraceKind::InitcallFinish { function, ret, .. } => {
            EventKind::InitcallEnd { function, pid: Some(thread), ret: Some(ret.into()) }
        }
        FtraceKind::InitcallLevel { level } => EventKind::InitcallLevel { level },
        FtraceKind::ModuleLoad { module } => EventKind::ModuleLoad { module, pid: Some(thread) },
        FtraceKind::ProcessExec { pid, file } => EventKind::ProcessExec { pid, file },
        FtraceKind::ProcessExit { pid, comm } => EventKind::ProcessExit { pid, comm },
        // Threads of the kernel have no place in user space.
        FtraceKind::ProcessFork { .. } if thread == KTHREADD => return None,
        FtraceKind::ProcessFork { pid, thread: same } => {
            EventKind::ProcessFork { pid, parent: thread, thread: same }
        }
        FtraceKind::ProcessArguments { arguments } => {
            EventKind::ProcessArguments { pid: thread, arguments }
        }
        FtraceKind::ProcessWait { pid } => {
            EventKind::ProcessWait { pid: thread, child: Some(pid).filter(|pid| *pid != 0) }
        }
        FtraceKind::ProcessReap { pid, status, cpu_ns, group } => {
            EventKind::ProcessReap { pid, by: thread, status, cpu_ns, group }
        }
        FtraceKind::ProcessGroup { pid, path } => EventKind::ProcessGroup { pid, path },
        FtraceKind::Marker { text } => marker(&text)?,
        FtraceKind::Console { .. } => return None,
    })
}

/// The grammar of the appliance's init; markers of anybody else are notes.
fn marker(text: &str) -> Option<EventKind> {
    let Some(text) = text.strip_prefix("vmeter:") else {
        return Some(EventKind::Note { text: text.into() });
    };
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    match verb {
        "begin" => Some(EventKind::StepStart { step: rest.into() }),
        "end" => Some(EventKind::StepEnd { step: rest.into() }),
        "ready" => Some(EventKind::Ready),
        "poweroff" => Some(EventKind::ShutdownStart),
        "error" => {
            let (number, step) = rest.split_once(' ')?;
            Some(EventKind::Note { text: format!("step {step} failed with error {number}") })
        }
        _ => None,
    }
}

/// How a guest can be traced that a boot loader starts, or whose words vmeter can't reach.
fn what_to_add(plan: &LaunchPlan) -> String {
    let mut words = parameters(plan, BUFFER_OF_GUESTS);
    // Probes are of one kernel, which nobody knows yet.
    words.extend(of_guests(plan, None));
    let words = words.join(" ");
    if !plan.dialect.is_some_and(|dialect| dialect.abilities().plugins) {
        return format!(
            "vmeter cannot see how this VMM gets its kernel's command line: add `{words}` to \
             that command line yourself"
        );
    }
    format!("the guest's boot loader sets the kernel command line: add `{words}` {WHERE}")
}

/// Stands for the file that a boot loader reads them from, until it has said which one it is.
const WHERE: &str = "where that is";

/// What a guest's kernel is to be told on its command line to trace its boot.
pub fn words() -> Vec<String> {
    parameters(&LaunchPlan::default(), BUFFER_OF_GUESTS)
}

struct Recording {
    kernel: GuestKernel,
    dir: PathBuf,
    accel: Option<Accel>,
    injected: bool,
    /// What to do where the guest's own command line does not say to trace.
    advice: Option<String>,
    tsc_offset: Option<i64>,
    dump: Option<FtraceDump>,
    own_init: bool,
}

impl Live for Recording {
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        self.kernel.open()?;
        let can_trace = self.kernel.traces_initcalls();
        let buffer = if self.own_init { BUFFER } else { BUFFER_OF_GUESTS };
        let mut parameters = if can_trace { parameters(plan, buffer) } else { Vec::new() };
        if !self.own_init {
            let probes = self.kernel.info().and_then(boot_probes);
            parameters.extend(of_guests(plan, probes));
        }
        let words: Vec<&str> = parameters.iter().map(String::as_str).collect();
        self.injected = plan.inject_kernel_parameters(&words) && can_trace;
        self.advice = plan.kernel_line().is_none().then(|| what_to_add(plan));
        Ok(())
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        (self.accel, self.tsc_offset) = guest_clock::by_kvm(self.accel, tracee.pid);
        match self.kernel.look_into(tracee, FtraceDump::take) {
            Ok(dump) => self.dump = Some(dump),
            // A guest that was not asked to trace need not be one that can.
            Err(error) if self.injected => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    fn has_seen_guest(&self) -> bool {
        self.dump.is_some()
    }

    fn finish(self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let Some(mut dump) = self.dump else { return Ok(None) };
        if dump.decode().events.is_empty() && !self.injected {
            if let Some(advice) = self.advice {
                let advice =
                    advice.replace(WHERE, loader_file::of_console(&self.dir.join(console::FILE)));
                return Err(SourceError::Other(format!("initcalls were not traced: {advice}")));
            }
            return Ok(None);
        }
        dump.name_functions(&self.kernel.functions()?);
        dump.write(&self.dir.join(FILE)).map_err(failed)?;
        Ok(Some(guest_clock::record::<GuestFtrace>(FILE, self.accel, self.tsc_offset)))
    }
}

/// What is added to the kernel's command line; what it traces already stays traced.
fn parameters(plan: &LaunchPlan, buffer: &str) -> Vec<String> {
    let events = match given(plan, "trace_event=") {
        // The kernel heeds the last of several.
        Some(given) => format!("trace_event={given},{EVENTS}"),
        None => format!("trace_event={EVENTS}"),
    };
    let mut words = vec![events, format!("trace_clock={CLOCK}")];
    if given(plan, "trace_buf_size=").is_none() {
        words.push(format!("trace_buf_size={buffer}"));
    }
    words
}

/// What is added besides where init is not vmeter's own, and nothing of it is given.
fn of_guests(plan: &LaunchPlan, probes: Option<String>) -> Vec<String> {
    let probes = probes.map(|probes| format!("kprobe_event={probes}"));
    let words = SYSTEMD.iter().map(|&word| word.to_owned()).chain(probes);
    let name = |word: &str| word.split_inclusive('=').next().unwrap_or_default().to_owned();
    words.filter(|word| given(plan, &name(word)).is_none()).collect()
}

/// The value of a kernel parameter that is given already; of several the last.
pub(super) fn given(plan: &LaunchPlan, name: &str) -> Option<String> {
    let line = plan.kernel_line()?;
    line.split_ascii_whitespace().filter_map(|w| w.strip_prefix(name)).next_back().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_markers_of_the_appliance_are_steps() {
        let step = |text: &str| text.to_owned();
        for (text, what) in [
            ("vmeter:begin mount sysfs", Some(EventKind::StepStart { step: step("mount sysfs") })),
            ("vmeter:end mount sysfs", Some(EventKind::StepEnd { step: step("mount sysfs") })),
            ("vmeter:ready", Some(EventKind::Ready)),
            ("vmeter:poweroff", Some(EventKind::ShutdownStart)),
            (
                "vmeter:error 2 mount",
                Some(EventKind::Note { text: "step mount failed with error 2".into() }),
            ),
            ("vmeter:clock 1 2 mount", None),
            ("hello", Some(EventKind::Note { text: "hello".into() })),
        ] {
            assert_eq!(marker(text), what);
        }
    }

    #[test]
    fn what_the_user_traces_is_kept() {
        let mut plan = LaunchPlan {
            may_inject: true,
            dialect: Some(&vmeter_machine::backends::qemu::Qemu),
            ..LaunchPlan::default()
        };
        let given_line = "quiet trace_event=irq:* trace_event=timer:* trace_buf_size=4M";
        plan.argv = ["qemu", "-kernel", "k", "-append", given_line].map(Into::into).to_vec();
        let parameters = parameters(&plan, BUFFER);
        assert_eq!(parameters[0], format!("trace_event=timer:*,{EVENTS}"));
        assert_eq!(parameters[1..], ["trace_clock=x86-tsc"]);
        plan.argv.truncate(3);
        assert_eq!(super::parameters(&plan, BUFFER).last().unwrap(), "trace_buf_size=512K");
    }

    proptest! {
        #[test]
        fn no_marker_panics(text in "(vmeter:)?\\PC{0,40}") {
            let _ = marker(&text);
        }
    }
}
