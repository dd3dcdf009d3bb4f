//! Playing a script: one run, the same for the same seed and index.

use super::random::uniform;
use super::scene::Scene;
use super::script::{Condition, Happening, Line, Script, Sum, Test};
use vmeter_model::run::{Outcome, WatchLevel};
use vmeter_model::{Accel, AskedAccel, Event, EventKind, Moment, Ns};

/// Name of the source, in [`SourceRecord::name`](vmeter_model::run::SourceRecord::name).
pub const SOURCE: &str = "mock";

/// A played run.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// What happened, without the moments of the process.
    pub events: Vec<Event>,
    /// Moments of the process.
    pub moments: Vec<(Ns, Moment)>,
    /// Length of the run, ns.
    pub total_ns: Ns,
    /// How it ended.
    pub outcome: Outcome,
    /// Of its length, what other machines of the host took, s.
    pub steal_s: f64,
}

/// No line takes longer: sums of all lines stay far from overflow.
const LONGEST_NS: f64 = 3600e9;
const DEFAULT_TIMEOUT_S: u32 = 120;
/// Deviations beyond this many standard deviations are cut off.
const CUT: f64 = 4.0;

struct Player<'a> {
    script: &'a Script,
    scene: &'a Scene<'a>,
    until: Until,
    now: f64,
    /// Guest time without variation, ns, which instructions are counted by.
    planned: f64,
    run_factor: f64,
    ready: Option<Ns>,
    last: String,
    played: Played,
}

enum Until {
    PowerOff,
    Userspace,
    Line(regex::Regex),
}

/// Plays one run.
///
/// # Errors
/// In words, when `--until` is wrong.
pub fn play(script: &Script, scene: &Scene<'_>) -> Result<Played, String> {
    let until = match scene.spec.until.as_deref() {
        None | Some("poweroff") => Until::PowerOff,
        Some("userspace" | "systemd-ready" | "guest-booted") => Until::Userspace,
        Some(other) => {
            let expression = other.strip_prefix("line:").ok_or_else(|| {
                format!(
                    "--until {other}: expected userspace, poweroff, systemd-ready, guest-booted \
                     or line:REGEX"
                )
            })?;
            Until::Line(regex::Regex::new(expression).map_err(|e| format!("--until {other}: {e}"))?)
        }
    };
    let cost = match scene.watch {
        WatchLevel::None => 0.0,
        WatchLevel::Light => script.cost_light,
        WatchLevel::Full => script.cost_full,
    };
    let noises = script.lines.iter().filter_map(|line| match &line.event {
        Happening::Noise(noise) if line.conditions.iter().all(|c| holds(c, scene)) => Some(noise),
        _ => None,
    });
    let (log, stolen) = noises
        .fold((0.0, 0.0), |(log, stolen), n| (log + n.log_factor(scene), stolen + n.stolen(scene)));
    let run_factor = (1.0 + cost) * deviation(scene, 0, script.run_spread) * f64::exp(log);
    let played = Played {
        events: vec![],
        moments: vec![],
        total_ns: 0,
        outcome: Outcome::NotReady,
        steal_s: 0.0,
    };
    let mut player = Player {
        script,
        scene,
        until,
        now: 0.0,
        planned: 0.0,
        run_factor,
        ready: None,
        last: "nothing".into(),
        played,
    };
    player.run();
    let mut played = player.played;
    played.steal_s = vmeter_model::time::seconds(played.total_ns) * (1.0 - f64::exp(-stolen));
    played.events.sort_by_key(|e| e.at);
    Ok(played)
}

