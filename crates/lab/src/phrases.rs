//! Words that several reports of boots say alike.

use serde_json::Value;
use std::collections::BTreeMap;
use vmeter_model::run::{Fault, Outcome};
use vmeter_model::{Cause, End};
use vmeter_record::run::VMM_STDERR;
use vmeter_render::quantity::{Quantity, Unit};

/// How to read samples that are drawn as dots.
pub(crate) const DOTS: &str = "dot: a run (larger: several); bar: the mean, drawn over the dots";

/// The outcome in words; `None` for one that needs none.
pub(crate) fn outcome_text(outcome: &Outcome) -> Option<String> {
    Some(match outcome {
        Outcome::Done => return None,
        Outcome::Panicked { line } => format!("the guest panicked: {line}"),
        Outcome::NotReady => "the VMM ended before the guest was ready".into(),
        Outcome::VmmFailed { .. } if outcome.fault() == Some(Fault::Host) => {
            "this host, not the VMM, caused the failure: --resume repeats the run".into()
        }
        Outcome::VmmFailed { status, .. } if was_killed(status) => {
            format!(
                "the VMM was killed ({status}), but not by vmeter: dmesg shows whether the \
                OOM killer did it"
            )
        }
        Outcome::VmmFailed { status, stderr } => match telling(stderr) {
            Some(why) => format!("the VMM failed ({status}): {}", cut(&why)),
            None => format!("the VMM failed ({status})"),
        },
        Outcome::TimedOut { last } if last.is_empty() => {
            "timed out; vmeter saw no activity of the VMM or its guest".into()
        }
        Outcome::TimedOut { last }
            if vmeter_timeline::is_login(last.trim_end_matches([' ', '"'])) =>
        {
            format!(
                "timed out at {last}: the guest waits for a login; to end the run there, use \
                --until 'line:login:'"
            )
        }
        Outcome::TimedOut { last } => format!("timed out; the last thing seen was: {last}"),
        Outcome::UnexpectedEnd { how } => how.clone(),
        Outcome::Interrupted => "interrupted".into(),
    })
}

/// True for a VMM that was killed: what it said before is no reason.
pub(crate) fn was_killed(status: &str) -> bool {
    status.contains("SIGKILL")
}

/// What a VMM said of its failure: from the first of its last lines that speaks of an error, as
/// chains of errors and panics go on below; else its last line.
fn telling(said: &str) -> Option<String> {
    const LAST: usize = 8;
    let advice = ["note: run with `RUST_BACKTRACE", "For more information, try '--help'"];
    let words = |line: &str| !line.is_empty() && !advice.iter().any(|a| line.starts_with(a));
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| words(line)).collect();
    let lines = &lines[lines.len().saturating_sub(LAST)..];
    let fails = |line: &&str| {
        let line = line.to_ascii_lowercase();
        let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| matches!(word, "error" | "fatal" | "panicked"))
    };
    match lines.iter().position(fails) {
        Some(first) => Some(lines[first..].join("; ").replace(":; ", ": ")),
        None => lines.last().map(|line| (*line).to_owned()),
    }
}

/// How a run ended that did not end as it should, with what ended it and how that is known.
pub(crate) fn ended_text(outcome: &Outcome, end: Option<&End>) -> Option<String> {
    let text = outcome_text(outcome)?;
    Some(match (outcome, end) {
        (Outcome::Panicked { line }, Some(end)) if end.cause == Cause::OutOfMemory => {
            format!("{}: {line}", end.cause.sentence())
        }
        (Outcome::NotReady, Some(end)) => {
            format!("{text}: {} ({})", end.cause.sentence(), end.evidence)
        }
        (Outcome::UnexpectedEnd { .. }, Some(end)) => format!("{text} ({})", end.evidence),
        _ => text,
    })
}

/// Lines of a VMM's standard error that are shown, and how much of each.
const STDERR_LINES: usize = 5;
const STDERR_LINE: usize = 240;

/// The last lines of what a VMM printed, and where the rest is.
pub(crate) fn last_words(stderr: &str, index: u32) -> String {
    let lines: Vec<&str> = stderr.trim().lines().collect();
    let shown = lines.iter().skip(lines.len().saturating_sub(STDERR_LINES));
    let shown: Vec<String> = shown.map(|line| cut(line)).collect();
    if lines.len() <= STDERR_LINES && shown.iter().zip(&lines).all(|(a, b)| a == b) {
        return shown.join("\n");
    }
    format!("…\n{}\n(more of it in runs/{index:04}/{VMM_STDERR})", shown.join("\n"))
}

