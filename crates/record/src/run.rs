//! One boot, recorded.

use crate::clock;
use crate::end::{self, EndEvidence, Judged, PANIC};
use crate::loader_file;
use crate::no_boot::{as_shown, NOTHING_TO_BOOT};
use crate::not_recorded::{not_recorded, note};
use crate::ready::{ConsoleWatch, Until, SYSTEMD_SAYS, WHOSE};
use crate::recorder::{Context, Live, Lives, Saved, SourceError};
use crate::sources::{self, console, firmware};
use crate::stamped;
use crate::vmeter_errors::OwnFailures;
use crate::wrapped::{self, Follows, Found};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vmeter_machine::argv::{console_file, is_same_for_all};
use vmeter_machine::launch::{self, Exit, Hooks, LaunchError, Mode, Options, Reason};
use vmeter_machine::launch::{Stopper, Tracee, Vmm};
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::vmm::Abilities;
use vmeter_model::expression::compiled;
use vmeter_model::run::{Origin, Outcome, SourceRecord, WatchLevel};
use vmeter_model::{Accel, Cause, EventKind, Moment, Ns, RunRecord, SCHEMA};

/// What the console of an unwatched run is kept in: bytes, without stamps.
const PLAIN_CONSOLE: &str = "console.raw";

/// What a VMM printed on its standard error, where that is more than a record holds.
pub const VMM_STDERR: &str = "vmm-stderr.txt";

/// How much of it a record holds, bytes and lines.
const STDERR_BYTES: usize = 4 << 10;
const STDERR_LINES: usize = 40;

/// How long a console has to be silent after the end of a panic until that is believed: a
/// program of the guest that prints the like goes on.
const SILENT_FOR: Duration = Duration::from_secs(1);

/// How much of an unwatched console is searched for a panic.
const CONSOLE_TAIL: u64 = 1 << 20;

/// A kernel prints this as the last line of a panic, when it is going to hang.
const PANIC_END: &str = r"---\[ end Kernel panic";

/// Of a VMM that kicks its vCPUs.
const LET_GO: &str =
    "the VMM's threads got so many signals that tracing would have slowed the VMM down, so \
     vmeter stopped tracing them. vmeter read the guest's RAM and KVM's counters only when the \
     VMM's process ended; by then, the RAM or the counters may already have been gone";

/// What to record.
pub struct Request<'a> {
    /// The machine and how it is watched. Its `watches` are filled in here.
    pub context: Context<'a>,
    /// The VMM's command line, before anything is added to it.
    pub plan: LaunchPlan,
    /// Number of the run.
    pub index: u32,
    /// Label of the machine.
    pub label: String,
    /// True for a warm-up.
    pub warmup: bool,
    /// Where the measurement ends.
    pub until: Until,
    /// When to give up.
    pub timeout: Option<Duration>,
    /// CPUs the VMM may use; empty for all.
    pub pin: Vec<usize>,
    /// False for a command that traces its VMM itself.
    pub traced: bool,
}

