//! What a guest's console says of its own boot, set against the spans of a timeline.
//!
//! This knows none of vmeter's rules and shares no code with them: it cuts the saved bytes
//! into lines by itself, each at its first printed character, and knows of a line only in
//! which stage of a boot somebody must have written it. A span whose name is of another
//! stage, and that holds the line by more than its own stated error, is false.

use serde_json::Value;
use std::path::Path;

/// Who was at work when a line was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// SeaBIOS, OVMF.
    Firmware,
    /// GRUB.
    Loader,
    /// The kernel before its init.
    Kernel,
    /// Programs.
    User,
}

/// One line of the console.
#[derive(Debug, Clone)]
pub struct LogMessage {
    /// When its first character arrived, s after the exec.
    pub at: f64,
    /// Its text, without what steers a terminal.
    pub text: String,
}

/// How late a line can be read on a busy host, s, besides what a span states itself.
const LATE: f64 = 0.005;
/// From a kernel's entry to the start of its clock, which begins when the TSC is calibrated, as a
/// share of what the same kernel took from there to its init: 0.05 to 0.3 were measured under TCG
/// on two CPUs with loads of 2 to 27.
const BEFORE_CLOCK: f64 = 0.4;
/// The same where no init was seen to be run, s.
const BEFORE_CLOCK_S: f64 = 2.0;

/// The lines of a run's console, by its folder and `runs[].exec_monotonic_ns`.
pub fn console(run: &Path, exec_ns: i64) -> Vec<LogMessage> {
    let saved = std::fs::read(run.join("console.chunks")).expect("the console");
    let mut rest = saved.strip_prefix(b"vmeter-chunks 1\n").expect("its format");
    let mut bytes: Vec<(f64, u8)> = Vec::new();
    while let Some(end) = rest.iter().position(|b| *b == b'\n') {
        let head = std::str::from_utf8(&rest[..end]).expect("a head");
        let (at, length) = head.split_once(' ').expect("time and length");
        let at: i64 = at.parse().expect("ns");
        let length: usize = length.parse().expect("bytes");
        let Some(body) = rest.get(end + 1..end + 1 + length) else { break };
        bytes.extend(body.iter().map(|b| ((at - exec_ns) as f64 / 1e9, *b)));
        rest = rest.get(end + 2 + length..).unwrap_or_default();
    }
    lines(&bytes)
}

/// Cuts at line ends, at carriage returns and wherever a terminal is steered.
fn lines(bytes: &[(f64, u8)]) -> Vec<LogMessage> {
    let mut lines = Vec::new();
    let mut line: Option<LogMessage> = None;
    let mut at = 0;
    while let Some((time, byte)) = bytes.get(at).copied() {
        at += 1;
        let steers = byte == 0x1b && bytes.get(at).is_some_and(|b| b.1 == b'[');
        if steers {
            let length = bytes[at + 1..].iter().position(|b| (0x40..0x7f).contains(&b.1));
            let last = at + 1 + length.unwrap_or(0);
            let colour = bytes.get(last).is_some_and(|b| b.1 == b'm');
            at = last + 1;
            if colour {
                continue;
            }
        }
        if steers || byte < b' ' && byte != b'\t' {
            lines.extend(line.take());
            continue;
        }
        let line = line.get_or_insert_with(|| LogMessage { at: time, text: String::new() });
        line.text.push(char::from(byte));
    }
    lines.extend(line);
    lines.retain(|l| !l.text.trim().is_empty());
    lines
}

/// `[    1.234567] text`: the guest's seconds and the text.
pub fn stamp(text: &str) -> Option<(f64, &str)> {
    let (stamp, rest) = text.trim_start().strip_prefix('[')?.split_once(']')?;
    let stamp = stamp.trim();
    let whole = stamp.split_once('.').filter(|(_, micros)| micros.len() == 6)?;
    whole.0.parse::<u32>().ok()?;
    Some((stamp.parse().ok()?, rest.trim_start()))
}

/// What the lines prove: who was at work when. `quiet` guests show no line of their kernel
/// as it is said, so that any that they show is old.
pub fn stages(lines: &[LogMessage], quiet: bool) -> Vec<(Stage, LogMessage)> {
    let firmware = ["SeaBIOS (version", "BdsDxe:", "iPXE (http", "Booting from Hard"];
    let loader = [
        "GRUB loading",
        "Welcome to GRUB",
        "GNU GRUB",
        "executed automatically",
        "Press any key to continue",
        "Loading Linux ",
        "Loading initial ramdisk",
        "SYSLINUX ",
        "Boot in ",
    ];
    let user = [
        "rc: ",
        "planted ",
        "Begin: ",
        "systemd[1]: ",
        "Loading, please wait",
        "Welcome to Debian",
    ];
    let mut proofs = Vec::new();
    let mut live = false;
    let mut programs = false;
    for line in lines {
        let begins = |words: &[&str]| words.iter().any(|w| line.text.trim_start().starts_with(w));
        let stamped = stamp(&line.text);
        let text = stamped.map_or(line.text.as_str(), |(_, text)| text);
        let stage = if begins(&user) || user.iter().any(|w| text.starts_with(w)) {
            programs = true;
            Some(Stage::User)
        } else if begins(&firmware) {
            Some(Stage::Firmware)
        } else if loader.iter().any(|w| line.text.contains(w)) {
            Some(Stage::Loader)
        } else if stamped.is_some() && !quiet && !programs {
            live |= text.contains("console [ttyS0] enabled");
            let stage = live.then_some(Stage::Kernel);
            // The kernel's last act: what comes after it may be a program's.
            programs |= text.starts_with("Run /") && text.ends_with("as init process");
            stage
        } else {
            programs.then_some(Stage::User)
        };
        proofs.extend(stage.map(|stage| (stage, line.clone())));
    }
    proofs
}

