//! The kernel's log is printed on a console while it boots, and who logs waits for it. It is in no
//! span of its own, and told as a whole.

use super::{registry, Cause};
use vmeter_model::{kernel_log, Timeline};

/// What takes less of a boot, as 1 in so many, delays nothing.
const LEAST: i64 = 100;

pub(super) fn cause(timeline: &Timeline) -> Option<Cause> {
    let printing = timeline.printing.filter(|one| one.time > timeline.total / LEAST)?;
    let words = timeline.command_line.as_deref().unwrap_or_default();
    if kernel_log::is_quiet(words) {
        return None;
    }
    Some(Cause {
        cause: registry::CONSOLE_LOG,
        remedy: "quiet (kernel)",
        at_most: printing.time,
        spans: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::span::Printing;

    #[test]
    fn a_guest_that_is_told_to_be_quiet_gets_no_such_advice() {
        let printing = Some(Printing { lines: 500, bytes: 30_000, time: 120_000_000 });
        let guest = |words: &str| Timeline {
            total: 900_000_000,
            printing,
            command_line: Some(words.into()),
            ..Timeline::default()
        };
        assert_eq!(cause(&guest("console=ttyS0")).map(|c| c.at_most), Some(120_000_000));
        assert_eq!(cause(&guest("console=ttyS0 quiet")), None);
        assert_eq!(cause(&guest("loglevel=7 quiet")), None);
        assert!(cause(&guest("quiet loglevel=7")).is_some());
        assert!(cause(&guest("ignore_loglevel quiet")).is_some());
        assert!(cause(&guest("init=/bin/sh -- quiet")).is_some());
        assert_eq!(cause(&Timeline::default()), None);
    }
}
