//! The text format of a mock machine.
//!
//! ```text
//! vmeter-mock 1                      first line: the format's version
//! spread 1%                          standard deviation of each length by itself
//! run-spread 2%                      and of all lengths of a run together
//! cost light 0.5%                    what a watch level adds to every length
//! insns-per-ns 1.1                   instructions counted under `--watch full`
//!
//! [if COND [and COND]…:] [beside] LENGTH EVENT    or    count NAME SUM
//!                                                 or    noise KIND SIZE (see `noise.rs`)
//! ```
//! LENGTH is a sum such as `12ms+3.5ms*pcie_root_ports+1us*smp*smp`: numbers with
//! `ns`, `us`, `ms` or `s`, times `smp`, `memory_mib`, `pcie_root_ports` or `run`.
//! It passes, then the EVENT happens; `initcall` and `step` last as long as it.
//! `beside` lets it happen at the same time as what follows (a second CPU).
//!
//! COND: `accel=kvm`, `machine!=pvh`, `firmware=…`, `root=…`, `init=…`, `watch=none`,
//! `append~WORD`, `append!~WORD`, `vmm~ARGUMENT`, `smp>4`, `memory_mib<512`, `run=3`, `run%10=7`;
//! `unless` negates one condition.
//!
//! EVENT: `vmm-exec`, `vmm-entry`, `vmm-main`, `vmm-exiting`, `state NAME`,
//! `firmware TEXT`, `console TEXT`, `kernel TEXT`, `reach SYMBOL`, `level NAME`,
//! `initcall FUNCTION [module=NAME] [pid=N]`, `module NAME`, `step NAME`,
//! `exec PID FILE`, `note TEXT`, `ready`, `shutdown`, `poweroff`; and the ends of a
//! run: `exit STATUS`, `panic TEXT`, `fail STATUS TEXT`, `hang`.

use super::number::{float, percent};
use std::path::Path;
use vmeter_model::Moment;

/// The script that is played unless another is named.
pub const DEFAULT: &str = include_str!("default.mock");

/// A script is written by hand; a larger file is none.
const MAX_BYTES: u64 = 1 << 20;

/// A mock machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    pub(super) spread: f64,
    pub(super) run_spread: f64,
    pub(super) cost_light: f64,
    pub(super) cost_full: f64,
    pub(super) insns_per_ns: f64,
    pub(super) lines: Vec<Line>,
}

/// One line of the timeline.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub number: u32,
    pub conditions: Vec<Condition>,
    pub beside: bool,
    /// Length, ns; for a count its value.
    pub sum: Sum,
    pub event: Happening,
}

/// A sum of products: (factor, parameters it is multiplied with).
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Sum(pub Vec<(f64, Vec<String>)>);

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Condition {
    pub negated: bool,
    pub name: String,
    pub test: Test,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Test {
    Is(String),
    Contains(String),
    More(f64),
    Less(f64),
    Remainder(u32, u32),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Happening {
    Moment(Moment),
    State(String),
    Firmware(String),
    Console(String),
    Kernel(String),
    Reach(String),
    Level(String),
    Initcall { function: String, module: Option<String>, pid: Option<i32> },
    Module(String),
    Step(String),
    Exec { pid: i32, file: String },
    Note(String),
    Count(String),
    Noise(super::noise::Noise),
    Ready,
    Shutdown,
    PowerOff,
    Exit(i32),
    Panic(String),
    Fail { status: i32, text: String },
    Hang,
}

/// What is wrong with a script.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// It cannot be read.
    #[error("mock script {path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// What happened.
        error: std::io::Error,
    },
    /// A line that means nothing.
    #[error("mock script, line {line}: {what}")]
    Line {
        /// Line number, from 1.
        line: u32,
        /// What was expected, what was found.
        what: String,
    },
}