impl Player<'_> {
    fn run(&mut self) {
        let mut outcome = None;
        for line in &self.script.lines {
            let is_noise = matches!(line.event, Happening::Noise(_));
            if is_noise || !line.conditions.iter().all(|c| holds(c, self.scene)) {
                continue;
            }
            outcome = self.line(line);
            if outcome.is_some() || self.ready.is_some() {
                break;
            }
        }
        self.end(outcome.unwrap_or(Outcome::Done));
    }

    fn end(&mut self, outcome: Outcome) {
        let at = self.at();
        self.played.total_ns = at;
        self.played.outcome = match (outcome, self.ready) {
            (Outcome::Done, Some(_)) => {
                self.played.moments.push((at, Moment::VmmKilled));
                Outcome::Done
            }
            (Outcome::Done, None) if !matches!(self.until, Until::PowerOff) => Outcome::NotReady,
            (other, _) => other,
        };
        self.played.moments.push((at, Moment::VmmExit));
        // What goes on beside does not outlive the machine.
        self.played.events.retain(|e| e.at <= at);
        if self.scene.watch == WatchLevel::None {
            self.played.moments.retain(|(_, moment)| *moment == Moment::VmmExit);
            self.played.events.clear();
        }
    }

    fn at(&self) -> Ns {
        self.now.round() as Ns
    }

    fn push(&mut self, at: Ns, what: EventKind) {
        let full = self.scene.watch == WatchLevel::Full && self.planned > 0.0;
        let insns = full.then_some((self.planned * self.script.insns_per_ns) as u64);
        let source = SOURCE.to_owned();
        self.played.events.push(Event { at, error_ns: 1_000, source, insns, what });
    }

    /// Plays a line; its outcome if it is the last one.
    fn line(&mut self, line: &Line) -> Option<Outcome> {
        let value = evaluate(&line.sum, self.scene).min(LONGEST_NS);
        if let Happening::Count(name) = &line.event {
            let count = EventKind::Count { name: name.clone(), value: value as u64 };
            self.push(self.at(), count);
            return None;
        }
        let start = self.at();
        let factor = deviation(self.scene, line.number, self.script.spread) * self.run_factor;
        let length = (value * factor).clamp(0.0, LONGEST_NS);
        let end = (self.now + length).round() as Ns;
        if let Some((begins, ends)) = spanning(&line.event) {
            self.push(start, begins);
            let planned = self.planned;
            self.pass(line, length, value);
            self.push(end, ends);
            if line.beside {
                self.planned = planned;
            }
            return None;
        }
        self.pass(line, length, value);
        self.happens(&line.event, end)
    }

    fn pass(&mut self, line: &Line, length: f64, planned: f64) {
        // The guest's instructions begin with its first one.
        if self.planned > 0.0 || matches!(line.event, Happening::Reach(_)) {
            self.planned += planned;
        }
        if !line.beside {
            self.now += length;
        }
    }

    fn happens(&mut self, event: &Happening, at: Ns) -> Option<Outcome> {
        let what = match event.clone() {
            Happening::Moment(moment) => {
                self.played.moments.push((at, moment));
                return None;
            }
            Happening::State(state) => EventKind::RunState { state },
            Happening::Firmware(text) => EventKind::FirmwareLine { text },
            Happening::Console(text) => {
                self.push(
                    at,
                    EventKind::ConsoleLine { text: text.clone(), end: at, later: Vec::new() },
                );
                self.console(&text, at);
                return None;
            }
            Happening::Kernel(text) => EventKind::KernelLine { text, by_program: false },
            Happening::Reach(symbol) => EventKind::Reached { symbol },
            Happening::Level(level) => EventKind::InitcallLevel { level },
            Happening::Module(module) => EventKind::ModuleLoad { module, pid: Some(1) },
            Happening::Exec { pid, file } => EventKind::ProcessExec { pid, file },
            Happening::Note(text) => EventKind::Note { text },
            Happening::Shutdown => EventKind::ShutdownStart,
            Happening::PowerOff => EventKind::PowerOff,
            Happening::Ready => {
                self.push(at, EventKind::Ready);
                if matches!(self.until, Until::Userspace) {
                    self.ready = Some(at);
                }
                return None;
            }
            ending => return self.ending(ending, at),
        };
        self.push(at, what);
        None
    }

    fn console(&mut self, text: &str, at: Ns) {
        self.last = text.to_owned();
        if let Until::Line(regex) = &self.until {
            if regex.is_match(text) {
                self.push(at, EventKind::Ready);
                self.ready = Some(at);
            }
        }
    }

    fn ending(&mut self, event: Happening, at: Ns) -> Option<Outcome> {
        match event {
            Happening::Exit(0) => Some(Outcome::Done),
            Happening::Exit(status) => Some(failed(status, String::new())),
            Happening::Fail { status, text } => Some(failed(status, text)),
            Happening::Panic(line) => {
                self.push(
                    at,
                    EventKind::ConsoleLine { text: line.clone(), end: at, later: Vec::new() },
                );
                Some(Outcome::Panicked { line })
            }
            Happening::Hang => {
                let timeout = self.scene.spec.timeout_s.unwrap_or(DEFAULT_TIMEOUT_S);
                self.now = self.now.max(f64::from(timeout) * 1e9);
                let at = self.at();
                self.played.moments.push((at, Moment::VmmKilled));
                Some(Outcome::TimedOut { last: self.last.clone() })
            }
            // Spans and counts are played elsewhere.
            _ => None,
        }
    }
}

