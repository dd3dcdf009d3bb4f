//! A second kernel in the same run: the first starts it itself (kexec), with no reset of the machine
//! and no firmware between them; or it has the machine reset, and the VMM goes on.
//!
//! What comes from there on is nothing of the first kernel's, whatever it reads like. The first says
//! so (kernel: kernel/kexec_core.c, `kernel_kexec`), or the second introduces itself with a clock that
//! begins anew and goes on at the pace of a clock; an old log that somebody prints again rushes. One
//! whose console shows nothing of that (`quiet`, hvc0) has its log in RAM, which begins when programs
//! of the first had spoken.

use crate::anchors::Stamp;
use crate::authors::Authors;
use crate::console::records;
use crate::input::{Input, Seen};
use crate::landmarks::{KERNEL_ENTRIES, MAPPED, STARTED};
use crate::rules::XEN;
use std::collections::HashSet;
use vmeter_model::kernel_log::{comes_up, split_stamp, SLACK};
use vmeter_model::{EventKind, Ns};

/// What a kernel says last before it starts another: 4.3 on, and before that.
const STARTS: &[&str] =
    &["kexec_core: Starting new kernel", "kexec: Starting new kernel", "Starting new kernel"];
/// How a kernel introduces itself.
const BANNER: &str = "Linux version ";
/// What a kernel says before it executes its init.
const RUNS_INIT: (&str, &str) = ("Run ", " as init process");
/// What tells that a Linux kernel has begun.
const BEGUN: &[&str] = &["startup_64", "x86_64_start_kernel", "start_kernel", STARTED];
/// What a kernel says before the machine is reset: firmware comes next.
const RESETS: &[&str] = &["reboot: Restarting system", "reboot: machine restart"];
/// How firmware introduces itself on a console (SeaBIOS: src/sercon.c): all that is seen of a machine
/// that begins again with a kernel that says nothing (`quiet`).
pub(crate) const FIRMWARE: &str = "SeaBIOS (version ";
/// Lines of other CPUs and drivers that may come after the last word.
const MOST_AFTER: usize = 20;
/// A console is read so late on a busy host, ns.
const ARRIVES_WITHIN_NS: Ns = 50_000_000;
/// A clock is told by at least so many lines, over so long, ns.
const LEAST_LINES: usize = 10;
const LEAST_NS: Ns = 1_000_000_000;

/// How the first kernel gave way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// It started another, and said so.
    Kexec,
    /// Another began without a word of it.
    Silent,
    /// It had the machine reset.
    Reset,
}

/// What is of the second kernel.
#[derive(Debug)]
pub(crate) struct Later<'a> {
    /// When the first gave way.
    pub since: Stamp<'a>,
    /// How.
    pub by: By,
    /// What was seen from there on, up to a third kernel.
    pub input: Input<'a>,
}

/// Parts what was seen of the guest after its second kernel was started from the rest.
pub(crate) fn split<'a>(mut input: Input<'a>) -> (Input<'a>, Option<Later<'a>>) {
    let Some((index, by)) = started(&input.seen) else { return (input, None) };
    let last = input.seen[index];
    let at = match last.what {
        EventKind::ConsoleLine { end, .. } if by == By::Silent => {
            (*end).clamp(last.at, input.total)
        }
        _ => last.at,
    };
    let since = Stamp { at, ..Stamp::of(&last) };
    let later = input.seen.split_off(index + 1);
    let (own, mut guests): (Vec<Seen<'a>>, Vec<Seen<'a>>) =
        later.into_iter().partition(|s| of_process(s.what));
    input.seen.extend(own);
    if let Some((third, _)) = started(&guests) {
        guests.truncate(third + 1);
    }
    let input_later = Input {
        total: input.total,
        virtual_time: input.virtual_time,
        host_end: input.host_end,
        seen: guests,
        warnings: Vec::new(),
    };
    (input, Some(Later { since, by, input: input_later }))
}

/// True for what is of the VMM's process, or of the whole run.
fn of_process(what: &EventKind) -> bool {
    matches!(
        what,
        EventKind::VmmExiting
            | EventKind::WrapperResumed
            | EventKind::VmmExit
            | EventKind::VmmKilled
            | EventKind::Count { .. }
    )
}

/// A line of the console.
struct Line<'a> {
    index: usize,
    at: Ns,
    stamp: Option<Ns>,
    text: &'a str,
}