impl Script {
    /// Reads a script from a file.
    ///
    /// # Errors
    /// When it cannot be read, is larger than 1 MiB, or is wrong.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let io = |error| ScriptError::Io { path: path.display().to_string(), error };
        Self::parse(&vmeter_base::files::read_text_limited(path, MAX_BYTES).map_err(io)?)
    }

    /// Reads a script.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let mut script = Self {
            spread: 0.0,
            run_spread: 0.0,
            cost_light: 0.0,
            cost_full: 0.0,
            insns_per_ns: 1.0,
            lines: Vec::new(),
        };
        let mut lines = (1u32..).zip(text.lines());
        if lines.next().map(|(_, l)| l.trim()) != Some("vmeter-mock 1") {
            let what = "expected \"vmeter-mock 1\" (the format and its version)".into();
            return Err(ScriptError::Line { line: 1, what });
        }
        for (number, line) in lines {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            script.line(number, line).map_err(|what| ScriptError::Line { line: number, what })?;
        }
        Ok(script)
    }

    fn line(&mut self, number: u32, line: &str) -> Result<(), String> {
        let (first, rest) = split(line);
        match first {
            "spread" => self.spread = percent(rest)?,
            "run-spread" => self.run_spread = percent(rest)?,
            "insns-per-ns" => self.insns_per_ns = float(rest)?,
            "cost" => match split(rest) {
                ("light", value) => self.cost_light = percent(value)?,
                ("full", value) => self.cost_full = percent(value)?,
                (other, _) => return Err(format!("expected light or full, found {other:?}")),
            },
            _ => self.lines.push(timeline(number, line)?),
        }
        Ok(())
    }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (first, rest.trim())
}

fn timeline(number: u32, line: &str) -> Result<Line, String> {
    let mut conditions = Vec::new();
    let mut rest = line;
    for (word, negated) in [("if ", false), ("unless ", true)] {
        if let Some(tail) = line.strip_prefix(word) {
            let (tests, tail) =
                tail.split_once(": ").ok_or("expected \": \" after the conditions")?;
            let tests: Vec<&str> = tests.split(" and ").collect();
            if negated && tests.len() > 1 {
                return Err("expected only one condition after `unless`".into());
            }
            for test in tests {
                conditions.push(condition(test.trim(), negated)?);
            }
            rest = tail.trim();
        }
    }
    let beside = rest.strip_prefix("beside ");
    let rest = beside.unwrap_or(rest);
    let (first, after) = split(rest);
    let (event, sum) = if first == "count" {
        let (name, value) = split(after);
        (Happening::Count(name.to_owned()), parse_sum(value, false)?)
    } else if first == "noise" {
        (Happening::Noise(super::noise::Noise::parse(after)?), Sum::default())
    } else {
        (happening(after)?, parse_sum(first, true)?)
    };
    Ok(Line { number, conditions, beside: beside.is_some(), sum, event })
}

const NUMBERS: [&str; 4] = ["smp", "memory_mib", "pcie_root_ports", "run"];
const WORDS: [&str; 7] = ["accel", "machine", "firmware", "root", "init", "watch", "label"];

/// True for a parameter that is a number.
pub(super) fn is_number(name: &str) -> bool {
    NUMBERS.contains(&name)
}

fn condition(text: &str, negated: bool) -> Result<Condition, String> {
    let at = text
        .find(['=', '!', '~', '<', '>', '%'])
        .ok_or_else(|| format!("expected a condition such as smp>4, found {text:?}"))?;
    let (name, tail) = (text[..at].trim(), text[at..].trim());
    let number = NUMBERS.contains(&name);
    let test = |tail: &str| -> Result<Test, String> {
        let listed = ["append", "vmm"].contains(&name);
        if let (true, Some(value)) = (listed, tail.strip_prefix('~')) {
            return Ok(Test::Contains(value.to_owned()));
        }
        if let (true, Some(value)) = (number, tail.strip_prefix('>')) {
            return Ok(Test::More(float(value)?));
        }
        if let (true, Some(value)) = (number, tail.strip_prefix('<')) {
            return Ok(Test::Less(float(value)?));
        }
        if let (true, Some(value)) = (number, tail.strip_prefix('%')) {
            let (n, r) = value.split_once('=').ok_or("expected run%N=REMAINDER")?;
            let whole = |s: &str| s.trim().parse::<u32>().map_err(|e| format!("{s:?}: {e}"));
            let n = whole(n)?;
            return if n == 0 {
                Err("the divisor is 0".into())
            } else {
                Ok(Test::Remainder(n, whole(r)?))
            };
        }
        match tail.strip_prefix('=') {
            Some(value) if number || WORDS.contains(&name) => Ok(Test::Is(value.to_owned())),
            _ => Err(format!("no such condition: {text:?}")),
        }
    };
    let (inverse, tail) = match tail.strip_prefix('!') {
        Some(tail) => (true, tail),
        None => (false, tail),
    };
    Ok(Condition { negated: negated != inverse, name: name.to_owned(), test: test(tail)? })
}

