//! Lines of the guest kernel's log as a console shows them: their stamps, and which of them
//! were printed as they were said.
//!
//! A console is given a line when it is logged, but not always: what was said before the
//! console was there comes all at once when it is registered (kernel: kernel/printk/printk.c,
//! `register_console`), and a guest's `dmesg`, `klogd` or syslog may print the whole log again
//! in user space. Only what was printed as it was said tells when it happened.
//!
//! What tells them apart is that the guest's clock does not run faster than the host's: in
//! lines that are printed as they are said, stamps advance no faster than arrivals do. (A
//! guest's clock does lose time, seconds of it under TCG, and jumps forward by up to some
//! 100 ms when the kernel comes to trust its TSC.)

use crate::Ns;

/// How much faster than arrivals stamps may advance, ns: what a kernel's clock is corrected
/// by when it is marked stable.
pub const SLACK: Ns = 300_000_000;
/// How many times faster than arrivals stamps advance at least where a log is printed again.
const RUSH: Ns = 3;

/// Count of the first records of a log that were overwritten.
pub const LOST: &str = "guest_log_lost";
/// Size, bytes, of a log (`log_buf_len=`) and of a CPU's trace (`trace_buf_size=`) that would have
/// overwritten nothing.
pub const WANTED: [&str; 2] = ["guest_log_bytes_wanted", "guest_trace_bytes_wanted"];
/// Counts of what a running guest wrote while it was copied: records of its log, pages of its trace.
pub const TORN: [&str; 2] = ["guest_log_torn", "guest_trace_torn"];
/// Count of the records of a log of which nothing says when they were said.
pub const UNPLACED: &str = "guest_log_unplaced";

/// Said (as a count of 1) of a kernel that lacks what it would be read by: variables among its symbols
/// (`CONFIG_KALLSYMS_ALL`), types (`CONFIG_DEBUG_INFO_BTF`), and events of initcalls (`CONFIG_FTRACE`).
pub const LACKS: [&str; 3] =
    ["guest_kernel_lacks_data", "guest_kernel_lacks_types", "guest_kernel_lacks_events"];

/// The level below which a kernel that is told to be `quiet` prints (kernel: include/linux/printk.h,
/// `CONSOLE_LOGLEVEL_QUIET`).
const QUIET: u32 = 4;

/// True if a kernel with these words on its command line prints no more on its console than one that is told to be
/// `quiet`. The last word that sets a level counts (kernel: init/main.c, `quiet_kernel`, `debug_kernel`, `loglevel`;
/// kernel/printk/printk.c, `ignore_loglevel`).
pub fn is_quiet(words: &str) -> bool {
    let words = words.split_whitespace().take_while(|word| *word != "--");
    if words.clone().any(|word| word.starts_with("ignore_loglevel")) {
        return false;
    }
    let level = |word: &str| match word {
        "quiet" => Some(QUIET),
        "debug" => Some(10),
        _ => word.strip_prefix("loglevel=")?.parse().ok(),
    };
    words.filter_map(level).last().is_some_and(|level| level <= QUIET)
}

/// The stamp in front of a line (`[    1.234567]`), ns of the kernel's clock, and the rest.
/// A level (`<6>`) before it and a caller (`[T1]`) after it are taken off too.
pub fn split_stamp(line: &str) -> (Option<Ns>, &str) {
    match stamp(line.trim_start()) {
        Some((stamp, rest)) => (Some(stamp), rest),
        None => (None, line.trim_start()),
    }
}

fn stamp(line: &str) -> Option<(Ns, &str)> {
    let rest = bracketed(line, '<', '>', 1..=3).map_or(line, |(_, rest)| rest);
    let rest = rest.strip_prefix('[')?.trim_start_matches(' ');
    let (seconds, rest) = digits(rest, 1..=9)?;
    let (micros, rest) = digits(rest.strip_prefix('.')?, 6..=6)?;
    let rest = rest.strip_prefix(']')?;
    let rest = caller(rest).unwrap_or(rest);
    let rest = rest.strip_prefix(char::is_whitespace).unwrap_or(rest);
    Some((seconds * 1_000_000_000 + micros * 1_000, rest))
}

/// ` [    T1]` or ` [C0]`, which `CONFIG_PRINTK_CALLER` adds.
fn caller(rest: &str) -> Option<&str> {
    let rest = rest.trim_start().strip_prefix('[')?.trim_start();
    let (_, rest) = digits(rest.strip_prefix(['T', 'C'])?, 1..=10)?;
    rest.strip_prefix(']')
}

