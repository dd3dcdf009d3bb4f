//! What ended a run: the evidence put together, and what follows of it for the measurement.
//!
//! The exit status of a VMM says little: QEMU ends in status 0 after a power-off, and under
//! `-no-reboot` after a crash as well. So the sources of a run are asked for clues
//! ([`Recorder::clues`](crate::recorder::Recorder::clues)). They are believed in this order:
//! what the kernel keeps of itself in its RAM, what the VMM says, what appeared on the
//! console, which any program of the guest can print to.

use crate::guest_line::is_of_guest;
use crate::no_boot::{as_shown, says_nothing_to_boot};
use crate::ready::{Until, WHOSE};
use vmeter_machine::launch::{self, Exit, Left, Reason, Status};
use vmeter_model::run::Outcome;
use vmeter_model::{Cause, End};

/// Parts what is said of an end from what became of the VM.
pub const LEFT: &str = "; ";

/// The line in which a kernel says why it panics.
pub(crate) const PANIC: &str = "Kernel panic - not syncing";

/// Begins the warning of a panic that was none.
pub const READS_LIKE_A_PANIC: &str = "a console line reads like a panic of the kernel";

/// What a kernel says last before it powers the machine off, and before it restarts it
/// (kernel/reboot.c; at level 0, so that `quiet` shows it too).
const POWER_DOWN: &str = "reboot: Power down";
/// x86 adds `reboot: machine restart` (arch/x86/kernel/reboot.c), which some kernels print alone.
const RESTARTING: [&str; 3] =
    ["reboot: Restarting system", "reboot: machine restart", "sysrq: Resetting"];

/// What a kernel says when it kills a program for lack of memory (mm/oom_kill.c); what a
/// control group's own bound kills is another line.
const KILLED: &str = "Out of memory: Killed process ";

/// Lines of a kernel that panics since it runs out of memory (mm/oom_kill.c,
/// init/initramfs.c).
const OUT_OF_MEMORY: [&str; 5] = [
    "Out of memory: Killed process 1 ",
    "Out of memory and no killable processes",
    "panic_on_oom is enabled",
    "System is deadlocked on memory",
    "Initramfs unpacking failed: write error",
];

/// What the recordings of a run say of its end.
#[derive(Debug, Clone, Default)]
pub struct EndEvidence {
    /// The console's lines.
    pub console: Vec<String>,
    /// What the kernel itself wrote into its log, where that was read out of its RAM.
    pub kernel_log: Option<Vec<String>>,
    /// Why the VMM says that the machine is shut down (`ShutdownCause` of QEMU's QMP).
    pub shutdown: Option<String>,
    /// True if the guest told its VMM that it panicked (pvpanic).
    pub told_of_panic: bool,
    /// How often the VMM reset the machine and went on.
    pub resets: u32,
    /// True if the VMM had paused its guest.
    pub paused: bool,
    /// What was printed and not kept, in words for the user.
    pub cut: Vec<String>,
    /// Triple faults that the VMM or KVM noted.
    pub triple_faults: u64,
    /// True if KVM's exits were recorded.
    pub kvm_traced: bool,
}

impl EndEvidence {
    /// True if something says that a guest ran.
    pub(crate) fn have_guest(&self) -> bool {
        self.kernel_log.is_some()
            || self.triple_faults > 0
            || self.console.iter().any(|line| is_of_guest(line))
    }
}

/// What is known of a run besides its clues.
pub(crate) struct Run<'a> {
    pub exit: &'a Exit,
    pub until: &'a Until,
    /// True if a restart is how this machine ends, for it can't be powered off.
    pub ends_by_reset: bool,
    /// True if it is known how the VMM would say what its guest did.
    pub known_vmm: bool,
    /// True if KVM ran the guest.
    pub kvm: bool,
    /// `isa-debug-exit` is on its command line: the guest chooses its exit status.
    pub debug_exit: bool,
    /// Processes that the host's kernel killed meanwhile for lack of memory.
    pub oom_kills: u64,
    /// What the guest's kernel lacks, if its file is cut short.
    pub cut_short: Option<String>,
}

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    pub end: End,
    pub outcome: Outcome,
    pub warnings: Vec<String>,
}