/// The stages that a span's name speaks of (`a+b` of either's); none for a name that says
/// nothing of a stage.
fn spoken_of(name: &str) -> Option<Vec<Stage>> {
    let parts: Option<Vec<&[Stage]>> = name.split('+').map(of_one).collect();
    parts.map(|parts| parts.concat())
}

fn of_one(name: &str) -> Option<&'static [Stage]> {
    use Stage::{Firmware, Kernel, Loader, User};
    let first = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
    // The kernel says things while programs run, and programs while a kernel ends.
    if name == "unattributed" || first(&["vmeter:", "after: ", "lines from: "]) {
        None
    } else if first(&["shutdown", "vmm:exit", "launcher:after", "kernel:panic"]) {
        Some(&[Kernel, User])
    } else if first(&["exec "]) {
        // The kernel runs a program of its own now and then (modprobe), before its init.
        Some(&[Kernel, User])
    } else if first(&["vmm:"]) {
        Some(&[])
    } else if first(&["bios:", "kernel:load"]) {
        Some(&[Firmware])
    } else if first(&["boot-loader", "grub:", "syslinux:", "systemd-boot:", "ipxe:", "efi-stub"]) {
        Some(&[Loader])
    } else if first(&["kernel:", "initcall"]) {
        Some(&[Kernel])
    } else {
        Some(&[User])
    }
}

/// Every named span of a run that its console contradicts by more than the span's own error.
pub fn contradictions(run: &Value, lines: &[LogMessage], quiet: bool) -> Vec<String> {
    let proofs = stages(lines, quiet);
    let spans = run["spans"].as_array().expect("spans");
    let beside = run["overlapping"].as_array().into_iter().flatten();
    let mut found = Vec::new();
    for span in spans.iter().chain(beside) {
        let name = span["name"].as_str().expect("a name");
        let number = |key: &str| span[key].as_f64().unwrap_or(0.0);
        let (start, end) = (number("start_s"), number("end_s"));
        let error = number("error_s") + LATE;
        let Some(allowed) = spoken_of(name) else { continue };
        // An initcall of a module runs in user space.
        let module = name.starts_with("initcall ") && run_began_user(&proofs, start);
        if let Some((stage, line)) = proofs.iter().find(|(stage, line)| {
            !allowed.contains(stage) && !module && start + error < line.at && line.at < end - error
        }) {
            found.push(format!(
                "{name} {start:.3}..{end:.3} ±{error:.3}: {stage:?} wrote {:?} at {:.3}",
                line.text, line.at
            ));
        }
        if let Some(begun) = clock_zero(lines).filter(|_| !quiet && name == "kernel:entry") {
            let until_init = init(lines).map(|at| (at - begun) * BEFORE_CLOCK);
            if start + error + until_init.unwrap_or(BEFORE_CLOCK_S) < begun {
                found.push(format!(
                    "{name} {start:.3}..{end:.3} ±{error:.3}: the kernel's clock began at {begun:.3}"
                ));
            }
        }
    }
    found
}

/// When the kernel says that it runs its init.
fn init(lines: &[LogMessage]) -> Option<f64> {
    let mut stamped = lines.iter().filter_map(|line| Some((line.at, stamp(&line.text)?.1)));
    stamped.find(|(_, text)| text.starts_with("Run /")).map(|(at, _)| at)
}

/// True if programs had been seen by then.
fn run_began_user(proofs: &[(Stage, LogMessage)], at: f64) -> bool {
    proofs.iter().any(|(stage, line)| *stage == Stage::User && line.at <= at + LATE)
}

/// The latest that the kernel's clock can have begun: a line arrives when it was said, or later
/// (a PREEMPT_RT kernel leaves its console to a thread).
fn clock_zero(lines: &[LogMessage]) -> Option<f64> {
    let stamped = lines.iter().filter_map(|line| Some((line.at, stamp(&line.text)?)));
    let live = stamped.skip_while(|(_, (_, text))| !text.contains("console [ttyS0] enabled"));
    live.map(|(at, (stamp, _))| at - stamp).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_at_its_first_character() {
        let text = b"\x1b[2JLoading initial ramdisk ...\n\r[    0.000000] Linux";
        let bytes: Vec<(f64, u8)> = text.iter().enumerate().map(|(i, b)| (i as f64, *b)).collect();
        let found = lines(&bytes);
        assert_eq!(found[0].at, 4.0);
        assert_eq!((found[1].at, found[1].text.as_str()), (33.0, "[    0.000000] Linux"));
    }
}