/// Boots once and records it into the context's folder. `stopper` ends it early.
///
/// # Errors
/// When the VMM could not be started. A guest or VMM that fails later is an
/// outcome, not an error.
pub fn run(mut request: Request<'_>, stopper: &Stopper) -> Result<RunRecord, LaunchError> {
    let mut warnings = Vec::new();
    request.context.vmm = request.context.abilities(request.context.vmm);
    let mut own = OwnFailures::new(request.context.dir);
    let told = tell_systemd(&mut request);
    watch_console(&mut request, stopper);
    let mut lives = attach(&mut request, &mut warnings, &mut own);
    own.check()?;
    if let Err(error) = request.plan.place_config(request.context.dir) {
        return Err(LaunchError::Prepare { error });
    }
    let ends_by_reset = request.plan.ends_by_reset(!request.context.spec.command.is_empty());
    let argv = strings(&request.plan);
    let dir = request.context.dir.display().to_string();
    let injected: Vec<String> =
        request.plan.injected.iter().map(|a| a.replace(&dir, "RUN")).collect();
    // What a wrapper executes is known by then, and not before.
    let wrapped = request.plan.dialect.is_none();
    let is_probe = request.plan.dialect.is_some_and(|vmm| vmm.is_probe(&request.plan.argv));
    let mode = match request.context.watch {
        _ if !request.traced => Mode::Plain,
        // Its memory can be looked at while it is stopped at its end.
        WatchLevel::None if !request.context.memory => match wrapped {
            true if !request.context.spec.no_inject => Mode::Started,
            _ => Mode::Plain,
        },
        _ => Mode::Traced,
    };
    let options = Options {
        mode,
        timeout: request.timeout,
        pin: std::mem::take(&mut request.pin),
        follow: request.context.vmm.image.map(str::to_owned),
        frees_ram: !request.context.vmm.ram_at_exit,
        ends_all: request.context.spec.end_vm,
        grace: Duration::ZERO,
    };
    let killed_before = oom_kills();
    let first = clock::read();
    // cloud-hypervisor says there what its guest tells it.
    let heard = matches!(request.until, Until::GuestBooted).then(|| request.context.ready.clone());
    let stderr = heard.flatten().map(|watch| (stamped::LineCutter::default(), watch));
    let plan = std::mem::take(&mut request.plan);
    let file = wrapped::file_console(&plan, &lives, &mut warnings);
    let words: &[&str] = if told.is_some() { &[SYSTEMD_SAYS] } else { &[] };
    let wrapped = wrapped.then(|| Wrapped {
        context: &request.context,
        words,
        output: plan.stdout.as_ref().and_then(|fd| fd.try_clone().ok()),
    });
    let mut hooks = Attached {
        lives: &mut lives,
        warnings: &mut warnings,
        own: &mut own,
        stderr,
        wrapped,
        found: None,
        file,
        looked: Vec::new(),
    };
    let exit = launch::run(plan, &options, stopper, &mut hooks)?;
    if let Some(said) = wants_ptrace(&exit) {
        let command = argv.first().cloned().unwrap_or_default();
        return Err(LaunchError::PtraceTaken { command, said });
    }
    let (found, mut looked) = (hooks.found.take(), std::mem::take(&mut hooks.looked));
    // A launcher's VMM is known once it ran.
    if let Some(found) = &found {
        (request.context.vmm, request.context.accel) = (found.vmm, found.accel);
    }
    // Of one that nothing is known of, its end is all that says how its machine ends.
    let unknown = request.context.vmm == Abilities::default();
    let ends_by_reset = ends_by_reset || found.as_ref().map_or(unknown, |f| f.ends_by_reset);
    let (argv, injected) = match &found {
        Some(found) => {
            let argv = found.argv.iter().map(|a| a.to_string_lossy().into_owned()).collect();
            (argv, found.injected.iter().map(|a| a.replace(&dir, "RUN")).collect())
        }
        None => (argv, injected),
    };
    let last = clock::read();
    own.ended(&exit, &lives);
    if let launch::Ptrace::Refused(why) = &exit.ptrace {
        warnings.push(why.clone());
    }
    let mut record = RunRecord {
        schema: SCHEMA.into(),
        index: request.index,
        label: request.label.clone(),
        warmup: request.warmup,
        watch: request.context.watch,
        origin: request.context.snapshot.map_or(Origin::Boot, |_| Origin::Restore),
        argv,
        injected,
        outlived: false,
        runs_on: exit.runs_on.iter().any(|left| left.is_vmm),
        exec_ns: exit.exec_ns,
        total_ns: exit.total_ns,
        looked_ns: exit.looked_ns,
        clocks: vec![first, last],
        outcome: Outcome::Done,
        end: None,
        usage: exit.usage,
        steal_s: 0.0,
        cpu_pressure_s: None,
        probe_s: None,
        probes: exit.probes,
        moments: exit.moments.clone(),
        sources: finish(lives, exit.exec_ns, &mut warnings, &mut own),
        icount: request.context.accel == Some(Accel::Icount),
        warnings: Vec::new(),
        marks: request.context.spec.mark.clone(),
    };
    if record.runs_on {
        // The end of a process that started the VMM is none of the VMM.
        record.moments.retain(|(_, m)| !matches!(m, Moment::VmmExiting | Moment::WrapperResumed));
    } else {
        warnings.append(&mut looked);
    }
    add_moments(&mut record, &exit, request.context.ready.as_deref());
    for recorder in sources::all() {
        if record.sources.iter().any(|source| source.name == recorder.name()) {
            recorder.refine_run(request.context.dir, &mut record);
        }
    }
    record.moments.sort_by_key(|(at, _)| *at);
    let file = found.as_ref().and_then(|found| console_file(&found.argv));
    let file = file.is_some_and(|(file, _)| is_same_for_all(file));
    say_of_others((&exit, exit.others_print && !file), &mut record.sources, &mut warnings);
    let killed = oom_kills().saturating_sub(killed_before);
    let (judged, saw_guest) = judged(&request, &record, &exit, (ends_by_reset, killed));
    let ready = matches!(&exit.end, launch::End::Stopped { reason: Reason::ReadyPoint, .. });
    // The line that a client prints is no guest's.
    let asked = exit.asked.is_some();
    let ended_well = ready && asked || exit.end == launch::End::ByItself && exit.status.success();
    let no_guest = unknown && !saw_guest && (asked || mode == Mode::Traced);
    let no_probe = is_probe && mode == Mode::Traced;
    let followed = exit.ptrace == launch::Ptrace::Used;
    if followed && ended_well && !exit.has_vmm && (no_probe || no_guest) {
        return Err(no_vmm(&record, &exit));
    }
    record.outcome = keep_stderr(judged.outcome, request.context.dir, &mut warnings);
    record.end = Some(judged.end);
    let left = exit.left_behind.is_empty() && exit.runs_on.is_empty();
    record.outlived = exit.status.success() && !left;
    warnings.extend(judged.warnings);
    if record.outcome != Outcome::Interrupted {
        own.check()?;
    }
    warn_of_forks(&exit, &request, &mut warnings);
    warnings.extend(found.and_then(|found| found.elsewhere).map(|why| format!("console: {why}")));
    warnings.extend(exit.let_go.then(|| LET_GO.to_owned()));
    if matches!(record.outcome, Outcome::TimedOut { .. }) && told == Some(false) {
        warnings.push(format!(
            "--until systemd-ready: systemd did not report on the console that it reached a \
                target. If the guest's kernel command line has `quiet`, systemd reports targets \
                only if the line also has {SYSTEMD_SAYS}. Add {SYSTEMD_SAYS} {}",
            loader_file::of_console(&request.context.dir.join(console::FILE))
        ));
    }
    // Two sources that need the same thing miss it in the same words.
    let mut said = std::collections::HashSet::new();
    warnings.retain(|warning| said.insert(warning.clone()));
    record.warnings = warnings;
    Ok(record)
}

