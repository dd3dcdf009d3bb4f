//! Who asks for the login that a boot ends at, and who began whom on the way there.
//!
//! A getty never ends, and nobody waits for it: under runit it is begun by a service's own
//! supervisor, which `runsvdir` began, which the second stage of init became. Each could not
//! begin before the one above it did, so that these are what the prompt waited for. Which getty it
//! was its arguments say: the one of a serial line, and the only one. Units of systemd have a
//! chain of their own.

use crate::facts::RunIndex;
use crate::is_login;
use crate::processes::{base, Process};
use vmeter_model::{EventKind, Ns};

/// Terminals that a VMM shows as its console.
const SERIAL: &[&str] = &["ttyS", "ttyAMA", "hvc", "console"];

/// The processes that led to a prompt, and when it came.
#[derive(Debug, Default)]
pub(super) struct Prompt {
    /// From init's own child to the getty.
    line: Vec<usize>,
    at: Ns,
}

impl Prompt {
    /// Nobody, where it is not known who asked.
    pub(super) fn of(facts: &RunIndex<'_>) -> Self {
        let asked = facts.seen.iter().find_map(|s| match s.what {
            EventKind::ReadyLine { text } => is_login(text.trim_end()).then_some(s.at),
            _ => None,
        });
        let line = asked.and_then(|at| line(&facts.processes.all, at));
        Prompt { line: line.unwrap_or_default(), at: asked.unwrap_or_default() }
    }

    /// True if it is known who asked.
    pub(super) fn is_known(&self) -> bool {
        !self.line.is_empty()
    }

    /// When the prompt came, of a process that led to it.
    pub(super) fn until(&self, index: usize) -> Option<Ns> {
        self.line.contains(&index).then_some(self.at)
    }
}

fn line(all: &[Process<'_>], at: Ns) -> Option<Vec<usize>> {
    let mut gettys: Vec<(usize, bool)> = Vec::new();
    for (index, process) in all.iter().enumerate() {
        let alive = process.start.at < at && process.end.is_none_or(|end| end >= at);
        let image = process.images.iter().rfind(|image| image.at <= at);
        let Some(image) = image.filter(|i| alive && base(i.file).ends_with("getty")) else {
            continue;
        };
        let serial = |word: &String| SERIAL.iter().any(|tty| base(word).starts_with(tty));
        // Without arguments it can be of any terminal.
        let its = image.arguments.is_empty() || image.arguments.iter().any(serial);
        gettys.extend(its.then_some((index, process.unit.is_some())));
    }
    let &[(getty, false)] = gettys.as_slice() else { return None };
    let ancestors = std::iter::successors(Some(getty), |index| all[*index].parent);
    let mut line: Vec<usize> = ancestors.take_while(|index| all[*index].pid != 1).collect();
    // Who was taken in by init later is not known to have been begun by it.
    all[*line.last()?].parent?;
    line.reverse();
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Seen;
    use crate::processes::Processes;

    fn fork(pid: i32, parent: i32) -> EventKind {
        EventKind::ProcessFork { pid, parent, thread: false }
    }

    fn exec(pid: i32, words: &str) -> [EventKind; 2] {
        let arguments: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let file = arguments[0].clone();
        [EventKind::ProcessArguments { pid, arguments }, EventKind::ProcessExec { pid, file }]
    }

    fn led(whats: &[EventKind]) -> Option<Vec<i32>> {
        let seen: Vec<Seen<'_>> = whats
            .iter()
            .zip(1..)
            .map(|(what, at)| Seen { at, error: 0, source: "t", insns: None, what })
            .collect();
        let all = Processes::of(&seen).all;
        Some(line(&all, 1000)?.into_iter().map(|index| all[index].pid).collect())
    }

    #[test]
    fn the_line_of_a_prompt_is_who_began_whom() {
        let mut whats = vec![fork(1, 0), fork(2, 1), fork(3, 2), fork(4, 2)];
        whats.extend(exec(2, "/bin/runsvdir -P /etc/service"));
        whats.extend(exec(3, "/sbin/agetty 38400 tty1"));
        whats.extend(exec(4, "/sbin/agetty -L ttyS0 115200"));
        assert_eq!(led(&whats), Some(vec![2, 4]));
        whats.extend(exec(3, "/sbin/getty /dev/hvc0"));
        assert_eq!(led(&whats), None, "two can have asked");
    }

    #[test]
    fn of_units_systemd_tells() {
        let mut whats = vec![fork(1, 0), fork(2, 1)];
        whats.extend(exec(2, "/sbin/agetty ttyS0"));
        assert_eq!(led(&whats), Some(vec![2]));
        let path = "/system.slice/serial-getty@ttyS0.service".into();
        whats.push(EventKind::ProcessGroup { pid: 2, path });
        assert_eq!(led(&whats), None);
    }
}
