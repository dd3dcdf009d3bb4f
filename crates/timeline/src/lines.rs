//! Lines of text to what they mean, by the table in [`crate::patterns`].

use crate::anchors::Stamp;
use crate::authors::Authors;
use crate::input::Seen;
use crate::patterns::{Means, On, Pattern, Says, PATTERNS};
use crate::systemd::{self, can_be_logged};
use regex::RegexSet;
use std::collections::{BTreeMap, HashSet};
use std::sync::OnceLock;
use vmeter_model::expression::compiled;
use vmeter_model::kernel_log::{self, split_stamp, LogMessage};
use vmeter_model::time::seconds;
use vmeter_model::{EventKind, Ns};

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
    /// False if its time is only the latest that it can be.
    pub timed: bool,
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
    /// True if it came over the console, and not out of the log buffer.
    pub console: bool,
    /// False if its time is only the latest that it can be.
    pub timed: bool,
    /// True if a program wrote it into the kernel's log.
    pub by_program: bool,
    /// True if it came over the console before any line of a kernel.
    pub early: bool,
    /// Where in the whole line what arrived later begins, and when it arrived.
    later: &'a [(u32, Ns)],
    /// Bytes of the whole line before `text`.
    cut: usize,
}

impl<'a> Line<'a> {
    /// When what is at this byte of the text was printed: a line may have waited unfinished.
    pub(crate) fn at_of(&self, offset: usize) -> Ns {
        let offset = offset.saturating_add(self.cut);
        let before = self.later.iter().take_while(|(from, _)| *from as usize <= offset);
        before.last().map_or(self.at, |(_, at)| (*at).clamp(self.at, self.end.max(self.at)))
    }

    /// The line as it grew: one that waited in its middle for so long, ns, is there as far as it
    /// had come before, and again from when it went on. One that goes on time and again shows
    /// progress: it is there with what it began with, and again when it was whole.
    pub(crate) fn grown(&self, waits: Ns) -> Vec<Line<'a>> {
        let pieces = self.pieces(waits);
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return pieces };
        if pieces.len() <= MOST_WAITS {
            return pieces;
        }
        let bare = first.text.trim_end_matches(|c: char| !c.is_alphanumeric());
        let text = if bare.is_empty() { first.text } else { bare };
        vec![Line { end: last.at, text, ..*first }, *last]
    }

    fn pieces(&self, waits: Ns) -> Vec<Line<'a>> {
        let mut grown: Vec<Line<'a>> = Vec::new();
        let (mut from, mut last) = (self.at, self.at);
        for (offset, at) in self.later {
            let offset = (*offset as usize).saturating_sub(self.cut);
            let begun = self.text.get(..offset).filter(|text| !text.trim().is_empty());
            if let Some(text) =
                begun.filter(|_| *at - last >= waits && from <= *at && *at <= self.end)
            {
                grown.push(Line { at: from, end: last, text, later: &[], ..*self });
                from = *at;
            }
            last = *at;
        }
        grown.push(Line { at: from, later: &[], ..*self });
        grown
    }

    /// A line from before the kernel's clock ran: it was printed by `at`.
    fn clockless(&mut self, at: Ns) {
        self.at = at.clamp(0, self.at);
        self.end = self.at;
        self.later = &[];
        self.error = self.error.max(NO_TIME_ERROR_NS.min(self.at));
        self.timed = false;
    }
}

/// A line that comes in more pieces shows progress.
const MOST_WAITS: usize = 3;
/// How far off the kernel's clock is while its TSC is still being calibrated.
pub(crate) const EARLY_CLOCK_ERROR_NS: Ns = 10_000_000;
/// Error of a line without a time of its own: stamped 0, before the kernel's
/// clock ran, and shown when the console came up. The clock is started in `setup_arch` when
/// the TSC is calibrated, which may fail at first: by the TCG plugin's stamps up to 1.5 s
/// after the kernel's entry, on two CPUs with a load of 16.
pub(crate) const NO_TIME_ERROR_NS: Ns = 2_000_000_000;

/// An entry that is off by more is that of the kernel's clock, which starts later.
pub(crate) const EXACT_NS: Ns = 200_000_000;
/// What a line without a time of its own is off by, with what a line is anyway: what is off by more
/// is not known to be in its place.
pub(crate) const CLOCK_START_NS: Ns = NO_TIME_ERROR_NS + EXACT_NS;