/// Has systemd say on the console what it reaches, where that is waited for: false if the
/// guest can't be told, none if it needs no telling.
fn tell_systemd(request: &mut Request<'_>) -> Option<bool> {
    if !matches!(request.until, Until::SystemdReady) {
        return None;
    }
    let line = request.plan.kernel_line().unwrap_or_default();
    if line.contains("systemd.show_status=") {
        return Some(false);
    }
    Some(request.plan.inject_kernel_parameters(&[SYSTEMD_SAYS]))
}

/// Sets up what ends the run from the console: the ready point and a panic that hangs.
fn watch_console(request: &mut Request<'_>, stopper: &Stopper) {
    request.context.ready = request.until.pattern().map(|pattern| {
        let stop = |reason| {
            let stopper = stopper.clone();
            Box::new(move |at| stopper.stop_at(reason, at))
        };
        let watch = ConsoleWatch::new(pattern, stop(Reason::ReadyPoint));
        Arc::new(watch.or_in_doubt(stop(Reason::Other(WHOSE.into()))))
    });
    if request.context.watch != WatchLevel::None {
        for (pattern, reason) in [(PANIC_END, PANIC), (NOTHING_TO_BOOT, NOTHING_TO_BOOT)] {
            let stopper = stopper.clone();
            let stop = move |at| stopper.stop_at(Reason::Other(reason.into()), at);
            if let Some(pattern) = compiled(pattern).cloned() {
                let watch = ConsoleWatch::once_silent(pattern, SILENT_FOR, Box::new(stop));
                request.context.watches.push(watch);
            }
        }
    }
}

