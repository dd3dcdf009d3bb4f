//! Lines that a run printed, made comparable: numbers differ from boot to boot, words
//! tell what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use vmeter_model::{EventKind, RunRecord};
use vmeter_timeline::console::split_stamp;

/// Longer lines are cut.
const LONGEST: usize = 200;
/// More kinds of line than this are not told apart.
const KINDS: usize = 20_000;

/// How often each kind of line was printed, by (place, line without numbers).
pub type LineCounts = BTreeMap<(&'static str, String), f64>;

/// The lines of a saved run: of the firmware, of the kernel's log, and what else was on the
/// console.
pub fn of_run(dir: &Path, record: &RunRecord) -> LineCounts {
    let (events, _) = vmeter_record::decode::events(dir, record);
    let mut counts = LineCounts::new();
    let mut add = |place, text: &str| {
        let key = (place, template(text));
        if !key.1.is_empty() && (counts.len() < KINDS || counts.contains_key(&key)) {
            *counts.entry(key).or_insert(0.0) += 1.0;
        }
    };
    for event in &events {
        match &event.what {
            EventKind::FirmwareLine { text } => add("firmware", text),
            EventKind::KernelLine { text, .. } => add("kernel", text),
            EventKind::ConsoleLine { text, .. } => add("console", text),
            _ => {}
        }
    }
    // The console repeats the kernel's log.
    let logged: BTreeSet<String> =
        counts.keys().filter(|(place, _)| *place == "kernel").map(|(_, t)| t.clone()).collect();
    counts.retain(|(place, text), _| *place != "console" || !logged.contains(text));
    counts
}

/// A line without its stamp, `#` in the place of numbers, addresses and identifiers of
/// hexadecimal digits. Digits inside names (`ttyS0`, `x86`) stay.
pub fn template(line: &str) -> String {
    let (_, text) = split_stamp(line);
    let mut out = String::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        if out.len() >= LONGEST {
            break;
        }
        let end = if first.is_ascii_alphanumeric() {
            rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, tail) = rest.split_at(end);
        push(&mut out, token);
        rest = tail;
    }
    out.trim_end().to_owned()
}

fn push(out: &mut String, token: &str) {
    let digits = token.bytes().take_while(u8::is_ascii_digit).count();
    let hexadecimal = token.bytes().all(|b| b.is_ascii_hexdigit());
    let address = token.strip_prefix("0x").is_some_and(|t| !t.is_empty());
    if digits == 0
        && !(hexadecimal && token.len() >= 4 && token.bytes().any(|b| b.is_ascii_digit()))
    {
        out.push_str(token);
    } else if address || hexadecimal {
        out.push('#');
    } else {
        // A number with its unit: `512K`, `12ms`.
        out.push('#');
        out.push_str(token.get(digits..).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_go_and_names_stay() {
        let same = |a: &str, b: &str| assert_eq!(template(a), template(b));
        same(
            "[    0.123456] Memory: 480000K/524288K available",
            "[    9.100000] Memory: 1K/2K available",
        );
        same("pci 0000:00:05.0: [1b36:000c] type 01", "pci 0000:00:1f.2: [8086:2922] type 01");
        same("BAR 0xfebd4000 len 0x1000", "BAR 0xc000 len 0x20");
        assert_eq!(template("console [ttyS0] enabled"), "console [ttyS0] enabled");
        assert_eq!(template("x86/fpu: took 12ms, 3.5MHz"), "x86/fpu: took #ms, #.#MHz");
        assert_eq!(template("decade added"), "decade added");
        assert_eq!(template("[    0.000000]   "), "");
    }

    proptest! {
        #[test]
        fn any_line(line in "(\\[ *[0-9]{1,12}\\.[0-9]{6}\\] )?\\PC{0,300}") {
            let once = template(&line);
            prop_assert!(once.len() <= LONGEST + line.len().min(4096));
            prop_assert_eq!(&template(&line), &once);
        }
    }
}