/// A line, if it is not too long for a terminal.
fn cut(line: &str) -> String {
    match line.char_indices().nth(STDERR_LINE) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// Run numbers as a reader writes them: `run 3`, `runs 0, 2, 5 and 4 more`.
pub(crate) fn run_list(runs: &[u32]) -> String {
    const NAMED: usize = 5;
    let named: Vec<String> = runs.iter().take(NAMED).map(u32::to_string).collect();
    let plural = if runs.len() == 1 { "run" } else { "runs" };
    match runs.len().saturating_sub(NAMED) {
        0 => format!("{plural} {}", named.join(", ")),
        more => format!("{plural} {} and {more} more", named.join(", ")),
    }
}

/// Texts that several runs share, each once, with the runs.
pub(crate) fn grouped(texts: impl Iterator<Item = (u32, String)>) -> Vec<(String, Vec<u32>)> {
    let mut runs_of: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (run, text) in texts {
        runs_of.entry(text).or_default().push(run);
    }
    let mut groups: Vec<_> = runs_of.into_iter().collect();
    groups.sort_by_key(|(_, runs)| runs[0]);
    groups
}

/// The host's entries worth a line at a glance, in this order.
const HOST_AT_A_GLANCE: [&str; 6] =
    ["cpu_model", "cpus", "memory_bytes", "kernel", "virtualised", "cpufreq_governor"];

/// The host in one line.
pub(crate) fn host_line(host: &BTreeMap<String, Value>) -> String {
    let known = HOST_AT_A_GLANCE.iter().filter_map(|name| {
        let value = host.get(*name)?;
        Some(match *name {
            "cpus" => format!("{} CPUs", plain(value)),
            "memory_bytes" => Quantity::exact(value.as_f64()?, Unit::Bytes).inline(),
            "kernel" => format!("Linux {}", plain(value).trim_start_matches("Linux ")),
            "virtualised" => {
                if value.as_bool()? {
                    "itself a virtual machine".into()
                } else {
                    return None;
                }
            }
            "cpufreq_governor" if value.is_string() => format!("governor {}", plain(value)),
            _ => plain(value),
        })
    });
    let known: Vec<String> = known.filter(|text| !text.is_empty() && text != "null").collect();
    if !known.is_empty() {
        return known.join(", ");
    }
    let any = host.iter().take(4).map(|(name, value)| format!("{name} {}", plain(value)));
    any.collect::<Vec<_>>().join(", ")
}

pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_killed_gives_no_reason() {
        let failed = |status: &str| {
            let stderr = "WARN: Kernel lacks CONFIG_SCHED_CORE\n".to_owned();
            outcome_text(&Outcome::VmmFailed { status: status.into(), stderr })
        };
        let killed = failed("killed by signal 9 (SIGKILL)").expect("an outcome");
        assert!(killed.contains("dmesg") && !killed.contains("SCHED_CORE"), "{killed}");
        assert!(failed("exit status 1").is_some_and(|said| said.contains("SCHED_CORE")));
    }

    /// As cloud-hypervisor, clap, kvmtool, crosvm, Rust's panics and QEMU say it.
    #[test]
    fn a_failure_is_told_by_the_line_that_tells_it() {
        for (said, told) in [
            (
                "0.1s: WARN old\nError: it exited with the following chain of errors:\n  0: Error booting VM\n  1: Cannot open kernel file\n  2: No such file or directory (os error 2)\n",
                "Error: it exited with the following chain of errors: 0: Error booting VM; 1: Cannot open kernel file; 2: No such file or directory (os error 2)",
            ),
            (
                "error: unexpected argument '--kernell' found\n\nFor more information, try '--help'.\n",
                "error: unexpected argument '--kernell' found",
            ),
            (
                "  Fatal: Your CPU does not support hardware virtualization\n  Fatal: Initialisation failed\n",
                "Fatal: Your CPU does not support hardware virtualization; Fatal: Initialisation failed",
            ),
            (
                "thread 'main' panicked at src/main.rs:3:5:\nno disk\nnote: run with `RUST_BACKTRACE=1`\n",
                "thread 'main' panicked at src/main.rs:3:5: no disk",
            ),
            (
                "warning: TCG lacks a feature\nqemu: could not load kernel 'x': No such file\n",
                "qemu: could not load kernel 'x': No such file",
            ),
        ] {
            assert_eq!(telling(said).as_deref(), Some(told));
        }
        assert_eq!(telling(" \n"), None);
    }
}