/// What ended a run. `last` finds the last thing that was seen of it, for one that timed out.
pub(crate) fn judge(run: &Run<'_>, clues: &EndEvidence, last: impl FnOnce() -> String) -> Judged {
    let mut warnings = clues.cut.clone();
    let end = ended(run, clues, &mut warnings);
    let outcome = match end.cause {
        Cause::Interrupted => Outcome::Interrupted,
        Cause::Panic | Cause::OutOfMemory => Outcome::Panicked { line: panic_line(clues) },
        Cause::TimedOut => Outcome::TimedOut { last: timed_out(run, clues, last()) },
        Cause::Failure | Cause::Killed => Outcome::VmmFailed {
            status: end.evidence.clone(),
            stderr: run.exit.stderr_tail.clone(),
        },
        Cause::Ready => Outcome::Done,
        Cause::PowerOff | Cause::Exit | Cause::Launcher if matches!(run.until, Until::PowerOff) => {
            Outcome::Done
        }
        Cause::Restart if run.ends_by_reset && matches!(run.until, Until::PowerOff) => {
            Outcome::Done
        }
        Cause::PowerOff | Cause::Exit | Cause::Launcher => Outcome::NotReady,
        Cause::Restart if run.ends_by_reset => Outcome::NotReady,
        Cause::Restart
        | Cause::Reset
        | Cause::TripleFault
        | Cause::Starved
        | Cause::Quit
        | Cause::CutShort
        | Cause::Imitated
        | Cause::AnyVmm
        | Cause::RunsOn
        | Cause::NothingToBoot => Outcome::UnexpectedEnd { how: end.cause.sentence().into() },
    };
    if end.cause == Cause::Exit && run.known_vmm && outcome == Outcome::Done {
        warnings.push(
            "vmeter does not know how the guest ended, only that its VMM exited with status 0. A \
                console on standard output would show the guest's end. The monitor would show \
                it too, but with --no-inject vmeter does not add a monitor"
                .into(),
        );
    }
    Judged { end, outcome, warnings }
}

fn ended(run: &Run<'_>, clues: &EndEvidence, warnings: &mut Vec<String>) -> End {
    let exit = run.exit;
    if let launch::End::Stopped { reason: Reason::Interrupted, .. } = exit.end {
        return End::new(Cause::Interrupted, and_left(exit, "a signal to vmeter"));
    }
    match panicked(run, clues) {
        Panic::Is(evidence) => {
            let lines = log_or_console(clues);
            let starved = lines.iter().any(|l| OUT_OF_MEMORY.iter().any(|o| l.contains(o)));
            let cause = if starved { Cause::OutOfMemory } else { Cause::Panic };
            return End::new(cause, evidence);
        }
        Panic::Imitated(evidence) => warnings.push(format!(
            "{READS_LIKE_A_PANIC}, but {evidence}: a program of the guest printed it"
        )),
        Panic::None => {}
    }
    let end = at_last(run, clues);
    match (end.cause, starved(clues)) {
        (
            Cause::PowerOff | Cause::Restart | Cause::Ready | Cause::Exit | Cause::Launcher,
            Some(killed),
        ) => End::new(Cause::Starved, format!("{}: {killed}", whose_log(clues))),
        _ => end,
    }
}