fn bracketed(
    text: &str,
    open: char,
    close: char,
    count: std::ops::RangeInclusive<usize>,
) -> Option<(Ns, &str)> {
    let (number, rest) = digits(text.strip_prefix(open)?, count)?;
    Some((number, rest.strip_prefix(close)?))
}

fn digits(text: &str, count: std::ops::RangeInclusive<usize>) -> Option<(Ns, &str)> {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = count.contains(&end).then(|| text[..end].parse().ok())??;
    Some((number, &text[end..]))
}

/// When a line of a console was said, as against when it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMessage {
    /// It is no line of the kernel's log, or has no stamp: nothing is known.
    Unknown,
    /// As it arrived.
    Live,
    /// Before the console was there; it arrived when that was.
    HeldBack,
    /// Long before: it was printed again by somebody, or is of a second kernel.
    Again,
}

/// When each line of a console was said; `lines` are (arrival, text) in order.
pub fn said(lines: &[(Ns, &str)]) -> Vec<LogMessage> {
    let mut said = vec![LogMessage::Unknown; lines.len()];
    let stamped: Vec<Stamped> = lines
        .iter()
        .enumerate()
        .filter_map(|(index, (arrival, line))| {
            let (stamp, text) = split_stamp(line);
            Some(Stamped { index, arrival: *arrival, stamp: stamp?, comes_up: comes_up(text) })
        })
        .collect();
    let up = stamped.iter().position(|line| line.comes_up).unwrap_or(0);
    let (foreign, stamped) = without_foreign(stamped, up);
    foreign.iter().for_each(|index| said[*index] = LogMessage::Again);
    let rushed = rushed(&stamped[up..]);
    let head = if rushed.first() == Some(&true) { LogMessage::Again } else { LogMessage::HeldBack };
    stamped[..up].iter().for_each(|line| said[line.index] = head);
    let mut latest = Ns::MIN;
    for (line, rushed) in stamped[up..].iter().zip(rushed) {
        let goes_back = line.stamp.saturating_add(SLACK) < latest;
        said[line.index] = if rushed || goes_back { LogMessage::Again } else { LogMessage::Live };
        if said[line.index] == LogMessage::Live {
            latest = latest.max(line.stamp);
        }
    }
    said
}

/// Takes out the lines of CPUs whose clock has not begun when they say their first: stamped 0
/// between two that are in order. Indices of those, and the others.
fn without_foreign(stamped: Vec<Stamped>, up: usize) -> (Vec<usize>, Vec<Stamped>) {
    let mut next = vec![Ns::MIN; stamped.len()];
    for at in (1..stamped.len()).rev() {
        let (stamp, later) = (stamped[at].stamp, next[at]);
        next[at - 1] = if stamp == 0 { later } else { stamp };
    }
    let mut latest = 0;
    let (mut foreign, mut own) = (Vec::new(), Vec::new());
    for (at, line) in stamped.into_iter().enumerate() {
        latest = latest.max(line.stamp);
        if at > up && line.stamp == 0 && latest > 0 && next[at] >= latest {
            foreign.push(line.index);
        } else {
            own.push(line);
        }
    }
    (foreign, own)
}

/// A line with a stamp.
#[derive(Debug, Clone, Copy)]
struct Stamped {
    index: usize,
    arrival: Ns,
    stamp: Ns,
    comes_up: bool,
}

/// True for the line by which the kernel says that a serial console works.
pub fn comes_up(text: &str) -> bool {
    let names = ["bootconsole [", "console [ttyS", "console [hvc", "console [ttyAMA"];
    text.ends_with("enabled") && names.iter().any(|name| text.contains(name))
}

/// True for what a kernel says right after its clock began to count ticks, of which a busy host
/// drops some (`sched_clock_init` of start_kernel()).
pub fn counts_ticks(text: &str) -> bool {
    text.starts_with("Calibrating delay")
}

/// How much a kernel's clock had lost when it came to trust its TSC, ns, from the line that says
/// so (`sched_clock: Marking stable (…)->(…, -LOST)`).
pub fn lost(text: &str) -> Option<Ns> {
    let last = text.strip_prefix("sched_clock: Marking stable")?.rsplit([',', ' ']).next()?;
    last.trim_end_matches(')').parse::<Ns>().ok()?.checked_neg()
}