/// The last event of the first kernel, and how it gave way.
fn started(seen: &[Seen<'_>]) -> Option<(usize, By)> {
    // What comes later is said by a wrapper.
    let gone = |s: &Seen<'_>| {
        matches!(s.what, EventKind::VmmExiting | EventKind::VmmExit | EventKind::VmmKilled)
    };
    let exiting = seen.iter().find(|s| gone(s)).map_or(Ns::MAX, |s| s.at);
    let authors = Authors::of(seen);
    let of_console = seen.iter().enumerate().filter_map(|(index, s)| match s.what {
        EventKind::ConsoleLine { text, .. } if s.at <= exiting => {
            let (stamp, text) = split_stamp(text);
            let text = text.trim_end();
            let program = stamp.is_some_and(|stamp| authors.is_of_program(s.at, stamp, text));
            (!program).then_some(Line { index, at: s.at, stamp, text })
        }
        _ => None,
    });
    let lines: Vec<Line<'_>> = of_console.collect();
    let said = (0..lines.len()).find_map(|at| Some((lines[at].index, last_word(&lines, at)?)));
    let reset = reset(seen, &lines).map(|index| (index, By::Reset));
    if let Some(first) = [said, reset].into_iter().flatten().min_by_key(|(index, _)| *index) {
        return Some(first);
    }
    let banner = || (1..lines.len()).find(|at| begins_anew(&lines, *at));
    let index = by_log(seen, &lines).or_else(|| lines[banner()?].index.checked_sub(1))?;
    Some((index, By::Silent))
}

/// The last line of a program that came before the kernel whose log was read had executed its init,
/// and after a kernel had begun: it is of another kernel's programs. A hypervisor is none.
fn by_log(seen: &[Seen<'_>], lines: &[Line<'_>]) -> Option<usize> {
    let logged = || {
        seen.iter().filter_map(|s| match s.what {
            EventKind::KernelLine { text, by_program: false } => Some((s, text.trim_end())),
            _ => None,
        })
    };
    let runs = |text: &str| text.starts_with(RUNS_INIT.0) && text.ends_with(RUNS_INIT.1);
    let (init, _) = logged().find(|(_, text)| runs(text))?;
    let before = init.at.saturating_sub(init.error).saturating_sub(ARRIVES_WITHIN_NS);
    let own: HashSet<&str> = logged().map(|(_, text)| text).collect();
    // A kernel that stamps nothing (printk.time=0) has the looks of a program.
    if lines.iter().any(|line| line.stamp.is_none() && own.contains(line.text)) {
        return None;
    }
    let begun = seen.iter().position(|s| match s.what {
        EventKind::Reached { symbol } => {
            BEGUN.contains(&symbol.as_str()) && s.at + s.error < before
        }
        _ => false,
    });
    let stamped = lines.iter().find(|line| line.stamp.is_some()).map(|line| line.index);
    let ran = begun.into_iter().chain(stamped).min()?;
    let of_program = |line: &&Line<'_>| {
        line.index > ran
            && line.at < before
            && line.stamp.is_none()
            && line.text.chars().any(char::is_alphanumeric)
            && records(line.text).is_empty()
            && !begins_machine(line)
            && !line.text.starts_with(XEN)
    };
    let last = lines.iter().rposition(|line| of_program(&line) && !is_within(lines, line))?;
    lines.get(last).map(|line| line.index)
}

/// True for a line between two of one kernel, whose clock went on meanwhile as the host's did.
fn is_within(lines: &[Line<'_>], line: &Line<'_>) -> bool {
    let stamped = |of: &Line<'_>| Some((of.at, of.stamp?));
    let before =
        lines.iter().filter(|other| other.index < line.index).filter_map(stamped).next_back();
    let after = lines.iter().filter(|other| other.index > line.index).find_map(stamped);
    before.zip(after).is_some_and(|((at, stamp), (then, next))| {
        next >= stamp && (then - at).abs_diff(next - stamp) <= SLACK.unsigned_abs()
    })
}

/// The last event before the machine was reset, by the VMM's own word, once a kernel had run: a
/// firmware may begin anew before it boots anything.
fn reset(seen: &[Seen<'_>], lines: &[Line<'_>]) -> Option<usize> {
    let kernels = |what: &EventKind| match what {
        EventKind::Reached { symbol } => {
            symbol == MAPPED || KERNEL_ENTRIES.contains(&symbol.as_str())
        }
        _ => false,
    };
    let mut stamped = lines.iter().filter(|line| line.stamp.is_some()).map(|line| line.index);
    let ran = seen.iter().position(|s| kernels(s.what)).into_iter().chain(stamped.next()).min()?;
    let after = || seen.iter().enumerate().skip(ran);
    let (index, reset) = after().find(|(_, s)| *s.what == EventKind::MachineReset)?;
    // What the kernel said last may arrive later.
    let late = |line: &&Line<'_>| {
        line.at - reset.at <= ARRIVES_WITHIN_NS && line.stamp.is_some_and(|at| at > SLACK)
    };
    let last = lines.iter().filter(|line| line.index > index).take_while(late).last();
    Some(last.map_or(index, |line| line.index))
}

