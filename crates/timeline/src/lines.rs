//! Lines of text to what they mean, by the table in [`crate::patterns`].

use crate::console::split_stamp;
use crate::input::Seen;
use crate::patterns::{Means, On, PATTERNS};
use regex::RegexSet;
use std::collections::HashSet;
use std::sync::OnceLock;
use vmeter_model::{Ns, What};

/// A line that means something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit<'a> {
    /// When it was printed, ns after exec.
    pub at: Ns,
    /// How far off that can be, ns.
    pub error: Ns,
    /// Who saw it.
    pub source: &'a str,
    /// Which text it is from.
    pub on: On,
    /// The line without its stamp.
    pub text: &'a str,
    /// What it means.
    pub means: Means,
}

/// A line with the best stamp that can be given to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    /// When it was printed, ns after exec.
    pub at: Ns,
    /// When its last byte had been printed, ns after exec.
    pub end: Ns,
    /// How far off these can be, ns.
    pub error: Ns,
    /// Who saw it.
    pub source: &'a str,
    /// Which text it is from.
    pub on: On,
    /// The line without its stamp.
    pub text: &'a str,
    /// The kernel's clock at the line, ns, where printed.
    pub stamp: Option<Ns>,
}

/// A line shown this much later than its stamp says was held back: everything
/// from before the console driver came up is printed at once when it does.
const HELD_BACK_NS: Ns = 5_000_000;
/// The kernel's clock is corrected while it boots (`sched_clock: Marking
/// stable`), by up to this much in what we have measured.
const KERNEL_CLOCK_ERROR_NS: Ns = 40_000_000;
/// Stamped lines that vote for the kernel clock's zero.
const VOTERS: usize = 400;

/// Every line of the run, in order of arrival.
pub(crate) fn lines<'a>(seen: &[Seen<'a>], total: Ns) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = seen.iter().filter_map(|s| line(s, total)).collect();
    let zero = kernel_zero(seen);
    for line in &mut lines {
        let Some((zero, stamp)) = zero.zip(line.stamp) else { continue };
        let printed = zero.saturating_add(stamp);
        if line.end >= line.at && line.at.saturating_sub(printed) > HELD_BACK_NS {
            line.at = printed.clamp(0, total);
            line.end = line.at;
            line.error = line.error.max(KERNEL_CLOCK_ERROR_NS);
        }
    }
    lines
}

fn line<'a>(seen: &Seen<'a>, total: Ns) -> Option<Line<'a>> {
    let (on, text, end, console) = match seen.what {
        What::FirmwareLine { text } => (On::Firmware, text, seen.at, false),
        What::KernelLine { text } => (On::Kernel, text, seen.at, false),
        What::ConsoleLine { text, end } => (On::Kernel, text, *end, true),
        _ => return None,
    };
    let (stamp, text) = match on {
        On::Kernel => split_stamp(text),
        On::Firmware => (None, text.as_str()),
    };
    Some(Line {
        at: seen.at,
        end: end.clamp(seen.at, total.max(seen.at)),
        error: seen.error,
        source: seen.source,
        on,
        text,
        // Records of the log buffer come with an aligned stamp of their own.
        stamp: stamp.filter(|_| console),
    })
}

/// When the kernel's clock was 0, ns after exec: no line arrives before it is
/// stamped, so the earliest that any line allows. None without stamped lines.
pub(crate) fn kernel_zero(seen: &[Seen<'_>]) -> Option<Ns> {
    seen.iter()
        .filter_map(|s| match s.what {
            What::ConsoleLine { text, .. } => {
                split_stamp(text).0.map(|stamp| s.at.saturating_sub(stamp))
            }
            _ => None,
        })
        .take(VOTERS)
        .min()
        .filter(|zero| *zero >= 0)
}

/// What the lines mean, in their order.
pub(crate) fn hits<'a>(lines: &[Line<'a>]) -> Vec<Hit<'a>> {
    let mut hits = Vec::new();
    let mut once: HashSet<&'static str> = HashSet::new();
    let mut then: Option<&'static str> = None;
    for line in lines {
        let matched = set(line.on).matches(line.text);
        let patterns = PATTERNS.iter().filter(|p| p.on == line.on);
        let found = hits.len();
        for (_, pattern) in patterns.enumerate().filter(|(i, _)| matched.matched(*i)) {
            if let Means::FirstPart(name) = pattern.means {
                if !once.insert(name) {
                    continue;
                }
            }
            hits.push(hit(line, pattern.means));
        }
        if line.on == On::Firmware && !line.text.is_empty() {
            match then.take() {
                Some(name) if hits.len() == found => hits.push(hit(line, Means::Part(name))),
                _ => {}
            }
            if let Some(Means::PartUntilNextLine(_, next)) = hits[found..].last().map(|h| h.means) {
                then = Some(next);
            }
        }
    }
    hits
}

fn hit<'a>(line: &Line<'a>, means: Means) -> Hit<'a> {
    let (at, error, source, on, text) = (line.at, line.error, line.source, line.on, line.text);
    Hit { at, error, source, on, text, means }
}

fn set(on: On) -> &'static RegexSet {
    static FIRMWARE: OnceLock<RegexSet> = OnceLock::new();
    static KERNEL: OnceLock<RegexSet> = OnceLock::new();
    let cell = match on {
        On::Firmware => &FIRMWARE,
        On::Kernel => &KERNEL,
    };
    cell.get_or_init(|| {
        let regexes = PATTERNS.iter().filter(|p| p.on == on).map(|p| p.regex);
        // A wrong expression would silence the table; a test compiles it.
        RegexSet::new(regexes).unwrap_or_else(|_| RegexSet::empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_compiles() {
        for on in [On::Firmware, On::Kernel] {
            assert_eq!(set(on).len(), PATTERNS.iter().filter(|p| p.on == on).count());
        }
    }

    #[test]
    fn held_back_lines_are_put_where_they_were_printed() {
        let line = |text: &str, end| What::ConsoleLine { text: text.into(), end };
        let whats = [
            line("[    0.000000] Linux version 6.1", 900_000_000),
            line("[    0.300000] live", 901_100_000),
            line("[    0.400000] live", 1_001_100_000),
        ];
        let seen: Vec<Seen<'_>> = whats
            .iter()
            .zip([899_000_000, 901_000_000, 1_001_000_000])
            .map(|(what, at)| Seen { at, error: 200_000, source: "console", insns: None, what })
            .collect();
        let lines = lines(&seen, 2_000_000_000);
        assert_eq!((lines[0].at, lines[0].error), (601_000_000, KERNEL_CLOCK_ERROR_NS));
        assert_eq!((lines[2].at, lines[2].end), (1_001_000_000, 1_001_100_000));
    }
}