/// The live halves of all sources that apply, prepared.
fn attach(
    request: &mut Request<'_>,
    warnings: &mut Vec<String>,
    own: &mut OwnFailures<'_>,
) -> Lives {
    let context = &request.context;
    if context.watch == WatchLevel::None && context.ready.is_none() && !context.memory {
        // Nobody reads while it runs; a panic is looked for afterwards.
        let path = request.context.dir.join(PLAIN_CONSOLE);
        match File::create(&path) {
            Ok(file) => request.plan.stdout = Some(file.into()),
            Err(error) => own.note(&SourceError::Io { path, error }),
        }
    }
    let mut lives = Vec::new();
    let mut failures: Vec<(Vec<&'static str>, String)> = Vec::new();
    for source in sources::all() {
        let Some(mut live) = source.live(&request.context) else { continue };
        match live.prepare(&mut request.plan) {
            Ok(()) => lives.push((source.name(), live)),
            Err(error) => {
                own.note(&error);
                note(&mut failures, source.name(), &error);
            }
        }
    }
    warnings.extend(failures.iter().map(|(names, why)| not_recorded(names, why)));
    lives
}

/// What is needed to attach sources to a wrapper's VMM.
struct Wrapped<'a> {
    context: &'a Context<'a>,
    words: &'static [&'static str],
    output: Option<OwnedFd>,
}

struct Attached<'a, 'b> {
    lives: &'a mut Lives,
    warnings: &'a mut Vec<String>,
    own: &'a mut OwnFailures<'b>,
    /// Who looks for the ready point in what the VMM writes there, line by line.
    stderr: Option<(stamped::LineCutter, Arc<ConsoleWatch>)>,
    wrapped: Option<Wrapped<'a>>,
    found: Option<Found>,
    /// The console of a VMM that is executed at once, if that is a file.
    file: Option<Follows>,
    /// What could not be read at its end.
    looked: Vec<String>,
}

impl Attached<'_, '_> {
    fn each(&mut self, mut call: impl FnMut(&mut dyn Live) -> Result<(), SourceError>) {
        for (_, live) in self.lives.iter_mut() {
            if let Err(error) = call(live.as_mut()) {
                self.own.note(&error);
                self.warnings.push(error.to_string());
            }
        }
    }
}

impl Hooks for Attached<'_, '_> {
    fn on_vmm(&mut self, vmm: &Vmm<'_>) {
        if let Some(Wrapped { context, words, output }) = &self.wrapped {
            self.found = None;
            let of_launch = (*words, output.as_ref());
            let found = Found::attach(context, vmm, self.lives, of_launch, self.warnings);
            self.found = Some(found);
        }
    }

    fn on_other(&mut self, prints: bool) {
        let apart = self.file.is_some() || self.found.as_ref().is_some_and(Found::has_file);
        if prints {
            self.lives.iter_mut().for_each(|(_, live)| live.shared(apart));
        }
    }

    fn has_seen_guest(&mut self) -> bool {
        self.lives.iter().any(|(_, live)| live.has_seen_guest())
    }

    fn on_exec(&mut self, tracee: &Tracee) {
        self.each(|live| live.exec(tracee));
    }

    fn on_exiting(&mut self, tracee: &Tracee) {
        let before = self.warnings.len();
        self.each(|live| live.exiting(tracee));
        self.looked.extend(self.warnings.drain(before..));
    }

    fn on_stderr(&mut self, at: Ns, bytes: &[u8]) {
        if self.found.as_ref().is_some_and(|found| found.on_stderr) {
            if let Some(output) = self.wrapped.as_ref().and_then(|w| w.output.as_ref()) {
                wrapped::sink(self.lives, Some(output)).into_iter().for_each(|mut put| put(bytes));
            }
        }
        let Some((cutter, watch)) = &mut self.stderr else { return };
        cutter.push(at, bytes);
        cutter.take().iter().for_each(|line| watch.see(line));
    }