/// What a line says of another kernel, if it is the last of its own.
fn last_word(lines: &[Line<'_>], at: usize) -> Option<By> {
    let text = &lines[at].text;
    if STARTS.contains(text) {
        return is_last(lines, at).then_some(By::Kexec);
    }
    // Most runs end there; and a kernel says it twice.
    let mut after = lines[at + 1..].iter();
    let begins = |line: &&Line<'_>| begins_machine(line) || is_anothers(line, &lines[at]);
    let next = || after.find(|line| begins(line) || RESETS.contains(&line.text));
    let resets = RESETS.contains(text) && is_last(lines, at);
    let again = resets.then(next).flatten().is_some_and(|line| begins(&line));
    again.then_some(By::Reset)
}

/// True for a line after a kernel's last word that is not its own: its clock is behind, or it has
/// no stamp and comes when nothing of the first machine runs any more.
fn is_anothers(line: &Line<'_>, last: &Line<'_>) -> bool {
    let (Some(ended), late) = (last.stamp, line.at - last.at > ARRIVES_WITHIN_NS) else {
        return false;
    };
    let readable = line.text.chars().any(char::is_alphanumeric);
    late && line.stamp.map_or(readable, |stamp| stamp.saturating_add(ARRIVES_WITHIN_NS) < ended)
}

/// True for the first line of a kernel, or of a machine's firmware.
fn begins_machine(line: &Line<'_>) -> bool {
    line.text.starts_with(BANNER) || line.stamp.is_none() && line.text.starts_with(FIRMWARE)
}

/// True if a kernel says no more after this line: what follows begins with a clock of its own, or
/// has none.
fn is_last(lines: &[Line<'_>], at: usize) -> bool {
    let after = &lines[at + 1..];
    let Some(stamp) = lines[at].stamp else {
        // A kernel that stamps nothing.
        let none = lines.iter().all(|line| line.stamp.is_none());
        return none && after.iter().take(MOST_AFTER).any(begins_machine);
    };
    let stamps = after.iter().filter_map(|line| line.stamp);
    stamps.take_while(|next| next.saturating_add(SLACK) >= stamp).count() <= MOST_AFTER
}

/// True for a kernel's first line behind another kernel's, whose clock begins with it.
fn begins_anew(lines: &[Line<'_>], at: usize) -> bool {
    let banner = &lines[at];
    if banner.stamp != Some(0) || !banner.text.starts_with(BANNER) {
        return false;
    }
    let before = &lines[..at];
    let ran = before.iter().filter_map(|line| line.stamp).any(|stamp| stamp > SLACK);
    let reset = before.iter().any(|line| RESETS.contains(&line.text));
    ran && !reset && paced(&lines[at..])
}

/// True if stamps from the first line that is printed as it is said advance no faster than arrivals.
fn paced(lines: &[Line<'_>]) -> bool {
    let Some(up) = lines.iter().position(|line| comes_up(line.text)) else { return false };
    let stamped = lines[up..].iter().filter_map(|line| Some((line.at, line.stamp?)));
    let mut last: Option<(Ns, Ns)> = None;
    let own: Vec<(Ns, Ns)> = stamped
        .take_while(|(_, stamp)| {
            let goes_on = last.is_none_or(|(_, before)| stamp.saturating_add(SLACK) >= before);
            last = Some((0, *stamp));
            goes_on
        })
        .collect();
    let (Some(first), Some(last)) = (own.first(), own.last()) else { return false };
    let fast = |a: &(Ns, Ns), b: &(Ns, Ns)| b.1 - a.1 > (b.0 - a.0).saturating_add(SLACK);
    own.len() >= LEAST_LINES
        && last.1 - first.1 >= LEAST_NS
        && !fast(first, last)
        && !own.windows(2).any(|pair| fast(&pair[0], &pair[1]))
}