/// What ended a run whose kernel did not panic.
fn at_last(run: &Run<'_>, clues: &EndEvidence) -> End {
    match &run.exit.end {
        launch::End::Stopped { reason, .. } => match reason {
            Reason::ReadyPoint => match vmm_that_runs_on(run.exit) {
                Some(vmm) => End::new(Cause::RunsOn, let_go(vmm)),
                None => End::new(Cause::Ready, run.until.to_string()),
            },
            Reason::TimedOut => End::new(Cause::TimedOut, and_left(run.exit, "--timeout")),
            Reason::Interrupted => End::new(Cause::Interrupted, "a signal to vmeter"),
            Reason::Other(why) if why == WHOSE => {
                End::new(Cause::AnyVmm, format!("--until {}", run.until))
            }
            Reason::Other(why) if why != PANIC => {
                let said = clues.console.iter().rev().map(|line| as_shown(line));
                let said = said.into_iter().find(|line| says_nothing_to_boot(line));
                End::new(
                    Cause::NothingToBoot,
                    format!("console: {}", said.as_deref().unwrap_or(why)),
                )
            }
            Reason::Other(why) => End::new(Cause::Imitated, format!("console: {why}")),
        },
        launch::End::ByItself => by_itself(run, clues),
    }
}

fn by_itself(run: &Run<'_>, clues: &EndEvidence) -> End {
    let exit = run.exit;
    if let Some(vmm) = vmm_that_runs_on(exit) {
        return End::new(Cause::RunsOn, format!("{}; {}", exit.status, let_go(vmm)));
    }
    if exit.status.success() && !exit.left_behind.is_empty() {
        return End::new(Cause::Failure, left_behind(exit));
    }
    match exit.status {
        Status::Exited(0) => of_guest(run, clues),
        Status::Exited(status) if run.debug_exit && status & 1 == 1 => {
            let said =
                format!("{}: the guest wrote {:#x} to isa-debug-exit", exit.status, status >> 1);
            End::new(Cause::Failure, said)
        }
        Status::Exited(_) => End::new(Cause::Failure, with_what_it_left(exit)),
        Status::Signalled { .. } if run.oom_kills > 0 => {
            let killed = format!(
                "{}; during the run, the host's kernel killed {} for lack of memory",
                exit.status,
                if run.oom_kills == 1 {
                    "a process".into()
                } else {
                    format!("{} processes", run.oom_kills)
                }
            );
            End::new(Cause::Killed, killed)
        }
        Status::Signalled { .. } => End::new(Cause::Killed, with_what_it_left(exit)),
    }
}

/// How what was launched failed, and what of it ran on: vmeter has ended that with it.
fn with_what_it_left(exit: &Exit) -> String {
    match exit.left_behind.as_slice() {
        [] => exit.status.to_string(),
        left => format!("{}; ended with it: {}", exit.status, left.join(", ")),
    }
}

/// What the guest did that made its VMM end well.
fn of_guest(run: &Run<'_>, clues: &EndEvidence) -> End {
    let says = |line: &str| log_or_console(clues).iter().any(|l| l.contains(line));
    let by_log = whose_log(clues);
    let restarting = RESTARTING.into_iter().find(|line| says(line));
    let restarted = |line: &str| End::new(Cause::Restart, format!("{by_log}: {line}"));
    let crashed = || {
        let noted = match clues.triple_faults {
            1 => "1 triple fault in the log of the VMM or of KVM".to_owned(),
            n => format!("{n} triple faults in the log of the VMM or of KVM"),
        };
        End::new(Cause::TripleFault, noted)
    };
    match clues.shutdown.as_deref() {
        // Of a VMM that vmeter was not told of, the signal says it.
        None | Some("host-signal") if run.exit.told_by.is_some() && !says(POWER_DOWN) => {
            let by = run.exit.told_by.as_deref().unwrap_or_default();
            End::new(
                Cause::Launcher,
                format!(
                    "a signal from {by}; {by} then exited with status \
                0"
                ),
            )
        }
        Some("guest-shutdown") => End::new(Cause::PowerOff, "QMP: guest-shutdown"),
        Some(reason @ ("guest-reset" | "subsystem-reset")) => match restarting {
            Some(line) => restarted(line),
            None if clues.triple_faults > 0 => crashed(),
            None if run.kvm && !clues.kvm_traced => {
                let said = format!(
                    "QMP: {reason}; under KVM, QEMU reports the same reason for \
                    a triple fault"
                );
                End::new(Cause::Reset, format!("{said}; only a trace of KVM can show the cause"))
            }
            None => End::new(Cause::Reset, format!("QMP: {reason}")),
        },
        // Nothing else is the guest's own doing; a panic was looked for before.
        Some(reason) => End::new(Cause::Quit, format!("QMP: {reason}")),
        None if clues.triple_faults > 0 && restarting.is_none() => crashed(),
        None if told_to_end(run).is_some() => {
            End::new(Cause::Quit, format!("the VMM: {}", told_to_end(run).unwrap_or_default()))
        }
        None if says(POWER_DOWN) => End::new(Cause::PowerOff, format!("{by_log}: {POWER_DOWN}")),
        None => match (restarting, &run.cut_short) {
            (Some(line), _) => restarted(line),
            (None, Some(lacks)) => End::new(Cause::CutShort, lacks),
            (None, None) => End::new(Cause::Exit, "exit status 0"),
        },
    }
}