/// Which lines lie in a stretch whose stamps advance by more than [`SLACK`] and
/// [`RUSH`] times its arrivals: nobody's clock runs so fast.
fn rushed(lines: &[Stamped]) -> Vec<bool> {
    let ahead = |l: &Stamped| l.stamp.saturating_sub(l.arrival.saturating_mul(RUSH));
    let mut most_after: Vec<Ns> = lines.iter().map(ahead).collect();
    for at in (1..most_after.len()).rev() {
        most_after[at - 1] = most_after[at - 1].max(most_after[at]);
    }
    let mut least_before = Ns::MAX;
    lines
        .iter()
        .zip(most_after)
        .map(|(line, most_after)| {
            least_before = least_before.min(ahead(line));
            most_after.saturating_sub(least_before) > SLACK
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Ns = 1_000_000;

    fn of(lines: &[(Ns, &str)]) -> Vec<LogMessage> {
        said(&lines.iter().map(|(ms, text)| (ms * MS, *text)).collect::<Vec<_>>())
    }

    #[test]
    fn stamps_are_read() {
        for (line, expected) in [
            ("[    0.000002] a", (Some(2_000), "a")),
            ("<6>[  12.000345][    T1] x y", (Some(12_000_345_000), "x y")),
            ("  [1.234567] [ C12]z", (Some(1_234_567_000), "z")),
            ("  no stamp", (None, "no stamp")),
            ("[1.23] short", (None, "[1.23] short")),
            ("[  OK  ] Started", (None, "[  OK  ] Started")),
            (
                "Jan  1 kern.notice kernel: [    0.0] Linux",
                (None, "Jan  1 kern.notice kernel: [    0.0] Linux"),
            ),
        ] {
            assert_eq!(split_stamp(line), expected, "{line}");
        }
    }

    #[test]
    fn what_was_held_back_and_what_is_live() {
        let said = of(&[
            (900, "[    0.000000] Linux version 6.1"),
            (901, "[    0.100000] held back"),
            (905, "[    0.700000] printk: console [ttyS0] enabled"),
            (1_300, "[    1.050000] live"),
            (1_310, "systemd[1]: no stamp"),
            (9_000, "[    4.000000] the clock lost seconds"),
        ]);
        use LogMessage::{HeldBack, Live, Unknown};
        assert_eq!(said, [HeldBack, HeldBack, Live, Live, Unknown, Live]);
    }

    #[test]
    fn a_log_that_is_printed_again_is_not_live() {
        let again = [
            (3_302, "[    0.000000] Linux version 6.1"),
            (3_303, "[    0.800000] printk: console [ttyS0] enabled"),
            (3_310, "[    1.900000] Freeing unused kernel image"),
            (3_320, "[    2.850000] Run /init as init process"),
        ];
        // `quiet`: there is no other.
        assert_eq!(of(&again), [LogMessage::Again; 4]);
        let mut both = vec![
            (300, "[    0.000000] Linux version 6.1"),
            (301, "[    0.800000] printk: console [ttyS0] enabled"),
            (2_350, "[    2.850000] Run /init as init process"),
        ];
        both.extend(again);
        both.push((7_000, "[    7.400000] random: crng init done"));
        let said = of(&both);
        assert_eq!(said[..3], [LogMessage::HeldBack, LogMessage::Live, LogMessage::Live]);
        assert_eq!(
            said[3..],
            [
                LogMessage::Again,
                LogMessage::Again,
                LogMessage::Again,
                LogMessage::Again,
                LogMessage::Live
            ]
        );
    }

    #[test]
    fn the_first_words_of_another_cpu_do_not_disturb_its_neighbours() {
        let said = of(&[
            (500, "[    0.300000] printk: console [ttyS0] enabled"),
            (3_700, "[    0.651582] .... node  #0, CPUs:      #1"),
            (3_770, "[    0.000000] calibrate_delay_direct() failed"),
            (3_770, "[    0.000000] Probably due to long platform interrupts."),
            (3_900, "[    0.889320] smp: Brought up 1 node, 2 CPUs"),
        ]);
        use LogMessage::{Again, Live};
        assert_eq!(said, [Live, Live, Again, Again, Live]);
    }

    proptest! {
        #[test]
        fn any_lines_are_survived(
            lines in proptest::collection::vec((any::<Ns>(), "(<6>)?\\[ {0,3}[0-9.]{0,12}\\].{0,9}|.{0,20}"), 0..30)
        ) {
            let lines: Vec<(Ns, &str)> = lines.iter().map(|(at, text)| (*at, text.as_str())).collect();
            prop_assert_eq!(said(&lines).len(), lines.len());
        }
    }
}
