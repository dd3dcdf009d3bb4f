//! Migrating again and again: every point in turn, in an order that favours none.

use crate::error::MigrateError;
use crate::parameters::{Point, DEFAULT_MEMORY_MIB};
use crate::run::{self, Task};
use crate::saved::Saved;
use crate::side::Side;
use crate::summary::{self, Limits};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;
use vmeter_machine::backend::{self, Machine, Request};
use vmeter_model::migrate::{MigrateOutcome, MigrateResult, MigrateRun, MigrateSetup};
use vmeter_model::result::Envelope;
use vmeter_model::{Accel, MachineSpec};
use vmeter_record::clock::{self, Conversion};
use vmeter_stats::plan;

/// The host's TSC is measured over at least this.
const TSC_WINDOW_NS: i64 = 50_000_000;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Settings, in the order of the sweep.
    pub points: Vec<Point>,
    /// Measured runs of each.
    pub runs: usize,
    /// Runs of each before them.
    pub warmup: usize,
    /// Seed of the order.
    pub seed: u64,
    /// Give a migration up after this long.
    pub timeout: Duration,
    /// CPUs of both QEMUs; empty for all.
    pub pin: Vec<usize>,
    /// A side to kill in the middle of every migration.
    pub kill: Option<Side>,
    /// Folder where finished runs are kept.
    pub save: Option<PathBuf>,
    /// Take the runs that are there for done.
    pub resume: bool,
    /// vmeter's cache folder.
    pub cache: PathBuf,
}

/// Hears what is going on.
pub trait Watcher {
    /// So many migrations will be made.
    fn begin(&mut self, runs: usize);
    /// One is about to begin.
    ///
    /// # Errors
    /// What then ends the measurement.
    fn before(&mut self, label: &str) -> Result<(), MigrateError>;
    /// One is done.
    fn done(&mut self, label: &str, run: &MigrateRun);
    /// True once the user wants it to end.
    fn is_interrupted(&self) -> bool;
}

/// Measures. An interrupted measurement has what was finished, with
/// `interrupted` among its warnings.
///
/// # Errors
/// A machine that cannot be made or does not start; [`MigrateError::Interrupted`] if
/// nothing was finished.
pub fn measure(
    options: &Options,
    envelope: Envelope,
    watcher: &mut dyn Watcher,
) -> Result<MigrateResult, MigrateError> {
    let before = clock::read();
    let machines = machines(options)?;
    let tsc_hz = tsc_hz(before)?;
    let saved = Saved::open(options.save.as_deref(), options.resume, options)?;
    let slots = plan::plan(options.points.len(), options.warmup, options.runs, options.seed);
    let mut runs: Vec<MigrateRun> = Vec::new();
    let mut limits = vec![None; options.points.len()];
    let mut interrupted = false;
    watcher.begin(slots.len());
    for (index, slot) in slots.iter().enumerate() {
        let Some(point) = options.points.get(slot.machine) else { continue };
        let label = point.label();
        if let Some((run, limit)) = saved.take(index, slot)? {
            limits[slot.machine] = Some(limit);
            watcher.done(&label, &run);
            runs.push(run);
            continue;
        }
        interrupted = watcher.is_interrupted();
        if interrupted {
            break;
        }
        watcher.before(&label)?;
        let Some(argv) = machines.get(&slot.machine).map(|machine| machine.plan().argv) else {
            continue;
        };
        let task = Task {
            argv: &argv,
            knobs: &point.knobs,
            workload: point.knobs.workload()?,
            tsc_hz,
            timeout: options.timeout,
            pin: &options.pin,
            kill: options.kill,
            interrupted: &|| watcher.is_interrupted(),
        };
        let found = match run::migrate(&task) {
            // What goes wrong then is no news.
            Err(_) if watcher.is_interrupted() => {
                interrupted = true;
                break;
            }
            other => other?,
        };
        let mut run = found.run;
        (run.point, run.block, run.warmup) = (slot.machine, slot.block, slot.warmup);
        let limit = Limits::of(&found.limits);
        saved.keep(index, &run, &limit)?;
        limits[slot.machine] = Some(limit);
        watcher.done(&label, &run);
        runs.push(run);
    }
    if runs.is_empty() && interrupted {
        return Err(MigrateError::Interrupted);
    }
    let setup = setup(options, &machines);
    let mut result = summary::result(envelope, setup, &options.points, runs, &limits, options.kill);
    for machine in machines.values() {
        result.envelope.provenance.extend(machine.provenance.clone());
    }
    if interrupted {
        let text =
            format!("{INTERRUPTED}: {} of {} migrations are done", result.runs.len(), slots.len());
        result.warnings.insert(0, text);
    }
    if let Some(reason) = impossible(&result.runs) {
        return Err(MigrateError::Host(reason));
    }
    saved.finish(&result)?;
    Ok(result)
}

/// Begins the warning of a measurement that was interrupted.
pub const INTERRUPTED: &str = "interrupted";

/// QEMU's words if no migration ever began.
fn impossible(runs: &[MigrateRun]) -> Option<String> {
    let refused =
        |run: &MigrateRun| run.outcome == MigrateOutcome::Failed && run.samples.is_empty();
    let all = !runs.is_empty() && runs.iter().all(refused);
    runs.first().filter(|_| all).map(|run| run.reason.clone())
}