/// The line in which QEMU says that a signal ends it (system/runstate.c, since 1.0).
fn told_to_end<'r>(run: &Run<'r>) -> Option<&'r str> {
    let mut said = run.exit.stderr_tail.lines().rev();
    said.find(|line| line.contains(": terminating on signal ")).map(str::trim)
}

/// The program that the guest's kernel killed for lack of memory, in the kernel's words
/// without its figures.
fn starved(clues: &EndEvidence) -> Option<&str> {
    let killed =
        log_or_console(clues).iter().find_map(|line| line.find(KILLED).map(|at| &line[at..]));
    killed.map(|line| line.find(") ").map_or(line, |end| &line[..=end]).trim_end_matches(','))
}

fn whose_log(clues: &EndEvidence) -> &'static str {
    if clues.kernel_log.is_some() {
        "the kernel's log"
    } else {
        "the console"
    }
}

/// The kernel's own log, where it was read, or what the console showed.
fn log_or_console(clues: &EndEvidence) -> &[String] {
    clues.kernel_log.as_deref().unwrap_or(&clues.console)
}

/// Whether the kernel panicked, with the evidence.
enum Panic {
    None,
    Is(&'static str),
    Imitated(&'static str),
}

fn panicked(run: &Run<'_>, clues: &EndEvidence) -> Panic {
    // Who waits for a panic has it.
    let ready = matches!(run.exit.end, launch::End::Stopped { reason: Reason::ReadyPoint, .. });
    if ready && matches!(run.until, Until::Line(regex) if regex.as_str().contains("panic")) {
        return Panic::None;
    }
    let in_log = clues.kernel_log.as_ref().map(|log| log.iter().any(|l| l.contains(PANIC)));
    let on_console = clues.console.iter().any(|line| line.contains(PANIC));
    let told = clues.told_of_panic || clues.shutdown.as_deref() == Some("guest-panic");
    match (in_log, on_console) {
        (Some(true), _) => Panic::Is("the kernel's log, in the guest's RAM"),
        (_, _) if told => Panic::Is("the guest told its VMM (pvpanic)"),
        (Some(false), true) => Panic::Imitated("the kernel's own log has none"),
        (None, true) => match went_on(run, clues) {
            Some(how) => Panic::Imitated(how),
            None => Panic::Is("the console"),
        },
        (_, false) => Panic::None,
    }
}

/// What a kernel that has panicked does not do any more.
fn went_on(run: &Run<'_>, clues: &EndEvidence) -> Option<&'static str> {
    let is_line = match run.until {
        Until::Line(regex) => clues.console.iter().any(|l| l.contains(PANIC) && regex.is_match(l)),
        Until::PowerOff | Until::Userspace | Until::SystemdReady | Until::GuestBooted => false,
    };
    let ready = matches!(run.exit.end, launch::End::Stopped { reason: Reason::ReadyPoint, .. });
    if clues.shutdown.as_deref() == Some("guest-shutdown") {
        Some("the guest then powered its machine off cleanly")
    } else if ready && !is_line {
        Some("the guest reached its ready point after that line")
    } else {
        None
    }
}

fn panic_line(clues: &EndEvidence) -> String {
    let found = |lines: &[String]| lines.iter().find(|line| line.contains(PANIC)).cloned();
    let in_log = clues.kernel_log.as_deref().and_then(found);
    in_log.or_else(|| found(&clues.console)).unwrap_or_else(|| "it told its VMM so".into())
}

/// What was seen of a run that timed out.
fn timed_out(run: &Run<'_>, clues: &EndEvidence, last: String) -> String {
    let mut said = last;
    let times = |n: usize| if n == 1 { "once".to_owned() } else { format!("{n} times") };
    // A restart is several resets: a kernel tries several ways, and so does the firmware
    // that finds itself started again; the last of them is a triple fault.
    // One restart prints several of these lines.
    let lines = |said: &str| clues.console.iter().filter(|line| line.contains(said)).count();
    let restarts = RESTARTING.into_iter().map(lines).max().unwrap_or(0);
    if restarts > 0 {
        said = format!(
            "{said}; the guest's kernel restarted the machine {} (source: the \
            console)",
            times(restarts)
        );
    } else if clues.resets > 0 {
        let why = if clues.triple_faults > 0 { ", by triple faults" } else { "" };
        said = format!("{said}; its machine was reset {}{why}", times(clues.resets as usize));
    }
    if let Some(killed) = starved(clues) {
        said = format!("{said}; {}: {killed}", whose_log(clues));
    }
    if run.exit.was_stopped {
        said = format!("{said}; the VMM itself was stopped (SIGSTOP), and not continued");
    } else if clues.paused {
        said = format!("{said}; the VMM had paused its guest");
    }
    and_left(run.exit, &said)
}

/// What became of a VM that had left the session of what was launched, if a run ended early.
fn and_left(exit: &Exit, what: &str) -> String {
    let mut said = what.to_owned();
    if !exit.ended.is_empty() {
        let ended = exit.ended.join(", ");
        said += &format!(
            "{LEFT}vmeter also ended {ended}: while the launcher runs, each VMM that it starts is \
                part of the run"
        );
    }
    if let Some(vmm) = vmm_that_runs_on(exit) {
        said += &format!(
            "{LEFT}{} (pid {}) is still running: vmeter did not end it",
            vmm.name, vmm.pid
        );
    }
    said
}

/// A VMM of the launch that vmeter let go of.
fn vmm_that_runs_on(exit: &Exit) -> Option<&Left> {
    exit.runs_on.iter().find(|left| left.is_vmm)
}

/// What is said of it: another run would start another VM.
fn let_go(vmm: &Left) -> String {
    format!(
        "{} (pid {pid}): its launcher left it running, or gave it a session of its own. `vmeter \
         look {pid}` shows its boot; `vmeter boot --next -- COMMAND` measures the next boot, \
         from the VMM's exec; with --end-vm, vmeter ends the VM after each run",
        vmm.name,
        pid = vmm.pid
    )
}

/// What was vmeter's own and went on behind the process that was launched.
fn left_behind(exit: &Exit) -> String {
    format!(
        "{}, but the command left a process running: {} (vmeter ended it). A run lasts from the \
            exec of the launched command to that command's end: leave -daemonize out, and let a \
            wrapper wait for its VMM",
        exit.status,
        exit.left_behind.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_machine::launch::Ptrace;

    fn exit() -> Exit {
        Exit {
            exec_ns: 0,
            total_ns: 1,
            looked_ns: 0,
            moments: Vec::new(),
            status: Status::Exited(0),
            usage: Default::default(),
            end: launch::End::ByItself,
            stderr_tail: String::new(),
            ptrace: Ptrace::Used,
            image: None,
            stops: 0,
            held: Vec::new(),
            left_behind: Vec::new(),
            runs_on: Vec::new(),
            has_vmm: true,
            asked: None,
            told_by: None,
            vmm: None,
            vmm_argv: Vec::new(),
            others: Vec::new(),
            others_print: false,
            probes: 0,
            was_stopped: false,
            let_go: false,
            ended: Vec::new(),
        }
    }

    fn run(exit: &Exit) -> Run<'_> {
        Run {
            exit,
            until: &Until::PowerOff,
            ends_by_reset: false,
            known_vmm: true,
            kvm: false,
            debug_exit: false,
            oom_kills: 0,
            cut_short: None,
        }
    }

    fn judged(kvm: bool, clues: &EndEvidence) -> Judged {
        let exit = exit();
        let run = Run { kvm, ..run(&exit) };
        judge(&run, clues, String::new)
    }

    #[test]
    fn a_reset_under_kvm_may_be_a_triple_fault_unless_kvm_was_traced() {
        let reset = EndEvidence { shutdown: Some("guest-reset".into()), ..EndEvidence::default() };
        let said = |kvm, clues: &EndEvidence| judged(kvm, clues).end;
        let untraced = said(true, &reset);
        assert_eq!(untraced.cause, Cause::Reset);
        assert!(
            untraced.evidence.contains("reports the same reason for a triple fault"),
            "{untraced:?}"
        );
        let traced = EndEvidence { kvm_traced: true, ..reset.clone() };
        assert_eq!(said(true, &traced), End::new(Cause::Reset, "QMP: guest-reset"));
        assert_eq!(said(false, &reset), End::new(Cause::Reset, "QMP: guest-reset"));
        let fault = EndEvidence { triple_faults: 1, ..traced };
        assert_eq!(said(true, &fault).cause, Cause::TripleFault);
    }

    #[test]
    fn who_waits_for_a_panic_has_it() {
        let stopped = launch::End::Stopped { reason: Reason::ReadyPoint, at_ns: 1 };
        let exit = Exit { end: stopped, ..exit() };
        let console = vec!["[ 1.2] Kernel panic - not syncing: no root".to_owned()];
        let clues = EndEvidence { console, ..EndEvidence::default() };
        let cause = |regex: &str| {
            let until = Until::Line(regex::Regex::new(regex).expect("an expression"));
            judge(&Run { until: &until, ..run(&exit) }, &clues, String::new).end.cause
        };
        assert_eq!(cause("login:|Kernel panic"), Cause::Ready);
        assert_eq!(cause("."), Cause::Panic);
    }

    #[test]
    fn a_vmm_that_says_nothing_of_its_guest() {
        let mut exit = exit();
        let judged = |exit: &Exit, cut_short: Option<&str>, console: &[&str]| {
            let run = Run { cut_short: cut_short.map(str::to_owned), ..run(exit) };
            let console = console.iter().map(|line| (*line).to_owned()).collect();
            judge(&run, &EndEvidence { console, ..EndEvidence::default() }, String::new)
        };
        let unknown = judged(&exit, None, &[]);
        assert_eq!((unknown.end.cause, unknown.outcome), (Cause::Exit, Outcome::Done));
        let lacking = judged(&exit, Some("k has 1 byte"), &[]);
        assert_eq!(lacking.end, End::new(Cause::CutShort, "k has 1 byte"));
        assert!(matches!(lacking.outcome, Outcome::UnexpectedEnd { .. }));
        assert_eq!(judged(&exit, Some("k"), &[POWER_DOWN]).end.cause, Cause::PowerOff);
        exit.stderr_tail = "qemu-system-x86_64: terminating on signal 15 from pid 7 (sh)\n".into();
        let told = judged(&exit, None, &[]);
        assert_eq!(told.end.cause, Cause::Quit);
        assert!(matches!(told.outcome, Outcome::UnexpectedEnd { .. }));
    }

    /// libguestfs, a test's harness: the launcher ends its VMM, and is content.
    #[test]
    fn a_launcher_that_ends_its_vmm_and_exits_well_has_not_failed() {
        let mut exit = exit();
        let end = |exit: &Exit| {
            let run = run(exit);
            let shutdown = Some("host-signal".to_owned());
            judge(&run, &EndEvidence { shutdown, ..EndEvidence::default() }, String::new)
        };
        let by_others = end(&exit);
        assert_eq!(by_others.end.cause, Cause::Quit);
        exit.told_by = Some("guestfish (pid 7)".into());
        let own = end(&exit);
        assert_eq!((own.end.cause, own.outcome), (Cause::Launcher, Outcome::Done));
        exit.status = Status::Exited(3);
        exit.left_behind = vec!["qemu (pid 8)".into()];
        let failed = end(&exit);
        assert_eq!(failed.end.evidence, "exit status 3; ended with it: qemu (pid 8)");
    }

    /// `reboot=t` restarts by a triple fault, which is no crash after the kernel's own last word.
    #[test]
    fn a_restart_by_a_triple_fault_is_a_restart() {
        for (last, cause) in [
            ("[ 1.2] reboot: machine restart", Cause::Restart),
            ("[ 1.2] reboot: Restarting system", Cause::Restart),
            ("[ 1.2] Run /sbin/init as init process", Cause::TripleFault),
        ] {
            let shutdown = Some("guest-reset".to_owned());
            let console = vec![last.to_owned()];
            let clues =
                EndEvidence { shutdown, triple_faults: 1, console, ..EndEvidence::default() };
            assert_eq!(judged(true, &clues).end.cause, cause, "{last}");
        }
    }

    #[test]
    fn a_guest_that_restarts_for_ever_does_not_crash() {
        let mut exit = exit();
        exit.end = launch::End::Stopped { reason: Reason::TimedOut, at_ns: 0 };
        let said = |console: &[&str]| {
            let run = run(&exit);
            let console = console.iter().map(|line| (*line).to_owned()).collect();
            let clues =
                EndEvidence { resets: 7, triple_faults: 2, console, ..EndEvidence::default() };
            match judge(&run, &clues, || "x".into()).outcome {
                Outcome::TimedOut { last } => last,
                other => panic!("{other:?}"),
            }
        };
        let again = "[ 2.0] reboot: Restarting system";
        let machine = "[ 2.0] reboot: machine restart";
        assert_eq!(
            said(&[again, machine, again, machine]),
            "x; the guest's kernel restarted the machine 2 times (source: the console)"
        );
        assert_eq!(said(&[]), "x; its machine was reset 7 times, by triple faults");
    }

    #[test]
    fn a_program_killed_for_lack_of_memory_is_no_good_end() {
        let line = "[ 1.5] Out of memory: Killed process 7 (a b) total-vm:9kB, anon-rss:8kB";
        let off = EndEvidence { shutdown: Some("guest-shutdown".into()), ..EndEvidence::default() };
        assert_eq!(judged(false, &off).outcome, Outcome::Done);
        let log = Some(vec![line.to_owned(), POWER_DOWN.to_owned()]);
        let starved = judged(false, &EndEvidence { kernel_log: log, ..off.clone() });
        let known = "the kernel's log: Out of memory: Killed process 7 (a b)";
        assert_eq!(starved.end, End::new(Cause::Starved, known));
        assert!(matches!(starved.outcome, Outcome::UnexpectedEnd { .. }));
        // What a control group's own bound kills, and what a program prints beside a log.
        let own = "[ 1.5] Memory cgroup out of memory: Killed process 7 (a)".to_owned();
        let (log, console) = (Some(vec![own]), vec![line.to_owned()]);
        let bounded = judged(false, &EndEvidence { kernel_log: log, console, ..off });
        assert_eq!(bounded.outcome, Outcome::Done);
    }
}