    fn on_ended(&mut self) {
        // What is left of a console in a file comes first.
        self.file = None;
        if let Some(found) = &mut self.found {
            found.read_file();
        }
        if let Some(wrapped) = &mut self.wrapped {
            wrapped.output = None;
        }
        self.each(|live| live.ended());
    }
}

fn finish(
    lives: Lives,
    exec_ns: Ns,
    warnings: &mut Vec<String>,
    own: &mut OwnFailures<'_>,
) -> Vec<SourceRecord> {
    let mut records = Vec::new();
    for (_, live) in lives {
        match live.finish(exec_ns) {
            Ok(record) => records.extend(record),
            Err(error) => {
                own.note(&error);
                warnings.push(error.to_string());
            }
        }
    }
    records
}

fn strings(plan: &LaunchPlan) -> Vec<String> {
    plan.argv.iter().map(|a| a.to_string_lossy().into_owned()).collect()
}

/// Adds the ready point, and each stop in which vmeter held the VMM.
fn add_moments(record: &mut RunRecord, exit: &Exit, ready: Option<&ConsoleWatch>) {
    for (begin, end) in &exit.held {
        record.moments.push((*begin, Moment::VmeterHold));
        record.moments.push((*end, Moment::VmeterRelease));
    }
    if let Some((at, _)) = ready.and_then(ConsoleWatch::reached) {
        // One that was printed as the VMM ended, and arrived while it was looked into, is its end.
        let at = at - exit.exec_ns;
        let of_end = matches!(exit.end, launch::End::Stopped { reason: Reason::ReadyPoint, .. });
        let late = at <= exit.total_ns.saturating_add(exit.looked_ns);
        record
            .moments
            .push((if of_end || late { at.min(exit.total_ns) } else { at }, Moment::Ready));
    }
    record.moments.sort_by_key(|(at, _)| *at);
}

/// What ended the run, by all that was recorded of it.
fn judged(
    request: &Request<'_>,
    record: &RunRecord,
    exit: &Exit,
    (ends_by_reset, oom_kills): (bool, u64),
) -> (Judged, bool) {
    let dir = request.context.dir;
    let saved = Saved::new(dir, record);
    let mut clues = EndEvidence::default();
    for recorder in sources::all() {
        recorder.clues(&saved, &mut clues);
    }
    if clues.console.is_empty() {
        clues.console = plain_console(dir);
    }
    let run = end::Run {
        exit,
        until: &request.until,
        ends_by_reset,
        kvm: request.context.accel == Some(Accel::Kvm) || names_kvm(&record.argv),
        known_vmm: request.context.vmm != Abilities::default(),
        debug_exit: record.argv.iter().any(|word| word.contains("isa-debug-exit")),
        oom_kills,
        cut_short: request.context.kernel.and_then(vmeter_kernel_image::cut_short),
    };
    let mut judged = end::judge(&run, &clues, || last_seen(dir, record));
    // Any program prints: a line is a guest's if it reads so, or if it is the one that the user named.
    let named = record.moments.iter().any(|(_, moment)| *moment == Moment::Ready);
    let saw_guest = named && exit.asked.is_none()
        || clues.have_guest()
        || !matches!(judged.end.cause, Cause::Exit | Cause::Launcher | Cause::Ready)
        || record.sources.iter().any(|s| s.name == firmware::NAME);
    if let Outcome::VmmFailed { stderr, .. } = &mut judged.outcome {
        if stderr.trim().is_empty() {
            // Some say it on standard output, where the guest's console is.
            let from = clues.console.len().saturating_sub(STDERR_LINES);
            *stderr = clues.console[from..].join("\n");
        }
    }
    (judged, saw_guest)
}

/// The line in which what was launched says that it cannot trace, because vmeter does.
fn wants_ptrace(exit: &Exit) -> Option<String> {
    let is_refusal = |line: &&str| {
        line.to_ascii_lowercase().contains("ptrace") && line.contains("Operation not permitted")
    };
    let watched = exit.ptrace == launch::Ptrace::Used && !exit.has_vmm;
    let said = exit.stderr_tail.lines().rfind(is_refusal)?;
    (watched && exit.end == launch::End::ByItself).then(|| said.trim().to_owned())
}