fn failed(status: i32, stderr: String) -> Outcome {
    Outcome::VmmFailed { status: format!("exit status {status}"), stderr }
}

fn spanning(event: &Happening) -> Option<(EventKind, EventKind)> {
    match event.clone() {
        Happening::Initcall { function, module, pid } => {
            let pid = pid.or(Some(1));
            let ends = EventKind::InitcallEnd { function: function.clone(), pid, ret: Some(0) };
            Some((EventKind::InitcallStart { function, module, pid }, ends))
        }
        Happening::Step(step) => {
            Some((EventKind::StepStart { step: step.clone() }, EventKind::StepEnd { step }))
        }
        _ => None,
    }
}

fn number(name: &str, scene: &Scene<'_>) -> f64 {
    match name {
        "smp" => f64::from(scene.spec.smp.unwrap_or(1)),
        "memory_mib" => f64::from(scene.spec.memory_mib.unwrap_or(512)),
        "pcie_root_ports" => f64::from(scene.spec.pcie_root_ports.unwrap_or(0)),
        _ => f64::from(scene.index),
    }
}

fn word<'a>(name: &str, scene: &Scene<'a>) -> &'a str {
    let spec = scene.spec;
    let or = |value: &'a Option<String>, default: &'static str| value.as_deref().unwrap_or(default);
    match name {
        "accel" => spec.accel.map_or(Accel::Tcg.word(), AskedAccel::name),
        "machine" => or(&spec.machine, "q35"),
        "firmware" => or(&spec.firmware, "seabios"),
        "root" => or(&spec.root, "initramfs"),
        "init" => or(&spec.init, "minimal"),
        "label" => scene.label,
        _ => match scene.watch {
            WatchLevel::None => "none",
            WatchLevel::Light => "light",
            WatchLevel::Full => "full",
        },
    }
}

fn holds(condition: &Condition, scene: &Scene<'_>) -> bool {
    let name = &*condition.name;
    let holds = match &condition.test {
        Test::Contains(wanted) if name == "vmm" => {
            scene.spec.vmm_arg.iter().any(|argument| argument == wanted)
        }
        Test::Contains(wanted) => {
            scene.spec.append.iter().flat_map(|a| a.split_whitespace()).any(|w| w == wanted)
        }
        Test::More(than) => number(name, scene) > *than,
        Test::Less(than) => number(name, scene) < *than,
        Test::Remainder(n, r) => (number(name, scene) as u32).checked_rem(*n) == Some(*r),
        Test::Is(value) => match value.parse::<f64>() {
            Ok(value) if super::script::is_number(name) => number(name, scene) == value,
            _ => word(name, scene) == value,
        },
    };
    holds != condition.negated
}

fn evaluate(sum: &Sum, scene: &Scene<'_>) -> f64 {
    let product = |(factor, parameters): &(f64, Vec<String>)| {
        parameters.iter().map(|p| number(p, scene)).product::<f64>() * factor
    };
    sum.0.iter().map(product).sum()
}

/// `1 + spread * z`, z about normal, from the seed, the run and the line alone.
fn deviation(scene: &Scene<'_>, line: u32, spread: f64) -> f64 {
    if spread == 0.0 {
        return 1.0;
    }
    let mut state = scene.seed ^ (u64::from(scene.index) << 32) ^ u64::from(line);
    // Twelve uniform numbers have variance 1 in sum (Irwin-Hall).
    let z: f64 = (0..12).map(|_| uniform(&mut state)).sum::<f64>() - 6.0;
    (1.0 + spread * z.clamp(-CUT, CUT)).max(0.01)
}
