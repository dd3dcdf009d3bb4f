//! Who wrote a line that the console shows with a kernel's stamp: the kernel, or a program that prints what
//! a kernel would.
//!
//! A console does not tell the one from the other; the records of the kernel's log do, as far as they
//! reach (kernel: kernel/printk/printk.c, `devkmsg_write`: a program's record is never of the kernel's
//! facility).

use crate::input::Seen;
use std::collections::HashSet;
use vmeter_model::kernel_log::SLACK;
use vmeter_model::{EventKind, Ns};

/// The kernel's log as its records have it.
pub(crate) struct Authors<'a> {
    kernel: HashSet<&'a str>,
    programs: HashSet<&'a str>,
    /// From the first record to the last.
    span: Option<(Ns, Ns)>,
}

impl<'a> Authors<'a> {
    /// Those of a run.
    pub(crate) fn of(seen: &[Seen<'a>]) -> Authors<'a> {
        let mut authors = Authors { kernel: HashSet::new(), programs: HashSet::new(), span: None };
        for one in seen {
            let EventKind::KernelLine { text, by_program } = one.what else { continue };
            let texts = if *by_program { &mut authors.programs } else { &mut authors.kernel };
            texts.insert(text.trim_end());
            let (from, to) = authors.span.unwrap_or((one.at, one.at));
            authors.span = Some((from.min(one.at), to.max(one.at)));
        }
        authors
    }

    /// True if a line with a stamp, of which this is the text without it, is not the kernel's: the log
    /// has it from a program, or has none like it though it reaches that far, or the stamp is of a time
    /// to come.
    pub(crate) fn is_of_program(&self, at: Ns, stamp: Ns, text: &str) -> bool {
        let text = text.trim_end();
        let Some((from, to)) = self.span.filter(|_| !self.kernel.contains(text)) else {
            return false;
        };
        let covered = from < at && at < to;
        // A guest that was restored ran before its VMM did.
        let ahead = from > 0 && stamp > at.saturating_add(SLACK);
        covered || ahead || self.programs.contains(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_reads_like_the_kernels() {
        let record = |at: Ns, text: &str, by_program: bool| {
            (at, EventKind::KernelLine { text: text.into(), by_program })
        };
        let log = [
            record(1_000_000_000, "Linux version 6.18.15", false),
            record(4_000_000_000, "Kernel panic - not syncing: no", true),
            record(5_000_000_000, "random: crng init done", false),
        ];
        let seen: Vec<Seen<'_>> = log
            .iter()
            .map(|(at, what)| Seen { at: *at, error: 0, source: "printk", insns: None, what })
            .collect();
        let authors = Authors::of(&seen);
        let is = |at: Ns, stamp: Ns, text: &str| authors.is_of_program(at, stamp, text);
        assert!(!is(4_500_000_000, 4_000_000_000, "random: crng init done"));
        assert!(is(4_500_000_000, 3_000_000_000, "Kernel panic - not syncing: no"));
        // The log reaches so far, and has none like it.
        assert!(is(4_500_000_000, 3_000_000_000, "reboot: Restarting system"));
        // It may be later than what was read of the log, but for its stamp.
        assert!(!is(6_000_000_000, 5_000_000_000, "reboot: Restarting system"));
        assert!(is(6_000_000_000, 99_000_000_000, "reboot: Restarting system"));
        // Nothing is known of a kernel whose log nobody read.
        assert!(!Authors::of(&[]).is_of_program(6, 99_000_000_000, "reboot: Restarting system"));
    }
}