/// The machine of each point, those that are alike being described once.
fn machines(options: &Options) -> Result<HashMap<usize, Machine>, MigrateError> {
    let mut known: Vec<(MachineSpec, Machine)> = Vec::new();
    let mut machines = HashMap::new();
    for (n, point) in options.points.iter().enumerate() {
        let spec = &point.knobs.spec;
        let machine = match known.iter().find(|(other, _)| other == spec) {
            Some((_, machine)) => machine.clone(),
            None => {
                let machine = describe(spec, options)?;
                known.push((spec.clone(), machine.clone()));
                machine
            }
        };
        machines.insert(n, machine);
    }
    Ok(machines)
}

fn describe(spec: &MachineSpec, options: &Options) -> Result<Machine, MigrateError> {
    let refuse = |what: &str, why: &str| Err(MigrateError::Usage(format!("{what}: {why}")));
    let own = "the guest that is migrated is vmeter's own, in the place of the firmware";
    if spec.vmm.as_deref() == Some("mock") {
        return refuse("--vmm mock", "there is nothing to migrate; use qemu or the path of one");
    }
    let dialect = backend::of(spec).and_then(|backend| backend.dialect());
    if dialect.is_some_and(|dialect| !dialect.abilities().monitor) {
        return refuse("this VMM", "only QEMU's migration is known; use --vmm qemu");
    }
    if spec.accel == Some(Accel::Icount.into()) {
        return refuse(
            "--accel icount",
            "virtual time says nothing of a migration; use tcg or kvm",
        );
    }
    if spec.no_inject {
        return refuse("--no-inject", "a migration needs a monitor and a guest of vmeter's");
    }
    let given = [
        ("--kernel", spec.kernel.is_some()),
        ("--initrd", spec.initrd.is_some()),
        ("--firmware", spec.firmware.is_some()),
        ("--append", !spec.append.is_empty()),
        ("--init", spec.init.is_some()),
        ("--root", spec.root.is_some()),
        ("--until", spec.until.is_some()),
    ];
    if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
        return refuse(name, own);
    }
    let memory_mib = Some(spec.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB));
    let spec = MachineSpec { memory_mib, ..spec.clone() };
    // What --memory says of a command line of the user's own is checked below.
    let own_size = memory_mib.filter(|_| spec.command.is_empty());
    let asked = MachineSpec { memory_mib: own_size, ..spec.clone() };
    let request = Request {
        spec: &asked,
        cache: &options.cache,
        kernel: None,
        initrd: None,
        root_image: None,
    };
    let mut machine = backend::describe(&request)?;
    if !machine.abilities().monitor {
        return refuse("this VMM", "only QEMU's migration is known");
    }
    check_command(&spec)?;
    machine.chosen.retain(|(what, _, _)| !matches!(what.as_str(), "firmware" | "kernel" | "root"));
    machine.provenance.remove("firmware");
    Ok(machine)
}

/// Options of a command line of the user's own that would take the guest's place.
fn check_command(spec: &MachineSpec) -> Result<(), MigrateError> {
    const TAKEN: [&str; 7] =
        ["bios", "kernel", "serial", "incoming", "S", "daemonize", "nographic"];
    for word in &spec.command {
        let name = word.strip_prefix("--").or(word.strip_prefix('-'));
        if let Some(name) = name.filter(|name| TAKEN.contains(name)) {
            return Err(MigrateError::Usage(format!(
                "-{name} after --: vmeter migrate adds a guest (-bios), its serial port and \
                 -incoming itself; leave it out"
            )));
        }
    }
    let memory = spec.command.iter().position(|word| word == "-m");
    let given = memory.and_then(|at| spec.command.get(at + 1));
    let want = spec.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB);
    let fits = |text: &String| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        let scale = if text[digits.len()..].starts_with(['G', 'g']) { 1024 } else { 1 };
        digits.parse::<u64>().is_ok_and(|n| n.saturating_mul(scale) == u64::from(want))
    };
    if spec.command.is_empty() || given.is_some_and(fits) {
        return Ok(());
    }
    Err(MigrateError::Usage(format!(
        "the command line after -- must give the guest its memory as vmeter reckons it: \
         -m {want} (or another size, with --memory before the --)"
    )))
}

fn tsc_hz(first: vmeter_model::time::ClockReading) -> Result<f64, MigrateError> {
    use rustix::event::{poll, Timespec};
    let mut last = clock::read();
    while last.monotonic_ns - first.monotonic_ns < TSC_WINDOW_NS {
        let left = TSC_WINDOW_NS - (last.monotonic_ns - first.monotonic_ns);
        // An interrupted wait is only a shorter one.
        let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: left }));
        last = clock::read();
    }
    let conversion = Conversion::from_tsc(&[first, last]);
    conversion.map(|conversion| 1e9 / conversion.rate()).ok_or_else(|| {
        MigrateError::Host("this host's time stamp counter does not run; the guest needs it".into())
    })
}

fn setup(options: &Options, machines: &HashMap<usize, Machine>) -> MigrateSetup {
    let machine = machines.get(&0);
    let memory_mib = options.points.first().map_or(0, |point| point.knobs.memory_mib());
    MigrateSetup {
        argv: machine.map(Machine::argv_text).unwrap_or_default(),
        chosen: machine.map(|machine| machine.chosen.clone()).unwrap_or_default(),
        memory_bytes: u64::from(memory_mib) << 20,
        runs: options.runs,
        warmup: options.warmup,
        seed: options.seed,
        heartbeat_s: 1e-3,
        killed: options.kill.map(|side| side.to_string()),
    }
}