fn happening(text: &str) -> Result<Happening, String> {
    let (verb, rest) = split(text);
    let needs = |what: &str| match rest {
        "" => Err(format!("{verb}: expected {what}")),
        text => Ok(text.to_owned()),
    };
    Ok(match verb {
        "vmm-exec" => Happening::Moment(Moment::VmmExec),
        "vmm-entry" => Happening::Moment(Moment::VmmEntry),
        "vmm-main" => Happening::Moment(Moment::VmmMain),
        "vmm-exiting" => Happening::Moment(Moment::VmmExiting),
        "state" => Happening::State(needs("a run state")?),
        "firmware" => Happening::Firmware(needs("a line")?),
        "console" => Happening::Console(needs("a line")?),
        "kernel" => Happening::Kernel(needs("a line")?),
        "reach" => Happening::Reach(needs("a symbol")?),
        "level" => Happening::Level(needs("a level")?),
        "module" => Happening::Module(needs("a module")?),
        "step" => Happening::Step(needs("a name")?),
        "note" => Happening::Note(needs("a text")?),
        "initcall" => initcall(&needs("a function")?)?,
        "exec" => {
            let (pid, file) = split(rest);
            Happening::Exec { pid: integer(pid)?, file: file.to_owned() }
        }
        "ready" => Happening::Ready,
        "shutdown" => Happening::Shutdown,
        "poweroff" => Happening::PowerOff,
        "exit" => Happening::Exit(integer(rest)?),
        "panic" => Happening::Panic(needs("the panic's line")?),
        "fail" => {
            let (status, text) = split(rest);
            Happening::Fail { status: integer(status)?, text: text.to_owned() }
        }
        "hang" => Happening::Hang,
        other => {
            return Err(format!(
                "no such event: {other:?}; the head of backends/mock/script.rs lists all events"
            ))
        }
    })
}

fn initcall(text: &str) -> Result<Happening, String> {
    let mut words = text.split_whitespace();
    let function = words.next().unwrap_or_default().to_owned();
    let (mut module, mut pid) = (None, None);
    for word in words {
        match word.split_once('=') {
            Some(("module", value)) => module = Some(value.to_owned()),
            Some(("pid", value)) => pid = Some(integer(value)?),
            _ => return Err(format!("expected module=NAME or pid=N, found {word:?}")),
        }
    }
    Ok(Happening::Initcall { function, module, pid })
}

/// `12ms+3.5ms*smp` (in ns) or, without units, `812+291*smp`.
fn parse_sum(text: &str, units: bool) -> Result<Sum, String> {
    let mut terms = Vec::new();
    for term in text.split('+') {
        let mut factors = term.split('*').map(str::trim);
        let first = factors.next().unwrap_or_default();
        let value = if units { nanoseconds(first)? } else { float(first)? };
        let parameters: Vec<String> = factors.map(str::to_owned).collect();
        if let Some(unknown) = parameters.iter().find(|p| !NUMBERS.contains(&p.as_str())) {
            return Err(format!("expected one of {}, found {unknown:?}", NUMBERS.join(", ")));
        }
        terms.push((value, parameters));
    }
    Ok(Sum(terms))
}

fn nanoseconds(text: &str) -> Result<f64, String> {
    if text == "0" {
        return Ok(0.0);
    }
    for (unit, factor) in [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)] {
        if let Some(number) = text.strip_suffix(unit) {
            return Ok(float(number)? * factor);
        }
    }
    Err(format!("expected a duration such as 1.5ms, found {text:?}"))
}

fn integer(text: &str) -> Result<i32, String> {
    text.trim().parse().map_err(|_| format!("expected a whole number, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_default_script_is_right() {
        let script = Script::parse(DEFAULT).expect("the built-in script");
        assert!(script.lines.len() > 30);
    }

    #[test]
    fn errors_say_where_and_what() {
        let error = |line: &str| {
            let text = format!("vmeter-mock 1\n\n{line}\n");
            Script::parse(&text).expect_err(line).to_string()
        };
        assert!(error("5ms jump").contains("line 3: no such event: \"jump\""));
        assert!(error("5 ready").contains("a duration such as 1.5ms"));
        assert!(error("-5ms ready").contains("not negative"));
        assert!(error("5ms*cores ready").contains("pcie_root_ports"));
        assert!(error("if colour=red: 5ms ready").contains("no such condition"));
        assert!(error("if run%0=1: 5ms ready").contains("divisor"));
        assert!(error("cost heavy 3%").contains("light or full"));
        assert!(Script::parse("hello").is_err());
    }

    proptest! {
        #[test]
        fn never_panics(text in "(vmeter-mock 1\n)?([ -~\n]|if |[0-9]ms |initcall |: ){0,60}") {
            let _ = Script::parse(&text);
        }
    }
}