/// Every line of the run, in order of arrival.
pub(crate) fn lines<'a>(seen: &[Seen<'a>], total: Ns) -> Vec<Line<'a>> {
    let authors = Authors::of(seen);
    let said = said_by(seen, &authors);
    let first_said = |s: &(&Seen<'a>, LogMessage)| s.1 != LogMessage::Again;
    let said = seen.iter().zip(said).filter(first_said);
    let mut lines: Vec<Line<'a>> = said.filter_map(|(s, _)| line(s, total)).collect();
    let of_kernel = |l: &Line<'_>| l.console && (l.stamp.is_some() || l.text.starts_with(BANNER));
    let kernel = lines.iter().position(of_kernel).unwrap_or(lines.len());
    lines[..kernel].iter_mut().for_each(|line| line.early = line.console);
    shown_of_programs(&authors, &mut lines);
    distrust_clockless(&mut lines);
    let Some(live) = lines.iter().position(comes_up) else { return lines };
    let stamp = lines[live].stamp.filter(|stamp| *stamp > 0);
    let zero = stamp.map(|stamp| lines[live].at.saturating_sub(stamp));
    let ticks = lines[..live].iter().position(|line| kernel_log::counts_ticks(line.text));
    let lost = if ticks.is_some() { lost(&lines).unwrap_or(NO_TIME_ERROR_NS) } else { 0 };
    for (index, line) in lines[..live].iter_mut().enumerate() {
        let Some(stamp) = line.stamp else { continue };
        // Between its beginning to count ticks and its end of it a clock lost some of that.
        let (at, off) = if ticks.is_some_and(|ticks| index > ticks) {
            (zero.map(|zero| zero - lost / 2), lost / 2)
        } else {
            (zero.map(|zero| zero - lost), 0)
        };
        match at {
            Some(zero) if stamp > 0 => {
                line.at = zero.saturating_add(stamp).clamp(0, line.at);
                line.end = line.at;
                line.later = &[];
                line.error = line.error.max(EARLY_CLOCK_ERROR_NS.saturating_add(off));
            }
            Some(zero) => line.clockless(zero),
            None => line.clockless(line.at),
        }
    }
    lines
}

/// The console does not say who wrote a line; the log's own records do.
fn shown_of_programs(authors: &Authors<'_>, lines: &mut [Line<'_>]) {
    for line in lines.iter_mut().filter(|l| l.console) {
        let Some(stamp) = line.stamp else { continue };
        line.by_program = authors.is_of_program(line.at, stamp, line.text);
    }
}

/// How much the kernel's clock lost as long as it counted ticks, ns, where its console says.
fn lost(lines: &[Line<'_>]) -> Option<Ns> {
    let said = lines.iter().filter(|line| line.console && line.stamp.is_some());
    said.filter_map(|line| kernel_log::lost(line.text)).next().map(|lost| lost.max(0))
}

/// When the clock of a kernel began whose console shows no line from before that, and how far off
/// that is: by what it lost since, and by what the kernel did without a clock.
pub(crate) fn begun<'a>(lines: &[Line<'a>]) -> Option<Stamp<'a>> {
    let live = |l: &&Line<'_>| l.console && l.timed && l.error < EARLY_CLOCK_ERROR_NS;
    let stamped = || lines.iter().filter(live).filter_map(|l| Some((l, l.stamp?)));
    let (first, _) = stamped().next().filter(|(_, stamp)| *stamp > 0)?;
    let least_late = stamped().map(|(l, stamp)| l.at.saturating_sub(stamp)).min()?;
    let at = least_late.saturating_sub(lost(lines).unwrap_or(0)).clamp(0, first.at);
    let lost = lost(lines).map_or(at, |_| 0);
    Some(Stamp { at, error: NO_TIME_ERROR_NS.saturating_add(lost), source: first.source })
}

/// How a kernel introduces itself.
pub(crate) const BANNER: &str = "Linux version ";

