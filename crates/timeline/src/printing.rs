//! How long the kernel's log on its consoles held the boot up.
//!
//! A kernel that prints waits for the console: on a serial port each character is an exit
//! (kernel: drivers/tty/serial/8250/8250_port.c, `serial8250_console_write`). That time lies
//! in whatever printed, an initcall or a phase, and in no span of its own. Here it is counted:
//! from when a line was logged, or the one before it had been printed, until its last byte
//! arrived. Where a line has no record in the log that was read, from its first byte on.

use crate::input::{Input, Seen};
use crate::lines;
use std::collections::{HashMap, VecDeque};
use vmeter_model::kernel_log::{split_stamp, LogMessage};
use vmeter_model::span::Printing;
use vmeter_model::{EventKind, Ns};

/// What of the kernel's log was printed on a console, if anything was. What `dmesg` or a log
/// daemon prints again is not the kernel's printing.
pub(crate) fn printing<'a>(kernels: impl Iterator<Item = &'a Input<'a>>) -> Option<Printing> {
    // Bytes arrive in the host's time.
    let kernels = kernels.filter(|kernel| !kernel.virtual_time);
    let printed = kernels.map(of_one).reduce(|a, b| Printing {
        lines: a.lines + b.lines,
        bytes: a.bytes + b.bytes,
        time: a.time.saturating_add(b.time),
    });
    printed.filter(|printed| printed.lines > 0)
}

fn of_one(kernel: &Input<'_>) -> Printing {
    let seen = &kernel.seen;
    let mut records = records(seen);
    // Until when the console was at work.
    let (mut printed, mut busy) = (Printing::default(), 0);
    for (s, said) in seen.iter().zip(lines::said(seen)) {
        let EventKind::ConsoleLine { text, end, .. } = s.what else { continue };
        let (at, end) = (s.at, (*end).clamp(s.at, kernel.total.max(s.at)));
        let free = busy;
        busy = busy.max(end);
        let (stamp, bare) = split_stamp(text);
        let logged = records.get_mut(bare.trim_end()).and_then(VecDeque::pop_front);
        if said == LogMessage::Again || (stamp.is_none() && logged.is_none()) {
            continue;
        }
        let from = match logged {
            Some(logged) if said != LogMessage::HeldBack => logged.min(at).max(free),
            _ => at.max(free),
        };
        printed.lines += 1;
        printed.bytes += text.len() as u64;
        printed.time += (end - from).max(0);
    }
    printed
}

/// When each text was logged, in order.
fn records<'a>(seen: &[Seen<'a>]) -> HashMap<&'a str, VecDeque<Ns>> {
    let mut records: HashMap<&str, VecDeque<Ns>> = HashMap::new();
    for s in seen {
        if let EventKind::KernelLine { text, .. } = s.what {
            records.entry(split_stamp(text).1.trim_end()).or_default().push_back(s.at);
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::Event;

    const MS: Ns = 1_000_000;

    fn event(at: Ns, what: EventKind) -> Event {
        Event { at, error_ns: 0, source: String::new(), insns: None, what }
    }

    fn logged(at: Ns, text: &str) -> Event {
        event(at * MS, EventKind::KernelLine { text: text.into(), by_program: false })
    }

    fn shown(at: Ns, end: Ns, text: &str) -> Event {
        let later = Vec::new();
        event(at * MS, EventKind::ConsoleLine { text: text.into(), end: end * MS, later })
    }

    fn told(events: &[Event]) -> Option<Printing> {
        let seen = events.iter().map(|e| Seen {
            at: e.at,
            error: 0,
            source: &e.source,
            insns: None,
            what: &e.what,
        });
        let input = Input { total: 9_000 * MS, seen: seen.collect(), ..Input::default() };
        printing(std::iter::once(&input))
    }

    #[test]
    fn a_line_is_printed_from_when_it_was_logged_or_the_one_before_was_done() {
        let events = [
            logged(1_000, "first"),
            shown(1_004, 1_010, "[    1.000000] first"),
            // Two at once: the second waits for the first.
            logged(1_100, "second"),
            logged(1_102, "third"),
            shown(1_101, 1_110, "[    1.100000] second"),
            shown(1_111, 1_120, "[    1.102000] third"),
            // No line of the kernel's.
            shown(1_200, 1_300, "a program's"),
        ];
        let told = told(&events).expect("lines");
        assert_eq!((told.lines, told.time), (3, 30 * MS));
    }

    /// Two consoles print the same time twice.
    #[test]
    fn lines_that_are_printed_at_once_take_their_time_once() {
        let events = [
            logged(1_000, "first"),
            logged(1_001, "second"),
            shown(1_004, 1_010, "[    1.000000] first"),
            shown(1_005, 1_012, "[    1.001000] second"),
        ];
        assert_eq!(told(&events).map(|told| told.time), Some(12 * MS));
    }

    #[test]
    fn a_line_without_a_record_is_printed_from_its_first_byte_on() {
        let events = [shown(1_004, 1_010, "[    1.000000] first")];
        assert_eq!(told(&events).map(|told| told.time), Some(6 * MS));
        assert_eq!(told(&[shown(1, 9, "a program's")]), None);
    }

    #[test]
    fn what_was_held_back_is_printed_when_the_console_is_there() {
        let events = [
            logged(100, "early"),
            logged(200, "printk: console [ttyS0] enabled"),
            shown(205, 210, "[    0.100000] early"),
            shown(211, 220, "[    0.200000] printk: console [ttyS0] enabled"),
        ];
        assert_eq!(told(&events).map(|told| told.time), Some(15 * MS));
    }

    #[test]
    fn what_dmesg_prints_again_is_not_the_kernels() {
        let mut events: Vec<Event> = (1..9)
            .flat_map(|n| {
                let text = format!("line {n}");
                let at = 1_000 * n;
                [logged(at, &text), shown(at + 1, at + 5, &format!("[{n:5}.000000] {text}"))]
            })
            .collect();
        let again = (1..9).map(|n| {
            let at = 8_500 + 10 * n;
            shown(at, at + 5, &format!("[{n:5}.000000] line {n}"))
        });
        events.extend(again);
        let told = told(&events).expect("lines");
        assert_eq!((told.lines, told.time), (8, 40 * MS));
    }
}
