//! Waiting for a person: a question on the console that ends with what is typed (cryptsetup's
//! askpass, systemd's `systemd-ask-password`), from the question to the end of its line.

use super::{no_anchors, RuleSet};
use crate::anchors::{Anchor, Anchors};
use crate::facts::RunIndex;
use crate::landmarks::open_end;
use crate::lines::Line;
use crate::tree::{Growing, Node};
use vmeter_model::expression::compiled;
use vmeter_model::{Kind, Ns};

pub(crate) const RULES: RuleSet = RuleSet { anchors: no_anchors, spans };

/// Nobody types faster, ns.
const SHORTEST_NS: Ns = 100_000_000;
/// Questions for what only a person has.
const ASKS: &str = r"\b([Pp]ass ?phrase|[Pp]assword|PIN|[Uu]nlock disk)\b[^:]*: ?(\(press TAB for no echo\) ?)?\**$";

fn spans<'a>(facts: &RunIndex<'a>, anchors: &Anchors<'a>, tree: &mut Growing<'a>) {
    let Some(begin) = anchors.get(Anchor::Userspace) else { return };
    let limit = open_end(facts, anchors, begin.at);
    let lines = facts.lines.iter().filter(|l| l.console && l.timed && l.stamp.is_none());
    for line in lines.filter(|l| (begin.at..limit).contains(&l.at)) {
        let Some((asked, answered)) = waits(line) else { continue };
        let name = format!("{}: {}", Kind::Person.word(), question(line.text));
        let node = Node::new(name, asked, answered.min(limit), line.source);
        tree.place(Node { error: line.error, ..node });
        if facts.processes.all.is_empty() {
            opens(facts, tree, answered, limit);
        }
    }
}

/// Where no process tells it: from the answer to cryptsetup's word that the volume is open
/// (Debian's /usr/lib/cryptsetup/functions).
fn opens<'a>(facts: &RunIndex<'a>, tree: &mut Growing<'a>, answered: Ns, limit: Ns) {
    let says = |l: &&Line<'_>| l.text.starts_with("cryptsetup: ") && l.text.contains(OPENED);
    let inside = |l: &&Line<'_>| l.console && answered < l.at && l.at < limit;
    if let Some(line) = facts.lines.iter().filter(inside).find(says) {
        let node = Node::new(OPENS, answered, line.at, line.source);
        tree.place(Node { error: line.error, ..node });
    }
}

/// A volume's key is derived from what was typed, and it is opened.
const OPENS: &str = "cryptsetup:open";
const OPENED: &str = ": set up successfully";

/// From the end of a question to the end of its answer.
fn waits(line: &Line<'_>) -> Option<(Ns, Ns)> {
    compiled(ASKS)?.is_match(line.text.trim_end()).then_some(())?;
    let stars = line.text.trim_end().trim_end_matches('*').len();
    let asked = line.at_of(stars.saturating_sub(1));
    (line.end - asked >= SHORTEST_NS).then_some((asked, line.end))
}

/// The question itself, cut to what a table can show.
fn question(text: &str) -> String {
    let text = text.split(" (press").next().unwrap_or(text).trim_end().trim_end_matches('*');
    text.trim_end_matches([':', ' ']).chars().filter(|c| !c.is_control()).take(MAX).collect()
}

/// Longest question, characters.
const MAX: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_for_a_person_are_known() {
        let regex = compiled(ASKS).expect("it compiles");
        for asks in [
            "Please unlock disk croot:",
            "Please enter passphrase for disk vda (croot): (press TAB for no echo) ******",
            "Enter passphrase for /dev/vda2:",
            "Password:",
        ] {
            assert!(regex.is_match(asks), "{asks}");
        }
        for other in ["Starting passwordd: ok", "spinning: up", "[ OK ] Password agents:  2"] {
            assert!(!regex.is_match(other), "{other}");
        }
        let long = "Please enter passphrase for disk vda (croot): (press TAB for no echo) ***";
        assert_eq!(question(long), "Please enter passphrase for disk vda (croot)");
    }
}