/// For each event that is a line of the console, when it was said.
pub(crate) fn said(seen: &[Seen<'_>]) -> Vec<LogMessage> {
    said_by(seen, &Authors::of(seen))
}

fn said_by(seen: &[Seen<'_>], authors: &Authors<'_>) -> Vec<LogMessage> {
    let kernels = |at: Ns, text: &str| {
        let (stamp, text) = kernel_log::split_stamp(text);
        stamp.is_none_or(|stamp| !authors.is_of_program(at, stamp, text))
    };
    let console = seen.iter().enumerate().filter_map(|(index, s)| match s.what {
        EventKind::ConsoleLine { text, .. } if kernels(s.at, text) => {
            Some((index, (s.at, text.as_str())))
        }
        _ => None,
    });
    let (indices, lines): (Vec<usize>, Vec<(Ns, &str)>) = console.unzip();
    let mut said = vec![LogMessage::Unknown; seen.len()];
    for (index, is) in indices.into_iter().zip(kernel_log::said(&lines)) {
        said[index] = is;
    }
    said
}

/// What is to be told of lines that say nothing of when they were said.
pub(crate) fn said_again(seen: &[Seen<'_>]) -> Option<String> {
    let said = said(seen);
    let again =
        || seen.iter().zip(&said).filter(|(_, is)| **is == LogMessage::Again).map(|(s, _)| s.at);
    let first = seconds(again().next()?);
    Some(match again().count() {
        1 => format!(
            "vmeter ignores the time of 1 kernel log line: its time stamp does not fit the moment \
                ({first:.3} s) when the console showed the line. Possible causes: dmesg or klogd \
                printed the line again, the console lagged, or the CPU that logged the line had \
                not started its clock yet (stamp 0)"
        ),
        count => format!(
            "vmeter ignores the times of {count} kernel log lines: the time stamps of these lines \
                do not fit the moments when the console showed the lines. The console showed the \
                earliest of these lines at {first:.3} s. Possible causes: dmesg or klogd printed \
                the lines again, the console lagged, or the CPU that logged a line had not \
                started its clock yet (stamp 0)"
        ),
    })
}

/// Records of the log buffer from before the kernel's clock ran have one stamp in
/// common, which is later than any of them.
fn distrust_clockless(lines: &mut [Line<'_>]) {
    let mut firsts: BTreeMap<&str, (Ns, usize)> = BTreeMap::new();
    let records = |l: &&mut Line<'_>| l.on == On::Kernel && !l.console;
    for line in lines.iter_mut().filter(records) {
        let (at, count) = firsts.entry(line.source).or_insert((line.at, 0));
        *count += usize::from(*at == line.at);
    }
    for line in lines.iter_mut().filter(records) {
        if firsts.get(line.source).is_some_and(|(at, count)| *at == line.at && *count > 2) {
            line.clockless(line.at);
        }
    }
}

/// True for the line by which the kernel says that the serial console works: it
/// has just printed all that it had held back until then (kernel:
/// kernel/printk/printk.c, `register_console`).
fn comes_up(line: &Line<'_>) -> bool {
    line.stamp.is_some() && kernel_log::comes_up(line.text)
}

fn line<'a>(seen: &Seen<'a>, total: Ns) -> Option<Line<'a>> {
    let none: &[(u32, Ns)] = &[];
    let (on, whole, end, later, console) = match seen.what {
        EventKind::FirmwareLine { text } => (On::Firmware, text, seen.at, none, false),
        EventKind::KernelLine { text, .. } => (On::Kernel, text, seen.at, none, false),
        EventKind::ConsoleLine { text, end, later } => {
            (On::Kernel, text, *end, later.as_slice(), true)
        }
        _ => return None,
    };
    let (stamp, text) = match on {
        On::Kernel => split_stamp(whole),
        On::Firmware | On::Loader => (None, whole.as_str()),
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
        console,
        by_program: matches!(seen.what, EventKind::KernelLine { by_program: true, .. }),
        // What may be anywhere tells when nothing was.
        timed: seen.error <= CLOCK_START_NS,
        early: false,
        later,
        // What is left is the whole's end.
        cut: whole.len() - text.len(),
    })
}

/// What the lines mean, in their order.
pub(crate) fn hits<'a>(lines: &[Line<'a>]) -> Vec<Hit<'a>> {
    let stamps = systemd::stamps(lines);
    let mut hits = Vec::new();
    let mut once: HashSet<&'static str> = HashSet::new();
    let mut then: Option<&'static str> = None;
    for line in lines {
        if line.early {
            find(line, On::Loader, stamps, &mut once, &mut hits);
        }
        let found = hits.len();
        find(line, line.on, stamps, &mut once, &mut hits);
        if line.on == On::Firmware && !line.text.is_empty() {
            match then.take() {
                Some(name) if hits.len() == found => {
                    hits.push(hit(line, line.on, Means::Part(name)))
                }
                _ => {}
            }
            if let Some(Means::PartUntilNextLine(_, next)) = hits[found..].last().map(|h| h.means) {
                then = Some(next);
            }
        }
    }
    hits
}