/// What to do where a daemon was asked, and where nobody was.
const OF_DAEMON: &str =
    "A daemon's VM is not a child of this command. Use vmeter boot --next -- COMMAND, which \
     follows the VM from its VMM's exec, or give the VMM's own command line";
const OF_NOBODY: &str =
    "If a daemon (libvirtd, incus, the tmux server) starts the VM, the VM is not a child of the \
        command: use `vmeter boot --next -- COMMAND`, which follows such a VM from its VMM's \
        exec. Or give the VMM's own command line. If the command is a VMM that vmeter does not \
        know, say where its boot ends: --until line:REGEX";

/// The command ended well, and nothing in it was a VMM.
fn no_vmm(record: &RunRecord, exit: &Exit) -> LaunchError {
    let named = exit.runs_on.iter().map(|left| format!("{} (pid {})", left.name, left.pid));
    let named: Vec<String> = named.collect();
    LaunchError::NoVmm {
        command: record.argv.first().cloned().unwrap_or_default(),
        seconds: exit.total_ns as f64 / 1e9,
        asked: exit.asked.as_ref().map_or_else(String::new, |asked| {
            format!(
                ": {} is a client of {}, so the output does not come from a guest",
                asked.who, asked.whom
            )
        }),
        left: match named.is_empty() {
            true => String::new(),
            false => format!("; {} is still running: vmeter did not end it", named.join(", ")),
        },
        mend: if exit.asked.is_some() { OF_DAEMON } else { OF_NOBODY },
    }
}

/// Begins the warning of more than one VMM.
pub const SEVERAL: &str = "more than one VMM ran";

/// Of several VMMs one is followed; lines that another one printed are none of its guest. `shared` says
/// that its console is where others print, and no file of its own.
fn say_of_others(
    (exit, shared): (&Exit, bool),
    sources: &mut Vec<SourceRecord>,
    warnings: &mut Vec<String>,
) {
    if exit.others.is_empty() {
        return;
    }
    let first = exit.vmm.as_deref().unwrap_or("the first");
    let others = exit.others.join(", ");
    let lines = match shared {
        false => "",
        true => "; all of them print to one console, so vmeter uses none of its lines",
    };
    if shared {
        sources.retain(|source| source.name != console::NAME);
    }
    warnings.push(format!("{SEVERAL}: vmeter measured {first}, not {others}{lines}"));
}

/// True for a command line that asks for KVM: `-accel kvm`, `-M q35,accel=kvm`, `-enable-kvm`.
fn names_kvm(argv: &[String]) -> bool {
    let asks = |word: &str| {
        word.ends_with("-enable-kvm") || word.starts_with("kvm") || word.contains("accel=kvm")
    };
    argv.iter().skip(1).any(|word| asks(word))
}

/// Puts what a VMM printed into a file, if it is too much for a record, which keeps its end.
fn keep_stderr(outcome: Outcome, dir: &Path, warnings: &mut Vec<String>) -> Outcome {
    let Outcome::VmmFailed { status, stderr } = outcome else { return outcome };
    let lines = stderr.lines().count();
    if stderr.len() <= STDERR_BYTES && lines <= STDERR_LINES {
        return Outcome::VmmFailed { status, stderr };
    }
    let path = dir.join(VMM_STDERR);
    if let Err(error) = std::fs::write(&path, &stderr) {
        warnings.push(format!("the VMM's standard error is not kept: {}: {error}", path.display()));
    }
    let last: Vec<&str> = stderr.lines().skip(lines.saturating_sub(STDERR_LINES)).collect();
    let last = last.join("\n");
    let from = (0..=STDERR_BYTES).rev().find_map(|bytes| {
        let at = last.len().checked_sub(bytes)?;
        last.is_char_boundary(at).then_some(at)
    });
    let stderr = last.get(from.unwrap_or(0)..).unwrap_or_default().to_owned();
    Outcome::VmmFailed { status, stderr }
}

