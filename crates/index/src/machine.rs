//! What is kept of a machine: one line, however many sessions booted it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vmeter_model::run::SessionMachine;

/// Text beyond this is not searched, bytes.
const MAX_TEXT: usize = 64 << 10;

/// A machine as the index has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Names it: the same settings, versions and digests give the same.
    pub id: String,
    /// One `NAME=VALUE` a line, each line between line feeds.
    pub text: String,
    /// The machine in a few words.
    pub summary: String,
}

impl Machine {
    pub(crate) fn of(machine: &SessionMachine) -> Self {
        let mut text = String::from("\n");
        let mut line = |name: &str, value: &str| {
            if text.len() < MAX_TEXT {
                let flat = |t: &str| t.replace('\n', " ");
                text.push_str(&format!("{}={}\n", flat(name), flat(value)));
            }
        };
        let parameters = machine.parameters.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let chosen = machine.chosen.iter().map(|c| (c.what.as_str(), c.value.as_str()));
        let provenance = machine.provenance.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        for (name, value) in parameters.chain(chosen).chain(provenance) {
            line(name, value);
        }
        for word in &machine.argv {
            line("argv", word);
        }
        let mut end = text.len().min(MAX_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        let digest = Sha256::digest(text.as_bytes());
        let id = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Machine { id, text, summary: summary(machine) }
    }
}

/// `q35 tcg`, a point's parameters, or the program of a command line.
fn summary(machine: &SessionMachine) -> String {
    if !machine.parameters.is_empty() {
        let each = machine.parameters.iter().map(|(name, value)| format!("{name}={value}"));
        return cut(&each.collect::<Vec<_>>().join(" "));
    }
    let chosen =
        |what: &str| machine.chosen.iter().find(|c| c.what == what).map(|c| c.value.as_str());
    let kind = chosen("machine").or(machine.spec.machine.as_deref()).or(chosen("vmm"));
    let kind = kind.or_else(|| machine.argv.first().map(String::as_str)).unwrap_or("?");
    let accel = chosen("accel").map(|accel| format!(" {accel}")).unwrap_or_default();
    cut(&format!("{}{accel}", kind.rsplit('/').next().unwrap_or(kind)))
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chosen(rows: &[(&str, &str)]) -> SessionMachine {
        let row =
            |(name, value): &(&str, &str)| vmeter_model::ResolvedOption::new(*name, *value, "why");
        SessionMachine { chosen: rows.iter().map(row).collect(), ..SessionMachine::default() }
    }

    #[test]
    fn the_same_machine_whatever_its_label() {
        let one = chosen(&[("machine", "q35"), ("accel", "tcg"), ("smp", "1")]);
        let other = SessionMachine { label: "b".into(), ..one.clone() };
        let (one, other) = (Machine::of(&one), Machine::of(&other));
        assert_eq!(one, other);
        assert_eq!((one.summary.as_str(), one.id.len()), ("q35 tcg", 12));
        assert!(one.text.contains("\nsmp=1\n"));
        let two = Machine::of(&chosen(&[("machine", "q35"), ("accel", "tcg"), ("smp", "2")]));
        assert_ne!(two.id, other.id);
    }

    proptest! {
        #[test]
        fn bounded(value in ".{0,200}", times in 0_usize..2000) {
            let machine = SessionMachine {
                argv: vec![value; times],
                ..SessionMachine::default()
            };
            prop_assert!(Machine::of(&machine).text.len() <= MAX_TEXT);
        }
    }
}