/// What one line means as a text of one kind. Where the kernel's log `stamps` its lines, what has
/// no stamp is a program's, whatever it reads like.
fn find<'a>(
    line: &Line<'a>,
    on: On,
    stamps: bool,
    once: &mut HashSet<&'static str>,
    hits: &mut Vec<Hit<'a>>,
) {
    let matched = set(on).matches(line.text);
    let patterns = PATTERNS.iter().filter(|p| p.on == on).enumerate();
    for (_, pattern) in patterns.filter(|(index, _)| matched.matched(*index)) {
        let may = match pattern.by {
            Says::Kernel => can_be_logged(line, stamps) && !line.by_program,
            Says::Logger => can_be_logged(line, stamps),
            Says::Any => true,
        };
        if !may {
            continue;
        }
        let again = matches!(pattern.means, Means::FirstPart(name) if !once.insert(name));
        if !again {
            hits.push(Hit { at: found_at(line, pattern), ..hit(line, on, pattern.means) });
        }
    }
}

/// When what a pattern found in a line was printed.
fn found_at(line: &Line<'_>, pattern: &Pattern) -> Ns {
    if line.later.is_empty() || pattern.regex.starts_with('^') {
        return line.at;
    }
    // It is seldom that a line waits in its middle.
    let found = compiled(pattern.regex).and_then(|regex| Some(regex.find(line.text)?.start()));
    found.map_or(line.at, |offset| line.at_of(offset))
}

fn hit<'a>(line: &Line<'a>, on: On, means: Means) -> Hit<'a> {
    let Line { at, error, source, text, timed, .. } = *line;
    Hit { at, error, source, on, text, means, timed }
}

fn set(on: On) -> &'static RegexSet {
    static FIRMWARE: OnceLock<RegexSet> = OnceLock::new();
    static LOADER: OnceLock<RegexSet> = OnceLock::new();
    static KERNEL: OnceLock<RegexSet> = OnceLock::new();
    let cell = match on {
        On::Firmware => &FIRMWARE,
        On::Loader => &LOADER,
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
        for on in [On::Firmware, On::Loader, On::Kernel] {
            assert_eq!(set(on).len(), PATTERNS.iter().filter(|p| p.on == on).count());
        }
    }

    #[test]
    fn held_back_lines_are_put_where_they_were_printed() {
        let line =
            |text: &str, end| EventKind::ConsoleLine { text: text.into(), end, later: vec![] };
        let whats = [
            line("[    0.000000] Linux version 6.1", 900_000_000),
            line("[    0.100000] held back", 900_000_000),
            line("[    0.300000] printk: console [ttyS0] enabled", 901_100_000),
            line("[    0.400000] live, and the clock was corrected", 1_041_100_000),
        ];
        let seen: Vec<Seen<'_>> = whats
            .iter()
            .zip([899_000_000, 899_500_000, 901_000_000, 1_041_000_000])
            .map(|(what, at)| Seen { at, error: 200_000, source: "console", insns: None, what })
            .collect();
        let lines = lines(&seen, 2_000_000_000);
        let placed: Vec<(Ns, Ns)> = lines.iter().map(|l| (l.at, l.error)).collect();
        let held_back = [(601_000_000, 601_000_000), (701_000_000, EARLY_CLOCK_ERROR_NS)];
        assert_eq!(
            placed,
            [held_back[0], held_back[1], (901_000_000, 200_000), (1_041_000_000, 200_000)]
        );
    }

    #[test]
    fn what_a_line_goes_on_with_has_its_own_time() {
        let text = "[    1.000000] ok, Sent SIGTERM to all processes".to_owned();
        let later = vec![(15, 800), (19, 900)];
        let what = EventKind::ConsoleLine { text, end: 950, later };
        let seen = [Seen { at: 500, error: 5, source: "console", insns: None, what: &what }];
        let lines = lines(&seen, 2_000);
        assert_eq!((lines[0].at, lines[0].at_of(0), lines[0].at_of(4)), (500, 800, 900));
        let hits = hits(&lines);
        assert_eq!(hits.iter().map(|hit| hit.at).collect::<Vec<_>>(), [900]);
    }
}