/// Processes that this host's kernel has killed for lack of memory since it booted.
fn oom_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// The last lines of a console that nobody read while it ran.
fn plain_console(dir: &Path) -> Vec<String> {
    let mut bytes = Vec::new();
    let read = vmeter_base::files::open_regular(&dir.join(PLAIN_CONSOLE)).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(CONSOLE_TAIL)))?;
        file.take(CONSOLE_TAIL).read_to_end(&mut bytes)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect(),
        Err(_) => Vec::new(),
    }
}

/// The last thing that the guest or its VMM was seen to do, in words.
fn last_seen(dir: &Path, record: &RunRecord) -> String {
    let (events, _) = crate::decode::events(dir, record);
    let said = |what: &EventKind| match what {
        EventKind::ConsoleLine { text, .. } => Some(format!("console line {:?}", as_shown(text))),
        EventKind::KernelLine { text, .. } => Some(format!("kernel log line {text:?}")),
        EventKind::FirmwareLine { text } => Some(format!("firmware log line {text:?}")),
        EventKind::InitcallStart { function, .. } => Some(format!("initcall {function}")),
        EventKind::StepStart { step } => Some(format!("init's step {step:?}")),
        EventKind::Reached { symbol } => Some(format!("the guest reached {symbol}")),
        EventKind::RunState { state } => Some(format!("the VMM's state became {state:?}")),
        EventKind::VmmMain => Some("the VMM's main(); vmeter saw nothing of the guest".into()),
        EventKind::VmmExec => Some("the VMM's exec; vmeter saw nothing of the guest".into()),
        EventKind::InitcallLevel { level } => Some(format!("initcall level {level}")),
        EventKind::ModuleLoad { module, .. } => Some(format!("the load of module {module}")),
        EventKind::ProcessExec { file, .. } => Some(format!("the guest executed {file}")),
        EventKind::Ready => Some("the guest said that it is ready".into()),
        EventKind::ShutdownStart => Some("the guest's shutdown began".into()),
        EventKind::PowerOff => Some("the guest's power-off".into()),
        // Ends say nothing of what came after them, and the VMM's own end is vmeter's doing.
        EventKind::InitcallEnd { .. }
        | EventKind::StepEnd { .. }
        | EventKind::ProcessExit { .. }
        | EventKind::ProcessFork { .. }
        | EventKind::ProcessArguments { .. }
        | EventKind::ProcessWait { .. }
        | EventKind::ProcessReap { .. }
        | EventKind::ProcessGroup { .. }
        | EventKind::UnitFile { .. }
        | EventKind::WrapperExec
        | EventKind::WrapperResumed
        | EventKind::VmmEntry
        | EventKind::VmmExiting
        | EventKind::VmmExit
        | EventKind::VmmKilled
        // Too small to say where the guest is.
        | EventKind::PciConfig { .. }
        | EventKind::FwCfg { .. }
        | EventKind::DiskRead { .. }
        | EventKind::VmmRead { .. }
        | EventKind::VmmWaits
        | EventKind::SnapshotPart { .. }
        | EventKind::Launched { .. }
        | EventKind::MachineReset
        | EventKind::VirtioReset
        | EventKind::Stalled { .. }
        | EventKind::ScreenCleared
        | EventKind::Note { .. }
        | EventKind::ReadyLine { .. }
        | EventKind::Count { .. } => None,
    };
    events.iter().rev().find_map(|e| said(&e.what)).unwrap_or_else(|| "nothing at all".into())
}

/// A wrapper that starts its VMM in a way that is not followed is measured in its place.
fn warn_of_forks(exit: &Exit, request: &Request<'_>, warnings: &mut Vec<String>) {
    let Some(image) = &exit.image else { return };
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    // An image of the family may have another name than its usual one (qemu-kvm).
    let family = |vmm: &str| vmm.split('-').next().map(str::to_owned).unwrap_or_default();
    let unseen = |vmm: &&str| !exit.has_vmm && !name.contains(&family(vmm));
    if let Some(vmm) = request.context.vmm.image.filter(unseen) {
        warnings.push(format!(
            "the launched program {name} did not exec the VMM, and vmeter saw none of the \
                program's children execute {vmm}*. If one of these children is the VMM, vmeter \
                did not record it. Put `exec` before {vmm}* in the last line of the wrapper script"
        ));
    }
}
