//! Commands that can be pasted: with the thread's number or name, and without words of advice.

use crate::detect::comm_filter::LONGEST;
use crate::detect::Candidate;

/// The command that confirms, and what to change with the words of advice that were beside it.
pub fn pasted(candidate: &Candidate) -> (String, String) {
    let (command, advice) = match candidate.confirm.split_once(" (") {
        Some((command, advice)) => (command, Some(advice.trim_end_matches(')'))),
        None => (candidate.confirm.as_str(), None),
    };
    let suggestion = match advice {
        Some(advice) => format!("{} (to confirm: {advice})", candidate.suggestion),
        None => candidate.suggestion.clone(),
    };
    let whose = match (&candidate.culprit, candidate.key) {
        (Some(culprit), _) => target(culprit),
        (None, Some(_)) => None,
        (None, None) => target(&candidate.subject),
    };
    let command = match whose {
        Some(whose) => format!("{command} ")
            .replace("-p PID ", &format!("-p {whose} "))
            .replace("-p PID;", &format!("-p {whose};")),
        None => command.to_string(),
    };
    (command.trim_end().to_string(), suggestion)
}

/// What a command prints that bears on the finding, by the words that it begins with.
const SHOWS: &[(&str, &str)] = &[
    ("perf trace -s", "each call with its total time: the call named above should be first"),
    ("perf record -g", "perf report then shows the functions that take the CPU time"),
    ("perf sched record", "each thread's wait time and run-queue delay"),
    ("perf stat -e", "how often this happens"),
    ("strace -f -T", "each call with its time: this list should show the waits above"),
    ("strace -f -c", "the number and the time of the calls"),
    ("trace-cmd record", "a trace: vmeter explain TRACE then shows what the calls wait for"),
    ("vmeter explain --pid", "a new trace of the same program"),
    ("biolatency", "how long the disk takes for a request"),
    ("ss -tinp", "what the peer has not acknowledged"),
    ("grep . /sys/fs/cgroup", "nr_throttled, which should grow"),
];

/// What the command prints that bears on the finding; empty if nothing can be said in short.
pub fn shows(command: &str) -> &'static str {
    let found = SHOWS.iter().find(|(begins, _)| command.starts_with(begins));
    found.map_or("", |(_, what)| what)
}

/// A thread by its number; threads of a name by that.
fn target(subject: &str) -> Option<String> {
    if let Some((_, tid)) = subject.strip_suffix(')').and_then(|known| known.rsplit_once(" (")) {
        return tid.parse::<u32>().ok().map(|tid| tid.to_string());
    }
    let name = subject.strip_prefix("child of ").unwrap_or(subject);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_/:+@,#".contains(c);
    let mut regex: String = name.chars().fold(String::new(), |mut regex, c| {
        match c {
            '*' => regex.push_str(".*"),
            c if plain(c) => regex.push(c),
            _ => regex.push('.'),
        }
        regex
    });
    // pgrep takes no pattern that is longer than a name can be.
    if regex.len() > LONGEST {
        regex.truncate(LONGEST - 2);
        regex.push_str(".*");
    }
    (!regex.is_empty()).then(|| format!("\"$(pgrep -w -d, -x '{regex}')\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(subject: &str, confirm: &str) -> (String, String) {
        let (subject, confirm) = (subject.to_string(), confirm.to_string());
        let suggestion = "change it".to_string();
        pasted(&Candidate { subject, confirm, suggestion, ..Candidate::default() })
    }

    #[test]
    fn advice_is_no_part_of_a_command() {
        let (confirm, change) = of("a b (12)", "perf trace -s -p PID sleep 5 (read it)");
        assert_eq!(confirm, "perf trace -s -p 12 sleep 5");
        assert_eq!(change, "change it (to confirm: read it)");
    }

    #[test]
    fn threads_of_a_name_are_found_by_it() {
        let (confirm, _) = of("io-*", "strace -f -p PID");
        assert_eq!(confirm, "strace -f -p \"$(pgrep -w -d, -x 'io-.*')\"");
        let (confirm, _) = of("rpc-request-handler-*", "strace -p PID");
        assert_eq!(confirm, "strace -p \"$(pgrep -w -d, -x 'rpc-request-h.*')\"");
        let (confirm, _) = of("child of a'; b", "strace -p PID");
        assert_eq!(confirm, "strace -p \"$(pgrep -w -d, -x 'a...b')\"");
    }
}
