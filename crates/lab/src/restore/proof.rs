//! Whether a guest went on, or was booted again.
//!
//! A guest that prints a number which it drew when it booted proves it: the ready line's group `nonce`.
//! So does a kernel whose clock is older than its VMM. What a guest prints only when it boots proves the
//! contrary.

use regex::Regex;
use std::path::Path;
use vmeter_model::kernel_log::split_stamp;
use vmeter_model::{EventKind, Ns, RunRecord};
use vmeter_record::sources::console;

/// What vmeter's own guest prints: the number that its boot drew, and a count.
pub(super) const OWN: &str = "line:vmeter: tick (?<nonce>[0-9a-f]{16}) [0-9]+";
/// The group that holds such a number.
const GROUP: &str = "nonce";
/// What is printed at the begin of a boot only: by SeaBIOS, OVMF, and Linux.
const BOOTS: [&str; 4] = ["SeaBIOS (", "BdsDxe: ", "UEFI firmware", "Linux version "];

vmeter_base::words! {
    /// By what a guest is known to be restored.
    pub enum Proof {
        /// It knows a number that it drew before its snapshot was made.
        Nonce = "nonce",
        /// Its kernel's clock runs for longer than its VMM.
        Clock = "clock",
        /// Nothing: it may have been booted.
        None = "none",
    }
}

/// The number in a line, if the expression asks for one.
pub(super) fn nonce(pattern: &Regex, line: &str) -> Option<String> {
    Some(pattern.captures(line)?.name(GROUP)?.as_str().to_owned())
}

/// True for an expression by which a guest can be known.
pub(super) fn asks(pattern: &Regex) -> bool {
    pattern.capture_names().flatten().any(|name| name == GROUP)
}

/// By what the guest of a run is known to be restored from a snapshot with one of these numbers.
///
/// # Errors
/// In words why it was booted.
pub(super) fn judge(
    dir: &Path,
    run: &RunRecord,
    pattern: Option<&Regex>,
    drawn: &[String],
) -> Result<Proof, String> {
    let (events, _) = vmeter_record::decode::of_source(dir, run, console::NAME);
    let lines = || {
        events.iter().filter_map(|event| match &event.what {
            EventKind::ConsoleLine { text, .. } => Some((event.at, text.as_str())),
            _ => None,
        })
    };
    let said = pattern.zip(console::ready_line(run)).and_then(|(p, line)| nonce(p, line));
    if let (Some(said), Some(last)) = (&said, drawn.last()) {
        return match drawn.contains(said) {
            true => Ok(Proof::Nonce),
            false => Err(format!(
                "its nonce is {said}, but the guest in the snapshot had the nonce {last}"
            )),
        };
    }
    if let Some((_, line)) = lines().find(|(_, line)| begins(line)) {
        return Err(format!(
            "it printed {:?}, which a guest prints only when it boots",
            short(line)
        ));
    }
    let older = lines().any(|(at, line)| older(at, line));
    Ok(if older { Proof::Clock } else { Proof::None })
}

/// True for what is printed at the begin of a boot.
fn begins(line: &str) -> bool {
    split_stamp(line).0 == Some(0) || BOOTS.iter().any(|words| line.contains(words))
}

/// True for a stamp of a kernel that ran before its VMM.
fn older(at: Ns, line: &str) -> bool {
    split_stamp(line).0.is_some_and(|stamp| stamp > at.saturating_add(1_000_000_000))
}

fn short(line: &str) -> String {
    line.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use vmeter_model::run::SourceRecord;
    use vmeter_record::ready::Until;

    fn judged(
        console: &str,
        ready: &str,
        until: &str,
        drawn: Option<&str>,
    ) -> Result<Proof, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let text = format!("vmeter-chunks 1\n5000000 {}\n{console}\n\n", console.len());
        std::fs::write(dir.path().join("console.chunks"), text).expect("written");
        let source = SourceRecord {
            name: console::NAME.into(),
            files: vec!["console.chunks".into()],
            clock: String::new(),
            error_ns: 0,
            parameters: BTreeMap::from([("ready_line".to_owned(), ready.into())]),
        };
        let run = RunRecord { sources: vec![source], total_ns: 9_000_000, ..RunRecord::default() };
        let pattern = Until::parse(until).expect("valid").pattern();
        let drawn: Vec<String> = drawn.into_iter().map(str::to_owned).collect();
        judge(dir.path(), &run, pattern.as_ref(), &drawn)
    }

    #[test]
    fn a_number_proves_it_and_another_refutes_it() {
        let line = "vmeter: tick 00112233445566ff 7";
        let drawn = Some("00112233445566ff");
        assert_eq!(judged(line, line, OWN, drawn), Ok(Proof::Nonce));
        let why = judged(line, line, OWN, Some("ff")).expect_err("another");
        assert!(why.contains("00112233445566ff"), "{why}");
        assert_eq!(judged(line, line, OWN, None), Ok(Proof::None), "nobody knows the first");
    }

    #[test]
    fn without_a_number_the_kernels_clock_tells() {
        let ready = |console| judged(console, "ready", "line:ready", None);
        assert_eq!(ready("[  123.400000] eth0: up"), Ok(Proof::Clock));
        assert_eq!(ready("ready"), Ok(Proof::None));
        assert_eq!(ready("[    0.004000] x"), Ok(Proof::None));
        for line in ["[    0.000000] Linux", "SeaBIOS (version 1)"] {
            assert!(ready(line).is_err(), "{line}");
        }
    }
}
